"""Random linear algebra, recurrent cells, images sampled and put together, autocast, checkpoints, blocks without
gradients, and attention in its rarer forms."""

from __future__ import annotations

from tests.fuzz.build import Builder, Skip, Template
from tests.fuzz.layers import image

__all__ = ["TEMPLATES"]


def products(b: Builder) -> str:
    rng = b.rng
    x = b.number(low=1)
    dtype, shape = b.dtype(x), b.shape(x)
    k, n = shape[-1], rng.choice((1, 2, 3, 8, 17))
    if len(shape) == 1:
        v = b.fresh((k,), dtype)
        return rng.choice((
        f"torch.dot({x}, {v})", f"torch.outer({x}, {v})", f"torch.vdot({x}, {v})", f"torch.kron({x}, {v})",
        f"torch.inner({x}, {v})", f"torch.addr({b.fresh((k, k), dtype)}, {x}, {v}, alpha=0.5)", f"torch.diag({x})",
        f"torch.einsum('i,j->ij', {x}, {v})", f"torch.einsum('i,i->', {x}, {v})", f"torch.vander({x}, 3)",
        f"torch.addmv({b.fresh((n,), dtype)}, {b.fresh((n, k), dtype)}, {x}, beta=0.5)",
        ))  # fmt: skip
    if len(shape) == 2:
        y = b.fresh((k, n), dtype)
        return rng.choice((
        f"torch.einsum('ik,kj->ji', {x}, {y})", f"torch.einsum('ik,kj->', {x}, {y})", f"torch.chain_matmul({x}, {y})",
        f"torch.kron({x}[:2, :2], {y}[:2])", f"torch.tensordot({x}, {y}, 1)", f"torch.trace({x})", f"torch.diag({x})",
        f"torch.linalg.multi_dot(({x}, {y}, {y}.mT))", f"{x}.mT.mm({x})", f"torch.block_diag({x}, {y})",
        f"F.linear({y}.mT, {x})", f"torch.einsum('ij,ij->i', {x}, {x})", f"torch.addmm({x}, {x}, {x}.mT @ {x})",
        f"torch.cdist({x}, {y}.mT, p=1)", f"F.pdist({x})", f"torch.cdist({x}, {x} + 1)", f"torch.inner({x}, {y}.mT)",
        f"torch.addmm({b.fresh((1,), dtype)}, {x}, {y}, beta=2, alpha=-1).relu()", f"({x} @ {y}).sigmoid() * 2",
        f"torch.mm({y}.mT, {x}.mT).mT", f"torch.addbmm({b.fresh((1, n), dtype)}, {x}[None], {y}[None])",
        f"F.linear(F.gelu(F.linear({x}, {y}.mT)), {y})",
        ))  # fmt: skip
    y = b.fresh((*shape[-3:-2], k, n), dtype)
    return rng.choice((
        f"torch.einsum('...bik,bkj->...bij', {x}, {y})", f"torch.einsum('...bik,bkj->...jb', {x}, {y})", f"{x} @ {y}",
        f"{x} @ {x}.mT", f"torch.baddbmm({b.fresh((1, n), dtype)}, {x}, {y}, beta=0.5, alpha=2)", f"{x}.mT @ {x}",
        f"torch.tensordot({x}, {y}, dims=([-1], [1]))", f"torch.matmul({x}, {y}).transpose(-1, -3)",
        f"torch.bmm({x}, {y})", f"torch.einsum('...ik,...jk->...ij', {x}, {x})", f"F.linear({x}, {y}[0].mT).relu()",
        f"torch.cdist({x}, {y}.mT)",
    ))  # fmt: skip


def matrices(b: Builder) -> str:
    """Of square matrices that are well conditioned."""
    rng = b.rng
    n = rng.choice((1, 2, 3, 4))
    a = b.fresh((*rng.choice(((), (2,), (3,))), n, n), rng.choice(("float32", "float64")), "normal()", "argument")
    good = f"({a} * 0.1 + torch.eye({n}, dtype={a}.dtype) * 2)"
    return rng.choice((
        f"torch.linalg.inv({good})", f"torch.linalg.det({good})", f"torch.linalg.solve({good}, {a})",
        f"torch.linalg.cholesky({good} @ {good}.mT)", f"torch.matrix_power({good}, 3)",
        f"torch.linalg.slogdet({good})[1]", f"torch.linalg.matrix_norm({good})",
        f"torch.linalg.cross({a}[..., :3], {a}[..., :3] + 1)",
        f"torch.linalg.solve_triangular({good}.tril(), {a}, upper=False)", f"torch.linalg.svdvals({good})",
        f"torch.linalg.eigvalsh({good} + {good}.mT)", f"torch.linalg.matrix_exp({a} * 0.1)", f"{good}.inverse() @ {a}",
        f"torch.linalg.diagonal({a})", f"torch.diag_embed({a}, offset=1)", f"torch.linalg.vector_norm({a}, 3)",
        f"torch.triu({a}, 1) + torch.tril({a}, -1)", f"{a} * torch.eye({n}, dtype=torch.bool)",
    ))  # fmt: skip


def recurrent(b: Builder) -> str:
    rng = b.rng
    steps, batch, width, hidden = (
        rng.choice((1, 3, 5)),
        rng.choice((1, 2)),
        rng.choice((2, 3, 8)),
        rng.choice((2, 4, 5)),
    )
    dtype = rng.choice(("float32", "float32", "float64", "bfloat16"))
    kind = rng.choice(("lstm", "gru", "rnn_tanh", "rnn_relu"))
    gates = {"lstm": 4, "gru": 3}.get(kind, 1) * hidden
    w, u = b.fresh((gates, width), dtype, "normal()"), b.fresh((gates, hidden), dtype, "normal()")
    bias = b.fresh((gates,), dtype, "normal()")
    if rng.random() < 0.5:
        x, h = b.fresh((batch, width), dtype), b.fresh((batch, hidden), dtype)
        state = f"({h}, {h})" if kind == "lstm" else h
        return f"torch.{kind}_cell({x}, {state}, {w}, {u}, {bias}, {bias})"
    two = rng.random() < 0.3
    x, h = b.fresh((steps, batch, width), dtype), b.fresh((1 + two, batch, hidden), dtype)
    state = f"({h}, {h})" if kind == "lstm" else h
    weights = ", ".join([f"{w}, {u}, {bias}, {bias}"] * (1 + two))
    return f"torch.{kind}({x}, {state}, ({weights}), True, 1, 0.0, False, {two}, False)"


def sampled(b: Builder) -> str:
    """Images: sampled, unpooled, put together of patches, padded."""
    rng = b.rng
    x = image(b, 2)
    if b.rank(x) != 4:
        raise Skip
    n, c = b.value(x).shape[:2]
    dtype = b.dtype(x)
    grid = b.fresh((n, 3, 4, 2), dtype, "normal()", "argument")
    theta = b.fresh((n, 2, 3), dtype, "normal()", "argument")
    mode, pad = rng.choice(("bilinear", "nearest", "bicubic")), rng.choice(("zeros", "border", "reflection"))
    corners = rng.choice((True, False))
    patches = b.fresh((n, 4 * rng.choice((1, 2)), 6), dtype)
    axes = ", ".join(str(rng.choice((0, 1, 2))) for _ in range(4))
    return rng.choice((
        f"F.grid_sample({x}, {grid}, '{mode}', '{pad}', {corners})",
        f"F.grid_sample({x}, F.affine_grid({theta}, ({n}, {c}, 3, 4), {corners}), '{mode}', '{pad}', {corners})",
        f"F.fold({patches}, (3, 4), 2)", f"F.fold({patches}, (2, 4), (2, 2), stride=(2, 2), padding=(1, 1))",
        f"F.unfold({x}, (2, 1), dilation=(1, 2), padding=1)", f"F.unfold({x}, 3, stride=2, padding=1)",
        f"F.max_unpool2d(*F.max_pool2d({x}, 2, return_indices=True), 2, output_size={x}.shape)",
        f"F.interpolate({x}, scale_factor=(1.5, 0.5), mode='bilinear')", f"F.pad({x}, ({axes}), mode='reflect')",
        f"F.interpolate({x}, size=(3, 7), mode='bilinear', antialias=True)", f"F.pad({x}, ({axes}), mode='circular')",
        f"F.interpolate({x}, size=(3, 2), mode='bicubic', antialias=True)", f"F.pad({x}, ({axes}), mode='replicate')",
        f"F.avg_pool2d({x}, (2, 1), (1, 2), divisor_override=3)", f"F.max_pool2d({x}, (3, 2), (2, 1), (1, 0), (1, 2))",
        f"F.adaptive_avg_pool2d({x}, (None, 2))", f"F.adaptive_max_pool2d({x}, (2, 3), return_indices=True)",
        f"F.pixel_shuffle({x}.repeat(1, 4, 1, 1), 2)", f"F.interpolate({x}, scale_factor=2)",
        f"F.lp_pool2d({x}, 3, 2, 1)", f"F.interpolate({x}[:, :, None], size=(2, 3, 4), mode='trilinear')",
        f"F.avg_pool2d({x}, 3, 1, 1, True, False)", f"F.conv2d({x}, {x}.mean(0, keepdim=True))",
        f"F.conv2d({x}, {x}[:1].repeat(2, 1, 1, 1), padding=1).relu()",
    ))  # fmt: skip


def attention(b: Builder) -> str:
    rng = b.rng
    groups = rng.choice(((1, 2), (2, 4), (2, 2)))
    queries, keys, depth = b.size(), b.size(), rng.choice((2, 4, 8))
    dtype = rng.choice((b.main, "float32", "bfloat16"))
    layout = rng.choice((None, "transposed", "permuted", "stepped"))
    q = b.fresh((2, groups[1], queries, depth), dtype, "normal()", layout=layout)
    k = b.fresh((2, groups[0], keys, depth), dtype, "normal()", layout=layout)
    v = b.fresh((2, groups[0], keys, depth), dtype, "normal()", layout=layout)
    mask = b.fresh((2, 1, queries, keys), "bool", kind="argument")
    bias = b.fresh((groups[1], queries, keys), dtype, rng.choice(("normal()", "special()")), "argument")
    gqa = "" if groups[0] == groups[1] else ", enable_gqa=True"
    return rng.choice((
        f"F.scaled_dot_product_attention({q}, {k}, {v}{gqa})",
        f"F.scaled_dot_product_attention({q}, {k}, {v}, attn_mask={mask}{gqa})",
        f"F.scaled_dot_product_attention({q}, {k}, {v}, attn_mask={bias}{gqa}, scale=1.0)",
        f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal=True{gqa})",
        f"F.scaled_dot_product_attention({q}[0], {q}[1], {q}[0] * 2, is_causal=True)",
        f"F.scaled_dot_product_attention({q}, {q}, {q}, attn_mask=torch.ones(({q}.shape[2],) * 2).tril() > 0)",
        f"(({q} * 0.3) @ {q}.mT).masked_fill(torch.ones(({q}.shape[2],) * 2).triu(1) > 0, -1e9).softmax(-1) @ {q}",
        f"torch.softmax(({q} @ {q}.mT + {q}.sum(-1, keepdim=True)).float(), -1).to({q}.dtype) @ {q}",
        f"torch.einsum('bhqd,bhkd->bhqk', {q}, {q}).softmax(-1)",
    ))  # fmt: skip


def mixed(b: Builder) -> str:
    """Regions of autocast, checkpoints, blocks without gradients, loops over parts."""
    rng = b.rng
    x = b.number(low=1)
    k, d = b.shape(x)[-1], b.dim(x)
    w = b.fresh((rng.choice((3, 8)), k), b.dtype(x), "normal()")
    low = rng.choice(("bfloat16", "bfloat16", "float16"))
    inside = rng.choice((
        f"lambda: F.linear({x}, {w})", f"lambda: F.layer_norm(F.linear({x}, {w}), ({w}.shape[0],)) + 1",
        f"lambda: torch.softmax({x} @ {w}.mT, -1)", f"lambda: {x}.exp().sum({d})",
        f"lambda: F.linear({x}, {w}).float() * 2", f"lambda: F.gelu({x} @ {w}.mT) @ {w}",
        f"lambda: F.mse_loss({x} @ {w}.mT, torch.ones(()))",
        f"lambda: torch.cat((F.linear({x}, {w}), F.linear({x}, {w}).float()), -1)",
    ))  # fmt: skip
    piece = rng.choice((
        "lambda t: torch.sin(t) * t", f"lambda t: F.linear(t, {w}).relu()", "lambda t: torch.softmax(t, -1) * t",
        f"lambda t: F.gelu(F.linear(t, {w})).sum(-1)", f"lambda t: t * torch.sigmoid(t) + {x}",
    ))  # fmt: skip
    return rng.choice((
        f"autocast(torch.{low}, {inside})", f"autocast(torch.{low}, {inside})", f"checkpoint({piece}, {x})",
        f"checkpoint({piece}, {x})", f"without_gradients(lambda: {x} * 2) + {x}", f"without_gradients({inside})",
        f"sum(t * (i + 1) for i, t in enumerate({x}.unbind({d})))",
        f"torch.stack([t.exp() for t in {x}.unbind({d})], -1)",
        f"torch.cat([t.flip(0) for t in {x}.split(2, {d})], {d})",
        f"torch.stack([{x}.select({d}, i) for i in (0, -1)])", f"torch.vmap(lambda t: t * 2 + t.sum())({x})",
        f"torch.cat([F.softmax(t, -1) for t in {x}.chunk(2, {d})], {d})", f"{x} if {x}.shape[{d}] > 3 else {x} * 2",
        f"{x}.detach() * {x}", f"{x} * {x}.detach().mean()",
    ))  # fmt: skip


TEMPLATES: tuple[tuple[int, Template], ...] = (
    (7, products), (3, matrices), (2, recurrent), (5, sampled), (3, attention), (6, mixed),
)  # fmt: skip
