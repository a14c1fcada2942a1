"""Wrong use of the Symbol API and of graphs as JSON: the error says what, where, and what there is instead."""

import json

import numpy as np
import pytest

import nnvm
import nnvm.symbol as sym
from nnvm.compiler.graph_attr import set_shape_inputs
from nnvm.dim import symbol
from nnvm.graph import TypeInferenceError, load_json

SHAPES = {
    (-1, 3): "at least 0, got -1", (1.5, 3): "a size is an integer, got 1.5", "ab": "a tuple of sizes, got 'ab'",
    ("n", 3): r"nnvm.dim.symbol\('n'\)", 3: "a tuple of sizes, got 3",
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape):
    x = sym.relu(sym.Variable("x"))
    for use in (
        lambda: sym.Variable("x", shape=shape),
        lambda: x.infer_shape(x=shape),
        lambda: nnvm.compiler.build(x, shape={"x": shape}),
        lambda: set_shape_inputs(nnvm.graph.create(x), {"x": shape}),
    ):
        with pytest.raises((TypeError, ValueError), match=f"x: .*{SHAPES[shape]}"):
            use()


def test_shapes_that_are_none_are_told_from_shapes_of_numpy_and_names():
    x = sym.relu(sym.Variable("x", shape=(np.int64(2), symbol("n"), None)))
    assert x.infer_shape_partial()[0] == {"x": (2, symbol("n"), None)}
    with pytest.raises(TypeError, match=r"x: .*not known as a whole"):
        nnvm.compiler.build(x, shape={"x": (2, None, 3)})


@pytest.mark.parametrize(("make", "message"), [
    (lambda x: sym.conv2d(x, channels="3", kernel_size=3, name="c"), "conv2d c: channels='3': expected an integer"),
    (lambda x: sym.conv2d(x, channels=3, kernel_size=(-3, 3)), "kernel_size=-3: expected at least 1"),
    (lambda x: sym.conv2d(x, channels=3, kernel_size=(3, 3, 3)), "expected 2 sizes"),
    (lambda x: sym.conv2d(x, channels=3, kernel_size=(3, 3), groups=2), "3 channels cannot be divided among 2 groups"),
    (lambda x: sym.conv2d_transpose(x, channels=3, kernel_size=(3, 3), groups=0), "groups=0: expected at least 1"),
    (lambda x: sym.conv2d(x, kernel_size=(3, 3)), "channels is missing"),
    (lambda x: sym.conv2d(x, channel=3, kernel_size=(3, 3)), "channels is missing"),
    (lambda x: sym.conv2d(x, channels=3, kernel_size=3, pading=1), "no attribute 'pading'; did you mean padding"),
    (lambda x: sym.dense(x, unit=3), "no attribute 'unit'; did you mean units"),
    (lambda x: sym.dense(x, units=-1, name="d"), "dense d: units=-1: expected at least 0"),
    (lambda x: sym.split(x, indices_or_sections=0), "expected at least 1 part"),
    (lambda x: sym.dropout(x, rate=2), "a share from 0 to 1"),
    (lambda x: sym.relu(x, data=x), "relu.*the input data is given twice"),
    (lambda x: sym.relu(x)(x, x=x), "the input x is given twice"),
    (lambda x: sym.relu(x)(3), "x is given 3"),
    (lambda x: sym.Group([x, 3]), "a group is of Symbols, got 3"),
    (lambda x: sym.Group([x, x])[2], r"value 2 of 2 \(x, x\)"),
    (lambda x: sym.Variable(None), "got the name None"),
    (lambda x: nnvm.graph.create(3), "expected a Symbol, got 3"),
])  # fmt: skip
def test_calls(make, message):
    with pytest.raises((TypeError, ValueError, IndexError), match=message):
        make(sym.Variable("x"))


def test_calls_that_look_alike_and_are_right():
    x = sym.Variable("x")
    assert sym.conv2d(x, channels=4, kernel_size=3, groups=2).infer_shape(x=(1, 2, 5, 5))[1] == [(1, 4, 3, 3)]
    assert sym.add(lhs=x, rhs=2).infer_shape(x=(3,))[1] == [(3,)]
    assert len(sym.Group([x, sym.exp(x), x])[1:]) == 2 and sym.Group([x, sym.exp(x, name="e")])[-1].name == "e"
    assert sym.dense(x, units=0).infer_shape(x=(2, 3))[1] == [(2, 0)]


def test_results_of_sizes_below_zero():
    with pytest.raises(TypeInferenceError, match=r"full f.*float32\[-1\] has a size below 0"):
        sym.full(shape=(-1,), value=1.0, dtype="float32", name="f")


def broken(change):
    data = json.loads(sym.relu(sym.exp(sym.Variable("x"), name="e"), name="r").tojson())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(("change", "message"), [
    (lambda d: d["nodes"][1].update(op="expp"), "node 1 e .*did you mean exp"),
    (lambda d: d["nodes"][2].update(inputs=[[7, 0, 0]]), "node 2 r .*it uses node 7, and 2 stand before it"),
    (lambda d: d["nodes"][2].update(inputs=[[1, 3, 0]]), "output 3 of e, which has 1"),
    (lambda d: d["nodes"][2].update(inputs=[]), "relu takes inputs"),
    (lambda d: d["nodes"][1].update(attrs={"alpha": "1"}), "node 1 e .*no attribute 'alpha'"),
    (lambda d: d["nodes"][1].pop("inputs"), "node 1 e .*inputs"),
    (lambda d: d.update(arg_nodes=[1]), "arg_nodes .*names 1, which is no variable"),
    (lambda d: d.update(heads=[[9, 0, 0]]), "it uses node 9"),
    (lambda d: d.pop("heads"), "heads are missing"),
])  # fmt: skip
def test_json(change, message):
    with pytest.raises(ValueError, match=message):
        load_json(broken(change))
    assert load_json(broken(lambda d: None)).outputs[0].node.name == "r"


def test_names_that_the_graph_lacks():
    deep = sym.Variable("data")
    for i in range(99):
        deep = sym.relu(deep, name=f"layer{i}")
    with pytest.raises(TypeInferenceError, match=r"no value layer5_out; did you mean layer5_output"):
        deep.infer_shape(layer5_out=(3,))
    with pytest.raises(TypeInferenceError, match=r"no value zz; it has: data$"):
        deep.infer_shape(zz=(3,))


def test_operands_of_too_few_axes():
    with pytest.raises(TypeInferenceError, match=r"matmul m: matmul needs matrices, got \[3, 3\] and \[\]"):
        sym.matmul(sym.Variable("x"), 2.0, name="m").infer_shape(x=(3, 3))
