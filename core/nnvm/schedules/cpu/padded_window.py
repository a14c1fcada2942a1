"""Depthwise convolutions with much padding: one block of channels at a time is padded in scratch memory.

    parallel for the blocks of channels:
      padded data of the block -> scratch
      for the rows and the tiles of pixels in a row:
        acc[R pixels] = 0, in registers
        for the taps: acc[r] += x[r + tap] * w[tap], vectors along the channels
        output tile = epilogue(acc)

Without the copy, pixels whose window leaves the image need loops of their own over the taps that are inside (`window`).
In the small images at the end of a network these pixels are most of them; in large ones the copy costs more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnvm.dim import numel
from nnvm.schedules.cpu.contraction import PARALLEL_WORK
from nnvm.schedules.cpu.contraction_match import Contraction, factors, match
from nnvm.schedules.cpu.contraction_tile import tile_rows
from nnvm.schedules.kernel import Strides
from nnvm.target import Target
from nnvm.te.expr import Expr, Reduce, Var
from nnvm.te.schedule import Schedule, ScheduleError, Stage
from nnvm.te.tensor import IterVar, Read, Tensor, reads
from nnvm.tir.lower import lower
from nnvm.tir.stmt import PrimFunc
from nnvm.tir.visitor import post_order

__all__ = ["padded_window"]

#: Multiply-adds that are written out in the innermost loop.
UNROLLED_WORK = 128
#: Elements of a row of padded data that are written out.
UNROLLED_ROW = 36
#: Part of the padded data that is padding, from which on the copy pays. Measured on Zen 3: 1.6 times as fast at 0.6
#: (5x5 over 7x7), 1.3 at 0.4, 1.05 at 0.23, even at 0.13.
PADDING = 0.2


def padded_window(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target, name: str, strides: Strides
) -> PrimFunc | None:
    """The kernel of a sum over windows of padded data, each channel by its own weights; None for anything else.

    All sizes must be known, and whole vectors of channels lie side by side (NCHW8c, NHWC).
    """
    found = match(inputs, outputs, strides) if len(outputs) == 1 else None
    window = None if found is None else _window(found, target)
    if window is None:
        return None
    try:
        return lower(_schedule(window, target), [*inputs, *outputs], name, strides)
    except ScheduleError:
        return None


@dataclass(frozen=True, eq=False)
class _Window:
    """A sum over windows.

    Attributes:
        padded: the tensor that windows are of.
        fixed: number of the leading axes of the output along which windows do not overlap.
        lanes: elements of a vector.
    """

    master: Tensor
    final: Tensor
    padded: Tensor
    fixed: int
    lanes: int


def _window(c: Contraction, target: Target) -> _Window | None:
    master, final = c.master, c.final
    assert isinstance(master.body, Reduce)
    pair = factors(master.body)
    taps = {a.var for a in master.reduce_axes}
    sliding = [r for r in pair or () if _slides(r, master, taps)]
    if len(sliding) != 1 or c.vector is not final.axes[-1] or c.role(final.axes[-1]) != "batch":
        return None
    if [c.master_axis(a) for a in final.axes] != list(range(len(master.axes))):
        return None
    (data,) = sliding
    slides = _slides(data, master, taps)
    fixed = len(final.axes) - 1 - len(slides)
    lanes = target.lanes(max(master.dtype.bits, 32))
    extents = (*final.shape, *(a.extent for a in master.reduce_axes), *data.tensor.shape)
    if slides != list(range(fixed, len(final.axes) - 1)) or not all(isinstance(d, int) for d in extents):
        return None
    padded = data.tensor
    if numel(final.shape[-1:]) % lanes != 0 or padded.shape[-1] != final.shape[-1]:
        return None
    if not _pays(padded, fixed, lanes, target):
        return None
    return _Window(master, final, padded, fixed, lanes)


def _slides(data: Read, master: Tensor, taps: set[Var]) -> list[int]:
    """Positions of the axes along which neighbours share data: they are added to a tap."""
    used = [_variables(i) for i in data.indices]
    return [n for n, a in enumerate(master.axes) if any(a.var in u and taps & u for u in used)]


def _pays(padded: Tensor, fixed: int, lanes: int, target: Target) -> bool:
    """Whether much of the data is padding, and a block of channels stays in the second cache."""
    if padded.is_placeholder or isinstance(padded.body, Reduce):
        return False
    assert padded.body is not None
    sizes = [numel(r.tensor.shape) for r in reads(padded.body)]
    whole = numel(padded.shape)
    known = [n for n in sizes if isinstance(n, int)]
    if not isinstance(whole, int) or len(known) < len(sizes) or not known or max(known) > whole * (1 - PADDING):
        return False
    plane = numel(padded.shape[fixed:-1])
    return isinstance(plane, int) and plane * lanes * padded.dtype.bytes <= target.l2_bytes // 2


def _schedule(w: _Window, target: Target) -> Schedule:
    schedule = Schedule([w.final])
    master = schedule.cache_write(w.master, "local") if w.master is w.final else w.master
    for stage in list(schedule.stages):
        if not (stage.is_reduction or stage.tensor in (w.final, w.padded)):
            stage.inline()
    st, m, pad = schedule[w.final], schedule[master], schedule[w.padded]
    outer, slides = st.axes[: w.fixed], st.axes[w.fixed : -1]
    blocks, lane = st.split(st.axes[-1], w.lanes)
    rows, _ = tile_rows(slides[-1].extent, 1, target.vector_registers)
    tiles, pixel = st.split(slides[-1], rows)
    st.reorder(*outer, blocks, *slides[:-1], tiles, pixel, lane)
    st.unroll(pixel)
    st.vectorize(lane)
    around = st.fuse(*outer, blocks) if outer else blocks
    work = numel((*w.final.shape, *(a.extent for a in m.reduce_axes)))
    if not isinstance(work, int) or work >= PARALLEL_WORK:
        st.parallel(around)
    _pad(pad, st, around, w.lanes)
    m.compute_at(st, tiles)
    m.set_scope("local")
    _, lane = m.split(m.axes[-1], w.lanes)
    pixels = [a for a in m.leaf_axes if a.kind == "spatial" and a is not lane]
    m.reorder(*m.reduce_axes, *pixels, lane)
    written = rows
    for tap in reversed(m.reduce_axes):
        assert isinstance(tap.extent, int)
        written *= tap.extent
        if written <= UNROLLED_WORK:
            m.unroll(tap)
    for a in pixels:
        m.unroll(a)
    m.vectorize(lane)
    return schedule


def _pad(pad: Stage, st: Stage, around: IterVar, lanes: int) -> None:
    """The padded data of one block; short rows are written out, so that few conditions are left."""
    pad.compute_at(st, around)
    _, lane = pad.split(pad.axes[-1], lanes)
    pad.vectorize(lane)
    across = pad.axes[-2]
    if isinstance(across.extent, int) and across.extent <= UNROLLED_ROW:
        others = [a for a in pad.leaf_axes if a not in (across, lane)]
        pad.reorder(*others, across, lane)
        pad.unroll(across)


def _variables(e: Expr) -> set[Var]:
    return {x for x in post_order(e) if isinstance(x, Var)}
