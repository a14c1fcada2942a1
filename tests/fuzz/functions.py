"""Random special functions, losses, statistics and operators on integers."""

from __future__ import annotations

from tests.fuzz.build import FLOATS, INTS, Builder, Skip, Template
from tests.fuzz.elementwise import broadcastable
from tests.fuzz.indexing import own_index

__all__ = ["TEMPLATES"]


def special(b: Builder) -> str:
    x = b.number()
    y = broadcastable(b, x)
    return b.rng.choice((
        f"torch.special.erfcx({x})", f"torch.special.i0e({x})", f"torch.special.i1({x})", f"torch.special.i1e({x})",
        f"torch.special.ndtri({x})", f"torch.special.log_ndtr({x})", f"torch.special.bessel_j0({x})",
        f"torch.special.bessel_j1({x})", f"torch.special.bessel_y0({x})", f"torch.special.psi({x})",
        f"torch.polygamma(1, {x})", f"torch.mvlgamma({x}.abs() + 2, 2)", f"torch.logit({x}, eps=0.1)",
        f"torch.nextafter({x}, {x} * 2)", f"torch.float_power({x}, 2)", f"torch.float_power({x}, {y})",
        f"torch.special.zeta({x}.abs() + 1.5, 2.0)", f"torch.special.expit({x})", f"torch.special.exp2({x})",
        f"torch.special.sinc({x})", f"torch.special.round({x})", f"torch.frexp({x})", f"torch.special.xlogy(2, {x})",
        f"torch.special.spherical_bessel_j0({x})", f"torch.conj({x})", f"torch.clamp({x}, max={y})",
        f"torch.isneginf({x})", f"torch.isposinf({x})", f"torch.isreal({x})", f"torch.absolute({x})",
        f"torch.fix({x})", f"torch.arctan2({x}, {y})", f"torch.true_divide({y}, {x})", f"torch.dist({x}, {x} * 0.5)",
        f"torch.where({x} > 0, torch.where({x} > 1, {x}, {y}), torch.where({x} < -1, {y}, 0))",
        f"torch.where(torch.isnan({x}) | ({x} > 1), {y}, {x})", f"torch.addcdiv({x}, {x}, {x} + 3, value=-0.5)",
        f"torch.special.entr({x}.abs())", f"torch.renorm({x}, 2, 0, 1.0)", f"torch.lerp({y}, {x}, torch.sigmoid({x}))",
        f"torch.nan_to_num({x}, neginf=-3.0)",
    ))  # fmt: skip


def activation(b: Builder) -> str:
    x = b.number()
    rng = b.rng
    channels = b.value(x).shape[1] if b.rank(x) > 1 else 1
    weight = b.fresh((rng.choice((1, channels)),), b.dtype(x), "normal()")
    return rng.choice((
        f"F.prelu({x}, {weight})", f"F.rrelu({x}, training=False)", f"F.glu({x}, -1)", f"F.hardswish({x})",
        f"F.hardsigmoid({x}.clamp(-2.5, 2.5))", f"F.threshold({x}, -0.5, -1.0)", f"F.softplus({x}, 0.5, 3)",
        f"F.gumbel_softmax({x}, dim=0) * 0", f"F.log_softmax({x}, -1, dtype=torch.float32)",
        f"F.softmax({x}, 0, dtype=torch.float64)", f"F.dropout1d({x}, 0.5, False)", f"F.celu({x}, 0.7)",
        f"F.alpha_dropout({x}, 0.0, True)", f"F.feature_alpha_dropout({x}, 0.4, False)", f"F.softmax({x}, -1)",
        f"{x} * torch.sigmoid(1.702 * {x})", f"0.5 * {x} * (1 + torch.tanh(0.79788456 * ({x} + 0.044715 * {x} ** 3)))",
    ))  # fmt: skip


def loss(b: Builder) -> str:
    x = b.number(low=1)
    rng, shape, dtype = b.rng, b.shape(x), b.dtype(x)
    y = b.fresh(shape, dtype, "normal()") if rng.random() < 0.7 else f"({x} * 0.5)"
    how = rng.choice(("", ", reduction='sum'", ", reduction='none'"))
    sign = b.fresh(shape, dtype, "normal()", "argument")
    if rng.random() < 0.35 and len(shape) >= 2:
        return _class_loss(b, x, how)
    return rng.choice((
        f"F.binary_cross_entropy(torch.sigmoid({x}), torch.sigmoid({y}){how})",
        f"F.binary_cross_entropy_with_logits({x}, torch.sigmoid({y}), pos_weight={y}.abs(){how})",
        f"F.smooth_l1_loss({x}, {y}, beta=0.5{how})", f"F.huber_loss({x}, {y}, delta=0.3{how})",
        f"F.mse_loss({x}, {y}{how})", f"F.l1_loss({x}, {y}{how})", f"F.kl_div({x}, torch.sigmoid({y}){how})",
        f"F.kl_div({x}, {y}, log_target=True{how})", f"F.gaussian_nll_loss({x}, {y}, {y}.abs() + 0.1{how})",
        f"F.margin_ranking_loss({x}, {y}, {sign}.sign(), margin=0.2{how})",
        f"F.hinge_embedding_loss({x}, {sign}.sign(){how})", f"F.soft_margin_loss({x}, {sign}.sign(){how})",
        f"F.triplet_margin_loss({x}, {y}, {sign}{how})", f"F.poisson_nll_loss({x}, {y}, log_input=False, full=True)",
        f"F.cosine_embedding_loss({x}, {y}, {sign}.sum(-1).sign(){how})", f"F.cosine_similarity({x}, {y}, {b.dim(x)})",
        f"F.multilabel_soft_margin_loss({x}, ({sign} > 0).to({x}.dtype){how})", f"F.pairwise_distance({x}, {y}, p=1)",
    ))  # fmt: skip


def _class_loss(b: Builder, x: str, how: str) -> str:
    rng, shape = b.rng, b.shape(x)
    classes = min(env[x].shape[1] for env in b.envs)  # type: ignore[attr-defined]
    target = own_index(b, (shape[0], *shape[2:]), classes)
    weight = b.fresh((shape[1],), b.dtype(x), "positive()", "argument")
    return rng.choice((
        f"F.cross_entropy({x}, {target}, weight={weight}{how})", f"F.nll_loss({x}, {target}, weight={weight}{how})",
        f"F.cross_entropy({x}, {target}, ignore_index=1{how})", f"F.multi_margin_loss({x}, {target}{how})",
        f"F.cross_entropy({x}, torch.softmax({x} * 2, 1){how})", f"F.nll_loss({x}, {target}, ignore_index=0{how})",
        f"F.cross_entropy({x}, {target}, weight={weight}, label_smoothing=0.2{how})",
    ))  # fmt: skip


def statistic(b: Builder) -> str:
    x = b.number(low=1)
    rng, d = b.rng, b.dim(x)
    k = rng.choice((1, 2, 3))
    return rng.choice((
        f"torch.quantile({x}, 0.3, {d})", f"torch.quantile({x}, torch.tensor([0.1, 0.5], dtype={x}.dtype), {d})",
        f"torch.nanquantile({x}, 0.5, {d}, keepdim=True)", f"torch.std_mean(torch.nan_to_num({x}), {d})",
        f"torch.median({x}.contiguous(), {d})", f"torch.nanmedian({x}.contiguous(), {d})[0]", f"torch.nanmedian({x})",
        f"torch.median({x})",
        f"torch.kthvalue({x}, {k}, {d})", f"torch.mode({x}.round(), {d})[0]", f"torch.cummax({x}, {d})",
        f"torch.cummin({x}, {d})", f"torch.topk({x}, {k}, {d})", f"torch.sort({x}, {d}, descending=True)",
        f"torch.cumprod({x}, {d}, dtype=torch.float64)", f"torch.cumsum({x}, {d}, dtype=torch.float32)",
        f"torch.cumulative_trapezoid({x}, dim={d})", f"torch.gradient({x}, dim={d})", f"torch.aminmax({x})",
        f"torch.cov({x})", f"torch.corrcoef({x})", f"torch.diff({x}, n=2, dim={d})", f"{x}.mean(dtype=torch.float64)",
        f"{x}.sum({d}, dtype=torch.float64)", f"torch.nansum({x}, {d}, keepdim=True)", f"torch.std({x}, {d})",
        f"torch.var({x}, {d}, correction=2)", f"{x}.argsort(dim={d}, descending=True, stable=True)",
        f"{x}.argmax({d}, True)", f"torch.linalg.norm({x})", f"torch.norm({x}, 1, {d})",
        f"torch.norm({x}, dim={d}, keepdim=True)", f"torch.histogram({x}.float(), 4, range=(-2.0, 2.0))[0]",
        f"torch.prod({x}, {d}, keepdim=True)", f"torch.unique_consecutive({x}.round())",
        f"torch.logsumexp({x}, ({d}, -1))", f"torch.amax({x}, ({d},))", f"({x} > 0).sum({d})", f"({x} > 0).any({d})",
        f"({x} == {x}).all()", f"({x} > 0).float().mean({d})", f"({x} > 0).prod({d})", f"({x} > 0.5).cumsum({d})",
        f"torch.equal({x}, {x}) + {x}",
    ))  # fmt: skip


def whole_numbers(b: Builder) -> str:
    """Operators of integers and booleans."""
    rng = b.rng
    x = b.pick(lambda t: not t.is_floating_point())
    y = broadcastable(b, x)
    d = b.dim(x)
    return rng.choice((
        f"torch.bitwise_left_shift({x}, {y})", f"torch.bitwise_right_shift({x}, {y})", f"torch.bitwise_xor({x}, {y})",
        f"{x} ** 2", f"2 ** {x}", f"torch.pow({x}, {y})", f"torch.div({x}, {y}, rounding_mode='trunc')",
        f"torch.div({x}, {y}, rounding_mode='floor')", f"torch.fmod({x}, {y})", f"{x} / {y}", f"-{x}", f"~{x}",
        f"torch.abs({x})", f"torch.sign({x})", f"torch.clamp({x}, -2, 3)", f"torch.clamp({x}, min={y})", f"{x} * 0.5",
        f"torch.maximum({x}, {x} * 2)", f"{x}.sum({d})", f"{x}.sum({d}, dtype=torch.int32)", f"{x}.prod({d})",
        f"{x}.cumsum({d})", f"{x}.cumprod({d})", f"torch.sort({x}, dim={d}, stable=True)", f"{x}.argmax({d})",
        f"torch.topk({x}, 1, {d})[0]", f"{x}.amax({d})", f"torch.median({x}.contiguous(), {d})[0]", f"{x}.any({d})",
        f"{x}.all({d})", f"torch.mode({x}, {d})[0]", f"{x}.float().mean({d})",
        f"torch.bincount({x}.flatten().abs() % 7)",
        f"torch.bincount({x}.flatten() % 5, {x}.flatten().double(), minlength=4)", f"{x} != {x}.flip(0)", f"{x} % 3",
        f"torch.gcd({x}, {x} + 6)", f"torch.cummax({x}, {d})", f"torch.diff({x}, dim={d})",
        f"{x}.float() / ({y} + 0.5)", f"{x} @ {x}.mT",
        f"torch.bitwise_or({x}, {rng.choice(('1', '3', '-2', 'True'))})", f"{x} << 1", f"{x} >> 2",
        f"{x}.to(torch.{rng.choice((*INTS, *FLOATS))})", f"torch.count_nonzero({x})", f"{x}.minimum({x}.flip({d}))",
        f"torch.where({x} > 1, {x}, {y})", f"torch.logical_xor({x}, {y})", f"torch.unique({x}, return_counts=True)",
        f"torch.isin({x}, torch.tensor([1, 2]))", f"torch.searchsorted({x}.flatten().sort()[0], {x})",
    ))  # fmt: skip


def placed(b: Builder) -> str:
    """Searching in, and counting into, sorted edges."""
    rng = b.rng
    x = b.number(low=1)
    d = b.dim(x)
    edges = f"torch.linspace(-2, 2, {rng.choice((1, 4, 9))}, dtype={x}.dtype)"
    right = rng.choice(("", ", right=True"))
    return rng.choice((
        f"torch.bucketize({x}, {edges}{right})", f"torch.bucketize({x}, {edges}, out_int32=True{right})",
        f"torch.searchsorted({edges}, {x}{right})", f"torch.searchsorted({x}.sort(-1)[0], {x}{right})",
        f"torch.searchsorted({edges}, 0.5{right})", f"{x}.sort({d})[0].diff(dim={d})", f"torch.histc({x}, 5, -1, 1)",
        f"F.one_hot(torch.bucketize({x}, {edges}), 10)", f"torch.argwhere({x} > 0)",
        f"torch.masked_select({x}, {x} > 0)", f"{x}[{x} > 0]", f"torch.nonzero({x} > 1, as_tuple=True)[0]",
        f"torch.where({x} > 0)[0]",
    ))  # fmt: skip


def known(b: Builder) -> str:
    """Tensors made of numbers and sizes."""
    rng = b.rng
    x = b.any(1)
    d = b.dim(x)
    dtype = rng.choice((*FLOATS, *INTS))
    n = f"{x}.shape[{d}]"
    if rng.random() < 0.1 and b.symbolic:
        raise Skip
    return rng.choice((
        f"torch.arange({n}, dtype=torch.{dtype}) * 2", "torch.arange(0.5, 3.0, 0.25)", f"torch.arange({n}, 0, -1)",
        f"torch.linspace(-1, 1, {n}, dtype=torch.{rng.choice(FLOATS)})", "torch.logspace(0, 1, 4)",
        f"torch.eye(3, {n})", f"torch.full_like({x}, True, dtype=torch.bool)", f"torch.ones({n}, {n}).tril(-1)",
        f"torch.zeros(2, {n}) - 1", f"torch.meshgrid(torch.arange({n}), torch.arange(3), indexing='ij')[0]",
        f"torch.hann_window({n} + 1)", f"torch.cartesian_prod(torch.arange({n}), torch.arange(2))",
        f"torch.tril_indices({n}, {n})", f"torch.empty_like({x}).fill_(2)", f"{x}.new_zeros(({n}, 2))",
        f"torch.full(({n},), {n})", f"torch.arange({n}).unsqueeze(0) <= torch.arange({n}).unsqueeze(1)",
        f"torch.vander(torch.arange({n}).float(), 3)", f"torch.combinations(torch.arange({n}), 2)",
        f"torch.kaiser_window({n} + 1)", f"torch.tensor({n}) + {x}", f"{x} + {x}.numel()", f"{x} * {x}.dim()",
        f"torch.arange({n}).view(-1, 1).expand(-1, 2)", f"{x} / {n}",
    ))  # fmt: skip


TEMPLATES: tuple[tuple[int, Template], ...] = (
    (6, special), (3, activation), (5, loss), (8, statistic), (8, whole_numbers), (3, placed), (3, known),
)  # fmt: skip
