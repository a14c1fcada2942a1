"""What layers say about the types around them: products, convolutions, pooling, norms, attention.

Their weights' shapes follow from the data's and the data's from the output's, as far as no size is rounded on the way.
"""

from __future__ import annotations

from nnvm.dim import Dim
from nnvm.graph.layout import Layout
from nnvm.graph.type_relation import Relation, Value
from nnvm.ops.nn_conv import SPATIAL
from nnvm.ops.recurrent_nest import GATES
from nnvm.ops.shape_rules import reduced_shape, resolve_axes, resolve_axis
from nnvm.ops.type_relations import attach

__all__: list[str] = []


def _dense(r: Relation) -> None:
    """data [..., K], weight [N, K] (packed: [N/p, K, p]), bias [N] -> [..., N]."""
    data, weight, *bias = r.inputs
    (out,) = r.outputs
    r.same_dtype(data, weight, out)
    packed = r.attrs["kernel_layout"] != "NK"
    columns, features = r.rank(weight, 3 if packed else 2)[:2]
    units: Dim | None = r.attrs["units"] if packed else columns
    for b in bias:
        (size,) = r.rank(b, 1)
        if units is not None:
            r.equal(size, units, "units", b, weight)
    r.same_rank(data, out)
    if data.shape is None or out.shape is None:
        return
    r.equal(data.shape[-1], features, "features", data, weight)
    for axis, (before, after) in enumerate(zip(data.shape[:-1], out.shape[:-1])):
        r.equal(before, after, f"axis {axis} of the data", data, out)
    if units is not None:
        r.equal(out.shape[-1], units, "units", out, weight)


def _matmul(r: Relation) -> None:
    """a [..., M, K], b [..., K, N] -> [..., M, N], leading axes broadcast."""
    (a, b), out = r.inputs, r.outputs[0]
    r.same_dtype(a, b, out)
    _product_ranks(r, a, b, out)
    rows, inner = (-1, -2) if r.attrs["transpose_a"] else (-2, -1)
    inner_b, columns = (-1, -2) if r.attrs["transpose_b"] else (-2, -1)
    if a.shape is not None and b.shape is not None:
        r.equal(a.shape[inner], b.shape[inner_b], "columns against rows", a, b)
    if out.shape is None:
        return
    for v, axis, at in ((a, rows, -2), (b, columns, -1)):
        if v.shape is not None:
            r.equal(v.shape[axis], out.shape[at], "rows" if at == -2 else "columns", v, out)
    if a.shape is not None and b.shape is not None and len(a.shape) == len(b.shape) == len(out.shape):
        for axis, sizes in enumerate(zip(a.shape[:-2], b.shape[:-2], out.shape[:-2])):
            _batch_axis(r, axis, sizes, (a, b, out))


def _product_ranks(r: Relation, a: Value, b: Value, out: Value) -> None:
    if a.shape is not None and b.shape is not None:
        r.rank(out, max(len(a.shape), len(b.shape)))
        return
    for v, other in ((a, b), (b, a)):
        known = out.shape is not None and (len(out.shape) == 2 or (other.shape and len(other.shape) < len(out.shape)))
        if v.shape is None and known and out.shape is not None:
            r.rank(v, len(out.shape))


def _batch_axis(r: Relation, axis: int, sizes: tuple[Dim, Dim, Dim], values: tuple[Value, Value, Value]) -> None:
    """One leading axis: where one operand is 1 the other has the output's size, and where both are equal."""
    a, b, total = sizes
    if a in (1, b) or b == 1 or total == 1:
        for d in (b if a == 1 else a,) if total != 1 else (a, b):
            r.equal(d, total, f"axis {axis} of the batch", *values)


def _convolution(spatial: str, transposed: bool) -> None:
    rank = len(spatial)

    def equations(r: Relation) -> None:
        data, weight, *bias = r.inputs
        (out,) = r.outputs
        r.same_dtype(data, weight, out)
        names = ("data_layout", "kernel_layout", "out_layout")
        layouts = [Layout.parse(r.attrs[k] or r.attrs["data_layout"]) for k in names]
        x, w, y = (_sizes(r, v, layout) for v, layout in zip((data, weight, out), layouts))
        groups: int = r.attrs["groups"]
        r.equal(x["N"], y["N"], "batch", data, out)
        if transposed:
            r.equal(x["C"], w["I"], "input channels", data, weight)
            channels: Dim = w["O"] * groups
        else:
            r.equal(x["C"], w["I"] * groups, "input channels", data, weight)
            channels = w["O"]
        if r.attrs["channels"] is None:
            r.equal(y["C"], channels, "output channels", out, weight)
        for b in bias:
            _bias(r, b, r.attrs["channels"] or channels, weight)

    suffix = "_transpose" if transposed else ""
    attach(f"conv{rank}d{suffix}", equations, weak=_weights_like_data)


def _sizes(r: Relation, value: Value, layout: Layout) -> dict[str, Dim]:
    """Sizes of the plain axes of a value in a layout; its blocks have their extents."""
    shape = r.rank(value, layout.rank)
    for position, axis in enumerate(layout.axes):
        if axis.block is not None:
            r.equal(shape[position], axis.block, f"the block {axis.name.lower()} of layout {layout}", value)
    shape = value.shape or shape
    return {a.name: d * layout.block(a.name) for a, d in zip(layout.axes, shape) if a.block is None}


def _bias(r: Relation, bias: Value, channels: Dim, weight: Value) -> None:
    """One element a channel; a bias in the blocks of the output is checked by infer_type alone."""
    if bias.shape is None or len(bias.shape) == 1:
        r.equal(r.rank(bias, 1)[0], channels, "channels", bias, weight)


def _pooling(r: Relation) -> None:
    """Batch and channels stay; spatial extents follow through infer_type."""
    x, *_ = r.inputs
    r.same_dtype(x, r.outputs[0])
    layout = Layout.parse(r.attrs["layout"])
    for out in r.outputs:
        source, target = r.rank(x, layout.rank), r.rank(out, layout.rank)
        for position, axis in enumerate(layout.axes):
            if axis.name in "NC":
                r.equal(source[position], target[position], f"axis {position} of the data", x, out)


def _resize(r: Relation) -> None:
    r.same_dtype(r.inputs[0], *r.outputs)
    rank = len(r.attrs["size"]) + 2 if r.attrs["layout"] is None else Layout.parse(r.attrs["layout"]).rank
    for v in (r.inputs[0], r.outputs[0]):
        r.rank(v, rank)


def _row_norm(r: Relation) -> None:
    """gamma and beta have the shape of the axes normalised over, which end with the last."""
    data, *affine = r.inputs
    r.same_shape(data, *r.outputs)
    r.same_dtype(data, *r.outputs)
    if data.shape is not None:
        rows = data.shape[resolve_axis(r.attrs["axis"], len(data.shape)) :]
        for v in affine:
            r.has_shape(v, rows, data)


def _row_norm_grad(r: Relation) -> None:
    """The incoming gradient is like the data, gamma like the axes normalised over; the statistics keep these as 1."""
    grad, data, mean, scale, *gamma = r.inputs
    r.same_shape(grad, data, *r.outputs)
    r.same_dtype(data, *r.outputs)
    r.same_shape(mean, scale)
    if data.shape is not None:
        first = resolve_axis(r.attrs["axis"], len(data.shape))
        r.has_shape(mean, (*data.shape[:first], *(1 for _ in data.shape[first:])), data)
        for v in gamma:
            r.has_shape(v, data.shape[first:], data)


def _norm_sums(r: Relation) -> None:
    """The incoming gradient is like the data; the mean and the sums keep the axes summed over as 1."""
    grad, data, mean = r.inputs
    r.same_shape(grad, data)
    r.same_shape(mean, *r.outputs)
    r.same_dtype(data, *r.outputs)
    if data.shape is not None:
        r.has_shape(mean, reduced_shape(data.shape, resolve_axes(r.attrs["axis"], len(data.shape)), True), data)


def _channel_norm(r: Relation) -> None:
    data, *affine = r.inputs
    r.same_shape(data, *r.outputs)
    r.same_dtype(data, *r.outputs)
    _per_channel(r, data, affine, 1)


def _batch_norm(r: Relation) -> None:
    data, *weights = r.inputs
    r.same_shape(data, *r.outputs)
    r.same_dtype(data, *r.outputs)
    _per_channel(r, data, weights, r.attrs["axis"])


def _per_channel(r: Relation, data: Value, weights: list[Value], axis: int) -> None:
    """Weights have one element per step of an axis of the data."""
    for v in weights:
        (channels,) = r.rank(v, 1)
        if data.shape is not None:
            r.equal(data.shape[resolve_axis(axis, len(data.shape))], channels, "channels", data, v)
        else:
            r.equal(weights[0].shape[0] if weights[0].shape else channels, channels, "channels", weights[0], v)


def _weights_like_data(r: Relation) -> None:
    """Weights have the data's dtype where nothing else says what they have (a bias, the weights of a norm)."""
    dtype = r.inputs[0].dtype
    for v in r.inputs[1:]:
        if v.dtype is None and dtype is not None:
            r.has_dtype(v, dtype)


def _attention(r: Relation) -> None:
    """q [..., H, S, E], k [..., H/groups, T, E], v [..., H/groups, T, D] -> [..., H, S, D]."""
    q, k, v = r.inputs[:3]
    (out,) = r.outputs
    r.same_dtype(q, k, v, out)
    rank = r.same_rank(q, k, v, out)
    if rank is None or q.shape is None or k.shape is None or v.shape is None or out.shape is None or rank < 2:
        return
    r.equal(q.shape[-1], k.shape[-1], "head size", q, k)
    r.equal(k.shape[-2], v.shape[-2], "keys and values", k, v)
    r.equal(q.shape[-2], out.shape[-2], "queries", q, out)
    r.equal(v.shape[-1], out.shape[-1], "size of values", v, out)
    for axis in range(rank - 2):
        r.equal(k.shape[axis], v.shape[axis], f"axis {axis}", k, v)
        times = r.attrs["groups"] if axis == rank - 3 else 1
        r.equal(q.shape[axis], k.shape[axis] * times, f"axis {axis}", q, k)
        r.equal(q.shape[axis], out.shape[axis], f"axis {axis}", q, out)


def _recurrent(r: Relation) -> None:
    """gates [T, N, G H], weight [G H, H] (packed: [H/p, H, G, p]), states [N, H] (of a gru a bias [H]) -> [T, N, H]."""
    gates, weight, hidden, *more = r.inputs
    out, *last = r.outputs
    r.same_dtype(*r.inputs, *r.outputs)
    r.same_shape(hidden, *last, *(more if r.attrs["kind"] == "lstm" else ()))
    steps, batch, columns = r.rank(gates, 3)
    rows, size = r.rank(hidden, 2)
    r.has_shape(out, (steps, rows, size), hidden)
    r.equal(batch, rows, "rows", gates, hidden)
    r.equal(columns, size * GATES[r.attrs["kind"]], "columns", gates, hidden)
    if r.attrs["block"] == 0:
        r.has_shape(weight, (columns, size), gates)
    if r.attrs["kind"] == "gru":
        for bias in more:
            r.has_shape(bias, (size,), hidden)


def _im2col(r: Relation) -> None:
    r.same_dtype(r.inputs[0], *r.outputs)
    r.rank(r.inputs[0], len(r.attrs["kernel_size"]) + 2)
    r.rank(r.outputs[0], 3)


def _col2im(r: Relation) -> None:
    r.same_dtype(r.inputs[0], *r.outputs)
    r.rank(r.inputs[0], 3)
    r.rank(r.outputs[0], len(r.attrs["output_size"]) + 2)


attach("dense", _dense, symbolic=False, weak=_weights_like_data)
attach("matmul", _matmul, symbolic=False)
for _rank in (1, 2, 3):
    _convolution(SPATIAL[_rank], False)
    _convolution(SPATIAL[_rank], True)
    for _name in ("max_pool{}d", "max_pool{}d_with_indices", "avg_pool{}d", "adaptive_avg_pool{}d",
                  "adaptive_max_pool{}d", "global_avg_pool{}d", "global_max_pool{}d"):  # fmt: skip
        # how many windows there are in ceil_mode depends on where the last one starts
        attach(_name.format(_rank), _pooling, symbolic=lambda attrs: not attrs.get("ceil_mode"))
attach("resize", _resize)
attach("layer_norm rms_norm", _row_norm, symbolic=False, weak=_weights_like_data)
attach("row_norm_grad", _row_norm_grad, symbolic=False)
attach("norm_sums", _norm_sums, symbolic=False)
attach("group_norm instance_norm", _channel_norm, symbolic=False, weak=_weights_like_data)
attach("batch_norm", _batch_norm, symbolic=False, weak=_weights_like_data)
attach("recurrent", _recurrent, symbolic=False)
attach("attention", _attention, symbolic=False)
attach("im2col", _im2col)
attach("col2im", _col2im)
