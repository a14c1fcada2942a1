"""What an engine is: a way to make a model callable. A `Side` is a kind of models and the engines they run in."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import BenchError

__all__ = ["ALIASES", "Array", "Engine", "Runner", "Side", "chosen_engines", "lookup", "missing_package"]

Array = np.ndarray[Any, Any]
#: Short names that users know engines by.
ALIASES = {"ort": "onnxruntime", "ov": "openvino"}


@dataclass(frozen=True)
class Runner:
    """A compiled model. Only ``call`` is timed; ``convert`` and ``outputs`` are the way in and out.

    Attributes:
        call: takes what ``convert`` made.
        convert: a session's inputs to the engine's own.
        outputs: the engine's answer as arrays, in order.
    """

    call: Callable[[Any], Any]
    convert: Callable[[Any], Any]
    outputs: Callable[[Any], list[Array]]


@dataclass(frozen=True)
class Engine:
    """One row of the comparison.

    Attributes:
        prepare: compiles what its side's session hands over; what it leaves to the first call counts as compile time.
        packages: what must be importable (the pip names are the same).
        openmp: its kernels run on OpenMP threads, which are then bound to one core each.
        details: after the first call, facts for the JSON: compile phases, fallbacks, kernels.
    """

    name: str
    summary: str
    prepare: Callable[[Any], Runner]
    packages: tuple[str, ...] = ()
    openmp: bool = True
    details: Callable[[], dict[str, Any]] = dict


@dataclass(frozen=True)
class Side:
    """Models of one kind and the engines that run them.

    Attributes:
        worker: the module that is the process of an engine: ``python -m`` runs it.
        engines: by name, in the order of the table.
        find: the engine of a name; BenchError where there is none.
        reference_openmp: whether the process that makes the reference uses OpenMP threads.
    """

    worker: str
    engines: Mapping[str, Engine]
    find: Callable[[str], Engine]
    reference_openmp: bool = True


def lookup(name: str, engines: Mapping[str, Engine], more: str = "") -> Engine:
    """The engine of that name or alias. BenchError if there is none; `more`: what else the names could have been."""
    name = ALIASES.get(name, name)
    if name in engines:
        return engines[name]
    near = difflib.get_close_matches(name, engines)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(engines)}{more}"
    raise BenchError(f"unknown engine {name!r}; {hint}")


def missing_package(engine: Engine) -> str | None:
    """The line that says which package an engine lacks and how to get it; None if it has all."""
    missing = [name for name in engine.packages if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"{' and '.join(missing)} {verb} not installed: pip install {' '.join(missing)}"


def chosen_engines(side: Side, first: Sequence[str], against: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Engines in table order (`first`, then the others), and why some of ``all`` are left out."""
    names = list(first)
    skipped: list[str] = []
    for name in against:
        if name != "all":
            names.append(name)
            continue
        for engine in side.engines.values():
            missing = missing_package(engine)
            if missing is None:
                names.append(engine.name)
            else:
                skipped.append(f"{engine.name}: {missing}")
    return tuple(dict.fromkeys(side.find(name).name for name in names)), skipped
