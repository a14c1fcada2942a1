"""Memory plans of every network of the zoo, in small: near the lower bound, and no two live values overlap."""

import pytest
from small_zoo import SMALL, small

from nnvm.compiler.pipeline import pipeline
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm_torch.capture import capture
from tests.graph.lifetimes import assert_no_overlap


@pytest.mark.filterwarnings("ignore:The tensor attributes self.cells:UserWarning")
@pytest.mark.parametrize("name", SMALL)
def test_the_peak_is_near_the_lower_bound(name):
    module, inputs = small(name)
    graph = apply_passes(capture(module, inputs).imported.graph, pipeline(), PassContext())
    for planned in (graph, graph.attrs["prepare"]):
        plan = planned.attrs["memory_plan"]
        assert_no_overlap(planned, plan)
        report = plan.report()
        assert report.lower_bound <= report.planned <= 1.05 * report.lower_bound, str(report)
        assert report.planned <= report.unplanned and len(report.timeline) == len(report.steps)


@pytest.mark.parametrize("name", ["resnet50", "resnet101"])
def test_residual_networks_take_less_than_half(name):
    module, inputs = small(name)
    graph = apply_passes(capture(module, inputs).imported.graph, pipeline(), PassContext())
    report = graph.attrs["memory_plan"].report()
    assert report.planned <= 0.5 * report.unplanned, str(report)
