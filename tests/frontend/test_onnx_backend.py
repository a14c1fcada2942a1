"""ONNX's own test suite: each case passes, is left out with a reason, or is refused by name; none is wrong."""

import warnings

import pytest

onnx = pytest.importorskip("onnx")

from nnvm.frontend.onnx import UnsupportedModel, from_onnx  # noqa: E402
from nnvm.frontend.onnx.conformance import KINDS, cases, main, run_case  # noqa: E402
from nnvm.frontend.onnx.exclusions import exclusion_of  # noqa: E402

#: Of the node cases in the order of their names, each of so many runs by default.
STEP = 11
#: At least so many of the node cases pass.
PASSING = 1774


@pytest.fixture(scope="module")
def node_cases():
    return cases("node")


def test_every_node_case_is_imported_or_left_out(node_cases):
    """Values and sizes that are known at a call only are no refusal."""
    refused = {}
    for case in node_cases:
        if exclusion_of(case.name, case.model) is None:
            try:
                from_onnx(case.model)
            except UnsupportedModel as e:
                if not e.needs:
                    refused[case.name] = str(e)
    assert refused == {}


def test_what_is_left_out_is_refused(node_cases):
    left_out = [c for c in node_cases if exclusion_of(c.name, c.model) is not None]
    assert 60 <= len(left_out) <= len(node_cases) - PASSING
    reasons = {exclusion_of(c.name, c.model) for c in left_out}
    assert all(len(r) > 20 for r in reasons)
    accepted = []
    for case in left_out:
        try:
            from_onnx(case.model)
            accepted.append(case.name)
        except UnsupportedModel as e:
            assert e.nodes, case.name
    # left out for the numbers that are expected
    assert accepted == ["test_dft_inverse_opset19"]


def outcomes(chosen):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [run_case(c) for c in chosen]


def failures(found):
    return {o.name: (o.result, o.reason) for o in found if o.result in ("wrong", "refused")}


def test_a_sample_of_the_node_cases(node_cases):
    found = outcomes(node_cases[::STEP])
    assert failures(found) == {}
    assert sum(o.result == "passed" for o in found) >= 0.9 * len(found)


@pytest.mark.parametrize("kind, passing", [("simple", 7), ("pytorch-converted", 82), ("pytorch-operator", 35)])
def test_stored_cases(kind, passing):
    found = outcomes(cases(kind))
    assert failures(found) == {}
    assert sum(o.result == "passed" for o in found) >= passing


@pytest.mark.slow
def test_the_whole_suite(node_cases):
    found = outcomes(node_cases)
    assert failures(found) == {}
    assert sum(o.result == "passed" for o in found) >= PASSING


def test_the_command_prints_counts(capsys):
    assert main(["test_relu", "test_string_split_basic"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == list(KINDS)
    assert lines[0].startswith("node: ") and "1 excluded, 0 refused, 0 wrong" in lines[0]
    assert lines[1].startswith("  excluded 1: text")
