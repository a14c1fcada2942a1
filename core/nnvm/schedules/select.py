"""Which schedule runs a group of tensors: decided by the structure of the computation alone."""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.dim import Dim
from nnvm.schedules.cpu.access import Inliner, Source
from nnvm.schedules.cpu.injective import Write, elementwise
from nnvm.schedules.cpu.kernel import Strides, flat_kernel
from nnvm.schedules.cpu.loops import Axis
from nnvm.target import Target
from nnvm.te.expr import Reduce, Var
from nnvm.te.tensor import Tensor, topological
from nnvm.tir.affine import Space, affine, atom_affine
from nnvm.tir.stmt import PrimFunc, Stmt, seq

__all__ = ["lower_tensors"]


def lower_tensors(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
) -> PrimFunc:
    """The kernel that computes `outputs` from `inputs`; `strides` of those that are not contiguous."""

    def write(sources: dict[Tensor, Source], space: Space) -> Stmt:
        return injective_nests(outputs, sources, space, target)

    return flat_kernel(inputs, outputs, name, strides, write)


def injective_nests(outputs: Sequence[Tensor], sources: dict[Tensor, Source], space: Space, target: Target) -> Stmt:
    """Outputs without reductions; those of one shape share their loops."""
    inliner = Inliner(space, {t: s for t, s in sources.items() if t not in outputs})
    by_shape: dict[tuple[Dim, ...], list[Tensor]] = {}
    for t in outputs:
        by_shape.setdefault(t.shape, []).append(t)
    out: list[Stmt] = []
    for shape, group in by_shape.items():
        axes = [Axis(Var(a.name), d).bind(space) for a, d in zip(group[0].axes, shape)]
        at = tuple(atom_affine(a.var) if a.extent != 1 else affine(0) for a in axes)
        writes = [Write(sources[t], sources[t].address(at), inliner.element(t, at)) for t in group]
        out.append(elementwise(writes, axes, space, target))
    return seq(out)


_ = (Reduce, topological)
