"""Ops that move elements without changing them: all are injective."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, Shape, ceildiv, dim_min, numel
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over, read, read_broadcast
from nnvm.ops.params import choice, dim, dims, integer, integers, optional
from nnvm.ops.shape_rules import broadcast_shapes, known, resolve_axes, resolve_axis, same_dtype, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__ = ["inject", "regroup", "slice_ranges"]

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def regroup(source: Shape, target: Shape, indices: Sequence[Expr]) -> tuple[Expr, ...]:
    """Indices into a contiguous tensor of shape `source` of the element at `indices` of its view of shape `target`.

    Dimensions are matched in the smallest groups of equal size, so that an unchanged one keeps its plain index.
    """
    out: list[Expr] = []
    s = t = 0
    while s < len(source) or t < len(target):
        s0, t0 = s, t
        left: Dim = 1
        right: Dim = 1
        if s < len(source):
            left, s = source[s], s + 1
        if t < len(target):
            right, t = target[t], t + 1
        while left != right:
            if t < len(target) and (s == len(source) or _grows_target(left, right)):
                right, t = right * target[t], t + 1
            elif s < len(source):
                left, s = left * source[s], s + 1
            else:
                raise ValueError(f"{show(source)} and {show(target)} have different numbers of elements")
        out.extend(_regroup_span(source[s0:s], target[t0:t], indices[t0:t]))
    return tuple(out)


def _grows_target(left: Dim, right: Dim) -> bool:
    """Whether the next dimension to multiply in is the target's: its group is the smaller one so far."""
    if isinstance(left, int) and isinstance(right, int):
        return right < left
    return left % right == 0 or isinstance(right, int)


def _regroup_span(source: Shape, target: Shape, indices: Sequence[Expr]) -> list[Expr]:
    if len(source) == 1 and len(target) == 1:
        return list(indices)
    linear: Expr = te.const(0)
    for size, i in zip(target, indices):
        if size != 1:
            linear = linear * te.const(size) + i
    out: list[Expr] = []
    for size in reversed(source[1:]):
        out.append(te.const(0) if size == 1 else linear % te.const(size))
        linear = linear if size == 1 else linear // te.const(size)
    if source:
        out.append(te.const(0) if source[0] == 1 else linear)
    return out[::-1]


def inject(name: str, shape: Shape, x: Tensor, index: Callable[[tuple[Expr, ...]], Sequence[Expr]]) -> list[Tensor]:
    """The tensor of `shape` whose element i is `x` at `index(i)`, as the single output of an op."""
    return [over(shape, name, lambda *i: x[tuple(index(i))])]


def _view(name: str, shape_of: Callable[[Attrs, TensorType], Shape], doc: str, aliases: Sequence[str] = (),
          **params: Param) -> None:  # fmt: skip
    """Registers an op whose output is its input under another shape."""

    def infer_type(attrs: Attrs, inputs: Types) -> Types:
        shape = shape_of(attrs, inputs[0])
        if numel(shape) != inputs[0].numel:
            raise ValueError(f"{show(inputs[0].shape)} cannot take the shape {show(shape)}: {inputs[0].numel} elements "
                             f"against {numel(shape)}")  # fmt: skip
        return (inputs[0].with_shape(shape),)

    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        (x,), shape = inputs, outputs[0].shape
        return inject(name, shape, x, lambda i: regroup(x.shape, shape, i))

    def reference(attrs: Attrs, x: Array) -> tuple[Array]:
        # an array's shape is static, so is the view's
        return (x.reshape([known(d) for d in shape_of(attrs, TensorType(x.shape))]),)

    register(name, inputs=["data"], params=params, doc=doc, aliases=aliases, infer_type=infer_type, compute=compute,
             pattern=OpPattern.INJECTIVE, view=True, reference=reference, inplace=((0, 0),))  # fmt: skip


def _reshape_shape(attrs: Attrs, x: TensorType) -> Shape:
    shape = list(attrs["shape"])
    if -1 not in shape:
        return tuple(shape)
    if shape.count(-1) > 1:
        raise ValueError(f"only one dimension of the shape {show(shape)} may be -1")
    rest = numel(tuple(d for d in shape if d != -1))
    if rest == 0 or x.numel % rest != 0:
        raise ValueError(f"{show(x.shape)} cannot take the shape {show(shape)}")
    shape[shape.index(-1)] = x.numel // rest
    return tuple(shape)


def _expand_shape(attrs: Attrs, x: TensorType) -> Shape:
    axis = resolve_axis(attrs["axis"], x.rank + 1)
    return (*x.shape[:axis], *(1,) * attrs["num_newaxis"], *x.shape[axis:])


def _squeeze_shape(attrs: Attrs, x: TensorType) -> Shape:
    if attrs["axis"] is None:
        return tuple(d for d in x.shape if d != 1)
    axes = resolve_axes(attrs["axis"], x.rank)
    if bad := [a for a in axes if x.shape[a] != 1]:
        raise ValueError(f"axis {bad[0]} of {show(x.shape)} has extent {x.shape[bad[0]]}, not 1")
    return tuple(d for i, d in enumerate(x.shape) if i not in axes)


def _flatten_shape(attrs: Attrs, x: TensorType) -> Shape:
    if x.rank == 0:
        return (1, 1)
    return (x.shape[0], numel(x.shape[1:]))


_view("reshape", _reshape_shape, "The elements in the same order under another shape.",
      shape=Param("new shape; one dimension may be -1: what remains", dims))  # fmt: skip
_view("expand_dims", _expand_shape, "New axes of extent 1.", axis=Param("where they go", integer),
      num_newaxis=Param("how many", integer, 1))  # fmt: skip
_view("squeeze", _squeeze_shape, "Axes of extent 1 dropped.",
      axis=Param("which; None: all of extent 1", optional(integers), None))  # fmt: skip
_view("flatten", _flatten_shape, "All axes but the first made one.")


def _permutation(attrs: Attrs, rank: int) -> tuple[int, ...]:
    axes = attrs["axes"]
    if axes is None:
        return tuple(range(rank))[::-1]
    out = tuple(resolve_axis(a, rank) for a in axes)
    if sorted(out) != list(range(rank)):
        raise ValueError(f"axes {tuple(axes)} are no permutation of {rank} axes")
    return out


def _transpose_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    axes = _permutation(attrs, len(x.shape))
    where = [axes.index(d) for d in range(len(axes))]
    return inject("transpose", outputs[0].shape, x, lambda i: [i[w] for w in where])


register(
    "transpose", inputs=["data"], doc="Axes permuted: output axis i is input axis axes[i].",
    params={"axes": Param("a permutation; None: reversed", optional(integers), None),
            "in_place": Param("input: kernels read it where the data lies, by strides; output: they write the data "
                              "where it lies", optional(choice("input", "output")), None)},
    pattern=OpPattern.INJECTIVE,
    infer_type=lambda attrs, t: (t[0].with_shape(tuple(t[0].shape[a] for a in _permutation(attrs, t[0].rank))),),
    compute=_transpose_compute, reference=lambda attrs, x: (np.transpose(x, _permutation(attrs, x.ndim)),),
)  # fmt: skip


def _broadcast_type(attrs: Attrs, inputs: Types) -> Types:
    x, shape = inputs[0], attrs["shape"]
    if len(shape) < x.rank or broadcast_shapes(x.shape, shape) != shape:
        raise ValueError(f"{show(x.shape)} does not broadcast to {show(shape)}")
    return (x.with_shape(shape),)


register(
    "broadcast_to", inputs=["data"], params={"shape": Param("the new shape", dims)}, infer_type=_broadcast_type,
    doc="Repeated along axes of extent 1 and along new leading axes.", pattern=OpPattern.BROADCAST,
    compute=lambda attrs, inputs, outputs: [
        over(outputs[0].shape, "broadcast", lambda *i: read_broadcast(inputs[0], i, outputs[0].shape))],
    reference=lambda attrs, x: (np.broadcast_to(x, attrs["shape"]),),
)  # fmt: skip


def _concatenate_type(attrs: Attrs, inputs: Types) -> Types:
    if not inputs:
        raise ValueError("nothing to concatenate")
    same_dtype(*inputs)
    first = inputs[0]
    axis = resolve_axis(attrs["axis"], first.rank)
    if first.rank == 0:
        raise ValueError("scalars cannot be concatenated")
    total: Dim = 0
    for t in inputs:
        if t.rank != first.rank or any(t.shape[d] != first.shape[d] for d in range(first.rank) if d != axis):
            raise ValueError(f"shapes {show(first.shape)} and {show(t.shape)} differ outside axis {axis}")
        total = total + t.shape[axis]
    return (first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :])),)


def _concatenate_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    axis = resolve_axis(attrs["axis"], len(inputs[0].shape))
    starts: list[Dim] = [0]
    for x in inputs:
        starts.append(starts[-1] + x.shape[axis])

    def pick(i: tuple[Expr, ...], low: int, high: int) -> Expr:
        """A balanced tree of selects between inputs low .. high - 1, so that many inputs stay shallow."""
        if high - low == 1:
            return read(inputs[low], *i[:axis], i[axis] - te.const(starts[low]), *i[axis + 1 :])
        middle = (low + high) // 2
        return te.select(i[axis] < te.const(starts[middle]), pick(i, low, middle), pick(i, middle, high))

    facts = {"sections": (axis, tuple(starts))}
    return [over(outputs[0].shape, "concatenate", lambda *i: pick(i, 0, len(inputs)), facts)]


register(
    "concatenate", inputs=["*data"], infer_type=_concatenate_type,
    params={"axis": Param("along which", integer, 0), "in_place": Param("kernels write the parts where the whole lies",
                                                                       bool, False)},
    doc="The inputs one after the other along an axis.", pattern=OpPattern.INJECTIVE, compute=_concatenate_compute,
    reference=lambda attrs, *arrays: (np.concatenate(arrays, attrs["axis"]),),
)  # fmt: skip


def slice_ranges(attrs: Attrs, shape: Shape) -> list[tuple[Dim, Dim, int]]:
    """(begin, extent, step) per dimension; missing trailing ones are whole. Constants are clamped to the shape."""
    begins, ends, steps = attrs["begin"], attrs["end"], attrs["step"]
    if len(begins) > len(shape) or len(begins) != len(ends) or (steps is not None and len(steps) != len(begins)):
        raise ValueError(f"begin {begins}, end {ends} and step {steps} do not fit the shape {show(shape)}")
    out: list[tuple[Dim, Dim, int]] = []
    for i, size in enumerate(shape):
        step = 1 if steps is None or i >= len(begins) else steps[i]
        if step <= 0:
            raise ValueError(f"step {step} along axis {i} must be positive")
        begin = _bound(begins[i], size, 0) if i < len(begins) else 0
        end = _bound(ends[i], size, size) if i < len(begins) else size
        extent = ceildiv(end - begin, step)
        out.append((begin, max(extent, 0) if isinstance(extent, int) else extent, step))
    return out


def _bound(value: Dim | None, size: Dim, default: Dim) -> Dim:
    if value is None:
        return default
    if isinstance(value, int) and value < 0:
        value = value + size
    if isinstance(value, int) and value <= 0:
        return max(value, 0)
    return dim_min(value, size) if isinstance(value - size, int) else value


def _bounds(value: Any) -> tuple[Dim | None, ...]:
    items = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(None if v is None else dims(v)[0] for v in items)


def _slice_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    ranges = slice_ranges(attrs, x.shape)
    return inject("slice", outputs[0].shape, x, lambda i: [e * s + te.const(b) for e, (b, _, s) in zip(i, ranges)])


def _slice_array(attrs: Attrs, x: Array) -> tuple[Array]:
    where = (
        slice(known(b), known(b + (n - 1) * s + 1) if n else known(b), s) for b, n, s in slice_ranges(attrs, x.shape)
    )
    return (x[tuple(where)],)


register(
    "slice", inputs=["data"], aliases=["strided_slice"],
    doc="A range of each axis: begin, begin + step, ... below end.",
    params={"begin": Param("first index per axis; None: 0; negative: from the end", _bounds),
            "end": Param("end per axis, excluded; None: the size; negative: from the end", _bounds),
            "step": Param("positive step per axis; None: 1", optional(integers), None),
            "in_place": Param("kernels read it where the data lies, through strides", bool, False)},
    infer_type=lambda attrs, t: (t[0].with_shape(tuple(n for _, n, _ in slice_ranges(attrs, t[0].shape))),),
    pattern=OpPattern.INJECTIVE, compute=_slice_compute, reference=_slice_array,
)  # fmt: skip


def _flip_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    axes = resolve_axes(attrs["axes"], len(x.shape))
    return inject(
        "flip", x.shape, x, lambda i: [te.const(x.shape[d] - 1) - e if d in axes else e for d, e in enumerate(i)]
    )


def _checked_axes(attrs: Attrs, inputs: Types) -> Types:
    resolve_axes(attrs["axes"], inputs[0].rank)
    return inputs


register(
    "flip", inputs=["data"], doc="The order along axes reversed.",
    params={"axes": Param("axes turned round", integers)},
    infer_type=_checked_axes, pattern=OpPattern.INJECTIVE, compute=_flip_compute,
    reference=lambda attrs, x: (np.flip(x, resolve_axes(attrs["axes"], x.ndim)),),
)  # fmt: skip


def _shifts(attrs: Attrs, rank: int) -> dict[int, int]:
    shifts, axes = attrs["shifts"], attrs["axes"]
    if len(shifts) != len(axes):
        raise ValueError(f"{len(shifts)} shifts for {len(axes)} axes")
    out: dict[int, int] = {}
    for shift, axis in zip(shifts, axes):
        a = resolve_axis(axis, rank)
        out[a] = out.get(a, 0) + shift
    return out


def _roll_type(attrs: Attrs, inputs: Types) -> Types:
    _shifts(attrs, inputs[0].rank)
    return inputs


def _roll_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,) = inputs
    shifts = _shifts(attrs, len(x.shape))

    def source(d: int, e: Expr) -> Expr:
        size = x.shape[d]
        if d not in shifts or size == 0:
            return e
        if isinstance(size, int):
            turn = shifts[d] % size
            return te.select(e < turn, e + (size - turn), e - turn) if turn else e
        return (e - shifts[d]) % te.const(size)

    return inject("roll", x.shape, x, lambda i: [source(d, e) for d, e in enumerate(i)])


register(
    "roll", inputs=["data"], doc="Elements moved along axes; what leaves at the end comes in at the front.",
    params={"shifts": Param("by how much, per axis given", integers), "axes": Param("along which", integers)},
    infer_type=_roll_type, pattern=OpPattern.INJECTIVE, compute=_roll_compute,
    reference=lambda attrs, x: (np.roll(x, attrs["shifts"], attrs["axes"]),),
)  # fmt: skip


def _triangle(name: str, keep: Callable[[Expr, Expr], Expr], reference: Callable[..., Any], doc: str) -> None:
    def infer_type(attrs: Attrs, inputs: Types) -> Types:
        if inputs[0].rank < 2:
            raise ValueError(f"{name} needs matrices, got {show(inputs[0].shape)}")
        return inputs

    def compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
        (x,), k = inputs, attrs["k"]
        return [over(x.shape, name, lambda *i: te.select(keep(i[-1], i[-2] + te.const(k)), x[i], te.const(0, x.dtype)))]

    register(
        name, inputs=["data"], params={"k": Param("diagonal: 0 main, positive above", dim, 0)}, doc=doc,
        infer_type=infer_type, pattern=OpPattern.INJECTIVE, compute=compute, inplace=((0, 0),),
        reference=lambda attrs, x: (reference(x, attrs["k"]),),
    )  # fmt: skip


_triangle("tril", lambda j, edge: j <= edge, np.tril, "Elements above diagonal k set to 0.")
_triangle("triu", lambda j, edge: j >= edge, np.triu, "Elements below diagonal k set to 0.")


def _repeat_type(attrs: Attrs, inputs: Types) -> Types:
    x = inputs[0]
    axis = resolve_axis(attrs["axis"], x.rank)
    if x.rank == 0 or attrs["repeats"] < 0:
        raise ValueError(f"cannot repeat {show(x.shape)} {attrs['repeats']} times along axis {axis}")
    return (x.with_shape((*x.shape[:axis], x.shape[axis] * attrs["repeats"], *x.shape[axis + 1 :])),)


def _repeat_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    (x,), times = inputs, max(attrs["repeats"], 1)
    axis = resolve_axis(attrs["axis"], len(x.shape))
    return inject("repeat", outputs[0].shape, x, lambda i: [e // times if d == axis else e for d, e in enumerate(i)])


register(
    "repeat", inputs=["data"], doc="Each element several times, side by side, along an axis.",
    params={"repeats": Param("how often", integer), "axis": Param("along which", integer)}, infer_type=_repeat_type,
    pattern=OpPattern.INJECTIVE, compute=_repeat_compute,
    reference=lambda attrs, x: (np.repeat(x, attrs["repeats"], attrs["axis"]),),
)  # fmt: skip


def _slice_scatter_range(attrs: Attrs, shape: Shape) -> tuple[int, Dim, Dim, int]:
    axis = resolve_axis(attrs["axis"], len(shape))
    whole = {"begin": (attrs["start"],), "end": (attrs["end"],), "step": (attrs["step"],)}
    return (axis, *slice_ranges(whole, (shape[axis],))[0])


def _slice_scatter_type(attrs: Attrs, inputs: Types) -> Types:
    data, src = inputs
    same_dtype(data, src)
    axis, _, extent, _ = _slice_scatter_range(attrs, data.shape)
    wanted = (*data.shape[:axis], extent, *data.shape[axis + 1 :])
    if src.shape != wanted:
        raise ValueError(f"src {show(src.shape)} must have the shape of the slice, {show(wanted)}")
    return (data,)


def _slice_scatter_compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    data, src = inputs
    axis, begin, extent, step = _slice_scatter_range(attrs, data.shape)

    def element(*i: Expr) -> Expr:
        j = i[axis] - te.const(begin)
        inside = (j >= 0) & (j < te.const(extent * step - (step - 1)))
        if step != 1:
            inside = inside & (j % step).equal(0)
        return te.select(inside, read(src, *i[:axis], j // step, *i[axis + 1 :]), data[i])

    return [over(data.shape, "slice_scatter", element)]


def _slice_scatter_array(attrs: Attrs, data: Array, src: Array) -> tuple[Array]:
    axis, begin, extent, step = _slice_scatter_range(attrs, data.shape)
    out = data.copy()
    at = np.arange(known(extent)) * step + known(begin)
    np.moveaxis(out, axis, 0)[at] = np.moveaxis(src, axis, 0)
    return (out,)


register(
    "slice_scatter", inputs=["data", "src"], doc="data with the slice start:end:step of an axis replaced by src.",
    params={"axis": Param("along which", integer, 0),
            "start": Param("first index; None: 0", lambda v: _bounds(v)[0], None),
            "end": Param("end, excluded; None: the size", lambda v: _bounds(v)[0], None),
            "step": Param("positive step", integer, 1)},
    infer_type=_slice_scatter_type, pattern=OpPattern.INJECTIVE, compute=_slice_scatter_compute,
    reference=_slice_scatter_array, inplace=((0, 0),),
)  # fmt: skip
