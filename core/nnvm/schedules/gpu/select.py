"""Which schedule runs a group on a GPU: decided by the structure of the computation alone, as on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nnvm.dim import row_major
from nnvm.schedules.access import Source
from nnvm.schedules.attention_match import match_attention
from nnvm.schedules.gpu.attention import attention_body
from nnvm.schedules.gpu.injective import elementwise_bodies, writes_body
from nnvm.schedules.gpu.matmul import matmul_body, product_of
from nnvm.schedules.gpu.moments import with_moments
from nnvm.schedules.gpu.rows import rows_body
from nnvm.schedules.gpu.split import part_of_product, part_of_rows, split, stages_of
from nnvm.schedules.gpu.tiles import Body, kernel_of
from nnvm.schedules.kernel import Strides, span
from nnvm.schedules.row_program import RowProgram, row_program
from nnvm.te.expr import Buffer, Reduce
from nnvm.te.tensor import Tensor, topological
from nnvm.tir.affine import Space
from nnvm.tir.stmt import GridKernel

__all__ = ["lower_for_grid", "placed"]


def lower_for_grid(inputs: Sequence[Tensor], outputs: Sequence[Tensor], name: str, strides: Strides) -> GridKernel:
    """The launches that compute `outputs` from `inputs`; `strides` of those that are not contiguous."""
    sources, params = placed(inputs, outputs, strides)
    group = _Group(sources)
    group.lower(outputs)
    return kernel_of(name, params, len(outputs), group.bodies, group.scratch)


def placed(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], strides: Strides
) -> tuple[dict[Tensor, Source], list[Buffer]]:
    """Where each tensor lies: in a buffer of its own, which are the parameters of the kernel."""
    sources: dict[Tensor, Source] = {}
    params: list[Buffer] = []
    for i, t in enumerate((*inputs, *outputs)):
        s = strides.get(t) or row_major(t.shape)
        buffer = Buffer(f"in{i}" if i < len(inputs) else f"out{i - len(inputs)}", (span(t.shape, s),), t.dtype)
        params.append(buffer)
        sources[t] = Source(buffer, s)
    return sources, params


@dataclass
class _Group:
    """The launches made so far. `sources`: what lies in memory, or will."""

    sources: dict[Tensor, Source]
    bodies: list[Body] = field(default_factory=list)
    scratch: list[Buffer] = field(default_factory=list)

    def lower(self, outputs: Sequence[Tensor]) -> None:
        if not any(isinstance(t.body, Reduce) for t in topological(outputs)):
            self.bodies += elementwise_bodies(outputs, self.sources, Space())
            return
        space = Space()
        if (found := match_attention(outputs)) is not None:
            body = attention_body(found, self.sources, space)
            if body is not None:
                self.bodies.append(body)
                return
            space = Space()
        whole = row_program(outputs, self.sources, space, keep=False)
        if whole is None:
            self._staged(outputs)
            return
        self._rows(whole, space)
        if whole.rest:
            self.bodies += elementwise_bodies(whole.rest, self.sources, Space())

    def _staged(self, outputs: Sequence[Tensor]) -> None:
        """Each reduction that others need into memory of its own first."""
        memory = {t: s for t, s in self.sources.items() if t not in outputs}
        done: set[Tensor] = set()
        for t in topological(outputs):
            if not isinstance(t.body, Reduce) or t in memory:
                continue
            place = self.sources.get(t) or self._scratch(t)
            space = Space()
            alone = row_program([t], {**memory, t: place}, space, keep=False)
            assert alone is not None, "a single reduction is always a row program"
            self._rows(alone, space)
            memory[t] = place
            done.add(t)
        if left := [t for t in outputs if t not in done]:
            self.bodies += elementwise_bodies(left, {**memory, **{t: self.sources[t] for t in left}}, Space())

    def _rows(self, program: RowProgram, space: Space) -> None:
        """A row program as tiles of rows or of a product, in parts where it has too few rows."""
        product = product_of(program)
        if product is not None:
            if (chunk := part_of_product(product, program)) is None:
                self.bodies.append(matmul_body(program, product, space))
                return
            making, program = self._parts(program, chunk, space)
            product = product_of(making)
            self.bodies.append(rows_body(making, space) if product is None else matmul_body(making, product, space))
            self.bodies.append(rows_body(program, space))
            return
        merged = with_moments(program, space)
        if (chunk := part_of_rows(merged)) is None:
            self.bodies.append(rows_body(program, space))
            return
        stages = stages_of(merged, space)
        self._keep("stage", stages.scratch)
        for step in stages.steps:
            if isinstance(step, tuple):
                self.bodies.append(writes_body(*step, space))
            else:
                self.bodies += [rows_body(p, space) for p in self._parts(step, chunk, space)]

    def _parts(self, program: RowProgram, chunk: int, space: Space) -> tuple[RowProgram, RowProgram]:
        making, combining, scratch = split(program, chunk, space)
        self._keep("part", scratch)
        return making, combining

    def _keep(self, name: str, scratch: Sequence[Buffer]) -> None:
        for b in scratch:
            b.name = f"{name}{len(self.scratch)}"
            self.scratch.append(b)

    def _scratch(self, t: Tensor) -> Source:
        strides = row_major(t.shape)
        buffer = Buffer(f"stage{len(self.scratch)}", (span(t.shape, strides),), t.dtype)
        self.scratch.append(buffer)
        return Source(buffer, strides)
