"""Axes of a kernel: what is written over them, and fewer axes for the same elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nnvm.dim import Dim
from nnvm.schedules.access import Source, recombine, rewrite, rewrite_affine
from nnvm.te.expr import Expr, Var
from nnvm.tir.affine import Affine, Space, affine, atom_affine

__all__ = ["Axis", "Write", "by_stride", "collapse"]


@dataclass(eq=False, frozen=True)
class Axis:
    """A loop to be: `var` runs over 0 .. extent - 1."""

    var: Var
    extent: Dim

    def bind(self, space: Space) -> Axis:
        space.bind(self.var, affine(0), affine(self.extent - 1))
        return self

    def __repr__(self) -> str:
        return f"{self.var.name}[{self.extent}]"


def collapse(axes: Sequence[Axis], forms: Iterable[Affine], space: Space) -> tuple[list[Axis], dict[Var, Affine]]:
    """Fewer loops for the same elements: neighbouring axes become one where every Affine steps through both evenly.

    [B, C, H, W] elementwise becomes one flat loop, and with a bias per channel the three loops [B, C, H * W].
    Axes of extent 1 vanish. Gives the new axes and the old ones in terms of them.
    """
    env: dict[Var, Affine] = {a.var: affine(0) for a in axes if a.extent == 1}
    kept = [a for a in axes if a.extent != 1]
    if not kept:
        return [], env
    coefs = [[f.terms.get(a.var, 0) for a in kept] for f in forms]
    rows = {tuple(c) for c in coefs if any(x != 0 for x in c)}
    groups: list[list[int]] = [[0]]
    for i in range(1, len(kept)):
        if all(r[i - 1] == r[i] * kept[i].extent for r in rows):
            groups[-1].append(i)
        else:
            groups.append([i])
    out: list[Axis] = []
    for group in groups:
        if len(group) == 1:
            out.append(kept[group[0]])
            continue
        extent: Dim = 1
        for i in group:
            extent = extent * kept[i].extent
            env[kept[i].var] = affine(0)
        fused = Axis(Var("_".join(kept[i].var.name for i in group)), extent).bind(space)
        env[kept[group[-1]].var] = atom_affine(fused.var)
        out.append(fused)
    return out, env


@dataclass(frozen=True, eq=False)
class Write:
    """`target[address] = value`, over flat memory."""

    target: Source
    address: Affine
    value: Expr

    def rewrite(self, space: Space, env: dict[Var, Affine], memo: dict[int, Expr]) -> Write:
        value = rewrite(space, self.value, env, memo=memo)
        return Write(self.target, recombine(rewrite_affine(space, self.address, env, memo)), value)


def by_stride(writes: Sequence[Write], axes: Sequence[Axis]) -> list[Axis]:
    """Axes by the strides of the first output, widest first; where strides are symbolic, as they are."""
    strides = [writes[0].address.terms.get(a.var, 0) for a in axes]
    if any(not isinstance(s, int) for s in strides):
        return list(axes)
    return [a for _, a in sorted(zip(strides, axes), key=lambda x: -abs(x[0]) if isinstance(x[0], int) else 0)]
