"""ONNX models as PyTorch modules, without Dynamo: `nnvm_torch.from_onnx`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from nnvm.compiler.build import compile_graph
from nnvm.dtype import BF16
from nnvm.dtype import dtype as as_dtype
from nnvm.frontend.onnx.importer import Imported as ImportedOnnx
from nnvm.frontend.onnx.reading import read_model
from nnvm.frontend.onnx.specialise import Specialised
from nnvm.frontend.onnx.unsupported import UnsupportedModel, UnsupportedNode
from nnvm_torch.imported import FromGraph, Imported
from nnvm_torch.options import Options
from nnvm_torch.runner import Runner

__all__ = ["OnnxModule", "from_onnx"]

Array = np.ndarray[Any, Any]


def from_onnx(model: Any, **options: Any) -> OnnxModule:
    """An ONNX model as a module, for inference.

    Args:
        model: the path of a file (with its external data next to it) or an `onnx.ModelProto`.
        options: see `nnvm_torch.Options`.

    Raises:
        FileNotFoundError: there is no such file. InvalidModel: it holds no model, or one that contradicts itself.
        UnsupportedModel: lists everything that cannot be imported; where that depends on sizes or values of inputs, at
            the first call.
    """
    return OnnxModule(read_model(model), Options.make(options))


class OnnxModule(nn.Module):
    """Runs a compiled ONNX model on tensors; its weights are parameters, under their names with ``_`` for ``.``.

    Called with the model's inputs in order, or by name; gives a tensor, or a tuple where there are several outputs. A
    changed parameter counts from the next call on.
    """

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__()
        self._options = options
        self._names: dict[str, str] = {}  # of the model's weights -> of the parameters
        self._runners = Specialised(model, self._build)
        self.input_names = tuple(self._runners.names)

    def _build(self, imported: ImportedOnnx) -> tuple[Runner, tuple[str, ...], tuple[str, ...]]:
        graph = imported.graph
        for name, array in imported.params.items():
            self._add_weight(name, array, next(v for v in graph.inputs if v.name == name).types[0].dtype == BF16)  # type: ignore[index]
        count = len(graph.outputs)
        place = Imported(
            graph, tuple(range(len(graph.inputs))), (), (), tuple(FromGraph(i) for i in range(count)), (), (),
            len(graph.nodes), len(graph.nodes), (None,) * count,
        )  # fmt: skip
        try:
            runner = Runner(place, compile_graph(graph, self._options.build_options()))
        except (ValueError, NotImplementedError) as e:
            raise UnsupportedModel([UnsupportedNode("compiler", "the whole graph", 0, str(e))]) from e
        inputs = tuple(v.name for v in graph.inputs if v.attrs["kind"] == "input")
        return runner, inputs, tuple(self._names[n] for n in imported.params)

    def _add_weight(self, name: str, array: Array, is_bf16: bool) -> None:
        if name in self._names:
            return
        own, count = name.replace(".", "_") or "weight", 0
        while hasattr(self, own if not count else f"{own}_{count}"):
            count += 1
        own = own if not count else f"{own}_{count}"
        tensor = torch.from_numpy(np.array(array, order="C"))
        tensor = tensor.view(torch.bfloat16) if is_bf16 else tensor
        self._names[name] = own
        self.register_parameter(own, nn.Parameter(tensor, requires_grad=False))

    def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        names = self.input_names
        if len(args) > len(names) or {*names[len(args) :]} != {*kwargs}:
            raise TypeError(f"the model takes {', '.join(names)}; got {len(args)} tensors and {', '.join(kwargs)}")
        given = {**dict(zip(names, args)), **kwargs}
        runner, inputs, weights = self._runners.of({n: t.shape for n, t in given.items()}, lambda n: given[n].numpy())
        with torch.no_grad():
            tensors = [self._checked(runner, n, given[n]) for n in inputs]
            outputs = runner([*tensors, *(self.get_parameter(w) for w in weights)])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @staticmethod
    def _checked(runner: Runner, name: str, tensor: torch.Tensor) -> torch.Tensor:
        wanted = next(v for v in runner.imported.graph.inputs if v.name == name).types[0]  # type: ignore[index]
        if as_dtype(str(tensor.dtype).removeprefix("torch.")) != wanted.dtype or tensor.dim() != wanted.rank:
            raise TypeError(f"input {name} is {wanted}, got {tensor.dtype}{list(tensor.shape)}")
        fits = all(not isinstance(d, int) or d == n for d, n in zip(wanted.shape, tensor.shape))
        if not fits or tensor.device.type != "cpu":
            raise TypeError(f"input {name} is {wanted} on the CPU, got {list(tensor.shape)} on {tensor.device}")
        return tensor.contiguous()
