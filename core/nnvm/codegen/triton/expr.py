"""Expressions of the Tensor IR as Triton expressions.

Every tile variable has a place: a position among the axes of the tile. A value that varies along some places is a
block with the size of the tile along these and 1 along the others, so that blocks broadcast against each other. What
reads memory is masked by the conditions around it, those of Select's branches included.

Index arithmetic is int32 unless a kernel is `wide`; as soon as an index becomes data it is int64, which is its type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nnvm.codegen.triton.scopes import Scopes, Value, is_number, paren
from nnvm.codegen.triton.types import constant, number, type_name
from nnvm.dtype import BF16, BOOL, F32, F64, I64, DType
from nnvm.te.expr import (
    COMPARISONS,
    INDEX,
    Binary,
    Bitcast,
    Buffer,
    Cast,
    Check,
    Const,
    Expr,
    Fma,
    Load,
    Reduce,
    Select,
    Unary,
    Var,
    binary,
    is_size,
)
from nnvm.tir.visitor import children, post_order, reduced

__all__ = ["Writer"]

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "eq": "==", "ne": "!=", "lt": "<",
          "le": "<=", "gt": ">", "ge": ">=", "shl": "<<", "shr": ">>"}  # fmt: skip
#: Integer division is C's; where operands are not negative that is Python's as well (`expand` sees to the others).
_DIVISIONS = {"floordiv": "//", "truncdiv": "//", "floormod": "%", "truncmod": "%"}
_INDEX_OPS = frozenset(("add", "sub", "mul", "floordiv", "floormod", "min", "max"))
#: Functions of Triton's own, and those of the device's math library; both take float32 and float64.
_OWN = {"abs": "tl.abs", "floor": "tl.floor", "ceil": "tl.ceil"}
_LIBRARY = {
    **{f: f for f in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos",
                      "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "trunc", "lgamma",
                      "pow", "atan2", "hypot", "copysign", "nextafter")},
    "round": "rint", "truncmod": "fmod",
}  # fmt: skip
#: Length of an expression from which on it gets a name.
LONG = 90


@dataclass(eq=False)
class Writer(Scopes):
    """Writes the values of a kernel, each named one as a line of its own.

    Attributes:
        positions: variables of index arithmetic (`expand.positions`).
        written: buffers that the kernel writes.
        messages: failure messages; a check stores its number + 1.
        helpers: names of combining functions that the kernel needs.
    """

    wide: bool = False
    messages: list[str] = field(default_factory=list)
    helpers: set[str] = field(default_factory=set)
    uses: dict[Expr, int] = field(default_factory=dict)
    written: set[Buffer] = field(default_factory=set)
    positions: set[Var] = field(default_factory=set)
    _leaves: dict[Expr, list[Expr]] = field(default_factory=dict)
    _facts: dict[Expr, tuple[bool, bool, bool]] = field(default_factory=dict)

    # --- values

    def value(self, e: Expr) -> Value:
        """`e` as data: an index becomes int64."""
        out = self.raw(e)
        if e.dtype == INDEX and self.facts(e)[0]:
            if isinstance(e, Const):
                return Value(constant(e.value, I64, self.tile.rank))
            return Value(f"({out.text}).to(tl.int64)" if out.dims else f"tl.cast({out.text}, tl.int64)", out.dims)
        return out

    def address(self, e: Expr) -> Value:
        """`e` as an offset: indices stay narrow."""
        if self.facts(e)[0] or not (isinstance(e, Binary) and e.op in ("add", "sub", "mul")):
            return self.raw(e)
        a, b = self.address(e.a), self.address(e.b)
        if (plain := _simplified(e.op, a, b)) is not None:
            return plain
        return Value(f"({a.text} {_SIGNS[e.op]} {b.text})", a.dims | b.dims)

    def facts(self, e: Expr) -> tuple[bool, bool, bool]:
        """(pure index arithmetic, reads memory or checks, depends on memory that the kernel writes)."""
        found = self._facts.get(e)
        if found is None:
            for x in post_order(e):
                if x not in self._facts:
                    self._facts[x] = self._own_facts(x)
            found = self._facts[e]
        return found

    def _own_facts(self, x: Expr) -> tuple[bool, bool, bool]:
        inner = [self._facts[c] for c in children(x)]
        leaf = isinstance(x, Const) or (isinstance(x, Var) and (x in self.positions or is_size(x)))
        pure = (
            x.dtype == INDEX and (leaf or (isinstance(x, Binary) and x.op in _INDEX_OPS)) and all(f[0] for f in inner)
        )
        reads = (isinstance(x, Load) and x.buffer.scope == "global") or isinstance(x, (Check, Reduce))
        reads = reads or any(f[1] for f in inner)
        changing = (isinstance(x, Load) and (x.buffer.scope != "global" or x.buffer in self.written)) or any(
            f[2] for f in inner
        )
        return pure, reads, changing

    def raw(self, e: Expr, name: str = "") -> Value:
        """`e` as it is; `name`: what to call it, should it get a name."""
        if isinstance(e, Var):
            return self._variable(e)
        if isinstance(e, Const):
            return Value(number(e.value) if e.dtype == INDEX else constant(e.value, e.dtype, self.tile.rank))
        pure, reads, changing = self.facts(e)
        if reads and self._masks and not changing and (n := self._enough(e)) < len(self._masks):
            with self.under(self._masks[:n]):
                return self.raw(e, name)
        masks = self._masks if reads else ()
        if not changing and (found := self._known_under(e, masks)) is not None:
            return found[1]
        out = _WRITERS[type(e)](self, e)
        if e.dtype.is_half and isinstance(e, (Unary, Binary, Fma)):
            out = Value(f"({out.text}).to({type_name(e.dtype)})", out.dims)
        if isinstance(e, Load) and e.buffer.scope == "local":
            return out
        if (self.uses.get(e, 1) > 1 or len(out.text) > LONG) and not out.text.isidentifier():
            out = self.named(out, name or ("i" if pure else "t"))
        if not changing:
            self._learn(e, masks, out)
        return out

    def _enough(self, e: Expr) -> int:
        """How many of the conditions around, outermost first, `e` must be masked by: those under which all that it
        reads is known already. Without this a value that many branches share would be written once for each."""
        known = (self._known_under(x, self._masks) for x in self._reads_of(e))
        return max((len(self._masks) if k is None else k[0] for k in known), default=0)

    def _reads_of(self, e: Expr) -> list[Expr]:
        found = self._leaves.get(e)
        if found is None:
            found = [x for x in post_order(e) if self.facts(x)[1] and isinstance(x, (Load, Check, Reduce))]
            self._leaves[e] = found
        return found

    def _variable(self, e: Var) -> Value:
        if e in self.names:
            return self.names[e]
        if e in self.tile.places:
            key = ("lane", id(e), id(self.tile))
            if (found := self._find(key)) is None:
                place = self.tile.places[e]
                found = self.named(Value(self.tile.lane(place), frozenset((place,))), e.name)
                self._known[-1][key] = found
            return found
        return Value(e.name)  # a size

    def broadcast(self, v: Value, dims: frozenset[int]) -> Value:
        """`v` with at least the places `dims`."""
        if dims <= v.dims:
            return v
        both = dims | v.dims
        if is_number(v.text):
            return Value(f"tl.full({self.tile.shape(both)}, {v.text}, tl.float32)", both)
        return Value(f"tl.broadcast_to({v.text}, {self.tile.shape(both)})", both)

    def pointer(self, buffer: Buffer, index: Expr, dims: frozenset[int], block: bool) -> Value:
        """The address of an element, as a block along `dims` at least; `block`: even where that is one element."""
        at = self.address(index)
        if not dims <= at.dims or (block and not at.dims):
            both = at.dims | dims
            zero = f"tl.zeros({self.tile.shape(both)}, tl.int32)"
            at = Value(f"({at.text} + {zero})", both)
        return Value(f"{buffer.name}_ptr + {at.text}", at.dims)

    # --- nodes

    def unary(self, e: Unary) -> Value:
        a = self._widened(e.a)
        t = e.a.dtype.compute
        x = paren(a.text)
        if e.op == "neg":
            text = f"(-{x})"
        elif e.op == "not":
            text = f"(~{x})"
        elif e.op == "isnan":
            text = f"({x} != {x})"
        elif e.op == "isinf":
            text = f'(tl.abs({a.text}) == float("inf"))'
        elif e.op == "sqrt":
            text = f"tl.sqrt_rn({a.text})" if t == F32 else f"tl.sqrt({a.text})"
        elif e.op == "rsqrt":
            text = f"tl.div_rn(1.0, tl.sqrt_rn({a.text}))" if t == F32 else f"(1.0 / tl.sqrt({a.text}))"
        elif t.is_int and e.op in ("floor", "ceil", "trunc", "round"):
            text = a.text
        elif e.op in _OWN:
            text = f"{_OWN[e.op]}({a.text})"
        elif e.op in _LIBRARY and t.is_float:
            text = f"libdevice.{_LIBRARY[e.op]}({self._block(a)})"
        else:
            raise ValueError(f"Triton has no {e.op} of {t}")
        return Value(text, a.dims)

    def _block(self, v: Value) -> str:
        """`v` for a function that takes no bare number."""
        return f"tl.full({self.tile.shape(v.dims)}, {v.text}, tl.float32)" if is_number(v.text) else v.text

    def _widened(self, e: Expr) -> Value:
        v = self.value(e)
        return Value(f"({v.text}).to(tl.float32)", v.dims) if e.dtype.is_half else v

    def binary(self, e: Binary) -> Value:
        pure = self.facts(e.a)[0] and self.facts(e.b)[0]
        narrow = pure and (e.op in _INDEX_OPS or e.op in COMPARISONS)
        folded = binary(e.op, e.a, e.b) if narrow and isinstance(e.a, Const) and isinstance(e.b, Const) else e
        if isinstance(folded, Const):
            return self.raw(folded)
        a, b = (self.raw(e.a), self.raw(e.b)) if narrow else (self._widened(e.a), self._widened(e.b))
        dims = a.dims | b.dims
        sign = _SIGNS.get(e.op) or (_DIVISIONS.get(e.op) if e.a.dtype.is_int else None)
        if narrow and (plain := _simplified(e.op, a, b)) is not None:
            return plain
        if sign == "+" and narrow and b.text[:1] == "-" and b.text[1:].isdigit():
            return Value(f"({a.text} - {b.text[1:]})", dims)
        if sign is not None:
            return Value(f"({a.text} {sign} {b.text})", dims)
        if e.op in _LIBRARY and e.a.dtype.is_float:
            return Value(f"libdevice.{_LIBRARY[e.op]}({self._block(a)}, {self._block(b)})", dims)
        if e.op not in _BINARY:
            raise ValueError(f"Triton has no {e.op} of {e.a.dtype}")
        text = _BINARY[e.op](e, a.text, b.text)
        return Value(text, dims)

    def fma(self, e: Fma) -> Value:
        a, b, c = (self._widened(x) for x in (e.a, e.b, e.c))
        dims = a.dims | b.dims | c.dims
        args = [self.broadcast(x, dims) if dims and not x.dims else x for x in (a, b, c)]
        return Value(f"tl.fma({', '.join(x.text for x in args)})", dims)

    def cast(self, e: Cast) -> Value:
        a, t, of = self.value(e.a), e.dtype, e.a.dtype
        x = a.text if isinstance(e.a, Const) and not a.dims else paren(a.text)
        if t.is_bool:
            return Value(f"({paren(self._widened(e.a).text)} != 0)", a.dims)
        if isinstance(e.a, Const) and of in (F32, BOOL):
            x = f"tl.full({[1] * self.tile.rank}, {a.text}, {type_name(of)})"
        if of == F64 and t == BF16:
            x = f"{x}.to(tl.float32)"
        if of.is_float and t.is_int and t.bits < 64:
            x = f"{x}.to(tl.int64)"  # wraps, as eager does
        return Value(f"{x}.to({type_name(t)})", a.dims)

    def bitcast(self, e: Bitcast) -> Value:
        a = self.value(e.a)
        return Value(f"{paren(a.text)}.to({type_name(e.dtype)}, bitcast=True)", a.dims)

    def select(self, e: Select) -> Value:
        if (loaded := self._masked_load(e)) is not None:
            return loaded
        cond = self.value(e.cond)
        a, b = self._branch(e.a, e.cond, True), self._branch(e.b, e.cond, False)
        return Value(f"tl.where({cond.text}, {a.text}, {b.text})", cond.dims | a.dims | b.dims)

    def _branch(self, e: Expr, cond: Expr, holds: bool) -> Value:
        if not self.facts(e)[1]:
            return self.value(e)
        with self.where(cond, holds):
            return self.value(e)

    def _masked_load(self, e: Select) -> Value | None:
        """`select(cond, x[i], constant)` as one masked load."""
        if not isinstance(e.b, Const):
            return None
        conditions, inner = [e.cond], e.a
        while isinstance(inner, Select) and isinstance(inner.b, Const) and inner.b.value == e.b.value:
            conditions.append(inner.cond)
            inner = inner.a
        if not isinstance(inner, Load) or inner.buffer.scope != "global" or inner.mask is not None:
            return None
        masks = (*self._masks, *((c, True) for c in conditions))
        changing = self.facts(inner)[2]
        if not changing and self._known_under(inner, masks) is not None:
            return None
        with self.under(masks):
            out = self._loaded(inner, number(e.b.value))
        if not changing:
            self._learn(inner, masks, out)  # where the conditions hold it is the element itself
        return out

    def load(self, e: Load) -> Value:
        if e.buffer.scope == "local":
            return self.names[e.buffer]
        return self._loaded(e, "0")

    def _loaded(self, e: Load, other: str) -> Value:
        (index,) = e.indices
        masks = self._masks if e.mask is None else (*self._masks, (e.mask, True))
        with self.under(masks):
            at = self.pointer(e.buffer, index, frozenset(), bool(masks))
        # a condition on other axes of the tile cannot make the address a wrong one
        dims = [self._condition(cond, masks[:n]).dims for n, (cond, _) in enumerate(masks)]
        with self.under(tuple(m for m, d in zip(masks, dims) if d <= at.dims)):
            mask = self.mask()
        extra = "" if mask is None else f", mask={mask.text}, other={other}"
        return self.named(Value(f"tl.load({at.text}{extra})", at.dims), e.buffer.name)

    def check(self, e: Check) -> Value:
        cond, value = self.value(e.cond), self.value(e.value)
        cond = cond if cond.text.isidentifier() else self.named(cond, "valid")
        self.fail_unless(cond, e.message)
        zero = constant(0, e.dtype, self.tile.rank) if e.dtype != F32 else "0.0"
        return self.named(Value(f"tl.where({cond.text}, {value.text}, {zero})", cond.dims | value.dims), "checked")

    def fail_unless(self, cond: Value, message: str) -> None:
        """Stores the number of the message where `cond` is false."""
        if message not in self.messages:
            self.messages.append(message)
        code = self.messages.index(message) + 1
        mask = self.mask()
        dims = cond.dims | (mask.dims if mask is not None else frozenset())
        wrong = f"~{paren(cond.text)}" + (f" & {mask.text}" if mask is not None else "")
        self.line(f"tl.store(failure + tl.zeros({self.tile.shape(dims)}, tl.int32), {code}, mask={wrong})")

    def reduce(self, e: Reduce) -> Value:
        (axis,) = reduced(e)
        place = self.tile.places[axis.var]
        source = self.broadcast(self.value(e.source), frozenset((place,)))
        dims = source.dims - {place}
        if e.index is None:
            return Value(self._combined(e.op, source.text, place, e.source.dtype), dims)
        held = self.named(source, "best_of")
        best = self.named(
            Value(self._combined(e.op.removeprefix("arg"), held.text, place, e.source.dtype), dims), "best"
        )
        hit = f"({held.text} == {best.text})"
        if e.source.dtype.is_float:
            hit = f"({hit} | ({held.text} != {held.text}))"
        index = self.broadcast(self.value(e.index), source.dims)
        last = constant(INDEX.max, INDEX, self.tile.rank)
        return Value(f"tl.min(tl.where({hit}, {index.text}, {last}), axis={place}, keep_dims=True)", dims)

    def _combined(self, op: str, x: str, place: int, t: DType) -> str:
        if op == "sum":
            return f"tl.sum({x}, axis={place}, keep_dims=True)"
        if op in ("any", "all"):
            best = "max" if op == "any" else "min"
            return f"(tl.{best}(({x}).to(tl.int32), axis={place}, keep_dims=True) != 0)"
        if op in ("max", "min") and not t.is_float:
            return f"tl.{op}({x}, axis={place}, keep_dims=True)"
        helper = {"prod": "product", "max": "max_nan", "min": "min_nan"}[op]
        self.helpers.add(helper)
        return f"tl.reduce({x}, {place}, {helper}, keep_dims=True)"


def _simplified(op: str, a: Value, b: Value) -> Value | None:
    """Index arithmetic with a number that changes nothing, or leaves nothing."""
    if op == "add" and "0" in (a.text, b.text):
        return b if a.text == "0" else a
    if op == "mul" and "0" in (a.text, b.text):
        return Value("0")
    if op in ("floordiv", "floormod") and a.text == "0":
        return a
    return None


def _minmax(op: str, nan: bool) -> Callable[[Binary, str, str], str]:
    def write(e: Binary, a: str, b: str) -> str:
        if e.dtype.is_bool:
            return f"({a} {'|' if op == 'maximum' else '&'} {b})"
        carried = ", propagate_nan=tl.PropagateNan.ALL" if nan and e.dtype.is_float else ""
        return f"tl.{op}({a}, {b}{carried})"

    return write


def _divided(e: Binary, a: str, b: str) -> str:
    return f"tl.div_rn({a}, {b})" if e.dtype.compute == F32 else f"({a} / {b})"


_BINARY: dict[str, Callable[[Binary, str, str], str]] = {
    "div": _divided, "min": _minmax("minimum", True), "max": _minmax("maximum", True),
    "fmin": _minmax("minimum", False), "fmax": _minmax("maximum", False),
}  # fmt: skip
_WRITERS: dict[type, Callable[[Writer, Any], Value]] = {
    Unary: Writer.unary, Binary: Writer.binary, Fma: Writer.fma, Cast: Writer.cast, Bitcast: Writer.bitcast,
    Select: Writer.select, Load: Writer.load, Check: Writer.check, Reduce: Writer.reduce,
}  # fmt: skip
