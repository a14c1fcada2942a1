"""What graph passes know about ops: facts that concern no op's meaning, attached here family by family.

The passes in graph/passes read these attributes and no op's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nnvm.dim import Dim, Shape
from nnvm.graph import op as registry
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.graph.passes import layout_conv, layout_costs, layout_rules
from nnvm.graph.passes.fold_scale_axis import Commutes, ScaleAxis
from nnvm.graph.types import TensorType
from nnvm.ops.conv_phases import by_phases
from nnvm.ops.nnvm_forms import sections
from nnvm.ops.transform import slice_ranges

__all__: list[str] = []

_EXPENSIVE = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid "
    "lgamma polygamma gelu silu elu softplus mish log_sigmoid power atan2 hypot floor_divide remainder "
    "trunc_divide fmod"
)
_ROW_MASTERS = "softmax log_softmax layer_norm rms_norm"
#: Finite wherever their inputs are.
_KEEPS_FINITE = (
    "negative abs sign sin cos atan tanh erf erfc sigmoid relu floor ceil trunc round identity cast clip gelu silu elu "
    "leaky_relu hardswish hardsigmoid softplus mish log_sigmoid add subtract multiply maximum minimum fmax fmin prelu "
    "where equal not_equal less less_equal greater greater_equal logical_and logical_or logical_not"
)
_OTHER_ELEMENTWISE = "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square divide power"


def _permutation(attrs: Mapping[str, Any], rank: int) -> tuple[int, ...]:
    axes = attrs["axes"]
    return tuple(range(rank))[::-1] if axes is None else tuple(a % rank for a in axes)


def _last_axes(key: str | None = None) -> Callable[[Mapping[str, Any], int], tuple[int, dict[str, Any]] | None]:
    """Of ops that work from an axis (attribute `key`) to the last, or on the last."""

    def rule(attrs: Mapping[str, Any], rank: int) -> tuple[int, dict[str, Any]] | None:
        first = -1 if key is None else attrs[key] % rank - rank
        return -first, {**attrs, **({} if key is None else {key: first})}

    return rule


def _last_axis(attrs: Mapping[str, Any], rank: int) -> tuple[int, dict[str, Any]] | None:
    """Of ops along one axis, where it is the last."""
    return (1, {**attrs, "axis": -1}) if attrs["axis"] % rank == rank - 1 else None


def _last_reduced(attrs: Mapping[str, Any], rank: int) -> tuple[int, dict[str, Any]] | None:
    """Of reductions that keep their axes, where these are the last ones."""
    axes = attrs["axis"]
    if axes is None or not attrs["keepdims"]:
        return None
    reduced = sorted(a % rank for a in (axes if isinstance(axes, tuple) else (axes,)))
    if reduced != list(range(reduced[0], rank)):
        return None
    return rank - reduced[0], {**attrs, "axis": tuple(a - rank for a in reduced)}


def _keeps_channels(node: Node, axis: int | None) -> bool:
    """Whether a reduction keeps its axes, and does not reduce the one of the channels."""
    axes, rank = node.attrs["axis"], node.inputs[0].type.rank
    if axes is None or not node.attrs["keepdims"]:
        return False
    return axis not in {a % rank for a in (axes if isinstance(axes, tuple) else (axes,))}


def _pads_zeros(node: Node, axis: int | None) -> bool:
    """Whether padding repeats values or is 0, and leaves the channels as they are."""
    zeros = node.attrs["mode"] != "constant" or node.attrs["value"] == 0
    return zeros and (axis is None or node.attrs["pad_width"][axis] == (0, 0))


def _slice_offset(attrs: Mapping[str, Any], inputs: tuple[TensorType, ...]) -> Dim | None:
    """Where a slice begins, where it is one piece of memory: whole axes behind one range behind single positions."""
    shape = inputs[0].shape
    ranges = slice_ranges(attrs, shape)
    parts = [a for a, (_, extent, _) in enumerate(ranges) if extent != shape[a]]
    if not parts:
        return 0
    last = parts[-1]
    if any(extent != 1 for _, extent, _ in ranges[:last]) or (ranges[last][2] != 1 and ranges[last][1] != 1):
        return None
    offset: Dim = 0
    for (begin, _, _), size in zip(ranges, shape):
        offset = offset * size + begin
    return offset * inputs[0].dtype.bytes


def _sliced(attrs: Mapping[str, Any], data: TensorType, given: Sequence[Dim]) -> tuple[Dim, tuple[Dim, ...]]:
    begin: Dim = 0
    strides = []
    for (first, _, step), stride in zip(slice_ranges(attrs, data.shape), given):
        begin = begin + first * stride
        strides.append(step * stride)
    return begin, tuple(strides)


def _transposed(attrs: Mapping[str, Any], data: TensorType, given: Sequence[Dim]) -> tuple[Dim, tuple[Dim, ...]]:
    return 0, tuple(given[a] for a in _permutation(attrs, data.rank))


def _split_slices(node: Node) -> tuple[NodeEntry, ...]:
    """The parts of a split as slices: these are views, or read where the data lies."""
    data = node.inputs[0]
    axis, parts = sections(node.attrs, data.type.shape)
    rest = (None,) * axis
    return tuple(
        apply("slice", [data], {"begin": (*rest, a), "end": (*rest, b)}, source=node.source)[0] for a, b in parts
    )


def _one_after_the_other(attrs: Mapping[str, Any], parts: Sequence[Shape],
                         strides: Sequence[Dim]) -> list[tuple[Dim, tuple[Dim, ...]]]:  # fmt: skip
    """Where the parts of a concatenation lie."""
    axis, start, found = attrs["axis"] % len(strides), 0, []
    for shape in parts:
        found.append((start * strides[axis], tuple(strides)))
        start = start + shape[axis]
    return found


def _attach(names: str, attribute: str, value: object) -> None:
    for name in names.split():
        if name in registry.known():
            registry.get(name).set_attr(attribute, value)


for _name in ("add", "subtract", "multiply", "divide"):
    _attach(_name, "algebra", _name)
_attach(_EXPENSIVE, "expensive", True)
_attach(_ROW_MASTERS, "prologue", (0,))

_LAYOUTS = ("data_layout", "kernel_layout", "out_layout", "channels")
_attach("conv1d conv2d conv3d", "scale_axis", ScaleAxis(1, 0, 1, "in", _LAYOUTS))
_attach("conv1d_transpose conv2d_transpose conv3d_transpose", "scale_axis", ScaleAxis(1, 1, 0, "out", _LAYOUTS))
_attach("dense", "scale_axis", ScaleAxis(-1, 0, 1, plain=("kernel_layout", "units")))
_attach("relu leaky_relu prelu abs", "scale_axis", Commutes(positive=True))
_attach("negative resize", "scale_axis", Commutes(positive=False))
_attach("sum mean", "scale_axis", Commutes(positive=False, where=_keeps_channels))
_attach("max min", "scale_axis", Commutes(positive=True, where=_keeps_channels))
_attach("pad", "scale_axis", Commutes(positive=False, where=_pads_zeros))
for _rank in (1, 2, 3):
    _attach(f"avg_pool{_rank}d adaptive_avg_pool{_rank}d global_avg_pool{_rank}d", "scale_axis", Commutes(False))
    _attach(f"max_pool{_rank}d adaptive_max_pool{_rank}d global_max_pool{_rank}d", "scale_axis", Commutes(True))

_attach("transpose", "permutation", _permutation)
_attach("conv1d conv2d conv3d", "layout_rule", layout_conv.convolution)
_attach("conv1d_transpose conv2d_transpose conv3d_transpose", "decompose", by_phases)
_attach("conv1d conv2d conv3d", "layout_cost", layout_costs.convolution)
_attach("dense", "layout_rule", layout_conv.dense)
_attach(_KEEPS_FINITE, "layout_rule", layout_rules.elementwise(keeps_finite=True))
_attach(_OTHER_ELEMENTWISE, "layout_rule", layout_rules.elementwise(keeps_finite=False))
for _kind in ("max_pool{}d", "avg_pool{}d", "max_pool{}d_with_indices", "adaptive_avg_pool{}d", "adaptive_max_pool{}d",
              "global_avg_pool{}d", "global_max_pool{}d"):  # fmt: skip
    for _rank in (1, 2, 3):
        _attach(_kind.format(_rank), "layout_rule", layout_rules.on_layout)
        _attach(_kind.format(_rank), "layout_cost", layout_costs.moving(plain=2, blocked=1))
_attach("resize", "layout_rule", layout_rules.on_layout)
_attach("resize", "layout_cost", layout_costs.moving(plain=8, blocked=1.5))
_attach("sum mean max min", "layout_rule", layout_rules.reduction)
_attach("concatenate", "layout_rule", layout_rules.concatenate)
_attach("interleave", "layout_rule", layout_rules.interleave)
_attach("interleave", "layout_cost", layout_costs.moving(plain=4, blocked=1))
_attach("pad", "layout_rule", layout_rules.pad)
_attach("slice", "layout_rule", layout_rules.slice_axes)
_attach("reshape flatten squeeze", "layout_rule", layout_rules.reshape)
_attach("transpose", "layout_rule", layout_rules.transpose)

_attach("add multiply maximum minimum fmax fmin equal not_equal logical_and logical_or logical_xor bitwise_and "
        "bitwise_or bitwise_xor", "commutative", True)  # fmt: skip
_attach("identity", "is_copy", True)
_attach("cast", "is_cast", True)
_attach("broadcast_to", "is_broadcast", True)
_attach("slice", "is_slice", True)
_attach("slice", "view_offset", _slice_offset)
_attach("slice", "strided_view", _sliced)
_attach("transpose", "strided_view", _transposed)
_attach("split", "simplify_inference", _split_slices)
_attach("concatenate", "joins", lambda attrs, rank: attrs["axis"] % rank)
_attach("concatenate", "places", _one_after_the_other)
_attach("matmul", "is_matmul", True)
_attach("matmul", "broadcast_inputs", (0, 1))
_attach("attention", "broadcast_inputs", (3,))
_attach("reshape flatten squeeze expand_dims broadcast_to slice concatenate", "same_shape_is_identity", True)
_attach("dense", "trailing_axes", _last_axes())
_attach("layer_norm rms_norm", "trailing_axes", _last_axes("axis"))
_attach("softmax log_softmax", "trailing_axes", _last_axis)
_attach("where", "is_select", True)
_attach("softmax", "is_softmax", True)
_attach("attention", "is_attention", True)
_attach("sum mean max min prod variance", "trailing_axes", _last_reduced)
