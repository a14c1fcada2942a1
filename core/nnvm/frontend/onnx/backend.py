"""The interface of ONNX's own tests: `onnx.backend.base.Backend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from nnvm.dtype import BF16
from nnvm.frontend.onnx.formats import Format, format_named, format_of, packed, stored
from nnvm.frontend.onnx.importer import Imported, UnsupportedModel, UnsupportedNode, from_onnx
from nnvm.frontend.onnx.session import Session
from nnvm.frontend.onnx.specialise import Specialised
from nnvm.graph import TensorType

__all__ = ["Prepared", "backend_class"]

Array = np.ndarray[Any, Any]


class Prepared:
    """A model ready to run on numpy arrays, compiled as `Specialised` tells.

    Attributes:
        fixed: the inputs whose values it is compiled for.
        by_sizes: whether it is compiled for each set of sizes.
    """

    def __init__(self, model: Any) -> None:
        self.formats = [format_of(o.type.tensor_type.elem_type) for o in model.graph.output]
        self._sessions = Specialised(model, _compile)
        self.names = self._sessions.names

    @property
    def fixed(self) -> frozenset[str]:
        return self._sessions.fixed

    @property
    def by_sizes(self) -> bool:
        return self._sessions.by_sizes

    def run(self, inputs: Sequence[Array] | Mapping[str, Array]) -> tuple[Array, ...]:
        """The outputs in the model's order; UnsupportedModel where the model cannot be run for these inputs."""
        given = [inputs[n] for n in self.names] if isinstance(inputs, Mapping) else list(inputs)
        if len(given) != len(self.names):
            raise ValueError(f"the model takes {len(self.names)} inputs ({', '.join(self.names)}), got {len(given)}")
        arrays = dict(zip(self.names, map(_bits, given)))
        session, types = self._sessions.of({n: a.shape for n, a in arrays.items()}, arrays.__getitem__)
        results = session.run([arrays[v.name] for v in session.inputs])
        return tuple(_values(r, t, f) for r, t, f in zip(results, types, self.formats))


def _compile(imported: Imported) -> tuple[Session, list[TensorType]]:
    try:
        session = Session(imported.graph, imported.params)
    except (ValueError, NotImplementedError) as e:
        raise UnsupportedModel([UnsupportedNode("compiler", "the whole graph", 0, str(e))]) from e
    return session, [e.type for e in imported.graph.outputs]


def _bits(array: Any) -> Array:
    array = np.asarray(array)
    f = format_named(array.dtype.name)
    if f is not None:
        return stored(array, f)
    bits: Array = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    return bits


def _values(array: Array, t: TensorType, f: Format | None) -> Array:
    if f is not None:
        return packed(array, f)
    if t.dtype != BF16:
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)


@cache
def backend_class() -> type:
    """The class `nnvm.frontend.onnx.Backend`; needs the package `onnx`."""
    from onnx.backend.base import Backend

    class NNVMBackend(Backend):
        """Compiles ONNX models for this machine's CPU."""

        @classmethod
        def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> Any:
            """The model, compiled. UnsupportedModel lists what cannot be imported."""
            if not cls.supports_device(device):
                raise ValueError(f"unknown device {device}; known: CPU")
            return Prepared(model)

        @classmethod
        def supports_device(cls, device: str) -> bool:
            return device.split(":")[0] == "CPU"

        @classmethod
        def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
            """Whether the model can be imported, with values for some of its inputs perhaps."""
            try:
                from_onnx(model)
            except UnsupportedModel as e:
                return bool(e.needs)
            return cls.supports_device(device)

    return NNVMBackend
