"""Which cores to measure on, and how every threading runtime is told about them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from nnvm.cpu_list import read_cpu_list

from .errors import BenchError

__all__ = ["choose_cores", "pinned", "thread_environment"]

COUNT_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def choose_cores(threads: int, wanted: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """One core for each thread: ``wanted`` if given, else the last ones, each on a physical core of its own.

    The last, because systems like to serve interrupts on the first. Empty where the system has no affinity.

    Raises:
        BenchError: there are not enough cores, or one of ``wanted`` may not be used.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ()
    usable = os.sched_getaffinity(0)
    if wanted is not None:
        outside = sorted(set(wanted) - usable)
        if outside:
            raise BenchError(f"cores {outside} are not usable here; usable: {sorted(usable)}")
        if len(set(wanted)) < threads:
            raise BenchError(f"{threads} threads need {threads} cores, --cores names {len(set(wanted))}")
        return tuple(sorted(set(wanted)))
    if threads > len(usable):
        raise BenchError(f"{threads} threads, but only {len(usable)} cores are usable")
    first_of_physical = {min(siblings(core) & usable) for core in usable}
    by_choice = sorted(usable, key=lambda core: (core not in first_of_physical, -core))
    return tuple(sorted(by_choice[:threads]))


def siblings(core: int) -> set[int]:
    """Logical cores that share a physical one with ``core``, itself included."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    return {core, *read_cpu_list(path)}


@contextlib.contextmanager
def pinned(cores: tuple[int, ...]) -> Iterator[None]:
    """Restricts this thread to ``cores`` for a while: a process started meanwhile begins its life there."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def thread_environment(threads: int, cores: tuple[int, ...], openmp: bool) -> dict[str, str]:
    """Environment variables that give every runtime ``threads`` threads.

    With several threads, those of OpenMP are bound to one core each: left alone, the scheduler puts two on one core for
    a while and every figure halves. Not so for engines with pools of their own, whose threads would inherit the binding
    of the thread that creates them and all end up on one core.
    """
    variables = {name: str(threads) for name in COUNT_VARIABLES} | {"OMP_DYNAMIC": "false"}
    if openmp and threads > 1 and cores:
        variables |= {"OMP_PROC_BIND": "true", "OMP_PLACES": ",".join(f"{{{core}}}" for core in cores)}
    return variables
