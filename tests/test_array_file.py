"""Files with arrays, and files that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nnvm.array_file import load_arrays

RNG = np.random.default_rng(3)


def test_one_array_and_several(tmp_path: Path) -> None:
    x, y = RNG.standard_normal((3, 4)), RNG.integers(0, 9, 5)
    np.save(tmp_path / "x.npy", x)
    np.savez_compressed(tmp_path / "all.npz", x=x, y=y)
    np.testing.assert_array_equal(load_arrays(tmp_path / "x.npy"), x)
    found = load_arrays(str(tmp_path / "all.npz"))
    assert isinstance(found, dict) and set(found) == {"x", "y"}
    np.testing.assert_array_equal(found["y"], y)


def test_what_holds_no_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=RNG.standard_normal(100))
    whole = (tmp_path / "x.npz").read_bytes()
    files = {"empty.npy": b"", "junk.npy": RNG.bytes(300), "text.npz": b"hello", "cut.npz": whole[:-40],
             "flipped.npz": whole[:150] + bytes([whole[150] ^ 255]) + whole[151:]}  # fmt: skip
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for name in ("objects.npy", *files):
        with pytest.raises(ValueError, match=rf"{name} is no \.npy or \.npz file with plain arrays"):
            load_arrays(tmp_path / name)
    for name, error in (("nowhere.npy", FileNotFoundError), (".", IsADirectoryError)):
        with pytest.raises(error):
            load_arrays(tmp_path / name)
