"""From what the user typed to a graph: an ONNX file, NNVM's JSON, a compiled model, or a model of PyTorch's."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import nnvm.ops  # noqa: F401  registers the operators that a graph may use
from nnvm.cli.command import CliError, one_line
from nnvm.graph import Graph, NodeEntry
from nnvm.graph.json import load_json
from nnvm.runtime.memory import Memory, NumpyMemory
from nnvm.testing.reference import random_inputs

__all__ = ["Model", "load"]


@dataclass(frozen=True)
class Model:
    """A graph, and what it takes to run it.

    Attributes:
        tensors: makes a tensor for each input of the graph, for these values of the named sizes.
        constant: the tensor of a constant.
        memory: of the kind that these tensors are.
        fallbacks: calls that the frontend runs itself, with the reason.
        params: the weights that came with the model, by name, where these are numpy's.
        output_names: as the model calls its outputs, where it names them.
    """

    name: str
    graph: Graph
    tensors: Callable[[Mapping[str, int]], list[Any]]
    constant: Callable[[NodeEntry], Any]
    memory: Memory
    fallbacks: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    output_names: tuple[str, ...] | None = None


Shapes = Mapping[str, "Sequence[int | str]"]


def load(
    spec: str, *, batch: int = 1, dtype: str = "float32", shapes: Shapes | None = None,
    params: Mapping[str, Any] | None = None,
) -> Model:  # fmt: skip
    """The model; CliError says in a line what is wrong. `batch`, `dtype`: of models that PyTorch builds; `shapes`: of
    inputs of ONNX's and MXNet's, where the file does not say them or they are to differ (a str is a named size);
    `params`: the weights of a symbol of MXNet's, which are else those of the file beside it."""
    path = Path(spec)
    if path.suffix in (".onnx", ".json", ".nnvm", ".pt2"):
        if not path.is_file():
            raise CliError(f"no file {spec}", status=1)
        if path.suffix == ".nnvm":
            return _artifact(path)
        if path.suffix == ".pt2":
            return _exported(path)
        return _onnx(path, shapes) if path.suffix == ".onnx" else _json(path, shapes, params)
    if path.is_file() and path.suffix != ".py":
        raise CliError(
            f"{spec}: a model is an .onnx file, a .pt2, .nnvm or .json file (NNVM JSON), or a name (see --help)"
        )
    return _torch(spec, batch, dtype)


def _onnx(path: Path, shapes: Shapes | None) -> Model:
    try:
        import onnx
    except ModuleNotFoundError:
        raise CliError("ONNX files need the package onnx: pip install onnx", status=1) from None
    from nnvm.frontend.onnx import InvalidModel, UnsupportedModel, from_onnx

    try:
        imported = from_onnx(str(path), shapes)
        names = tuple(o.name for o in onnx.load(str(path), load_external_data=False).graph.output)
    except UnsupportedModel as e:
        raise CliError(f"{path}: {'; '.join(map(str, e.nodes))}", status=1) from e
    except InvalidModel as e:
        raise CliError(f"{path}: {e}", status=1) from e
    return replace(_numpy(path.stem, imported.graph, imported.params), output_names=names)


def _json(path: Path, shapes: Shapes | None, params: Mapping[str, Any] | None) -> Model:
    try:
        text = path.read_text("utf-8")
        if _is_mxnet(text):
            return _mxnet(path, text, shapes, params)
        if '"op": "torch.' in text:  # calls that PyTorch runs: its side knows how to read them
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module("nnvm_torch")
        graph = load_json(text)
    except RecursionError as e:
        raise CliError(f"{path} is no graph in NNVM's JSON format: it is nested too deep", status=1) from e
    except (ValueError, KeyError, TypeError, IndexError, SyntaxError) as e:
        what = f"line {e.lineno}: {e.msg}" if isinstance(e, json.JSONDecodeError) else one_line(e)
        what = what.removeprefix("no graph in NNVM's JSON format: ")
        raise CliError(f"{path} is no graph in NNVM's JSON format: {what}", status=1) from e
    if any(n.op.has("host_call") for n in graph.nodes):
        model: Model = importlib.import_module("nnvm_torch.bench.graph").read_model(path.stem, graph)
        return model
    return _numpy(path.stem, graph, {})


def _is_mxnet(text: str) -> bool:
    """Whether JSON is a symbol of MXNet's, whose format NNVM's own is too."""
    from nnvm.frontend.mxnet import convert  # noqa: F401  registers the converters
    from nnvm.frontend.mxnet.document import is_symbol
    from nnvm.frontend.mxnet.table import CONVERTERS
    from nnvm.graph.op import known

    ours = {*known()}
    return is_symbol(json.loads(text), {name: c for name, c in CONVERTERS.items() if name not in ours})


def _mxnet(path: Path, text: str, shapes: Shapes | None, params: Mapping[str, Any] | None) -> Model:
    from nnvm.frontend.mxnet import ParamsError, SymbolError, UnsupportedSymbol, from_mxnet

    beside = sorted(path.parent.glob(f"{path.stem.removesuffix('-symbol')}-[0-9][0-9][0-9][0-9].params"))
    try:
        found = from_mxnet(text, (beside[-1] if beside else None) if params is None else params, shapes)
    except UnsupportedSymbol as e:
        raise CliError(f"{path}: {'; '.join(map(str, e.nodes))}", status=1) from e
    except ParamsError as e:
        raise CliError(f"{beside[-1]}: {e}", status=1) from e
    except SymbolError as e:
        raise CliError(f"{path} is no symbol of MXNet's: {e}", status=1) from e
    return replace(_numpy(path.stem, found.graph, found.params), output_names=found.outputs)


def _artifact(path: Path) -> Model:
    """The graph that an artifact was compiled from; its weights are packed for processors and are not taken back."""
    from nnvm.runtime.artifact.container import ArtifactError, Container

    try:
        graph = load_json(bytes(Container(path).read("graph")).decode())
    except ArtifactError as e:
        raise CliError(str(e), status=1) from e
    return _numpy(path.stem, graph, {})


def _numpy(name: str, graph: Graph, params: Mapping[str, Any]) -> Model:
    """A graph on numpy arrays: weights as given, everything else random."""

    def tensors(sizes: Mapping[str, int]) -> list[Any]:
        drawn = random_inputs(graph, symbols=sizes)
        return [params.get(v.name, array) for v, array in zip(graph.inputs, drawn)]

    return Model(name, graph, tensors, lambda e: e.node.attrs["value"], NumpyMemory(), params=params)


def _exported(path: Path) -> Model:
    """A program of `torch.export` with its weights."""
    side = _torch_side("nnvm_torch.exported_graph", f"{path}: programs of torch.export")
    try:
        found = side.exported_graph(path)
    except side.FAULTS as error:
        raise CliError(" ".join(str(error).split()), status=1) from error
    if found.fallbacks:
        what = "only PyTorch can run calls of this program"
        raise CliError(f"{path}: {what}: {'; '.join(found.fallbacks)}", status=1)
    return replace(_numpy(path.stem, found.graph, found.params), output_names=found.outputs)


def _torch_side(module: str, what: str) -> Any:
    """A module of the side that imports PyTorch."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise CliError(f"{what} need PyTorch: pip install torch", status=1) from None
        if error.name == "nnvm_torch":
            raise CliError(f"{what} need nnvm_torch: pip install nnvm-torch", status=1) from None
        raise


def _torch(spec: str, batch: int, dtype: str) -> Model:
    side = _torch_side("nnvm_torch.bench.graph", f"{spec} is no file, and models by name")
    try:
        model: Model = side.graph_model(spec, batch, dtype)
    except side.FAULTS as error:
        raise CliError(" ".join(str(error).split()), status=1) from error
    return model
