"""ONNX Runtime and OpenVINO, both from torch's own ONNX export."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from ..errors import BenchError
from ..models.case import Inputs
from .base import Engine, Runner, Setup

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


def to_tensors(arrays: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def match_inputs(names: list[str], setup: Setup) -> list[str]:
    count = sum(isinstance(x, torch.Tensor) for x in setup.inputs)
    if len(names) != count:
        raise BenchError(f"the exported graph has {len(names)} inputs, the model {count}: one is unused or a constant")
    return names


def onnxruntime(setup: Setup) -> Runner:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = setup.threads
    options.inter_op_num_threads = 1
    pinned = len(setup.cores) == setup.threads > 1
    if pinned:  # One core for each pool thread; the calling thread is the first worker. Processors count from 1.
        affinities = ";".join(str(core + 1) for core in setup.cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
    session = ort.InferenceSession(str(export_onnx(setup)), options, providers=["CPUExecutionProvider"])
    if pinned:
        os.sched_setaffinity(0, {setup.cores[0]})
    names = match_inputs([entry.name for entry in session.get_inputs()], setup)

    def convert(inputs: Inputs) -> dict[str, Any]:
        return dict(zip(names, to_numpy(inputs), strict=True))

    return Runner(lambda feed: session.run(None, feed), convert, to_tensors)


def openvino(setup: Setup) -> Runner:
    import openvino as ov

    core = ov.Core()
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": setup.threads,
        # It would choose cores by itself, outside of those that all engines share.
        "ENABLE_CPU_PINNING": False,
    }
    dtypes = {parameter.dtype for parameter in setup.module.parameters()}
    if dtypes == {torch.float32}:
        settings["INFERENCE_PRECISION_HINT"] = "f32"  # else bfloat16 where the processor has it
    compiled = core.compile_model(str(export_onnx(setup)), "CPU", settings)
    match_inputs([port.any_name for port in compiled.inputs], setup)
    request = compiled.create_infer_request()

    def outputs(answer: Any) -> list[torch.Tensor]:
        return to_tensors([answer[port].copy() for port in compiled.outputs])

    return Runner(lambda arrays: request.infer(arrays, share_inputs=True, share_outputs=True), to_numpy, outputs)


ENGINES = (
    Engine("onnxruntime", "ONNX Runtime", onnxruntime, ("onnx", "onnxscript", "onnxruntime"), openmp=False),
    Engine("openvino", "OpenVINO", openvino, ("onnx", "onnxscript", "openvino"), openmp=False),
)
