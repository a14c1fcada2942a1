"""Schedules: how a set of tensors is computed. A schedule changes the order of the work, never its result.

A `Schedule` has one `Stage` per computed tensor. A stage is a loop nest over the tensor's axes, which its methods
transform; where the nest stands is set by `inline`, `compute_at` or `compute_with`. `nnvm.tir.lower.lower` makes the
loop nests, infers the region that an attached stage has to compute, and peels what does not divide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nnvm.dim import Dim, ceildiv
from nnvm.te.expr import Expr, Reduce, Var
from nnvm.te.tensor import IterVar, Read, Tensor, reads, topological

__all__ = ["Fuse", "Schedule", "ScheduleError", "Split", "Stage"]


class ScheduleError(ValueError):
    """A schedule that cannot be carried out; the message names the tensor and the axis."""


@dataclass(frozen=True, eq=False)
class Split:
    """`parent = outer * factor + inner`."""

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: int


@dataclass(frozen=True, eq=False)
class Fuse:
    """`fused = outer * extent(inner) + inner`."""

    outer: IterVar
    inner: IterVar
    fused: IterVar


@dataclass(eq=False)
class Stage:
    """How one tensor is computed.

    Attributes:
        tensor: the tensor.
        axes, reduce_axes: the axes of its body.
        body: its element at `axes` (the tensor's own body, unless `cache_write` moved that to another stage).
        leaf_axes: the loops, outermost first.
        kinds: ``vectorized``, ``unrolled`` or ``parallel`` for the leaf axes that are not serial.
        relations: the splits and fusions, in the order they were made.
        attach: None (root), ``inline``, or (stage, axis) for `compute_at`; `partner` is that of `compute_with`.
        scope: ``local``, ``scratch`` or None (local for a single element, scratch otherwise).
    """

    tensor: Tensor
    axes: tuple[IterVar, ...]
    body: Expr
    leaf_axes: list[IterVar] = field(init=False)
    kinds: dict[IterVar, str] = field(default_factory=dict)
    relations: list[Split | Fuse] = field(default_factory=list)
    inlined: bool = False
    attach: tuple[Stage, IterVar] | None = None
    partner: tuple[Stage, IterVar] | None = None
    scope: str | None = None

    def __post_init__(self) -> None:
        self.leaf_axes = [*self.axes, *self.reduce_axes]

    def __repr__(self) -> str:
        return f"Stage({self.tensor.name}: {', '.join(map(repr, self.leaf_axes))})"

    @property
    def reduce_axes(self) -> tuple[IterVar, ...]:
        return tuple(self.body.axes) if isinstance(self.body, Reduce) else ()  # type: ignore[arg-type]

    @property
    def is_reduction(self) -> bool:
        return isinstance(self.body, Reduce)

    def split(self, axis: IterVar, factor: int) -> tuple[IterVar, IterVar]:
        """Cut a loop into blocks of `factor` (which need not divide its extent): the loops over and in blocks."""
        if factor < 1:
            raise ScheduleError(f"{self.tensor.name}: split of {axis} by {factor}")
        position = self._position(axis)
        outer = IterVar(Var(f"{axis.name}_o"), ceildiv(axis.extent, factor), axis.kind)
        inner = IterVar(Var(f"{axis.name}_i"), factor, axis.kind)
        self.relations.append(Split(axis, outer, inner, factor))
        self.leaf_axes[position : position + 1] = [outer, inner]
        return outer, inner

    def tile(self, a: IterVar, b: IterVar, fa: int, fb: int) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """Split two loops and order them a outer, b outer, a inner, b inner."""
        ao, ai = self.split(a, fa)
        bo, bi = self.split(b, fb)
        self.reorder(ao, bo, ai, bi)
        return ao, bo, ai, bi

    def fuse(self, *axes: IterVar) -> IterVar:
        """One loop in place of several neighbouring ones, outermost first."""
        fused = axes[0]
        for inner in axes[1:]:
            at = self._position(fused)
            if self._position(inner) != at + 1:
                raise ScheduleError(f"{self.tensor.name}: fuse of {fused} and {inner}, which are not neighbours")
            if fused.kind != inner.kind:
                raise ScheduleError(f"{self.tensor.name}: fuse of a {fused.kind} axis and a {inner.kind} axis")
            extent: Dim = fused.extent * inner.extent
            both = IterVar(Var(f"{fused.name}_{inner.name}"), extent, fused.kind)
            self.relations.append(Fuse(fused, inner, both))
            self.leaf_axes[at : at + 2] = [both]
            fused = both
        return fused

    def reorder(self, *axes: IterVar) -> None:
        """Put these loops in this order, in the places they hold together; the other loops stay."""
        positions = sorted(self._position(a) for a in axes)
        if len(set(positions)) != len(axes):
            raise ScheduleError(f"{self.tensor.name}: an axis appears twice in reorder")
        for position, axis in zip(positions, axes):
            self.leaf_axes[position] = axis

    def vectorize(self, axis: IterVar) -> None:
        """Run a loop of constant extent as one vector operation. A reduce axis gets one accumulator per lane."""
        self._mark(axis, "vectorized")

    def unroll(self, axis: IterVar) -> None:
        """Write out a loop of constant extent. Beside a vectorized reduce axis, an unrolled reduce axis gets an
        accumulator per step."""
        self._mark(axis, "unrolled")

    def parallel(self, axis: IterVar) -> None:
        """Share out the outermost loop among threads."""
        if axis.kind != "spatial":
            raise ScheduleError(f"{self.tensor.name}: parallel over the reduce axis {axis}")
        self._mark(axis, "parallel")

    def inline(self) -> None:
        """Compute the element wherever it is read, and store it nowhere."""
        if self.is_reduction:
            raise ScheduleError(f"{self.tensor.name} is a reduction and cannot be inlined")
        self.inlined = True

    def compute_at(self, parent: Stage, axis: IterVar) -> None:
        """Compute, in each iteration of `parent`'s loop `axis`, just the region that is read inside that iteration."""
        parent._position(axis)
        self.attach, self.partner = (parent, axis), None

    def compute_with(self, other: Stage, axis: IterVar) -> None:
        """Share the loops of `other` down to the spatial loop `axis`; the own loops begin with as many equal ones."""
        other._position(axis)
        self.attach, self.partner = None, (other, axis)

    def set_scope(self, scope: str) -> None:
        """Keep the tensor in ``local`` (registers, constant indices only) or ``scratch`` memory."""
        if scope not in ("local", "scratch"):
            raise ScheduleError(f"{self.tensor.name}: scope {scope!r} is none of local, scratch")
        self.scope = scope

    def _mark(self, axis: IterVar, kind: str) -> None:
        self._position(axis)
        if self.kinds.get(axis, kind) != kind:
            raise ScheduleError(f"{self.tensor.name}: {axis} is {self.kinds[axis]} and cannot become {kind}")
        self.kinds[axis] = kind

    def _position(self, axis: IterVar) -> int:
        if axis not in self.leaf_axes:
            raise ScheduleError(f"{self.tensor.name}: {axis} is none of its loops {self.leaf_axes}")
        return self.leaf_axes.index(axis)


class Schedule:
    """How `outputs` and everything they depend on is computed; at first each tensor at root, in the order of its axes.

    Attributes:
        outputs: the tensors asked for.
        stages: one per computed tensor, each after those it reads.
    """

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs = tuple(outputs)
        self.stages: list[Stage] = []
        for t in topological(self.outputs):
            if t.body is not None:
                self.stages.append(Stage(t, t.axes, t.body))
        self._by_tensor = {s.tensor: s for s in self.stages}

    def __getitem__(self, tensor: Tensor) -> Stage:
        if tensor not in self._by_tensor:
            raise ScheduleError(f"{tensor.name} is not computed in this schedule")
        return self._by_tensor[tensor]

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor in self._by_tensor

    def consumers(self, tensor: Tensor) -> list[Stage]:
        """The stages whose bodies read `tensor`."""
        return [s for s in self.stages if any(r.tensor is tensor for r in reads(s.body))]

    def insert(self, tensor: Tensor, reader: Stage, body: Expr) -> Stage:
        """Compute `tensor` before `reader`, whose new body reads it (and gives the same as the old one)."""
        stage = Stage(tensor, tensor.axes, _body_of(tensor))
        self.stages.insert(self.stages.index(reader), stage)
        self._by_tensor[tensor] = stage
        reader.body = body
        return stage

    def cache_write(self, tensor: Tensor, scope: str = "local") -> Tensor:
        """A new tensor that takes over the body and axes of `tensor`, which becomes a copy of it with axes of its own
        (`schedule[tensor].axes`). Call it before any other change of the tensor's loops."""
        stage = self[tensor]
        if stage.relations:
            raise ScheduleError(f"{tensor.name}: cache_write after its loops were changed")
        cached = Tensor(
            f"{tensor.name}_{scope}", tensor.shape, tensor.dtype, stage.axes, stage.body, dict(tensor.attrs)
        )
        cached_stage = Stage(cached, stage.axes, stage.body)
        cached_stage.set_scope(scope)
        stage.axes = tuple(IterVar(Var(a.name), a.extent, a.kind) for a in stage.axes)
        stage.body = Read(cached, tuple(a.var for a in stage.axes))
        stage.leaf_axes = list(stage.axes)
        self.stages.insert(self.stages.index(stage), cached_stage)
        self._by_tensor[cached] = cached_stage
        return cached


def _body_of(tensor: Tensor) -> Expr:
    if tensor.body is None:
        raise ScheduleError(f"{tensor.name} is an input and is not computed")
    return tensor.body
