"""Targets: what a text stands for, and what this machine says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnvm.target import Target, _host_caches


def test_host_is_a_machine_that_can_be_compiled_for() -> None:
    host = Target.host()
    assert host.kind == "llvm" and host.cpu and host.triple
    assert 8 << 10 <= host.l1_bytes <= host.l2_bytes <= 1 << 28
    assert Target.parse("llvm") is host


def machine(folder: Path, siblings: str, caches: list[tuple[str, str, str, str]]) -> Path:
    (folder / "topology").mkdir()
    (folder / "topology" / "thread_siblings_list").write_text(siblings + "\n")
    for n, (level, kind, size, shared) in enumerate(caches):
        cache = folder / "cache" / f"index{n}"
        cache.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (cache / name).write_text(text + "\n")
    return folder


def test_caches_of_one_core(tmp_path: Path) -> None:
    server = machine(tmp_path, "0,56", [("1", "Data", "48K", "0,56"), ("1", "Instruction", "32K", "0,56"),
                                        ("2", "Unified", "2048K", "0,56"), ("3", "Unified", "105M", "0-111")])
    assert _host_caches(server) == (48 << 10, 2 << 20)


def test_a_second_cache_of_several_cores_is_shared_out(tmp_path: Path) -> None:
    cluster = machine(tmp_path, "0", [("1", "Data", "32K", "0"), ("2", "Unified", "4M", "0-3")])
    assert _host_caches(cluster) == (32 << 10, 1 << 20)


def test_a_machine_that_tells_nothing_or_nonsense(tmp_path: Path) -> None:
    usual = (Target.l1_bytes, Target.l2_bytes)
    assert _host_caches(tmp_path / "missing") == usual
    assert _host_caches(machine(tmp_path, "none", [("1", "Data", "0K", ""), ("two", "Unified", "x", "0")])) == usual


@pytest.mark.parametrize("text,message", [
    ("", "must begin with"), ("llvm -mcpu", "none of"), ("llvm -mcpu=i386sx", "not known"), ("gpu", "must begin"),
    ("llvm -mtriple=riscv64-unknown-linux-gnu", "no architecture that there is code for"),
    ("llvm '", "No closing quot"),
    ("llvm -mcpu=haswell -mtriple=aarch64-unknown-linux-gnu", "'haswell' is none of aarch64"),
])  # fmt: skip
def test_wrong_texts(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Target.parse(text)


def test_gpus() -> None:
    assert Target.parse("cuda") == Target.parse("cuda -arch=sm_90")
    assert str(Target.parse("cuda -arch=sm_80 -mtf32")) == "cuda -arch=sm_80 -mtf32"
    assert Target.parse(str(Target.parse("cuda -arch=sm_80 -mtf32"))) == Target.parse("cuda -arch=sm_80 -mtf32")
    assert Target.parse("hip -arch=gfx942").is_gpu and not Target.parse("llvm").is_gpu
    for text, words in (("cuda -arch=gfx942", "sm_NN"), ("hip -arch=sm_90", "gfxNNN"), ("hip -mtf32", "gfxNNN"),
                        ("cuda -mcpu=haswell", "sm_NN"), ("rocm", "must begin with")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            Target.parse(text)
