"""Models in ONNX files.

>>> from nnvm.frontend.onnx import from_onnx
>>> graph, params = from_onnx("model.onnx", shapes={"x": ("batch", 3, 224, 224)})  # doctest: +SKIP
>>> onnx.save(to_onnx(graph, params), "again.onnx")  # doctest: +SKIP

`Backend` is the class that ONNX's own test suite drives. The package `onnx` is imported when a model is.
"""

from typing import Any

from nnvm.frontend.onnx.export import UnsupportedGraph, to_onnx
from nnvm.frontend.onnx.importer import Imported, InvalidModel, UnsupportedModel, UnsupportedNode, from_onnx
from nnvm.frontend.onnx.session import Session
from nnvm.graph.exporters import register_exporter

__all__ = [
    "Backend", "Imported", "InvalidModel", "Session", "UnsupportedGraph", "UnsupportedModel", "UnsupportedNode",
    "from_onnx", "to_onnx",
]  # fmt: skip

register_exporter("onnx", to_onnx)


def __getattr__(name: str) -> Any:
    if name == "Backend":
        from nnvm.frontend.onnx.backend import backend_class

        return backend_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
