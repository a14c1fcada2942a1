"""Unary and binary operators and lane reductions of `nnvm.te.expr`, exactly as documented there.

Values are register values (see `lltype`); half types are computed in float32 and rounded after each operation.
"""

from __future__ import annotations

from collections.abc import Callable

from nnvm.codegen.llvm.builder import Builder
from nnvm.codegen.llvm.convert import convert
from nnvm.codegen.llvm.lltype import lanes_literal, literal, mask_type, register_type, suffix, vector
from nnvm.dtype import BOOL, F32, I16, DType
from nnvm.target import Target
from nnvm.te.expr import COMPARISONS

__all__ = ["CALLS", "binary", "fma", "reduce_lanes", "shuffle", "unary"]

_INTRINSIC = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "roundeven", "abs": "fabs"}
#: C names of what is left to the math library, without the `f` of the float versions.
_LIBM = {
    "exp": "exp", "exp2": "exp2", "expm1": "expm1", "log": "log", "log2": "log2", "log10": "log10", "log1p": "log1p",
    "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh",
    "cosh": "cosh", "tanh": "tanh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "erf": "erf", "erfc": "erfc",
    "lgamma": "lgamma", "pow": "pow", "atan2": "atan2", "hypot": "hypot", "nextafter": "nextafter",
}  # fmt: skip
#: Float operators that call the math library, lane by lane.
CALLS = frozenset((*_LIBM, "sigmoid", "floordiv", "floormod", "truncmod"))
_FCMP = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_INT = {"add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor"}
_BOOL = {"add": "or", "mul": "and", "max": "or", "min": "and", "and": "and", "or": "or", "xor": "xor", "sub": "xor"}
_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv", "truncmod": "frem"}


def _each_lane(b: Builder, function: str, scalar: str, operands: tuple[str, ...], lanes: int) -> str:
    """A scalar C function applied lane by lane."""
    if lanes == 1:
        return b.call(scalar, function, [(scalar, v) for v in operands])
    type_, out = vector(scalar, lanes), "poison"
    for lane in range(lanes):
        parts = [b.pure(f"extractelement {type_} {v}, i64 {lane}", (v,)) for v in operands]
        value = b.call(scalar, function, [(scalar, v) for v in parts])
        out = b.pure(f"insertelement {type_} {out}, {scalar} {value}, i64 {lane}", (out, value))
    return out


def _libm(b: Builder, op: str, t: DType, operands: tuple[str, ...], lanes: int) -> str:
    return _each_lane(b, _LIBM[op] + ("f" if t.bits == 32 else ""), register_type(t), operands, lanes)


def _intrinsic(b: Builder, name: str, type_: str, *operands: str) -> str:
    return b.call(type_, f"llvm.{name}.{suffix(type_)}", [(type_, v) for v in operands])


def unary(b: Builder, target: Target, op: str, a: str, t: DType, lanes: int) -> str:
    """`op` of MATH or LOGICAL; the result has type `t`, bool for isnan and isinf."""
    type_ = register_type(t, lanes)
    if op == "not":
        return b.binary("xor", type_, a, literal(True if t.is_bool else -1 if t.is_signed else int(t.max), t, lanes))
    if not t.is_float:
        return _unary_int(b, op, a, t, lanes)
    if t.is_half:
        if op in ("neg", "abs"):  # on the bits, so that NaN keeps its own
            with_sign = ("xor", -(1 << 15)) if op == "neg" else ("and", 0x7FFF)
            return b.binary(with_sign[0], type_, a, literal(with_sign[1], I16, lanes))
        out = unary(b, target, op, convert(b, target, a, t, F32, lanes), F32, lanes)
        return out if op in ("isnan", "isinf") else convert(b, target, out, F32, t, lanes)
    if op == "isnan":
        return b.binary("fcmp uno", type_, a, a)
    if op == "isinf":
        return b.binary("fcmp oeq", type_, _intrinsic(b, "fabs", type_, a), literal(float("inf"), t, lanes))
    if op == "neg":
        return b.pure(f"fneg {type_} {a}", (a,))
    if op == "round" and not _has_round(target):
        return _libm_round(b, a, t, lanes)
    if op in _INTRINSIC:
        return _intrinsic(b, _INTRINSIC[op], type_, a)
    one = literal(1.0, t, lanes)
    if op == "rsqrt":
        return b.binary("fdiv", type_, one, _intrinsic(b, "sqrt", type_, a))
    if op == "inverse":
        return _inverse(b, target, a, t, lanes)
    if op == "sigmoid":
        power = _libm(b, "exp", t, (b.pure(f"fneg {type_} {a}", (a,)),), lanes)
        return b.binary("fdiv", type_, one, b.binary("fadd", type_, one, power))
    return _libm(b, op, t, (a,), lanes)


def _inverse(b: Builder, target: Target, a: str, t: DType, lanes: int) -> str:
    """Two steps of Newton's from 14 bits, the second for the rounding, where a division of a vector takes 16 cycles."""
    type_ = register_type(t, lanes)
    one = literal(1.0, t, lanes)
    if t != F32 or lanes != 16 or not target.has("avx512f"):
        return b.binary("fdiv", type_, one, a)
    zero, mask = literal(0.0, t, lanes), "-1"
    out = b.call(type_, "llvm.x86.avx512.rcp14.ps.512", [(type_, a), (type_, zero), ("i16", mask)])
    minus = b.pure(f"fneg {type_} {a}", (a,))
    for _ in range(2):
        out = _intrinsic(b, "fma", type_, out, _intrinsic(b, "fma", type_, minus, out, one), out)
    return out


def _has_round(target: Target) -> bool:
    return any(target.has(f) for f in ("sse4.1", "avx", "avx2", "avx512f")) or not target.triple.startswith("x86_64")


def _libm_round(b: Builder, a: str, t: DType, lanes: int) -> str:
    """Half to even without SSE4.1 (whose `roundeven` would be a call that older C libraries lack)."""
    return _each_lane(b, "nearbyintf" if t.bits == 32 else "nearbyint", register_type(t), (a,), lanes)


def _unary_int(b: Builder, op: str, a: str, t: DType, lanes: int) -> str:
    type_ = register_type(t, lanes)
    if op in ("isnan", "isinf"):
        return literal(False, BOOL, lanes)
    if op == "neg":
        return b.binary("sub", type_, literal(0, t, lanes), a)
    if op == "abs" and t.is_signed:
        return b.select(mask_type(lanes), b.binary("icmp slt", type_, a, literal(0, t, lanes)), type_,
                        b.binary("sub", type_, literal(0, t, lanes), a), a)  # fmt: skip
    if op in ("abs", "floor", "ceil", "trunc", "round"):
        return a
    raise ValueError(f"{op} of {t} is not defined: cast it to a float first")


def binary(
    b: Builder, target: Target, op: str, x: str, y: str, t: DType, lanes: int, fail: Callable[[str, str], None]
) -> str:
    """`op` of ARITHMETIC, BITWISE or COMPARISONS on operands of type `t`.

    `fail(bad, message)` makes the kernel fail in the lanes where `bad` holds.
    """
    if t.is_half and op not in ("and", "or", "xor"):
        if op == "nextafter":
            return _next_half(b, target, x, y, t, lanes)
        wide = [convert(b, target, v, t, F32, lanes) for v in (x, y)]
        out = binary(b, target, op, wide[0], wide[1], F32, lanes, fail)
        return out if op in COMPARISONS else convert(b, target, out, F32, t, lanes)
    type_ = register_type(t, lanes)
    if op in COMPARISONS:
        return b.binary(_comparison(op, t), type_, x, y)
    if t.is_float:
        return _binary_float(b, op, x, y, t, lanes)
    if t.is_bool:
        if op not in _BOOL:
            raise ValueError(f"{op} of bool is not defined: cast it to an integer first")
        return _fold_bool(_BOOL[op], x, y) or b.binary(_BOOL[op], type_, x, y)
    return _binary_int(b, op, x, y, t, lanes, fail)


def _comparison(op: str, t: DType) -> str:
    if t.is_float:
        return f"fcmp {_FCMP[op]}"
    if op in ("eq", "ne"):
        return f"icmp {op}"
    return f"icmp {'s' if t.is_int and t.is_signed else 'u'}{op}"


def _fold_bool(op: str, x: str, y: str) -> str | None:
    """Conditions that are decided while unrolling: and, or with a constant."""
    if op == "and":
        return "false" if "false" in (x, y) else y if x == "true" else x if y == "true" else None
    if op == "or":
        return "true" if "true" in (x, y) else y if x == "false" else x if y == "false" else None
    return None


def _binary_float(b: Builder, op: str, x: str, y: str, t: DType, lanes: int) -> str:
    type_, mask = register_type(t, lanes), mask_type(lanes)
    if op in ("min", "max"):
        return _carry_nan("fcmp olt" if op == "min" else "fcmp ogt", b, x, y, type_, mask)
    if op in ("fmin", "fmax"):
        return _intrinsic(b, "minnum" if op == "fmin" else "maxnum", type_, x, y)
    if op in _FLOAT:
        return b.binary(_FLOAT[op], type_, x, y)
    if op == "truncdiv":
        return _intrinsic(b, "trunc", type_, b.binary("fdiv", type_, x, y))
    if op == "copysign":
        return _intrinsic(b, "copysign", type_, x, y)
    if op in ("floordiv", "floormod"):
        return _floor_float(b, op, x, y, t, lanes)
    if op in _LIBM:
        return _libm(b, op, t, (x, y), lanes)
    raise ValueError(f"{op} of {t} is not defined")


def _carry_nan(compare: str, b: Builder, x: str, y: str, type_: str, mask: str) -> str:
    """The lesser or greater one, NaN where either is: x86's minps gives its second operand where one is NaN."""
    if _is_number(y):
        x, y = y, x
    chosen = b.select(mask, b.binary(compare, type_, x, y), type_, x, y)
    if _is_number(x):
        return chosen
    return b.select(mask, b.binary("fcmp uno", type_, x, x), type_, x, chosen)


def _is_number(value: str) -> bool:
    return value[0] != "%" and "0x7FF8" not in value


def _floor_float(b: Builder, op: str, x: str, y: str, t: DType, lanes: int) -> str:
    """Python's `//` and `%` as PyTorch computes them (c10::div_floor_floating, at::native::remainder)."""
    type_, mask = register_type(t, lanes), mask_type(lanes)
    zero, one = literal(0.0, t, lanes), literal(1.0, t, lanes)
    rest = b.binary("frem", type_, x, y)
    signs = b.binary("xor", mask, b.binary("fcmp olt", type_, y, zero), b.binary("fcmp olt", type_, rest, zero))
    mends = b.binary("and", mask, b.binary("fcmp une", type_, rest, zero), signs)
    if op == "floormod":
        return b.select(mask, mends, type_, b.binary("fadd", type_, rest, y), rest)
    quotient = b.binary("fdiv", type_, b.binary("fsub", type_, x, rest), y)
    quotient = b.select(mask, mends, type_, b.binary("fsub", type_, quotient, one), quotient)
    floor = _intrinsic(b, "floor", type_, quotient)
    over = b.binary("fcmp ogt", type_, b.binary("fsub", type_, quotient, floor), literal(0.5, t, lanes))
    floor = b.select(mask, over, type_, b.binary("fadd", type_, floor, one), floor)
    plain = b.binary("fdiv", type_, x, y)
    signed_zero = _intrinsic(b, "copysign", type_, zero, plain)
    floor = b.select(mask, b.binary("fcmp une", type_, quotient, zero), type_, floor, signed_zero)
    return b.select(mask, b.binary("fcmp oeq", type_, y, zero), type_, plain, floor)


def _binary_int(
    b: Builder, op: str, x: str, y: str, t: DType, lanes: int, fail: Callable[[str, str], None]
) -> str:  # fmt: skip
    type_, mask = register_type(t, lanes), mask_type(lanes)
    sign = "s" if t.is_signed else "u"
    if op in _INT:
        return b.binary(_INT[op], type_, x, y)
    if op in ("min", "max", "fmin", "fmax"):
        compare = f"icmp {sign}{'lt' if op.endswith('min') else 'gt'}"
        return b.select(mask, b.binary(compare, type_, x, y), type_, x, y)
    if op in ("shl", "shr"):
        return _shift(b, op, x, y, t, lanes)
    if op in ("floordiv", "floormod", "truncdiv", "truncmod"):
        return _divide_int(b, op, x, y, t, lanes, fail)
    if op == "pow":
        return _integer_power(b, x, y, t, lanes)
    raise ValueError(f"{op} of {t} is not defined: cast it to a float first")


def _shift(b: Builder, op: str, x: str, y: str, t: DType, lanes: int) -> str:
    type_, mask = register_type(t, lanes), mask_type(lanes)
    inside = b.binary("icmp ult", type_, y, literal(t.bits, t, lanes))  # a negative count is too large, unsigned
    last = literal(t.bits - 1, t, lanes)
    count = b.select(mask, inside, type_, y, last)
    if op == "shr" and t.is_signed:
        return b.binary("ashr", type_, x, count)
    shifted = b.binary("shl" if op == "shl" else "lshr", type_, x, count)
    return b.select(mask, inside, type_, shifted, literal(0, t, lanes))


def _divide_int(
    b: Builder, op: str, x: str, y: str, t: DType, lanes: int, fail: Callable[[str, str], None]
) -> str:  # fmt: skip
    """Division without LLVM's undefined cases: 0 fails the kernel, and -1 is replaced by 1 and a negation."""
    type_, mask = register_type(t, lanes), mask_type(lanes)
    zero, one = literal(0, t, lanes), literal(1, t, lanes)
    known = y[0] != "%" and y != zero and (lanes == 1 or y[0] == "<")  # constants are splats, equal in every lane
    value = int(y if lanes == 1 else y.split(" ", 1)[1].split(",")[0]) if known else 0
    divisor = y
    if not known:
        bad = b.binary("icmp eq", type_, y, zero)
        fail(bad, "ZeroDivisionError")
        divisor = b.select(mask, bad, type_, one, y)
    if not t.is_signed:
        return b.binary("udiv" if op.endswith("div") else "urem", type_, x, divisor)
    negated = None
    if not known or value == -1:
        negated = b.binary("icmp eq", type_, divisor, literal(-1, t, lanes))
        divisor = b.select(mask, negated, type_, one, divisor)
    quotient = b.binary("sdiv", type_, x, divisor)
    rest = b.binary("sub", type_, x, b.binary("mul", type_, quotient, divisor))  # 0 for a divisor of -1
    if op == "truncmod":
        return rest
    signs = b.binary("icmp slt", type_, b.binary("xor", type_, rest, divisor), zero)
    mends = b.binary("and", mask, b.binary("icmp ne", type_, rest, zero), signs)
    if op == "floormod":
        return b.select(mask, mends, type_, b.binary("add", type_, rest, divisor), rest)
    if op == "floordiv":
        quotient = b.binary("add", type_, quotient, b.convert("sext", mask, mends, type_))
    if negated is None:
        return quotient
    return b.select(mask, negated, type_, b.binary("sub", type_, zero, x), quotient)


def _integer_power(b: Builder, x: str, y: str, t: DType, lanes: int) -> str:
    """Square and multiply, one exponent bit at a time; wraps. A negative exponent gives 1 / x ** -y, truncated."""
    type_, mask = register_type(t, lanes), mask_type(lanes)
    zero, one = literal(0, t, lanes), literal(1, t, lanes)
    out, power = one, x
    for bit in range(t.bits):
        bits = b.binary("and", type_, b.binary("lshr", type_, y, literal(bit, t, lanes)), one)
        taken = b.binary("icmp ne", type_, bits, zero)
        out = b.select(mask, taken, type_, b.binary("mul", type_, out, power), out)
        power = b.binary("mul", type_, power, power)
    if not t.is_signed:
        return out
    odd = b.binary("icmp ne", type_, b.binary("and", type_, y, one), zero)
    minus = literal(-1, t, lanes)
    alternating = b.select(mask, odd, type_, minus, one)
    inverse = b.select(mask, b.binary("icmp eq", type_, x, minus), type_, alternating, zero)
    inverse = b.select(mask, b.binary("icmp eq", type_, x, one), type_, one, inverse)
    return b.select(mask, b.binary("icmp slt", type_, y, zero), type_, inverse, out)


def _next_half(b: Builder, target: Target, x: str, y: str, t: DType, lanes: int) -> str:
    """The next half number after x towards y, on the bits."""
    bits, mask = vector("i16", lanes), mask_type(lanes)
    wide = vector("float", lanes)
    fx, fy = (convert(b, target, v, t, F32, lanes) for v in (x, y))

    def number(value: int) -> str:
        return literal(value, I16, lanes)

    zero = literal(0.0, F32, lanes)
    away = b.binary("xor", mask, b.binary("fcmp ogt", wide, fy, fx), b.binary("fcmp olt", wide, fx, zero))
    step = b.select(mask, away, bits, number(1), number(-1))
    moved = b.binary("add", bits, x, step)
    least = b.binary("or", bits, b.binary("and", bits, y, number(-(1 << 15))), number(1))
    moved = b.select(mask, b.binary("fcmp oeq", wide, fx, zero), bits, least, moved)
    out = b.select(mask, b.binary("fcmp oeq", wide, fx, fy), bits, y, moved)
    out = b.select(mask, b.binary("fcmp uno", wide, fx, fx), bits, x, out)
    return b.select(mask, b.binary("fcmp uno", wide, fy, fy), bits, y, out)


def fma(b: Builder, target: Target, x: str, y: str, z: str, t: DType, lanes: int) -> str:
    """x * y + z rounded once. Without the instruction, float32 goes through float64 (where the product is exact)."""
    if t.is_half:
        wide = [convert(b, target, v, t, F32, lanes) for v in (x, y, z)]
        return convert(b, target, fma(b, target, wide[0], wide[1], wide[2], F32, lanes), F32, t, lanes)
    type_ = register_type(t, lanes)
    if not t.is_float:
        return b.binary("add", type_, b.binary("mul", type_, x, y), z)
    if target.has_fma:
        return _intrinsic(b, "fma", type_, x, y, z)
    if t.bits == 64:
        return _each_lane(b, "fma", "double", (x, y, z), lanes)
    double = vector("double", lanes)
    x, y, z = (b.convert("fpext", type_, v, double) for v in (x, y, z))
    total = b.binary("fadd", double, b.binary("fmul", double, x, y), z)
    return b.convert("fptrunc", double, total, type_)


def shuffle(b: Builder, x: str, y: str, t: DType, lanes: int, order: tuple[int, ...]) -> str:
    """The lanes of `x` and `y` (of `lanes` each) that `order` names."""
    type_ = mask_type(lanes) if t.is_bool else register_type(t, lanes)
    chosen = lanes_literal("i32", order)
    return b.pure(f"shufflevector {type_} {x}, {type_} {y}, <{len(order)} x i32> {chosen}", (x, y))


def reduce_lanes(b: Builder, target: Target, op: str, a: str, t: DType, lanes: int) -> str:
    """All lanes combined: halves folded onto each other until one lane is left."""
    if lanes == 1:
        return a
    if t.is_half:
        wide = reduce_lanes(b, target, op, convert(b, target, a, t, F32, lanes), F32, lanes)
        return convert(b, target, wide, F32, t, 1)
    scalar = register_type(t)
    if t.is_bool:
        name = "and" if op in ("all", "min", "prod") else "or"
        type_ = vector("i1", lanes)
        return b.call("i1", f"llvm.vector.reduce.{name}.{suffix(type_)}", [(type_, a)])
    combine = {"sum": "add", "prod": "mul", "any": "or", "all": "and"}.get(op, op)

    def never(bad: str, message: str) -> None:
        raise AssertionError(message)

    while lanes > 1:
        half, odd = lanes // 2, lanes % 2
        type_ = vector(scalar, lanes)
        low = _part(b, type_, a, 0, half)
        high = _part(b, type_, a, half, half)
        folded = binary(b, target, combine, low, high, t, half, never)
        if odd:
            last = b.pure(f"extractelement {type_} {a}, i64 {lanes - 1}", (a,))
            rest = reduce_lanes(b, target, op, folded, t, half)
            return binary(b, target, combine, rest, last, t, 1, never)
        a, lanes = folded, half
    return a


def _part(b: Builder, type_: str, a: str, first: int, count: int) -> str:
    if count == 1:
        return b.pure(f"extractelement {type_} {a}, i64 {first}", (a,))
    lanes = lanes_literal("i32", tuple(range(first, first + count)))
    return b.pure(f"shufflevector {type_} {a}, {type_} poison, <{count} x i32> {lanes}", (a,))
