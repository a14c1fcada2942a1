"""A second, independent meaning of the graph operators: each in terms of PyTorch, node by node.

Converters are tested with it without the compiler: what an imported graph means must be what eager gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from nnvm.dim import evaluate
from nnvm.graph import Graph, Node
from nnvm_torch.runner import Runner
from nnvm_torch.tensors import HANDLE, constant_tensor, torch_dtype

Attrs = Mapping[str, Any]
OPS: dict[str, Callable[..., Any]] = {}


def run_graph(graph: Graph, inputs: Sequence[torch.Tensor], env: Mapping[str, int]) -> list[torch.Tensor]:
    """The graph's outputs, contiguous."""
    values: dict[Node, Sequence[torch.Tensor]] = {v: (t,) for v, t in zip(graph.inputs, inputs)}
    for node in graph.nodes:
        if node.is_variable:
            continue
        if node.is_constant:
            values[node] = (constant_tensor(node.attrs["value"], node[0].type),)
            continue
        args = [values[e.node][e.index] for e in node.inputs]
        attrs = {k: _sized(v, env) for k, v in node.attrs.items()}
        host = node.op.attr("host_call")
        out = host(node.attrs)(env, *args) if host else OPS[node.op.name](attrs, *args)
        values[node] = out if isinstance(out, (tuple, list)) else (out,)
        for t, e in zip(values[node], node.outputs):
            if e.type.dtype is not HANDLE:
                assert t.dtype == torch_dtype(e.type.dtype), (node, t.dtype)
                assert tuple(t.shape) == tuple(evaluate(d, env) for d in e.type.shape), (node, t.shape)
    return [values[e.node][e.index] for e in graph.outputs]


class ReferenceRunner(Runner):
    """A `Runner` that evaluates the graph with PyTorch instead of compiled code."""

    def __init__(self, imported: Any) -> None:
        super().__init__(imported, None)

    def __call__(self, args: list[Any]) -> Any:
        imported = self.imported
        env = imported.sizes_in(args)
        inputs = [args[p] if p >= 0 else imported.constants[-1 - p] for p in imported.positions]
        for v, t in zip(imported.graph.inputs, inputs):
            for d, n in zip(v[0].type.shape, t.shape):
                if str(d).isidentifier():
                    env.setdefault(str(d), n)
        outputs = []
        for t, strides in zip(run_graph(imported.graph, inputs, env), imported.strides):
            if strides is None:
                outputs.append(t.clone(memory_format=torch.contiguous_format))
            else:
                want = [evaluate(s, env) for s in strides]
                outputs.append(torch.empty_strided(t.shape, want, dtype=t.dtype).copy_(t))
        for position, take in self.writes:
            args[position].copy_(take(args, outputs, env))
        return [take(args, outputs, env) for take in self.takers]


def _sized(value: Any, env: Mapping[str, int]) -> Any:
    """Attributes with symbolic sizes replaced by their values."""
    if isinstance(value, tuple):
        return tuple(_sized(v, env) for v in value)
    return evaluate(value, env) if type(value).__name__ == "SymDim" else value


def _op(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        OPS.update(dict.fromkeys(names, fn))
        return fn

    return decorate


def _call(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda attrs, *inputs: fn(*inputs)


_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2",
    "expm1", "floor", "isfinite", "isinf", "isnan", "lgamma", "log", "log10", "log1p", "log2", "logical_not",
    "negative", "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sign", "signbit", "sin", "sinh", "sqrt", "square",
    "tan", "tanh", "trunc", "bitwise_not",
)  # fmt: skip
OPS.update({n: _call(getattr(torch, n)) for n in _UNARY})
OPS.update({n: _call(getattr(F, n)) for n in ("silu", "hardswish", "hardsigmoid", "mish")})
_BINARY = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "true_divide", "floor_divide": "floor_divide",
    "remainder": "remainder", "fmod": "fmod", "power": "pow", "maximum": "maximum", "minimum": "minimum",
    "fmax": "fmax", "fmin": "fmin", "atan2": "atan2", "hypot": "hypot", "copysign": "copysign",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
    "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or", "bitwise_xor": "bitwise_xor",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "equal": "eq", "not_equal": "ne",
    "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
}  # fmt: skip
OPS.update({n: _call(getattr(torch, t)) for n, t in _BINARY.items()})

OPS["polygamma"] = lambda a, x: torch.polygamma(a["n"], x)
OPS["identity"] = lambda a, x: x.clone()
OPS["cast"] = lambda a, x: x.to(torch_dtype(a["dtype"]))
OPS["clip"] = lambda a, x: torch.clamp(x, a["a_min"], a["a_max"])
OPS["gelu"] = lambda a, x: F.gelu(x, approximate=a["approximate"])
OPS["leaky_relu"] = lambda a, x: F.leaky_relu(x, a["alpha"])
OPS["softplus"] = lambda a, x: F.softplus(x, a["beta"], a["threshold"])
OPS["log_sigmoid"] = lambda a, x: F.logsigmoid(x)
OPS["elu"] = lambda a, x: torch.ops.aten.elu(x, a["alpha"], a["scale"], a["input_scale"])
OPS["prelu"] = lambda a, x, w: torch.where(x > 0, x, x * w)
OPS["trunc_divide"] = lambda a, x, y: torch.div(x, y, rounding_mode="trunc")
OPS["where"] = lambda a, c, x, y: torch.where(c, x, y)
OPS["full"] = lambda a: torch.full(a["shape"], a["value"], dtype=torch_dtype(a["dtype"]))


@_op("arange")
def _arange(a: Attrs) -> torch.Tensor:
    wide = torch.float64 if a["dtype"].is_float else torch.int64
    return (torch.arange(a["length"], dtype=wide) * a["step"] + a["start"]).to(torch_dtype(a["dtype"]))


def _axes(a: Attrs, x: torch.Tensor) -> Any:
    return list(range(x.dim())) if a["axis"] is None else list(a["axis"])


def _over(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda a, x: fn(x, _axes(a, x), keepdim=a["keepdims"]) if _axes(a, x) else x.clone()


OPS["mean"] = _over(torch.mean)
OPS["max"], OPS["min"] = _over(torch.amax), _over(torch.amin)
OPS["any"], OPS["all"] = _over(torch.any), _over(torch.all)
OPS["logsumexp"] = _over(torch.logsumexp)


@_op("sum")
def _sum(a: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    t = x.dtype if a["dtype"] is None else torch_dtype(a["dtype"])
    return torch.sum(x, _axes(a, x), keepdim=a["keepdims"], dtype=t) if _axes(a, x) else x.to(t, copy=True)


OPS["argmax"] = lambda a, x: torch.argmax(x, a["axis"], a["keepdims"])
OPS["argmin"] = lambda a, x: torch.argmin(x, a["axis"], a["keepdims"])
OPS["variance"] = lambda a, x: torch.var(x, _axes(a, x), correction=a["correction"], keepdim=a["keepdims"])
OPS["cumsum"] = lambda a, x: torch.cumsum(x, a["axis"], dtype=x.dtype)
OPS["cumprod"] = lambda a, x: torch.cumprod(x, a["axis"], dtype=x.dtype)


@_op("prod")
def _prod(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    for axis in sorted(_axes(a, x), reverse=True):
        x = torch.prod(x, axis, keepdim=a["keepdims"], dtype=x.dtype)
    return x


OPS["reshape"] = lambda a, x: x.reshape(a["shape"])
OPS["transpose"] = lambda a, x: x.permute(a["axes"])
OPS["broadcast_to"] = lambda a, x: x.expand(a["shape"])
OPS["concatenate"] = lambda a, *xs: torch.cat(xs, a["axis"])
OPS["slice"] = lambda a, x: x[tuple(slice(*t) for t in zip(a["begin"], a["end"], a["step"]))]
OPS["flip"] = lambda a, x: torch.flip(x, a["axes"])
OPS["roll"] = lambda a, x: torch.roll(x, a["shifts"], a["axes"])
OPS["tril"] = lambda a, x: torch.tril(x, a["k"])
OPS["triu"] = lambda a, x: torch.triu(x, a["k"])


@_op("pad")
def _pad(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    pads = [p for pair in reversed(a["pad_width"]) for p in pair]
    if a["mode"] == "constant":
        return F.pad(x, pads, value=a["value"])
    while pads and pads[-2:] == [0, 0]:
        pads = pads[:-2]
    lead = x.dim() - len(pads) // 2
    kind = {"reflect": "reflect", "edge": "replicate"}[a["mode"]]
    flat = x.reshape(1, -1, *x.shape[lead:])
    out = F.pad(flat, pads, mode=kind)
    return out.reshape(*x.shape[:lead], *out.shape[2:])


@_op("slice_scatter")
def _slice_scatter(a: Attrs, x: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return torch.slice_scatter(x, src, a["axis"], a["start"], a["end"], a["step"])


@_op("take")
def _take(a: Attrs, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    n, axis = x.shape[a["axis"]], a["axis"]
    if a["mode"] == "clip":
        index = index.clamp(0, n - 1)
    if a["mode"] == "wrap":
        index = torch.where(index < 0, index + n, index)
    out = torch.index_select(x, axis, index.reshape(-1))
    return out.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


OPS["gather"] = lambda a, x, i: torch.gather(x, a["axis"], i)


def _indexer(axes: Sequence[int], indices: Sequence[torch.Tensor], rank: int) -> Any:
    given = dict(zip(axes, indices))
    return [given.get(d) for d in range(max(axes) + 1)]


@_op("index")
def _index(a: Attrs, x: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.index(x, _indexer(a["axes"], indices, x.dim()))


@_op("index_put")
def _index_put(a: Attrs, x: torch.Tensor, values: torch.Tensor, *indices: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.index_put(x, _indexer(a["axes"], indices, x.dim()), values, a["accumulate"])


@_op("scatter")
def _scatter(a: Attrs, x: torch.Tensor, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    if a["reduce"] == "none":
        return torch.scatter(x, a["axis"], index, src)
    name = {"add": "sum"}.get(a["reduce"], a["reduce"])
    return torch.scatter_reduce(x, a["axis"], index, src, name, include_self=a["include_self"])


OPS["topk"] = lambda a, x: torch.topk(x, a["k"], a["axis"], a["largest"])
OPS["sort"] = lambda a, x: torch.sort(x, dim=a["axis"], descending=a["descending"], stable=True)
OPS["searchsorted"] = lambda a, edges, x: torch.searchsorted(edges, x, right=a["right"])
OPS["cummax"] = lambda a, x: torch.cummax(x, a["axis"])
OPS["cummin"] = lambda a, x: torch.cummin(x, a["axis"])
OPS["logcumsumexp"] = lambda a, x: torch.logcumsumexp(x, a["axis"])
OPS["dense"] = lambda a, x, w, b=None: F.linear(x, w, b)
OPS["softmax"] = lambda a, x: torch.softmax(x, a["axis"])
OPS["log_softmax"] = lambda a, x: torch.log_softmax(x, a["axis"])


@_op("matmul")
def _matmul(a: Attrs, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.transpose(-1, -2) if a["transpose_a"] else x
    return torch.matmul(x, y.transpose(-1, -2) if a["transpose_b"] else y)


def _padding(a: Attrs) -> list[int]:
    assert all(lo == hi for lo, hi in a["padding"])
    return [lo for lo, _ in a["padding"]]


def _conv(n: int, transposed: bool) -> Callable[..., torch.Tensor]:
    def run(a: Attrs, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        if not transposed:
            x = F.pad(x, [d for low_high in reversed(a["padding"]) for d in low_high])
            return torch.convolution(x, w, b, a["strides"], [0] * n, a["dilation"], False, [0] * n, a["groups"])
        extra = a["output_padding"]
        return torch.convolution(x, w, b, a["strides"], _padding(a), a["dilation"], True, extra, a["groups"])

    return run


def _pool(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, x: fn(x, a["pool_size"], a["strides"], _padding(a), a["dilation"], a["ceil_mode"])


def _avg(n: int) -> Callable[..., torch.Tensor]:
    def run(a: Attrs, x: torch.Tensor) -> torch.Tensor:
        args = a["pool_size"], a["strides"], _padding(a), a["ceil_mode"], a["count_include_pad"]
        if n == 1:
            return F.avg_pool1d(x, *args)
        return (F.avg_pool2d, F.avg_pool3d)[n - 2](x, *args, a["divisor_override"])

    return run


def _adaptive(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, x: fn(x, a["output_size"])


for _d in (1, 2, 3):
    OPS[f"conv{_d}d"], OPS[f"conv{_d}d_transpose"] = _conv(_d, False), _conv(_d, True)
    OPS[f"max_pool{_d}d"] = _pool(getattr(F, f"max_pool{_d}d"))
    OPS[f"max_pool{_d}d_with_indices"] = _pool(getattr(F, f"max_pool{_d}d_with_indices"))
    OPS[f"avg_pool{_d}d"] = _avg(_d)
    for _kind in ("avg", "max"):
        OPS[f"adaptive_{_kind}_pool{_d}d"] = _adaptive(getattr(F, f"adaptive_{_kind}_pool{_d}d"))


@_op("layer_norm")
def _layer_norm(a: Attrs, x: torch.Tensor, g: Any = None, b: Any = None) -> torch.Tensor:
    shape = x.shape[a["axis"] :]
    return F.layer_norm(x, shape, None if g is None else g.expand(shape), b, a["eps"])


@_op("rms_norm")
def _rms_norm(a: Attrs, x: torch.Tensor, g: Any = None) -> torch.Tensor:
    return F.rms_norm(x, x.shape[a["axis"] :], g, a["eps"])


OPS["group_norm"] = lambda a, x, g=None, b=None: F.group_norm(x, a["num_groups"], g, b, a["eps"])
OPS["batch_norm"] = lambda a, x, g, b, m, v: F.batch_norm(x, m, v, g, b, False, 0.0, a["epsilon"])


@_op("attention")
def _attention(a: Attrs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=a["causal"], scale=a["scale"])


@_op("upsampling", "resize")
def _upsampling(a: Attrs, x: torch.Tensor) -> torch.Tensor:
    n, size, scales = x.dim() - 2, a["size"], a["scales"] or (None,) * (x.dim() - 2)
    if a["mode"] in ("nearest", "nearest_exact"):
        prefix = "upsample_nearest" if a["mode"] == "nearest" else "_upsample_nearest_exact"
        return getattr(torch.ops.aten, f"{prefix}{n}d")(x, size, *scales)
    name = {("linear", 1): "linear1d", ("linear", 2): "bilinear2d", ("linear", 3): "trilinear3d",
            ("cubic", 2): "bicubic2d"}[a["mode"], n]  # fmt: skip
    return getattr(torch.ops.aten, f"upsample_{name}")(x, size, a["align_corners"], *scales)


@_op("recurrent")
def _recurrent(
    a: Attrs, gates: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor, *more: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    size, (h, c) = hidden.shape[1], (hidden, more[0] if more else None)
    outputs = []
    for x in reversed(gates) if a["reverse"] else gates:
        product = h @ weight.t()
        if a["kind"] == "gru":
            r, z = (x[:, : 2 * size] + product[:, : 2 * size]).sigmoid().chunk(2, 1)
            new = (x[:, 2 * size :] + r * (product[:, 2 * size :] + (0 if c is None else c))).tanh()
            h = (1 - z) * new + z * h
        elif a["kind"] == "lstm":
            i, f, g, o = (x + product).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        else:
            h = (x + product).tanh() if a["kind"] == "rnn_tanh" else (x + product).relu()
        outputs.append(h)
    outputs = outputs[::-1] if a["reverse"] else outputs
    return (torch.stack(outputs), h, *((c,) if a["kind"] == "lstm" else ()))
