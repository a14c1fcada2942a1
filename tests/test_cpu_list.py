"""Lists of processors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nnvm.cpu_list import count_usable_cpus, parse_cpu_list, read_cpu_list


@pytest.mark.parametrize(("text", "cpus"), [
    ("5", (5,)), ("0-3,8", (0, 1, 2, 3, 8)), ("0,56\n", (0, 56)), (" 2 - 3 , 1 ", (2, 3, 1)),
])  # fmt: skip
def test_lists(text: str, cpus: tuple[int, ...], tmp_path: Path) -> None:
    assert parse_cpu_list(text) == cpus
    (tmp_path / "list").write_text(text)
    assert read_cpu_list(tmp_path / "list") == cpus


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-1", "1,,2", "0-999999999"])
def test_what_is_no_list(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        parse_cpu_list(text)
    (tmp_path / "list").write_text(text)
    assert read_cpu_list(tmp_path / "list") == ()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert read_cpu_list(tmp_path / "list") == ()


def test_affinity_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 5, 7}, raising=False)
    assert count_usable_cpus() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert count_usable_cpus() == os.cpu_count()
