"""The schedule of Winograd convolutions: blocks of tiles for every shape, target and number of threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from nnvm.compiler.lower_group import lower_group
from nnvm.dim import symbol
from nnvm.dtype import F32
from nnvm.graph.graph import Graph
from nnvm.graph.layout import Layout
from nnvm.graph.node import apply, variable
from nnvm.graph.types import TensorType
from nnvm.ops.nn_conv import from_plain, to_plain
from nnvm.runtime.llvm_jit import assembly, compile_funcs
from nnvm.schedules.cpu.winograd_blocks import Products, blocks_of
from nnvm.schedules.select import SCHEDULES
from nnvm.target import Target
from nnvm.te.expr import THREADS, size_var
from nnvm.tir.interpreter import evaluate_expr
from nnvm.tir.interpreter import run as interpret
from nnvm.tir.stmt import For, Let
from nnvm.tir.verify import verify
from nnvm.tir.visitor import stmts
from tests.ops.test_nn_winograd import transformed

RNG = np.random.default_rng(0)


def target(cpu: str = "haswell") -> Target:
    return Target.parse(f"llvm -mcpu={cpu} -mtriple=x86_64-unknown-linux-gnu")


#: A second cache so small that an image needs many blocks and a block many chunks of panels.
TINY = replace(target(), l2_bytes=16 << 10)


def group(x, u, block, tile, outputs, epilogue):
    """conv2d_winograd [+ residual, relu] as a group, and its arrays."""
    layout = f"NCHW{block}c"
    data = from_plain(x, Layout.parse(layout), "NCHW").astype(np.float32)
    arrays = [np.ascontiguousarray(data), u]
    entries = [variable(n, TensorType(a.shape, F32)) for n, a in zip("xu", arrays)]
    width = u.shape[-1]
    attrs = {"tile": tile, "padding": ((1, 1), (1, 1)), "layout": layout,
             "channels": None if outputs % width == 0 else outputs}  # fmt: skip
    out = apply("conv2d_winograd", entries, attrs)[0]
    nodes = [e.node for e in out.node.inputs]
    results = (out,)
    if epilogue:
        r = variable("r", TensorType(out.type.shape, F32))
        both = apply("add", [out, r])[0]
        nodes.append(r.node)
        arrays.append(RNG.standard_normal(out.type.shape).astype(np.float32))
        results = (both, apply("relu", [both])[0])
    return Graph(results, tuple(nodes)), arrays


def execute(graph, arrays, where) -> list[np.ndarray]:
    func = lower_group(graph, where, "f")
    verify(func)
    outs = [np.full(e.type.shape, np.nan, np.float32) for e in graph.outputs]
    (kernel,) = compile_funcs([func], Target.host())
    kernel(*(a.reshape([int(d) for d in p.shape]) for a, p in zip([*arrays, *outs], func.params)))
    return outs


def direct(x, w):
    return torch.nn.functional.conv2d(torch.from_numpy(x), torch.from_numpy(w), padding=1).numpy()


@pytest.mark.parametrize("where,block", [(target("x86-64"), 4), (target(), 8), (target(), 16), (TINY, 8),
                                         (target("skylake-avx512"), 16)])  # fmt: skip
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("batch,inputs,outputs,height,width", [
    (1, 16, 16, 8, 8), (2, 32, 48, 13, 10), (1, 16, 80, 3, 30),
])  # fmt: skip
def test_values(where, block, tile, batch, inputs, outputs, height, width) -> None:
    x, w = RNG.standard_normal((batch, inputs, height, width)), RNG.standard_normal((outputs, inputs, 3, 3))
    u = transformed(w.astype(np.float32), tile, 2 * where.lanes(32))
    for epilogue in (False, True):
        graph, arrays = group(x, u, block, tile, outputs, epilogue)
        outs = execute(graph, arrays, where)
        expected = from_plain(direct(x, w), Layout.parse(f"NCHW{block}c"), "NCHW")
        if epilogue:
            expected = expected + arrays[2]
            np.testing.assert_array_equal(outs[1], np.maximum(outs[0], 0))
        assert np.abs(outs[0] - expected).max() < 5e-6 * np.abs(expected).max()


def test_small_images_of_a_batch_share_one_reading_of_a_large_weight() -> None:
    channels, where = 256, target()
    products = Products(36, channels, channels // 16, 2, 8, 4)
    assert blocks_of(2, 2, 6, products, where).images == 6
    assert blocks_of(4, 4, 7, products, where).images == 1  # all seven would be too many, and no part divides them
    assert blocks_of(4, 4, 8, products, where).images == 4
    assert blocks_of(2, 2, 8, Products(36, 64, 4, 2, 8, 4), where).images == 1  # the weight stays near
    x, w = RNG.standard_normal((6, channels, 7, 5)), RNG.standard_normal((channels, channels, 3, 3))
    graph, arrays = group(x, transformed(w.astype(np.float32), 4, 16), 8, 4, channels, True)
    outs = execute(graph, arrays, where)
    expected = from_plain(direct(x, w), Layout.parse("NCHW8c"), "NCHW") + arrays[2]
    np.testing.assert_array_equal(outs[1], np.maximum(outs[0], 0))
    assert np.abs(outs[0] - expected).max() < 5e-6 * np.abs(expected).max()


def test_blocks_run_in_parallel_even_for_one_small_image() -> None:
    x, w = RNG.standard_normal((1, 64, 8, 8)), RNG.standard_normal((64, 64, 3, 3))
    graph, _ = group(x, transformed(w.astype(np.float32), 4, 16), 8, 4, 64, False)
    func = lower_group(graph, target(), "f")
    loops = [s for s in stmts(func.body) if isinstance(s, For) and s.kind == "parallel"]
    assert len(loops) == 1
    found = {}
    for threads in (1, 2, 4, 64):
        env, s = {size_var(THREADS): threads}, func.body
        while isinstance(s, Let):
            env[s.var], s = evaluate_expr(s.value, env), s.body
        found[threads] = evaluate_expr(loops[0].extent, env)
    assert found == {1: 1, 2: 2, 4: 4, 64: 4}  # each part of the panels transforms all of the data


def test_the_schedule_takes_it_alone() -> None:
    assert SCHEDULES[0].__name__ == "winograds"
    x, w = RNG.standard_normal((1, 8, 9, 9)), RNG.standard_normal((8, 8, 3, 3))
    graph, _ = group(x, transformed(w.astype(np.float32), 4, 16), 8, 4, 8, False)
    func = lower_group(graph, target(), "f")
    assert {b.buffer.name for b in stmts(func.body) if hasattr(b, "buffer") and hasattr(b, "body")} >= {"v", "q"}


def test_a_batch_known_at_the_call_only() -> None:
    n, w = symbol("n"), RNG.standard_normal((16, 8, 3, 3))
    u = transformed(w.astype(np.float32), 4, 16)
    x = variable("x", TensorType((n, 1, 6, 6, 8), F32))
    v = variable("u", TensorType(u.shape, F32))
    out = apply("conv2d_winograd", [x, v], {"tile": 4, "padding": ((1, 1), (1, 1)), "layout": "NCHW8c"})
    func = lower_group(Graph(out.outputs, tuple(e.node for e in out.inputs)), target(), "f")
    verify(func)
    (kernel,) = compile_funcs([func], Target.host())
    for batch in (1, 3):
        data = RNG.standard_normal((batch, 8, 6, 6))
        blocked = np.ascontiguousarray(from_plain(data, Layout.parse("NCHW8c"), "NCHW"), np.float32)
        got = np.full((batch, 2, 6, 6, 8), np.nan, np.float32)
        kernel(blocked.reshape(-1), u.reshape(-1), got.reshape(-1), symbols={"n": batch})
        expected = direct(data, w)
        assert np.abs(to_plain(got, Layout.parse("NCHW8c"), "NCHW") - expected).max() < 5e-6 * np.abs(expected).max()


@pytest.mark.parametrize("where,block", [(target(), 8), (TINY, 8), (target("skylake-avx512"), 16)])
@pytest.mark.parametrize("tile", [2, 4])
def test_an_image_known_at_the_call_only(where, block, tile) -> None:
    n, s, t = symbol("n"), symbol("s"), symbol("t")
    w = RNG.standard_normal((48, 32, 3, 3))
    u = transformed(w.astype(np.float32), tile, 2 * where.lanes(32))
    x = variable("x", TensorType((n, 32 // block, s + 1, t, block), F32))
    v = variable("u", TensorType(u.shape, F32))
    attrs = {"tile": tile, "padding": ((1, 1), (1, 0)), "layout": f"NCHW{block}c",
             "channels": None if 48 % u.shape[-1] == 0 else 48}  # fmt: skip
    out = apply("conv2d_winograd", [x, v], attrs)[0]
    both = apply("relu", [out])[0]
    func = lower_group(Graph((both,), (x.node, v.node)), where, "f")
    verify(func)
    assert {b.buffer.name for b in stmts(func.body) if hasattr(b, "buffer") and hasattr(b, "body")} >= {"v", "q"}
    (kernel,) = compile_funcs([func], Target.host())
    layout = Layout.parse(f"NCHW{block}c")
    for batch, height, width in ((1, 1, 2), (2, 5, 4), (1, 17, 31), (1, 9, 70), (1, 2, 270), (2, 61, 29), (1, 32, 32)):
        data = RNG.standard_normal((batch, 32, height, width))
        blocked = np.ascontiguousarray(from_plain(data, layout, "NCHW"), np.float32)
        got = np.full((batch, 48 // block, height, width - 1, block), np.nan, np.float32)
        kernel(blocked.reshape(-1), u.reshape(-1), got.reshape(-1), symbols={"n": batch, "s": height - 1, "t": width},
               threads=2)  # fmt: skip
        plain = torch.nn.functional.conv2d(torch.nn.functional.pad(torch.from_numpy(data), (1, 0, 1, 1)),
                                           torch.from_numpy(w)).relu().numpy()  # fmt: skip
        expected = from_plain(plain, layout, "NCHW")
        assert np.abs(got - expected).max() < 5e-6 * max(np.abs(expected).max(), 1), (batch, height, width)


def test_an_image_known_at_the_call_only_as_the_interpreter_defines_it() -> None:
    s = symbol("s")
    w = RNG.standard_normal((8, 8, 3, 3))
    u = transformed(w.astype(np.float32), 2, 16)
    x = variable("x", TensorType((1, 1, s, s, 8), F32))
    v = variable("u", TensorType(u.shape, F32))
    out = apply("conv2d_winograd", [x, v], {"tile": 2, "padding": ((1, 1), (1, 1)), "layout": "NCHW8c", "channels": 8})
    func = lower_group(Graph(out.outputs, (x.node, v.node)), TINY, "f")
    for size in (1, 3, 7):
        data = RNG.standard_normal((1, 8, size, size))
        blocked = np.ascontiguousarray(from_plain(data, Layout.parse("NCHW8c"), "NCHW"), np.float32)
        got = np.full((1, 1, size, size, 8), np.nan, np.float32)
        interpret(func, [blocked.reshape(-1), u.reshape(-1), got.reshape(-1)], {"s": size})
        expected = from_plain(direct(data, w), Layout.parse("NCHW8c"), "NCHW")
        assert np.abs(got - expected).max() < 5e-6 * np.abs(expected).max()


def inner_loops(text: str) -> list[list[str]]:
    """Instructions of the loops that are one block of code, by the jump back to its label."""
    lines = [line.strip() for line in text.splitlines()]
    labels = {line[:-1]: k for k, line in enumerate(lines) if line.startswith(".LBB") and line.endswith(":")}
    out = []
    for k, line in enumerate(lines):
        start = labels.get(line.split()[-1]) if line.startswith("j") else None
        if start is not None and start < k and not any(start < other < k for other in labels.values()):
            out.append(lines[start + 1 : k])
    return out


@pytest.mark.parametrize("cpu", ["haswell", "znver3"])
@pytest.mark.parametrize("channels,size", [(256, 14), (64, 28), (512, 7)])
def test_the_sums_of_products_stay_in_registers(cpu: str, channels: int, size: int) -> None:
    """The transforms' constants take none of the registers of the products."""
    where = target(cpu)
    shape, u = (1, channels // 8, size, size, 8), (6, 6, channels // 16, channels, 16)
    entries = [variable(n, TensorType(s, F32)) for n, s in (("x", shape), ("u", u))]
    out = apply("conv2d_winograd", entries, {"tile": 4, "padding": ((1, 1), (1, 1)), "layout": "NCHW8c"})[0]
    outputs = (out, apply("relu", [out])[0])
    func = lower_group(Graph(outputs[1:], tuple(e.node for e in entries)), where, "f")
    tiles = [loop for loop in inner_loops(assembly(func, where)) if sum(x.startswith("vbroadcastss") for x in loop) >= 4
             and sum(x.startswith("vfmadd") for x in loop) >= 8]  # fmt: skip
    assert tiles
    for loop in tiles:
        assert not [x for x in loop if "%rsp" in x]
