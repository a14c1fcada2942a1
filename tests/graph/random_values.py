"""Values to make random graphs of.

A value is *exact* where no rewrite may change a bit of it (inputs, what is moved, compared or computed in integers):
only of such values are floors, comparisons and orders taken, as these turn a rounding error into a different answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nnvm.graph import NodeEntry
from tests.graph.build import op, param, scalar, var

__all__ = ["CHANNELS", "SIZES", "Value", "Values"]

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17)
CHANNELS = (1, 3, 4, 6, 8, 12, 16, 17, 20, 24)
#: Most elements of one value.
LARGEST = 3000


@dataclass(frozen=True)
class Value:
    entry: NodeEntry
    exact: bool

    @property
    def shape(self):
        return self.entry.type.shape

    @property
    def dtype(self):
        return self.entry.type.dtype.name


class Values:
    """What there is so far, and new inputs and weights."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.values: list[Value] = []
        self.count = 0

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def weight(self, *shape: int) -> NodeEntry:
        """A parameter, sometimes one that is computed from others."""
        how = self.rng.random()
        if how < 0.7 or len(shape) < 1 or 0 in shape:
            return param(self.fresh("w"), *shape)
        if how < 0.8:
            return op(
                "multiply", param(self.fresh("w"), *shape), param(self.fresh("s"), shape[0], *[1] * (len(shape) - 1))
            )
        if how < 0.9:
            return op("transpose", param(self.fresh("w"), *reversed(shape)), axes=tuple(reversed(range(len(shape)))))
        return op("reshape", param(self.fresh("w"), int(np.prod(shape))), shape=shape)

    def small(self, e: NodeEntry) -> NodeEntry:
        """Within reach again: sums and products must not grow without end."""
        kind = self.rng.randrange(4)
        if kind == 0:
            return op("tanh", e)
        if kind == 1:
            return op("multiply", e, scalar(self.rng.choice([0.1, 0.25, -0.1])))
        if kind == 2 and len(e.type.shape) and e.type.shape[-1] > 1:
            return op("layer_norm", e, axis=-1, eps=0.1)
        return op("sigmoid", e)

    def pick(self, test: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """A value, more often a young one."""
        fitting = [v for v in self.values if test(v)]
        if not fitting:
            return None
        return fitting[-1 - min(int(self.rng.expovariate(0.5)), len(fitting) - 1)]

    def floats(self, rank: int | None = None, least: int = 0) -> Value | None:
        return self.pick(
            lambda v: v.dtype == "float32" and (rank is None or len(v.shape) == rank) and len(v.shape) >= least
        )

    def add(self, e: NodeEntry | None, exact: bool = False) -> None:
        if e is not None and int(e.type.numel) <= LARGEST and len(e.type.shape) <= 6:
            self.values.append(Value(e, exact))

    def calm(self, x: Value) -> NodeEntry:
        return x.entry if x.exact or self.rng.random() < 0.3 else self.small(x.entry)

    def maybe_bias(self, n: int) -> list[NodeEntry]:
        return [self.weight(n)] if self.rng.random() < 0.5 else []

    def shuffled(self, *entries: NodeEntry) -> list[NodeEntry]:
        return self.rng.sample(entries, len(entries))

    def compatible(self, x: Value) -> Value:
        """Something that broadcasts with `x`: another value, itself, or a parameter."""

        def fits(v: Value) -> bool:
            return v.dtype == x.dtype and all(a == b or 1 in (a, b) for a, b in zip(v.shape[::-1], x.shape[::-1]))

        found = self.pick(fits)
        if found is not None and self.rng.random() < 0.6:
            return found
        keep = self.rng.randint(0, len(x.shape))
        shape = [d if self.rng.random() < 0.6 else 1 for d in x.shape[keep:]]
        return Value(self.weight(*shape) if shape else param(self.fresh("w")), False)

    def condition(self, x: Value) -> NodeEntry | None:
        def fits(v: Value) -> bool:
            return v.dtype == "bool" and all(a == b or 1 in (a, b) for a, b in zip(v.shape[::-1], x.shape[::-1]))

        found = self.pick(fits)
        if found is not None:
            return found.entry
        if not x.exact:
            return None
        kind = self.rng.choice(["greater", "less_equal", "not_equal"])
        self.add(op(kind, x.entry, scalar(self.rng.choice([0.0, 0.5]))), True)
        return self.values[-1].entry

    def factored(self, n: int) -> tuple[int, ...]:
        """A shape of `n` elements."""
        if n == 0:
            return self.rng.choice([(0,), (0, 3), (2, 0)])
        shape: list[int] = []
        while n > 1 and len(shape) < 4:
            f = self.rng.choice([d for d in (2, 3, 4, 5, 6, 7, 8, 12, 16, n) if n % d == 0])
            shape.append(f)
            n //= f
        if n > 1:
            shape.append(n)
        if self.rng.random() < 0.2:
            shape.insert(self.rng.randint(0, len(shape)), 1)
        self.rng.shuffle(shape)
        return tuple(shape)

    def new_input(self, *shape: int, dt: str = "float32") -> Value:
        value = Value(var(self.fresh("x"), *shape, dt=dt), True)
        self.values.append(value)
        return value

    def image(self) -> Value:
        h, w = self.rng.choice([(4, 4), (6, 6), (5, 7), (8, 3), (1, 9), (2, 2)])
        return self.new_input(self.rng.choice([1, 1, 2]), self.rng.choice(CHANNELS), h, w)

    def any_input(self) -> Value:
        rank = self.rng.choice([0, 1, 2, 2, 3, 3, 4, 5])
        sizes = (*SIZES[:8], 0) if self.rng.random() < 0.15 else SIZES[:8]
        return self.new_input(*(self.rng.choice(sizes) for _ in range(rank)))
