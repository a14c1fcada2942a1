"""Groups with reductions as row programs: a domain of kept axes x row axes, and passes over the row of each kept point.

Softmax is three passes over a row: the maximum; exponentials and their sum; the quotient. Pass p computes the
reductions of level p (those that need only reductions of lower levels), the last pass computes what needs them all.
A plain reduction is a row program with one pass. What two passes need and is dear is kept in a row buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nnvm.dim import Dim, numel
from nnvm.schedules.access import (
    At,
    Held,
    Index,
    Inliner,
    Source,
    affines,
    all_affines,
    parts,
    rewrite,
    rewrite_affine,
)
from nnvm.schedules.axes import Axis, Write, collapse
from nnvm.schedules.emit import expense
from nnvm.te.expr import INDEX, Buffer, Expr, Reduce, Var
from nnvm.te.tensor import IterVar, Tensor, topological
from nnvm.tir.affine import Affine, Space, affine, atom_affine

__all__ = ["DEVIATIONS", "LARGEST", "Pass", "Reduction", "RowProgram", "collapse_kept", "row_program"]

#: Expense from which a value is kept in a row buffer rather than computed again in another pass.
KEEP_FROM = 8
#: An op of reductions that schedules make out of two others; no op of te's.
DEVIATIONS = "deviations"
#: `max` of what are numbers, one instruction where `max` takes four: where NaN is met elsewhere; no op of te's either.
LARGEST = "largest"


@dataclass(eq=False)
class Reduction:
    """One reduction of a pass: `op` over `source` (and, for argmax and argmin, the `index` to give).

    With the op `DEVIATIONS`: the sum of squared deviations of `source` from its mean over the row; `about` is the sum
    of the same source, in the same pass.
    """

    tensor: Tensor
    op: str
    source: Expr
    index: Expr | None = None
    about: Tensor | None = None


@dataclass(eq=False)
class Pass:
    """One loop over the row: what it reduces and what it writes."""

    reductions: list[Reduction] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    @property
    def roots(self) -> list[Expr]:
        """All expressions of the pass."""
        out = [w.value for w in self.writes]
        for r in self.reductions:
            out.append(r.source)
            if r.index is not None:
                out.append(r.index)
        return out

    def rewrite(self, space: Space, env: Mapping[Var, Affine], memo: dict[int, Expr]) -> Pass:
        def new(e: Expr) -> Expr:
            return rewrite(space, e, env, memo=memo)

        reductions = [replace(r, source=new(r.source), index=None if r.index is None else new(r.index))
                      for r in self.reductions]  # fmt: skip
        return Pass(reductions, [w.rewrite(space, dict(env), memo) for w in self.writes])


@dataclass(eq=False)
class RowProgram:
    """What to do for each point of `kept`.

    Attributes:
        passes: over the row axes `row`, in order.
        results: writes once per kept point, after all passes.
        buffers: row buffers that passes share; a flat row each.
        rest: outputs that have nothing to do with the rows.
        limit: elements of the row that there are, in terms of `kept`; None: all.
    """

    kept: list[Axis]
    row: list[Axis]
    passes: list[Pass]
    results: list[Write]
    buffers: list[Source]
    rest: list[Tensor]
    limit: Affine | None = None

    @property
    def row_numel(self) -> Dim:
        return numel(tuple(a.extent for a in self.row))

    @property
    def kept_numel(self) -> Dim:
        return numel(tuple(a.extent for a in self.kept))


def row_program(
    outputs: Sequence[Tensor], sources: Mapping[Tensor, Source], space: Space, keep: bool = True
) -> RowProgram | None:
    """The row program of a group; None where its reductions do not run over the same rows. `keep`: what is dear and
    several passes need goes into row buffers."""
    return _Builder(outputs, sources, space).build(keep)


class _Mismatch(Exception):
    """The group is no row program."""


class _Builder:
    def __init__(self, outputs: Sequence[Tensor], sources: Mapping[Tensor, Source], space: Space) -> None:
        self.outputs, self.space = outputs, space
        targets = {t: s for t, s in sources.items() if t in set(outputs)}
        self.targets = targets
        inputs = {t: s for t, s in sources.items() if t not in targets}
        self.reductions = [t for t in topological(outputs) if isinstance(t.body, Reduce) and t not in inputs]
        self.inliner = Inliner(space, inputs, frozenset(self.reductions))

    def build(self, keep: bool) -> RowProgram | None:
        first = self.reductions[0]
        self.kept = [Axis(Var(a.name), a.extent).bind(self.space) for a in first.axes if a.extent != 1]
        self.row = [Axis(Var(a.name), a.extent).bind(self.space) for a in first.reduce_axes if a.extent != 1]
        try:
            passes = self._passes()
            results, rest = self._place_outputs(passes)
        except _Mismatch:
            return None
        program = RowProgram(self.kept, self.row, passes, results, [], rest)
        if keep:
            _keep_shared(program, self.space)
        return program

    def _passes(self) -> list[Pass]:
        self.level: dict[Tensor, int] = {}
        passes: list[Pass] = []
        for t in self.reductions:
            body = t.body
            assert isinstance(body, Reduce)
            env = {**_match(t.axes, self.kept), **_match(t.reduce_axes, self.row)}
            source = self.inliner.expr(body.source, env)
            index = None if body.index is None else self.inliner.expr(body.index, env)
            level = self._level(source)
            self.level[t] = level + 1
            while len(passes) <= level:
                passes.append(Pass())
            passes[level].reductions.append(Reduction(t, body.op, source, index))
        passes.append(Pass())
        return passes

    def _level(self, e: Expr) -> int:
        """The highest level of a reduction that `e` needs; `_Mismatch` where it is that of another kept point."""
        level = 0
        for x in parts(e):
            if isinstance(x, Held):
                own = [i for i, a in zip(x.indices, x.tensor.axes) if a.extent != 1]
                if own != [atom_affine(k.var) for k in self.kept]:
                    raise _Mismatch
                level = max(level, self.level[x.tensor])
        return level

    def _place_outputs(self, passes: list[Pass]) -> tuple[list[Write], list[Tensor]]:
        results: list[Write] = []
        rest: list[Tensor] = []
        for t in sorted(self.outputs, key=lambda o: o not in self.inliner.seen):
            indices = self._indices(t)
            if indices is None:
                rest.append(t)
                continue
            value = self.inliner.element(t, indices)
            write = Write(self.targets[t], self.targets[t].address(indices), value)
            row_vars = {a.var for a in self.row}
            if any(v in row_vars for v in write.address.atoms()):
                passes[self._level(value)].writes.append(write)
            else:
                self._level(value)
                results.append(write)
        if not passes[-1].writes:
            passes.pop()
        return results, rest

    def _indices(self, t: Tensor) -> tuple[Affine, ...] | None:
        """Where `t` is computed while the program is at its kept and row axes; None: it does not belong to it."""
        for seen in self.inliner.seen.get(t, ()):
            if self._covers(t, seen):
                return seen
        if [a.extent for a in t.axes if a.extent != 1] == [a.extent for a in self.kept]:
            env = _match(t.axes, self.kept)
            if self._fits(t, tuple(env[a.var] for a in t.axes)):
                return tuple(env[a.var] for a in t.axes)
        return self._from_uses(t)

    def _covers(self, t: Tensor, indices: tuple[Affine, ...]) -> bool:
        """Do these indices visit each element of `t` exactly once, over the row or over the kept axes?"""
        extents = {a.var: a.extent for a in (*self.kept, *self.row)}
        used: list[object] = []
        for index, extent in zip(indices, t.shape):
            if not _spans(index, extent, extents):
                return False
            used.extend(index.terms)
        kept = {a.var for a in self.kept}
        whole = kept if set(used) <= kept else extents.keys()
        return len(set(used)) == len(used) and set(used) == whole

    def _fits(self, t: Tensor, indices: tuple[Affine, ...]) -> bool:
        try:
            self._level(self.inliner.element(t, indices))
        except _Mismatch:
            return False
        return True

    def _from_uses(self, t: Tensor) -> tuple[Affine, ...] | None:
        """Indices of `t` from the indices at which it reads the reductions."""
        own = [Axis(Var(a.name), a.extent).bind(self.space) for a in t.axes]
        body = self.inliner.element(t, tuple(atom_affine(a.var) for a in own))
        held = [x for x in parts(body) if isinstance(x, Held)]
        if not held:
            return None
        env: dict[Var, Affine] = {}
        inner: list[tuple[Var, Dim]] = []
        of_kept = [i for i, a in zip(held[0].indices, held[0].tensor.axes) if a.extent != 1]
        for k, i in zip(self.kept, of_kept):
            if i.const != 0 or len(i.terms) != 1 or next(iter(i.terms.values())) != 1:
                raise _Mismatch
            atom = next(iter(i.terms))
            if isinstance(atom, Var):
                env[atom] = atom_affine(k.var)
            elif isinstance(atom, tuple) and atom[0] == "floordiv" and (d := atom[2].dim) is not None:
                parent = next((o for o in own if atom[1] == atom_affine(o.var)), None)
                if parent is None or parent.extent != k.extent * d:
                    raise _Mismatch
                env[parent.var] = atom_affine(k.var) * d
                inner.append((parent.var, d))
            else:
                raise _Mismatch
        left = []
        for o in own:
            split = next((d for v, d in inner if v is o.var), None)
            if split is not None:
                left.append((o.var, split))
            elif o.var not in env and o.extent != 1:
                left.append((o.var, o.extent))
        if any(o.extent != k.extent for k, i in zip(self.kept, of_kept) for o in own if i == atom_affine(o.var)):
            raise _Mismatch  # a part of the rows only, or more than them
        for (var, _), value in zip(left, self._row_digits([d for _, d in left])):
            env[var] = env.get(var, affine(0)) + value
        indices = tuple(env.get(o.var, affine(0)) for o in own)
        self._level(self.inliner.element(t, indices))
        if numel(t.shape) != numel(tuple(a.extent for a in (*self.kept, *self.row))):
            raise _Mismatch
        return indices

    def _row_digits(self, extents: list[Dim]) -> list[Affine]:
        """The row axes as axes of these extents; a row axis is split where several of them make it up."""
        if extents == [a.extent for a in self.row]:
            return [atom_affine(a.var) for a in self.row]
        if numel(tuple(extents)) != numel(tuple(a.extent for a in self.row)) or len(self.row) != 1:
            raise _Mismatch
        rest = atom_affine(self.row[0].var)
        digits: list[Affine] = []
        for d in reversed(extents[1:]):
            digits.append(self.space.floormod(rest, affine(d)))
            rest = self.space.floordiv(rest, affine(d))
        return [rest, *reversed(digits)]


def _spans(index: Affine, extent: Dim, extents: Mapping[Var, Dim]) -> bool:
    """Does `index` take each of the values 0 .. extent - 1 exactly once? As the digits of a number do."""
    if index.const != 0:
        return False
    size: Dim = 1
    left = dict(index.terms)
    while left:
        atom = next((a for a, c in left.items() if c == size), None)
        if not isinstance(atom, Var) or atom not in extents:
            return False
        size = size * extents[atom]
        del left[atom]
    return size == extent


def _match(axes: Sequence[IterVar], loops: Sequence[Axis]) -> dict[Var, Affine]:
    """Axes of a tensor as loop variables, by position; axes of extent 1 are 0."""
    env: dict[Var, Affine] = {a.var: affine(0) for a in axes if a.extent == 1}
    own = [a for a in axes if a.extent != 1]
    if [a.extent for a in own] != [a.extent for a in loops]:
        raise _Mismatch
    env.update((a.var, atom_affine(b.var)) for a, b in zip(own, loops))
    return env


def _keep_shared(program: RowProgram, space: Space) -> None:
    """Puts dear values that several passes need into row buffers (or reads them again from an output)."""
    row_vars = {a.var for a in program.row}
    while (found := _dearest_shared(program, row_vars)) is not None:
        value, first = found
        write = next((w for w in program.passes[first].writes if w.value is value), None)
        if write is not None:
            read: Expr = At(write.target, write.address)
        else:
            buffer = Buffer(f"row{len(program.buffers)}", (program.row_numel,), value.dtype, None, "scratch")
            source = Source(buffer, _row_strides(program.row))
            program.buffers.append(source)
            address = source.address([atom_affine(a.var) for a in program.row])
            program.passes[first].writes.append(Write(source, address, value))
            read = At(source, address)
        for i in range(first + 1, len(program.passes)):
            program.passes[i] = program.passes[i].rewrite(space, {}, {id(value): read})


def _row_strides(row: Sequence[Axis]) -> tuple[Dim, ...]:
    strides: list[Dim] = []
    step: Dim = 1
    for a in reversed(row):
        strides.append(step)
        step = step * a.extent
    return tuple(reversed(strides))


def _dearest_shared(program: RowProgram, row_vars: set[Var]) -> tuple[Expr, int] | None:
    """The most expensive value that two passes compute, with the first of them."""
    used: dict[int, set[int]] = {}
    nodes: dict[int, Expr] = {}
    stored: set[int] = {id(w.value) for p in program.passes for w in p.writes}
    for number, p in enumerate(program.passes):
        for e in parts(*p.roots):
            used.setdefault(id(e), set()).add(number)
            nodes[id(e)] = e
    best: tuple[int, Expr, int] | None = None
    for key, where in used.items():
        e = nodes[key]
        if len(where) < 2 or isinstance(e, (At, Index)) or e.dtype == INDEX:
            continue
        cost = expense(e)
        if cost < (3 if key in stored else KEEP_FROM) or not any(v in row_vars for v in _variables(e)):
            continue
        if best is None or cost > best[0]:
            best = (cost, e, min(where))
    return None if best is None else (best[1], best[2])


def _variables(e: Expr) -> Iterator[object]:
    for x in parts(e):
        for a in affines(x):
            yield from a.atoms()


def collapse_kept(program: RowProgram, space: Space) -> None:
    """Fewer kept loops, where all passes allow it."""
    roots: list[Expr] = [e for p in program.passes for e in p.roots] + [w.value for w in program.results]
    writes = [w for p in program.passes for w in p.writes] + program.results
    if program.limit is not None:
        roots.append(Index(program.limit))
    forms: list[Affine] = [*all_affines(roots), *(w.address for w in writes)]
    kept, env = collapse(program.kept, forms, space)
    if env:
        memo: dict[int, Expr] = {}
        if program.limit is not None:
            program.limit = rewrite_affine(space, program.limit, env, memo)
        program.passes = [p.rewrite(space, env, memo) for p in program.passes]
        program.results = [w.rewrite(space, env, memo) for w in program.results]
        program.kept = kept
