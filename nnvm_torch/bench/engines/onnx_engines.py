"""Engines that run ONNX files, on torch's own ONNX export: nnvm without PyTorch, ONNX Runtime and OpenVINO."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nnvm.bench.engine import Engine, Runner
from nnvm.bench.errors import BenchError
from nnvm.bench.onnx import engines as onnx_engines
from nnvm.bench.onnx.engines import OnnxSetup

from ..models.case import Inputs
from .base import Setup

__all__ = ["ENGINES"]


def export_onnx(setup: Setup) -> Path:
    """Writes the model with its shapes fixed, as the other engines see it."""
    path = setup.folder / "model.onnx"
    program = torch.onnx.export(setup.module, setup.inputs, dynamo=True, verbose=False)
    assert program is not None
    program.save(str(path), external_data=True)  # one file may hold no more than 2 GiB
    return path


def to_numpy(inputs: Inputs) -> list[Any]:
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    if any(x.dtype == torch.bfloat16 for x in tensors):
        raise BenchError("bfloat16 inputs cannot be handed over: numpy has no such type")
    return [x.numpy() for x in tensors]


def input_names(path: Path, setup: Setup) -> list[str]:
    import onnx

    names = [v.name for v in onnx.load(str(path), load_external_data=False).graph.input]
    count = sum(isinstance(x, torch.Tensor) for x in setup.inputs)
    if len(names) != count:
        raise BenchError(f"the exported graph has {len(names)} inputs, the model {count}: one is unused or a constant")
    return names


def exported(prepare: Callable[[OnnxSetup], Runner]) -> Callable[[Setup], Runner]:
    """An engine of ONNX files as one of modules."""

    def prepare_module(setup: Setup) -> Runner:
        path = export_onnx(setup)
        names = input_names(path, setup)
        shapes = dict(zip(names, (a.shape for a in to_numpy(setup.inputs)), strict=True))
        runner = prepare(OnnxSetup(path, shapes, setup.threads, setup.cores, setup.folder))
        return Runner(runner.call, lambda inputs: runner.convert(dict(zip(names, to_numpy(inputs), strict=True))),
                      runner.outputs)  # fmt: skip

    return prepare_module


def adopted(name: str, engine: Engine, summary: str) -> Engine:
    packages = tuple(dict.fromkeys(("onnx", "onnxscript", *engine.packages)))
    return Engine(name, summary, exported(engine.prepare), packages, engine.openmp)


ENGINES = (
    adopted("nnvm-onnx", onnx_engines.ENGINES["nnvm"], "nnvm compile of the ONNX export, without PyTorch at run time"),
    adopted("onnxruntime", onnx_engines.ENGINES["onnxruntime"], "ONNX Runtime on the ONNX export"),
    adopted("openvino", onnx_engines.ENGINES["openvino"], "OpenVINO on the ONNX export"),
)
