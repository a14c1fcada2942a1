"""Graph to plan to values: the compiler without PyTorch, on numpy memory."""

import threading

import numpy as np
import pytest

from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.dim import symbol
from nnvm.dtype import F32, I64
from nnvm.graph import Graph, OpPattern, TensorType, apply, constant, register, variable
from nnvm.kernel_error import KernelError
from nnvm.runtime.executor import Executor
from nnvm.runtime.memory import NumpyMemory

register(
    "test.host_scale", inputs=["x"], infer_type=lambda attrs, inputs: inputs, pattern=OpPattern.OPAQUE,
    host_call=lambda attrs: lambda env, x: [x * 2 + len(env)], doc="A node that the host runs.",
)  # fmt: skip


def op(name, *inputs, **attrs):
    return apply(name, inputs, attrs)[0]


def executor_of(graph, **options):
    compiled = compile_graph(graph, BuildOptions(verify=True, **options))
    return compiled, Executor(compiled.plan, NumpyMemory(), [e.node.attrs["value"] for e in compiled.plan.constants])


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_identical_groups_are_compiled_once():
    x = variable("x", TensorType((4, 8)))
    y = x
    for _ in range(5):
        y = op("softmax", op("exp", y), axis=-1)
    compiled, run = executor_of(Graph((y,), (x.node,)))
    assert len(compiled.kernels) == 6  # exp, four times softmax and exp, softmax
    assert [k.shared for k in compiled.kernels] == [False, True, True, True, True, False]
    assert len({s.kernel.address for s in compiled.plan.steps}) == 3
    expected = data(4, 8)
    for _ in range(5):
        e = np.exp(expected)
        expected = np.exp(e - e.max(-1, keepdims=True))
        expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(run.run([data(4, 8)])[0], expected, rtol=1e-5)


def test_an_op_with_its_own_loop_nest_reads_all_inputs_from_memory():
    """The same value twice, and a constant of one element."""
    x = variable("x", TensorType((6,)))
    order = constant(np.array([3, 1, 0, 5, 4, 2]), TensorType((6,), I64))
    one = constant(np.array([4]), TensorType((1,), I64))
    twice = op("scatter", x, order, x, axis=0)
    single = op("scatter", x, one, constant(data(1, seed=3), TensorType((1,))), axis=0)
    _, run = executor_of(Graph((twice, single), (x.node,)))
    values = data(6)
    expected, other = values.copy(), values.copy()
    expected[[3, 1, 0, 5, 4, 2]] = values
    other[4] = data(1, seed=3)[0]
    for got, want in zip(run.run([values]), (expected, other)):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", ["gather", "scatter"])
def test_an_index_larger_than_its_data_is_seen_at_the_call(name):
    """Sizes that are known at the call only: elements beyond the data are neither read nor written."""
    x = variable("x", TensorType((4, symbol("n"))))
    index = variable("i", TensorType((4, 5), I64))
    src = variable("s", TensorType((4, symbol("k"))))
    inputs = [x, index] if name == "gather" else [x, index, src]
    _, run = executor_of(Graph((op(name, *inputs, axis=0),), tuple(v.node for v in inputs)))
    where = np.random.default_rng(1).integers(0, 4, (4, 5))
    for n, k in ((5, 5), (7, 9), (3, 5), (6, 4)):
        values, written = data(4, n, seed=2), data(4, k, seed=3)
        arrays = [values, where] if name == "gather" else [values, where, written]
        if n < 5 or (name == "scatter" and k < 5):
            with pytest.raises(KernelError, match="an index tensor is larger than its data along dimension 1"):
                run.run(arrays)
            continue
        (got,) = run.run(arrays)
        if name == "gather":
            np.testing.assert_array_equal(got, np.take_along_axis(values[:, :5], where, 0))
            continue
        for i, j in np.ndindex(4, 5):
            values[where[i, j], j] = written[i, j]
        np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("name, attrs, message", [
    ("pad", {"pad_width": ((3, 0),), "mode": "reflect"}, "a border of 3 and 0 by reflect around n elements"),
    ("pad", {"pad_width": ((0, 3),), "mode": "wrap"}, "a border of 0 and 3 by wrap"),
    ("topk", {"k": 3}, "selected index k out of range: k=3 of n"), ("topk", {"k": 70}, "k=70 of n"),
])  # fmt: skip
def test_what_a_size_must_be_is_seen_at_the_call(name, attrs, message):
    x = variable("x", TensorType((symbol("n"),)))
    node = apply(name, [x], attrs)
    _, run = executor_of(Graph((node[0],), (x.node,)))
    with pytest.raises(KernelError, match=message):
        run.run([data(2)])
    values = data(90)
    (got,) = run.run([values])
    want = np.sort(values)[::-1][: attrs["k"]] if name == "topk" else np.pad(values, attrs["pad_width"], attrs["mode"])
    np.testing.assert_array_equal(got, want)


def test_host_nodes_stand_between_native_segments():
    x = variable("x", TensorType((3, 5)))
    a = op("test.host_scale", op("relu", x))
    y = op("exp", op("reshape", a, shape=(15,)))
    compiled, run = executor_of(Graph((y, a), (x.node,)))
    assert [n.op.name for n in compiled.host_nodes] == ["test.host_scale"]
    got, middle = run.run([data(3, 5)])
    scaled = np.maximum(data(3, 5), 0) * 2
    np.testing.assert_allclose(got, np.exp(scaled.reshape(-1)), rtol=1e-6)
    np.testing.assert_array_equal(middle, scaled)


def test_outputs_that_no_kernel_writes():
    """An input handed through, a view of another output, the same value twice."""
    x = variable("x", TensorType((2, 3)))
    y = op("exp", x)
    _, run = executor_of(Graph((x, y, op("reshape", y, shape=(6,)), y), (x.node,)))
    a, b, c, d = run.run([data(2, 3)])
    np.testing.assert_array_equal(a, data(2, 3))
    np.testing.assert_allclose(b, np.exp(data(2, 3)), rtol=1e-6)
    np.testing.assert_array_equal(c, b.reshape(6))
    np.testing.assert_array_equal(d, b)


@pytest.mark.parametrize("strides", [(1, 4), (16, 2), (5, 1)])
def test_strided_inputs_and_outputs(strides):
    x = variable("x", TensorType((4, 5)))
    graph = Graph((op("exp", x),), (x.node,)).with_attrs(input_strides=(strides,), output_strides=(strides,))
    _, run = executor_of(graph)
    given = NumpyMemory().empty((4, 5), F32, strides)
    given[...] = data(4, 5)
    (out,) = run.run([given])
    assert out.strides == tuple(4 * s for s in strides)
    np.testing.assert_allclose(out, np.exp(data(4, 5)), rtol=1e-6)


def test_one_plan_serves_every_size():
    n = symbol("n")
    x, w = variable("x", TensorType((n, 16))), variable("w", TensorType((24, 16)))
    y = op("softmax", op("relu", op("dense", x, w)), axis=-1)
    _, run = executor_of(Graph((y,), (x.node, w.node)))
    for size in (1, 7, 64, 7, 0):
        a, b = data(size, 16, seed=size), data(24, 16)
        e = np.exp(np.maximum(a @ b.T, 0))
        (out,) = run.run([a, b])
        assert out.shape == (size, 24)
        np.testing.assert_allclose(out, e / e.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_a_size_that_only_a_kernel_s_inside_has():
    n = symbol("n")
    x = variable("x", TensorType((n, 2)))
    total = op("sum", op("full", shape=(n, 3), dtype=F32, value=2.0), axis=(0,))
    _, run = executor_of(Graph((total, op("exp", x)), (x.node,)))
    for size in (5, 1, 0):
        np.testing.assert_array_equal(run.run([data(size, 2)])[0], np.full(3, 2.0 * size))


def test_an_unused_output_of_an_op_with_a_loop_nest_of_its_own():
    x = variable("x", TensorType((3, 7)))
    sorting = apply("sort", [x], {"axis": 1})
    _, run = executor_of(Graph((sorting[1],), (x.node,)))
    np.testing.assert_array_equal(run.run([data(3, 7)])[0], np.argsort(data(3, 7), axis=1))


def test_constants_need_not_be_contiguous():
    value = data(4, 6).T
    x = variable("x", TensorType((6, 4)))
    _, run = executor_of(Graph((op("add", x, constant(value, TensorType((6, 4)))),), (x.node,)))
    np.testing.assert_array_equal(run.run([data(6, 4, seed=1)])[0], data(6, 4, seed=1) + value)


def test_calls_are_reentrant():
    x = variable("x", TensorType((64, 64)))
    y = x
    for _ in range(4):
        y = op("softmax", op("dense", y, x), axis=-1)
    _, run = executor_of(Graph((y,), (x.node,)))
    inputs = [data(64, 64, seed=i) for i in range(8)]
    expected = [run.run([a])[0] for a in inputs]
    wrong = []

    def work(i):
        for _ in range(50):
            if not np.array_equal(run.run([inputs[i]])[0], expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_failed_check_raises_and_the_executor_goes_on():
    table, index = variable("t", TensorType((10, 4))), variable("i", TensorType((3,), I64))
    _, run = executor_of(Graph((op("take", table, index, axis=0, mode="raise"),), (table.node, index.node)))
    with pytest.raises(IndexError, match="out of range"):
        run.run([data(10, 4), np.array([0, 10, 1])])
    (out,) = run.run([data(10, 4), np.array([9, 0, 1])])
    np.testing.assert_array_equal(out, data(10, 4)[[9, 0, 1]])
    assert issubclass(KernelError, RuntimeError)


def test_prepare_holds_what_depends_on_parameters_only():
    x, w = variable("x", TensorType((4, 8))), variable("w", TensorType((8, 6)), "param")
    y = op("matmul", x, op("exp", w))
    compiled, _ = executor_of(Graph((y,), (x.node, w.node)))
    assert compiled.prepare is not None
    assert [v.name for v in compiled.prepare.graph.inputs] == ["w"]
    assert "exp" in {name for k in compiled.prepare.kernels for name in k.ops}
    assert "exp" not in {name for k in compiled.kernels for name in k.ops}


def test_profile_names_every_kernel():
    x = variable("x", TensorType((128, 128)))
    y = op("softmax", op("dense", x, x), axis=-1)
    compiled, run = executor_of(Graph((y,), (x.node,)))
    times = run.profile([data(128, 128)])
    assert [n.name for n, _ in times] == [n.name for n in compiled.plan.memory.steps]
    assert all(t > 0 for _, t in times)
    np.testing.assert_array_equal(run.run([data(128, 128)])[0], run.run([data(128, 128)])[0])


def test_nothing_can_run_an_unknown_op():
    register("test.nothing", inputs=["x"], infer_type=lambda attrs, inputs: inputs, pattern=OpPattern.OPAQUE)
    x = variable("x", TensorType((2,)))
    with pytest.raises(ValueError, match=r"test\.nothing"):
        executor_of(Graph((op("test.nothing", x),), (x.node,)))


def test_an_output_with_strides_of_its_own_beside_rows():
    """It is a copy of a value that the rows write: it comes after them."""
    x, w = variable("x", TensorType((3, 4, 4))), variable("w", TensorType((4,)))
    y = op("divide", x, w)
    normal = op("layer_norm", y, eps=0.1)
    g = Graph((y, op("matmul", y, normal)), (x.node, w.node), {"output_strides": ((1, 12, 3), None), "typed": True})
    _, run = executor_of(g)
    a, b = data(3, 4, 4), np.abs(data(4, seed=1)) + 1
    got, _ = run.run([a, b])
    assert got.strides == (4, 48, 12)
    np.testing.assert_allclose(got, a / b, rtol=1e-6)


def test_an_output_with_strides_of_a_loop_nest_of_its_own():
    x = variable("x", TensorType((3, 4)))
    compiled, run = executor_of(Graph((op("cumsum", x, axis=1),), (x.node,), {"output_strides": ((1, 3),)}))
    assert [k.ops for k in compiled.kernels] == [("cumsum",), ("identity",)]
    (got,) = run.run([data(3, 4)])
    assert got.strides == (4, 12)
    np.testing.assert_allclose(got, np.cumsum(data(3, 4), 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 1, 7, 2), (1, 1, 7, 2), (1, 2, 9, 2)])
def test_scratch_memory_that_is_used_twice(shape):
    """The rows that are left over after whole tiles are padded where the others were: not the old values are read."""
    x, w = variable("x", TensorType(shape)), variable("w", TensorType((16, shape[1], 1, 3)))
    y = op("conv2d", x, w, strides=(2, 2), padding=((0, 0), (1, 1)))
    _, run = executor_of(Graph((y,), (x.node, w.node)))
    a, b = data(*shape), data(16, shape[1], 1, 3, seed=1)
    padded = np.pad(a, ((0, 0), (0, 0), (0, 0), (1, 1)))[:, :, ::2, :3]
    np.testing.assert_allclose(run.run([a, b])[0][..., 0], np.einsum("ncyk,ock->noy", padded, b[:, :, 0]), rtol=1e-5,
                               atol=1e-6)  # fmt: skip
