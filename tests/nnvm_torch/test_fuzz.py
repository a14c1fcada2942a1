"""Random models, compiled against eager (`tests/fuzz`), and the kinds of faults that they found.

By hand: ``python -m tests.fuzz --seed 0 --count 10000``.
"""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import nnvm_torch
from tests.fuzz.check import Loaded, check, differing
from tests.fuzz.generate import generate, generate_changing
from tests.fuzz.program import Input, Program, Statement
from tests.fuzz.shrink import shrink

ROOT = Path(__file__).parents[2]


def compiled(fn, *args, native=True, fullgraph=True):
    """What the compiled function gives; no call of it falls back, unless told so, and nothing warns."""
    torch._dynamo.reset()
    nnvm_torch.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = torch.compile(fn, backend="nnvm", fullgraph=fullgraph)(*args)
    if native:
        assert nnvm_torch.report().native_fraction == 1.0, nnvm_torch.report()
    return out


def test_results_without_elements_are_native():
    def fn(x, w):
        a = F.conv2d(x, w)
        b = F.interpolate(x, scale_factor=0.4, mode="area", recompute_scale_factor=True)
        return a, b, F.max_pool2d(a, 1), x.sum(0), torch.cat((x, x), 0)

    x, w = torch.randn(0, 3, 7, 1), torch.randn(5, 3, 2, 1)
    for got, want in zip(compiled(fn, x, w), fn(x, w)):
        torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_a_number_copied_into_a_view():
    def fn(x):
        y = x * 2
        y.select(-1, 0).copy_(1)
        y[1:].fill_(3)
        return y

    x = torch.randn(3, 5)
    torch.testing.assert_close(compiled(fn, x.clone()), fn(x), rtol=0, atol=0)


def test_an_index_that_is_a_tensor_of_no_dimension():
    def fn(x, i):
        return x[i].exp()

    x, i = torch.randn(3, 5), torch.tensor(2)
    torch.testing.assert_close(compiled(fn, x, i, native=False, fullgraph=False), fn(x, i))
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="AOTAutograd could not trace"):
        got = torch.compile(fn, backend="nnvm", fullgraph=True)(x, i)
    torch.testing.assert_close(got, fn(x, i))


def test_batch_norm_in_training_with_statistics_in_a_half_type():
    def fn(x, mean, var):
        return F.batch_norm(x, mean, var, training=True)

    def inputs():
        g = torch.Generator().manual_seed(3)
        return (
            torch.randn(4, 7, 5, generator=g).bfloat16(),
            torch.randn(7, generator=g).bfloat16(),
            torch.ones(7).bfloat16(),
        )

    mine, theirs = inputs(), inputs()
    got, want = compiled(fn, *mine), fn(*theirs)
    for a, b in zip((got, *mine), (want, *theirs)):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=0.02, rtol=0.02)


def test_a_result_of_another_type_than_torch_traced_is_converted():
    """`_native_batch_norm_legit_functional` gives statistics in bfloat16, and its trace says float32."""
    from nnvm_torch.partition import AtenCall, Slot, _host_call
    from nnvm_torch.tensors import type_of

    x, m = torch.randn(4, 7).bfloat16(), torch.zeros(7).bfloat16()
    target = torch.ops.aten._native_batch_norm_legit_functional.default
    call = AtenCall(target, (Slot(0), None, None, Slot(1), Slot(1), True, 0.1, 1e-5), {}, (0, 3), False)
    types = (type_of(x), type_of(m.float()))
    assert [t.dtype for t in _host_call({"call": call, "types": types})({}, x, m)] == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("pool", [lambda x: F.avg_pool2d(x, 2), lambda x: F.adaptive_avg_pool2d(x, 3)])
def test_average_pooling_of_integers_is_left_to_aten(pool):
    x = torch.randint(-9, 9, (2, 3, 6, 6))
    try:
        want = pool(x)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            compiled(pool, x)
        return
    torch.testing.assert_close(compiled(pool, x, native=False), want, rtol=0, atol=0)


@pytest.mark.parametrize("values", [(0.0, -0.0), (-0.0, 0.0)])
def test_constants_that_are_zeros_of_either_sign(values):
    """Equal for a dictionary, and not the same: in one kernel, and in kernels of one process."""
    x = torch.tensor([1.5, -2.0, 3.0])

    def both(x):
        return tuple(r for v in values for r in (x / v, torch.copysign(x, torch.full_like(x, v)), x * v))

    def chosen(x):
        return torch.where(x > 0, *values), F.pad(x, (1, 1), value=values[0]), x.masked_fill(x > 0, values[1])

    singles = [lambda x, v=v: 1 / (x.clamp(v, v) + v) for v in values]
    for fn in (both, chosen, *singles):
        got, want = compiled(fn, x), fn(x)
        for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, want))):
            assert torch.equal(a.view(torch.int32), b.view(torch.int32)), (a, b)


# the fuzzer itself


X1 = Input("x1", (3, 4))


def program(*texts, inputs=(X1,), results=None, **more):
    statements = tuple(Statement(t, (t.partition(" = ")[0],) if " = " in t else ()) for t in texts)
    return Program(1, inputs, statements, results or (statements[-1].defines[0],), **more)


def test_the_same_seed_gives_the_same_model():
    assert [generate(s) for s in range(20)] == [generate(s) for s in range(20)]
    assert len({generate(s).model_source() for s in range(20)}) == 20


@pytest.mark.parametrize("grad", [False, True])
def test_a_wrong_compiler_is_found_and_the_model_made_smaller(grad):
    """A backend whose exp is off by a thousandth."""

    def wrong(gm, inputs):
        for node in gm.graph.nodes:
            if node.target is torch.exp:
                node.target = lambda x: torch.exp(x) * 1.001
        gm.recompile()
        return gm.forward

    p = program(
        "v2 = torch.sin(x1)", "v3 = torch.exp(v2)", "v4 = v3.sum(0)", "v5 = v2 + 1", results=("v4", "v5"), grad=grad
    )
    fault = check(p, wrong)
    assert fault.kind == "value" and "result 0" in fault.detail
    small = shrink(p, lambda q: (check(q, wrong) or fault.__class__("", "")).kind == "value", seconds=20)
    assert [s.text.partition(" = ")[2] for s in small.statements] == ["torch.exp(x1)"] or len(small.statements) == 1
    assert small.inputs[0].shape == (1, 1) and not small.grad


def test_what_a_wrong_compiler_does_beside_values():
    def copies(gm, inputs):
        return lambda *args: tuple(t.clone() for t in gm.forward(*args))

    def contiguous(gm, inputs):
        return lambda *args: tuple(t.contiguous() for t in gm.forward(*args))

    def keeps_inputs(gm, inputs):
        return lambda *args: gm.forward(*(t.clone() for t in args))

    def raises(gm, inputs):
        raise ValueError("no")

    assert check(program("v2 = x1[1:]"), copies).kind == "alias"
    assert check(program("v2 = torch.exp(x1).t().exp()"), contiguous).kind == "strides"
    assert check(program("x1.add_(1)", "v2 = torch.exp(x1)"), keeps_inputs).kind == "input"
    assert check(program("v2 = torch.exp(x1)"), raises).kind == "raises"
    assert check(program("v2 = torch.exp(x1)", "v3 = x1[v2]"), "nnvm") is None  # both raise


def test_rounding_is_no_fault_and_more_is():
    a = torch.randn(100)
    r = a.double() + 1e-9
    assert differing(a * (1 + 2e-7), a, r) is None
    assert differing(a * (1 + 1e-4), a, r) is not None
    assert differing(torch.tensor(float("nan")), torch.tensor(1.0), torch.tensor(1.0)) is not None
    assert differing(torch.tensor([1, 2]), torch.tensor([1, 3]), None) is not None


@pytest.mark.parametrize("tail", ["", " & 1", " % 5", " << 3"])
@pytest.mark.parametrize("dtype,bits", [("float32", "int32"), ("float64", "int64"), ("bfloat16", "int16")])
def test_rounding_in_the_bits_of_a_float_is_no_fault_and_more_is(dtype, bits, tail):
    def off(by):
        def backend(gm, inputs):
            def exp(x):
                y = torch.exp(x)
                return (y.view(getattr(torch, bits)) + by).view(y.dtype)

            for node in gm.graph.nodes:
                if node.target is torch.exp:
                    node.target = exp
            gm.recompile()
            return gm.forward

        return backend

    p = program(
        "v2 = torch.exp(x1)", f"v3 = v2.view(torch.{bits})", f"v4 = v3{tail}", inputs=(Input("x1", (3, 4), dtype),)
    )
    assert check(p, off(0)) is None and check(p, off(1)) is None
    if tail in ("", " << 3"):
        assert check(p, off(1000)).kind == "value"


@pytest.mark.parametrize("by,kind", [(3e-8, None), (1e-5, "value")])
@pytest.mark.parametrize("total", ["sum", "mean"])
def test_rounding_of_terms_that_cancel_is_no_fault_and_more_is(total, by, kind):
    def moved(x):
        return getattr(x, total)() + by * (x.numel() if total == "sum" else 1)

    def off(gm, inputs):
        for node in gm.graph.nodes:
            if node.target == total:
                node.target, node.op = moved, "call_function"
        gm.recompile()
        return gm.forward

    p = program(f"v2 = x1.{total}()", inputs=(Input("x1", (8, 64)),)).with_(seed=38)  # a mean of -2e-5
    found = check(p, off)
    assert (found.kind if found else None) == kind


@pytest.mark.parametrize("selects", ["torch.sort(x1, -1)", "torch.topk(x1, 5, 1)", "torch.kthvalue(x1, 7)"])
@pytest.mark.parametrize("values,equal", [("integers()", True), ("normal()", False)])
def test_another_place_of_equal_elements_is_no_fault_and_one_of_another_element_is(selects, values, equal):
    def reordered(gm, inputs):
        """Another one of equal elements, and a wrong place where all differ."""
        selecting = [n for n in gm.graph.nodes if n.target in (torch.sort, torch.topk, torch.kthvalue)]
        for node in selecting:
            def select(x, *args, function=node.target, **kwargs):
                values, places = function(x.flip(-1), *args, **kwargs)
                return values, x.shape[-1] - 1 - places if equal else places

            node.target = select
        gm.recompile()
        return gm.forward

    p = program(f"v2, v3 = {selects}", results=("v2", "v3"), inputs=(Input("x1", (4, 33), values=values),))
    found = check(p, reordered)
    assert found is None if equal else found.kind == "value" and "result 1" in found.detail


def test_the_script_of_a_model_runs():
    p = program("v2 = torch.exp(x1) @ w3", inputs=(X1, Input("w3", (4, 2), kind="parameter")))
    code = p.script().replace('"nnvm"', '"eager"')
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", range(0, 300, 60))
def test_random_models(first):
    """300 models of fixed seeds, in pieces that workers share, each in a process of its own."""
    command = [sys.executable, "-m", "tests.fuzz", "--seed", str(first), "--count", "60", "--shrink", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "60 models, 0 faults" in done.stdout


def test_models_that_are_called_with_sizes_and_numbers_that_change():
    """Three calls or more each; eager runs them all; numbers of either sign come up, and differ between the calls."""
    models = [generate_changing(seed) for seed in range(12)]
    seen = []
    for p in models:
        loaded = Loaded(p)
        loaded.start(p.sizes[0], p.seed, lambda m: m)
        assert len(p.sizes) >= 3
        assert all(loaded.call(sizes, p.seed).error is None for sizes in p.sizes)
        seen += [[loaded.inputs(s, p.seed)[i.name] for s in p.sizes] for i in p.inputs if i.dtype == "number"]
    assert any(len(set(values)) > 1 and min(values) < 0 <= max(values) for values in seen)


def test_a_wrong_answer_for_a_number_of_another_call_is_found():
    """What a backend that keeps the number of the first call gives."""

    def backend(gm, inputs):
        first = [i.node.hint if isinstance(i, torch.SymInt) else None for i in inputs]
        return lambda *args: gm(*(a if f is None else f for a, f in zip(args, first)))

    program = Program(3, (Input("k1", (), "number", "N - 6"), Input("x2", (5,))), (Statement("v3 = x2 * k1", ("v3",)),),
                      ("v3",), ((4, 3), (9, 2), (7, 3)), dynamic=True)  # fmt: skip
    assert check(program) is None
    assert check(program, backend).kind == "value"
