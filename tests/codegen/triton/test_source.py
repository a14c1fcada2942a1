"""Triton source: as it was looked at and found good, and the same values as the Tensor IR and the ops' definitions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnvm.dtype import BOOL
from nnvm.graph.evaluate import evaluate_graph
from nnvm.graph.types import TensorType
from nnvm.runtime.triton_launch import TritonKernel
from nnvm.target import Target
from nnvm.testing.fence import fenced
from nnvm.testing.run_op import run_launches
from nnvm.tir import interpreter
from nnvm.tir.verify import verify
from tests.codegen.triton.groups import GROUPS, graph_of, lowered

GOLDEN = Path(__file__).parent / "golden"
CUDA = Target.parse("cuda -arch=sm_90")
#: Small enough for the Tensor IR's interpreter, which visits one element at a time.
SMALL = ("softmax", "outer_sum", "argmax", "max_pool", "take", "where", "concat_pad", "scatter_add",
         "embedding_gradient", "running_product")  # fmt: skip

rng = np.random.default_rng(7)


def array(t: TensorType) -> np.ndarray[Any, Any]:
    shape = tuple(int(d) for d in t.shape)
    if t.dtype == BOOL:
        return rng.random(shape) < 0.7
    if t.dtype.is_int:
        return rng.integers(0, 6, shape).astype(t.dtype.numpy)
    return rng.standard_normal(shape).astype(t.dtype.numpy)


@pytest.mark.parametrize("name", GROUPS)
def test_golden(name: str) -> None:
    """The source of each group. After a change that is wanted: NNVM_UPDATE_GOLDEN=1 pytest tests/codegen/triton."""
    sources = TritonKernel.of(lowered(name), CUDA, name).sources
    text = "\n\n".join(s.text for s in sources)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("NNVM_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", GROUPS)
def test_launches_are_legal(name: str) -> None:
    for step in lowered(name).steps:
        verify(step)


@pytest.mark.triton
@pytest.mark.parametrize("name", GROUPS)
def test_values(name: str) -> None:
    graph = graph_of(name)
    arrays = [array(v[0].type) for v in graph.inputs]
    (expected,) = evaluate_graph(graph, arrays)
    *read, out = map(fenced, (*arrays, np.empty(expected.shape, graph.outputs[0].type.dtype.numpy)))
    run_launches(lowered(name), [*read, out])
    rtol, atol = (4e-3, 4e-3) if out.dtype == np.float16 else (2e-5, 2e-5)
    atol *= max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(out.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", SMALL)
def test_tensor_ir_gives_the_values(name: str) -> None:
    """Tiles run one element at a time are the definition that Triton's blocks are held against."""
    graph, kernel = graph_of(name), lowered(name)
    arrays = [array(v[0].type) for v in graph.inputs]
    (expected,) = evaluate_graph(graph, arrays)
    out = np.empty(expected.size, graph.outputs[0].type.dtype.numpy)
    memory = dict(zip(kernel.params, [*(a.reshape(-1) for a in arrays), out]))
    for b in kernel.scratch:
        memory[b] = np.full(b.shape, np.nan, b.dtype.numpy)  # type: ignore[arg-type]
    for step in kernel.steps:
        interpreter.run(step, [memory[b] for b in step.params])
    np.testing.assert_allclose(out.reshape(expected.shape), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["attention", "attention_half", "attention_mask", "decode", "decode_half"])
def test_attention_is_one_launch(name: str) -> None:
    """Of many queries, and of one."""
    assert len(lowered(name).steps) == 1


@pytest.mark.triton
def test_a_failed_check_raises() -> None:
    x, i, out = np.zeros((50, 24), np.float32), np.full((6, 3), 50), np.empty((6, 3, 24), np.float32)
    with pytest.raises(IndexError, match="out of range"):
        run_launches(lowered("take"), [x, i, out])


def test_unknown_function_is_said() -> None:
    from nnvm.graph.graph import Graph
    from nnvm.graph.node import apply, variable

    x = variable("x", TensorType((4,)))
    with pytest.raises(ValueError, match="has no compute"):
        from nnvm.compiler.lower_group import lower_group_for_gpu

        lower_group_for_gpu(Graph(apply("sort", [x], {"axis": 0}).outputs, (x.node,)), "k")
