"""The process of one engine that runs an ONNX file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from nnvm.bench.channel import Message
from nnvm.bench.engine import Array, Engine, missing_package
from nnvm.bench.errors import BenchError, one_line, require
from nnvm.bench.memory import resident_bytes
from nnvm.bench.onnx.engines import ENGINES, OnnxSetup, find_engine
from nnvm.bench.onnx.inputs import InputSpec, draw, input_specs, load_files, weight_shapes
from nnvm.bench.session import CHECK_SAMPLES, Session, save_answers, serve

__all__ = ["OnnxSession", "main"]


class OnnxSession(Session):
    """One ONNX file in one engine."""

    _specs: list[InputSpec]
    _fixed: dict[str, Array]

    def load(self) -> Message:
        """Reads the inputs' types and the number of parameters; each engine reads the rest for itself."""
        require("onnx")
        import onnx

        job = self.job
        try:
            model = onnx.load(job.model, load_external_data=False)
        except FileNotFoundError:
            raise BenchError(f"no file {job.model}") from None
        except OSError as error:
            raise BenchError(f"{job.model} cannot be read: {error.strerror}") from error
        except Exception as error:  # protobuf has exceptions of its own, which depend on its version
            raise BenchError(f"{job.model} is no ONNX model: {error}") from error
        if not model.graph.node and not model.graph.output:
            raise BenchError(f"{job.model} is no ONNX model: it holds no graph")
        self._fixed = load_files(job.inputs)
        shapes = {**job.shapes, **{name: array.shape for name, array in self._fixed.items()}}
        self._specs = input_specs(model, job.batch, shapes)
        for s in self._specs:
            if s.name in self._fixed and self._fixed[s.name].dtype != s.dtype:
                raise BenchError(f"the input {s} got an array of {self._fixed[s.name].dtype}")
        self._parameters = sum(map(math.prod, weight_shapes(model).values()))
        return {"resident_bytes": resident_bytes()}

    def reference(self, path: str) -> Message:
        """The answers of ONNX Runtime, not optimised; without it, by nnvm's definitions of the operators."""
        facts: Message = {"parameters": self._parameters, "inputs": [str(s) for s in self._specs]}
        reasons = []
        for name, run in (("ONNX Runtime without optimisations", self._by_onnxruntime),
                          ("the operators' definitions in numpy", self._by_definition)):  # fmt: skip
            try:
                answers = [run(self.fresh(index)) for index in range(CHECK_SAMPLES)]
            except Exception as error:  # another reference may know what this one does not
                reasons.append(one_line(error))
                continue
            save_answers(path, [[np.asarray(a, np.float64) for a in arrays] for arrays in answers])
            return {**facts, "reference": name, "outputs": [list(a.shape) for a in answers[0]]}
        return {**facts, "no_reference": "; ".join(reasons)}

    def fresh(self, index: int) -> dict[str, Array]:
        return draw(self._specs, self._fixed, self.job.seed, index)

    def engine(self) -> Engine:
        return find_engine(self.job.engine)

    def setup(self) -> OnnxSetup:
        shapes = {s.name: s.shape for s in self._specs}
        return OnnxSetup(Path(self.job.model), shapes, self.job.threads, self.job.cores, Path(self.job.folder))

    def _by_onnxruntime(self, feed: dict[str, Array]) -> list[Array]:
        if missing := missing_package(ENGINES["onnxruntime"]):
            raise BenchError(missing)
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads, options.log_severity_level = self.job.threads, 3
        session = ort.InferenceSession(self.job.model, options, providers=["CPUExecutionProvider"])
        answer: list[Any] = session.run(None, feed)
        return answer

    def _by_definition(self, feed: dict[str, Array]) -> list[Array]:
        from nnvm.frontend.onnx import from_onnx
        from nnvm.testing.reference import run_graph

        graph, params = from_onnx(self.job.model, {s.name: s.shape for s in self._specs})
        return run_graph(graph, {**params, **feed})


def main() -> None:
    serve(OnnxSession)


if __name__ == "__main__":
    main()
