"""Scalar and vector expressions: what tensor expressions are made of, and what loop nests compute.

An Expr is immutable by convention (never assign to its fields) and compared by identity; `nnvm.tir.printer` gives a
structural key. Sharing a sub-expression object means computing it once. Build with the functions at the end and
with Python's operators, which fold constants; the constructors themselves fold nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from nnvm.dim import Dim, SymDim
from nnvm.dtype import BOOL, F64, I64, DType
from nnvm.dtype import dtype as as_dtype

__all__ = [
    "ARITHMETIC", "BITWISE", "COMPARISONS", "INDEX", "LOGICAL", "MACHINE", "MATH", "REDUCERS", "THREADS", "Binary",
    "Bitcast", "Broadcast", "Buffer", "Cast", "Check", "Const", "Expr", "ExprLike", "Fma", "Load", "Ramp", "Reduce",
    "Select", "Shuffle", "Unary", "Var", "VectorReduce", "binary", "cast", "check", "const", "dim_expr", "fma",
    "is_size", "load", "maximum", "minimum", "select", "size_var", "unary",
]  # fmt: skip

#: Type of loop variables and of everything an address is computed from.
INDEX = I64

#: Binary operators whose result has the operands' type. `div` is true division of floats; `floordiv`/`floormod` are
#: Python's, `truncdiv`/`truncmod` are C's (for floats as torch.div/fmod define them). `min`/`max` carry NaN through,
#: `fmin`/`fmax` drop it. A shift by the width or more gives 0 (-1 for a negative `shr`). Integer division by a
#: divisor that is 0 at run time fails the kernel with "ZeroDivisionError"; INT_MIN // -1 wraps.
ARITHMETIC = ("add", "sub", "mul", "div", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max", "fmin", "fmax",
              "pow", "atan2", "hypot", "copysign", "nextafter")  # fmt: skip
BITWISE = ("and", "or", "xor", "shl", "shr")  # also on bool
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")  # result: bool; a comparison with NaN is false, `ne` true
LOGICAL = ("not", "isnan", "isinf")  # unary, result: bool for isnan/isinf; `not` is bitwise (logical on bool)

#: Unary functions, result of the operand's type. `round` is half to even. Half types are computed in float32.
MATH = ("neg", "abs", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
        "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid", "floor",
        "ceil", "trunc", "round", "lgamma")  # fmt: skip

#: What functions are expanded to for machines: `inverse` is 1 / x within a unit in the last place, of float32 between
#: 2**-120 and 2**120, where a processor has something faster than its division.
MACHINE = ("inverse",)

#: Reductions and the values they start from. `argmax`/`argmin` reduce (value, index) and give the index (int64), the
#: first of equal ones; NaN wins. `min`/`max` carry NaN through.
REDUCERS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")


class Expr:
    """Base of all expressions. `dtype` is the element type, `lanes` the vector length (1: a scalar)."""

    __slots__ = ()
    dtype: DType
    lanes: int

    def __add__(self, other: ExprLike) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return binary("floordiv", self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return binary("floormod", self, other)

    def __neg__(self) -> Expr:
        return unary("neg", self)

    def __and__(self, other: ExprLike) -> Expr:
        return binary("and", self, other)

    def __or__(self, other: ExprLike) -> Expr:
        return binary("or", self, other)

    def __xor__(self, other: ExprLike) -> Expr:
        return binary("xor", self, other)

    def __invert__(self) -> Expr:
        return unary("not", self)

    def __lt__(self, other: ExprLike) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return binary("gt", self, other)

    def __ge__(self, other: ExprLike) -> Expr:
        return binary("ge", self, other)

    def equal(self, other: ExprLike) -> Expr:
        """Elementwise `==` (Python's own `==` compares identity)."""
        return binary("eq", self, other)

    def not_equal(self, other: ExprLike) -> Expr:
        return binary("ne", self, other)

    def astype(self, dtype: DType | str) -> Expr:
        return cast(self, as_dtype(dtype))


ExprLike = Expr | int | float | bool | SymDim


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory that a loop nest reads and writes.

    Attributes:
        name: unique within a PrimFunc.
        shape: dimensions, in elements.
        dtype: element type.
        strides: in elements, one per dimension; None is row-major contiguous.
        scope: ``global`` (an argument), ``local`` (registers or stack; constant size) or ``scratch`` (workspace of
            one thread; any size).
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: DType
    strides: tuple[Dim, ...] | None = None
    scope: str = "global"

    def stride_of(self, axis: int) -> Dim:
        """Elements between neighbours along `axis`."""
        if self.strides is not None:
            return self.strides[axis]
        stride: Dim = 1
        for d in self.shape[axis + 1 :]:
            stride = stride * d
        return stride


@dataclass(eq=False, slots=True)
class Const(Expr):
    """A constant; `value` is a Python int, float or bool that fits `dtype`."""

    value: int | float | bool
    dtype: DType
    lanes: int = 1


@dataclass(eq=False, slots=True)
class Var(Expr):
    """A scalar variable: a loop variable, a size (`SymDim` symbol of the same name) or a let."""

    name: str
    dtype: DType = INDEX
    lanes: int = 1


@dataclass(eq=False, slots=True)
class Unary(Expr):
    """`op` of MATH, MACHINE or LOGICAL applied to `a`."""

    op: str
    a: Expr
    dtype: DType = field(init=False)
    lanes: int = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = BOOL if self.op in ("isnan", "isinf") else self.a.dtype
        self.lanes = self.a.lanes


@dataclass(eq=False, slots=True)
class Binary(Expr):
    """`op` of ARITHMETIC, BITWISE or COMPARISONS on two operands of one dtype and lane count."""

    op: str
    a: Expr
    b: Expr
    dtype: DType = field(init=False)
    lanes: int = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = BOOL if self.op in COMPARISONS else self.a.dtype
        self.lanes = self.a.lanes


@dataclass(eq=False, slots=True)
class Fma(Expr):
    """`a * b + c` rounded once."""

    a: Expr
    b: Expr
    c: Expr
    dtype: DType = field(init=False)
    lanes: int = field(init=False)

    def __post_init__(self) -> None:
        self.dtype, self.lanes = self.c.dtype, self.c.lanes


@dataclass(eq=False, slots=True)
class Cast(Expr):
    """Conversion as eager PyTorch does it: float to int truncates, int to narrower int wraps, to bool is `!= 0`."""

    a: Expr
    dtype: DType
    lanes: int = field(init=False)

    def __post_init__(self) -> None:
        self.lanes = self.a.lanes


@dataclass(eq=False, slots=True)
class Bitcast(Expr):
    """The bits of `a` as another type of the same width (float32 as int32 and back)."""

    a: Expr
    dtype: DType
    lanes: int = field(init=False)

    def __post_init__(self) -> None:
        self.lanes = self.a.lanes


@dataclass(eq=False, slots=True)
class Select(Expr):
    """`a` where `cond`, else `b`. Loads in a branch are performed only where that branch is taken."""

    cond: Expr
    a: Expr
    b: Expr
    dtype: DType = field(init=False)
    lanes: int = field(init=False)

    def __post_init__(self) -> None:
        self.dtype, self.lanes = self.a.dtype, self.a.lanes


@dataclass(eq=False, slots=True)
class Load(Expr):
    """Element(s) of a buffer. `lanes` is that of the widest index; lanes where `mask` is false give 0, unread."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    mask: Expr | None = None
    dtype: DType = field(init=False)
    lanes: int = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.buffer.dtype
        self.lanes = max((i.lanes for i in self.indices), default=1)


@dataclass(eq=False, slots=True)
class Ramp(Expr):
    """The vector `base, base + stride, ..., base + (lanes - 1) * stride` of indices."""

    base: Expr
    stride: int
    lanes: int
    dtype: DType = INDEX


@dataclass(eq=False, slots=True)
class Broadcast(Expr):
    """A scalar repeated in every lane."""

    a: Expr
    lanes: int
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.a.dtype


@dataclass(eq=False, slots=True)
class Shuffle(Expr):
    """Lanes of two vectors of one type: `order` numbers those of `a` from 0 on, then those of `b`."""

    a: Expr
    b: Expr
    order: tuple[int, ...]
    dtype: DType = field(init=False)
    lanes: int = field(init=False)

    def __post_init__(self) -> None:
        self.dtype, self.lanes = self.a.dtype, len(self.order)


@dataclass(eq=False, slots=True)
class VectorReduce(Expr):
    """All lanes of `a` combined by a reducer (`sum prod max min any all`) into a scalar."""

    op: str
    a: Expr
    dtype: DType = field(init=False)
    lanes: int = 1

    def __post_init__(self) -> None:
        self.dtype = self.a.dtype


@dataclass(eq=False, slots=True)
class Check(Expr):
    """`value`, after making sure of `cond`; where it is false the kernel fails with `message` and the value is 0."""

    value: Expr
    cond: Expr
    message: str
    dtype: DType = field(init=False)
    lanes: int = field(init=False)

    def __post_init__(self) -> None:
        self.dtype, self.lanes = self.value.dtype, self.value.lanes


@dataclass(eq=False, slots=True)
class Reduce(Expr):
    """`source` combined over `axes` (te.IterVar of kind ``reduce``); only as the whole body of a compute.

    For argmax and argmin `index` is the position to return. The accumulator has the type of `source`.
    """

    op: str
    source: Expr
    axes: tuple[object, ...]
    index: Expr | None = None
    dtype: DType = field(init=False)
    lanes: int = 1

    def __post_init__(self) -> None:
        self.dtype = I64 if self.index is not None else self.source.dtype


def const(value: ExprLike, dtype: DType | str = INDEX) -> Expr:
    """`value` as an expression of type `dtype`; an Expr is returned as it is, a SymDim becomes index arithmetic."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, SymDim):
        return dim_expr(value)
    t = as_dtype(dtype)
    if t.is_float:
        return Const(float(value), t)
    if t.is_bool:
        return Const(bool(value), t)
    wrapped = int(value) & ((1 << t.bits) - 1)
    return Const(wrapped - (1 << t.bits) if t.is_signed and wrapped >> (t.bits - 1) else wrapped, t)


#: The size that stands for how many threads a call may use: at least 1, and known in every function without being one
#: of its symbols. What is computed must not depend on it, only how it is shared out.
THREADS = "#threads"

_SIZES: dict[str, Var] = {}


def size_var(name: str) -> Var:
    """The variable of a symbolic size; the same object for the same name, so that equal sizes cancel."""
    return _SIZES.setdefault(name, Var(name))


def is_size(v: Var) -> bool:
    """Whether `v` is the variable of a symbolic size, and so at least 0."""
    return _SIZES.get(v.name) is v


def dim_expr(d: Dim) -> Expr:
    """A dimension as index arithmetic over the variables of its symbols (`size_var`)."""
    if isinstance(d, int):
        return Const(d, INDEX)
    total: Expr | None = None
    for term, coef in d.terms:
        product: Expr | None = None
        for atom in term:
            if atom[0] == "sym":
                factor: Expr = size_var(str(atom[1]))
            else:
                op = "floormod" if atom[0] == "mod" else str(atom[0])
                factor = binary(op, dim_expr(atom[1]), dim_expr(atom[2]))  # type: ignore[arg-type]
            product = factor if product is None else product * factor
        product = Const(coef, INDEX) if product is None else product * coef
        total = product if total is None else total + product
    assert total is not None
    return total


def load(buffer: Buffer, indices: Sequence[ExprLike]) -> Load:
    return Load(buffer, tuple(const(i) for i in indices))


def binary(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """`a op b`; a Python number takes the other operand's dtype. Index arithmetic and constants are folded."""
    if not isinstance(a, Expr):
        a = const(a, b.dtype if isinstance(b, Expr) else INDEX)
    if not isinstance(b, Expr):
        b = const(b, a.dtype)
    if a.dtype != b.dtype:
        raise TypeError(f"{op} of {a.dtype} and {b.dtype}: cast one of them first")
    if a.lanes != b.lanes:
        a, b = (Broadcast(a, b.lanes), b) if a.lanes == 1 else (a, Broadcast(b, a.lanes))
    return _fold_int(op, a, b) if not a.dtype.is_float else Binary(op, a, b)


def unary(op: str, a: Expr) -> Expr:
    if isinstance(a, Const) and op == "neg":
        return const(-a.value, a.dtype)
    return Unary(op, a)


def cast(a: ExprLike, dtype: DType | str) -> Expr:
    t = as_dtype(dtype)
    if not isinstance(a, Expr):
        return const(a, t)
    if a.dtype == t:
        return a
    if not isinstance(a, Const) or a.dtype.is_half or t.is_half or (a.dtype.is_float and t != F64):
        return Cast(a, t)  # what rounds or truncates is left to the target
    return const(a.value, t)


def select(cond: Expr, a: ExprLike, b: ExprLike) -> Expr:
    if not isinstance(a, Expr):
        a = const(a, b.dtype if isinstance(b, Expr) else INDEX)
    if not isinstance(b, Expr):
        b = const(b, a.dtype)
    if isinstance(cond, Const):
        return a if cond.value else b
    return Select(cond, a, b)


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    return Fma(a, b, c)


def check(value: Expr, cond: Expr, message: str) -> Expr:
    """`value`, failing the kernel with `message` where `cond` is false."""
    return value if isinstance(cond, Const) and cond.value else Check(value, cond, message)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    return binary("max", a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    return binary("min", a, b)


def _fold_int(op: str, a: Expr, b: Expr) -> Expr:
    """Integer and bool folding: constants, and the neutral elements of index arithmetic."""
    x = a.value if isinstance(a, Const) else None
    y = b.value if isinstance(b, Const) else None
    if x is not None and y is not None and a.lanes == 1 and (value := _evaluate_int(op, int(x), int(y))) is not None:
        return const(value, BOOL if op in COMPARISONS else a.dtype)
    if op == "add":
        if y == 0:
            return a
        if x == 0:
            return b
        if x is not None:
            a, b, x, y = b, a, y, x
        if y is not None and isinstance(a, Binary) and a.op == "add" and isinstance(a.b, Const):
            return _fold_int("add", a.a, const(int(a.b.value) + int(y), a.dtype))
    elif op == "sub":
        if y == 0:
            return a
        if y is not None and a.dtype.is_int:
            return _fold_int("add", a, const(-int(y), a.dtype))
    elif op == "mul":
        if y == 1:
            return a
        if x == 1:
            return b
        if a.lanes == 1 and (x == 0 or y == 0):
            return const(0, a.dtype)
        if x is not None:
            a, b, y = b, a, x
        if y is not None and isinstance(a, Binary) and a.op == "mul" and isinstance(a.b, Const):
            return _fold_int("mul", a.a, const(int(a.b.value) * int(y), a.dtype))
    elif op in ("floordiv", "truncdiv") and y == 1:
        return a
    elif op in ("floormod", "truncmod") and y == 1 and a.lanes == 1:
        return const(0, a.dtype)
    elif op == "and" and a.dtype.is_bool and (x is not None or y is not None):
        return (b if x else a) if x is not None else (a if y else b)
    elif op == "or" and a.dtype.is_bool and (x is not None or y is not None):
        return (a if x else b) if x is not None else (b if y else a)
    return Binary(op, a, b)


def _evaluate_int(op: str, x: int, y: int) -> int | None:
    if op in ("floordiv", "floormod", "truncdiv", "truncmod") and y == 0:
        return None
    simple = {"add": x + y, "sub": x - y, "mul": x * y, "min": min(x, y), "max": max(x, y), "eq": x == y,
              "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y, "and": x & y, "or": x | y,
              "xor": x ^ y}  # fmt: skip
    if op in simple:
        return simple[op]
    if op == "floordiv":
        return x // y
    if op == "floormod":
        return x % y
    if op in ("truncdiv", "truncmod"):
        quotient = int(math.copysign(abs(x) // abs(y), x * y)) if abs(x) < 1 << 52 else None
        return quotient if op == "truncdiv" or quotient is None else x - quotient * y
    return None
