"""Normalisations. Their statistics are further outputs, computed only where training wants them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from nnvm.dim import Dim, Shape, numel
from nnvm.dtype import F64
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Unsupported, Value, converts

__all__: list[str] = []


def _affine(c: Context, x: NodeEntry, weight: NodeEntry | None, bias: NodeEntry | None) -> list[NodeEntry]:
    """Scale and shift as inputs of an op that has both optional: a shift alone comes with a scale of one."""
    t = x.type.dtype
    if weight is None and bias is not None:
        weight = c.full(bias.type.shape, 1, t)
    return [c.cast(p, t) for p in (weight, bias) if p is not None]


def _statistics(
    c: Context, x: NodeEntry, axes: tuple[int, ...], eps: float, wide: bool = False
) -> tuple[NodeEntry, NodeEntry]:
    """Mean and 1 / sqrt(variance + eps) over `axes`, kept as extent 1; `wide`: the mean is summed in float64."""
    x = c.compute(x)
    if wide:  # the sum widens each element itself: a cast of its own would be stored by what computes x
        total = c.op("sum", x, axis=axes, keepdims=True, dtype=F64)
        count = numel(tuple(x.type.shape[a] for a in axes))
        number = c.const(count, F64) if isinstance(count, int) else c.cast(c.dim_value(count), F64)
        mean = c.cast(c.op("divide", total, number), x.type.dtype)
    else:
        mean = c.op("mean", x, axis=axes, keepdims=True)
    variance = c.op("variance", x, axis=axes, correction=0.0, keepdims=True)
    return mean, c.op("rsqrt", c.op("add", variance, c.const(eps, x.type.dtype)))


def _as(c: Context, x: NodeEntry, index: int) -> NodeEntry:
    t = c.outs[index]
    return c.cast(c.reshape(x, t.shape), t.dtype)


@converts("native_layer_norm.default")
def _layer_norm(c: Context, x: NodeEntry, shape: Sequence[Dim], weight: NodeEntry | None, bias: NodeEntry | None,
                eps: float) -> Value:  # fmt: skip
    axis = x.type.rank - len(shape)
    if not (c.used[1] or c.used[2]):
        return c.op("layer_norm", x, *_affine(c, x, weight, bias), axis=axis, eps=eps), None, None
    mean, rstd = _statistics(c, x, tuple(range(axis, x.type.rank)), eps)
    out = _standardised(c, x, mean, rstd)
    if weight is not None:
        out = c.op("multiply", out, c.cast(weight, out.type.dtype))
    if bias is not None:
        out = c.op("add", out, c.cast(bias, out.type.dtype))
    return c.cast(out, x.type.dtype), _as(c, mean, 1), _as(c, rstd, 2)


def _standardised(c: Context, x: NodeEntry, mean: NodeEntry, rstd: NodeEntry) -> NodeEntry:
    return c.op("multiply", c.op("subtract", c.compute(x), mean), rstd)


@converts("native_layer_norm_backward.default")
def _layer_norm_backward(c: Context, grad: NodeEntry, x: NodeEntry, shape: Sequence[Dim], mean: NodeEntry,
                         rstd: NodeEntry, weight: NodeEntry | None, bias: NodeEntry | None,
                         mask: Sequence[bool]) -> Value:  # fmt: skip
    axis = x.type.rank - len(shape)
    wide, g = c.compute(x), c.compute(grad)
    t = wide.type.dtype
    kept = (*x.type.shape[:axis], *(1 for _ in shape))
    mean, rstd = (c.cast(c.reshape(s, kept), t) for s in (mean, rstd))
    out: list[NodeEntry | None] = [None, None, None]
    if mask[0]:
        gamma = () if weight is None else (c.cast(weight, t),)
        out[0] = c.cast(c.op("row_norm_grad", g, wide, mean, rstd, *gamma, axis=axis), c.outs[0].dtype)
    rows = tuple(range(axis))
    if mask[1] and weight is not None:
        out[1] = _as(c, _summed(c, c.op("multiply", g, _standardised(c, wide, mean, rstd)), rows), 1)
    if mask[2] and bias is not None:
        out[2] = _as(c, _summed(c, g, rows), 2)
    return tuple(out)


def _summed(c: Context, x: NodeEntry, axes: tuple[int, ...]) -> NodeEntry:
    return c.op("sum", x, axis=axes, keepdims=False) if axes else x


@converts("_fused_rms_norm.default")
def _rms_norm(c: Context, x: NodeEntry, shape: Sequence[Dim], weight: NodeEntry | None, eps: float | None) -> Value:
    axis = x.type.rank - len(shape)
    if eps is None:
        eps = torch.finfo(c.args[0].dtype).eps
    if c.used[1]:
        raise Unsupported("the statistics of rms_norm")
    return c.op("rms_norm", x, *_affine(c, x, weight, None), axis=axis, eps=eps), None


@converts("native_group_norm.default")
def _group_norm(c: Context, x: NodeEntry, weight: NodeEntry | None, bias: NodeEntry | None, n: Dim, channels: Dim,
                size: Dim, groups: int, eps: float) -> Value:  # fmt: skip
    out = c.op("group_norm", x, *_affine(c, x, weight, bias), num_groups=groups, eps=eps)
    if not (c.used[1] or c.used[2]):
        return out, None, None
    rows = c.reshape(x, (n, groups, channels // groups * size))
    mean, rstd = _statistics(c, rows, (2,), eps)
    return out, _as(c, mean, 1), _as(c, rstd, 2)


@converts("_native_batch_norm_legit_no_training.default")
def _batch_norm(c: Context, x: NodeEntry, weight: NodeEntry | None, bias: NodeEntry | None, mean: NodeEntry,
                variance: NodeEntry, momentum: float, eps: float) -> Value:  # fmt: skip
    return _inference(c, x, weight, bias, mean, variance, eps), *_nothing(c, 1, 2)


def _nothing(c: Context, *indices: int) -> list[NodeEntry | None]:
    """Results that have no elements in evaluation, as those of eager have not."""
    return [c.full(t.shape, 0, t.dtype) if c.used[i] and 0 in t.shape else None for i, t in enumerate(c.outs)
            if i in indices]  # fmt: skip


def _inference(c: Context, x: NodeEntry, weight: NodeEntry | None, bias: NodeEntry | None, mean: NodeEntry,
               variance: NodeEntry, eps: float) -> NodeEntry:  # fmt: skip
    ones: Shape = mean.type.shape
    t = x.type.dtype
    scale = c.full(ones, 1, t) if weight is None else c.cast(weight, t)
    shift = c.full(ones, 0, t) if bias is None else c.cast(bias, t)
    return c.op("batch_norm", x, scale, shift, c.cast(mean, t), c.cast(variance, t), axis=1, epsilon=eps)


def _training(c: Context, x: NodeEntry, weight: NodeEntry | None, bias: NodeEntry | None,
              eps: float) -> tuple[NodeEntry, NodeEntry, NodeEntry, NodeEntry]:  # fmt: skip
    """(result, mean, 1 / sqrt(variance + eps), variance) of normalisation by the batch's own statistics."""
    wide = c.compute(x)
    t = wide.type.dtype
    axes = (0, *range(2, x.type.rank))
    # eager's batch norm sums in float64 on a CPU, and its running mean shows it
    mean, rstd = _statistics(c, x, axes, eps, wide=c.args[0].device.type == "cpu")
    one: Shape = mean.type.shape
    out = c.op("multiply", c.op("subtract", wide, mean), rstd)
    if weight is not None:
        out = c.op("multiply", out, c.cast(c.reshape(weight, one), t))
    if bias is not None:
        out = c.op("add", out, c.cast(c.reshape(bias, one), t))
    variance = c.op("variance", wide, axis=axes, correction=0.0, keepdims=True)
    return c.cast(out, x.type.dtype), mean, rstd, variance


@converts("_native_batch_norm_legit.no_stats")
def _batch_norm_no_stats(c: Context, x: NodeEntry, weight: NodeEntry | None, bias: NodeEntry | None, training: bool,
                         momentum: float, eps: float) -> Value:  # fmt: skip
    out, mean, rstd, _ = _training(c, x, weight, bias, eps)
    return out, _as(c, mean, 1), _as(c, rstd, 2)


@converts("_native_batch_norm_legit_functional.default")
def _batch_norm_functional(c: Context, x: NodeEntry, weight: NodeEntry | None, bias: NodeEntry | None, mean: NodeEntry,
                           variance: NodeEntry, training: bool, momentum: float, eps: float) -> Value:  # fmt: skip
    if not training:
        return _inference(c, x, weight, bias, mean, variance, eps), *_nothing(c, 1, 2), mean, variance
    return _updated(c, x, weight, bias, mean, variance, momentum, eps, (3, 4))


def _updated(c: Context, x: NodeEntry, weight: NodeEntry | None, bias: NodeEntry | None, mean: NodeEntry,
             variance: NodeEntry, momentum: float, eps: float,
             places: tuple[int, int]) -> tuple[NodeEntry, ...]:  # fmt: skip
    """Training: result, mean and 1 / deviation of the batch, and the running statistics after it, which are the
    results at `places`."""
    out, now, rstd, spread = _training(c, x, weight, bias, eps)
    count = numel((x.type.shape[0], *x.type.shape[2:]))
    if not isinstance(count, int):
        factor = c.compute(c.cast(c.dim_value(count), spread.type.dtype))
        unbiased = c.op("divide", c.op("multiply", spread, factor),
                        c.op("subtract", factor, c.const(1, spread.type.dtype)))  # fmt: skip
    else:
        unbiased = c.op("multiply", spread, c.const(count / max(count - 1, 1), spread.type.dtype))
    new = [c.cast(_moved(c, old, _as(c, fresh, i), momentum), c.outs[i].dtype)
           for i, old, fresh in zip(places, (mean, variance), (now, unbiased))]  # fmt: skip
    return out, _as(c, now, 1), _as(c, rstd, 2), new[0], new[1]


@converts("_batch_norm_with_update_functional.default")
def _batch_norm_with_update(c: Context, x: NodeEntry, weight: NodeEntry | None, bias: NodeEntry | None, mean: NodeEntry,
                            variance: NodeEntry, momentum: float, eps: float) -> Value:  # fmt: skip
    out, now, rstd, new_mean, new_variance = _updated(c, x, weight, bias, mean, variance, momentum, eps, (4, 5))
    return out, now, rstd, *_nothing(c, 3), new_mean, new_variance


def _moved(c: Context, old: NodeEntry, fresh: NodeEntry, momentum: float) -> NodeEntry:
    """The running statistic after this batch: momentum * fresh + (1 - momentum) * old."""
    t = old.type.dtype.compute
    kept = c.op("multiply", c.cast(old, t), c.const(1 - momentum, t))
    return c.op("add", c.op("multiply", c.cast(fresh, t), c.const(momentum, t)), kept)


@converts("native_batch_norm_backward.default")
def _batch_norm_backward(
    c: Context, grad: NodeEntry, x: NodeEntry, weight: NodeEntry | None, running_mean: NodeEntry | None,
    running_variance: NodeEntry | None, mean: NodeEntry | None, rstd: NodeEntry | None, train: bool, eps: float,
    mask: Sequence[bool],
) -> Value:  # fmt: skip
    """For n = (x - mean) * rstd: rstd * weight * (grad - mean(grad) - n * mean(grad * n)), sum(grad * n), sum(grad)."""
    wide, g = c.compute(x), c.compute(grad)
    t = wide.type.dtype
    axes = (0, *range(2, x.type.rank))
    kept = tuple(1 if a in axes else d for a, d in enumerate(x.type.shape))
    if not train:
        assert running_mean is not None and running_variance is not None
        mean = running_mean
        rstd = c.op("rsqrt", c.op("add", c.cast(running_variance, t), c.const(eps, t)))
    assert mean is not None and rstd is not None
    mean, rstd = (c.cast(c.reshape(s, kept), t) for s in (mean, rstd))
    needs_sums = train or mask[1] or mask[2]
    total, along = c.op_outputs("norm_sums", g, wide, mean, axis=axes) if needs_sums else (g, g)
    out: list[NodeEntry | None] = [None, None, None]
    if mask[0]:
        scale = rstd if weight is None else c.op("multiply", rstd, c.cast(c.reshape(weight, kept), t))
        if train:
            count = numel(tuple(x.type.shape[a] for a in axes))
            one = c.const(1, t)
            part = c.const(1 / count, t) if isinstance(count, int) and count else c.op(
                "divide", one, c.cast(c.dim_value(count), t))  # fmt: skip
            slope = c.op("multiply", c.op("multiply", along, part), c.op("multiply", rstd, rstd))
            bent = c.op("subtract", g, c.op("multiply", c.op("subtract", wide, mean), slope))
            g = c.op("subtract", bent, c.op("multiply", total, part))
        out[0] = c.cast(c.op("multiply", g, scale), c.outs[0].dtype)
    if mask[1]:
        out[1] = _as(c, c.op("multiply", along, rstd), 1)
    if mask[2]:
        out[2] = _as(c, total, 2)
    return tuple(out)
