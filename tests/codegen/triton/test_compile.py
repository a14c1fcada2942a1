"""Machine code for GPUs, without one: it is made, fits, and spills nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nnvm.runtime.triton_resources import Resources

ROOT = Path(__file__).parents[3]
TARGETS = ("cuda -arch=sm_80", "cuda -arch=sm_90", "cuda -arch=sm_100", "hip -arch=gfx942")
#: Each way of scheduling, and each template in the types that it has tiles for.
NAMES = ("transpose", "softmax", "long_rows", "max_pool", "take", "wide_dense", "wide_dense_half", "wide_conv_half",
         "wide_attention", "wide_attention_half")  # fmt: skip


@pytest.mark.triton
@pytest.mark.parametrize("target", TARGETS)
def test_machine_code_fits(target: str) -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    made = subprocess.run([sys.executable, "-W", "ignore", "-m", "tests.codegen.triton.compile_all", target,
                           ",".join(NAMES)], cwd=ROOT, env=env, capture_output=True, text=True)  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    found = [json.loads(line) for line in made.stdout.splitlines()]
    assert {f["group"] for f in found} == set(NAMES)
    for f in found:
        resources = Resources(f["registers"], f["shared"], f["spilled"])
        assert resources.fits(f["arch"]), f
        assert f["registers"] <= (512 if f["arch"].startswith("gfx") else 255), f
        assert f["spilled"] == 0, f


@pytest.mark.triton
@pytest.mark.parametrize("target", ["cuda -arch=sm_90", "hip -arch=gfx942"])
def test_build_gives_machine_code(target: str) -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    made = subprocess.run([sys.executable, "-W", "ignore", "-m", "tests.codegen.triton.build_for_gpu", target], cwd=ROOT,
                          env=env, capture_output=True, text=True)  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    refused, code = map(json.loads, made.stdout.splitlines())
    assert "for a GPU" in refused["refused"]
    assert len(code) >= 4
    assert all(size > 500 and head == b"\x7fELF".hex() for size, head in code.values())
