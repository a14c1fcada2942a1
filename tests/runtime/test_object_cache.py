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


def test_the_least_recently_used_go_first(folder: Path) -> None:
    keys = [object_cache.key_of(f"{k}", HOST) for k in range(6)]
    for age, key in enumerate(keys):
        object_cache.put(key, bytes(1000))
        path = next(folder.rglob(f"{key}.o"))
        os.utime(path, (1e9 + age, 1e9 + age))
    assert object_cache.get(keys[0]) is not None  # used: now the youngest
    removed = object_cache.evict(3500)
    assert 3000 <= removed <= 4000
    assert [object_cache.get(k) is not None for k in keys] == [True, False, False, False, True, True]
    assert object_cache.evict(3500) == 0


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
