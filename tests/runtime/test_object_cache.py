"""The object cache on disk: misses, damage, eviction, several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nnvm.runtime import object_cache
from nnvm.target import Target

HOST = Target.host()


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NNVM_CACHE", str(tmp_path))
    return tmp_path


def entry(folder: Path) -> Path:
    (found,) = folder.rglob("*.o")
    return found


def test_what_was_put_is_found() -> None:
    key = object_cache.key_of("content", HOST)
    assert object_cache.get(key) is None
    object_cache.put(key, b"object")
    assert object_cache.get(key) == b"object"


def test_keys_tell_content_and_target_apart() -> None:
    keys = {
        object_cache.key_of(text, target)
        for text in ("a", "b")
        for target in (HOST, Target.parse("llvm -mcpu=haswell"))
    }
    assert len(keys) == 4
    assert object_cache.key_of("a", HOST) in keys


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:10], lambda b: b"", lambda b: b[:-1] + b"?", lambda b: b + b"x"]
)
def test_a_damaged_entry_is_a_miss_and_is_removed(folder: Path, damage: object) -> None:
    key = object_cache.key_of("content", HOST)
    object_cache.put(key, b"object code")
    path = entry(folder)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert object_cache.get(key) is None
    assert not path.exists()
    object_cache.put(key, b"object code")
    assert object_cache.get(key) == b"object code"


def test_off(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    key = object_cache.key_of("content", HOST)
    object_cache.put(key, b"object")
    monkeypatch.setenv("NNVM_CACHE", "0")
    assert object_cache.get(key) is None
    object_cache.put(object_cache.key_of("more", HOST), b"object")
    assert len(list(folder.rglob("*.o"))) == 1


def written(folder: Path, sizes: list[int]) -> list[Path]:
    """Files of some sizes, the first one used longest ago."""
    paths = [folder / f"{k}.o" for k in range(len(sizes))]
    for age, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        path.write_bytes(bytes(size))
        os.utime(path, (1e9 + age, 1e9 + age))
    return paths


def test_the_least_recently_used_go_first(folder: Path) -> None:
    paths = written(folder, [64 << 10] * 6)
    os.utime(paths[0])  # used: now the youngest
    removed = object_cache.evict(folder, 200 << 10)
    assert 3 * (64 << 10) <= removed <= 3 * (80 << 10)
    assert [path.exists() for path in paths] == [True, False, False, False, True, True]
    assert object_cache.evict(folder, 300 << 10) == 0


def test_what_was_just_written_stays_however_large(folder: Path) -> None:
    paths = written(folder, [4096, 1 << 20])
    assert object_cache.evict(folder, 1000) > 0
    assert [path.exists() for path in paths] == [False, True]
    assert object_cache.evict(folder / "missing", 1000) == 0


def test_a_used_entry_is_young(folder: Path) -> None:
    object_cache.put("ab" * 32, b"object")
    os.utime(entry(folder), (1e9, 1e9))
    assert object_cache.get("ab" * 32) == b"object"
    assert entry(folder).stat().st_mtime > 2e9 - 1e9


def test_the_cache_stays_within_its_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_cache, "LIMIT_BYTES", 256 * (32 << 10))
    for k in range(200):
        object_cache.put(f"aa{k % 16:x}{k:03d}".ljust(64, "0"), bytes(4000))
    kept = list((folder / "aa").iterdir())
    # a folder is looked at once in sixteen writes
    assert 8 <= len(kept) <= 8 + 16
    assert object_cache.get(f"aa{199 % 16:x}199".ljust(64, "0")) is not None


def test_a_folder_that_cannot_be_written_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("NNVM_CACHE", str(file))
    object_cache.put("ab" * 32, b"object")
    assert object_cache.get("ab" * 32) is None


def test_several_processes_write_the_same_entries(folder: Path) -> None:
    code = (
        "from nnvm.runtime import object_cache as c\n"
        "for r in range(20):\n"
        "    for k in range(5):\n"
        "        c.put(f'{k:02d}' * 32, bytes([k]) * 50000)\n"
        "        found = c.get(f'{k:02d}' * 32)\n"
        "        assert found in (None, bytes([k]) * 50000) and found is not None\n"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "NNVM_CACHE": str(folder)}) for _ in range(2)
    ]
    assert [w.wait(60) for w in workers] == [0, 0]
    assert len(list(folder.rglob("*"))) == 10  # five folders, five entries, nothing left over
