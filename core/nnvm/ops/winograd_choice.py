"""Where a convolution is done by Winograd's algorithm: a 3 x 3 kernel, stride 1, enough tiles for its weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnvm.dim import estimate
from nnvm.graph import op as registry
from nnvm.graph.layout import Layout
from nnvm.graph.node import Node, NodeEntry, apply
from nnvm.ops.nn_winograd import POINTS, WINDOW, winograd_weight
from nnvm.target import Target

__all__ = ["winograd_of"]

#: Parts of the peak rate of multiply-adds that the two algorithms reach.
DIRECT_RATE, WINOGRAD_RATE = 0.85, 0.75
#: Cycles per tile and vector of channels of the transforms, there and back, by the side of the tile.
TRANSFORM_CYCLES = {2: 70, 4: 140}
#: Pixels on a side of an image of which nothing is known.
IMAGE = 128
#: What another algorithm has to gain, at least, for its rounding.
GAIN = 0.85


@dataclass(frozen=True)
class _Sizes:
    """Of a convolution; `batch` is 1 where it is not known, the image as it probably is."""

    batch: int
    inputs: int
    outputs: int
    height: int
    width: int


def winograd_of(node: Node, is_fixed: Callable[[Node], bool], target: Target) -> tuple[NodeEntry, ...] | None:
    """A conv2d in blocks of channels as conv2d_winograd, with the tile of the fewest cycles; None where it stays."""
    sizes = _sizes(node, is_fixed)
    if sizes is None:
        return None
    lanes = target.lanes(32)
    direct = sizes.batch * sizes.height * sizes.width * sizes.inputs * sizes.outputs * WINDOW**2 / (2 * lanes)
    cycles = {tile: _cycles(sizes, tile, target) for tile in POINTS}
    cycles = {tile: c for tile, c in cycles.items() if c <= direct / DIRECT_RATE * GAIN}
    if not cycles:
        return None
    tile, small = min(cycles, key=lambda t: (cycles[t], t)), min(cycles)
    if cycles[small] * GAIN < cycles[tile]:  # it rounds less, as well
        tile = small
    plain, block = node.inputs[1].node.inputs[0], 2 * lanes
    channels = node.attrs["channels"] or sizes.outputs
    made = apply(
        "conv2d_winograd", [node.inputs[0], winograd_weight(plain, tile, block, sizes.inputs), *node.inputs[2:]],
        {"tile": tile, "padding": node.attrs["padding"], "layout": node.attrs["data_layout"],
         "channels": None if channels % block == 0 else channels},
        node.name, node.source,
    )  # fmt: skip
    return made.outputs if made.types == node.types else None


def _sizes(node: Node, is_fixed: Callable[[Node], bool]) -> _Sizes | None:
    attrs, weight = node.attrs, node.inputs[1].node
    layout = Layout.parse(attrs["data_layout"])
    fits = (
        attrs["groups"] == 1 and set(attrs["strides"]) == {1} and set(attrs["dilation"]) == {1}
        and layout.names == "NCHW" and layout.inner("C") == 4 and attrs["out_layout"] in (None, attrs["data_layout"])
        and node.outputs[0].type.dtype.name == "float32"
        and all(low >= 0 and high >= 0 for low, high in attrs["padding"])
        and weight.op.name == "layout_transform" and is_fixed(weight)
    )  # fmt: skip
    if not fits or weight.attrs["src_layout"] != "OIHW":
        return None
    plain, out = weight.inputs[0].type.shape, node.outputs[0].type.shape
    batch, blocks, height, width, block = out
    if plain[2:] != (WINDOW, WINDOW) or not all(isinstance(d, int) for d in (*plain, blocks, block)):
        return None
    inputs = layout.sizes(node.inputs[0].type.shape)["C"]
    numbers = (batch if isinstance(batch, int) else 1, inputs, plain[0], *(estimate(d, IMAGE) for d in (height, width)))
    known = [n for n in numbers if isinstance(n, int) and n > 0]
    return _Sizes(*known) if len(known) == len(numbers) else None


def _cycles(s: _Sizes, tile: int, target: Target) -> float:
    """An estimate of the multiply-adds, the transforms and the reading of the weight."""
    lanes = target.lanes(32)
    positions = (tile + WINDOW - 1) ** 2
    tiles = -(-s.height // tile) * -(-s.width // tile)
    products = tiles * positions * s.inputs * s.outputs / (2 * lanes * WINOGRAD_RATE)
    transforms = tiles * (s.inputs + s.outputs) / lanes * TRANSFORM_CYCLES[tile]
    weight = positions * s.inputs * s.outputs * 4
    shared = s.batch if tiles <= target.winograd_tiles and target.is_far(weight) else 1
    blocks = s.batch // shared * -(-tiles * shared // target.winograd_tiles)
    reads = blocks * weight / target.far_bytes_per_cycle / (1 if 2 * weight > target.l2_bytes else 4)
    return float(s.batch * (products + transforms) + reads)


registry.get("conv2d").set_attr("algorithm", winograd_of)
