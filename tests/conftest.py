"""What holds for all tests."""

from __future__ import annotations

import importlib.util
import os

import pytest

# before anything imports Triton, which reads it once: kernels for GPUs run in its interpreter
os.environ.setdefault("TRITON_INTERPRET", "1")

HAS_TRITON = importlib.util.find_spec("triton") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_TRITON:
        for item in items:
            if item.get_closest_marker("triton"):
                item.add_marker(pytest.mark.skip("Triton is not installed"))
