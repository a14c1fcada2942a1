"""Random use of sizes, and of Python numbers among the arguments, that differ from call to call: slices, shapes, made
tensors, parts, arithmetic and edits whose bounds are computed from them."""

from __future__ import annotations

import random

from tests.fuzz.build import FLOATS, Builder, Edit, Skip, Template
from tests.fuzz.elementwise import broadcastable

__all__ = ["TEMPLATES", "calls"]

#: Python numbers in terms of the sizes of a call: of both signs, zero, huge.
_INTS = (
    "N - 6", "M - N", "5 - M", "-N", "-1 - M", "N", "N // 2", "N % 3 - 1", "0 if N > 5 else -2", "1 if M > N else N",
    "-(N // 2)", "N - M + 1",
)  # fmt: skip
_HUGE = ("2**31 + N", "-2**31 - M", "2**40 - N", "2**62 + N", "-2**62 - M", "(N - 6) * 10**9", "2**24 + M")
_FLOATS = (
    "N * 0.5", "(N - 6) * 0.37", "-1.5 * M", "0.0 if N > 5 else 1.0", "1e-3 * N", "1e30 * (M - N)", "N + 0.25",
    "float('inf') if N > 5 else 2.5", "float(N)", "-0.0 if N > 5 else 0.0", "float('nan') if M > 5 else -3.0",
    "1 / (N + 1)",
)  # fmt: skip
_BOOLS = ("N > 5", "N % 2 == 0", "M > N", "M < 3")


def calls(rng: random.Random) -> tuple[tuple[int, int], ...]:
    """Sizes of three or four calls; 0 and 1 come after the first."""
    n, m = rng.sample((2, 3, 4, 5, 6, 7, 9, 12), 2)
    later = ((0, 1, 2, 3, 4, 5, 8, 10, 13, 17), (1, 2, 3, 3, 3, 4, 4, 4, 3, 3))
    return ((n, m), *((rng.choices(*later)[0], rng.choices(*later)[0]) for _ in range(rng.choice((2, 2, 3)))))


def whole(b: Builder, huge: float = 0.0) -> str:
    """A Python int among the arguments, an old one or a new one."""
    old = [k for k, v in b.envs[0].items() if type(v) is int and k[0] == "k"]
    if old and b.rng.random() < 0.5:
        return b.rng.choice(old)
    return b.fresh_number(b.rng.choice(_HUGE if b.rng.random() < huge else _INTS))


def number(b: Builder) -> str:
    """A Python number among the arguments."""
    draw = b.rng.random()
    if draw < 0.45:
        return whole(b, 0.2)
    return b.fresh_number(b.rng.choice(_FLOATS if draw < 0.9 else _BOOLS))


def length(b: Builder, x: str, d: int) -> str:
    """Something computed from sizes or whole numbers, mostly from the size of `x` along `d`."""
    rng = b.rng
    n = rng.choice((f"{x}.shape[{d}]", f"{x}.size({d})"))
    draw = rng.random()
    if draw < 0.25:
        return n
    if draw < 0.45:
        return whole(b)
    y = b.any(1)
    return rng.choice((
        f"({n} - 1)", f"({n} + 1)", f"({n} // 2)", f"(({n} + 1) // 2)", f"(2 * {n})", f"({n} % 3)", f"(-{n})",
        f"max({n} - 3, 1)", f"min({n}, 4)", f"len({y})", f"({n} + {y}.shape[{b.dim(y)}])", f"({y}.numel() // 2)",
        f"abs({whole(b)})", f"({whole(b)} % {n})", f"({n} - {y}.shape[0])", f"({n} + {whole(b)})",
        f"max({n}, {y}.shape[-1])", f"int({n} * 0.5)", f"(-({n} // 2))", f"({n} if {n} > 5 else 2)", "3", "1",
    ))  # fmt: skip


def sliced(b: Builder) -> str:
    x = b.any(1)
    rng, d = b.rng, b.dim(x)
    lead = ":, " * (d % b.rank(x))
    n, m = length(b, x, d), length(b, x, d)
    step = rng.choice((2, 3, 4))
    return rng.choice((
        f"{x}[{lead}{n}:]", f"{x}[{lead}:{n}]", f"{x}[{lead}-{n}:]", f"{x}[{lead}:-{n}]", f"{x}[{lead}{n}:{m}]",
        f"{x}[{lead}::{step}]", f"{x}[{lead}1::{step}]", f"{x}[{lead}{n}::{step}]", f"{x}[{lead}:{n}:{step}]",
        f"{x}[..., {n}:]", f"{x}[..., -{n}:]", f"{x}[..., :{n}]", f"{x}[{lead}{n}]", f"{x}[{lead}{n} - 1]",
        f"{x}.narrow({d}, {n}, {m})", f"{x}.narrow({d}, 0, {n})", f"{x}.select({d}, {n})",
        f"{x}[{lead}{n}:] + {x}[{lead}:{n}].sum()", f"{x}[{lead}1:] - {x}[{lead}:-1]",
        f"torch.cat(({x}[{lead}{n}:], {x}[{lead}:{n}]), {d})", f"torch.cat(({x}, {x}[{lead}:{n}] * 2), {d})",
        f"torch.cat(({x}[{lead}::2], {x}[{lead}1::2]), {d})", f"torch.stack(({x}[{lead}0], {x}[{lead}{n}]))",
        f"torch.cat((-{x}[..., {x}.shape[-1] // 2 :], {x}[..., : {x}.shape[-1] // 2]), -1)",
        f"{x}.diagonal({n})" if b.rank(x) > 1 else f"{x}.diag({n})",
    ))  # fmt: skip


def shaped(b: Builder) -> str:
    x = b.any(1)
    rng, rank, d = b.rng, b.rank(x), b.dim(x)
    n, m = length(b, x, d), length(b, x, d)
    ones = "1, " * (rank - 1)
    return rng.choice((
        f"{x}.view({x}.shape[0], -1)", f"{x}.reshape({n}, -1)", f"{x}.view(-1, {n})", f"{x}.reshape(-1)[: {n}]",
        f"{x}.flatten().unsqueeze(0).expand({n}, -1)", f"{x}.repeat({ones}{n})", f"{x}.repeat({n}, {ones}1)",
        f"{x}.repeat_interleave({n}, {d})", f"torch.tile({x}, ({n},))", f"{x}.unfold({d}, {n}, {rng.choice((1, 2))})",
        f"{x}.unfold({d}, 2, {n})", f"torch.roll({x}, {n}, {d})", f"torch.roll({x}, ({n}, {m}), (0, -1))",
        f"torch.roll({x}, {n})", f"{x}.unsqueeze(-1).expand(*{x}.shape, {n})",
        f"torch.broadcast_to({x}, ({n}, *{x}.shape))",
        f"torch.tril({x}, {n})", f"torch.triu({x}, {n})", f"{x}.new_zeros({n}, *{x}.shape) + {x}",
        f"{x}.unflatten({d}, ({n}, -1))", f"{x}.unflatten({d}, (-1, 2))", f"{x}.flip({d})[..., :{n}]",
        f"{x}.reshape({x}.shape[0], 1, -1).transpose(0, -1)", f"{x}.mT.reshape(-1, {x}.shape[-2])",
        f"torch.diag_embed({x}, {n})", f"{x}.as_strided(({n}, 2), (1, 1))", f"{x}.reshape(-1, {x}.shape[{d}]).sum(0)",
        f"{x}.expand({n}, *{x}.shape).reshape(-1, *{x}.shape[1:])", f"torch.rot90({x}, {n})",
        f"{x}.repeat_interleave(torch.arange({x}.shape[{d}]), {d})", f"{x}.swapaxes(0, {d}).contiguous()",
    ))  # fmt: skip


def made(b: Builder) -> str:
    x = b.any(1)
    rng, d = b.rng, b.dim(x)
    n, m, k = length(b, x, d), length(b, x, d), number(b)
    own = f"{x}.shape[{d}]"
    dtype = rng.choice((*FLOATS, "float32", "int64", "int32"))
    text = rng.choice((
        f"torch.arange({n})", f"torch.arange({n}, {m})", f"torch.arange({n}, {m}, 2)", f"torch.arange({n}, {m}, -1)",
        f"torch.arange({own}, dtype=torch.{dtype}) * {k}", f"torch.arange(0, {own}, 3)", f"torch.arange({k}, {k} + 3)",
        f"torch.full(({own},), {k})", f"torch.full(({own}, 2), {k}, dtype=torch.{dtype})",
        f"{x}.new_full(({n}, 2), {k})",
        f"torch.full_like({x}, {k})", f"torch.zeros({n}, {m})", f"torch.ones({own}, dtype=torch.{dtype})",
        f"torch.eye({n}, {m})", f"torch.eye({own})", f"torch.linspace(0, {k}, {own})", f"torch.linspace({n}, {m}, 5)",
        f"torch.ones({own}, {own}).tril({n})", f"torch.ones({own}, {own}, dtype=torch.bool).triu({n})",
        f"torch.tensor({k})", f"torch.tensor([{n}, {m}])", f"torch.scalar_tensor({k})", f"torch.tensor({own} * 0.5)",
        f"(torch.arange({own})[:, None] >= torch.arange({m})[None])", f"(torch.arange({own}) < {n})",
        f"torch.arange({own}).view(-1, 1).expand(-1, {m})", f"torch.triu_indices({n}, {m})", f"torch.empty({n}, 0)",
        f"F.one_hot(torch.arange({own}), {own} + 2)", f"torch.meshgrid(torch.arange({n}), torch.arange({m}))[0]",
        f"torch.tensor({k}, dtype=torch.{rng.choice(FLOATS)}) * {x}", f"torch.hann_window({own} + 1)",
    ))  # fmt: skip
    return text if rng.random() < 0.6 else f"{x} * {text}"


def masked(b: Builder) -> str:
    """Masks built from sizes and numbers."""
    x = b.number(low=1)
    rng, d, k = b.rng, b.dim(x), number(b)
    n, last, rows = length(b, x, d), f"{x}.shape[-1]", f"{x}.shape[-2]"
    return rng.choice((
        f"{x}.masked_fill(torch.arange({last}) >= {n}, {k})", f"torch.where(torch.arange({last}) < {n}, {x}, {k})",
        f"{x} * (torch.arange({last}) % 2 == 0)", f"{x}.masked_fill(torch.ones({last}, {last}).triu(1) > 0, {k})",
        f"({x} @ {x}.mT).masked_fill(torch.ones({rows}, {rows}).triu({n}) > 0, float('-inf')).softmax(-1)",
        f"torch.where({x} > {k}, {x}, {k})", f"{x}.where({x} < {k}, {x}.new_zeros(()))", f"({x} > {k}).sum({d})",
        f"torch.where(torch.arange({x}.shape[0]).view(-1, *[1] * ({x}.dim() - 1)) == {n}, {k}, {x})",
        f"F.scaled_dot_product_attention({x}, {x}, {x}, torch.ones({rows}, {rows}, dtype=torch.bool).tril())",
    ))  # fmt: skip


def parts(b: Builder) -> str:
    x = b.any(1)
    rng, d = b.rng, b.dim(x)
    n, m = length(b, x, d), length(b, x, d)
    own = f"{x}.shape[{d}]"
    return rng.choice((
        f"torch.cat({x}.chunk(2, {d})[::-1], {d})", f"{x}.chunk(3, {d})[0]", f"{x}.chunk(3, {d})[-1]",
        f"{x}.split({n}, {d})[0]", f"{x}.split({n}, {d})[-1]", f"torch.cat({x}.split({n}, {d}), {d})",
        f"torch.split({x}, [{n}, {own} - {n}], {d})", f"{x}.split(2, {d})[-1]", f"{x}.split(({own} + 1) // 2, {d})[0]",
        f"torch.tensor_split({x}, 3, {d})[1]", f"torch.tensor_split({x}, ({n},), {d})[-1]",
        f"{x}.tensor_split(({n}, {m}), {d})[1]",
        f"torch.cat([t * (i + 1) for i, t in enumerate({x}.split({n}, {d}))], {d})",
        f"torch.cat(({x}, {x}.narrow({d}, 0, 1)), {d})", f"torch.cat(({x}, torch.zeros_like({x})), {d})",
        f"torch.stack({x}.unbind({d})[:2])", f"sum({x}.unbind({d}))", f"torch.hsplit({x}, [{n}])[-1]",
        f"{x}.chunk(2, {d})[0] * 2", f"torch.cat(({x}.flip({d}), {x}, {x}[..., :0]), {d})" if d in (-1, b.rank(x) - 1)
        else f"torch.cat(({x}.flip({d}), {x}), {d})",
    ))  # fmt: skip


def padded(b: Builder) -> str:
    x = b.any(1)
    rng, d = b.rng, b.dim(x)
    n, m = length(b, x, d), length(b, x, d)
    mode = rng.choice(("constant", "constant", "constant", "reflect", "replicate", "circular"))
    fill = f", value={number(b)}" if mode == "constant" and rng.random() < 0.5 else ""
    widths = rng.choice((f"0, {n}", f"{n}, 0", f"{n}, {m}", f"{n}, -{n}", f"0, 0, {n}, 0", f"1, 1, 0, {n}",
                         f"0, -{x}.shape[-1] % 4", f"{n}, {n}, {m}, {m}", f"0, 8 - {x}.shape[-1] % 8"))  # fmt: skip
    return f"F.pad({x}, ({widths}), mode='{mode}'{fill})"


def images(b: Builder) -> str:
    rng = b.rng
    try:
        x = b.pick(lambda t: t.dim() == 4 and t.is_floating_point())
    except Skip:
        x = b.fresh((rng.choice((1, 2, "N")), rng.choice((1, 3, 4)), rng.choice(("N", "M", 5)), rng.choice(("N", "M",
        6))))
    n, m = length(b, x, -2), length(b, x, -1)
    mode = rng.choice(("nearest", "nearest-exact", "bilinear", "bicubic", "area"))
    corners = f", align_corners={rng.choice((True, False))}" if mode in ("bilinear", "bicubic") else ""
    scale = b.fresh_number(rng.choice(("N * 0.5", "1 + M / 8", "2.0 if N > 5 else 0.5")))
    channels = b.value(x).shape[1]
    w = b.fresh((rng.choice((1, 4)), channels, 3, 3), b.dtype(x), "normal()") if channels else x
    return rng.choice((
        f"F.interpolate({x}, size=({n}, {m}), mode='{mode}'{corners})",
        f"F.interpolate({x}, size=({x}.shape[2] * 2, {x}.shape[3] // 2), mode='{mode}'{corners})",
        f"F.interpolate({x}, scale_factor={scale}, mode='{mode}'{corners})",
        f"F.interpolate({x}, size={x}.shape[-1] + 1, mode='{mode}'{corners})",
        f"F.adaptive_avg_pool2d({x}, ({n}, {m}))", f"F.adaptive_max_pool2d({x}, {n})", f"F.avg_pool2d({x}, {n})",
        f"F.max_pool2d({x}, {n}, 1)", f"F.avg_pool2d({x}, {x}.shape[-2:])", f"F.max_pool2d({x}, 3, 2, 1)",
        f"F.conv2d({x}, {w}, padding=1)", f"F.conv2d({x}, {w}, stride=2, padding={rng.choice((1, 2))})",
        f"F.conv_transpose2d({x}, {w}.transpose(0, 1), stride=2)", f"F.conv2d(F.pad({x}, (0, {n}, 1, 1)), {w})",
        f"F.pixel_shuffle({x}.repeat(1, 4, 1, 1), 2)", f"F.unfold({x}, 3, padding=1)",
        f"{x}.flatten(2).transpose(1, 2)", f"{x}.mean((2, 3))", f"F.group_norm({x}, 1)", f"F.instance_norm({x})",
        f"F.max_pool2d({x}, 2, ceil_mode=True)", f"F.avg_pool2d({x}, 3, 2, 1, ceil_mode=True, count_include_pad=False)",
        f"F.fold(F.unfold({x}, 2), {x}.shape[-2:], 2)", f"F.max_pool2d({x}, 2, return_indices=True)",
        f"F.grid_sample({x}, F.affine_grid(torch.eye(2, 3, dtype={x}.dtype).expand({x}.shape[0], 2, 3), "
        f"({x}.shape[0], 1, {x}.shape[2] + 1, {x}.shape[3]), align_corners=False), align_corners=False)",
    ))  # fmt: skip


def computed(b: Builder) -> str:
    """Arithmetic with numbers and sizes."""
    x = b.any()
    rng, k, j = b.rng, number(b), number(b)
    y = broadcastable(b, x)
    n = length(b, x, b.dim(x)) if b.rank(x) else whole(b)
    return rng.choice((
        f"{x} + {k}", f"{x} - {k}", f"{k} - {x}", f"{x} * {k}", f"{x} / {k}", f"{k} / {x}", f"{x} // {k}", f"{x} % {k}",
        f"{x} ** {k}", f"{k} ** {x}", f"{x} > {k}", f"{x} == {n}", f"{x} <= {k}", f"torch.fmod({x}, {k})",
        f"torch.clamp({x}, {k}, {j})", f"torch.clamp({x}, min={k})", f"{x}.clamp(max={n})", f"{x} * {n} + {k}",
        f"torch.add({x}, {y}, alpha={k})", f"torch.sub({x}, {y}, alpha={n})", f"torch.rsub({x}, {k})",
        f"{x} * ({k} * {j})",
        f"torch.addcmul({x}, {x}, {x}, value={k})", f"torch.lerp({x}, {x} * 2, {k})", f"{x} / {n} ** 0.5",
        f"{n} // {x}",
        f"torch.where({x} > 0, {k}, {x})", f"F.leaky_relu({x}, {k})", f"F.elu({x}, {k})", f"F.softplus({x}, {k})",
        f"F.hardtanh({x}, -abs({k}), abs({k}))", f"F.threshold({x}, {k}, {j})", f"F.celu({x}, {k})", f"{k} * {j} + {x}",
        f"torch.div({x}, {k}, rounding_mode='floor')", f"torch.div({x}, {n}, rounding_mode='trunc')", f"{x} // {n}",
        f"torch.remainder({k}, {x})", f"torch.floor_divide({x}, {k})", f"torch.maximum({x}, torch.tensor({k}))",
        f"torch.float_power({x}, {k})", f"torch.nan_to_num({x}, {k})", f"torch.xlogy({x}, {k})", f"{x} * -{n}",
        f"{x} * 2 if {k} > 0 else {x} - 1", f"{x} + ({k} // 2)", f"{x} + ({k} % 3)", f"{x} * abs({k})",
        f"{x} + max({k}, {j})",
        f"{x} * float({k})", f"{x} + int({n})", f"{x} * (not {k})", f"{x} + ({k} > {j})",
        f"{x} * (1 if {n} > 4 else 2)",
        f"torch.ldexp({x}, torch.tensor({n}))", f"torch.copysign({x}, {k})",
        f"torch.heaviside({x}, torch.tensor({k}, dtype={x}.dtype))",
        f"{x} * math.sqrt(abs({n}))", f"{x} * math.floor({k})" if "k" in k else f"{x} * {k}", f"{x} + round({k})",
    ))  # fmt: skip


def shifted(b: Builder) -> str:
    x, k = b.integer(), whole(b)
    return b.rng.choice((
        f"{x} << {k}", f"{x} >> {k}", f"{x} & {k}", f"{x} | {k}", f"{x} ^ {k}", f"torch.gcd({x}, torch.tensor({k}))",
        f"{k} << {x}", f"torch.bitwise_and({x}, {k})", f"{x} // {k}", f"{x} % {k}", f"{x} == {k}", f"{x} * {k} - {k}",
    ))  # fmt: skip


def gathered(b: Builder) -> str:
    """Reductions, sorting and indexing, with k and indices from sizes."""
    x = b.number(low=1)
    rng, d, k = b.rng, b.dim(x), number(b)
    n, own = length(b, x, d), f"{x}.shape[{d}]"
    lead, column = ":, " * (d % b.rank(x)), "-1" + ", 1" * (b.rank(x) - 1 - d % b.rank(x))
    return rng.choice((
        f"{x}.topk({n}, {d})[0]", f"{x}.topk({own} // 2, {d})[0]", f"{x}.topk(min({n}, {own}), {d})[0]",
        f"{x}.sum({d}) / {own}",
        f"torch.kthvalue({x}, {n}, {d})[0]", f"{x}.cumsum({d})", f"{x}.cumsum({d})[{lead}{n}:]", f"{x}.cumprod({d})",
        f"{x}.mean({d})",
        f"{x}.sum({d}) * {k}", f"{x}.softmax({d})", f"{x}.var({d})", f"{x}.amax({d}) - {n}", f"{x}.logsumexp({d})",
        f"{x}.norm() / {n}",
        f"{x}.index_select({d}, torch.arange({own}).flip(0))", f"{x}[{lead}torch.arange({own}) // 2]",
        f"{x}[{lead}(torch.arange({own}) + {n}) % {own}]",
        f"{x}.gather({d}, torch.zeros_like({x}, dtype=torch.int64) + {n} % {own})",
        f"{x}.sort({d})[0][{lead}{n}]", f"{x}.argmax({d}) + {n}", f"{x}.std({d}, correction={whole(b)})",
        f"F.layer_norm({x}, ({x}.shape[-1],), eps=abs({k}))", f"F.normalize({x}, dim={d}, eps=1e-6)",
        f"{x}.diff(dim={d})",
        f"torch.zeros({n}, dtype={x}.dtype).index_add(0, torch.arange({x}.numel()) % {n}, {x}.flatten())",
        f"{x}.new_zeros({x}.shape).scatter({d}, torch.arange({own}).view({column})"
        f".expand({x}.shape), {x})", f"torch.linalg.vector_norm({x}, {k}, {d})",
        f"{x}.median({d})[0]" if not b.grad else f"{x}.amin({d})",
        f"{x} @ {x}.mT", f"{x} @ torch.eye({x}.shape[-1], dtype={x}.dtype)",
        f"torch.outer({x}.flatten(), torch.ones({n}, dtype={x}.dtype))",
        f"F.linear({x}, torch.ones({n}, {x}.shape[-1], dtype={x}.dtype))",
        f"torch.einsum('...i,...i->...', {x}, {x}) * {n}",
        f"torch.quantile({x}.float(), 0.5, {d})", f"torch.cummax({x}, {d})[0]",
        f"F.glu(torch.cat(({x}, {x}), {d}), {d})",
        f"F.embedding(torch.arange({own}) % 5, {b.fresh((5, 4), b.main, 'normal()', 'parameter', 'contiguous')})",
        f"F.avg_pool1d({x}.reshape(1, 1, -1), {n})", f"F.max_pool1d({x}.reshape(1, -1, {x}.shape[-1]), 3, 1, 1)",
        f"F.conv1d({x}.reshape(1, 1, -1), torch.ones(1, 1, 3, dtype={x}.dtype), padding=abs({whole(b)}))",
    ))  # fmt: skip


def edited(b: Builder) -> str:
    """Edits in place of views whose bounds are computed."""
    x = b.any(1)
    rng, d, k = b.rng, b.dim(x), number(b)
    lead = ":, " * (d % b.rank(x))
    n, own = length(b, x, d), f"{x}.shape[{d}]"
    view = rng.choice((
        f"{x}[{lead}{n}:]", f"{x}[{lead}:{n}]", f"{x}[{lead}-{n}:]", f"{x}[{lead}::2]", f"{x}[{lead}{n}]",
        f"{x}[{lead}:{own} // 2]",
        f"{x}.narrow({d}, 0, {n})", f"{x}.view(-1)[{n}:]", f"{x}.select({d}, {n})", f"{x}[..., {n}::2]",
        f"{x}.transpose(0, -1)[{n}:]",
        f"{x}.chunk(2, {d})[-1]", f"{x}.split({n}, {d})[0]", f"{x}.unsqueeze(0)[..., :{n}]", f"{x}.flatten()[: {n}]",
        f"{x}.diagonal()",
    ))  # fmt: skip
    return Edit(rng.choice((
        f"{view}.add_({k})", f"{view}.mul_({k})", f"{view}.fill_({k})", f"{view}.zero_()", f"{view}.copy_({view} * 2)",
        f"{view}.sub_({n})",
        f"{x}[{lead}{n}:] = {k}", f"{x}[{lead}:{n}] *= 2", f"{x}[{lead}{n}] = {k}", f"{view}.clamp_(min={k})",
        f"{view}.neg_()",
        f"{x}[{lead}1:] = {x}[{lead}:-1]", f"{x}[{lead}1:] += {x}[{lead}:-1].clone()",
        f"{view}.masked_fill_({view} > {k}, {n})",
        f"{x}[{lead}::2] = {x}[{lead}::2] + {k}", f"{x}.index_fill_({d}, torch.tensor([0]), {k})", f"{view}.cumsum_(0)",
        f"{view}.copy_({view}.flip(0))", f"{view}.addcmul_({view}, {view}, value={k})", f"{x}[{x} > {k}] = {n}",
        f"{view}.tril_({n})",
        f"{x}.fill_diagonal_({k})", f"{view}.relu_()", f"{view}.pow_(2)", f"{view}.div_({own})",
        f"{x}.put_(torch.tensor([0]), {x}.new_ones(1))",
    )))  # fmt: skip


TEMPLATES: tuple[tuple[int, Template], ...] = (
    (9, sliced), (9, shaped), (8, made), (4, masked), (6, parts), (4, padded), (6, images), (11, computed),
    (2, shifted), (9, gathered), (8, edited),
)  # fmt: skip
