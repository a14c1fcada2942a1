"""The ``nnvm`` command itself: parsing, exit statuses, and what it does without torch."""

import importlib
import subprocess
import sys

import pytest

from nnvm.cli import bench, doctor, main
from nnvm.cli.command import CliError, Command


def run_with(monkeypatch, function, *options):
    command = Command("try", "", "", lambda parser: None, function)
    monkeypatch.setattr(main, "COMMANDS", (command,))
    return main.main(["try", *options])


def raises(error):
    def run(args):
        raise error

    return run


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "bench" in out and "doctor" in out


def test_every_command_explains_itself(capsys):
    for command in main.COMMANDS:
        with pytest.raises(SystemExit) as stop:
            main.main([command.name, "--help"])
        assert stop.value.code == 0
    assert "onnxruntime" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv", [[], ["benhc"], ["bench", "--rounds", "0"], ["bench", "--seconds", "nan"], ["--bench"]]
)
def test_wrong_use_has_status_2(argv):
    with pytest.raises(SystemExit) as stop:
        main.main(argv)
    assert stop.value.code == 2


def test_the_status_of_a_command_is_the_status(monkeypatch):
    assert run_with(monkeypatch, lambda args: 7) == 7


def test_a_cli_error_is_one_line(monkeypatch, capsys):
    assert run_with(monkeypatch, raises(CliError("no such thing", 3))) == 3
    assert capsys.readouterr().err == "nnvm try: no such thing\n"


def test_an_interruption_has_status_130(monkeypatch):
    assert run_with(monkeypatch, raises(KeyboardInterrupt())) == 130


def test_other_exceptions_are_a_line_too(monkeypatch, capsys):
    assert run_with(monkeypatch, lambda args: 1 // 0) == 1
    said = capsys.readouterr().err
    assert said == "nnvm try: ZeroDivisionError: integer division or modulo by zero (--debug shows where)\n"
    assert run_with(monkeypatch, lambda args: 1 // 0, "--debug") == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.npy"), "no file a.npy"),
        (PermissionError(13, "Permission denied", "b.npz"), "b.npz: Permission denied"),
        (KeyError("x"), "KeyError: x (--debug shows where)"),
        (ValueError("two\nlines"), "ValueError: two lines (--debug shows where)"),
        (MemoryError(), "MemoryError: no details (--debug shows where)"),
    ],
)
def test_what_exceptions_say(monkeypatch, capsys, error, says):
    assert run_with(monkeypatch, raises(error)) == 1
    assert capsys.readouterr().err == f"nnvm try: {says}\n"


def test_the_command_starts_without_torch():
    code = "import nnvm.cli.main, sys; raise SystemExit(any(m in sys.modules for m in ('torch', 'rich', 'llvmlite')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("missing", "hint"), [("torch", "pip install torch"), ("nnvm_torch", "pip install nnvm-torch")]
)
def test_bench_names_what_is_missing(monkeypatch, capsys, missing, hint):
    def import_module(name):
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(bench.importlib, "import_module", import_module)
    assert main.main(["bench"]) == 1
    assert hint in capsys.readouterr().err


def test_core_list():
    assert bench.core_list("0,2-4") == (0, 2, 3, 4)
    with pytest.raises(SystemExit) as stop:
        main.main(["bench", "--cores", "a"])
    assert stop.value.code == 2


def test_doctor(capsys):
    assert main.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("python", "llvmlite", "vector width", "object cache", "OpenMP", "torch", "pip install"):
        assert word in out
    assert sys.executable in out


def test_doctor_without_torch(monkeypatch, capsys):
    def import_module(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(doctor.importlib, "import_module", import_module)
    assert main.main(["doctor"]) == 0
    assert "missing: pip install torch" in capsys.readouterr().out


def test_doctor_with_a_broken_torch(monkeypatch, capsys):
    def import_module(name):
        raise OSError("libtorch.so: undefined symbol")

    monkeypatch.setattr(doctor.importlib, "import_module", import_module)
    assert main.main(["doctor"]) == 0
    assert "broken: OSError: libtorch.so: undefined symbol" in capsys.readouterr().out


def test_doctor_sees_that_the_cache_is_off(monkeypatch, capsys):
    monkeypatch.setenv("NNVM_CACHE", "0")
    main.main(["doctor"])
    assert "off (NNVM_CACHE=0)" in capsys.readouterr().out


def test_python_dash_m():
    assert importlib.util.find_spec("nnvm.cli.__main__") is not None
