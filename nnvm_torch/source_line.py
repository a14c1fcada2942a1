"""Where in the user's code an fx node comes from."""

from __future__ import annotations

import re

from torch import fx

__all__ = ["last_line", "module_of"]


def last_line(trace: str) -> str:
    """``file.py:12 in forward: y = x + 1`` of a stack trace."""
    lines = [line.strip() for line in trace.strip().splitlines()]
    for i in range(len(lines) - 1, -1, -1):
        if lines[i].startswith("File "):
            path, _, rest = lines[i][6:].partition('"')
            number, _, where = rest.removeprefix(", line ").partition(", ")
            code = lines[i + 1] if i + 1 < len(lines) else ""
            return f"{path}:{number} {where}: {code}" if code else f"{path}:{number} {where}"
    return lines[-1] if lines else ""


def module_of(node: fx.Node) -> str:
    """The module that the call belongs to, as ``layer1.0.conv1 (Conv2d)``."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path, kind = list(stack.values())[-1]
    name = getattr(kind, "__name__", str(kind).rpartition(".")[2])
    return f"{re.sub(r'^L.[^]]*.[.]?', '', str(path))} ({name})"
