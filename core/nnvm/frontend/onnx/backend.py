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
from nnvm.graph import TensorType

__all__ = ["Prepared", "backend_class"]

Array = np.ndarray[Any, Any]


class Prepared:
    """A model ready to run on numpy arrays.

    It is compiled once, for all sizes, where that can be done. Inputs whose values decide shapes (the second one of
    Reshape, say) make it be compiled for these values, and sizes that an op must know make it be compiled for the sizes
    of a call; both at the first call that has them.

    Attributes:
        fixed: the inputs whose values it is compiled for.
        by_sizes: whether it is compiled for each set of sizes.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        initialised = {t.name for t in model.graph.initializer}
        self.names = [i.name for i in model.graph.input if i.name not in initialised]
        self.fixed: frozenset[str] = frozenset()
        self.by_sizes = False
        self.formats = [format_of(o.type.tensor_type.elem_type) for o in model.graph.output]
        self._sessions: dict[tuple[object, ...], tuple[Session, list[TensorType]]] = {}
        try:
            self._session({})
        except UnsupportedModel as e:
            if not self._can_learn(e):
                raise

    def run(self, inputs: Sequence[Array] | Mapping[str, Array]) -> tuple[Array, ...]:
        """The outputs in the model's order; UnsupportedModel where the model cannot be run for these inputs."""
        given = [inputs[n] for n in self.names] if isinstance(inputs, Mapping) else list(inputs)
        arrays = dict(zip(self.names, map(_bits, given), strict=True))
        while True:
            try:
                session, types = self._session(arrays)
                break
            except UnsupportedModel as e:
                if not self._can_learn(e):
                    raise
        results = session.run([arrays[v.name] for v in session.inputs])
        return tuple(_values(r, t, f) for r, t, f in zip(results, types, self.formats))

    def _can_learn(self, e: UnsupportedModel) -> bool:
        """Whether the values or sizes of a call may make the model importable; notes which are wanted."""
        if e.is_final:
            return False
        values = frozenset().union(*(n.needs for n in e.nodes))
        if values - self.fixed:
            self.fixed |= values
            return True
        if not self.by_sizes and _has_open_sizes(self.model, self.names):
            self.by_sizes = True
            return True
        return False

    def _session(self, arrays: Mapping[str, Array]) -> tuple[Session, list[TensorType]]:
        values = {n: arrays[n] for n in self.names if n in self.fixed}
        shapes = {n: a.shape for n, a in arrays.items()} if self.by_sizes else {}
        key = (*((n, a.shape, a.tobytes()) for n, a in sorted(values.items())), *sorted(shapes.items()))
        if key not in self._sessions:
            imported = from_onnx(self.model, shapes=shapes, values=values)
            self._sessions[key] = _compile(imported), [e.type for e in imported.graph.outputs]
        return self._sessions[key]


def _has_open_sizes(model: Any, names: Sequence[str]) -> bool:
    """Whether an input has a size that the model does not give."""
    for info in model.graph.input:
        if info.name in names and info.type.HasField("tensor_type"):
            tensor = info.type.tensor_type
            if not tensor.HasField("shape") or any(d.dim_value <= 0 for d in tensor.shape.dim):
                return True
    return False


def _compile(imported: Imported) -> Session:
    try:
        return Session(imported.graph, imported.params)
    except (ValueError, NotImplementedError) as e:
        raise UnsupportedModel([UnsupportedNode("compiler", "the whole graph", 0, str(e))]) from e


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
