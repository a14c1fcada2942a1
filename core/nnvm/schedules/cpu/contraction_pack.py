"""Packing an operand inside the kernel: the columns of a tile side by side, one step of the reduction after the other.

    w[n, k] or w[k, n]  ->  packed[n / 16, k, 16], for one column tile at a time, in scratch memory

A weight as PyTorch stores it, or a matrix with long rows, is read with large strides by every row tile; packed once
per column tile it is read in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nnvm.dim import Dim, ceildiv, numel
from nnvm.schedules.cpu.contraction_match import Contraction, factors, operand
from nnvm.schedules.kernel import Strides
from nnvm.te.expr import Binary, Cast, Expr, Reduce, Var
from nnvm.te.schedule import Schedule, Stage
from nnvm.te.tensor import IterVar, Read, compute
from nnvm.tir.visitor import post_order, substitute

__all__ = ["pack_axis", "pack_columns"]

#: Rows from which on packing pays.
ROWS = 24
#: Elements between neighbours along the reduction from which on reading is slow.
FAR = 64


def pack_axis(c: Contraction, strides: Strides) -> IterVar | None:
    """The axis of the output whose columns should be packed, if any."""
    rows = numel(tuple(a.extent for a in c.final.axes if c.role(a) == "row"))
    axis = c.vector if c.vector is not None else _contiguous(c, strides)
    if axis is None or (isinstance(rows, int) and rows < ROWS) or c.master_axis(axis) is None:
        return None
    if c.role(axis) != "column" or not isinstance(axis.extent, int):
        return None
    step = c.w.step(c.master.reduce_axes[-1].var)
    if c.vector is not None and (not isinstance(step, int) or step < FAR or c.w.step(axis.var) != 1):
        return None
    return axis


def _contiguous(c: Contraction, strides: Strides) -> IterVar | None:
    """The innermost axis of the output."""
    steps: Sequence[Dim] | None = strides.get(c.final)
    if steps is None:
        return c.final.axes[-1]
    return next((a for a, s in zip(c.final.axes, steps) if s == 1), None)


def pack_columns(
    c: Contraction, schedule: Schedule, m: Stage, axis: IterVar, block: int, strides: Strides
) -> tuple[Contraction, Stage]:
    """`m` reading a packed copy of `w` in blocks of `block` columns: the contraction as it is then, and the copy."""
    assert isinstance(m.body, Reduce)
    position = c.master_axis(axis)
    assert position is not None
    vector = m.axes[position]
    pair = factors(m.body)
    assert pair is not None
    old = next(r for r in pair if r.tensor is c.w.tensor and (len({x.tensor for x in pair}) == 2 or _uses(r, vector)))
    spatial = [a for a in m.axes if a is not vector and _uses(old, a)]
    reduced = [a for a in m.reduce_axes if _uses(old, a)]
    count = len(spatial)

    def element(*i: Expr) -> Expr:
        env: dict[Var, Expr] = {a.var: v for a, v in zip(spatial, i)}
        env[vector.var] = i[count] * block + i[-1]
        env.update({a.var: v for a, v in zip(reduced, i[count + 1 :])})
        return Read(old.tensor, tuple(substitute(x, env) for x in old.indices))

    shape = (*(a.extent for a in spatial), ceildiv(vector.extent, block), *(a.extent for a in reduced), block)
    names = [*(a.name for a in spatial), f"{vector.name}_b", *(a.name for a in reduced), f"{vector.name}_l"]
    packed = compute(shape, element, f"{old.tensor.name}_packed", axis_names=names)
    outer, lane = vector.var // block, vector.var % block
    index = (*(a.var for a in spatial), outer, *(a.var for a in reduced), lane)
    new = packed[index]
    assert isinstance(new, Read) and isinstance(m.body.source, Binary)
    source = Binary("mul", _swap(m.body.source.a, old, new), _swap(m.body.source.b, old, new))
    stage = schedule.insert(packed, m, Reduce(m.body.op, source, m.body.axes))
    return replace(c, w=operand(new, c.master, c.at, strides), vector=axis), stage


def _uses(r: Read, axis: IterVar) -> bool:
    return any(x is axis.var for i in r.indices for x in post_order(i))


def _swap(e: Expr, old: Expr, new: Expr) -> Expr:
    if e is old:
        return new
    return Cast(_swap(e.a, old, new), e.dtype) if isinstance(e, Cast) else e
