"""The backend as a whole: memory semantics, fallback, strictness, report, training, threads."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from import_capture import same
from torch import nn

import nnvm_torch
from nnvm_torch import backend as backend_module
from nnvm_torch import faults


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    nnvm_torch.reset()
    return torch.compile(fn, backend=nnvm_torch.nnvm, options=options or None)


def check(fn: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """Outputs and arguments afterwards are as in eager; gives (outputs, arguments) of the compiled call."""
    mine, theirs = [a.clone() for a in args], [a.clone() for a in args]
    with torch.no_grad():
        got, want = compiled(fn)(*mine), fn(*theirs)
    same(got, want, atol=1e-5, rtol=1e-4)
    same(mine, theirs)
    return got, mine


def test_strides_are_eagers() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    check(
        lambda x: (x + 1, x.relu().mean(1), x.permute(0, 2, 3, 1) * 2, (x * 2)[:, ::2], (x + 1).expand(2, 3, 4, 5)),
        image,
    )
    check(lambda x: (x.t() + 1, (x + 1).t(), x.t().contiguous() * 1), torch.randn(4, 5))


def test_views_of_outputs_and_inputs_alias_as_in_eager() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        return y, y.view(-1), y[:, 1:], x.t(), x, (x * 2)[0]

    (y, flat, part, turned, x_out, row), (x,) = check(fn, torch.randn(3, 4))
    assert y.data_ptr() == flat.data_ptr() and part.data_ptr() == y.data_ptr() + 4
    assert turned.data_ptr() == x.data_ptr() and x_out is x and row.data_ptr() not in (x.data_ptr(), y.data_ptr())


def test_parts_that_eager_does_not_copy_alias() -> None:
    (halves, thirds), (x,) = check(lambda x: (torch.unsafe_split(x, 2), torch.unsafe_chunk(x, 3, 1)), torch.randn(4, 6))
    assert [t.untyped_storage()._cdata for t in (*halves, *thirds)] == [x.untyped_storage()._cdata] * 5
    (a, b), _ = check(lambda x: torch.unsafe_split_with_sizes(x + 1, [1, 3]), torch.randn(4, 6))
    assert b.data_ptr() == a.data_ptr() + 24


@pytest.mark.parametrize("strides", [(2, 0, 1), (1, 1, 1), (0, 0, 0)])
def test_results_whose_elements_share_memory(strides: tuple[int, ...]) -> None:
    def fn(x: Any) -> Any:
        return torch.empty_strided((2, 3, 4), strides, dtype=x.dtype), x.new_empty_strided((2, 3, 4), strides), x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a, b, c = compiled(fn)(x := torch.randn(3))
    assert a.stride() == b.stride() == strides and a.shape == b.shape == (2, 3, 4)
    assert torch.equal(c, x + 1)


def test_equal_outputs_are_tensors_of_their_own() -> None:
    (a, b, c, d), (x,) = check(lambda x: (x * 2, x * 2, x.clone(), torch.ones(3)), torch.randn(3))
    assert len({t.data_ptr() for t in (a, b, c, d, x)}) == 5


def test_arguments_written_in_place() -> None:
    def fn(x: Any, cache: Any) -> Any:
        x.mul_(2)
        cache[1] = x[0]
        return x.sum() + cache.sum()

    check(fn, torch.randn(2, 3), torch.zeros(4, 3))


def test_a_constant_that_is_returned_is_new_at_each_call() -> None:
    fn = compiled(lambda x: (x + 1, torch.zeros(3), torch.tensor([1.0, 2.0])))
    for t in fn(torch.ones(1))[1:]:
        t.add_(5)
    assert fn(torch.ones(1))[1].tolist() == [0, 0, 0] and fn(torch.ones(1))[2].tolist() == [1, 2]


def test_an_unsupported_call_runs_in_aten_and_is_reported() -> None:
    def fn(x: Any) -> Any:
        y = torch.linalg.inv(x.relu() + torch.eye(3))
        return (y * 2).sum(), torch.fft.rfft(x).abs()

    check(fn, torch.rand(3, 3))
    report = nnvm_torch.report()
    assert 0 < report.native_fraction < 1
    found = [f for f in report.fallbacks if "linalg_inv_ex" in f.op]
    assert found and "test_backend.py" in found[0].source and found[0].reason == "no conversion"
    assert any("complex64" in f.reason or "fft" in f.op for f in report.fallbacks)
    assert "ATen: aten.linalg_inv_ex" in str(report)


def test_strict_lists_all_of_them_at_once() -> None:
    fn = compiled(lambda x: torch.linalg.inv(x) + torch.linalg.matrix_exp(x), strict=True)
    with pytest.raises(Exception, match=r"(?s)calls cannot be compiled.*linalg_inv_ex.*linalg_matrix_exp"):
        fn(torch.eye(3))


def test_complex_numbers_pass_between_aten_calls() -> None:
    def rope(x: Any, angles: Any) -> Any:
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(z).flatten(1) + 1

    check(rope, torch.randn(3, 8), torch.rand(4))


def test_random_calls_follow_eagers_generator_in_order() -> None:
    def fn(x: Any) -> Any:
        return torch.rand(3) + x, F.dropout(x, 0.5), torch.randn(3) * 2

    run, x = compiled(fn), torch.ones(3)
    torch.manual_seed(7)
    want = fn(x)
    torch.manual_seed(7)
    same(run(x), want)


def test_errors_are_eagers() -> None:
    for fn, args, kind, says in [
        (lambda w, i: F.embedding(i, w), (torch.randn(5, 2), torch.tensor([5])), IndexError, "out of range"),
        (lambda a, b: a // b, (torch.tensor([5]), torch.tensor([0])), RuntimeError, "(?i)zero"),
    ]:
        with pytest.raises((kind, ZeroDivisionError, RuntimeError), match=says):
            compiled(fn)(*args)


def test_a_fault_in_the_compiler_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise AssertionError("no such luck")

    monkeypatch.setattr(backend_module, "compile_graph", broken)
    faults._warned.clear()
    with pytest.warns(UserWarning, match="Please report this.*no such luck"):
        check(lambda x: x * 2 + 1, torch.randn(3))
    assert "no such luck" in nnvm_torch.report().graphs[0].failure
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(lambda x: x * 3 + 1, torch.randn(3))
    monkeypatch.setenv("NNVM_DEBUG", "1")
    with pytest.raises(Exception, match="no such luck"):
        compiled(lambda x: x * 4)(torch.randn(3))


def test_training_gives_eagers_gradients() -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    theirs = nn.Sequential(*(type(m)(*a) for m, a in zip(ours, [(2, 4, 3), (4,), (), (), (36, 3)])))
    theirs.load_state_dict(ours.state_dict())
    run, x = compiled(ours), torch.randn(2, 2, 5, 5)
    for m, f in ((ours, run), (theirs, theirs)):
        F.cross_entropy(f(x), torch.tensor([0, 2])).backward()
        torch.optim.SGD(m.parameters(), lr=0.1).step()
    same([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()], atol=1e-5, rtol=1e-3)
    same(list(ours.state_dict().values()), list(theirs.state_dict().values()), atol=1e-5, rtol=1e-3)
    assert {g.kind for g in nnvm_torch.report().graphs} == {"forward", "backward"}


def test_one_compilation_serves_all_sizes() -> None:
    m = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8)).eval()
    torch._dynamo.reset()
    nnvm_torch.reset()
    run = torch.compile(m, backend=nnvm_torch.nnvm, dynamic=True)
    with torch.no_grad():
        for n in (3, 7, 2, 64):
            x = torch.randn(n, 6)
            same(run(x), m(x), atol=1e-5, rtol=1e-4)
    assert len(nnvm_torch.report().graphs) == 1


def test_threads_share_a_compiled_function() -> None:
    m = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), nn.Softmax(-1)).eval()
    run, inputs = compiled(m), [torch.randn(4, 16) for _ in range(8)]

    def one(x: Any) -> Any:
        with torch.no_grad():
            return [run(x) for _ in range(20)][-1]

    with torch.no_grad():
        run(inputs[0])
        want = [m(x) for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        same(list(pool.map(one, inputs)), want, atol=1e-5, rtol=1e-4)


def test_report_of_one_compiled_function() -> None:
    first, second = (
        torch.compile(lambda x: x.exp().sum(), backend=nnvm_torch.nnvm),
        compiled(lambda x: torch.fft.rfft(x)),
    )
    first(torch.randn(5)), second(torch.randn(5))
    mine, other = nnvm_torch.report(first), nnvm_torch.report(second)
    assert mine.native_fraction == 1 and len(mine.kernels) >= 1 and not mine.fallbacks
    assert other.native_fraction == 0 and other.fallbacks
    assert {"import", "passes", "llvm"} <= set(mine.compile_seconds)
    assert "exp" in mine.kernels[0].ops and "2 graphs" in str(nnvm_torch.report())
    nnvm_torch.reset()
    assert not nnvm_torch.report().graphs and nnvm_torch.report().native_fraction == 1
    with pytest.raises(TypeError, match=r"expected what torch\.compile"):
        nnvm_torch.report(3)


def test_report_counts_graph_breaks_and_recompiles() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    run = compiled(fn)
    run(torch.ones(2)), run(torch.ones(3))
    report = nnvm_torch.report()
    assert sum(report.graph_breaks.values()) >= 1
    assert any("size mismatch" in r for r in report.recompiles)


def test_verify_compares_with_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compiled(lambda x: x * 2 + 1, verify=1)
    same(run(torch.ones(3)), torch.full((3,), 3.0))
    from nnvm_torch.runner import Runner

    right = Runner.__call__
    monkeypatch.setattr(Runner, "__call__", lambda self, args: [t + 1 for t in right(self, args)])
    with pytest.raises(RuntimeError, match="verify: output 0 differs from eager"):
        compiled(lambda x: x * 3, verify=1)(torch.ones(3))


def test_a_module_without_gcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    check(torch.nn.Linear(4, 4), torch.ones(1, 4))


def test_classes_of_tensors() -> None:
    class Image(torch.Tensor):
        pass

    net, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4).as_subclass(Image)
    run = compiled(net)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            got, want = run(x), net(x)
            assert type(got) is type(want) is Image
            torch.testing.assert_close(got.as_subclass(torch.Tensor), want.as_subclass(torch.Tensor))
