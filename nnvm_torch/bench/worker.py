"""The process of one engine that runs a model of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from nnvm.bench.channel import Message
from nnvm.bench.engine import Engine
from nnvm.bench.errors import one_line
from nnvm.bench.memory import resident_bytes
from nnvm.bench.session import CHECK_SAMPLES, Session, save_answers, serve

from .engines import Setup, find_engine
from .engines.base import arrays_of
from .models.case import Inputs, ModelCase
from .models.sources import load_model

__all__ = ["TorchSession", "main"]


class TorchSession(Session):
    """One model of PyTorch in one engine."""

    case: ModelCase | None = None

    def load(self) -> Message:
        torch.set_num_threads(self.job.threads)
        self.case = load_model(self.job.model, self.job.batch, getattr(torch, self.job.dtype), self.job.seed)
        return {"resident_bytes": resident_bytes()}

    def reference(self, path: str) -> Message:
        """The float64 answers."""
        case = self.loaded()
        facts: Message = {
            "parameters": sum(parameter.numel() for parameter in case.module.parameters()),
            "inputs": [describe(x) for x in case.inputs],
        }
        answers = []
        try:
            module = case.module.double()
            counter = FlopCounterMode(display=False)
            with counter:
                answers.append(arrays_of(module(*widen(self.fresh(0)))))
            facts["flops"] = counter.get_total_flops()
            for index in range(1, CHECK_SAMPLES):
                answers.append(arrays_of(module(*widen(self.fresh(index)))))
        except Exception as error:  # It may still run in its own type: then there is no error column, and a reason.
            return {**facts, "no_reference": one_line(error)}
        facts["outputs"] = [list(x.shape) for x in answers[0]]
        save_answers(path, answers)
        return facts

    def fresh(self, index: int) -> Inputs:
        return self.loaded().fresh(self.job.seed, index)

    def engine(self) -> Engine:
        return find_engine(self.job.engine)

    def setup(self) -> Setup:
        case = self.loaded()
        return Setup(case.module, case.inputs, self.job.threads, self.job.cores, Path(self.job.folder))

    def loaded(self) -> ModelCase:
        assert self.case is not None, "load() comes first"
        return self.case


def widen(inputs: Inputs) -> Inputs:
    return tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)


def describe(value: Any) -> str:
    """``float32[1, 3, 224, 224]``."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def main() -> None:
    serve(TorchSession, torch.no_grad())


if __name__ == "__main__":
    main()
