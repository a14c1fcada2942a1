"""What a benchmark found, as plain data that the table, the markdown and the JSON are made from."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .config import BenchConfig

__all__ = ["BenchResult", "EngineResult", "ModelResult", "Ratio", "Status", "geometric_mean", "ratio_of_rounds"]

#: ``wrong`` ran, but is too far from float64; ``failed`` gave no numbers.
Status = Literal["ok", "wrong", "failed"]
SCHEMA = 1


@dataclass(frozen=True)
class Ratio:
    """How many times faster than the baseline: the median of the per-round ratios, and its quartiles."""

    median: float
    low: float
    high: float


def ratio_of_rounds(baseline: Sequence[float], latencies: Sequence[float]) -> Ratio | None:
    """Compares latencies round by round; None without rounds."""
    ratios = [base / own for base, own in zip(baseline, latencies, strict=False)]
    if not ratios:
        return None
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)


def geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


@dataclass
class EngineResult:
    """One row: a model in an engine.

    Attributes:
        reason: why ``status`` is not ok.
        rounds: median latency of each round in seconds.
        core_shares: for each round, which part of the time the calling thread was on a core. About 1 on a machine with
            nothing else to do, except for engines whose calling thread sleeps while others work.
        error: largest difference from the reference, relative to the output's range; infinite where NaNs differ.
        details: what the engine itself reports (compile phases, fallbacks, kernels).
        memory: bytes: ``loaded`` before compiling, ``peak`` of everything, ``running`` peak of calls after the first.
    """

    engine: str
    status: Status = "ok"
    reason: str = ""
    trace: str = ""
    rounds: list[float] = field(default_factory=list)
    core_shares: list[float] = field(default_factory=list)
    calls: int = 0
    ratio: Ratio | None = None
    error: float | None = None
    compile_seconds: float | None = None
    details: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)

    @property
    def latency(self) -> float | None:
        """Median over the rounds, in seconds."""
        return statistics.median(self.rounds) if self.rounds else None

    @property
    def core_share(self) -> float | None:
        return statistics.median(self.core_shares) if self.core_shares else None

    def to_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        return {**data, "latency": self.latency, "error": finite_or_text(self.error)}


@dataclass
class ModelResult:
    """All rows of a model. ``reason`` is set, and there are no rows, where the model itself could not be loaded."""

    model: str
    reason: str = ""
    trace: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    engines: list[EngineResult] = field(default_factory=list)

    def engine(self, name: str) -> EngineResult | None:
        return next((row for row in self.engines if row.engine == name), None)

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "reason": self.reason,
            "trace": self.trace,
            **self.facts,
            "engines": [row.to_json() for row in self.engines],
        }


@dataclass
class BenchResult:
    """Everything of a run."""

    config: BenchConfig
    environment: dict[str, Any]
    models: list[ModelResult] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Every model ran in every engine and every answer was right."""
        return all(not model.reason and all(row.status == "ok" for row in model.engines) for model in self.models)

    def mean_ratio(self, engine: str) -> tuple[float, int] | None:
        """Geometric mean of an engine's ratios over the models where it is right, and how many those are."""
        rows = [row for model in self.models if (row := model.engine(engine)) is not None]
        ratios = [row.ratio.median for row in rows if row.status == "ok" and row.ratio is not None]
        mean = geometric_mean(ratios)
        return None if mean is None else (mean, len(ratios))

    def to_json(self) -> dict[str, Any]:
        means = {engine: mean for engine in self.config.engines if (mean := self.mean_ratio(engine)) is not None}
        return {
            "schema": SCHEMA,
            "environment": self.environment,
            "config": self.config.to_json(),
            "baseline": self.config.baseline,
            "models": [model.to_json() for model in self.models],
            "geometric_mean": {engine: {"ratio": ratio, "models": count} for engine, (ratio, count) in means.items()},
        }


def finite_or_text(value: float | None) -> float | str | None:
    """JSON has no infinity."""
    return value if value is None or math.isfinite(value) else str(value)
