"""Products, normalisations, pooling, resampling and attention against eager PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from nnvm.graph.layout import Layout
from nnvm.graph.node import TypeInferenceError, apply, variable
from nnvm.graph.types import TensorType
from nnvm.ops.nn_conv import from_plain

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def blocked(t: torch.Tensor, layout: str, order: str) -> torch.Tensor:
    return torch.from_numpy(from_plain(t.numpy(), Layout.parse(layout), order))


# -- products


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_dense(check: Any, dtype: torch.dtype, lead: Any) -> None:
    x, w, b = randn(*lead, 7, dtype=dtype), randn(5, 7, dtype=dtype), randn(5, dtype=dtype)
    truth = F.linear(x.double(), w.double(), b.double()).to(dtype)
    check("dense", [x, w, b], truth, tolerance=2)
    check("dense", [x, w], F.linear(x.double(), w.double()).to(dtype), tolerance=2)


@pytest.mark.parametrize("n", [8, 6])
def test_dense_packed(check: Any, n: int) -> None:
    x, w, b = randn(3, 5), randn(n, 5), randn(n)
    packed = blocked(w, "NK4n", "NK")
    check("dense", [x, packed, b], F.linear(x, w, b), kernel_layout="NK4n", units=n)
    check("dense", [x[0], packed, b], F.linear(x[0], w, b), kernel_layout="NK4n", units=n)


@pytest.mark.parametrize("a,b", [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (3, 4, 2)), ((3, 0), (0, 2)),
                                 ((2, 3, 4), (4, 5)), ((0, 3, 4), (0, 4, 2))])  # fmt: skip
def test_matmul(check: Any, a: Any, b: Any) -> None:
    x, y = randn(*a), randn(*b)
    for ta in (False, True):
        for tb in (False, True):
            left = x.mT.contiguous() if ta else x
            right = y.mT.contiguous() if tb else y
            check("matmul", [left, right], x @ y, transpose_a=ta, transpose_b=tb, tolerance=2)


def test_matmul_dtypes(check: Any) -> None:
    for t in FLOATS:
        x, y = randn(3, 8, dtype=t), randn(8, 4, dtype=t)
        check("matmul", [x, y], (x.double() @ y.double()).to(t), tolerance=2)
    i, j = torch.randint(-9, 9, (3, 4)), torch.randint(-9, 9, (4, 2))
    check("matmul", [i, j], i @ j)


@pytest.mark.parametrize("op,shapes,message", [
    ("dense", [(2, 3), (4, 5)], "has 3 features"), ("dense", [(2, 3), (4, 3), (3,)], r"bias \[3\] must have"),
    ("matmul", [(2, 3), (4, 5)], "3 columns against 4 rows"), ("matmul", [(3,), (3, 2)], "needs matrices"),
    ("matmul", [(2, 3, 4), (3, 4, 5)], "do not broadcast"),
])  # fmt: skip
def test_product_misfits(op: str, shapes: Any, message: str) -> None:
    with pytest.raises(TypeInferenceError, match=message):
        apply(op, [variable(f"x{k}", TensorType(s)) for k, s in enumerate(shapes)])


# -- normalisations


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax(check: Any, dtype: torch.dtype, axis: int) -> None:
    x = randn(3, 5, 4, dtype=dtype) * 4
    check("softmax", [x], x.softmax(axis), axis=axis, tolerance=2)
    check("log_softmax", [x], x.double().log_softmax(axis).to(dtype), axis=axis, tolerance=4)


def test_softmax_of_special_rows(check: Any) -> None:
    inf = math.inf
    least = torch.finfo(torch.float32).min
    x = torch.tensor([[-inf] * 4, [inf, 0, 1, 2], [math.nan, 0, 1, 2], [-inf, 0, 1, 2], [least] * 4, [1e4, -1e4, 0, 0]])
    check("softmax", [x], x.softmax(1))
    check("log_softmax", [x], x.log_softmax(1))
    check("softmax", [torch.tensor(3.0)], torch.tensor(1.0))
    check("softmax", [torch.zeros(2, 0)], torch.zeros(2, 0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_layer_norm(check: Any, dtype: torch.dtype) -> None:
    x, g, b = randn(3, 4, 6, dtype=dtype), randn(6, dtype=dtype), randn(6, dtype=dtype)
    check("layer_norm", [x, g, b], F.layer_norm(x, (6,), g, b, 1e-6), eps=1e-6, tolerance=4)
    check("layer_norm", [x, g], F.layer_norm(x, (6,), g), tolerance=4)
    check("layer_norm", [x], F.layer_norm(x, (4, 6)), axis=1, tolerance=4)
    check("rms_norm", [x, g], F.rms_norm(x, (6,), g, 1e-6), eps=1e-6, tolerance=4)


def test_mixed_dtypes(check: Any) -> None:
    x, g, b = randn(4, 6, dtype=torch.bfloat16), randn(6), randn(6)
    check("layer_norm", [x, g, b], F.layer_norm(x.float(), (6,), g, b).bfloat16())


def test_layer_norm_far_from_zero(check: Any) -> None:
    """Two passes: a mean of 10000 costs what the rounding of the mean costs, as in eager, not the variance."""
    x = randn(4, 512) + 10000
    check("layer_norm", [x], F.layer_norm(x.double(), (512,)).float(), tolerance=5000)
    check("variance", [x], x.double().var(1).float(), axis=1, tolerance=5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape,groups", [((2, 6, 3, 4), 3), ((2, 6, 5), 6), ((3, 4), 2), ((1, 4, 2, 2), 1)])
def test_group_norm(check: Any, dtype: torch.dtype, shape: Any, groups: int) -> None:
    x, g, b = randn(*shape, dtype=dtype), randn(shape[1], dtype=dtype), randn(shape[1], dtype=dtype)
    truth = F.group_norm(x.double(), groups, g.double(), b.double()).to(dtype)
    check("group_norm", [x, g, b], truth, num_groups=groups, tolerance=4)
    if groups == shape[1]:
        check("instance_norm", [x, g, b], truth, tolerance=4)


@pytest.mark.parametrize("dtype", FLOATS)
def test_batch_norm(check: Any, dtype: torch.dtype) -> None:
    x = randn(2, 5, 3, 4, dtype=dtype)
    g, b, m, v = (randn(5, seed=k, dtype=dtype) for k in range(4))
    v = v.abs() + 0.5
    wide = [t.double() for t in (x, m, v, g, b)]
    check("batch_norm", [x, g, b, m, v], F.batch_norm(*wide).to(dtype), tolerance=4)
    plain = F.batch_norm(*wide[:3]).to(dtype)
    check("batch_norm", [x, g, b, m, v], plain, scale=False, center=False, tolerance=4)


def test_batch_norm_simplifies_to_multiply_and_add() -> None:
    from nnvm.graph.evaluate import evaluate_graph
    from nnvm.graph.graph import Graph

    x = randn(2, 5, 3, 4)
    params = [randn(5, seed=k).abs() + 0.1 for k in range(4)]
    inputs = [variable(n, TensorType(tuple(t.shape))) for n, t in zip("xgbmv", [x, *params])]
    node = apply("batch_norm", inputs)
    simple = Graph((node.op.attr("simplify_inference")(node),), tuple(e.node for e in inputs))
    last = simple.outputs[0].node
    assert (last.op.name, last.inputs[0].node.op.name) == ("add", "multiply")
    (got,) = evaluate_graph(simple, [t.numpy() for t in (x, *params)])
    expected = F.batch_norm(x, params[2], params[3], params[0], params[1])
    torch.testing.assert_close(torch.from_numpy(got), expected)


def test_l2_and_lrn(check: Any) -> None:
    x = randn(2, 6, 3, 4)
    check("l2_normalize", [x], F.normalize(x, dim=1), axis=1)
    for size in (3, 4, 5):
        expected = F.local_response_norm(x, size, 1e-2, 0.75, 2.0)
        check("lrn", [x], expected, size=size, alpha=1e-2, beta=0.75, bias=2.0, tolerance=2)


# -- pooling


POOLS: list[Any] = [
    (2, (2, 2), (2, 2), (0, 0), (1, 1), False), (2, (3, 3), (2, 2), (1, 1), (1, 1), False),
    (2, (3, 3), (2, 2), (1, 1), (1, 1), True), (2, (3, 2), (1, 3), (1, 0), (2, 1), True),
    (2, (2, 2), (3, 3), (1, 1), (1, 1), True), (1, (3,), (2,), (1,), (1,), True),
    (3, (2, 2, 1), (2, 1, 1), (1, 0, 0), (1, 1, 1), True),
]  # fmt: skip


@pytest.mark.parametrize("rank,size,stride,padding,dilation,ceil_mode", POOLS)
def test_max_pool(check: Any, rank: int, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> None:
    x = randn(2, 3, *(7, 6, 4)[:rank])
    x[0, 0] = -math.inf
    x[0, 1].view(-1)[5] = math.nan
    fn = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[rank]
    attrs = {"pool_size": size, "strides": stride, "padding": padding, "dilation": dilation, "ceil_mode": ceil_mode}
    expected, where = fn(x, size, stride, padding, dilation, ceil_mode, return_indices=True)
    check(f"max_pool{rank}d", [x], expected, **attrs)
    check(f"max_pool{rank}d_with_indices", [x], [expected, where], **attrs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_max_pool_dtypes(check: Any, dtype: torch.dtype) -> None:
    x = (randn(1, 2, 5, 5) * 20).to(dtype)
    expected = F.max_pool2d(x, 3, 2, 1) if dtype != torch.uint8 else F.max_pool2d(x.float(), 3, 2, 1).to(dtype)
    check("max_pool2d", [x], expected, pool_size=3, strides=2, padding=1)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("rank,size,stride,padding,dilation,ceil_mode", POOLS)
def test_avg_pool(check: Any, rank: int, size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
                  include: bool) -> None:  # fmt: skip
    x = randn(2, 3, *(7, 6, 4)[:rank])
    fn = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[rank]
    attrs = {
        "pool_size": size,
        "strides": stride,
        "padding": padding,
        "ceil_mode": ceil_mode,
        "count_include_pad": include,
    }
    check(f"avg_pool{rank}d", [x], fn(x, size, stride, padding, ceil_mode, include), **attrs)
    if rank == 2:
        expected = F.avg_pool2d(x, size, stride, padding, ceil_mode, include, 5)
        check("avg_pool2d", [x], expected, **attrs, divisor_override=5)
        h = x.bfloat16()
        check("avg_pool2d", [h], F.avg_pool2d(h, size, stride, padding, ceil_mode, include), **attrs)


def test_pool_in_blocks(check: Any) -> None:
    x = randn(1, 8, 6, 5)
    packed = blocked(x, "NCHW4c", "NCHW")
    attrs = {"pool_size": 3, "strides": 2, "padding": 1, "layout": "NCHW4c"}
    check("max_pool2d", [packed], blocked(F.max_pool2d(x, 3, 2, 1), "NCHW4c", "NCHW"), **attrs)
    check("avg_pool2d", [packed], blocked(F.avg_pool2d(x, 3, 2, 1), "NCHW4c", "NCHW"), **attrs)
    check("global_avg_pool2d", [packed], blocked(x.mean((2, 3), keepdim=True), "NCHW4c", "NCHW"), layout="NCHW4c")


@pytest.mark.parametrize("out", [(1, 1), (3, 2), (4, 5), (7, 6), (9, 4)])
def test_adaptive_pool(check: Any, out: Any) -> None:
    x = randn(2, 3, 7, 6)
    check("adaptive_avg_pool2d", [x], F.adaptive_avg_pool2d(x, out), output_size=out)
    check("adaptive_max_pool2d", [x], F.adaptive_max_pool2d(x, out), output_size=out)
    check("adaptive_avg_pool1d", [x[0]], F.adaptive_avg_pool1d(x[0], out[0]), output_size=out[0])


def test_global_pool(check: Any) -> None:
    for t in FLOATS:
        x = randn(2, 3, 5, 4, dtype=t)
        check("global_avg_pool2d", [x], F.adaptive_avg_pool2d(x, 1))
        check("global_max_pool2d", [x], F.adaptive_max_pool2d(x, 1))


@pytest.mark.parametrize("attrs,message", [
    ({"pool_size": 9}, "larger than the padded data"), ({"pool_size": 2, "padding": 2}, "at most half"),
    ({"pool_size": (2, 2, 2)}, "3 entries for 2 spatial axes"), ({"pool_size": 2, "layout": "NCW"}, "must have the"),
])  # fmt: skip
def test_pool_misfits(attrs: Any, message: str) -> None:
    with pytest.raises(TypeInferenceError, match=message):
        apply("max_pool2d", [variable("x", TensorType((1, 2, 5, 5)))], attrs)


# -- resampling


MODES = {
    "nearest": ("nearest",) * 3,
    "nearest_exact": ("nearest-exact",) * 3,
    "linear": ("linear", "bilinear", "trilinear"),
}


@pytest.mark.parametrize("mode,align", [
    ("nearest", False), ("nearest_exact", False), ("linear", False), ("linear", True), ("cubic", False),
    ("cubic", True),
])  # fmt: skip
@pytest.mark.parametrize("size", [(14, 10), (3, 2), (7, 9), (1, 1)])
def test_resize(check: Any, mode: str, size: Any, align: bool) -> None:
    more = {} if mode.startswith("nearest") else {"align_corners": align}
    x = randn(2, 3, 7, 5)
    if mode == "cubic":
        check("resize", [x], F.interpolate(x, size, mode="bicubic", **more), size=size, mode=mode, tolerance=4, **more)
        return
    for rank in (1, 2, 3):
        data = randn(2, 3, *(7, 5, 3)[:rank])
        to = (*size, 4)[:rank]
        expected = F.interpolate(data, to, mode=MODES[mode][rank - 1], **more)
        check("resize", [data], expected, size=to, mode=mode, tolerance=4, **more)


@pytest.mark.parametrize("scale", [2.0, 1.7, 0.6, 3.3])
def test_resize_by_factor(check: Any, scale: float) -> None:
    x = randn(1, 2, 7, 5)
    for mode, name in (
        ("nearest", "nearest"),
        ("nearest_exact", "nearest-exact"),
        ("linear", "bilinear"),
        ("cubic", "bicubic"),
    ):
        expected = F.interpolate(x, scale_factor=scale, mode=name)
        check("resize", [x], expected, size=tuple(expected.shape[2:]), mode=mode, scales=(scale, scale), tolerance=4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_resize_dtypes(check: Any, dtype: torch.dtype) -> None:
    x = randn(1, 2, 5, 4, dtype=dtype)
    check("resize", [x], F.interpolate(x, (9, 7), mode="bilinear"), size=(9, 7), mode="linear", tolerance=4)
    check("resize", [x], F.interpolate(x, (9, 7)), size=(9, 7))


# -- attention


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mask", [None, "bool", "float", "row", "causal"])
def test_attention(check: Any, dtype: torch.dtype, mask: str | None) -> None:
    q, k, v = (
        randn(2, 3, 5, 8, dtype=dtype),
        randn(2, 3, 7, 8, dtype=dtype, seed=1),
        randn(2, 3, 7, 8, dtype=dtype, seed=2),
    )
    given = None
    if mask == "bool":
        given = randn(2, 1, 5, 7) > 0
        given[0, 0, 1] = False
    elif mask == "float":
        given = randn(5, 7, dtype=dtype)
        given[2] = -math.inf
    elif mask == "row":
        given = randn(2, 1, 1, 7) > -0.5
    causal = mask == "causal"
    wide = given.double() if given is not None and given.dtype != torch.bool else given
    truth = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), wide, is_causal=causal).to(dtype)
    check("attention", [q, k, v] if given is None else [q, k, v, given], truth, causal=causal, tolerance=2)


def test_attention_groups_scale_and_finite_least(check: Any) -> None:
    q, k, v = randn(2, 6, 4, 8), randn(2, 2, 5, 8), randn(2, 2, 5, 3)
    expected = F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True)
    check("attention", [q, k, v], expected, groups=3, scale=0.3, tolerance=2)
    mask = torch.full((4, 4), torch.finfo(torch.float32).min)
    x = randn(1, 4, 8)
    check("attention", [x, x, x, mask], F.scaled_dot_product_attention(x, x, x, mask), tolerance=2)


@pytest.mark.parametrize("shapes,message", [
    ([(2, 4, 8), (2, 5, 7), (2, 5, 8)], "do not fit"), ([(2, 4, 8), (2, 5, 8), (2, 6, 8)], "do not fit"),
    ([(2, 4, 8), (2, 5, 8), (2, 5, 8), (3, 4, 5)], "do not broadcast"),
])  # fmt: skip
def test_attention_misfits(shapes: Any, message: str) -> None:
    with pytest.raises(TypeInferenceError, match=message):
        apply("attention", [variable(f"x{k}", TensorType(s)) for k, s in enumerate(shapes)])
