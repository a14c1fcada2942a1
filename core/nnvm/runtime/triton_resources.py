"""What a compiled launch takes of a GPU: registers, shared memory, and spills to local memory.

Read back from the machine code, with the tools that come with Triton; no GPU is needed.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Resources", "resources_of"]

#: Bytes of shared memory that one program may have, by architecture; what is not listed has 99 KB at least.
SHARED_LIMITS = {"80": 163 << 10, "86": 99 << 10, "89": 99 << 10, "90": 227 << 10, "100": 227 << 10, "gfx942": 64 << 10}


@dataclass(frozen=True)
class Resources:
    """Of one program (`shared`, bytes) or one thread (`registers`, 32 bits each; `spilled`, bytes of local memory)."""

    registers: int
    shared: int
    spilled: int

    def fits(self, arch: str) -> bool:
        """Whether an architecture (``90``, ``gfx942``) can run it."""
        return self.shared <= SHARED_LIMITS.get(arch, 99 << 10)


def resources_of(compiled: Any) -> Resources:
    """The resources of a kernel of `compile_launch`."""
    shared = int(compiled.metadata.shared)
    if "cubin" in compiled.asm:
        registers, spilled = _of_cubin(compiled.asm["cubin"])
    else:
        registers, spilled = _of_amdgcn(compiled.asm["amdgcn"])
    return Resources(registers, shared, spilled)


def _of_cubin(code: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack and local memory, by cuobjdump."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        made = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", made.stdout)
    if found is None:
        raise ValueError(f"cuobjdump tells no resources: {made.stdout[:200]!r}")
    registers, stack, local = map(int, found.groups())
    return registers, stack + local


def _of_amdgcn(text: str) -> tuple[int, int]:
    """Vector registers, and bytes of private memory, by the metadata in the assembly."""

    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", text)
        if found is None:
            raise ValueError(f"the assembly does not tell {name}")
        return int(found[1])

    return number("vgpr_count"), number("private_segment_fixed_size")
