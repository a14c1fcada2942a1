"""Indices: scalar ones as linear forms, vector ones as a linear base plus one constant per lane."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import cast as as_type

from nnvm.codegen.llvm import linear
from nnvm.codegen.llvm.builder import Builder, Range
from nnvm.codegen.llvm.linear import Lin
from nnvm.codegen.llvm.lltype import lanes_literal, literal, register_type
from nnvm.dim import Dim
from nnvm.dtype import I32, I64
from nnvm.te.expr import Binary, Broadcast, Buffer, Cast, Const, Expr, Ramp, Var, dim_expr
from nnvm.tir.linear import linear as linear_form

__all__ = ["SIZE_LIMIT", "IndexEmitter", "Lanes", "Slot", "splat"]

#: No size or loop bound reaches this, and no product of sizes (it counts something in memory) the second.
SIZE_LIMIT, PRODUCT_LIMIT = 1 << 40, 1 << 56


@dataclass(slots=True)
class Lanes:
    """A vector of indices: `base` plus a constant for each lane."""

    base: Lin
    offsets: tuple[int, ...]

    @property
    def uniform(self) -> bool:
        return not any(self.offsets)


@dataclass(slots=True)
class Flat:
    """An access with constant strides, in elements: `const + sum(coefficient * expression)`, and one constant a lane.

    It depends on the expressions alone, so it is worked out once however often an unrolled loop repeats the access.
    """

    terms: tuple[tuple[Expr, int], ...]
    const: int
    offsets: tuple[int, ...]


@dataclass(slots=True)
class Slot:
    """A buffer's memory in this function.

    Attributes:
        pointer: its address.
        readonly: nothing here writes to it.
        local: it is meant to end up in registers.
        version: counts the stores so far.
        number: tells slots apart whose memory is the same one after the other (scratch buffers).
    """

    pointer: str
    readonly: bool
    local: bool = False
    version: int = 0
    number: int = field(default_factory=itertools.count().__next__)


def splat(b: Builder, value: str, scalar: str, lanes: int) -> str:
    """A scalar value in every lane."""
    if value in ("0", "false", "0x0000000000000000"):
        return "zeroinitializer"
    if value[0] != "%":
        return "<" + ", ".join([f"{scalar} {value}"] * lanes) + ">"
    type_ = f"<{lanes} x {scalar}>"
    first = b.pure(f"insertelement {type_} poison, {scalar} {value}, i64 0", (value,))
    return b.pure(f"shufflevector {type_} {first}, {type_} poison, <{lanes} x i32> zeroinitializer", (first,))


class IndexEmitter:
    """Index arithmetic of one function. Subclasses give `value` for what is not linear."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.env: dict[Var, Lin | str] = {}
        self.sizes: dict[str, Lin] = {}
        self.buffers: dict[Buffer, Slot] = {}
        self.lins: dict[Expr, Lin] = {}
        self._dims: dict[Dim, Lin] = {}
        self._extents: dict[str, Lin] = {}
        self._flats: dict[tuple[Buffer, tuple[Expr, ...]], Flat | None] = {}

    def value(self, e: Expr) -> str:
        raise NotImplementedError

    # -- scalars

    def variable(self, e: Var) -> Lin | str:
        """What a variable stands for: looked up by identity, a size by its name."""
        found = self.env.get(e)
        if found is None:
            found = self.sizes.get(e.name)
            if found is None:
                raise KeyError(f"variable {e.name} is not bound here")
        return found

    def lin(self, e: Expr) -> Lin:
        """A scalar int64 expression as a linear form."""
        kind = type(e)
        if kind is Const:
            return Lin({}, int(as_type(Const, e).value))
        if kind is Var:
            found = self.variable(as_type(Var, e))
            return found if isinstance(found, Lin) else self._atom(found)
        known = self.lins.get(e)
        if known is None:
            known = self._lin_binary(e) if isinstance(e, Binary) else None
            if known is None:
                known = self._atom(self.value(e))
                if isinstance(e, Cast) and e.a.dtype.is_int and e.a.dtype.bits <= 32:
                    limits = int(e.a.dtype.min), int(e.a.dtype.max)
                    self.b.ranges.update(dict.fromkeys(known.terms, limits))
            self.lins[e] = known
        return known

    def _atom(self, value: str) -> Lin:
        return Lin({value: 1}) if value[0] == "%" else Lin({}, int(value))

    def _lin_binary(self, e: Binary) -> Lin | None:
        if e.dtype is not I64 and e.dtype != I64:
            return None
        op = e.op
        if op in ("add", "sub"):
            return linear.add(self.lin(e.a), self.lin(e.b), 1 if op == "add" else -1)
        if op == "mul":
            return self.product(self.lin(e.a), self.lin(e.b))
        if op in ("floordiv", "floormod", "truncdiv", "truncmod"):
            return self._lin_divide(op, self.lin(e.a), self.lin(e.b))
        if op in ("min", "max"):
            return self._lin_extreme(op, self.lin(e.a), self.lin(e.b))
        return None

    def product(self, x: Lin, y: Lin) -> Lin:
        """x * y; of two that vary, y is multiplied into each term, so that the terms keep their scopes."""
        if not y.terms:
            return linear.scale(x, y.const)
        if not x.terms:
            return linear.scale(y, x.const)
        b, factor = self.b, linear.materialise(self.b, y)
        out = Lin({factor: x.const} if x.const else {})
        for term, coefficient in x.terms.items():
            value = b.pure(f"mul i64 {term}, {factor}", (term, factor), cheap=True)
            self._multiply_ranges(value, term, factor)
            out = linear.add(out, Lin({value: coefficient}))
        return out

    def _multiply_ranges(self, value: str, term: str, factor: str) -> None:
        first, second = self.b.ranges.get(term), self.b.ranges.get(factor)
        if first is not None and second is not None:
            corners = [p * q for p in first for q in second]
            low, high = min(corners), max(corners)
            if first[0] >= 0 and second[0] >= 0:
                high = min(high, PRODUCT_LIMIT)
            if max(-low, high) < 1 << 63:
                self.b.ranges.setdefault(value, (low, high))

    def _lin_divide(self, op: str, x: Lin, y: Lin) -> Lin | None:
        if y.terms or y.const <= 0:
            return None
        if op.startswith("trunc"):
            known = linear.bounds(self.b, x)
            if known is None or known[0] < 0:
                return None
        if not x.terms:
            return Lin({}, x.const // y.const if op.endswith("div") else x.const % y.const)
        return (linear.divide if op.endswith("div") else linear.remainder)(self.b, x, y.const)

    def _lin_extreme(self, op: str, x: Lin, y: Lin) -> Lin | None:
        first, second = linear.bounds(self.b, x), linear.bounds(self.b, y)
        if first is None or second is None:
            return None
        gap = linear.bounds(self.b, linear.add(x, y, -1))
        if gap is not None and (gap[0] >= 0 or gap[1] <= 0):
            return x if (gap[0] >= 0) == (op == "max") else y
        b = self.b
        p, q = linear.materialise(b, x), linear.materialise(b, y)
        compare = b.pure(f"icmp {'slt' if op == 'min' else 'sgt'} i64 {p}, {q}", (p, q), cheap=True)
        out = b.pure(f"select i1 {compare}, i64 {p}, i64 {q}", (compare, p, q), cheap=True)
        pick = min if op == "min" else max
        b.ranges.setdefault(out, (pick(first[0], second[0]), pick(first[1], second[1])))
        return Lin({out: 1})

    def dim(self, d: Dim) -> Lin:
        """A dimension or stride."""
        if isinstance(d, int):
            return Lin({}, d)
        known = self._dims.get(d)
        if known is None:
            known = self.lin(dim_expr(d))
            if not any(v in self.b.depth for v in known.terms):  # only what stands in the outermost scope lasts
                self._dims[d] = known
        return known

    def extent_of(self, var: str, extent: Lin) -> None:
        """Remember that a loop variable stays below `extent`."""
        self._extents[var] = extent

    # -- vectors

    def lanes_of(self, e: Expr) -> Lanes | None:
        """A vector int64 expression as a base and constants, if it is one."""
        if isinstance(e, Ramp):
            return Lanes(
                self.lin(e.base), tuple(range(0, e.stride * e.lanes, e.stride)) if e.stride else (0,) * e.lanes
            )
        if isinstance(e, Broadcast):
            return Lanes(self.lin(e.a), (0,) * e.lanes)
        if isinstance(e, Const):
            return Lanes(Lin({}, int(e.value)), (0,) * e.lanes)
        if not isinstance(e, Binary) or e.a.dtype != I64 or e.op not in _LANEWISE:
            return None
        x, y = self.lanes_of(e.a), self.lanes_of(e.b)
        if x is None or y is None:
            return None
        if e.op in ("add", "sub"):
            sign = 1 if e.op == "add" else -1
            offsets = tuple(p + sign * q for p, q in zip(x.offsets, y.offsets))
            return Lanes(linear.add(x.base, y.base, sign), offsets)
        if e.op == "mul":
            if not x.uniform or x.base.terms:
                x, y = y, x
            if not x.uniform or (x.base.terms and not y.uniform):
                return None
            return Lanes(self.product(y.base, x.base), tuple(o * x.base.const for o in y.offsets))
        if not y.uniform or y.base.terms or y.base.const <= 0:
            return None
        return self._divide_lanes(e.op, x, y.base.const)

    def _divide_lanes(self, op: str, x: Lanes, divisor: int) -> Lanes | None:
        """Floor division or remainder, where each lane's quotient is the base's plus a constant."""
        quotient, rest = linear.split(x.base, divisor)
        known = linear.bounds(self.b, rest)
        if known is None or linear.bounds(self.b, x.base) is None:
            return None
        steps = [(known[0] + o) // divisor for o in x.offsets]
        if steps != [(known[1] + o) // divisor for o in x.offsets]:
            return None
        if op == "floordiv":
            return Lanes(quotient, tuple(steps))
        return Lanes(rest, tuple(o - s * divisor for o, s in zip(x.offsets, steps)))

    def vector(self, x: Lanes) -> str:
        """The <n x i64> of a base and constants."""
        lanes = len(x.offsets)
        if not x.base.terms:
            return lanes_literal("i64", tuple(x.base.const + o for o in x.offsets))
        base = splat(self.b, linear.materialise(self.b, x.base), "i64", lanes)
        if x.uniform:
            return base
        return self.b.binary("add", register_type(I64, lanes), base, lanes_literal("i64", x.offsets))

    # -- comparisons

    def compare(self, e: Binary) -> str | None:
        """A comparison of int64 values decided here, or made cheaper for lanes; None to do it plainly."""
        if e.lanes == 1:
            difference = linear.add(self.lin(e.a), self.lin(e.b), -1)
            known = linear.bounds(self.b, difference)
            if known is None or not self._exact(e.a, e.b):
                return None
            return {True: "true", False: "false", None: None}[_decide(e.op, known)]
        x, y = self.lanes_of(e.a), self.lanes_of(e.b)
        if x is None or y is None:
            return None
        base = linear.add(x.base, y.base, -1)
        offsets = tuple(p - q for p, q in zip(x.offsets, y.offsets))
        known = linear.bounds(self.b, base)
        if known is None or linear.bounds(self.b, x.base) is None or max(map(abs, offsets)) > 1 << 20:
            return None
        decided = [_decide(e.op, (known[0] + o, known[1] + o)) for o in offsets]
        if all(d is not None for d in decided):
            if all(decided) or not any(decided):
                return literal(bool(decided[0]), e.dtype, e.lanes)
            return lanes_literal("i1", tuple(int(bool(d)) for d in decided))
        return self._compare_narrow(e.op, base, known, offsets)

    def _exact(self, a: Expr, b: Expr) -> bool:
        return linear.bounds(self.b, self.lin(a)) is not None and linear.bounds(self.b, self.lin(b)) is not None

    def _compare_narrow(self, op: str, base: Lin, known: Range, offsets: tuple[int, ...]) -> str:
        """offset <op> -base in 32-bit lanes; -base is first brought near the offsets, which changes no outcome."""
        b, lanes, limit = self.b, len(offsets), 1 << 30
        pivot = linear.materialise(b, linear.scale(base, -1))
        if -known[0] > limit:
            over = b.pure(f"icmp sgt i64 {pivot}, {limit}", (pivot,), cheap=True)
            pivot = b.pure(f"select i1 {over}, i64 {limit}, i64 {pivot}", (over, pivot), cheap=True)
        if -known[1] < -limit:
            under = b.pure(f"icmp slt i64 {pivot}, {-limit}", (pivot,), cheap=True)
            pivot = b.pure(f"select i1 {under}, i64 {-limit}, i64 {pivot}", (under, pivot), cheap=True)
        narrow = b.pure(f"trunc i64 {pivot} to i32", (pivot,), cheap=True)
        type_ = register_type(I32, lanes)
        predicate = op if op in ("eq", "ne") else f"s{op}"
        return b.binary(f"icmp {predicate}", type_, lanes_literal("i32", offsets), splat(b, narrow, "i32", lanes))

    # -- addresses

    def offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Lanes | str:
        """Where an access lies, in elements: a base and constants, or a vector of i64 for anything else."""
        key = (buffer, indices)
        flat = self._flats.get(key, key)
        if flat is key:
            flat = self._flats[key] = _flatten(buffer, indices)
        if isinstance(flat, Flat):
            return Lanes(self._combine(flat), flat.offsets)
        return self._offset_general(buffer, indices)

    def _combine(self, flat: Flat) -> Lin:
        """The base of an access, with what its variables stand for now."""
        terms: dict[str, int] = {}
        const = flat.const
        for e, coefficient in flat.terms:
            form = self.env.get(e) if type(e) is Var else self.lin(e)  # type: ignore[call-overload]
            if type(form) is not Lin:
                form = self.lin(e)
            const += coefficient * form.const
            for value, factor in form.terms.items():
                total = terms.get(value, 0) + coefficient * factor
                if total:
                    terms[value] = total
                else:
                    terms.pop(value, None)
        return Lin(terms, const)

    def _offset_general(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Lanes | str:
        lanes = max((i.lanes for i in indices), default=1)
        forms: list[Lanes] = []
        for i in indices:
            form = Lanes(self.lin(i), (0,) * lanes) if i.lanes == 1 else self.lanes_of(i)
            if form is None:
                return self._offset_vector(buffer, indices, lanes)
            forms.append(form)
        base, offsets = Lin({}), [0] * lanes
        for axis, form in enumerate(forms):
            stride = self.dim(buffer.stride_of(axis))
            if stride.terms and not form.uniform:
                return self._offset_vector(buffer, indices, lanes)
            base = linear.add(base, self.product(form.base, stride))
            if not form.uniform:
                offsets = [o + stride.const * p for o, p in zip(offsets, form.offsets)]
        return Lanes(base, tuple(offsets))

    def _offset_vector(self, buffer: Buffer, indices: tuple[Expr, ...], lanes: int) -> str:
        b, type_, total, fixed = self.b, register_type(I64, lanes), "", Lin({})
        for axis, i in enumerate(indices):
            stride = self.dim(buffer.stride_of(axis))
            if i.lanes == 1:
                fixed = linear.add(fixed, self.product(self.lin(i), stride))
                continue
            step = splat(b, linear.materialise(b, stride), "i64", lanes)
            term = b.binary("mul", type_, self.value(i), step)
            total = b.binary("add", type_, total, term) if total else term
        if fixed.terms or fixed.const:
            total = b.binary("add", type_, total, splat(b, linear.materialise(b, fixed), "i64", lanes))
        return total

    def in_bounds(self, buffer: Buffer, indices: tuple[Expr, ...]) -> bool:
        """Whether every lane is known to lie inside the buffer."""
        return all(self._axis_in_bounds(i, d) for i, d in zip(indices, buffer.shape))

    def _axis_in_bounds(self, index: Expr, d: Dim) -> bool:
        form = Lanes(self.lin(index), (0,)) if index.lanes == 1 else self.lanes_of(index)
        if form is None:
            return False
        known = linear.bounds(self.b, form.base)
        if known is None:
            return False
        low, high = min(form.offsets), max(form.offsets)
        if isinstance(d, int):
            return known[0] + low >= 0 and known[1] + high < d
        if len(form.base.terms) != 1 or form.base.const or not form.uniform:
            return False
        ((variable, factor),) = form.base.terms.items()
        return factor == 1 and self._extents.get(variable) == self.dim(d)


def _flatten(buffer: Buffer, indices: tuple[Expr, ...]) -> Flat | None:
    """An access as one sum; None where a stride is symbolic or an index is a general vector."""
    lanes = max((i.lanes for i in indices), default=1)
    terms: dict[Expr, int] = {}
    const, offsets = 0, [0] * lanes
    for axis, index in enumerate(indices):
        stride = buffer.stride_of(axis)
        if not isinstance(stride, int):
            return None
        base, step = (index.base, index.stride) if isinstance(index, Ramp) else (index, 0)
        if isinstance(index, Broadcast):
            base = index.a
        elif index.lanes > 1 and step == 0:
            return None
        coefficients, least = linear_form(base)
        const += stride * least
        for e, coefficient in coefficients.items():
            terms[e] = terms.get(e, 0) + stride * coefficient
        if step:
            offsets = [o + stride * step * lane for lane, o in enumerate(offsets)]
    return Flat(tuple((e, c) for e, c in terms.items() if c), const, tuple(offsets))


_LANEWISE = ("add", "sub", "mul", "floordiv", "floormod")


def _decide(op: str, difference: Range) -> bool | None:
    """Outcome of `a op b` from the bounds of a - b."""
    low, high = difference
    if op in ("lt", "ge"):
        below = True if high < 0 else False if low >= 0 else None
        return below if op == "lt" or below is None else not below
    if op in ("gt", "le"):
        above = True if low > 0 else False if high <= 0 else None
        return above if op == "gt" or above is None else not above
    equal = True if low == high == 0 else False if low > 0 or high < 0 else None
    return equal if op == "eq" or equal is None else not equal
