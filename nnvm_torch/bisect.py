"""`nnvm bisect SCRIPT`: a script under verification, and a reproduction of what was found."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from nnvm.cli.command import CliError
from nnvm_torch.verifying import VerifyError, verify_everything

__all__ = ["main", "write_reproduction"]


def main(script: str, arguments: Sequence[str], calls: int, out: str) -> int:
    """Runs the script as ``__main__``; 1 where a compiled graph differs from eager, else 0.

    Raises:
        CliError: there is no such script, or it fails by itself.
    """
    path = Path(script)
    if not path.is_file():
        raise CliError(f"no file {script}", status=2)
    found: list[VerifyError] = []
    before, folder = list(sys.argv), str(path.resolve().parent)
    sys.argv = [script, *arguments]
    sys.path.insert(0, folder)
    torch._dynamo.reset()
    try:
        with verify_everything(calls, found.append):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as e:
        if not found and e.code not in (None, 0):
            raise CliError(f"{script} ended with the status {e.code}", status=1) from None
    except Exception as e:
        if not found:
            raise CliError(f"{script} failed: {type(e).__name__}: {e}", status=1) from e
    finally:
        sys.argv = before
        sys.path.remove(folder)
    if not found:
        print(f"nnvm bisect: {script}: the first {'call' if calls == 1 else f'{calls} calls'} of every compiled graph "
              f"gave eager's results")  # fmt: skip
        return 0
    print(found[0])
    written = write_reproduction(found[0], Path(out))
    print(f"reproduction: python {written}")
    return 1


def write_reproduction(error: VerifyError, folder: Path) -> Path:
    """Writes ``repro.py``, which shows the difference on its own, and its tensors; gives the path of the script."""
    folder.mkdir(parents=True, exist_ok=True)
    gm: fx.GraphModule = error.graph
    constants = {n.target: _attribute(gm, n.target) for n in gm.graph.nodes if n.op == "get_attr"}
    torch.save({"inputs": list(error.inputs), "constants": constants}, folder / "inputs.pt")
    code = gm.graph.python_code("self")
    imports = "\n".join(sorted({_imported(name, value) for name, value in code.globals.items()} - {""}))
    comment = "\n".join(f"# {line}" for line in str(error).splitlines())
    body = code.src.strip().replace("self.", "constants.").replace("def forward(self, ", "def forward(")
    script = folder / "repro.py"
    script.write_text(
        f"""{comment}
from pathlib import Path
from types import SimpleNamespace

import torch
{imports}

saved = torch.load(Path(__file__).parent / "inputs.pt", weights_only=False)
inputs = saved["inputs"]
constants = SimpleNamespace(**saved["constants"])

{body}

compiled = torch.compile(forward, backend="nnvm", options={{"verify": 1}})
with torch.no_grad():
    compiled(*inputs)  # raises VerifyError where the results differ
print("no difference")
""",
        encoding="utf-8",
    )
    return script


def _attribute(gm: fx.GraphModule, path: str) -> Any:
    value: Any = gm
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _imported(name: str, value: Any) -> str:
    """What makes a global of fx's code known in a script; "" where the script knows it."""
    if name in ("torch", "fx_pytree", "pytree") or name.startswith("_"):
        return ""
    module = getattr(value, "__module__", None)
    own = getattr(value, "__name__", None)
    if isinstance(value, (torch.device, torch.dtype)):
        return f"{name} = {value!r}" if isinstance(value, torch.dtype) else f"{name} = torch.{value!r}"
    if name in ("inf", "nan", "NoneType"):
        return {"inf": "from math import inf", "nan": "from math import nan", "NoneType": "NoneType = type(None)"}[name]
    if name == "device":
        return "from torch import device"
    return f"from {module} import {own} as {name}" if module and own else ""
