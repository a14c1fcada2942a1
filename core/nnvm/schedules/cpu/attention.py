"""Attention by blocks of query rows: the scores of a block stay in the cache and never reach memory.

For each head: the keys are packed once, transposed; then for each block of query rows

    S = q kᵀ          register tiles of rows x keys, vectors along the keys
    S = exp(...)      row by row: scale, mask, maximum, exponentials and their sum (`along`)
    out = S v / sum   register tiles of rows x columns of v, the division and whatever follows as an epilogue

With few query rows (decoding) packing does not pay, and scores are dot products along the head size. Under a causal
mask a block stops at its last row's own key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nnvm.dim import Dim, ceildiv, numel, row_major
from nnvm.schedules.cpu.access import At, Held, Inliner, Source, parts, rewrite
from nnvm.schedules.cpu.along import along
from nnvm.schedules.cpu.emit import Emitter, Lanes, lane_mask
from nnvm.schedules.cpu.injective import Write, nest
from nnvm.schedules.cpu.loops import Axis, loop, parallel_loops
from nnvm.schedules.cpu.matmul_tile import Tile, matmul_tile
from nnvm.schedules.cpu.row_program import Pass, Reduction, RowProgram
from nnvm.target import Target
from nnvm.te.expr import INDEX, Binary, Buffer, Cast, Const, Expr, Reduce, Var, binary
from nnvm.te.tensor import Read, Tensor, topological
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import Allocate, For, If, Let, Stmt, Store, seq

__all__ = ["Attention", "attention", "match_attention"]

#: Query rows of a block, and from how many on the keys are packed.
BLOCK_ROWS, PACK_FROM = 48, 8


@dataclass(frozen=True, eq=False)
class Attention:
    """The stages of softmax(q kᵀ) v, however scaled and masked.

    Attributes:
        scores, top, exps, total, weighted, out: the tensors; `out` is elementwise in `weighted`.
        q, k, v: the factors of the two products, as in the bodies of `scores` and `weighted`.
    """

    scores: Tensor
    top: Tensor
    exps: Tensor
    total: Tensor
    weighted: Tensor
    out: Tensor
    q: Expr
    k: Expr
    v: Expr

    @property
    def causal(self) -> bool:
        return bool(self.scores.attrs.get("causal"))


def match_attention(outputs: Sequence[Tensor]) -> Attention | None:
    """The group as attention; None where it is something else."""
    reductions = [t for t in topological(outputs) if isinstance(t.body, Reduce)]
    if len(outputs) != 1 or len(reductions) != 4:
        return None
    products = [(t, f) for t in reductions if (f := _factors(t)) is not None]
    if len(products) != 2:
        return None
    (scores, first), (weighted, second) = products
    if len(scores.axes) < 2 or len(weighted.axes) != len(scores.axes):
        return None
    rows, keys = scores.axes[-2], scores.axes[-1]
    by_row = sorted(first, key=lambda f: not _uses(f, rows.var))
    by_exps = sorted(second, key=lambda f: scores not in topological([_read(f).tensor]))
    exps = _read(by_exps[0]).tensor
    middle = {_reducer(t): t for t in reductions if t not in (scores, weighted)}
    fits = (
        _uses(by_row[0], rows.var) and not _uses(by_row[0], keys.var) and _uses(by_row[1], keys.var)
        and not _uses(by_row[1], rows.var) and exps.body is not None and exps.shape == scores.shape
        and middle.keys() == {"max", "sum"} and scores not in topological([_read(by_exps[1]).tensor])
        and all(len(t.reduce_axes) == 1 for t in reductions)
        and all(t.reduce_axes[0].extent == keys.extent for t in (*middle.values(), weighted))
        and all([a.extent for a in t.axes if a.extent != 1] == [a.extent for a in scores.axes[:-1] if a.extent != 1]
                for t in middle.values())
        and outputs[0].shape == weighted.shape
        and isinstance(weighted.axes[-1].extent, int) and isinstance(scores.reduce_axes[0].extent, int)
    )  # fmt: skip
    if not fits:
        return None
    found = Attention(
        scores, middle["max"], exps, middle["sum"], weighted, outputs[0], by_row[0], by_row[1], by_exps[1]
    )
    return found if _stays_in_rows(found) else None


def _stays_in_rows(a: Attention) -> bool:
    """Does every stage read the others at its own row (and key, or column) only?"""
    inputs = {t: Source(Buffer(t.name, (1,), t.dtype), row_major(t.shape)) for t in topological([a.out]) if not t.body}
    inliner = Inliner(Space(), inputs, frozenset((a.scores, a.top, a.total, a.weighted)))
    for t in (a.top, a.total, a.exps, a.out):
        if isinstance(t.body, Reduce):
            axes = (*t.axes, *t.reduce_axes)
            value = inliner.expr(t.body.source, {x.var: atom_affine(x.var) for x in axes})
        else:
            axes = t.axes
            value = inliner.element(t, [atom_affine(x.var) for x in axes])
        rows = [atom_affine(x.var) for x in axes[:-1] if x.extent != 1]
        last = [atom_affine(x.var) for x in axes[-1:] if x.extent != 1]
        for x in parts(value):
            if isinstance(x, Held):
                own = [i for i, n in zip(x.indices, x.tensor.shape) if n != 1]
                if own != (rows if x.tensor in (a.top, a.total) else rows + last):
                    return False
    return True


def _reducer(t: Tensor) -> str:
    assert isinstance(t.body, Reduce)
    return t.body.op


def _factors(t: Tensor) -> tuple[Expr, Expr] | None:
    """The two factors of a sum of products of tensor elements (each perhaps converted)."""
    assert isinstance(t.body, Reduce)
    product = t.body.source
    if t.body.op != "sum" or not isinstance(product, Binary) or product.op != "mul":
        return None
    both = (product.a, product.b)
    return both if all(isinstance(_bare(f), Read) for f in both) else None


def _bare(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.a
    return e


def _read(e: Expr) -> Read:
    bare = _bare(e)
    assert isinstance(bare, Read)
    return bare


def _uses(e: Expr, var: Var) -> bool:
    return any(x is var for x in parts(e))


def attention(a: Attention, sources: Mapping[Tensor, Source], space: Space, target: Target) -> Stmt:
    """The loop nest of the whole group."""
    return _Builder(a, sources, space, target).build()


class _Builder:
    def __init__(self, a: Attention, sources: Mapping[Tensor, Source], space: Space, target: Target) -> None:
        self.a, self.space, self.target = a, space, target
        self.inputs = {t: s for t, s in sources.items() if t is not a.out}
        self.out = sources[a.out]
        self.rows, self.keys = a.scores.axes[-2].extent, a.scores.axes[-1].extent
        self.depth, self.columns = a.scores.reduce_axes[0].extent, a.weighted.axes[-1].extent
        self.dtype = a.scores.dtype
        self.lanes = Lanes.of(target.lanes(self.dtype.bits))
        space.bind(self.lanes.lane, affine(0), affine(self.lanes.count - 1))
        self.width = 2 * self.lanes.count  # columns of a register tile
        self.tile_rows = 6 if target.vector_registers <= 16 else 12
        if isinstance(self.rows, int):
            self.tile_rows = max(1, min(self.tile_rows, self.rows))
        self.packed = not isinstance(self.rows, int) or self.rows >= PACK_FROM
        self.leading = ceildiv(self.keys, self.width) * self.width  # elements between two rows of S
        self.block = self._block_rows()
        heads = [Axis(Var(f"b{n}"), x.extent).bind(space) for n, x in enumerate(a.scores.axes[:-2])]
        self.loops, env, self.kind = parallel_loops(heads, self._work(), space)
        self.lead = [env.get(h.var, atom_affine(h.var) if h.extent != 1 else affine(0)) for h in heads]
        self.scores = self._scratch("s", self.block * self.leading, (self.leading, 1))
        self.sums = self._scratch("sums", self.block, (1,))
        self.panels = self._scratch("kt", self.leading * self.depth, (1,)).buffer

    def _scratch(self, name: str, size: Dim, strides: tuple[Dim, ...]) -> Source:
        return Source(Buffer(name, (size,), self.dtype, None, "scratch"), strides)

    def _work(self) -> Dim:
        return numel(self.a.scores.shape) * (self.depth + self.columns)

    def _block_rows(self) -> int:
        """Rows of a block: S within half of the second cache, blocks of about equal size."""
        most = BLOCK_ROWS
        if isinstance(self.keys, int):
            most = max(self.tile_rows, min(most, self.target.l2_bytes // 2 // max(self.keys * self.dtype.bytes, 1)))
        if not isinstance(self.rows, int):
            return most
        count = -(-max(self.rows, 1) // most)
        return -(-max(self.rows, 1) // count)

    def build(self) -> Stmt:
        blocks = Axis(Var("ib"), ceildiv(self.rows, self.block)).bind(self.space)
        first = atom_affine(blocks.var) * self.block if blocks.extent != 1 else affine(0)
        whole = self.rows % self.block == 0
        count = affine(self.block) if whole else self.space.minimum(affine(self.block), affine(self.rows) - first)
        body = loop(blocks, self._block(first, count))
        body = Allocate(self.scores.buffer, Allocate(self.sums.buffer, body))
        if self.packed:
            body = Allocate(self.panels, seq([self._pack_keys(), body]))
        for i, axis in reversed(list(enumerate(self.loops))):
            body = loop(axis, body, self.kind if i == 0 else "serial")
        return body

    def _pack_keys(self) -> Stmt:
        """The keys of one head as panels of `width` keys, each [depth][width]."""
        whole, rest = self.keys // self.width, self.keys % self.width
        out: list[Stmt] = []
        for panels, width, first in ((whole, self.width, 0), (1, rest, whole)):
            if panels == 0 or width == 0:
                continue
            p, d, j = (Axis(Var(n), e).bind(self.space) for n, e in (("p", panels), ("d", self.depth), ("j", width)))
            panel, depth, key = (atom_affine(x.var) if x.extent != 1 else affine(0) for x in (p, d, j))
            panel = panel + first
            target = panel * (self.depth * self.width) + depth * self.width + key
            value = self._factor(self.a.scores, self.a.k, affine(0), panel * self.width + key, depth)
            write = Write(Source(self.panels, (1,)), target, value)
            out.append(nest([write], [p, d, j], self.space, self.target, 0))
        return seq(out)

    def _factor(self, of: Tensor, factor: Expr, row: Affine, column: Affine, step: Affine) -> Expr:
        """A factor of one of the products at (row, column, step of the sum)."""
        *lead, i, j = of.axes
        env = {x.var: at for x, at in zip(lead, self.lead)}
        env.update({i.var: row, j.var: column, of.reduce_axes[0].var: step})
        return Inliner(self.space, self.inputs).expr(factor, env)

    def _block(self, first: Affine, count: Affine) -> Stmt:
        """One block of `count` rows from `first` on."""
        keys = affine(self.keys)
        if self.a.causal:
            keys = self.space.minimum(keys, first + count)
        scores = self._scores(first, count, keys) if self.packed else self._dot_products(first, count)
        return seq([scores, self._softmax(first, count), self._weighted(first, count, keys)])

    def _row_tiles(self, count: Affine, tile: Callable[[int, Affine], Stmt]) -> Stmt:
        """`tile(rows, start)` over `count` rows; the last tile overlaps the one before it. Fewer rows than a tile go
        one by one."""
        size = self.tile_rows
        t, start = Axis(Var("t"), ceildiv(self.block, size)).bind(self.space), Var("start")
        self.space.bind(start, affine(0), affine(self.block - size))
        at = self.space.minimum(atom_affine(t.var) * size, count - size)
        emitter = Emitter()
        tiles = For(t.var, emitter.index(self.space.ceildiv(count, size)),
                    Let(start, emitter.index(at), tile(size, atom_affine(start))))  # fmt: skip
        if isinstance(self.rows, int) and (self.rows % self.block or self.block) >= size:
            return tiles
        r = Axis(Var("r1"), self.block).bind(self.space)
        one = For(r.var, emitter.index(count), tile(1, atom_affine(r.var)))
        return If(binary("ge", emitter.index(count), size), tiles, one)

    def _scores(self, first: Affine, count: Affine, keys: Affine) -> Stmt:
        """S = q kᵀ for whole panels of keys."""
        p = Axis(Var("p"), self.leading // self.width).bind(self.space)
        panel = atom_affine(p.var)
        packed, s = Source(self.panels, (1,)), self.scores

        def tile(rows: int, start: Affine) -> Stmt:
            def left(r: Affine, k: Affine) -> Expr:
                return self._factor(self.a.scores, self.a.q, first + start + r, affine(0), k)

            def right(k: Affine, column: Affine) -> Expr:
                return At(packed, panel * (self.depth * self.width) + k * self.width + column)

            def store(r: Affine, column: Affine, value: Expr, e: Emitter) -> Stmt:
                address = s.address([start + r, panel * self.width + column])
                return Store(s.buffer, (e.index(address),), e.vector(value))

            return matmul_tile(
                Tile(rows, 2, self.lanes, self.dtype), affine(self.depth), left, right, store, self.space
            )

        panels = Emitter().index(self.space.ceildiv(keys, self.width))
        return For(p.var, panels, self._row_tiles(count, tile))

    def _dot_products(self, first: Affine, count: Affine) -> Stmt:
        """S = q kᵀ with vectors along the head size."""
        i, j, d = (
            Axis(Var(n), e).bind(self.space) for n, e in (("i", self.block), ("j", self.keys), ("d", self.depth))
        )
        row, key = atom_affine(i.var), atom_affine(j.var) if j.extent != 1 else affine(0)
        step = atom_affine(d.var) if d.extent != 1 else affine(0)
        factors = (self._factor(self.a.scores, f, first + row, key, step) for f in (self.a.q, self.a.k))
        product = Binary("mul", *factors)
        result = Write(self.scores, self.scores.address([row, key]), Held(self.a.scores, ()))
        program = RowProgram([j], [d], [Pass([Reduction(self.a.scores, "sum", product)])], [result], [], [])
        return For(i.var, Emitter().index(count), along(program, self.space, self.target, parallel=False))

    def _softmax(self, first: Affine, count: Affine) -> Stmt:
        """S = exp(logits - their maximum), and the sums."""
        a, s = self.a, self.scores
        i, j = Axis(Var("i"), self.block).bind(self.space), Axis(Var("j"), self.keys).bind(self.space)
        row, key = atom_affine(i.var), atom_affine(j.var) if j.extent != 1 else affine(0)
        here = Source(s.buffer, (*(0 for _ in self.lead), *s.strides), first * (self.leading * -1))
        inliner = Inliner(self.space, {**self.inputs, a.scores: here}, frozenset((a.top,)))
        at = (*self.lead, first + row, key)
        assert isinstance(a.top.body, Reduce)
        logits = inliner.expr(a.top.body.source, self._row_env(a.top, at))
        exps = inliner.element(a.exps, at)
        passes = [Pass([Reduction(a.top, "max", logits)]),
                  Pass([Reduction(a.total, "sum", exps)], [Write(s, s.address([row, key]), exps)])]  # fmt: skip
        result = Write(self.sums, self.sums.address([row]), Held(a.total, ()))
        program = RowProgram([], [j], passes, [result], [], [])
        return For(i.var, Emitter().index(count), along(program, self.space, self.target, parallel=False))

    def _row_env(self, t: Tensor, at: Sequence[Affine]) -> dict[Var, Affine]:
        """The axes of a reduction over keys at the row of `at` (a kept axis of extent 1 is 0)."""
        env = {x.var: affine(0) if x.extent == 1 else i for x, i in zip(t.axes, at)}
        env[t.reduce_axes[0].var] = at[-1]
        return env

    def _weighted(self, first: Affine, count: Affine, keys: Affine) -> Stmt:
        """out = S v / sums, with all that follows."""
        assert isinstance(self.columns, int)
        whole, rest = divmod(self.columns, self.width)
        out: list[Stmt] = []
        c = Axis(Var("c"), whole).bind(self.space)
        if whole:
            start = atom_affine(c.var) * self.width if whole > 1 else affine(0)
            out.append(loop(c, self._columns(first, count, keys, start, 2, None)))
        at = whole * self.width
        for vectors, mask in ((rest // self.lanes.count, None), (1, rest % self.lanes.count)):
            if vectors and mask != 0:
                limit = None if mask is None else lane_mask(self.lanes.count, Const(mask, INDEX))
                out.append(self._columns(first, count, keys, affine(at), vectors, limit))
                at += vectors * self.lanes.count
        return seq(out)

    def _columns(self, first: Affine, count: Affine, keys: Affine, at: Affine, vectors: int, mask: Expr | None) -> Stmt:
        """Some columns of the output for all rows of the block."""
        a, s = self.a, self.scores
        sums = Source(self.sums.buffer, self._kept_strides(a.total), first * -1)
        inliner = Inliner(self.space, {**self.inputs, a.total: sums}, frozenset((a.weighted,)))

        def tile(rows: int, start: Affine) -> Stmt:
            def left(r: Affine, k: Affine) -> Expr:
                return At(s, s.address([start + r, k]))

            def right(k: Affine, column: Affine) -> Expr:
                return self._factor(a.weighted, a.v, affine(0), at + column, k)

            def store(r: Affine, column: Affine, value: Expr, e: Emitter) -> Stmt:
                where = (*self.lead, first + start + r, at + column)
                element = inliner.element(a.out, where)
                memo = {id(x): value for x in parts(element) if isinstance(x, Held)}
                element = rewrite(self.space, element, {}, memo=memo)
                address = e.index(self.out.address(where))
                return Store(self.out.buffer, (address,), e.vector(element), mask)

            shape = Tile(rows, vectors, self.lanes, self.dtype, mask)
            return matmul_tile(shape, keys, left, right, store, self.space)

        return self._row_tiles(count, tile)

    def _kept_strides(self, t: Tensor) -> tuple[Dim, ...]:
        """Strides that pick the row of the block: those of the query axis of a tensor of kept shape."""
        query = len(self.lead)
        return tuple(1 if n == query else 0 for n in range(len(t.shape)))
