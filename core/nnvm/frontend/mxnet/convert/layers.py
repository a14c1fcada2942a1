"""Layers: convolutions, pooling, products, normalisation, activations, losses as inference sees them."""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.frontend.mxnet.table import Context, Refused, axes_of, axis_of, cast, converts, emit, like, rows
from nnvm.graph import NodeEntry

__all__: list[str] = []

_LAYOUTS = (None, "None", "NCW", "NCHW", "NCDHW")


def _window(c: Context, x: NodeEntry) -> tuple[int, ...]:
    """The kernel; refuses what is no data of [N, C, space]."""
    kernel: tuple[int, ...] = c.attrs.integers("kernel")
    if not 1 <= len(kernel) <= 3 or x.type.rank != len(kernel) + 2:
        raise Refused(f"a kernel {kernel} on data of {x.type.rank} axes")
    c.attrs.choice("layout", _LAYOUTS, None)
    return kernel


def _each(c: Context, name: str, rank: int, default: int) -> tuple[int, ...]:
    """An attribute with a value for each spatial axis."""
    values = c.attrs.integers(name, None) or (default,) * rank
    if len(values) != rank or any(v is None for v in values):
        raise Refused(f"{name} {values} of {rank} axes")
    return tuple(values)


def _bias(c: Context, default: bool = False) -> list[NodeEntry]:
    return [] if c.attrs.flag("no_bias", default) else [c[2]]


@converts("Convolution", "Convolution_v1")
def _convolution(c: Context) -> NodeEntry:
    x, weight = c[0], c[1]
    kernel = _window(c, x)
    rank, groups = len(kernel), c.attrs.integer("num_group", 1)
    if weight.type.shape[0] != c.attrs.integer("num_filter") or weight.type.shape[2:] != kernel:
        raise Refused(f"a weight {weight.type} for {c.attrs.integer('num_filter')} filters of {kernel}")
    return emit(f"conv{rank}d", x, weight, *_bias(c), strides=_each(c, "stride", rank, 1),
                padding=tuple((p, p) for p in _each(c, "pad", rank, 0)), dilation=_each(c, "dilate", rank, 1),
                groups=groups)  # fmt: skip


@converts("Deconvolution")
def _deconvolution(c: Context) -> NodeEntry:
    x, weight = c[0], c[1]
    kernel = _window(c, x)
    rank = len(kernel)
    strides, dilation = _each(c, "stride", rank, 1), _each(c, "dilate", rank, 1)
    pads, adjust = _each(c, "pad", rank, 0), _each(c, "adj", rank, 0)
    wanted = c.attrs.integers("target_shape", None)
    if wanted and any(wanted):
        pads, adjust = _for_size(x, wanted, kernel, strides, dilation)
    return emit(f"conv{rank}d_transpose", x, weight, *_bias(c, True), strides=strides, dilation=dilation,
                padding=tuple((p, p) for p in pads), output_padding=adjust,
                groups=c.attrs.integer("num_group", 1))  # fmt: skip


def _for_size(x: NodeEntry, wanted: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
              dilation: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:  # fmt: skip
    """Padding and adjustment with which the result has the wanted size."""
    pads, adjust = [], []
    for n, w, k, s, d in zip(x.type.shape[2:], wanted, kernel, strides, dilation, strict=True):
        if not isinstance(n, int):
            raise Refused("target_shape on a symbolic axis")
        over = s * (n - 1) + (k - 1) * d + 1 - w
        if over < 0:
            raise Refused(f"target_shape {w} is larger than what {n} positions give")
        adjust.append(over % 2)
        pads.append((over + 1) // 2)
    return tuple(pads), tuple(adjust)


@converts("FullyConnected")
def _fully_connected(c: Context) -> NodeEntry:
    x, weight = c[0], c[1]
    if weight.type.shape[0] != c.attrs.integer("num_hidden"):
        raise Refused(f"a weight {weight.type} for {c.attrs.integer('num_hidden')} units")
    if c.attrs.flag("flatten", True) and x.type.rank != 2:
        x = rows(x)
    return emit("dense", x, weight, *_bias(c))


# pooling


@converts("Pooling", "Pooling_v1")
def _pooling(c: Context) -> NodeEntry:
    x = c[0]
    kind = c.attrs.choice("pool_type", ("max", "avg", "sum", "lp"), "max")
    c.attrs.choice("layout", _LAYOUTS, None)
    if c.attrs.flag("global_pool", False):
        axes = tuple(range(2, x.type.rank))
        return _pooled(c, kind, x, lambda v, how: emit(how, v, axis=axes, keepdims=True))
    kernel = _window(c, x)
    rank = len(kernel)
    strides, pads = _each(c, "stride", rank, 1), _each(c, "pad", rank, 0)
    full = c.attrs.choice("pooling_convention", ("valid", "full"), "valid") == "full"
    if full:
        _check_last_windows(x, kernel, strides, pads)
    common = {"pool_size": kernel, "strides": strides, "padding": tuple((p, p) for p in pads), "ceil_mode": full}
    if kind == "avg":
        counted = c.attrs.flag("count_include_pad", True)
        return emit(f"avg_pool{rank}d", x, **common, count_include_pad=counted)
    return _pooled(c, kind, x, lambda v, how: emit(f"max_pool{rank}d", v, **common) if how == "max" else
                   emit(f"avg_pool{rank}d", v, **common, divisor_override=1))  # fmt: skip


def _pooled(c: Context, kind: str, x: NodeEntry, pool: object) -> NodeEntry:
    """`pool` takes (data, max, mean or sum)."""
    assert callable(pool)
    if kind != "lp":
        out: NodeEntry = pool(x, {"avg": "mean"}.get(kind, kind))
        return out
    p = c.attrs.integer("p_value", 2)
    if p not in (1, 2, 3):
        raise Refused(f"p_value={p}")
    size = emit("abs", x)
    total: NodeEntry = pool(size if p == 1 else emit("power", size, like(p, x)), "sum")
    return total if p == 1 else emit("power", total, like(1 / p, x))


def _check_last_windows(x: NodeEntry, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]) -> None:
    """Refuses windows that begin behind the data and its padding in front: here they would be left out."""
    for n, k, s, p in zip(x.type.shape[2:], kernel, strides, pads):
        if not isinstance(n, int):
            if s > k - p:
                raise Refused("pooling_convention='full' on a symbolic axis with such strides")
        elif -(-(n + 2 * p - k) // s) * s >= n + p:
            raise Refused("pooling_convention='full' with a window that holds nothing but padding")


@converts("_contrib_AdaptiveAvgPooling2D", "AdaptiveAvgPooling2D")
def _adaptive(c: Context) -> NodeEntry:
    size = c.attrs.integers("output_size", None) or (1, 1)
    return emit("adaptive_avg_pool2d", c[0], output_size=size if len(size) == 2 else size * 2)


@converts("UpSampling")
def _upsampling(c: Context) -> NodeEntry:
    x, scale = c[0], c.attrs.integer("scale")
    if scale < 1:
        raise Refused(f"scale={scale}")
    if c.attrs.choice("sample_type", ("nearest", "bilinear")) == "bilinear":
        size = 2 * scale - scale % 2
        pad = (scale - 1 + 1) // 2
        if c[1].type.shape[2:] != (size, size):
            raise Refused(f"a weight {c[1].type} for scale={scale}")
        return emit("conv2d_transpose", x, c[1], strides=(scale, scale), padding=((pad, pad),) * 2,
                    groups=x.type.shape[1])  # fmt: skip
    count = c.attrs.integer("num_args", 1)
    parts = []
    for part in c.inputs[:count]:
        times = [a * scale // b if isinstance(a, int) and isinstance(b, int) else scale
                 for a, b in zip(x.type.shape[2:], part.type.shape[2:])]  # fmt: skip
        for axis, n in enumerate(times, 2):
            part = emit("repeat", part, repeats=n, axis=axis)
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    if c.attrs.choice("multi_input_mode", ("concat", "sum"), "concat") == "concat":
        return emit("concatenate", *parts, axis=1)
    total = parts[0]
    for part in parts[1:]:
        total = emit("add", total, part)
    return total


@converts("_contrib_BilinearResize2D", "BilinearResize2D")
def _resize(c: Context) -> NodeEntry:
    c.attrs.choice("mode", ("size",), "size")
    size = (c.attrs.integer("height", 1), c.attrs.integer("width", 1))
    if c.has(1) or min(size) < 1:
        raise Refused("a size that is not given by height and width")
    return emit("resize", c[0], size=size, mode="linear", align_corners=c.attrs.flag("align_corners", True))


# activations

_ACTIVATIONS = {"relu": "relu", "sigmoid": "sigmoid", "tanh": "tanh", "log_sigmoid": "log_sigmoid", "mish": "mish"}


@converts("Activation")
def _activation(c: Context) -> NodeEntry:
    kind = c.attrs.choice("act_type", (*_ACTIVATIONS, "softrelu", "softsign"))
    if kind == "softrelu":
        return emit("softplus", c[0], beta=1.0, threshold=20.0)
    if kind == "softsign":
        return emit("divide", c[0], emit("add", emit("abs", c[0]), like(1, c[0])))
    return emit(_ACTIVATIONS[kind], c[0])


@converts("LeakyReLU")
def _leaky_relu(c: Context) -> NodeEntry:
    x, slope = c[0], c.attrs.number("slope", 0.25)
    kind = c.attrs.choice("act_type", ("leaky", "elu", "prelu", "rrelu", "selu", "gelu"), "leaky")
    if kind == "leaky":
        return emit("leaky_relu", x, alpha=slope)
    if kind == "elu":
        return emit("elu", x, alpha=slope)
    if kind == "selu":
        return emit("elu", x, alpha=1.6732632423543772, scale=1.0507009873554805)
    if kind == "gelu":
        return emit("gelu", x)
    if kind == "rrelu":  # the mean of the slopes that training draws
        low, high = c.attrs.number("lower_bound", 0.125), c.attrs.number("upper_bound", 0.334)
        return emit("leaky_relu", x, alpha=(low + high) / 2)
    gamma = c[1]
    if gamma.type.numel == 1:
        gamma = emit("reshape", gamma, shape=(1,) * x.type.rank)
    elif gamma.type.rank == 1:
        gamma = emit("reshape", gamma, shape=(1, gamma.type.shape[0], *(1,) * (x.type.rank - 2)))
    return emit("where", emit("less", x, like(0, x)), emit("multiply", x, gamma), x)


@converts("softmax", "log_softmax", "softmin")
def _softmax(c: Context) -> NodeEntry:
    x, axis, heat = c[0], axis_of(c.attrs.integer("axis", -1), c[0].type.rank), c.attrs.number("temperature", None)
    if c.attrs.flag("use_length", False):
        raise Refused("use_length")
    x = emit("negative", x) if c.op == "softmin" else x
    x = x if heat in (None, 1.0) else emit("divide", x, like(heat, x))
    return emit("log_softmax" if c.op == "log_softmax" else "softmax", x, axis=axis)


@converts("SoftmaxActivation")
def _softmax_activation(c: Context) -> NodeEntry:
    if c.attrs.choice("mode", ("instance", "channel"), "instance") == "channel":
        return emit("softmax", c[0], axis=1)
    return _over_the_rest(c[0])


@converts("SoftmaxOutput", "Softmax")
def _softmax_output(c: Context) -> NodeEntry:
    x = c[0]
    if c.attrs.flag("multi_output", False):
        return emit("softmax", x, axis=1)
    return emit("softmax", x, axis=x.type.rank - 1) if c.attrs.flag("preserve_shape", False) else _over_the_rest(x)


def _over_the_rest(x: NodeEntry) -> NodeEntry:
    """Softmax over all axes but the first."""
    if x.type.rank == 2:
        return emit("softmax", x, axis=1)
    flat = emit("softmax", rows(x), axis=1)
    return emit("reshape", flat, shape=x.type.shape)


# normalisation


@converts("BatchNorm", "BatchNorm_v1", "CuDNNBatchNorm", "_contrib_SyncBatchNorm")
def _batch_norm(c: Context) -> NodeEntry:
    """By the moving statistics."""
    x, axis = c[0], axis_of(c.attrs.integer("axis", 1), c[0].type.rank)
    gamma, beta, mean, spread = (cast(c[i], x.type.dtype) for i in range(1, 5))
    return emit("batch_norm", x, gamma, beta, mean, spread, axis=axis, epsilon=c.attrs.number("eps", 1e-3),
                scale=not c.attrs.flag("fix_gamma", True))  # fmt: skip


@converts("InstanceNorm")
def _instance_norm(c: Context) -> NodeEntry:
    return emit("instance_norm", c[0], c[1], c[2], eps=c.attrs.number("eps", 1e-3))


@converts("LayerNorm")
def _layer_norm(c: Context) -> NodeEntry:
    x = c[0]
    rank = x.type.rank
    axis, eps = axis_of(c.attrs.integer("axis", -1), rank), c.attrs.number("eps", 1e-5)
    if axis == rank - 1:
        return emit("layer_norm", x, c[1], c[2], axis=axis, eps=eps)
    order = (*(a for a in range(rank) if a != axis), axis)
    y = emit("layer_norm", emit("transpose", x, axes=order), c[1], c[2], axis=rank - 1, eps=eps)
    return emit("transpose", y, axes=tuple(order.index(a) for a in range(rank)))


@converts("GroupNorm")
def _group_norm(c: Context) -> NodeEntry:
    x, groups = c[0], c.attrs.integer("num_groups", 1)
    channels = x.type.shape[1]
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        raise Refused(f"{groups} groups of {channels} channels")
    given = [emit("repeat", v, repeats=channels // groups, axis=0) if v.type.shape == (groups,) != (channels,) else v
             for v in (c[1], c[2])]  # fmt: skip
    return emit("group_norm", x, *given, num_groups=groups, eps=c.attrs.number("eps", 1e-5))


@converts("L2Normalization")
def _l2_normalization(c: Context) -> NodeEntry:
    x, mode = c[0], c.attrs.choice("mode", ("instance", "channel", "spatial"), "instance")
    axes = {"instance": (1,) if x.type.rank == 2 else tuple(range(1, x.type.rank)), "channel": (1,),
            "spatial": tuple(range(2, x.type.rank))}[mode]  # fmt: skip
    total = emit("sum", emit("square", x), axis=axes_of(axes, x.type.rank), keepdims=True)
    return emit("divide", x, emit("sqrt", emit("add", total, like(c.attrs.number("eps", 1e-10), x))))


@converts("LRN")
def _lrn(c: Context) -> NodeEntry:
    size = c.attrs.integer("nsize")
    if size < 1 or size % 2 == 0:
        raise Refused(f"nsize={size}, which is not odd")
    return emit("lrn", c[0], size=size, axis=1, alpha=c.attrs.number("alpha", 1e-4), beta=c.attrs.number("beta", 0.75),
                bias=c.attrs.number("knorm", 2.0))  # fmt: skip
