"""Attention on a GPU: blocks of query rows that walk over the keys, with a running maximum and sum.

    for each block of keys:  s = logits of q kᵀ
                             m' = max(m, row maximum of s);  a = exp(m - m');  p = exp(s - m')
                             l = l * a + row sum of p;  acc = acc * a + p v;  m = m'
    out = acc / l, and what follows

(T. Dao, FlashAttention-2, 2023.) The scores never reach memory. Under a causal mask a block stops at its own last row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnvm.dim import ceildiv, numel
from nnvm.schedules.access import Held, Inliner, Source
from nnvm.schedules.attention_match import Attention, bare
from nnvm.schedules.axes import Axis
from nnvm.schedules.emit import Emitter, dim_value
from nnvm.schedules.gpu.tiles import Body, Cut, digits, guarded, lets, next_power
from nnvm.te.expr import (
    INDEX,
    Binary,
    Buffer,
    Const,
    Expr,
    Load,
    Reduce,
    Select,
    Unary,
    Var,
    binary,
    const,
    maximum,
    minimum,
)
from nnvm.te.tensor import IterVar, Tensor
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import Allocate, For, Let, Stmt, Store, seq
from nnvm.tir.visitor import post_order

__all__ = ["attention_body"]

#: Query rows and keys of a block of half types; of float32, whose products are without tensor cores and keep their
#: factors in registers. Heads from `LARGE_HEAD` on have tiles of their own.
HALF_TILES, TILES, LARGE_HEAD = ((64, 64), (64, 32)), ((32, 32), (16, 32)), 128


def attention_body(a: Attention, sources: Mapping[Tensor, Source], space: Space) -> Body | None:
    """The launch of the whole group; None where its exponentials are none of logits less their maximum."""
    builder = _Builder(a, sources, space)
    return builder.build() if builder.is_plain() else None


class _Builder:
    def __init__(self, a: Attention, sources: Mapping[Tensor, Source], space: Space) -> None:
        self.a, self.space = a, space
        self.inputs = {t: s for t, s in sources.items() if t is not a.out}
        self.out = sources[a.out]
        self.dtype = a.scores.dtype
        self.rows, self.keys = a.scores.axes[-2].extent, a.scores.axes[-1].extent
        depth, columns = a.scores.reduce_axes[0].extent, a.weighted.axes[-1].extent
        assert isinstance(depth, int) and isinstance(columns, int)
        self.depth, self.columns = depth, columns
        heads = [Axis(Var(f"b{n}"), x.extent) for n, x in enumerate(a.scores.axes[:-2])]
        self.head_count = numel(tuple(h.extent for h in heads))
        self.head = Axis(Var("head"), self.head_count).bind(space)
        env = digits(heads, atom_affine(self.head.var), space)
        self.lead = [env[h.var] if h.extent != 1 else affine(0) for h in heads]
        tiles = HALF_TILES if bare(a.v).dtype.is_half else TILES
        most, keys = tiles[max(depth, columns) >= LARGE_HEAD]
        size = min(most, max(16, next_power(self.rows))) if isinstance(self.rows, int) else most
        keys = min(keys, max(16, next_power(self.keys))) if isinstance(self.keys, int) else keys
        self.row_block, self.key_block = Var("row_block"), Var("key_block")
        self.i = Cut.of("i", self.rows, size, atom_affine(self.row_block), space)
        self.j = Cut.of("j", self.keys, keys, atom_affine(self.key_block), space)
        self.c = Cut.of("c", columns, max(16, next_power(columns)), affine(0), space)
        self.d = IterVar(Var("d"), max(16, next_power(depth)), "reduce")
        space.bind(self.d.var, affine(0), affine(depth - 1))
        self.s, self.acc = self._tile("s", self.i, self.j), self._tile("acc", self.i, self.c)
        self.top, self.new_top, self.total = (self._tile(n, self.i) for n in ("top", "new_top", "total"))
        # of an axis of one element, as of one query, everybody reads element 0
        self.row, self.key = (affine(0) if c.extent == 1 else atom_affine(c.index) for c in (self.i, self.j))
        self.at = (*self.lead, self.row, self.key)
        self.inliner = Inliner(space, self.inputs, frozenset((a.scores, a.top, a.weighted, a.total)))
        assert isinstance(a.top.body, Reduce)
        self.logits = self.inliner.expr(a.top.body.source, self._row_env(a.top))
        self.exps = self.inliner.element(a.exps, self.at)

    def _tile(self, name: str, *cuts: Cut) -> Buffer:
        return Buffer(name, tuple(c.size for c in cuts), self.dtype, None, "local")

    def _row_env(self, t: Tensor) -> dict[Var, Affine]:
        env = {x.var: affine(0) if x.extent == 1 else i for x, i in zip(t.axes, self.at)}
        env[t.reduce_axes[0].var] = self.at[-1]
        return env

    def is_plain(self) -> bool:
        """Are the exponentials ``exp(logits - top)``, a top of -inf perhaps taken for 0?"""
        e = self.exps
        if not isinstance(e, Unary) or e.op != "exp" or not isinstance(e.a, Binary) or e.a.op != "sub":
            return False
        shift = e.a.b
        if isinstance(shift, Select) and isinstance(shift.a, Const) and shift.a.value == 0:
            shift = shift.b
        return e.a.a is self.logits and isinstance(shift, Held) and shift.tensor is self.a.top

    def build(self) -> Body:
        number = Var("program")
        blocks = [self.head, Axis(self.row_block, self.i.blocks).bind(self.space)]
        count = numel(tuple(b.extent for b in blocks))
        self.space.bind(number, affine(0), affine(count) - 1)
        zero, least = const(0.0, self.dtype), const(self.dtype.min, self.dtype)
        steps = seq([
            self._rows(seq([self._set(self.top, least), self._set(self.total, zero)])),
            self._output_tile(self._set(self.acc, zero)),
            For(self.key_block, self._key_blocks(), self._step(), "serial"),
            self._end(),
        ])  # fmt: skip
        for b in (self.s, self.new_top, self.total, self.top, self.acc):
            steps = Allocate(b, steps)
        body = lets(digits(blocks, atom_affine(number), self.space), steps)
        return Body(number, count, body, 4 if bare(self.a.v).dtype.is_half else 8, 2)

    def _key_blocks(self) -> Expr:
        if not self.a.causal:
            return dim_value(ceildiv(self.keys, self.j.size))
        last = minimum(dim_value(self.keys), Emitter().index(atom_affine(self.row_block) * self.i.size + self.i.size))
        return binary("floordiv", last + (self.j.size - 1), const(self.j.size, INDEX))

    # --- tiles

    def _rows(self, body: Stmt) -> Stmt:
        return self.i.around(body, False)

    def _score_tile(self, body: Stmt) -> Stmt:
        return self.i.around(self.j.around(body, False), False)

    def _output_tile(self, body: Stmt, guard: bool = False) -> Stmt:
        return self.i.around(self.c.around(body, guard), guard)

    def _where(self, b: Buffer) -> tuple[Expr, ...]:
        lanes: Sequence[Var] = (self.i.lane,)
        if b is self.s:
            lanes = (self.i.lane, self.j.lane)
        elif b is self.acc:
            lanes = (self.i.lane, self.c.lane)
        return tuple(lanes)

    def _load(self, b: Buffer) -> Expr:
        return Load(b, self._where(b))

    def _set(self, b: Buffer, value: Expr) -> Stmt:
        return Store(b, self._where(b), value)

    # --- a block of keys

    def _step(self) -> Stmt:
        least = const(self.dtype.min, self.dtype)
        top = Var("top_or_0", self.dtype)
        shift = Select(self._load(self.new_top).equal(least), const(0.0, self.dtype), self._load(self.new_top))
        lane = (IterVar(self.j.lane, self.j.size, "reduce"),)
        decay = Var("decay", self.dtype)
        before = Unary("exp", self._load(self.top) - top)
        logits = Emitter(held=self._held).value(self.logits)
        masked = logits
        rows = self.i.inside if _reads(logits) else None  # a mask has no rows beyond the last query's
        for inside in (self.j.inside, rows):
            masked = masked if inside is None else Select(inside, masked, least)
        v = self._value_factor()
        weighted = Reduce("sum", Binary("mul", self._load(self.s), v), lane)
        tail = seq([
            self._rows(self._set(self.new_top, maximum(self._load(self.top), Reduce("max", self._load(self.s), lane)))),
            self._rows(Let(top, shift, Let(decay, before, seq([
                For(self.j.lane, Const(self.j.size, INDEX), self._set(self.s, Unary("exp", self._load(self.s) - top)),
                    "tile"),
                self._set(self.total, self._load(self.total) * decay + Reduce("sum", self._load(self.s), lane)),
                self.c.around(self._set(self.acc, self._load(self.acc) * decay), False),
                self._set(self.top, self._load(self.new_top)),
            ])))),
            self._output_tile(self._set(self.acc, self._load(self.acc) + weighted)),
        ])  # fmt: skip
        return seq([
            self._score_tile(seq([self._set(self.s, const(0.0, self.dtype)),
                                  self._set(self.s, self._load(self.s) + self._scores())])),
            self._score_tile(self._set(self.s, masked)),
            tail,
        ])  # fmt: skip

    def _held(self, e: Held) -> Expr:
        if e.tensor is self.a.scores:
            return self._load(self.s)
        return self._load({self.a.total: self.total, self.a.weighted: self.acc}[e.tensor])

    def _scores(self) -> Expr:
        step = atom_affine(self.d.var)
        inside = None if self.depth == self.d.extent else binary("lt", self.d.var, const(self.depth, INDEX))
        q = self._factor(self.a.scores, self.a.q, self.at[-2], affine(0), step)
        k = self._factor(self.a.scores, self.a.k, affine(0), self.at[-1], step)
        product = Binary("mul", guarded(q, self.i.inside, inside), guarded(k, self.j.inside, inside))
        return Reduce("sum", product, (self.d,))

    def _value_factor(self) -> Expr:
        """v[j, c] at the positions of the key block, where the tile of the output has j as its reduced axis."""
        key = self.j.position
        self.space.bind(self.j.lane, affine(0), affine(self.j.size - 1))
        self.space.bind(self.key_block, affine(0), affine(self.j.blocks) - 1)
        v = self._factor(self.a.weighted, self.a.v, affine(0), atom_affine(self.c.index), key)
        inside = None if self.j.inside is None else binary("lt", Emitter().index(key), dim_value(self.keys))
        return guarded(v, self.c.inside, inside)

    def _factor(self, of: Tensor, factor: Expr, row: Affine, column: Affine, step: Affine) -> Expr:
        """A factor of one of the products at (row, column, step of the sum)."""
        *lead, i, j = of.axes
        env = {x.var: at for x, at in zip(lead, self.lead)}
        env.update({i.var: row, j.var: column, of.reduce_axes[0].var: step})
        return Emitter().value(Inliner(self.space, self.inputs).expr(factor, env))

    def _end(self) -> Stmt:
        at = (*self.lead, self.row, affine(0) if self.columns == 1 else atom_affine(self.c.index))
        value = Emitter(held=self._held).value(self.inliner.element(self.a.out, at))
        address = Emitter().index(self.out.address(at))
        return self._output_tile(Store(self.out.buffer, (address,), value), True)


def _reads(e: Expr) -> bool:
    """Whether an expression reads memory of the graph's."""
    return any(isinstance(x, Load) and x.buffer.scope == "global" for x in post_order(e))
