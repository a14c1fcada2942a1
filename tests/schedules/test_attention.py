"""The attention schedule against the op's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nnvm.compiler.lower_group import lower_group, tensors_of
from nnvm.dim import symbol
from nnvm.schedules.attention_match import match_attention
from nnvm.schedules.cpu.attention_blocks import choose_blocks, row_blocks
from nnvm.target import Target
from nnvm.te.expr import Fma, Load
from nnvm.tir.stmt import Allocate, Prefetch
from nnvm.tir.visitor import post_order, stmts
from tests.schedules import groups
from tests.schedules.groups import data, graph_of, op
from tests.schedules.harness import HASWELL

RNG = np.random.default_rng(0)


def rand(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def build(q: Any, k: Any, mask: str | None = None, **attrs: Any) -> Any:
    ins = [data(q), data(k), data(k)]
    if mask is not None:
        ins.append(data((q[0], 1, q[2], k[2]), mask))
    return graph_of([op("attention", *ins, **attrs)], ins)


def arrays_of(graph: Any) -> list[Any]:
    return [RNG.random(v[0].type.shape) < 0.6 if v[0].type.dtype.is_bool else rand(*v[0].type.shape)
            for v in graph.inputs]  # fmt: skip


@pytest.mark.parametrize(
    ("q", "k", "mask", "attrs"),
    [
        ((1, 2, 3, 8), (1, 2, 7, 8), None, {}),  # few queries: no packing
        ((1, 2, 1, 16), (1, 2, 33, 16), None, {}),
        ((2, 2, 21, 20), (2, 2, 37, 20), None, {}),  # neither rows, keys nor columns divide
        ((2, 2, 21, 24), (2, 2, 37, 24), "bool", {}),
        ((1, 2, 60, 16), (1, 2, 60, 16), "float32", {"scale": 0.3}),
        ((1, 2, 61, 16), (1, 2, 61, 16), None, {"causal": True}),
        ((1, 4, 50, 8), (1, 2, 50, 8), None, {"groups": 2, "causal": True}),
        ((3, 1, 9, 8), (3, 1, 100, 8), None, {}),
        ((1, 2, 25, 17), (1, 2, 1, 17), None, {}),  # one key
        ((1, 2, 25, 1), (1, 2, 5, 1), None, {}),  # less than a vector of everything
        ((1, 2, 97, 24), (1, 2, 104, 24), None, {"causal": True}),  # the last panel of keys is half full
        ((1, 1, 131, 72), (1, 1, 131, 72), "bool", {"causal": True}),
        ((1, 2, 53, 40), (1, 2, 211, 40), "float32", {}),
    ],
)
def test_values(q: Any, k: Any, mask: str | None, attrs: dict[str, Any]) -> None:
    graph = build(q, k, mask, **attrs)
    arrays = arrays_of(graph)
    if mask == "bool":
        arrays[3][0, 0, 4] = False  # a row that may attend to nothing gives zeros
    (out,) = groups.run(graph, arrays, compiled=True)
    np.testing.assert_allclose(out, groups.reference(graph, arrays)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", ["llvm -mcpu=haswell", "llvm -mcpu=nehalem", "llvm -mcpu=skylake-avx512"])
def test_in_the_interpreter(target: str) -> None:
    graph = build((1, 1, 8, 4), (1, 1, 9, 4), causal=True)
    arrays = arrays_of(graph)
    (out,) = groups.run(graph, arrays, compiled=False, target=Target.parse(target))
    np.testing.assert_allclose(out, groups.reference(graph, arrays)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 19), (49, 50), (100, 7)])
@pytest.mark.parametrize("causal", [False, True])
def test_symbolic_lengths(n: int, m: int, causal: bool) -> None:
    s, t = symbol("s"), symbol("t")
    graph = build((1, 2, s, 16), (1, 2, t, 16), causal=causal)
    arrays = [rand(1, 2, n, 16), rand(1, 2, m, 16), rand(1, 2, m, 16)]
    (out,) = groups.run(graph, arrays, compiled=True, symbols={"s": n, "t": m})
    np.testing.assert_allclose(out, groups.reference(graph, arrays)[0], rtol=1e-4, atol=1e-5)


def test_scores_stay_in_a_block() -> None:
    """The scratch memory of a head is that of a block of rows and the packed keys, not that of all scores."""
    graph = build((1, 12, 512, 64), (1, 12, 512, 64))
    func = lower_group(graph, HASWELL, "kernel")
    scratch = [s.buffer for s in stmts(func.body) if isinstance(s, Allocate) and s.buffer.scope == "scratch"]
    assert {b.name for b in scratch} == {"kt", "vp", "s", "sums", "inverse"}
    assert next(b for b in scratch if b.name == "s").shape[0] <= 48 * 512
    assert sum(isinstance(e, Fma) and isinstance(e.c, Load) for e in post_order(func.body)) == 2  # two products


def test_what_is_no_attention() -> None:
    a, b = data((2, 3, 5, 8)), data((2, 3, 8, 5))
    scores = op("softmax", op("matmul", a, b), axis=3)
    _, outputs = tensors_of(graph_of([scores], [a, b]))
    assert match_attention(outputs) is None


def test_an_epilogue_that_leaves_the_row_is_no_attention() -> None:
    """Its columns reversed, an output element needs another column of the product: right, but not by this schedule."""
    ins = [data((1, 2, 9, 8)), data((1, 2, 12, 8)), data((1, 2, 12, 8))]
    graph = graph_of([op("flip", op("attention", *ins), axes=(3,))], ins)
    assert match_attention(tensors_of(graph)[1]) is None
    arrays = arrays_of(graph)
    (out,) = groups.run(graph, arrays, compiled=True)
    np.testing.assert_allclose(out, groups.reference(graph, arrays)[0], rtol=1e-4, atol=1e-5)


def test_transposed_inputs_are_read_in_place() -> None:
    """Heads that a projection left behind each other: no copy is made of them."""
    ins = [data((1, 21, 2, 8)), data((1, 30, 2, 8)), data((1, 30, 2, 8))]
    heads = [op("transpose", x, axes=(0, 2, 1, 3)) for x in ins]
    graph = graph_of([op("attention", *heads)], ins)
    arrays = arrays_of(graph)
    (out,) = groups.run(graph, arrays, compiled=True)
    np.testing.assert_allclose(out, groups.reference(graph, arrays)[0], rtol=1e-4, atol=1e-5)
    body = lower_group(graph, HASWELL, "kernel").body
    scratch = {s.buffer.name for s in stmts(body) if isinstance(s, Allocate) and s.buffer.scope == "scratch"}
    assert scratch == {"kt", "s", "sums", "inverse"}


@pytest.mark.parametrize(("rows", "packed"), [(4, {"kt"}), (24, {"kt", "vp"}), (3, set())])
def test_packing_pays_for_rows_enough(rows: int, packed: set[str]) -> None:
    body = lower_group(build((1, 2, rows, 16), (1, 2, 40, 16)), HASWELL, "kernel").body
    assert {s.buffer.name for s in stmts(body) if isinstance(s, Allocate)} & {"kt", "vp"} == packed


def test_the_next_head_is_fetched() -> None:
    """The rows of a head ask for each line of the keys and values of the next one, where these are many."""
    few, many, long = (build((1, 12, 50, 64), (1, 12, keys, 64)) for keys in (20, 200, 800))
    for graph in (few, long):  # of few the caches hold all, of many not even those of the next head
        assert not any(isinstance(s, Prefetch) for s in stmts(lower_group(graph, HASWELL, "kernel").body))
    func = lower_group(many, HASWELL, "kernel")
    asked = [s for s in stmts(func.body) if isinstance(s, Prefetch)]
    by_buffer = {b: sum(s.buffer is b for s in asked) for b in func.params}
    assert list(by_buffer.values()) == [0, 200 * 4 // 50, 200 * 4 // 50, 0]  # each row's share


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("registers", [16, 32])
def test_blocks_are_whole_tiles(registers: int, causal: bool) -> None:
    """Every row is in a block, every block has the rows of a tile, and few rows are computed twice."""
    for rows in (*range(1, 60), 128, 197, 210, 1500):
        chosen = choose_blocks(rows, rows, 48, 512 // registers, registers, causal)
        assert chosen.block % chosen.tile == 0 and (chosen.block <= 48 or chosen.block == chosen.tile)
        assert 2 * chosen.tile + 3 <= registers
        blocks = list(row_blocks(rows, chosen))
        assert {r for first, count in blocks for r in range(first, first + count)} == set(range(rows))
        assert all(chosen.tile <= count <= chosen.block for _, count in blocks)
        computed = sum(-(-count // chosen.tile) * chosen.tile for _, count in blocks)
        assert computed - rows < chosen.tile and (computed <= 1.15 * rows or rows < 24)


@pytest.mark.parametrize(
    ("target", "rows"),
    [(Target.host(), r) for r in (*range(1, 26), 49, 197)] + [(HASWELL, r) for r in (2, 5, 7, 13, 50)],
)
def test_numbers_of_rows(target: Target, rows: int) -> None:
    graph = build((1, 1, rows, 16), (1, 1, rows, 16), causal=rows % 2 == 0)
    arrays = arrays_of(graph)
    (out,) = groups.run(graph, arrays, compiled=True, target=target)
    np.testing.assert_allclose(out, groups.reference(graph, arrays)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 11, 12, 13, 47, 49, 100])
def test_numbers_of_rows_that_the_call_knows(rows: int) -> None:
    s = symbol("s")
    graph = build((1, 2, s, 16), (1, 2, s, 16), causal=True)
    arrays = [rand(1, 2, rows, 16) for _ in range(3)]
    (out,) = groups.run(graph, arrays, compiled=True, symbols={"s": rows})
    np.testing.assert_allclose(out, groups.reference(graph, arrays)[0], rtol=1e-4, atol=1e-5)


def test_rows_of_large_and_small_logits() -> None:
    """Exponentials that are no normal numbers are 0, those near the maximum as accurate as others."""
    graph = build((1, 1, 30, 8), (1, 1, 61, 8))
    q, k, v = (rand(*x[0].type.shape) for x in graph.inputs)
    q *= np.geomspace(1e-3, 1e3, 30, dtype=np.float32)[:, None]
    (out,) = groups.run(graph, [q, k, v], compiled=True)
    scores = (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)) * 8**-0.5
    exact = groups.reference(graph, [q, k, v])[0]
    # an error of the scores of half a unit in the last place is one of the exponentials relative to 1
    bound = 1e-6 * (1 + np.abs(scores).max(-1, keepdims=True))
    assert (np.abs(out - exact) <= bound * np.abs(v).max()).all()


@pytest.mark.parametrize("mask", [None, "bool", "float32"])
@pytest.mark.parametrize("rows", [3, 30])
def test_rows_with_nan(rows: int, mask: str | None) -> None:
    """A NaN makes its row NaN, and no other; infinities do as in the reference."""
    graph = build((1, 1, rows, 8), (1, 1, 37, 8), mask)
    arrays = arrays_of(graph)
    q, k, _ = arrays[:3]
    q[0, 0, 0, 3], q[0, 0, 1], k[0, 0, 5, 0] = np.nan, np.inf, 1e30
    if mask == "float32":
        arrays[3][0, 0, 2] = -np.inf  # a row that may attend to nothing
        arrays[3][0, 0, 2, 4] = np.nan
    (out,) = groups.run(graph, arrays, compiled=True)
    expected = groups.reference(graph, arrays)[0]
    assert np.isnan(expected[0, 0, :2]).all()
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [None, 1.0, -0.7, 0.11, 1e-3, 300.0])
def test_scales(scale: float | None) -> None:
    """Keys may be multiplied by the scale as they are packed: no less accurate than scaled scores in float32."""
    graph = build((1, 2, 50, 32), (1, 2, 45, 32), scale=scale)
    arrays = arrays_of(graph)
    (out,) = groups.run(graph, arrays, compiled=True)
    exact = groups.reference(graph, [x.astype(np.float64) for x in arrays])[0]
    q, k, v = arrays
    scores = (q @ k.swapaxes(-1, -2)) * np.float32(32**-0.5 if scale is None else scale)
    exps = np.exp(scores - scores.max(-1, keepdims=True))
    plain = exps @ v / exps.sum(-1, keepdims=True)
    assert np.abs(out - exact).max() <= 2 * np.abs(plain - exact).max()


def test_causal_rows_read_no_score_behind_them() -> None:
    """Keys of rows that are later change nothing, whatever is there."""
    graph = build((1, 1, 100, 16), (1, 1, 100, 16), causal=True)
    q, k, v = (rand(*x[0].type.shape) for x in graph.inputs)
    (before,) = groups.run(graph, [q, k, v], compiled=True)
    k[:, :, 40:], v[:, :, 40:] = 1e30, np.nan
    (after,) = groups.run(graph, [q, k, v], compiled=True)
    np.testing.assert_array_equal(after[:, :, :24], before[:, :, :24])
