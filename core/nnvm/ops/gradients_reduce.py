"""Gradients of reductions, running sums and products, and sorting."""

from __future__ import annotations

from nnvm.dim import numel
from nnvm.ops.gradient_terms import Call, Value, gradient_of, zeros
from nnvm.ops.shape_rules import known, reduced_shape, resolve_axes, resolve_axis

__all__: list[str] = []


def _axes(call: Call) -> tuple[int, ...]:
    return resolve_axes(call.attrs["axis"], call.inputs[0].rank)


def _kept(call: Call, v: Value) -> Value:
    """A reduced value with its reduced axes as extents of 1."""
    return v.reshape(*reduced_shape(call.inputs[0].shape, _axes(call), True))


@gradient_of("sum")
def _sum(call: Call, g: Value) -> Value:
    (x,) = call.inputs
    return _kept(call, g).cast(x.dtype).broadcast_to(x.shape)


@gradient_of("mean")
def _mean(call: Call, g: Value) -> Value:
    (x,) = call.inputs
    count = numel(tuple(x.shape[a] for a in _axes(call)))
    g = _kept(call, g)
    if isinstance(count, int):
        return (g / count).broadcast_to(x.shape)
    return g / (zeros(x) + 1).sum(_axes(call), keepdims=True).broadcast_to(x.shape)


@gradient_of("max", "min")
def _extreme(call: Call, g: Value) -> Value:
    (x,), axes = call.inputs, _axes(call)
    best = x.op("equal", _kept(call, call.out)).op("cast", dtype=x.dtype)
    return best * (_kept(call, g) / best.sum(axes, keepdims=True))


@gradient_of("prod")
def _prod(call: Call, g: Value) -> Value:
    """By the product of all other elements, from running products of both directions: right with zeros."""
    (x,), axes = call.inputs, _axes(call)
    kept = [a for a in range(x.rank) if a not in axes]
    order = (*kept, *axes)
    rows = x.transpose(*order)
    flat = rows.reshape(*rows.shape[: len(kept)], numel(rows.shape[len(kept) :]))
    others = _before(flat) * _before(flat.op("flip", axes=(-1,))).op("flip", axes=(-1,))
    back = tuple(order.index(a) for a in range(x.rank))
    return _kept(call, g).cast(x.dtype) * others.reshape(*rows.shape).transpose(*back)


def _before(x: Value) -> Value:
    """Along the last axis, the product of all elements before each."""
    last = x.rank - 1
    shifted = x.op("pad", pad_width=((0, 0),) * last + ((1, -1),), value=1.0)
    return shifted.op("cumprod", axis=last)


@gradient_of("variance")
def _variance(call: Call, g: Value) -> Value:
    (x,), axes = call.inputs, _axes(call)
    centred = x - x.mean(axes, keepdims=True)
    count = known(numel(tuple(x.shape[a] for a in axes)))
    free = max(0.0, count - call.attrs["correction"])
    return centred * (_kept(call, g) * (2 / free if free else float("nan")))


@gradient_of("logsumexp")
def _logsumexp(call: Call, g: Value) -> Value:
    return _kept(call, g) * (call.inputs[0] - _kept(call, call.out)).op("exp")


def _reversed_sum(g: Value, axis: int) -> Value:
    return g.op("flip", axes=(axis,)).op("cumsum", axis=axis).op("flip", axes=(axis,))


@gradient_of("cumsum")
def _cumsum(call: Call, g: Value) -> Value:
    (x,) = call.inputs
    return _reversed_sum(g, resolve_axis(call.attrs["axis"], g.rank)).cast(x.dtype) if g.rank else g


@gradient_of("cumprod")
def _cumprod(call: Call, g: Value) -> Value:
    """Sum over j >= k of g[j] times the product of all x[i], i <= j, i != k. As a matrix, so that zeros are right."""
    (x,) = call.inputs
    if not x.rank:
        return g
    axis = resolve_axis(call.attrs["axis"], x.rank)
    order = (*(a for a in range(x.rank) if a != axis), axis)
    back = tuple(order.index(a) for a in range(x.rank))
    row, head = x.transpose(*order), g.cast(x.dtype).transpose(*order)
    n, lead = row.shape[-1], row.shape[:-1]
    square = row.reshape(*lead, 1, n).broadcast_to((*lead, n, n))
    ones = zeros(square) + 1
    # entry [k, j] is the product of x[i] for k < i <= j
    after = (square.op("triu", k=1) + ones.op("tril")).op("cumprod", axis=x.rank).op("triu")
    total = (after * head.reshape(*lead, 1, n)).sum((x.rank,))
    return (_before(row) * total).transpose(*back)


@gradient_of("sort", "topk")
def _sort(call: Call, g: Value) -> Value:
    (x,) = call.inputs
    if not x.rank:
        return g
    return zeros(x).op("scatter", Value(call.node[1]), g, axis=call.attrs["axis"], reduce="add")
