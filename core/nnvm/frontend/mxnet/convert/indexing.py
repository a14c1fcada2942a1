"""Reading at indices, which are floats as often as integers."""

from __future__ import annotations

from nnvm.dim import Dim
from nnvm.dtype import I64
from nnvm.frontend.mxnet.table import Context, Refused, axis_of, cast, converts, cut, emit, like
from nnvm.graph import NodeEntry

__all__: list[str] = []


@converts("Embedding", "_contrib_SparseEmbedding")
def _embedding(c: Context) -> NodeEntry:
    wanted = (c.attrs.integer("input_dim"), c.attrs.integer("output_dim"))
    if c[1].type.shape != wanted:
        raise Refused(f"a weight {c[1].type}, which should be {wanted[0]} x {wanted[1]}")
    return emit("take", c[1], cast(c[0], I64), axis=0, mode="clip")


@converts("take")
def _take(c: Context) -> NodeEntry:
    mode = c.attrs.choice("mode", ("clip", "wrap", "raise"), "clip")
    axis = axis_of(c.attrs.integer("axis", 0), c[0].type.rank)
    index, size = cast(c[1], I64), c[0].type.shape[axis]
    if mode == "wrap":
        if not isinstance(size, int):
            raise Refused("indices that wrap around a symbolic size")
        index, mode = emit("remainder", index, like(size, index)), "clip"
    return emit("take", c[0], index, axis=axis, mode=mode)


@converts("batch_take")
def _batch_take(c: Context) -> NodeEntry:
    rows = c[0].type.shape[0]
    picked = emit("gather", c[0], emit("reshape", cast(c[1], I64), shape=(rows, 1)), axis=1)
    return emit("reshape", picked, shape=(rows,))


@converts("pick")
def _pick(c: Context) -> NodeEntry:
    x, axis = c[0], axis_of(c.attrs.integer("axis", -1), c[0].type.rank)
    size = x.type.shape[axis]
    if c.attrs.choice("mode", ("clip", "wrap"), "clip") == "wrap" or not isinstance(size, int):
        raise Refused("mode='wrap', or a symbolic size")
    one = (*x.type.shape[:axis], 1, *x.type.shape[axis + 1 :])
    index = emit("clip", emit("reshape", cast(c[1], I64), shape=one), a_min=0, a_max=size - 1)
    picked = emit("gather", x, index, axis=axis)
    rest = (*one[:axis], *one[axis + 1 :]) or (1,)
    return picked if c.attrs.flag("keepdims", False) else emit("reshape", picked, shape=rest)


@converts("gather_nd")
def _gather_nd(c: Context) -> NodeEntry:
    """Row i of the indices counts along axis i."""
    x, indices = c[0], cast(c[1], I64)
    count, *rest = indices.type.shape
    if not isinstance(count, int) or not 1 <= count <= x.type.rank:
        raise Refused(f"{count} indices of {x.type.rank} axes")
    rows = [emit("reshape", cut(indices, 0, i, i + 1), shape=tuple(rest)) for i in range(count)]
    return emit("index", x, *rows, axes=tuple(range(count)))


@converts("where")
def _where(c: Context) -> NodeEntry:
    condition, x, y = c[0], c[1], c[2]
    holds = emit("not_equal", condition, like(0, condition))
    if condition.type.shape != x.type.shape:  # one condition for each row
        holds = emit("reshape", holds, shape=(*condition.type.shape, *(1,) * (x.type.rank - 1)))
    return emit("where", holds, x, y)


@converts("SequenceReverse", "SequenceLast", "SequenceMask")
def _sequence(c: Context) -> NodeEntry:
    """Sequences along an axis; of one length, or of lengths that the second input gives (for a mask)."""
    x, axis = c[0], axis_of(c.attrs.integer("axis", 0), c[0].type.rank)
    if not c.attrs.flag("use_sequence_length", False):
        if c.op == "SequenceMask":
            return x
        if c.op == "SequenceReverse":
            return emit("flip", x, axes=(axis,))
        size = x.type.shape[axis]
        last = cut(x, axis, size - 1, size)
        return emit("reshape", last, shape=(*x.type.shape[:axis], *x.type.shape[axis + 1 :]))
    if c.op != "SequenceMask" or axis > 1:
        raise Refused("lengths of sequences")
    length, t = x.type.shape[axis], c[1].type.dtype
    ones: list[Dim] = [1] * x.type.rank
    ones[1 - axis] = c[1].type.shape[0]
    steps: list[Dim] = [1] * x.type.rank
    steps[axis] = length
    position = emit("reshape", emit("arange", start=0, step=1, length=length, dtype=t), shape=tuple(steps))
    runs = emit("less", position, emit("reshape", c[1], shape=tuple(ones)))
    return emit("where", runs, x, like(c.attrs.number("value", 0.0), x))
