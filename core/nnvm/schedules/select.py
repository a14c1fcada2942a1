"""Which schedule runs a group of tensors: decided by the structure of the computation alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from nnvm.dim import Dim, numel, row_major
from nnvm.schedules.access import Inliner, Source, parts
from nnvm.schedules.attention_match import match_attention
from nnvm.schedules.axes import Axis, Write
from nnvm.schedules.cpu.attention import attention
from nnvm.schedules.cpu.contraction import contraction
from nnvm.schedules.cpu.injective import elementwise as elementwise_nest
from nnvm.schedules.cpu.padded_window import padded_window
from nnvm.schedules.cpu.rows import rows
from nnvm.schedules.cpu.winograd import match_winograd, winograd
from nnvm.schedules.kernel import Strides, flat_kernel, span
from nnvm.schedules.row_program import RowProgram, row_program
from nnvm.target import Target
from nnvm.te.expr import Buffer, Reduce, Var
from nnvm.te.tensor import Tensor, reads, topological
from nnvm.tir.affine import Space, affine, atom_affine
from nnvm.tir.stmt import Allocate, For, If, Let, PrimFunc, Seq, Stmt, seq

__all__ = ["SCHEDULES", "Scheduler", "lower_tensors", "using"]


class Scheduler(Protocol):
    """Makes the kernel of a group, or gives None where it does not take it."""

    __name__: str

    def __call__(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
    ) -> PrimFunc | None: ...


#: Taps up to which a sum of products is a window.
WINDOW = 64


def lower_tensors(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
) -> PrimFunc:
    """The kernel that computes `outputs` from `inputs`; `strides` of those that are not contiguous."""
    for scheduler in SCHEDULES:
        if (func := scheduler(inputs, outputs, target, name, strides)) is not None:
            return func
    raise ValueError(f"no schedule takes the group of {', '.join(t.name for t in outputs)}")


@contextmanager
def using(scheduler: Scheduler, before: str) -> Iterator[None]:
    """Tries `scheduler` ahead of the one called `before`, inside the with block."""
    names = [s.__name__ for s in SCHEDULES]
    if before not in names:
        raise ValueError(f"no schedule {before!r}; there are {', '.join(names)}")
    SCHEDULES.insert(names.index(before), scheduler)
    try:
        yield
    finally:
        SCHEDULES.remove(scheduler)


def winograds(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
) -> PrimFunc | None:
    """Convolutions by Winograd's algorithm, in blocks of tiles."""
    if (found := match_winograd(outputs, inputs)) is None:
        return None
    return flat_kernel(inputs, outputs, name, strides, lambda sources, space: winograd(found, sources, space, target))


def padded_windows(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
) -> PrimFunc | None:
    """Depthwise convolutions of small images with padding."""
    return padded_window(inputs, outputs, target, name, strides) if _is_window(outputs) else None


def contractions(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
) -> PrimFunc | None:
    """Matrix products and convolutions, in register tiles."""
    return None if _is_window(outputs) else contraction(inputs, outputs, target, name, strides)


def attentions(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
) -> PrimFunc | None:
    """Scores, softmax and weighted sum by blocks of query rows."""
    if (found := match_attention(outputs)) is None:
        return None
    return flat_kernel(inputs, outputs, name, strides, lambda sources, space: attention(found, sources, space, target))


def reductions(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
) -> PrimFunc | None:
    """Everything else with reductions, row by row where they run over the same rows."""
    if not any(isinstance(t.body, Reduce) for t in topological(outputs)):
        return None
    return flat_kernel(inputs, outputs, name, strides, lambda sources, space: staged(outputs, sources, space, target))


def elementwise(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
) -> PrimFunc | None:
    """Groups without reductions."""

    def write(sources: dict[Tensor, Source], space: Space) -> Stmt:
        return injective_nests(outputs, sources, space, target)

    return flat_kernel(inputs, outputs, name, strides, write)


#: The schedules in the order in which they are tried, special ones first. One that does not take a group gives None.
SCHEDULES: list[Scheduler] = [winograds, padded_windows, contractions, attentions, reductions, elementwise]


def _is_window(outputs: Sequence[Tensor]) -> bool:
    """Is the only reduction a short sum of products in which no factor is shared by rows or columns? A depthwise
    convolution is one: more a pooling than a matrix product."""
    reductions = [t for t in topological(outputs) if isinstance(t.body, Reduce)]
    if len(reductions) != 1:
        return False
    master = reductions[0]
    size = numel(tuple(a.extent for a in master.reduce_axes))
    if not isinstance(size, int) or size > WINDOW:
        return False
    axes = {a.var for a in master.axes if a.extent != 1}
    used = [axes & {v for v in parts(r) if isinstance(v, Var)} for r in reads(master.body)]
    return len(used) == 2 and (used[0] <= used[1] or used[1] <= used[0])


def staged(outputs: Sequence[Tensor], sources: dict[Tensor, Source], space: Space, target: Target) -> Stmt:
    """Groups with reductions: one row program where all of them run over the same rows; otherwise each reduction that
    others need is computed into scratch memory first."""
    whole = row_program(outputs, sources, space)
    if whole is not None:
        return _with_rest(whole, sources, space, target)
    stages: list[Stmt] = []
    scratch: list[Source] = []
    memory = dict(sources)
    wanted = set(outputs)
    done: set[Tensor] = set()
    for t in topological(outputs):
        if not isinstance(t.body, Reduce):
            continue
        place = sources.get(t)
        if place is None:
            strides = row_major(t.shape)
            place = Source(Buffer(f"stage{len(scratch)}", (span(t.shape, strides),), t.dtype, None, "scratch"), strides)
            scratch.append(place)
        inputs = {x: s for x, s in memory.items() if x not in wanted or x in done}
        alone = row_program([t], {**inputs, t: place}, space)
        assert alone is not None, "a single reduction is always a row program"
        stages.append(rows(alone, space, target))
        memory[t] = place
        done.add(t)
    left = [t for t in outputs if t not in done]
    if left:
        stages.append(injective_nests(left, memory, space, target))
    body = seq(stages)
    for s in reversed(scratch):
        body = Allocate(s.buffer, body)
    return serial(body) if scratch else body


def _with_rest(program: RowProgram, sources: dict[Tensor, Source], space: Space, target: Target) -> Stmt:
    body = rows(program, space, target)
    if not program.rest:
        return body
    # the rows read none of the rest; the rest may read outputs that the rows write
    return seq([body, injective_nests(program.rest, sources, space, target)])


def serial(s: Stmt) -> Stmt:
    """`s` without parallel loops: scratch memory belongs to one thread."""
    if isinstance(s, For):
        return For(s.var, s.extent, serial(s.body), "serial" if s.kind == "parallel" else s.kind)
    if isinstance(s, Seq):
        return Seq(tuple(map(serial, s.body)))
    if isinstance(s, Let):
        return Let(s.var, s.value, serial(s.body))
    if isinstance(s, Allocate):
        return Allocate(s.buffer, serial(s.body))
    if isinstance(s, If):
        return If(s.cond, serial(s.then), None if s.orelse is None else serial(s.orelse))
    return s


def injective_nests(outputs: Sequence[Tensor], sources: dict[Tensor, Source], space: Space, target: Target) -> Stmt:
    """Outputs without reductions; those of one shape share their loops."""
    inliner = Inliner(space, {t: s for t, s in sources.items() if t not in outputs})
    by_shape: dict[tuple[Dim, ...], list[Tensor]] = {}
    for t in outputs:
        by_shape.setdefault(t.shape, []).append(t)
    out: list[Stmt] = []
    for shape, group in by_shape.items():
        axes = [Axis(Var(a.name), d).bind(space) for a, d in zip(group[0].axes, shape)]
        at = tuple(atom_affine(a.var) if a.extent != 1 else affine(0) for a in axes)
        writes = [Write(sources[t], sources[t].address(at), inliner.element(t, at)) for t in group]
        out.append(elementwise_nest(writes, axes, space, target))
    return seq(out)
