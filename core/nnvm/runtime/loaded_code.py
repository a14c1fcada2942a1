"""Object code in this process. It imports no more than loading takes: compiled models start with it.

Code stays loaded as long as its `LoadedCode`. Of what is dropped the latest stays for a while: a model that is compiled
again finds its kernels. LLVM keeps ten kilobytes of everything that an instance of its linker ever linked; so each
instance links a limited number of libraries, and goes with the last of them.
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
#: Libraries that one instance of LLVM's linker links.
MAX_LINKS = 64
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
    return library.link(*_jit())


_jit_instance: list[Any] = []


def _jit() -> tuple[Any, str]:
    """The instance to link with, and a name. What it has linked keeps it alive when another one takes its place."""
    if not _jit_instance and sys.platform.startswith("linux"):
        llvm.load_library_permanently("libm.so.6")  # scalar functions that no polynomial replaces
    number = next(_serial)
    if not _jit_instance or number % MAX_LINKS == 0:
        # JITLink puts all sections of an object side by side. The older linker maps each where there is room: in a full
        # address space more than the 2 GB apart that offsets in code reach, and ends the process.
        together = sys.platform != "win32"
        _jit_instance[:] = [llvm.create_lljit_compiler(target_machine(Target.host()), use_jit_link=together)]
    return _jit_instance[0], f"nnvm{number}"


def load_ir(ir: str, exports: Sequence[str], imports: Mapping[str, int] | None = None) -> LoadedCode:
    """Compile a module's text for this machine and load it; index the result by exported name for addresses."""
    target = Target.host()
    key = object_cache.key_of(ir, target)
    obj = object_cache.get(key)
    if obj is None:
        obj = object_code(ir, target)
        object_cache.put(key, obj)
    return LoadedCode([obj], exports, imports or {})
