"""Writing files so that a reader, or a run that is interrupted, finds the old one or the new one and never a half."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["atomic_write"]


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to; `path` becomes what was written when nothing failed, and stays as it is otherwise.

    It is written beside `path` and renamed. What is no plain file (``/dev/stdout``, a pipe) is written to directly, and
    a link is followed. OSError names `path` where nothing can be written there.
    """
    target = os.path.realpath(path)
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(target).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(21, "Is a directory", os.fspath(path))
        if not stat.S_ISREG(mode):
            with open(path, "wb") as direct:
                yield direct
            return
    try:
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".nnvm-", suffix=".tmp")
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, "there is no such folder to write to", os.fspath(path)) from error
    except OSError as error:
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(temporary, 0o666 & ~mask)  # as any new file; mkstemp's is the owner's alone
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
