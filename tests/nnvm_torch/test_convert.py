"""Converters against eager: the imported graph, evaluated by the reference, without a fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from import_capture import Capture, check, same
from torch import nn

from nnvm_torch.convert.table import TABLE, converter_of, converts

R = torch.randn
torch.manual_seed(0)
INTS = torch.randint(-9, 9, (3, 4))
INDEX = torch.tensor([[0, 2, 1], [1, 0, 0]])

ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda x, y: (x + y, x - 2 * y, x / y, x * 3, 2 - x, -x, x**2, x**3, abs(x) ** 0.5, 2**x),
    "alpha": lambda x, y: (torch.add(x, y, alpha=3), torch.sub(x, y, alpha=0.5), torch.rsub(x, y)),
    "division": lambda x, y: (x // y, x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc")),
    "comparison": lambda x, y: (x > y, x <= 0.5, x == y, x != 1, torch.maximum(x, y), torch.fmin(x, y)),
    "logic": lambda x, y: (torch.logical_and(x > 0, y > 0), (x > 0) ^ (y > 0), ~(x > 0), torch.logical_not(x)),
    "choice": lambda x, y: (torch.where(x > 0, x, y), torch.where(x > 0, x, 0.0), x.masked_fill(y > 0, -1.0)),
    "bounds": lambda x, y: (x.clamp(-0.5, 0.5), x.clamp(min=0.1), x.clamp_max(0.3), torch.clamp(x, y, y + 1)),
    "functions": lambda x, y: (x.exp(), x.abs().log1p(), x.sigmoid(), x.erf(), torch.atan2(x, y), x.round(decimals=1)),
    "activations": lambda x, y: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.hardswish(x), F.elu(x, 0.7),
                                 F.leaky_relu(x, 0.2), F.softplus(x, 2.0), F.mish(x), F.logsigmoid(x), F.relu6(x),
                                 F.hardtanh(x), F.selu(x), F.celu(x), F.glu(x), F.softshrink(x), F.hardsigmoid(x)),
    "predicates": lambda x, y: (x.isnan(), x.isinf(), x.sign(), x.signbit(), torch.copysign(x, y), x.frac()),
    "casts": lambda x, y: (x.to(torch.float64), x.to(torch.int32), (x > 0).float(), x.half(), x.bool(), x.bfloat16()),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str) -> None:
    check(ELEMENTWISE[name], R(3, 4), R(3, 4))


@pytest.mark.parametrize("name", ["arithmetic", "alpha", "comparison", "choice"])
def test_half_types_round_as_eager(name: str) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        # as many elements as fill eager's vectors: it rounds the elements of a tail differently
        check(ELEMENTWISE[name], R(8, 8).to(dtype), R(8, 8).to(dtype))


def test_a_scalar_is_not_rounded_to_the_half_type_first() -> None:
    x = torch.linspace(0.1, 3, 64, dtype=torch.bfloat16)
    check(lambda x: (x * 0.1, x + 0.3, x / 3.3, torch.add(x, x, alpha=0.7)), x, rtol=0, atol=0)


def test_products_that_are_added_round_once() -> None:
    def fn(x: Any, y: Any, z: Any) -> Any:
        return (torch.addcmul(x, y, z, value=0.7), torch.addcmul(x, y, z[:1]), torch.addcdiv(x[0, 0], y, z),
                torch.lerp(x, y, 0.3))  # fmt: skip

    check(fn, R(5, 7), R(5, 7), R(5, 7))
    for dtype in (torch.bfloat16, torch.float16):
        torch._dynamo.reset()
        args = [R(64, 64).to(dtype) for _ in range(3)]
        for got, want in zip(torch.compile(fn, backend=Capture())(*args), fn(*args)):
            assert (got != want).float().mean() < 0.005  # eager's float32 products and sums are one in some places


def test_products_that_are_added_in_place() -> None:
    """Dynamo takes these apart itself, with a number where its operator has a tensor."""

    def fn(x: Any, y: Any, z: Any) -> Any:
        x = x.clone().addcmul_(y, z, value=0.7).addcmul_(y, z)
        return x.addcdiv_(y, z.abs() + 1, value=-2.5), torch.addcdiv(x, y, z.abs() + 1, value=3.14)

    check(fn, R(5, 7), R(5, 7), R(5, 7))
    check(fn, *(R(5, 7).bfloat16() for _ in range(3)), rtol=0.02, atol=0.02)


def test_operators_that_torch_registers_later() -> None:
    """`prims.fma` is one: Inductor registers it when something is first taken apart into it."""

    def converter(c: Any, x: Any) -> Any:
        return x

    converts("nnvm_later.twice.default")(converter)
    library = torch.library.Library("nnvm_later", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    assert converter_of(torch.ops.nnvm_later.twice.default) is converter
    assert converter_of(torch.ops.aten.add.Tensor) is TABLE[torch.ops.aten.add.Tensor]
    assert converter_of(torch.ops.aten._assert_async.msg) is None


def test_promotion_follows_torch() -> None:
    i, u, b = INTS, INTS.to(torch.uint8), INTS > 0

    def fn(i: Any, u: Any, b: Any, x: Any) -> Any:
        return i + 1.5, i / 2, u + i, b + 1, b * x, i * x, i > 0.5, b + b, b.sum(), i.mean(dtype=torch.float32), u * 2

    check(fn, i, u, b, R(3, 4))


def test_integers() -> None:
    def fn(i: Any) -> Any:
        return (i // 2, i % 3, i & 5, i | 1, i ^ 3, ~i, i << 2, i >> 1, i.abs(), i.clamp(-2, 2), torch.div(i, 2),
                i.float().floor().long(), i.neg(), i**2, i.sign(), i.square())  # fmt: skip

    check(fn, INTS)
    check(fn, INTS.to(torch.int32))


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sums": lambda x: (x.sum(), x.sum(0), x.sum((0, 2), keepdim=True), x.mean(-1), x.prod(1), x.sum([])),
    "extremes": lambda x: (x.amax(1), x.amin(), x.max(0), x.min(-1), x.argmax(), x.argmin(1, keepdim=True), x.max()),
    "moments": lambda x: (x.var(1), x.std(), x.var(0, correction=0), torch.var_mean(x, 1), torch.std_mean(x, 0)),
    "truth": lambda x: ((x > 0).any(), (x > 0).all(1), (x > 9).any(0)),
    "norms": lambda x: (x.norm(), x.norm(1, 0), torch.linalg.vector_norm(x, float("inf"), 1), x.norm(3, 2)),
    "scans": lambda x: (x.cumsum(1), x.cumprod(-1), x.logsumexp(0), x.softmax(1), x.log_softmax(-1)),
    "order": lambda x: (x.sort(1), x.topk(2, -1), x.argsort(-1), x.sort(0, descending=True)),
    "others": lambda x: (torch.count_nonzero(x, 1), torch.aminmax(x, dim=1), x.nansum(0), F.normalize(x, dim=1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    check(REDUCTIONS[name], R(3, 4, 5))


def test_reductions_of_a_scalar() -> None:
    check(lambda x: (x.sum(0), x.softmax(0), x.cumsum(0), x.argmax(), x.amax(0), x.sort(), x.topk(1), x.flip(0)), R(()))


SHAPES: dict[str, Callable[..., Any]] = {
    "views": lambda x: (x.view(-1) + 1, x.reshape(6, 10) * 2, x.unsqueeze(1) + 1, x.mT.exp(), x.flatten(1) + 1),
    "slices": lambda x: (x[1] + 1, x[:, ::2] + 1, x[..., -1] + 1, x[:, 1:-1] * 2, x[-2:] + 0.5, x[:, :99] + 1),
    "joins": lambda x: (torch.cat([x, x + 1], 1), torch.stack([x, x * 2], -1), torch.cat([x[:1], x])),
    "splits": lambda x: [p * 2 for p in (*x.split(2, 1), *x.chunk(2, 2), *x.unbind(0))],
    "repeats": lambda x: (x.repeat(2, 1, 3), x[:1].expand(4, 4, 5) + 1, x.repeat_interleave(2, 1), x.tile(2)),
    "turns": lambda x: (x.flip(0, 2), x.roll(1, 0), x.roll(2), x.rot90(), x.movedim(0, 2) + 1),
    "triangles": lambda x: (x.tril(), x.triu(1), x.diagonal(0, 1, 2) + 1, x.unfold(2, 2, 2) + 1),
    "padding": lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, -1, 0, 2), value=3.0), F.pad(x, (1, 1), "reflect"),
                          F.pad(x, (2, 1), "replicate")),
    "writes": lambda x: (torch.slice_scatter(x, x[:, :1], 1, 1, 2), torch.select_scatter(x, x[0] * 0, 0, 1)),
    "pixels": lambda x: (F.pixel_shuffle(x.reshape(1, 4, 3, 5), 2), F.pixel_unshuffle(x.reshape(1, 5, 6, 2), 2),
                         F.channel_shuffle(x.reshape(1, 4, 3, 5), 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    check(SHAPES[name], R(3, 4, 5))


def test_creation() -> None:
    def fn(x: Any) -> Any:
        return (x + torch.arange(4), torch.zeros(2, 3), torch.ones_like(x), torch.full((2,), 7), torch.eye(3),
                torch.linspace(0, 1, 5), torch.arange(1, 9, 2), torch.tensor([1.0, 2.0]) * 2, x.new_zeros(3),
                torch.arange(0, 1, 0.25))  # fmt: skip

    check(fn, R(3, 4))


def test_indexing() -> None:
    def fn(x: Any, i: Any) -> Any:
        return (F.embedding(i, x), x[i], x[:, i], x.index_select(1, i[0]), torch.gather(x, 1, i), x[i[0], i[0]],
                torch.take_along_dim(x[:2], i, 1))  # fmt: skip

    check(fn, R(3, 4), INDEX)


def test_writing_at_indices() -> None:
    def fn(x: Any, i: Any, v: Any) -> Any:
        y = x.clone()
        y[i[0]] = 1.0
        y[y > 2] = 0.0
        return (y, x.scatter(1, i, v), x.scatter(1, i, 2.0), x.scatter_add(0, i, v), x.index_add(0, i[0], x, alpha=2),
                x.index_copy(0, i[0], x * 2), x.scatter_reduce(1, i, v, "amax"), x.index_put((i[0],), x, True),
                x.index_fill(0, i[0], 5.0))  # fmt: skip

    check(fn, R(3, 4), INDEX, R(2, 3))


def test_filling_counts_from_the_end() -> None:
    """index_fill takes negative indices, unlike index_copy and index_add."""
    last = torch.tensor([0, -1])
    for x in (R(4, 3), torch.arange(12).reshape(4, 3), R(4, 3).bfloat16(), torch.tensor(2.0)):
        check(lambda x, i: (x.index_fill(0, i, 2.5), x.index_fill(-1, i, torch.tensor(7.0))), x, last)
    for outside in (3, -4):
        with pytest.raises(IndexError):
            torch.compile(lambda x, i: x.index_fill(1, i, 1.0), backend="nnvm")(R(4, 3), torch.tensor([0, outside]))
    with pytest.raises(RuntimeError, match="out of bounds"):
        torch.compile(lambda x, i: x.index_copy(0, i, x[:2]), backend="nnvm")(R(4, 3), last)


MATMULS: dict[str, Callable[..., Any]] = {
    "matrices": lambda a, b: (a @ b, b.t() @ a.t(), torch.mm(a, b), a @ b[:, 0], torch.dot(a[0], a[1]), a.mv(b[:, 1])),
    "linear": lambda a, b: (F.linear(a, b.t()), F.linear(a, b.t(), b[0]), F.linear(a[None], b.t(), b[0])),
    "add": lambda a, b: (torch.addmm(b[0], a, b), torch.addmm(b[:1], a, b, beta=0.5, alpha=2),
                         torch.addmv(b[0], b.t(), a[0])),
    "batches": lambda a, b: (torch.bmm(a[None], b[None]), a.expand(2, 3, 4) @ b.expand(2, 4, 5),
                             torch.baddbmm(b[0], a[None], b[None], beta=2.0), torch.einsum("ij,jk->ki", a, b)),
}  # fmt: skip


@pytest.mark.parametrize("name", MATMULS)
def test_matmul(name: str) -> None:
    check(MATMULS[name], R(3, 4), R(4, 5))


MODULES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "conv1d": (nn.Conv1d(3, 4, 3, padding=1), (2, 3, 9)),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2, dilation=2, groups=2), (2, 4, 9, 9)),
    "conv2d_unbatched": (nn.Conv2d(3, 4, 3, padding="same"), (3, 7, 7)),
    "conv3d": (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), (1, 3, 5, 5)),
    "norms": (nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)),
              (2, 3, 5, 5)),
    "layer_norm": (nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8), nn.LayerNorm((3, 8), elementwise_affine=False)),
                   (2, 3, 8)),
    "max_pools": (nn.Sequential(nn.MaxPool2d(3, 2, 1, ceil_mode=True), nn.AdaptiveMaxPool2d(2)), (2, 3, 9, 9)),
    "avg_pools": (nn.Sequential(nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.AdaptiveAvgPool2d((2, 1))),
                  (2, 3, 9, 9)),
    "pools_1d": (nn.Sequential(nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(2)), (2, 3, 16)),
    "resize": (nn.Sequential(nn.Upsample(scale_factor=2), nn.Upsample(size=5, mode="bilinear"),
                             nn.Upsample(scale_factor=1.5, mode="bicubic", align_corners=True)), (1, 2, 3, 4)),
    "lstm": (nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True), (2, 5, 4)),
    "gru": (nn.GRU(4, 3), (5, 2, 4)),
    "attention": (nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, norm_first=True), (2, 5, 8)),
    "prelu": (nn.PReLU(3), (2, 3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    module, shape = MODULES[name]
    inputs = (R(*shape), R(*shape)) if name == "attention" else (R(*shape),)
    check(module.eval(), *inputs, atol=1e-5, rtol=1e-4)


def test_attention() -> None:
    def fn(q: Any, k: Any, mask: Any) -> Any:
        return (F.scaled_dot_product_attention(q, k, k), F.scaled_dot_product_attention(q, q, q, is_causal=True),
                F.scaled_dot_product_attention(q, k, k, mask),
                F.scaled_dot_product_attention(q, k, k, scale=0.3))  # fmt: skip

    check(fn, R(1, 2, 5, 8), R(1, 2, 7, 8), torch.rand(5, 7) > 0.3, atol=1e-5, rtol=1e-4)


def test_batch_norm_in_training_updates_its_buffers() -> None:
    ours, theirs = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    x = R(4, 3, 5, 5)
    torch._dynamo.reset()
    with torch.no_grad():
        same(torch.compile(ours, backend=Capture())(x), theirs(x), atol=1e-5, rtol=1e-4)
    same(list(ours.state_dict().values()), list(theirs.state_dict().values()), atol=1e-6, rtol=1e-5)


def test_sizes_that_are_symbols() -> None:
    def fn(x: Any) -> Any:
        n, m = x.shape
        flat = x.reshape(n * m)
        return (flat * n, torch.arange(m) + x, x[:, 1:] + x[:, :-1], torch.cat([x, x]), n + m, x[: n // 2] * 2,
                x.view(n, 1, m).expand(n, 2, m) + 1, x.new_full((m,), 2.0), x.sum(0) / n, x.softmax(-1))  # fmt: skip

    check(fn, R(4, 6), dynamic=True)


def test_searches_products_and_gradients_of_pooling() -> None:
    edges = torch.tensor([-0.5, 0.0, 0.0, 1.0])

    def fn(x: Any, y: Any) -> Any:
        values, index = F.max_pool2d(x[None], 2, 1, return_indices=True)
        window = [2, 2], [1, 1], [0, 0], [1, 1], False
        back = torch.ops.aten.max_pool2d_with_indices_backward(values, x[None], *window, index)
        return (torch.bucketize(x, edges), torch.searchsorted(edges, x, right=True), torch.dist(x, y), back,
                F.bilinear(x, y, torch.ones(2, 5, 5)), torch.ldexp(x, torch.tensor(3)), torch.narrow_copy(x, 1, 1, 2),
                x.index_reduce(0, INDEX[0, :1], y[:1], "amax"),
                F.grid_sample(x[None], y[None, :, :, :2], align_corners=False))  # fmt: skip

    check(fn, R(3, 4, 5), R(3, 4, 5), atol=1e-5, rtol=1e-5)


def test_tensors_of_no_elements() -> None:
    x = torch.empty(0, 4)
    check(lambda x: (x + 1, x.sum(0), x.mean(), torch.cat([x, x]), x @ x.t(), x.softmax(-1), x.t() @ x), x)
