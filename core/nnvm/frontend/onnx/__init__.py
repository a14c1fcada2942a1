"""Models in ONNX files.

>>> from nnvm.frontend.onnx import from_onnx
>>> graph, params = from_onnx("model.onnx", shapes={"x": ("batch", 3, 224, 224)})  # doctest: +SKIP

`Backend` is the class that ONNX's own test suite drives. The package `onnx` is imported when a model is.
"""

from typing import Any

from nnvm.frontend.onnx.importer import Imported, UnsupportedModel, UnsupportedNode, from_onnx
from nnvm.frontend.onnx.session import Session

__all__ = ["Backend", "Imported", "Session", "UnsupportedModel", "UnsupportedNode", "from_onnx"]


def __getattr__(name: str) -> Any:
    if name == "Backend":
        from nnvm.frontend.onnx.backend import backend_class

        return backend_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
