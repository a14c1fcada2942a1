"""How elementwise ops, reductions and moves are written in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnvm.dim import Dim, SymDim, is_static
from nnvm.dtype import F32, I64
from nnvm.frontend.onnx.export import CannotExport, Exporter, exports
from nnvm.frontend.onnx.protos import element_code
from nnvm.graph import Node

__all__ = ["axes_of", "static"]

_UNARY = {
    "abs": "Abs", "negative": "Neg", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "reciprocal": "Reciprocal",
    "floor": "Floor", "ceil": "Ceil", "round": "Round", "sign": "Sign", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh", "erf": "Erf", "sigmoid": "Sigmoid", "relu": "Relu", "logical_not": "Not",
    "bitwise_not": "BitwiseNot", "isnan": "IsNaN", "isinf": "IsInf", "mish": "Mish", "hardswish": "HardSwish",
    "identity": "Identity", "dropout": "Identity", "block_grad": "Identity",
}  # fmt: skip
_BINARY = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "power": "Pow", "maximum": "Max", "minimum": "Min",
    "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor", "equal": "Equal", "less": "Less",
    "less_equal": "LessOrEqual", "greater": "Greater", "greater_equal": "GreaterOrEqual", "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor", "where": "Where", "prelu": "PRelu", "elemwise_sum": "Sum",
}  # fmt: skip
_REDUCE = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd",
           "logsumexp": "ReduceLogSumExp"}  # fmt: skip


def static(shape: Sequence[Dim], what: str) -> tuple[int, ...]:
    if not is_static(tuple(shape)):
        raise CannotExport(f"{what} {list(map(str, shape))} is symbolic")
    return tuple(int(d) for d in shape)  # type: ignore[arg-type]


@exports(*_UNARY, *_BINARY)
def _plain(x: Exporter, n: Node) -> str:
    return x.emit(_UNARY.get(n.op.name) or _BINARY[n.op.name], *x.inputs(n))


@exports("constant")
def _constant(x: Exporter, n: Node) -> str:
    return x.constant(n.attrs["value"], n[0].type.dtype)


@exports("cast")
def _cast(x: Exporter, n: Node) -> str:
    return x.emit("Cast", x[n.inputs[0]], to=element_code(n.attrs["dtype"]))


@exports("divide", "trunc_divide")
def _divide(x: Exporter, n: Node) -> str:
    if n[0].type.dtype.is_float != (n.op.name == "divide"):
        raise CannotExport(f"division of {n[0].type.dtype}")
    return x.emit("Div", *x.inputs(n))


@exports("fmod")
def _fmod(x: Exporter, n: Node) -> str:
    return x.emit("Mod", *x.inputs(n), fmod=1)


@exports("not_equal")
def _not_equal(x: Exporter, n: Node) -> str:
    return x.emit("Not", x.emit("Equal", *x.inputs(n)))


@exports("rsqrt")
def _rsqrt(x: Exporter, n: Node) -> str:
    return x.emit("Reciprocal", x.emit("Sqrt", *x.inputs(n)))


@exports("square")
def _square(x: Exporter, n: Node) -> str:
    return x.emit("Mul", *x.inputs(n), *x.inputs(n))


@exports("silu")
def _silu(x: Exporter, n: Node) -> str:
    return x.emit("Mul", *x.inputs(n), x.emit("Sigmoid", *x.inputs(n)))


@exports("hardsigmoid")
def _hardsigmoid(x: Exporter, n: Node) -> str:
    return x.emit("HardSigmoid", *x.inputs(n), alpha=1 / 6, beta=0.5)


@exports("gelu")
def _gelu(x: Exporter, n: Node) -> str:
    return x.emit("Gelu", *x.inputs(n), approximate=n.attrs["approximate"])


@exports("leaky_relu")
def _leaky_relu(x: Exporter, n: Node) -> str:
    return x.emit("LeakyRelu", *x.inputs(n), alpha=float(n.attrs["alpha"]))


@exports("elu")
def _elu(x: Exporter, n: Node) -> str:
    alpha, scale, inner = (float(n.attrs[k]) for k in ("alpha", "scale", "input_scale"))
    if inner == 1 and scale == 1:
        return x.emit("Elu", *x.inputs(n), alpha=alpha)
    if inner == 1:
        return x.emit("Selu", *x.inputs(n), alpha=alpha, gamma=scale)
    if scale == 1 and abs(alpha * inner - 1) < 1e-6:
        return x.emit("Celu", *x.inputs(n), alpha=alpha)
    raise CannotExport(f"alpha {alpha}, scale {scale}, input_scale {inner}")


@exports("clip")
def _clip(x: Exporter, n: Node) -> str:
    t = n[0].type.dtype
    bounds = ["" if n.attrs[k] is None else x.scalar(n.attrs[k], t) for k in ("a_min", "a_max")]
    return x.emit("Clip", *x.inputs(n), *bounds)


def axes_of(n: Node, key: str = "axis") -> list[int] | None:
    """An attribute that is one axis, several, or None for all."""
    given: Any = n.attrs[key]
    rank = n.inputs[0].type.rank
    if given is None:
        return None
    return [a % rank for a in ((given,) if isinstance(given, int) else given)]


@exports(*_REDUCE)
def _reduce(x: Exporter, n: Node) -> str:
    data, source = x[n.inputs[0]], n.inputs[0].type.dtype
    if source.is_bool or n[0].type.dtype != source:
        data = x.emit("Cast", data, to=element_code(n[0].type.dtype))
    axes = axes_of(n)
    given = [] if axes is None else [x.ints(axes)]
    return x.emit(_REDUCE[n.op.name], data, *given, keepdims=int(n.attrs["keepdims"]))


@exports("variance")
def _variance(x: Exporter, n: Node) -> str:
    data, t = x[n.inputs[0]], n.inputs[0].type
    axes = axes_of(n) or list(range(t.rank))
    count = int(np.prod(static([t.shape[a] for a in axes], "what is reduced")))
    mean = x.emit("ReduceMean", data, x.ints(axes), keepdims=1)
    centred = x.emit("Sub", data, mean)
    spread = x.emit("ReduceMean", x.emit("Mul", centred, centred), x.ints(axes), keepdims=int(n.attrs["keepdims"]))
    correction = float(n.attrs["correction"])
    return spread if correction == 0 else x.emit("Mul", spread, x.scalar(count / (count - correction), t.dtype))


@exports("any", "all")
def _any(x: Exporter, n: Node) -> str:
    whole = x.emit("Cast", x[n.inputs[0]], to=element_code(F32))
    axes, op = axes_of(n), {"any": "ReduceMax", "all": "ReduceMin"}[n.op.name]
    given = [] if axes is None else [x.ints(axes)]
    reduced = x.emit(op, whole, *given, keepdims=int(n.attrs["keepdims"]))
    return x.emit("Cast", reduced, to=element_code(n[0].type.dtype))


@exports("argmax", "argmin")
def _arg(x: Exporter, n: Node) -> str:
    axes = axes_of(n)
    if axes is None or len(axes) != 1:
        raise CannotExport("a position in several axes")
    op = {"argmax": "ArgMax", "argmin": "ArgMin"}[n.op.name]
    return x.emit(op, *x.inputs(n), axis=axes[0], keepdims=int(n.attrs["keepdims"]))


@exports("cumsum")
def _cumsum(x: Exporter, n: Node) -> str:
    data = x[n.inputs[0]]
    if n[0].type.dtype != n.inputs[0].type.dtype:
        data = x.emit("Cast", data, to=element_code(n[0].type.dtype))
    return x.emit("CumSum", data, x.constant(np.asarray(n.attrs["axis"]), I64))


@exports("topk")
def _topk(x: Exporter, n: Node) -> list[str]:
    inputs = [*x.inputs(n), x.ints([n.attrs["k"]])]
    return x.emit_many("TopK", inputs, 2, axis=n.attrs["axis"], largest=int(n.attrs["largest"]))


# Moves


@exports("reshape", "flatten", "expand_dims", "squeeze")
def _reshape(x: Exporter, n: Node) -> str:
    return x.reshaped(x[n.inputs[0]], n.inputs[0].type, n[0].type.shape)


@exports("transpose")
def _transpose(x: Exporter, n: Node) -> str:
    rank = n[0].type.rank
    axes = n.attrs["axes"]
    order = range(rank)[::-1] if axes is None else [a % rank for a in axes]
    return x.emit("Transpose", *x.inputs(n), perm=list(order))


@exports("broadcast_to")
def _broadcast_to(x: Exporter, n: Node) -> str:
    source, target = n.inputs[0].type.shape, n[0].type.shape
    lead = len(target) - len(source)
    shape = [1 if i >= lead and source[i - lead] == d else d for i, d in enumerate(target)]
    return x.emit("Expand", *x.inputs(n), x.ints(static(shape, "the shape")))


@exports("concatenate")
def _concatenate(x: Exporter, n: Node) -> str:
    return x.emit("Concat", *x.inputs(n), axis=n.attrs["axis"] % n[0].type.rank)


@exports("split")
def _split(x: Exporter, n: Node) -> list[str]:
    axis = n.attrs["axis"] % n[0].type.rank
    sizes = static([e.type.shape[axis] for e in n.outputs], "sizes of parts")
    return x.emit_many("Split", [*x.inputs(n), x.ints(sizes)], len(sizes), axis=axis)


@exports("slice")
def _slice(x: Exporter, n: Node) -> str:
    shape, end = n.inputs[0].type.shape, n.attrs["end"]
    begin = static(n.attrs["begin"], "where the slice begins")
    ends = [np.iinfo(np.int64).max if e == d else e for e, d in zip(end, shape)]
    step = n.attrs["step"] or (1,) * len(begin)
    bounds = (begin, static(ends, "where the slice ends"), range(len(begin)), static(step, "the step"))
    return x.emit("Slice", *x.inputs(n), *(x.ints(list(b)) for b in bounds))


@exports("flip")
def _flip(x: Exporter, n: Node) -> str:
    axes = axes_of(n, "axes") or []
    ends = [np.iinfo(np.int64).min] * len(axes)
    bounds = ([-1] * len(axes), ends, axes, [-1] * len(axes))
    return x.emit("Slice", *x.inputs(n), *map(x.ints, bounds))


@exports("pad")
def _pad(x: Exporter, n: Node) -> str:
    width, mode = n.attrs["pad_width"], n.attrs["mode"]
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise CannotExport(f"mode {mode}")
    pads = [*static([w[0] for w in width], "padding"), *static([w[1] for w in width], "padding")]
    value = [x.scalar(n.attrs["value"], n[0].type.dtype)] if mode == "constant" else []
    return x.emit("Pad", *x.inputs(n), x.ints(pads), *value, mode=mode)


@exports("gather")
def _gather(x: Exporter, n: Node) -> str:
    index = x[n.inputs[1]]
    if n.inputs[1].type.dtype.name not in ("int32", "int64"):
        index = x.emit("Cast", index, to=element_code(I64))
    return x.emit("GatherElements", x[n.inputs[0]], index, axis=n.attrs["axis"])


@exports("one_hot")
def _one_hot(x: Exporter, n: Node) -> str:
    dtype = n[0].type.dtype
    values = x.constant(np.array([0, 1]), dtype)
    return x.emit("OneHot", *x.inputs(n), x.ints([n.attrs["depth"]]), values, axis=-1)


@exports("full", "zeros", "ones")
def _full(x: Exporter, n: Node) -> str:
    value = {"zeros": 0, "ones": 1}.get(n.op.name, n.attrs.get("value", 0))
    if isinstance(value, SymDim):
        raise CannotExport(f"the value {value} is symbolic")
    shape = x.ints(static(n[0].type.shape, "the shape"))
    return x.emit("Expand", x.scalar(value, n[0].type.dtype), shape)


@exports("arange")
def _arange(x: Exporter, n: Node) -> str:
    (count,) = static(n[0].type.shape, "the length")
    values = n.attrs["start"] + np.arange(count) * n.attrs["step"]
    if n[0].type.dtype.name == "bfloat16":
        raise CannotExport("bfloat16 values")
    return x.constant(values.astype(n[0].type.dtype.numpy), n[0].type.dtype)


@exports("tril", "triu")
def _trilu(x: Exporter, n: Node) -> str:
    (diagonal,) = static([n.attrs["k"]], "the diagonal")
    k = x.constant(np.asarray(diagonal), I64)
    return x.emit("Trilu", *x.inputs(n), k, upper=int(n.op.name == "triu"))
