"""NNVM_DEBUG: each level says what the one before says, and more; never on the standard output."""

import re

import nnvm
import nnvm.symbol as sym


def compiled(monkeypatch, capfd, level):
    monkeypatch.setenv("NNVM_DEBUG", str(level))
    data = sym.Variable("data")
    net = sym.relu(sym.conv2d(data, channels=16, kernel_size=(3, 3), name="c"))
    types = net.infer_type(data=nnvm.graph.TensorType((1, 3, 8, 8)))
    nnvm.compiler.build(types, "llvm")
    out, err = capfd.readouterr()
    assert out == ""
    return err


def test_levels(monkeypatch, capfd):
    zero, one, two, three = (compiled(monkeypatch, capfd, level) for level in range(4))
    assert zero == ""
    line = r"nnvm: compiled 1 kernels and \d for weights, \d+ bytes of arena, passes [\d.]+ s, .*llvm [\d.]+ s"
    assert re.fullmatch(line + r".*\n", one)
    assert re.search(line, two) and re.search(r"nnvm: +[\d.]+ ms  GraphFuse +\d+ -> \d+ nodes", two)
    assert " kernel " not in two
    kernels = [text.split() for text in three.splitlines() if text.startswith("nnvm:   kernel ")]
    assert [k[3:] for k in kernels] == [["conv2d", "relu"]] and "GraphFuse" in three and re.search(line, three)
