"""Models as C: the same results as in Python, from a shared library and from a program of its own."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import nnvm
import nnvm.symbol as sym
from nnvm.artifact import as_level, c_source, compile_artifact
from nnvm.artifact.c_source import compiler, export_c, link_shared
from nnvm.cli.main import main
from nnvm.compiler.build_module import typed_graph
from nnvm.dim import dim_max, symbol
from nnvm.dtype import I64
from nnvm.graph import Graph, TensorType, apply, variable
from nnvm.runtime.artifact.container import Container
from nnvm.target import Target

RNG = np.random.default_rng(97)
PARAMS = {"c_weight": (16, 3, 3, 3), "c_bias": (16,), "fc_weight": (6, 16), "fc_bias": (6,)}
PARAMS = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in PARAMS.items()}
CC = compiler(Target.host().triple)
needs_cc = pytest.mark.skipif(CC is None, reason="there is no C compiler here")


@pytest.fixture(scope="module", params=["packed", "original"])
def exported(request, tmp_path_factory):
    """(artifact, files) of a small network of any batch size."""
    folder = tmp_path_factory.mktemp("c")
    pooled = sym.global_avg_pool2d(sym.relu(sym.conv2d(sym.Variable("x"), channels=16, kernel_size=(3, 3), name="c")))
    net = sym.softmax(sym.dense(sym.flatten(pooled), units=6, name="fc"))
    graph = typed_graph(net, {"x": (symbol("n"), 3, 9, 9)}, params=PARAMS)
    compile_artifact(graph, PARAMS, folder / "net.nnvm", [as_level("host")], weights=request.param)
    return folder / "net.nnvm", export_c(Container(folder / "net.nnvm"), folder / "made")


def built(folder, outputs, inputs, params=None):
    graph = Graph(tuple(outputs), tuple(v.node for v in inputs))
    compile_artifact(graph, params or {}, folder / "m.nnvm", [as_level("host")])
    return library(export_c(Container(folder / "m.nnvm"), folder / "made"))


def library(files, command=CC):
    lib = ctypes.CDLL(str(link_shared(files, command)))
    lib.nnvm_create.restype, lib.nnvm_create.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    lib.nnvm_run.argtypes = [ctypes.c_void_p] * 4
    lib.nnvm_destroy.argtypes = [ctypes.c_void_p]
    lib.nnvm_message.restype = ctypes.c_char_p
    lib.nnvm_output_bytes.restype = ctypes.c_int64
    weights = next(f for f in files if f.suffix == ".safetensors")
    return lib, lib.nnvm_create(os.fsencode(weights))


def run(lib, model, inputs, outputs, sizes=()):
    pointers = [(ctypes.c_void_p * max(1, len(a)))(*(x.ctypes.data for x in a)) for a in (inputs, outputs)]
    return lib.nnvm_run(model, *pointers, (ctypes.c_int64 * max(1, len(sizes)))(*sizes))


@needs_cc
def test_a_shared_library_gives_what_python_gives(exported):
    artifact, files = exported
    module, (lib, model) = nnvm.runtime.load(artifact), library(files)
    batches = [RNG.standard_normal((n, 3, 9, 9)).astype(np.float32) for n in (1, 2, 5, 3, 8, 1, 4, 6)]

    def call(x):
        y = np.empty((len(x), 6), np.float32)
        assert run(lib, model, [x], [y], [len(x)]) == 0
        return y

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(call, batches))
    for x, y in zip(batches, results):
        np.testing.assert_array_equal(y, module.run(x=x)["output0"])
    sizes = (ctypes.c_int64 * 1)(7)
    assert lib.nnvm_output_bytes(0, sizes) == 7 * 6 * 4 and lib.nnvm_output_bytes(1, sizes) == -1
    lib.nnvm_destroy(model)


@needs_cc
@pytest.mark.parametrize("options", [[], ["-fopenmp"]])
def test_the_example_compiles_without_warnings_and_runs(exported, tmp_path, options):
    artifact, files = exported
    folder = files[0].parent
    program = tmp_path / "example"
    command = [*CC, "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", *options, str(folder / "example.c"),
               str(folder / "net.c"), f"-L{folder}", "-lnet_kernels", "-lm", "-o", str(program)]  # fmt: skip
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if options and made.returncode != 0 and "omp" in made.stderr:
        pytest.skip("the compiler has no OpenMP")
    assert made.returncode == 0, made.stderr
    x = RNG.standard_normal((3, 3, 9, 9)).astype(np.float32)
    x.tofile(tmp_path / "x.bin")
    weights = str(folder / "net.safetensors")
    argv = [str(program), weights, "3", str(tmp_path / "x.bin"), str(tmp_path / "y.bin")]
    subprocess.run(argv, check=True)
    wanted = nnvm.runtime.load(artifact).run(x=x)["output0"]
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y.bin", np.float32).reshape(3, 6), wanted)
    (tmp_path / "other").write_bytes(b"\1" + (folder / "net.safetensors").read_bytes()[1:])
    for wrong in (str(tmp_path / "other"), str(tmp_path / "x.bin"), "nowhere"):
        failed = subprocess.run([*argv[:1], wrong, *argv[2:]], capture_output=True, text=True, check=False)
        assert failed.returncode == 1 and "no weights of this model" in failed.stderr


@needs_cc
def test_a_failed_check_is_a_code_with_a_message(tmp_path):
    table, ids = variable("table", TensorType((5, 3)), "param"), variable("ids", TensorType((4,), I64))
    values = RNG.standard_normal((5, 3)).astype(np.float32)
    lib, model = built(tmp_path, [apply("take", [table, ids], {"axis": 0})[0]], [ids, table], {"table": values})
    out = np.empty((4, 3), np.float32)
    assert run(lib, model, [np.array([4, 0, 2, 2])], [out]) == 0
    np.testing.assert_array_equal(out, values[[4, 0, 2, 2]])
    code = run(lib, model, [np.array([0, 1, 5, 0])], [out])
    assert code > 0 and b"IndexError" in lib.nnvm_message(code)
    assert lib.nnvm_message(-1) == b"there is not enough memory" and lib.nnvm_message(99) == b"no such code"


@needs_cc
def test_outputs_that_no_kernel_writes_and_sizes_in_expressions(tmp_path):
    n = symbol("n")
    x, y = variable("x", TensorType((n, 4))), variable("y", TensorType((dim_max(n, 3) // 2, 2)))
    outputs = [x, apply("relu", [y])[0], apply("reshape", [x], {"shape": (n * 2, 2)})[0]]
    lib, model = built(tmp_path, outputs, [x, y])
    for size in (1, 2, 7):
        a = RNG.standard_normal((size, 4)).astype(np.float32)
        b = RNG.standard_normal((max(size, 3) // 2, 2)).astype(np.float32)
        found = [np.empty_like(a), np.empty_like(b), np.empty((size * 2, 2), np.float32)]
        assert lib.nnvm_output_bytes(1, (ctypes.c_int64 * 1)(size)) == b.nbytes
        assert run(lib, model, [a, b], found, [size]) == 0
        for got, want in zip(found, [a, np.maximum(b, 0), a.reshape(-1, 2)], strict=True):
            np.testing.assert_array_equal(got, want)


def test_code_for_another_machine_is_exported_as_it_is(tmp_path):
    x = variable("x", TensorType((4,)))
    compile_artifact(Graph((apply("exp", [x])[0],), (x.node,)), {}, tmp_path / "m.nnvm", [as_level("aarch64")])
    files = export_c(Container(tmp_path / "m.nnvm"), tmp_path / "made")
    library = next(f for f in files if f.suffix == ".a").read_bytes()
    assert library.startswith(b"!<arch>\n/ ")
    elf = library.index(b"\x7fELF")
    assert library[elf + 18 : elf + 20] == b"\xb7\0"  # EM_AARCH64


def test_the_command(exported, tmp_path, capsys):
    artifact, _ = exported
    assert main(["export-c", str(artifact), "-o", str(tmp_path / "c")]) == 0
    said = capsys.readouterr().out
    names = {f.name for f in (tmp_path / "c").iterdir()}
    assert {"net.h", "net.c", "example.c", "libnet_kernels.a", "net.safetensors"} <= names
    assert ("libnet.so" in names) == (CC is not None) and f"wrote {tmp_path / 'c' / 'net.h'}" in said
    assert main(["export-c", str(artifact), "-o", str(tmp_path / "c"), "--level", "z80"]) == 2
    assert "no level 'z80'; choose one of" in capsys.readouterr().err
    assert main(["export-c", "nowhere.nnvm", "-o", str(tmp_path / "c")]) == 1
    assert capsys.readouterr().err == "nnvm export-c: no file nowhere.nnvm\n"


@needs_cc
def test_a_compiler_that_fails_is_quoted(exported, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CC", "false")
    assert main(["export-c", str(exported[0]), "-o", str(tmp_path / "c")]) == 1
    assert "nnvm export-c: false -shared" in capsys.readouterr().err
    monkeypatch.setenv("CC", "no-such-compiler")
    assert main(["export-c", str(exported[0]), "-o", str(tmp_path / "c")]) == 1
    assert "no-such-compiler cannot be run" in capsys.readouterr().err


def test_without_a_compiler_there_is_everything_but_the_library(exported, tmp_path, monkeypatch, capsys):
    """The kernels' objects and the header are there, for whoever links them."""
    artifact, _ = exported
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(c_source.importlib.util, "find_spec", lambda name: None)
    assert compiler(Target.host().triple) is None
    assert main(["export-c", str(artifact), "-o", str(tmp_path / "made")]) == 0
    assert "pip install ziglang" in capsys.readouterr().out
    names = {"example.c", "libnet_kernels.a", "net.c", "net.h", "net.safetensors"}
    assert {p.name for p in (tmp_path / "made").iterdir()} == names


@pytest.mark.slow  # ziglang compiles a C library for each machine when it is first asked to
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the package ziglang is not installed")
def test_the_compiler_that_ziglang_brings(exported, tmp_path, monkeypatch):
    """With nothing on the PATH: for this machine, and for another one."""
    artifact, _ = exported
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    command = compiler(Target.host().triple)
    assert command[1:] == ["-m", "ziglang", "cc"]
    files = export_c(Container(artifact), tmp_path / "here")
    lib, model = library(files, command)
    x, y = RNG.standard_normal((2, 3, 9, 9)).astype(np.float32), np.empty((2, 6), np.float32)
    assert run(lib, model, [x], [y], [2]) == 0
    np.testing.assert_array_equal(y, nnvm.runtime.load(artifact).run(x=x)["output0"])
    lib.nnvm_destroy(model)
    v = variable("x", TensorType((4,)))
    compile_artifact(Graph((apply("exp", [v])[0],), (v.node,)), {}, tmp_path / "m.nnvm", [as_level("aarch64")])
    foreign = compiler("aarch64-unknown-linux-gnu")
    assert foreign[-2:] == ["-target", "aarch64-linux-gnu"]
    made = link_shared(export_c(Container(tmp_path / "m.nnvm"), tmp_path / "there"), foreign)
    assert made.read_bytes()[:20][18:20] == b"\xb7\0"  # the machine in an ELF header: AArch64
