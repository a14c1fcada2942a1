"""Sequences whose length is known while importing: they are no values of the graph, but lists of its values."""

from __future__ import annotations

import numpy as np

from nnvm.dtype import I64
from nnvm.frontend.onnx.convert.shape import cut
from nnvm.frontend.onnx.table import Context, Tensors, Unsupported, Value, converts, emit, materialise, of_array

__all__ = ["LONGEST_SEQUENCE"]

#: Tensors of a sequence, at most.
LONGEST_SEQUENCE = 1024


def _sequence(c: Context, i: int = 0) -> tuple[Value, ...]:
    value = c.inputs[i] if i < len(c.inputs) else None
    if not isinstance(value, Tensors):
        raise Unsupported(f"input {i} is no sequence")
    return value.items


def _tensor(c: Context, i: int) -> Value:
    value = c.inputs[i]
    if value is None or isinstance(value, Tensors):
        raise Unsupported(f"input {i} is no tensor")
    return value


def _position(c: Context, i: int, length: int, default: int) -> int:
    """A position from 0 to before `length`; negative ones count from the end."""
    if not c.has(i):
        return default
    (at,) = c.ints(i, "the position")
    if not -length <= at < length:
        raise Unsupported(f"position {at} in a sequence of {length}")
    return at % max(length, 1)


@converts("SequenceConstruct")
def _construct(c: Context) -> Tensors:
    return Tensors(tuple(_tensor(c, i) for i in range(len(c.inputs))))


@converts("SequenceEmpty")
def _empty(c: Context) -> Tensors:
    return Tensors(())


@converts("SequenceInsert")
def _insert(c: Context) -> Tensors:
    items = _sequence(c)
    if len(items) >= LONGEST_SEQUENCE:
        raise Unsupported(f"a sequence of more than {LONGEST_SEQUENCE} tensors")
    at = len(items)
    if c.has(2):
        (given,) = c.ints(2, "the position")
        if not -len(items) <= given <= len(items):
            raise Unsupported(f"position {given} in a sequence of {len(items)}")
        at = given + len(items) if given < 0 else given
    return Tensors((*items[:at], _tensor(c, 1), *items[at:]))


@converts("SequenceErase")
def _erase(c: Context) -> Tensors:
    items = _sequence(c)
    if not items:
        raise Unsupported("nothing to take out of an empty sequence")
    at = _position(c, 1, len(items), len(items) - 1)
    return Tensors((*items[:at], *items[at + 1 :]))


@converts("SequenceAt")
def _at(c: Context) -> Value:
    items = _sequence(c)
    if not items:
        raise Unsupported("a position in an empty sequence")
    return items[_position(c, 1, len(items), 0)]


@converts("SequenceLength")
def _length(c: Context) -> Value:
    return of_array(np.asarray(len(_sequence(c))), I64)


@converts("SplitToSequence")
def _split_to_sequence(c: Context) -> Tensors:
    x = c[0]
    axis = c.axis(0, x.type.rank)
    size = x.type.shape[axis]
    if not isinstance(size, int):
        raise Unsupported("pieces of an axis of symbolic size")
    keep, sizes = bool(c.attrs.get("keepdims", 1)), [1] * min(size, LONGEST_SEQUENCE + 1)
    if c.has(1):
        keep, given = True, c.ints(1, "split")
        is_scalar = c[1].type.rank == 0
        if is_scalar and given[0] < 1:
            raise Unsupported(f"pieces of {given[0]}")
        sizes = [min(given[0], size - a) for a in range(0, size, given[0])] if is_scalar else list(given)
        if sum(sizes) != size or min(sizes, default=0) < 0:
            raise Unsupported(f"pieces of {sizes} of {size}")
    if len(sizes) > LONGEST_SEQUENCE:
        raise Unsupported(f"a sequence of more than {LONGEST_SEQUENCE} tensors")
    items, begin = [], 0
    for n in sizes:
        part = cut(x, axis, begin, begin + n)
        shape = (*x.type.shape[:axis], *x.type.shape[axis + 1 :])
        items.append(part if keep else emit("reshape", part, shape=shape))
        begin += n
    return Tensors(tuple(items))


@converts("ConcatFromSequence")
def _concat_from_sequence(c: Context) -> Value:
    parts = [materialise(v) for v in _sequence(c)]
    if not parts:
        raise Unsupported("nothing to join in an empty sequence")
    if c.attrs.get("new_axis", 0):
        axis = c.axis(0, parts[0].type.rank + 1)
        parts = [emit("expand_dims", p, axis=axis) for p in parts]
    else:
        axis = c.axis(0, parts[0].type.rank)
    return emit("concatenate", *parts, axis=axis)
