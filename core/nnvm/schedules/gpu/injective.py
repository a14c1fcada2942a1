"""Elementwise and injective groups on a GPU: flat tiles, or square ones where an input runs across the output.

Conditions (concat, pad) stay conditions, which mask the loads in their branches. The axes are flattened in the order
of the output's strides, so that neighbouring lanes write neighbouring elements; where an input is contiguous along
another axis (a transpose), both axes are cut, and each side's accesses are coalesced.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.dim import Dim, numel
from nnvm.schedules.access import At, Inliner, Source, all_affines, parts
from nnvm.schedules.axes import Axis, Write, by_stride, collapse
from nnvm.schedules.emit import Emitter
from nnvm.schedules.gpu.tiles import Body, Cut, digits, lets, next_power, warps, written
from nnvm.te.expr import Expr, Var
from nnvm.te.tensor import Tensor
from nnvm.tir.affine import Affine, Space, affine, atom_affine

__all__ = ["elementwise_bodies", "writes_body"]

#: Elements of a flat tile (4 warps with 8 each: two 16-byte accesses of float32), and the side of a square one.
FLAT, SIDE = 1024, 32


def elementwise_bodies(outputs: Sequence[Tensor], sources: dict[Tensor, Source], space: Space) -> list[Body]:
    """One launch for the outputs of each shape."""
    inliner = Inliner(space, {t: s for t, s in sources.items() if t not in outputs})
    by_shape: dict[tuple[Dim, ...], list[Tensor]] = {}
    for t in outputs:
        by_shape.setdefault(t.shape, []).append(t)
    bodies = []
    for shape, group in by_shape.items():
        axes = [Axis(Var(a.name), d).bind(space) for a, d in zip(group[0].axes, shape)]
        at = tuple(atom_affine(a.var) if a.extent != 1 else affine(0) for a in axes)
        writes = [Write(sources[t], sources[t].address(at), inliner.element(t, at)) for t in group]
        bodies.append(writes_body(writes, axes, space))
    return bodies


def writes_body(writes: Sequence[Write], axes: Sequence[Axis], space: Space) -> Body:
    """One launch for writes over the same axes."""
    axes = by_stride(writes, axes)
    forms: list[Affine] = [*all_affines([w.value for w in writes]), *(w.address for w in writes)]
    loops, env = collapse(axes, forms, space)
    if env:
        writes = _rewritten(writes, env, space)
    crossed = _crossed(writes, loops)
    return _flat(writes, loops, space) if crossed is None else _square(writes, loops, crossed, space)


def _rewritten(writes: Sequence[Write], env: dict[Var, Affine], space: Space) -> list[Write]:
    memo: dict[int, Expr] = {}
    return [w.rewrite(space, env, memo) for w in writes]


def _flat(writes: Sequence[Write], loops: Sequence[Axis], space: Space) -> Body:
    total = numel(tuple(a.extent for a in loops))
    size = min(FLAT, next_power(total)) if isinstance(total, int) else FLAT
    program = Var("program")
    cut = Cut.of("x", total, size, atom_affine(program), space)
    writes = _rewritten(writes, digits(loops, atom_affine(cut.index), space), space)
    return Body(program, cut.blocks, cut.around(written(writes, Emitter())), warps(size))


def _square(writes: Sequence[Write], loops: Sequence[Axis], crossed: Axis, space: Space) -> Body:
    inner = loops[-1]
    rest = [a for a in loops if a is not inner and a is not crossed]
    program, row_block, column_block = Var("program"), Var("y_block"), Var("x_block")
    y = Cut.of("y", crossed.extent, SIDE, atom_affine(row_block), space)
    x = Cut.of("x", inner.extent, SIDE, atom_affine(column_block), space)
    count = numel(tuple(a.extent for a in rest))
    number = Axis(Var("plane"), count)
    blocks = [number, Axis(row_block, y.blocks), Axis(column_block, x.blocks)]
    for axis in blocks:
        axis.bind(space)
    space.bind(program, affine(0), affine(numel(tuple(a.extent for a in blocks))) - 1)
    places = digits(blocks, atom_affine(program), space)
    env = {**digits(rest, atom_affine(number.var), space), crossed.var: atom_affine(y.index),
           inner.var: atom_affine(x.index)}  # fmt: skip
    body = y.around(x.around(written(_rewritten(writes, env, space), Emitter())))
    return Body(program, numel(tuple(a.extent for a in blocks)), lets(places, body), 4)


def _crossed(writes: Sequence[Write], loops: Sequence[Axis]) -> Axis | None:
    """The axis along which an input is contiguous that is strided along the innermost one."""
    if len(loops) < 2:
        return None
    inner = loops[-1]
    for e in parts(*(w.value for w in writes)):
        if not isinstance(e, At) or e.address.terms.get(inner.var, 0) in (0, 1):
            continue
        for axis in loops[:-1]:
            if e.address.terms.get(axis.var) == 1 and _wide(axis) and _wide(inner):
                return axis
    return None


def _wide(axis: Axis) -> bool:
    return not isinstance(axis.extent, int) or axis.extent >= 8
