"""From expressions over flat memory (`access`) to scalar and vector expressions of the Tensor IR.

A vector is made by one atom: wherever an Affine holds the `lane` of a `Lanes`, it stands for 0, 1, ..., lanes - 1, so
an address with lane coefficient 1 becomes a vector load, with 0 a scalar that is broadcast, else a strided load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nnvm.dim import Dim
from nnvm.schedules.access import At, Held, Index, affines, children, parts
from nnvm.te.expr import (
    INDEX,
    Binary,
    Bitcast,
    Broadcast,
    Cast,
    Check,
    Const,
    Expr,
    Fma,
    Load,
    Ramp,
    Select,
    Unary,
    Var,
    binary,
    dim_expr,
)
from nnvm.tir.affine import Affine
from nnvm.tir.stmt import Let, Stmt

__all__ = ["Emitter", "Lanes", "broadcast", "dim_value", "expense", "hoistable", "lane_mask", "unguarded"]


@dataclass(eq=False, frozen=True)
class Lanes:
    """A vector of `count` lanes along the loop atom `lane`."""

    lane: Var
    count: int

    @staticmethod
    def of(count: int) -> Lanes:
        return Lanes(Var("lane"), count)


def broadcast(e: Expr, lanes: int) -> Expr:
    return e if e.lanes == lanes else Broadcast(e, lanes)


def lane_mask(count: int, limit: Expr) -> Expr:
    """Lanes below the scalar `limit`."""
    return Binary("lt", Ramp(Const(0, INDEX), 1, count), Broadcast(limit, count))


def dim_value(d: Dim) -> Expr:
    return Const(d, INDEX) if isinstance(d, int) else dim_expr(d)


#: Expense from which a value is computed once for several statements.
SHARE_FROM = 8
_DIVISIONS = frozenset(("floordiv", "floormod", "truncdiv", "truncmod"))


@dataclass(eq=False)
class Emitter:
    """Lowers expressions under one choice of lanes and mask; equal sub-expressions stay one object.

    Attributes:
        lanes: the vector; None: scalar code.
        mask: lanes that count (None: all); others are neither loaded nor checked.
        held: values of `Held` nodes.
        lets: values that several statements use, to be computed before them (`share`, `bind`).
    """

    lanes: Lanes | None = None
    mask: Expr | None = None
    held: Callable[[Held], Expr] | None = None
    lets: list[tuple[Var, Expr]] = field(default_factory=list)
    _done: dict[int, Expr] = field(default_factory=dict)
    _affines: dict[Affine, Expr] = field(default_factory=dict)
    _alive: list[Expr] = field(default_factory=list)

    def value(self, root: Expr) -> Expr:
        """`root` as a TIR expression."""
        done = self._done
        self._alive.append(root)  # ids stay valid as long as the objects live
        for e in parts(root):
            if id(e) in done:
                continue
            done[id(e)] = self._node(e)
        return done[id(root)]

    def vector(self, root: Expr) -> Expr:
        """`root` in all lanes."""
        return broadcast(self.value(root), self.lanes.count if self.lanes else 1)

    def share(self, roots: Sequence[Expr]) -> None:
        """Makes lets of dear values that several of `roots` (each a statement of its own) need."""
        users: dict[int, set[int]] = {}
        nodes: dict[int, Expr] = {}
        for number, root in enumerate(roots):
            for e in parts(root):
                users.setdefault(id(e), set()).add(number)
                nodes[id(e)] = e
        inside: set[int] = set()
        for key in reversed(users):  # users before their operands
            e = nodes[key]
            if len(users[key]) < 2 or key in inside or isinstance(e, (At, Index, Const, Var)) or e.dtype == INDEX:
                continue
            if expense(e) >= SHARE_FROM:
                inside.update(id(x) for x in parts(e))
                value = self.value(e)
                var = Var(f"v{len(self.lets)}", value.dtype, value.lanes)
                self.lets.append((var, value))
                self._done[id(e)] = var

    def bind(self, body: Stmt) -> Stmt:
        """`body` with the lets in front."""
        for var, value in reversed(self.lets):
            body = Let(var, value, body)
        return body

    def _node(self, e: Expr) -> Expr:
        done = self._done
        if isinstance(e, (Const, Var)):
            return e
        if isinstance(e, Index):
            return self.index(e.value)
        if isinstance(e, At):
            at = self.index(e.address)
            whole = at.lanes == 1 or e.source.buffer.scope == "local"  # accumulators have all their lanes
            return Load(e.source.buffer, (at,), None if whole else self.mask)
        if isinstance(e, Held):
            if self.held is None:
                raise ValueError(f"{e.tensor.name} is not computed around here")
            return self.held(e)
        if isinstance(e, Binary):
            a, b = self._match(done[id(e.a)], done[id(e.b)])
            if e.op in _DIVISIONS and not e.dtype.is_float and b.lanes > 1 and self.mask is not None:
                b = Select(self.mask, b, broadcast(Const(1, b.dtype), b.lanes))  # masked lanes must not divide by 0
            return binary(e.op, a, b) if a.lanes == 1 and not a.dtype.is_float else Binary(e.op, a, b)
        if isinstance(e, Unary):
            return Unary(e.op, done[id(e.a)])
        if isinstance(e, Cast):
            return Cast(done[id(e.a)], e.dtype)
        if isinstance(e, Bitcast):
            return Bitcast(done[id(e.a)], e.dtype)
        if isinstance(e, Select):
            return Select(*self._match(done[id(e.cond)], done[id(e.a)], done[id(e.b)]))
        if isinstance(e, Fma):
            return Fma(*self._match(done[id(e.a)], done[id(e.b)], done[id(e.c)]))
        if isinstance(e, Check):
            value, cond = self._match(done[id(e.value)], done[id(e.cond)])
            if self.mask is not None and cond.lanes > 1:
                cond = Binary("or", cond, Unary("not", self.mask))
            return Check(value, cond, e.message)
        raise TypeError(f"{type(e).__name__} inside the body of a tensor")

    def _match(self, *items: Expr) -> tuple[Expr, ...]:
        lanes = max(i.lanes for i in items)
        return items if all(i.lanes == lanes for i in items) else tuple(broadcast(i, lanes) for i in items)

    def index(self, a: Affine) -> Expr:
        """An Affine as index arithmetic: a Ramp where only the lane varies."""
        found = self._affines.get(a)
        if found is None:
            found = self._affines[a] = self._index(a)
        return found

    def _index(self, a: Affine) -> Expr:
        total: Expr | None = None
        vectors: list[Expr] = []
        step: Dim = 0
        for atom, coef in a.terms.items():
            if self.lanes is not None and atom is self.lanes.lane:
                step = coef
                continue
            term = self._atom(atom)
            if coef != 1:
                term = binary("mul", term, broadcast(dim_value(coef), term.lanes))
            if term.lanes > 1:
                vectors.append(term)
            else:
                total = term if total is None else binary("add", total, term)
        const = dim_value(a.const)
        base = const if total is None else binary("add", total, const)
        if self.lanes is not None and step != 0:
            count = self.lanes.count
            if isinstance(step, int):
                vectors.append(Ramp(base, step, count))
            else:
                ramp = Binary("mul", Ramp(Const(0, INDEX), 1, count), Broadcast(dim_value(step), count))
                vectors.append(Binary("add", ramp, Broadcast(base, count)))
        elif vectors:
            vectors.append(Broadcast(base, vectors[0].lanes))
        if not vectors:
            return base
        out = vectors[0]
        for v in vectors[1:]:
            out = Binary("add", out, v)
        return out

    def _atom(self, atom: object) -> Expr:
        if isinstance(atom, tuple):
            a, b = self._match(self.index(atom[1]), self.index(atom[2]))
            return binary(atom[0], a, b) if a.lanes == 1 else Binary(atom[0], a, b)
        assert isinstance(atom, Expr)
        if isinstance(atom, Var):
            return atom
        done = self._done.get(id(atom))
        return done if done is not None else self.value(atom)


def expense(*roots: Expr) -> int:
    """Rough cost of one element in simple vector instructions; a function like exp counts 12."""
    total = 0
    for e in parts(*roots):
        if isinstance(e, Unary):
            total += (
                1 if e.op in ("neg", "abs", "floor", "ceil", "trunc", "round", "not") else 4 if "sqrt" in e.op else 12
            )
        elif isinstance(e, Binary):
            total += {"pow": 40, "div": 4, "atan2": 20, "hypot": 8}.get(e.op, 1) * (not _is_index(e))
        elif isinstance(e, (Fma, Select, Check, At)):
            total += 1
    return total


def _is_index(e: Expr) -> bool:
    return isinstance(e, Binary) and e.op in ("floordiv", "floormod") and e.dtype == INDEX


def unguarded(*roots: Expr) -> set[int]:
    """Ids of the sub-expressions that are evaluated wherever the roots are: those in no branch of a Select."""
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        e = stack.pop()
        if id(e) not in seen:
            seen.add(id(e))
            stack.extend((e.cond,) if isinstance(e, Select) else children(e))
    return seen


def hoistable(roots: Sequence[Expr], lane: Var) -> frozenset[int]:
    """Ids of scalars worth computing once before a vector loop: they read memory or are checked, do not depend on
    `lane`, are used by something that does, and are evaluated unconditionally."""
    varies: dict[int, bool] = {}
    reads: dict[int, bool] = {}
    used: set[int] = set()
    for e in parts(*roots):
        kids = children(e)
        varies[id(e)] = any(lane is x for a in affines(e) for x in a.atoms()) or any(varies[id(k)] for k in kids)
        reads[id(e)] = isinstance(e, (At, Check, Held)) or any(reads[id(k)] for k in kids)
        if varies[id(e)]:
            used.update(id(k) for k in kids if not varies[id(k)])
    used.update(id(r) for r in roots if not varies[id(r)])
    return frozenset(i for i in used & unguarded(*roots) if reads[i])
