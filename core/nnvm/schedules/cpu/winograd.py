"""Winograd convolution by blocks of tiles: transformed data and products of a block never leave the second cache.

    parallel for the blocks of (images, rows x columns of tiles, part of the panels):
      for the images, the blocks of channels:
        the padded data of the tiles -> d;  Bᵀ d -> p, by columns;  p B -> v [a²][tiles][channels]
      for chunks of panels:
        for each of the a² positions: products [tiles][panel], in register tiles
        for each tile: Aᵀ (products) A with all that follows -> output

Data outside of the image is zero in d, so that the tiles at the borders are like the others; what they give outside of
the output is not stored. Blocks are as large as the second cache allows: all of the weight is read for each
(`winograd_blocks`). Of images of a size that only the call knows the last block has fewer rows of tiles; register tiles
then come in a few sizes, and the last one overlaps the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from nnvm.dim import Dim, ceildiv, symbol
from nnvm.schedules.access import At, Inliner, Source
from nnvm.schedules.axes import Axis, Write
from nnvm.schedules.cpu.hints import FETCHED, LINE, hints, next_iteration
from nnvm.schedules.cpu.injective import stores
from nnvm.schedules.cpu.loops import loop, parallel_loops
from nnvm.schedules.cpu.matmul_tile import Tile, matmul_tile
from nnvm.schedules.cpu.winograd_blocks import Products, blocks_of, most_rows, register_tiles
from nnvm.schedules.emit import Emitter, Lanes, dim_value
from nnvm.target import Target
from nnvm.te.expr import Buffer, Const, Expr, Reduce, Var, binary, size_var
from nnvm.te.tensor import Read, Tensor, reads, topological
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import Allocate, For, If, Let, Prefetch, Stmt, Store, seq

__all__ = ["Winograd", "match_winograd", "winograd"]


@dataclass(frozen=True, eq=False)
class Winograd:
    """The stages, as `conv2d_winograd` makes them; `outputs` are elementwise in the convolution."""

    rows: Tensor
    tiles: Tensor
    products: Tensor
    half: Tensor
    padded: Tensor
    weight: Tensor
    outputs: tuple[Tensor, ...]


def match_winograd(outputs: Sequence[Tensor], inputs: Mapping[Tensor, object] | Sequence[Tensor]) -> Winograd | None:
    """The group as a Winograd convolution; None where it is something else, or a size other than those of the image
    and the batch is known at the call only."""
    tensors = topological(outputs)
    role = {str(t.attrs["winograd"]): t for t in tensors if "winograd" in t.attrs}
    if role.keys() != {"rows", "tiles", "products", "half", "out"}:
        return None
    if sum(isinstance(t.body, Reduce) for t in tensors) != 1 or any(t.shape != role["out"].shape for t in outputs):
        return None
    assert isinstance(role["products"].body, Reduce)
    (weight,) = (r.tensor for r in reads(role["products"].body.source) if r.tensor is not role["tiles"])
    padded = next(r.tensor for r in reads(role["rows"].body) if isinstance(r, Read))
    shapes = [d for t in (role["products"], padded, role["out"]) for d in (t.shape[1], *t.shape[4:])]
    if not all(isinstance(d, int) for d in shapes) or weight not in inputs or 0 in role["out"].shape:
        return None
    return Winograd(role["rows"], role["tiles"], role["products"], role["half"], padded, weight, tuple(outputs))


def winograd(w: Winograd, sources: Mapping[Tensor, Source], space: Space, target: Target) -> Stmt:
    """The loop nest of the whole group."""
    return _Builder(w, sources, space, target).build()


class _Builder:
    def __init__(self, w: Winograd, sources: Mapping[Tensor, Source], space: Space, target: Target) -> None:
        self.w, self.space, self.target = w, space, target
        self.out = {t: sources[t] for t in w.outputs}
        self.inputs = {t: s for t, s in sources.items() if t not in self.out}
        self.dtype = w.products.dtype
        self.a, self.m = _int(w.tiles.shape[4]), _int(w.half.shape[4])
        self.block, self.width = _int(w.tiles.shape[6]), _int(w.products.shape[6])
        # The layout may have been made for a processor with shorter vectors.
        self.lanes = Lanes.of(gcd(target.lanes(self.dtype.bits), self.block, self.width))
        space.bind(self.lanes.lane, affine(0), affine(self.lanes.count - 1))
        self.blocks, self.panels = _int(w.tiles.shape[1]), _int(w.products.shape[1])
        self.channels = self.blocks * self.block
        self.vectors = self.width // self.lanes.count
        size = self.dtype.bytes
        products = Products(self.a * self.a, self.channels, self.panels, self.vectors, self.lanes.count, size)
        batch, _, rows, columns = w.tiles.shape[:4]
        self.cut = cut = blocks_of(rows, columns, batch, products, target)
        self.tile_columns = cut.columns
        beyond = self.a - self.m
        #: Rows of tiles in this block, and the tiles in it: the last block of an image may have fewer.
        self.tile_rows, self.tiles = cut.rows, cut.rows * cut.columns * cut.images
        if not cut.known:
            self.tile_rows, self.tiles = symbol("winograd_rows_here"), symbol("winograd_tiles_here")
        self.height, self.breadth = self.tile_rows * self.m + beyond, cut.columns * self.m + beyond
        # One line more between positions: they would all fall into the same set of the cache.
        line = LINE // size
        self.v_step = cut.tiles * self.channels + line
        self.m_step = cut.tiles * cut.chunk * self.width + line
        longest = cut.tiles * self.m + beyond  # one row of tiles, or one column
        pixels = self.height * self.breadth
        self.d = self._scratch("d", self.block * (pixels if isinstance(pixels, int) else longest * (self.m + beyond)))
        self.p = self._scratch("p", self.block * self.a * (x if isinstance(x := self.breadth, int) else longest))
        self.v = self._scratch("v", self.a * self.a * self.v_step)
        self.q = self._scratch("q", self.a * self.a * self.m_step)
        self.h = self._scratch("h", self.m * self.a * self.lanes.count)
        self._parallel(batch, rows, columns)

    def _scratch(self, name: str, size: int) -> Buffer:
        return Buffer(name, (size,), self.dtype, None, "scratch")

    def _parallel(self, batch: Dim, rows: Dim, columns: Dim) -> None:
        cut = self.cut
        groups = batch // cut.images if cut.images > 1 else batch
        names = [("n", groups), ("bt", cut.down), ("bx", cut.across), ("kt", cut.parts)]
        if not cut.known:  # one loop for all blocks of an image, whose numbers the call knows
            names = [("n", batch), ("b", cut.down * cut.across * cut.parts)]
        axes = [Axis(Var(n), e).bind(self.space) for n, e in names]
        work = rows * columns * (self.channels * self.panels * self.width * self.a * self.a)
        self.loops, env, self.kind = parallel_loops(axes, work, self.space)
        place = [env.get(x.var, atom_affine(x.var)) if x.extent != 1 else affine(0) for x in axes]
        if not cut.known:
            across, parts = affine(cut.across), affine(cut.parts)
            block = self.space.floordiv(place[1], parts)
            place[1:] = [self.space.floordiv(block, across), self.space.floormod(block, across),
                         self.space.floormod(place[1], parts)]  # fmt: skip
        block, bt, bx, kt = place
        self.first_image = block * cut.images
        self.ty, self.tx = bt * cut.rows, bx * cut.columns
        self.first_panel = kt * cut.part
        #: What is computed once for a block: register tiles would divide anew.
        self.once: list[tuple[Var, Affine]] = []
        if not isinstance(cut.parts, int):
            first = size_var("winograd_first_panel")
            self.once, self.first_panel = [(first, self.first_panel)], atom_affine(first)
            self.space.bind(first, affine(0), affine(self.panels - 1))
        self.left = affine(rows) - self.ty

    def _axis(self, name: str, extent: Dim) -> tuple[Axis, Affine]:
        axis = Axis(Var(name), extent).bind(self.space)
        return axis, atom_affine(axis.var) if extent != 1 else affine(0)

    def build(self) -> Stmt:
        body = seq([self._transform_data(), self._chunks()])
        for buffer in (self.d, self.p, self.v, self.q, self.h):
            body = Allocate(buffer, body)
        if not self.cut.known:
            rows = Emitter().index(self.space.minimum(affine(self.cut.rows), self.left))
            tiles = dim_value(self.tile_rows * self.tile_columns)
            body = Let(size_var(str(self.tile_rows)), rows, Let(size_var(str(self.tiles)), tiles, body))
        for var, start in self.once:
            body = Let(var, Emitter().index(start), body)
        for i, axis in reversed(list(enumerate(self.loops))):
            body = loop(axis, body, self.kind if i == 0 else "serial")
        for var, value in reversed(self.cut.locals):
            body = Let(var, value, body)
        return body

    # -- data -> v ----------------------------------------------------------------------------------------------------

    def _transform_data(self) -> Stmt:
        i, image = self._axis("i", self.cut.images)
        cb, block = self._axis("cb", self.blocks)
        t, row = self._axis("t", self.tile_rows)
        n = self.first_image + image
        lines = seq([self._down(n, block, row), self._across(image, block, row)])
        return loop(i, loop(cb, seq([self._copy(n, block), loop(t, lines)])))

    def _vectors(self, count: int, body: Callable[[Affine], Stmt]) -> Stmt:
        """`body` for each vector of `count` channels side by side."""
        lane = atom_affine(self.lanes.lane)
        return seq([body(lane + at) for at in range(0, count, self.lanes.count)])

    def _copy(self, n: Affine, block: Affine) -> Stmt:
        """The data of the tiles and the zeros around it -> d."""
        padded = self.w.padded
        widths = padded.attrs["pad"][0] if "pad" in padded.attrs and padded.body is not None else ((0, 0),) * 5  # type: ignore[index]
        (top, bottom), (left, right) = widths[2], widths[3]
        height, breadth = padded.shape[2] - top - bottom, padded.shape[3] - left - right
        r, row = self._axis("r", self.height)
        y0, x0 = self.ty * self.m, self.tx * self.m
        inliner = Inliner(self.space, self.inputs)
        y, x, s = Var("y"), Var("x"), Var("s")
        self.space.bind(y, affine(0), affine(height - 1))
        self.space.bind(x, affine(0), affine(breadth - 1))
        self.space.bind(s, affine(0), affine(self.breadth - 1))
        slot = row * (self.breadth * self.block)

        def write(at: Affine, value: Callable[[Affine], Expr]) -> Callable[[Affine], Stmt]:
            target = Source(self.d, (1,))

            def one(c: Affine) -> Stmt:
                writes = [Write(target, slot + at * self.block + c, value(c))]
                return stores(writes, {}, self.space, self.lanes, None)

            return one

        def element(c: Affine) -> Expr:
            at = [n, block, atom_affine(y) + top, atom_affine(x) + left, c]
            return inliner.element(padded, at)

        def zero(c: Affine) -> Expr:
            return Const(0.0, self.dtype)

        space, emitter = self.space, Emitter()
        low = space.maximum(affine(0), affine(left) - x0)
        high = space.minimum(affine(self.breadth), affine(breadth + left) - x0)
        zeros = self._vectors(self.block, write(atom_affine(s), zero))
        inside = self._vectors(self.block, write(low + atom_affine(s), element))
        inside = Let(x, emitter.index(x0 + low + atom_affine(s) - left), inside)
        # The bounds may cross where no column of the block is inside.
        count = space.maximum(affine(0), high - low)
        rest = self._vectors(self.block, write(low + count + atom_affine(s), zero))
        copied = seq([
            For(s, emitter.index(space.minimum(low, affine(self.breadth))), zeros),
            For(s, emitter.index(count), inside),
            For(s, emitter.index(space.maximum(affine(0), affine(self.breadth) - low - count)), rest),
        ])  # fmt: skip
        at = emitter.index(y0 + row - top)
        valid = binary("and", binary("ge", at, 0), binary("lt", at, dim_value(height)))
        nothing = For(s, dim_value(self.breadth), zeros)
        return loop(r, If(valid, Let(y, at, copied), nothing))

    def _down(self, n: Affine, block: Affine, row: Affine) -> Stmt:
        """Bᵀ d for one row of tiles, each column of the data once -> p."""
        x, column = self._axis("px", self.breadth)
        pixel = self.breadth * self.block
        origin = (self.ty * pixel + self.tx * self.block) * -self.m
        d = Source(self.d, (0, 0, pixel, self.block, 1), origin)
        inliner = Inliner(self.space, {**self.inputs, self.w.padded: d})

        def body(c: Affine) -> Stmt:
            writes = []
            for u in range(self.a):
                at = (n, block, self.ty + row, affine(u), self.tx * self.m + column, c)
                writes.append(Write(Source(self.p, (1,)), (column + u * self.breadth) * self.block + c,
                                    inliner.element(self.w.rows, at)))  # fmt: skip
            return self._together(writes)

        return loop(x, self._vectors(self.block, body))

    def _across(self, image: Affine, block: Affine, row: Affine) -> Stmt:
        """p B -> v, tile by tile."""
        t, tile = self._axis("tc", self.tile_columns)
        u, position = self._axis("pu", self.a)
        p = Source(self.p, (0, 0, 0, self.breadth * self.block, self.block, 1), self.tx * (-self.m * self.block))
        inliner = Inliner(self.space, {**self.inputs, self.w.rows: p})
        first = image * (self.tile_rows * self.tile_columns)
        own = (first + row * self.tile_columns + tile) * self.channels + block * self.block

        def body(c: Affine) -> Stmt:
            writes = []
            for v in range(self.a):
                at = (self.first_image + image, block, self.ty + row, self.tx + tile, position, affine(v), c)
                address = (position * self.a + v) * self.v_step + own + c
                writes.append(Write(Source(self.v, (1,)), address, inliner.element(self.w.tiles, at)))
            return self._together(writes)

        return loop(t, loop(u, self._vectors(self.block, body)))

    def _together(self, writes: Sequence[Write]) -> Stmt:
        """All values first, then the stores: what the values share is computed once."""
        emitter = Emitter(self.lanes, None)
        names: list[tuple[Var, Expr]] = []
        out: list[Stmt] = []
        for n, w in enumerate(writes):
            value = emitter.vector(w.value)
            names.append((Var(f"e{n}", value.dtype, value.lanes), value))
            out.append(Store(w.target.buffer, (emitter.index(w.address),), names[-1][0]))
        body = seq(out)
        for var, value in reversed(names):
            body = Let(var, value, body)
        return body

    # -- v -> products -> output --------------------------------------------------------------------------------------

    def _chunks(self) -> Stmt:
        part, most = self.cut.part, self.cut.chunk
        g, chunk = self._axis("kg", ceildiv(part, most))
        first = self.first_panel + chunk * most
        left = self.space.minimum(affine(part) - chunk * most, affine(self.panels) - first)
        count = self.space.maximum(affine(0), self.space.minimum(affine(most), left))
        k = Var("kp")
        self.space.bind(k, affine(0), affine(most - 1))
        panel = atom_affine(k) if most != 1 else affine(0)
        extent = Emitter().index(count)
        u, position = self._axis("u", self.a * self.a)
        products = loop(u, For(k, extent, self._products(position, first, panel)))
        return loop(g, seq([products, For(k, extent, self._transform_back(first, panel))]))

    def _products(self, position: Affine, first: Affine, panel: Affine) -> Stmt:
        """The products of one position of all tiles with one panel of the weight."""
        most = most_rows(self.vectors, self.target)
        if not isinstance(self.tiles, int):
            return self._products_of_unknown(position, first, panel, self.tiles, most)
        size, larger = register_tiles(self.tiles, most)
        count = _int(ceildiv(self.tiles, most))
        out: list[Stmt] = []
        for number, rows, before in ((larger, size + 1, 0), (count - larger, size, larger)):
            if number:
                t, tile = self._axis("rt", number)
                top = tile * rows + before * (size + 1)
                hints = self._hints(position, first, panel, tile + before, count, rows)
                out.append(loop(t, self._register_tile(position, first, panel, rows, top, hints)))
        return seq(out)

    def _products_of_unknown(self, position: Affine, first: Affine, panel: Affine, tiles: Dim, most: int) -> Stmt:
        """As many register tiles as of the most rows, each of the fewest rows that do, of a few sizes."""
        count = ceildiv(tiles, most)
        t, tile = self._axis("rt", count)
        top = Var("top")
        self.space.bind(top, affine(0), affine(self.cut.tiles - 1))
        # three at most: with five LLVM keeps the accumulators in memory
        sizes = sorted({most, *(max(1, round(most * part)) for part in (0.5, 0.85))})
        out: Stmt | None = None
        for rows in reversed(sizes):
            # with fewer tiles than rows the others are of no use, and lie within the block's memory
            at = self.space.maximum(affine(0), self.space.minimum(tile * rows, affine(tiles - rows)))
            hints = self._hints(position, first, panel, tile, -(-self.cut.tiles // most), rows)
            body = self._register_tile(position, first, panel, rows, atom_affine(top), hints)
            here = loop(t, Let(top, Emitter().index(at), body))
            out = here if out is None else If(binary("le", dim_value(tiles), dim_value(count * rows)), here, out)
        assert out is not None
        return out

    def _hints(
        self, position: Affine, first: Affine, panel: Affine, tile: Affine, count: int, rows: int
    ) -> Callable[[Affine], Stmt] | None:
        """What register tile number `tile` of `count` asks for before some steps: lines of the panel that follows.

        The weight is read once for a block, from memory, which is idle while the other tiles work."""
        weight, chunk, size = self.inputs[self.w.weight], self.cut.chunk, self.dtype.bytes
        elements = self.a * self.a * self.channels * self.panels * self.width
        if elements * size < FETCHED:
            return None
        number, at, k = Var("number"), Var("position"), Var("panel")
        following = next_iteration([(at, None), (k, chunk)])
        then, next_panel = (self._affine(following[v], {at: position, k: panel}) for v in (at, k))
        zero = affine(0)
        start = weight.address((zero, zero, first + next_panel, zero, zero)) + then * weight.strides[1]
        groups = self.channels // self._written_out(rows)
        # As many lines for each tile, so that only those of one are divided among its groups.
        share = -(-(self.channels * self.width * size // LINE) // count)

        def here(group: Affine) -> Stmt:
            def hint(line: Expr) -> Stmt:
                asked = self._affine(line, {number: tile * groups + group})
                return Prefetch(weight.buffer, (Emitter().index(start + asked * (LINE // size)),))

            return hints(number, count * groups, count * share, hint)

        return here

    def _affine(self, e: Expr, env: Mapping[Var, Affine]) -> Affine:
        return self.space.from_expr(e, env, lambda other: other)

    def _register_tile(
        self, position: Affine, first: Affine, panel: Affine, rows: int, top: Affine,
        hints: Callable[[Affine], Stmt] | None,
    ) -> Stmt:  # fmt: skip
        """The products of `rows` tiles from `top` on."""
        weight, chunk = self.inputs[self.w.weight], self.cut.chunk * self.width

        def left(r: Affine, k: Affine) -> Expr:
            return At(Source(self.v, (1,)), position * self.v_step + (top + r) * self.channels + k)

        def right(k: Affine, column: Affine) -> Expr:
            zero = affine(0)
            at = weight.address((zero, zero, first + panel, k, column))
            return At(weight, at + position * weight.strides[1])

        def store(r: Affine, column: Affine, value: Expr, e: Emitter) -> Stmt:
            at = position * self.m_step + (top + r) * chunk + panel * self.width + column
            return Store(self.q, (e.index(at),), e.vector(value))

        shape = Tile(rows, self.vectors, self.lanes, self.dtype)
        together = self._written_out(rows) if hints is not None else 1
        return matmul_tile(shape, affine(self.channels), left, right, store, self.space, hints, together)

    def _written_out(self, rows: int) -> int:
        """Steps of a register tile that are written out between hints."""
        most = max(1, self.target.unrolled_work // (rows * self.vectors))
        return max(n for n in range(1, most + 1) if self.channels % n == 0)

    def _transform_back(self, first: Affine, panel: Affine) -> Stmt:
        """The outputs of all tiles for the channels of one panel."""
        i, image = self._axis("on", self.cut.images)
        t, row = self._axis("ot", self.tile_rows)
        x, column = self._axis("ox", self.tile_columns)
        v, vector = self._axis("ov", self.vectors)
        at = (self.first_image + image, self.ty + row, self.tx + column)
        body = self._tile(*at, first, panel, vector * self.lanes.count)
        return loop(i, loop(t, loop(x, loop(v, body))))

    def _tile(self, n: Affine, ty: Affine, tx: Affine, first: Affine, panel: Affine, start: Affine) -> Stmt:
        """One tile for the vector of channels from `start` of the panel on: Aᵀ q -> h, then h A -> output."""
        lanes, lane = self.lanes.count, atom_affine(self.lanes.lane)
        chunk = self.cut.chunk * self.width
        strides: tuple[Dim, ...] = (self.width, self.tile_columns * chunk, chunk, self.a * self.m_step, self.m_step, 1)
        image = self.tile_rows * strides[1]
        origin = (self.first_image * image + first * self.width + self.ty * strides[1] + self.tx * strides[2]) * -1
        inliner = Inliner(self.space, {**self.inputs, self.w.products: Source(self.q, (image, *strides), origin)})
        j, position = self._axis("oj", self.a)
        h = Source(self.h, (0, 0, 0, 0, self.a * lanes, lanes, 1))
        writes = []
        for i in range(self.m):
            at = (n, first + panel, ty, tx, affine(i), position, start + lane)
            writes.append(Write(h, h.address((*at[:-1], lane)), inliner.element(self.w.half, at)))
        half = loop(j, self._together(writes))
        source = Source(h.buffer, h.strides, start * -1)
        inliner = Inliner(self.space, {**self.inputs, self.w.half: source})
        return seq([half, self._store(inliner, n, ty, tx, (first + panel) * self.width + start)])

    def _store(self, inliner: Inliner, n: Affine, ty: Affine, tx: Affine, start: Affine) -> Stmt:
        """The m x m outputs of a tile, as far as they exist."""
        _, channels, height, breadth, _ = self.w.outputs[0].shape
        channel = start + atom_affine(self.lanes.lane)
        block = self.space.floordiv(channel, affine(self.block))
        inner = self.space.floormod(channel, affine(self.block))
        emitter = Emitter()
        i, row = self._axis("oi", self.m)
        line: list[Stmt] = []
        for j in range(self.m):
            at = (n, block, ty * self.m + row, tx * self.m + j, inner)
            writes = [Write(s, s.address(at), inliner.element(t, at)) for t, s in self.out.items()]
            store = stores(writes, {}, self.space, self.lanes, None)
            line.append(self._if_below(emitter, at[3], breadth, store))
        body = loop(i, self._if_below(emitter, ty * self.m + row, height, seq(line)))
        return self._if_below(emitter, self.space.floordiv(start, affine(self.block)), _int(channels), body)

    def _if_below(self, emitter: Emitter, value: Affine, limit: Dim, body: Stmt) -> Stmt:
        """`body` where value < limit; without a test where that is sure."""
        if self.space.nonnegative(affine(limit - 1) - value):
            return body
        return If(binary("lt", emitter.index(value), dim_value(limit)), body)


def _int(d: object) -> int:
    assert isinstance(d, int)
    return d
