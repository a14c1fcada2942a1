"""Random views, rearrangements, padding and creation of tensors."""

from __future__ import annotations

from tests.fuzz.build import FLOATS, INTS, Builder, Skip, Template

__all__ = ["TEMPLATES"]


def reshape(b: Builder) -> str:
    x = b.any(1)
    rank, d = b.rank(x), b.dim(x)
    e = b.rng.randrange(rank)
    return b.rng.choice((
        f"{x}.flatten()", f"{x}.reshape(-1)", f"{x}.unsqueeze({b.rng.randint(-rank - 1, rank)})", f"{x}.squeeze()",
        f"{x}.squeeze({d})", f"{x}.flatten({min(d % rank, e)}, {max(d % rank, e)})", f"{x}.reshape({x}.shape[0], -1)",
        f"{x}.view(-1, {x}.shape[-1])", f"{x}.transpose({d}, {e})", f"{x}.movedim({d}, {e})", f"{x}.contiguous()",
        f"{x}.unflatten({d}, (1, -1))", f"{x}.unflatten({d}, (-1, 2))", f"{x}.clone()", f"{x}.mT",
        f"{x}.swapaxes({d}, {e})",
        f"{x}.clone(memory_format=torch.contiguous_format)", f"{x}.view(*{x}.shape)", f"{x}.detach()", f"{x}.T",
        f"torch.atleast_2d({x})", f"{x}.view_as({x})", f"{x}.ravel()", f"{x}.to(memory_format=torch.channels_last)",
        f"{x}.permute({', '.join(map(str, b.rng.sample(range(rank), rank)))})",
    ))  # fmt: skip


def part(b: Builder) -> str:
    """Views of parts, by slices and numbers."""
    x = b.any(1)
    rng, rank, d = b.rng, b.rank(x), b.dim(x)
    start, stop, step = rng.randint(-3, 3), rng.choice(("", *range(-2, 7))), rng.choice((1, 1, 2, 3))
    lead = ":, " * (d % rank)
    return rng.choice((
        f"{x}[{lead}{start}:{stop}:{step}]", f"{x}[{lead}{start}]", f"{x}[..., {start}:{stop}]", f"{x}[None]",
        f"{x}[..., None]", f"{x}.narrow({d}, 0, {max(1, abs(start))})", f"{x}.select({d}, {start})",
        f"{x}.split({max(1, abs(start))}, {d})[0]", f"{x}.chunk(2, {d})", f"{x}.unbind({d})[-1]", f"{x}.diagonal()",
        f"{x}.unfold({d}, 2, 1)", f"{x}[{lead}::{step}]", f"torch.tensor_split({x}, 2, {d})[-1]", f"{x}[0]", f"{x}[-1]",
        f"{x}.diagonal(1, 0, -1)", f"torch.diag_embed({x})", f"torch.split({x}, [1, {x}.shape[{d}] - 1], {d})",
        f"{x}.as_strided((2, 2), (1, 1))", f"{x}.unfold({d}, 3, 2)",
    ))  # fmt: skip


def spread(b: Builder) -> str:
    x = b.any(1)
    rng, rank, d = b.rng, b.rank(x), b.dim(x)
    n = rng.choice((1, 2, 3))
    return rng.choice((
        f"{x}.unsqueeze(0).expand({n}, *{x}.shape)", f"{x}.repeat({', '.join(['1'] * (rank - 1) + [str(n)])})",
        f"{x}.repeat_interleave({n}, {d})", f"torch.tile({x}, ({n}, 1))", f"torch.flip({x}, ({d},))",
        f"torch.roll({x}, {rng.randint(-3, 3)}, {d})", f"torch.roll({x}, 2)", f"torch.tril({x}, {rng.randint(-2, 2)})",
        f"torch.triu({x}, {rng.randint(-2, 2)})", f"torch.broadcast_to({x}, (2, *{x}.shape))", f"torch.rot90({x})",
        f"torch.flip({x}, (0, -1))", f"torch.fliplr({x})", f"{x}.expand(*{x}.shape)", f"torch.diff({x}, dim={d})",
        f"{x}.unsqueeze(-1).expand(*{x}.shape, {n})",
    ))  # fmt: skip


def joined(b: Builder) -> str:
    x = b.any(1)
    d = b.dim(x)
    shape = list(b.shape(x))
    other = b.rng.random()
    if other < 0.4:
        y = b.pick(lambda t: t.shape == b.value(x).shape)
    else:
        at = d % len(shape)
        dtype = b.dtype(x) if other < 0.85 else b.rng.choice((*FLOATS, *INTS))
        y = b.fresh((*shape[:at], b.size() if b.rng.random() < 0.6 else shape[at], *shape[at + 1 :]), dtype)
    return b.rng.choice((
        f"torch.cat(({x}, {y}), {d})", f"torch.cat(({y}, {x}, {y}), {d})", f"torch.stack(({x}, {y}), {d})",
        f"torch.cat(({x}, {x}), {d})", f"torch.stack(({y}, {x}))", f"torch.hstack(({x}, {y}))",
        f"torch.cat((torch.zeros(0), {x}), {d})", f"torch.vstack(({x}, {y}))",
    ))  # fmt: skip


def padded(b: Builder) -> str:
    x = b.any(1)
    rng, rank = b.rng, b.rank(x)
    axes = rng.randint(1, min(rank, 3))
    mode = rng.choice(("constant", "constant", "reflect", "replicate", "circular"))
    low = -1 if mode == "constant" else 0
    widths = ", ".join(str(rng.randint(low, 2)) for _ in range(2 * axes))
    number = rng.choice(("1", "-2.5", "float('inf')"))
    value = f", value={number}" if mode == "constant" and rng.random() < 0.5 else ""
    return f"F.pad({x}, ({widths}), mode='{mode}'{value})"


def created(b: Builder) -> str:
    x = b.any(1)
    d = b.dim(x)
    dtype = b.rng.choice((*FLOATS, *INTS))
    made = b.rng.choice((
        f"torch.arange({x}.shape[{d}])", f"torch.zeros_like({x})", f"torch.full_like({x}, 3)", f"torch.ones_like({x})",
        f"torch.eye({x}.shape[{d}])", f"torch.arange(0, 2 * {x}.shape[{d}], 2, dtype=torch.{dtype})",
        f"{x}.new_ones(3)",
        f"torch.full(({x}.shape[{d}], 2), 1.5)", "torch.linspace(0, 1, 5)", f"{x}.new_full((2,), 7)",
        "torch.tensor([1.5, 2.0, -1.0])", f"torch.scalar_tensor({x}.shape[{d}])",
        f"torch.zeros({x}.shape, dtype=torch.{dtype})",
    ))  # fmt: skip
    if b.rng.random() < 0.5:
        return made
    return f"{x} + {made}"


def image(b: Builder) -> str:
    """Operators of images: [batch, channels, height, width]."""
    x = b.pick(lambda t: t.dim() in (3, 4) and t.is_floating_point())
    rng, rank = b.rng, b.rank(x)
    mode = rng.choice(("nearest", "nearest-exact", "linear" if rank == 3 else "bilinear", "bicubic", "area"))
    corners = f", align_corners={rng.choice((True, False))}" if "linear" in mode or mode == "bicubic" else ""
    scale = rng.choice(("2", "1.5", "0.6", "3"))
    size = rng.choice((5, 1, 8)) if rank == 3 else (rng.choice((5, 1, 8)), rng.choice((3, 7)))
    return rng.choice((
        f"F.interpolate({x}, scale_factor={scale}, mode='{mode}'{corners})",
        f"F.interpolate({x}, size={size}, mode='{mode}'{corners})", f"F.pixel_shuffle({x}, 2)",
        f"F.pixel_unshuffle({x}, 2)", f"F.unfold({x}, 2)", f"F.channel_shuffle({x}, 2)",
        f"F.unfold({x}, 2, padding=1, stride=2)",
        f"F.interpolate({x}, scale_factor={scale}, mode='{mode}'{corners}, recompute_scale_factor=True)",
    ))  # fmt: skip


def with_view_input(b: Builder) -> str:
    """Two arguments on the same memory."""
    from tests.fuzz.program import Input

    if b.grad:
        raise Skip
    x = b.pick(lambda t: t.dim() >= 1)
    if x not in [i.name for i in b.inputs if i.kind == "argument"] or b.rng.random() < 0.7:
        raise Skip
    look = b.rng.choice((f"{x}[1:]", f"{x}[:]", f"{x}.transpose(0, -1)", f"{x}[..., :2]", f"{x}.reshape(-1)"))
    made = Input(b.new_name("x"), tuple(b.value(x).shape), b.dtype(x), "normal()", f"view:{look}")
    for env in b.envs:
        exec(made.code(), env)
    b.inputs.append(made)
    return f"{made.name} * 2" if not b.value(made.name).dtype.is_floating_point else f"{made.name} + 1"


TEMPLATES: tuple[tuple[int, Template], ...] = (
    (14, reshape), (10, part), (6, spread), (8, joined), (4, padded), (3, created), (4, image), (2, with_view_input),
)  # fmt: skip
