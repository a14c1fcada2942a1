"""Reductions and scans."""

from __future__ import annotations

from collections.abc import Callable

from nnvm.dtype import BF16
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.table import Context, Unsupported, axis_of, converts, emit, scalar
from nnvm.graph import NodeEntry, apply
from nnvm.ops.shape_rules import reduced_shape

__all__: list[str] = []

Step = Callable[[NodeEntry], NodeEntry]


def _same(x: NodeEntry) -> NodeEntry:
    return x


def _square(x: NodeEntry) -> NodeEntry:
    return emit("multiply", x, x)


def _apply(op: str) -> Step:
    return lambda x: emit(op, x)


#: before, reduction, after
REDUCE: dict[str, tuple[Step, str, Step]] = {
    "ReduceSum": (_same, "sum", _same), "ReduceMean": (_same, "mean", _same), "ReduceProd": (_same, "prod", _same),
    "ReduceMax": (_same, "max", _same), "ReduceMin": (_same, "min", _same),
    "ReduceL1": (_apply("abs"), "sum", _same), "ReduceL2": (_square, "sum", _apply("sqrt")),
    "ReduceSumSquare": (_square, "sum", _same), "ReduceLogSum": (_same, "sum", _apply("log")),
    "ReduceLogSumExp": (_same, "logsumexp", _same),
}  # fmt: skip


@converts(*REDUCE)
def reduce(c: Context) -> NodeEntry:
    x = c[0]
    before, op, after = REDUCE[c.op]
    axes = c.axes(1, x.type.rank)
    t = x.type.dtype
    if not axes and c.attrs.get("noop_with_empty_axes", 0):
        return after(before(x))
    if op in ("mean", "logsumexp") and not t.is_float:
        raise Unsupported(f"elements of type {t}")
    if t.is_bool:
        op = {"max": "any", "min": "all"}.get(op, op)
    if op in ("max", "min") and x.type.numel == 0:
        if t == BF16:
            raise Unsupported("the least bfloat16 value")
        shape = reduced_shape(x.type.shape, axes or tuple(range(x.type.rank)), bool(c.attrs.get("keepdims", 1)))
        return emit("full", shape=shape, dtype=t, value=t.min if op == "max" else t.max)
    kept = {"axis": axes or None, "keepdims": bool(c.attrs.get("keepdims", 1))}
    return cast(after(cast(emit(op, before(x), **kept), t)), t)


@converts("ArgMax", "ArgMin")
def arg(c: Context) -> NodeEntry:
    x = c[0]
    axis, op = c.axis(0, x.type.rank), c.op.lower()
    keepdims = bool(c.attrs.get("keepdims", 1))
    if not c.attrs.get("select_last_index", 0):
        return emit(op, x, axis=axis, keepdims=keepdims)
    found = emit(op, emit("flip", x, axes=(axis,)), axis=axis, keepdims=keepdims)
    size = x.type.shape[axis]
    if not isinstance(size, int):
        raise Unsupported("the last index on a symbolic axis")
    return emit("subtract", scalar(size - 1, found.type.dtype), found)


@converts("CumSum", "CumProd")
def scan(c: Context) -> NodeEntry:
    x = c[0]
    axis = axis_of(c.ints(1, "axis")[0], x.type.rank)
    if c.attrs.get("reverse", 0):
        x = emit("flip", x, axes=(axis,))
    if c.attrs.get("exclusive", 0):
        width = [(0, 0)] * x.type.rank
        width[axis] = (1, -1)
        x = emit("pad", x, pad_width=tuple(width), mode="constant", value=0 if c.op == "CumSum" else 1)
    x = emit(c.op.lower(), x, axis=axis, dtype=x.type.dtype)
    return emit("flip", x, axes=(axis,)) if c.attrs.get("reverse", 0) else x


@converts("TopK")
def topk(c: Context) -> list[NodeEntry]:
    x = c[0]
    axis = c.axis(-1, x.type.rank)
    (k,) = c.ints(1, "k") if c.opset >= 10 else (c.attrs["k"],)
    node = apply("topk", [x], {"k": k, "axis": axis, "largest": bool(c.attrs.get("largest", 1))})
    return list(node.outputs)


@converts("Hardmax")
def hardmax(c: Context) -> NodeEntry:
    x, (values, axis) = c[0], (c[0], c.axis(-1 if c.opset >= 13 else 1, c[0].type.rank))
    if c.opset < 13 and axis != x.type.rank - 1:
        raise Unsupported("hardmax over several axes")
    best = emit("argmax", values, axis=axis, keepdims=False)
    depth = x.type.shape[axis]
    if not isinstance(depth, int):
        raise Unsupported("a symbolic axis")
    hot = emit("one_hot", best, depth=depth)
    order = list(range(x.type.rank - 1))
    order.insert(axis, x.type.rank - 1)
    return cast(emit("transpose", hot, axes=tuple(order)), x.type.dtype)
