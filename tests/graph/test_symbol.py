"""The Symbol API: composition, names, shapes, graphs."""

import copy

import numpy as np
import pytest

import nnvm.graph
import nnvm.symbol as sym
from nnvm.attribute import AttrScope
from nnvm.compiler.pipeline import pipeline
from nnvm.graph.node import TypeInferenceError
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.types import TensorType
from nnvm.graph.verify import verify
from nnvm.name import NameManager, Prefix
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import ops
from tests.graph.compare import run_main


def test_elementwise_of_the_documentation():
    x, y = sym.Variable("x"), sym.Variable("y")
    z = sym.elemwise_add(x, sym.sqrt(y))
    assert z.list_input_names() == ["x", "y"]
    assert z.infer_shape(x=(4,)) == ({"x": (4,), "y": (4,)}, [(4,)], {})
    with pytest.raises(TypeInferenceError, match="variables y"):
        sym.broadcast_add(x, sym.sqrt(y)).infer_shape(x=(4,))


def block(data, name, channels, strides=(1, 1)):
    c = sym.conv2d(data, channels=channels, kernel_size=(3, 3), strides=strides, padding=(1, 1), use_bias=False,
                   name=f"{name}_conv")  # fmt: skip
    return sym.relu(sym.batch_norm(c, name=f"{name}_bn"), name=f"{name}_relu")


def resnet():
    x = block(sym.Variable("data"), "stem", 16, (2, 2))
    y = block(block(x, "a", 16), "b", 16)
    x = sym.max_pool2d(x + y, pool_size=(2, 2), strides=(2, 2))
    return sym.softmax(sym.dense(sym.flatten(sym.global_avg_pool2d(x)), units=10, name="fc"))


def test_layers_make_and_shape_their_weights():
    net = resnet()
    assert net.list_input_names()[:7] == ["data", "stem_conv_weight", "stem_bn_gamma", "stem_bn_beta",
                                          "stem_bn_moving_mean", "stem_bn_moving_var", "a_conv_weight"]  # fmt: skip
    inputs, outputs, states = net.infer_shape(data=(2, 3, 32, 32))
    assert inputs["stem_conv_weight"] == (16, 3, 3, 3) and inputs["fc_weight"] == (10, 16) and outputs == [(2, 10)]
    assert inputs["a_bn_gamma"] == (16,) and inputs["fc_bias"] == (10,)
    assert states["b_bn_moving_var"] == (16,) and list(states) == net.list_input_names("aux_state")


def test_a_symbol_goes_through_the_whole_pipeline():
    g = resnet().infer_type(data=TensorType((1, 3, 16, 16)))
    verify(g)
    arrays = [np.abs(a) + 0.1 if "var" in v.name else a for v, a in zip(g.inputs, random_inputs(g))]
    main = apply_passes(g, pipeline(), PassContext(verify=True))
    np.testing.assert_allclose(run_main(main, g, arrays)[0], run_graph(g, arrays)[0], rtol=1e-3, atol=1e-5)
    assert "batch_norm" not in str(main)


def test_graph_create_and_apply():
    x = sym.Variable("x", shape=(2, 3))
    g = nnvm.graph.create(x * 1 + sym.exp(x)).apply(["InferType", "ReplaceOp"])
    assert ops(g) == ["exp", "add"]
    assert ops(nnvm.graph.load_json((x * 2).tojson())) == ["multiply"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
def test_numbers_take_the_type_beside_them(dtype):
    x = sym.Variable("x")
    y = 2 - (x + 3) * 2
    g = y.infer_type(x=TensorType((2,), nnvm.dtype.dtype(dtype)))
    assert g.outputs[0].type.dtype.name == dtype
    if dtype == "float64":
        assert run_graph(g, [np.array([1.0, 2.0])])[0].tolist() == [-6.0, -8.0]


def test_composition_by_call():
    x = sym.Variable("x")
    inner = sym.exp(x, name="inner")
    outer = sym.sqrt(sym.Variable("data"), name="outer") + sym.Variable("other")
    net = outer(data=inner)
    assert net.list_input_names() == ["x", "other"] and outer.list_input_names() == ["data", "other"]
    assert outer(inner, x).list_input_names() == ["x"]
    with pytest.raises(TypeError, match="data, other"):
        outer(nothing=x)
    with pytest.raises(TypeError, match="one value"):
        outer(data=sym.Group([inner, x]))


def test_groups_internals_and_names():
    x = sym.Variable("x")
    a, b = sym.exp(x, name="a"), sym.sqrt(x, name="b")
    g = sym.Group([a, b])
    assert len(g) == 2 and g.list_output_names() == ["a_output", "b_output"]
    assert g["b_output"].name == "b" and [s.name for s in g] == ["a", "b"]
    assert (a + b).get_internals().list_output_names()[:3] == ["x", "a_output", "b_output"]
    assert a.get_children().name == "x" and x.get_children() is None
    assert sym.leaky_relu(x, alpha=0.5).attr("alpha") == 0.5


def test_wrong_use_is_explained():
    x = sym.Variable("x")
    with pytest.raises(AttributeError, match="did you mean"):
        sym.reluu(x)
    with pytest.raises(TypeError, match="no attribute 'alpa'"):
        sym.leaky_relu(x, alpa=0.5)
    with pytest.raises(TypeError, match="no input 'lefthand'"):
        sym.add(lefthand=x)


def test_auxiliary_states_and_input_variables():
    net = sym.batch_norm(sym.conv2d(sym.Variable("data"), channels=4, kernel_size=(3, 3), name="c"), name="bn")
    assert net.list_input_names("aux_state") == ["bn_moving_mean", "bn_moving_var"]
    assert net.list_input_names("read_only") == ["data", "c_weight", "c_bias", "bn_gamma", "bn_beta"]
    assert [v.name for v in net.list_input_variables()] == net.list_input_names("all")
    with pytest.raises(ValueError, match="aux_state"):
        net.list_input_names("aux")


def test_attributes_of_users():
    with AttrScope(stage="1", owner="a"):
        y = sym.relu(sym.Variable("x", init="ones"), attr={"owner": "b"})
    assert (y.attr("stage"), y.attr("owner"), y.attr("op_name"), y.attr("nothing")) == ("1", "b", "relu", None)
    assert y.get_children().attr("init") == "ones" and y.get_children().attr("stage") == "1"
    assert y.list_attr(recursive=True)["x$__init__"] == "ones"
    g = y.infer_type(x=TensorType((4,)))
    assert g.outputs[0].node.attrs["__owner__"] == "b"
    again = nnvm.graph.load_json(g.json())
    assert again.outputs[0].node.attrs["__stage__"] == "1"
    x = random_inputs(g)
    np.testing.assert_array_equal(run_graph(again, x)[0], np.maximum(x[0], 0))


def test_names_by_prefix():
    x = sym.Variable("x")
    with Prefix("stage1_"):
        assert sym.relu(x).name == "stage1_relu0" and sym.exp(x, name="e").name == "stage1_e"
    with NameManager():
        assert [sym.relu(x).name, sym.relu(x).name] == ["relu0", "relu1"]


def test_copies_and_json_of_symbols():
    net = sym.dense(sym.Variable("data"), units=3, name="fc") ** 2
    for again in (copy.copy(net), copy.deepcopy(net), sym.load_json(net.tojson())):
        assert again.debug_str() == net.debug_str()
        assert again.infer_shape(data=(2, 5)) == net.infer_shape(data=(2, 5))


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda x: sym.concatenate(x, x), (2, 24, 4, 4)),
        (lambda x: sym.reshape(x, shape=(0, -1)), (2, 192)),
        (lambda x: sym.upsampling(x, scale=2, method="BILINEAR"), (2, 12, 8, 8)),
        (lambda x: sym.pad(x, pad_width=((0, 0), (0, 0), (1, 1), (2, 2)), pad_value=1.0), (2, 12, 6, 8)),
        (lambda x: sym.strided_slice(x, begin=(0, 1), end=(2, 9), stride=(1, 2)), (2, 4, 4, 4)),
        (lambda x: sym.split(x, indices_or_sections=3, axis=1)[2], (2, 4, 4, 4)),
        (lambda x: sym.conv2d(x, channels=5, kernel_size=(3, 3), layout="NCHW"), (2, 5, 2, 2)),
        (lambda x: sym.conv2d_transpose(x, channels=5, kernel_size=(2, 2), strides=(2, 2)), (2, 5, 8, 8)),
        (lambda x: sym.add_n(x, x, sym.copy(x)), (2, 12, 4, 4)),
        (lambda x: sym.flip(x, axis=1), (2, 12, 4, 4)),
        (lambda x: sym.prelu(x, name="act"), (2, 12, 4, 4)),
        (lambda x: sym.prelu(x, alpha=sym.Variable("slope"), axis=3), (2, 12, 4, 4)),
        (lambda x: abs(2**x) @ sym.transpose(x, axes=(0, 1, 3, 2)), (2, 12, 4, 4)),
    ],
)
def test_attributes_of_nnvm(make, shape):
    assert make(sym.Variable("x")).infer_shape(x=(2, 12, 4, 4))[1] == [shape]


def test_slopes_of_prelu_are_made():
    arguments = sym.prelu(sym.Variable("x"), name="act").infer_shape(x=(2, 12, 4, 4))[0]
    assert arguments == {"x": (2, 12, 4, 4), "act_alpha": (12,)}


def test_defaults_of_nnvm():
    g = sym.leaky_relu(sym.Variable("x")).infer_type(x=TensorType((2,)))
    np.testing.assert_allclose(run_graph(g, [np.float32([-1, 2])])[0], [-0.25, 2])
    x = sym.Variable("x")
    means = sym.avg_pool2d(x, pool_size=(2, 2), padding=(1, 1)).infer_type(x=TensorType((1, 1, 2, 2)))
    data = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    wanted = [[0, 0.5, 1], [1, 1.5, 2], [2, 2.5, 3]]
    np.testing.assert_allclose(run_graph(means, [data])[0][0, 0], wanted)
    assert sym.max_pool2d(x, pool_size=(3, 3)).infer_shape(x=(1, 2, 8, 8))[1] == [(1, 2, 6, 6)]
    assert sym.sum(x, axis=()).infer_shape(x=(2, 3))[1] == [()]
    assert sym.transpose(x, axes=()).infer_shape(x=(2, 3))[1] == [(3, 2)]
    with pytest.raises(TypeError, match="give the axes"):
        sym.sum(x, axis=1, exclude=True)
    both = sym.ones(shape=(2, 3)) + sym.zeros(shape=(3,), dtype="float32")
    np.testing.assert_array_equal(run_graph(both.infer_type(), [])[0], np.ones((2, 3)))


def test_missing_inputs_are_named():
    x = sym.Variable("x")
    with pytest.raises(TypeError, match="lacks the input 'rhs'"):
        sym.elemwise_add(x)
    with pytest.raises(TypeError, match="With the attributes channels and kernel_size"):
        sym.conv2d(x, channels=3)
    with pytest.raises(TypeError, match="in order"):
        sym.concatenate(data=x)
    with pytest.raises(TypeError, match="takes the inputs"):
        sym.relu(x, x)
