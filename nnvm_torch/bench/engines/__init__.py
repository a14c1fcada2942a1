"""What can be compared. One row of ``ENGINES`` an engine; ``find_engine`` also makes one for any Dynamo backend."""

from __future__ import annotations

import difflib
import importlib.util

from ..errors import BenchError
from . import nnvm_engines, onnx_engines, torch_engines
from .base import Engine, Runner, Setup

__all__ = ["ENGINES", "Engine", "Runner", "Setup", "find_engine", "missing_package"]

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (*torch_engines.ENGINES, *nnvm_engines.ENGINES, *onnx_engines.ENGINES)
}


def find_engine(name: str) -> Engine:
    """The engine of that name; ``backend:NAME`` is ``torch.compile(backend=NAME)``. BenchError if there is none."""
    if name in ENGINES:
        return ENGINES[name]
    if name.startswith("backend:") and len(name) > len("backend:"):
        return torch_engines.dynamo_backend(name)
    near = difflib.get_close_matches(name, ENGINES)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(ENGINES)}, backend:NAME"
    raise BenchError(f"unknown engine {name!r}; {hint}")


def missing_package(engine: Engine) -> str | None:
    """The line that says which package an engine lacks and how to get it; None if it has all."""
    missing = [name for name in engine.packages if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"{' and '.join(missing)} {verb} not installed: pip install {' '.join(missing)}"
