"""For tests: equality of graphs, the reference executor, and networks built from symbols with their parameters.

>>> net, params = nnvm.testing.resnet.get_workload(num_layers=18, image_shape=(3, 32, 32))
"""

from __future__ import annotations

import importlib
from typing import Any

from nnvm.testing.assert_graph_equal import assert_graph_equal as assert_graph_equal

__all__ = ["assert_graph_equal"]

#: Modules that are imported when they are first used: the networks need the Symbol API.
_NETWORKS = ("dcgan", "dqn", "init", "mlp", "mobilenet", "reference", "resnet", "squeezenet", "vgg", "workload")


def __getattr__(name: str) -> Any:
    if name in _NETWORKS:
        return importlib.import_module(f"nnvm.testing.{name}")
    if name == "create_workload":
        return importlib.import_module("nnvm.testing.workload").create_workload
    raise AttributeError(f"module nnvm.testing has no attribute {name!r}")
