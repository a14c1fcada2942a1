"""``nnvm compile`` and ``nnvm show`` of programs of torch.export and of symbols of MXNet's."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import nnvm
from nnvm.cli.main import main

torch = pytest.importorskip("torch")
_path = Path(__file__).parent.parent / "frontend" / "mxnet_files.py"
_spec = importlib.util.spec_from_file_location("mxnet_files", _path)
files = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(files)

RNG = np.random.default_rng(17)


class Net(torch.nn.Module):
    """A buffer that changes, and results that are views."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        y = self.linear(x)
        self.total.add_(y.sum(0))
        return {"y": y.t(), "first": y[0], "total": self.total * 1}


def test_a_program_of_torch_export(tmp_path, capsys):
    torch.manual_seed(0)
    net = Net()
    sizes = ({0: torch.export.Dim("n", min=2, max=32)},)
    file, out = tmp_path / "net.pt2", tmp_path / "net.nnvm"
    torch.export.save(torch.export.export(net, (torch.randn(5, 4),), dynamic_shapes=sizes), file)
    assert main(["compile", str(file), "-o", str(out), "--target", "host"]) == 0
    module = nnvm.runtime.load(out)
    total = np.zeros(3, np.float32)
    for n in (2, 7):
        x = torch.randn(n, 4)
        got = module.run(x=x.numpy(), total=total)
        total = got["total_next"]
        expected = net(x)
        for name in ("y", "first", "total"):
            np.testing.assert_allclose(got[name], expected[name].detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(total, net.total.detach().numpy(), rtol=1e-4, atol=1e-5)
    capsys.readouterr()
    assert main(["show", str(file), "--stage", "before"]) == 0
    assert "linear.weight: float32[3, 4] param" in capsys.readouterr().out


def test_what_is_no_program(tmp_path, capsys):
    file = tmp_path / "broken.pt2"
    file.write_bytes(b"PK\x03\x04 but no more")
    assert main(["compile", str(file), "-o", str(tmp_path / "x.nnvm")]) == 1
    error = capsys.readouterr().err
    assert "broken.pt2 holds no program" in error and "Traceback" not in error
    assert main(["show", str(tmp_path / "none.pt2")]) == 1
    assert "no file" in capsys.readouterr().err


@pytest.fixture
def symbol(tmp_path):
    """A symbol with two sets of weights beside it; its weights."""
    net = files.Net()
    weight, bias = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 4), (3,)))
    inputs = net.variable("data"), net.variable("fc_weight", weight), net.variable("fc_bias", bias)
    net.op("SoftmaxOutput", net.op("FullyConnected", *inputs, num_hidden=3), net.variable("label"), name="out")
    (tmp_path / "net-symbol.json").write_text(net.json())
    for epoch, scale in ((2, 0.5), (11, 1.0)):
        arrays = {f"arg:{n}": a * np.float32(scale) for n, a in net.params.items()}
        (tmp_path / f"net-{epoch:04d}.params").write_bytes(files.params_bytes(arrays))
    return tmp_path, weight, bias


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_a_symbol_of_mxnet(symbol, capsys):
    folder, weight, bias = symbol
    x = RNG.standard_normal((5, 4)).astype(np.float32)
    for more, scale in ((["--params", str(folder / "net-0002.params")], 0.5), ([], 1.0)):
        out = folder / "net.nnvm"
        args = ["compile", str(folder / "net-symbol.json"), "-o", str(out), "--target", "host", "--shape", "data=n,4"]
        assert main([*args, *more]) == 0
        got = nnvm.runtime.load(out).run(data=x)["out_output"]
        np.testing.assert_allclose(got, softmax((x @ weight.T + bias) * scale), rtol=1e-5, atol=1e-6)
    capsys.readouterr()
    assert main(["compile", str(folder / "net-symbol.json"), "-o", str(out)]) == 1
    assert "variable at data: it is no param, and its shape is not known" in capsys.readouterr().err
    (folder / "net-0011.params").write_bytes(b"\x12\x01" + b"\0" * 14)
    assert main(args) == 1
    assert "net-0011.params: the file ends inside" in capsys.readouterr().err
