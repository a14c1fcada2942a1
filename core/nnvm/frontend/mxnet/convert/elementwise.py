"""Functions of single elements, of two tensors and of a tensor and a number."""

from __future__ import annotations

from collections.abc import Callable

from nnvm.dtype import DType
from nnvm.frontend.mxnet.table import Context, Refused, cast, converts, emit, like, type_named
from nnvm.graph import NodeEntry

__all__: list[str] = []

Unary = Callable[[NodeEntry], NodeEntry]
Binary = Callable[[NodeEntry, NodeEntry], NodeEntry]


def _round(x: NodeEntry) -> NodeEntry:
    """Halves away from zero."""
    size = emit("abs", x)
    down = emit("floor", size)
    up = emit("greater_equal", emit("subtract", size, down), like(0.5, x))
    return emit("multiply", emit("sign", x), emit("add", down, cast(up, x.type.dtype)))


def _rint(x: NodeEntry) -> NodeEntry:
    """Halves downwards."""
    low, high = emit("floor", x), emit("ceil", x)
    return emit("where", emit("less_equal", emit("subtract", x, low), emit("subtract", high, x)), low, high)


def _cbrt(x: NodeEntry) -> NodeEntry:
    return emit("multiply", emit("sign", x), emit("power", emit("abs", x), like(1 / 3, x)))


def _softsign(x: NodeEntry) -> NodeEntry:
    return emit("divide", x, emit("add", emit("abs", x), like(1, x)))


def _radians(x: NodeEntry) -> NodeEntry:
    return emit("multiply", x, like(0.017453292519943295, x))


def _degrees(x: NodeEntry) -> NodeEntry:
    return emit("multiply", x, like(57.29577951308232, x))


#: MXNet's name -> the operator of that meaning.
_SAME = {
    "relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "exp": "exp", "expm1": "expm1", "log": "log",
    "log2": "log2", "log10": "log10", "log1p": "log1p", "sqrt": "sqrt", "rsqrt": "rsqrt", "square": "square",
    "abs": "abs", "sign": "sign", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fix": "trunc",
    "negative": "negative", "_np_negative": "negative", "reciprocal": "reciprocal", "sin": "sin", "cos": "cos",
    "tan": "tan", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "sinh": "sinh", "cosh": "cosh",
    "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh", "erf": "erf", "gammaln": "lgamma",
    "zeros_like": "zeros_like", "ones_like": "ones_like",
}  # fmt: skip
_UNARY: dict[str, Unary] = {
    "round": _round, "rint": _rint, "cbrt": _cbrt, "softsign": _softsign, "radians": _radians, "degrees": _degrees,
    "rcbrt": lambda x: emit("reciprocal", _cbrt(x)),
}  # fmt: skip
#: What gives its input as it is, in inference.
_IDENTITY = ("identity", "_copy", "BlockGrad", "stop_gradient", "MakeLoss", "make_loss", "IdentityAttachKLSparseReg",
             "_CrossDeviceCopy", "LinearRegressionOutput", "MAERegressionOutput", "SVMOutput",
             "_identity_with_attr_like_rhs")  # fmt: skip


@converts(*_SAME)
def _same(c: Context) -> NodeEntry:
    return emit(_SAME[c.op], c[0])


@converts(*_UNARY)
def _unary(c: Context) -> NodeEntry:
    return _UNARY[c.op](c[0])


@converts(*_IDENTITY)
def _identity(c: Context) -> NodeEntry:
    return c[0]


@converts("Dropout")
def _dropout(c: Context) -> NodeEntry:
    if c.attrs.choice("mode", ("training", "always"), "training") == "always":
        raise Refused("mode='always' draws random numbers in inference too")
    return c[0]


@converts("LogisticRegressionOutput")
def _logistic(c: Context) -> NodeEntry:
    return emit("sigmoid", c[0])


@converts("logical_not")
def _logical_not(c: Context) -> NodeEntry:
    return cast(emit("equal", c[0], like(0, c[0])), c[0].type.dtype)


@converts("Cast", "cast", "amp_cast")
def _cast(c: Context) -> NodeEntry:
    return cast(c[0], type_named(c.attrs, "dtype"))


@converts("hard_sigmoid")
def _hard_sigmoid(c: Context) -> NodeEntry:
    x = c[0]
    line = emit("multiply", x, like(c.attrs.number("alpha", 0.2), x))
    return emit("clip", emit("add", line, like(c.attrs.number("beta", 0.5), x)), a_min=0.0, a_max=1.0)


@converts("clip")
def _clip(c: Context) -> NodeEntry:
    return emit("clip", c[0], a_min=c.attrs.number("a_min"), a_max=c.attrs.number("a_max"))


@converts("smooth_l1")
def _smooth_l1(c: Context) -> NodeEntry:
    x, sigma = c[0], c.attrs.number("scalar", 1.0) ** 2
    size = emit("abs", x)
    near = emit("multiply", emit("square", x), like(0.5 * sigma, x))
    far = emit("subtract", size, like(0.5 / sigma, x))
    return emit("where", emit("less", size, like(1 / sigma, x)), near, far)


# two tensors


def _op(name: str) -> Binary:
    return lambda a, b: emit(name, a, b)


def _divide(a: NodeEntry, b: NodeEntry) -> NodeEntry:
    return emit("divide" if a.type.dtype.is_float else "trunc_divide", a, b)


def _mod(a: NodeEntry, b: NodeEntry) -> NodeEntry:
    """The remainder has the sign of the divisor; by 0 it is 0."""
    zero, one = like(0, b), like(1, b)
    by_zero = emit("equal", b, zero)
    return emit("where", by_zero, zero, emit("remainder", a, emit("where", by_zero, one, b)))


def _compared(name: str) -> Binary:
    """1 where it holds, 0 elsewhere, of the type of the operands."""
    return lambda a, b: cast(emit(name, a, b), a.type.dtype)


def _logical(name: str) -> Binary:
    def convert(a: NodeEntry, b: NodeEntry) -> NodeEntry:
        a_holds, b_holds = emit("not_equal", a, like(0, a)), emit("not_equal", b, like(0, b))
        return cast(emit(name, a_holds, b_holds), a.type.dtype)

    return convert


_BINARY: dict[str, Binary] = {
    "add": _op("add"), "sub": _op("subtract"), "mul": _op("multiply"), "div": _divide, "mod": _mod,
    "power": _op("power"), "maximum": _op("maximum"), "minimum": _op("minimum"), "hypot": _op("hypot"),
    **{name: _compared(name) for name in ("equal", "not_equal", "greater", "greater_equal")},
    "lesser": _compared("less"), "lesser_equal": _compared("less_equal"),
    **{name: _logical(name) for name in ("logical_and", "logical_or", "logical_xor")},
}  # fmt: skip
#: Other words for the keys of `_BINARY`.
_WORDS = {"add": ("add", "plus"), "sub": ("sub", "minus")}
_CAPITALS = {"add": "Plus", "sub": "Minus", "mul": "Mul", "div": "Div", "power": "Power", "maximum": "Maximum",
             "minimum": "Minimum"}  # fmt: skip


def _names(key: str) -> dict[str, str]:
    """Names of operators of two tensors -> key."""
    words = _WORDS.get(key, (key,))
    names = [f"{p}{w}" for w in words for p in ("elemwise_", "broadcast_", "_", "_grad_", "_np_")]
    if key in _CAPITALS:
        names.append(f"_{_CAPITALS[key]}")
    return dict.fromkeys(names, key)


_TENSORS = {name: key for k in _BINARY for name, key in _names(k).items()}


@converts(*_TENSORS)
def _binary(c: Context) -> NodeEntry:
    a, b = _alike(c[0], c[1])
    if not c.op.startswith(("broadcast_", "_np_")) and a.type.shape != b.type.shape:
        raise Refused(f"tensors of the sizes {a.type.shape} and {b.type.shape}, which must be equal")
    return _BINARY[_TENSORS[c.op]](a, b)


def _alike(a: NodeEntry, b: NodeEntry) -> tuple[NodeEntry, NodeEntry]:
    if a.type.dtype != b.type.dtype:
        raise Refused(f"tensors of {a.type.dtype} and {b.type.dtype}")
    return a, b


@converts("ElementWiseSum", "add_n", "_sum")
def _sum(c: Context) -> NodeEntry:
    total = c[0]
    for x in c.inputs[1:]:
        total = emit("add", *_alike(total, x))
    return total


# a tensor and a number

#: name -> (key of `_BINARY`, whether the number comes first)
_SCALARS: dict[str, tuple[str, bool]] = {}
for _key, _word in (("add", "plus"), ("sub", "minus"), *((k, k) for k in _BINARY if k not in ("add", "sub"))):
    _SCALARS[f"_{_word}_scalar"] = (_key, False)
    if _key in ("sub", "div", "mod", "power"):
        _SCALARS[f"_r{_word}_scalar"] = (_key, True)
    if _key in _CAPITALS:
        _SCALARS[f"_{_CAPITALS[_key]}Scalar"] = (_key, False)
        if _key in ("sub", "div", "power"):
            _SCALARS[f"_R{_CAPITALS[_key]}Scalar"] = (_key, True)


@converts(*_SCALARS)
def _with_scalar(c: Context) -> NodeEntry:
    x, (key, reverse) = c[0], _SCALARS[c.op]
    number = _scalar_of(c.attrs.number("scalar"), x.type.dtype)
    value = like(number, x)
    return _BINARY[key](value, x) if reverse else _BINARY[key](x, value)


def _scalar_of(number: float, dtype: DType) -> float:
    if dtype.is_int and not float(number).is_integer():
        raise Refused(f"the number {number} with elements of {dtype}")
    return int(number) if dtype.is_int else number
