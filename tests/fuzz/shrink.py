"""Makes a failing model smaller while it fails in the same way."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import torch

from tests.fuzz.check import Loaded
from tests.fuzz.program import Input, Program, Statement, namespace, pruned

__all__ = ["shrink"]


def shrink(program: Program, fails: Callable[[Program], bool], seconds: float = 90.0) -> Program:
    """The smallest program that was found within the time for which `fails` holds; it holds for `program`."""
    end = time.monotonic() + seconds
    changed = True
    while changed:
        changed = False
        for candidate in _smaller(program):
            if time.monotonic() > end:
                return program
            if candidate != program and fails(candidate):
                program, changed = candidate, True
                break
    return program


def _smaller(p: Program) -> Iterator[Program]:
    """Simpler programs, the boldest cuts first."""
    if p.dynamic:
        yield p.with_(dynamic=False)
    if len(p.sizes) > 1:
        yield _fixed(p)
        yield from (p.with_(sizes=p.sizes[:i] + p.sizes[i + 1 :]) for i in range(len(p.sizes)))
    if p.grad:
        yield p.with_(grad=False)
    if p.packing != "tuple":
        yield p.with_(packing="tuple")
    for r in p.results if len(p.results) > 1 else ():
        yield pruned(p.with_(results=(r,)))
    for i in range(len(p.statements) // 2, 0, -1):
        yield from _without(p, p.statements[:-i], p.statements[-i:])
    for s in p.statements:
        yield from _without(p, tuple(t for t in p.statements if t != s), (s,))
    values = _values(p)
    for s in reversed(p.statements):
        if len(s.defines) == 1 and s.defines[0] in values:
            yield _given(p, s, values[s.defines[0]])
            for name in sorted(s.uses):
                yield _renamed(p, s, name)
    for i in p.inputs:
        yield from _simpler(p, i)


def _fixed(p: Program) -> Program:
    n, m = p.sizes[0]
    plain = tuple(_with_shape(i, tuple(eval(str(s), {"N": n, "M": m}) for s in i.shape)) for i in p.inputs)
    return p.with_(inputs=plain, sizes=p.sizes[:1], dynamic=False)


def _with_shape(i: Input, shape: tuple[int | str, ...]) -> Input:
    return Input(i.name, shape, i.dtype, i.values, i.layout, i.kind)


def _without(p: Program, kept: tuple[Statement, ...], dropped: tuple[Statement, ...]) -> Iterator[Program]:
    """Without some statements and all that need them."""
    gone = {d for s in dropped for d in s.defines}
    left = []
    for s in kept:
        if s.uses & gone:
            gone |= set(s.defines)
        else:
            left.append(s)
    results = tuple(r for r in p.results if r not in gone)
    defined = [d for s in left for d in s.defines]
    if not results:
        results = tuple(defined[-1:] or [p.inputs[0].name])
    yield pruned(p.with_(statements=tuple(left), results=results))


def _given(p: Program, s: Statement, value: torch.Tensor) -> Program:
    """With the statement's result as a new input."""
    dtype = str(value.dtype).removeprefix("torch.")
    values = "normal()" if value.is_floating_point() else "integers()"
    made = Input(s.defines[0], tuple(value.shape), dtype, values)
    return pruned(p.with_(statements=tuple(t for t in p.statements if t != s), inputs=(*p.inputs, made)))


def _renamed(p: Program, s: Statement, name: str) -> Program:
    """With one of its operands in place of the statement's result."""
    pattern = re.compile(rf"\b{s.defines[0]}\b")
    rest = tuple(Statement(pattern.sub(name, t.text), t.defines) for t in p.statements if t != s)
    return pruned(p.with_(statements=rest, results=tuple(name if r == s.defines[0] else r for r in p.results)))


def _simpler(p: Program, i: Input) -> Iterator[Program]:
    def changed(**values: object) -> Program:
        new = Input(**{**i.__dict__, **values})  # type: ignore[arg-type]
        return p.with_(inputs=tuple(new if j is i else j for j in p.inputs))

    if i.dtype == "number":
        yield from (changed(values=v) for v in ("2", "N", "-N", "N * 0.5") if len(v) < len(i.values))
        return
    if i.layout != "contiguous":
        yield changed(layout="contiguous")
    if i.kind != "argument":
        yield changed(kind="argument")
    if i.values != "normal()" and i.dtype.startswith(("float", "bfloat")):
        yield changed(values="normal()")
    if i.dtype not in ("float32", "bool") and i.values == "normal()":
        yield changed(dtype="float32")
    if i.dtype not in ("int64", "bool", "float32") and i.values == "integers()":
        yield changed(dtype="int64")
    for size in sorted({s for s in i.shape if isinstance(s, int) and s > 1}):
        for less in (1, 2, size // 2):
            if less < size:  # everywhere, so that what belongs together still fits
                smaller = tuple(_with_shape(j, tuple(less if s == size else s for s in j.shape)) for j in p.inputs)
                yield p.with_(inputs=smaller)
                yield changed(shape=tuple(less if s == size else s for s in i.shape))


def _values(p: Program) -> dict[str, torch.Tensor]:
    """The values that eager gives the names; empty where it raises."""
    loaded = Loaded(p)
    names = {d for s in p.statements for d in s.defines}
    env: dict[str, object] = {**namespace(), **dict(loaded.make(*p.sizes[0], p.seed).items())}
    for s in p.statements:
        try:
            exec(s.text, env)
        except Exception:
            break
    return {k: v for k, v in env.items() if k in names and isinstance(v, torch.Tensor)}
