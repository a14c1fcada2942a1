"""Windows with padding: where the padding conditions of a reduction hold for the whole window, and where they do not.

    sum over k of (x[i + k - 1] if 0 <= i + k - 1 < n else 0) * w[k]

For i in 1 .. n - 2 every tap is inside. This interior gets loops without conditions; the borders around it get loops
over only those taps that are inside (`clip`). Where only the call knows n, so are the ends of these loops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nnvm import dim as dims
from nnvm.dim import Dim
from nnvm.dtype import BOOL
from nnvm.schedules.access import At, Index, parts, rewrite
from nnvm.schedules.axes import Axis
from nnvm.schedules.row_program import Pass, RowProgram
from nnvm.te.expr import COMPARISONS, Binary, Cast, Const, Expr, Var
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.lower_reduce import neutral

__all__ = ["Bounds", "Piece", "clip", "pieces"]


@dataclass(frozen=True, eq=False)
class Piece:
    """A box of the kept domain; in its interior no condition is left."""

    program: RowProgram
    vector: Axis
    interior: bool


@dataclass(frozen=True, eq=False)
class Bounds:
    """The range of a row axis inside the data, for the point at hand: `low <= var < high`."""

    low: Affine
    high: Affine


def pieces(program: RowProgram, vector: Axis, space: Space) -> list[Piece]:
    """The interior of the kept domain and the borders around it; the whole where there are no windows."""
    conditions = _conditions(program)
    if not conditions or program.buffers or len(program.passes) > 1:
        return [Piece(program, vector, not conditions)]
    out: list[Piece] = []
    for axis in list(program.kept):
        if not isinstance(axis.extent, int):
            if axis is not vector and (inner := _inner(conditions, axis, program.row)) is not None:
                program, borders = _cut(program, axis, inner, space)
                out += [Piece(b, vector, False) for b in borders]
                conditions = _conditions(program)
            continue
        cut = _interior(conditions, axis, program.row)
        if cut is None:
            continue
        low, high = cut
        if low > 0 or high < axis.extent:
            size = low + axis.extent - high
            lone = axis is vector and all(a.extent == 1 for a in program.kept if a is not axis)
            border, at = _restrict(program, axis, size, _around(axis, low, high, size), space, lone)
            along = vector if axis is not vector else at if lone else _longest(border)
            out.append(Piece(border, along, False))
        program, inside = _restrict(program, axis, high - low, _after(low), space, axis is vector)
        vector = inside if axis is vector else vector
        conditions = _conditions(program)
    return [Piece(program, vector, not conditions), *out]


@dataclass(frozen=True, eq=False)
class _Inner:
    """The range `low <= x < high` of an axis whose extent only the call knows, in which conditions are `decided`."""

    low: Dim
    high: Dim
    decided: dict[int, Expr]


def _inner(conditions: Sequence[Expr], axis: Axis, row: Sequence[Axis]) -> _Inner | None:
    """Where each of `conditions` is decided whatever the row axes are: above the places that do not depend on sizes
    (the padding before the data), below those that do (the padding after it). None where nothing is."""
    low, high = 0, axis.extent
    decided: dict[int, Expr] = {}
    for e in conditions:
        assert isinstance(e, Binary) and isinstance(e.a, Index) and isinstance(e.b, Index)
        d = e.a.value - e.b.value
        ends = _ends(d, axis, row)
        if ends is None or e.op in ("eq", "ne"):
            continue
        coef, least, most = ends
        if e.op in ("gt", "le"):  # d > 0 is -d < 0
            coef, least, most = -coef, -most, -least
        cuts = [_first(coef, c) for c in (least, most)]  # where `d < 0` is decided otherwise than before
        after = all(isinstance(c, int) for c in cuts)
        below = coef > 0  # `d < 0` holds for small x
        if after:
            low = max(low, *(c for c in cuts if isinstance(c, int)))
        else:
            high = dims.dim_min(high, dims.dim_min(*cuts))
        holds = below != after
        decided[id(e)] = Const(holds if e.op in ("lt", "gt") else not holds, BOOL)
    if not decided:
        return None
    start = dims.dim_min(low, axis.extent) if low > 0 else 0
    return _Inner(start, dims.dim_max(start, high), decided)


def _ends(d: Affine, axis: Axis, row: Sequence[Axis]) -> tuple[int, Dim, Dim] | None:
    """Of `d`: its factor of `axis`, and what else there is of it, least and most over the row; None where that depends
    on anything else."""
    extents = {a.var: a.extent for a in row}
    coef = d.terms.get(axis.var)
    others = {v: c for v, c in d.terms.items() if v is not axis.var}
    if not isinstance(coef, int) or not others.keys() <= extents.keys():
        return None
    ends = [c * (extents[v] - 1) for v, c in others.items()]  # type: ignore[index]
    static = [x for x in ends if isinstance(x, int)]
    if len(static) < len(ends):
        return None
    return coef, d.const + sum(min(0, x) for x in static), d.const + sum(max(0, x) for x in static)


def _first(coef: int, const: Dim) -> Dim:
    """The least x at which `coef * x + const < 0` is no longer what it is below."""
    return -(const // coef) if coef > 0 else const // -coef + 1


def _cut(program: RowProgram, axis: Axis, inner: _Inner, space: Space) -> tuple[RowProgram, list[RowProgram]]:
    """The program inside, and before and after it."""
    low, high = inner.low, inner.high
    parts_of_axis = ((low, 0), (axis.extent - high, high))
    borders = [_restrict(program, axis, n, _after(start), space, False)[0] for n, start in parts_of_axis if n != 0]
    return _restrict(program, axis, high - low, _after(low), space, False, inner.decided)[0], borders


def _after(low: Dim) -> Callable[[Affine], Affine]:
    return lambda v: v + low


def _conditions(program: RowProgram) -> list[Expr]:
    return [e for p in program.passes for e in parts(*p.roots) if _is_condition(e)]


def _around(axis: Axis, low: int, high: int, size: int) -> Callable[[Affine], Affine]:
    """Positions on `axis` of the `low` elements before the interior and those from `high` on, as one range."""
    if low == 0 or low == size:
        return lambda v: v + (high if low == 0 else 0)

    def position(v: Affine) -> Affine:
        if v.int is not None:
            return v if v.int < low else v + (high - low)
        after = atom_affine(("min", atom_affine(("max", v - (low - 1), affine(0))), affine(1)))
        return v + after * (high - low)

    return position


def _longest(program: RowProgram) -> Axis:
    """The axis for vectors at a border of the axis that had them before. One whose extent only the call knows comes
    last, yet before those of extent 1, which may have vanished."""
    return max(program.kept, key=lambda a: a.extent if isinstance(a.extent, int) else 1.5)


def _is_condition(e: Expr) -> bool:
    return isinstance(e, Binary) and e.op in COMPARISONS and isinstance(e.a, Index) and isinstance(e.b, Index)


def _interior(conditions: Sequence[Expr], axis: Axis, row: Sequence[Axis]) -> tuple[int, int] | None:
    """The longest range of `axis` in which each of `conditions` is decided whatever the row axes are."""
    assert isinstance(axis.extent, int)
    zones: list[tuple[int, int]] = []
    for e in conditions:
        assert isinstance(e, Binary) and isinstance(e.a, Index) and isinstance(e.b, Index)
        ends = _ends(e.a.value - e.b.value, axis, row)
        if ends is None or not isinstance(ends[1], int) or not isinstance(ends[2], int):
            continue
        coef, least, most = ends[0], ends[1], ends[2]
        if e.op in ("gt", "le"):  # d > 0 is -d < 0
            coef, least, most = -coef, -most, -least
        if e.op in ("eq", "ne"):
            continue
        cuts = sorted(c for x in (least, most) if isinstance(c := _first(coef, x), int))
        if cuts[0] < cuts[1]:
            zones.append((max(cuts[0], 0), min(cuts[1], axis.extent)))
    if not zones:
        return None
    edges = sorted(z for z in zones if z[0] < z[1])
    gaps: list[tuple[int, int]] = []
    at = 0
    for low, high in [*edges, (axis.extent, axis.extent)]:
        if low > at:
            gaps.append((at, low))
        at = max(at, high)
    return max(gaps, key=lambda g: g[1] - g[0], default=None) if edges else None


def _restrict(
    program: RowProgram, axis: Axis, size: Dim, position: Callable[[Affine], Affine], space: Space, live: bool,
    decided: Mapping[int, Expr] | None = None,
) -> tuple[RowProgram, Axis]:  # fmt: skip
    """The program for `size` positions of `axis`; the new axis vanishes where its extent is 1, unless it is `live`.
    `decided`: what is known of conditions there, by their id."""
    new = Axis(Var(axis.var.name), size).bind(space)
    env = {axis.var: position(atom_affine(new.var) if new.extent != 1 or live else affine(0))}
    memo: dict[int, Expr] = dict(decided or {})
    passes = [p.rewrite(space, env, memo) for p in program.passes]
    results = [w.rewrite(space, env, memo) for w in program.results]
    kept = [new if a is axis else a for a in program.kept]
    return RowProgram(kept, program.row, passes, results, program.buffers, program.rest), new


def clip(p: Pass, row: Sequence[Axis], lane: Var, space: Space) -> tuple[Pass, dict[Var, Bounds]]:
    """`p` without the conditions outside of which nothing is reduced, and what they mean for the row axes."""
    bounds: dict[Var, Bounds] = {}
    extents = {a.var: a.extent for a in row}
    conditions = [e for e in parts(*p.roots) if _is_condition(e)] if p.reductions and not p.writes else []
    memo: dict[int, Expr] = {}
    for e in conditions:
        assert isinstance(e, Binary) and isinstance(e.a, Index) and isinstance(e.b, Index)
        d = e.a.value - e.b.value
        mine = [v for v in d.terms if v in extents]
        if len(mine) != 1 or e.op in ("eq", "ne") or any(v is lane for v in d.atoms()) or _reads(e):
            continue
        coef = d.terms[mine[0]]
        if not isinstance(coef, int) or not all(_empty_without(r.source, r.op, e, space) for r in p.reductions):
            continue
        var = mine[0]
        assert isinstance(var, Var)
        rest = Affine(d.const, {v: c for v, c in d.terms.items() if v is not var})
        old = bounds.get(var, Bounds(affine(0), affine(extents[var])))
        bounds[var] = _narrow(old, e.op, coef, rest, space)
        memo[id(e)] = Const(True, BOOL)
    return (p.rewrite(space, {}, memo) if memo else p), bounds


def _reads(e: Expr) -> bool:
    return any(isinstance(x, At) for x in parts(e))


def _narrow(old: Bounds, op: str, coef: int, rest: Affine, space: Space) -> Bounds:
    """`old` and `coef * var + rest op 0`."""
    if op in ("lt", "le"):  # d < 0 is -d - 1 >= 0
        coef, rest = -coef, rest * -1 - (1 if op == "lt" else 0)
    elif op == "gt":
        rest = rest - 1
    if coef > 0:  # var >= -rest / coef, rounded up
        return Bounds(space.maximum(old.low, space.floordiv(rest, affine(coef)) * -1), old.high)
    return Bounds(old.low, space.minimum(old.high, space.floordiv(rest, affine(-coef)) + 1))


def _empty_without(source: Expr, op: str, condition: Expr, space: Space) -> bool:
    """Does `source` add nothing to the reduction where `condition` does not hold?"""
    if not any(x is condition for x in parts(source)):
        return False
    value = rewrite(space, source, {}, memo={id(condition): Const(False, BOOL)})
    return _is_neutral(value, op)


def _is_neutral(e: Expr, op: str) -> bool:
    while isinstance(e, Cast):
        e = e.a
    if isinstance(e, Binary) and e.op == "mul" and op == "sum":
        return _is_neutral(e.a, op) or _is_neutral(e.b, op)
    if isinstance(e, Index):
        return e.value.int is not None and op == "sum" and e.value.int == 0
    if op in ("argmax", "argmin"):
        return False
    if not isinstance(e, Const):
        return False
    start = neutral(op, e.dtype)
    return isinstance(start, Const) and e.value == start.value
