"""Loop nests as launches on a GPU: which may be, and that contributions to one element all count."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nnvm.ops  # noqa: F401  registers the ops
from nnvm.compiler.lower_group import lower_group_for_gpu
from nnvm.compiler.pipeline import pipeline
from nnvm.dim import symbol
from nnvm.dtype import F16, F32, I32, I64
from nnvm.dtype import dtype as as_dtype
from nnvm.graph import Graph, TensorType, apply, variable
from nnvm.graph.group import fused_nodes
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.target import Target
from nnvm.testing.run_op import run_op

RNG = np.random.default_rng(19)
CUDA = Target.parse("cuda -arch=sm_90")


def scatter(shape=(6, 8), dtype=F32, **attrs):
    data, index, src = (variable(n, TensorType(shape, t)) for n, t in (("d", dtype), ("i", I64), ("s", dtype)))
    out = apply("scatter", [data, index, src], {"axis": 0, **attrs})[0]
    return Graph((out,), (data.node, index.node, src.node))


def grouped(graph, **options):
    """Whether the graph's only node becomes a kernel for a GPU."""
    fused = apply_passes(graph, pipeline(), PassContext(target=CUDA, options=options))
    return [n.op.name for n in fused.nodes if not n.is_variable] == ["group"]


@pytest.mark.parametrize(("how", "kernel"), [
    ({"reduce": "add"}, True), ({"reduce": "add", "include_self": False}, True),
    ({"reduce": "add", "dtype": I32}, True), ({"reduce": "add", "dtype": F16}, False), ({"reduce": "none"}, True),
    ({"reduce": "none", "dtype": F16}, True), ({"reduce": "amax"}, True), ({"reduce": "amin", "dtype": I64}, True),
    ({"reduce": "amax", "dtype": F16}, False), ({"reduce": "mean"}, True), ({"reduce": "prod"}, False),
    ({"reduce": "add", "shape": (symbol("n"), 8)}, True),
])  # fmt: skip
def test_only_what_needs_no_order_is_a_kernel(how, kernel):
    assert grouped(scatter(**how)) is kernel
    if kernel:
        assert not grouped(scatter(**how), deterministic=True)


def test_an_order_is_refused():
    for how in ({"reduce": "prod"}, {"reduce": "add", "dtype": F16}, {"reduce": "amax", "dtype": F16}):
        graph = scatter(**how)
        with pytest.raises(ValueError, match="depends on the order"):
            lower_group_for_gpu(graph, "k")
        assert [n.op.name for n in fused_nodes(graph)] == ["scatter"]


def scattered(data, index, src, reduce, include_self=True):
    """By eager PyTorch, along axis 0."""
    tensors = [torch.from_numpy(a) for a in (data, index, src)]
    return tensors[0].scatter_reduce(0, *tensors[1:], reduce, include_self=include_self).numpy()


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("reduce", ["amax", "amin", "mean"])
@pytest.mark.parametrize("include_self", [True, False])
def test_many_to_one_compared(dtype, reduce, include_self):
    """Of both signs, in several programs; some elements get nothing."""
    data = (RNG.standard_normal((5, 2)) * 99).astype(dtype)
    index, src = RNG.integers(0, 4, (1300, 2)), (RNG.standard_normal((1300, 2)) * 99).astype(dtype)
    kind = as_dtype(np.dtype(dtype).name)
    types = [TensorType(data.shape, kind), TensorType(index.shape, I64), TensorType(src.shape, kind)]
    attrs = {"axis": 0, "reduce": reduce, "include_self": include_self}
    (found,) = run_op("scatter", [data, index, src], types, attrs, "triton")
    wanted = scattered(data, index, src, reduce, include_self)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3 if reduce == "mean" else 0)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_nans_of_either_sign_and_infinities_compare_as_in_eager(dtype, reduce):
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 1.5, -2.5, 3e-42, -3e-42], dtype)
    data = np.repeat(special, 8).reshape(-1, 1)
    index, src = np.arange(64).reshape(-1, 1), np.tile(special, 8).reshape(-1, 1)
    kind = as_dtype(np.dtype(dtype).name)
    types = [TensorType(data.shape, kind), TensorType(index.shape, I64), TensorType(src.shape, kind)]
    (found,) = run_op("scatter", [data, index, src], types, {"axis": 0, "reduce": reduce}, "triton")
    np.testing.assert_array_equal(found, scattered(data, index, src, reduce))


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.bool_])
def test_plain_stores(dtype):
    """Of several values for one element any one stays."""
    data, index = np.zeros((9, 3), dtype), RNG.integers(0, 8, (40, 3))
    src = RNG.integers(1, 100, (40, 3)).astype(dtype)
    kind = as_dtype(np.dtype(dtype).name)
    types = [TensorType(data.shape, kind), TensorType(index.shape, I64), TensorType(src.shape, kind)]
    (found,) = run_op("scatter", [data, index, src], types, {"axis": 0, "reduce": "none"}, "triton")
    for (i, j), value in np.ndenumerate(found):
        assert value in (src[index[:, j] == i, j] if i in index[:, j] else data[i])


@pytest.mark.triton
@pytest.mark.parametrize("rows", [1, 7, 1500])
@pytest.mark.parametrize("reduce", ["add", "mean", "amax"])
def test_sizes_known_at_the_call_only(rows, reduce):
    n = symbol("n")
    data, src = (RNG.standard_normal((rows, 2)).astype(np.float32) for _ in range(2))
    index = RNG.integers(0, min(rows, 5), (rows, 2))
    types = [TensorType((n, 2)), TensorType((n, 2), I64), TensorType((n, 2))]
    (found,) = run_op("scatter", [data, index, src], types, {"axis": 0, "reduce": reduce}, "triton", {"n": rows})
    wanted = scattered(data, index, src, {"add": "sum"}.get(reduce, reduce))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("include_self", [True, False])
def test_many_to_one(dtype, include_self):
    """Some thousand contributions, in several programs, to three elements."""
    data = (RNG.standard_normal((3, 2)) * 9).astype(dtype)
    index, src = RNG.integers(0, 3, (1500, 2)), (RNG.standard_normal((1500, 2)) * 9).astype(dtype)
    kind = as_dtype(np.dtype(dtype).name)
    types = [TensorType(data.shape, kind), TensorType(index.shape, I64), TensorType(src.shape, kind)]
    attrs = {"axis": 0, "reduce": "add", "include_self": include_self}
    (found,) = run_op("scatter", [data, index, src], types, attrs, "triton")
    wanted = data.astype(np.float64) if include_self else np.zeros(data.shape)
    np.add.at(wanted, (index, np.arange(2)), src.astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)


@pytest.mark.triton
def test_an_index_out_of_range_raises_and_writes_nothing_there():
    data, values = RNG.standard_normal((4, 3)).astype(np.float32), RNG.standard_normal((2, 3)).astype(np.float32)
    types = [TensorType((4, 3)), TensorType((2, 3)), TensorType((2,), I64)]
    for index in ([1, 4], [-5, 0]):
        with pytest.raises(IndexError, match="out of bounds"):
            run_op("index_put", [data, values, np.array(index)], types, {"axes": (0,), "accumulate": True}, "triton")
