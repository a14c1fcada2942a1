"""How elementwise ops that ONNX lacks are written by others, and which it cannot express."""

from __future__ import annotations

import math

import numpy as np

from nnvm.dtype import I64, DType
from nnvm.frontend.onnx.export import CannotExport, Exporter, exports
from nnvm.frontend.onnx.export_rules import axes_of, static
from nnvm.frontend.onnx.protos import element_code
from nnvm.graph import Node

__all__ = ["NOT_IN_ONNX"]

_NO_FUNCTION = "ONNX has no such function"
#: Ops that cannot be written -> why.
NOT_IN_ONNX: dict[str, str] = {
    **dict.fromkeys((
        "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "erfcx", "erfinv", "i0", "i0e", "i1", "i1e", "k0", "k0e",
        "k1", "k1e", "lgamma", "log_ndtr", "ndtri", "nextafter", "orthogonal_polynomial", "polygamma",
        "spherical_bessel_j0",
    ), _NO_FUNCTION),
    "erfc": "ONNX has Erf only, and 1 - erf(x) loses all digits where x is large",
    "bitcast": "ONNX reads no bits as another type in this opset",
    "signbit": "ONNX tells the sign of NaN in no way",
    "cummax": "ONNX has no running extremes", "cummin": "ONNX has no running extremes",
    "conv2d_winograd": "it stands for a convolution after the compiler's passes: write the graph before them",
    "interleave": "it joins what the compiler's passes take apart: write the graph before them",
    "layout_transform": "it stands for a layout that the compiler's passes choose: write the graph before them",
    "row_norm_grad": "ONNX has no gradients", "norm_sums": "ONNX has no gradients",
    "group": "it is a kernel of the compiler's: write the graph before its passes",
    "variable": "a variable is an input or an initialiser, no node",
}  # fmt: skip


def _float(n: Node) -> DType:
    t = n.inputs[0].type.dtype
    if not t.is_float:
        raise CannotExport(f"elements of type {t}")
    return t


@exports("device_copy", "optimization_barrier")
def _as_it_is(x: Exporter, n: Node) -> str:
    return x.emit("Identity", x[n.inputs[0]])


@exports("exp2")
def _exp2(x: Exporter, n: Node) -> str:
    return x.emit("Pow", x.scalar(2, _float(n)), *x.inputs(n))


@exports("log2", "log10")
def _log(x: Exporter, n: Node) -> str:
    base = 2 if n.op.name == "log2" else 10
    return x.emit("Mul", x.emit("Log", *x.inputs(n)), x.scalar(1 / math.log(base), _float(n)))


@exports("expm1")
def _expm1(x: Exporter, n: Node) -> str:
    """Near 0 as 2t / (1 - t), where t = tanh(x / 2): exp(x) - 1 would lose digits."""
    (data,), t = x.inputs(n), _float(n)
    half = x.emit("Tanh", x.emit("Mul", data, x.scalar(0.5, t)))
    near = x.emit("Div", x.emit("Add", half, half), x.emit("Sub", x.scalar(1, t), half))
    far = x.emit("Sub", x.emit("Exp", data), x.scalar(1, t))
    return x.emit("Where", x.emit("Less", x.emit("Abs", data), x.scalar(0.5, t)), near, far)


@exports("log1p")
def _log1p(x: Exporter, n: Node) -> str:
    """log(u) * x / (u - 1), where u = 1 + x as it is rounded (Kahan); x itself where u is 1, or infinite."""
    (data,), t = x.inputs(n), _float(n)
    one = x.scalar(1, t)
    u = x.emit("Add", data, one)
    step = x.emit("Sub", u, one)
    plain = x.emit("Or", x.emit("Equal", u, one), x.emit("Equal", data, x.scalar(math.inf, t)))
    ratio = x.emit("Div", data, x.emit("Where", plain, one, step))
    return x.emit("Where", plain, data, x.emit("Mul", x.emit("Log", u), ratio))


@exports("log_sigmoid")
def _log_sigmoid(x: Exporter, n: Node) -> str:
    return x.emit("Neg", x.emit("Softplus", x.emit("Neg", *x.inputs(n))))


@exports("isfinite")
def _isfinite(x: Exporter, n: Node) -> str:
    return x.emit("Not", x.emit("Or", x.emit("IsInf", *x.inputs(n)), x.emit("IsNaN", *x.inputs(n))))


@exports("trunc")
def _trunc(x: Exporter, n: Node) -> str:
    (data,), t = x.inputs(n), n[0].type.dtype
    if not t.is_float:
        return x.emit("Identity", data)
    return x.emit("Where", x.emit("Less", data, x.scalar(0, t)), x.emit("Ceil", data), x.emit("Floor", data))


def _is_negative(x: Exporter, data: str, t: DType) -> str:
    """Whether it is below 0, or -0 (whose reciprocal is -inf)."""
    zero = x.scalar(0, t)
    below = x.emit("Less", data, zero)
    return x.emit("Or", below, x.emit("Less", x.emit("Reciprocal", data), zero))


@exports("copysign")
def _copysign(x: Exporter, n: Node) -> str:
    (data, sign), t = x.inputs(n), _float(n)
    size = x.emit("Abs", data)
    return x.emit("Where", _is_negative(x, sign, t), x.emit("Neg", size), size)


@exports("hypot")
def _hypot(x: Exporter, n: Node) -> str:
    """The larger one times sqrt(1 + ratio²), so that no square overflows."""
    t = _float(n)
    a, b = (x.emit("Abs", e) for e in x.inputs(n))
    large, small = x.emit("Max", a, b), x.emit("Min", a, b)
    plain = x.emit("Or", x.emit("Equal", large, x.scalar(0, t)), x.emit("IsInf", large))
    ratio = x.emit("Div", small, x.emit("Where", plain, x.scalar(1, t), large))
    root = x.emit("Sqrt", x.emit("Add", x.emit("Mul", ratio, ratio), x.scalar(1, t)))
    return x.emit("Where", plain, large, x.emit("Mul", large, root))


@exports("fmax", "fmin")
def _without_nan(x: Exporter, n: Node) -> str:
    a, b = x.inputs(n)
    both = x.emit("Max" if n.op.name == "fmax" else "Min", a, b)
    if not n[0].type.dtype.is_float:
        return both
    return x.emit("Where", x.emit("IsNaN", a), b, x.emit("Where", x.emit("IsNaN", b), a, both))


@exports("atan2")
def _atan2(x: Exporter, n: Node) -> str:
    """atan(y / x), turned by half a turn left of the axis."""
    (y, at), t = x.inputs(n), _float(n)
    zero = x.scalar(0, t)
    diagonal = x.emit("And", x.emit("IsInf", y), x.emit("IsInf", at))
    signs = x.emit("Mul", x.emit("Sign", y), x.emit("Sign", at))
    origin = x.emit("And", x.emit("Equal", y, zero), x.emit("Equal", at, zero))
    ratio = x.emit("Where", diagonal, signs, x.emit("Div", y, x.emit("Where", origin, x.scalar(1, t), at)))
    angle = x.emit("Atan", ratio)
    half = x.emit("Where", _is_negative(x, y, t), x.scalar(-math.pi, t), x.scalar(math.pi, t))
    left = _is_negative(x, at, t)
    straight = x.emit("Where", left, half, y)
    turned = x.emit("Where", left, x.emit("Add", angle, half), angle)
    return x.emit("Where", origin, straight, turned)


def _python_mod(x: Exporter, a: str, b: str, t: DType) -> str:
    """The remainder with the divisor's sign."""
    if not t.is_float:
        return x.emit("Mod", a, b)
    rest, zero = x.emit("Mod", a, b, fmod=1), x.scalar(0, t)
    other = x.emit("Xor", x.emit("Less", rest, zero), x.emit("Less", b, zero))
    moved = x.emit("And", x.emit("Not", x.emit("Equal", rest, zero)), other)
    return x.emit("Where", moved, x.emit("Add", rest, b), rest)


@exports("remainder")
def _remainder(x: Exporter, n: Node) -> str:
    a, b = x.inputs(n)
    return _python_mod(x, a, b, n[0].type.dtype)


@exports("floor_divide")
def _floor_divide(x: Exporter, n: Node) -> str:
    """(a - a % b) / b, which is whole; of floats rounded to the nearest whole number, and a / b by 0."""
    (a, b), t = x.inputs(n), n[0].type.dtype
    whole = x.emit("Div", x.emit("Sub", a, _python_mod(x, a, b, t)), b)
    if not t.is_float:
        return whole
    down = x.emit("Floor", whole)
    above = x.emit("Greater", x.emit("Sub", whole, down), x.scalar(0.5, t))
    nearest = x.emit("Where", above, x.emit("Add", down, x.scalar(1, t)), down)
    return x.emit("Where", x.emit("Equal", b, x.scalar(0, t)), x.emit("Div", a, b), nearest)


@exports("left_shift", "right_shift")
def _shift(x: Exporter, n: Node) -> str:
    (a, b), t = x.inputs(n), n[0].type.dtype
    if t.kind != "u":
        raise CannotExport(f"a shift of {t}: ONNX shifts unsigned integers")
    shifted = x.emit("BitShift", a, b, direction="LEFT" if n.op.name == "left_shift" else "RIGHT")
    return x.emit("Where", x.emit("Less", b, x.scalar(t.bits, t)), shifted, x.scalar(0, t))


@exports("softplus")
def _softplus(x: Exporter, n: Node) -> str:
    (data,), beta, t = x.inputs(n), float(n.attrs["beta"]), _float(n)
    if beta == 1:
        return x.emit("Softplus", data)
    scaled = x.emit("Softplus", x.emit("Mul", data, x.scalar(beta, t)))
    return x.emit("Div", scaled, x.scalar(beta, t))


@exports("l2_normalize")
def _l2_normalize(x: Exporter, n: Node) -> str:
    (data,), t = x.inputs(n), _float(n)
    total = x.emit("ReduceSum", x.emit("Mul", data, data), x.ints(axes_of(n) or []), keepdims=1)
    return x.emit("Div", data, x.emit("Sqrt", x.emit("Max", total, x.scalar(n.attrs["eps"], t))))


@exports("ones_like", "zeros_like", "full_like")
def _full_like(x: Exporter, n: Node) -> str:
    value = {"ones_like": 1, "zeros_like": 0}.get(n.op.name, n.attrs.get("fill_value", 0))
    return x.emit("Expand", x.scalar(value, n[0].type.dtype), x.emit("Shape", *x.inputs(n)))


@exports("cumprod", "logcumsumexp")
def _running(x: Exporter, n: Node) -> str:
    """Every result by a reduction of all elements before it: for axes of few elements."""
    t, axis = n.inputs[0].type, n.attrs["axis"] % max(n.inputs[0].type.rank, 1)
    (size,) = static(t.shape[axis : axis + 1], "the axis") if t.rank else (1,)
    if t.rank == 0 or size > 128 or not t.dtype.is_float or n[0].type.dtype != t.dtype:
        raise CannotExport("running results of integers, or along a long axis")
    product = n.op.name == "cumprod"
    apart = x.emit("Unsqueeze", *x.inputs(n), x.ints([axis]))  # [..., results, elements, ...]
    mask = np.tri(size, dtype=bool).reshape(size, size, *[1] * (t.rank - axis - 1))
    seen = x.constant(mask, DType("bool", "b", 8))
    kept = x.emit("Where", seen, apart, x.scalar(1 if product else -math.inf, t.dtype))
    return x.emit("ReduceProd" if product else "ReduceLogSumExp", kept, x.ints([axis + 1]), keepdims=0)


@exports("searchsorted")
def _searchsorted(x: Exporter, n: Node) -> str:
    """How many boundaries are below: all are compared."""
    edges, values = n.inputs
    row = x[edges] if edges.type.rank == 1 else x.emit("Unsqueeze", x[edges], x.ints([-2]))
    column = x.emit("Unsqueeze", x[values], x.ints([-1]))
    compare = "Greater" if n.attrs["right"] else "GreaterOrEqual"
    below = x.emit("Cast", x.emit("Not", x.emit(compare, row, column)), to=element_code(I64))
    counted = x.emit("ReduceSum", below, x.ints([-1]), keepdims=0)
    return counted if n[0].type.dtype == I64 else x.emit("Cast", counted, to=element_code(n[0].type.dtype))
