"""Object code in this process. It imports no more than loading takes: compiled models start with it.

Code stays loaded as long as its `LoadedCode`. Of what is dropped the latest stays for a while: a model that is compiled
again finds its kernels, and LLVM keeps some kilobytes of everything that it ever linked.
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import threading
from collections import OrderedDict
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
#: Linked code that is kept whether in use or not.
MAX_LATEST = 512
_latest: OrderedDict[Any, Any] = OrderedDict()


class LoadedCode:
    """Objects loaded into the process, for as long as this lives."""

    def __init__(self, objects: Sequence[bytes], exports: Sequence[str], imports: Mapping[str, int]) -> None:
        key = (tuple(hashlib.sha256(o).digest() for o in objects), tuple(exports), tuple(sorted(imports.items())))
        with _lock:
            tracker = _latest.pop(key, None)
            if tracker is None:
                tracker = _linked(objects, exports, imports)
            _latest[key] = tracker
            while len(_latest) > MAX_LATEST:
                _latest.popitem(last=False)
        self._tracker: Any = tracker

    def __getitem__(self, name: str) -> int:
        return int(self._tracker[name])


def _linked(objects: Sequence[bytes], exports: Sequence[str], imports: Mapping[str, int]) -> Any:
    library = llvm.JITLibraryBuilder().add_current_process()
    for obj in objects:
        library.add_object_img(obj)
    for name in exports:
        library.export_symbol(name)
    for name, address in imports.items():
        library.import_symbol(name, address)
    return library.link(_jit(), f"nnvm{next(_serial)}")


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
