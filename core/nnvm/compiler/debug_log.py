"""What NNVM_DEBUG tells of a compilation: a line (from 1 on), the kernels with what is fused into each (from 3 on).

```
nnvm: compiled 2 kernels and 3 for weights, 12288 bytes of arena, passes 0.02 s, lower 0.01 s, llvm 0.10 s, plan 0.00 s
nnvm:   kernel k0_conv2d_relu           conv2d relu                                        net.py:7
nnvm:   weights k0_multiply             multiply
```
The passes' own lines come from graph/dump.py, machine code from runtime/llvm_jit.py. All goes to the standard error, so
that a program's own output stays its own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nnvm import config

if TYPE_CHECKING:
    from nnvm.compiler.build import CompiledGraph

__all__ = ["log_compilation", "log_kernels"]


def log_compilation(compiled: CompiledGraph) -> None:
    """The line of one compilation, from NNVM_DEBUG=1 on."""
    if not config.debug_level():
        return
    early = 0 if compiled.prepare is None else len(compiled.prepare.kernels)
    seconds = ", ".join(f"{phase} {s:.2f} s" for phase, s in compiled.seconds.items())
    _say(f"compiled {len(compiled.kernels)} kernels and {early} for weights, "
         f"{compiled.plan.memory.arena_bytes} bytes of arena, {seconds}")  # fmt: skip


def log_kernels(compiled: CompiledGraph) -> None:
    """A line for each kernel call in order, with its operators and the user's source lines, from NNVM_DEBUG=3 on."""
    if config.debug_level() < 3:
        return
    for kind, part in (("weights", compiled.prepare), ("kernel", compiled)):
        for k in () if part is None else part.kernels:
            shared = " (machine code of another call)" if k.shared else ""
            _say(f"  {kind} {k.name:24} {' '.join(k.ops):50} {', '.join(k.sources)}{shared}".rstrip())


def _say(text: str) -> None:
    print(f"nnvm: {text}", file=sys.stderr)
