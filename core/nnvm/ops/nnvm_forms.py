"""Ops of NNVM whose output follows from another tensor's shape, or that are several outputs of one.

The importers do without them: they know the shapes and write slices, reshapes and constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, Shape, numel
from nnvm.dtype import F32
from nnvm.graph import op as registry
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops import create, resize  # noqa: F401  registers what zeros and upscale stand on
from nnvm.ops.bodies import over
from nnvm.ops.params import choice, dims, element_type, integer, integers, optional, scalar
from nnvm.ops.shape_rules import known, resolve_axes, resolve_axis, same_dtype, show
from nnvm.ops.transform import inject, regroup
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__ = ["resize_attrs", "sections"]

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def sections(attrs: Attrs, shape: Shape) -> tuple[int, list[tuple[Dim, Dim]]]:
    """The axis of a split and (begin, end) of each part."""
    axis, wanted = resolve_axis(attrs["axis"], len(shape)), attrs["indices_or_sections"]
    size = shape[axis]
    if isinstance(wanted, int):
        if wanted < 1 or size % wanted != 0:
            raise ValueError(f"axis {axis} of {show(shape)} cannot be split into {wanted} equal parts")
        step = size // wanted
        return axis, [(step * k, step * (k + 1)) for k in range(wanted)]
    bounds = [0, *wanted, size]
    if list(wanted) != sorted(wanted) or any(i < 0 or (isinstance(size, int) and i > size) for i in wanted):
        raise ValueError(f"the indices {wanted} do not rise from 0 to {size}, axis {axis} of {show(shape)}")
    return axis, list(itertools.pairwise(bounds))


def _sections_or_indices(value: Any) -> int | tuple[int, ...]:
    if isinstance(value, (tuple, list)):
        return integers(value)
    if integer(value) < 1:
        raise ValueError("expected at least 1 part")
    return integer(value)


def _split_type(attrs: Attrs, inputs: Types) -> Types:
    shape = inputs[0].shape
    axis, parts = sections(attrs, shape)
    return tuple(inputs[0].with_shape((*shape[:axis], b - a, *shape[axis + 1 :])) for a, b in parts)


def _split_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    axis, parts = sections(attrs, x.shape)

    def part(begin: Dim, shape: Shape) -> Tensor:
        (out,) = inject("split", shape, x, lambda i: [e + te.const(begin) if d == axis else e for d, e in enumerate(i)])
        return out

    return [part(begin, t.shape) for (begin, _), t in zip(parts, outputs)]


def _split_array(attrs: Attrs, x: Array) -> tuple[Array, ...]:
    wanted = attrs["indices_or_sections"]
    return tuple(np.split(x, wanted if isinstance(wanted, int) else list(wanted), attrs["axis"]))


register(
    "split", inputs=["data"], doc="Parts along an axis, one after the other.",
    params={"indices_or_sections": Param("number of equal parts, or the indices where parts begin",
                                         _sections_or_indices),
            "axis": Param("along which", integer, 0)},
    num_outputs=lambda a: (n if isinstance(n := a["indices_or_sections"], int) else len(n) + 1),
    infer_type=_split_type, pattern=OpPattern.INJECTIVE, compute=_split_compute, reference=_split_array,
)  # fmt: skip


def _filled(name: str, value: float | None) -> None:
    """Registers an op that gives its input's shape and type filled with one value."""

    def of(attrs: Attrs) -> Any:
        return attrs["fill_value"] if value is None else value

    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        return [over(outputs[0].shape, name, lambda *i: te.const(of(attrs), outputs[0].dtype))]

    register(
        name, inputs=["data"], doc="The shape and type of data, every element one value.", pattern=OpPattern.ELEMWISE,
        params={"fill_value": Param("the value", scalar)} if value is None else {},
        infer_type=lambda attrs, t: (t[0],), compute=compute,
        reference=lambda attrs, x: (np.full_like(x, of(attrs)),),
    )  # fmt: skip


def _filled_tensor(name: str, value: float) -> None:
    """Registers an op without inputs that gives a tensor of one value."""
    full = registry.get("full")

    def with_value(attrs: Attrs) -> dict[str, Any]:
        return {**attrs, "value": value}

    register(
        name, doc=f"A tensor of {name}.", pattern=OpPattern.ELEMWISE, is_constant=True,
        params={"shape": Param("the shape", dims), "dtype": Param("element type", element_type, F32)},
        infer_type=lambda attrs, t: full.attr("infer_type")(with_value(attrs), t),
        compute=lambda attrs, inputs, outputs: full.attr("compute")(with_value(attrs), inputs, outputs),
        reference=lambda attrs: full.attr("reference")(with_value(attrs)),
    )  # fmt: skip


_filled_tensor("zeros", 0)
_filled_tensor("ones", 1)
_filled("full_like", None)
_filled("zeros_like", 0)
_filled("ones_like", 1)


def _like_shape(attrs: Attrs, x: Shape, like: Shape) -> Shape:
    axes = attrs["axis"]
    if axes is None and len(x) != len(like):
        raise ValueError(f"{show(x)} is sliced like {show(like)}: give the axes, as the ranks differ")
    chosen = resolve_axes(axes, len(x))
    if bad := [a for a in chosen if a >= len(like)]:
        raise ValueError(f"{show(x)} is sliced like {show(like)}, which has no axis {bad[0]}")
    out = tuple(like[d] if d in chosen else n for d, n in enumerate(x))
    if bad := [d for d, n in enumerate(out) if isinstance(n, int) and isinstance(m := x[d], int) and n > m]:
        raise ValueError(f"{show(x)} is sliced like {show(like)}, which is longer along axis {bad[0]}")
    return out


def _slice_like_array(attrs: Attrs, x: Array, like: Array) -> tuple[Array]:
    return (x[tuple(slice(known(n)) for n in _like_shape(attrs, x.shape, like.shape))],)


register(
    "slice_like", inputs=["data", "slice_like"], doc="The first elements of each axis, as many as the other input has.",
    params={"axis": Param("axes cut; None: all", optional(integers), None)}, pattern=OpPattern.INJECTIVE,
    infer_type=lambda attrs, t: (t[0].with_shape(_like_shape(attrs, t[0].shape, t[1].shape)),),
    compute=lambda attrs, inputs, outputs: inject("slice_like", outputs[0].shape, inputs[0], lambda i: i),
    reference=_slice_like_array,
)  # fmt: skip


def _sum_type(attrs: Attrs, inputs: Types) -> Types:
    if not inputs:
        raise ValueError("nothing to add")
    same_dtype(*inputs)
    if any(t.shape != inputs[0].shape for t in inputs):
        raise ValueError(f"shapes {', '.join(show(t.shape) for t in inputs)} differ")
    return (inputs[0],)


def _sum_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    t = outputs[0].dtype

    def total(*i: Expr) -> Expr:
        value = te.cast(inputs[0][i], t.compute)
        for x in inputs[1:]:
            value = value + te.cast(x[i], t.compute)
        return te.cast(value, t)

    return [over(outputs[0].shape, "elemwise_sum", total)]


register(
    "elemwise_sum", inputs=["*args"], doc="The sum of any number of tensors of one shape, from the left.",
    infer_type=_sum_type, pattern=OpPattern.ELEMWISE, compute=_sum_compute, inplace=((0, 0),),
    reference=lambda attrs, *arrays: (sum(arrays[1:], arrays[0]),),
)  # fmt: skip

register(
    "block_grad", inputs=["data"], doc="data, whose gradient ends here.", infer_type=lambda attrs, t: (t[0],),
    pattern=OpPattern.ELEMWISE, inplace=((0, 0),), reference=lambda attrs, x: (x,),
    compute=lambda attrs, inputs, outputs: [over(outputs[0].shape, "block_grad", lambda *i: inputs[0][i])],
    simplify_inference=lambda node: node.inputs[0],
)  # fmt: skip

register(
    "expand_like", inputs=["data", "shape_like"], doc="data, repeated along `axis` to the shape of the other input.",
    params={"axis": Param("axes of shape_like that data lacks or has with extent 1", integers)},
    infer_type=lambda attrs, t: (t[0].with_shape(_expanded(attrs, t[0].shape, t[1].shape)[1]),),
    pattern=OpPattern.INJECTIVE,
    compute=lambda attrs, inputs, outputs: inject("expand_like", outputs[0].shape, inputs[0],
                                                  lambda i: _expand_source(attrs, inputs[0].shape, i)),
    reference=lambda attrs, x, like: (
        np.broadcast_to(x.reshape(_expanded(attrs, x.shape, like.shape)[0]), like.shape),),
)  # fmt: skip


def _expanded(attrs: Attrs, x: Shape, like: Shape) -> tuple[Shape, Shape]:
    """(data's shape with the new axes as 1, the output's shape)."""
    axes = resolve_axes(attrs["axis"], len(like))
    kept = x
    if len(x) + len(axes) == len(like):
        rest = iter(x)
        kept = tuple(1 if d in axes else next(rest) for d in range(len(like)))
    if len(kept) != len(like) or any(n not in (1, m) or (n != m and d not in axes)
                                     for d, (n, m) in enumerate(zip(kept, like))):  # fmt: skip
        raise ValueError(f"{show(x)} does not expand along {axes} to {show(like)}")
    return kept, like


def _expand_source(attrs: Attrs, x: Shape, i: Sequence[Expr]) -> list[Expr]:
    if len(x) == len(i):
        return [te.const(0) if x[d] == 1 else e for d, e in enumerate(i)]
    axes = resolve_axes(attrs["axis"], len(i))
    return [e for d, e in enumerate(i) if d not in axes]


def _coded_shape(attrs: Attrs, x: TensorType) -> Shape:
    """The shape that NNVM's codes say: 0 copies an axis, -1 is what remains, -2 copies all that follow, -3 is the
    product of two axes, -4 splits one in the two sizes that follow (of which one may be -1)."""
    codes, source, out = list(attrs["shape"]), list(x.shape), list[Dim]()
    try:
        while codes:
            code = codes.pop(0)
            if code == 0:
                out.append(source.pop(0))
            elif code == -2:
                out += source
                source = []
            elif code == -3:
                out.append(source.pop(0) * source.pop(0))
            elif code == -4:
                whole, first, second = source.pop(0), codes.pop(0), codes.pop(0)
                out += [whole // second if first == -1 else first, whole // first if second == -1 else second]
            else:
                out.append(code)
                source = source[1:]
    except IndexError:
        raise ValueError(f"the shape {attrs['shape']} asks for more axes than {show(x.shape)} has") from None
    if out.count(-1) > 1:
        raise ValueError(f"only one dimension of the shape {attrs['shape']} may be -1")
    if -1 in out:
        rest = numel(tuple(d for d in out if d != -1))
        out[out.index(-1)] = x.numel // rest if rest != 0 else 0
    if numel(tuple(out)) != x.numel:
        raise ValueError(f"{show(x.shape)} cannot take the shape {attrs['shape']}")
    return tuple(out)


register(
    "reshape_codes", inputs=["data"], doc="The elements in the same order under the shape that NNVM's codes say.",
    params={"shape": Param("sizes, and the codes 0 and -1 to -4", integers)}, view=True, inplace=((0, 0),),
    infer_type=lambda attrs, t: (t[0].with_shape(_coded_shape(attrs, t[0])),), pattern=OpPattern.INJECTIVE,
    compute=lambda attrs, inputs, outputs: inject(
        "reshape", outputs[0].shape, inputs[0], lambda i: regroup(inputs[0].shape, outputs[0].shape, i)),
    reference=lambda attrs, x: (x.reshape([known(d) for d in _coded_shape(attrs, TensorType(x.shape))]),),
)  # fmt: skip


def resize_attrs(attrs: Attrs, shape: Shape) -> dict[str, Any]:
    """The params of the `resize` that an `upscale` of data of that shape is."""
    channels_last = attrs["layout"] == "NHWC"
    spatial = shape[1:-1] if channels_last else shape[2:]
    return {"size": tuple(d * attrs["scale"] for d in spatial), "align_corners": False,
            "mode": {"NEAREST_NEIGHBOR": "nearest", "BILINEAR": "linear"}[attrs["method"]],
            "scales": None, "layout": "NHWC" if channels_last else None}  # fmt: skip


_RESIZE = registry.get("resize")

register(
    "upscale", inputs=["data"], doc="Spatial axes made `scale` times as long, as `resize` does it.",
    params={"scale": Param("the factor", integer), "layout": Param("layout", choice("NCHW", "NHWC"), "NCHW"),
            "method": Param("how", choice("NEAREST_NEIGHBOR", "BILINEAR"), "NEAREST_NEIGHBOR")},
    infer_type=lambda attrs, t: _RESIZE.attr("infer_type")(resize_attrs(attrs, t[0].shape), t),
    pattern=OpPattern.INJECTIVE,
    compute=lambda attrs, inputs, outputs: _RESIZE.attr("compute")(resize_attrs(attrs, inputs[0].shape), inputs,
                                                                   outputs),
    reference=lambda attrs, x: _RESIZE.attr("reference")(resize_attrs(attrs, x.shape), x),
)  # fmt: skip


def _prelu_type(attrs: Attrs, inputs: Types) -> Types:
    data, alpha = inputs
    same_dtype(data, alpha)
    channels = data.shape[resolve_axis(attrs["axis"], data.rank)]
    if alpha.shape != (channels,):
        raise ValueError(f"alpha {show(alpha.shape)} has not one slope for each of the {channels} channels")
    return (data,)


def _prelu_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    x, alpha = inputs
    axis, t = resolve_axis(attrs["axis"], len(x.shape)), x.dtype

    def element(*i: Expr) -> Expr:
        value = te.cast(x[i], t.compute)
        low = value * te.cast(alpha[(i[axis],)], t.compute)
        return te.cast(te.select(value > te.const(0, t.compute), value, low), t)

    return [over(x.shape, "prelu", element)]


def _prelu_array(attrs: Attrs, x: Array, alpha: Array) -> tuple[Array]:
    shape = [-1 if d == attrs["axis"] % x.ndim else 1 for d in range(x.ndim)]
    return (np.where(x > 0, x, x * alpha.reshape(shape)),)


register(
    "prelu_channels", inputs=["data", "alpha"], doc="x, below 0 alpha[channel] * x.", pattern=OpPattern.BROADCAST,
    params={"axis": Param("of the channels", integer, 1)}, infer_type=_prelu_type, compute=_prelu_compute,
    reference=_prelu_array, inplace=((0, 0),),
)  # fmt: skip
