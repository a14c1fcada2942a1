"""Every environment variable that nnvm reads, one documented line each. Read at each use, so tests may set them."""

from __future__ import annotations

import os
from pathlib import Path

from .cpu_list import count_usable_cpus

__all__ = ["VARIABLES", "cache_dir", "compile_threads", "debug_level", "dump_dir", "object_cache_enabled",
           "target_string"]  # fmt: skip

VARIABLES: dict[str, str] = {
    "NNVM_DEBUG": "0 to 4: 1 a line a compilation, 2 pass timings, 3 kernels and their groups, 4 LLVM IR and assembly",
    "NNVM_DUMP": "a folder: the IR before and after each pass is written there, numbered",
    "NNVM_TARGET": "what to compile for, as in 'llvm -mcpu=haswell'; default: this machine",
    "NNVM_COMPILE_THREADS": "threads that compile kernels side by side; default: the cores of the process, at most 8",
    "NNVM_CACHE": "folder of the object cache; '0' turns it off; default: the user's cache folder",
}


def debug_level() -> int:
    """`NNVM_DEBUG` as a number; anything that is none counts as 0."""
    value = os.environ.get("NNVM_DEBUG", "0")
    return int(value) if value.isdigit() else 0


def dump_dir() -> Path | None:
    value = os.environ.get("NNVM_DUMP")
    return Path(value) if value else None


def target_string() -> str | None:
    return os.environ.get("NNVM_TARGET") or None


def compile_threads() -> int:
    """`NNVM_COMPILE_THREADS`, or the cores that this process may use, at most 8."""
    value = os.environ.get("NNVM_COMPILE_THREADS", "")
    if value.isdigit() and int(value) > 0:
        return int(value)
    return min(count_usable_cpus(), 8)


def object_cache_enabled() -> bool:
    return os.environ.get("NNVM_CACHE") != "0"


def cache_dir() -> Path:
    """Folder of the object cache (created by whoever writes to it)."""
    value = os.environ.get("NNVM_CACHE")
    if value and value != "0":
        return Path(value)
    try:
        import platformdirs
    except ModuleNotFoundError:  # artifacts run with numpy and llvmlite alone
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nnvm"
    return Path(platformdirs.user_cache_dir("nnvm"))
