"""The script that measures on a GPU, as far as it runs without one: its kernels, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_kernels_are_as_accurate_as_eager(dtype: torch.dtype) -> None:
    found = list(gpu.kernels(dtype, "cpu", target="cuda -arch=sm_90"))
    assert [name for name, _, _ in found] == list(gpu.KERNELS)
    unit = 1e-5 if dtype == torch.float32 else 2e-3
    wrong = [(name, ours, eagers) for name, ours, eagers in found if not ours <= 4 * eagers + unit]
    assert not wrong


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert "needs a GPU" in capsys.readouterr().err


def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--dtypes", "float8"], ["--batches", "0"], ["--peers", "tvm"]):
        with pytest.raises(SystemExit):
            gpu.parse_arguments(argv)
    assert "there are" in capsys.readouterr().err
