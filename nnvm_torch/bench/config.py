"""What one benchmark run does, as plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

__all__ = ["BASELINE", "REFERENCE", "BenchConfig", "Job"]

#: Ratios are relative to this engine, and its error stands for what float arithmetic costs.
BASELINE = "eager"
#: The worker that runs the model in float64. It is not an engine: nothing of it is timed.
REFERENCE = "reference"


@dataclass(frozen=True)
class BenchConfig:
    """One run: every model by every engine.

    Attributes:
        models: as the user named them (``zoo:resnet18``).
        engines: in the order of the table's rows; BASELINE is always among them.
        subject: the engine under test; one of ``engines``.
        cores: what every worker is pinned to; empty where the system cannot pin.
        rounds: interleaved rounds; fewer are run where a call takes long, at least five.
        seconds: measuring time for each engine and model, over all rounds.
        timeout: seconds until a step of a worker (load, compile, one round) counts as hung.
        keep_caches: engines keep their disk caches, so that compile times are those of a warm start.
    """

    models: tuple[str, ...]
    engines: tuple[str, ...]
    subject: str = "nnvm"
    threads: int = 1
    cores: tuple[int, ...] = ()
    batch: int = 1
    dtype: str = "float32"
    rounds: int = 21
    seconds: float = 4.0
    seed: int = 0
    timeout: float = 600.0
    keep_caches: bool = False

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Job:
    """What a worker is told when it starts."""

    model: str
    engine: str
    threads: int
    cores: tuple[int, ...]
    batch: int
    dtype: str
    seed: int
    folder: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Job:
        return Job(**{**data, "cores": tuple(data["cores"])})
