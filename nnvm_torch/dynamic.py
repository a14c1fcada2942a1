"""Sizes with names and ranges for `nnvm_torch.compile(..., dynamic=, axes=)`: what users write, and which graph a call
goes to.

A name has buckets, each a size or a range of sizes. One graph is compiled for each combination of buckets that is
called: of one size as any other, of a range with a symbolic size whose bounds the compiler knows. ``(1, 64)`` stands
for the buckets 1 and 2 to 64, as PyTorch's operators treat a size of 1 in a way of its own (it broadcasts).
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

__all__ = ["Bucket", "DynamicAxes", "Placed", "Sizes"]

EXAMPLE = 'dynamic={"batch": (1, 64), "length": (1, 512)}, axes={"ids": ("batch", "length")}'


@dataclass(frozen=True)
class Bucket:
    """Sizes from `low` to `high`, both included, of the name `name`."""

    name: str
    low: int
    high: int

    @property
    def is_open(self) -> bool:
        """Is it a range, for which a symbolic size stands?"""
        return self.low < self.high

    def __str__(self) -> str:
        return f"{self.low} to {self.high}" if self.is_open else str(self.low)


#: Of each tensor among the arguments, by its position: axis -> the bucket that its size lies in.
Placed = Mapping[int, Mapping[int, Bucket]]


@dataclass(frozen=True)
class Sizes:
    """The named sizes of one call: a key of the graph that it goes to, and the buckets of the axes."""

    key: tuple[Bucket, ...]
    placed: Placed

    @property
    def open(self) -> Placed:
        """The axes of symbolic size."""
        found = {i: {a: b for a, b in axes.items() if b.is_open} for i, axes in self.placed.items()}
        return {i: axes for i, axes in found.items() if axes}


class DynamicAxes:
    """Which axes of which arguments have named sizes.

    Args:
        module: whose ``forward`` has the arguments.
        dynamic: name -> ``(least, greatest)``, a `torch.export.Dim`, or a list of buckets: sizes and such pairs.
        axes: argument of ``forward`` -> names of its axes: a tuple with None for the others, or axis -> name. They hold
            for every tensor inside the argument. Without them the only name stands for axis 0 of every tensor.

    Raises:
        TypeError, ValueError: something is written wrongly; the message shows how it is done.
    """

    def __init__(self, module: nn.Module, dynamic: Mapping[str, Any], axes: Mapping[str, Any] | None = None) -> None:
        if not isinstance(dynamic, Mapping) or not dynamic:
            raise TypeError(f"dynamic maps names of sizes to ranges, as in {EXAMPLE}; got {dynamic!r}")
        self.signature = inspect.signature(module.forward)
        self.buckets = {name: _buckets(name, given) for name, given in dynamic.items()}
        if axes is None:
            if len(self.buckets) > 1:
                raise ValueError(f"with more than one name, axes says which axes have them: {EXAMPLE}")
            self.axes: Mapping[str, Mapping[int, str]] | None = None
            return
        known = self.signature.parameters
        if unknown := [a for a in axes if a not in known]:
            raise ValueError(f"axes: forward has no argument {unknown[0]!r}; it has {', '.join(known)}")
        self.axes = {argument: self._names_of(argument, spec) for argument, spec in axes.items()}
        used = {name for spec in self.axes.values() for name in spec.values()}
        if unused := sorted(self.buckets.keys() - used):
            raise ValueError(f"axes: no axis has the size {unused[0]!r} of dynamic; {EXAMPLE}")

    def _names_of(self, argument: str, spec: Any) -> dict[int, str]:
        if isinstance(spec, Mapping):
            pairs = list(spec.items())
        elif isinstance(spec, Sequence) and not isinstance(spec, str):
            pairs = [(i, name) for i, name in enumerate(spec) if name is not None]
        else:
            raise TypeError(f"axes[{argument!r}] is a tuple of names, or axis -> name, got {spec!r}")
        for axis, name in pairs:
            if not isinstance(axis, int) or name not in self.buckets:
                raise ValueError(f"axes[{argument!r}]: {axis!r}: {name!r} is no axis with a name of dynamic")
        return dict(pairs)

    def sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sizes:
        """The named sizes of a call.

        Raises:
            ValueError: a size lies in no bucket, two axes of one name differ, or a tensor lacks an axis.
        """
        seen: dict[str, tuple[int, str]] = {}
        placed: dict[int, dict[int, Bucket]] = {}
        for position, (label, tensor, names) in enumerate(self._tensors(args, kwargs)):
            for axis, name in names.items():
                if not -tensor.ndim <= axis < tensor.ndim:
                    raise ValueError(f"{label} has {tensor.ndim} axes, no axis {axis} for the size {name!r}")
                axis %= tensor.ndim
                size, where = int(tensor.shape[axis]), f"axis {axis} of {label}"
                before, other = seen.setdefault(name, (size, where))
                if before != size:
                    raise ValueError(f"the size {name!r} is {before} at {other}, and {size} at {where}")
                placed.setdefault(position, {})[axis] = self._bucket(name, size, where)
        return Sizes(tuple(self._bucket(name, *seen[name]) for name in self.buckets if name in seen), placed)

    def _bucket(self, name: str, size: int, where: str) -> Bucket:
        for b in self.buckets[name]:
            if b.low <= size <= b.high:
                return b
        declared = ", ".join(map(str, self.buckets[name]))
        raise ValueError(f"the size {name!r} is {size} at {where}, and declared to be {declared}")

    def _tensors(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterable[tuple[str, torch.Tensor, Mapping[int, str]]]:
        """(label, tensor, names of its axes) of every tensor among the arguments, as flattening gives them."""
        names = list(self.signature.parameters)
        variadic = next((n for n, p in self.signature.parameters.items() if p.kind is p.VAR_POSITIONAL), "")
        given = [(names[i] if i < len(names) else variadic, a) for i, a in enumerate(args)]
        for argument, value in (*given, *kwargs.items()):
            leaves = [x for x in pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]
            for i, tensor in enumerate(leaves):
                label = f"{argument!r}" if len(leaves) == 1 else f"tensor {i} of {argument!r}"
                if self.axes is not None:
                    yield label, tensor, self.axes.get(argument, {})
                else:
                    yield label, tensor, {0: next(iter(self.buckets))} if tensor.ndim else {}


def _buckets(name: str, given: Any) -> tuple[Bucket, ...]:
    """Of what a user gives for a name."""
    if isinstance(given, (torch.export.Dim, type)) and hasattr(given, "min") and hasattr(given, "max"):
        given = (given.min, given.max)
    parts = given if isinstance(given, list) else [given]
    found: list[Bucket] = []
    for part in parts:
        low, high = part if isinstance(part, tuple) and len(part) == 2 else (part, part)
        if not _is_size(low) or not _is_size(high) or low > high:
            raise ValueError(f"dynamic[{name!r}]: {part!r} is neither a size nor (least, greatest); "
                             f"buckets are a list of these, as in [1, (2, 8), (9, 64)]")  # fmt: skip
        found += [Bucket(name, n, n) for n in range(low, min(high, 1) + 1)]
        if high > 1:
            found.append(Bucket(name, max(low, 2), high))
    found.sort(key=lambda b: b.low)
    for a, b in itertools.pairwise(found):
        if a.high >= b.low:
            raise ValueError(f"dynamic[{name!r}]: the buckets {a} and {b} overlap")
    return tuple(found)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
