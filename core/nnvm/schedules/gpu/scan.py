"""Running sums and products along an axis, on a GPU: tiles of rows that walk along the axis, with a carry.

    carry[i] = 0
    for each block:  part[i, j] = x[i, j];  run[i, j] = sum over r <= j of part[i, r]
                     out[i, j] = carry[i] + run[i, j];  carry[i] = carry[i] + sum over r of part[i, r]

The sum over r <= j is what Triton's `cumsum` of a tile gives, in a tree. Half types are summed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nnvm.dim import Dim, ceildiv, numel
from nnvm.dtype import DType
from nnvm.schedules.axes import Axis
from nnvm.schedules.emit import Emitter, dim_value
from nnvm.schedules.gpu.tiles import Body, Cut, digits, kernel_of, next_power, warps
from nnvm.te.expr import INDEX, Binary, Buffer, Cast, Const, Expr, Load, Reduce, Select, Var, binary, const
from nnvm.te.tensor import IterVar
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import Allocate, For, GridKernel, If, Let, Stmt, Store, seq

__all__ = ["lower_scan_for_grid"]

#: Elements of a tile; of a block where rows lie side by side, and rows of such a tile.
TILE, ACROSS_STEP, ACROSS_ROWS = 1024, 32, 32
_REDUCED = {"add": ("sum", 0), "mul": ("prod", 1)}


def lower_scan_for_grid(op: str, axis: int, shape: Sequence[Dim], read: DType, written: DType, name: str) -> GridKernel:
    """The launch that combines along `axis` by `op` (``add`` or ``mul``); elements are converted before."""
    outer, n, inner = numel(tuple(shape[:axis])), shape[axis], numel(tuple(shape[axis + 1 :]))
    size = numel(tuple(shape))
    x, out = Buffer("p0", (size,), read), Buffer("out0", (size,), written)
    scan = _Scan(op, outer, n, inner, x, out)
    return kernel_of(name, [x, out], 1, [scan.body()] if size != 0 else [])


class _Scan:
    def __init__(self, op: str, outer: Dim, n: Dim, inner: Dim, x: Buffer, out: Buffer) -> None:
        self.op, self.n, self.inner, self.x, self.out = op, n, inner, x, out
        self.reduced, start = _REDUCED[op]
        self.type = out.dtype.compute
        self.start = const(start, self.type)
        self.space, self.emitter = Space(), Emitter()
        whole = next_power(n) if isinstance(n, int) else TILE
        self.step = min(whole, TILE if inner == 1 else ACROSS_STEP)
        rows = outer * inner
        most = max(1, TILE // self.step) if inner == 1 else ACROSS_ROWS
        self.program = Var("program")
        self.row = Cut.of("x", rows, min(most, next_power(rows)) if isinstance(rows, int) else most,
                          atom_affine(self.program), self.space)  # fmt: skip
        self.block = Axis(Var("block"), ceildiv(n, self.step)).bind(self.space)
        o, i = Axis(Var("o"), outer), Axis(Var("i"), inner)
        self.places = digits([o, i], atom_affine(self.row.index), self.space)
        self.first = self.places[o.var] * (n * inner) + self.places[i.var]
        shape = (self.row.size, self.step)
        self.part, self.run = (Buffer(name, shape, self.type, None, "local") for name in ("part", "run"))
        self.carry = Buffer("carry", shape[:1], self.type, None, "local")

    def body(self) -> Body:
        carried, total = (self.row.lane,), Var("total", self.type)
        steps = [
            self._tile("l", lambda lane, at, inside: Store(self.part, (self.row.lane, lane), self._read(at, inside))),
            self._running(),
            self._tile("s", self._written),
            Let(total, self._total(), Store(self.carry, carried, Binary(self.op, Load(self.carry, carried), total))),
        ]
        walk = For(self.block.var, dim_value(self.block.extent), seq(steps), "serial")
        stmt = self.row.around(seq([Store(self.carry, carried, self.start), walk]))
        for b in (self.run, self.part, self.carry):
            stmt = Allocate(b, stmt)
        return Body(self.program, self.row.blocks, stmt, warps(self.row.size * self.step))

    def _tile(self, name: str, make: Callable[[Var, Var, Expr | None], Stmt]) -> Stmt:
        """`make(lane, position on the axis, whether there is one)` for each lane of a block."""
        lane, at = Var(f"{name}_lane"), Var(name)
        position = atom_affine(self.block.var) * self.step + atom_affine(lane)
        inside = None if self.n % self.step == 0 else binary("lt", at, dim_value(self.n))
        return For(lane, Const(self.step, INDEX), Let(at, self.emitter.index(position), make(lane, at, inside)), "tile")

    def _address(self, at: Var) -> tuple[Expr, ...]:
        self.space.bind(at, affine(0), affine(self.n) - 1)
        address: Affine = self.first + atom_affine(at) * self.inner
        return (self.emitter.index(address),)

    def _read(self, at: Var, inside: Expr | None) -> Expr:
        value: Expr = Load(self.x, self._address(at))
        for t in (self.out.dtype, self.type):
            value = value if value.dtype == t else Cast(value, t)
        return value if inside is None else Select(inside, value, self.start)

    def _running(self) -> Stmt:
        j, r = Var("j_lane"), IterVar(Var("r"), self.step, "reduce")
        before = Select(binary("le", r.var, j), Load(self.part, (self.row.lane, r.var)), self.start)
        return For(j, Const(self.step, INDEX),
                   Store(self.run, (self.row.lane, j), Reduce(self.reduced, before, (r,))), "tile")  # fmt: skip

    def _written(self, lane: Var, at: Var, inside: Expr | None) -> Stmt:
        total: Expr = Binary(self.op, Load(self.carry, (self.row.lane,)), Load(self.run, (self.row.lane, lane)))
        value = total if total.dtype == self.out.dtype else Cast(total, self.out.dtype)
        store = Store(self.out, self._address(at), value)
        return store if inside is None else If(inside, store)

    def _total(self) -> Expr:
        r = IterVar(Var("all"), self.step, "reduce")
        return Reduce(self.reduced, Load(self.part, (self.row.lane, r.var)), (r,))
