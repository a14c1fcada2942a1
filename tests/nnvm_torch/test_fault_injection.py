"""A fault at each stage of the compiler: one warning, eager's results, and a report that tells; NNVM_DEBUG=1 raises."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import nnvm_torch
from nnvm.graph import pass_manager as passes
from nnvm.runtime import llvm_jit
from nnvm.schedules import select
from nnvm_torch import faults
from nnvm_torch.convert import TABLE
from nnvm_torch.runner import Runner


class Broken(Exception):
    pass


def broken(*_: Any, **__: Any) -> Any:
    raise Broken("put in by a test")


@contextmanager
def in_converter(patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setitem(TABLE, torch.ops.aten.tanh.default, broken)
    yield


@contextmanager
def in_pass(patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setitem(passes.PASSES, "GraphFuse", replace(passes.PASSES["GraphFuse"], run=broken))
    yield


@contextmanager
def in_schedule(patch: pytest.MonkeyPatch) -> Iterator[None]:
    right = next(s for s in select.SCHEDULES if s.__name__ == "reductions")

    def softmax_only(inputs: Any, outputs: Any, target: Any, name: str, strides: Any) -> Any:
        return broken() if "softmax" in name else right(inputs, outputs, target, name, strides)

    with select.using(softmax_only, before="reductions"):
        yield


@contextmanager
def in_llvm(patch: pytest.MonkeyPatch) -> Iterator[None]:
    right = llvm_jit.emit

    def emit(func: Any, target: Any) -> Any:
        return broken() if "softmax" in func.name else right(func, target)

    patch.setattr(llvm_jit, "emit", emit)
    patch.setenv("NNVM_CACHE", "0")
    yield


@contextmanager
def in_runtime(patch: pytest.MonkeyPatch) -> Iterator[None]:
    patch.setattr(Runner, "_run", broken)
    yield


STAGES: dict[str, Callable[[pytest.MonkeyPatch], Any]] = {
    "conversion": in_converter, "pass": in_pass, "schedule": in_schedule, "LLVM": in_llvm, "runtime": in_runtime,
}  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.softmax(torch.tanh(self.first(x)), -1)
        return self.second(y), y.t()


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    nnvm_torch.reset()
    faults._warned.clear()
    torch.manual_seed(0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_one_warning_and_eagers_results(stage: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    m = Net().eval()
    run = torch.compile(m, backend=nnvm_torch.nnvm, dynamic=dynamic)
    with STAGES[stage](monkeypatch), warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        for rows in (4, 4, 7):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(run(x), m(x))
    told = [str(w.message) for w in caught if "nnvm" in str(w.message)]
    assert len(told) == 1 and "Please report this" in told[0] and "put in by a test" in told[0], told
    report = nnvm_torch.report()
    assert "put in by a test" in str(report)
    if stage == "runtime":
        assert report.runtime_faults
    else:  # the rest of the graph is native all the same
        (fault,) = report.graphs[0].faults
        assert report.kernels and not report.graphs[0].failure and stage in f"conversion {fault}"
    if stage in ("schedule", "LLVM", "conversion"):
        assert "test_fault_injection.py" in fault or "Net" in fault or "torch" in fault


@pytest.mark.parametrize("stage", STAGES)
def test_debugging_raises(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNVM_DEBUG", "1")
    run = torch.compile(Net().eval(), backend=nnvm_torch.nnvm)
    with STAGES[stage](monkeypatch), torch.no_grad(), pytest.raises(Exception, match="put in by a test"):
        run(torch.randn(4, 8))


@pytest.mark.parametrize("stage", ["conversion", "schedule", "LLVM"])
def test_strict_does_not_do_without(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = torch.compile(Net().eval(), backend=nnvm_torch.nnvm, options={"strict": True})
    wanted = r"(?s)strict=True.*put in by a test"
    with STAGES[stage](monkeypatch), torch.no_grad(), pytest.raises(Exception, match=wanted):
        run(torch.randn(4, 8))


def test_strict_lists_every_call_with_file_and_line() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = torch.linalg.inv(x)
        b = torch.linalg.matrix_exp(x)
        return a + b + torch.linalg.det(x)

    run = torch.compile(fn, backend=nnvm_torch.nnvm, options={"strict": True})
    first = fn.__code__.co_firstlineno
    with pytest.raises(Exception, match="strict=True") as caught:
        run(torch.eye(3) + 0.1)
    for line, name in ((1, "linalg_inv_ex"), (2, "linalg_matrix_exp"), (3, "linalg_det")):
        lines = [x for x in str(caught.value).splitlines() if name in x]
        assert lines and f"test_fault_injection.py:{first + line}" in lines[0], str(caught.value)


@torch.no_grad()
def test_weights_prepared_by_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    class Prepares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.softmax(self.w, -1)

    m, x = Prepares().eval(), torch.randn(3, 6)
    with in_schedule(monkeypatch), pytest.warns(UserWarning, match="Please report this"):
        compiled = nnvm_torch.compile(m, x)
        torch.testing.assert_close(compiled(x), m(x))
    m.w.mul_(2)
    torch.testing.assert_close(compiled(x), m(x))


def test_a_failing_call_of_the_user_is_eagers_error_and_no_fault() -> None:
    run = torch.compile(lambda x: torch.linalg.inv(x * 1.0) * 2, backend=nnvm_torch.nnvm)
    torch.testing.assert_close(run(torch.eye(3)), torch.eye(3) * 2)
    with warnings.catch_warnings(), pytest.raises(torch.linalg.LinAlgError, match="singular"):
        warnings.simplefilter("error")
        run(torch.zeros(3, 3))
    torch.testing.assert_close(run(torch.eye(3)), torch.eye(3) * 2)
    assert not nnvm_torch.report().runtime_faults
