"""Interleaving: parts whose elements take turns along axes, and make up the output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnvm import te
from nnvm.dim import Dim, Shape, ceildiv
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.types import TensorType
from nnvm.ops.bodies import over, read
from nnvm.ops.params import integers
from nnvm.ops.shape_rules import same_dtype, show
from nnvm.te.expr import Expr
from nnvm.te.tensor import Tensor

__all__: list[str] = []

Attrs = Mapping[str, Any]
Array = np.ndarray[Any, Any]
Types = tuple[TensorType, ...]


def _turns(attrs: Attrs) -> list[tuple[int, ...]]:
    """Of each part, its turn along each axis."""
    return list(np.ndindex(*attrs["steps"]))


def _part(attrs: Attrs, whole: Sequence[Dim], turn: Sequence[int]) -> Shape:
    """The shape of the part with that turn."""
    shape = list(whole)
    for a, s, q in zip(attrs["axes"], attrs["steps"], turn):
        shape[a] = ceildiv(whole[a] - q, s)
    return tuple(shape)


def _type(attrs: Attrs, inputs: Types) -> Types:
    axes, steps = attrs["axes"], attrs["steps"]
    rank = inputs[0].rank if inputs else 0
    if len(axes) != len(steps) or len(set(axes)) != len(axes) or not all(0 <= a < rank for a in axes):
        raise ValueError(f"axes {axes} and steps {steps} do not fit data of {rank} axes")
    if any(s < 1 for s in steps) or len(inputs) != math.prod(steps):
        raise ValueError(f"{len(inputs)} parts for steps {steps}")
    same_dtype(*inputs)
    whole = list(inputs[0].shape)
    turns = _turns(attrs)
    for a, axis in enumerate(axes):
        alone = [t for t, turn in zip(inputs, turns) if not any(turn[:a] + turn[a + 1 :])]
        whole[axis] = sum((t.shape[axis] for t in alone if t.rank == rank), 0)
    for t, turn in zip(inputs, turns):
        if t.shape != _part(attrs, whole, turn):
            raise ValueError(f"part {turn} of {show(tuple(whole))} in steps {steps} along {axes} has shape "
                             f"{show(_part(attrs, whole, turn))}, not {show(t.shape)}")  # fmt: skip
    return (inputs[0].with_shape(tuple(whole)),)


def _compute(attrs: Attrs, inputs: list[Tensor], outputs: Types) -> list[Tensor]:
    axes, steps = attrs["axes"], attrs["steps"]

    def pick(i: tuple[Expr, ...], parts: Sequence[Tensor], axis: int) -> Expr:
        """The element at `i` of the parts whose turns along the axes before `axis` are chosen."""
        if axis == len(axes):
            return read(parts[0], *i)
        size = len(parts) // steps[axis]
        a, turn = axes[axis], i[axes[axis]] % steps[axis]
        at = (*i[:a], i[a] // steps[axis], *i[a + 1 :])

        def among(low: int, high: int) -> Expr:
            if high - low == 1:
                return pick(at, parts[low * size : high * size], axis + 1)
            middle = (low + high) // 2
            return te.select(turn < te.const(middle), among(low, middle), among(middle, high))

        return among(0, steps[axis])

    return [over(outputs[0].shape, "interleave", lambda *i: pick(i, inputs, 0))]


def _array(attrs: Attrs, *parts: Array) -> tuple[Array]:
    whole = list(parts[0].shape)
    turns = _turns(attrs)
    for a, axis in enumerate(attrs["axes"]):
        whole[axis] = sum(p.shape[axis] for p, turn in zip(parts, turns) if not any(turn[:a] + turn[a + 1 :]))
    out = np.empty(whole, parts[0].dtype)
    for part, turn in zip(parts, turns):
        where = [slice(None)] * out.ndim
        for a, s, q in zip(attrs["axes"], attrs["steps"], turn):
            where[a] = slice(q, None, s)
        out[tuple(where)] = part
    return (out,)


def places(attrs: Attrs, parts: Sequence[Shape], strides: Sequence[Dim]) -> list[tuple[Dim, tuple[Dim, ...]]]:
    """Where each part lies in a whole of these strides."""
    found: list[tuple[Dim, tuple[Dim, ...]]] = []
    for turn in _turns(attrs):
        begin: Dim = 0
        own = list(strides)
        for a, s, q in zip(attrs["axes"], attrs["steps"], turn):
            begin, own[a] = begin + strides[a] * q, strides[a] * s
        found.append((begin, tuple(own)))
    return found


register(
    "interleave", inputs=["*data"],
    params={"axes": Param("axes along which elements take turns", integers),
            "steps": Param("parts that take turns along each axis; the last axis' turn changes first", integers),
            "in_place": Param("kernels write the parts where the whole lies", lambda v: bool(v), False)},
    doc="Element o along an axis is element o // step of the part whose turn is o % step.",
    infer_type=_type, pattern=OpPattern.INJECTIVE, compute=_compute, reference=_array, places=places,
)  # fmt: skip
