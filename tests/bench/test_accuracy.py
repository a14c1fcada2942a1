"""The error that the table shows."""

import math

import numpy as np
import pytest

from nnvm.bench.accuracy import is_accurate, output_error
from nnvm.bench.errors import BenchError

INF, NAN = math.inf, math.nan


def arrays(*values):
    return [np.array(value, np.float64) for value in values]


def test_relative_to_the_range():
    assert output_error(arrays([100.0, 104.0]), arrays([100.0, 102.0])) == pytest.approx(1.0)


def test_the_worst_output_counts():
    assert output_error(arrays([0.0, 1.0], [0.0, 1.5]), arrays([0.0, 1.0], [0.0, 1.0])) == pytest.approx(0.5)


def test_a_constant_output_is_relative_to_its_size():
    assert output_error(arrays([4.0, 5.0]), arrays([4.0, 4.0])) == pytest.approx(0.25)
    assert output_error(arrays([0.0, 0.5]), arrays([0.0, 0.0])) == pytest.approx(0.5)


def test_narrow_types_and_integers():
    assert output_error([np.array([1.0, 2.0], np.float16)], arrays([1.0, 2.0])) == 0.0
    assert output_error([np.array([1, 3])], [np.array([1, 2])]) == pytest.approx(1.0)
    assert output_error([np.array([True, False])], [np.array([True, True])]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("actual", "reference", "expected"),
    [
        ([NAN, 1.0], [NAN, 1.0], 0.0),
        ([INF, 1.0], [INF, 1.0], 0.0),
        ([-INF, 1.0], [INF, 1.0], INF),
        ([NAN, 1.0], [0.0, 1.0], INF),
        ([0.0, 1.0], [NAN, 1.0], INF),
        ([NAN, NAN], [NAN, NAN], 0.0),
        ([], [], 0.0),
    ],
)
def test_nan_and_infinity(actual, reference, expected):
    assert output_error(arrays(actual), arrays(reference)) == expected


def test_other_shapes_and_counts():
    with pytest.raises(BenchError, match="shape"):
        output_error(arrays([1.0]), arrays([1.0, 2.0]))
    with pytest.raises(BenchError, match="1 outputs where the reference has 2"):
        output_error(arrays([1.0]), arrays([1.0], [2.0]))


def test_the_verdict():
    assert is_accurate(9e-5, 1e-7)  # as Winograd may
    assert not is_accurate(1.1e-4, 1e-7)
    assert is_accurate(1.9e-2, 1e-2)  # half types
    assert not is_accurate(INF, None)
