"""The op `interleave`: parts that take turns, of sizes that differ by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nnvm.graph.node import TypeInferenceError, apply, variable
from nnvm.graph.types import TensorType


def parts_of(whole: torch.Tensor, axes: tuple[int, ...], steps: tuple[int, ...]) -> list[torch.Tensor]:
    parts = [whole]
    for a, s in zip(axes, steps):
        parts = [p[(*(slice(None),) * a, slice(q, None, s))] for p in parts for q in range(s)]
    return [p.contiguous() for p in parts]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape,axes,steps", [
    ((2, 3, 8), (2,), (2,)), ((2, 3, 7), (2,), (3,)), ((1, 4, 5, 6), (2, 3), (2, 4)), ((1, 4, 5, 37), (3, 2), (2, 1)),
    ((3, 2, 5, 4, 3), (2, 3, 4), (2, 3, 2)), ((7, 6), (0, 1), (3, 2)), ((2, 4, 9, 5, 16), (2, 3), (2, 2)),
])  # fmt: skip
def test_values(check: Any, dtype: torch.dtype, shape: Any, axes: Any, steps: Any) -> None:
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    check("interleave", parts_of(whole, axes, steps), whole, axes=axes, steps=steps)


@pytest.mark.parametrize("shapes,attrs,message", [
    (((2, 3), (2, 1)), {"axes": (1,), "steps": (2,)}, r"part .0,. of \[2, 4\].*has shape \[2, 2\], not \[2, 3\]"),
    (((2, 3), (3, 3)), {"axes": (1,), "steps": (2,)}, r"part .1,."),
    (((2, 3),), {"axes": (1,), "steps": (2,)}, "1 parts for steps"),
    (((2, 3), (2, 3)), {"axes": (2,), "steps": (2,)}, "do not fit data of 2 axes"),
])  # fmt: skip
def test_what_does_not_fit(shapes: Any, attrs: Any, message: str) -> None:
    inputs = [variable(f"x{i}", TensorType(s)) for i, s in enumerate(shapes)]
    with pytest.raises(TypeInferenceError, match=message):
        apply("interleave", inputs, attrs)
