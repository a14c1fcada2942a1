"""The gradient of each elementwise op against torch.autograd in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nnvm.dtype import F64, dtype
from nnvm.graph import Graph, TensorType, apply, variable
from nnvm.graph.passes.gradient import gradient
from nnvm.graph.verify import verify
from nnvm.testing.reference import run_graph
from tests.ops.gradient_check import check_gradient, normal, uniform

ANY = normal(5, 7) * 2
POSITIVE = uniform(5, 7, low=0.2, high=3)
INSIDE = uniform(5, 7, low=-0.95, high=0.95)
BETWEEN_POLES = uniform(5, 7, low=0.1, high=0.9) - torch.arange(7)
ABOVE_ONE = uniform(5, 7, low=1.1, high=4)

UNARY: list[tuple[str, torch.Tensor, Any, dict[str, Any]]] = [
    ("negative", ANY, torch.neg, {}), ("abs", ANY, torch.abs, {}), ("exp", ANY, torch.exp, {}),
    ("exp2", ANY, torch.exp2, {}), ("expm1", ANY, torch.expm1, {}), ("log", POSITIVE, torch.log, {}),
    ("log2", POSITIVE, torch.log2, {}), ("log10", POSITIVE, torch.log10, {}), ("log1p", POSITIVE, torch.log1p, {}),
    ("sqrt", POSITIVE, torch.sqrt, {}), ("rsqrt", POSITIVE, torch.rsqrt, {}), ("square", ANY, torch.square, {}),
    ("reciprocal", POSITIVE, torch.reciprocal, {}), ("sin", ANY, torch.sin, {}), ("cos", ANY, torch.cos, {}),
    ("tan", INSIDE, torch.tan, {}), ("asin", INSIDE, torch.asin, {}), ("acos", INSIDE, torch.acos, {}),
    ("atan", ANY, torch.atan, {}), ("sinh", ANY, torch.sinh, {}), ("cosh", ANY, torch.cosh, {}),
    ("tanh", ANY, torch.tanh, {}), ("asinh", ANY, torch.asinh, {}), ("acosh", ABOVE_ONE, torch.acosh, {}),
    ("atanh", INSIDE, torch.atanh, {}), ("erf", ANY, torch.erf, {}), ("erfc", ANY, torch.erfc, {}),
    ("lgamma", POSITIVE, torch.lgamma, {}), ("lgamma", BETWEEN_POLES, torch.lgamma, {}),
    ("polygamma", POSITIVE, torch.digamma, {}), ("polygamma", BETWEEN_POLES, torch.digamma, {}),
    ("polygamma", POSITIVE, lambda x: torch.polygamma(2, x), {"n": 2}),
    ("sigmoid", ANY, torch.sigmoid, {}), ("relu", ANY, torch.relu, {}), ("silu", ANY, F.silu, {}),
    ("mish", ANY, F.mish, {}), ("log_sigmoid", ANY, F.logsigmoid, {}),
    ("hardsigmoid", ANY * 2, lambda x: (x + 3).clamp(0, 6) / 6, {}),
    ("hardswish", ANY * 2, F.hardswish, {}), ("identity", ANY, torch.clone, {}), ("dropout", ANY, torch.clone, {}),
    ("floor", ANY, torch.floor, {}), ("ceil", ANY, torch.ceil, {}), ("trunc", ANY, torch.trunc, {}),
    ("round", ANY, torch.round, {}), ("sign", ANY, torch.sign, {}),
    ("clip", ANY, lambda x: x.clamp(-1, 1.5), {"a_min": -1, "a_max": 1.5}),
    ("clip", ANY, lambda x: x.clamp(max=0.5), {"a_max": 0.5}),
    ("gelu", ANY, F.gelu, {}), ("gelu", ANY, lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    ("elu", ANY, lambda x: F.elu(x, 0.7), {"alpha": 0.7}),
    ("elu", ANY, lambda x: F.celu(x, 0.5), {"alpha": 0.5, "input_scale": 2.0}),
    ("elu", ANY, F.selu, {"alpha": 1.6732632423543772, "scale": 1.0507009873554805}),
    ("leaky_relu", ANY, lambda x: F.leaky_relu(x, 0.2), {"alpha": 0.2}),
    ("softplus", ANY, lambda x: F.softplus(x, 2, 3), {"beta": 2, "threshold": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "x", "expected", "attrs"), UNARY, ids=[f"{i}-{c[0]}" for i, c in enumerate(UNARY)])
def test_unary(op: str, x: torch.Tensor, expected: Any, attrs: dict[str, Any]) -> None:
    check_gradient(op, [x], expected, **attrs)


@pytest.mark.parametrize(("op", "expected"), [("relu", torch.relu), ("abs", torch.abs), ("leaky_relu", F.leaky_relu)])
def test_at_the_kink(op: str, expected: Any) -> None:
    check_gradient(op, [torch.tensor([0.0, -0.0, 1.0, -1.0], dtype=torch.float64)], expected)
    check_gradient("clip", [torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)], lambda x: x.clamp(-1, 2),
                   a_min=-1, a_max=2)  # fmt: skip


BINARY: list[tuple[str, Any]] = [
    ("add", torch.add), ("subtract", torch.sub), ("multiply", torch.mul), ("divide", torch.div),
    ("power", torch.pow), ("maximum", torch.maximum), ("minimum", torch.minimum), ("fmax", torch.fmax),
    ("fmin", torch.fmin), ("remainder", torch.remainder), ("fmod", torch.fmod), ("atan2", torch.atan2),
    ("hypot", torch.hypot), ("copysign", torch.copysign), ("prelu", lambda a, b: torch.where(a > 0, a, a * b)),
    ("trunc_divide", lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    ("floor_divide", lambda a, b: torch.div(a, b, rounding_mode="floor")),
]  # fmt: skip
SHAPES = [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (2, 1, 4)), ((), (3, 4)), ((1, 4), (3, 1))]


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize(("op", "expected"), BINARY, ids=[c[0] for c in BINARY])
def test_binary(op: str, expected: Any, left: Any, right: Any) -> None:
    a, b = normal(*left, seed=1), normal(*right, seed=2)
    check_gradient(op, [a.abs() + 0.1 if op == "power" else a, b], expected)


@pytest.mark.parametrize("op", ["maximum", "minimum", "fmax", "fmin"])
def test_ties_and_nan(op: str) -> None:
    a = torch.tensor([1.0, 2.0, 3.0, float("nan"), 1.0], dtype=torch.float64)
    b = torch.tensor([1.0, 3.0, 2.0, 1.0, float("nan")], dtype=torch.float64)
    check_gradient(op, [a, b], getattr(torch, op))


def test_at_zero() -> None:
    a, b = torch.tensor([0.0, 0.0, 2.0, 0.0]).double(), torch.tensor([0.0, 2.0, 0.0, 1.0]).double()
    check_gradient("power", [a, b], torch.pow)
    check_gradient("atan2", [a, b], torch.atan2)
    check_gradient("copysign", [a, b], torch.copysign)


def test_where() -> None:
    c = normal(4, 1) > 0
    check_gradient("where", [c, normal(3, 4, 5), normal(5, seed=3)], torch.where)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op", sorted({c[0] for c in UNARY}))
def test_gradients_have_the_type_of_the_input(op: str, name: str) -> None:
    t = TensorType((3,), dtype(name))
    x = variable("x", t)
    graph = gradient(Graph((apply(op, [x], {})[0],), (x.node,), {"typed": True}), ["x"])
    verify(graph, op)
    assert graph.outputs[0].type == t


def test_cast() -> None:
    x = variable("x", TensorType((3,), F64))
    node = apply("cast", [apply("cast", [x], {"dtype": "float32"})[0]], {"dtype": "float64"})
    graph = gradient(Graph(node.outputs, (x.node,), {"typed": True}), ["x"])
    head = np.array([1.0, 0.1, 1e-3])
    (got,) = run_graph(graph, [head, head])
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, head.astype(np.float32).astype(np.float64))
    whole = apply("cast", [x], {"dtype": "int64"})
    back = apply("cast", [whole[0]], {"dtype": "float64"})
    (none,) = gradient(Graph(back.outputs, (x.node,), {"typed": True}), ["x"]).outputs
    assert none.node.op.name == "full"
