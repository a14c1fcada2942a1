"""Graphs of which a part runs on a GPU and the rest on the processor: by Triton's interpreter, and through a double of
CUDA's driver."""

from __future__ import annotations

import numpy as np
import pytest

import nnvm
import nnvm.symbol as sym
from nnvm.compiler import cuda_device
from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.dim import symbol
from nnvm.dtype import F16, I64
from nnvm.graph import Graph, TensorType, apply, variable
from nnvm.kernel_error import KernelIndexError
from nnvm.runtime import cuda_driver
from nnvm.runtime.artifact.plan import Binary
from nnvm.runtime.executor import Executor
from nnvm.runtime.memory import NumpyMemory
from nnvm.runtime.plan import DeviceStep, KernelStep
from nnvm.runtime.triton_binary import LaunchBinary
from nnvm.testing.reference import run_graph
from tests.runtime.cuda_double import CudaDouble

pytestmark = pytest.mark.triton
RNG = np.random.default_rng(29)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def network():
    x = sym.relu(
        sym.conv2d(sym.Variable("data"), channels=6, kernel_size=(3, 3), padding=(1, 1), name="conv"), name="act"
    )
    x = sym.dense(sym.flatten(sym.max_pool2d(x, pool_size=(2, 2), strides=(2, 2), name="pool")), units=20, name="fc")
    return sym.softmax(x, name="soft")


@pytest.mark.parametrize("wishes", [("fc", "soft"), ("conv", "act"), ("pool",), ("conv", "fc")])
def test_a_network_on_both(wishes):
    net, shapes = network(), {"data": (2, 3, 8, 8)}
    arguments, _, _ = net.infer_shape(**shapes)
    arrays = {k: normal(*s) / 4 for k, s in arguments.items()}
    params = {k: v for k, v in arrays.items() if k != "data"}
    there = dict.fromkeys(wishes, "cuda:0")
    if "soft" not in wishes:
        there["soft"] = "cpu"
    with nnvm.compiler.build_config(options={"device_wishes": there}, verify=True):
        g, lib, new = nnvm.compiler.build(net, "llvm", shape=shapes, params=params)
    placed = g.attrs["placement"].device_of
    assert all(placed[name] == "cuda:0" for name in wishes) and "cpu" in placed.values()
    kinds = [type(s) for s in lib.plan.steps]
    assert DeviceStep in kinds and KernelStep in kinds
    module = nnvm.runtime.create(g, lib)
    typed = net.infer_type(data=TensorType(shapes["data"]))
    for _ in range(2):
        arrays["data"] = normal(2, 3, 8, 8)
        module.run(data=arrays["data"], **new)
        np.testing.assert_allclose(module.get_output(0), run_graph(typed, arrays)[0], rtol=1e-4, atol=1e-5)


def executor(outputs, inputs, wishes):
    graph = Graph(tuple(outputs), tuple(v.node for v in inputs))
    compiled = compile_graph(graph, BuildOptions(options={"device_wishes": wishes}, verify=True))
    constants = [np.array(e.node.attrs["value"]) for e in compiled.plan.constants]
    return compiled, Executor(compiled.plan, NumpyMemory(), constants)


def test_named_sizes_and_two_gpus():
    n = symbol("n")
    x = variable("x", TensorType((n, 40)))
    a = apply("exp", [x], name="a")[0]
    b = apply("softmax", [a], {"axis": -1}, name="b")[0]
    c = apply("sqrt", [b], name="c")[0]
    compiled, run = executor([c], [x], {"a": "cuda:0", "b": "cuda:1"})
    assert {s.node.outputs[0].type.device for s in compiled.plan.steps if isinstance(s, DeviceStep)} >= {
        "cuda:0",
        "cuda:1",
    }
    for rows in (1, 7, 130):
        data = normal(rows, 40)
        e = np.exp(np.exp(data.astype(np.float64)))
        np.testing.assert_allclose(run.run([data])[0], np.sqrt(e / e.sum(1, keepdims=True)), rtol=1e-4, atol=1e-6)


def test_half_types_and_workspaces():
    x = variable("x", TensorType((1, 60000), F16))
    y = apply("sum", [apply("abs", [x], name="a")[0]], {"axis": (1,)}, name="s")[0]
    _, run = executor([apply("negative", [y], name="n")[0]], [x], {"s": "cuda"})
    data = RNG.random((1, 60000)).astype(np.float16) / 512
    np.testing.assert_allclose(run.run([data])[0], -data.astype(np.float64).sum(1), rtol=2e-3)


def test_what_has_no_kernel_there_stays():
    x = variable("x", TensorType((5, 6)))
    y = apply("sort", [apply("exp", [x], name="e")[0]], {"axis": 1}, name="sorted")[0]
    compiled, run = executor([y], [x], {"e": "cuda:0", "sorted": "cuda:0"})
    assert compiled.placement.device_of["e"] == "cuda:0" and compiled.placement.device_of["sorted"] == "cpu"
    assert "sort has no kernel for a GPU" in str(compiled.placement)
    data = normal(5, 6)
    np.testing.assert_allclose(run.run([data])[0], np.sort(np.exp(data), 1), rtol=1e-5)


def test_an_index_out_of_range_raises():
    table, index = variable("t", TensorType((6, 8))), variable("i", TensorType((4,), I64))
    taken = apply("take", [table, index], {"axis": 0}, name="taken")[0]
    _, run = executor([apply("exp", [taken], name="e")[0]], [table, index], {"taken": "cuda:0"})
    data = normal(6, 8)
    with pytest.raises(KernelIndexError):
        run.run([data, np.array([0, 1, 6, 2])])
    np.testing.assert_allclose(run.run([data, np.array([5, 0, 0, 3])])[0], np.exp(data[[5, 0, 0, 3]]), rtol=1e-5)


def test_there_is_no_such_gpu(monkeypatch):
    monkeypatch.setattr(cuda_device, "is_interpreting", lambda: False)
    monkeypatch.setattr(cuda_driver, "_load", lambda: CudaDouble([(9, 0)]))
    monkeypatch.setattr(cuda_driver, "_devices", {})
    x = variable("x", TensorType((4,)))
    with pytest.raises(cuda_driver.CudaError, match="there is no GPU 3: there are 1"):
        executor([apply("exp", [x], name="e")[0]], [x], {"e": "cuda:3"})


def test_through_the_driver(monkeypatch):
    """Launches get their arguments, memory is freed, failures are told. The machine code is made up."""
    double = CudaDouble([(8, 0), (9, 0)])

    def made_up(launch, wide, aligned):
        source = launch.source(wide)
        code = f"{source.text} {wide} {aligned}".encode()
        double.know(code, source, Binary(0, len(code), source.name, 128, 0, 2), wide)
        return LaunchBinary(code, source.name, 128, 0, 2)

    monkeypatch.setattr(cuda_device, "is_interpreting", lambda: False)
    monkeypatch.setattr(cuda_device, "launch_binary", made_up)
    monkeypatch.setattr(cuda_device, "_machines", {})
    monkeypatch.setattr(cuda_driver, "_load", lambda: double)
    monkeypatch.setattr(cuda_driver, "_devices", {})
    table, index = variable("t", TensorType((6, 8))), variable("i", TensorType((4,), I64))
    taken = apply("take", [table, index], {"axis": 0}, name="taken")[0]
    _, run = executor([apply("exp", [taken], name="e")[0]], [table, index], {"taken": "cuda:1", "e": "cpu"})
    data = normal(6, 8)
    for _ in range(2):
        np.testing.assert_allclose(run.run([data, np.array([5, 0, 0, 3])])[0], np.exp(data[[5, 0, 0, 3]]), rtol=1e-5)
    with pytest.raises(KernelIndexError):
        run.run([data, np.array([0, 1, 6, 2])])
    assert len(double.launches) == 3 and double.calls.count("cuModuleLoadData") == 1
    assert double.depth == 0 and not double.memory
