"""Random graphs of every kind of operator, for comparing what the compiler makes of them with what they mean."""

from __future__ import annotations

import numpy as np

from nnvm.graph import Graph, TypeInferenceError, apply
from tests.graph.build import graph, op, scalar
from tests.graph.random_networks import Networks
from tests.graph.random_values import SIZES, Value

__all__ = ["arrays_for", "random_graph"]

UNARY = ("relu", "sigmoid", "tanh", "gelu", "silu", "hardswish", "softplus", "mish", "elu", "leaky_relu", "erf", "sin",
         "hardsigmoid", "log_sigmoid", "atan", "square")  # fmt: skip
MOVING = ("relu", "negative", "abs", "identity")  # exact
MOVES = ("transpose", "transpose", "reshape", "reshape", "slice", "slice", "concat", "split", "flip", "expand",
         "squeeze", "broadcast", "pad", "roll", "repeat", "flatten")  # fmt: skip
INTEGER = ("add", "subtract", "multiply", "maximum", "bitwise_and", "bitwise_xor", "compare", "cast", "floor_divide",
           "remainder", "cumsum", "sort", "argmax", "negative")  # fmt: skip


class Generator(Networks):
    """Elementwise, moving, reducing and integer steps, and how graphs are made of all steps."""

    def unary(self) -> None:
        x = self.floats()
        if x is None:
            return
        kind = self.rng.random()
        if kind < 0.25:
            self.add(op(self.rng.choice(MOVING), x.entry), x.exact)
        elif kind < 0.35:
            positive = op("add", op("abs", x.entry), scalar(0.5))
            self.add(op(self.rng.choice(["log", "sqrt", "rsqrt", "reciprocal", "log1p"]), positive))
        elif kind < 0.45:
            self.add(op("exp", op("tanh", x.entry)))
        elif kind < 0.55:
            self.add(op("clip", x.entry, a_min=-0.75, a_max=self.rng.choice([None, 0.5])), x.exact)
        else:
            self.add(op(self.rng.choice(UNARY), op("tanh", x.entry) if self.rng.random() < 0.5 else self.calm(x)))

    def binary(self) -> None:
        x = self.floats()
        if x is None:
            return
        y = self.rng.choice([self.compatible(x), Value(scalar(self.rng.choice([0.5, 2.0, -1.0, 0.0, 1.0])), True)])
        kind = self.rng.choice(["add", "subtract", "multiply", "maximum", "minimum", "divide", "where"])
        a, b = self.shuffled(x.entry, y.entry)
        if kind == "divide":
            b = op("add", op("abs", b), scalar(0.5))
        if kind == "multiply":
            a = op("tanh", a)
        if kind == "where":
            c = self.condition(x)
            if c is not None:
                self.add(op("where", c, a, b), x.exact and y.exact)
            return
        self.add(op(kind, a, b), kind in ("maximum", "minimum") and x.exact and y.exact)

    def move(self) -> None:
        """Views and copies of any type."""
        x = self.pick(lambda v: len(v.shape) >= 1)
        if x is None:
            return
        e, rank = x.entry, len(x.shape)
        axis = self.rng.randrange(rank)
        n = x.shape[axis]
        kind = self.rng.choice(MOVES)
        if kind == "transpose":
            axes = self.rng.sample(range(rank), rank)
            self.add(op("transpose", e, axes=tuple(axes)), x.exact)
        elif kind == "reshape":
            self.add(op("reshape", e, shape=self.factored(int(e.type.numel))), x.exact)
        elif kind == "flatten" and rank > 1:
            self.add(op("flatten", e), x.exact)
        elif kind == "slice" and n > 0:
            begin = self.rng.randrange(n)
            end = self.rng.randint(begin if self.rng.random() < 0.1 else begin + 1, n)
            step = self.rng.choice([1, 1, 1, 2])
            ends = list(x.shape)
            ends[axis] = end
            self.add(op("slice", e, begin=tuple(begin if i == axis else 0 for i in range(rank)), end=tuple(ends),
                        step=tuple(step if i == axis else 1 for i in range(rank))), x.exact)  # fmt: skip
        elif kind == "concat":

            def fits(v: Value) -> bool:
                return (v.dtype == x.dtype and len(v.shape) == rank
                        and all(a == b for i, (a, b) in enumerate(zip(v.shape, x.shape)) if i != axis))  # fmt: skip

            parts = [p for p in (self.pick(fits) for _ in range(self.rng.choice([1, 2, 3]))) if p is not None]
            self.add(
                op("concatenate", e, *(p.entry for p in parts), axis=axis), x.exact and all(p.exact for p in parts)
            )
        elif kind == "split" and n > 1:
            at = sorted(self.rng.sample(range(1, n), k=min(n - 1, self.rng.choice([1, 2]))))
            for part in apply("split", [e], {"indices_or_sections": tuple(at), "axis": axis}).outputs:
                self.add(part, x.exact)
        elif kind == "flip":
            self.add(op("flip", e, axes=(axis,)), x.exact)
        elif kind == "expand":
            self.add(op("expand_dims", e, axis=self.rng.randint(0, rank)), x.exact)
        elif kind == "squeeze" and 1 in x.shape:
            self.add(op("squeeze", e, axis=(x.shape.index(1),)), x.exact)
        elif kind == "broadcast":
            shape = tuple(self.rng.choice([2, 3, 5]) if d == 1 else d for d in x.shape)
            self.add(op("broadcast_to", e, shape=(*self.rng.choice([(), (2,)]), *shape)), x.exact)
        elif kind == "pad" and x.dtype == "float32":
            width = tuple(
                (self.rng.choice([0, 1]), self.rng.choice([0, 2])) if i == axis else (0, 0) for i in range(rank)
            )
            self.add(op("pad", e, pad_width=width, value=self.rng.choice([0, 1.5])), x.exact)
        elif kind == "roll" and n > 0:
            self.add(op("roll", e, shifts=(self.rng.randint(-2, 2),), axes=(axis,)), x.exact)
        elif kind == "repeat":
            self.add(op("repeat", e, repeats=2, axis=axis), x.exact)

    def reduce(self) -> None:
        exact = self.pick(lambda v: v.exact and v.dtype == "float32" and len(v.shape) >= 1)
        if exact is not None and self.rng.random() < 0.2:
            x = Value(op("less", exact.entry, scalar(self.rng.choice([-1.0, 0.0, 2.0]))), True)
        else:
            x = self.pick(lambda v: len(v.shape) >= 1)
        if x is None:
            return
        rank = len(x.shape)
        axes = tuple(sorted(self.rng.sample(range(rank), k=self.rng.randint(1, rank))))
        keep = self.rng.random() < 0.5
        empty = any(x.shape[a] == 0 for a in axes)
        if x.dtype == "bool":
            self.add(op(self.rng.choice(["any", "all"]), x.entry, axis=axes, keepdims=keep), True)
            return
        exact = x.exact and x.dtype != "float32"
        kinds = (
            ["sum"] if empty or x.dtype not in ("float32",) else ["sum", "mean", "max", "min", "variance", "logsumexp"]
        )
        kinds += ["max", "min"] if not empty and x.dtype.startswith("int") else []
        kind = self.rng.choice(kinds)
        attrs = {"axis": axes, "keepdims": keep, **({"correction": 0.0} if kind == "variance" else {})}
        e = op(kind, x.entry, **attrs)
        e = self.small(e) if kind == "sum" and x.dtype == "float32" else e
        self.add(e, exact or (kind in ("max", "min") and x.exact))
        if x.dtype == "float32" and keep and self.rng.random() < 0.5:
            self.add(op("subtract", x.entry, e))

    def integers(self) -> None:
        """Integers and booleans: exact, whatever is done."""
        x = self.pick(lambda v: v.dtype.startswith("int") or v.dtype == "bool")
        if x is None:
            x = self.new_input(*(self.rng.choice(SIZES[:6]) for _ in range(self.rng.choice([1, 2, 3]))),
                               dt=self.rng.choice(["int64", "int32", "bool", "int8"]))  # fmt: skip
        y = self.pick(lambda v: v.dtype == x.dtype and all(
            a == b or 1 in (a, b) for a, b in zip(v.shape[::-1], x.shape[::-1]))) or x  # fmt: skip
        a, b = self.shuffled(x.entry, y.entry)
        if x.dtype == "bool":
            kind = self.rng.choice(["logical_and", "logical_or", "logical_xor", "not", "cast"])
            if kind == "cast":
                self.add(op("cast", a, dtype=self.rng.choice(["int64", "float32", "int32"])), True)
            else:
                self.add(op("logical_not", a) if kind == "not" else op(kind, a, b), True)
            return
        kind = self.rng.choice(INTEGER)
        if kind == "compare":
            self.add(op(self.rng.choice(["less", "equal", "greater_equal"]), a, b), True)
        elif kind == "cast":
            self.add(op("cast", a, dtype=self.rng.choice(["float32", "int64", "int32", "bool"])), True)
        elif kind in ("floor_divide", "remainder"):
            self.add(op(kind, a, scalar(self.rng.choice([2, 3, 7]), x.dtype)), True)
        elif kind in ("cumsum", "sort") and x.shape and 0 not in x.shape:
            self.add(op(kind, x.entry, axis=self.rng.randrange(len(x.shape))), True)
        elif kind == "argmax" and x.shape and 0 not in x.shape:
            self.add(op("argmax", x.entry, axis=self.rng.randrange(len(x.shape))), True)
        elif kind == "negative":
            self.add(op("negative", a), True)
        elif kind not in ("cumsum", "sort", "argmax"):
            self.add(op(kind, a, b), True)

    def lookup(self) -> None:
        """Rows by index; the inputs of integer type are 0 to 3."""
        x = self.pick(lambda v: len(v.shape) >= 1 and 0 not in v.shape)
        if x is None:
            return
        axis = self.rng.randrange(len(x.shape))
        index = self.new_input(*(self.rng.choice(SIZES[:4]) for _ in range(self.rng.choice([1, 2]))), dt="int64")
        if x.shape[axis] < 4:
            inside = op("remainder", index.entry, scalar(x.shape[axis], "int64"))
        else:
            inside = index.entry
        self.add(op("take", x.entry, inside, axis=axis), x.exact)

    def graph(self) -> Graph:
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            self.rng.choice([self.image, self.any_input])()
        steps = [*[self.conv] * 4, self.other_conv, self.pool, *[self.norm] * 2, *[self.dense] * 2, self.matmul,
                 self.attention, *[self.unary] * 2, *[self.binary] * 4, *[self.move] * 6, *[self.reduce] * 2,
                 *[self.integers] * 4, self.lookup, self.gate]  # fmt: skip
        steps += [self.half] if self.rng.random() < 0.1 else []
        for _ in range(self.rng.randint(2, 14)):
            try:
                self.rng.choice(steps)()
            except TypeInferenceError:
                continue  # a window larger than the image, and the like: no such graph
        read = {e for v in self.values for e in v.entry.node.inputs}
        ends = [v.entry for v in self.values if v.entry not in read and not v.entry.node.is_variable]
        outputs = self.rng.sample(ends, k=min(len(ends), self.rng.randint(1, 4)))
        outputs += [
            v.entry for v in self.rng.choices(self.values[-8:], k=self.rng.choice([0, 1, 2] if outputs else [1]))
        ]
        self.rng.shuffle(outputs)
        return graph(outputs)


def random_graph(seed: int) -> Graph:
    """A graph with 1 to 6 outputs; the same for the same seed."""
    return Generator(seed).graph()


def arrays_for(g: Graph, seed: int) -> list[np.ndarray]:
    """Inputs: weights of a network's size, so that sums stay in range; integers 0 to 3."""
    rng = np.random.default_rng(seed)
    arrays = []
    for v in g.inputs:
        t = v[0].type
        if t.dtype.is_bool:
            arrays.append(rng.integers(0, 2, t.shape).astype(bool))
        elif t.dtype.is_int:
            arrays.append(rng.integers(0, 4, t.shape).astype(t.dtype.numpy))
        else:
            fan = max(1, int(np.prod(t.shape[1:]))) if v.attrs["kind"] == "param" else 1
            arrays.append(np.asarray(rng.standard_normal(t.shape) / np.sqrt(fan), t.dtype.numpy))
    return arrays
