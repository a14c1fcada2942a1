"""Fewer, longer axes for the rows of a contraction.

    y[n, i, j, c] = sum over k of x[n, i, j, k] * w[k, c]     ->     y[n, p, c] = sum over k of x[n, p, k] * w[k, c]

The pixels of a 1x1 convolution lie side by side in all that is read and written, so that a register tile may go on in
the next row of the image: of all tiles only the last one of an image is not full, not that of each of its rows. That is
worth most where only the call knows how long these are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnvm.dim import Dim, row_major
from nnvm.schedules.cpu.contraction_match import Contraction
from nnvm.schedules.kernel import Strides
from nnvm.te.expr import Expr, Var
from nnvm.te.tensor import IterVar, Read, Tensor, reads, topological
from nnvm.tir.visitor import ExprMutator, post_order

__all__ = ["Group", "merge_rows"]

#: The inputs and outputs of a group, and the strides of those that are not contiguous.
Group = tuple[list[Tensor], list[Tensor], dict[Tensor, tuple[Dim, ...]]]

#: Facts on tensors that name no axis.
_WITHOUT_AXES = {"cheap", "constant"}


def merge_rows(c: Contraction, inputs: Sequence[Tensor], outputs: Sequence[Tensor], strides: Strides) -> Group | None:
    """The group with the innermost two row axes of the contraction `c` as one; None where they are not neighbours, or
    lie apart in memory, or anything depends on the place along one of them alone (a window, padding)."""
    rows = [i for i, a in enumerate(c.final.axes) if c.role(a) == "row" and a.extent != 1]
    if len(rows) < 2 or rows[-1] != rows[-2] + 1:
        return None
    merged = _pairs(c.final, rows[-2], topological(outputs))
    for t, at in merged.items():
        steps = strides.get(t) or row_major(t.shape)
        if not t.attrs.keys() <= _WITHOUT_AXES or steps[at] != steps[at + 1] * t.shape[at + 1]:
            return None
    new: dict[Tensor, Tensor] = {}
    for t in (*inputs, *topological(outputs)):
        if t not in new:
            made = _merged(t, merged, new)
            if made is None:
                return None
            new[t] = made
    apart = {new[t]: _without(s, merged.get(t)) for t, s in strides.items() if t in new}
    return [new[t] for t in inputs], [new[t] for t in outputs], apart


def _pairs(final: Tensor, position: int, order: Sequence[Tensor]) -> dict[Tensor, int]:
    """Each tensor that is read at both axes, one after the other, with the place of the first."""
    merged = {final: position}
    for t in reversed(order):  # after all that read it
        if t in merged and t.body is not None:
            pair = _variables(t, merged)
            for r in reads(t.body):
                place = next((n for n in range(len(r.indices) - 1) if r.indices[n : n + 2] == pair), None)
                extents = tuple(a.extent for a in t.axes[merged[t] : merged[t] + 2])
                if place is not None and r.tensor.shape[place : place + 2] == extents:
                    merged.setdefault(r.tensor, place)
    return merged


def _variables(t: Tensor, merged: Mapping[Tensor, int]) -> tuple[Var, ...]:
    at = merged.get(t)
    return () if at is None else tuple(a.var for a in t.axes[at : at + 2])


def _without(items: Sequence[Dim], at: int | None) -> tuple[Dim, ...]:
    """The strides of merged axes: that of the inner one."""
    return tuple(items) if at is None else (*items[:at], *items[at + 1 :])


def _merged(t: Tensor, merged: Mapping[Tensor, int], new: Mapping[Tensor, Tensor]) -> Tensor | None:
    """`t` with its two axes as one, reading `new` tensors; None where it needs them apart."""
    at = merged.get(t)
    shape = t.shape if at is None else (*t.shape[:at], t.shape[at] * t.shape[at + 1], *t.shape[at + 2 :])
    if t.body is None:
        return t if at is None else Tensor(t.name, shape, t.dtype)
    axes, one, pair = t.axes, None, _variables(t, merged)
    if at is not None:
        one = IterVar(Var(f"{t.axes[at].name}_{t.axes[at + 1].name}"), shape[at], "spatial")
        axes = (*t.axes[:at], one, *t.axes[at + 2 :])
    body = _Merge(new, merged, pair, one).expr(t.body)
    if any(x in pair for x in post_order(body) if isinstance(x, Var)):
        return None
    if any(r.tensor in merged.keys() - new.keys() for r in reads(body)):  # read elsewhere than along the pair
        return None
    return Tensor(t.name, shape, t.dtype, axes, body, dict(t.attrs))


class _Merge(ExprMutator):
    """Reads of new tensors, along the new axis in place of the two."""

    def __init__(
        self, new: Mapping[Tensor, Tensor], merged: Mapping[Tensor, int], pair: tuple[Expr, ...], one: IterVar | None
    ) -> None:
        super().__init__()
        self.new, self.merged, self.pair, self.one = new, merged, pair, one

    def visit_read(self, e: Read) -> Expr:
        indices, at = self.exprs(e.indices), self.merged.get(e.tensor)
        if at is None:
            return Read(self.new[e.tensor], indices)
        if self.one is None or e.indices[at : at + 2] != self.pair:
            return e  # the caller sees that it is an old one
        return Read(self.new[e.tensor], (*indices[:at], self.one.var, *indices[at + 2 :]))
