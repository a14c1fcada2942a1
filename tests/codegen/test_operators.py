"""Every operator and dtype, scalar and vector, against the interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from nnvm.dtype import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    DType,
    bf16_to_f32,
    dtype,
    f32_to_bf16,
)
from nnvm.kernel_error import KernelZeroDivisionError
from nnvm.runtime.llvm_jit import assembly, compile_funcs
from nnvm.target import Target
from nnvm.te.expr import (
    ARITHMETIC,
    BITWISE,
    COMPARISONS,
    MATH,
    Binary,
    Bitcast,
    Broadcast,
    Buffer,
    Cast,
    Expr,
    Fma,
    Load,
    Ramp,
    Select,
    Unary,
    Var,
    VectorReduce,
    const,
)
from nnvm.tir.interpreter import run
from nnvm.tir.stmt import For, PrimFunc, Store, seq

FLOATS = (F16, BF16, F32, F64)
INTS = (I8, I16, I32, I64, U8, U16, U32, U64)
LANES = (1, 8)
DIVISIONS = ("floordiv", "floormod", "truncdiv", "truncmod")
#: Same result to the bit on every machine; the rest is allowed a few units in the last place.
EXACT = ("neg", "abs", "sqrt", "floor", "ceil", "trunc", "round", "add", "sub", "mul", "div", "floordiv", "floormod",
         "truncdiv", "truncmod", "min", "max", "fmin", "fmax", "copysign", "nextafter", "not", "isnan", "isinf",
         "and", "or", "xor", "shl", "shr", *COMPARISONS)  # fmt: skip


def values(t: DType) -> np.ndarray:
    """Corner values of a type, as the interpreter carries them."""
    if t.is_bool:
        return np.array([False, True])
    if t.is_float:
        numbers = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, 7.0, 0.1, -0.3, 10.0, 88.0, -104.0, 1e-3, 1e-42, -1e-7,
                   65504.0, 1e30, -1e38, np.inf, -np.inf, np.nan]  # fmt: skip
        with np.errstate(over="ignore"):
            single = np.array(numbers, np.float64 if t == F64 else np.float32)
            return f32_to_bf16(single) if t == BF16 else single.astype(t.numpy)
    top = int(t.max)
    numbers = {0, 1, 2, 3, 7, 8, 31, 63, top, top - 1, top // 2} | ({-1, -2, -8, int(t.min)} if t.is_signed else set())
    return np.array(sorted(numbers), t.numpy)


def pairs(t: DType) -> tuple[np.ndarray, np.ndarray]:
    v = values(t)
    a, b = np.meshgrid(v, v, indexing="ij")
    return a.ravel(), b.ravel()


def padded(a: np.ndarray) -> np.ndarray:
    """Repeated to a multiple of 8 elements."""
    return np.resize(a, -(-a.size // 8) * 8)


def kernel_of(
    functions: dict[str, tuple[Callable[..., Expr], DType]], inputs: list[tuple[np.ndarray, DType]]
) -> PrimFunc:
    """One kernel that applies each function to all elements, one by one and in vectors of 8, an output for each."""
    n = inputs[0][0].size
    buffers = [Buffer(f"x{k}", (n,), t) for k, (_, t) in enumerate(inputs)]
    outputs, loops = [], []
    for (name, (fn, out)), lanes in itertools.product(functions.items(), LANES):
        i = Var("i")
        index: Expr = i if lanes == 1 else Ramp(i * lanes, 1, lanes)
        outputs.append(Buffer(f"{name}_{lanes}", (n,), out))
        loops.append(For(i, const(n // lanes), Store(outputs[-1], (index,), fn(*(Load(b, (index,)) for b in buffers)))))
    return PrimFunc("elementwise", (*buffers, *outputs), len(outputs), (), seq(loops))


def apply(
    functions: dict[str, tuple[Callable[..., Expr], DType]], inputs: list[tuple[np.ndarray, DType]]
) -> list[tuple[str, np.ndarray]]:
    """Outputs of the compiled kernel by name."""
    func = kernel_of(functions, inputs)
    outputs = [np.zeros(p.shape, p.dtype.numpy) for p in func.params[len(inputs) :]]
    compile_funcs([func])[0](*(a for a, _ in inputs), *outputs)
    return list(zip((p.name for p in func.params[len(inputs) :]), outputs))


def check(functions: dict[str, tuple[Callable[..., Expr], DType, int]], inputs: list[tuple[np.ndarray, DType]]) -> None:
    """The compiled kernel gives what the interpreter gives, within each function's ulps."""
    inputs = [(padded(a), t) for a, t in inputs]
    plain = {name: (fn, out) for name, (fn, out, _) in functions.items()}
    func = kernel_of(plain, inputs)
    expected = [np.zeros(p.shape, p.dtype.numpy) for p in func.params[len(inputs) :]]
    run(func, [*(a for a, _ in inputs), *expected])
    wrong = []
    for (name, found), reference in zip(apply(plain, inputs), expected):
        _, out, ulps = functions[name.rpartition("_")[0]]
        bad = differ(found, reference, out, ulps)
        wrong += [(name, *(a[bad][0] for a, _ in inputs), reference[bad][0], found[bad][0])] if bad.any() else []
    assert not wrong, wrong  # (function, operands, expected, found)


def differ(found: np.ndarray, reference: np.ndarray, t: DType, ulps: int) -> np.ndarray:
    """Where two results differ by more than `ulps`; NaN equals NaN, -0 equals 0."""
    if not t.is_float:
        return found != reference
    numbers = [bf16_to_f32(x) if t == BF16 else x for x in (found, reference)]
    bits = [x.view(f"int{t.bits}").astype(object) for x in (found, reference)]
    ordered = [np.where(b < 0, -(b + (1 << t.bits - 1)), b) for b in bits]
    nan = np.isnan(numbers[0]) | np.isnan(numbers[1])
    both = np.isnan(numbers[0]) & np.isnan(numbers[1])
    return np.where(nan, ~both, (np.abs(ordered[0] - ordered[1]) > ulps).astype(bool))


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_unary_of_floats(t: DType) -> None:
    ulps = 2 if t.is_half else 4
    functions = {op: (lambda a, op=op: Unary(op, a), t, 0 if op in EXACT else ulps) for op in MATH}
    functions["lgamma"] = (lambda a: Unary("lgamma", a), t, 8)  # Python's own is a few units off
    functions |= {op: (lambda a, op=op: Unary(op, a), BOOL, 0) for op in ("isnan", "isinf")}
    check(functions, [(values(t), t)])


@pytest.mark.parametrize("t", INTS, ids=str)
def test_unary_of_ints(t: DType) -> None:
    functions = {op: (lambda a, op=op: Unary(op, a), t, 0) for op in ("neg", "abs", "not", "floor", "round")}
    check({**functions, "isnan": (lambda a: Unary("isnan", a), BOOL, 0)}, [(values(t), t)])


def binaries(ops: Sequence[str], t: DType, ulps: int = 0) -> dict[str, tuple[Callable[..., Expr], DType, int]]:
    return {op: (lambda x, y, op=op: Binary(op, x, y), BOOL if op in COMPARISONS else t, 0 if op in EXACT else ulps)
            for op in ops}  # fmt: skip


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_binary_of_floats(t: DType) -> None:
    a, b = pairs(t)
    skipped = ("pow", "nextafter") if t.is_half else ("pow",)  # see test_power and test_next_half
    check(binaries([op for op in (*ARITHMETIC, *COMPARISONS) if op not in skipped], t, 4), [(a, t), (b, t)])


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_power(t: DType) -> None:
    a, b = pairs(t)
    keep = (bf16_to_f32(a) if t == BF16 else a) != -np.inf  # numpy's -inf ** 0.5 is NaN for scalars
    check(binaries(["pow"], t, 4), [(a[keep], t), (b[keep], t)])


@pytest.mark.parametrize("t", INTS, ids=str)
def test_binary_of_ints(t: DType) -> None:
    a, b = pairs(t)
    check(binaries(("add", "sub", "mul", "min", "max", "pow", *BITWISE, *COMPARISONS), t), [(a, t), (b, t)])


@pytest.mark.parametrize("t", INTS, ids=str)
def test_division_of_ints(t: DType) -> None:
    a, b = pairs(t)
    keep = b != 0
    if t.is_signed:  # numpy's own INT_MIN // -1 is not a reference
        keep &= ~((b == -1) & (a == t.min))
    check(binaries(DIVISIONS, t), [(a[keep], t), (b[keep], t)])
    divisors = (1, 2, 3, 7, int(t.max), *((-1, -3, -4) if t.is_signed else ()))
    functions = {f"{op}{d}": (lambda x, op=op, d=d: Binary(op, x, _broadcast(d, t, x.lanes)), t, 0)
                 for op, d in itertools.product(DIVISIONS, divisors)}  # fmt: skip
    v = values(t)
    check(functions, [(v[v != t.min] if t.is_signed else v, t)])


def _broadcast(value: int, t: DType, lanes: int) -> Expr:
    return const(value, t) if lanes == 1 else Broadcast(const(value, t), lanes)


@pytest.mark.parametrize("t", (I8, I16, I32, I64), ids=str)
def test_least_int_divided_by_minus_one_wraps(t: DType) -> None:
    least, minus = np.full(8, t.min, t.numpy), np.full(8, -1, t.numpy)
    functions = {op: (fn, out) for op, (fn, out, _) in binaries(DIVISIONS, t).items()}
    for name, y in apply(functions, [(least, t), (minus, t)]):
        assert (y == (t.min if "div" in name else 0)).all(), name


@pytest.mark.parametrize("op", DIVISIONS)
def test_integer_division_by_zero_fails(op: str) -> None:
    a, b = np.arange(8, dtype=np.int32), np.arange(8, dtype=np.int32)[::-1].copy()
    functions = {"divide": (lambda x, y: Binary(op, x, y), I32)}
    with pytest.raises(KernelZeroDivisionError):
        apply(functions, [(a, I32), (b, I32)])
    apply(functions, [(a, I32), (b + 1, I32)])


def test_binary_of_bool() -> None:
    a, b = pairs(BOOL)
    check(binaries((*BITWISE[:3], "min", "max", *COMPARISONS), BOOL), [(a, BOOL), (b, BOOL)])
    check({"not": (lambda x: Unary("not", x), BOOL, 0)}, [(a, BOOL)])


@pytest.mark.parametrize("source", (*FLOATS, *INTS, BOOL), ids=str)
def test_cast(source: DType) -> None:
    v = values(source)
    check({t.name: (lambda x, t=t: Cast(x, t), t, 0) for t in (*FLOATS, BOOL)}, [(v, source)])
    if not source.is_float:
        check({t.name: (lambda x, t=t: Cast(x, t), t, 0) for t in INTS}, [(v, source)])
        return
    number = bf16_to_f32(v) if source == BF16 else v.astype(np.float64)  # what does not fit is tested below
    for t in INTS:
        fits = np.isfinite(number) & (number >= t.min) & (number <= t.max)
        check({t.name: (lambda x, t=t: Cast(x, t), t, 0)}, [(v[fits], source)])


def test_cast_of_what_does_not_fit() -> None:
    """Eager's results on x86."""
    x = np.array([np.nan, 300.7, np.inf, 3_000_000_094.0, -3.9, -np.inf, 1e20, 0.0], np.float64)
    least, least64 = -(2**31), -(2**63)
    expected = {
        I8: [0, 44, 0, 0, -3, 0, 0],
        U8: [0, 44, 0, 94, 253, 0, 0],
        I16: [0, 300, 0, 0, -3, 0, 0],
        U16: [0, 300, 0, 0, 65533, 0, 0],
        I32: [least, 300, least, least, -3, least, least],
        U32: [2**31, 300, 0, 3_000_000_094, 2**32 - 3, 2**31, 0],
        I64: [least64, 300, least64, 3_000_000_094, -3, least64, least64],
        U64: [2**63, 300, 0, 3_000_000_094, 2**64 - 3, 2**63, 0],
    }
    for name, y in apply({t.name: (lambda a, t=t: Cast(a, t), t) for t in expected}, [(x, F64)]):
        assert y[:7].tolist() == expected[dtype(name.split("_")[0])], name


@pytest.mark.parametrize("t, to", [(F32, I32), (I32, F32), (F64, I64), (F16, I16), (U8, I8), (I16, BF16)], ids=str)
def test_bitcast(t: DType, to: DType) -> None:
    check({"bits": (lambda x: Bitcast(x, to), to, 0)}, [(values(t)[:-1], t)])


def test_fma_rounds_once() -> None:
    rng = np.random.default_rng(0)
    for t in (F32, F64):
        a, b, c = (rng.standard_normal(64).astype(t.numpy) for _ in range(3))
        c[:32] = -(a * b)[:32]
        check({"fma": (lambda x, y, z: Fma(x, y, z), t, 0)}, [(a, t), (b, t), (c, t)])


@pytest.mark.parametrize("t", (F16, BF16), ids=str)
def test_half_arithmetic_rounds_after_each_operation(t: DType) -> None:
    big, small = (
        f32_to_bf16(np.full(8, v, np.float32)) if t == BF16 else np.full(8, v, t.numpy) for v in (2048.0, 0.5)
    )
    functions = {"difference": (lambda a, b: Binary("sub", Binary("add", a, b), a), t)}
    for _, y in apply(functions, [(big, t), (small, t)]):
        assert (y == 0).all()  # 2048.5 is not a half number


@pytest.mark.parametrize("t, one, above", [(F16, 0x3C00, 0x3C01), (BF16, 0x3F80, 0x3F81)], ids=str)
def test_next_half(t: DType, one: int, above: int) -> None:
    a = np.array([one, above, 0, 0, 0x8000, one | 0x8000, one, 0], np.uint16).view(t.numpy)
    b = np.array([0x7000, 0, 0x3000, 0xB000, 0x3000, 0, one, 0], np.uint16).view(t.numpy)
    for _, y in apply({"next": (lambda p, q: Binary("nextafter", p, q), t)}, [(a, t), (b, t)]):
        assert y.view(np.uint16).tolist() == [above, one, 1, 0x8001, 1, (one - 1) | 0x8000, one, 0]


@pytest.mark.parametrize("t", (F32, F64, F16, BF16, I8, I32, I64, U8, BOOL), ids=str)
def test_lane_reduction(t: DType) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 3, 16).astype(np.float32)
    x = f32_to_bf16(x) if t == BF16 else x.astype(t.numpy)
    a = Buffer("a", (16,), t)
    cases = list(itertools.product(("sum", "prod", "max", "min"), (2, 3, 4, 6, 8, 16)))
    y = Buffer("y", (len(cases),), t)
    stores = [Store(y, (const(k),), VectorReduce(op, Load(a, (Ramp(const(0), 1, lanes),))))
              for k, (op, lanes) in enumerate(cases)]  # fmt: skip
    func = PrimFunc("reduce", (a, y), 1, (), seq(stores))
    expected, found = np.zeros(len(cases), t.numpy), np.zeros(len(cases), t.numpy)
    run(func, [x, expected])
    compile_funcs([func])[0](x, found)
    np.testing.assert_array_equal(found, expected)


def reduction(t: DType, *ops: str) -> PrimFunc:
    a, y = Buffer("a", (8,), t), Buffer("y", (len(ops),), t)
    lanes = Load(a, (Ramp(const(0), 1, 8),))
    return PrimFunc("r", (a, y), 1, (), seq([Store(y, (const(k),), VectorReduce(o, lanes)) for k, o in enumerate(ops)]))


def test_lane_extremes_carry_nan() -> None:
    kernel = compile_funcs([reduction(F32, "max", "min")])[0]
    for lane in range(8):
        x, out = np.arange(8, dtype=np.float32), np.zeros(2, np.float32)
        x[lane] = np.nan
        kernel(x, out)
        assert np.isnan(out).all()


def test_any_and_all() -> None:
    kernel = compile_funcs([reduction(BOOL, "any", "all")])[0]
    for bits, expected in ((0, [0, 0]), (255, [1, 1]), (4, [1, 0])):
        out = np.zeros(2, bool)
        kernel(np.array([bits >> k & 1 for k in range(8)], bool), out)
        assert out.tolist() == expected


@pytest.mark.parametrize("t", (F32, F16, I64, BOOL), ids=str)
def test_select(t: DType) -> None:
    a, b = pairs(t)
    cond = np.arange(a.size) % 3 == 0
    check({"select": (lambda c, x, y: Select(c, x, y), t, 0)}, [(cond, BOOL), (a, t), (b, t)])


def test_clamp_carries_nan() -> None:
    def zero(x: Expr) -> Expr:
        return const(0.0, F32) if x.lanes == 1 else Broadcast(const(0.0, F32), x.lanes)

    check(
        {
            "relu": (lambda x: Binary("max", x, zero(x)), F32, 0),
            "relu_swapped": (lambda x: Binary("max", zero(x), x), F32, 0),
            "below": (lambda x: Binary("min", x, zero(x)), F32, 0),
            "below_swapped": (lambda x: Binary("min", zero(x), x), F32, 0),
        },
        [(values(F32)[2:], F32)],
    )


def inverses(lanes: int) -> PrimFunc:
    a, y, at = Buffer("a", (lanes,), F32), Buffer("y", (lanes,), F32), Ramp(const(0), 1, lanes)
    return PrimFunc("f", (a, y), 1, (), Store(y, (at,), Unary("inverse", Load(a, (at,)))))


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_inverses(lanes: int) -> None:
    """As a division gives them, but for one in some thousands; by a step from an estimate where vectors are longest."""
    (kernel,) = compile_funcs([inverses(lanes)])
    rng = np.random.default_rng(lanes)
    values = np.exp2(rng.uniform(-119, 119, (4096, lanes))) * rng.choice([-1, 1], (4096, lanes))
    values = values.astype(np.float32)
    found = np.empty_like(values)
    for x, y in zip(values, found):
        kernel(x, y)
    exact = np.float32(1) / values
    assert (np.abs(found - exact) <= np.spacing(np.abs(exact))).all() and (found == exact).mean() > 0.99


def test_inverses_do_without_the_divider() -> None:
    long = Target.parse("llvm -mcpu=skylake-avx512 -mtriple=x86_64-unknown-linux-gnu")
    text = assembly(inverses(16), long)
    assert "vrcp14ps" in text and "vdivps" not in text
    assert "vdivps" in assembly(inverses(8), long)
