"""Convolutions of few channels: the windows of pixels side by side overlap, which a tile must not keep in registers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nnvm.compiler.lower_group import lower_group
from nnvm.dtype import F32
from nnvm.graph.graph import Graph
from nnvm.graph.node import apply, variable
from nnvm.graph.types import TensorType
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.target import Target
from nnvm.te.expr import Fma
from nnvm.testing.reference import run_graph
from nnvm.tir.stmt import For, PrimFunc, Stmt, Store
from nnvm.tir.verify import verify
from nnvm.tir.visitor import stmts

CPUS = ["x86-64", "haswell", "skylake-avx512"]
RNG = np.random.default_rng(0)


def target(cpu: str) -> Target:
    return Target.parse(f"llvm -mcpu={cpu} -mtriple=x86_64-unknown-linux-gnu")


def stem(cpu, shape, outputs, kernel, stride=1, dilation=1, padding=((0, 0), (0, 0)), groups=1) -> Graph:
    """A convolution of plain data into blocks of channels, with bias and ReLU."""
    block = target(cpu).lanes()
    types = [(*shape,), (outputs // block, shape[1] // groups, *kernel, block), (outputs // block, block)]
    x, w, bias = (variable(n, TensorType(s, F32)) for n, s in zip("xwb", types))
    attrs = {
        "strides": (stride,) * 2, "dilation": (dilation,) * 2, "padding": padding, "groups": groups,
        "data_layout": "NCHW", "kernel_layout": f"OIHW{block}o", "out_layout": f"NCHW{block}c",
    }  # fmt: skip
    out = apply("relu", [apply("conv2d", [x, w, bias], attrs)[0]])[0]
    return Graph((out,), (x.node, w.node, bias.node))


def lowered(graph: Graph, where: str | Target) -> PrimFunc:
    func = lower_group(graph, target(where) if isinstance(where, str) else where, "f")
    verify(func)
    return func


def check(graph: Graph, where: str | Target) -> PrimFunc:
    """The kernel, whose results are those of the definition: sums of small integers are exact."""
    func = lowered(graph, where)
    arrays = [RNG.integers(-3, 4, v[0].type.shape).astype(np.float32) for v in graph.inputs]
    (expected,) = run_graph(graph, arrays)
    out = np.full(expected.shape, np.nan, np.float32)
    (kernel,) = compile_funcs([func], Target.host())
    kernel(*arrays, out, symbols={})
    np.testing.assert_array_equal(out, expected)
    return func


def written_out(func: PrimFunc) -> set[int]:
    """Multiply-adds of vectors in the innermost loops that stay loops."""
    found: set[int] = set()

    def visit(s: Stmt, count: int) -> None:
        while isinstance(s, For) and s.kind == "unrolled":
            s, count = s.body, count * int(s.extent.value)
        if isinstance(s, Store) and isinstance(s.value, Fma):
            found.add(count)

    for s in stmts(func.body):
        if isinstance(s, For) and s.kind == "serial":
            visit(s.body, 1)
    return found


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    "channels,size,kernel,stride,dilation,padding",
    [
        (3, (23, 30), (7, 7), 2, 1, ((3, 3), (3, 3))),
        (1, (17, 19), (3, 3), 1, 1, ((1, 1), (1, 1))),
        (4, (15, 15), (3, 5), 1, 2, ((2, 1), (0, 3))),
        (3, (33, 35), (11, 11), 4, 1, ((2, 2), (2, 2))),
        (3, (24, 24), (8, 8), 8, 1, ((0, 0), (0, 0))),
        (1, (9, 40), (1, 4), 2, 3, ((0, 0), (1, 0))),
    ],
)
def test_windows_of_few_channels(cpu, channels, size, kernel, stride, dilation, padding):
    check(stem(cpu, (2, channels, *size), 32, kernel, stride, dilation, padding), cpu)


@pytest.mark.parametrize("cpu", CPUS)
def test_windows_of_groups_of_few_channels(cpu):
    check(stem(cpu, (1, 6, 11, 13), 64, (3, 3), 1, 1, ((1, 1), (1, 1)), groups=2), cpu)


@pytest.mark.parametrize("cpu,width", [("haswell", 24), ("skylake-avx512", 28)])
@pytest.mark.parametrize("kernel,stride,steps", [((7, 7), 2, 7), ((3, 3), 1, 3), ((1, 5), 1, 1), ((10, 3), 1, 1)])
def test_steps_that_read_the_same_pixels_are_a_loop(cpu, width, kernel, stride, steps):
    """What is read for one pixel and again for its neighbour would be kept in a register that there is not. Rows of the
    window lie apart; so do channels."""
    channels = 1 if steps == 1 else 3
    graph = stem(cpu, (1, channels, kernel[0] + 3, stride * (width - 1) + kernel[1]), 32, kernel, stride)
    tile = 12 if cpu == "haswell" else 28
    assert max(written_out(lowered(graph, cpu))) == tile * steps


def test_steps_that_read_the_same_pixels_are_written_out_where_registers_are_left():
    """Five rows of two vectors leave four registers of 16."""
    graph = stem("haswell", (1, 3, 9, 57), 64, (3, 3))
    assert max(written_out(lowered(graph, "haswell"))) == 10 * 3


@pytest.mark.parametrize("kernel,stride,steps", [((4, 4), 4, 4), ((1, 2), 2, 2), ((3, 3), 3, 3), ((2, 4), 5, 4)])
def test_steps_of_windows_that_lie_apart_are_written_out(kernel, stride, steps):
    graph = stem("skylake-avx512", (1, 3, 11, stride * 83 + kernel[1]), 32, kernel, stride)
    assert max(written_out(lowered(graph, "skylake-avx512"))) == 28 * steps


def shared(func: PrimFunc) -> list[int]:
    """Iterations of the loops that threads share."""
    return [int(s.extent.value) for s in stmts(func.body) if isinstance(s, For) and s.kind == "parallel"]


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize(
    "shape,outputs,kernel,stride,blocks",
    [
        ((1, 3, 130, 66), 64, (7, 7), 2, 8),
        ((1, 3, 66, 70), 32, (3, 3), 1, 8),
        ((4, 3, 66, 70), 32, (3, 3), 1, 32),
        ((1, 4, 47, 224), 48, (3, 5), 1, 5),  # of 11, 11, ... rows, and fewer in the last one
        ((1, 3, 40, 12), 16, (3, 3), 1, 1),  # too little work
    ],
)
def test_padded_data_is_computed_in_blocks_that_threads_share(cpu, shape, outputs, kernel, stride, blocks):
    """The padded image would be one block where it fits the second cache: padding and all by one thread."""
    where = replace(target(cpu), l2_bytes=8 << 20)
    pad = tuple((k // 2, k // 2) for k in kernel)
    found = shared(check(stem(cpu, shape, outputs, kernel, stride, 1, pad), where))
    assert found == ([blocks] if blocks > 1 else [])


def test_a_large_weight_is_not_read_again_for_each_block():
    where = replace(target("haswell"), l2_bytes=1 << 18)
    graph = stem("haswell", (1, 32, 34, 34), 32, (7, 7), 1, 1, ((3, 3), (3, 3)))  # 200 KB
    assert shared(lowered(graph, where)) != shared(lowered(graph, replace(where, l2_bytes=8 << 20)))
