"""Schedules: what each transformation does to the loops of a stage, and which are refused."""

from __future__ import annotations

import pytest

from nnvm import te
from nnvm.dtype import F32
from nnvm.te.schedule import Schedule, ScheduleError
from nnvm.te.tensor import Read, Tensor, compute, placeholder, reduce_axis


def product() -> tuple[Tensor, Tensor]:
    x, w = placeholder((6, 10), F32, "x"), placeholder((10, 8), F32, "w")
    k = reduce_axis(10, "k")
    y = compute((6, 8), lambda i, j: te.sum(x[i, k] * w[k, j], [k]), "y")
    return y, compute((6, 8), lambda i, j: y[i, j] + 1.0, "z")


def names(stage) -> list[str]:
    return [a.name for a in stage.leaf_axes]


def test_a_stage_starts_with_its_axes_then_the_reduce_axes():
    y, z = product()
    s = Schedule([z])
    assert [st.tensor for st in s.stages] == [y, z]
    assert names(s[y]) == ["i", "j", "k"] and names(s[z]) == ["i", "j"]


def test_split_keeps_the_place_and_rounds_up():
    y, _ = product()
    st = Schedule([y])[y]
    outer, inner = st.split(st.axes[1], 3)
    assert names(st) == ["i", "j_o", "j_i", "k"]
    assert (outer.extent, inner.extent) == (3, 3)


def test_fuse_of_several_axes_multiplies_their_extents():
    y, _ = product()
    st = Schedule([y])[y]
    fused = st.fuse(*st.axes)
    assert fused.extent == 48 and st.leaf_axes == [fused, *st.reduce_axes]


def test_reorder_leaves_other_loops_in_place():
    y, _ = product()
    st = Schedule([y])[y]
    st.reorder(st.reduce_axes[0], st.axes[0])
    assert names(st) == ["k", "j", "i"]


def test_tile_orders_the_outer_loops_first():
    y, _ = product()
    st = Schedule([y])[y]
    st.tile(*st.axes, 2, 4)
    assert names(st) == ["i_o", "j_o", "i_i", "j_i", "k"]


def test_cache_write_moves_the_body_and_its_axes():
    y, z = product()
    s = Schedule([z])
    axes = s[y].axes
    cached = s.cache_write(y)
    assert s[cached].axes == axes and s[cached].is_reduction and s[cached].scope == "local"
    assert isinstance(s[y].body, Read) and s[y].body.tensor is cached and not s[y].reduce_axes
    assert [st.tensor for st in s.stages] == [cached, y, z]
    assert y.reduce_axes  # the algorithm itself is as it was


def test_consumers_are_the_stages_that_read():
    y, z = product()
    s = Schedule([z])
    assert s.consumers(y) == [s[z]] and s.consumers(z) == []


class TestErrors:
    def test_fuse_of_axes_that_are_not_neighbours(self):
        y, _ = product()
        st = Schedule([y])[y]
        st.reorder(st.axes[1], st.axes[0])
        with pytest.raises(ScheduleError, match="not neighbours"):
            st.fuse(*st.axes)

    def test_fuse_of_a_spatial_and_a_reduce_axis(self):
        y, _ = product()
        st = Schedule([y])[y]
        with pytest.raises(ScheduleError, match="spatial axis and a reduce axis"):
            st.fuse(st.axes[1], st.reduce_axes[0])

    def test_an_axis_that_was_split_is_no_loop_any_more(self):
        y, _ = product()
        st = Schedule([y])[y]
        st.split(st.axes[0], 2)
        with pytest.raises(ScheduleError, match="none of its loops"):
            st.unroll(st.axes[0])

    def test_two_kinds_for_one_loop(self):
        y, _ = product()
        st = Schedule([y])[y]
        st.unroll(st.axes[0])
        with pytest.raises(ScheduleError, match="cannot become"):
            st.vectorize(st.axes[0])

    def test_parallel_reduction(self):
        y, _ = product()
        st = Schedule([y])[y]
        with pytest.raises(ScheduleError, match="parallel"):
            st.parallel(st.reduce_axes[0])

    def test_split_by_nothing(self):
        y, _ = product()
        st = Schedule([y])[y]
        with pytest.raises(ScheduleError, match="by 0"):
            st.split(st.axes[0], 0)

    def test_the_same_axis_twice(self):
        y, _ = product()
        st = Schedule([y])[y]
        with pytest.raises(ScheduleError, match="twice"):
            st.reorder(st.axes[0], st.axes[0])

    def test_unknown_scope(self):
        y, _ = product()
        with pytest.raises(ScheduleError, match="local, scratch"):
            Schedule([y])[y].set_scope("global")

    def test_cache_write_after_a_split(self):
        y, _ = product()
        s = Schedule([y])
        s[y].split(s[y].axes[0], 2)
        with pytest.raises(ScheduleError, match="after its loops were changed"):
            s.cache_write(y)

    def test_tensor_of_another_schedule(self):
        y, _ = product()
        with pytest.raises(ScheduleError, match="not computed"):
            Schedule([y])[product()[0]]
