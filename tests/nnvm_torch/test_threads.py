"""Many threads on one compiled model, compiling from several, and what becomes of threads and memory."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm.runtime import openmp
from nnvm.runtime.instances import MAX_FREE

close = torch.testing.assert_close


@pytest.fixture(autouse=True)
def fresh() -> Any:
    torch._dynamo.reset()
    nnvm_torch.reset()
    torch.manual_seed(0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8), nn.Softmax(-1)).eval()


@pytest.mark.parametrize("how", ["torch.compile", "nnvm_torch.compile"])
def test_eight_threads_call_one_model_with_many_sizes_at_once(how: str) -> None:
    m = network()
    run = torch.compile(m, backend=nnvm_torch.nnvm, dynamic=True) if how == "torch.compile" else nnvm_torch.compile(
        m, dynamic={"rows": (1, 64)})  # fmt: skip
    wrong: list[str] = []
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        start.wait()
        with torch.no_grad():
            for i in range(25):
                x = torch.randn(2 + (seed * 7 + i) % 20, 32, generator=generator)
                difference = (run(x) - m(x)).abs().max().item()
                if difference > 1e-5:
                    wrong.append(f"thread {seed}, call {i}: {difference}")

    with ThreadPoolExecutor(8) as pool:  # they all compile at the first call
        list(pool.map(work, range(8)))
    assert not wrong, wrong
    if how == "nnvm_torch.compile":  # Dynamo compiles once for each thread that waits for the first compilation
        assert len(nnvm_torch.report().graphs) == 1


def test_compiling_different_models_from_several_threads() -> None:
    models = [network() for _ in range(4)]
    inputs = [torch.randn(3, 32) for _ in models]

    def work(i: int) -> Any:
        with torch.no_grad():
            return torch.compile(models[i], backend=nnvm_torch.nnvm)(inputs[i])

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    with torch.no_grad():
        for got, m, x in zip(results, models, inputs):
            close(got, m(x))


def test_the_number_of_threads_is_pytorchs_in_new_threads_too() -> None:
    openmp.pool.connect()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(openmp.max_threads).result()
        assert openmp.max_threads() == found == min(count, len(os.sched_getaffinity(0)))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_the_cores_that_a_thread_may_use_bound_its_threads() -> None:
    torch.set_num_threads(4)
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert openmp.max_threads() == 1
    finally:
        os.sched_setaffinity(0, cores)


def test_parallel_kernels_give_the_same_with_any_number_of_threads() -> None:
    m = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)).eval()
    run, x = nnvm_torch.compile(m), torch.randn(1, 8, 48, 48)
    results = []
    with torch.no_grad():
        for count in (1, 2, 4, 1):
            torch.set_num_threads(count)
            results.append(run(x))
        for r in results:
            close(r, m(x), atol=1e-4, rtol=1e-4)
            close(r, results[0], atol=0, rtol=0)


def test_no_thread_spins_after_a_call_and_none_is_left_by_the_compiler() -> None:
    torch.set_num_threads(2)
    m = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)).eval()
    run, x = torch.compile(m, backend=nnvm_torch.nnvm), torch.randn(1, 8, 48, 48)
    with torch.no_grad():
        m(x), run(x)
    assert not [t.name for t in threading.enumerate() if "nnvm" in t.name]
    time.sleep(0.3)  # OpenMP's own threads wait a moment for more work
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1


def test_arenas_are_bounded_whatever_the_sizes_and_threads() -> None:
    m = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 16)).eval()
    run = nnvm_torch.compile(m, dynamic={"rows": (1, 512)})
    with torch.no_grad():
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: run(torch.randn(n, 16)), range(2, 200)))
        kept = [e for e in _executors() if e.plan.graph.inputs]
        assert kept and all(len(e._free_arenas) <= 4 <= MAX_FREE for e in kept)
        sizes = [a.capacity for e in kept for a in e._free_arenas]
        assert max(sizes) < 2 * 200 * (256 + 16) * 4 + (1 << 16)


def _executors() -> list[Any]:
    import gc

    from nnvm.runtime.executor import Executor

    return [o for o in gc.get_objects() if type(o) is Executor]


def test_modes_hooks_copies_and_pickles() -> None:
    m = network()
    x = torch.randn(3, 32)
    for run in (torch.compile(m, backend=nnvm_torch.nnvm), nnvm_torch.compile(m)):
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                got = run(x)
                assert got.requires_grad == (mode is torch.enable_grad)
                close(got, m(x))
        assert list(run.state_dict()) == [p + k for p in ("_orig_mod." if run is not m and hasattr(run, "_orig_mod")
                                          else "",) for k in m.state_dict()]  # fmt: skip
        other = copy.deepcopy(run)
        close(other(x), m(x))
    close(pickle.loads(pickle.dumps(nnvm_torch.compile(m)))(x), m(x))


def test_hooks_of_the_module_and_of_its_parts() -> None:
    m = network()
    seen: list[str] = []
    m[1].register_forward_hook(lambda module, args, out: out * 2)
    m[3].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    x = torch.randn(3, 32)
    for run in (torch.compile(m, backend=nnvm_torch.nnvm), nnvm_torch.compile(m)):
        handle = run.register_forward_hook(lambda module, args, out: seen.append("hook"))
        with torch.no_grad():
            close(run(x), m(x))
        handle.remove()
    assert "hook" in seen
