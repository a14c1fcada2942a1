"""Graphs with calls that ATen runs, as JSON and back."""

import dataclasses

import pytest
import torch

from nnvm.cli import main
from nnvm.compiler.build import compile_graph
from nnvm.graph.json import decode_value, encode_value, load_json
from nnvm_torch.capture import capture
from nnvm_torch.partition import AtenCall, Size, Slot
from nnvm_torch.runner import Runner


class Mixed(torch.nn.Module):
    def forward(self, x):
        spectrum = torch.fft.rfft(x.relu(), dim=-1)
        return torch.as_strided(spectrum.abs() * 2, (2, 2), (1, 2)), x.to(torch.float16).cumsum(0, dtype=torch.float64)


def test_calls_come_back():
    x = torch.randn(4, 6)
    found = capture(Mixed(), [x])
    assert found.imported.fallbacks
    text = found.imported.graph.json()
    again = load_json(text)
    calls, loaded = ([n.attrs["call"] for n in g.nodes if n.op.name.startswith("torch.")]
                     for g in (found.imported.graph, again))  # fmt: skip
    assert len(calls) == len(loaded) >= 2
    for a, b in zip(calls, loaded):
        assert a.target is b.target and (a.args, a.keep, a.effect) == (b.args, b.keep, b.effect)
        assert dict(a.kwargs) == dict(b.kwargs)
    assert again.json() == text
    imported = dataclasses.replace(found.imported, graph=again)
    for got, want in zip(Runner(imported, compile_graph(again))([x]), Mixed()(x)):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "value",
    [torch.float16, torch.strided, torch.channels_last, torch.device("cpu"), Slot(1), Slot(0, (4, 1)),
     [Slot(0), None, (1, 2.5), "mean"], {"dtype": torch.bool}],
)  # fmt: skip
def test_arguments_come_back(value):
    assert decode_value(encode_value(value)) == value


def test_a_size_of_the_call_comes_back():
    from nnvm.dim import symbol

    assert decode_value(encode_value(Size(symbol("s0") + 1))) == Size(symbol("s0") + 1)


def test_what_is_no_operator_is_named():
    with pytest.raises(TypeError, match="no ATen or custom operator"):
        encode_value(AtenCall(len, (), {}, (0,), False))


def test_show_reads_such_a_graph(capsys, tmp_path):
    path = tmp_path / "mixed.json"
    path.write_text(capture(Mixed(), [torch.randn(4, 6)]).imported.graph.json())
    assert main.main(["show", str(path), "-o", str(tmp_path / "p.html"), "--time", "--calls", "2"]) == 0
    text = (tmp_path / "p.html").read_text("utf-8")
    assert "torch.op" in text and ">host<" in text
