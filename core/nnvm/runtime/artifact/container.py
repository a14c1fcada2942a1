"""The file of an artifact: named sections, each with its SHA-256, in one file that is memory-mapped.

Little endian::

    64 bytes   magic, version, number of sections, size of the file, SHA-256 of all this (itself as zeros) and the table
    64 each    the table: name (16 bytes, zeros after it), start, size, SHA-256 of the section
    ...        the sections, each from a multiple of 64 on (4096 where it is a page or more), zeros between them

The header is checked when a file is opened, a section when it is read. The checksums find damage, not malice: a
section of code runs as it is, so load only files from where you would also load a program.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnvm.atomic_write import atomic_write

__all__ = ["VERSION", "ArtifactError", "Container", "write_container"]

VERSION = 2
#: Not text in any encoding, and damaged by whatever changes line ends.
MAGIC = b"\x89NNVM\r\n\x1a"
MAX_SECTIONS = 256
_HEAD = struct.Struct("<8sIIQ32s8x")
_ENTRY = struct.Struct("<16sQQ32s")
_LINE, _PAGE = 64, 4096

Data = bytes | memoryview


class ArtifactError(ValueError):
    """A file is no artifact, is damaged, or does not fit this machine."""


@dataclass(frozen=True)
class _Section:
    start: int
    size: int
    digest: bytes


class Container:
    """An artifact's file, mapped into memory read-only for as long as something refers to a section of it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """OSError where the file cannot be read; ArtifactError where it is no artifact or its header is damaged."""
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _HEAD.size:
                raise self.error(f"it has {size} bytes, fewer than an artifact's header")
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._data = memoryview(self._mapped)
        self._sections = self._table()

    def error(self, why: str) -> ArtifactError:
        """The exception that names this file."""
        return ArtifactError(f"{self.path} cannot be loaded: {why}")

    def names(self) -> list[str]:
        return list(self._sections)

    def size_of(self, name: str) -> int:
        """Bytes of a section. ArtifactError: there is none of this name."""
        return self._section(name).size

    def read(self, name: str, *, verify: bool = True) -> memoryview:
        """A section's bytes, as they lie in the file. ArtifactError: there is none, or its checksum is another."""
        section = self._section(name)
        data = self._data[section.start : section.start + section.size]
        if verify and hashlib.sha256(data).digest() != section.digest:
            raise self.error(f"its section {name!r} is damaged (the checksum differs); make the file again")
        return data

    def forget(self, name: str) -> None:
        """Lets the system have the memory of a section that was read; what is read of it again comes from the file."""
        section = self._section(name)
        start = -(-section.start // mmap.PAGESIZE) * mmap.PAGESIZE
        size = section.start + section.size - start
        if size > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._mapped.madvise(mmap.MADV_DONTNEED, start, size)

    def _section(self, name: str) -> _Section:
        if name not in self._sections:
            raise self.error(f"it has no section {name!r}")
        return self._sections[name]

    def _table(self) -> dict[str, _Section]:
        data = self._data
        magic, version, count, size, digest = _HEAD.unpack_from(data)
        if magic != MAGIC:
            raise self.error("it is no artifact of `nnvm compile`")
        if version != VERSION:
            raise self.error(f"it has format version {version}, this nnvm reads {VERSION}; compile the model again")
        if size != len(data):
            raise self.error(f"it has {len(data)} bytes of {size}: it was cut off or something was added")
        end = _HEAD.size + count * _ENTRY.size
        if not 0 < count <= MAX_SECTIONS or end > len(data):
            raise self.error(f"its header is damaged: {count} sections")
        blank = _HEAD.pack(magic, version, count, size, bytes(32))
        if hashlib.sha256(blank + bytes(data[_HEAD.size : end])).digest() != digest:
            raise self.error("its header is damaged (the checksum differs); make the file again")
        sections: dict[str, _Section] = {}
        for i in range(count):
            raw, start, length, of_section = _ENTRY.unpack_from(data, _HEAD.size + i * _ENTRY.size)
            if start % _LINE or start < end or start + length > len(data):
                raise self.error(f"its header is damaged: section {i} lies outside the file")
            sections[raw.rstrip(b"\0").decode("ascii", "replace")] = _Section(start, length, of_section)
        return sections


def write_container(path: str | os.PathLike[str], sections: Mapping[str, Sequence[Data]]) -> int:
    """Writes the sections (each in pieces) and gives the size of the file in bytes; equal sections, equal bytes.

    The file is written beside `path` and renamed, so a reader finds the old one or the new one. ValueError: too many
    sections, or a name of more than 16 ASCII characters.
    """
    if not 0 < len(sections) <= MAX_SECTIONS:
        raise ValueError(f"an artifact has 1 to {MAX_SECTIONS} sections, not {len(sections)}")
    at = _HEAD.size + len(sections) * _ENTRY.size
    table, starts = b"", []
    for name, pieces in sections.items():
        raw = name.encode("ascii")
        if len(raw) > 16:
            raise ValueError(f"the section name {name!r} has more than 16 characters")
        size, digest = sum(len(p) for p in pieces), hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        unit = _PAGE if size >= _PAGE else _LINE
        start = -(-at // unit) * unit
        table += _ENTRY.pack(raw, start, size, digest.digest())
        starts.append(start)
        at = start + size
    head = _HEAD.pack(MAGIC, VERSION, len(sections), at, bytes(32)) + table
    digest = hashlib.sha256(head)
    head = _HEAD.pack(MAGIC, VERSION, len(sections), at, digest.digest()) + table
    with atomic_write(path) as out:
        written = out.write(head)
        for start, pieces in zip(starts, sections.values(), strict=True):
            out.write(bytes(start - written))
            for piece in pieces:
                out.write(piece)
            written = start + sum(len(p) for p in pieces)
    return at
