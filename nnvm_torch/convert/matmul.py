"""Matrix products. A product with a transposed or constant second operand becomes ``dense``, whose weight is [N, K]."""

from __future__ import annotations

from collections.abc import Sequence

from nnvm.dim import Dim
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Scalar, Value, converts

__all__: list[str] = []


def _transposed(x: NodeEntry) -> NodeEntry | None:
    """What `x` is the transpose of, in its last two axes."""
    node = x.node
    if node.op.name != "transpose":
        return None
    rank = x.type.rank
    if tuple(node.attrs["axes"]) != (*range(rank - 2), rank - 1, rank - 2):
        return None
    return node.inputs[0]


def product(c: Context, a: NodeEntry, b: NodeEntry, bias: NodeEntry | None = None) -> NodeEntry:
    """a [..., M, K] times b [..., K, N], plus bias [N] (b is a matrix then)."""
    weight = _transposed(b)
    if b.type.rank == 2 and (weight is not None or c.is_param(b) or bias is not None):
        weight = c.swap(b, 0, 1) if weight is None else weight
        return c.op("dense", a, weight, *([] if bias is None else [bias]))
    flat = _transposed(a)
    left, right = (a if flat is None else flat), (b if weight is None else weight)
    return c.op("matmul", left, right, transpose_a=flat is not None, transpose_b=weight is not None)


@converts("mm.default", "bmm.default")
def _mm(c: Context, a: NodeEntry, b: NodeEntry) -> Value:
    return product(c, a, b)


@converts("mm.dtype", "bmm.dtype")
def _mm_dtype(c: Context, a: NodeEntry, b: NodeEntry, out_dtype: object) -> Value:
    return product(c, c.cast(a, c.dtype), c.cast(b, c.dtype))


@converts("linear.default")
def _linear(c: Context, x: NodeEntry, weight: NodeEntry, bias: NodeEntry | None = None) -> Value:
    return c.op("dense", x, weight, *([] if bias is None else [bias]))


def _sum(c: Context, x: NodeEntry, y: NodeEntry, beta: Scalar, alpha: Scalar) -> NodeEntry:
    """beta * x + alpha * y, without rounding in between; x is not read where beta is 0."""
    t = c.dtype.compute
    y = c.cast(y, t)
    if alpha != 1:
        y = c.op("multiply", y, c.stored(alpha, t))
    if beta == 0:
        return c.cast(y, c.dtype)
    x = c.cast(x, t)
    if beta != 1:
        x = c.op("multiply", x, c.stored(beta, t))
    return c.cast(c.op("add", x, y), c.dtype)


def _wide(c: Context, a: NodeEntry, b: NodeEntry) -> NodeEntry:
    """The product in the compute type, so that what is added to it is added before the rounding."""
    return product(c, c.compute(a), c.compute(b)) if c.dtype.is_half else product(c, a, b)


@converts("addmm.default")
def _addmm(c: Context, x: NodeEntry, a: NodeEntry, b: NodeEntry, *, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    if beta == 1 and alpha == 1 and x.type.shape == (c.shape[1],) and (c.is_param(b) or _transposed(b) is not None):
        return product(c, a, b, x)
    return c.broadcast(_sum(c, x, _wide(c, a, b), beta, alpha), c.shape)


@converts("baddbmm.default")
def _baddbmm(c: Context, x: NodeEntry, a: NodeEntry, b: NodeEntry, *, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    return c.broadcast(_sum(c, x, _wide(c, a, b), beta, alpha), c.shape)


@converts("addbmm.default")
def _addbmm(c: Context, x: NodeEntry, a: NodeEntry, b: NodeEntry, *, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    total = c.op("sum", _wide(c, a, b), axis=(0,), keepdims=False)
    return c.broadcast(_sum(c, x, total, beta, alpha), c.shape)


def _column(c: Context, matrix: NodeEntry, vector: NodeEntry) -> NodeEntry:
    size: Dim = vector.type.shape[0]
    out = c.op("matmul", matrix, c.reshape(vector, (size, 1)))
    return c.reshape(out, (matrix.type.shape[0],))


@converts("mv.default")
def _mv(c: Context, a: NodeEntry, x: NodeEntry) -> Value:
    return _column(c, a, x)


@converts("addmv.default")
def _addmv(c: Context, x: NodeEntry, a: NodeEntry, v: NodeEntry, *, beta: Scalar = 1, alpha: Scalar = 1) -> Value:
    return c.broadcast(_sum(c, x, _column(c, c.compute(a), c.compute(v)), beta, alpha), c.shape)


@converts("dot.default", "vdot.default")
def _dot(c: Context, x: NodeEntry, y: NodeEntry) -> Value:
    row = c.reshape(x, (1, x.type.shape[0]))
    return c.reshape(c.op("matmul", row, c.reshape(y, (y.type.shape[0], 1))), ())


@converts("_trilinear.default")
def _trilinear(c: Context, x: NodeEntry, y: NodeEntry, z: NodeEntry, expand1: Sequence[int], expand2: Sequence[int],
               expand3: Sequence[int], sum_axes: Sequence[int], unroll: int = 1) -> Value:  # fmt: skip
    """The sum over some axes of a product of three tensors, each with new axes."""
    rank = x.type.rank + len(expand1)
    spread = []
    for t, new in ((x, expand1), (y, expand2), (z, expand3)):
        sizes = iter(t.type.shape)
        spread.append(c.reshape(c.compute(t), tuple(1 if axis in new else next(sizes) for axis in range(rank))))
    product_of_all = c.op("multiply", c.op("multiply", spread[0], spread[1]), spread[2])
    return c.cast(c.op("sum", product_of_all, axis=tuple(sum_axes), keepdims=False), c.dtype)
