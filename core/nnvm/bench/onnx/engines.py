"""The engines that ONNX files run in. All are set as their makers advise for latency."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnvm.bench.engine import Array, Engine, Runner, Side, lookup
from nnvm.bench.errors import BenchError

__all__ = ["ENGINES", "ONNX", "OnnxSetup", "find_engine"]

Feed = Mapping[str, "Array"]


@dataclass(frozen=True)
class OnnxSetup:
    """What an engine is given.

    Attributes:
        shapes: of all inputs, by name.
        folder: its own, empty, and removed with the worker.
    """

    path: Path
    shapes: Mapping[str, tuple[int, ...]]
    threads: int
    cores: tuple[int, ...]
    folder: Path


def nnvm(setup: OnnxSetup) -> Runner:
    """By the way that users go: a compiled file, loaded."""
    from nnvm.artifact import as_level, compile_artifact
    from nnvm.dtype import BF16, bf16_to_f32
    from nnvm.frontend.onnx import from_onnx
    from nnvm.runtime import openmp
    from nnvm.runtime.artifact.module import load

    graph, params = from_onnx(str(setup.path), setup.shapes)
    file = setup.folder / "model.nnvm"
    compile_artifact(graph, params, file, [as_level("host")])
    del graph, params
    if setup.threads > 1 and not openmp.set_threads(setup.threads):
        raise BenchError(f"there is no OpenMP runtime here to run on {setup.threads} threads")
    module = load(file)
    narrow = {t.name for t in module.outputs if t.dtype == BF16}

    def outputs(answer: Mapping[str, Array]) -> list[Array]:
        return [bf16_to_f32(array) if name in narrow else array for name, array in answer.items()]

    return Runner(module.run, dict, outputs)


def onnxruntime(setup: OnnxSetup) -> Runner:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = setup.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    pinned = len(setup.cores) == setup.threads > 1
    if pinned:  # One core for each pool thread; the calling thread is the first worker. Processors count from 1.
        affinities = ";".join(str(core + 1) for core in setup.cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", affinities)
    session = ort.InferenceSession(str(setup.path), options, providers=["CPUExecutionProvider"])
    if pinned:
        os.sched_setaffinity(0, {setup.cores[0]})
    return Runner(lambda feed: session.run(None, feed), dict, list)


def openvino(setup: OnnxSetup) -> Runner:
    import openvino as ov

    core = ov.Core()
    settings: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": setup.threads,
        # It would choose cores by itself, outside of those that all engines share.
        "ENABLE_CPU_PINNING": False,
        # What the model says; else bfloat16 where the processor has it.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    model = core.read_model(str(setup.path))
    model.reshape({port: ov.PartialShape(setup.shapes[port.any_name]) for port in model.inputs})
    compiled = core.compile_model(model, "CPU", settings)
    request = compiled.create_infer_request()
    names = [port.any_name for port in compiled.inputs]

    def convert(feed: Feed) -> list[Array]:
        return [feed[name] for name in names]

    def outputs(answer: Any) -> list[Array]:
        return [answer[port].copy() for port in compiled.outputs]

    return Runner(lambda arrays: request.infer(arrays, share_inputs=True, share_outputs=True), convert, outputs)


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("nnvm", "nnvm compile and nnvm.runtime.load", nnvm, ("onnx",)),
        Engine("onnxruntime", "ONNX Runtime", onnxruntime, ("onnxruntime",), openmp=False),
        Engine("openvino", "OpenVINO", openvino, ("openvino",), openmp=False),
    )
}


def find_engine(name: str) -> Engine:
    """The engine of that name. BenchError if there is none, or if it runs modules of PyTorch only."""
    if name.startswith(("eager", "inductor", "backend:", "nnvm-")):
        raise BenchError(f"{name} runs models that PyTorch builds, not ONNX files; there are {', '.join(ENGINES)}")
    return lookup(name, ENGINES)


#: ONNX files.
ONNX = Side("nnvm.bench.onnx.worker", ENGINES, find_engine, reference_openmp=False)
