"""Instruments: NNVM_DUMP and the timings of NNVM_DEBUG."""

from nnvm.graph.dump import DumpInstrument, default_instruments
from nnvm.graph.pass_manager import PassContext, apply_passes
from tests.graph.build import graph, op, scalar, var


def _graph():
    return graph(op("multiply", var("x", 2), op("exp", scalar(0)))).with_attrs(typed=True)


def test_dump_writes_numbered_texts_and_diffs(tmp_path):
    apply_passes(_graph(), ["FoldConstant", "EliminateCommon"], PassContext(instruments=[DumpInstrument(tmp_path)]))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "000_input.txt", "001_FoldConstant.diff", "001_FoldConstant.txt", "002_EliminateCommon.diff",
        "002_EliminateCommon.txt"]  # fmt: skip
    assert (
        "exp(" in (tmp_path / "000_input.txt").read_text()
        and "exp(" not in (tmp_path / "001_FoldConstant.txt").read_text()
    )
    diff = (tmp_path / "001_FoldConstant.diff").read_text()
    assert any(line.startswith("-") and "exp(" in line for line in diff.splitlines())
    assert (tmp_path / "002_EliminateCommon.diff").read_text() == "(unchanged)\n"


def test_the_environment_chooses(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("NNVM_DUMP", raising=False)
    monkeypatch.setenv("NNVM_DEBUG", "0")
    assert list(default_instruments()) == []
    monkeypatch.setenv("NNVM_DUMP", str(tmp_path))
    monkeypatch.setenv("NNVM_DEBUG", "2")
    apply_passes(_graph(), ["FoldConstant"], PassContext(instruments=list(default_instruments())))
    assert "FoldConstant" in capsys.readouterr().err
    (folder,) = tmp_path.iterdir()
    assert (folder / "001_FoldConstant.txt").exists()
