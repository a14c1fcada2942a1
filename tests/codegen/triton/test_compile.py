"""Machine code for GPUs, without one: it is made, fits, and spills nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nnvm.runtime.triton_resources import Resources

ROOT = Path(__file__).parents[3]
TARGETS = ("cuda -arch=sm_80", "cuda -arch=sm_90", "cuda -arch=sm_100", "hip -arch=gfx942")
#: Whose products of float32 differ where they may be rounded.
ROUNDED = ("wide_dense", "wide_conv", "wide_attention")
#: Each way of scheduling, and each template in the types that it has tiles for.
NAMES = ("transpose", "softmax", "long_rows", "long_norm", "split_variance", "max_pool", "take", "scatter_add",
         "scatter_max", "scatter_mean", "running_sum", "wide_dense", "wide_dense_half", "wide_dense_double",
         "few_rows_half", "wide_batch_half", "wide_conv", "wide_conv_half", "wide_attention", "wide_attention_half",
         "decode_half")  # fmt: skip


def run(module: str, *arguments: str) -> list[dict[str, Any]]:
    """The lines of JSON that a module prints in a process where Triton compiles."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", f"tests.codegen.triton.{module}", *arguments]
    made = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-2000:]
    return [json.loads(line) for line in made.stdout.splitlines()]


@pytest.mark.triton
@pytest.mark.parametrize(("target", "names"), [*((t, NAMES) for t in TARGETS), ("cuda -arch=sm_90 -mtf32", ROUNDED)])
def test_machine_code_fits(target: str, names: tuple[str, ...]) -> None:
    found = run("compile_all", target, ",".join(names))
    assert {f["group"] for f in found} == set(names)
    for f in found:
        resources = Resources(f["registers"], f["shared"], f["spilled"])
        assert resources.fits(f["arch"]), f
        assert f["registers"] <= (512 if f["arch"].startswith("gfx") else 255), f
        assert f["spilled"] == 0, f


@pytest.mark.triton
@pytest.mark.parametrize("target", ["cuda -arch=sm_90", "hip -arch=gfx942"])
def test_build_gives_machine_code(target: str) -> None:
    refused, code = run("build_for_gpu", target)
    assert "for a GPU" in refused["refused"]
    assert len(code) >= 4
    assert all(size > 500 and head == b"\x7fELF".hex() for size, head in code.values())
