"""Packing an operand inside the kernel: the columns of a tile side by side, one step of the reduction after the other.

    w[n, k] or w[k, n]  ->  packed[n / 16, k, 16], for one column tile at a time, in scratch memory
    x[k, m]             ->  packed[m / 6, k, 6], for one block of rows at a time

A weight as PyTorch stores it, or a matrix with long rows, is read with large strides by every row tile; packed once
per column tile it is read in order. So are the rows of a transposed matrix, once per block of rows, where each step is
on a page of its own or the steps share few sets of the second cache: those of a power of two do (Goto and van de Geijn,
Anatomy of High-Performance Matrix Multiplication, 2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from nnvm.dim import Dim, ceildiv, numel
from nnvm.schedules.cpu.contraction_match import Contraction, factors, operand
from nnvm.schedules.kernel import Strides
from nnvm.target import Target
from nnvm.te.expr import Binary, Cast, Expr, Reduce, Var, binary, select
from nnvm.te.schedule import Schedule, Stage
from nnvm.te.tensor import IterVar, Read, Tensor, compute
from nnvm.tir.visitor import post_order, substitute

__all__ = ["PAGE", "far_rows", "pack_axis", "pack_columns", "pack_rows"]

#: Rows from which on packing pays: of few steps, of columns whose steps are a page apart or need a conversion, or where
#: the steps of the rows are apart too; and of others, which have at least so many steps.
ROWS, NEAR_ROWS, NEAR_STEPS = 24, 128, 512
#: A vector's share that columns fill at most where vectors rather lie along the reduction: one in so many.
FEW_COLUMNS = 4
#: Elements between neighbours along the reduction from which on reading is slow.
FAR = 64
#: Columns and steps of the reduction from which on packing rows pays.
COLUMNS, STEPS = 64, 32
#: Bytes of a page, beyond which nothing is fetched ahead, and ways of the second cache.
PAGE, WAYS = 4096, 8


def pack_axis(c: Contraction, strides: Strides, lanes: int) -> IterVar | None:
    """The axis of the output whose columns should be packed, if any, for vectors of `lanes`."""
    rows = numel(tuple(a.extent for a in c.final.axes if c.role(a) == "row"))
    axis = c.vector if c.vector is not None else _contiguous(c, strides)
    if axis is None or (isinstance(rows, int) and rows < ROWS) or c.master_axis(axis) is None:
        return None
    if c.role(axis) != "column" or not isinstance(axis.extent, int):
        return None
    if c.vector is None and axis.extent * FEW_COLUMNS <= lanes:
        return None
    step = c.w.step(c.master.reduce_axes[-1].var)
    near = c.vector is None or not isinstance(step, int) or step * c.w.tensor.dtype.bytes < PAGE
    near = near and c.w.tensor.dtype == c.master.dtype and c.x.step(c.master.reduce_axes[-1].var) == 1
    steps = numel(tuple(a.extent for a in c.master.reduce_axes))
    long = isinstance(steps, int) and steps >= NEAR_STEPS and (c.vector is not None or steps % lanes == 0)
    if near and long and isinstance(rows, int) and rows < NEAR_ROWS:
        return None
    if c.vector is not None and (not isinstance(step, int) or step < FAR or c.w.step(axis.var) != 1):
        return None
    return axis


def _contiguous(c: Contraction, strides: Strides) -> IterVar | None:
    """The innermost axis of the output."""
    steps: Sequence[Dim] | None = strides.get(c.final)
    if steps is None:
        return c.final.axes[-1]
    return next((a for a, s in zip(c.final.axes, steps) if s == 1), None)


def far_rows(c: Contraction, row: IterVar, target: Target) -> bool:
    """Whether the rows of `x` should be packed: neighbours along `row` lie side by side, the steps of the reduction
    far apart."""
    (k, *more), columns = c.master.reduce_axes, numel(tuple(a.extent for a in c.final.axes if c.role(a) == "column"))
    step = c.x.step(k.var)
    if more or c.x.step(row.var) != 1 or c.master_axis(row) is None or c.x.tensor is c.w.tensor:
        return False
    sizes = (row.extent, k.extent, columns, step)
    if not all(isinstance(n, int) for n in sizes) or not c.x.tensor.is_placeholder:
        return False
    rows, steps, wide, far = (int(n) for n in sizes if isinstance(n, int))
    if rows < ROWS or wide < COLUMNS or steps < STEPS:
        return False
    apart = far * c.x.tensor.dtype.bytes
    lines = target.l2_bytes // max(1, math.gcd(apart, target.l2_bytes // WAYS))  # of the steps that stay in the cache
    return apart >= PAGE or (far >= FAR and lines < steps)


def pack_rows(
    c: Contraction, schedule: Schedule, m: Stage, axis: IterVar, block: int, strides: Strides
) -> tuple[Contraction, Stage]:
    """`m` reading a packed copy of `x` in blocks of `block` rows: the contraction as it is then, and the copy."""
    new, stage = _packed(c, c.x.tensor, schedule, m, axis, block)
    return replace(c, x=operand(new, c.master, c.at, strides)), stage


def pack_columns(
    c: Contraction, schedule: Schedule, m: Stage, axis: IterVar, block: int, strides: Strides
) -> tuple[Contraction, Stage]:
    """`m` reading a packed copy of `w` in blocks of `block` columns: the contraction as it is then, and the copy."""
    new, stage = _packed(c, c.w.tensor, schedule, m, axis, block)
    return replace(c, w=operand(new, c.master, c.at, strides), vector=axis), stage


def _packed(
    c: Contraction, tensor: Tensor, schedule: Schedule, m: Stage, axis: IterVar, block: int
) -> tuple[Read, Stage]:
    """`m` reading a copy of `tensor` in blocks of `block` along `axis`: how it is read then, and the copy."""
    assert isinstance(m.body, Reduce)
    position = c.master_axis(axis)
    assert position is not None
    own = m.axes[position]
    pair = factors(m.body)
    assert pair is not None
    old = next(r for r in pair if r.tensor is tensor and (len({x.tensor for x in pair}) == 2 or _uses(r, own)))
    spatial = [a for a in m.axes if a is not own and _uses(old, a)]
    reduced = [a for a in m.reduce_axes if _uses(old, a)]
    count = len(spatial)
    # Rows are packed for whole tiles, of which the last may reach beyond them.
    rest = tensor is c.x.tensor and isinstance(own.extent, int) and own.extent % block != 0

    def element(*i: Expr) -> Expr:
        env: dict[Var, Expr] = {a.var: v for a, v in zip(spatial, i)}
        env[own.var] = i[count] * block + i[-1]
        env.update({a.var: v for a, v in zip(reduced, i[count + 1 :])})
        value = Read(old.tensor, tuple(substitute(x, env) for x in old.indices))
        return select(binary("lt", env[own.var], own.extent), value, 0) if rest else value

    shape = (*(a.extent for a in spatial), ceildiv(own.extent, block), *(a.extent for a in reduced), block)
    names = [*(a.name for a in spatial), f"{own.name}_b", *(a.name for a in reduced), f"{own.name}_l"]
    packed = compute(shape, element, f"{old.tensor.name}_packed", axis_names=names)
    outer, lane = own.var // block, own.var % block
    index = (*(a.var for a in spatial), outer, *(a.var for a in reduced), lane)
    new = packed[index]
    assert isinstance(new, Read) and isinstance(m.body.source, Binary)
    source = Binary("mul", _swap(m.body.source.a, old, new), _swap(m.body.source.b, old, new))
    stage = schedule.insert(packed, m, Reduce(m.body.op, source, m.body.axes))
    return new, stage


def _uses(r: Read, axis: IterVar) -> bool:
    return any(x is axis.var for i in r.indices for x in post_order(i))


def _swap(e: Expr, old: Expr, new: Expr) -> Expr:
    if e is old:
        return new
    return Cast(_swap(e.a, old, new), e.dtype) if isinstance(e, Cast) else e
