"""Random gathers, scatters, sorting and searching."""

from __future__ import annotations

from tests.fuzz.build import Builder, Skip, Template
from tests.fuzz.program import Size

__all__ = ["TEMPLATES"]


def index(b: Builder, shape: tuple[Size, ...], limit: int) -> str:
    """An index tensor; rarely with one element out of bounds."""
    if limit <= 0:
        raise Skip
    low = b.rng.choice((0, 0, 0, -1)) if limit > 1 else 0
    high = limit + 1 if b.rng.random() < 0.02 else limit
    return b.fresh(shape, b.rng.choice(("int64", "int64", "int32")), f"integers({low}, {high})", "argument")


def own_index(b: Builder, shape: tuple[Size, ...], limit: int, dtype: str = "int64") -> str:
    """An index without negative numbers, as gather and its like want it."""
    if limit <= 0:
        raise Skip
    return b.fresh(shape, dtype, f"integers(0, {limit})", "argument")


def smallest(b: Builder, x: str, d: int) -> int:
    """The size of a dimension in every call."""
    return min(env[x].shape[d] for env in b.envs)  # type: ignore[attr-defined]


def taken(b: Builder) -> str:
    x = b.any(1)
    rng, rank, d = b.rng, b.rank(x), b.dim(x)
    n = rng.choice((1, 2, 3, 5))
    lead = ":, " * (d % rank)
    i = index(b, rng.choice(((n,), (n,), (2, n), ())), smallest(b, x, d))
    form = rng.choice(("index", "select", "gather", "along", "two", "mask", "put", "take", "where"))
    if form == "index":
        return f"{x}[{lead}{i}]"
    if form == "select":
        return f"torch.index_select({x}, {d}, {own_index(b, (n,), smallest(b, x, d), rng.choice(('int64', 'int32')))})"
    if form in ("gather", "along"):
        shape = [rng.randint(1, s) if isinstance(s, int) and s else s for s in b.shape(x)]
        shape[d % rank] = n
        own = own_index(b, tuple(shape), smallest(b, x, d))
        if form == "gather":
            return f"torch.gather({x}, {d}, {own})"
        return f"torch.take_along_dim({x}, {own}, {d})"
    if form == "two" and rank >= 2:
        return f"{x}[{index(b, (n,), smallest(b, x, 0))}, {index(b, (n,), smallest(b, x, 1))}]"
    if form == "mask":
        return rng.choice((f"torch.where({x} > 0, {x}, 0)", f"{x}[{x} > 0].sum()", f"{x} * ({x} != 1)"))
    if form == "put":
        return f"{x}.index_put(({i},), {x}.new_ones(()), accumulate={rng.choice((True, False))})"
    elements = min(env[x].numel() for env in b.envs)  # type: ignore[attr-defined]
    return f"torch.take({x}, {own_index(b, (n,), elements)})"


def scattered(b: Builder) -> str:
    x = b.any(1)
    rng, rank, d = b.rng, b.rank(x), b.dim(x)
    limit, dtype = smallest(b, x, d), b.dtype(x)
    shape = [rng.randint(1, s) if isinstance(s, int) and s else s for s in b.shape(x)]
    form = rng.choice(("scatter", "value", "add", "reduce", "index_add", "index_copy", "index_fill", "masked_scatter",
                       "select_scatter", "slice_scatter", "index_reduce", "setitem"))  # fmt: skip
    whole = list(b.shape(x))
    n = rng.choice((1, 2, 3))
    if form in ("scatter", "value", "add", "reduce"):
        shape[d % rank] = rng.randint(1, limit) if form == "scatter" and limit else rng.choice((1, 2, 4))
        where = own_index(b, tuple(shape), limit)
        if form == "value":
            return f"{x}.scatter({d}, {where}, 1)"
        source = b.fresh(tuple(shape), dtype, kind="argument")
        if form == "scatter":  # each place once: which of several wins is undefined
            return f"{x}.scatter({d}, torch.argsort({source}.double(), dim={d}, stable=True), {source})"
        if form == "add":
            return f"{x}.scatter_add({d}, {where}, {source})"
        how = rng.choice(("sum", "prod", "amax", "amin", "mean"))
        return f"{x}.scatter_reduce({d}, {where}, {source}, '{how}', include_self={rng.choice((True, False))})"
    if form in ("index_add", "index_copy", "index_reduce"):
        whole[d % rank] = n
        source = b.fresh(tuple(whole), dtype, kind="argument")
        if form == "index_copy":
            return f"{x}.index_copy({d}, torch.arange({n}), {source})"
        where = own_index(b, (n,), limit)
        if form == "index_add":
            return f"{x}.index_add({d}, {where}, {source}{rng.choice(('', ', alpha=2'))})"
        how = rng.choice(("prod", "amax", "amin", "mean"))
        return f"{x}.index_reduce({d}, {where}, {source}, '{how}', include_self={rng.choice((True, False))})"
    if form == "index_fill":
        return f"{x}.index_fill({d}, {own_index(b, (n,), limit)}, 2)"
    if form == "masked_scatter":
        return f"{x}.masked_scatter({x} > 0, {x} * 2)"
    if form == "select_scatter":
        return f"torch.select_scatter({x}, {x}.select({d}, 0) * 2, {d}, 0)"
    if form == "setitem":
        return f"{x}.index_put(({own_index(b, (1,), smallest(b, x, 0))},), {x}[0])"
    return f"torch.slice_scatter({x}, {x}.narrow({d}, 0, 1) + 1, {d}, 0, 1)"


def embedded(b: Builder) -> str:
    rng = b.rng
    rows, width = rng.choice((3, 7, 10)), rng.choice((1, 4, 8, 5))
    table = b.fresh((rows, width), b.main, "normal()", "parameter", "contiguous")
    if rng.random() < 0.6:
        ids = own_index(b, rng.choice(((4,), (2, 3), (), (b.size(), 2))), rows, rng.choice(("int64", "int32")))
        padding = ", padding_idx=1" if rng.random() < 0.3 else ""
        return f"F.embedding({ids}, {table}{padding})"
    bags = own_index(b, (3, b.size()), rows)
    return f"F.embedding_bag({bags}, {table}, mode='{rng.choice(('sum', 'mean', 'max'))}')"


def ordered(b: Builder) -> str:
    x = b.any(1)
    rng, d = b.rng, b.dim(x)
    down = rng.choice(("", ", descending=True"))
    k = rng.choice((1, 2, 3))
    return rng.choice((
        f"torch.sort({x}, {d}{down})[0]", f"torch.argsort({x}, dim={d}, stable=True{down})",
        f"torch.topk({x}, {k}, {d})[0]", f"torch.topk({x}, {k}, {d}, largest=False)[0]", f"torch.msort({x})",
        f"torch.sort({x}, dim={d}, stable=True{down})", f"torch.kthvalue({x}, {k}, {d})[0]",
        f"torch.searchsorted(torch.tensor([-1.0, 0.0, 0.5, 2.0]), {x}.float(){rng.choice(('', ', right=True'))})",
        f"torch.bucketize({x}.float(), torch.tensor([-1.0, 0.25, 1.0]))", f"torch.unique({x})",
        f"F.one_hot({x}.long().clamp(0, 3), 4)", f"torch.isin({x}, torch.tensor([0, 1, 2], dtype={x}.dtype))",
        f"torch.nonzero({x})", f"torch.histc({x}.float(), 4, -2, 2)",
        f"torch.bincount({x}.flatten().long().clamp(0, 5))",
        f"torch.cumsum({x}, {d})", "torch.triu_indices(3, 4)", f"torch.trapezoid({x}, dim={d})",
    ))  # fmt: skip


TEMPLATES: tuple[tuple[int, Template], ...] = ((7, taken), (6, scattered), (2, embedded), (5, ordered))
