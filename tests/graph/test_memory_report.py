"""What a memory plan reports; and that the check of overlaps in these tests can fail."""

import dataclasses

import pytest

from nnvm.compiler.pipeline import pipeline
from nnvm.dim import symbol
from nnvm.graph.memory_report import byte_text
from nnvm.graph.pass_manager import PassContext, apply_passes
from tests.graph.build import graph, op, param, var
from tests.graph.lifetimes import assert_no_overlap
from tests.graph.test_pipeline import residual_network, transformer_layer


def planned(g):
    out = apply_passes(g, pipeline(), PassContext())
    return out, out.attrs["memory_plan"]


@pytest.mark.parametrize("build", [residual_network, transformer_layer])
def test_the_report_is_what_the_lives_add_up_to(build):
    _, plan = planned(build())
    report = plan.report()
    assert report.planned == plan.arena_bytes and report.lower_bound == max(report.timeline) == plan.lower_bound_bytes
    assert max(v.offset + v.size for v in report.lives) <= report.planned
    for step, live in enumerate(report.timeline):
        taken = set()
        for v in report.lives:
            if v.first <= step <= v.last:
                taken |= set(range(v.offset, v.offset + v.size))
        assert len(taken) <= live < len(taken) + 64 * len(report.lives), "live bytes are these, in whole cache lines"


def test_named_sizes_are_asked_for():
    x = var("x", symbol("n"), 16)
    _, plan = planned(
        graph(op("softmax", op("dense", op("tanh", op("dense", x, param("w", 16, 16))), param("v", 16, 16))))
    )
    with pytest.raises(KeyError, match="the sizes n: give report"):
        plan.report()
    small, large = (plan.report({"n": n}) for n in (4, 400))
    assert 0 < small.planned < large.planned and "n = 400" in str(large)


def test_the_drawing_keeps_peaks_in_few_columns():
    _, plan = planned(residual_network())
    report = dataclasses.replace(plan.report(), timeline=(10, 0, 0, 80, 0, 0), lower_bound=80)
    wide, narrow = report.draw(height=4).splitlines(), report.draw(width=2, height=4).splitlines()
    assert [line.count("█") for line in wide[:4]] == [1, 1, 1, 1] and wide[0].startswith("       80 B |")
    assert all("█" in line for line in narrow[:4]) and len(narrow[3]) == len("            |") + 2
    assert dataclasses.replace(report, timeline=(), lower_bound=0).draw() == "nothing lives in the arena"


def test_byte_text():
    assert [byte_text(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.00 GiB",
    ]


def test_a_plan_that_overlaps_is_found():
    g, plan = planned(transformer_layer())
    assert assert_no_overlap(g, plan) >= 3
    first = {e: (step, last) for e, (step, last) in plan.lives.items()}
    broken = 0
    for e in first:
        moved = dataclasses.replace(plan, places={**plan.places, e: dataclasses.replace(plan.places[e], offset=0)})
        if plan.places[e].offset != 0:
            with pytest.raises(AssertionError, match=r"is written over|lies outside"):
                assert_no_overlap(g, moved)
            broken += 1
    assert broken >= 2
