"""Which ATen operators AOTAutograd takes apart before we see them, and which it is to leave whole."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch._C import DispatchKey
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_impls import op_implementations_dict

from nnvm_torch.convert import TABLE
from nnvm_torch.convert.table import holds
from nnvm_torch.recurrent import lstm, lstm_layer, lstm_layer_backward
from nnvm_torch.recurrent_layer import RECURRENCES
from nnvm_torch.tensors import dtype_of

__all__ = ["decompositions", "exported_decompositions", "whole"]

#: Further operators to leave whole: ATen is to run them, as their decomposition differs from eager or runs worse, or
#: takes numbers that ATen refuses (probabilities of a cross entropy beyond 0 and 1).
_WHOLE = ("bernoulli.p", "bernoulli.default", "binary_cross_entropy.default")

#: Operators whose decomposition is nothing but other operators that we convert, at no cost.
_TAKE_APART = ("std_mean.correction", "linear.default", "reshape.default",
               "contiguous.default", "chunk.default", "softmax.int", "log_softmax.int", "split.Tensor", "tile.default",
               "conv1d.default", "conv2d.default", "conv3d.default", "flatten.using_ints", "expand_as.default",
               "positive.default", "numpy_T.default", "unflatten.int", "swapaxes.default", "broadcast_to.default",
               "narrow.int")  # fmt: skip


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Where nothing is dropped the argument itself, as in eager; PyTorch's kernel in Python gives a copy."""
    return torch.ops.aten.native_dropout(x, p, train)[0] if train and p != 0 else x  # type: ignore[no-any-return]


def _multi_margin_loss(x: torch.Tensor, target: torch.Tensor, p: Any = 1, margin: Any = 1,
                       weight: torch.Tensor | None = None, reduction: int = 1) -> torch.Tensor:  # fmt: skip
    """PyTorch's, whose result for one row has a dimension too many, and which takes weights of another type."""
    if weight is not None and weight.dtype != x.dtype:
        raise RuntimeError(f"expected weights of type {x.dtype} but found {weight.dtype}")
    loss = torch._decomp.decompositions.multi_margin_loss(x, target, p, margin, weight, reduction)
    return loss.reshape(()) if x.dim() < 2 and target.dim() == 0 else loss


def _multilabel_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean over classes j that are no label, summed over labels t, of max(0, 1 - x[t] + x[j]), and which are labels.

    Labels are those before the first -1; PyTorch's decomposition counts what comes after it too."""
    if target.dtype != torch.int64:
        raise RuntimeError(f"expected a target of type {torch.int64} but found {target.dtype}")
    fits = x.dim() <= 2 and x.shape == target.shape and (x.dim() == 0 or x.shape[-1] != 0)
    if not fits:
        raise RuntimeError(f"inconsistent target size: {target.shape} for input of size: {x.shape}")
    rows, wanted = (t.reshape(1, -1) if t.dim() < 2 else t for t in (x, target))
    classes = rows.shape[1]
    place = torch.arange(classes, device=x.device)
    end = torch.where(wanted == -1, place, classes).amin(-1, keepdim=True)
    counts = place < end
    chosen = rows.gather(1, torch.where(counts, wanted, 0))
    found = (torch.where(counts, wanted, -1).unsqueeze(2) == place).any(1)
    margin = (1 - chosen.unsqueeze(2) + rows.unsqueeze(1)).clamp_min(0) / classes
    loss = torch.where(counts.unsqueeze(2) & ~found.unsqueeze(1), margin, 0).sum((1, 2))
    loss = (loss.reshape(()) if x.dim() < 2 else loss, loss.mean(), loss.sum())[reduction]
    return loss, found.to(x.dtype).reshape(target.shape)


def _ldexp(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """x 2^exponent in the type that both promote to; PyTorch's trace says another where one has no dimensions."""
    of = torch.result_type(x, exponent)
    of = of if of.is_floating_point else torch.get_default_dtype()
    at = torch.float32 if of.itemsize == 2 else of
    return (x.to(at) * torch.exp2(exponent.to(at))).to(of)


def _smooth_l1_loss_backward(grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int,
                             beta: float) -> torch.Tensor:  # fmt: skip
    """PyTorch's, whose gradient of a difference that is no number is 0 and not NaN."""
    taken = torch._decomp.decompositions.smooth_l1_loss_backward(grad, x, target, reduction, beta)
    return torch.where((x - target).isnan(), torch.nan, taken)


def _by_size(name: str, x: torch.Tensor, size: Sequence[Any] | None, *rest: Any) -> torch.Tensor:
    """The overload of an interpolation that takes a size or factors as the one that takes both. ATen's kernel for it
    takes numbers only, no sizes that a trace leaves open."""
    *options, factors = rest
    sizes_of: Callable[..., Any] = torch._decomp.decompositions.upsample_compute_output_size
    sizes = sizes_of(x.shape, size, factors)
    of_axes = factors if factors is not None else [None] * (x.dim() - 2)
    out: torch.Tensor = getattr(torch.ops.aten, name).default(x, sizes, *options, *of_axes)
    return out


def _resized_gradient(mode: Any, op: Any, grad: torch.Tensor, size: Any, of: Sequence[Any], *rest: Any) -> Any:
    """What a trace has to know of the gradient of an interpolation whose sizes are open, where PyTorch's own says it
    for numbers only: the bilinear one lies as `grad` does, the others in order."""
    with mode:
        out = grad.new_empty(of)
        keeps = op is torch.ops.aten.upsample_bilinear2d_backward.default
        return out.to(memory_format=suggest_memory_format(grad)) if keeps else out


#: Gradients of interpolations that a trace with open sizes cannot follow otherwise.
_RESIZED = (
    *(f"{nearest}{n}d_backward.default" for nearest in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 3)),
    "upsample_bilinear2d_backward.default", "upsample_bicubic2d_backward.default",
)  # fmt: skip

#: Operators that PyTorch takes apart whatever the table says, by a kernel for autograd written in Python: what does so
#: instead, None where they stay whole.
_FORCED: dict[str, Callable[..., Any] | None] = {
    # bilinear and bicubic ones have kernels of their own for uint8, which count in whole numbers
    f"{name}.{kind}": ours for name in (
        *(f"{nearest}{n}d" for nearest in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)),
        "upsample_bilinear2d", "upsample_bicubic2d",
    ) for kind, ours in (("default", None), ("vec", partial(_by_size, name)))
} | {
    "lstm.input": lstm, **{f"{kind}.input": ours for kind, ours in RECURRENCES.items()}, "dropout.default": _dropout,
    "multi_margin_loss.default": _multi_margin_loss,
    "multilabel_margin_loss_forward.default": _multilabel_margin_loss,
    "smooth_l1_loss_backward.default": _smooth_l1_loss_backward,
}  # fmt: skip
# what autograd makes of their parts has other gradients where x or its gradient is no finite number
_FORCED |= dict.fromkeys(("hardshrink.default", "softshrink.default"))


#: Operators whose results lie in order however their arguments do, unlike what PyTorch's traces say.
_IN_ORDER = ("rrelu_with_noise_functional.default", "poisson.default", "_standard_gamma.default",
             "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor",
             "log_sigmoid_forward.default")  # fmt: skip

#: Operators whose results have the memory format of their argument, unlike what PyTorch's traces say.
_IN_FORMAT = ("reflection_pad2d.default", "reflection_pad3d.default", "replication_pad2d.default",
              "replication_pad3d.default", "channel_shuffle.default")  # fmt: skip

#: Losses whose decomposition takes tensors of several types, of which ATen refuses some and computes with others in
#: ways of its own. Of those of classes, the place of the target, which has a type of its own.
_OF_ONE_TYPE = {
    "binary_cross_entropy_backward.default": None, "huber_loss_backward.default": None,
    "smooth_l1_loss.default": None, "smooth_l1_loss_backward.default": None,
    "nll_loss_forward.default": 1, "nll_loss2d_forward.default": 1,
    "nll_loss_backward.default": 2, "nll_loss2d_backward.default": 2,
}  # fmt: skip

#: Batch norms over a batch; those with given statistics are taken apart.
_BATCH_NORMS = ("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.no_stats")


@lru_cache(maxsize=1)
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for AOTAutograd: core ATen's, without what we convert whole."""
    from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions

    ((sampler, decomposed),) = get_decompositions([torch.ops.aten.grid_sampler_2d.default]).items()
    return _with_ours({
        **_core_aten_decompositions_post_autograd(), sampler: partial(_grid_sampler_2d, decomposed)
    })  # fmt: skip


@lru_cache(maxsize=1)
def exported_decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `ExportedProgram.run_decompositions`: as `decompositions`, and what autograd takes apart before
    AOTAutograd sees it."""
    return _with_ours({**dict(torch.export.default_decompositions()), **decompositions()})


def _with_ours(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The table without what is left whole, and with what is taken apart by decompositions of our own."""
    apart = set(_overloads(_TAKE_APART))
    for target in (*TABLE, *_overloads(_WHOLE)):
        if target not in apart:
            table.pop(target, None)
    for name, ours in _FORCED.items():
        for target in _overloads((name,)):
            if target in table and ours is not None:
                table[target] = ours
    for target in _overloads(("mkldnn_rnn_layer.default",)):
        table[target] = lstm_layer
    for target in _overloads(("mkldnn_rnn_layer_backward.default",)):
        table[target] = lstm_layer_backward
    for target in _overloads(("max_unpool2d.default",)):
        table[target] = _max_unpool2d
    for target in _overloads(_IN_ORDER):
        table[target] = partial(_in_order, target)
    for target in _overloads(_IN_FORMAT):
        table[target] = partial(_in_format, target)
    for target in _overloads(("roll.default",)):
        table[target] = _roll
    for target in _overloads(_BATCH_NORMS):
        table[target] = partial(_batch_norm, target)
    for target in _overloads(("native_group_norm.default",)):
        table[target] = _native_group_norm
    for target in _overloads(("_embedding_bag.default",)):
        table[target] = _embedding_bag
    for target in _overloads(("_embedding_bag_backward.default",)):
        table[target] = _embedding_bag_backward
    for name, labels in _OF_ONE_TYPE.items():
        for target in _overloads((name,)):
            if target in table:
                table[target] = partial(_of_one_type, table[target], labels)
    for place, name in enumerate(("soft_margin_loss.default", "soft_margin_loss_backward.default")):
        for target in _overloads((name,)):
            if target in table:
                table[target] = partial(_soft_margin, table[target], place)
    for target in _overloads(("threshold.default",)):
        if target in table:
            table[target] = partial(_threshold, table[target])
    for target in _overloads(("lerp.Scalar", "lerp.Tensor")):
        if target in table:
            table[target] = partial(_lerp, table[target])
    for target in _overloads(("ldexp.Tensor",)):
        table[target] = _ldexp
    return table


def _of_one_type(decomposed: Callable[..., Any], labels: int | None, *args: Any, **kwargs: Any) -> Any:
    """PyTorch's decomposition for tensors of one type, beside the labels of classes at `labels` among `args`, and for
    parameters that are not negative."""
    types = {a.dtype for i, a in enumerate(args) if isinstance(a, torch.Tensor) and i != labels}
    if labels is None:
        fits = not any(isinstance(a, float) and a < 0 for a in args)
    else:
        fits = args[labels].dtype in (torch.int64, torch.uint8)
    return decomposed(*args, **kwargs) if fits and len(types) == 1 else NotImplemented


def _threshold(decomposed: Callable[..., Any], x: torch.Tensor, threshold: Any, value: Any) -> Any:
    """PyTorch's decomposition where the type of `x` holds both numbers; ATen refuses others, and bools."""
    dtype = dtype_of(x.dtype)
    if dtype is not None and (dtype.is_bool or not (holds(dtype, threshold) and holds(dtype, value))):
        return NotImplemented
    return decomposed(x, threshold, value)


def _lerp(decomposed: Callable[..., Any], x: torch.Tensor, end: torch.Tensor, weight: Any) -> Any:
    """PyTorch's decomposition of floats, by a number that ATen takes for their kind."""
    dtype = dtype_of(x.dtype)
    fits = dtype is None or isinstance(weight, torch.Tensor) or holds(dtype.compute, weight)
    return decomposed(x, end, weight) if fits and x.is_floating_point() else NotImplemented


def _soft_margin(decomposed: Callable[..., Any], x_at: int, *args: Any) -> Any:
    """PyTorch's decomposition of the soft margin loss or its gradient, in the type of what is judged (at `x_at`), which
    is that of the result in ATen, whose kernel takes no bool; a target of another float type is left to eager."""
    x, target = args[x_at], args[x_at + 1]
    if target.dtype == torch.bool:
        return NotImplemented
    if target.is_floating_point() and target.dtype != x.dtype:
        raise RuntimeError(f"soft_margin_loss of {x.dtype} with a target of {target.dtype} is eager's")
    return decomposed(*args[: x_at + 1], target.to(x.dtype), *args[x_at + 2 :])


def _embedding_bag(weight: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, by_frequency: bool = False,
                   mode: int = 0, sparse: bool = False, per_sample: torch.Tensor | None = None,
                   include_last_offset: bool = False, padding_idx: int = -1) -> Any:  # fmt: skip
    """Sums of bags and what their gradient needs: nothing, as it finds out itself where the bags are."""
    if mode != 0 or weight.device.type != "cpu":
        return NotImplemented
    out, *_ = torch.ops.aten._embedding_bag_forward_only(
        weight, index, offsets, by_frequency, mode, sparse, per_sample, include_last_offset, padding_idx
    )
    sizes = offsets.new_zeros(offsets.shape[0] - include_last_offset)
    return out, offsets.new_zeros(0), sizes, sizes.clone()


def _embedding_bag_backward(
    grad: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, bag_of: torch.Tensor, sizes: torch.Tensor,
    most: torch.Tensor, rows: int, by_frequency: bool, mode: int, sparse: bool, per_sample: torch.Tensor | None,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    """The gradient of a table of which rows were summed by bags: each row's from the bags that it is in, in order."""
    plain = mode == 0 and not sparse and not by_frequency and offsets.shape[0] == grad.shape[0]
    if not plain or grad.dtype not in (torch.float32, torch.float64) or grad.device.type != "cpu":
        return NotImplemented
    place = torch.arange(index.shape[0], dtype=offsets.dtype, device=grad.device)
    parts = grad.index_select(0, torch.searchsorted(offsets, place, right=True) - 1)
    if per_sample is not None:
        parts = parts * per_sample.unsqueeze(1)
    if padding_idx >= 0:
        parts = torch.where((index == padding_idx).unsqueeze(1), 0.0, parts)
    return torch.ops.aten.index_put(grad.new_zeros(rows, grad.shape[1]), [index.to(torch.int64)], parts, True)


def _in_order(target: Any, *args: Any, **kwargs: Any) -> Any:
    """The call on contiguous tensors, which is traced right."""
    if all(a.is_contiguous() for a in args if isinstance(a, torch.Tensor)):
        return NotImplemented
    return target(*(a.contiguous() if isinstance(a, torch.Tensor) else a for a in args), **kwargs)


def _grid_sampler_2d(decomposed: Callable[..., torch.Tensor], x: torch.Tensor, grid: torch.Tensor, mode: int,
                     padding: int, align_corners: bool) -> torch.Tensor:  # fmt: skip
    """PyTorch's decomposition, and what ATen makes of places that are no numbers (`mode`: bilinear, nearest, bicubic;
    `padding`: zeros, border, reflection): NaN where it interpolates with zeros around, else the first row or column."""
    if mode == 2:
        return decomposed(x, grid, mode, padding, align_corners)
    if padding:
        grid = torch.where(grid.isnan() if padding == 1 else ~grid.isfinite(), -1.0, grid)
    out = decomposed(x, grid, mode, padding, align_corners)
    return out + (grid * 0).sum(-1).unsqueeze(1) if mode == padding == 0 else out


def _batch_norm(target: Any, x: torch.Tensor, *args: Any) -> Any:
    """The call on a tensor in the format that eager gives the result, where the trace says it lies as `x` does."""
    format_ = torch._prims_common.suggest_memory_format(x)
    if x.is_contiguous(memory_format=format_):
        return NotImplemented
    return target(x.contiguous(memory_format=format_), *args)


def _native_group_norm(x: torch.Tensor, *args: Any) -> Any:
    """The result in the format of `x`, as eager's: from torch 2.14 on the trace says that it lies in order."""
    format_ = torch._prims_common.suggest_memory_format(x)
    right = torch.torch_version.TorchVersion(torch.__version__) < "2.14"
    if right or format_ == torch.contiguous_format or x.is_contiguous():
        return NotImplemented
    out, mean, rstd = torch.ops.aten.native_group_norm.default(x.contiguous(), *args)
    return out.clone(memory_format=format_), mean, rstd


def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    return _in_format(torch.ops.aten.roll.default, x, shifts, dims) if dims else NotImplemented


def _in_format(target: Any, x: torch.Tensor, *args: Any) -> Any:
    """The call on a contiguous tensor, which is traced right, and its result in the format of `x`."""
    format_ = torch._prims_common.suggest_memory_format(x)
    if format_ == torch.contiguous_format or x.is_contiguous():
        return NotImplemented
    return target(x.contiguous(), *args).clone(memory_format=format_)


def _max_unpool2d(x: torch.Tensor, indices: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    """Values put back where pooling took them, in the memory format of `x`, which PyTorch's own meta function loses."""
    if 0 in x.shape:
        return NotImplemented  # type: ignore[no-any-return]
    lead = x.shape[:-2]
    zeros = x.new_zeros((*lead, output_size[0] * output_size[1]))
    flat = zeros.scatter(-1, indices.reshape((*lead, -1)), x.reshape((*lead, -1)))
    out = flat.view((*lead, *output_size))
    format_ = torch._prims_common.suggest_memory_format(x)
    return out if format_ == torch.contiguous_format else out.clone(memory_format=format_)


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """While tracing: of PyTorch's decompositions in Python none for the operators of `_FORCED`, or ours, and gradients
    of what stays whole can be traced. Callers hold the compile lock."""
    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    taken: list[tuple[Any, Any, Any]] = []
    for name, ours in _FORCED.items():
        for target in _overloads((name,)):
            for key in keys:
                if key in target.py_kernels:
                    taken.append((target, key, target.py_kernels.pop(key)))
                    if ours is not None:
                        target.py_kernels[key] = ours
            target._dispatch_cache.clear()
    added = [op for op in _overloads(_RESIZED) if op not in op_implementations_dict]
    op_implementations_dict.update(dict.fromkeys(added, _resized_gradient))
    try:
        yield
    finally:
        for op in added:
            del op_implementations_dict[op]
        for target, key, kernel in taken:
            target.py_kernels[key] = kernel
            target._dispatch_cache.clear()


def _overloads(names: tuple[str, ...]) -> list[Any]:
    found = []
    for name in names:
        op, _, kind = name.partition(".")
        target = getattr(getattr(torch.ops.aten, op, None), kind, None)
        if target is not None:
            found.append(target)
    return found
