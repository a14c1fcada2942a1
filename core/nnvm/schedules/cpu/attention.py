"""Attention by blocks of query rows: the scores of a block stay in the cache and never reach memory.

For each head: keys and values are packed once (`attention_pack`); then for each block of query rows

    S = q kᵀ          register tiles of rows x keys, vectors along the keys
    S = exp(...)      row by row: scale, mask, maximum, exponentials and their sum (`along`)
    out = S v / sum   register tiles of rows x columns of v; the division, by a product with the inverse of the sum,
                      and whatever follows as an epilogue

With few query rows (decoding) packing does not pay, and scores are dot products along the head size. Under a causal
mask a block stops at its last row's own key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nnvm.dim import Dim, ceildiv, estimate, numel
from nnvm.schedules.access import At, Held, Inliner, Source, children, parts, rewrite, rewrite_affine
from nnvm.schedules.attention_match import Attention, bare
from nnvm.schedules.axes import Axis, Write
from nnvm.schedules.cpu.along import along
from nnvm.schedules.cpu.attention_blocks import choose_blocks
from nnvm.schedules.cpu.attention_pack import Element, pack_columns, pack_keys
from nnvm.schedules.cpu.contraction_tile import most_rows
from nnvm.schedules.cpu.hints import LINE, hints
from nnvm.schedules.cpu.loops import loop, parallel_loops
from nnvm.schedules.cpu.matmul_tile import Tile, matmul_tile
from nnvm.schedules.emit import Emitter, Lanes, lane_mask
from nnvm.schedules.row_program import LARGEST, Pass, Reduction, RowProgram
from nnvm.target import Target
from nnvm.te.expr import INDEX, Binary, Buffer, Const, Expr, Reduce, Unary, Var, binary
from nnvm.te.tensor import Tensor
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.passes.math.exponential import exp_to_one
from nnvm.tir.passes.math.vector import FORMATS, Vector
from nnvm.tir.stmt import Allocate, For, If, Let, Prefetch, Stmt, Store, seq

__all__ = ["attention"]

#: Query rows of a block; under a causal mask, where each block computes more scores than its rows need.
BLOCK_ROWS, CAUSAL_BLOCK_ROWS = 48, 24
#: Rows of a tile where only the call knows how many there are, rows of a tile for less than that, and the keys that
#: rows are then thought to have.
UNKNOWN_ROWS, FEW_ROWS, UNKNOWN_KEYS = 12, 4, 128
#: Keys are multiplied by the scores' factor where it is no larger than this and no smaller than its inverse.
FOLDED_SCALE = 256.0
#: Query rows from which on the keys are packed, and the values.
PACK_FROM, PACK_VALUES_FROM = 4, 24
#: Keys and values are fetched ahead where those of all heads are larger than one in so many parts of the second cache,
#: and those of a head are not.
FETCHED = 4


def attention(a: Attention, sources: Mapping[Tensor, Source], space: Space, target: Target) -> Stmt:
    """The loop nest of the whole group."""
    return _Builder(a, sources, space, target).build()


def _factor_of_score(e: Expr) -> float:
    """What `e` multiplies a score by; 1 where it does something else with it."""
    both = (e.a, e.b) if isinstance(e, Binary) and e.op == "mul" else ()
    return next((float(x.value) for x in both if isinstance(x, Const)), 1.0)


class _Builder:
    def __init__(self, a: Attention, sources: Mapping[Tensor, Source], space: Space, target: Target) -> None:
        self.a, self.space, self.target = a, space, target
        self.inputs = {t: s for t, s in sources.items() if t is not a.out}
        self.out = sources[a.out]
        self.rows, self.keys = a.scores.axes[-2].extent, a.scores.axes[-1].extent
        depth, columns = a.scores.reduce_axes[0].extent, a.weighted.axes[-1].extent
        assert isinstance(depth, int) and isinstance(columns, int), "the match has seen to it"
        self.depth, self.columns = depth, columns
        self.dtype = a.scores.dtype
        self.lanes = Lanes.of(target.lanes(self.dtype.bits))
        space.bind(self.lanes.lane, affine(0), affine(self.lanes.count - 1))
        self.width = 2 * self.lanes.count  # columns of a register tile
        self.packed = not isinstance(self.rows, int) or self.rows >= PACK_FROM
        self.values_packed = self.packed and (not isinstance(self.rows, int) or self.rows >= PACK_VALUES_FROM)
        self.leading = ceildiv(self.keys, self.width) * self.width  # elements between two rows of S
        self.tile_rows, self.block = self._row_sizes()
        heads = [Axis(Var(f"b{n}"), x.extent).bind(space) for n, x in enumerate(a.scores.axes[:-2])]
        self.loops, env, self.kind = parallel_loops([h for h in heads if h.extent != 1], self._work(), space)
        self.lead = [env.get(h.var, atom_affine(h.var) if h.extent != 1 else affine(0)) for h in heads]
        self.scores = self._scratch("s", self.block * self.leading, (self.leading, 1))
        self.scale = self._folded_scale()
        self.sums, self.inverse = (self._scratch(n, self.block, (1,)) for n in ("sums", "inverse"))
        self.panels = self._scratch("kt", self.leading * self.depth, (1,)).buffer
        self.values = self._scratch("vp", self.keys * (-(-self.columns // self.width) * self.width), (1,)).buffer

    def _scratch(self, name: str, size: Dim, strides: tuple[Dim, ...]) -> Source:
        return Source(Buffer(name, (size,), self.dtype, None, "scratch"), strides)

    def _work(self) -> Dim:
        return numel(self.a.scores.shape) * (self.depth + self.columns)

    def _row_sizes(self) -> tuple[int, int]:
        """Rows of a tile, and of a block: S within half of the second cache."""
        most = CAUSAL_BLOCK_ROWS if self.a.causal else BLOCK_ROWS
        if isinstance(self.keys, int):
            most = min(most, self.target.l2_bytes // 2 // max(self.keys * self.dtype.bytes, 1))
        registers = self.target.vector_registers
        if not isinstance(self.rows, int):
            tile = min(UNKNOWN_ROWS, most_rows(2, registers))
            return tile, max(tile, most // tile * tile)
        keys = estimate(self.keys, UNKNOWN_KEYS)
        chosen = choose_blocks(self.rows, keys, most, self.lanes.count, registers, self.a.causal)
        return chosen.tile, chosen.block

    def build(self) -> Stmt:
        blocks = Axis(Var("ib"), ceildiv(self.rows, self.block)).bind(self.space)
        start = atom_affine(blocks.var) * self.block if blocks.extent != 1 else affine(0)
        rest = self.rows % self.block
        short = not isinstance(rest, int) or 0 < rest < self.tile_rows
        first = Var("first")
        if short:  # the last block has the rows of a tile, if there are so many
            self.space.bind(first, affine(0), self.space.maximum(affine(0), affine(self.rows) - self.tile_rows))
            start, moved = atom_affine(first), self.space.minimum(start, affine(self.rows) - self.tile_rows)
        left = affine(self.rows) - start
        count = affine(self.block) if rest == 0 else self.space.minimum(affine(self.block), left)
        body = self._block(start, count)
        if short:
            body = Let(first, Emitter().index(self.space.maximum(affine(0), moved)), body)
        body = loop(blocks, body)
        for source in (self.scores, self.sums, self.inverse):
            body = Allocate(source.buffer, body)
        if self.values_packed:
            body = Allocate(self.values, seq([self._pack_values(), body]))
        if self.packed:
            body = Allocate(self.panels, seq([self._pack_keys(), body]))
        for i, axis in reversed(list(enumerate(self.loops))):
            body = loop(axis, body, self.kind if i == 0 else "serial")
        return body

    def _pack_keys(self) -> Stmt:
        def key(row: Affine, step: Affine) -> Expr:
            value = self._factor(self.a.scores, self.a.k, affine(0), row, step)
            return value if self.scale == 1 else Binary("mul", value, Const(self.scale, self.dtype))

        return pack_keys(self.panels, self.keys, self.depth, self.width, key, self.space, self.target, self.lanes)

    def _pack_values(self) -> Stmt:
        def value(row: Affine, column: Affine) -> Expr:
            return self._factor(self.a.weighted, self.a.v, affine(0), column, row)

        return pack_columns(self.values, self.keys, self.columns, self.width, value, self.space, self.lanes)

    def _factor(
        self, of: Tensor, factor: Expr, row: Affine, column: Affine, step: Affine, heads: Sequence[Affine] | None = None
    ) -> Expr:
        """A factor of one of the products at (row, column, step of the sum)."""
        *lead, i, j = of.axes
        env = {x.var: at for x, at in zip(lead, self.lead if heads is None else heads)}
        env.update({i.var: row, j.var: column, of.reduce_axes[0].var: step})
        return Inliner(self.space, self.inputs).expr(factor, env)

    def _block(self, first: Affine, count: Affine) -> Stmt:
        """One block of `count` rows from `first` on."""
        keys = affine(self.keys)
        if self.a.causal:
            keys = self.space.minimum(keys, first + count)
        scores = self._scores(first, count, keys) if self.packed else self._dot_products(first, count)
        return seq([scores, self._softmax(first, count, keys), self._weighted(first, count, keys)])

    def _row_tiles(self, count: Affine, tile: Callable[[int, Affine], Stmt]) -> Stmt:
        """`tile(rows, start)` over `count` rows; the last tile overlaps the one before it. Fewer rows than a tile, as
        only the call knows them to be, go in smaller ones."""
        out: Stmt | None = None
        for size in (1, FEW_ROWS, self.tile_rows) if not isinstance(self.rows, int) else (self.tile_rows,):
            t, start = Axis(Var("t"), ceildiv(self.block, size)).bind(self.space), Var("start")
            self.space.bind(start, affine(0), affine(self.block - size))
            at = self.space.minimum(atom_affine(t.var) * size, count - size)
            emitter = Emitter()
            tiles = For(t.var, emitter.index(self.space.ceildiv(count, size)),
                        Let(start, emitter.index(at), tile(size, atom_affine(start))))  # fmt: skip
            out = tiles if out is None else If(binary("ge", emitter.index(count), size), tiles, out)
        assert out is not None
        return out

    def _scores(self, first: Affine, count: Affine, keys: Affine) -> Stmt:
        """S = q kᵀ, panel by panel of keys."""
        emitter, rest = Emitter(), self.keys % self.width
        out: list[Stmt] = []
        narrow = isinstance(rest, int) and 0 < rest <= self.lanes.count  # the last panel has a single vector
        panels = self.keys // self.width if narrow else self.leading // self.width
        if panels != 0:
            p = Axis(Var("p"), panels).bind(self.space)
            needed = self.space.minimum(affine(panels), self.space.ceildiv(keys, self.width))
            out.append(For(p.var, emitter.index(needed), self._panel(first, count, atom_affine(p.var), 2)))
        if narrow:
            last = self._panel(first, count, affine(panels), 1)
            reached = binary("gt", emitter.index(keys), emitter.index(affine(panels * self.width)))
            out.append(If(reached, last) if keys.int is None else last)
        return seq(out)

    def _panel(self, first: Affine, count: Affine, panel: Affine, vectors: int) -> Stmt:
        """S for the first `vectors` vectors of one panel of keys."""
        packed, s = Source(self.panels, (1,)), self.scores

        def tile(rows: int, start: Affine) -> Stmt:
            def left(r: Affine, k: Affine) -> Expr:
                return self._factor(self.a.scores, self.a.q, first + start + r, affine(0), k)

            def right(k: Affine, column: Affine) -> Expr:
                return At(packed, panel * (self.depth * self.width) + k * self.width + column)

            def store(r: Affine, column: Affine, value: Expr, e: Emitter) -> Stmt:
                address = s.address([start + r, panel * self.width + column])
                return Store(s.buffer, (e.index(address),), e.vector(value))

            shape = Tile(rows, vectors, self.lanes, self.dtype)
            return matmul_tile(shape, affine(self.depth), left, right, store, self.space)

        return self._row_tiles(count, tile)

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

    def _softmax(self, first: Affine, count: Affine, keys: Affine) -> Stmt:
        """S = exp(logits - their maximum) of `keys` keys or more, and the sums."""
        a, s = self.a, self.scores
        i, j = Axis(Var("i"), self.block).bind(self.space), Axis(Var("j"), self.keys).bind(self.space)
        row, key = atom_affine(i.var), atom_affine(j.var) if j.extent != 1 else affine(0)
        here = Source(s.buffer, (*(0 for _ in self.lead), *s.strides), first * (self.leading * -1))
        inliner = Inliner(self.space, {**self.inputs, a.scores: here}, frozenset((a.top,)))
        at = (*self.lead, first + row, key)
        assert isinstance(a.top.body, Reduce)
        logits = inliner.expr(a.top.body.source, self._row_env(a.top, at))
        exps = self._cheaper(inliner.element(a.exps, at))
        logits, exps = (rewrite(self.space, e, {}, self._unscaled) for e in (logits, exps))
        passes = [Pass([Reduction(a.top, LARGEST, logits)]),  # NaN reaches the sum of the exponentials
                  Pass([Reduction(a.total, "sum", exps)], [Write(s, s.address([row, key]), exps)])]  # fmt: skip
        total = Held(a.total, ())
        inverse = Binary("div", Const(1.0, total.dtype), total)
        results = [Write(s, s.address([row]), v) for s, v in ((self.sums, total), (self.inverse, inverse))]
        program = RowProgram([], [j], passes, results, [], [])
        limit = None if keys == affine(self.keys) else keys
        body = along(program, self.space, self.target, False, limit)
        return For(i.var, Emitter().index(count), seq([self._hints(first + row), body]))

    def _hints(self, row: Affine) -> Stmt:
        """What row number `row` asks for: its share of the keys and values that the next head packs."""
        a, room = self.a, self.target.l2_bytes // FETCHED
        one = self.keys * ((self.depth + self.columns) * self.dtype.bytes)
        size = numel(a.scores.shape[:-2]) * one
        if not isinstance(one, int) or not isinstance(size, int) or not one <= room < size:
            return seq([])
        if not isinstance(self.rows, int) or not self.values_packed or not self.loops:
            return seq([])
        head = self.loops[-1].var
        following = [rewrite_affine(self.space, x, {head: atom_affine(head) + 1}, {}) for x in self.lead]

        def key(n: Affine, step: Affine) -> Expr:
            return self._factor(a.scores, a.k, affine(0), n, step, following)

        def value(n: Affine, column: Affine) -> Expr:
            return self._factor(a.weighted, a.v, affine(0), column, n, following)

        return seq([self._lines(key, self.depth, row), self._lines(value, self.columns, row)])

    def _lines(self, element: Element, size: int, row: Affine) -> Stmt:
        """The share of row number `row` of the cache lines that hold `size` elements for each key."""
        first = bare(element(affine(0), affine(0)))
        if not isinstance(first, At) or not isinstance(self.rows, int) or not isinstance(self.keys, int):
            return seq([])
        line = LINE // first.dtype.bytes
        each, number = -(-size // line), Var("number")

        def hint(n: Expr) -> Stmt:
            at = self.space.from_expr(n, {number: row}, lambda other: other)
            key, part = self.space.floordiv(at, affine(each)), self.space.floormod(at, affine(each))
            read = bare(element(key, part * line))
            assert isinstance(read, At)
            return Prefetch(read.source.buffer, (Emitter().index(read.address),))

        return hints(number, self.rows, self.keys * each, hint)

    def _folded_scale(self) -> float:
        """The factor of all scores, where keys are multiplied by it as they are packed."""
        a = self.a
        if not self.packed or self.dtype not in FORMATS:
            return 1.0
        at = [atom_affine(x.var) for x in a.exps.axes]
        inliner = Inliner(self.space, self.inputs, frozenset((a.scores, a.top)))
        assert isinstance(a.top.body, Reduce)
        roots = (inliner.expr(a.top.body.source, self._row_env(a.top, at)), inliner.element(a.exps, at))
        found: set[float] = set()
        for e in parts(*roots):
            if any(map(self._is_score, children(e))):
                found.add(_factor_of_score(e))
        (scale,) = found if len(found) == 1 else (1.0,)
        return scale if 1 / FOLDED_SCALE <= abs(scale) <= FOLDED_SCALE else 1.0

    def _is_score(self, e: Expr) -> bool:
        held = isinstance(e, Held) and e.tensor is self.a.scores
        return held or (isinstance(e, At) and e.source.buffer is self.scores.buffer)

    def _unscaled(self, e: Expr, new: tuple[Expr, ...]) -> Expr | None:
        """A score by the factor that its key has been multiplied by."""
        if self.scale == 1 or not any(map(self._is_score, children(e))):
            return None
        return next(x for x in new if self._is_score(x))

    def _cheaper(self, exps: Expr) -> Expr:
        """Exponentials of what is at most 0: a logit less the row's maximum."""
        if self.dtype not in FORMATS:
            return exps
        v = Vector(self.dtype, 1, self.target.has_fma)

        def is_top(e: Expr) -> bool:
            return isinstance(e, Held) and e.tensor is self.a.top

        def special(e: Expr, new: tuple[Expr, ...]) -> Expr | None:
            if not isinstance(e, Unary) or e.op != "exp" or e.dtype != self.dtype:
                return None
            shifted = isinstance(e.a, Binary) and e.a.op == "sub" and any(map(is_top, parts(e.a.b)))
            return exp_to_one(v, new[0]) if shifted else None

        return rewrite(self.space, exps, {}, special)

    def _row_env(self, t: Tensor, at: Sequence[Affine]) -> dict[Var, Affine]:
        """The axes of a reduction over keys at the row of `at` (a kept axis of extent 1 is 0)."""
        env = {x.var: affine(0) if x.extent == 1 else i for x, i in zip(t.axes, at)}
        env[t.reduce_axes[0].var] = at[-1]
        return env

    def _weighted(self, first: Affine, count: Affine, keys: Affine) -> Stmt:
        """out = S v / sums, with all that follows."""
        whole, rest = divmod(self.columns, self.width)
        out: list[Stmt] = []
        c = Axis(Var("c"), whole).bind(self.space)
        if whole:
            panel = atom_affine(c.var) if whole > 1 else affine(0)
            out.append(loop(c, self._columns(first, count, keys, panel, 0, 2, None)))
        inside = 0
        for vectors, mask in ((rest // self.lanes.count, None), (1, rest % self.lanes.count)):
            if vectors and mask != 0:
                limit = None if mask is None else lane_mask(self.lanes.count, Const(mask, INDEX))
                out.append(self._columns(first, count, keys, affine(whole), inside, vectors, limit))
                inside += vectors * self.lanes.count
        return seq(out)

    def _columns(
        self, first: Affine, count: Affine, keys: Affine, panel: Affine, inside: int, vectors: int, mask: Expr | None
    ) -> Stmt:
        """Columns of a panel, from its column `inside` on, of the output for all rows of the block."""
        a, s, at = self.a, self.scores, panel * self.width + inside
        sums = Source(self.sums.buffer, self._kept_strides(a.total), first * -1)
        inverse = Source(self.inverse.buffer, sums.strides, sums.origin)
        inliner = Inliner(self.space, {**self.inputs, a.total: sums}, frozenset((a.weighted,)))

        def tile(rows: int, start: Affine) -> Stmt:
            def left(r: Affine, k: Affine) -> Expr:
                return At(s, s.address([start + r, k]))

            def right(k: Affine, column: Affine) -> Expr:
                if self.values_packed:
                    address = panel * (self.keys * self.width) + k * self.width + inside + column
                    return At(Source(self.values, (1,)), address)
                return self._factor(a.weighted, a.v, affine(0), at + column, k)

            def inverted(e: Expr, new: tuple[Expr, ...]) -> Expr | None:
                if isinstance(e, Binary) and e.op == "div" and isinstance(d := new[1], At) and d.source is sums:
                    return Binary("mul", new[0], At(inverse, d.address))
                return None

            def store(r: Affine, column: Affine, value: Expr, e: Emitter) -> Stmt:
                where = (*self.lead, first + start + r, at + column)
                element = inliner.element(a.out, where)
                memo = {id(x): value for x in parts(element) if isinstance(x, Held)}
                element = rewrite(self.space, element, {}, inverted, memo)
                address = e.index(self.out.address(where))
                return Store(self.out.buffer, (address,), e.vector(element), mask)

            shape = Tile(rows, vectors, self.lanes, self.dtype, mask)
            return matmul_tile(shape, keys, left, right, store, self.space)

        return self._row_tiles(count, tile)

    def _kept_strides(self, t: Tensor) -> tuple[Dim, ...]:
        """Strides that pick the row of the block: those of the query axis of a tensor of kept shape."""
        query = len(self.lead)
        return tuple(1 if n == query else 0 for n in range(len(t.shape)))
