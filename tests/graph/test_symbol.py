"""The Symbol API: composition, names, shapes, graphs."""

import numpy as np
import pytest

import nnvm.graph
import nnvm.symbol as sym
from nnvm.compiler.pipeline import pipeline
from nnvm.graph.node import TypeInferenceError
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.types import TensorType
from nnvm.graph.verify import verify
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import ops
from tests.graph.compare import run_main


def test_elementwise_of_the_documentation():
    x, y = sym.Variable("x"), sym.Variable("y")
    z = sym.elemwise_add(x, sym.sqrt(y))
    assert z.list_input_names() == ["x", "y"]
    inputs, outputs = z.infer_shape(x=(4,), y=(4,))
    assert inputs == {"x": (4,), "y": (4,)} and outputs == [(4,)]
    with pytest.raises(TypeInferenceError, match="variables y"):
        z.infer_shape(x=(4,))


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
    inputs, outputs = net.infer_shape(data=(2, 3, 32, 32))
    assert inputs["stem_conv_weight"] == (16, 3, 3, 3) and inputs["fc_weight"] == (10, 16) and outputs == [(2, 10)]
    assert inputs["a_bn_gamma"] == (16,) and inputs["fc_bias"] == (10,)


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
    assert (a + b).get_internals().list_output_names()[:3] == ["x_output", "a_output", "b_output"]
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
