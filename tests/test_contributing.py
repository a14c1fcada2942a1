"""The worked examples of CONTRIBUTING.md run as written."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


def blocks(kind):
    return [code for k, code in re.findall(r"```python (\w+)\n(.*?)```", TEXT, re.S) if k == kind]


EXAMPLES = [("op",), ("op", "pass"), ("op", "relation"), ("device",), ("op", "schedule")]


@pytest.mark.parametrize("kinds", EXAMPLES, ids=lambda k: k[-1])
def test_example(kinds, tmp_path):
    parts = [code for kind in kinds for code in blocks(kind)]
    assert len(parts) >= 3 * len(kinds) - 1
    script = tmp_path / "example.py"
    script.write_text("\n".join(parts))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
