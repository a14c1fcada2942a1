"""Random edits in place of views, by index, by mask and with `out=`; views of other types; scatters into views."""

from __future__ import annotations

from tests.fuzz.build import FLOATS, Builder, Edit, Skip, Template
from tests.fuzz.elementwise import broadcastable
from tests.fuzz.indexing import own_index, smallest

__all__ = ["TEMPLATES"]


def by_index(b: Builder) -> str:
    """An edit at indices, each place once or added up: what else happens is undefined."""
    rng = b.rng
    x = b.any(1)
    d = b.dim(x)
    limit, lead = smallest(b, x, d), ":, " * (d % b.rank(x))
    if limit < 2:
        raise Skip
    i = own_index(b, (rng.choice((1, 3)),), limit)
    one = own_index(b, (1,), limit)
    whole = list(b.shape(x))
    whole[d % len(whole)] = b.value(i).shape[0]
    source = b.fresh(tuple(whole), b.dtype(x), kind="argument")
    return Edit(rng.choice((
        f"{x}[{lead}{one}] = 2", f"{x}[{lead}{one}] += 1", f"{x}[{lead}0] *= 3", f"{x}[{lead}-1] = {x}[{lead}0]",
        f"{x}.index_add_({d}, {i}, {source})", f"{x}.index_add_({d}, {i}, {source}, alpha=-1)",
        f"{x}.index_put_(({own_index(b, (3,), smallest(b, x, 0))},), {x}[:1], accumulate=True)",
        f"{x}.index_fill_({d}, {i}, -1)", f"{x}.index_copy_({d}, {one}, {source}.narrow({d}, 0, 1))",
        f"{x}[{x} > 0] = 0", f"{x}[{x} > 1] *= 2", f"{x}[{x} < 0] = {x}[{x} < 0].abs()",
        f"{x}[{lead}1:] = {x}[{lead}:-1]", f"{x}[{lead}1:] += {x}[{lead}:-1].clone()",
        f"{x}[{lead}::2] = {x}[{lead}::2] * 2", f"{x}[..., -1:] = 5",
        f"{x}.scatter_({d}, {own_index(b, b.shape(x), limit)}, 3)", f"{x}.masked_scatter_({x} > 0, {x}.clone())",
        f"{x}.scatter_add_({d}, {own_index(b, tuple(whole), limit)}, {source})",
        f"{x}.scatter_reduce_({d}, {own_index(b, tuple(whole), limit)}, {source}, 'amax')",
        f"{x}.put_({own_index(b, (2,), limit)}, {x}.flatten()[:2], accumulate=True)",
    )))  # fmt: skip


def of_view(b: Builder) -> str:
    """An edit of a view of a view, and of values that others look at."""
    rng = b.rng
    x = b.any(1)
    d = b.dim(x)
    y = broadcastable(b, x)
    view = rng.choice((
        f"{x}.transpose(0, -1)[0]", f"{x}.unsqueeze(1)[:1]", f"{x}.flatten(0)[1:]", f"{x}.view(-1)[::2]",
        f"{x}[None, ..., 0]", f"{x}.narrow({d}, 0, 1)", f"{x}.select({d}, -1)", f"{x}.diagonal()",
        f"{x}.diagonal(0, -1, 0)", f"{x}.unbind({d})[0]", f"{x}.split(1, {d})[-1]", f"{x}.chunk(2, {d})[0]",
        f"{x}.permute({', '.join(map(str, range(b.rank(x) - 1, -1, -1)))})", f"{x}.movedim(0, -1)",
        f"{x}.expand_as({x})", f"{x}.unfold({d}, 1, 2)", f"{x}.detach()", f"{x}.view_as({x})",
        f"{x}.as_strided((2,), (1,))", f"{x}[..., None]", f"{x}[1:][:-1]", f"{x}.squeeze()", f"{x}.reshape({x}.shape)",
    ))  # fmt: skip
    return Edit(rng.choice((
        f"{view}.mul_(2)", f"{view}.add_(1)", f"{view}.zero_()", f"{view}.copy_({view} * 3)", f"{view}.fill_(1)",
        f"{view}.clamp_(-1, 1)", f"{view}.masked_fill_({view} > 0, -1)", f"{view}.add_({view})",
        f"{view}.sub_({view}.flip(0))", f"{view}.copy_({y})", f"{view}.mul_({y})", f"{view}.exp_().neg_()",
        f"{view}.cumsum_(0)", f"{view}.floor_()", f"{view}.relu_()", f"{view}.where({view} > 0, {view} * 0).add_(1)",
        f"{view}.fill_({view}.sum())", f"{view}.sin_()", f"{view}.addcmul_({view}, {view}, value=0.5)",
        f"{view}.lerp_({view} * 0, 0.25)", f"{view}.fmod_(2)", f"{view}.tanh_()", f"{view}.uniform_(1, 1)",
        f"{view}.div_(2, rounding_mode='floor')", f"{view}.bitwise_and_(3)", f"{view}.sort()[0]",
    )))  # fmt: skip


def into(b: Builder) -> str:
    """A result written into another tensor: `out=`, and products added in place."""
    rng = b.rng
    x = b.number(low=1)
    y = broadcastable(b, x)
    d = b.dim(x)
    if b.grad:
        raise Skip  # out= takes no gradients
    return rng.choice((
        f"torch.add({x}, {y}, out=torch.empty(0, dtype={x}.dtype))", f"torch.mul({x}, 2, out={x}.clone())",
        f"torch.exp({x}, out=torch.empty_like({x}))", f"torch.sum({x}, {d}, out=torch.empty(0, dtype={x}.dtype))",
        f"torch.cat(({x}, {x}), {d}, out=torch.empty(0, dtype={x}.dtype))",
        f"torch.sub({x}, 1, out=torch.zeros_like({x}))",
        f"torch.matmul({x}, {x}.mT, out=torch.empty(0, dtype={x}.dtype))", f"torch.empty_like({x}).copy_({x}).add_(1)",
        f"{x}.clone().addmm_({x}, {x}.mT @ {x})", f"{x}.clone().baddbmm_({x}, {x}.mT @ {x})",
        f"{x}.clone().fill_diagonal_(2)", f"torch.clamp({x}, 0, 1, out=torch.empty_like({x}))",
        f"{x}.clone().swapaxes_(0, -1).mul_(2)", f"torch.zeros_like({x}).add_({y})",
    ))  # fmt: skip


def scattered_views(b: Builder) -> str:
    rng = b.rng
    x = b.any(1)
    rank, d = b.rank(x), b.dim(x)
    e = rng.randrange(rank)
    return rng.choice((
        f"torch.diagonal_scatter({x}, {x}.diagonal() + 1)",
        f"torch.as_strided_scatter({x}, {x}.flatten()[:2] * 2, (2,), (1,))",
        f"torch.select_scatter({x}, {x}.select({d}, -1) + 1, {d}, -1)",
        f"torch.slice_scatter({x}, {x}.narrow({d}, 0, 1), {d}, -1)",
        f"torch.slice_scatter({x}, {x}[..., ::2] * 2, -1, 0, None, 2)", f"torch.hsplit({x}, 2)[0]",
        f"torch.vsplit({x}, 2)[-1]", f"{x}.squeeze((0, {e}))", f"{x}.tensor_split((1, 2), {d})",
        f"{x}.split_with_sizes((1, {x}.shape[{d}] - 1), {d})", f"torch.unbind({x}, {d})[0]",
        f"{x}.unflatten({d}, (2, -1))", f"{x}.view({x}.shape[0], -1)", f"{x}.expand(2, *{x}.shape)",
        f"torch.column_stack(({x}, {x}))", f"torch.dstack(({x}, {x}))", f"torch.atleast_3d({x})",
        f"torch.block_diag({x}, {x})", f"{x}.unfold({d}, 2, 2).sum(-1)",
        f"{x}.index_select({d}, torch.arange({x}.shape[{d}]).flip(0))", f"{x}.resolve_conj()",
        f"{x}[:, None] + {x}[None]", f"{x}[torch.arange({x}.shape[0]) % 2 == 0]", f"{x}[..., [0, -1]]",
        f"{x}[[0], ..., [0]]", f"{x}[torch.arange({x}.shape[0])[:, None], torch.arange({x}.shape[-1])]",
        f"{x}[{x}.shape[0] // 2 :]", f"{x}[:, :, [0, 0]]", f"{x}.repeat_interleave(torch.arange({x}.shape[{d}]), {d})",
        f"torch.take_along_dim({x}, {x}.argsort(dim={d}, stable=True), {d})",
        f"{x}.gather({d}, {x}.argsort(dim={d}, stable=True))", f"{x}.roll((1, -1), (0, {e}))",
        f"{x}.flip({d}).cumsum({d}).flip({d})", f"{x}.narrow_copy({d}, 0, 1)",
        f"{x}.as_strided({x}.shape, {x}.stride())", f"torch.permute_copy({x}, tuple(range({rank})))",
        f"{x}.swapdims({d}, {e})", f"torch.concat(({x}, {x}.flip(0), {x} * 0), {d})",
        f"torch.expand_copy({x}, (2, *{x}.shape))",
    ))  # fmt: skip


def other_type(b: Builder) -> str:
    """The same memory as elements of another size; casts and types that promote."""
    rng = b.rng
    x = b.any(1)
    value = b.value(x)
    if value.is_floating_point() and rng.random() < 0.4:
        low = rng.choice(FLOATS)
        return rng.choice((
        f"{x}.to(torch.{low}) + {x}", f"{x}.type_as({x}.half())", f"{x}.to(torch.{low}).sum(-1)",
        f"torch.cat(({x}, {x}.to(torch.{low})))",
        ))  # fmt: skip
    if value.is_floating_point() or str(value.dtype) == "torch.bool":
        raise Skip
    return rng.choice((
        f"{x}.contiguous().view(torch.uint8)", f"{x}.to(torch.int32).view(torch.int16)", f"{x} + 0.5", f"{x} * True",
        f"{x}.to(torch.int64).view(torch.int32)[..., ::2]", f"{x} + torch.tensor(3)", f"{x} + torch.tensor(2.5)",
        f"{x}.byte()", f"{x}.to(torch.int16) * {x}.to(torch.int8)", f"{x}.to(torch.uint8) - 1", f"{x}.char()",
        f"{x}.short() + {x}.bool()",
    ))  # fmt: skip


TEMPLATES: tuple[tuple[int, Template], ...] = (
    (5, by_index), (7, of_view), (3, into), (9, scattered_views), (3, other_type),
)  # fmt: skip
