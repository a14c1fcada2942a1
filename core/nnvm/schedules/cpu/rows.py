"""Loop nests of row programs, in two ways.

*Along* the row (`along`): one row at a time, the vector lies along the row; a reduction has several vector
accumulators (for latency, and as partial sums for accuracy) that are combined when the row is done.

*Across* rows (`across`): the vector lies along a kept axis, every lane works on a row of its own, and the row loop is
a plain loop. It is the way for reductions over outer axes and for a softmax over channels.
"""

from __future__ import annotations

from nnvm.dim import Dim
from nnvm.schedules.cpu.access import At, all_affines, parts
from nnvm.schedules.cpu.across import across
from nnvm.schedules.cpu.along import along
from nnvm.schedules.cpu.loops import Axis, collapse
from nnvm.schedules.cpu.row_program import RowProgram
from nnvm.target import Target
from nnvm.te.expr import Expr, Var
from nnvm.tir.affine import Affine, Space
from nnvm.tir.stmt import Stmt

__all__ = ["rows"]


def rows(program: RowProgram, space: Space, target: Target) -> Stmt:
    """The loop nest of a row program, the better of the two ways."""
    _collapse_kept(program, space)
    vector = _kept_vector_axis(program, target)
    if vector is None:
        return along(program, space, target)
    return across(program, vector, space, target)


def _collapse_kept(program: RowProgram, space: Space) -> None:
    """Fewer kept loops, where all passes allow it."""
    roots: list[Expr] = [e for p in program.passes for e in p.roots] + [w.value for w in program.results]
    writes = [w for p in program.passes for w in p.writes] + program.results
    forms: list[Affine] = [*all_affines(roots), *(w.address for w in writes)]
    kept, env = collapse(program.kept, forms, space)
    if env:
        memo: dict[int, Expr] = {}
        program.passes = [p.rewrite(space, env, memo) for p in program.passes]
        program.results = [w.rewrite(space, env, memo) for w in program.results]
        program.kept = kept


def _kept_vector_axis(program: RowProgram, target: Target) -> Axis | None:
    """The kept axis along which the inputs are contiguous; None where they are contiguous along the row."""
    row, kept = {a.var for a in program.row}, {a.var: a for a in program.kept}
    votes: dict[Var | None, int] = {}
    for e in parts(*(r.source for p in program.passes for r in p.reductions)):
        if not isinstance(e, At) or not any(v in row for v in e.address.atoms()):
            continue
        for atom, coef in e.address.terms.items():
            if coef == 1 and isinstance(atom, Var):
                key = atom if atom in kept else None
                votes[key] = votes.get(key, 0) + 1
    axis = max(votes, key=lambda v: votes[v], default=None)
    if axis is None or votes.get(None, 0) >= votes[axis]:
        return None
    extent: Dim = kept[axis].extent
    return kept[axis] if not isinstance(extent, int) or extent >= 4 else None
