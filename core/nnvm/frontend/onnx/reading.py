"""From a file to a model message that the importer can walk: what is broken is said here, as `InvalidModel`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nnvm.frontend.onnx.functions import inline_definitions
from nnvm.frontend.onnx.old_opsets import at_opset
from nnvm.frontend.onnx.unsupported import InvalidModel, UnsupportedModel

__all__ = ["OLDEST", "prepared", "read_model"]

#: Nodes of a model whose functions are written out, at most.
LARGEST = 1_000_000
#: Models of older opsets are converted to this one first.
OLDEST = 7


def read_model(model: Any) -> Any:
    """The `onnx.ModelProto` in the file of this path, with its external data; one that is given stays as it is.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidModel: it holds no model, or its external data are not what it says (beside it, and long enough).
    """
    import onnx
    from onnx.external_data_helper import load_external_data_for_model

    if not isinstance(model, (str, os.PathLike)):
        return model
    path = os.fspath(model)
    with open(path, "rb"):
        pass  # that it is not there is no fault of the model
    with _told("the file is no ONNX model"):
        found = onnx.load(path, load_external_data=False)
    if not found.HasField("graph"):
        raise InvalidModel("the file is no ONNX model: it has no graph")
    with _told("its external data cannot be read"):
        load_external_data_for_model(found, os.path.dirname(os.path.abspath(path)))
    return found


def prepared(model: Any) -> Any:
    """The model at an opset from `OLDEST` on, without functions and operators that are defined by others.

    InvalidModel where it contradicts itself; UnsupportedModel lists nodes that cannot be converted.
    """
    import onnx.inliner

    for o in model.opset_import:
        if not 1 <= o.version < 1 << 16:
            raise InvalidModel(f"the model asks for opset {o.version} of the domain {o.domain!r}")
    _check_text(model)
    with _told("the model contradicts itself"):
        if (version := next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), OLDEST)) < OLDEST:
            model = at_opset(model, version, OLDEST)
        if len(model.functions):
            _check_functions(model)
            model = onnx.inliner.inline_local_functions(model)
        return inline_definitions(model)


def _check_text(model: Any) -> None:
    """Refuses names that are no text: protobuf gives them as bytes."""
    graphs, nodes = [model.graph], [n for f in model.functions for n in f.node]
    while graphs or nodes:
        for graph in graphs:
            nodes.extend(graph.node)
            values = (*graph.initializer, *graph.input, *graph.output)
            if wrong := [v.name for v in values if not isinstance(v.name, str)]:
                raise InvalidModel(f"the name {wrong[0]!r} of a value is no text")
        graphs = []
        for node in nodes:
            for text in (node.name, node.op_type, node.domain, *node.input, *node.output):
                if not isinstance(text, str):
                    raise InvalidModel(f"the name {text!r} at a node {node.op_type!r} is no text")
            graphs.extend(g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs))
        nodes = []


def _check_functions(model: Any) -> None:
    """Refuses functions that call themselves, and calls of calls that make too many nodes when they are written out."""
    bodies = {(f.domain, f.name): f.node for f in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    stack = [(key, False) for key in bodies]
    open_: set[tuple[str, str]] = set()
    while stack:
        key, done = stack.pop()
        called = [(n.domain, n.op_type) for n in bodies[key] if (n.domain, n.op_type) in bodies]
        if done:
            open_.discard(key)
            sizes[key] = len(bodies[key]) + sum(sizes[c] for c in called)
            if sizes[key] > LARGEST:
                raise InvalidModel(f"the function {key[1]} has more than {LARGEST} nodes when it is written out")
        elif key not in sizes:
            open_.add(key)
            stack.append((key, True))
            for c in called:
                if c in open_:
                    raise InvalidModel(f"the function {c[1]} calls itself")
                stack.append((c, False))
    total = sum(sizes.get((n.domain, n.op_type), 1) for n in model.graph.node)
    if total > LARGEST:
        raise InvalidModel(f"the model has more than {LARGEST} nodes when its functions are written out")


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Errors of the packages `onnx` and `protobuf`, which are of many kinds, as InvalidModel."""
    try:
        yield
    except (UnsupportedModel, InvalidModel):
        raise
    except Exception as e:
        raise InvalidModel(f"{what}: {' '.join(str(e).split())[:500] or type(e).__name__}") from e
