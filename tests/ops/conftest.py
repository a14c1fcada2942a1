"""Runs ops and eager PyTorch side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from nnvm.dtype import BF16, dtype
from nnvm.graph import op as op_registry
from nnvm.graph.types import TensorType
from nnvm.testing.run_op import run_op

#: (relative, absolute) tolerance by dtype: a few units in the last place of float32 and float64, one of half types.
TOLERANCE = {
    torch.float64: (1e-12, 1e-12), torch.float32: (2e-5, 2e-6), torch.float16: (2e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
}  # fmt: skip


def to_numpy(t: torch.Tensor) -> np.ndarray[Any, Any]:
    t = t.detach().contiguous()
    return t.view(torch.int16).numpy().view(np.uint16) if t.dtype == torch.bfloat16 else t.numpy()


def type_of(t: torch.Tensor) -> TensorType:
    return TensorType(tuple(t.shape), dtype(str(t.dtype).removeprefix("torch.")))


def to_torch(a: np.ndarray[Any, Any], t: TensorType) -> torch.Tensor:
    if t.dtype == BF16:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a.copy())  # a reference may give a view with negative strides


def run(
    op: str, inputs: Sequence[torch.Tensor], attrs: Mapping[str, Any], route: str, outputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    arrays = run_op(op, [to_numpy(t) for t in inputs], [type_of(t) for t in inputs], attrs, route)
    return [to_torch(a, type_of(t)) for a, t in zip(arrays, outputs, strict=True)]


#: Attention on a GPU rounds the weights of the keys, at most 1, to half types for the second product.
ATTENTION_ON_GPU = {torch.float16: 5e-4, torch.bfloat16: 4e-3}


def compare(got: torch.Tensor, expected: torch.Tensor, scale: float, what: str) -> None:
    rtol, atol = TOLERANCE.get(expected.dtype, (0.0, 0.0))
    if what.startswith("attention") and " on triton" in what:
        atol = ATTENTION_ON_GPU.get(expected.dtype, atol) / scale
    torch.testing.assert_close(
        got, expected, rtol=rtol * scale, atol=atol * scale, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )


Check = Callable[..., None]


def _has_launches(op: str, inputs: Sequence[torch.Tensor], attrs: Mapping[str, Any]) -> bool:
    """Whether there is a kernel of ours for a GPU."""
    found = op_registry.get(op)
    rule = found.attr("any_order") or found.attr("running")
    if found.has("compute") or rule is None:
        return found.has("compute")
    return bool(rule(found.normalise(attrs), tuple(map(type_of, inputs))))


@pytest.fixture(params=["reference", "scheduled", pytest.param("triton", marks=pytest.mark.triton)])
def check(request: pytest.FixtureRequest) -> Check:
    """`check(op, inputs, expected, tolerance=1, **attrs)`: op on torch tensors gives `expected`, on every route."""
    route: str = request.param

    def run_and_compare(
        op: str, inputs: Sequence[torch.Tensor], expected: torch.Tensor | Sequence[torch.Tensor], tolerance: float = 1,
        **attrs: Any,
    ) -> None:  # fmt: skip
        if route == "triton" and not _has_launches(op, inputs, attrs):
            pytest.skip(f"{op} has no compute: on a GPU it runs in ATen")
        wanted = [expected] if isinstance(expected, torch.Tensor) else list(expected)
        for i, (g, e) in enumerate(zip(run(op, inputs, attrs, route, wanted), wanted)):
            compare(g, e, tolerance, f"{op} {attrs} on {route}, output {i}, inputs {[type_of(t) for t in inputs]}")

    return run_and_compare
