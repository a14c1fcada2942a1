"""Collectives in compiled graphs go to torch.distributed: two processes over gloo, compared with eager."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="torch without gloo"
)


def run_parts(folder: Path, parts: list[str], size: int = 2, seconds: float = 300.0) -> None:
    """Runs parts of `distributed_program` in `size` processes; where one fails, the others are ended at once."""
    program = [sys.executable, "-m", "tests.nnvm_torch.distributed_program"]
    logs = [folder / f"rank{rank}.log" for rank in range(size)]
    running = []
    for rank, log in enumerate(logs):
        command = [*program, str(rank), str(size), str(folder / "meeting"), *parts]
        with log.open("w") as out:
            running.append(subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT))
    end = time.monotonic() + seconds
    try:
        while any(p.poll() is None for p in running) and not any(p.poll() for p in running):
            assert time.monotonic() < end, f"more than {seconds:.0f} s:\n" + "\n".join(log.read_text() for log in logs)
            time.sleep(0.05)
    finally:
        for p in running:
            p.kill()
            p.wait()
    for p, log in zip(running, logs):
        assert p.returncode == 0, "\n".join(log.read_text() for log in logs)
        assert [line for line in log.read_text().splitlines() if line in parts] == parts


def test_collectives_of_two_processes(tmp_path: Path) -> None:
    run_parts(tmp_path, ["collectives"])


@pytest.mark.slow
def test_every_kind_of_collective_and_of_parallelism(tmp_path: Path) -> None:
    run_parts(tmp_path, ["in_place", "order", "exchange", "tensor_parallel", "data_parallel"])
