"""Activations and their gradients.

At NaN eager's vectorised kernels and its kernels for the elements that are left over say different things of some
gradients; these follow the vectorised ones.
"""

from __future__ import annotations

from nnvm.dtype import DType
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Operand, Scalar, Unsupported, Value, converts, is_known

__all__: list[str] = []


@converts("gelu.default")
def _gelu(c: Context, x: NodeEntry, *, approximate: str = "none") -> Value:
    return c.op("gelu", x, approximate=approximate)


# Numbers that only the call knows are no attributes of an op: then a function is made of its parts.


@converts("elu.default")
def _elu(c: Context, x: NodeEntry, alpha: Scalar = 1.0, scale: Scalar = 1.0, input_scale: Scalar = 1.0) -> Value:
    if is_known(alpha, scale, input_scale):
        return c.op("elu", x, alpha=float(alpha), scale=float(scale), input_scale=float(input_scale))  # type: ignore[arg-type]
    return _elu_of_parts(c, c.compute(x), alpha, scale, input_scale)


def _elu_of_parts(c: Context, x: NodeEntry, alpha: Operand, scale: Operand, input_scale: Operand) -> NodeEntry:
    t = x.type.dtype
    limit = _product(c, alpha, scale, t)
    curve = c.op("multiply", c.op("expm1", c.op("multiply", x, c.value(input_scale, t))), limit)
    line = c.op("multiply", x, c.value(scale, t))
    return c.cast(c.op("where", c.op("less_equal", x, c.const(0, t)), curve, line), c.dtype)


@converts("celu.default")
def _celu(c: Context, x: NodeEntry, alpha: Scalar = 1.0) -> Value:
    if is_known(alpha):
        if alpha == 0:
            raise Unsupported("celu with an alpha of 0")
        return _elu(c, x, alpha, 1.0, 1 / alpha)  # type: ignore[operator]
    if not c.traced(1, "alpha") != 0:  # a guard
        raise Unsupported("celu with an alpha of 0")
    x = c.compute(x)
    return _elu_of_parts(c, x, alpha, 1, c.op("reciprocal", c.value(alpha, x.type.dtype)))


@converts("leaky_relu.default")
def _leaky_relu(c: Context, x: NodeEntry, slope: Scalar = 0.01) -> Value:
    if not c.dtype.is_float:
        raise Unsupported("leaky_relu of integers")
    if is_known(slope):
        return c.op("leaky_relu", x, alpha=float(slope))  # type: ignore[arg-type]
    wide = c.compute(x)
    t = wide.type.dtype
    below = c.op("multiply", wide, c.value(slope, t))
    return c.cast(c.op("where", _less(c, c.const(0, t), wide), wide, below), c.dtype)


@converts("softplus.default")
def _softplus(c: Context, x: NodeEntry, beta: Scalar = 1.0, threshold: Scalar = 20.0) -> Value:
    if is_known(beta, threshold):
        return c.op("softplus", x, beta=float(beta), threshold=float(threshold))  # type: ignore[arg-type]
    wide = c.compute(x)
    t = wide.type.dtype
    factor = c.value(beta, t)
    scaled = c.op("multiply", wide, factor)
    soft = c.op("divide", c.op("log1p", c.op("exp", scaled)), factor)
    return c.cast(c.op("where", _less(c, c.value(threshold, t), scaled), wide, soft), c.dtype)


@converts("log_sigmoid_forward.default")
def _log_sigmoid(c: Context, x: NodeEntry) -> Value:
    return c.op("log_sigmoid", x), None  # the buffer is for eager's own backward


@converts("_prelu_kernel.default")
def _prelu(c: Context, x: NodeEntry, weight: NodeEntry) -> Value:
    return c.op("prelu", x, weight)


@converts("hardshrink.default")
def _hardshrink(c: Context, x: NodeEntry, bound: Scalar = 0.5) -> Value:
    small = c.op("less_equal", c.op("abs", x), c.value(bound, c.dtype))
    return c.op("where", small, c.const(0, c.dtype), x)


@converts("softshrink.default")
def _softshrink(c: Context, x: NodeEntry, bound: Scalar = 0.5) -> Value:
    wide = c.compute(x)
    shift = c.value(bound, wide.type.dtype)
    moved = c.op("where", _less(c, shift, wide), c.op("subtract", wide, shift), c.op("add", wide, shift))
    zeros = c.op("multiply", wide, c.const(0, wide.type.dtype))  # of either sign, and NaN
    return c.cast(c.op("where", _beyond(c, wide, -bound, bound), moved, zeros), c.dtype)


# gradients


@converts("threshold_backward.default")
def _threshold_backward(c: Context, grad: NodeEntry, x: NodeEntry, threshold: Scalar) -> Value:
    wide = c.compute(x)
    small = c.op("less_equal", wide, c.value(threshold, wide.type.dtype))
    return c.op("where", small, c.const(0, c.dtype), c.cast(grad, c.dtype))


@converts("hardshrink_backward.default", "softshrink_backward.default")
def _shrink_backward(c: Context, grad: NodeEntry, x: NodeEntry, bound: Scalar) -> Value:
    return c.op("where", _beyond(c, x, -bound, bound), c.cast(grad, c.dtype), c.const(0, c.dtype))


@converts("hardtanh_backward.default")
def _hardtanh_backward(c: Context, grad: NodeEntry, x: NodeEntry, low: Scalar, high: Scalar) -> Value:
    wide = c.compute(x)
    t = wide.type.dtype
    inside = c.op("logical_and", _less(c, c.value(low, t), wide), _less(c, wide, c.value(high, t)))
    return c.op("where", inside, c.cast(grad, c.dtype), c.const(0, c.dtype))


@converts("hardswish_backward.default")
def _hardswish_backward(c: Context, grad: NodeEntry, x: NodeEntry) -> Value:
    grad, wide = c.compute(grad), c.compute(x)
    t = wide.type.dtype
    slope = c.op("add", c.op("divide", wide, c.const(3, t)), c.const(0.5, t))
    above = c.op("where", c.op("greater_equal", wide, c.const(3, t)), grad, c.op("multiply", grad, slope))
    below = c.op("less_equal", wide, c.const(-3, t))
    return c.cast(c.op("where", below, c.const(0, t), above), c.dtype)


@converts("elu_backward.default")
def _elu_backward(c: Context, grad: NodeEntry, alpha: Scalar, scale: Scalar, input_scale: Scalar, is_result: bool,
                  x: NodeEntry) -> Value:  # fmt: skip
    grad, wide = c.compute(grad), c.compute(x)
    t = wide.type.dtype
    factor, limit = c.value(input_scale, t), _product(c, alpha, scale, t)
    if is_result:
        curve = c.op("multiply", c.op("multiply", grad, factor), c.op("add", wide, limit))
    else:
        power = c.op("exp", c.op("multiply", wide, factor))
        curve = c.op("multiply", c.op("multiply", c.op("multiply", grad, factor), limit), power)
    line = c.op("multiply", grad, c.value(scale, t))
    return c.cast(c.op("where", _less(c, c.const(0, t), wide), line, curve), c.dtype)


def _product(c: Context, a: Operand, b: Operand, t: DType) -> NodeEntry:
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return c.const(a * b, t)
    return c.op("multiply", c.value(a, t), c.value(b, t))


def _less(c: Context, x: NodeEntry, y: NodeEntry) -> NodeEntry:
    return c.op("less", x, y)


def _beyond(c: Context, x: NodeEntry, low: Scalar, high: Scalar) -> NodeEntry:
    """Is it below or above the bounds? NaN is neither."""
    t = x.type.dtype
    return c.op("logical_or", _less(c, x, c.value(low, t)), _less(c, c.value(high, t), x))
