"""Random reductions, products, convolutions, pooling, normalisation, attention."""

from __future__ import annotations

from tests.fuzz.build import Builder, Skip, Template

__all__ = ["TEMPLATES"]


def reduced(b: Builder) -> str:
    rng = b.rng
    x = b.any() if rng.random() < 0.3 else b.number()
    rank = b.rank(x)
    keep = rng.choice(("", ", keepdim=True"))
    name = rng.choice(("sum", "mean", "amax", "amin", "prod", "var", "std", "logsumexp", "all", "any", "argmax",
                       "argmin", "norm", "count_nonzero", "nansum", "sum", "mean", "max", "min", "softmax",
                       "log_softmax", "cumsum", "cumprod", "median", "var_mean", "nanmean", "aminmax", "softmin",
                       "cummax", "logcumsumexp"))  # fmt: skip
    if name == "aminmax":
        return f"torch.aminmax({x}, dim={b.dim(x)})"
    whole = (
        "sum",
        "mean",
        "amax",
        "amin",
        "prod",
        "var",
        "all",
        "any",
        "argmax",
        "max",
        "min",
        "norm",
        "count_nonzero",
    )
    if rank == 0 or (rng.random() < 0.25 and name in whole):
        return f"{x}.{name}()"
    d = b.dim(x)
    if name == "median":  # of an expanded tensor eager's is wrong along an axis
        return f"{x}.contiguous().median({d}).values"
    if name in ("max", "min", "cummax"):
        return f"{x}.{name}({d}).values" if name == "cummax" or rng.random() < 0.4 else f"{x}.{name}({d})"
    if name in ("softmax", "log_softmax", "cumsum", "cumprod", "logcumsumexp"):
        return f"{x}.{name}({d})"
    if name == "softmin":
        return f"F.softmin({x}, {d})"
    if name == "count_nonzero":
        return f"{x}.count_nonzero({d})"
    if name in ("var", "std", "var_mean"):
        # eager's running mean is NaN after an infinity, and infinite where that comes last
        x = f"torch.nan_to_num({x})" if name == "var_mean" else x
        return f"torch.{name}({x}, {d}, correction={rng.choice((0, 1))}{keep})"
    if name == "norm":
        order = rng.choice(("1", "2", "3", "0", "float('inf')"))
        return f"torch.linalg.vector_norm({x}, {order}, {d}{keep})"
    axes = f"({d}, {rng.randrange(rank)})" if rng.random() < 0.3 and name in ("sum", "mean", "amax", "logsumexp") else d
    return f"{x}.{name}({axes}{keep})"


def product(b: Builder) -> str:
    rng = b.rng
    x = b.number(low=1)
    *lead, rows, k = (1, *b.shape(x))
    dtype = b.dtype(x)
    if rng.random() < 0.3:
        y = b.pick(lambda t: t.dim() in (1, 2, 3) and t.dtype == b.value(x).dtype)
        return rng.choice((f"{x} @ {y}", f"{x} @ {y}.mT", f"torch.matmul({y}, {x})", f"{x}.mT @ {y}"))
    n = rng.choice((1, 2, 5, 8, 16, 17, 33))
    form = rng.choice(("linear", "matmul", "addmm", "bmm", "einsum", "outer", "baddbmm", "mv", "bilinear", "cdist"))
    if form == "linear":
        bias = f", {b.fresh((n,), dtype, 'normal()')}" if rng.random() < 0.6 else ""
        return f"F.linear({x}, {b.fresh((n, k), dtype, 'normal()')}{bias})"
    if form == "matmul":
        return f"{x} @ {b.fresh((k, n), dtype)}"
    if form == "addmm":
        scale = rng.choice(("", ", beta=0.5, alpha=2", ", beta=0"))
        shape = rng.choice(((n,), (1, n), (rows, n)))
        return f"torch.addmm({b.fresh(shape, dtype)}, {x}, {b.fresh((k, n), dtype)}{scale})"
    if form in ("bmm", "baddbmm"):
        other = b.fresh((*lead[-1:], k, n), dtype)
        return f"torch.bmm({x}, {other})" if form == "bmm" else f"torch.baddbmm({b.fresh((n,), dtype)}, {x}, {other})"
    if form == "einsum":
        return f"torch.einsum('...i,ij->...j', {x}, {b.fresh((k, n), dtype)})"
    if form == "outer":
        return f"torch.outer({x}.flatten()[:9], {b.fresh((n,), dtype)})"
    if form == "mv":
        return f"{x} @ {b.fresh((k,), dtype)}"
    if form == "cdist":
        return f"torch.cdist({x}, {b.fresh((n, k), dtype)})"
    return f"F.bilinear({x}, {x}, {b.fresh((2, k, k), dtype, 'normal()')})"


def convolution(b: Builder) -> str:
    rng = b.rng
    dims = rng.choices((1, 2, 3), (3, 8, 1))[0]
    x = image(b, dims)
    channels = b.value(x).shape[1] if b.rank(x) == dims + 2 else b.value(x).shape[0]
    if not channels:
        raise Skip
    dtype = b.dtype(x)
    groups = rng.choice([g for g in (1, 1, 1, 2, 3, channels) if channels % g == 0])
    out = groups * rng.choice((1, 2, 3, 8))
    kernel = tuple(rng.choice((1, 2, 3, 3, 5)) for _ in range(dims))
    stride, padding, dilation = rng.choice((1, 1, 2, 3)), rng.choice((0, 1, 1, 2)), rng.choice((1, 1, 1, 2))
    transposed = rng.random() < 0.25
    shape = (channels, out // groups, *kernel) if transposed else (out, channels // groups, *kernel)
    weight = b.fresh(shape, dtype, "normal()")
    bias = b.fresh((out,), dtype, "normal()") if rng.random() < 0.5 else "None"
    if transposed:
        extra = f", output_padding={rng.randrange(max(stride, dilation))}" if rng.random() < 0.4 else ""
        return (f"F.conv_transpose{dims}d({x}, {weight}, {bias}, stride={stride}, padding={padding}, groups={groups}, "
                f"dilation={dilation}{extra})")  # fmt: skip
    if rng.random() < 0.15:
        return f"F.conv{dims}d({x}, {weight}, {bias}, padding='same', groups={groups}, dilation={dilation})"
    return (f"F.conv{dims}d({x}, {weight}, {bias}, stride={stride}, padding={padding}, dilation={dilation}, "
            f"groups={groups})")  # fmt: skip


def image(b: Builder, dims: int) -> str:
    """A value to convolve or pool, a new one where there is none."""
    try:
        return b.pick(lambda t: t.is_floating_point() and t.dim() in (dims + 1, dims + 2) and t.numel() > 0)
    except Skip:
        rng = b.rng
        sizes = tuple(b.size() or 4 if rng.random() < 0.5 else rng.choice((5, 6, 7, 9)) for _ in range(dims))
        return b.fresh((rng.choice((1, 2)), rng.choice((1, 2, 3, 4, 6, 8)), *sizes))


def pooled(b: Builder) -> str:
    rng = b.rng
    dims = rng.choices((1, 2, 3), (3, 8, 1))[0]
    x = image(b, dims)
    kernel = rng.choice((1, 2, 2, 3, 3))
    stride, padding = rng.choice((1, 2, 2, 3)), rng.choice((0, 0, 1))
    ceil = ", ceil_mode=True" if rng.random() < 0.35 else ""
    size = rng.choice((1, 2, 3, 5))
    return rng.choice((
        f"F.max_pool{dims}d({x}, {kernel}, {stride}, {padding}{ceil})",
        f"F.max_pool{dims}d({x}, {kernel}, {stride}, {padding}, dilation=2{ceil})",
        f"F.avg_pool{dims}d({x}, {kernel}, {stride}, {padding}{ceil})",
        f"F.avg_pool{dims}d({x}, {kernel}, {stride}, {padding}{ceil}, count_include_pad=False)",
        f"F.adaptive_avg_pool{dims}d({x}, {size})", f"F.adaptive_max_pool{dims}d({x}, {size})",
        f"F.max_pool{dims}d({x}, {kernel}, {stride}, {padding}{ceil}, return_indices=True)",
        f"F.lp_pool{min(dims, 2)}d({x}, 2, {kernel})",
    ))  # fmt: skip


def normalised(b: Builder) -> str:
    rng = b.rng
    x = b.number(low=1)
    shape, dtype = b.shape(x), b.dtype(x)
    axes = rng.randint(1, min(2, len(shape)))
    last = shape[-axes:]
    form = rng.choice(("layer", "layer", "batch", "batch_train", "group", "rms", "instance", "normalize", "local"))
    affine = rng.random() < 0.6
    if form in ("layer", "rms"):
        sizes = ", ".join(f"{x}.shape[{i - axes}]" for i in range(axes))
        weight = b.fresh(last, dtype, "normal()") if affine else "None"
        if form == "rms":
            return f"F.rms_norm({x}, ({sizes},), {weight})"
        bias = b.fresh(last, dtype, "normal()") if affine else "None"
        return f"F.layer_norm({x}, ({sizes},), {weight}, {bias})"
    if form == "normalize":
        return f"F.normalize({x}, dim={b.dim(x)})"
    if len(shape) < 2:
        raise Skip
    channels = (shape[1],)
    if form in ("batch", "batch_train"):
        mean = b.fresh(channels, dtype, "normal()", "buffer", "contiguous")
        var = b.fresh(channels, dtype, "positive()", "buffer", "contiguous")
        more = f", {b.fresh(channels, dtype, 'normal()')}, {b.fresh(channels, dtype, 'normal()')}" if affine else ""
        return f"F.batch_norm({x}, {mean}, {var}{more}, training={form == 'batch_train'})"
    if form == "group":
        groups = rng.choice((1, 2, 3))
        more = f", {b.fresh(channels, dtype, 'normal()')}, {b.fresh(channels, dtype, 'normal()')}" if affine else ""
        return f"F.group_norm({x}, {groups}{more})"
    return f"F.instance_norm({x})" if form == "instance" else f"F.local_response_norm({x}, 3)"


def attention(b: Builder) -> str:
    rng = b.rng
    batch, heads, queries, keys, depth = 1, rng.choice((1, 2, 4)), b.size(), b.size(), rng.choice((1, 4, 8, 16, 5))
    dtype = b.main
    q = b.fresh((batch, heads, queries, depth), dtype, "normal()")
    k = b.fresh((batch, heads, keys, depth), dtype, "normal()")
    v = b.fresh((batch, heads, keys, rng.choice((depth, depth, 3))), dtype)
    draw = rng.random()
    if draw < 0.25:
        return f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal=True)"
    if draw < 0.5:
        mask = b.fresh(
            rng.choice(((queries, keys), (1, 1, queries, keys), (batch, 1, 1, keys))), "bool", kind="argument"
        )
        return f"F.scaled_dot_product_attention({q}, {k}, {v}, {mask})"
    if draw < 0.65:
        return f"F.scaled_dot_product_attention({q}, {k}, {v}, {b.fresh((queries, keys), dtype)}, scale=0.3)"
    if draw < 0.8:
        return f"torch.softmax({q} @ {k}.transpose(-2, -1) * 0.25, -1) @ {v}"
    return f"F.scaled_dot_product_attention({q}, {k}, {v})"


def loss(b: Builder) -> str:
    rng = b.rng
    x = b.number(rank=2)
    rows, classes = b.value(x).shape
    if not classes or not rows:
        raise Skip
    target = b.fresh(b.shape(x)[:1], "int64", f"integers(0, {classes})", "argument")
    other = rng.choice((f"{x} * 0.5", f"{x} - 1", x))
    how = rng.choice(("", ", reduction='sum'", ", reduction='none'", ", label_smoothing=0.1", ", ignore_index=0"))
    return rng.choice((
        f"F.cross_entropy({x}, {target}{how})", f"F.nll_loss(F.log_softmax({x}, 1), {target})",
        f"F.binary_cross_entropy_with_logits({x}, torch.sigmoid({x}))",
        f"F.kl_div({x}, {other}, reduction='batchmean')",
        f"F.cosine_similarity({x}, {other})", f"F.glu({x}, 0)", f"F.multi_margin_loss({x}, {target})",
        f"F.poisson_nll_loss({x}, {other})", f"F.pairwise_distance({x}, {other})", f"F.soft_margin_loss({x}, {other})",
    ))  # fmt: skip


TEMPLATES: tuple[tuple[int, Template], ...] = (
    (14, reduced), (8, product), (6, convolution), (5, pooled), (6, normalised), (3, attention), (2, loss),
)  # fmt: skip
