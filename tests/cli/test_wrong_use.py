"""Every command as somebody uses it who gets everything wrong: a line that says what, and a status."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import nnvm.symbol as sym
from nnvm.cli.main import COMMANDS, main
from nnvm.compiler.build_module import typed_graph

RNG = np.random.default_rng(59)
ENDINGS = ("onnx", "json", "nnvm", "npy", "npz", "params", "safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Empty files, junk and folders with every ending, and a good model."""
    path = tmp_path_factory.mktemp("wrong")
    for ending in ENDINGS:
        (path / f"empty.{ending}").write_bytes(b"")
        (path / f"junk.{ending}").write_bytes(RNG.bytes(400))
        (path / f"folder.{ending}").mkdir()
    (path / "list.json").write_text("[1, 2]")
    (path / "deep.json").write_text("[" * 100_000)
    np.save(path / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.save(path / "wide.npy", RNG.standard_normal((2, 8)))
    net = sym.softmax(sym.relu(sym.Variable("x")))
    (path / "good.json").write_text(typed_graph(net, {"x": (2, 8)}).json())
    assert main(["compile", str(path / "good.json"), "-o", str(path / "good.nnvm"), "--target", "host"]) == 0
    return path


MODELS = ("nowhere.onnx", "nowhere.json", "nowhere.nnvm", "list.json", "deep.json", "objects.npy",
          *(f"{kind}.{e}" for kind in ("empty", "junk", "folder") for e in ("onnx", "json", "nnvm")))  # fmt: skip
CASES = [
    *(["show", m] for m in MODELS),
    *(["compile", m, "-o", "out.nnvm", "--target", "host"] for m in MODELS),
    *([command, m] for m in ("nowhere.nnvm", "empty.nnvm", "junk.nnvm", "folder.nnvm", "good.json")
      for command in ("run", "export-c")),
    *(["run", "good.nnvm", "--input", f"{kind}.{e}"] for kind in ("nowhere", "empty", "junk", "folder")
      for e in ("npy", "npz")),
    *(["run", "good.nnvm", "--input", f] for f in ("objects.npy", "wide.npy", "x=", "y=wide.npy", "x")),
    *(["run", "good.nnvm", *a] for a in (["--level", ""], ["--calls", "0"], ["--threads", "x"], ["-o", "y.txt"])),
    *(["compile", "good.json", "-o", o] for o in ("nowhere/m.nnvm", "folder.nnvm", "", ".", "good.nnvm/m.nnvm")),
    *(["show", "good.json", "-o", o] for o in ("nowhere/m.html", "folder.nnvm", "", ".")),
    *(["export-c", "good.nnvm", "-o", o] for o in ("good.nnvm", "good.nnvm/c", "")),
    *(["compile", "good.json", "-o", "o.nnvm", "--target", t] for t in (
        "", "z80", "llvm -mcpu=nope", "llvm -mtriple=foo-bar", "cuda", "reference", "llvm -mcpu='", "x86-64-v9",
        "llvm -mcpu=haswell -mtriple=riscv64-unknown-linux-gnu")),
    *(["compile", "good.json", "-o", "o.nnvm", "--shape", s] for s in ("x", "=1", "x=1,-2", "y=1", "x=99999999999999")),
    *(["compile", "good.json", "-o", "o.nnvm", "--params", f"{kind}.{e}"]
      for kind in ("nowhere", "empty", "junk", "folder") for e in ("npz", "params", "safetensors")),
    *(["show", "good.json", *a] for a in (["--size", "q=1"], ["--size", "q"], ["--memory", "--size", "q=1"], ["--time"],
                                          ["--disable-pass", "Nope"], ["-o", "x.html", "--memory"],
                                          ["-o", "x.html", "--json"], ["--opt-level", "7"])),
    *(["bench", *a] for a in (["nowhere.onnx"], ["good.json", "--threads", "0"], ["x", "--cores", "3-1"],
                              ["junk.onnx", "--against", "eager"], ["junk.onnx", "--input", "x"])),
    [], ["nope"], ["--debug"], ["run"], ["doctor", "x"],
]  # fmt: skip


@pytest.mark.parametrize("argv", CASES, ids=lambda argv: " ".join(argv)[:60])
def test_a_line_and_a_status(folder, monkeypatch, capsys, argv):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    if argv[:1] == ["export-c"] and "-o" not in argv:
        argv = [*argv, "-o", "out"]
    try:
        status = main(argv)
    except SystemExit as stop:  # argparse, which shows how the command is used
        assert stop.code == 2
        assert "error: " in capsys.readouterr().err.splitlines()[-1]
        return
    said = capsys.readouterr()
    assert status in (1, 2) and not said.out
    assert re.fullmatch(rf"nnvm {argv[0]}: [^\n]{{8,}}\n", said.err), said.err
    assert "Traceback" not in said.err
    assert sorted(folder.rglob("*")) == before  # nothing was written


def test_the_statuses_are_documented(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "1 something failed" in capsys.readouterr().out
    for command in COMMANDS:
        with pytest.raises(SystemExit):
            main([command.name, "--help"])
        assert "--debug" in capsys.readouterr().out


def command(*argv, **how):
    environment = {**os.environ, "NNVM_CACHE": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen([sys.executable, "-m", "nnvm.cli", *map(str, argv)], env=environment, text=True,
                            stderr=subprocess.PIPE, **how)  # fmt: skip


def test_a_reader_that_goes_away(folder):
    """`nnvm show ... | true`: nothing on stderr."""
    reader, writer = os.pipe()
    os.close(reader)
    with command("show", folder / "good.json", stdout=writer) as process:
        os.close(writer)
        assert process.stderr.read() == "" and process.wait() == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_no_space_left(folder):
    with open("/dev/full", "w") as full, command("show", folder / "good.json", stdout=full) as process:
        assert process.stderr.read() == "nnvm show: No space left on device\n" and process.wait() == 1


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_an_interruption_leaves_the_old_file(folder, tmp_path):
    """While the first kernel is being compiled, which writes its IR to stderr."""
    out = tmp_path / "m.nnvm"
    out.write_bytes(b"old")
    environment = {**os.environ, "NNVM_CACHE": "0", "NNVM_DEBUG": "4", "PYTHONUNBUFFERED": "1",
                   "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # fmt: skip
    argv = [sys.executable, "-m", "nnvm.cli", "compile", str(folder / "good.json"), "-o", str(out)]
    with subprocess.Popen(argv, env=environment, text=True, stderr=subprocess.PIPE) as process:
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        status = process.wait()
    assert first and status in (0, 130), rest
    if status == 130:
        assert rest.endswith("nnvm compile: interrupted\n") and out.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["m.nnvm"]
