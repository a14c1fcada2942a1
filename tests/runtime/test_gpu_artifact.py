"""Artifacts for a GPU: made without one, and run through a double of its driver by Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from nnvm.artifact import as_level
from nnvm.kernel_error import KernelIndexError
from nnvm.runtime import cuda_driver
from nnvm.runtime.artifact.container import ArtifactError, Container
from nnvm.runtime.artifact.module import load, read_spec
from nnvm.runtime.artifact.plan import dump_spec, load_spec
from tests.runtime.cuda_double import CudaDouble

pytestmark = pytest.mark.triton
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("gpu")
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.runtime.gpu_artifacts", str(made)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return made


@pytest.fixture
def driver(folder, monkeypatch):
    """A machine with one GPU of compute capability 9.0."""
    double = CudaDouble([(9, 0)], sorted(folder.glob("*.nnvm")))
    monkeypatch.setattr(cuda_driver, "_load", lambda: double)
    monkeypatch.setattr(cuda_driver, "_devices", {})
    return double


def check(folder, name, case=None):
    given, right = (dict(np.load(folder / f"{case or name}.{side}.npz")) for side in ("in", "out"))
    module = load(folder / f"{name}.nnvm")
    for _ in range(2):  # the second call finds memory that the first one wrote to
        found = module.run(given)
        for key, value in right.items():
            np.testing.assert_allclose(found[key], value, rtol=2e-5, atol=2e-6)
    return module


@pytest.mark.parametrize("name", ["library", "conv", "take", "workspace"])
def test_values(folder, driver, name):
    module = check(folder, name)
    assert module.level == "cuda-sm_90"
    assert driver.launches and all(threads in (128, 256, 512) for _, _, threads, _, _ in driver.launches)
    assert driver.depth == 0


def test_named_sizes_have_one_code_for_all(folder, driver):
    for n in (3, 100):
        check(folder, "sizes", f"sizes.{n}")
    grids = {(name, grid) for name, grid, *_ in driver.launches}
    assert len({grid for name, grid in grids if "softmax" in name}) == 2
    spec = read_spec(Container(folder / "sizes.nnvm"))
    launches = [la for k in spec.levels[0].main.kernels for la in k.launches]
    assert all(la.narrow is not None and la.wide is not None and la.elements for la in launches)
    assert not any(wide for *_, wide in driver.launches)


def test_buffers_with_many_elements_take_64_bits(folder, driver, monkeypatch):
    monkeypatch.setattr("nnvm.runtime.artifact.gpu._WIDE", 1)
    check(folder, "sizes", "sizes.100")
    assert driver.launches and all(wide for *_, wide in driver.launches)


def test_equal_models_give_equal_bytes(folder):
    assert (folder / "sizes.nnvm").read_bytes() == (folder / "again.nnvm").read_bytes()


def test_code_names_no_file_of_the_machine(folder):
    for path in folder.glob("*.nnvm"):
        data = path.read_bytes()
        assert str(Path.home()).encode() not in data and b".py\0" not in data


def test_the_plan_is_read_as_it_was_written(folder):
    for path in folder.glob("*.nnvm"):
        spec = read_spec(Container(path))
        assert load_spec(dump_spec(spec)) == spec
        code = bytes(Container(path).read(spec.levels[-1].main.code))
        for launch in (la for k in spec.levels[-1].main.kernels for la in k.launches):
            for b in filter(None, (launch.narrow, launch.wide)):
                cubin = code[b.start : b.start + b.size]
                assert cubin[:4] == b"\x7fELF" and b.symbol.encode() in cubin


def test_weights_are_copied_once_and_all_memory_is_freed(folder, driver):
    module = check(folder, "library")
    weights = sum(n in ("cuMemcpyHtoD_v2",) for n in driver.calls) - 2  # an input at each of the two calls
    assert weights == len(read_spec(Container(folder / "library.nnvm")).levels[0].weights)
    assert driver.memory
    del module
    assert not driver.memory


def test_an_index_out_of_range_raises_and_the_next_call_is_right(folder, driver):
    module = check(folder, "take")
    given = dict(np.load(folder / "take.in.npz"))
    with pytest.raises(KernelIndexError):
        module.run(table=given["table"], index=np.array([0, 6]))
    found = module.run(table=given["table"], index=np.array([5]))["doubled"]
    np.testing.assert_array_equal(found, 2 * given["table"][[5]])


def test_several_threads_at_once(folder, driver):
    module = load(folder / "sizes.nnvm")
    wrong = []

    def call(n):
        given, right = (dict(np.load(folder / f"sizes.{n}.{side}.npz")) for side in ("in", "out"))
        for _ in range(3):
            if not np.allclose(module.run(given)["y"], right["y"], rtol=2e-5, atol=2e-6):
                wrong.append(n)

    threads = [threading.Thread(target=call, args=(n,)) for n in (3, 100, 3, 100)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_memory_that_cannot_be_had_is_said(folder, driver):
    module = load(folder / "library.nnvm")
    driver.limit = 100
    with pytest.raises(MemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        module.run(dict(np.load(folder / "library.in.npz")))


def test_the_best_code_for_the_machine_is_picked(folder, driver, monkeypatch):
    assert load(folder / "both.nnvm").level == "cuda-sm_90"
    given, right = (dict(np.load(folder / f"sizes.3.{side}.npz")) for side in ("in", "out"))
    driver.launches.clear()
    np.testing.assert_allclose(load(folder / "both.nnvm", level=as_level("host").name).run(given)["y"], right["y"],
                               rtol=2e-5)  # fmt: skip
    assert not driver.launches
    monkeypatch.undo()
    assert load(folder / "both.nnvm").level == as_level("host").name


@pytest.mark.parametrize(("capability", "fits"), [((9, 0), True), ((9, 3), True), ((8, 9), False), ((10, 0), False)])
def test_which_gpus_run_a_cubin(folder, monkeypatch, capability, fits):
    monkeypatch.setattr(cuda_driver, "_load", lambda: CudaDouble([capability]))
    monkeypatch.setattr(cuda_driver, "_devices", {})
    if fits:
        assert load(folder / "library.nnvm").level == "cuda-sm_90"
        return
    with pytest.raises(ArtifactError, match=r"needs a GPU that runs sm_90 \(there is sm_"):
        load(folder / "library.nnvm")


def test_the_second_gpu_may_be_the_one_that_fits(folder, monkeypatch):
    double = CudaDouble([(8, 0), (9, 0)], [folder / "library.nnvm"])
    monkeypatch.setattr(cuda_driver, "_load", lambda: double)
    monkeypatch.setattr(cuda_driver, "_devices", {})
    check(folder, "library")


def test_an_exact_architecture_runs_nowhere_else():
    assert cuda_driver.runs("sm_90a", (9, 0)) and not cuda_driver.runs("sm_90a", (9, 1))
    assert cuda_driver.runs("sm_100", (10, 3)) and not cuda_driver.runs("sm_86", (8, 0))


def test_without_a_gpu_a_run_says_what_is_missing(folder, monkeypatch):
    def none():
        raise OSError("an NVIDIA driver (looked for libcuda.so.1)")

    monkeypatch.setattr(cuda_driver, "_load", none)
    with pytest.raises(ArtifactError, match=r"cuda-sm_90 needs an NVIDIA driver \(looked for libcuda.so.1\)"):
        load(folder / "library.nnvm")


def test_the_interpreter_compiles_nothing(tmp_path):
    from nnvm.artifact import compile_artifact
    from nnvm.graph import Graph, TensorType, apply, variable

    x = variable("x", TensorType((4,)))
    graph = Graph((apply("exp", [x])[0],), (x.node,))
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET=1"):
        compile_artifact(graph, {}, tmp_path / "m.nnvm", [as_level("cuda -arch=sm_90")])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("change", "said"), [
    ({"narrow": None, "wide": None}, "no code"), ({"sizes": ["z"]}, "does not take"),
    ({"pointers": [[99, 0]]}, "does not take"), ({"grid": [[1, "q"]]}, "size q")])  # fmt: skip
def test_a_damaged_plan_is_refused(folder, change, said):
    spec = json.loads(dump_spec(read_spec(Container(folder / "sizes.nnvm"))))
    spec["levels"][0]["main"]["kernels"][0]["launches"][0].update(change)
    with pytest.raises(ValueError, match=f"its plan is damaged: .*{said}"):
        load_spec(json.dumps(spec).encode())
