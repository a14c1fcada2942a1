"""Tensor expressions over flat memory: each element read as `source[address]`, the address an Affine of loop variables.

Inlining a fused group gives one expression per output, whose leaves are `At` (an element in memory), `Index` (a value
computed from loop variables) and `Held` (the result of a reduction that some loop around keeps in a register). In this
form strides are visible, so loops can be collapsed, ordered and vectorised by arithmetic on addresses alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nnvm.dim import Dim, symbol
from nnvm.dtype import BOOL, DType
from nnvm.te.expr import COMPARISONS, INDEX, Binary, Buffer, Cast, Check, Const, Expr, Select, Var, binary
from nnvm.te.tensor import Read, Tensor
from nnvm.tir import visitor
from nnvm.tir.affine import Affine, Space, affine, atom_affine

__all__ = ["At", "Held", "Index", "Inliner", "Source", "affines", "children", "parts", "rewrite", "rewrite_affine"]


@dataclass(eq=False, frozen=True)
class Source:
    """A tensor in memory: a flat buffer, the elements between neighbours along each axis, and where element 0 lies."""

    buffer: Buffer
    strides: tuple[Dim, ...]
    origin: Affine = field(default_factory=lambda: affine(0))

    def address(self, indices: Sequence[Affine]) -> Affine:
        total = self.origin
        for index, stride in zip(indices, self.strides, strict=True):
            total = total + index * stride
        return recombine(total)


@dataclass(eq=False, slots=True)
class Index(Expr):
    """An integer computed from loop variables and sizes."""

    value: Affine
    dtype: DType = INDEX
    lanes: int = 1


@dataclass(eq=False, slots=True)
class At(Expr):
    """The element of `source` at `address` (counted in elements from its first one)."""

    source: Source
    address: Affine
    dtype: DType = field(init=False)
    lanes: int = 1

    def __post_init__(self) -> None:
        self.dtype = self.source.buffer.dtype


@dataclass(eq=False, slots=True)
class Held(Expr):
    """An element of a tensor that is computed elsewhere, as a reduction is; see `Inliner.held`."""

    tensor: Tensor
    indices: tuple[Affine, ...]
    dtype: DType = field(init=False)
    lanes: int = 1

    def __post_init__(self) -> None:
        self.dtype = self.tensor.dtype


def affines(e: Expr) -> tuple[Affine, ...]:
    """The Affines that an expression itself holds."""
    if isinstance(e, Index):
        return (e.value,)
    if isinstance(e, At):
        return (e.address,)
    return e.indices if isinstance(e, Held) else ()


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions, those inside addresses (an index that is read from memory) included."""
    if isinstance(e, (Index, At, Held)):
        return tuple(a for f in affines(e) for a in f.atoms() if isinstance(a, Expr) and not isinstance(a, Var))
    return visitor.children(e)


def parts(*roots: Expr) -> list[Expr]:
    """Every sub-expression once, operands before users."""
    order: list[Expr] = []
    seen: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        e, done = stack.pop()
        if done:
            order.append(e)
            continue
        if id(e) in seen:
            continue
        seen.add(id(e))
        stack.append((e, True))
        stack.extend((c, False) for c in reversed(children(e)))
    return order


def all_affines(roots: Sequence[Expr]) -> Iterator[Affine]:
    """Every Affine in some expressions, those inside divisions included."""
    for e in parts(*roots):
        for a in affines(e):
            yield from _nested(a)


def _nested(a: Affine) -> Iterator[Affine]:
    yield a
    for atom in a.terms:
        if isinstance(atom, tuple):
            yield from _nested(atom[1])
            yield from _nested(atom[2])


def recombine(a: Affine) -> Affine:
    """`a` with `(x // d) * d * c + (x % d) * c` put together to `x * c`, until none is left."""
    for atom, coef in a.terms.items():
        if isinstance(atom, tuple) and atom[0] == "floormod" and (d := atom[2].dim) is not None:
            quotient = ("floordiv", atom[1], atom[2])
            if a.terms.get(quotient) == coef * d:
                rest = {t: c for t, c in a.terms.items() if t not in (atom, quotient)}
                return recombine(Affine(a.const, rest) + atom[1] * coef)
    return a


class Inliner:
    """Elements of tensors as expressions over `sources`; the tensors in between are inlined.

    Attributes:
        space: ranges of the loop variables.
        sources: tensors that are in memory.
        held: tensors whose elements become `Held`.
        seen: indices under which each tensor was asked for (besides the sources).
    """

    def __init__(self, space: Space, sources: Mapping[Tensor, Source], held: frozenset[Tensor] = frozenset()) -> None:
        self.space, self.sources, self.held = space, dict(sources), held
        self.seen: dict[Tensor, list[tuple[Affine, ...]]] = {}
        self._elements: dict[tuple[Tensor, tuple[Affine, ...]], Expr] = {}

    def element(self, tensor: Tensor, indices: Sequence[Affine]) -> Expr:
        """The element of `tensor` at `indices`."""
        key = (tensor, tuple(indices))
        found = self._elements.get(key)
        if found is None:
            found = self._elements[key] = self._make(tensor, key[1])
        return found

    def _make(self, tensor: Tensor, indices: tuple[Affine, ...]) -> Expr:
        source = self.sources.get(tensor)
        if source is not None:
            return At(source, source.address(indices))
        self.seen.setdefault(tensor, []).append(indices)
        if tensor in self.held:
            return Held(tensor, indices)
        if tensor.body is None:
            raise ValueError(f"{tensor.name} is neither computed nor in memory")
        return self.expr(tensor.body, {a.var: i for a, i in zip(tensor.axes, indices)})

    def expr(self, body: Expr, env: Mapping[Var, Affine]) -> Expr:
        """A te expression under the variables of `env`; other variables are sizes."""

        def read(e: Expr, new: tuple[Expr, ...]) -> Expr | None:
            return self.element(e.tensor, tuple(map(_as_affine, new))) if isinstance(e, Read) else None

        return rewrite(self.space, body, env, read)


def _as_affine(e: Expr) -> Affine:
    return e.value if isinstance(e, Index) else atom_affine(e)


Special = Callable[[Expr, tuple[Expr, ...]], "Expr | None"]


def rewrite(space: Space, body: Expr, env: Mapping[Var, Affine], special: Special | None = None,
            memo: dict[int, Expr] | None = None) -> Expr:  # fmt: skip
    """`body` with its variables replaced, index arithmetic put into Affines, and conditions decided where the ranges
    of `space` decide them. `special` may give the result of a node itself, from its rewritten children."""
    done: dict[int, Expr] = {} if memo is None else memo
    for e in parts(body):
        if id(e) in done:
            continue
        if isinstance(e, Var):
            found = env.get(e)
            done[id(e)] = Index(found if found is not None else _size(e)) if e.dtype == INDEX else e
        elif isinstance(e, Const):
            done[id(e)] = Index(affine(int(e.value))) if e.dtype == INDEX and e.lanes == 1 else e
        elif isinstance(e, Index):
            done[id(e)] = Index(rewrite_affine(space, e.value, env, done))
        elif isinstance(e, At):
            done[id(e)] = At(e.source, recombine(rewrite_affine(space, e.address, env, done)))
        elif isinstance(e, Held):
            done[id(e)] = Held(e.tensor, tuple(rewrite_affine(space, i, env, done) for i in e.indices))
        else:
            old = visitor.children(e)
            new = tuple([done[id(c)] for c in old])
            out = special(e, new) if special is not None else None
            done[id(e)] = _combine(space, e, old, new) if out is None else out
    return done[id(body)]


def _size(v: Var) -> Affine:
    """A variable that no loop binds is a size."""
    return affine(symbol(v.name))


def rewrite_affine(space: Space, a: Affine, env: Mapping[Var, Affine], done: Mapping[int, Expr]) -> Affine:
    """`a` with variables replaced by `env` and expressions inside by `done`."""
    total = affine(a.const)
    for atom, coef in a.terms.items():
        if isinstance(atom, Var):
            new = env.get(atom)
            total = total + (atom_affine(atom) if new is None else new) * coef
        elif isinstance(atom, tuple):
            x, y = rewrite_affine(space, atom[1], env, done), rewrite_affine(space, atom[2], env, done)
            total = total + _operate(space, atom[0], x, y) * coef
        else:
            total = total + _as_affine(done[id(atom)]) * coef
    return total


def _operate(space: Space, op: str, a: Affine, b: Affine) -> Affine:
    if op == "floordiv":
        return space.floordiv(a, b)
    if op == "floormod":
        return space.floormod(a, b)
    if op == "min":
        return space.minimum(a, b)
    return space.maximum(a, b) if op == "max" else space.multiply(a, b)


_INDEX_OPS = frozenset(("floordiv", "floormod", "min", "max", "mul"))


def _combine(space: Space, e: Expr, old: tuple[Expr, ...], new: tuple[Expr, ...]) -> Expr:
    """`e` with new children, folded where they allow."""
    if isinstance(e, Binary):
        a, b = new
        if isinstance(a, Index) and isinstance(b, Index):
            if e.op in ("add", "sub"):
                return Index(a.value + b.value if e.op == "add" else a.value - b.value)
            if e.op in _INDEX_OPS and not (e.op in ("floordiv", "floormod") and b.value.int == 0):
                return Index(_operate(space, e.op, a.value, b.value))
            if e.op in COMPARISONS:
                known = decide(space, e.op, a.value, b.value)
                return Const(known, BOOL) if known is not None else Binary(e.op, a, b)
        if e.dtype == BOOL and e.op in ("and", "or"):
            return binary(e.op, a, b)
    elif isinstance(e, Select) and isinstance(new[0], Const):
        return new[1] if new[0].value else new[2]
    elif (isinstance(e, Check) and isinstance(new[1], Const) and new[1].value) or (
        isinstance(e, Cast) and isinstance(new[0], Index) and e.dtype == INDEX
    ):
        return new[0]
    elif isinstance(e, Cast) and isinstance(new[0], Const) and new[0].dtype == BOOL and e.dtype.is_int:
        return Const(int(new[0].value), e.dtype)
    return e if all(a is b for a, b in zip(old, new)) else visitor.rebuild(e, new)


def decide(space: Space, op: str, a: Affine, b: Affine) -> bool | None:
    """The truth of a comparison, where the ranges of the loop variables settle it."""
    d = a - b
    if op == "gt":
        d, op = d * -1, "lt"
    elif op == "le":
        d, op = d * -1, "ge"
    if op == "ge":
        return True if space.nonnegative(d) else False if space.nonnegative(d * -1 - 1) else None
    if op == "lt":
        return True if space.nonnegative(d * -1 - 1) else False if space.nonnegative(d) else None
    equal = True if d.terms == {} and d.const == 0 else None
    if equal is None and (space.nonnegative(d - 1) or space.nonnegative(d * -1 - 1)):
        equal = False
    return equal if op == "eq" or equal is None else not equal
