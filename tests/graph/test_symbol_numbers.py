"""Numbers beside symbols: exact in every element type, of Python and numpy; what is no number is refused."""

import numpy as np
import pytest

import nnvm
import nnvm.symbol as sym
from nnvm.graph.node import TypeInferenceError


def run(net, **inputs):
    shape, dtype = ({k: get(v) for k, v in inputs.items()} for get in (np.shape, lambda v: v.dtype.name))
    with nnvm.compiler.build_config(verify=True):
        graph, lib, params = nnvm.compiler.build(net, "llvm", shape=shape, dtype=dtype)
    module = nnvm.runtime.create(graph, lib)
    module.set_input(**params)
    module.run(**inputs)
    return module.get_output(0)


def test_float64_numbers_are_not_rounded():
    x = np.random.default_rng(0).standard_normal(9)
    np.testing.assert_allclose(run(sym.Variable("x") * 0.1 + 1 / 3, x=x), x * 0.1 + 1 / 3, rtol=1e-15)


@pytest.mark.parametrize(("dtype", "number"), [("int64", 2**40 + 1), ("int32", 2**24 + 1), ("uint64", 2**63 + 1)])
def test_integers_are_not_rounded(dtype, number):
    x = np.random.default_rng(1).integers(1, 90, 9).astype(dtype)
    np.testing.assert_array_equal(run(sym.Variable("x") + number, x=x), x + x.dtype.type(number))


@pytest.mark.parametrize(("dtype", "number"), [("int32", 1.5), ("uint8", 300), ("uint8", -1), ("int32", float("nan")),
                                               ("int64", float("inf"))])  # fmt: skip
def test_numbers_that_a_type_cannot_hold_are_refused(dtype, number):
    with pytest.raises(TypeInferenceError, match=rf"multiply net: the number {number} is no {dtype}; cast"):
        sym.multiply(sym.Variable("x"), number, name="net").infer_type(
            x=nnvm.graph.TensorType((3,), nnvm.dtype.dtype(dtype))
        )


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_numbers_beside_variables_that_have_types(dtype):
    x = np.random.default_rng(2).integers(-9, 9, (2, 3)).astype(dtype)
    got = run(3 - sym.Variable("x", shape=(2, 3), dtype=dtype) * 2, x=x)
    np.testing.assert_array_equal(got, 3 - x * 2)
    assert got.dtype == x.dtype


def test_numbers_of_numpy_on_either_side():
    x = np.random.default_rng(3).standard_normal((2, 3)).astype(np.float32)
    v = sym.Variable("x")
    got = run(np.float32(2) * v + np.float64(0.5) - np.int64(3) / (v * v + np.float32(1)), x=x)
    np.testing.assert_allclose(got, 2 * x + 0.5 - 3 / (x * x + 1), rtol=1e-5)


def test_numbers_alone_are_float32():
    x = np.random.default_rng(4).standard_normal(3).astype(np.float32)
    np.testing.assert_allclose(run(sym.Variable("x") * sym.exp(2), x=x), x * np.exp(np.float32(2)), rtol=1e-6)


@pytest.mark.parametrize("value", [None, "x", np.ones(3), 1j, [1.0]])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(TypeError, match="expected a Symbol or a number"):
        sym.relu(value)
    with pytest.raises(TypeError, match="expected a Symbol or a number"):
        sym.Variable("x") + value
    with pytest.raises(ValueError, match="no element type"):
        sym.Variable("x") + 2**70
