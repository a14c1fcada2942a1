"""Loop nests for elementwise and injective tensors: elementwise chains, broadcasts, transposes, concat, pad, gather.

- Conditions on one axis (concat, pad) split it into ranges in which they are decided: each piece is its own loop nest.
- Axes are ordered by the strides of the output and collapsed as far as all accesses allow.
- The innermost loop is a vector loop; scalars that do not change in it are computed before it.
- Where an input runs along another axis than the output (a transpose), both axes are tiled, so that the cache lines
  that a tile touches are used whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from nnvm.dim import Dim, numel
from nnvm.dtype import DType
from nnvm.schedules.access import At, Index, all_affines, parts
from nnvm.schedules.axes import Axis, Write, by_stride, collapse
from nnvm.schedules.cpu.loops import Step, loop, parallel_loops, vector_lanes, vector_loops
from nnvm.schedules.emit import Emitter, Lanes, expense, hoistable
from nnvm.target import Target
from nnvm.te.expr import COMPARISONS, INDEX, Binary, Expr, Var
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.dim_proofs import dim_nonnegative
from nnvm.tir.stmt import Let, Stmt, Store, seq

__all__ = ["elementwise", "hoist", "hoisted", "nest", "stores"]

#: Loop nests that one set of stores may be split into, and the code size (expense) at which splitting stops.
MAX_PIECES, MAX_PIECES_EXPENSE = 40, 1200
#: Side of a transpose tile in elements: a cache line of float32.
TILE = 16


def elementwise(writes: Sequence[Write], axes: Sequence[Axis], space: Space, target: Target) -> Stmt:
    """All `writes` for every point of `axes`."""
    work = numel(tuple(a.extent for a in axes))
    budget = MAX_PIECES_EXPENSE // max(expense(*(w.value for w in writes)), 1)
    pieces = list(_pieces(writes, axes, space, max(min(MAX_PIECES, budget), 2)))
    return seq([nest(w, a, space, target, work) for w, a in pieces])


def _pieces(
    writes: Sequence[Write], axes: Sequence[Axis], space: Space, most: int
) -> Iterator[tuple[Sequence[Write], list[Axis]]]:
    """The boxes into which conditions split the domain, at most about `most`, each with the writes in its own axes.

    One axis is cut at a time: above and below the inside of a padded image, nothing depends on the columns.
    """
    found = ((n, cuts) for n, a in enumerate(axes) if (cuts := _cuts(writes, a)) and len(cuts) < most)
    number, cuts = next(found, (0, []))
    if not cuts:
        yield writes, list(axes)
        return
    axis = axes[number]
    for low, high in itertools.pairwise([0, *cuts, axis.extent]):
        new = Axis(Var(axis.var.name), high - low).bind(space)
        env = {axis.var: atom_affine(new.var) + low if new.extent != 1 else affine(low)}
        memo: dict[int, Expr] = {}
        piece = [w.rewrite(space, env, memo) for w in writes]
        yield from _pieces(piece, [*axes[:number], new, *axes[number + 1 :]], space, most // len(cuts))


def _cuts(writes: Sequence[Write], axis: Axis) -> list[Dim]:
    """Values at which conditions on `axis` change, in increasing order, inside its range."""
    found: list[Dim] = []
    for e in parts(*(w.value for w in writes)):
        if not isinstance(e, Binary) or e.op not in COMPARISONS or e.op in ("eq", "ne"):
            continue
        if not isinstance(e.a, Index) or not isinstance(e.b, Index):
            continue
        cut = _threshold(e.op, e.a.value - e.b.value, axis.var)
        if cut is None or cut in (0, axis.extent, *found):
            continue
        if dim_nonnegative(cut) and dim_nonnegative(axis.extent - cut):
            found.append(cut)
    ordered: list[Dim] = []
    for cut in found:
        at = next((i for i, c in enumerate(ordered) if dim_nonnegative(c - cut)), len(ordered))
        if not all(dim_nonnegative(cut - c) for c in ordered[:at]):
            continue  # symbolic values whose order is not known: this condition stays a condition
        ordered.insert(at, cut)
    return ordered


def _threshold(op: str, d: Affine, var: Var) -> Dim | None:
    """The least value of `var` at which `d op 0` is no longer what it is below; None where `d` has other variables."""
    if len(d.terms) != 1 or var not in d.terms:
        return None
    coef = d.terms[var]
    if op in ("gt", "le"):
        d, coef = d * -1, -coef
    if not isinstance(coef, int):
        return None
    # coef * x + const < 0, or its contrary
    return -(d.const // coef) if coef > 0 else d.const // -coef + 1


def nest(writes: Sequence[Write], axes: Sequence[Axis], space: Space, target: Target, work: Dim) -> Stmt:
    """One loop nest for `writes`; `work` is the number of points of the whole kernel."""
    axes = by_stride(writes, axes)
    values = [w.value for w in writes]
    loops, env = collapse(axes, [*all_affines(values), *(w.address for w in writes)], space)
    if env:
        memo: dict[int, Expr] = {}
        writes = [w.rewrite(space, env, memo) for w in writes]
        values = [w.value for w in writes]
    cost = expense(*values)
    if not loops:
        return _scalar(writes)
    inner = loops[-1]
    outer, env, kind = parallel_loops(loops[:-1], work * max(cost // 4, 1), space)
    if env:
        memo = {}
        writes = [w.rewrite(space, env, memo) for w in writes]
    flat = not outer and kind == "serial" and parallel_loops([inner], work * max(cost // 4, 1), space)[2] == "parallel"
    if isinstance(inner.extent, int) and inner.extent < 4:
        body = loop(inner, _scalar(writes), "parallel" if flat else "serial")
    else:
        body, outer = _vector_nest(writes, inner, outer, space, target, cost, flat)
    for i, axis in reversed(list(enumerate(outer))):
        body = loop(axis, body, kind if i == 0 else "serial")
    return body


def _scalar(writes: Sequence[Write]) -> Stmt:
    emitter = Emitter()
    return seq([Store(w.target.buffer, (emitter.index(w.address),), emitter.value(w.value)) for w in writes])


def _vector_nest(
    writes: Sequence[Write], inner: Axis, outer: Sequence[Axis], space: Space, target: Target, cost: int, flat: bool
) -> tuple[Stmt, list[Axis]]:
    """The loop over `inner` (and over the other side of a transpose), and the loops that are left around it."""
    lanes = Lanes.of(vector_lanes(target, _dtypes(writes)))
    crossed = _crossed(writes, inner, outer)
    if crossed is not None:
        rest = [a for a in outer if a is not crossed]
        if outer[0] is not crossed or len(outer) == 1:
            return _tiled(writes, inner, crossed, lanes, space), rest
    writes, lets = hoist(writes, inner.var, space)

    def body(step: Step) -> Stmt:
        return stores(writes, {inner.var: step.position}, space, lanes, step.mask)

    unroll = _unroll(inner.extent, lanes.count, cost)
    out = vector_loops(inner, lanes, unroll, space, body, "parallel" if flat else "serial")
    for var, value in reversed(lets):
        out = Let(var, value, out)
    return out, list(outer)


def stores(
    writes: Sequence[Write],
    env: dict[Var, Affine],
    space: Space,
    lanes: Lanes | None,
    mask: Expr | None,
    emitter: Emitter | None = None,
) -> Stmt:
    """The writes at one position of the vector loop; `emitter` when others share its sub-expressions."""
    memo: dict[int, Expr] = {}
    out: list[Stmt] = []
    placed = [w.rewrite(space, env, memo) for w in writes] if env else writes
    own = emitter is None
    if emitter is None:
        emitter = Emitter(lanes, mask)
        emitter.share([w.value for w in placed])
    for at in placed:
        address = emitter.index(at.address)
        value = emitter.value(at.value) if address.lanes == 1 else emitter.vector(at.value)
        out.append(Store(at.target.buffer, (address,), value, mask if address.lanes > 1 else None))
    return emitter.bind(seq(out)) if own else seq(out)


def hoist(writes: Sequence[Write], var: Var, space: Space) -> tuple[list[Write], list[tuple[Var, Expr]]]:
    """`writes` with the scalars that do not depend on `var` replaced by variables, and these with their values."""
    memo, lets = hoisted([w.value for w in writes], var)
    return [w.rewrite(space, {}, memo) for w in writes] if memo else list(writes), lets


def hoisted(roots: Sequence[Expr], var: Var) -> tuple[dict[int, Expr], list[tuple[Var, Expr]]]:
    """For `rewrite`: variables for the scalars that do not depend on `var`; and their values."""
    ids = hoistable(roots, var)
    lets: list[tuple[Var, Expr]] = []
    memo: dict[int, Expr] = {}
    emitter = Emitter()
    for e in parts(*roots) if ids else ():
        if id(e) in ids and not isinstance(e, Var):
            new = Var(f"s{len(lets)}", e.dtype)
            lets.append((new, emitter.value(e)))
            memo[id(e)] = Index(atom_affine(new)) if e.dtype == INDEX else new
    return memo, lets


def _dtypes(writes: Sequence[Write]) -> list[DType]:
    found = [w.target.buffer.dtype for w in writes]
    found += [e.dtype for e in parts(*(w.value for w in writes)) if isinstance(e, At)]
    return found


def _unroll(extent: Dim, count: int, cost: int) -> int:
    """Vectors per iteration: more for light bodies, and rather a number that leaves no rest."""
    most = 4 if cost <= 6 else 2 if cost <= 40 else 1
    if isinstance(extent, int):
        while most > 1 and (extent < most * count or (extent // count) % most):
            most //= 2
    return most


def _crossed(writes: Sequence[Write], inner: Axis, outer: Sequence[Axis]) -> Axis | None:
    """The axis along which an input is contiguous that is strided along `inner`: the other side of a transpose."""
    for e in parts(*(w.value for w in writes)):
        if not isinstance(e, At):
            continue
        step = e.address.terms.get(inner.var, 0)
        if step in (0, 1):
            continue
        for axis in outer:
            if e.address.terms.get(axis.var) == 1 and isinstance(axis.extent, int) and axis.extent >= 4:
                return axis
    return None


def _tiled(writes: Sequence[Write], inner: Axis, crossed: Axis, lanes: Lanes, space: Space) -> Stmt:
    """Tiles of TILE x TILE: for each of TILE values of `crossed`, whole vectors along `inner`."""
    assert isinstance(crossed.extent, int)
    width = max(TILE, lanes.count)
    blocks = crossed.extent // TILE
    out: list[Stmt] = []
    for count, size, start in ((blocks, TILE, 0), (1, crossed.extent % TILE, blocks * TILE)):
        if not count or not size:
            continue
        b, r = (
            Axis(Var(f"{crossed.var.name}_b"), count).bind(space),
            Axis(Var(f"{crossed.var.name}_r"), size).bind(space),
        )
        row = (atom_affine(b.var) * TILE if count > 1 else affine(0)) + start
        row = row + (atom_affine(r.var) if size > 1 else 0)
        out.append(loop(b, _tile_row(writes, inner, {crossed.var: row}, r, lanes, width, space)))
    return seq(out)


def _tile_row(
    writes: Sequence[Write], inner: Axis, env: dict[Var, Affine], row: Axis, lanes: Lanes, width: int, space: Space
) -> Stmt:
    """Along `inner`: blocks of `width`, in each all values of `row`; then what is left."""
    out: list[Stmt] = []
    blocks = inner.extent // width
    vectors = width // lanes.count
    space.bind(lanes.lane, affine(0), affine(lanes.count - 1))
    if blocks != 0:
        b, u = Axis(Var(f"{inner.var.name}_b"), blocks).bind(space), Axis(Var("u"), vectors).bind(space)
        at = (atom_affine(b.var) * width if blocks != 1 else affine(0)) + atom_affine(lanes.lane)
        at = at + (atom_affine(u.var) * lanes.count if vectors > 1 else 0)
        body = stores(writes, {**env, inner.var: at}, space, lanes, None)
        body = loop(u, body, "unrolled") if vectors > 1 else body
        out.append(loop(b, loop(row, body)))
    rest = Axis(Var(f"{inner.var.name}_t"), inner.extent - blocks * width)
    if rest.extent != 0:
        first = blocks * width

        def tail(step: Step) -> Stmt:
            return stores(writes, {**env, inner.var: step.position + first}, space, lanes, step.mask)

        out.append(loop(row, vector_loops(rest, lanes, 1, space, tail)))
    return seq(out)
