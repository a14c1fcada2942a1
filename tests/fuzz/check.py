"""Runs a model in eager, in float64 and compiled, and says how they differ.

What nnvm gives must be what eager gives: exactly in dtype, shape, strides, aliasing, integers and errors; in floats no
farther from a float64 run than twice eager's own distance, plus a few units in the last place. Where rounding decides
(a sort, a floor, a comparison), a difference counts only if nudging eager's intermediate results by a unit or two in
the last place does not explain it. The bits of a float, looked at as an integer, are a case of that: they are nudged as
the float is, and a difference of some units in the last place is no fault there either.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import nnvm_torch
from nnvm_torch.decompositions import decompositions
from tests.fuzz.program import Program, namespace

__all__ = ["Fault", "check", "classified"]

#: Units in the last place, relative to the largest element, that are nobody's fault. Special functions of float64 are
#: good to some dozen units only, in eager too.
FLOOR_ULPS = {torch.float64: 64}
#: Eager runs with nudged values before a difference counts; a bit that rounding decides stays the same in half of them.
NUDGES = 48


@dataclass(frozen=True)
class Fault:
    """How nnvm and eager differ: `kind` is one word, `detail` names the result and the difference."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass
class Run:
    """One call: its results and inputs afterwards, flat, with gradients; or the error."""

    results: list[Any]
    inputs: dict[str, torch.Tensor]
    grads: dict[str, torch.Tensor | None]
    error: Exception | None = None


class Loaded:
    """A program's source, ready to be called."""

    def __init__(self, program: Program, wide: bool = False) -> None:
        self.program = program
        names = namespace()
        source = program.model_source()
        if wide:
            source = re.sub(r"torch\.(float32|float16|bfloat16)\b", "torch.float64", source).replace(".float()", "")
        exec(compile(program.inputs_source() + "\n\n" + source, f"<fuzz {program.seed}>", "exec"), names)
        self.make: Callable[..., dict[str, torch.Tensor]] = names["make_inputs"]  # type: ignore[assignment]
        self.model_type: Any = names["Model"]
        self.wide = wide
        self.members = [m.name for m in program.members]
        self.model: Any = None
        self.callable: Any = None

    def start(self, sizes: tuple[int, int], seed: int, wrap: Callable[[Any], Any]) -> None:
        inputs = self.inputs(sizes, seed)
        self.model = self.model_type(**{k: inputs[k] for k in self.members})
        self.callable = wrap(self.model)

    def inputs(self, sizes: tuple[int, int], seed: int) -> dict[str, torch.Tensor]:
        inputs = self.make(*sizes, seed)
        return _widened(inputs) if self.wide else inputs

    def call(self, sizes: tuple[int, int], seed: int, mode: Any = None) -> Run:
        """One call with fresh arguments; parameters and buffers stay as they are."""
        inputs = {k: v for k, v in self.inputs(sizes, seed).items() if k not in self.members}
        members = {k: getattr(self.model, k) for k in self.members}
        if self.program.grad:
            for v in inputs.values():
                if isinstance(v, torch.Tensor) and v.is_floating_point():
                    v.requires_grad_()
            for v in members.values():
                v.grad = None
        everything = {**inputs, **members}
        try:
            with mode or torch.enable_grad(), _numbers_as(torch.float64 if self.wide else torch.float32):
                out = self.callable(**inputs)
                flat = pytree.tree_leaves(out)
                if self.program.grad:
                    _backward(flat)
        except Exception as e:
            return Run([], everything, {}, e)
        return Run(flat, everything, {k: v.grad for k, v in everything.items() if isinstance(v, torch.Tensor)})


@contextmanager
def _numbers_as(dtype: torch.dtype) -> Iterator[None]:
    """Inside, integers and Python floats make tensors of `dtype`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _backward(results: list[Any]) -> None:
    targets = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
    if targets:
        g = torch.Generator().manual_seed(5)
        seeds = [(torch.randn(t.shape, generator=g, dtype=torch.float64) + 0.1).to(t.dtype) for t in targets]
        torch.autograd.backward(targets, seeds)


def _widened(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Floats as float64, on memory of the same form: what shared it still does."""
    storages: dict[int, torch.Tensor] = {}
    out = {}
    for name, t in inputs.items():
        if isinstance(t, torch.Tensor) and t.is_floating_point():
            key = t.untyped_storage().data_ptr()
            if key not in storages or key == 0:
                count = t.untyped_storage().nbytes() // t.element_size()
                storages[key] = t.as_strided((count,), (1,), 0).double()
            t = storages[key].as_strided(t.shape, t.stride(), t.storage_offset())
        out[name] = t
    return out


#: Operators that move values about.
MOVING = re.compile("detach|alias|empty|clone|copy|index$|index_select|index_fill|gather|::cat|full|::_to")
#: Operators that add up many terms: another order moves a result by units of the terms, not of the result.
SUMS = re.compile(
    "mm|mv|conv|linear|dot|sum|mean|var|std|norm|avg_pool|upsample|attention|cdist|trilinear|scatter_|index_add|index_put"
    "|lstm|gru|rnn|fold|col2im|backward|loss|grid|inv|solve|det|cholesky|embedding_bag"
)


#: Sums whose terms may cancel: what is rounded on the way is larger than the result.
TOTALS = ("aten::sum", "aten::mean")


#: Operators that may name any of equal elements, unless asked for a stable order, and where `dim` stands among their
#: arguments: which one eager names depends on the vectors of the processor.
TIES = {"aten::sort": 1, "aten::topk": 2, "aten::kthvalue": 2}


#: Operators that eager itself computes to no more than this, relative: trigamma's series ends early, and the Bessel
#: functions that oscillate lose digits from 1e-13 at 2 to 1e-6 at 5.
INEXACT = {"aten::polygamma": 1e-9, **{f"aten::special_bessel_{kind}": 1e-6 for kind in ("j0", "j1", "y0", "y1")}}


class Nudged(TorchDispatchMode):
    """Moves inexact float results by up to two units in the last place, of sums in that of the largest of them, gives
    NaN any sign (which one it has is the processor's choice, by the order of the operands), and selects and sorts
    equal elements in any order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.g = torch.Generator().manual_seed(seed)
        self.coarse = seed % 2 == 1  # sums in whole units of the largest: what cancels to nearly 0 becomes 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.view.dtype and args[0].is_floating_point():
            self.nudge(args[0], exact=False)  # what is exact in a float's value may not be so in its bits
        kwargs, schema = kwargs or {}, func._schema
        if schema.name in TIES and not kwargs.get("stable") and args[0].dim():
            return self.reordered(func, args, kwargs)
        out = func(*args, **kwargs)
        if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
            return out
        if MOVING.search(schema.name):
            return out
        summed = SUMS.search(schema.name) is not None
        for t in pytree.tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel() and not t._is_zerotensor():
                terms = _terms(schema.name, args[0], t) if schema.name in TOTALS else 0.0
                self.nudge(t, summed=summed, error=INEXACT.get(schema.name, 0.0), terms=terms)
        return out

    def reordered(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operator, to which the elements along its axis come in another order; places as they were before."""
        at = TIES[func._schema.name]
        dim = kwargs.get("dim", args[at] if len(args) > at else -1)
        order = torch.randperm(args[0].shape[dim], generator=self.g)
        values, places = func(args[0].index_select(dim, order), *args[1:], **kwargs)
        return values, order[places]

    def nudge(self, t: torch.Tensor, exact: bool = True, summed: bool = False, error: float = 0.0,
              terms: float = 0.0) -> None:  # fmt: skip
        """`exact`: integers stay as they are; `summed`: the step is one of the largest element, or of the rounding of
        `terms`; `error`: of eager."""
        with torch.no_grad():
            wide, eps = t.double(), max(torch.finfo(t.dtype).eps, error)
            unit = max(eps * _size(wide[wide.isfinite()]), terms) if summed else 0.0
            step = torch.randn(t.shape, generator=self.g, dtype=torch.float64)
            moved = wide + step * (unit or eps * wide)
            moved = ((wide / unit).round() * unit if unit and self.coarse else moved).to(t.dtype)
            if not any(s == 0 and n > 1 for s, n in zip(t.stride(), t.shape)):
                kept = (t == t.round()) & exact | ~t.isfinite() | ~moved.isfinite()
                signs = torch.randint(0, 2, t.shape, generator=self.g) * 2 - 1
                t.copy_(torch.where(t.isnan(), t.copysign(signs), torch.where(kept, t, moved)))


def _terms(name: str, x: torch.Tensor, total: torch.Tensor) -> float:
    """A rounding of n terms added up: that of the root of n times the largest one."""
    n = max(x.numel() / total.numel(), 1.0)
    eps = torch.finfo(total.dtype if total.dtype == torch.float64 else torch.float32).eps
    wide = x.double()
    return eps * _size(wide[wide.isfinite()]) * n**0.5 / (n if name == "aten::mean" else 1.0)


def check(program: Program, backend: Any = "nnvm") -> Fault | None:
    """The first difference between eager and `backend`; None where there is none."""
    torch._dynamo.reset()
    nnvm_torch.reset()
    eager, compiled = Loaded(program), Loaded(program)
    seed, first = program.seed, program.sizes[0]
    eager.start(first, seed, lambda m: m)
    dynamic = True if program.dynamic else None
    compiled.start(first, seed, lambda m: torch.compile(m, backend=backend, dynamic=dynamic))
    reference: Loaded | None = Loaded(program, wide=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert reference is not None
        reference.start(first, seed, lambda m: m)
        for round_, sizes in enumerate((*program.sizes, program.sizes[0])):
            want, got = eager.call(sizes, seed + round_), compiled.call(sizes, seed + round_)
            right = reference.call(sizes, seed + round_) if reference is not None else None
            if right is not None and right.error is not None:
                reference = right = None
            fault = compare(want, got, right, program, sizes, round_)
            if fault is not None:
                return fault
            if want.error is not None:
                break
    if backend != "nnvm" or want.error is not None:
        return None
    return _compiler_fault(caught) or (_conversion_fault() if len(set(program.sizes)) == 1 else None)


def _compiler_fault(caught: Any) -> Fault | None:
    for w in caught:
        if "nnvm could not" in str(w.message):
            return Fault("compiler", str(w.message).partition("gives: ")[2] or str(w.message))
        if "AOTAutograd could not trace" in str(w.message):
            return Fault("tracing", str(w.message).partition("instead: ")[2])
    return None


def _conversion_fault() -> Fault | None:
    """A converter that raised, or gave another type than PyTorch. (With dynamic sizes some may refuse.)"""
    for f in nnvm_torch.report().fallbacks:
        if f.reason.startswith(("conversion failed", "conversion gives")):
            return Fault("conversion", f"{f.op}: {f.reason}")
    return None


def compare(want: Run, got: Run, right: Run | None, program: Program, sizes: Any, round_: int) -> Fault | None:
    if (want.error is None) != (got.error is None):
        if want.error is not None:
            return Fault("no-error", f"eager raises {_short(want.error)}")
        assert got.error is not None
        return Fault("raises", _short(got.error))
    if want.error is not None:
        return None
    if len(want.results) != len(got.results):
        return Fault("structure", f"{len(got.results)} results, not {len(want.results)}")
    pairs = [(f"result {i}", a, b) for i, (a, b) in enumerate(zip(got.results, want.results))]
    pairs += [(f"input {k}", got.inputs[k], v) for k, v in want.inputs.items()]
    fault = _forms(pairs)
    if fault is None:
        fault = _aliasing(got, want)
    if fault is not None:
        return fault
    grads = [(f"grad {k}", got.grads[k], v) for k, v in want.grads.items()]
    for name, a, b in grads:
        if (a is None) != (b is None):
            return Fault("grad", f"{name}: {'none' if a is None else 'some'}, not {'none' if b is None else 'some'}")
    pairs += [(n, a, b) for n, a, b in grads if b is not None]
    fault = _forms([p for p in pairs if p[0].startswith("grad")], strides=False)
    if fault is not None:
        return fault
    rights = _flat(right) if right is not None else []
    if len(rights) != len(pairs):
        rights = [None] * len(pairs)
    for i, ((name, a, b), r) in enumerate(zip(pairs, rights)):
        bad = differing(a, b, r)
        if bad is not None and not _explained(program, sizes, round_, i, a, b):
            kind = "value" if name.startswith("result") else name.split()[0]
            return Fault(kind, f"{name}: {_example(a, b, bad)}")
    return None


def _flat(run: Run) -> list[Any]:
    return [*run.results, *run.inputs.values(), *(g for g in run.grads.values() if g is not None)]


def _forms(pairs: Any, strides: bool = True) -> Fault | None:
    for name, a, b in pairs:
        if type(a) is not type(b) and not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            return Fault("structure", f"{name}: {type(a).__name__}, not {type(b).__name__}")
        if not isinstance(b, torch.Tensor):
            continue
        for what in ("dtype", "shape", "requires_grad"):
            if getattr(a, what) != getattr(b, what):
                return Fault(what, f"{name}: {getattr(a, what)}, not {getattr(b, what)}")
        if strides and b.numel() and _strides(a) != _strides(b):
            return Fault("strides", f"{name}: {a.stride()}, not {b.stride()} of shape {tuple(b.shape)}")
    return None


def _strides(t: torch.Tensor) -> list[int]:
    """Of dimensions of more than one element."""
    return [s for s, n in zip(t.stride(), t.shape) if n > 1]


def _aliasing(got: Run, want: Run) -> Fault | None:
    """Which results and inputs share memory with which, and from where on."""

    def shared(run: Run) -> list[tuple[int, int, int]]:
        results = [t for t in run.results if isinstance(t, torch.Tensor)]
        tensors = [*results, *(t for t in run.inputs.values() if isinstance(t, torch.Tensor))]
        keys = [t.untyped_storage()._cdata if t.numel() else -i - 1 for i, t in enumerate(tensors)]
        return [(i, j, tensors[i].storage_offset() - tensors[j].storage_offset())
                for i in range(len(results)) for j in range(len(tensors))
                if i != j and keys[i] == keys[j]]  # fmt: skip

    a, b = shared(got), shared(want)
    return None if a == b else Fault("alias", f"(result, tensor, offset) {a}, not {b}")


def differing(a: Any, b: Any, r: Any) -> torch.Tensor | None:
    """Where `a` is neither eager's `b` nor close to the float64 `r`; None where it is everywhere."""
    if not isinstance(b, torch.Tensor):
        return None if a == b or a != a else torch.ones(())
    a, b = a.detach(), b.detach()
    if not b.is_floating_point():
        bad = a != b
    else:
        r = r.detach() if isinstance(r, torch.Tensor) and r.is_floating_point() and r.shape == b.shape else None
        bad = ~_near(a, b, b, r)
        if r is not None:
            bad &= ~_near(a, r, b, r)
            bad &= b.isfinite() | ~r.isfinite()  # eager went beyond its type on the way: where, is a matter of order
    return bad if bool(bad.any()) else None


def _near(a: torch.Tensor, to: torch.Tensor, eager: torch.Tensor, right: torch.Tensor | None) -> torch.Tensor:
    a64, to64 = a.double(), to.to(a.dtype).double()
    error = _size((eager.double() - right)[right.isfinite() & eager.isfinite()]) if right is not None else 0.0
    floor = FLOOR_ULPS.get(a.dtype, 16) * torch.finfo(a.dtype).eps * _size(to64[to64.isfinite()])
    return ((a64 - to64).abs() <= 2 * error + floor) | (a64 == to64) | (a64.isnan() & to64.isnan())


def _size(t: torch.Tensor) -> float:
    return float(t.abs().max()) if t.numel() else 0.0


def _explained(program: Program, sizes: Any, round_: int, at: int, a: Any, b: Any) -> bool:
    """Do eager runs with nudged intermediate results differ from eager as much, in the same places?"""
    if not isinstance(b, torch.Tensor):
        return False
    a, b = a.detach(), b.detach()
    bad = differing(a, b, None)
    if bad is None:
        return True
    difference, spread = _distance(a, b), torch.zeros(b.shape, dtype=torch.float64)
    strange = torch.zeros(b.shape, dtype=torch.bool)
    for k in range(NUDGES):
        nudged = Loaded(program)
        nudged.start(program.sizes[0], program.seed, lambda m: m)
        all_sizes = (*program.sizes, program.sizes[0])
        run = None
        for i in range(round_ + 1):
            run = nudged.call(all_sizes[i], program.seed + i, Nudged(1001 * k + i))
        assert run is not None
        flat = _flat(run)
        if run.error is not None or len(flat) <= at or flat[at].shape != b.shape:
            return run.error is not None
        c = flat[at].detach()
        both = c.isfinite() & b.isfinite()
        spread = torch.maximum(spread, torch.where(both, _distance(c, b), 0.0))
        strange |= ~both & ~((c == b) | (c.isnan() & b.isnan()))
        if not bool((bad & ~strange & ~(difference <= 8 * spread)).any()):
            return True
    return False


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """|a - b| in float64; of integers that are near each other exactly."""
    far = (a.double() - b.double()).abs()
    if b.is_floating_point():
        return far
    return torch.where(far < 2.0**60, (a.long() - b.long()).abs().double(), far)


def _example(a: Any, b: Any, bad: torch.Tensor) -> str:
    if not isinstance(b, torch.Tensor):
        return f"{a}, not {b}"
    where = bad.nonzero()[0].tolist()
    x, y = a.detach()[tuple(where)].item(), b.detach()[tuple(where)].item()
    return f"{b.dtype} {tuple(b.shape)} differs in {int(bad.sum())} of {b.numel()}, {x!r}, not {y!r}, at {where}"


def _short(e: Exception) -> str:
    lines = [line for line in str(e).strip().splitlines() if line.strip()]
    return f"{type(e).__name__}: {lines[0][:200] if lines else ''}"


def classified(program: Program) -> tuple[Fault | None, bool]:
    """(difference, is it one that torch has without nnvm)."""
    fault = check(program)
    if fault is None or fault.kind in ("compiler", "conversion"):
        return fault, False
    if fault.kind == "tracing":
        return fault, True
    others = [check(program, b) for b in ("aot_eager", *((as_traced,) if fault.kind == "strides" else ()))]
    return fault, any(other is not None and other.kind == fault.kind for other in others)


def as_traced(gm: Any, inputs: Any) -> Any:
    """A backend that runs ATen, and lays out the results as the trace says: some of torch's traces are wrong in it."""

    def compiler(graph: Any, _: Any) -> Any:
        (output,) = (n for n in graph.graph.nodes if n.op == "output")
        wanted = [getattr(r, "meta", {}).get("val") for r in output.args[0]]

        def run(args: list[Any]) -> list[Any]:
            made = list(graph.forward(*args))
            for i, (t, w) in enumerate(zip(made, wanted)):
                if isinstance(t, torch.Tensor) and t._base is None:
                    strides = [s if isinstance(s, int) else s.node.hint for s in w.stride()]
                    made[i] = torch.empty_strided(t.shape, strides, dtype=t.dtype).copy_(t)
            args.clear()
            return made

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    return aot_autograd(fw_compiler=compiler, decompositions=decompositions())(gm, inputs)
