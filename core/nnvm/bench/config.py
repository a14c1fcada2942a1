"""What one benchmark run does, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["REFERENCE", "BenchConfig", "Job"]

#: The worker that makes the right answers. It is not an engine: nothing of it is timed.
REFERENCE = "reference"


@dataclass(frozen=True)
class BenchConfig:
    """One run: every model by every engine.

    Attributes:
        models: as the user named them (``zoo:resnet18``).
        engines: in the order of the table's rows.
        subject: the engine under test; one of ``engines``.
        baseline: ratios are relative to this one of ``engines``, whose error stands for what float arithmetic costs.
        cores: what every worker is pinned to; empty where the system cannot pin.
        rounds: interleaved rounds; fewer are run where a call takes long, at least five.
        seconds: measuring time for each engine and model, over all rounds.
        timeout: seconds until a step of a worker (load, compile, one round) counts as hung.
        keep_caches: engines keep their disk caches, so that compile times are those of a warm start.
        shapes: of an ONNX model's inputs, by name.
        inputs: files with an ONNX model's inputs, by name.
    """

    models: tuple[str, ...]
    engines: tuple[str, ...]
    subject: str = "nnvm"
    baseline: str = "eager"
    threads: int = 1
    cores: tuple[int, ...] = ()
    batch: int = 1
    dtype: str = "float32"
    rounds: int = 21
    seconds: float = 4.0
    seed: int = 0
    timeout: float = 600.0
    keep_caches: bool = False
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)

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
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Job:
        shapes = {name: tuple(shape) for name, shape in data["shapes"].items()}
        return Job(**{**data, "cores": tuple(data["cores"]), "shapes": shapes})
