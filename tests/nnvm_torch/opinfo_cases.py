"""Cases of PyTorch's operator and module databases, and what becomes of one: eager, compiled and in float64."""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db

import nnvm_torch

__all__ = ["Case", "Sample", "Verdict", "cases", "judge", "name_of", "run", "samples", "together",
           "uninitialised"]  # fmt: skip

#: Results that are, or hold, memory that nobody wrote: only their types can be compared.
UNINITIALISED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize_",
                 "resize_as_"}  # fmt: skip
#: ATen's own float64 answers are wrong from the seventh digit on; values are compared, not their accuracy.
ROUGH_REFERENCE = {f"special.bessel_{f}" for f in ("j0", "j1", "y0", "y1")}
#: Samples of the database among which those that are run are spread evenly.
MAX_GENERATED = 120
#: Calls over which the accuracy of an answer is averaged.
TRIALS = 8


@dataclass(frozen=True)
class Case:
    """One entry of a database for one dtype; `kind` is ``op``, or of a module ``eval`` or ``train``."""

    name: str
    kind: str
    info: Any
    dtype: torch.dtype


@dataclass(frozen=True)
class Sample:
    """A call; `fn` is a function or a module. `rough`: its answer in float64 says nothing."""

    text: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: bool = False
    rough: bool = False


@dataclass
class Verdict:
    """What became of a sample.

    Attributes:
        status: ``pass``, ``skip``, ``mismatch``, ``error`` or ``numerics``.
        detail: why, "" for a pass.
        fallbacks: operators that ATen ran, with the reason of each.
    """

    status: str
    detail: str = ""
    fallbacks: list[str] = field(default_factory=list)


def name_of(info: Any) -> str:
    """The name of an entry, with its variant."""
    variant = getattr(info, "variant_test_name", "")
    return f"{info.name}.{variant}" if variant else str(info.name)


def cases(dtypes: Sequence[torch.dtype], kinds: Sequence[str], pattern: str | None = None) -> Iterator[Case]:
    """All cases of these dtypes and kinds whose name `pattern` is found in; modules also in half types."""
    for kind in kinds:
        for info in op_db if kind == "op" else module_db:
            if pattern and not re.search(pattern, name_of(info)):
                continue
            for dtype in dtypes:
                if info.supports_dtype(dtype, "cpu") if kind == "op" else _takes(info, dtype):
                    yield Case(name_of(info), kind, info, dtype)


def together(calls: Sequence[Sample]) -> Sample:
    """All calls as one, to be compiled once: where it passes, each of them does."""
    fns = [s.fn for s in calls]

    def fn(*given: Any) -> Any:
        return [f(*args, **kwargs) for f, (args, kwargs) in zip(fns, given)]

    return Sample(f"all {len(calls)} samples", fn, tuple((s.args, s.kwargs) for s in calls), {},
                  rough=any(s.rough for s in calls))  # fmt: skip


def _takes(module: Any, dtype: torch.dtype) -> bool:
    return dtype in module.dtypes or (dtype.is_floating_point and torch.float32 in module.dtypes)


def samples(case: Case, count: int, seed: int = 0) -> Iterator[Sample]:
    """`count` calls, spread over those of the database; of an operator every second one again, not contiguous."""
    torch.manual_seed(seed)
    if case.kind != "op":
        yield from _module_samples(case, count)
        return
    info, rough = case.info, case.name in ROUGH_REFERENCE
    found = list(itertools.islice(info.sample_inputs("cpu", case.dtype, requires_grad=False), MAX_GENERATED))
    for number, s in enumerate(_spread(found, count)):
        yield Sample(s.summary(), info.get_op(), (s.input, *s.args), s.kwargs, rough=rough)
        if number % 2 == 0 and isinstance(s.input, torch.Tensor) and s.input.numel() > 1:
            apart = s.noncontiguous()
            yield Sample("apart: " + s.summary(), info.get_op(), (apart.input, *apart.args), apart.kwargs,
                         rough=rough)  # fmt: skip


def _module_samples(case: Case, count: int) -> Iterator[Sample]:
    train = case.kind == "train"
    floats = case.dtype.is_floating_point
    inputs = case.info.module_inputs_func(case.info, device="cpu", dtype=case.dtype, requires_grad=train and floats,
                                          training=train)  # fmt: skip
    for x in _spread(list(itertools.islice(inputs, MAX_GENERATED)), count):
        made, given = x.constructor_input, x.forward_input
        module = case.info.module_cls(*made.args, **made.kwargs).to(case.dtype).train(train)
        if case.info.is_lazy:
            module(*copy.deepcopy(given.args), **copy.deepcopy(given.kwargs))
        yield Sample(f"{made.args} {made.kwargs} {x.desc}", module, given.args, given.kwargs, train)


def _spread(items: Sequence[Any], n: int) -> Sequence[Any]:
    return items if len(items) <= n else [items[i * len(items) // n] for i in range(n)]


# running


@dataclass
class Outcome:
    """What a call gave: its results, its arguments as it left them, gradients and buffers."""

    results: Any
    args: Any
    gradients: list[torch.Tensor | None]
    buffers: list[torch.Tensor]

    @property
    def leaves(self) -> list[Any]:
        return pytree.tree_leaves((self.results, self.args, self.gradients, self.buffers))


def run(sample: Sample, compiled: Callable[[Any], Any] = lambda fn: fn, wide: bool = False, seed: int = 0) -> Outcome:
    """Calls a copy on copies of the arguments, in float64 where `wide`; in training also its backward pass."""
    memo: dict[int, Any] = {}
    args, kwargs = pytree.tree_map(lambda x: _copied(x, memo, wide), (sample.args, sample.kwargs))
    module = copy.deepcopy(sample.fn) if isinstance(sample.fn, torch.nn.Module) else None
    if module is not None:
        module = module.double() if wide else module
        fn = compiled(module)
    else:
        fn = compiled(lambda *a, **k: sample.fn(*a, **k))
    torch.manual_seed(seed)
    if not sample.training:
        with torch.no_grad():
            results = fn(*args, **kwargs)
        return Outcome(results, (args, kwargs), [], [])
    results = fn(*args, **kwargs)
    outputs = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor) and t.requires_grad]
    torch.manual_seed(1)
    torch.autograd.backward(outputs, [torch.rand(t.shape).to(t.dtype) for t in outputs])
    assert module is not None
    given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    return Outcome(results, None, [t.grad for t in (*given, *module.parameters())], list(module.buffers()))


def _copied(x: Any, memo: dict[int, Any], wide: bool) -> Any:
    if wide and isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else x
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided:
        return x.clone() if isinstance(x, torch.Tensor) else copy.deepcopy(x, memo)
    if not (wide and x.is_floating_point()):
        return copy.deepcopy(x, memo)
    return x.detach().double().requires_grad_(x.requires_grad)


# judging


def judge(sample: Sample, values: bool = True) -> Verdict:
    """Compares nnvm's answer with eager's, and how far both are from the one in float64."""
    try:
        want, again = run(sample), run(sample, seed=1)
    except Exception as e:
        return Verdict("skip", f"eager: {_short(e)}")
    drawn = any(_differs(a, b) for a, b in zip(again.leaves, want.leaves))
    values = values and not drawn
    nnvm_torch.reset()
    try:
        got = run(sample, _with("nnvm"))
    except Exception as e:
        return _no_answer(sample, e)
    report = nnvm_torch.report()
    verdict = _compared(sample, got, want, values)
    verdict.fallbacks = [f"{f.op}: {f.reason}" for f in report.fallbacks]
    verdict.fallbacks += [f"graph: {g.failure}" for g in report.graphs if g.failure]
    return verdict


def _with(backend: str) -> Callable[[Any], Any]:
    def compiled(fn: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(fn, backend=backend, fullgraph=True)

    return compiled


def _no_answer(sample: Sample, e: Exception) -> Verdict:
    for backend in ("eager", "aot_eager"):
        try:
            run(sample, _with(backend))
        except Exception:
            return Verdict("skip", f"{backend} does not take it either: {_short(e)}")
    return Verdict("error", _short(e))


def _compared(sample: Sample, got: Outcome, want: Outcome, values: bool) -> Verdict:
    """The verdict on one answer. A suspicion about its accuracy is looked into with more values."""
    mine, theirs = pytree.tree_flatten(got.results)[1], pytree.tree_flatten(want.results)[1]
    if mine != theirs or len(got.leaves) != len(want.leaves):
        return Verdict("mismatch", f"structure {mine} instead of {theirs}"[:300])
    exact = _reference(sample) if values else None
    verdict = Verdict("pass")
    for i, (g, w) in enumerate(zip(got.leaves, want.leaves)):
        r = exact.leaves[i] if exact is not None and len(exact.leaves) == len(want.leaves) else None
        status, why = _leaf(g, w, r, values)
        if status == "mismatch":
            return Verdict(status, f"leaf {i}: {why}")
        if status != "pass" and verdict.status == "pass" and (why := _less_accurate(sample, i)):
            verdict = Verdict(status, f"leaf {i}: {why}")
    return verdict


def _less_accurate(sample: Sample, leaf: int) -> str:
    """Is the error of a leaf more than twice eager's, on average over values that round differently? Says how much.

    A single call of few elements is a matter of luck. Arguments are scaled as a whole, which keeps what is special
    about them (symmetric, positive, within a domain).
    """
    generator = torch.Generator().manual_seed(0)
    totals = [0.0, 0.0, 0.0]
    for _ in range(TRIALS):
        factor = 1 - 0.05 * torch.rand((), generator=generator, dtype=torch.float64).item()
        again = replace(sample, args=pytree.tree_map(lambda x, f=factor: _scaled(x, f), sample.args))
        exact = _reference(again)
        if exact is None:
            return ""
        outcomes = run(again, _with("nnvm")), run(again), exact
        errors = _errors(*(o.leaves[leaf] for o in outcomes))
        totals = [t + e / TRIALS for t, e in zip(totals, errors)]
    mine, theirs, ulp = totals
    accurate = mine <= 2 * theirs + ulp
    return "" if accurate else f"error {mine:.3g} against float64, eager's {theirs:.3g}, an ulp {ulp:.3g}"


def _scaled(x: Any, factor: float) -> Any:
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.layout != torch.strided:
        return x
    with torch.no_grad():
        return x.detach().clone().mul_(factor).requires_grad_(x.requires_grad)


def _leaf(g: Any, w: Any, r: Any, values: bool) -> tuple[str, str]:
    if not isinstance(w, torch.Tensor):
        plain = isinstance(w, (bool, int, float, complex))
        same = not plain or not values or (type(g) is type(w) and _difference(g, w) is None)
        return ("pass", "") if same else ("mismatch", f"{g!r} instead of {w!r}")
    if not isinstance(g, torch.Tensor) or (g.shape, g.dtype, g.layout) != (w.shape, w.dtype, w.layout):
        return "mismatch", f"{_type(g)} instead of {_type(w)}"
    if not values:
        return "pass", ""
    wide = isinstance(r, torch.Tensor) and r.dtype == torch.float64 and w.is_floating_point() and r.shape == w.shape
    mine, theirs, ulp = _errors(g, w, r) if wide else (0.0, 0.0, 0.0)
    near = wide and math.isfinite(theirs) and mine <= 2 * theirs + ulp
    problem = _difference(g, w)
    if problem is not None and not near:
        return "mismatch", problem
    if wide and math.isfinite(theirs) and not near:
        return "numerics", f"error {mine:.3g} against float64, eager's {theirs:.3g}, an ulp {ulp:.3g}"
    return "pass", ""


def _errors(g: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> tuple[float, float, float]:
    """The greatest error of nnvm's and of eager's answer, and an ulp where nnvm's is greatest."""
    kept = r.isfinite() & w.isfinite()
    if not torch.equal(g.isfinite() & r.isfinite(), kept):
        return math.inf, 0.0, 0.0
    if not bool(kept.any()):
        return 0.0, 0.0, 0.0
    info = torch.finfo(w.dtype)
    g, w, r = g.detach().double()[kept], w.detach().double()[kept], r.detach()[kept]
    mine, where = (g - r).abs().max(0)
    return mine.item(), (w - r).abs().max().item(), max(abs(r[where].item()), info.tiny) * info.eps


def _reference(sample: Sample) -> Outcome | None:
    if sample.rough:
        return None
    try:
        return run(sample, wide=True)
    except Exception:
        return None


def _difference(a: Any, b: Any) -> str | None:
    try:
        torch.testing.assert_close(a, b, equal_nan=True, check_stride=False)
    except (AssertionError, ValueError) as e:
        return " ".join(str(e).split())[:300]
    return None


def _differs(a: Any, b: Any) -> bool:
    return isinstance(a, (torch.Tensor, int, float)) and _difference(a, b) is not None


def _type(t: Any) -> str:
    return f"{t.dtype}{list(t.shape)} {t.layout}" if isinstance(t, torch.Tensor) else repr(t)


def _short(e: BaseException) -> str:
    lines = [line for line in str(e).splitlines() if line.strip()]
    return f"{type(e).__name__}: {' | '.join(lines[:3])}"[:400]


def uninitialised(case: Case) -> bool:
    """Can only the types of its results be compared?"""
    return case.name in UNINITIALISED
