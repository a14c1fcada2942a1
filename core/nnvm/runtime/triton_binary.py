"""Machine code of a launch, with all that whoever starts it must know: block size, shared memory, hidden parameters."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from nnvm.runtime.triton_interpret import is_interpreting
from nnvm.runtime.triton_launch import Launch, compile_launch

__all__ = ["LaunchBinary", "launch_binary"]

#: Of the parameters in PTX, by Triton's names of types.
_PTX_BITS = {"i32": 32, "i64": 64}
_WARP = 32
_NO_LINES = "TRITON_DISABLE_LINE_INFO"


@dataclass(frozen=True)
class LaunchBinary:
    """Code for a CUDA GPU.

    Attributes:
        code: a cubin.
        symbol: the function's name in it.
        threads: of a block.
        shared: bytes of shared memory of a block.
        hidden: null pointers that it takes after its arguments (Triton's scratch memory, which these kernels do not
            use).
    """

    code: bytes
    symbol: str
    threads: int
    shared: int
    hidden: int


def launch_binary(launch: Launch, wide: bool, aligned: Sequence[bool]) -> LaunchBinary:
    """The code of a launch for its target, whose GPU need not be in this machine.

    It has no line numbers, so that it is the same wherever it is compiled, and names no file of this machine.

    Args:
        wide: for 64-bit indices.
        aligned: which of its pointers are multiples of 16 bytes.

    Raises:
        RuntimeError: Triton interprets in this process; or it made code that needs more than its arguments.
        ValueError: the target is no CUDA GPU.
    """
    if launch.target.kind != "cuda":
        raise ValueError(f"cubins are for CUDA GPUs, not for {launch.target}")
    if is_interpreting():
        raise RuntimeError("Triton interprets in this process (TRITON_INTERPRET=1), so it compiles nothing: unset it")
    source = launch.source(wide)
    with _without_line_numbers():
        made = compile_launch(source, launch.func, launch.target, aligned)
    meta = made.metadata
    for scratch in ("global_scratch_size", "profile_scratch_size"):
        if getattr(meta, scratch, 0):
            raise RuntimeError(f"{source.name} needs scratch memory of Triton's ({scratch}), which it does not get")
    if getattr(meta, "num_ctas", 1) != 1:
        raise RuntimeError(f"{source.name} runs in clusters of {meta.num_ctas} blocks, which nothing starts")
    kinds = [64 if t.startswith("*") else _PTX_BITS[t] for _, t in source.signature]
    found = _parameters(made.asm["ptx"], meta.name)
    if found[: len(kinds)] != kinds or set(found[len(kinds) :]) - {64}:
        raise RuntimeError(f"{source.name} takes parameters of {kinds} bits, but Triton's code for it {found}")
    return LaunchBinary(made.asm["cubin"], meta.name, int(meta.num_warps) * _WARP, int(meta.shared),
                        len(found) - len(kinds))  # fmt: skip


@contextmanager
def _without_line_numbers() -> Iterator[None]:
    """Inside, compiled code does not say where its source lies."""
    before = os.environ.get(_NO_LINES)
    os.environ[_NO_LINES] = "1"  # Triton reads it at each compilation
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_LINES]
        else:
            os.environ[_NO_LINES] = before


def _parameters(ptx: str, name: str) -> list[int]:
    """Bits of each parameter of a function, as its PTX declares them."""
    found = re.search(rf"\.entry\s+{re.escape(name)}\s*\((.*?)\)", ptx, re.DOTALL)
    if found is None:
        raise RuntimeError(f"Triton's code has no function {name}")
    return [int(bits) for bits in re.findall(r"\.param\s+\.[a-z](\d+)", found[1])]
