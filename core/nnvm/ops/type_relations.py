"""What ops say about the types around them in every direction: the attribute ``type_relation``, family by family.

A relation states what `infer_type` demands of the inputs, and ranks and sizes of inputs that follow from the output;
graph/type_relation.py explains the terms. Relations of layers (convolutions, dense, norms) are in layer_relations.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnvm.dim import Dim, numel
from nnvm.dtype import BOOL, I64
from nnvm.graph import op as registry
from nnvm.graph.dim_solver import has_unknown
from nnvm.graph.layout import Layout
from nnvm.graph.type_relation import Relation, TypeRelation, Value
from nnvm.ops.shape_rules import resolve_axes, resolve_axis

__all__ = ["attach", "broadcast"]

Equations = Callable[[Relation], None]


def attach(
    names: str, equations: Equations, *, symbolic: bool | Callable[[Mapping[str, Any]], bool] = True,
    weak: Equations | None = None,
) -> None:  # fmt: skip
    """Gives the ops called `names` (separated by spaces) their relation."""
    for name in names.split():
        registry.get(name).set_attr("type_relation", TypeRelation(equations, symbolic, weak))


# Elementwise


def _unary(r: Relation) -> None:
    r.same_shape(*r.inputs[:1], *r.outputs)
    r.same_dtype(*r.inputs[:1], *r.outputs)


def _same_shape(r: Relation) -> None:
    """The output's dtype is another one, which infer_type knows."""
    r.same_shape(r.inputs[0], *r.outputs)


def _predicate(r: Relation) -> None:
    _same_shape(r)
    r.has_dtype(r.outputs[0], BOOL)


def _cast(r: Relation) -> None:
    _same_shape(r)
    r.has_dtype(r.outputs[0], r.attrs["dtype"])


def broadcast(r: Relation, out: Value, *values: Value) -> None:
    """`out` is what `values` broadcast to, as far as no guess is needed.

    An axis that is 1 on one side says nothing of the other; one that is missing or 1 everywhere else has the output's
    size; a size that cannot be 1 is that of the output. Unequal named sizes do not broadcast: they are equal.
    """
    ranks = [None if v.shape is None else len(v.shape) for v in values]
    known = [n for n in ranks if n is not None]
    if len(known) == len(values):
        r.rank(out, max(known))
    if out.shape is None:
        return
    rank = len(out.shape)
    if len(known) == len(values) - 1 and rank:
        first = out.shape[0]
        leading = [v.shape[0] for v in values if v.shape is not None and len(v.shape) == rank]
        if not leading or (all(d == 1 for d in leading) and first != 1 and not has_unknown(first)):
            r.rank(values[ranks.index(None)], rank)
    for axis in range(-rank, 0):
        _broadcast_axis(r, out, axis, [v for v in values if v.shape is None or len(v.shape) >= -axis])


def _broadcast_axis(r: Relation, out: Value, axis: int, values: list[Value]) -> None:
    assert out.shape is not None, "its rank is known"
    if any(v.shape is None for v in values):
        for v in values:
            if v.shape is not None and _is_full(v.shape[axis]):
                r.equal(v.shape[axis], out.shape[axis], f"axis {axis}", v, out)
        return
    sizes: list[tuple[Dim, Value]] = [(v.shape[axis], v) for v in values if v.shape is not None and v.shape[axis] != 1]
    total = out.shape[axis]
    if total == 1:
        for d, v in sizes:
            r.equal(d, 1, f"axis {axis}", v, out)
    elif len({d for d, _ in sizes}) == 1:
        r.equal(sizes[0][0], total, f"axis {axis}", sizes[0][1], out)
    elif not sizes:
        r.equal(1, total, f"axis {axis}", out, *values)
    else:
        for d, v in sizes:
            if _is_full(d):
                r.equal(d, total, f"axis {axis}", v, out, *(w for e, w in sizes if e != d))


def _is_full(d: Dim) -> bool:
    """Whether a size is known and is not taken to be 1."""
    return d != 1 and not has_unknown(d)


def _binary(r: Relation) -> None:
    r.same_dtype(*r.inputs, *r.outputs)
    broadcast(r, r.outputs[0], *r.inputs)


def _comparison(r: Relation) -> None:
    r.same_dtype(*r.inputs)
    r.has_dtype(r.outputs[0], BOOL)
    broadcast(r, r.outputs[0], *r.inputs)


def _where(r: Relation) -> None:
    r.has_dtype(r.inputs[0], BOOL)
    r.same_dtype(*r.inputs[1:], *r.outputs)
    broadcast(r, r.outputs[0], *r.inputs)


attach("exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh "
       "acosh atanh erf erfc lgamma polygamma sigmoid silu mish log_sigmoid hardsigmoid hardswish negative abs sign "
       "square relu floor ceil trunc round bitwise_not identity clip gelu elu leaky_relu softplus dropout",
       _unary)  # fmt: skip
attach("isnan isinf isfinite signbit logical_not", _predicate)
attach("cast bitcast", _cast)
attach("softmax log_softmax l2_normalize lrn flip roll tril triu", _unary)
attach("i0 i0e i1 i1e k0 k0e k1 k1e bessel_j0 bessel_j1 bessel_y0 bessel_y1 spherical_bessel_j0 erfcx log_ndtr ndtri "
       "erfinv logcumsumexp", _unary)  # fmt: skip
attach("cumsum cumprod argsort", _same_shape)
attach(
    "add subtract multiply divide floor_divide remainder trunc_divide fmod power maximum minimum fmax fmin atan2 "
    "hypot copysign bitwise_and bitwise_or bitwise_xor left_shift right_shift prelu",
    _binary,
    symbolic=False,
)
attach("equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor", _comparison,
       symbolic=False)  # fmt: skip
attach("where", _where, symbolic=False)


# Reductions


def _reduction(r: Relation) -> None:
    """Axes that are not reduced are the same on both sides; the output's rank tells the input's."""
    (x,), out = r.inputs, r.outputs[0]
    axis, keepdims = r.attrs["axis"], r.attrs["keepdims"]
    if keepdims:
        r.same_rank(x, out)
    elif axis is not None and x.shape is None and out.shape is not None:
        r.rank(x, len(out.shape) + (1 if isinstance(axis, int) else len(axis)))
    if x.shape is None:
        return
    rank = len(x.shape)
    axes = resolve_axes((axis,) if isinstance(axis, int) else axis, rank)
    kept = [a for a in range(rank) if a not in axes]
    r.rank(out, rank if keepdims else len(kept))
    assert out.shape is not None, "as it has a rank"
    for i, a in enumerate(kept):
        r.equal(x.shape[a], out.shape[a if keepdims else i], f"axis {a} of the data", x, out)


def _reduction_of_one_dtype(r: Relation) -> None:
    r.same_dtype(*r.inputs, *r.outputs)
    _reduction(r)


attach("mean max min variance logsumexp", _reduction_of_one_dtype)
attach("sum prod any all argmax argmin", _reduction)


# Movement of elements


def _transpose(r: Relation) -> None:
    (x,), out, axes = r.inputs, r.outputs[0], r.attrs["axes"]
    _one_dtype(r)
    rank = r.same_rank(x, out) if axes is None else len(axes)
    if rank is None:
        return
    source, target = r.rank(x, rank), r.rank(out, rank)
    order = range(rank)[::-1] if axes is None else [resolve_axis(a, rank) for a in axes]
    for i, a in enumerate(order):
        r.equal(source[a], target[i], f"axis {a} of the data", x, out)


def _one_dtype(r: Relation) -> None:
    r.same_dtype(r.inputs[0], *r.outputs)


def _same_elements(r: Relation) -> None:
    """Input and output have as many elements."""
    (x,), out = r.inputs, r.outputs[0]
    if x.shape is not None and out.shape is not None:
        r.equal(numel(x.shape), numel(out.shape), "elements", x, out)


def _reshape(r: Relation) -> None:
    shape = r.attrs["shape"]
    _one_dtype(r)
    found = r.rank(r.outputs[0], len(shape))
    for i, d in enumerate(shape):
        if d != -1:
            r.equal(found[i], d, f"axis {i} of the new shape", r.outputs[0])
    _same_elements(r)


def _expand_dims(r: Relation) -> None:
    (x,), out, more = r.inputs, r.outputs[0], r.attrs["num_newaxis"]
    _one_dtype(r)
    if x.shape is None and out.shape is not None and len(out.shape) >= more:
        r.rank(x, len(out.shape) - more)


def _squeeze(r: Relation) -> None:
    """Given axes have extent 1; the others keep theirs."""
    (x,), out, axes = r.inputs, r.outputs[0], r.attrs["axis"]
    _one_dtype(r)
    if axes is None:
        return
    if x.shape is None and out.shape is not None:
        r.rank(x, len(out.shape) + len(axes))
    if x.shape is None:
        return
    dropped = resolve_axes(axes, len(x.shape))
    for a in dropped:
        r.equal(x.shape[a], 1, f"axis {a}, which is dropped", x)
    r.has_shape(out, tuple(d for a, d in enumerate(x.shape) if a not in dropped), x)


def _flatten(r: Relation) -> None:
    _one_dtype(r)
    first = r.rank(r.outputs[0], 2)[0]
    x = r.inputs[0]
    if x.shape:
        r.equal(x.shape[0], first, "the first axis", x, r.outputs[0])
    _same_elements(r)


def _broadcast_to(r: Relation) -> None:
    _one_dtype(r)
    r.has_shape(r.outputs[0], r.attrs["shape"])


def _concatenate(r: Relation) -> None:
    """Axes other than the one along which all is joined are equal."""
    r.same_dtype(*r.inputs, *r.outputs)
    rank = r.same_rank(*r.inputs, *r.outputs)
    if rank is None:
        return
    axis = resolve_axis(r.attrs["axis"], rank)
    first = r.inputs[0]
    total: Dim = 0
    for v in (*r.inputs, *r.outputs):
        assert v.shape is not None and first.shape is not None, "as they have a rank"
        for a in range(rank):
            if a != axis:
                r.equal(v.shape[a], first.shape[a], f"axis {a} beside the joined one", v, first)
    for v in r.inputs:
        total = total + v.shape[axis] if v.shape is not None else total
    out = r.outputs[0]
    if out.shape is not None:
        r.equal(total, out.shape[axis], f"axis {axis}, the sum of the inputs'", *r.inputs, out)


def _interleave(r: Relation) -> None:
    """Axes along which elements do not take turns are equal."""
    r.same_dtype(*r.inputs, *r.outputs)
    if r.same_rank(*r.inputs, *r.outputs) is None:
        return
    first = r.inputs[0]
    for v in (*r.inputs, *r.outputs):
        assert v.shape is not None and first.shape is not None, "as they have a rank"
        for a in range(len(v.shape)):
            if a not in r.attrs["axes"]:
                r.equal(v.shape[a], first.shape[a], f"axis {a} beside the interleaved ones", v, first)


def _slice(r: Relation) -> None:
    """Axes that are taken as a whole are the same on both sides."""
    (x,), out = r.inputs, r.outputs[0]
    _one_dtype(r)
    if r.same_rank(x, out) is None:
        return
    assert x.shape is not None and out.shape is not None, "as they have a rank"
    begins, ends, steps = r.attrs["begin"], r.attrs["end"], r.attrs["step"]
    for a, (d, e) in enumerate(zip(x.shape, out.shape)):
        whole = a >= len(begins) or (begins[a] in (None, 0) and ends[a] is None)
        if whole and (steps is None or a >= len(steps) or steps[a] == 1):
            r.equal(d, e, f"axis {a}, which is taken as a whole", x, out)


def _pad(r: Relation) -> None:
    _one_dtype(r)
    rank = len(r.attrs["pad_width"])
    source, target = r.rank(r.inputs[0], rank), r.rank(r.outputs[0], rank)
    for a, (low, high) in enumerate(r.attrs["pad_width"]):
        r.equal(source[a] + low + high, target[a], f"axis {a} with its border", r.inputs[0], r.outputs[0])


def _repeat(r: Relation) -> None:
    _one_dtype(r)
    r.same_rank(r.inputs[0], r.outputs[0])


def _slice_scatter(r: Relation) -> None:
    data, src = r.inputs
    r.same_dtype(data, src, *r.outputs)
    r.same_shape(data, *r.outputs)
    rank = r.same_rank(data, src)
    if rank is None or data.shape is None or src.shape is None:
        return
    axis = resolve_axis(r.attrs["axis"], rank)
    for a in range(rank):
        if a != axis:
            r.equal(data.shape[a], src.shape[a], f"axis {a} beside the slice", data, src)


def _layout_transform(r: Relation) -> None:
    _one_dtype(r)
    r.rank(r.inputs[0], Layout.parse(r.attrs["src_layout"]).rank)
    r.rank(r.outputs[0], Layout.parse(r.attrs["dst_layout"]).rank)


attach("transpose", _transpose)
attach("reshape", _reshape, symbolic=False)
attach("expand_dims", _expand_dims)
attach("squeeze", _squeeze, symbolic=False)
attach("flatten", _flatten)
attach("broadcast_to", _broadcast_to, symbolic=False)
attach("concatenate", _concatenate)
attach("interleave", _interleave)
attach("slice", _slice, symbolic=False)
attach("pad", _pad)
attach("repeat", _repeat)
attach("slice_scatter", _slice_scatter, symbolic=False)
attach("layout_transform", _layout_transform)


# Indexing


def _take(r: Relation) -> None:
    """data[..., indices, ...]: two of the three ranks tell the third."""
    (data, indices), out = r.inputs, r.outputs[0]
    _one_dtype(r)
    if out.shape is None:
        return
    if data.shape is not None and indices.shape is None:
        r.rank(indices, len(out.shape) - len(data.shape) + 1)
    elif data.shape is None and indices.shape is not None:
        r.rank(data, len(out.shape) - len(indices.shape) + 1)


def _gather(r: Relation) -> None:
    data, index = r.inputs
    _one_dtype(r)
    r.same_shape(index, *r.outputs)
    r.same_rank(data, index)


def _scatter(r: Relation) -> None:
    data, index, src = r.inputs
    r.same_dtype(data, src, *r.outputs)
    r.same_shape(data, *r.outputs)
    r.same_rank(data, index, src)


def _index_put(r: Relation) -> None:
    data, values = r.inputs[:2]
    r.same_dtype(data, values, *r.outputs)
    r.same_shape(data, *r.outputs)


def _one_hot(r: Relation) -> None:
    (indices,), out = r.inputs, r.outputs[0]
    r.has_dtype(out, r.attrs["dtype"])
    if indices.shape is None and out.shape:
        r.rank(indices, len(out.shape) - 1)


def _indices_are_whole(r: Relation) -> None:
    """Indices are int64 where nothing else says what they are."""
    for v in r.inputs[1:2]:
        if v.dtype is None:
            r.has_dtype(v, I64)


def _sorted(r: Relation) -> None:
    values, order = r.outputs
    r.same_dtype(r.inputs[0], values)
    r.has_dtype(order, I64)
    r.same_shape(r.inputs[0], values, order)


def _topk(r: Relation) -> None:
    """All axes but the sorted one stay."""
    (x,), (values, order) = r.inputs, r.outputs
    r.same_dtype(x, values)
    r.has_dtype(order, I64)
    r.same_shape(values, order)
    r.same_rank(x, values)


attach("take", _take, weak=_indices_are_whole)
attach("gather", _gather, weak=_indices_are_whole)
attach("scatter", _scatter, symbolic=False, weak=_indices_are_whole)
attach("index", _one_dtype, symbolic=False)
attach("index_put", _index_put, symbolic=False)
attach("one_hot", _one_hot)
attach("sort cummax cummin", _sorted)
attach("topk", _topk)


def _polynomial(r: Relation) -> None:
    r.same_shape(*r.inputs, *r.outputs)
    r.same_dtype(r.inputs[0], *r.outputs)
    r.has_dtype(r.inputs[1], I64)


def _searched(r: Relation) -> None:
    r.same_dtype(*r.inputs)
    r.same_shape(r.inputs[1], *r.outputs)
    r.has_dtype(r.outputs[0], I64)


attach("nextafter", _binary)
attach("orthogonal_polynomial", _polynomial)
attach("searchsorted", _searched)
