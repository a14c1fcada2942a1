"""build, build_config, optimize and the executor of NNVM: a built network gives what the reference executor gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnvm
import nnvm.symbol as sym
from nnvm.compiler import graph_attr, graph_util
from nnvm.graph import Graph, NodeEntry, TensorType, TypeInferenceError, apply, variable
from nnvm.graph.instruments import Callbacks, PassTimes, instrument
from nnvm.graph.pass_manager import PASSES, PassContext, PassError, register_pass
from nnvm.graph.verify import VerifyError
from nnvm.testing.reference import run_graph

rng = np.random.default_rng(3)


def net() -> sym.Symbol:
    x = sym.conv2d(sym.Variable("data"), channels=8, kernel_size=(3, 3), padding=(1, 1), name="conv")
    x = sym.max_pool2d(sym.relu(sym.batch_norm(x, name="bn")), pool_size=(2, 2), strides=(2, 2))
    return sym.softmax(sym.dense(sym.flatten(x), units=5, name="fc"))


def weights(shape: tuple[int, ...] = (2, 3, 6, 6)) -> dict[str, np.ndarray[Any, Any]]:
    arguments, _, states = net().infer_shape(data=shape)
    inputs = {**arguments, **states}
    found = {k: rng.standard_normal(s).astype(np.float32) * 0.3 for k, s in inputs.items() if k != "data"}
    found["bn_moving_var"] = np.abs(found["bn_moving_var"]) + 0.5
    return found


def expected(params: dict[str, Any], data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    g = net().infer_type(data=TensorType(data.shape))
    return run_graph(g, {**params, "data": data})[0]


DATA = rng.standard_normal((2, 3, 6, 6)).astype(np.float32)


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
def test_build_set_run_get(opt_level: int) -> None:
    params = weights()
    with nnvm.compiler.build_config(opt_level=opt_level, verify=True):
        graph, lib, new = nnvm.compiler.build(net(), "llvm", shape={"data": DATA.shape}, params=params)
    module = nnvm.runtime.create(graph, lib, "cpu")
    module.set_input("data", DATA)
    module.set_input(**new)
    module.run()
    assert module.get_num_outputs() == 1
    np.testing.assert_allclose(module.get_output(0), expected(params, DATA), rtol=1e-4, atol=1e-6)
    out = np.empty((2, 5), np.float32)
    assert module.get_output(0, out) is out and out[0].sum() == pytest.approx(1, abs=1e-5)


def test_parameters_given_at_the_call() -> None:
    graph, lib, none = nnvm.compiler.build(net(), shape={"data": DATA.shape})
    assert none == {}
    module, params = nnvm.runtime.create(graph, lib), weights()
    assert module.get_num_inputs() == 1 + len(params)
    with pytest.raises(ValueError, match=r"data, conv_weight.* are not set"):
        module.run()
    module.run(data=DATA, **params)
    np.testing.assert_allclose(module.get_output(0), expected(params, DATA), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(module.get_input("data"), DATA)
    np.testing.assert_array_equal(module.get_input(0), DATA)


def test_a_parameter_that_is_set_again_is_computed_with_anew() -> None:
    params = weights()
    graph, lib, new = nnvm.compiler.build(net(), shape={"data": DATA.shape}, params=params)
    module = nnvm.runtime.create(graph, lib)
    module.run(data=DATA, **new)
    changed = {**params, "bn_gamma": params["bn_gamma"] * 3, "fc_weight": params["fc_weight"] + 0.1}
    module.set_input(bn_gamma=changed["bn_gamma"], fc_weight=changed["fc_weight"])
    module.run()
    np.testing.assert_allclose(module.get_output(0), expected(changed, DATA), rtol=1e-4, atol=1e-6)


def test_parameters_as_bytes() -> None:
    params = {**weights(), "ints": np.arange(4).reshape(2, 2), "flag": np.array([True, False])}
    data = nnvm.compiler.save_param_dict(params)
    again = nnvm.compiler.load_param_dict(data)
    assert list(again) == list(params)
    for name, array in params.items():
        np.testing.assert_array_equal(again[name], array)
        assert again[name].dtype == array.dtype
    graph, lib, _ = nnvm.compiler.build(net(), shape={"data": DATA.shape})
    module = nnvm.runtime.create(graph, lib)
    module.load_params(data)
    module.run(data=DATA)
    np.testing.assert_allclose(module.get_output(0), expected(params, DATA), rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="end before"):
        nnvm.compiler.load_param_dict(data[:-1])
    with pytest.raises(ValueError, match="no parameters"):
        nnvm.compiler.load_param_dict(bytes(64))


def test_the_format_of_parameter_files() -> None:
    """Byte for byte as NNVM wrote one float32 vector called w."""
    wanted = bytes.fromhex(
        "b79c04054f8de5f7 0000000000000000 0100000000000000 0100000000000000 77 0100000000000000"
        "3fa1b496f0405edd 0000000000000000 01000000 00000000 01000000 02 20 0100"
        "0200000000000000 0800000000000000 0000803f 00000040"
    )
    assert bytes(nnvm.compiler.save_param_dict({"w": np.float32([1, 2])})) == wanted


def test_arrays_of_the_other_byte_order() -> None:
    x, w = (rng.standard_normal(4).astype(np.float32) for _ in range(2))
    swapped = w.astype(w.dtype.newbyteorder("S"))
    assert not swapped.dtype.isnative
    np.testing.assert_array_equal(nnvm.compiler.load_param_dict(nnvm.compiler.save_param_dict({"w": swapped}))["w"], w)
    graph, lib, params = nnvm.compiler.build(
        sym.Variable("x") * sym.exp(sym.Variable("w")), shape={"x": (4,)}, params={"w": swapped}
    )
    module = nnvm.runtime.create(graph, lib)
    module.set_input(**params)
    module.run(x=x.astype(x.dtype.newbyteorder("S")))
    np.testing.assert_allclose(module.get_output(0), x * np.exp(w), rtol=1e-5)


def test_wrong_inputs_are_explained() -> None:
    params = weights()
    graph, lib, new = nnvm.compiler.build(net(), shape={"data": DATA.shape}, params=params)
    module = nnvm.runtime.create(graph, lib)
    with pytest.raises(RuntimeError, match=r"call run\(\)"):
        module.get_output(0)
    with pytest.raises(KeyError, match="no input 'image'; there are data"):
        module.set_input("image", DATA)
    with pytest.raises(ValueError, match=r"input data is float32\[2, 3, 6, 6\], got float64.*astype\('float32'\)"):
        module.set_input("data", DATA.astype(np.float64))
    with pytest.raises(ValueError, match=r"got float32\[1, 3, 6, 6\]"):
        module.set_input("data", DATA[:1])
    with pytest.raises(ValueError, match="no value"):
        module.set_input("data")
    module.run(data=DATA, **new)
    with pytest.raises(IndexError, match="output 1 of 1"):
        module.get_output(1)
    with pytest.raises(ValueError, match=r"^the graph is built for the CPU and cannot run on 'cuda:0'"):
        nnvm.runtime.create(graph, lib, "cuda:0")
    other, _, _ = nnvm.compiler.build(sym.relu(sym.Variable("x")), shape={"x": (3,)})
    with pytest.raises(ValueError, match="another graph"):
        nnvm.runtime.create(other, lib)


def test_wrong_builds_are_explained() -> None:
    with pytest.raises(ValueError, match="no input 'dta' in the graph; its inputs are data, conv_weight"):
        nnvm.compiler.build(net(), shape={"dta": (1, 3, 8, 8)})
    with pytest.raises(ValueError, match="no parameter 'w'"):
        nnvm.compiler.build(net(), shape={"data": (1, 3, 8, 8)}, params={"w": DATA})
    double = {"fc_bias": np.zeros(5)}
    with pytest.raises(
        ValueError, match=r"the parameter fc_bias is float32\[5\], got float64\[5\].*astype\('float32'\)"
    ):
        nnvm.compiler.build(net(), shape={"data": DATA.shape}, dtype={"fc_bias": "float32"}, params=double)
    with pytest.raises(ValueError, match="must begin with one of llvm"):
        nnvm.compiler.build(net(), "vulkan", shape={"data": (1, 3, 8, 8)})
    with pytest.raises(TypeInferenceError, match="data"):
        nnvm.compiler.build(net())
    v = variable("x", TensorType((3,)))
    relu = apply("relu", [v])[0]
    for outputs, inputs, message in (
        ((relu,), (), "variable x is used but is no input of the graph"),
        ((NodeEntry(v.node, 3),), (v.node,), "output 0 is output 3 of x"),
        ((relu,), (relu.node, v.node), "is no variable"),
    ):
        with pytest.raises(VerifyError, match=message):
            nnvm.compiler.build(Graph(outputs, inputs))
    same = sym.Variable("x") + sym.Variable("x")
    with pytest.raises(ValueError, match="several inputs are called x"):
        nnvm.compiler.build(same, shape={"x": (3,)})


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32"])
def test_element_types(dtype: str) -> None:
    graph, lib, _ = nnvm.compiler.build(sym.Variable("x") * 2 + 1, shape={"x": (4,)}, dtype=dtype)
    module = nnvm.runtime.create(graph, lib)
    module.run(x=[1, 2, 3, 4])
    result = module.get_output(0)
    if dtype == "bfloat16":
        result = nnvm.dtype.bf16_to_f32(result)
    assert result.tolist() == [3, 5, 7, 9]
    assert graph.outputs[0].type.dtype.name == dtype


def test_element_types_by_name_and_by_variable() -> None:
    x = sym.take(sym.Variable("table"), sym.Variable("rows", dtype="int64"))
    graph, lib, _ = nnvm.compiler.build(x, shape={"table": (5, 2), "rows": (3,)}, dtype={"table": "float64"})
    table = rng.standard_normal((5, 2))
    module = nnvm.runtime.create(graph, lib)
    module.run(table=table, rows=[4, 0, 4])
    np.testing.assert_array_equal(module.get_output(0), table[[4, 0, 4]])
    types = graph_util.infer_dtype(x, {"table": (5, 2), "rows": (3,)}, {"table": "float64"})
    assert types == (["float64", "int64"], ["float64"])


def test_named_sizes() -> None:
    n = nnvm.dim.symbol("n")
    graph, lib, _ = nnvm.compiler.build(sym.exp(sym.Variable("x")), shape={"x": (n, 3)})
    module = nnvm.runtime.create(graph, lib)
    for size in (2, 5):
        x = rng.standard_normal((size, 3)).astype(np.float32)
        module.run(x=x)
        np.testing.assert_allclose(module.get_output(0), np.exp(x), rtol=1e-6)
    with pytest.raises(ValueError, match=r"float32\[n, 3\], got float32\[2, 4\]"):
        module.set_input("x", np.zeros((2, 4), np.float32))


def test_optimize_gives_plain_ops_that_mean_the_same() -> None:
    g = nnvm.compiler.optimize(net(), shape={"data": DATA.shape})
    names = {n.op.name for n in g.nodes}
    assert "batch_norm" not in names and "group" not in names
    params = weights()
    values = {**params, "data": DATA}
    np.testing.assert_allclose(run_graph(g, [values[v.name] for v in g.inputs])[0], expected(params, DATA), rtol=1e-4)
    with nnvm.compiler.build_config(disable_pass=["SimplifyInference"]):
        kept = nnvm.compiler.optimize(net(), shape={"data": DATA.shape})
    assert "batch_norm" in {n.op.name for n in kept.nodes}


@pytest.fixture
def count_pass() -> Any:
    seen: list[int] = []

    @register_pass("CountForTest", requires=["typed"], opt_level=3)
    def count(graph: Graph, context: PassContext) -> Graph:
        seen.append(len(graph.nodes))
        return graph

    yield seen
    del PASSES["CountForTest"]


def test_add_pass(count_pass: list[int]) -> None:
    x = sym.relu(sym.Variable("x"))
    nnvm.compiler.build(x, shape={"x": (3,)})
    assert count_pass == []
    with nnvm.compiler.build_config(opt_level=0, add_pass=["CountForTest"]):
        nnvm.compiler.build(x, shape={"x": (3,)})
        assert len(count_pass) == 1
        with nnvm.compiler.build_config(disable_pass=["CountForTest"]) as inner:
            assert inner.opt_level == 0 and "CountForTest" in inner.enabled
            nnvm.compiler.build(x, shape={"x": (3,)})
    assert len(count_pass) == 1
    with nnvm.compiler.build_config(opt_level=0, add_pass={"ReplaceOp"}):
        g = nnvm.compiler.optimize(sym.Variable("x") * 1, shape={"x": (3,)})
    assert g.outputs[0].node.name == "x"
    for given in ({"add_pass": ["Nothing"]}, {"disable_pass": ["Nothing"]}):
        with pytest.raises(PassError, match="no pass 'Nothing'; known"), nnvm.compiler.build_config(**given):
            pytest.fail("it changes nothing, unnoticed")
    with pytest.raises(ValueError, match="opt_level is 0 to 3, got 9"), nnvm.compiler.build_config(opt_level=9):
        pytest.fail("it means nothing")


def test_instruments_watch_every_compilation() -> None:
    times, log = PassTimes(), []
    watcher = Callbacks(before=lambda name, g: log.append(("before", name)),
                        after=lambda name, a, b, s: log.append(("after", name)))  # fmt: skip
    with instrument(times, watcher):
        nnvm.compiler.build(net(), shape={"data": DATA.shape})
    nnvm.compiler.build(net(), shape={"data": DATA.shape})
    assert sorted(r.name for r in times.records) == sorted(n for kind, n in log if kind == "before")
    assert [r.name for r in times.records] == [n for kind, n in log if kind == "after"]
    assert log[:2] == [("before", "InferShape"), ("after", "InferShape")]
    simplify = next(r for r in times.records if r.name == "SimplifyInference")
    assert simplify.changed and simplify.nodes_after > simplify.nodes_before and simplify.seconds > 0
    assert "GraphFuse" in str(times) and times.seconds["GraphFuse"] > 0


def test_graph_attributes_as_nnvm_has_them() -> None:
    x, y = sym.Variable("x"), sym.Variable("y")
    g = nnvm.graph.create(sym.elemwise_add(x, sym.sqrt(y, name="root"), name="total"))
    assert g.json_attr("shape") is None and g.json_attr("shape_num_unknown_nodes") == 4
    assert graph_attr.set_shape_inputs(g, {"x": (4,), "y": (4,)}) is g
    graph_attr.set_dtype_inputs(g, "float64")
    g = g.apply(["InferType"])
    index = g.index
    assert index.input_names == ["x", "y"] and index.num_nodes == index.num_node_entries == 4
    assert g.json_attr("shape")[index.entry_id("root")] == [4]
    assert g.json_attr("dtype") == [1, 1, 1, 1] and graph_attr.TCODE_TO_DTYPE[1] == "float64"
    assert index.nodes[index.node_id("total")]["inputs"] == [[0, 0, 0], [2, 0, 0]]
    assert index.output_entries == [(index.node_id("total"), 0)]
    g._set_json_attr("mine", [1, 2], "list_int")
    assert g.json_attr("mine") == [1, 2] and g.json_attr("nothing") is None
    with pytest.raises(KeyError, match="no node 'z'"):
        index.node_id("z")
    with pytest.raises(ValueError, match="no input 'z'"):
        graph_attr.set_shape_inputs(g, {"z": (4,)})


def test_storage_ids() -> None:
    graph, _, _ = nnvm.compiler.build(net(), shape={"data": DATA.shape}, params=weights())
    ids = graph.json_attr("storage_id")
    assert len(ids) == graph.index.num_node_entries and max(ids) >= 0
    assert ids[graph.index.node_id("data")] == -1


def test_questions_about_graphs() -> None:
    assert graph_util.infer_shape(net(), data=(2, 3, 6, 6))[1] == [(2, 5)]
    x = sym.Variable("x")
    a, b = nnvm.graph.create(sym.exp(x)), nnvm.graph.create(sym.exp(sym.Variable("other")))
    graph_util.check_graph_equal(a, b)
    nnvm.testing.assert_graph_equal(a, b)
    with pytest.raises(ValueError, match="op exp against sin"):
        graph_util.check_graph_equal(a, nnvm.graph.create(sym.sin(x)))
    with pytest.raises(AssertionError, match="exp"):
        nnvm.testing.assert_graph_equal(a, nnvm.graph.create(sym.sin(x)))
    g = graph_util.get_gradient_graph(sym.exp(x) * 2, ["x"], x=(3,))
    values = rng.standard_normal(3).astype(np.float32)
    np.testing.assert_allclose(run_graph(g, [values])[0], 2 * np.exp(values), rtol=1e-6)


def test_json_by_passes() -> None:
    typed = net().infer_type(data=TensorType((2, 3, 6, 6)))
    saved = typed.apply("SaveJSON")
    assert saved.json_attr("json") == typed.json()
    empty = Graph((), (), {"json": saved.json_attr("json")})
    nnvm.testing.assert_graph_equal(empty.apply("LoadJSON"), typed)
    with pytest.raises(PassError, match="requires the graph attribute 'json'; run SaveJSON before it"):
        typed.apply("LoadJSON")
