"""The rule for products on a GPU: what it must say where there is no doubt, and that it is monotonous."""

from __future__ import annotations

import pytest

from nnvm.dtype import F16, F32
from nnvm.schedules.gpu.cost import ProductSize, gpu_of, library_seconds, template_seconds
from nnvm.target import Target

H100 = Target.parse("cuda -arch=sm_90")


def seconds(m, n, k, dtype=F16, batch=1, rest=0.0, gathers=False, target=H100):
    size = ProductSize(m, n, k, batch, dtype, gathers)
    nbytes = float((m * k + k * n + m * n) * batch * dtype.bytes)
    return template_seconds(size, nbytes + rest / 2, target), library_seconds(size, nbytes, rest, target)


def test_nothing_is_faster_than_the_data_sheet():
    for m, n, k in ((4096, 4096, 4096), (8192, 512, 128), (64, 64, 65536)):
        for each in seconds(m, n, k):
            assert each >= 2 * m * n * k / gpu_of(H100).flops["half"]
            assert each >= (m * k + k * n + m * n) * 2 / gpu_of(H100).bandwidth


def test_large_products_go_to_the_library_and_small_ones_with_an_epilogue_do_not():
    ours, library = seconds(4096, 4096, 4096)
    assert library < ours
    ours, library = seconds(128, 768, 768, rest=3 * 128 * 768 * 2)
    assert ours < library


def test_float32_without_tensor_cores_goes_to_the_library():
    ours, library = seconds(2048, 2048, 2048, F32)
    assert library < 0.6 * ours
    with_tf32, _ = seconds(2048, 2048, 2048, F32, target=Target.parse("cuda -arch=sm_90 -mtf32"))
    assert with_tf32 < ours / 3


def test_more_work_takes_longer():
    before = (0.0, 0.0)
    for k in (128, 512, 2048, 8192, 32768):
        now = seconds(1024, 1024, k)
        assert now[0] > before[0] and now[1] > before[1]
        before = now
    few, many = seconds(512, 512, 512), seconds(512, 512, 512, batch=64)
    assert many[0] > few[0] and many[1] > few[1]


@pytest.mark.parametrize(("text", "units"), [("cuda -arch=sm_80", 108), ("cuda -arch=sm_90a", 132),
                                             ("cuda -arch=sm_120", 148), ("cuda -arch=sm_75", 108),
                                             ("hip -arch=gfx942", 304), ("hip -arch=gfx90a", 304)])  # fmt: skip
def test_every_target_has_limits(text, units):
    assert gpu_of(Target.parse(text)).units == units
