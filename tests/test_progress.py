"""Progress bars: on a terminal only, on stderr only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nnvm.progress import progress_bar


def test_nothing_where_that_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as tell:
        tell("half", 0.5)
    said = capfd.readouterr()
    assert said.out == "" and said.err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="opens a terminal as POSIX has it")
def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    """What a command prints is on stdout all the same, and nothing else is."""
    pytest.importorskip("rich")
    ours, theirs = os.openpty()
    code = """
from nnvm.progress import progress_bar
with progress_bar() as tell:
    tell("kernels [1]", 0.5)
    tell("weights", 0.9)
print("done")
"""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "PYTHONPATH": path}
    argv = [sys.executable, "-c", code]
    out = subprocess.run(argv, stdout=subprocess.PIPE, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # Linux: the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert out.stdout == b"done\n"
    assert b"kernels [1]" in shown and b"weights" in shown
