"""Files are written as a whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from nnvm.atomic_write import atomic_write


def test_what_was_written_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with atomic_write(path) as file:
        file.write(b"one")
        assert not path.exists()
    with atomic_write(path) as file:
        file.write(b"two")
        assert path.read_bytes() == b"one"
    assert path.read_bytes() == b"two" and [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_interruption_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_write(path) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_the_mode_is_that_of_any_new_file(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "a") as file:
            file.write(b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_errors_name_the_file(tmp_path: Path) -> None:
    for path, error in ((tmp_path, IsADirectoryError), (tmp_path / "no" / "a", FileNotFoundError)):
        with pytest.raises(error) as failed, atomic_write(path):
            pass
        assert failed.value.filename == str(path)


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="no devices here")
def test_what_is_no_plain_file_stays_what_it_is(tmp_path: Path) -> None:
    with atomic_write("/dev/null") as file:
        file.write(b"gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"
