"""A small PyTorch model as data: inputs, statements, results; and as source that runs by itself."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache

__all__ = ["NAME", "PRELUDE", "Input", "Program", "Size", "Statement", "namespace", "pruned"]

Size = int | str  # a number, or "N" or "M": a size that differs from call to call

NAME = re.compile(r"\b[xvwk]\d+\b")

#: How inputs get their values, and blocks of statements; part of every printed script.
PRELUDE = '''\
def normal(g, shape, dtype):
    """Mostly of size one, none near zero or near a half."""
    t = torch.randn(shape, generator=g, dtype=torch.float64)
    return (t + 0.0625 * t.sign()).to(dtype)


def special(g, shape, dtype):
    t = normal(g, shape, torch.float64).flatten()
    values = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.0, 2.0, 1e30, 1e-40, -0.5, 2.5]
    at = torch.randint(0, len(values), (t.numel(),), generator=g)
    t = torch.where(torch.rand(t.numel(), generator=g) < 0.3, torch.tensor(values, dtype=torch.float64)[at], t)
    return t.reshape(shape).to(dtype)


def positive(g, shape, dtype):
    return (torch.rand(shape, generator=g, dtype=torch.float64) + 0.1).to(dtype)


def integers(g, shape, dtype, low=-5, high=6):
    if dtype == torch.bool:
        low, high = 0, 2
    return torch.randint(0 if dtype == torch.uint8 and low < 0 else low, high, shape, generator=g).to(dtype)


def extremes(g, shape, dtype):
    info = torch.iinfo(dtype)
    values = torch.tensor([info.min, info.max, info.max - 1, 0, 1, info.min + 1, 2, info.max // 2], dtype=dtype)
    return values[torch.randint(0, len(values), shape, generator=g)]


def autocast(dtype, fn):
    with torch.autocast("cpu", dtype):
        return fn()


def without_gradients(fn):
    with torch.no_grad():
        return fn()


def checkpoint(fn, *args):
    return torch.utils.checkpoint.checkpoint(fn, *args, use_reentrant=False)
'''


@dataclass(frozen=True)
class Input:
    """A tensor or a Python number that the model takes.

    Attributes:
        name: as in the source.
        shape: its sizes.
        dtype: torch's name of it; ``number`` for a Python number.
        values: a call of one of the makers of `PRELUDE`, without its first three arguments: ``integers(low=0)``; of a
            number, what it is in a call: ``N - 5``.
        layout: how it lies in memory, a key of `_LAYOUTS`; ``view:x0[1:]`` for a view of another input.
        kind: ``argument``, ``parameter`` or ``buffer``.
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str = "float32"
    values: str = "normal()"
    layout: str = "contiguous"
    kind: str = "argument"

    def code(self) -> str:
        """The line that makes it."""
        if self.dtype == "number":
            return f"{self.name} = {self.values}"
        if self.layout.startswith("view:"):
            return f"{self.name} = {self.layout[5:]}"
        base, look = _layout(self.layout, self.shape)
        maker, _, more = self.values.partition("(")
        more = more[:-1]
        shape = "(" + "".join(f"{s}, " for s in base).strip() + ")"
        return f"{self.name} = {maker}(g, {shape}, torch.{self.dtype}{', ' if more else ''}{more}){look}"


def _times(n: int, size: Size) -> Size:
    return n * size if isinstance(size, int) else f"{n} * {size}"


def _plus(size: Size, n: int) -> Size:
    return size + n if isinstance(size, int) else f"{size} + {n}"


def _layout(layout: str, shape: tuple[Size, ...]) -> tuple[tuple[Size, ...], str]:
    """(shape to make, code of the view of it that has `shape`); contiguous where the layout does not fit."""
    rank = len(shape)
    if layout == "transposed" and rank >= 2:
        return (*shape[:-2], shape[-1], shape[-2]), ".transpose(-1, -2)"
    if layout == "permuted" and rank >= 3:
        return (shape[1], *shape[2:], shape[0]), f".permute({rank - 1}, " + ", ".join(map(str, range(rank - 1))) + ")"
    if layout == "stepped" and rank >= 1:
        return (*shape[:-1], _times(2, shape[-1])), "[..., ::2]"
    if layout == "sliced" and rank >= 1:
        return (_plus(shape[0], 2), *shape[1:]), "[1:-1]"
    if layout == "inner" and rank >= 2:
        return (*shape[:-1], _plus(shape[-1], 3)), "[..., 2:-1]"
    if layout == "expanded" and rank >= 1:
        sizes = ", ".join(map(str, shape))
        return (1, *shape[1:]), f".expand({sizes})"
    if layout == "channels_last" and rank == 4:
        return shape, ".to(memory_format=torch.channels_last)"
    if layout == "overlapping" and rank == 2:
        return (f"{shape[0]} + {shape[1]}",), f".as_strided(({shape[0]}, {shape[1]}), (1, 1))"
    return shape, ""


@dataclass(frozen=True)
class Statement:
    """A line of the model: ``v2 = v1 + x0``, or an edit in place, which defines nothing."""

    text: str
    defines: tuple[str, ...] = ()

    @property
    def uses(self) -> frozenset[str]:
        right = self.text.partition(" = ")[2] if self.defines else self.text
        return frozenset(NAME.findall(right))


@dataclass(frozen=True)
class Program:
    """A model and how it is called.

    Attributes:
        results: names of what it returns.
        sizes: values of (N, M), one pair for each call.
        dynamic: compiled with ``dynamic=True``.
        grad: with gradients of every float input.
        packing: how the results are returned: ``tuple``, ``dict`` or ``single``.
    """

    seed: int
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    results: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...] = ((4, 3),)
    dynamic: bool = False
    grad: bool = False
    packing: str = "tuple"

    def with_(self, **changes: object) -> Program:
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def arguments(self) -> list[str]:
        return [i.name for i in self.inputs if i.kind == "argument"]

    @property
    def members(self) -> list[Input]:
        return [i for i in self.inputs if i.kind != "argument"]

    def inputs_source(self) -> str:
        names = ", ".join(f"{i.name}={i.name}" for i in self.inputs)
        lines = ["def make_inputs(N, M, seed):", "    g = torch.Generator().manual_seed(seed)"]
        lines += [f"    {i.code()}" for i in self.inputs]
        return "\n".join([*lines, f"    return dict({names})"])

    def model_source(self) -> str:
        lines = ["class Model(torch.nn.Module):"]
        if self.members:
            lines += [
                f"    def __init__(self, {', '.join(m.name for m in self.members)}):",
                "        super().__init__()",
            ]
            for m in self.members:
                made = f"torch.nn.Parameter({m.name}, {self.grad})" if m.kind == "parameter" else m.name
                lines.append(f"        self.{m.name} = {made}" if m.kind == "parameter" else
                             f'        self.register_buffer("{m.name}", {made})')  # fmt: skip
            lines.append("")
        lines.append(f"    def forward({', '.join(['self', *self.arguments])}):")
        lines += [f"        {m.name} = self.{m.name}" for m in self.members]
        lines += [f"        {s.text}" for s in self.statements]
        return "\n".join([*lines, f"        return {self._returned()}"])

    def _returned(self) -> str:
        if self.packing == "single" and len(self.results) == 1:
            return self.results[0]
        if self.packing == "dict":
            return "dict(" + ", ".join(f"r{i}={r}" for i, r in enumerate(self.results)) + ")"
        return "(" + ", ".join(self.results) + ("," if len(self.results) == 1 else "") + ")"

    def script(self) -> str:
        """A program of its own that shows eager's and nnvm's answers; exits with 1 where they differ visibly."""
        made = "\n\n\n".join([PRELUDE, self.inputs_source(), self.model_source()])
        return _SCRIPT.format(made=made, sizes=list(self.sizes), dynamic=True if self.dynamic else None, grad=self.grad,
                              members=[m.name for m in self.members], seed=self.seed)  # fmt: skip


_SCRIPT = """\
import math

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

torch.set_num_threads(1)


{made}


def run(call, inputs, members):
    args = {{k: v for k, v in inputs.items() if k not in members}}
    if {grad}:
        is_float = {{k: getattr(v, "dtype", torch.bool).is_floating_point for k, v in args.items()}}
        args = {{k: v.requires_grad_() if is_float[k] else v for k, v in args.items()}}
    out = call(**args)
    flat = torch.utils._pytree.tree_leaves(out)
    if {grad}:
        floats = [t for t in flat if isinstance(t, torch.Tensor) and t.requires_grad]
        if floats:
            torch.autograd.backward(floats, [torch.ones_like(t) for t in floats])
        flat += [v.grad for v in args.values() if getattr(v, "grad", None) is not None]
    return [torch.as_tensor(t) for t in flat] + [v for v in inputs.values() if isinstance(v, torch.Tensor)]


differ = False
models = {{}}
for n, m in {sizes}:
    for backend in (None, "nnvm"):
        inputs = make_inputs(n, m, {seed})
        if backend not in models:
            model = Model(**{{k: inputs[k] for k in {members}}})
            models[backend] = torch.compile(model, backend=backend, dynamic={dynamic}) if backend else model
        got = run(models[backend], inputs, {members})
        if backend is None:
            want = got
    for a, b in zip(got, want):
        same = a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()
        if not same or not torch.allclose(a.double(), b.double(), 1e-3, 1e-3, equal_nan=True):
            differ = True
            print("nnvm ", a.dtype, tuple(a.shape), a.stride(), a, sep="  ")
            print("eager", b.dtype, tuple(b.shape), b.stride(), b, sep="  ")
raise SystemExit(differ)
"""


@lru_cache(maxsize=1)
def _prelude() -> dict[str, object]:
    import torch
    import torch.utils.checkpoint

    names: dict[str, object] = {"math": math, "torch": torch, "F": torch.nn.functional}
    exec(PRELUDE, names)
    return names


def namespace() -> dict[str, object]:
    """What the source of a program finds: math, torch, F and the makers of inputs."""
    return dict(_prelude())


def pruned(program: Program) -> Program:
    """Without statements and inputs that nothing uses; edits in place count as uses."""
    needed = set(program.results)
    kept: list[Statement] = []
    for s in reversed(program.statements):
        if not s.defines or needed & set(s.defines):
            kept.append(s)
            needed |= s.uses
    inputs = list(program.inputs)
    for i in reversed(program.inputs):
        if i.name not in needed:
            inputs.remove(i)
        elif i.layout.startswith("view:"):
            needed |= set(NAME.findall(i.layout))
    return program.with_(inputs=tuple(inputs), statements=tuple(reversed(kept)))
