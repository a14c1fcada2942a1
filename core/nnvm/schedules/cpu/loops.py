"""Loops around expressions over flat memory: vector loops with their tails, parallel loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nnvm.dim import Dim
from nnvm.dtype import DType
from nnvm.schedules.axes import Axis
from nnvm.schedules.emit import Emitter, Lanes, dim_value, lane_mask
from nnvm.target import Target
from nnvm.te.expr import INDEX, Const, Expr, Var, binary
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import For, If, Stmt, seq

__all__ = ["Step", "loop", "parallel_loops", "vector_lanes", "vector_loops"]

#: Work (in simple operations on elements) below which a kernel stays on one thread.
PARALLEL_WORK = 1 << 15
#: Iterations that are enough for threads to share, though not evenly.
ENOUGH = 8


def vector_lanes(target: Target, dtypes: Iterable[DType]) -> int:
    """Elements per vector: a register of the widest type, but never fewer than a register of 32-bit elements when
    any type is that narrow (64-bit values then take two registers)."""
    bits = [max(t.bits, 8) for t in dtypes] or [32]
    if min(bits) <= 32:
        return target.lanes(min(max(bits), 32))
    return target.lanes(64)


@dataclass(frozen=True)
class Step:
    """One vector operation of a vector loop.

    Attributes:
        position: value of the axis, as an Affine with the lane in it.
        mask: the lanes that count; None: all.
        slot: which of the unrolled vectors this is.
    """

    position: Affine
    mask: Expr | None
    slot: Affine


def vector_loops(axis: Axis, lanes: Lanes, unroll: int, space: Space, body: Callable[[Step], Stmt],
                 kind: str = "serial", limit: Affine | None = None) -> Stmt:  # fmt: skip
    """`body` over all of `axis`, `lanes.count` elements a time: a main loop of `unroll` vectors, then the whole vectors
    that are left, then one masked vector. The main loop runs as `kind`, and stops once it has passed `limit`."""
    count = lanes.count
    lane = atom_affine(lanes.lane)
    space.bind(lanes.lane, affine(0), affine(count - 1))
    block = count * unroll
    out: list[Stmt] = []
    steps = axis.extent // block
    v, u = Axis(Var(f"{axis.var.name}_v"), steps), Axis(Var("u"), unroll)
    v.bind(space)

    def unrolled(start: Affine, extent: int) -> Stmt:
        if extent == 1:
            return body(Step(start + lane, None, affine(0)))
        space.bind(u.var, affine(0), affine(extent - 1))
        slot = atom_affine(u.var)
        return For(u.var, Const(extent, INDEX), body(Step(start + slot * count + lane, None, slot)), "unrolled")

    if steps != 0:
        main = loop(v, unrolled(affine(0) if steps == 1 else atom_affine(v.var) * block, unroll), kind)
        if limit is not None and isinstance(main, For) and main.var is v.var:
            needed = space.maximum(affine(0), space.minimum(affine(steps), space.ceildiv(limit, block)))
            main = For(v.var, Emitter().index(needed), main.body, kind)
        out.append(main)
    rest = axis.extent - steps * block
    if isinstance(rest, int) and isinstance(steps, int):
        start = affine(steps * block)
        if rest >= count:
            out.append(unrolled(start, rest // count))
        if rest % count:
            mask = lane_mask(count, Const(rest % count, INDEX))
            out.append(body(Step(start + rest // count * count + lane, mask, affine(0))))
        return seq(out)
    start = affine(axis.extent // block * block)
    if unroll > 1:
        w = Axis(Var(f"{axis.var.name}_w"), rest // count).bind(space)
        out.append(loop(w, body(Step(start + atom_affine(w.var) * count + lane, None, affine(0)))))
    whole = axis.extent // count * count
    left = dim_value(axis.extent - whole)
    tail = body(Step(affine(whole) + lane, lane_mask(count, left), affine(0)))
    out.append(If(binary("gt", left, 0), tail))
    return seq(out)


def loop(axis: Axis, body: Stmt, kind: str = "serial") -> Stmt:
    """`body` for each value of `axis`; where that is only 0, `body` must not use the variable."""
    return body if axis.extent == 1 else For(axis.var, dim_value(axis.extent), body, kind)


def parallel_loops(axes: Sequence[Axis], work: Dim, space: Space) -> tuple[list[Axis], dict[Var, Affine], str]:
    """The outer loops `axes` as they are to run on several threads: enough of them fused into the first one.

    `work` is that of all iterations together. Gives the loops, the old variables in terms of them, and the kind of the
    first one.
    """
    if not axes or (isinstance(work, int) and work < PARALLEL_WORK):
        return list(axes), {}, "serial"
    take, total, known = 1, axes[0].extent, _known(axes[0])
    # of a size that only the call knows nothing is expected, and where others are enough no index is divided by it
    while take < len(axes) and known < 32:
        if not isinstance(axes[take].extent, int) and (known >= ENOUGH or not isinstance(total, int)):
            break
        total, known = total * axes[take].extent, known * _known(axes[take])
        take += 1
    if take == 1:
        return list(axes), {}, "parallel"
    fused = Axis(Var("p"), total).bind(space)
    env: dict[Var, Affine] = {}
    rest = atom_affine(fused.var)
    for axis in reversed(axes[1:take]):
        env[axis.var] = space.floormod(rest, affine(axis.extent))
        rest = space.floordiv(rest, affine(axis.extent))
    env[axes[0].var] = rest
    return [fused, *axes[take:]], env, "parallel"


def _known(axis: Axis) -> int:
    """The extent, or 1 where only the call knows it."""
    return axis.extent if isinstance(axis.extent, int) else 1
