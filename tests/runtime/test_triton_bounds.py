"""Kernels in Triton's interpreter may touch the buffers that they are given, and no byte more."""

from __future__ import annotations

import numpy as np
import pytest

from nnvm.codegen.triton import TritonSource
from nnvm.runtime.triton_bounds import OutsideError
from nnvm.runtime.triton_interpret import interpret
from nnvm.runtime.triton_launch import load_source

pytestmark = pytest.mark.triton
TEXT = """\
import triton
import triton.language as tl


@triton.jit
def copied(x_ptr, y_ptr, n):
    i = tl.program_id(0) * 8 + tl.arange(0, 8)
    {body}
"""
SIGNATURE = (("x_ptr", "*fp32"), ("y_ptr", "*fp32"), ("n", "i32"))


def run(body, x, y, programs=2, n=12, sizes=None):
    source = TritonSource("copied", TEXT.format(body=body), SIGNATURE, ())
    sizes = sizes or [x.nbytes, y.nbytes]
    return interpret(load_source(source), SIGNATURE, [x.ctypes.data, y.ctypes.data, n], programs, sizes)


def arrays():
    rng = np.random.default_rng(3)
    return rng.standard_normal(12).astype(np.float32), np.zeros(12, np.float32)


def test_what_is_masked_is_not_touched():
    x, y = arrays()
    assert run("tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)", x, y) == 0
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(("body", "said"), [
    ("tl.store(y_ptr + i, tl.load(x_ptr + i), mask=i < n)", r"reads outside .* 4 of 8 elements"),
    ("tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n))", r"writes outside .* 4 of 8 elements"),
    ("tl.store(y_ptr + i, tl.load(x_ptr + i - 1, mask=i < n), mask=i < n)", r"reads outside .* byte -4 of"),
    ("tl.store(y_ptr + i, tl.load(x_ptr + i * 2, mask=i < n), mask=i < n)", r"reads outside"),
    ("tl.atomic_add(y_ptr + i, tl.load(x_ptr + i, mask=i < n))", r"writes outside"),
])  # fmt: skip
def test_what_is_outside_is_told(body, said):
    room = np.zeros(64, np.float32)  # so that nothing crashes
    with pytest.raises(OutsideError, match=said):
        run(body, room[16:28], room[40:52])


def test_buffers_that_are_one_memory():
    x, _ = arrays()
    assert run("tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)", x, x) == 0
    with pytest.raises(OutsideError):
        run("tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)", x, x, sizes=[40, 44])
