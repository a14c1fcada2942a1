"""ReplaceOp: exact algebra, and functions recognised again; each rule fires, and does not where it would be wrong."""

import math

import numpy as np
import pytest

from nnvm.graph.passes.replace_rules import ALGEBRA
from nnvm.graph.rewrite import Any, Op, Scalar, match
from nnvm.testing.assert_graph_equal import assert_graph_equal
from tests.graph.build import const, graph, op, ops, param, scalar, var
from tests.graph.compare import checked, work

SPECIAL = np.array([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan, 1e-40], np.float32)


def replaced(g, **kw):
    return checked(g, "ReplaceOp", **kw)


def test_patterns_bind_names_and_try_both_orders():
    x, y = var("x", 2), var("y", 2)
    e = op("multiply", op("sigmoid", x), x)
    assert match(Op("multiply", Any("x"), Op("sigmoid", Any("x"))), e) == {"x": x}
    assert match(Op("multiply", Any("x"), Op("sigmoid", Any("x"))), op("multiply", op("sigmoid", x), y)) is None
    assert match(Op("subtract", Any("a"), Scalar("c")), op("subtract", scalar(1), x)) is None
    assert match(Op("add", Scalar(value=2.0), Any("a")), op("add", x, scalar(2.000001))) == {"a": x}
    assert match(Op("add", Scalar(value=2.0), Any("a")), op("add", x, scalar(2.00001))) is None


@pytest.mark.parametrize(("make", "left"), [
    (lambda x: op("multiply", scalar(1), x), 0), (lambda x: op("multiply", x, scalar(1.0000001)), 1),
    (lambda x: op("divide", x, scalar(1)), 0), (lambda x: op("divide", scalar(1), x), 1),
    (lambda x: op("subtract", x, scalar(0)), 0), (lambda x: op("subtract", x, scalar(-0.0)), 1),
    (lambda x: op("add", x, scalar(-0.0)), 0), (lambda x: op("add", x, scalar(0.0)), 1),
    (lambda x: op("multiply", x, scalar(0)), 1),
    (lambda x: op("negative", op("negative", x)), 0), (lambda x: op("relu", op("relu", x)), 1),
    (lambda x: op("power", x, scalar(1)), 0), (lambda x: op("power", x, scalar(0.5)), 1),
    (lambda x: op("where", op("less", x, scalar(0)), x, x), 0),
])  # fmt: skip
def test_exact_algebra_bit_for_bit(make, left):
    x = var("x", 8)
    g = graph(op("identity", make(x)), x)
    out = replaced(g, rtol=0, atol=0, arrays=[SPECIAL])
    assert len(ops(out)) == left + 1
    from nnvm.testing.reference import run_graph

    assert run_graph(out, [SPECIAL])[0].tobytes() == run_graph(g, [SPECIAL])[0].tobytes()


def test_divisions_by_powers_of_two_are_products():
    x = var("x", 8)
    out = replaced(graph(op("divide", x, scalar(8)), x), rtol=0, atol=0, arrays=[SPECIAL])
    assert_graph_equal(out, graph(op("multiply", x, scalar(0.125)), x).with_attrs(typed=True))
    assert ops(replaced(graph(op("divide", x, scalar(3)), x))) == ["divide"]
    assert ops(replaced(graph(op("divide", x, scalar(3)), x), fast_math=True)) == ["multiply"]
    assert ops(replaced(graph(op("divide", x, scalar(2.0**127)), x))) == ["divide"], "the reciprocal is subnormal"


def test_integers_add_zero():
    assert ops(replaced(graph(op("add", var("x", 3, dt="int32"), scalar(0, "int32"))))) == []


def test_squares_and_roots():
    x = var("x", 4)
    assert ops(replaced(graph(op("power", x, scalar(2))))) == ["multiply"]
    positive = [np.array([0.5, 1, 2, 4], np.float32)]
    assert ops(replaced(graph(op("reciprocal", op("sqrt", x))), arrays=positive)) == ["rsqrt"]


def test_every_algebraic_rule_has_a_name_of_its_own():
    assert len({r.name for r in ALGEBRA}) == len(ALGEBRA)


def test_gelu_in_its_spellings():
    x = var("x", 4, 8)
    erf = op("add", op("erf", op("divide", x, scalar(math.sqrt(2)))), scalar(1))
    assert ops(replaced(graph(op("multiply", op("multiply", x, scalar(0.5)), erf)))) == ["gelu"]
    assert ops(replaced(graph(op("multiply", op("multiply", x, erf), scalar(0.5))))) == ["gelu"]
    cube = op("multiply", op("multiply", x, x), x)
    inner = op("multiply", op("add", x, op("multiply", cube, scalar(0.044715))), scalar(math.sqrt(2 / math.pi)))
    new = op("multiply", op("multiply", scalar(0.5), x), op("add", op("tanh", inner), scalar(1)))
    out = replaced(graph(new))
    assert ops(out) == ["gelu"] and out.outputs[0].node.attrs["approximate"] == "tanh"
    other = op("add", op("erf", op("divide", x, scalar(1.5))), scalar(1))
    assert "gelu" not in ops(replaced(graph(op("multiply", op("multiply", x, scalar(0.5)), other))))


@pytest.mark.parametrize("dt,root,found", [
    ("float32", 0.79788456, True), ("float32", 0.7979, False), ("float32", 0.7978, False),
    ("float64", math.sqrt(2 / math.pi), True), ("float64", 0.79788456, False),
])  # fmt: skip
def test_a_constant_of_few_digits_is_no_other(dt, root, found):
    x = var("x", 4, 8, dt=dt)
    cube = op("multiply", op("multiply", x, x), x)
    inner = op("multiply", op("add", x, op("multiply", cube, scalar(0.044715, dt))), scalar(root, dt))
    halves = op("multiply", x, scalar(0.5, dt))
    got = replaced(graph(op("multiply", halves, op("add", op("tanh", inner), scalar(1, dt)))))
    assert ("gelu" in ops(got)) == found


def test_other_activations():
    x, y = var("x", 4, 8), var("y", 4, 8)
    assert ops(replaced(graph(op("multiply", op("sigmoid", x), x)))) == ["silu"]
    assert ops(replaced(graph(op("multiply", op("sigmoid", x), y)))) == ["sigmoid", "multiply"]
    relu6 = op("clip", op("add", x, scalar(3)), a_min=0, a_max=6)
    assert ops(replaced(graph(op("divide", op("multiply", x, relu6), scalar(6))))) == ["hardswish"]
    relu5 = op("clip", op("add", x, scalar(3)), a_min=0, a_max=5)
    assert "hardswish" not in ops(replaced(graph(op("divide", op("multiply", x, relu5), scalar(6)))))
    sigmoid = op("reciprocal", op("add", op("exp", op("negative", x)), scalar(1)))
    assert ops(replaced(graph(sigmoid))) == ["sigmoid"]


def test_softmax():
    x = var("x", 4, 8)

    def written_out(axis, sum_axis):
        e = op("exp", op("subtract", x, op("max", x, axis=axis, keepdims=True)))
        return graph(op("divide", e, op("sum", e, axis=sum_axis, keepdims=True)))

    assert ops(replaced(written_out(-1, 1))) == ["softmax"]
    assert ops(replaced(written_out(0, 0))) == ["softmax"]
    assert "softmax" not in ops(replaced(written_out(0, 1)))


@pytest.mark.parametrize("square", ["square", "multiply", "power"])
def test_layer_norm_with_scale_and_shift(square):
    x, g, b = var("x", 4, 8), param("g", 8), param("b", 8)
    d = op("subtract", x, op("mean", x, axis=-1, keepdims=True))
    squared = {"square": lambda: op("square", d), "multiply": lambda: op("multiply", d, d),
               "power": lambda: op("power", d, scalar(2))}[square]()  # fmt: skip
    v = op("add", op("mean", squared, axis=-1, keepdims=True), scalar(1e-5))
    n = op("divide", d, op("sqrt", v)) if square == "power" else op("multiply", op("rsqrt", v), d)
    out = replaced(graph(op("add", op("multiply", n, g), b)))
    assert ops(out) == ["layer_norm"] and len(out.outputs[0].node.inputs) == 3
    across = op("subtract", x, op("mean", x, axis=0, keepdims=True))
    spread = op("add", op("mean", op("square", across), axis=0, keepdims=True), scalar(1e-5))
    assert "layer_norm" not in ops(replaced(graph(op("multiply", across, op("rsqrt", spread)))))


def test_rms_norm():
    x, g = var("x", 4, 8), param("g", 8)
    r = op("rsqrt", op("add", op("mean", op("square", x), axis=1, keepdims=True), scalar(1e-6)))
    assert ops(replaced(graph(op("multiply", g, op("multiply", x, r))))) == ["rms_norm"]
    kept = replaced(graph([op("multiply", x, r), op("multiply", op("multiply", x, r), g)]))
    assert ops(kept).count("rms_norm") == 2 or "multiply" in ops(kept)


def heads(name, *shape):
    return var(name, *shape)


def scores(scale=True):
    q, k, v = heads("q", 2, 3, 5, 8), heads("k", 2, 3, 6, 8), heads("v", 2, 3, 6, 4)
    s = op("matmul", q, k, transpose_b=True)
    return (op("multiply", s, scalar(0.35)) if scale else s), v


def test_attention():
    s, v = scores()
    out = replaced(graph(op("matmul", op("softmax", s, axis=-1), v)))
    assert ops(out) == ["attention"] and out.outputs[0].node.attrs["scale"] == pytest.approx(0.35)
    s, v = scores(scale=False)
    divided = op("divide", s, scalar(3.0))
    out = replaced(graph(op("matmul", op("softmax", divided, axis=3), v)))
    assert ops(out) == ["attention"] and out.outputs[0].node.attrs["scale"] == pytest.approx(1 / 3)


def test_attention_stays_written_out_where_its_parts_are_read():
    s, v = scores()
    p = op("softmax", s, axis=-1)
    assert "attention" not in ops(replaced(graph([op("matmul", p, v), p])))
    assert "attention" not in ops(replaced(graph([op("matmul", p, v), op("exp", s)])))
    assert "attention" not in ops(replaced(graph(op("matmul", op("softmax", s, axis=2), v))))


def test_constant_masks():
    lowest = float(np.finfo(np.float32).min)
    q, k, v = heads("q", 1, 2, 6, 8), heads("k", 1, 2, 6, 8), heads("v", 1, 2, 6, 4)
    s = op("multiply", op("matmul", q, k, transpose_b=True), scalar(0.35))
    lower = np.tril(np.ones((1, 1, 6, 6), bool))
    causal = const(np.where(lower, 0, lowest).astype(np.float32))
    out = replaced(graph(op("matmul", op("softmax", op("add", s, causal), axis=-1), v)))
    assert ops(out) == ["attention"] and out.outputs[0].node.attrs["causal"] and len(out.outputs[0].node.inputs) == 3
    filled = op("where", const(lower, "bool"), s, scalar(-math.inf))
    out = replaced(graph(op("matmul", op("softmax", filled, axis=-1), v)))
    assert ops(out) == ["attention"] and out.outputs[0].node.attrs["causal"]
    band = const(np.where(lower & ~np.tril(lower, -3), 0, lowest).astype(np.float32))
    out = replaced(graph(op("matmul", op("softmax", op("add", s, band), axis=-1), v)))
    assert ops(out) == ["attention"] and len(out.outputs[0].node.inputs) == 4
    nobody = np.where(lower, 0, -np.inf).astype(np.float32)
    nobody[..., 2, :] = -np.inf
    out = replaced(graph(op("matmul", op("softmax", op("add", s, const(nobody)), axis=-1), v)))
    assert "attention" not in ops(out), "eager gives NaN for a query that attends to nothing"


def test_masks_that_are_computed():
    s, v = scores()
    given = graph(op("matmul", op("softmax", op("add", s, var("m", 2, 1, 1, 6)), axis=-1), v))
    assert "attention" not in ops(replaced(given)), "it may be -inf everywhere"
    assert "attention" in ops(replaced(given, fast_math=True))
    m = var("keep", 2, 1, 1, 6, dt="bool")
    lowest = float(np.finfo(np.float32).min)
    added = op("where", m, scalar(0), scalar(lowest))
    assert "attention" in ops(replaced(graph(op("matmul", op("softmax", op("add", s, added), axis=-1), v))))
    for filling, taken in ((lowest, True), (-math.inf, False), (-1e4, False)):
        filled = op("where", m, s, scalar(filling))
        out = replaced(graph(op("matmul", op("softmax", filled, axis=-1), v)))
        assert ("attention" in ops(out)) == taken


def test_copied_heads_are_grouped():
    q, k, v = heads("q", 1, 6, 5, 8), heads("k", 1, 2, 7, 8), heads("v", 1, 2, 7, 8)

    def copied(e):
        wide = op("broadcast_to", op("reshape", e, shape=(1, 2, 1, 7, 8)), shape=(1, 2, 3, 7, 8))
        return op("reshape", wide, shape=(1, 6, 7, 8))

    out = replaced(graph(op("attention", q, copied(k), copied(v))))
    assert work(out) == ["attention"] and out.outputs[0].node.attrs["groups"] == 3
    assert work(replaced(graph(op("attention", q, copied(k), heads("w", 1, 6, 7, 8))))) == ["broadcast_to", "attention"]
