"""Models built once for all sizes, or for the sizes and values of a call where that is not possible."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from nnvm.frontend.onnx.importer import Imported, from_onnx
from nnvm.frontend.onnx.unsupported import UnsupportedModel

__all__ = ["Specialised", "input_names"]

Array = np.ndarray[Any, Any]
T = TypeVar("T")

#: What is built for so many sets of sizes and values is kept; the one used longest ago makes room.
KEPT = 64


def input_names(model: Any) -> list[str]:
    """The inputs that a call gives: those without an initialiser."""
    initialised = {t.name for t in model.graph.initializer}
    return [i.name for i in model.graph.input if i.name not in initialised]


class Specialised(Generic[T]):
    """What `build` makes of a model.

    It is built once, for all sizes, where that can be done. Inputs whose values decide shapes (the second one of
    Reshape, say) make it be built for these values, and sizes that an op must know make it be built for the sizes of a
    call; both at the first call that has them.

    Attributes:
        names: the inputs of a call.
        fixed: those whose values it is built for.
        by_sizes: whether it is built for each set of sizes.
    """

    def __init__(self, model: Any, build: Callable[[Imported], T]) -> None:
        self.model, self.names = model, input_names(model)
        self.fixed: frozenset[str] = frozenset()
        self.by_sizes = False
        self._build = build
        self._built: OrderedDict[tuple[object, ...], T] = OrderedDict()
        try:
            self._get({}, {})
        except UnsupportedModel as e:
            if not self._can_learn(e):
                raise

    def of(self, shapes: Mapping[str, Sequence[int]], value: Callable[[str], Array]) -> T:
        """What is built for inputs of these shapes; `value` gives the elements of an input.

        UnsupportedModel where that cannot be done.
        """
        while True:
            try:
                return self._get(shapes, {n: value(n) for n in self.names if n in self.fixed})
            except UnsupportedModel as e:
                if not self._can_learn(e):
                    raise

    def _can_learn(self, e: UnsupportedModel) -> bool:
        """Whether the values or sizes of a call may help; notes which are wanted."""
        if e.is_final:
            return False
        values = frozenset(name for n in e.nodes for name in n.needs)
        if values - self.fixed:
            self.fixed |= values
            return True
        if not self.by_sizes and _has_open_sizes(self.model, self.names):
            self.by_sizes = True
            return True
        return False

    def _get(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> T:
        taken = {n: tuple(s) for n, s in shapes.items()} if self.by_sizes else {}
        key = (*((n, a.shape, a.tobytes()) for n, a in sorted(values.items())), *sorted(taken.items()))
        built = self._built.get(key)
        if built is None:
            built = self._build(from_onnx(self.model, shapes=taken, values=values))
            while len(self._built) >= KEPT:
                self._built.popitem(last=False)
        self._built[key] = built
        self._built.move_to_end(key)
        return built


def _has_open_sizes(model: Any, names: Sequence[str]) -> bool:
    """Whether an input has a size that the model does not give."""
    for info in model.graph.input:
        if info.name in names and info.type.HasField("tensor_type"):
            tensor = info.type.tensor_type
            if not tensor.HasField("shape") or any(d.dim_value <= 0 for d in tensor.shape.dim):
                return True
    return False
