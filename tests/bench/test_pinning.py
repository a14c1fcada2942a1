"""Cores and thread counts."""

import os

import pytest

from nnvm.bench import pinning
from nnvm.bench.errors import BenchError
from nnvm.bench.pinning import choose_cores, pinned, thread_environment


@pytest.fixture
def eight_cores(monkeypatch):
    """Four physical cores with two hyper-threads each: 0 and 4, 1 and 5, ..."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(pinning, "siblings", lambda core: {core % 4, core % 4 + 4})


@pytest.mark.usefixtures("eight_cores")
def test_one_thread_a_physical_core_from_the_last():
    assert choose_cores(1) == (3,)
    assert choose_cores(3) == (1, 2, 3)
    assert choose_cores(5) == (0, 1, 2, 3, 7)


@pytest.mark.usefixtures("eight_cores")
def test_chosen_cores():
    assert choose_cores(2, (4, 0)) == (0, 4)
    with pytest.raises(BenchError, match="not usable"):
        choose_cores(1, (9,))
    with pytest.raises(BenchError, match="3 threads need 3 cores"):
        choose_cores(3, (0, 1))
    with pytest.raises(BenchError, match="only 8 cores"):
        choose_cores(9)


def test_no_affinity_on_this_system(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert choose_cores(4) == ()
    with pinned(()):
        pass


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_pinning_is_undone():
    before = os.sched_getaffinity(0)
    one = max(before)
    with pytest.raises(RuntimeError), pinned((one,)):
        assert os.sched_getaffinity(0) == {one}
        raise RuntimeError
    assert os.sched_getaffinity(0) == before


def test_environment():
    single = thread_environment(1, (3,), openmp=True)
    assert single["OMP_NUM_THREADS"] == single["MKL_NUM_THREADS"] == "1" and "OMP_PLACES" not in single
    assert thread_environment(2, (2, 3), openmp=True)["OMP_PLACES"] == "{2},{3}"
    assert "OMP_PLACES" not in thread_environment(2, (2, 3), openmp=False)


def test_siblings_of_a_real_core():
    assert 0 in pinning.siblings(0)
    assert pinning.siblings(10**6) == {10**6}
