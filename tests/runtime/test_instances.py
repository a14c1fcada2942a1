"""What is kept between calls: instances for sizes, arenas for calls."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from nnvm.runtime.instances import MAX_INSTANCES, ArenaPool, Instances
from nnvm.runtime.memory import ALIGNMENT, NumpyMemory, aligned


def test_alignment():
    assert [aligned(n) for n in (0, 1, 63, 64, 65)] == [0, 64, 64, 64, 128]


def test_an_instance_is_made_once_by_whoever_asks_first():
    made, instances, start = [], Instances(), threading.Barrier(8)

    def ask(_):
        start.wait()
        return instances.get((3, 4), lambda: made.append(1) or object())

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert len(made) == 1 and len(set(map(id, found))) == 1
    instances.clear()
    assert instances.get((3, 4), object) is not found[0]


def test_the_oldest_instances_go():
    instances = Instances()
    first = instances.get(0, object)
    assert instances.get(0, object) is first
    for key in range(1, MAX_INSTANCES):
        instances.get(key, object)
    assert instances.get(0, object) is first
    instances.get(MAX_INSTANCES, object)
    assert instances.get(0, object) is not first


def test_a_failure_leaves_no_instance():
    instances = Instances()
    with pytest.raises(ZeroDivisionError):
        instances.get(1, lambda: 1 // 0)
    assert instances.get(1, lambda: "made") == "made"


def test_arenas_have_room_for_workspaces_and_are_used_again():
    pool = ArenaPool(NumpyMemory(), 100, 70)
    one = pool.take(3)
    assert one.address % ALIGNMENT == 0 and one.workspace == one.address + 128
    assert one.tensor.nbytes >= 128 + 3 * 128
    other = pool.take(1)
    spans = [(a.address, a.address + a.tensor.nbytes) for a in (one, other)]
    assert spans[0][1] <= spans[1][0] or spans[1][1] <= spans[0][0]
    pool.give(one)
    assert pool.take(2) is one
    pool.give(other)
    assert pool.take(4) not in (one, other)  # too little room for four threads


def test_calls_at_once_have_arenas_of_their_own():
    pool, wrong = ArenaPool(NumpyMemory(), 4096, 0), []

    def call(number):
        for _ in range(200):
            arena = pool.take(1)
            arena.tensor[:64] = number
            if not (arena.tensor[:64] == number).all():
                wrong.append(number)
            pool.give(arena)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(call, range(8)))
    assert not wrong


def test_memory_that_cannot_be_had():
    with pytest.raises(MemoryError, match=r"a call needs 11529215046068\d+ bytes"):
        ArenaPool(NumpyMemory(), 1 << 60, 0).take(1)
