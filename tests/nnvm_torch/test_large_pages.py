"""Weights and activations on large pages: the same tensors, elsewhere."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest
import torch

from nnvm.dtype import BF16, BOOL, F32
from nnvm.runtime.memory import ALIGNMENT
from nnvm_torch import large_pages
from nnvm_torch.large_pages import LARGE, large_memory
from nnvm_torch.tensors import PooledMemory
from nnvm_torch.weights import prepared_bytes

needs_large_pages = pytest.mark.skipif(large_memory(LARGE) is None, reason="a system without large pages")


@needs_large_pages
def test_large_memory_is_writable_and_lies_on_a_large_page() -> None:
    memory = large_memory(3 * LARGE + 5)
    assert memory is not None and len(memory) == 3 * LARGE + 5
    array = np.frombuffer(memory, np.uint8)
    assert array.ctypes.data % large_pages._page_bytes() == 0
    assert not array.any()
    array[:] = 7
    assert memory[-1] == 7


def test_little_memory_is_as_any_other() -> None:
    assert large_memory(LARGE - 1) is None


def test_memory_that_cannot_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="cannot be had"):
        large_memory(1 << 60)


@needs_large_pages
def test_a_child_process_writes_to_memory_of_its_own() -> None:
    memory = large_memory(LARGE)
    assert memory is not None
    if (child := os.fork()) == 0:
        memory[0] = 9
        os._exit(memory[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert memory[0] == 0


def test_tensors_of_a_pool_lie_side_by_side_and_know_their_own_size() -> None:
    pool = PooledMemory(2 * LARGE)
    first = pool.empty((3, 5), F32, None)
    second = pool.empty((LARGE,), BOOL, None)
    other = pool.empty((4, 4), BF16, (1, 4))
    nothing = pool.empty((0, 7), F32, None)
    beyond = pool.empty((LARGE,), F32, None)
    shapes = [tuple(t.shape) for t in (first, second, other, nothing, beyond)]
    assert shapes == [(3, 5), (LARGE,), (4, 4), (0, 7), (LARGE,)]
    assert [t.dtype for t in (first, second, other)] == [torch.float32, torch.bool, torch.bfloat16]
    assert other.stride() == (1, 4)
    assert first.untyped_storage().nbytes() == 60
    assert second.untyped_storage().nbytes() == LARGE
    assert all(t.data_ptr() % ALIGNMENT == 0 for t in (first, second, beyond))
    if large_memory(LARGE) is not None:
        assert second.data_ptr() - first.data_ptr() == ALIGNMENT


def test_weights_in_a_pool_are_replaced_one_by_one_and_freed() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(700, 700) for _ in range(3))).eval()
    compiled, x = torch.compile(model, backend="nnvm"), torch.randn(4, 700)
    before = prepared_bytes()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        size = prepared_bytes() - before
        assert 3 * 700 * 700 * 4 <= size < 4 * 700 * 700 * 4
        for layer in model:
            layer.weight.mul_(1.5)
            torch.testing.assert_close(compiled(x), model(x))
            assert prepared_bytes() - before == size
    del compiled, model, layer
    torch._dynamo.reset()
    gc.collect()
    assert prepared_bytes() <= before
