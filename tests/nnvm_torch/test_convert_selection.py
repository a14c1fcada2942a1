"""Converters of order statistics, searches, computed writes, embedding bags and pooling indices, against eager."""

import pytest
import torch
import torch.nn.functional as F

import nnvm_torch

torch.manual_seed(0)
R = torch.randn
X = R(4, 6, 5)
GAPS = X.clone()
GAPS[0, 1, 2] = GAPS[2, :3, 4] = GAPS[3, :, 0] = float("nan")


def check(fn, *inputs):
    """Compiled without a fallback, and equal to eager."""
    torch._dynamo.reset()
    nnvm_torch.reset()
    got, want = torch.compile(fn, backend="nnvm", fullgraph=True)(*inputs), fn(*inputs)
    torch.testing.assert_close(got, want, equal_nan=True)
    report = nnvm_torch.report()
    assert report.native_fraction == 1.0 and not report.fallbacks, report


ORDER = {
    "running": lambda x: (*x.cummax(1), *x.cummin(-1), x.logcumsumexp(0)),
    "kth": lambda x: (x.kthvalue(2, 1)[0], x.kthvalue(1, 0, keepdim=True)[0]),
    "median": lambda x: (x.median(), *x.median(1), *x.median(2, keepdim=True), x[..., :4].median(2)[0]),
    "nanmedian": lambda x: (x.nanmedian(), x.nanmedian(1)[0], *x[:, :, 1:2].nanmedian(1, keepdim=True)),
    "distances": lambda x: (torch.cdist(x, x[:, :2]), torch.cdist(x, x, 1.0), torch.cdist(x, x, 3.0), F.pdist(x[0])),
    "masked_scatter": lambda x: x.masked_scatter(x > 0.3, x.flip(0)),
    "diagonal_scatter": lambda x: (torch.diagonal_scatter(x, x[:, :5, 0], 0, 1, 2),
                                   torch.diagonal_scatter(x, x[:, :3, 0], -3, 1, 2),
                                   torch.diagonal_scatter(x, x[0, :4].t(), 2, 0, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDER)
def test_order_and_writes(name):
    check(ORDER[name], X)


@pytest.mark.parametrize("name", ["running", "kth", "median", "nanmedian"])
def test_nan(name):
    check(ORDER[name], GAPS)


def test_places_among_many_equal_elements_are_eagers():
    x = torch.randint(0, 3, (40, 30))
    nothing_native = {"aten.topk.default", "aten.kthvalue.default", "aten.median.dim"}
    torch._dynamo.reset()
    nnvm_torch.reset()
    fn = torch.compile(lambda x: (*x.topk(7), *x.kthvalue(9, 0), *x.median(1)), backend="nnvm")
    for got, want in zip(fn(x), (*x.topk(7), *x.kthvalue(9, 0), *x.median(1))):
        assert torch.equal(got, want)
    assert {f.op for f in nnvm_torch.report().fallbacks} == nothing_native
    half = R(8000).bfloat16()
    for got, want in zip(torch.compile(torch.sort, backend="nnvm")(half), half.sort()):
        assert torch.equal(got, want)
    check(lambda x: x.sort(stable=True), half)
    check(lambda x: (x.topk(7)[0], x.median(1)[0], x.kthvalue(9, 0)[0]), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_places_of_the_kth_among_equal_elements_and_nan_are_eagers(dtype):
    x = torch.randint(0, 4, (9, 30)).to(dtype)
    if dtype.is_floating_point:
        x[x == 2] = float("nan")
    torch._dynamo.reset()
    fn = torch.compile(lambda x: (*x.kthvalue(20), *x.kthvalue(3, 0, keepdim=True), *x.kthvalue(1)), backend="nnvm")
    got = fn(x)
    for a, b in zip(got, (*x.kthvalue(20), *x.kthvalue(3, 0, keepdim=True), *x.kthvalue(1))):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_searches():
    rows, values = R(3, 200).sort(-1)[0], R(3, 7)
    rows[1, -5:], values[0, 2] = float("nan"), float("nan")
    sorter = R(3, 200).argsort(-1)

    def fn(rows, values, sorter):
        shuffled = rows.gather(-1, sorter.argsort(dim=-1, stable=True))
        return (torch.searchsorted(rows, values), torch.searchsorted(rows, values, side="right"),
                torch.searchsorted(rows[0], values, out_int32=True), torch.bucketize(values, rows[0], right=True),
                torch.searchsorted(shuffled, values, sorter=sorter), torch.searchsorted(rows[0], 0.25))  # fmt: skip

    check(fn, rows, values, sorter)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags(mode):
    table, index = R(9, 5), torch.tensor([3, 0, 8, 8, 1, 2, 2, 7])
    offsets = torch.tensor([0, 2, 2, 5])

    def fn(table, index, offsets):
        weights = table[:, 0][index] if mode == "sum" else None
        return (F.embedding_bag(index, table, offsets, mode=mode, per_sample_weights=weights),
                F.embedding_bag(index, table, offsets, mode=mode, padding_idx=2),
                F.embedding_bag(index.reshape(2, 4), table, mode=mode),
                F.embedding_bag(index, table, offsets, include_last_offset=True, mode="sum"))  # fmt: skip

    with torch.no_grad():
        check(fn, table, index, offsets)
        check(fn, table.bfloat16(), index, offsets)


@pytest.mark.parametrize("offsets", [[0, 9], [1, 2], [0, -1]])
def test_embedding_bags_begin_within_the_indices(offsets):
    def fn(table, index, offsets):
        return F.embedding_bag(index, table, offsets, mode="sum")

    with torch.no_grad(), pytest.raises((IndexError, RuntimeError)):
        torch.compile(fn, backend="nnvm")(R(9, 5), torch.tensor([3, 0, 8, 8, 1, 2, 2, 7]), torch.tensor(offsets))


def test_pooling_puts_back_what_it_took():
    def fn(x):
        values, places = F.max_pool2d(x, 2, return_indices=True)
        return F.max_unpool2d(values, places, 2), *F.adaptive_max_pool2d(x, (3, 4), return_indices=True)

    check(fn, R(2, 3, 8, 10))
    channels_last = R(2, 3, 8, 10).contiguous(memory_format=torch.channels_last)
    check(fn, channels_last)
    assert torch.compile(fn, backend="nnvm")(channels_last)[0].stride() == fn(channels_last)[0].stride()
    check(lambda x: F.adaptive_max_pool1d(x, 7, return_indices=True), R(2, 3, 17))
    check(lambda x: F.adaptive_max_pool3d(x, (2, 3, 2), return_indices=True), R(2, 5, 7, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_adaptive_pooling_takes_the_last_nan_and_the_first_of_equal_elements(dtype):
    x = R(2, 5, 7, 9).round()
    x[torch.rand(x.shape) < 0.25] = float("nan")
    x[torch.rand(x.shape) < 0.2] = float("-inf")
    x[0, 0] = float("-inf")
    x = x.to(dtype)
    check(lambda x: F.adaptive_max_pool1d(x[0], 4, return_indices=True), x)
    check(lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), x)
    check(lambda x: F.adaptive_max_pool3d(x, (2, 3, 3), return_indices=True), x)


def test_batch_norm_keeps_what_training_wants():
    def fn(x, mean, variance):
        return torch.native_batch_norm(x, None, None, mean, variance, False, 0.1, 1e-5)

    check(fn, R(3, 4, 5), R(4), R(4).abs())


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolation(mode):
    """uint8 images are interpolated in whole numbers, by ATen."""

    def fn(x):
        return (F.interpolate(x, scale_factor=1.7, mode=mode), F.interpolate(x, size=(3, 9), mode=mode),
                F.interpolate(x, scale_factor=0.6, mode=mode, align_corners=True))  # fmt: skip

    with torch.no_grad():
        check(fn, R(2, 3, 5, 7))
        check(fn, R(2, 3, 5, 7).to(memory_format=torch.channels_last))
    torch._dynamo.reset()
    for format_ in (torch.contiguous_format, torch.channels_last):
        x = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8).to(memory_format=format_)
        for got, want in zip(torch.compile(fn, backend="nnvm")(x), fn(x), strict=True):
            assert torch.equal(got, want) and got.stride() == want.stride()


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_sampling_at_places_that_are_no_numbers(padding):
    nan, inf = float("nan"), float("inf")
    grid = torch.tensor([[[[nan, 0.0], [inf, 0.3], [0.2, nan], [0.1, -inf], [nan, nan], [0.3, 0.4], [-1.0, 1.7]]]])

    def fn(x, grid):
        return [F.grid_sample(x, grid, mode, padding, align_corners)
                for mode in ("bilinear", "nearest", "bicubic") for align_corners in (True, False)]  # fmt: skip

    check(fn, R(1, 2, 5, 7), grid)


WRITTEN = {
    "pad": lambda x, v: F.pad(x, (0, 2), value=v),
    "full": lambda x, v: torch.full((3,), v, dtype=x.dtype) + x,
    "full_like": lambda x, v: torch.full_like(x, v),
    "fill": lambda x, v: (x * 1).fill_(v),
    "masked_fill": lambda x, v: x.masked_fill(x > 1, v),
    "where": lambda x, v: torch.where(x > 1, x, torch.full((), v, dtype=x.dtype)),
    "index_fill": lambda x, v: x.index_fill(0, torch.tensor([0]), v),
    "scatter": lambda x, v: x.scatter(0, torch.tensor([0]), v),
    "clamp": lambda x, v: x.clamp(max=v),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize(("dtype", "value"), [
    (torch.int8, 300), (torch.int8, -200), (torch.uint8, 256), (torch.uint8, -1), (torch.int16, 2**15),
    (torch.float16, 1e6), (torch.float16, -65504.0), (torch.float32, 1e39), (torch.float32, float("-inf")),
    (torch.bfloat16, 10**6),
])  # fmt: skip
def test_a_number_that_a_type_does_not_hold_is_an_error_where_eager_says_so(name, dtype, value):
    fn, x = WRITTEN[name], torch.tensor([1, 2, 3]).to(dtype)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: fn(x, value), backend="nnvm")
    try:
        want = fn(x, value)
    except RuntimeError:
        with pytest.raises(Exception, match="overflow"):
            compiled(x)
    else:
        torch.testing.assert_close(compiled(x), want, rtol=0, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_the_gradient_of_smooth_l1_where_a_difference_is_no_number(reduction, beta):
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([nan, inf, -inf, inf, 0.25, -0.25, 3.0, -3.0, 1.0, 0.5])
    y = torch.tensor([0.0, inf, 1.0, 2.0, 0.0, 0.0, nan, 0.0, 1.0, 0.0])

    def gradient(loss):
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        loss(a, b).sum().backward()
        return a.grad, b.grad

    def loss(a, b):
        return F.smooth_l1_loss(a, b, reduction=reduction, beta=beta)

    torch._dynamo.reset()
    got, want = gradient(torch.compile(loss, backend="nnvm")), gradient(loss)
    torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_max_pooling_takes_the_last_nan_and_the_first_of_equal_ones(dtype, form):
    x = R(2, 16, 9, 33).round()
    x[torch.rand(x.shape) < 0.35] = float("nan")
    x[torch.rand(x.shape) < 0.2] = float("-inf")
    x = x.to(dtype).to(memory_format=form)

    def fn(x):
        sizes = ((3, 2, 1), (2, 2, 0), (3, 1, 0))
        return [F.max_pool2d(x, *size, return_indices=True) for size in sizes]

    check(fn, x)


@pytest.mark.parametrize(("x", "exponent"), [
    (torch.arange(4).view(2, 2), torch.tensor(1.5, dtype=torch.bfloat16)), (R(5).half(), torch.arange(5) - 2),
    (torch.arange(5), torch.arange(5) - 2), (R(3, 1), R(4).bfloat16()), (R(4).bfloat16(), R(())),
])  # fmt: skip
def test_the_type_of_ldexp(x, exponent):
    """Values in the type of the result; eager rounds the power of two to the exponent's, which may be narrower."""
    torch._dynamo.reset()
    nnvm_torch.reset()
    got, want = torch.compile(torch.ldexp, backend="nnvm")(x, exponent), torch.ldexp(x, exponent)
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(got.double(), x.double() * 2.0 ** exponent.double(), rtol=1e-2, atol=1e-3)
    assert nnvm_torch.report().native_fraction == 1.0
