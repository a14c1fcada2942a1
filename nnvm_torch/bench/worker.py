"""The process of one engine: loads the model, compiles it, and measures when the driver says so.

The driver sends ``{"do": NAME, ...}``; each public method of ``Session`` is such a NAME, its keywords are the rest of
the message, and what it returns is the answer. An exception is answered by ``{"failed": line, "traceback": text}``.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from .accuracy import output_error
from .channel import Channel, Message, claim_standard_streams
from .config import Job
from .engines import Setup, find_engine
from .engines.base import Runner, tensors_of
from .errors import one_line
from .memory import peak_bytes, reset_peak, resident_bytes
from .models.case import Inputs, ModelCase
from .models.sources import load_model

__all__ = ["CHECK_SAMPLES", "Session", "main"]

#: Inputs 0 .. CHECK_SAMPLES-1 are for the comparison with float64; rounds take later ones.
CHECK_SAMPLES = 2
MIN_CALLS, MAX_CALLS = 2, 20_000
PR_SET_PDEATHSIG = 1


class Session:
    """One model in one engine."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.case: ModelCase | None = None
        self.runner: Runner | None = None

    def load(self) -> Message:
        """Builds the model. The memory afterwards is what every engine starts from."""
        torch.set_num_threads(self.job.threads)
        self.case = load_model(self.job.model, self.job.batch, getattr(torch, self.job.dtype), self.job.seed)
        return {"resident_bytes": resident_bytes()}

    def reference(self, path: str) -> Message:
        """Writes the float64 answers to ``path`` and describes the model."""
        case = self.loaded()
        facts: Message = {
            "parameters": sum(parameter.numel() for parameter in case.module.parameters()),
            "inputs": [describe(x) for x in case.inputs],
        }
        answers = []
        try:
            module = case.module.double()
            counter = FlopCounterMode(display=False)
            with counter:
                answers.append(tensors_of(module(*widen(case.fresh(self.job.seed, 0)))))
            facts["flops"] = counter.get_total_flops()
            for index in range(1, CHECK_SAMPLES):
                answers.append(tensors_of(module(*widen(case.fresh(self.job.seed, index)))))
        except Exception as error:  # It may still run in its own type: then there is no error column, and a reason.
            return {**facts, "no_reference": one_line(error)}
        facts["outputs"] = [list(x.shape) for x in answers[0]]
        torch.save(answers, path)
        return facts

    def compile(self) -> Message:
        """Compiles and makes the first call; both count, since engines divide the work differently between them."""
        case, engine = self.loaded(), find_engine(self.job.engine)
        first = case.fresh(self.job.seed, CHECK_SAMPLES)
        start = time.perf_counter()
        setup = Setup(case.module, case.inputs, self.job.threads, self.job.cores, Path(self.job.folder))
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
        feed = runner.convert(self.loaded().fresh(self.job.seed, CHECK_SAMPLES))
        reset_peak()
        durations = timed_calls(runner.call, feed, 0.0, calls=3)
        return {"seconds_per_call": min(durations), "running_peak_bytes": peak_bytes()}

    def check(self, path: str) -> Message:
        """The largest error against the answers in ``path``; None stands for infinite."""
        runner, case = self.compiled(), self.loaded()
        references: list[list[torch.Tensor]] = torch.load(path)
        error = 0.0
        for index, reference in enumerate(references):
            answer = runner.call(runner.convert(case.fresh(self.job.seed, index)))
            error = max(error, output_error(runner.outputs(answer), reference))
        return {"error": error if error < float("inf") else None}

    def round(self, index: int, seconds: float) -> Message:
        """Calls for ``seconds`` on inputs of this round. The first call is not timed: the caches are another's."""
        runner = self.compiled()
        feed = runner.convert(self.loaded().fresh(self.job.seed, CHECK_SAMPLES + 1 + index))
        runner.call(feed)
        wall, busy = time.perf_counter(), time.thread_time()
        durations = timed_calls(runner.call, feed, seconds)
        share = (time.thread_time() - busy) / (time.perf_counter() - wall)
        return {"latency": statistics.median(durations), "calls": len(durations), "core_share": share}

    def loaded(self) -> ModelCase:
        assert self.case is not None, "load() comes first"
        return self.case

    def compiled(self) -> Runner:
        assert self.runner is not None, "compile() comes first"
        return self.runner


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
            answer = call(feed)
            end = clock()
            durations.append(end - start)
            del answer  # here, so that freeing it is not part of the next call
    finally:
        gc.enable()
    return [duration / 1e9 for duration in durations]


def widen(inputs: Inputs) -> Inputs:
    return tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)


def describe(value: Any) -> str:
    """``float32[1, 3, 224, 224]``."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def die_with_parent() -> None:
    """Asks Linux to kill this process when the driver dies; elsewhere it ends when it next looks for a command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def answer(session: Session, command: Message) -> Message:
    try:
        method = getattr(session, command.pop("do"))
        with torch.no_grad():
            result: Message = method(**command)
        return result
    except Exception as error:
        return {"failed": one_line(error), "traceback": traceback.format_exc()}


def serve(channel: Channel) -> None:
    first = channel.receive()
    if first is None:
        return
    session = Session(Job.from_json(first))
    while (command := channel.receive()) is not None:
        channel.send(answer(session, command))


def main() -> None:
    channel = claim_standard_streams()
    die_with_parent()
    faulthandler.enable()
    serve(channel)


if __name__ == "__main__":
    main()
