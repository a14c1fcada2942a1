"""Estimated times of ops by layout, for the attribute ``layout_cost`` (see layout_plan). Ratios measured on AVX2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnvm.graph.node import Node
from nnvm.graph.passes.layout_plan import Cost, Machine, Way, channels_of, count, padded

__all__ = ["convolution", "moving"]


@dataclass(frozen=True)
class _Speed:
    """Part of the machine's speed that convolutions reach.

    Ratios measured on AVX2, `summed` on AVX-512 too.

    Attributes:
        plain, to_blocks, from_blocks: by the layouts of input and output, in parts of what they reach with both
            blocked; in pairs for windows of one position and of several.
        summed: from blocks with a window of one position, products are summed over the lanes of a vector at the end:
            so many multiply-adds of a channel's that takes, in parts of the lanes squared.
        strided: of plain ones with strides.
        half: vectors filled in part, over the part that is filled.
        depthwise, depthwise_plain: one input channel a group; each product needs a load.
        narrow_plain, narrow: groups of fewer than `shared` channels, which share few loads; the latter in blocks of
            half a vector.
    """

    plain: tuple[float, float] = (0.4, 0.4)
    to_blocks: tuple[float, float] = (0.8, 0.75)
    from_blocks: tuple[float, float] = (1.0, 0.5)
    summed: float = 0.56
    strided: float = 0.12
    half: float = 0.9
    depthwise: float = 0.2
    depthwise_plain: float = 0.14
    narrow_plain: float = 0.04
    narrow: float = 0.15
    shared: int = 8

    def of(self, node: Node, ways: Sequence[Way], lanes: int) -> list[float]:
        """The part of the machine's speed in each way."""
        groups = node.attrs["groups"]
        inputs, outputs = (channels_of(e.type.shape) for e in (node.inputs[0], node.outputs[0]))
        single = groups == inputs and groups > 1
        narrow = groups > 1 and outputs // groups < self.shared
        window = count(node.inputs[1].type.shape[2:]) > 1
        strided = any(s > 1 for s in node.attrs["strides"])
        found = []
        for way in ways:
            source, block = way.inputs[0], way.block
            used = 1.0 if block in (1, lanes) else self.half * block / lanes
            if single and (block == 1 or groups == outputs):
                found.append(self.depthwise_plain if block == 1 else self.depthwise * used)
            elif narrow and block < lanes:
                found.append(self.narrow if block > 1 else self.narrow_plain)
            elif block > 1:
                found.append(used * (1.0 if source > 1 else self.to_blocks[window]))
            elif source > 1:
                sums = 1.0 if window else inputs // groups / (inputs // groups + self.summed * lanes**2)
                found.append(self.from_blocks[window] * sums)
            else:
                found.append(self.strided if strided else self.plain[window])
        return found


def _convolution(speed: _Speed) -> Cost:
    """Operations, those on padding and on zeros between merged groups included, over the speed."""

    def cost(node: Node, ways: Sequence[Way], machine: Machine) -> list[float]:
        groups = node.attrs["groups"]
        inputs, outputs = (max(1, channels_of(e.type.shape)) for e in (node.inputs[0], node.outputs[0]))
        types = tuple(e.type for e in node.inputs)
        work = count([node.op.attr("flops")(node.attrs, types, tuple(e.type for e in node.outputs))]) / machine.flops
        seconds = []
        for way, part in zip(ways, speed.of(node, ways, machine.lanes)):
            more = padded(outputs, way.block) / outputs
            if groups == 1:
                more *= padded(inputs, way.inputs[0]) / inputs
            elif way.block > 1 and not groups == inputs == outputs:
                more *= max(1, way.inputs[0] * groups // inputs, way.block * groups // outputs)
            seconds.append(work * more / part)
        return seconds

    return cost


def moving(plain: float, blocked: float) -> Cost:
    """Ops that are as fast as they move their data; the numbers say how many times slower, by layout."""

    def cost(node: Node, ways: Sequence[Way], machine: Machine) -> list[float]:
        sizes = []
        for e in (node.inputs[0], node.outputs[0]):
            channels = max(1, channels_of(e.type.shape))
            sizes.append((channels, count(e.type.shape) // channels * e.type.dtype.bytes / machine.bandwidth))
        (taken, read), (given, written) = sizes
        return [(read * padded(taken, w.inputs[0]) + written * padded(given, w.block))
                * (plain if w.inputs[0] == 1 else blocked) for w in ways]  # fmt: skip

    return cost


#: Convolutions with attributes strides and groups.
convolution = _convolution(_Speed())
