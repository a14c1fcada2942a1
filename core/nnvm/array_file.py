"""Arrays in .npy and .npz files, as users hand them over. Nothing is unpickled."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

__all__ = ["load_arrays"]

Array = np.ndarray[Any, Any]


def load_arrays(path: str | os.PathLike[str]) -> Array | dict[str, Array]:
    """The array of an .npy file, or those of an .npz file by name.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, is damaged, or holds Python objects.
    """
    with open(path, "rb") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            with loaded:
                return {name: loaded[name] for name in loaded.files}
        except Exception as error:  # numpy, zipfile and zlib each have their own; numpy's text advises to unpickle
            raise ValueError(f"{os.fspath(path)} is no .npy or .npz file with plain arrays") from error
