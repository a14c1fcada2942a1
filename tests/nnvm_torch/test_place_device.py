"""A PyTorch model of which parts run on another device, on torch's own memory."""

import pytest
import torch

from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.runtime.plan import DeviceStep
from nnvm_torch.capture import capture
from nnvm_torch.runner import Runner


def run(found, compiled):
    args = [None] * (1 + max(found.imported.positions))
    for position, tensor in zip(found.imported.positions, found.tensors):
        if position >= 0:
            args[position] = tensor
    return Runner(found.imported, compiled)(args)


@pytest.mark.parametrize(("device", "dtype"), [
    ("reference", torch.float32), ("reference", torch.bfloat16),
    pytest.param("cuda:0", torch.float32, marks=pytest.mark.triton),
    pytest.param("cuda:0", torch.bfloat16, marks=pytest.mark.triton)])  # fmt: skip
def test_ops_on_the_other_device(device, dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(36, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 5), torch.nn.Softmax(-1),
    ).eval().to(dtype)  # fmt: skip
    x = torch.randn(2, 8, 8, 3, dtype=dtype).permute(0, 3, 1, 2)
    with torch.no_grad():
        want = model(x)
    found = capture(model, [x])
    names = [n.name for n in found.imported.graph.nodes if not n.is_variable and not n.is_constant]
    placed = 0
    for wished in (names, names[::2], names[1::3], names[-1:]):
        options = {"device_wishes": dict.fromkeys(wished, device)}
        compiled = compile_graph(found.imported.graph, BuildOptions(options=options, verify=True))
        (got,) = run(found, compiled)
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
        placed += any(isinstance(s, DeviceStep) for s in compiled.plan.steps)
    assert placed == 4
