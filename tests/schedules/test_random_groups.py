"""Random groups of elementwise ops, broadcasts, transposes, pieces and reductions, as machine code on two threads."""

from __future__ import annotations

import random

import numpy as np
import pytest

from nnvm.compiler.lower_group import lower_group
from nnvm.graph.node import NodeEntry
from nnvm.runtime.llvm_jit import compile_funcs
from nnvm.target import Target
from nnvm.tir import verify
from tests.schedules import groups
from tests.schedules.groups import data, graph_of, op

EXTENTS = (1, 2, 3, 5, 7, 8, 9, 16, 17, 33)


class Random:
    """A random walk: each op takes one of the last values."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.inputs = [data([self.rng.choice(EXTENTS) for _ in range(self.rng.randint(1, 4))])]
        self.values = list(self.inputs)
        steps = (self.unary, self.unary, self.binary, self.broadcast, self.transpose, self.reduce, self.softmax,
                 self.concatenate, self.slice, self.pad, self.norm, self.flatten, self.argmax)  # fmt: skip
        for _ in range(self.rng.randint(2, 6)):
            y = self.rng.choice(steps)(self.rng.choice(self.values[-3:]))
            if np.prod(y.type.shape) <= 200_000:
                self.values.append(y)

    def axis(self, x: NodeEntry) -> int:
        return self.rng.randrange(x.type.rank)

    def unary(self, x: NodeEntry) -> NodeEntry:
        y = op(self.rng.choice(["relu", "exp", "tanh", "sigmoid", "abs", "square"]), x)
        return op("clip", y, a_min=-5.0, a_max=5.0)

    def binary(self, x: NodeEntry) -> NodeEntry:
        other = self.rng.choice([v for v in self.values if v.type.shape == x.type.shape] or [x])
        return op(self.rng.choice(["add", "subtract", "multiply", "maximum"]), x, other)

    def broadcast(self, x: NodeEntry) -> NodeEntry:
        first = self.rng.randint(0, x.type.rank)
        self.inputs.append(data([d if self.rng.random() < 0.5 else 1 for d in x.type.shape[first:]]))
        return op("add", x, self.inputs[-1])

    def transpose(self, x: NodeEntry) -> NodeEntry:
        axes = list(range(x.type.rank))
        self.rng.shuffle(axes)
        return op("transpose", x, axes=tuple(axes))

    def reduce(self, x: NodeEntry) -> NodeEntry:
        axes = tuple(a for a in range(x.type.rank) if self.rng.random() < 0.5)
        if not axes:
            return x
        return op(self.rng.choice(["sum", "max", "mean", "min"]), x, axis=axes, keepdims=True)

    def softmax(self, x: NodeEntry) -> NodeEntry:
        return op(self.rng.choice(["softmax", "log_softmax"]), x, axis=self.axis(x))

    def concatenate(self, x: NodeEntry) -> NodeEntry:
        return op("concatenate", x, op("relu", x), axis=self.axis(x))

    def slice(self, x: NodeEntry) -> NodeEntry:
        begin = tuple(self.rng.randrange(d) for d in x.type.shape)
        end = tuple(self.rng.randint(b + 1, d) for b, d in zip(begin, x.type.shape))
        return op("slice", x, begin=begin, end=end, step=tuple(self.rng.choice([1, 1, 2]) for _ in begin))

    def pad(self, x: NodeEntry) -> NodeEntry:
        return op(
            "pad", x, pad_width=tuple((self.rng.choice([0, 1, 2]), self.rng.choice([0, 0, 3])) for _ in x.type.shape)
        )

    def norm(self, x: NodeEntry) -> NodeEntry:
        return op("layer_norm", x)

    def flatten(self, x: NodeEntry) -> NodeEntry:
        s = x.type.shape
        return op("reshape", x, shape=(s[0] * s[1], *s[2:])) if len(s) > 1 else x

    def argmax(self, x: NodeEntry) -> NodeEntry:
        return op("cast", op("argmax", x, axis=self.axis(x), keepdims=True), dtype="float32")


@pytest.mark.parametrize("seed", range(40))
def test_random_group(seed: int) -> None:
    walk = Random(seed)
    outputs = [walk.values[-1], walk.rng.choice(walk.values)]
    graph = graph_of(outputs, walk.inputs)
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal([int(d) for d in e.type.shape]).astype(np.float32) for e in walk.inputs]
    target = Target.parse("llvm -mcpu=nehalem") if seed % 4 == 0 else Target.host()
    func = lower_group(graph, target, "kernel")
    verify.verify(func)
    (kernel,) = compile_funcs([func], target)
    results = [np.full(e.type.shape, 7, e.type.dtype.numpy) for e in outputs]
    params = [a.reshape([int(d) for d in b.shape]) for a, b in zip([*arrays, *results], func.params)]
    kernel(*params, threads=1 + seed % 2)
    for got, expected in zip(params[len(arrays) :], groups.reference(graph, arrays)):
        np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=2e-3, atol=2e-3)
