"""Convolutions, and resizing of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnvm.dim import Dim
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Unsupported, Value, converts

__all__: list[str] = []


def _spread(values: Sequence[int], n: int) -> tuple[int, ...]:
    """One number for each of `n` dimensions; one alone counts for all."""
    return tuple(values) * n if len(values) == 1 else tuple(values)


@converts("convolution.default", "_convolution.default")
def _convolution(
    c: Context, x: NodeEntry, weight: NodeEntry, bias: NodeEntry | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, *_: Any,
) -> Value:  # fmt: skip
    n = weight.type.rank - 2
    if not 1 <= n <= 3:
        raise Unsupported(f"a convolution over {n} dimensions")
    if any(d == 0 for d in (*x.type.shape, *weight.type.shape, *c.shape)):
        raise Unsupported("a convolution of an empty tensor")
    lead = x.type.rank == n + 1
    if lead:
        x = c.reshape(x, (1, *x.type.shape))
    attrs: dict[str, Any] = {
        "strides": _spread(stride, n), "padding": tuple((p, p) for p in _spread(padding, n)),
        "dilation": _spread(dilation, n), "groups": groups,
    }  # fmt: skip
    name = f"conv{n}d"
    inputs = [c.cast(t, c.dtype) for t in (x, weight, *([] if bias is None else [bias]))]
    if transposed and (phases := _phases(weight, attrs, _spread(output_padding, n))) is not None:
        return _lead(c, _by_phases(c, *inputs, phases=phases), lead)
    if transposed:
        name, attrs["output_padding"] = f"conv{n}d_transpose", _spread(output_padding, n)
    return _lead(c, c.op(name, *inputs, **attrs), lead)


def _lead(c: Context, out: NodeEntry, lead: bool) -> NodeEntry:
    return c.reshape(out, c.shape) if lead else out


@dataclass(frozen=True)
class _Phases:
    """One spatial axis of a transposed convolution by phases: output o takes input i through kernel element k where
    i * step + k = o + padding, so that with o + padding = step * m + phase it is the convolution at m with the elements
    phase, phase + step, ... of the kernel, turned round.

    Attributes:
        first: m of output 0.
        taps: elements of each phase.
        after: zeros after the data.
        start: outputs of m = `first` before output 0.
    """

    step: int
    first: int
    taps: tuple[int, ...]
    after: int
    start: int


def _phases(weight: NodeEntry, attrs: Mapping[str, Any], more: Sequence[int]) -> list[_Phases] | None:
    """The axes where an output takes several inputs (of a kernel as long as its step each takes one: a product, whose
    phases one loop nest computes); None where data is left out at the border."""
    kernel = weight.type.shape[2:]
    out: list[_Phases] = []
    for k, s, (low, _), d, extra in zip(kernel, attrs["strides"], attrs["padding"], attrs["dilation"], more):
        if not isinstance(k, int) or k < s or d != 1:
            return None
        taps = tuple(-(-(k - p) // s) for p in range(s))
        axis = _Phases(s, low // s, taps, (k + extra - 1 - low) // s, low % s)
        if min(taps) - 1 < axis.first or axis.after < 0:
            return None
        out.append(axis)
    several = any(axis.step > 1 and max(axis.taps) > 1 for axis in out)
    return out if several and attrs["groups"] == 1 else None


def _by_phases(c: Context, x: NodeEntry, weight: NodeEntry, bias: NodeEntry | None = None, *,
               phases: Sequence[_Phases]) -> NodeEntry:  # fmt: skip
    """A convolution for each phase, and their results between each other."""
    n = len(phases)
    kernel = c.transpose(weight, (1, 0, *range(2, n + 2)))

    def of(axis: int, part: NodeEntry, taps: tuple[int, ...]) -> NodeEntry:
        """[N, O, extent, 1 or step, ...], with the steps of the axes from `axis` on."""
        if axis == n:
            padding = tuple((t - 1 - p.first, p.after) for t, p in zip(taps, phases))
            flipped = c.op("flip", part, axes=tuple(range(2, n + 2)))
            out = c.op(f"conv{n}d", x, flipped, *([] if bias is None else [bias]), padding=padding)
            return c.reshape(out, (*out.type.shape[:2], *(d for extent in out.type.shape[2:] for d in (extent, 1))))
        step = phases[axis].step
        parts = [of(axis + 1, c.slice(part, 2 + axis, p, t, step), (*taps, t)) for p, t in enumerate(phases[axis].taps)]
        return c.concat(parts, 2 * axis + 3)

    both = of(0, kernel, ())
    shape = both.type.shape
    out = c.reshape(both, (*shape[:2], *(e * p.step for e, p in zip(shape[2::2], phases))))
    for axis, p in enumerate(phases):
        out = c.slice(out, 2 + axis, p.start, c.shape[len(c.shape) - n + axis])
    return out


def _resize(c: Context, x: NodeEntry, size: Sequence[Dim], mode: str, align_corners: bool,
            scales: Sequence[float | None]) -> NodeEntry:  # fmt: skip
    return c.op("upsampling", x, size=tuple(size), mode=mode, align_corners=align_corners,
                scales=tuple(None if s is None else float(s) for s in scales))  # fmt: skip


def _nearest(mode: str) -> Any:
    def convert(c: Context, x: NodeEntry, size: Sequence[Dim], *scales: float | None) -> Value:
        n = len(size)
        return _resize(c, x, size, mode, False, (*scales, *(None,) * n)[:n])

    return convert


def _smooth(mode: str) -> Any:
    def convert(c: Context, x: NodeEntry, size: Sequence[Dim], align_corners: bool, *scales: float | None) -> Value:
        n = len(size)
        if not x.type.dtype.is_float:
            raise Unsupported("a smooth interpolation of whole numbers")
        return _resize(c, x, size, mode, align_corners, (*scales, *(None,) * n)[:n])

    return convert


converts(*(f"upsample_nearest{n}d.default" for n in (1, 2, 3)))(_nearest("nearest"))
converts(*(f"_upsample_nearest_exact{n}d.default" for n in (1, 2, 3)))(_nearest("nearest_exact"))
converts("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")(_smooth("linear"))
converts("upsample_bicubic2d.default")(_smooth("cubic"))


def _by_size_or_scale(convert: Any) -> Any:
    """The overload that takes a size or factors, which exported programs keep."""

    def convert_vec(c: Context, x: NodeEntry, size: Any, *rest: Any) -> Value:
        *options, scales = rest
        out: NodeEntry = convert(c, x, c.shape[2:], *options, *(scales or ()))
        return out

    return convert_vec


converts("upsample_nearest2d.vec")(_by_size_or_scale(_nearest("nearest")))
converts("upsample_bilinear2d.vec")(_by_size_or_scale(_smooth("linear")))
