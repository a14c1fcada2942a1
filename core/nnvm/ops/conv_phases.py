"""Transposed convolutions taken apart: an ordinary convolution for each phase of the output.

Along one axis, output o takes input i through kernel element t where ``i * step + t * dilation == o + low padding``.
For the outputs q, q + step, ... these are always the same elements, at inputs next to each other (`dilation / gcd`
apart): a convolution of stride 1, with these elements turned round. Nothing is multiplied by inserted zeros, and the
results of the phases lie between each other. (Shi et al., "Is the deconvolution layer the same as a convolutional
layer?", 2016.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm.dim import Dim, ceildiv
from nnvm.graph.node import Node, NodeEntry, apply, constant
from nnvm.graph.types import TensorType
from nnvm.ops.nn_conv import per_axis
from nnvm.ops.shape_rules import known

__all__ = ["by_phases"]

_LAYOUTS = ("data_layout", "kernel_layout", "out_layout")

#: More phases are channels of one convolution, where they can be: its result is moved, but the data are read once.
MANY_PHASES = 16
#: More convolutions than that are not made of one.
MOST_PHASES = 64


@dataclass(frozen=True)
class _Phase:
    """One of the phases along one axis.

    Attributes:
        taps: its elements of the kernel, evenly spaced; none: nothing reaches its outputs.
        dilation: distance of the inputs of neighbouring taps.
        padding: zeros before and after the data, negative where data is left out.
        extent: how many outputs it has.
    """

    taps: range
    dilation: int
    padding: tuple[Dim, Dim]
    extent: Dim


def _phases(n: Dim, kernel: int, step: int, dilation: int, low: int, out: Dim) -> list[_Phase]:
    common = math.gcd(step, dilation)
    spacing, apart = step // common, dilation // common
    found = []
    for q in range(step):
        at = q + low
        first = next((t for t in range(min(spacing, kernel)) if (at - t * dilation) % step == 0), kernel)
        taps, extent = range(first, kernel, spacing), ceildiv(out - q, step)
        before = -((at - taps[-1] * dilation) // step) if taps else 0
        after = extent + apart * (len(taps) - 1) - before - n if taps else 0
        found.append(_Phase(taps, apart, (before, after), extent))
    return found


def by_phases(node: Node) -> NodeEntry | None:
    """A transposed convolution in the plain layouts as convolutions between each other; None where it stays: a phase
    without outputs, or very many of them."""
    (data, weight), out = node.inputs[:2], node.outputs[0].type
    rank, attrs = weight.type.rank - 2, node.attrs
    if attrs["channels"] is not None or any(attrs[k] not in (None, node.op.params[k].default) for k in _LAYOUTS):
        return None
    steps, padding, dilation = (per_axis(attrs[k], rank, k) for k in ("strides", "padding", "dilation"))
    kernel = [known(k) for k in weight.type.shape[2:]]
    count, even = math.prod(steps), all(k % s == 0 and d == 1 for k, s, d in zip(kernel, steps, dilation))
    if count > MANY_PHASES and even:
        return _as_channels(node, steps, padding)
    lows = [low for low, _ in padding]
    axes = [_phases(*axis) for axis in zip(data.type.shape[2:], kernel, steps, dilation, lows, out.shape[2:])]
    if count > MOST_PHASES or any(p.extent == 0 for axis in axes for p in axis):
        return None
    turned = _turned(weight, attrs["groups"])
    if count == 1:
        return _convolution(node, turned, [p for axis in axes for p in axis], node.name)
    each = enumerate(itertools.product(*axes))
    parts = [_convolution(node, turned, phases, f"{node.name}.phase{i}") for i, phases in each]
    taken = [a for a, s in enumerate(steps) if s > 1]
    spread = {"axes": tuple(a + 2 for a in taken), "steps": tuple(steps[a] for a in taken)}
    return apply("interleave", parts, spread, node.name, node.source)[0]


def _as_channels(node: Node, steps: Sequence[int], padding: Sequence[tuple[int, int]]) -> NodeEntry:
    """The phases as channels of one convolution, where each has as many taps (kernels that the step divides, without
    dilation): at the positions from that of the first output to that of the last."""
    (data, weight), bias = node.inputs[:2], node.inputs[2:]
    shape, groups, rank = node.outputs[0].type.shape, node.attrs["groups"], len(steps)
    inputs, outputs, *kernel = (known(d) for d in weight.type.shape)
    taps, count = [k // s for k, s in zip(kernel, steps)], math.prod(steps)
    cut = [d for pair in zip(taps, steps) for d in pair]
    parts = _op("reshape", weight, shape=(groups, inputs // groups, outputs, *cut))
    swapped = _op("transpose", parts, axes=(0, 2, *range(4, 2 * rank + 3, 2), 1, *range(3, 2 * rank + 3, 2)))
    wide = _flipped(_op("reshape", swapped, shape=(groups * outputs * count, inputs // groups, *taps)))
    if bias:
        spread = _op("broadcast_to", _op("reshape", bias[0], shape=(-1, 1)), shape=(groups * outputs, count))
        bias = (_op("reshape", spread, shape=(-1,)),)
    around = []
    for n, t, s, (low, _), o in zip(data.type.shape[2:], taps, steps, padding, shape[2:]):
        around.append((t - 1 - low // s, (o - 1 + low) // s - n + 1))
    geometry = {"padding": tuple(around), "groups": groups}
    out = apply(f"conv{rank}d", [data, wide, *bias], geometry, source=node.source)[0]
    found = out.type.shape[2:]
    out = _op("reshape", out, shape=(*shape[:2], *steps, *found))
    out = _op("transpose", out, axes=(0, 1, *(a for i in range(2, rank + 2) for a in (rank + i, i))))
    out = _op("reshape", out, shape=(*shape[:2], *(e * s for e, s in zip(found, steps))))
    begin = [low % s for (low, _), s in zip(padding, steps)]
    end = [b + o for b, o in zip(begin, shape[2:])]
    return apply("slice", [out], {"begin": (0, 0, *begin), "end": (*shape[:2], *end)}, node.name, node.source)[0]


def _turned(weight: NodeEntry, groups: int) -> NodeEntry:
    """A weight [I, O/groups, ...] as [O, I/groups, ...]."""
    inputs, outputs, *kernel = (known(d) for d in weight.type.shape)
    if groups > 1:
        weight = _op("reshape", weight, shape=(groups, inputs // groups, outputs, *kernel))
    order = (0, 2, 1) if groups > 1 else (1, 0)
    swapped = _op("transpose", weight, axes=(*order, *range(len(order), weight.type.rank)))
    return _op("reshape", swapped, shape=(groups * outputs, inputs // groups, *kernel)) if groups > 1 else swapped


def _convolution(node: Node, weight: NodeEntry, phases: Sequence[_Phase], name: str) -> NodeEntry:
    data, bias, rank = node.inputs[0], node.inputs[2:], len(phases)
    if not all(p.taps for p in phases):
        return _nothing(node, [p.extent for p in phases])
    whole = weight.type.shape
    begin, step = (0, 0, *(p.taps.start for p in phases)), (1, 1, *(p.taps.step for p in phases))
    if any(len(p.taps) != k for p, k in zip(phases, whole[2:])):
        weight = _op("slice", weight, begin=begin, end=whole, step=step)
    weight = _flipped(weight)
    geometry = {
        "padding": tuple(p.padding for p in phases), "dilation": tuple(p.dilation for p in phases),
        "groups": node.attrs["groups"],
    }  # fmt: skip
    return apply(f"conv{rank}d", [data, weight, *bias], geometry, name, node.source)[0]


def _flipped(weight: NodeEntry) -> NodeEntry:
    several = tuple(a for a, k in enumerate(weight.type.shape) if a > 1 and k != 1)
    return _op("flip", weight, axes=several) if several else weight


def _nothing(node: Node, extents: Sequence[Dim]) -> NodeEntry:
    """What no input reaches: the bias."""
    out, bias = node.outputs[0].type, node.inputs[2:]
    value = constant(np.zeros((), out.dtype.numpy), TensorType((), out.dtype, out.device))
    if bias:
        value = _op("reshape", bias[0], shape=(1, out.shape[1], *(1 for _ in extents)))
    return _op("broadcast_to", value, shape=(*out.shape[:2], *extents))


def _op(name: str, *inputs: NodeEntry, **attrs: Any) -> NodeEntry:
    return apply(name, inputs, attrs)[0]
