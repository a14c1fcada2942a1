"""Fourier transforms as products with their matrices, and the matrix of mel filters."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnvm.dtype import F32, I64, DType
from nnvm.frontend.onnx.convert.elementwise import cast
from nnvm.frontend.onnx.convert.shape import cut
from nnvm.frontend.onnx.protos import element_type
from nnvm.frontend.onnx.table import Context, Unsupported, axis_of, converts, emit, of_array
from nnvm.graph import NodeEntry

__all__: list[str] = []

Array = np.ndarray[Any, Any]

#: Positions of a transform, at most: its matrix has the square of them.
LARGEST = 4096


def _size(x: NodeEntry, axis: int) -> int:
    n = x.type.shape[axis]
    if not isinstance(n, int) or not 1 <= n <= LARGEST:
        raise Unsupported(f"a Fourier transform of {n} positions")
    return n


def _of(matrix: Array, t: DType) -> NodeEntry:
    return of_array(np.ascontiguousarray(matrix.astype(t.numpy)), t)


def _parts(x: NodeEntry, axis: int, length: int) -> list[NodeEntry]:
    """Real (and imaginary) part with `axis` last, cut or filled with zeros to `length`."""
    last = x.type.rank - 1
    order = [i for i in range(last) if i != axis] + [axis]
    out = []
    for k in range(x.type.shape[last]):  # type: ignore[arg-type]
        part = emit("reshape", cut(x, last, k, k + 1), shape=x.type.shape[:last])
        part = emit("transpose", part, axes=tuple(order))
        out.append(cut(part, last - 1, 0, min(length, _size(x, axis))))
    return out


def _transform(x: NodeEntry, axis: int, length: int, inverse: bool, onesided: bool) -> NodeEntry:
    """The discrete Fourier transform of x [..., 1 or 2] along an axis; onesided leaves out what is conjugate."""
    if x.type.shape[-1] not in (1, 2):
        raise Unsupported(f"complex numbers of {x.type.shape[-1]} parts")
    if not 1 <= length <= LARGEST:
        raise Unsupported(f"a Fourier transform of {length} positions")
    t = x.type.dtype
    bins = length // 2 + 1
    real_output = inverse and onesided
    parts = _parts(x, axis, bins if real_output else length)
    taken = min(_size(x, axis), bins if real_output else length)
    k, j = np.arange(bins if onesided and not inverse else length)[:, None], np.arange(taken)
    angle = 2 * np.pi / length * ((k * j) % length)
    cos, sin = np.cos(angle), np.sin(angle) * (1 if inverse else -1)
    if inverse:
        factor = np.full(taken, 1 / length)
        if real_output:
            factor[1 : (length + 1) // 2] *= 2  # these stand for their conjugates too
            sin[:, 0] = 0
        cos, sin = cos * factor, sin * factor

    def times(part: NodeEntry, matrix: Array) -> NodeEntry:
        return emit("dense", part, _of(matrix, t))

    real = times(parts[0], cos)
    imaginary = None if real_output else times(parts[0], sin)
    if len(parts) == 2:
        real = emit("subtract", real, times(parts[1], sin))
        imaginary = None if imaginary is None else emit("add", imaginary, times(parts[1], cos))
    back = list(range(real.type.rank - 1))
    back.insert(axis, real.type.rank - 1)
    found = [emit("expand_dims", emit("transpose", p, axes=tuple(back)), axis=real.type.rank)
             for p in (real, imaginary) if p is not None]  # fmt: skip
    return found[0] if len(found) == 1 else emit("concatenate", *found, axis=real.type.rank)


@converts("DFT")
def dft(c: Context) -> NodeEntry:
    x = c[0]
    if c.opset >= 20:
        axis = c.ints(2, "axis")[0] if c.has(2) else -2
    else:
        axis = c.attrs.get("axis", 1)
    axis = axis_of(axis, x.type.rank)
    if axis == x.type.rank - 1:
        raise Unsupported("a transform along the parts of the numbers")
    inverse, onesided = bool(c.attrs.get("inverse", 0)), bool(c.attrs.get("onesided", 0))
    size = _size(x, axis)
    length = c.ints(1, "dft_length")[0] if c.has(1) else 2 * (size - 1) if inverse and onesided else size
    return cast(_transform(_single(x), axis, length, inverse, onesided), x.type.dtype)


def _single(x: NodeEntry) -> NodeEntry:
    return cast(x, F32) if x.type.dtype.is_half else x


@converts("STFT")
def stft(c: Context) -> NodeEntry:
    signal = c[0] if c[0].type.rank == 3 else emit("expand_dims", c[0], axis=c[0].type.rank)
    x = _single(signal)
    step = c.ints(1, "frame_step")[0]
    window = cast(c[2], x.type.dtype) if c.has(2) else None
    total = x.type.shape[1]
    if not isinstance(total, int):
        raise Unsupported("a signal of symbolic length")
    length = c.ints(3, "frame_length")[0] if c.has(3) else total if window is None else _size(window, 0)
    if window is not None and window.type.shape != (length,):
        raise Unsupported(f"a window {window.type} for frames of {length}")
    count = 1 + (total - length) // step
    if count < 1 or step < 1:
        raise Unsupported(f"frames of {length} every {step} of {total}")
    at = np.arange(count)[:, None] * step + np.arange(length)
    frames = emit("take", x, of_array(at, I64), axis=1)
    if window is not None:
        frames = emit("multiply", frames, emit("reshape", window, shape=(length, 1)))
    return cast(_transform(frames, 2, length, False, bool(c.attrs.get("onesided", 1))), c[0].type.dtype)


@converts("MelWeightMatrix")
def mel_weight_matrix(c: Context) -> NodeEntry:
    """Triangular filters between equal steps on the mel scale, ``2595 log10(1 + f / 700)``, at whole bins."""
    bins, length, rate, low, high = (c.value(i, "a parameter of the filters").ravel()[0].item() for i in range(5))
    dtype = element_type(c.attrs.get("output_datatype", 1))
    mels = 2595 * np.log10(1 + np.array([low, high]) / 700)
    edges = mels[0] + np.arange(bins + 2) * ((mels[1] - mels[0]) / (bins + 2))
    at = ((length + 1) * (700 * (10 ** (edges / 2595) - 1)) // rate).astype(int)
    k = np.arange(length // 2 + 1)[:, None]
    left, centre, right = at[:-2], at[1:-1], at[2:]
    rising = (k - left) / np.maximum(centre - left, 1)
    falling = (right - k) / np.maximum(right - centre, 1)
    filters = np.where((k >= left) & (k <= centre) & (centre > left), rising, 0.0)
    filters = np.where((k == centre) & (centre == left), 1.0, filters)
    filters = np.where((k >= centre) & (k < right), falling, filters)
    return _of(filters, dtype)
