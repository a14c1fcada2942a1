"""The processors that artifacts are made for."""

from __future__ import annotations

import pytest

from nnvm.artifact import as_level, default_levels
from nnvm.target import Target


def test_each_level_has_all_of_the_one_before():
    v2, v3, v4 = (as_level(f"x86-64-v{n}") for n in (2, 3, 4))
    assert [level.name for level in (v2, v3, v4)] == ["x86-64-v2", "x86-64-v3", "x86-64-v4"]
    assert set(v2.features) < set(v3.features) < set(v4.features)
    assert {"sse4.2", "popcnt", "cx16"} <= set(v2.features) and "avx" not in v2.features
    assert {"avx2", "fma", "lzcnt", "movbe"} <= set(v3.features) and "avx512f" not in v3.features
    assert {"avx512f", "avx512vl"} <= set(v4.features)


def test_a_processor_needs_what_its_name_lets_llvm_use():
    assert set(as_level("llvm -mcpu=skylake-avx512").features) == set(as_level("x86-64-v4").features)
    assert "avx512fp16" in as_level("llvm -mcpu=sapphirerapids").features
    assert "sse4a" in as_level("llvm -mcpu=znver3").features
    assert as_level("llvm -mcpu=haswell").name == "haswell"


def test_this_machine_needs_all_that_it_has():
    level = as_level("host")
    assert level.target == Target.host() and level.features == Target.host().features


def test_another_architecture():
    level = as_level("aarch64")
    assert level.name == "aarch64" and level.target.triple.startswith("aarch64") and level.features == ("neon",)


def test_the_defaults_are_for_machines_like_this_one():
    levels = default_levels()
    assert all(level.target.triple == Target.host().triple for level in levels)
    assert set(levels[0].features) <= set(Target.host().features)


def test_a_gpu():
    level = as_level("cuda -arch=sm_80")
    assert level.name == "cuda-sm_80" and level.target.triple.startswith("nvptx64") and level.features == ("sm_80",)
    assert as_level("cuda -arch=sm_90 -mtf32").name == "cuda-sm_90-tf32"


@pytest.mark.parametrize("text", ["z80", "llvm -mcpu=z80", "hip", "reference", ""])
def test_what_there_is_no_code_for_is_refused(text):
    with pytest.raises(ValueError, match=r"target|processor"):
        as_level(text)
