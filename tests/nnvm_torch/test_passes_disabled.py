"""Every pass can be left out alone: the zoo's networks, in small, give eager's results all the same."""

import pytest
import torch
from small_zoo import SMALL, small

from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.compiler.pipeline import pipeline
from nnvm.graph.node import TypeInferenceError
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm_torch.bench.zoo import ZOO
from nnvm_torch.capture import capture
from nnvm_torch.runner import Runner
from tests.graph.build import graph, op, var


def results(found, disabled):
    options = BuildOptions(disabled_passes=frozenset(disabled), verify=not disabled)
    compiled = compile_graph(found.imported.graph, options)
    args = [None] * (1 + max(found.imported.positions))
    for position, tensor in zip(found.imported.positions, found.tensors):
        if position >= 0:
            args[position] = tensor
    return Runner(found.imported, compiled)(args)


def test_the_small_zoo_is_the_zoo():
    assert set(SMALL) == set(ZOO)


@pytest.mark.filterwarnings("ignore:The tensor attributes self.cells:UserWarning")
@pytest.mark.parametrize("name", SMALL)
def test_results_do_not_depend_on_any_one_pass(name):
    module, inputs = small(name)
    with torch.no_grad():
        want = module(*inputs)
    want = want if isinstance(want, tuple) else (want,)
    found = capture(module, inputs)
    assert all(float(w.std()) > 1e-3 for w in want), "an output that is constant shows nothing"
    for left_out in ((), *((p,) for p in dict.fromkeys(pipeline()))):
        got = results(found, left_out)
        for a, b in zip(got, want, strict=True):
            scale = float(b.abs().max())
            message = f"{name} without {left_out or 'nothing'}"
            torch.testing.assert_close(a / scale, b / scale, rtol=1e-4, atol=2e-5, msg=lambda m, s=message: f"{s}: {m}")


def test_types_must_come_from_somewhere():
    x = op("exp", var("x", 3))
    x.node.types = None
    with pytest.raises(TypeInferenceError, match="InferType is left out, and nothing else gives exp"):
        apply_passes(graph(x), ["InferType"], PassContext(disabled=frozenset({"InferType"})))


def test_what_stands_in_for_a_pass_is_less_than_the_pass():
    module, inputs = small("resnet50")
    g = capture(module, inputs).imported.graph
    whole = compile_graph(g)
    plan = whole.plan.memory
    unfused = compile_graph(g, BuildOptions(disabled_passes=frozenset({"GraphFuse"})))
    assert all(len(k.ops) == 1 for k in unfused.kernels) and len(unfused.kernels) > len(whole.kernels)
    unplanned = compile_graph(g, BuildOptions(disabled_passes=frozenset({"PlanMemory"}))).plan.memory
    assert unplanned.arena_bytes == unplanned.unplanned_bytes > plan.arena_bytes
    uncut = compile_graph(g, BuildOptions(disabled_passes=frozenset({"PrecomputePrune"})))
    assert whole.prepare is not None and uncut.prepare is None and len(uncut.kernels) > len(whole.kernels)
    plain = compile_graph(g, BuildOptions(disabled_passes=frozenset({"FinishPrepare"}))).prepare
    assert plain.plan.memory.arena_bytes == plain.plan.memory.unplanned_bytes
    assert all(len(k.ops) == 1 for k in plain.kernels)
