"""Recognising attention: two products with a softmax between them, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnvm.dim import row_major
from nnvm.schedules.access import Held, Inliner, Source, parts
from nnvm.te.expr import Binary, Buffer, Cast, Expr, Reduce, Var
from nnvm.te.tensor import Read, Tensor, topological
from nnvm.tir.affine import Space, atom_affine

__all__ = ["Attention", "bare", "match_attention"]


@dataclass(frozen=True, eq=False)
class Attention:
    """The stages of softmax(q kᵀ) v, however scaled and masked.

    Attributes:
        scores, top, exps, total, weighted, out: the tensors; `out` is elementwise in `weighted`.
        q, k, v: the factors of the two products, as in the bodies of `scores` and `weighted`.
    """

    scores: Tensor
    top: Tensor
    exps: Tensor
    total: Tensor
    weighted: Tensor
    out: Tensor
    q: Expr
    k: Expr
    v: Expr

    @property
    def causal(self) -> bool:
        return bool(self.scores.attrs.get("causal"))


def match_attention(outputs: Sequence[Tensor]) -> Attention | None:
    """The group as attention; None where it is something else."""
    reductions = [t for t in topological(outputs) if isinstance(t.body, Reduce)]
    if len(outputs) != 1 or len(reductions) != 4:
        return None
    products = [(t, f) for t in reductions if (f := _factors(t)) is not None]
    if len(products) != 2:
        return None
    (scores, first), (weighted, second) = products
    if len(scores.axes) < 2 or len(weighted.axes) != len(scores.axes):
        return None
    rows, keys = scores.axes[-2], scores.axes[-1]
    by_row = sorted(first, key=lambda f: not _uses(f, rows.var))
    by_exps = sorted(second, key=lambda f: scores not in topological([_read(f).tensor]))
    exps = _read(by_exps[0]).tensor
    middle = {_reducer(t): t for t in reductions if t not in (scores, weighted)}
    fits = (
        _uses(by_row[0], rows.var) and not _uses(by_row[0], keys.var) and _uses(by_row[1], keys.var)
        and not _uses(by_row[1], rows.var) and exps.body is not None and exps.shape == scores.shape
        and middle.keys() == {"max", "sum"} and scores not in topological([_read(by_exps[1]).tensor])
        and all(len(t.reduce_axes) == 1 for t in reductions)
        and all(t.reduce_axes[0].extent == keys.extent for t in (*middle.values(), weighted))
        and all([a.extent for a in t.axes if a.extent != 1] == [a.extent for a in scores.axes[:-1] if a.extent != 1]
                for t in middle.values())
        and outputs[0].shape == weighted.shape
        and isinstance(weighted.axes[-1].extent, int) and isinstance(scores.reduce_axes[0].extent, int)
    )  # fmt: skip
    if not fits:
        return None
    found = Attention(
        scores, middle["max"], exps, middle["sum"], weighted, outputs[0], by_row[0], by_row[1], by_exps[1]
    )
    return found if _stays_in_rows(found) else None


def _stays_in_rows(a: Attention) -> bool:
    """Does every stage read the others at its own row (and key, or column) only?"""
    inputs = {t: Source(Buffer(t.name, (1,), t.dtype), row_major(t.shape)) for t in topological([a.out]) if not t.body}
    inliner = Inliner(Space(), inputs, frozenset((a.scores, a.top, a.total, a.weighted)))
    for t in (a.top, a.total, a.exps, a.out):
        if isinstance(t.body, Reduce):
            axes = (*t.axes, *t.reduce_axes)
            value = inliner.expr(t.body.source, {x.var: atom_affine(x.var) for x in axes})
        else:
            axes = t.axes
            value = inliner.element(t, [atom_affine(x.var) for x in axes])
        rows = [atom_affine(x.var) for x in axes[:-1] if x.extent != 1]
        last = [atom_affine(x.var) for x in axes[-1:] if x.extent != 1]
        for x in parts(value):
            if isinstance(x, Held):
                own = [i for i, n in zip(x.indices, x.tensor.shape) if n != 1]
                if own != (rows if x.tensor in (a.top, a.total) else rows + last):
                    return False
    return True


def _reducer(t: Tensor) -> str:
    assert isinstance(t.body, Reduce)
    return t.body.op


def _factors(t: Tensor) -> tuple[Expr, Expr] | None:
    """The two factors of a sum of products of tensor elements (each perhaps converted)."""
    assert isinstance(t.body, Reduce)
    product = t.body.source
    if t.body.op != "sum" or not isinstance(product, Binary) or product.op != "mul":
        return None
    both = (product.a, product.b)
    return both if all(isinstance(bare(f), Read) for f in both) else None


def bare(e: Expr) -> Expr:
    """`e` without the conversions around it."""
    while isinstance(e, Cast):
        e = e.a
    return e


def _read(e: Expr) -> Read:
    read = bare(e)
    assert isinstance(read, Read)
    return read


def _uses(e: Expr, var: Var) -> bool:
    return any(x is var for x in parts(e))
