"""Attention in the form in which models write it out.

```
%s = matmul(%q, %k, transpose_b=True); %t = multiply(%s, 0.125); %m = add(%t, %mask)
%p = softmax(%m, axis=-1); %o = matmul(%p, %v)          ->     %o = attention(%q, %k, %v, %mask, scale=0.125)
```
Views around the softmax are allowed. ``attention`` gives zeros for a query that may attend to nothing, softmax NaN or
equal weights; so a mask is taken only where each query attends to something (a constant mask tells) or where what is
added is finite, and a filled-in mask only with a filling that outweighs every score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from nnvm.graph.node import Node, NodeEntry, TypeInferenceError, apply, constant
from nnvm.graph.rewrite import scalar_value
from nnvm.graph.types import TensorType

__all__ = ["attention", "grouped_attention"]

#: A score filled in with less than this has no weight beside any other.
_NO_WEIGHT = -1e30


@dataclass(frozen=True)
class _Scores:
    """Scores on the way back from the softmax to the product.

    Attributes:
        scale: factor found so far.
        mask: what is added, or a bool of who attends; None: nothing.
    """

    entry: NodeEntry
    scale: float = 1.0
    mask: NodeEntry | None = None


def attention(product: Node, is_read_once: Callable[[NodeEntry], bool], fast: bool) -> NodeEntry | None:
    """The attention that ends in this matrix product, or None.

    `is_read_once` says of a value whether it has one reader; scores that are also read elsewhere stay written out.
    """
    if product.attrs["transpose_a"] or product.attrs["transpose_b"]:
        return None
    weights, v = product.inputs
    rule = weights.node.op.attr("trailing_axes")
    if not weights.node.op.attr("is_softmax") or not is_read_once(weights):
        return None
    if rule is None or rule(weights.node.attrs, weights.type.rank) is None:
        return None
    found = _walk_back(_Scores(weights.node.inputs[0]), is_read_once)
    if found is None:
        return None
    base = found.entry.node
    q, k = base.inputs
    if not base.attrs["transpose_b"] or base.attrs["transpose_a"]:
        return None
    checked = _checked_mask(found, fast)
    if checked is None:
        return None
    mask, causal = checked
    inputs = [q, k, v] if mask is None else [q, k, v, mask]
    try:
        return apply("attention", inputs, {"scale": found.scale, "causal": causal})[0]
    except TypeInferenceError:
        return None


def _walk_back(scores: _Scores, is_read_once: Callable[[NodeEntry], bool]) -> _Scores | None:
    """From the softmax's input to the matrix product, through one mask and any scales."""
    while is_read_once(scores.entry):
        node = scores.entry.node
        if node.op.attr("is_matmul"):
            return scores
        algebra = node.op.attr("algebra")
        step: _Scores | None = None
        if algebra in ("multiply", "divide"):
            step = _scaled(scores, node, algebra)
        elif algebra == "add" and scores.mask is None and scores.scale == 1:
            step = _added(scores, node)
        elif node.op.attr("is_select") and scores.mask is None and scores.scale == 1:
            step = _filled(scores, node)
        if step is None or step.entry.type.shape != scores.entry.type.shape:
            return None
        scores = step
    return None


def _scaled(scores: _Scores, node: Node, algebra: str) -> _Scores | None:
    for side in (0, 1) if algebra == "multiply" else (0,):
        factor = scalar_value(node.inputs[1 - side])
        if factor:
            scale = scores.scale * factor if algebra == "multiply" else scores.scale / factor
            return replace(scores, entry=node.inputs[side], scale=scale)
    return None


def _added(scores: _Scores, node: Node) -> _Scores | None:
    a, b = node.inputs
    for entry, mask in ((a, b), (b, a)):
        if entry.type == node.outputs[0].type and _leads_to_product(entry):
            return replace(scores, entry=entry, mask=mask)
    return None


def _leads_to_product(e: NodeEntry) -> bool:
    while e.node.op.attr("algebra") in ("multiply", "divide"):
        e = e.node.inputs[0] if scalar_value(e.node.inputs[1]) is not None else e.node.inputs[1]
    return bool(e.node.op.attr("is_matmul"))


def _filled(scores: _Scores, node: Node) -> _Scores | None:
    """where(mask, scores, filling): as a bool mask where it is constant, else as something that is added."""
    attends, entry, filling = node.inputs
    value = scalar_value(filling)
    if value is None or value > _NO_WEIGHT:
        return None
    if attends.node.is_constant and _each_row(attends.node.attrs["value"]):
        return replace(scores, entry=entry, mask=attends)
    if not np.isfinite(value):
        return None
    zero = constant(np.zeros((), entry.type.dtype.numpy), TensorType((), entry.type.dtype, entry.type.device))
    return replace(scores, entry=entry, mask=apply(node.op, [attends, zero, filling])[0])


def _checked_mask(found: _Scores, fast: bool) -> tuple[NodeEntry | None, bool] | None:
    """(mask or None, causal), or None where the mask's meaning would not be kept."""
    mask = found.mask
    if mask is None:
        return None, False
    if mask.node.is_constant and mask.type.dtype.name != "bfloat16":
        value = mask.node.attrs["value"]
        attends = value if value.dtype == bool else value > _NO_WEIGHT
        if not _each_row(attends):
            return None
        if _is_causal(value, attends, found.entry.type):
            return None, True
        return mask, False
    return (mask, False) if fast or _is_finite(mask) else None


def _each_row(attends: np.ndarray) -> bool:  # type: ignore[type-arg]
    return bool(attends.ndim and attends.any(axis=-1).all())


def _is_causal(value: np.ndarray, attends: np.ndarray, scores: TensorType) -> bool:  # type: ignore[type-arg]
    """Whether a constant mask says no more than that key j is for queries i >= j."""
    rows, columns = scores.shape[-2:]
    if value.shape[-2:] != (rows, columns) or any(d != 1 for d in value.shape[:-2]):
        return False
    plain = value.dtype == bool or not value[attends].any()
    lower = np.tril(np.ones(value.shape[-2:], bool))
    return plain and np.array_equal(attends.reshape(lower.shape), lower)


def _is_finite(e: NodeEntry, depth: int = 8) -> bool:
    """Whether a value is known to have no infinities: built by selecting between finite numbers."""
    if depth == 0:
        return False
    node = e.node
    if node.is_constant:
        return bool(np.isfinite(node.attrs["value"]).all())
    if node.op.attr("is_select"):
        return all(_is_finite(x, depth - 1) for x in node.inputs[1:])
    if node.op.attr("is_cast"):
        return not node.inputs[0].type.dtype.is_float
    moves = node.op.attr("view") or node.op.attr("is_broadcast") or node.op.attr("is_slice")
    return bool(moves or node.op.attr("permutation")) and _is_finite(node.inputs[0], depth - 1)


def grouped_attention(node: Node) -> NodeEntry | None:
    """Heads of keys and values that were copied for several heads of queries, taken once (``groups``)."""
    q, k, v, *mask = node.inputs
    if node.attrs["groups"] != 1:
        return None
    sources = [_before_copies(e) for e in (k, v)]
    if sources[0] is None or sources[1] is None or sources[0].type.shape[:-1] != sources[1].type.shape[:-1]:
        return None
    heads, total = sources[0].type.shape[-3], k.type.shape[-3]
    if not isinstance(heads, int) or not isinstance(total, int) or total % heads:
        return None
    try:
        return apply(node.op, [q, sources[0], sources[1], *mask], {**node.attrs, "groups": total // heads})[0]
    except TypeInferenceError:
        return None


def _before_copies(e: NodeEntry) -> NodeEntry | None:
    """[..., heads, L, D] of view(broadcast_to(view(.))) that copies each head to its neighbours; None otherwise."""
    if not e.node.op.attr("view") or not (spread := e.node.inputs[0]).node.op.attr("is_broadcast"):
        return None
    narrow = spread.node.inputs[0]
    if narrow.type.rank != spread.type.rank or e.type.rank != spread.type.rank - 1 or e.type.rank < 3:
        return None
    *batch, heads, one, length, depth = narrow.type.shape
    copies = spread.type.shape[-3]
    if one != 1 or spread.type.shape != (*batch, heads, copies, length, depth):
        return None
    if e.type.shape != (*batch, heads * copies, length, depth):
        return None
    source, wanted = narrow, (*batch, heads, length, depth)
    while source.node.op.attr("view"):
        source = source.node.inputs[0]
        if source.type.shape == wanted:
            return source
    return apply("reshape", [narrow], {"shape": wanted})[0]
