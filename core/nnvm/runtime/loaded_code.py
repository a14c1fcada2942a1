"""Object code in this process. It imports no more than loading takes: compiled models start with it.

Code stays loaded as long as its `LoadedCode`; dropping the last reference unloads it.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm

from nnvm.codegen.llvm.compile import object_code, target_machine
from nnvm.runtime import object_cache
from nnvm.runtime.fork_lock import fork_safe
from nnvm.target import Target

__all__ = ["LoadedCode", "load_ir"]

_lock = fork_safe(threading.Lock())
_serial = itertools.count()


class LoadedCode:
    """Objects loaded into the process, for as long as this lives."""

    def __init__(self, objects: Sequence[bytes], exports: Sequence[str], imports: Mapping[str, int]) -> None:
        library = llvm.JITLibraryBuilder().add_current_process()
        for obj in objects:
            library.add_object_img(obj)
        for name in exports:
            library.export_symbol(name)
        for name, address in imports.items():
            library.import_symbol(name, address)
        with _lock:
            self._tracker: Any = library.link(_jit(), f"nnvm{next(_serial)}")

    def __getitem__(self, name: str) -> int:
        return int(self._tracker[name])


_jit_instance: list[Any] = []


def _jit() -> Any:
    if not _jit_instance:
        if sys.platform.startswith("linux"):
            llvm.load_library_permanently("libm.so.6")  # scalar functions that no polynomial replaces
        _jit_instance.append(llvm.create_lljit_compiler(target_machine(Target.host())))
    return _jit_instance[0]


def load_ir(ir: str, exports: Sequence[str], imports: Mapping[str, int] | None = None) -> LoadedCode:
    """Compile a module's text for this machine and load it; index the result by exported name for addresses."""
    target = Target.host()
    key = object_cache.key_of(ir, target)
    obj = object_cache.get(key)
    if obj is None:
        obj = object_code(ir, target)
        object_cache.put(key, obj)
    return LoadedCode([obj], exports, imports or {})
