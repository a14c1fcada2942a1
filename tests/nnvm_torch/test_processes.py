"""Fork, spawn and exit: each as a program of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMON = """
import os, signal, sys, time
import torch
import nnvm_torch
from torch import nn

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(),
                         nn.Linear(16 * 256, 8)).eval()

def right(run, m, rows):
    x = torch.linspace(-1, 1, rows * 3 * 256).reshape(rows, 3, 16, 16)
    with torch.no_grad():
        return bool(torch.allclose(run(x), m(x), atol=1e-4, rtol=1e-4))
"""

COMPILED = (
    COMMON
    + '''
import multiprocessing, threading
torch.set_num_threads(2)
m = network()
run = torch.compile(m, backend="nnvm", dynamic=True)
direct = nnvm_torch.compile(m, dynamic={"rows": (1, 64)})
assert right(run, m, 2) and right(direct, m, 2)     # OpenMP's threads are there by now

def in_child(work, seconds=100):
    """The exit status of a forked child that does `work`."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)
        os._exit(0 if work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def reference(rows):
    x = torch.linspace(-1, 1, rows * 3 * 256).reshape(rows, 3, 16, 16)
    with torch.no_grad():
        return x, m(x)

x3, want3 = reference(3)                            # eager itself may not run in parallel in a forked child

def calls():
    with torch.no_grad():
        return all(torch.allclose(f(x3), want3, atol=1e-4, rtol=1e-4) for f in (run, direct))
'''
)

FORK = (
    COMPILED
    + '''

assert in_child(calls) == 0, "a child that calls what its parent compiled"
assert calls(), "the parent goes on"

def compiles():
    torch.set_num_threads(1)
    other = network()
    fresh = torch.compile(other, backend="nnvm")
    return right(fresh, other, 4)

assert in_child(compiles) == 0, "a child that compiles"

# preloaded: several workers serve, their weights are their own
def worker():
    torch.set_num_threads(1)
    with torch.no_grad():
        m[4].weight.mul_(2)
    return right(run, m, 5) and right(direct, m, 5)

children = []
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        signal.alarm(100)
        os._exit(0 if worker() else 1)
    children.append(pid)
assert [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in children] == [0, 0, 0], "preloaded workers"
assert calls(), "the parent's weights did not change"

# a fork while another thread compiles
def compile_elsewhere():
    other = network()
    with torch.no_grad():
        nnvm_torch.compile(other)(torch.randn(7, 3, 16, 16))

thread = threading.Thread(target=compile_elsewhere)
thread.start()
time.sleep(0.5)
assert in_child(calls) == 0, "a fork during a compilation"
thread.join()

print("all right")
'''
)

LOADER = (
    COMPILED
    + '''

# workers of a DataLoader that run the model
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        with torch.no_grad():
            return run(x3)[0]

loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork", timeout=100)
for batch in loader:
    assert torch.allclose(batch, want3[0].expand_as(batch), atol=1e-4, rtol=1e-4)

with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.apply_async(calls).get(100), "multiprocessing"
print("all right")
'''
)

SPAWN = (
    COMMON
    + """
import multiprocessing

def serve(m, direct, rows):
    torch.set_num_threads(1)
    run = torch.compile(m, backend="nnvm")
    return right(run, m, rows) and right(direct, m, rows)

if __name__ == "__main__":
    m = network()
    direct = nnvm_torch.compile(m, dynamic={"rows": (1, 8)})
    assert right(direct, m, 2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(serve, (m, direct, 3)).get(300)
    print("all right")
"""
)

EXIT = (
    COMMON
    + """
import threading
m = network()
run = torch.compile(m, backend="nnvm")
assert right(run, m, 2)
keep = [run, nnvm_torch.compile(m)]                 # alive at exit
threading.Thread(target=lambda: right(keep[1], m, 3), daemon=False).start()
print("all right")
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["FORK", "LOADER", "SPAWN", "EXIT"])
def test_program(program: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(globals()[program])
    done = subprocess.run([sys.executable, "-X", "faulthandler", str(script)], capture_output=True, text=True,
                          timeout=400)  # fmt: skip
    assert done.returncode == 0 and done.stdout.endswith("all right\n"), done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
