"""How layers are written in ONNX."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nnvm.dtype import BOOL, F32
from nnvm.frontend.onnx.export import CannotExport, Exporter, exports
from nnvm.frontend.onnx.export_rules import static
from nnvm.frontend.onnx.protos import element_code
from nnvm.graph import Node
from nnvm.graph.types import TensorType

__all__: list[str] = []


def _usual(n: Node, **wanted: str) -> None:
    """CannotExport where a layout is not ONNX's."""
    rank = n.inputs[0].type.rank
    for key, start in wanted.items():
        layout = n.attrs.get(key)
        if layout is not None and str(layout) != start + "DHW"[5 - rank :]:
            raise CannotExport(f"{key} {layout}")


def _pads(n: Node) -> list[int]:
    padding = n.attrs["padding"]
    return [*static([p[0] for p in padding], "padding"), *static([p[1] for p in padding], "padding")]


@exports("conv1d", "conv2d", "conv3d")
def _conv(x: Exporter, n: Node) -> str:
    _usual(n, data_layout="NC", kernel_layout="OI", out_layout="NC")
    a = n.attrs
    return x.emit("Conv", *x.inputs(n), strides=a["strides"], pads=_pads(n), dilations=a["dilation"],
                  group=a["groups"])  # fmt: skip


@exports("conv1d_transpose", "conv2d_transpose", "conv3d_transpose")
def _conv_transpose(x: Exporter, n: Node) -> str:
    _usual(n, data_layout="NC", kernel_layout="IO", out_layout="NC")
    a = n.attrs
    return x.emit("ConvTranspose", *x.inputs(n), strides=a["strides"], pads=_pads(n), dilations=a["dilation"],
                  group=a["groups"], output_padding=a["output_padding"])  # fmt: skip


@exports("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
def _pool(x: Exporter, n: Node) -> str:
    _usual(n, layout="NC")
    a = n.attrs
    common = {"kernel_shape": a["pool_size"], "strides": a["strides"] or a["pool_size"], "pads": _pads(n),
              "ceil_mode": int(a["ceil_mode"])}  # fmt: skip
    if n.op.name.startswith("max"):
        return x.emit("MaxPool", *x.inputs(n), **common, dilations=a["dilation"])
    if a["divisor_override"] is None:
        return x.emit("AveragePool", *x.inputs(n), **common, count_include_pad=int(a["count_include_pad"]))
    if a["ceil_mode"]:
        raise CannotExport("divisor_override with windows that overhang")
    mean = x.emit("AveragePool", *x.inputs(n), **common, count_include_pad=1)
    return x.emit("Mul", mean, x.scalar(math.prod(a["pool_size"]) / a["divisor_override"], n[0].type.dtype))


@exports(*(f"global_{kind}_pool{r}d" for kind in ("avg", "max") for r in (1, 2, 3)))
def _global_pool(x: Exporter, n: Node) -> str:
    _usual(n, layout="NC")
    return x.emit("GlobalAveragePool" if "_avg_" in n.op.name else "GlobalMaxPool", *x.inputs(n))


@exports(*(f"adaptive_{kind}_pool{r}d" for kind in ("avg", "max") for r in (1, 2, 3)))
def _adaptive_pool(x: Exporter, n: Node) -> str:
    _usual(n, layout="NC")
    average = "_avg_" in n.op.name
    before, after = n.inputs[0].type.shape[2:], n[0].type.shape[2:]
    if all(d == 1 for d in after):
        return x.emit("GlobalAveragePool" if average else "GlobalMaxPool", *x.inputs(n))
    sizes, outs = static(before, "data"), static(after, "the result")
    if any(s % o for s, o in zip(sizes, outs)):
        raise CannotExport(f"{sizes} positions pooled to {outs}, in windows of different sizes")
    window = [s // o for s, o in zip(sizes, outs)]
    return x.emit("AveragePool" if average else "MaxPool", *x.inputs(n), kernel_shape=window, strides=window)


@exports("dense")
def _dense(x: Exporter, n: Node) -> str:
    if str(n.attrs["kernel_layout"]) != "NK":
        raise CannotExport(f"kernel_layout {n.attrs['kernel_layout']}")
    data, weight, *bias = x.inputs(n)
    if n.inputs[0].type.rank == 2:
        return x.emit("Gemm", data, weight, *bias, transB=1)
    out = x.emit("MatMul", data, x.emit("Transpose", weight, perm=[1, 0]))
    return x.emit("Add", out, bias[0]) if bias else out


@exports("matmul")
def _matmul(x: Exporter, n: Node) -> str:
    parts = []
    for name, e, turned in zip(x.inputs(n), n.inputs, (n.attrs["transpose_a"], n.attrs["transpose_b"])):
        r = e.type.rank
        parts.append(x.emit("Transpose", name, perm=[*range(r - 2), r - 1, r - 2]) if turned else name)
    return x.emit("MatMul", *parts)


@exports("batch_norm")
def _batch_norm(x: Exporter, n: Node) -> str:
    t = n.inputs[0].type
    if n.attrs["axis"] % t.rank != 1:
        raise CannotExport(f"axis {n.attrs['axis']}")
    data, gamma, beta, mean, variance = x.inputs(n)
    channels = static(t.shape[1:2], "the number of channels")
    gamma = gamma if n.attrs["scale"] else x.constant(np.ones(channels), t.dtype)
    beta = beta if n.attrs["center"] else x.constant(np.zeros(channels), t.dtype)
    return x.emit("BatchNormalization", data, gamma, beta, mean, variance, epsilon=float(n.attrs["epsilon"]))


def _affine(x: Exporter, n: Node, shape: Sequence[int]) -> list[str]:
    """Scale and shift of a norm: ones and zeros where it has none."""
    given, t = x.inputs(n)[1:], n.inputs[0].type.dtype
    if t.name == "bfloat16" and len(given) < 2:
        raise CannotExport("a norm of bfloat16 values without scale and shift")
    fills = [np.ones(shape), np.zeros(shape)]
    return [*given, *(x.constant(f, t) for f in fills[len(given) :])]


@exports("layer_norm")
def _layer_norm(x: Exporter, n: Node) -> str:
    t = n.inputs[0].type
    axis = n.attrs["axis"] % t.rank
    affine = _affine(x, n, static(t.shape[axis:], "what is normalised"))
    return x.emit("LayerNormalization", x[n.inputs[0]], *affine, axis=axis, epsilon=float(n.attrs["eps"]))


@exports("group_norm")
def _group_norm(x: Exporter, n: Node) -> str:
    affine = _affine(x, n, static(n.inputs[0].type.shape[1:2], "the number of channels"))
    return x.emit("GroupNormalization", x[n.inputs[0]], *affine, num_groups=n.attrs["num_groups"],
                  epsilon=float(n.attrs["eps"]))  # fmt: skip


@exports("instance_norm")
def _instance_norm(x: Exporter, n: Node) -> str:
    affine = _affine(x, n, static(n.inputs[0].type.shape[1:2], "the number of channels"))
    return x.emit("InstanceNormalization", x[n.inputs[0]], *affine, epsilon=float(n.attrs["eps"]))


@exports("rms_norm")
def _rms_norm(x: Exporter, n: Node) -> str:
    data, *gamma = x.inputs(n)
    t = n.inputs[0].type
    axes = list(range(n.attrs["axis"] % t.rank, t.rank))
    wide = x.emit("Cast", data, to=element_code(F32)) if t.dtype.is_half else data
    at = F32 if t.dtype.is_half else t.dtype
    mean = x.emit("ReduceMean", x.emit("Mul", wide, wide), x.ints(axes), keepdims=1)
    size = x.emit("Sqrt", x.emit("Add", mean, x.scalar(n.attrs["eps"], at)))
    out = x.emit("Div", wide, size)
    out = x.emit("Cast", out, to=element_code(t.dtype)) if t.dtype.is_half else out
    return x.emit("Mul", out, gamma[0]) if gamma else out


@exports("softmax", "log_softmax")
def _softmax(x: Exporter, n: Node) -> str:
    return x.emit("Softmax" if n.op.name == "softmax" else "LogSoftmax", *x.inputs(n), axis=n.attrs["axis"])


@exports("lrn")
def _lrn(x: Exporter, n: Node) -> str:
    a = n.attrs
    if a["axis"] % n[0].type.rank != 1:
        raise CannotExport(f"axis {a['axis']}")
    return x.emit("LRN", *x.inputs(n), size=a["size"], alpha=float(a["alpha"]), beta=float(a["beta"]),
                  bias=float(a["bias"]))  # fmt: skip


@exports("prelu_channels")
def _prelu_channels(x: Exporter, n: Node) -> str:
    data, alpha = n.inputs
    rank, axis = data.type.rank, n.attrs["axis"] % data.type.rank
    shape = [1] * (rank - axis)
    shape[0] = static(alpha.type.shape, "slopes")[0]
    return x.emit("PRelu", x[data], x.emit("Reshape", x[alpha], x.ints(shape)))


@exports("attention")
def _attention(x: Exporter, n: Node) -> str:
    """In its steps; a row that may attend to nothing gives zeros."""
    q, k, v, *mask = x.inputs(n)
    types = [e.type for e in n.inputs]
    if n.attrs["groups"] != 1:
        k, v = (_repeated(x, name, t, n.attrs["groups"]) for name, t in ((k, types[1]), (v, types[2])))
    r, t = types[1].rank, types[0].dtype
    scale = n.attrs["scale"]
    if scale is None:
        scale = 1 / math.sqrt(static(types[0].shape[-1:], "the size of a head")[0])
    turned = x.emit("Transpose", k, perm=[*range(r - 2), r - 1, r - 2])
    scores = x.emit("MatMul", x.emit("Mul", q, x.scalar(scale, t)), turned)
    keep = []
    if n.attrs["causal"]:
        rows, columns = static((types[0].shape[-2], types[1].shape[-2]), "the number of positions")
        keep.append(x.constant(np.tri(rows, columns, dtype=bool), BOOL))
    if mask and types[3].dtype.is_bool:
        keep.append(mask[0])
    elif mask:
        scores = x.emit("Add", scores, mask[0])
    for seen in keep:
        scores = x.emit("Where", seen, scores, x.scalar(-3e4 if t.bits == 16 else -3e38, t))
    share = x.emit("Softmax", scores, axis=-1)
    for seen in keep:
        share = x.emit("Where", seen, share, x.scalar(0, t))
    return x.emit("MatMul", share, v)


def _repeated(x: Exporter, name: str, t: TensorType, count: int) -> str:
    """Each head `count` times."""
    lead, heads, last = t.shape[:-3], t.shape[-3], t.shape[-2:]
    apart = x.reshaped(name, t, (*lead, heads, 1, *last))
    target = (*lead, heads, count, *last)
    wide = x.emit("Expand", apart, x.ints([d if isinstance(d, int) else 1 for d in target]))
    return x.reshaped(wide, TensorType(target, t.dtype), (*lead, heads * count, *last))


@exports("resize")
def _resize(x: Exporter, n: Node) -> str:
    a, rank = n.attrs, n.inputs[0].type.rank
    _usual(n, layout="NC")
    mode = a["mode"]
    kind = "nearest" if mode.startswith("nearest") else mode
    at = "asymmetric" if kind == "nearest" else "align_corners" if a["align_corners"] else "pytorch_half_pixel"
    how = "floor"
    if mode == "nearest_exact":  # the middle of each position, halves up
        at, how = "half_pixel", "round_prefer_ceil"
    attrs = {"mode": kind, "coordinate_transformation_mode": at, "nearest_mode": how}
    if kind == "cubic":
        attrs["cubic_coeff_a"] = -0.75
    if a["scales"] is not None:
        scales = x.constant(np.array([1, 1, *a["scales"]]), F32)
        return x.emit("Resize", *x.inputs(n), "", scales, **attrs)
    sizes = static(n[0].type.shape[2:], "the size")
    return x.emit("Resize", *x.inputs(n), "", "", x.ints(sizes), **attrs, axes=list(range(2, rank)))


#: ONNX's names of the cells of ``recurrent``, and where ONNX has its gates.
CELLS = {
    "lstm": ("LSTM", (0, 2, 3, 1)), "gru": ("GRU", (1, 0, 2)), "rnn_tanh": ("RNN", (0,)), "rnn_relu": ("RNN", (0,)),
}  # fmt: skip


@exports("recurrent")
def _recurrent(x: Exporter, n: Node) -> list[str]:
    """The products with the input's weight, a dense layer before, are part of ONNX's layer; runtimes drop what is left
    of it where nobody else reads it."""
    a, dense = n.attrs, n.inputs[0].node
    if a["block"]:
        raise CannotExport("a packed weight")
    if dense.op.name != "dense" or str(dense.attrs["kernel_layout"]) != "NK":
        raise CannotExport("gates that are no product with the input's weight")
    (size,) = static(n.inputs[2].type.shape[1:], "the hidden state")
    op, place = CELLS[a["kind"]]
    rows = x.ints([place.index(p) * size + j for p in range(len(place)) for j in range(size)])
    dtype = n[0].type.dtype
    data, weight, *bias = x.inputs(dense)
    own, hidden, *more = x.inputs(n)[1:]
    axis = x.ints([0])

    def ordered(parameter: str) -> str:
        return x.emit("Unsqueeze", x.emit("Gather", parameter, rows, axis=0), axis)

    of_state = x.constant(np.zeros((1, (len(place) - bool(more and op == "GRU")) * size)), dtype)
    if op == "GRU" and more:
        of_state = x.emit("Concat", of_state, x.emit("Unsqueeze", more[0], axis), axis=1)
    of_input = ordered(bias[0]) if bias else x.constant(np.zeros((1, len(place) * size)), dtype)
    states = [x.emit("Unsqueeze", s, axis) for s in (hidden, *(more if op == "LSTM" else ()))]
    outputs = x.emit_many(
        op, [data, ordered(weight), ordered(own), x.emit("Concat", of_input, of_state, axis=1), "", *states],
        3 if op == "LSTM" else 2, hidden_size=size, direction="reverse" if a["reverse"] else "forward",
        linear_before_reset=1 if op == "GRU" else None, activations=["Relu"] if a["kind"] == "rnn_relu" else None,
    )  # fmt: skip
    return [x.emit("Squeeze", outputs[0], x.ints([1])), *(x.emit("Squeeze", s, axis) for s in outputs[1:])]
