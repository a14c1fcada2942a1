"""What the ops of NNVM in nnvm_forms.py, and device_copy, say about the types around them."""

from __future__ import annotations

from nnvm.dim import Dim
from nnvm.graph import device_copy  # noqa: F401  registers the op
from nnvm.graph.type_relation import Relation
from nnvm.ops.shape_rules import resolve_axes, resolve_axis
from nnvm.ops.type_relations import attach

__all__: list[str] = []


def _like(r: Relation) -> None:
    r.same_shape(r.inputs[0], *r.outputs)
    r.same_dtype(r.inputs[0], *r.outputs)


def _sum(r: Relation) -> None:
    r.same_shape(*r.inputs, *r.outputs)
    r.same_dtype(*r.inputs, *r.outputs)


def _split(r: Relation) -> None:
    """All axes but the split one stay; its parts add up."""
    x, wanted = r.inputs[0], r.attrs["indices_or_sections"]
    r.same_dtype(x, *r.outputs)
    rank = r.same_rank(x, *r.outputs)
    if rank is None or x.shape is None:
        return
    axis = resolve_axis(r.attrs["axis"], rank)
    total: Dim = 0
    for i, out in enumerate(r.outputs):
        shape = r.rank(out, rank)
        for a in range(rank):
            if a != axis:
                r.equal(x.shape[a], shape[a], f"axis {a} beside the split one", x, out)
        if not isinstance(wanted, int) and i < len(wanted):
            r.equal(shape[axis], wanted[i] - (wanted[i - 1] if i else 0), f"part {i}", out)
        elif isinstance(wanted, int):
            r.equal(shape[axis] * wanted, x.shape[axis], f"axis {axis} in {wanted} parts", out, x)
        total = total + shape[axis]
    r.equal(total, x.shape[axis], f"axis {axis}, the sum of its parts", x, *r.outputs)


def _slice_like(r: Relation) -> None:
    (x, like), out = r.inputs, r.outputs[0]
    r.same_dtype(x, out)
    rank = r.same_rank(x, out) if r.attrs["axis"] is not None else r.same_rank(x, like, out)
    if rank is None or x.shape is None or out.shape is None:
        return
    cut = resolve_axes(r.attrs["axis"], rank)
    for a in range(rank):
        if a not in cut:
            r.equal(x.shape[a], out.shape[a], f"axis {a}, which is not cut", x, out)
        elif like.shape is not None and a < len(like.shape):
            r.equal(like.shape[a], out.shape[a], f"axis {a}, which is cut", like, out)


def _expand_like(r: Relation) -> None:
    (x, like), out = r.inputs, r.outputs[0]
    r.same_dtype(x, out)
    r.same_shape(like, out)


def _reshape_codes(r: Relation) -> None:
    r.same_dtype(r.inputs[0], *r.outputs)


def _upscale(r: Relation) -> None:
    """Batch and channels stay; spatial axes are so many times as long."""
    x, out, scale = r.inputs[0], r.outputs[0], r.attrs["scale"]
    r.same_dtype(x, out)
    source, target = r.rank(x, 4), r.rank(out, 4)
    for a, name in enumerate(r.attrs["layout"]):
        r.equal(source[a] * (1 if name in "NC" else scale), target[a], f"axis {a}", x, out)


def _prelu(r: Relation) -> None:
    data, alpha = r.inputs
    r.same_dtype(data, alpha, *r.outputs)
    r.same_shape(data, *r.outputs)
    (channels,) = r.rank(alpha, 1)
    if data.shape is not None:
        axis = resolve_axis(r.attrs["axis"], len(data.shape))
        r.equal(data.shape[axis], channels, "channels", data, alpha)


attach("prelu_channels", _prelu)
attach("full_like zeros_like ones_like block_grad optimization_barrier device_copy", _like)
attach("elemwise_sum", _sum)
attach("split", _split)
attach("slice_like", _slice_like, symbolic=False)
attach("expand_like", _expand_like, symbolic=False)
attach("reshape_codes", _reshape_codes, symbolic=False)
attach("upscale", _upscale)
