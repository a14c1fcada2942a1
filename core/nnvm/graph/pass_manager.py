"""Passes and how they are run.

A pass is a function ``Graph -> Graph`` that declares the graph attributes it requires and provides.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from nnvm.graph.graph import Graph
from nnvm.target import Target

__all__ = ["PASSES", "Instrument", "Pass", "PassContext", "PassError", "apply_passes", "get_pass", "instrument",
           "register_pass"]  # fmt: skip


class PassError(RuntimeError):
    """A pass that is unknown, or that lacks what it requires."""


@dataclass(frozen=True)
class Pass:
    """A registered pass.

    Attributes:
        requires: graph attributes that must be there.
        provides: graph attributes that are there afterwards.
        opt_level: runs only where the context's level is at least this; 0: always.
        without: runs in its place where it is left out: the least that gives what it provides, of passes that nothing
            could do without. None: nothing does.
    """

    name: str
    run: Callable[[Graph, PassContext], Graph]
    requires: tuple[str, ...]
    provides: tuple[str, ...]
    opt_level: int
    doc: str
    without: Callable[[Graph, PassContext], Graph] | None = None


class Instrument(Protocol):
    """Watches passes; give one to a PassContext, or to `instrument`. See graph/instruments.py for some."""

    def before_pass(self, name: str, graph: Graph) -> None: ...

    def after_pass(self, name: str, before: Graph, after: Graph, seconds: float) -> None: ...


@dataclass
class PassContext:
    """Settings of one compilation.

    Attributes:
        opt_level: 0 none but what is needed to run, 1 cheap and safe, 2 fusion, 3 all (the default).
        disabled: names of passes left out.
        enabled: names of passes that run at any level.
        target: what is compiled for.
        options: settings that single passes read (``fast_math``, ``precise``, ...).
        verify: check the graph after every pass.
    """

    opt_level: int = 3
    disabled: frozenset[str] = frozenset()
    enabled: frozenset[str] = frozenset()
    target: Target = field(default_factory=Target.current)
    options: Mapping[str, Any] = field(default_factory=dict)
    instruments: Sequence[Instrument] = ()
    verify: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def current() -> PassContext:
        """The innermost context in use, or a new default one."""
        return _current.get() or PassContext()

    def runs(self, p: Pass) -> bool:
        """Whether the pass is to run."""
        return p.name not in self.disabled and (p.opt_level <= self.opt_level or p.name in self.enabled)

    @contextmanager
    def use(self) -> Iterator[PassContext]:
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)


_current: contextvars.ContextVar[PassContext | None] = contextvars.ContextVar("nnvm_pass_context", default=None)
_watchers: contextvars.ContextVar[tuple[Instrument, ...]] = contextvars.ContextVar("nnvm_instruments", default=())
PASSES: dict[str, Pass] = {}


@contextmanager
def instrument(*instruments: Instrument) -> Iterator[None]:
    """Lets the instruments watch every pass that runs in the ``with`` block, whoever compiles.

    >>> with instrument(times := PassTimes()):
    ...     torch.compile(model, backend="nnvm")(x)
    >>> print(times)
    """
    token = _watchers.set((*_watchers.get(), *instruments))
    try:
        yield
    finally:
        _watchers.reset(token)


def register_pass(
    name: str, *, requires: Sequence[str] = (), provides: Sequence[str] = (), opt_level: int = 0,
    without: Callable[[Graph, PassContext], Graph] | None = None,
) -> Callable[[Callable[[Graph, PassContext], Graph]], Callable[[Graph, PassContext], Graph]]:  # fmt: skip
    """Registers the decorated function as the pass `name`; the arguments are `Pass`'s."""

    def decorate(fn: Callable[[Graph, PassContext], Graph]) -> Callable[[Graph, PassContext], Graph]:
        if name in PASSES:
            raise ValueError(f"pass {name!r} is registered already")
        PASSES[name] = Pass(name, fn, tuple(requires), tuple(provides), opt_level, fn.__doc__ or "", without)
        return fn

    return decorate


def get_pass(name: str) -> Pass:
    if name not in PASSES:
        raise PassError(f"no pass {name!r}; known: {', '.join(sorted(PASSES))}")
    return PASSES[name]


def apply_passes(graph: Graph, names: Sequence[str], context: PassContext | None = None) -> Graph:
    """Runs the passes in order. PassError where one lacks what it requires, naming the passes that provide it."""
    context = context or PassContext.current()
    with context.use():
        for name in names:
            p = get_pass(name)
            if not context.runs(p):
                if p.without is None:
                    continue
                p = replace(p, run=p.without)
            graph = _run(p, graph, context)
    return graph


def _run(p: Pass, graph: Graph, context: PassContext) -> Graph:
    for attr in p.requires:
        if attr not in graph.attrs:
            providers = [q.name for q in PASSES.values() if attr in q.provides]
            by = f"run {' or '.join(providers)} before it" if providers else "no pass provides it"
            raise PassError(f"pass {p.name} requires the graph attribute {attr!r}; {by}")
    watchers = (*context.instruments, *_watchers.get())
    for watcher in watchers:
        watcher.before_pass(p.name, graph)
    start = time.perf_counter()
    try:
        after = p.run(graph, context)
    except Exception as error:
        error.failed_pass = p.name  # type: ignore[attr-defined]  # who catches it may leave the pass out
        raise
    seconds = time.perf_counter() - start
    context.seconds[p.name] = context.seconds.get(p.name, 0.0) + seconds
    for attr in p.provides:
        if attr not in after.attrs:
            raise PassError(f"pass {p.name} promises the graph attribute {attr!r} and did not set it")
    if context.verify and after is not graph:
        from nnvm.graph.verify import verify

        verify(after, f"after {p.name}")
    for watcher in watchers:
        watcher.after_pass(p.name, graph, after, seconds)
    return after
