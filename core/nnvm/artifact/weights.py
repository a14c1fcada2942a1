"""The tensors that an artifact holds: parameters as they are read, prepared ones, constants; equal ones once.

Levels lay out packed weights by their vector width, so a file with packed weights has one copy for each layout; what
two levels read in the same way (biases, embeddings, scales, weights that are not packed) they share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnvm.artifact.levels import default_levels
from nnvm.compiler.build import Clock, compile_fused
from nnvm.dtype import DType
from nnvm.graph.graph import Graph
from nnvm.graph.types import TensorType
from nnvm.runtime.graph_runtime import run_prepare
from nnvm.target import Target

__all__ = ["WeightTable", "fitting", "packed"]

Array = np.ndarray[Any, Any]


class WeightTable:
    """Tensors by a name in the file, without doubles."""

    def __init__(self) -> None:
        self.tensors: dict[str, tuple[Array, DType]] = {}
        self.digests: dict[str, str] = {}  # SHA-256 in hex, by the same names
        self._names: dict[tuple[object, ...], str] = {}

    def add(self, wish: str, array: Array, dtype: DType) -> str:
        """The name of the tensor in the file: of an equal one that is there, else `wish`, with a number if taken."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        digest = hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
        key = (dtype.name, array.shape, digest)
        if key not in self._names:
            name, tries = wish.lstrip("._") or "weight", 1
            while name in self.tensors:
                tries += 1
                name = f"{wish.lstrip('._') or 'weight'}#{tries}"
            self._names[key] = name
            self.tensors[name], self.digests[name] = (array, dtype), digest
        return self._names[key]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array, _ in self.tensors.values())


def packed(graph: Graph, params: Mapping[str, Array]) -> list[Array]:
    """What depends on parameters only, in the order of the graph's outputs.

    It is computed with code for the least level of this architecture, whatever the artifact's target is: so the values
    are the same on whichever machine the artifact is compiled.
    """
    target = default_levels()[0].target
    if set(target.features) - set(Target.host().features):
        target = Target.host()
    return run_prepare(compile_fused(graph, target, Clock()).plan, params)


def fitting(name: str, t: TensorType, value: Any) -> Array:
    """A parameter as an array; ValueError where it is of another type."""
    array: Array = np.asarray(value)
    if array.dtype.name == "bfloat16" and t.dtype.name == "bfloat16":
        array = array.view(np.uint16)
    if array.shape != t.shape or array.dtype != t.dtype.numpy:
        raise ValueError(f"the parameter {name} is {t}, got {array.dtype}{list(array.shape)}")
    whole: Array = np.ascontiguousarray(array).reshape(array.shape)
    return whole
