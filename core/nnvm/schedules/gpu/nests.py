"""Loop nests that may run in any order, as launches: writing by index, where contributions to one element add up.

    for i: for j: out[i, index[i, j]] = out[i, index[i, j]] + src[i, j]

becomes one launch over all (i, j) in flat tiles. An element that is read, combined and written again at an address that
comes from memory is combined atomically (`codegen/triton`), as other lanes may write it too.
"""

from __future__ import annotations

from typing import cast as as_type

from nnvm.dim import is_static, numel, row_major
from nnvm.dtype import F32, F64, I32, I64
from nnvm.schedules.axes import Axis
from nnvm.schedules.gpu.injective import FLAT
from nnvm.schedules.gpu.tiles import Body, Cut, digits, kernel_of, lets, next_power, warps
from nnvm.te.expr import INDEX, Binary, Buffer, Const, Expr, Load, Var, binary, const
from nnvm.tir.affine import Space, atom_affine
from nnvm.tir.stmt import For, GridKernel, If, PrimFunc, Seq, Stmt, Store
from nnvm.tir.visitor import StmtMutator, loads, post_order, stmts

__all__ = ["lower_nest_for_grid"]

#: Types whose elements a GPU combines atomically: by addition; by the greater and the less one.
_ADDED, _COMPARED = (F32, F64, I32, I64), (I32, I64)


def lower_nest_for_grid(func: PrimFunc) -> GridKernel:
    """The launches of a kernel that is nests of loops over static shapes, one after the other.

    ValueError: its sizes are named, or its stores need an order, so that it is none.
    """
    if not all(is_static(b.shape) for b in func.params):
        raise ValueError(f"{func.name} has sizes that are known at the call only")
    flat = _Flat(func)
    parts = func.body.body if isinstance(func.body, Seq) else (func.body,)
    bodies = [body for part in parts if (body := _body(flat.stmt(part))) is not None]
    params = [flat.buffers[b] for b in func.params]
    return kernel_of(func.name, params, func.outputs, bodies)


class _Flat(StmtMutator):
    """Buffers of one dimension in place of the kernel's."""

    def __init__(self, func: PrimFunc) -> None:
        super().__init__()
        self.buffers = {b: Buffer(b.name, (numel(b.shape),), b.dtype) for b in func.params}
        self._strides = {b: row_major(b.shape) for b in func.params}
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
                assert isinstance(stride, int)
                step = i if stride == 1 else binary("mul", i, const(stride, INDEX))
                total = step if isinstance(total, Const) and total.value == 0 else binary("add", total, step)
            self._places[key] = (total,)
        return self._places[key]


def _body(s: Stmt) -> Body | None:
    """The launch of one nest; None where there is nothing to do."""
    space, axes = Space(), []
    while isinstance(s, For):
        if not isinstance(s.extent, Const):
            raise ValueError(f"the loop over {s.var.name} depends on others")
        axes.append(Axis(s.var, int(s.extent.value)).bind(space))
        s = s.body
    for inner in stmts(s):
        if isinstance(inner, Store) and not _has_no_order(inner):
            raise ValueError(f"what is stored to {inner.buffer.name} depends on the order")
        if not isinstance(inner, (Store, If, Seq)) and type(inner).__name__ != "Assert":
            raise ValueError(f"{type(inner).__name__} inside a nest")
    total = numel(tuple(a.extent for a in axes))
    assert isinstance(total, int)
    if total == 0:
        return None
    program, size = Var("program"), min(FLAT, next_power(total))
    cut = Cut.of("x", total, size, atom_affine(program), space)
    places = digits(axes, atom_affine(cut.index), space)
    return Body(program, cut.blocks, cut.around(lets(places, s)), warps(size))


def _has_no_order(s: Store) -> bool:
    """Whether it does not matter which of several stores to one element is the last one."""
    if isinstance(s.value, Const) or not any(isinstance(x, Load) for i in s.indices for x in post_order(i)):
        return True  # always the same, or each element is stored once
    e = s.value
    if not isinstance(e, Binary) or not isinstance(e.a, Load) or e.a.buffer is not s.buffer or e.a.indices != s.indices:
        return False
    if any(x.buffer is s.buffer for x in loads(Store(s.buffer, s.indices, e.b))):
        return False
    return s.buffer.dtype in (_ADDED if e.op == "add" else _COMPARED if e.op in ("max", "min") else ())
