"""Einsum as products of matrices."""

from __future__ import annotations

import numpy as np

from nnvm.dim import numel
from nnvm.dtype import I64
from nnvm.frontend.onnx.table import Context, Unsupported, converts, emit, of_array
from nnvm.graph import NodeEntry

__all__: list[str] = []


@converts("Einsum")
def einsum(c: Context) -> NodeEntry:
    terms = [c[i] for i in range(len(c.inputs))]
    sources, target = _labels(c.attrs["equation"], [t.type.rank for t in terms])
    value, labels = terms[0], sources[0]
    for i, (other, theirs) in enumerate(zip(terms[1:], sources[1:])):
        later = set(target).union(*sources[i + 2 :])
        value, labels = _pair(value, labels, other, theirs, later)
    value, labels = _sum_out(*_diagonal(value, labels), set(target))
    if sorted(labels) != sorted(target):
        raise Unsupported(f"the equation {c.attrs['equation']}")
    return emit("transpose", value, axes=tuple(labels.index(k) for k in target))


def _labels(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """Subscripts of each input and of the output; the axes under an ellipsis get capital Greek letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    sources = left.split(",")
    if len(sources) != len(ranks):
        raise Unsupported(f"the equation {equation} for {len(ranks)} inputs")
    hidden = [r - len(s.replace("...", "")) if "..." in s else 0 for s, r in zip(sources, ranks)]
    greek = "".join(chr(0x391 + i) for i in range(max(hidden)))
    sources = [s.replace("...", greek[len(greek) - h :]) for s, h in zip(sources, hidden)]
    if any(len(s) != r for s, r in zip(sources, ranks)):
        raise Unsupported(f"the equation {equation} for inputs of {ranks} axes")
    if not arrow:
        joined = "".join(sources)
        return sources, greek + "".join(sorted(k for k in set(joined) - set(greek) if joined.count(k) == 1))
    return sources, right.replace("...", greek)


def _diagonal(value: NodeEntry, labels: str) -> tuple[NodeEntry, str]:
    """Without labels that stand twice: the diagonal of their axes, which moves to the front."""
    for k in sorted(set(labels)):
        while labels.count(k) > 1:
            i = labels.index(k)
            j = labels.index(k, i + 1)
            n = value.type.shape[i]
            if not isinstance(n, int) or value.type.shape[j] != n:
                raise Unsupported(f"the diagonal of axes of {n} and {value.type.shape[j]} positions")
            order = (i, j, *(a for a in range(len(labels)) if a not in (i, j)))
            along = of_array(np.arange(n), I64)
            value = emit("index", emit("transpose", value, axes=order), along, along, axes=(0, 1))
            labels = k + "".join(labels[a] for a in order[2:])
    return value, labels


def _sum_out(value: NodeEntry, labels: str, kept: set[str]) -> tuple[NodeEntry, str]:
    gone = tuple(i for i, k in enumerate(labels) if k not in kept)
    if not gone:
        return value, labels
    return emit("sum", value, axis=gone, keepdims=False), "".join(k for k in labels if k in kept)


def _pair(a: NodeEntry, la: str, b: NodeEntry, lb: str, later: set[str]) -> tuple[NodeEntry, str]:
    """The product of two terms with the labels summed that nobody needs later: one batched matmul."""
    a, la = _sum_out(*_diagonal(a, la), later | set(lb))
    b, lb = _sum_out(*_diagonal(b, lb), later | set(la))
    size = {**dict(zip(la, a.type.shape)), **{k: n for k, n in zip(lb, b.type.shape) if n != 1}}
    if any(n != size[k] for t, ls in ((a, la), (b, lb)) for k, n in zip(ls, t.type.shape)):
        raise Unsupported("axes of size 1 that are broadcast")
    batch = [k for k in la if k in lb and k in later]
    summed = [k for k in la if k in lb and k not in later]
    rows, columns = [k for k in la if k not in lb], [k for k in lb if k not in la]

    def arranged(t: NodeEntry, labels: str, last: tuple[list[str], list[str]]) -> NodeEntry:
        order = (*batch, *last[0], *last[1])
        t = emit("transpose", t, axes=tuple(labels.index(k) for k in order))
        return emit("reshape", t, shape=(*(size[k] for k in batch), *(numel(tuple(size[k] for k in g)) for g in last)))

    product = emit("matmul", arranged(a, la, (rows, summed)), arranged(b, lb, (summed, columns)))
    out = [*batch, *rows, *columns]
    return emit("reshape", product, shape=tuple(size[k] for k in out)), "".join(out)
