"""The loop nest of a recurrent layer.

    parallel for the chunks of rows (of the batch):
      for the steps, for the blocks of columns, for the register tiles of rows:
        sums[rows][blocks][gates] = hidden state x weight, in registers
        cell, of the sums and the gates of the step -> row of the output, cells
      the rows of the output are the next hidden state

A packed weight has the columns of a block side by side, those of all gates one after the other: a tile has what its
cells need. Rows are independent of each other, so that no thread ever waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nnvm import te
from nnvm.dim import ceildiv, estimate, numel
from nnvm.graph.types import TensorType
from nnvm.ops.nests import argument_buffers, function, loop
from nnvm.te.expr import INDEX, Binary, Broadcast, Buffer, Const, Expr, Fma, Load, Ramp, Var
from nnvm.tir.stmt import Allocate, If, Let, PrimFunc, Stmt, Store, seq

__all__ = ["GATES", "recurrent_nest"]

#: Gates of each kind of cell.
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
#: Sums that a tile has at least, where there are columns for them: a sum waits four cycles for its last addition, and
#: two are made in a cycle.
_LEAST_SUMS = 8
#: Tiles of rows that share a reading of the weight in a chunk, at most.
_CHUNK_TILES = 4
#: Multiply-adds below which one thread does it all.
_PARALLEL_WORK = 1 << 16
#: Steps of a sequence of which nothing is known.
_STEPS = 64


def recurrent_nest(
    kind: str, reverse: bool, block: int, sums: int, inputs: Sequence[TensorType], outputs: Sequence[TensorType],
    name: str,
) -> PrimFunc:  # fmt: skip
    """The kernel of the op ``recurrent`` (ops/recurrent.py) with these attributes, on contiguous memory."""
    given, made = argument_buffers(inputs, outputs)
    size = outputs[1].shape[1]
    assert isinstance(size, int), "the type rule has seen to it"
    (x, weight, hidden, *more), (out, last, *cells) = given, made
    layer = _Layer(kind, reverse, max(block, 1), size, x, weight, hidden, next(iter(more), None), out, last,
                   next(iter(cells), None))  # fmt: skip
    return function(name, given, made, [_chunks(layer, sums if block else GATES[kind])])


@dataclass(frozen=True)
class _Layer:
    """Buffers of the kernel; `last` is the hidden state throughout. `lanes`: columns of a block."""

    kind: str
    reverse: bool
    lanes: int
    size: int
    x: Buffer
    weight: Buffer
    hidden: Buffer
    more: Buffer | None
    out: Buffer
    last: Buffer
    cells: Buffer | None

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    def zero(self) -> Expr:
        return self.wide(Const(0.0, self.x.dtype))

    def wide(self, e: Expr) -> Expr:
        return Broadcast(e, self.lanes) if self.lanes > 1 else e

    def along(self, first: Expr) -> Expr:
        """The columns of a block, from `first` on."""
        return Ramp(first, 1, self.lanes) if self.lanes > 1 else first

    def mask(self, count: int) -> Expr | None:
        """The first `count` columns of a block; None: all."""
        if count == self.lanes:
            return None
        return Binary("lt", Ramp(Const(0, INDEX), 1, self.lanes), Broadcast(Const(count, INDEX), self.lanes))


def _chunks(layer: _Layer, sums: int) -> Stmt:
    """All rows, in chunks for the threads."""
    steps, batch, columns = layer.x.shape
    rows = max(1, sums // layer.gates)
    chunk = rows * _CHUNK_TILES
    shared = True
    if isinstance(batch, int):
        tiles = max(1, -(-batch // rows))
        rows = max(1, -(-batch // tiles))
        chunks = -(-tiles // _CHUNK_TILES)
        chunks += chunks % 2 if tiles > 1 else 0  # shared by two threads as by one
        chunk = rows * -(-tiles // chunks)
        shared = batch > chunk and estimate(numel((steps, batch, columns, layer.size)), _STEPS) >= _PARALLEL_WORK

    def body(i: Expr) -> Stmt:
        first = i * te.const(chunk)
        return _rows(layer, first, te.minimum(te.const(batch) - first, te.const(chunk)), rows, sums)

    return loop("chunk", ceildiv(batch, chunk), body, "parallel" if shared else "serial")


def _rows(layer: _Layer, first: Expr, count: Expr, rows: int, sums: int) -> Stmt:
    """The rows of a chunk from `first` on, in register tiles of `rows`."""
    steps, batch = layer.x.shape[:2]
    full = count // rows
    end = first + full * rows

    def blocks(height: int) -> int:
        return max(1, min(-(-_LEAST_SUMS // (height * layer.gates)), sums // (height * layer.gates)))

    def step(t: Expr) -> list[Stmt]:
        at = te.const(steps) - 1 - t if layer.reverse else t

        def tiles(tile: _Columns) -> Stmt:
            return loop("tile", full, lambda i: _tile(layer, at, first + i * rows, rows, tile))

        def both(tile: _Columns) -> Stmt:
            return seq([tiles(tile), If((count % rows).equal(rest), _tile(layer, at, end, rest, tile))])

        def singly(tile: _Columns) -> Stmt:
            return loop("row", count - full * rows, lambda i: _tile(layer, at, end + i, 1, tile))

        if not isinstance(batch, int):
            out = [*_columns(layer, blocks(rows), tiles), *(_columns(layer, blocks(1), singly) if rows > 1 else ())]
        elif rest := batch % rows:
            out = _columns(layer, blocks(rows), both)
        else:
            out = _columns(layer, blocks(rows), tiles)
        return [*out, _copy_rows(layer, layer.out, (at,), layer.last, first, count)]

    begin = [_copy_rows(layer, layer.hidden, (), layer.last, first, count)]
    if layer.cells is not None:
        assert layer.more is not None
        begin.append(_copy_rows(layer, layer.more, (), layer.cells, first, count))
    return seq([*begin, loop("t", steps, step)])


@dataclass(frozen=True)
class _Columns:
    """The columns of a tile: `count` blocks from `block` on; of the last, `columns` are there."""

    block: Expr
    count: int
    columns: int


def _columns(layer: _Layer, together: int, body: Callable[[_Columns], Stmt]) -> list[Stmt]:
    """`body` for all blocks of columns, so many of them at a time."""
    whole, rest = divmod(layer.size, layer.lanes)
    out: list[Stmt] = []
    if whole // together:
        out.append(loop("j", whole // together, lambda j: body(_Columns(j * together, together, layer.lanes))))
    if left := whole % together:
        out.append(body(_Columns(te.const(whole - left), left, layer.lanes)))
    if rest:
        out.append(body(_Columns(te.const(whole), 1, rest)))
    return out


def _copy_rows(layer: _Layer, source: Buffer, at: tuple[Expr, ...], into: Buffer, first: Expr, count: Expr) -> Stmt:
    """`count` rows from `first` on of `source[at]` as those of `into`."""

    def row(i: Expr) -> list[Stmt]:
        def block(c: _Columns) -> Stmt:
            column, mask = layer.along(c.block * layer.lanes), layer.mask(c.columns)
            return Store(into, (first + i, column), Load(source, (*at, first + i, column), mask), mask)

        return _columns(layer, 1, block)

    return loop("row", count, row)


def _tile(layer: _Layer, at: Expr, row: Expr, rows: int, columns: _Columns) -> Stmt:
    """A register tile: `rows` rows of the batch from `row` on, at the step `at`."""
    gates, lanes = layer.gates, layer.lanes
    sums = Buffer("sums", (rows * columns.count * gates * lanes,), layer.x.dtype, None, "local")

    def place(r: int, b: int, gate: int) -> tuple[Expr]:
        return (layer.along(Const(((r * columns.count + b) * gates + gate) * lanes, INDEX)),)

    every = [(r, b, gate) for r in range(rows) for b in range(columns.count) for gate in range(gates)]

    def add(k: Expr) -> list[Stmt]:
        state = [layer.wide(te.load(layer.last, (row + r, k))) for r in range(rows)]
        return [Store(sums, place(*p), Fma(state[p[0]], _weight(layer, columns.block + p[1], k, p[2]),
                                           Load(sums, place(*p)))) for p in every]  # fmt: skip

    def cell(r: int, b: int) -> Stmt:
        products = [Load(sums, place(r, b, gate)) for gate in range(gates)]
        return _cell(layer, at, row + r, columns.block + b, columns.columns, products)

    cells = [cell(r, b) for r in range(rows) for b in range(columns.count)]
    zero = [Store(sums, place(*p), layer.zero()) for p in every]
    return Allocate(sums, seq([*zero, loop("k", layer.size, add), *cells]))


def _weight(layer: _Layer, block: Expr, k: Expr, gate: int) -> Expr:
    if len(layer.weight.shape) == 2:
        return te.load(layer.weight, (block + gate * layer.size, k))
    return Load(layer.weight, (block, k, te.const(gate), layer.along(te.const(0))))


def _cell(layer: _Layer, at: Expr, row: Expr, block: Expr, columns: int, sums: Sequence[Expr]) -> Stmt:
    """The new state of a row in a block of columns, of the products `sums` of its gates."""
    mask, first = layer.mask(columns), block * layer.lanes
    column = layer.along(first)

    def load(buffer: Buffer, *index: Expr) -> Expr:
        return Load(buffer, index, mask)

    x = [load(layer.x, at, row, layer.along(first + gate * layer.size)) for gate in range(layer.gates)]
    if layer.kind == "gru":
        r, z = (te.unary("sigmoid", a + b) for a, b in zip(x, sums[:2]))
        product = sums[2] if layer.more is None else sums[2] + load(layer.more, column)
        new = te.unary("tanh", x[2] + r * product)
        return Store(layer.out, (at, row, column), new + z * (load(layer.last, row, column) - new), mask)
    gates = [a + b for a, b in zip(x, sums)]
    if layer.kind != "lstm":
        h = te.unary("tanh", gates[0]) if layer.kind == "rnn_tanh" else te.maximum(gates[0], layer.zero())
        return Store(layer.out, (at, row, column), h, mask)
    assert layer.cells is not None
    i, f, o = (te.unary("sigmoid", gates[n]) for n in (0, 1, 3))
    cell = Var("cell", layer.x.dtype, layer.lanes)
    return Let(cell, f * load(layer.cells, row, column) + i * te.unary("tanh", gates[2]), seq([
        Store(layer.cells, (row, column), cell, mask),
        Store(layer.out, (at, row, column), o * te.unary("tanh", cell), mask),
    ]))  # fmt: skip
