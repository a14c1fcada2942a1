"""Kernels as objects: calling, checking, sharing, unloading."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from nnvm import config
from nnvm.dim import symbol
from nnvm.dtype import F32, I32
from nnvm.kernel_error import KernelError, KernelIndexError, KernelZeroDivisionError, failure
from nnvm.runtime import llvm_jit, loaded_code
from nnvm.runtime.llvm_jit import Kernel, assembly, compile_funcs
from nnvm.target import Target
from nnvm.te.expr import Binary, Broadcast, Buffer, Expr, Load, Ramp, Unary, Var, binary, const, load
from nnvm.tir.stmt import Allocate, For, PrimFunc, Seq, Store


def add(name: str = "add", value: float = 1.0, size: int = 16, op: str = "add") -> PrimFunc:
    x, y, i = Buffer("x", (size,), F32), Buffer("y", (size,), F32), Var("i")
    return PrimFunc(
        name, (x, y), 1, (), For(i, const(size), Store(y, (i,), Binary(op, load(x, (i,)), const(value, F32))))
    )


def run(kernel: Kernel, n: int = 16) -> np.ndarray:
    out = np.zeros(n, np.float32)
    kernel(np.arange(n, dtype=np.float32), out)
    return out


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NNVM_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what LLVM was asked to compile."""
    seen: list[str] = []
    original = llvm_jit.object_code

    def counted(ir: str, target: Target) -> bytes:
        seen.append(ir)
        return original(ir, target)

    monkeypatch.setattr(llvm_jit, "object_code", counted)
    return seen


def test_arguments_are_checked() -> None:
    (kernel,) = compile_funcs([add()])
    x, y = np.zeros(16, np.float32), np.zeros(16, np.float32)
    with pytest.raises(TypeError, match="takes 2 arrays"):
        kernel(x)
    with pytest.raises(TypeError, match="x must be float32, not float64"):
        kernel(x.astype(np.float64), y)
    with pytest.raises(ValueError, match="shape"):
        kernel(x[:8], y)
    with pytest.raises(ValueError, match="shape"):
        kernel(x.reshape(4, 4), y)
    with pytest.raises(ValueError, match="strides"):
        kernel(np.zeros(32, np.float32)[::2], y)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        kernel(x, y)


def test_sizes_are_read_from_shapes_or_asked_for() -> None:
    n, m = symbol("n"), symbol("m")
    x, y, i = Buffer("x", (n,), F32), Buffer("y", (n + m,), F32), Var("i")
    func = PrimFunc("f", (x, y), 1, ("n", "m"), For(i, Var("n"), Store(y, (i + Var("m"),), load(x, (i,)))))
    (kernel,) = compile_funcs([func])
    out = np.zeros(5, np.float32)
    with pytest.raises(ValueError, match="sizes m have no value"):
        kernel(np.ones(3, np.float32), out)
    kernel(np.ones(3, np.float32), out, symbols={"m": 2})
    assert out.tolist() == [0, 0, 1, 1, 1]


def test_equal_functions_are_compiled_once(compilations: list[str]) -> None:
    kernels = compile_funcs([add("one"), add("two"), add("other", 2.0), add("three")])
    assert len(compilations) == 2
    assert [k.name for k in kernels] == ["one", "two", "other", "three"]
    assert kernels[0].address == kernels[1].address == kernels[3].address != kernels[2].address
    assert [run(k)[1] for k in kernels] == [2, 2, 3, 2]


def test_the_cache_serves_a_second_compilation(compilations: list[str], cache: Path) -> None:
    first = compile_funcs([add()])[0]
    second = compile_funcs([add("renamed")])[0]
    assert len(compilations) == 1 and first.address == second.address  # linked once as well
    assert (run(first) == run(second)).all()
    for entry in cache.rglob("*.o"):
        entry.write_bytes(entry.read_bytes()[:-10])
    assert (run(compile_funcs([add()])[0]) == run(first)).all()
    assert len(compilations) == 2


def test_the_cache_can_be_off(compilations: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNVM_CACHE", "0")
    for _ in range(2):
        compile_funcs([add()])
    assert len(compilations) == 2


def test_messages_come_from_the_cache_too() -> None:
    x, y = Buffer("x", (1,), I32), Buffer("y", (1,), I32)
    func = PrimFunc("d", (x, y), 1, (), Store(y, (const(0),), Binary("floordiv", const(1, I32), load(x, (const(0),)))))
    for _ in range(2):
        (kernel,) = compile_funcs([func])
        with pytest.raises(ZeroDivisionError):
            kernel(np.zeros(1, np.int32), np.zeros(1, np.int32))


def _code_mappings() -> int:
    return sum(" r-xp " in line and "/" not in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts mappings through /proc")
def test_dropped_kernels_are_unloaded_but_for_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_code, "MAX_LATEST", 4)
    kernel = compile_funcs([add()])[0]
    before = _code_mappings()
    kept = [compile_funcs([add(value=float(k))])[0] for k in range(40)]
    during = _code_mappings()
    assert run(kept[7])[0] == 7
    kept.clear()
    gc.collect()
    assert _code_mappings() <= before + (during - before) // 2 + 1
    assert run(kernel)[0] == 1


def test_code_that_is_dropped_and_compiled_again_is_not_linked_again() -> None:
    address = compile_funcs([add(value=77.0)])[0].address
    gc.collect()
    assert compile_funcs([add(value=77.0)])[0].address == address


def test_a_kernel_keeps_code_that_it_shares() -> None:
    first, second = compile_funcs([add("one"), add("two")])
    del first
    gc.collect()
    assert run(second)[1] == 2


def test_compiling_from_several_threads() -> None:
    results: dict[int, float] = {}

    def work(k: int) -> None:
        for j in range(4):
            (kernel,) = compile_funcs([add(value=float(10 * k + j))])
            results[10 * k + j] = float(run(kernel)[1])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {10 * k + j: 10 * k + j + 1 for k in range(4) for j in range(4)}


def test_failures_by_name() -> None:
    assert isinstance(failure("IndexError: index out of range in self"), KernelIndexError)
    assert str(failure("IndexError: index out of range in self")) == "index out of range in self"
    assert isinstance(failure("ZeroDivisionError"), KernelZeroDivisionError)
    assert isinstance(failure("ZeroDivisionError"), RuntimeError)
    assert str(failure("ZeroDivisionError")) == "ZeroDivisionError"
    assert type(failure("anything else")) is KernelError


def test_debugging_prints_ir_and_assembly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NNVM_DEBUG", "4")
    compile_funcs([add("shown")])
    err = capsys.readouterr().err
    assert "define internal i32 @shown.main" in err and "shown:" in err


def test_a_target_that_this_machine_is_not() -> None:
    foreign = Target("llvm", "generic", ("neon",), "aarch64-unknown-linux-gnu")
    with pytest.raises(ValueError, match="cannot run code"):
        compile_funcs([add()], foreign)


def test_calls_the_math_library() -> None:
    x, y, i = Buffer("x", (16,), F32), Buffer("y", (16,), F32), Var("i")
    at = Ramp(i * 8, 1, 8)
    (kernel,) = compile_funcs(
        [PrimFunc("m", (x, y), 1, (), For(i, const(2), Store(y, (at,), Unary("asinh", Load(x, (at,))))))]
    )
    np.testing.assert_allclose(run(kernel), np.arcsinh(np.arange(16)), rtol=1e-6)


def tile(rows: int, vectors: int, lanes: int, k: int = 64) -> PrimFunc:
    """A register-tiled matrix product."""
    width = vectors * lanes
    x, w, y = Buffer("x", (rows * 4, k), F32), Buffer("w", (2, k, width), F32), Buffer("y", (rows * 4, 2 * width), F32)
    acc = Buffer("acc", (rows, width), F32, scope="local")
    jo, io, kk, i, v = Var("jo"), Var("io"), Var("k"), Var("i"), Var("v")
    at = (i, Ramp(v * lanes, 1, lanes))

    def each(value: Expr, target: Buffer = acc, indices: tuple[Expr, ...] = at) -> For:
        return For(i, const(rows), For(v, const(vectors), Store(target, indices, value), "unrolled"), "unrolled")

    from nnvm.te.expr import Fma

    product = Fma(Broadcast(load(x, (io * rows + i, kk)), lanes), Load(w, (jo, kk, at[1])), Load(acc, at))
    body = Seq((
        each(Broadcast(const(0.0, F32), lanes)),
        For(kk, const(k), each(product)),
        each(Load(acc, at), y, (io * rows + i, Ramp(jo * width + v * lanes, 1, lanes))),
    ))  # fmt: skip
    return PrimFunc("tile", (x, w, y), 1, (), For(jo, const(2), For(io, const(4), Allocate(acc, body))))


def hot_loop(text: str) -> list[str]:
    """Instructions of the innermost loop: between the last label before the first FMA and the jump after it."""
    lines = [line.strip() for line in text.splitlines()]
    first = next(k for k, line in enumerate(lines) if line.startswith("vfmadd"))
    start = max(k for k in range(first) if lines[k].endswith(":"))
    end = next(k for k in range(first, len(lines)) if lines[k].startswith("j"))
    return [line for line in lines[start + 1 : end + 1] if line and not line.startswith(".")]


@pytest.mark.parametrize(
    "target, rows, vectors, register",
    [("llvm -mcpu=haswell", 6, 2, "ymm"), ("llvm -mcpu=skylake-avx512", 14, 2, "zmm")],
)
def test_a_register_tile_stays_in_registers(target: str, rows: int, vectors: int, register: str) -> None:
    t = Target.parse(target)
    loop = hot_loop(assembly(tile(rows, vectors, t.lanes()), t))
    products = [line for line in loop if line.startswith("vfmadd")]
    assert len(products) == rows * vectors and all(register in p for p in products)
    assert not [line for line in loop if "rsp" in line or "rbp)" in line]
    assert len(loop) <= rows * vectors + rows + vectors + 4  # products, operands, and the loop itself


def test_targets_without_fused_products() -> None:
    text = assembly(tile(2, 2, 4), Target.parse("llvm -mcpu=nehalem"))
    assert "fmadd" not in text and "ymm" not in text and "mulpd" in text


def test_other_architectures_compile() -> None:
    text = assembly(tile(4, 2, 4), Target.parse("llvm -mtriple=aarch64-unknown-linux-gnu"))
    assert "fmla" in text


def test_workspace_is_per_thread() -> None:
    x, y, s = Buffer("x", (8, 4), F32), Buffer("y", (8, 4), F32), Buffer("s", (4,), F32, scope="scratch")
    i, j, k = Var("i"), Var("j"), Var("k")
    body = For(i, const(8), Allocate(s, Seq((
        For(j, const(4), Store(s, (j,), load(x, (i, j)))),
        For(k, const(4), Store(y, (i, k), load(s, (binary("sub", 3, k),)))),
    ))), "parallel")  # fmt: skip
    (kernel,) = compile_funcs([PrimFunc("w", (x, y), 1, (), body)])
    assert kernel.workspace == 64
    a, out = np.random.default_rng(0).random((8, 4), np.float32), np.zeros((8, 4), np.float32)
    for threads in (1, 2, 3):
        out[:] = 0
        kernel(a, out, threads=threads)
        assert (out == a[:, ::-1]).all()


def test_expressions_nested_deeper_than_python_recurses() -> None:
    x, y = Buffer("x", (1,), F32), Buffer("y", (1,), F32)
    value: Expr = load(x, (const(0),))
    for _ in range(2000):
        value = value + 1.0
    (kernel,) = compile_funcs([PrimFunc("deep", (x, y), 1, (), Store(y, (const(0),), value))])
    assert run(kernel, 1)[0] == 2000


def test_threads_compile_what_one_thread_does(monkeypatch: pytest.MonkeyPatch, compilations: list[str]) -> None:
    monkeypatch.setenv("NNVM_CACHE", "0")
    funcs = [add(f"f{i}", float(i)) for i in range(12)]
    results = []
    for threads in ("1", "4"):
        monkeypatch.setenv("NNVM_COMPILE_THREADS", threads)
        results.append([run(k).tolist() for k in compile_funcs(funcs)])
    assert results[0] == results[1] and len(compilations) == 24
    assert not [t for t in threading.enumerate() if t.name.startswith("nnvm-compile")]


def test_an_error_on_a_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNVM_COMPILE_THREADS", "3")
    original = llvm_jit.object_code
    seen: list[str] = []

    def fails_once(ir: str, target: Target) -> bytes:
        seen.append(ir)
        if len(seen) == 2:
            raise RuntimeError("LLVM cannot")
        return original(ir, target)

    monkeypatch.setattr(llvm_jit, "object_code", fails_once)
    with pytest.raises(RuntimeError, match="LLVM cannot"):
        compile_funcs([add(f"f{i}", float(i)) for i in range(4)])
    assert not [t for t in threading.enumerate() if t.name.startswith("nnvm-compile")]


def test_threads_are_the_cores_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NNVM_COMPILE_THREADS", raising=False)
    monkeypatch.setattr(config.os, "sched_getaffinity", lambda pid: set(range(3)), raising=False)
    assert config.compile_threads() == 3
    monkeypatch.setenv("NNVM_COMPILE_THREADS", "5")
    assert config.compile_threads() == 5
    monkeypatch.setenv("NNVM_COMPILE_THREADS", "none")
    assert config.compile_threads() == 3
