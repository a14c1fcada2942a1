"""Random elementwise operators, comparisons, casts and edits in place."""

from __future__ import annotations

from tests.fuzz.build import FLOATS, INTS, Builder, Edit, Skip, Template

__all__ = ["TEMPLATES"]

_UNARY = (
    "torch.abs", "torch.neg", "torch.exp", "torch.log", "torch.sqrt", "torch.rsqrt", "torch.sin", "torch.cos",
    "torch.tan", "torch.tanh", "torch.sigmoid", "torch.relu", "F.gelu", "F.silu", "torch.erf", "torch.erfc",
    "torch.floor", "torch.ceil", "torch.round", "torch.trunc", "torch.sign", "torch.reciprocal", "torch.log1p",
    "torch.expm1", "F.softplus", "F.elu", "F.leaky_relu", "F.hardtanh", "F.hardswish", "F.mish", "torch.cosh",
    "torch.sinh", "torch.atan", "torch.asin", "torch.acos", "torch.asinh", "torch.acosh", "torch.atanh", "torch.exp2",
    "torch.log2", "torch.log10", "torch.frac", "torch.square", "torch.nan_to_num", "F.relu6", "F.selu", "F.celu",
    "F.logsigmoid", "F.softsign", "F.tanhshrink", "F.hardsigmoid", "torch.lgamma", "torch.digamma", "torch.erfinv",
    "torch.isnan", "torch.isinf", "torch.isfinite", "torch.signbit", "torch.logical_not", "torch.bitwise_not",
    "torch.positive", "torch.deg2rad", "torch.special.i0", "torch.sinc", "torch.logit", "F.softshrink",
    "F.hardshrink", "torch.sgn", "torch.angle", "torch.special.entr", "torch.special.ndtr", "torch.real",
)  # fmt: skip
_BINARY = (
    "{} + {}", "{} - {}", "{} * {}", "{} / {}", "{} // {}", "{} % {}", "torch.maximum({}, {})", "torch.minimum({}, {})",
    "torch.fmax({}, {})", "torch.fmin({}, {})", "torch.atan2({}, {})", "torch.hypot({}, {})", "torch.copysign({}, {})",
    "{} < {}", "{} <= {}", "{} > {}", "{} >= {}", "{} == {}", "{} != {}", "torch.logical_and({}, {})",
    "torch.logical_or({}, {})", "torch.logical_xor({}, {})", "torch.div({}, {}, rounding_mode='floor')",
    "torch.div({}, {}, rounding_mode='trunc')", "torch.fmod({}, {})", "torch.remainder({}, {})",
    "torch.floor_divide({}, {})", "torch.xlogy({}, {})", "torch.logaddexp({}, {})", "torch.heaviside({}, {})",
    "torch.ldexp({}, {})", "torch.true_divide({}, {})", "torch.subtract({}, {}, alpha=2)",
    "torch.add({}, {}, alpha=3)", "torch.rsub({}, {})", "torch.pow({}, {})", "torch.logaddexp2({}, {})",
    "torch.isclose({}, {})", "torch.special.xlog1py({}, {})", "F.mse_loss({}, {})", "F.smooth_l1_loss({}, {})",
    "F.l1_loss({}, {})", "F.huber_loss({}, {}, reduction='none')",
)  # fmt: skip
_INTEGER_BINARY = ("{} & {}", "{} | {}", "{} ^ {}", "{} << {}", "{} >> {}", "torch.gcd({}, {})", "torch.lcm({}, {})",
                   "{} + {}", "{} * {}", "{} - {}", "{} // {}", "{} % {}", "torch.bitwise_and({}, {})")  # fmt: skip
_FLOAT_NUMBERS = (
    "2",
    "0.5",
    "-1.5",
    "3",
    "-2",
    "1",
    "0",
    "0.1",
    "1e-3",
    "float('inf')",
    "float('nan')",
    "-0.0",
    "7.25",
)
_INTEGER_NUMBERS = ("2", "3", "-2", "1", "5", "-1", "7", "0", "100", "True")


def broadcastable(b: Builder, name: str) -> str:
    """Another operand: a value that fits, a new input that broadcasts, or a number."""
    rng = b.rng
    draw = rng.random()
    if draw < 0.3:
        return rng.choice(_FLOAT_NUMBERS if b.value(name).is_floating_point() else _INTEGER_NUMBERS)
    if draw < 0.7:
        mine = b.value(name).shape

        def fits(t: object) -> bool:
            shape = t.shape  # type: ignore[attr-defined]
            return all(p == q or 1 in (p, q) for p, q in zip(reversed(shape), reversed(mine)))

        return b.pick(fits)
    shape = list(b.shape(name))
    shape = shape[rng.randrange(len(shape)) :] if shape and rng.random() < 0.5 else shape
    shape = [1 if rng.random() < 0.2 else s for s in shape]
    dtype = b.dtype(name) if rng.random() < 0.6 else rng.choice((*FLOATS, *INTS, "bool"))
    return b.fresh(tuple(shape), dtype)


def unary(b: Builder) -> str:
    fn = b.rng.choice(_UNARY)
    if b.grad and fn == "F.hardsigmoid":
        raise Skip  # eager's derivative in float64 is good to float32 only
    return f"{fn}({b.any() if b.rng.random() < 0.3 else b.number()})"


def binary(b: Builder) -> str:
    left = b.any()
    right = broadcastable(b, left)
    pair = (left, right) if b.rng.random() < 0.8 or not right[0].isalpha() else (right, left)
    return b.rng.choice(_BINARY).format(*pair)


def integer_binary(b: Builder) -> str:
    left = b.integer()
    return b.rng.choice(_INTEGER_BINARY).format(left, broadcastable(b, left))


def ternary(b: Builder) -> str:
    x = b.any()
    y, z = broadcastable(b, x), broadcastable(b, x)
    form = b.rng.choice((
        "torch.where({0} > 0, {1}, {2})", "torch.where({1} != {2}, {0}, {2})", "torch.lerp({0}, {1}, 0.3)",
        "torch.addcmul({0}, {1}, {2}, value=0.5)", "torch.addcdiv({0}, {1}, {2})", "torch.clamp({0}, -1, 2)",
        "torch.clamp({0}, min={1})", "torch.clamp({0}, max=1.5)", "{0}.masked_fill({1} > 0, 2)",
        "torch.where({0} < 1, {0}, -1)", "torch.lerp({0}, {1}, {2})", "torch.clip({0}, {1}, {2})",
        "{0} * {1} + {2}", "F.threshold({0}, 0.1, 20)", "torch.nan_to_num({0}, nan=2.0, posinf=1.0)",
        "torch.round({0}, decimals=1)", "{0} ** 3", "2 ** {0}", "{0} ** 0.5", "1 / {0}", "3 - {0}", "-7 // {0}",
        "F.gelu({0}, approximate='tanh')", "F.softplus({0}, beta=2, threshold=1)", "F.leaky_relu({0}, -0.5)",
        "F.elu({0}, 1.5)", "F.hardtanh({0}, -0.3, 0.7)", "F.dropout({0}, 0.5, training=False)",
    ))  # fmt: skip
    return str(form.format(x, y, z))


def cast(b: Builder) -> str:
    x = b.any()
    dtype = b.rng.choice((*FLOATS, "float32", *INTS, "bool"))
    value = b.value(x)
    if value.is_floating_point() and dtype not in FLOATS:
        # what a float beyond the integers becomes is undefined
        return f"torch.nan_to_num({x}, 0.0, 1.0, 2.0).clamp({'0' if dtype == 'uint8' else '-9'}, 9).to(torch.{dtype})"
    return f"{x}.to(torch.{dtype})"


def bits(b: Builder) -> str:
    same = {4: ("float32", "int32"), 8: ("float64", "int64"), 2: ("float16", "bfloat16", "int16"), 1: ("int8", "uint8")}
    x = b.pick(lambda t: str(t.dtype) != "torch.bool" and not t.requires_grad)
    value = f"torch.nan_to_num({x})" if b.value(x).is_floating_point() else x  # which NaN it is has no meaning
    return f"{value}.view(torch.{b.rng.choice(same[b.value(x).element_size()])})"


def in_place(b: Builder) -> str:
    """An edit of a value, an input or a view of one."""
    rng = b.rng
    x = b.any()
    y = broadcastable(b, x)
    rank = b.rank(x)
    target = x
    if rank and rng.random() < 0.5:
        views = [f"{x}[0]", f"{x}[1:]", f"{x}[..., ::2]", f"{x}.flatten()", f"{x}.unsqueeze(0)", f"{x}[:, -1:]",
                 f"{x}.transpose(0, -1)", f"{x}.narrow(0, 0, 1)", f"{x}.select(-1, 0)", f"{x}.diagonal()"]  # fmt: skip
        target = rng.choice(views)
    form = rng.choice((
        "{0}.add_({1})", "{0}.mul_(2)", "{0}.copy_({1})", "{0}.fill_(3)", "{0}.zero_()", "{0}.relu_()",
        "{0}.clamp_(-1, 1)", "{0}.masked_fill_({0} > 1, 0)", "{0}.sub_({1}, alpha=2)", "{0}.abs_()", "{0}.neg_()",
        "{0}.div_(2)", "{0}.exp_()", "{0}.sigmoid_()", "{0}[...] = {1}", "{0}.mul_({1})", "{0}.logical_not_()",
        "{0}.floor_divide_(2)", "{0}.lerp_({0} * 2, 0.5)", "{0}.addcmul_({0}, {0})", "F.relu({0}, inplace=True)",
        "{0}.index_fill_(0, torch.tensor([0]), 1)", "{0}.cumsum_(0)", "{0}.eq_({1})", "{0}.tril_()", "{0}.square_()",
        "{0}.bitwise_not_()", "{0}.t_()", "{0}.unsqueeze_(0)", "{0}.squeeze_()", "{0}.transpose_(0, 1)",
        "{0}.remainder_(3)", "{0}.pow_(2)", "{0}.clamp_(min=0)", "{0}.hardtanh_()", "{0}.tanh_()",
    ))  # fmt: skip
    if target == x and ".t_(" in form + ".unsqueeze_.squeeze_.transpose_" and rng.random() < 0.7:
        raise Skip  # edits of the shape are rare
    return Edit(form.format(target, y))


TEMPLATES: tuple[tuple[int, Template], ...] = (
    (14, unary), (16, binary), (6, integer_binary), (8, ternary), (6, cast), (2, bits), (8, in_place),
)  # fmt: skip
