"""Loop nests of row programs, in two ways.

*Along* the row (`along`): one row at a time, the vector lies along the row; a reduction has several vector
accumulators (for latency, and as partial sums for accuracy) that are combined when the row is done.

*Across* rows (`across`): the vector lies along a kept axis, every lane works on a row of its own, and the row loop is
a plain loop. It is the way for reductions over outer axes and for a softmax over channels.
"""

from __future__ import annotations

import math

from nnvm.dim import estimate
from nnvm.schedules.access import At, parts
from nnvm.schedules.axes import Axis
from nnvm.schedules.cpu.across import across
from nnvm.schedules.cpu.along import along
from nnvm.schedules.row_program import RowProgram, collapse_kept
from nnvm.target import Target
from nnvm.te.expr import Var
from nnvm.tir.affine import Space
from nnvm.tir.stmt import Stmt

__all__ = ["rows"]

#: Extent of an axis that only the call knows, where none is likely.
UNKNOWN_EXTENT = 64


def rows(program: RowProgram, space: Space, target: Target) -> Stmt:
    """The loop nest of a row program, the better of the two ways."""
    collapse_kept(program, space)
    vector = _kept_vector_axis(program, target)
    if vector is None:
        return along(program, space, target)
    return across(program, vector, space, target)


def _kept_vector_axis(program: RowProgram, target: Target) -> Axis | None:
    """The kept axis along which vectors lie: where the inputs are contiguous along it, or, of short rows (windows),
    where the output is; None where vectors lie along the row."""
    kept = {a.var: a for a in program.kept}
    n = program.row_numel
    if isinstance(n, int) and n <= 4 * target.lanes(32) and program.results:
        step = next((v for v, c in program.results[0].address.terms.items() if c == 1 and v in kept), None)
        wide = step is not None and (not isinstance(e := kept[step].extent, int) or e >= 4)
        if wide and (len(program.passes) == 1 or _voted(program, kept) is not None):
            assert isinstance(step, Var)
            return kept[step]
    axis = _voted(program, kept)
    if axis is None:
        return None
    return axis if not isinstance(axis.extent, int) or axis.extent >= 4 else None


def _voted(program: RowProgram, kept: dict[Var, Axis]) -> Axis | None:
    """The kept axis along which most of what the reductions read is contiguous; None: the row. What is read for each
    element counts so often, a statistic of rows or columns as often as there are of them."""
    row = {a.var for a in program.row}
    extents = {a.var: estimate(a.extent, UNKNOWN_EXTENT) for a in (*program.kept, *program.row)}
    votes: dict[Var | None, int] = {}
    for e in parts(*(r.source for p in program.passes for r in p.reductions)):
        atoms = set(e.address.atoms()) if isinstance(e, At) else set()
        if not isinstance(e, At) or not any(v in row for v in atoms):
            continue
        weight = math.prod(n for v, n in extents.items() if v in atoms)
        for atom, coef in e.address.terms.items():
            if coef == 1 and isinstance(atom, Var):
                key = atom if atom in kept else None
                votes[key] = votes.get(key, 0) + weight
    axis = max(votes, key=lambda v: votes[v], default=None)
    return None if axis is None or votes.get(None, 0) >= votes[axis] else kept[axis]
