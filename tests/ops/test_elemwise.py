"""Unary and binary elementwise ops against eager PyTorch, over dtypes and special values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from nnvm.graph.node import TypeInferenceError, apply, variable
from nnvm.graph.types import TensorType

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTS = [torch.int8, torch.int32, torch.int64, torch.uint8]
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 0.1, -7.25, 20.0, 90.0, -90.0, 1e-3,
           math.inf, -math.inf, math.nan]  # fmt: skip


def floats(dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), torch.randn(18, dtype=torch.float64) * 3]).to(dtype)


def ints(dtype: torch.dtype) -> torch.Tensor:
    info = torch.iinfo(dtype)
    return torch.tensor([0, 1, 2, 3, 5, 7, 100, info.max, info.min, info.max - 1, -1 if info.min else 254], dtype=dtype)


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{n: getattr(torch, n) for n in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan",
        "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "sigmoid",
    )},
    **{n: getattr(F, n) for n in ["silu", "mish", "hardsigmoid", "hardswish"]},
    "log_sigmoid": F.logsigmoid,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_float_functions(check: Any, name: str) -> None:
    # half types share one path: some functions stand for all
    few = [torch.float16, torch.bfloat16] if name in ("exp", "log1p", "rsqrt", "tanh", "erf", "silu") else []
    for dtype in [torch.float32, torch.float64, *few]:
        x = floats(dtype)
        check(name, [x], UNARY[name](x), tolerance=20 if name == "lgamma" else 2)


@pytest.mark.parametrize("name,above", [("hardswish", lambda x: x), ("hardsigmoid", torch.ones_like)])
def test_hard_activations_are_exact_where_they_are_linear(check: Any, name: str, above: Any) -> None:
    """They multiply by a sixth, as divisions are slow; infinities and NaN are what eager makes of them."""
    for dtype in (torch.float32, torch.float64):
        x = torch.cat([torch.linspace(3, 50, 997), torch.tensor([1e7, 3e37, math.inf])]).to(dtype)
        check(name, [x], above(x), tolerance=0)
        ends = torch.tensor([-3.0, -3.5, -1e30, -math.inf, math.nan, -0.0], dtype=dtype)
        check(name, [ends], getattr(F, name)(ends), tolerance=0)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_polygamma(check: Any, n: int) -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([0.3, 0.5, 1.0, 1.4616, 2.0, 5.5, 9.99, 37.0, 1e5, math.inf, math.nan], dtype=dtype)
        # PyTorch's trigamma has few digits, its zeta all
        zeta = torch.special.zeta(torch.tensor(n + 1.0), x.double()) * (-1) ** (n + 1) * math.factorial(n)
        expected = zeta if n else torch.digamma(x.double())
        if n:
            expected[-2] = 0  # zeta gives NaN
        check("polygamma", [x], expected.to(dtype), tolerance=2 if dtype == torch.float32 else 60, n=n)
    if n < 2:  # PyTorch's higher ones are for positive numbers
        x = torch.tensor([-0.25, -0.5, -1.7, -2.001, -10.3, -57.75], dtype=torch.float64)
        check("polygamma", [x], torch.polygamma(n, x), tolerance=4000, n=n)


@pytest.mark.parametrize("n", [2, 3])
def test_polygamma_of_negative_numbers_by_recurrence(check: Any, n: int) -> None:
    """psi_n(x) = psi_n(x + k) - (-1)^n n! (x^(-n-1) + ... + (x + k - 1)^(-n-1))."""
    x = torch.tensor([-0.25, -0.6, -3.3, -7.9], dtype=torch.float64)
    steps = sum((x + k) ** (-n - 1) for k in range(9))
    expected = torch.polygamma(n, x + 9) - (-1) ** n * math.factorial(n) * steps
    check("polygamma", [x], expected, tolerance=4000, n=n)


def test_polygamma_at_its_poles(check: Any) -> None:
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        x = torch.tensor([0.0, -0.0, -1.0, -5.0, -18.0, -math.inf, math.nan, -(2.0**30)], dtype=dtype)
        check("digamma", [x], torch.digamma(x))
        for n in (1, 2, 3, 4):  # trigamma is finite there, as the sine of pi x rounded is not 0
            check("polygamma", [x], torch.polygamma(n, x), tolerance=30, n=n)


GENERAL: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "negative": (torch.neg, "fi"), "abs": (torch.abs, "fi"), "sign": (torch.sign, "fib"),
    "square": (torch.square, "fi"), "relu": (torch.relu, "fi"), "floor": (torch.floor, "fi"),
    "ceil": (torch.ceil, "fi"), "trunc": (torch.trunc, "fi"), "round": (torch.round, "fi"),
    "isnan": (torch.isnan, "fib"), "isinf": (torch.isinf, "fib"), "isfinite": (torch.isfinite, "fib"),
    "signbit": (torch.signbit, "fib"), "logical_not": (torch.logical_not, "fib"),
    "bitwise_not": (torch.bitwise_not, "ib"), "identity": (torch.clone, "fib"),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERAL)
def test_general_functions(check: Any, name: str) -> None:
    fn, kinds = GENERAL[name]
    inputs = [floats(t) for t in FLOATS if "f" in kinds] + [ints(t) for t in INTS if "i" in kinds]
    for x in [*inputs, *([torch.tensor([True, False])] if "b" in kinds else [])]:
        check(name, [x], fn(x))


@pytest.mark.parametrize("name,attrs,fn", [
    ("clip", {"a_min": -0.5, "a_max": 1.5}, lambda x: torch.clamp(x, -0.5, 1.5)),
    ("clip", {"a_min": 2.0, "a_max": 1.0}, lambda x: torch.clamp(x, 2.0, 1.0)),
    ("clip", {"a_min": 0.0}, lambda x: torch.clamp(x, min=0.0)),
    # where oneDNN computes it for eager, infinity becomes NaN
    ("gelu", {}, lambda x: F.gelu(x.double()).to(x.dtype)),
    ("gelu", {"approximate": "tanh"}, lambda x: F.gelu(x, approximate="tanh")),
    ("elu", {"alpha": 0.7}, lambda x: F.elu(x, 0.7)),
    ("elu", {"alpha": 1.6732632423543772, "scale": 1.0507009873554805}, F.selu),
    ("elu", {"alpha": 2.0, "input_scale": 0.5}, lambda x: F.celu(x, 2.0)),
    ("leaky_relu", {"alpha": 0.2}, lambda x: F.leaky_relu(x, 0.2)),
    ("softplus", {"beta": 2.0, "threshold": 10.0}, lambda x: F.softplus(x, 2.0, 10.0)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_with_attributes(check: Any, name: str, attrs: Any, fn: Any, dtype: torch.dtype) -> None:
    x = floats(dtype)
    check(name, [x], fn(x), tolerance=4, **attrs)


def test_integer_clip(check: Any) -> None:
    for t in INTS:
        check("clip", [ints(t)], torch.clamp(ints(t), 1, 6), a_min=1, a_max=6)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize(("a_min", "a_max"), [(0.5, 5.5), (-2.5, 2**70), (-1e30, 99.9), (-math.inf, math.inf),
                                              (None, -(2**70)), (math.inf, None)])  # fmt: skip
def test_bounds_that_are_no_integers_of_the_type(check: Any, dtype: torch.dtype, a_min: Any, a_max: Any) -> None:
    """The integers within the bounds, as many as the type has."""
    x, info = ints(dtype), torch.iinfo(dtype)
    low, high = (-math.inf if a_min is None else a_min), (math.inf if a_max is None else a_max)
    inside = [n for n in x.tolist() if low <= n <= high]
    first = info.max if low > info.max else max(math.ceil(low) if low > info.min else info.min, info.min)
    last = info.min if high < info.min else min(math.floor(high) if high < info.max else info.max, info.max)
    expected = torch.tensor([min(max(n, first), last) for n in x.tolist()], dtype=dtype)
    assert set(inside) <= set(expected.tolist())
    check("clip", [x], expected, **{k: v for k, v in (("a_min", a_min), ("a_max", a_max)) if v is not None})


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 5)])
def test_shapes(check: Any, shape: Any) -> None:
    x = torch.rand(shape)
    check("exp", [x], x.exp())
    check("add", [x, x], x + x)


CASTS = [torch.bool, torch.int16, *INTS, *FLOATS]


@pytest.mark.parametrize("to", CASTS)
def test_cast(check: Any, to: torch.dtype) -> None:
    name = str(to).removeprefix("torch.")
    for t in INTS:
        check("cast", [ints(t)], ints(t).to(to), dtype=name)
    inside = torch.tensor([0.0, -0.0, 1.0, 1.9, 3.5, 100.7, 0.2])
    signed = torch.tensor([-1.0, -1.9, -100.7])
    for t in FLOATS:
        check("cast", [inside.to(t)], inside.to(t).to(to), dtype=name)
        if to != torch.uint8:
            check("cast", [signed.to(t)], signed.to(t).to(to), dtype=name)
    check("cast", [torch.tensor([True, False])], torch.tensor([True, False]).to(to), dtype=name)
    if to.is_floating_point or to == torch.bool:
        for t in FLOATS:
            check("cast", [floats(t)], floats(t).to(to), dtype=name)


# -- binary


def grid(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two shapes that broadcast to all pairs."""
    return x[:, None].contiguous(), x[None, :].contiguous()


ARITHMETIC: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "add": (torch.add, "fib"), "subtract": (torch.sub, "fi"), "multiply": (torch.mul, "fib"),
    "divide": (torch.div, "f"), "maximum": (torch.maximum, "fib"), "minimum": (torch.minimum, "fib"),
    "fmax": (torch.fmax, "fib"), "fmin": (torch.fmin, "fib"), "atan2": (torch.atan2, "f"),
    "hypot": (torch.hypot, "f"), "copysign": (torch.copysign, "f"),
    "bitwise_and": (torch.bitwise_and, "ib"), "bitwise_or": (torch.bitwise_or, "ib"),
    "bitwise_xor": (torch.bitwise_xor, "ib"),
    "equal": (torch.eq, "fib"), "not_equal": (torch.ne, "fib"), "less": (torch.lt, "fib"),
    "less_equal": (torch.le, "fib"), "greater": (torch.gt, "fib"), "greater_equal": (torch.ge, "fib"),
    "logical_and": (torch.logical_and, "fib"), "logical_or": (torch.logical_or, "fib"),
    "logical_xor": (torch.logical_xor, "fib"),
    "prelu": (lambda a, b: torch.where(a > 0, a, a * b), "f"),
}  # fmt: skip


@pytest.mark.parametrize("name", ARITHMETIC)
def test_binary(check: Any, name: str) -> None:
    fn, kinds = ARITHMETIC[name]
    inputs = [floats(t) for t in FLOATS if "f" in kinds and t != torch.float16]
    inputs += [ints(t) for t in INTS if "i" in kinds and t != torch.int32]
    for x in [*inputs, *([torch.tensor([True, False])] if "b" in kinds else [])]:
        a, b = grid(x)
        check(name, [a, b], fn(a, b), tolerance=2)


DIVISION = {
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "trunc_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "remainder": torch.remainder, "fmod": torch.fmod,
}  # fmt: skip


@pytest.mark.parametrize("name", DIVISION)
def test_division_of_integers(check: Any, name: str) -> None:
    for t in INTS:
        a, b = grid(ints(t))
        a = a[(a != torch.iinfo(t).min) | (a == 0)][:, None]  # eager dies of INT_MIN % -1
        b = b[b != 0][None, :]
        check(name, [a, b], DIVISION[name](a, b))
        if t != torch.uint8:
            least, minus = torch.tensor([torch.iinfo(t).min], dtype=t), torch.tensor([-1], dtype=t)
            check(name, [least, minus], least if name.endswith("divide") else torch.zeros_like(least))


@pytest.mark.parametrize("name", DIVISION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_division_of_floats(check: Any, name: str, dtype: torch.dtype) -> None:
    a, b = grid(floats(dtype))
    check(name, [a, b], DIVISION[name](a, b))


@pytest.mark.parametrize("name", DIVISION)
def test_integer_division_by_zero_fails(check: Any, name: str) -> None:
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        check(name, [torch.tensor([1]), torch.tensor([0])], torch.tensor([0]))


def test_power(check: Any) -> None:
    for dtype in FLOATS:
        a, b = grid(floats(dtype))
        check("power", [a, b], torch.pow(a, b), tolerance=4)
    for t in INTS:
        a = torch.tensor([0, 1, 2, 3, 7, 11, -1 if t != torch.uint8 else 255, -2 if t != torch.uint8 else 254], dtype=t)
        b = torch.tensor([0, 1, 2, 5, 31] + ([-1, -2, -3] if t != torch.uint8 else []), dtype=t)
        check("power", [a[:, None].contiguous(), b[None]], torch.pow(a[:, None], b[None]))


def test_shifts(check: Any) -> None:
    for t in INTS:
        bits = torch.iinfo(t).bits
        counts = torch.tensor([0, 1, 3, bits - 1, bits, bits + 5], dtype=t)
        a, b = ints(t)[:, None].contiguous(), counts[None]
        check("left_shift", [a, b], a << b)
        check("right_shift", [a, b], a >> b)


@pytest.mark.parametrize(
    "a,b", [((2, 1, 4), (3, 1)), ((), (2, 3)), ((0, 3), (1, 3)), ((5,), (4, 5)), ((1, 1), (2, 3, 4))]
)
def test_broadcasting(check: Any, a: Any, b: Any) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(a), torch.randn(b)
    check("subtract", [x, y], x - y)
    cond = torch.rand(b) > 0.5
    check("where", [cond, x, y], torch.where(cond, x, y))


def test_where_dtypes(check: Any) -> None:
    for t in [*FLOATS, *INTS, torch.bool]:
        x = floats(t) if t in FLOATS else ints(t) if t in INTS else torch.tensor([True, False, True])
        cond = torch.arange(len(x)) % 2 == 0
        check("where", [cond, x, x.flip(0)], torch.where(cond, x, x.flip(0)))


@pytest.mark.parametrize("op,types,message", [
    ("add", [TensorType((2, 3)), TensorType((4, 3))], r"\[2, 3\] and \[4, 3\] do not broadcast: 2 against 4"),
    ("add", [TensorType((2,)), TensorType((2,), torch.int64)], "different dtypes float32, int64; insert a cast"),
    ("divide", [TensorType((2,), torch.int64)] * 2, "must be float, got int64"),
    ("exp", [TensorType((2,), torch.int32)], "must be float, got int32"),
    ("where", [TensorType(())] * 3, "the condition must be bool"),
])  # fmt: skip
def test_misfits(op: str, types: Any, message: str) -> None:
    from nnvm.dtype import DType, dtype

    kinds = [TensorType(t.shape, t.dtype if isinstance(t.dtype, DType) else dtype(str(t.dtype)[6:])) for t in types]
    with pytest.raises(TypeInferenceError, match=message):
        apply(op, [variable(f"x{i}", t) for i, t in enumerate(kinds)])


def test_symbolic_broadcast() -> None:
    from nnvm.dim import symbol

    s, t = symbol("s"), symbol("t")
    x, y, z = (variable(n, TensorType(shape)) for n, shape in (("x", (s, 4)), ("y", (1, 4)), ("z", (t, 4))))
    assert apply("add", [x, y])[0].type.shape == (s, 4)
    with pytest.raises(TypeInferenceError, match="s against t"):
        apply("add", [x, z])
