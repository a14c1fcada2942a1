"""The experiment: one worker an engine, only one of them working at a time, rounds interleaved."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .accuracy import is_accurate
from .channel import Message
from .config import REFERENCE, BenchConfig
from .engine import Side, missing_package
from .process import Worker, WorkerFailed
from .results import EngineResult, ModelResult, ratio_of_rounds

__all__ = ["Progress", "run_model"]

#: Told what is going on, and which part of the model's work is done.
Progress = Callable[[str, float], None]

MIN_ROUNDS = 5
#: Long enough for the threads of the engine before to stop spinning for more work.
SETTLE_SECONDS = 0.02


def run_model(model: str, config: BenchConfig, side: Side, progress: Progress) -> ModelResult:
    """Measures a model in every engine. Whatever fails is a reason in the result, never an exception."""
    result = ModelResult(model)
    with tempfile.TemporaryDirectory(prefix="nnvm-bench-") as folder, contextlib.ExitStack() as stack:
        reference = Path(folder) / "reference.npz"
        progress("reference", 0.0)
        try:
            result.facts = describe_model(model, config, side, reference)
        except WorkerFailed as failure:
            result.reason, result.trace = failure.reason, failure.detail
            return result
        workers: dict[str, Worker] = {}
        for index, engine in enumerate(config.engines):
            row = EngineResult(engine)
            result.engines.append(row)
            missing = missing_package(side.find(engine))
            if missing is not None:
                row.status, row.reason = "failed", missing
                continue
            progress(f"{engine}: compiling", 0.5 * index / len(config.engines))
            worker = stack.enter_context(Worker(model, engine, config, side))
            if prepare(worker, row, reference):
                workers[engine] = worker
        run_rounds(workers, result, config, progress)
    judge(result, config.baseline)
    return result


def describe_model(model: str, config: BenchConfig, side: Side, reference: Path) -> Message:
    with Worker(model, REFERENCE, config, side) as worker:
        worker.request("load")
        return worker.request("reference", path=str(reference))


def prepare(worker: Worker, row: EngineResult, reference: Path) -> bool:
    """Load, compile and check. False, with the reason in ``row``, when one of them fails."""
    try:
        loaded = worker.request("load")
        compiled = worker.request("compile")
        row.compile_seconds = compiled["compile_seconds"]
        row.details = compiled["details"]
        calibrated = worker.request("calibrate")
        memory = {
            "loaded": loaded["resident_bytes"],
            "peak": max_known(compiled["peak_bytes"], calibrated["running_peak_bytes"]),
            "running": calibrated["running_peak_bytes"],
        }
        row.memory = {name: size for name, size in memory.items() if size is not None}
        row.details["seconds_per_call"] = calibrated["seconds_per_call"]
        if reference.exists():
            error = worker.request("check", path=str(reference))["error"]
            row.error = float("inf") if error is None else error
    except WorkerFailed as failure:
        fail(worker, row, failure)
        return False
    return True


def max_known(*sizes: int | None) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def fail(worker: Worker, row: EngineResult, failure: WorkerFailed) -> None:
    row.status, row.reason, row.trace = "failed", failure.reason, failure.detail
    worker.close()


def rounds_to_run(config: BenchConfig, seconds_per_call: float) -> int:
    """All rounds, unless three calls of the slowest engine in each would take more than twice the time asked for."""
    affordable = int(2 * config.seconds / (3 * seconds_per_call)) if seconds_per_call > 0 else config.rounds
    return min(config.rounds, max(MIN_ROUNDS, affordable))


def run_rounds(workers: dict[str, Worker], result: ModelResult, config: BenchConfig, progress: Progress) -> None:
    """Runs round after round; in each, every engine once, starting with another one each time."""
    rows = {row.engine: row for row in result.engines}
    slowest = max((rows[engine].details["seconds_per_call"] for engine in workers), default=0.0)
    rounds = rounds_to_run(config, slowest)
    seconds = config.seconds / rounds
    for index in range(rounds):
        progress(f"round {index + 1} of {rounds}", 0.5 + 0.5 * index / rounds)
        order = list(workers)
        shift = index % max(1, len(order))
        for engine in [*order[shift:], *order[:shift]]:
            time.sleep(SETTLE_SECONDS)
            try:
                measured = workers[engine].request("round", index=index, seconds=seconds)
            except WorkerFailed as failure:
                fail(workers.pop(engine), rows[engine], failure)
                continue
            rows[engine].rounds.append(measured["latency"])
            rows[engine].calls += measured["calls"]
            rows[engine].core_shares.append(measured["core_share"])


def judge(result: ModelResult, baseline_name: str = "eager") -> None:
    """Fills in what needs the baseline: ratios, and whether the error is acceptable."""
    baseline = result.engine(baseline_name)
    base_rounds = baseline.rounds if baseline is not None and baseline.status != "failed" else []
    base_error = baseline.error if baseline is not None else None
    for row in result.engines:
        row.details.pop("seconds_per_call", None)
        if row.status == "failed":
            continue
        row.ratio = ratio_of_rounds(base_rounds, row.rounds)
        if row.error is not None and row is not baseline and not is_accurate(row.error, base_error):
            row.status = "wrong"
            row.reason = f"error {row.error:.1e} of the output's range, {baseline_name}'s is {base_error or 0.0:.1e}"
            if row.error == float("inf"):
                row.reason = "NaN or infinity where the reference has none, or the other way round"
