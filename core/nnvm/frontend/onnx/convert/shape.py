"""Operators that move elements, and sizes."""

from __future__ import annotations

import numpy as np

from nnvm.dim import Dim, dim_max, dim_min, is_static, numel
from nnvm.dtype import BF16, F32, I64, f32_to_bf16
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.protos import element_type
from nnvm.frontend.onnx.table import Context, Unsupported, Value, axis_of, converts, counted, emit, of_array, of_dims
from nnvm.graph import NodeEntry
from nnvm.ops.shape_rules import broadcast_shapes

__all__: list[str] = []


@converts("Shape")
def shape(c: Context) -> Value:
    rank = c[0].type.rank
    start, end = (max(0, min(rank, a + rank if a < 0 else a))
                  for a in (c.attrs.get("start", 0), c.attrs.get("end", rank)))  # fmt: skip
    return of_dims(list(c[0].type.shape[start:end]))


@converts("Size")
def size(c: Context) -> Value:
    return of_dims(c[0].type.numel)


@converts("Reshape")
def reshape(c: Context) -> NodeEntry:
    x = c[0]
    given = c.dims(1, "shape")
    if not c.attrs.get("allowzero", 0):
        given = tuple(x.type.shape[i] if d == 0 else d for i, d in enumerate(given))
    if -1 in given:
        rest = numel(tuple(d for d in given if d != -1))
        if rest == 0:
            raise Unsupported("a size that is told from no elements")
        given = tuple(x.type.numel // rest if d == -1 else d for d in given)
    return emit("reshape", x, shape=given)


@converts("Flatten")
def flatten(c: Context) -> NodeEntry:
    s = c[0].type.shape
    axis = c.attrs.get("axis", 1)
    axis = axis + len(s) if axis < 0 else axis
    return emit("reshape", c[0], shape=(numel(s[:axis]), numel(s[axis:])))


@converts("Squeeze")
def squeeze(c: Context) -> NodeEntry:
    s = c[0].type.shape
    axes = c.axes(1, len(s))
    if axes is None:
        axes = tuple(i for i, d in enumerate(s) if d == 1)
    if any(s[a] != 1 for a in axes):
        raise Unsupported(f"axes {axes} of {s} are not all of size 1")
    return emit("reshape", c[0], shape=tuple(d for i, d in enumerate(s) if i not in axes))


@converts("Unsqueeze")
def unsqueeze(c: Context) -> NodeEntry:
    given = c.attrs["axes"] if "axes" in c.attrs else c.ints(1, "axes")
    rank = c[0].type.rank + len(given)
    axes = {axis_of(a, rank) for a in given}
    old = iter(c[0].type.shape)
    return emit("reshape", c[0], shape=tuple(1 if i in axes else next(old) for i in range(rank)))


@converts("Transpose")
def transpose(c: Context) -> NodeEntry:
    return emit("transpose", c[0], axes=tuple(c.attrs.get("perm", range(c[0].type.rank)[::-1])))


@converts("Concat")
def concat(c: Context) -> NodeEntry:
    parts = [c[i] for i in range(len(c.inputs))]
    return emit("concatenate", *parts, axis=axis_of(c.attrs["axis"], parts[0].type.rank))


def cut(x: NodeEntry, axis: int, begin: Dim, end: Dim, step: int = 1) -> NodeEntry:
    s = x.type.shape
    begins: list[Dim] = [0] * len(s)
    ends, steps = list(s), [1] * len(s)
    begins[axis], ends[axis], steps[axis] = begin, end, step
    return emit("slice", x, begin=tuple(begins), end=tuple(ends), step=tuple(steps))


@converts("Split")
def split(c: Context) -> list[NodeEntry | None]:
    x = c[0]
    axis = c.axis(0, x.type.rank)
    total = x.type.shape[axis]
    sizes: tuple[Dim, ...]
    if "split" in c.attrs:
        sizes = c.attrs["split"]
    elif c.has(1):
        sizes = c.dims(1, "split")
    else:
        count = c.attrs.get("num_outputs", len(c.outputs))
        each = -(-total // count)
        sizes = (each,) * (count - 1) + (total - each * (count - 1),)
    if sum(sizes) != total:  # type: ignore[comparison-overlap]
        raise Unsupported(f"pieces of {', '.join(map(str, sizes))} of an axis of {total}")
    parts: list[NodeEntry | None] = []
    begin: Dim = 0
    for n in sizes:
        parts.append(cut(x, axis, begin, begin + n))
        begin = begin + n
    return parts


@converts("Slice")
def slice_(c: Context) -> NodeEntry:
    x = c[0]
    if c.opset < 10:
        begins, ends = c.attrs["starts"], c.attrs["ends"]
        axes, steps = c.attrs.get("axes", range(len(begins))), (1,) * len(begins)
    else:
        begins, ends = c.dims(1, "starts"), c.dims(2, "ends")
        axes = c.ints(3, "axes") if c.has(3) else range(len(begins))
        steps = c.ints(4, "steps") if c.has(4) else (1,) * len(begins)
    for a, begin, end, step in zip(axes, begins, ends, steps):
        axis = axis_of(a, x.type.rank)
        n = x.type.shape[axis]
        if isinstance(n, int) and is_static((begin, end)):
            taken = range(n)[begin:end:step]
            if step < 0 and taken:
                x = cut(x, axis, taken[-1], taken[0] + 1)
                x = emit("flip", x, axes=(axis,))
                x = cut(x, axis, 0, x.type.shape[axis], -step) if step != -1 else x
            else:
                x = cut(x, axis, taken.start if taken else 0, taken.stop if taken else 0, max(step, 1))
            continue
        x = _cut_symbolic(x, axis, n, begin, end, step)
    return x


def _cut_symbolic(x: NodeEntry, axis: int, n: Dim, begin: Dim, end: Dim, step: int) -> NodeEntry:
    """The cases in which no comparison with the symbolic size decides anything."""

    def bound(d: Dim) -> Dim:
        if isinstance(d, int) and d >= 1 << 30:
            return n
        if isinstance(d, int) and d < 0:
            return dim_max(n + d, 0)
        return dim_min(d, n)

    if step < 1 or (not isinstance(begin, int) and begin != n):
        raise Unsupported("a slice with such bounds on a symbolic axis")
    first, last = bound(begin), bound(end)
    return cut(x, axis, first, dim_max(first, last), step)


@converts("Pad")
def pad(c: Context) -> NodeEntry:
    x = c[0]
    rank = x.type.rank
    mode = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}.get(c.attrs.get("mode", "constant"), "constant")
    value: float = 0
    if c.opset < 11:
        pads, value, axes = tuple(c.attrs["pads"]), c.attrs.get("value", 0.0), tuple(range(rank))
    else:
        pads = c.ints(1, "pads")
        if c.has(2) and mode == "constant":
            value = c.value(2, "constant_value").ravel()[0].item()
        axes = tuple(axis_of(a, rank) for a in c.ints(3, "axes")) if c.has(3) else tuple(range(rank))
    width = [(0, 0)] * rank
    for i, a in enumerate(axes):
        width[a] = (pads[i], pads[i + len(axes)])
    return emit("pad", x, pad_width=tuple(width), mode=mode, value=value)


@converts("Expand")
def expand(c: Context) -> NodeEntry:
    return emit("broadcast_to", c[0], shape=broadcast_shapes(c[0].type.shape, c.dims(1, "shape")))


@converts("Tile")
def tile(c: Context) -> NodeEntry:
    s, repeats = c[0].type.shape, c.dims(1, "repeats")
    apart = emit("reshape", c[0], shape=tuple(d for n in s for d in (1, n)))
    wide = emit("broadcast_to", apart, shape=tuple(d for r, n in zip(repeats, s) for d in (r, n)))
    return emit("reshape", wide, shape=tuple(r * n for r, n in zip(repeats, s)))


@converts("DepthToSpace")
def depth_to_space(c: Context) -> NodeEntry:
    n, ch, h, w = c[0].type.shape
    b = c.attrs["blocksize"]
    if c.attrs.get("mode", "DCR") == "DCR":
        x = emit("reshape", c[0], shape=(n, b, b, ch // (b * b), h, w))
        x = emit("transpose", x, axes=(0, 3, 4, 1, 5, 2))
    else:
        x = emit("reshape", c[0], shape=(n, ch // (b * b), b, b, h, w))
        x = emit("transpose", x, axes=(0, 1, 4, 2, 5, 3))
    return emit("reshape", x, shape=(n, ch // (b * b), h * b, w * b))


@converts("SpaceToDepth")
def space_to_depth(c: Context) -> NodeEntry:
    n, ch, h, w = c[0].type.shape
    b = c.attrs["blocksize"]
    x = emit("reshape", c[0], shape=(n, ch, h // b, b, w // b, b))
    if c.attrs.get("mode", "DCR") == "DCR":
        x = emit("transpose", x, axes=(0, 3, 5, 1, 2, 4))
    else:
        x = emit("transpose", x, axes=(0, 1, 3, 5, 2, 4))
    return emit("reshape", x, shape=(n, ch * b * b, h // b, w // b))


@converts("ConstantOfShape")
def constant_of_shape(c: Context) -> NodeEntry:
    array, dtype = c.attrs.get("value", (np.zeros(1, np.float32), F32))
    if dtype == BF16:
        raise Unsupported("bfloat16 constants")
    return emit("full", shape=c.dims(0, "shape"), dtype=dtype, value=array.ravel()[0].item())


@converts("EyeLike")
def eye_like(c: Context) -> NodeEntry:
    s = c[0].type.shape
    if not is_static(s):
        raise Unsupported("a symbolic shape")
    dtype = element_type(c.attrs["dtype"]) if "dtype" in c.attrs else c[0].type.dtype
    return of_array(np.eye(*s, k=c.attrs.get("k", 0)).astype(dtype.numpy), dtype)  # type: ignore[call-overload]


@converts("Range")
def range_(c: Context) -> NodeEntry:
    dtype = c[0].type.dtype
    if dtype == I64:
        start, limit, step = (c.dims(i, "the range")[0] for i in range(3))
        if not is_static((start, limit, step)) and not (isinstance(step, int) and step > 0 and start == 0):
            raise Unsupported("such a range of symbolic length")
        length: Dim = -(-(limit - start) // step)
        length = max(0, length) if isinstance(length, int) else length
        return emit("arange", start=start, step=step, length=length, dtype=dtype)
    start, limit, step = (c.value(i, "the range").ravel()[0] for i in range(3))
    count = counted(max(0, int(np.ceil((float(limit) - float(start)) / float(step)))), "a range")
    if dtype == BF16:
        return of_array(f32_to_bf16(np.float32(start) + np.arange(count, dtype=np.float32) * np.float32(step)), BF16)
    return of_array((start + np.arange(count) * step).astype(dtype.numpy), dtype)


@converts("Trilu")
def trilu(c: Context) -> NodeEntry:
    k = c.ints(1, "k")[0] if c.has(1) else 0
    return emit("triu" if c.attrs.get("upper", 1) else "tril", c[0], k=k)


@converts("OneHot")
def one_hot(c: Context) -> NodeEntry:
    indices, values = c[0], c[2]
    (depth,) = (int(d) for d in c.value(1, "depth").ravel())
    axis = axis_of(c.attrs.get("axis", -1), indices.type.rank + 1)
    index = cast(indices, I64)
    n = of_array(np.asarray(depth, np.int64), I64)
    index = emit("where", emit("less", index, of_array(np.asarray(0, np.int64), I64)), emit("add", index, n), index)
    index = emit("expand_dims", index, axis=indices.type.rank)
    hot = emit("equal", index, of_array(np.arange(counted(depth, "a depth")), I64))
    order = list(range(indices.type.rank))
    order.insert(axis, indices.type.rank)
    hot = emit("transpose", hot, axes=tuple(order))
    off, on = (emit("reshape", cut(values, 0, i, i + 1), shape=()) for i in range(2))
    return emit("where", hot, on, off)
