"""Typical fused groups, by name: what the tests of GPU kernels lower, compile and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import nnvm.ops  # noqa: F401  registers the ops
from nnvm.compiler.lower_group import lower_group_for_gpu
from nnvm.dtype import BOOL, F16, F32, F64, I64, DType
from nnvm.graph.graph import Graph
from nnvm.graph.node import NodeEntry, apply, variable
from nnvm.graph.types import TensorType
from nnvm.tir.stmt import GridKernel

__all__ = ["GROUPS", "WIDE", "graph_of", "lowered"]


def _op(name: str, *inputs: NodeEntry, **attrs: Any) -> NodeEntry:
    return apply(name, list(inputs), attrs)[0]


class _Inputs:
    def __init__(self) -> None:
        self.made: list[NodeEntry] = []

    def __call__(self, *shape: int, dtype: DType = F32) -> NodeEntry:
        self.made.append(variable(f"p{len(self.made)}", TensorType(shape, dtype)))
        return self.made[-1]


Build = Callable[[_Inputs], NodeEntry | Sequence[NodeEntry]]

GROUPS: dict[str, Build] = {
    "bias_gelu": lambda x: _op("gelu", _op("broadcast_add", x(48, 320), x(320))),
    "transpose": lambda x: _op("relu", _op("transpose", x(3, 40, 72), axes=(0, 2, 1))),
    "concat_pad": lambda x: _op("pad", _op("concatenate", x(2, 5, 9), x(2, 4, 9), axis=1),
                                pad_width=((0, 0), (1, 2), (0, 3))),
    "softmax": lambda x: _op("softmax", _op("broadcast_add", x(12, 100), x(100)), axis=-1),
    "layer_norm": lambda x: _op("layer_norm", x(24, 96), x(96), x(96), axis=-1),
    "long_rows": lambda x: _op("softmax", x(2, 20000), axis=-1),
    "long_norm": lambda x: _op("layer_norm", x(2, 9001), axis=-1),
    "split_variance": lambda x: _op("variance", x(3, 9000), axis=(1,)),
    "split_sum": lambda x: _op("sqrt", _op("sum", _op("abs", x(3, 9000)), axis=(1,))),
    "split_dense": lambda x: _op("relu", _op("dense", x(16, 2048), x(24, 2048), x(24))),
    "outer_sum": lambda x: _op("sum", _op("relu", x(50, 300)), axis=(0,)),
    "argmax": lambda x: _op("argmax", x(9, 70), axis=1),
    "max_pool": lambda x: _op("max_pool2d", x(1, 6, 20, 20), pool_size=(3, 3), strides=(2, 2),
                              padding=((1, 1), (1, 1))),
    "depthwise": lambda x: _op("relu", _op("conv2d", x(1, 8, 14, 14), x(8, 1, 3, 3), groups=8,
                                           padding=((1, 1), (1, 1)))),
    "take": lambda x: _op("take", x(50, 24), x(6, 3, dtype=I64), axis=0, mode="raise"),
    "where": lambda x: _op("where", x(6, 40, dtype=BOOL), x(6, 40), x(40)),
    "dense": lambda x: _op("relu", _op("dense", x(40, 72), x(56, 72), x(56))),
    "dense_half": lambda x: _op("gelu", _op("dense", x(160, 128, dtype=F16), x(192, 128, dtype=F16),
                                            x(192, dtype=F16))),
    "batch_matmul": lambda x: _op("matmul", x(3, 33, 40), x(3, 40, 18)),
    "conv": lambda x: _op("relu", _op("conv2d", x(2, 16, 12, 12), x(24, 16, 3, 3), padding=((1, 1), (1, 1)))),
    "conv_half": lambda x: _op("conv2d", x(2, 32, 14, 14, dtype=F16), x(64, 32, 3, 3, dtype=F16), strides=(2, 2),
                               padding=((1, 1), (1, 1))),
    "attention": lambda x: _op("attention", x(2, 3, 40, 16), x(2, 3, 70, 16), x(2, 3, 70, 16), causal=True),
    "attention_half": lambda x: _op("attention", x(1, 4, 100, 64, dtype=F16), x(1, 2, 130, 64, dtype=F16),
                                    x(1, 2, 130, 64, dtype=F16), groups=2),
    "attention_mask": lambda x: _op("attention", x(1, 2, 20, 32), x(1, 2, 20, 32), x(1, 2, 20, 32),
                                    x(1, 1, 20, 20, dtype=BOOL)),
    "decode": lambda x: _op("attention", x(2, 4, 1, 16), x(2, 2, 70, 16), x(2, 2, 70, 16), groups=2),
    "scatter_add": lambda x: _op("scatter", x(6, 60), x(7, 40, dtype=I64), x(7, 40), axis=0, reduce="add"),
    "scatter_max": lambda x: _op("scatter", x(6, 60), x(7, 40, dtype=I64), x(7, 40), axis=0, reduce="amax"),
    "scatter_mean": lambda x: _op("scatter", x(6, 60), x(7, 40, dtype=I64), x(7, 40), axis=0, reduce="mean"),
    "embedding_gradient": lambda x: _op("index_put", x(6, 24), x(5, 3, 24), x(5, 3, dtype=I64), axes=(0,),
                                        accumulate=True),
    "running_sum": lambda x: _op("cumsum", x(3, 2500), axis=1),
    "running_product": lambda x: _op("cumprod", x(2, 40, 5, dtype=F16), axis=1, dtype="float32"),
}  # fmt: skip
#: Sizes of real models, for which templates take their largest tiles.
WIDE: dict[str, Build] = {
    "wide_dense": lambda x: _op("relu", _op("dense", x(2048, 768), x(3072, 768), x(3072))),
    "wide_dense_half": lambda x: _op("gelu", _op("dense", x(4096, 1024, dtype=F16), x(4096, 1024, dtype=F16),
                                                 x(4096, dtype=F16))),
    "wide_conv_half": lambda x: _op("relu", _op("conv2d", x(32, 128, 28, 28, dtype=F16), x(128, 128, 3, 3, dtype=F16),
                                                padding=((1, 1), (1, 1)))),
    "wide_dense_double": lambda x: _op("dense", x(1024, 512, dtype=F64), x(1024, 512, dtype=F64)),
    "few_rows_half": lambda x: _op("gelu", _op("dense", x(16, 4096, dtype=F16), x(11008, 4096, dtype=F16))),
    "wide_batch_half": lambda x: _op("matmul", x(64, 512, 512, dtype=F16), x(64, 512, 512, dtype=F16)),
    "wide_conv": lambda x: _op("relu", _op("conv2d", x(32, 128, 28, 28), x(128, 128, 3, 3), x(128),
                                           padding=((1, 1), (1, 1)))),
    "decode_half": lambda x: _op("attention", x(8, 32, 1, 128, dtype=F16), x(8, 8, 2048, 128, dtype=F16),
                                 x(8, 8, 2048, 128, dtype=F16), groups=4),
    "wide_attention": lambda x: _op("attention", x(4, 12, 512, 64), x(4, 12, 512, 64), x(4, 12, 512, 64), causal=True),
    "wide_attention_half": lambda x: _op("attention", x(4, 32, 1024, 128, dtype=F16), x(4, 8, 1024, 128, dtype=F16),
                                         x(4, 8, 1024, 128, dtype=F16), causal=True, groups=4),
}  # fmt: skip


def graph_of(name: str) -> Graph:
    """The graph of a group."""
    inputs = _Inputs()
    out = {**GROUPS, **WIDE}[name](inputs)
    outputs = (out,) if isinstance(out, NodeEntry) else tuple(out)
    return Graph(outputs, tuple(e.node for e in inputs.made))


def lowered(name: str) -> GridKernel:
    """The launches of a group."""
    return lower_group_for_gpu(graph_of(name), name)
