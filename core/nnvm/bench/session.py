"""The process of one engine: loads the model, compiles it, and measures when the driver says so.

The driver sends ``{"do": NAME, ...}``; each public method of a ``Session`` is such a NAME, its keywords are the rest of
the message, and what it returns is the answer. An exception is answered by ``{"failed": line, "traceback": text}``.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import signal
import statistics
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .accuracy import output_error
from .channel import Channel, Message, claim_standard_streams
from .config import Job
from .engine import Array, Engine, Runner
from .errors import one_line
from .memory import peak_bytes, reset_peak

__all__ = ["CHECK_SAMPLES", "Session", "answer", "load_answers", "save_answers", "serve", "timed_calls"]

#: Inputs 0 .. CHECK_SAMPLES-1 are for the comparison with the reference; rounds take later ones.
CHECK_SAMPLES = 2
MIN_CALLS, MAX_CALLS = 2, 20_000
PR_SET_PDEATHSIG = 1


class Session(ABC):
    """One model in one engine."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.runner: Runner | None = None

    @abstractmethod
    def load(self) -> Message:
        """Makes the model. The memory afterwards, ``resident_bytes``, is what every engine starts from."""

    @abstractmethod
    def reference(self, path: str) -> Message:
        """Writes the right answers to ``path`` (`save_answers`) and describes the model."""

    @abstractmethod
    def fresh(self, index: int) -> Any:
        """Inputs number `index`: the same in every process, never those of another index."""

    @abstractmethod
    def engine(self) -> Engine:
        """The engine of the job."""

    @abstractmethod
    def setup(self) -> Any:
        """What the engine's ``prepare`` is given."""

    def compile(self) -> Message:
        """Compiles and makes the first call; both count, since engines divide the work differently between them."""
        engine = self.engine()
        first, setup = self.fresh(CHECK_SAMPLES), self.setup()
        start = time.perf_counter()
        runner = engine.prepare(setup)
        prepared = time.perf_counter()
        runner.call(runner.convert(first))
        end = time.perf_counter()
        self.runner = runner
        return {
            "compile_seconds": end - start,
            "prepare_seconds": prepared - start,
            "peak_bytes": peak_bytes(),
            "details": engine.details(),
        }

    def calibrate(self) -> Message:
        """Says how long a call takes, and the peak memory of calls alone."""
        runner = self.compiled()
        feed = runner.convert(self.fresh(CHECK_SAMPLES))
        reset_peak()
        durations = timed_calls(runner.call, feed, 0.0, calls=3)
        return {"seconds_per_call": min(durations), "running_peak_bytes": peak_bytes()}

    def check(self, path: str) -> Message:
        """The largest error against the answers in ``path``; None stands for infinite."""
        runner = self.compiled()
        error = 0.0
        for index, reference in enumerate(load_answers(path)):
            given = runner.call(runner.convert(self.fresh(index)))
            error = max(error, output_error(runner.outputs(given), reference))
        return {"error": error if error < float("inf") else None}

    def round(self, index: int, seconds: float) -> Message:
        """Calls for ``seconds`` on inputs of this round. The first call is not timed: the caches are another's."""
        runner = self.compiled()
        feed = runner.convert(self.fresh(CHECK_SAMPLES + 1 + index))
        runner.call(feed)
        wall, busy = time.perf_counter(), time.thread_time()
        durations = timed_calls(runner.call, feed, seconds)
        share = (time.thread_time() - busy) / (time.perf_counter() - wall)
        return {"latency": statistics.median(durations), "calls": len(durations), "core_share": share}

    def compiled(self) -> Runner:
        assert self.runner is not None, "compile() comes first"
        return self.runner


def save_answers(path: str, answers: Sequence[Sequence[Array]]) -> None:
    """Arrays of each sample, to a file that ends in .npz."""
    named = {f"{sample}.{i}": array for sample, arrays in enumerate(answers) for i, array in enumerate(arrays)}
    np.savez(path, samples=np.array([len(arrays) for arrays in answers]), **named)  # type: ignore[arg-type]


def load_answers(path: str) -> list[list[Array]]:
    with np.load(path, allow_pickle=False) as file:
        return [[file[f"{sample}.{i}"] for i in range(count)] for sample, count in enumerate(file["samples"])]


def timed_calls(call: Callable[[Any], Any], feed: Any, seconds: float, calls: int = MIN_CALLS) -> list[float]:
    """Durations in seconds of at least ``calls`` calls, and of as many as fit into ``seconds``."""
    durations: list[int] = []
    clock = time.perf_counter_ns
    gc.collect()
    gc.disable()
    try:
        deadline = clock() + int(seconds * 1e9)
        end = 0
        while len(durations) < calls or (end < deadline and len(durations) < MAX_CALLS):
            start = clock()
            given = call(feed)
            end = clock()
            durations.append(end - start)
            del given  # here, so that freeing it is not part of the next call
    finally:
        gc.enable()
    return [duration / 1e9 for duration in durations]


def die_with_parent() -> None:
    """Asks Linux to kill this process when the driver dies; elsewhere it ends when it next looks for a command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def answer(session: Session, command: Message) -> Message:
    try:
        result: Message = getattr(session, command.pop("do"))(**command)
        return result
    except Exception as error:
        return {"failed": one_line(error), "traceback": traceback.format_exc()}


def serve(make: Callable[[Job], Session], around: contextlib.AbstractContextManager[Any] | None = None) -> None:
    """Answers the driver on this process's standard streams until it is gone; `around`: entered for as long."""
    channel: Channel = claim_standard_streams()
    die_with_parent()
    faulthandler.enable()
    first = channel.receive()
    if first is None:
        return
    session = make(Job.from_json(first))
    with around or contextlib.nullcontext():
        while (command := channel.receive()) is not None:
            channel.send(answer(session, command))
