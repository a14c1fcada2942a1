"""Loop nests that may run in any order, as launches: writing by index.

    for i: for j: out[i, index[i, j]] = out[i, index[i, j]] + src[i, j]

becomes one launch over all (i, j) in flat tiles. An element that is read, combined and written again at an address that
comes from memory is combined atomically (`codegen/triton`), as other lanes may write it too. Of several values that are
only stored to one element any one stays, as PyTorch has it of its own kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast as as_type

from nnvm.dim import numel, row_major
from nnvm.dtype import F32, F64, I32, I64
from nnvm.schedules.axes import Axis
from nnvm.schedules.emit import dim_value
from nnvm.schedules.gpu.injective import FLAT
from nnvm.schedules.gpu.tiles import Body, Cut, digits, kernel_of, lets, next_power, warps
from nnvm.te.expr import INDEX, Binary, Bitcast, Buffer, Const, Expr, Load, Select, Unary, Var, binary, const
from nnvm.tir.affine import Space, atom_affine
from nnvm.tir.atomic import nan_bits
from nnvm.tir.stmt import Allocate, Assert, For, GridKernel, If, PrimFunc, Seq, Stmt, Store
from nnvm.tir.visitor import StmtMutator, free_vars, loads, post_order, stmts

__all__ = ["lower_nest_for_grid"]

#: What a GPU combines atomically: sums, and the greater and the less one, in these types.
_COMBINED, _ATOMIC = ("add", "max", "min"), (F32, F64, I32, I64)


def lower_nest_for_grid(func: PrimFunc) -> GridKernel:
    """The launches of a kernel that is nests of loops, one after the other.

    ValueError: its stores need an order, so that it is none.
    """
    body, scratch = func.body, []
    while isinstance(body, Allocate):
        scratch.append(body.buffer)
        body = body.body
    flat = _Flat([*func.params, *scratch])
    body = _canonical(flat.stmt(body))
    parts = body.body if isinstance(body, Seq) else (body,)
    bodies = [made for part in parts if (made := _body(part)) is not None]
    params = [flat.buffers[b] for b in func.params]
    return kernel_of(func.name, params, func.outputs, bodies, [flat.buffers[b] for b in scratch])


def _canonical(body: Stmt) -> Stmt:
    """`body` with one kind of NaN in what is compared atomically: the bits that are on top of all others.

    A GPU compares the bits of floats as integers; `codegen/triton` gives the same NaN to what it combines.
    """
    kinds = {s.buffer: e.op for s in stmts(body) if isinstance(s, Store) and s.buffer.dtype.is_float
             and isinstance(e := s.value, Binary) and e.op in ("max", "min") and _is_combined(s)}  # fmt: skip
    return _OneNan(kinds).stmt(body) if kinds else body


class _OneNan(StmtMutator):
    """Values that are stored, and not combined with what is there, have no NaN but that of the buffer's operator."""

    def __init__(self, kinds: dict[Buffer, str]) -> None:
        super().__init__()
        self._kinds = kinds

    def visit_store(self, s: Store) -> Stmt:
        op = self._kinds.get(s.buffer)
        if op is None or _is_combined(s) or isinstance(s.value, Const):
            return s
        t = s.buffer.dtype
        nan = Bitcast(Const(nan_bits(op, t.bits), I32 if t == F32 else I64), t)
        return Store(s.buffer, s.indices, Select(Unary("isnan", s.value), nan, s.value), s.mask)


class _Flat(StmtMutator):
    """Buffers of one dimension, in global memory, in place of the kernel's."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        super().__init__()
        self.buffers = {b: Buffer(b.name, (numel(b.shape),), b.dtype) for b in buffers}
        self._strides = {b: row_major(b.shape) for b in buffers}
        self._places: dict[tuple[object, ...], tuple[Expr, ...]] = {}

    def visit_load(self, e: Load) -> Expr:
        new = as_type(Load, self.generic(e))
        return Load(self.buffers[e.buffer], self._place(e.buffer, new.indices))

    def visit_store(self, s: Store) -> Stmt:
        new = as_type(Store, self._store(s))
        return Store(self.buffers[s.buffer], self._place(s.buffer, new.indices), new.value)

    def _place(self, b: Buffer, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The row-major position: one object for equal indices, as a store knows its own element by that."""
        key = (b, *map(id, indices))
        if key not in self._places:
            total: Expr = const(0, INDEX)
            for i, stride in zip(indices, self._strides[b]):
                step = i if stride == 1 else binary("mul", i, dim_value(stride))
                total = step if isinstance(total, Const) and total.value == 0 else binary("add", total, step)
            self._places[key] = (total,)
        return self._places[key]


def _body(s: Stmt) -> Body | None:
    """The launch of one nest; None where there is nothing to do."""
    space, axes = Space(), list[Axis]()
    while isinstance(s, For):
        extent = space.from_expr(s.extent, {}, lambda e: e).dim
        if extent is None or any(v in {a.var for a in axes} for v in free_vars(s.extent)):
            raise ValueError(f"the loop over {s.var.name} depends on others")
        axes.append(Axis(s.var, extent).bind(space))
        s = s.body
    for inner in stmts(s):
        if isinstance(inner, Store) and not _has_no_order(inner):
            raise ValueError(f"what is stored to {inner.buffer.name} depends on the order")
        if not isinstance(inner, (Store, If, Seq, Assert)):
            raise ValueError(f"{type(inner).__name__} inside a nest")
    total = numel(tuple(a.extent for a in axes))
    if total == 0:
        return None
    program, size = Var("program"), min(FLAT, next_power(total)) if isinstance(total, int) else FLAT
    cut = Cut.of("x", total, size, atom_affine(program), space)
    places = digits(axes, atom_affine(cut.index), space)
    return Body(program, cut.blocks, cut.around(lets(places, s)), warps(size))


def _is_combined(s: Store) -> bool:
    """Whether it combines a value with the element that is there already."""
    e = s.value
    own = isinstance(e, Binary) and isinstance(e.a, Load) and e.a.buffer is s.buffer and e.a.indices == s.indices
    return own and _is_placed(s)


def _is_placed(s: Store) -> bool:
    """Whether its address comes from memory, so that several may store to one element."""
    return any(isinstance(x, Load) for i in s.indices for x in post_order(i))


def _has_no_order(s: Store) -> bool:
    """Whether it does not matter in which order several stores to one element are done: all are atomic, or none reads
    what another leaves there."""
    if not _is_placed(s):
        return True  # each element is stored once
    e = s.value
    if _is_combined(s):
        assert isinstance(e, Binary)
        if s.buffer.dtype not in _ATOMIC or e.op not in _COMBINED:
            return False
        e = e.b
    return all(x.buffer is not s.buffer for x in loads(Store(s.buffer, s.indices, e)))
