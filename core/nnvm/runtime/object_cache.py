"""Object code kept on disk between processes, under `nnvm.config.cache_dir()`.

An entry is a checksum and the bytes; it is written to a temporary file and renamed, so a reader sees all of it or
nothing, and whatever does not match its checksum counts as missing. Entries lie in 256 folders by the beginning of
their key; each folder keeps its share of `LIMIT_BYTES` and drops what was not used for longest, so that no process
ever looks at more than one folder. Several processes may use it at once: equal keys mean equal contents, and losing a
race loses nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path

from nnvm import config
from nnvm.target import Target

__all__ = ["LIMIT_BYTES", "evict", "get", "key_of", "put"]

LIMIT_BYTES = 512 << 20
_MAGIC = b"nnvm-object-1\n"
_FOLDERS = 256


@lru_cache(maxsize=1)
def _code_version() -> str:
    """Hash of everything that turns TIR into object code: llvmlite, LLVM and our own sources."""
    import llvmlite
    import llvmlite.binding as llvm

    digest = hashlib.sha256(f"{llvmlite.__version__} {llvm.llvm_version_info}".encode())
    root = Path(__file__).resolve().parent.parent
    for folder in ("codegen/llvm", "tir", "te"):
        for source in sorted((root / folder).rglob("*.py")):
            digest.update(source.read_bytes())
    for name in ("dtype.py", "dim.py", "runtime/llvm_jit.py"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def key_of(content: str, target: Target) -> str:
    """The name of an entry: equal content, target and compiler give equal keys."""
    text = "\0".join((_code_version(), repr(target), content))
    return hashlib.sha256(text.encode()).hexdigest()


def _path(key: str) -> Path:
    return config.cache_dir() / key[:2] / f"{key}.o"


def get(key: str) -> bytes | None:
    """The bytes stored under `key`; None where there are none, they are damaged, or the cache is off."""
    if not config.object_cache_enabled():
        return None
    path = _path(key)
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head = len(_MAGIC) + 32
    body = data[head:]
    if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[len(_MAGIC) : head]:
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # recently used
    return body


def put(key: str, body: bytes) -> None:
    """Store `body`; a folder that cannot be written to is left alone."""
    if not config.object_cache_enabled():
        return
    path = _path(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(_MAGIC + hashlib.sha256(body).digest() + body)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        return
    if key[2] == "0":  # one write in sixteen looks at its folder
        evict(path.parent, LIMIT_BYTES // _FOLDERS)


def evict(folder: Path, limit: int) -> int:
    """Removes the least recently used files of a folder until at most `limit` bytes of disk are left, or only one file.

    Returns:
        bytes of disk that were given back.
    """
    files = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat()
                # a file of some bytes takes whole blocks of the disk; where that is not told, its size counts
                size = getattr(status, "st_blocks", 0) * 512 or status.st_size
                files.append((status.st_mtime_ns, size, entry.path))
    files.sort()
    total, removed = sum(size for _, size, _ in files), 0
    for _, size, path in files[:-1]:
        if total - removed <= limit:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            removed += size
    return removed
