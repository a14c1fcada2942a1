"""Parameters in a file that is mapped to memory: `keep_original=False`.

The parameter stays the object that it is, and everything works as before: reading loads pages from the file, writing
(`load_state_dict`, an optimizer) writes to it and is noticed. As long as nobody reads, the pages belong to the system,
which takes them back when memory is short. The file has no name, so it is gone with the last tensor on it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Sequence

import torch

__all__ = ["mapped_bytes", "move_to_file"]

#: Smaller parameters stay: a page is the least that is gained.
SMALLEST = 1 << 14

_mapped: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()


def mapped_bytes() -> int:
    """Bytes of the parameters that lie in files."""
    return sum(t.untyped_storage().nbytes() for t in list(_mapped) if _is_mapped(t))


def move_to_file(params: Sequence[torch.Tensor]) -> bool:
    """Moves those parameters to a mapped file that own their memory alone, as far as one can tell; did any move?

    The folder is that of temporary files (``TMPDIR``). Where it takes no more, parameters stay in memory.
    """
    moved = False
    storages = [p.untyped_storage().data_ptr() for p in params]
    for p in params:
        storage = p.untyped_storage()
        own = storages.count(storage.data_ptr()) == 1 and storage.nbytes() == p.numel() * p.element_size()
        if own and p.is_contiguous() and storage.nbytes() >= SMALLEST and not _is_mapped(p) and not p.is_inference():
            with contextlib.suppress(OSError, RuntimeError):
                p.data = _in_file(p)
                _mapped.add(p)
                moved = True
    return moved


def _is_mapped(t: torch.Tensor) -> bool:
    return t.untyped_storage().filename is not None


def _in_file(t: torch.Tensor) -> torch.Tensor:
    handle, path = tempfile.mkstemp(prefix="nnvm-weights-")
    try:
        os.posix_fallocate(handle, 0, t.numel() * t.element_size()) if hasattr(os, "posix_fallocate") else None
        mapped = torch.from_file(path, shared=True, size=t.numel(), dtype=t.dtype)
        mapped.copy_(t.detach().reshape(-1))
    finally:
        os.close(handle)
        os.unlink(path)
    return mapped.view(t.shape)
