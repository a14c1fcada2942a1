"""Runs te programs through the schedules: in the interpreter, and as machine code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnvm.dim import evaluate
from nnvm.schedules.select import lower_tensors
from nnvm.target import Target
from nnvm.te.tensor import Tensor
from nnvm.tir import interpreter, verify
from nnvm.tir.stmt import PrimFunc

HASWELL = Target.parse("llvm -mcpu=haswell")
Array = np.ndarray[Any, Any]


def lowered(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], target: Target = HASWELL, strides: Any = None
) -> PrimFunc:
    func = lower_tensors(inputs, outputs, target, "kernel", strides or {})
    verify.verify(func)
    return func


def call(func: PrimFunc, inputs: Sequence[Array], outputs: Sequence[Tensor], symbols: Mapping[str, int] | None = None,
         compiled: bool = False) -> list[Array]:  # fmt: skip
    """Runs `func` on contiguous arrays; gives the outputs."""
    sizes = dict(symbols or {})
    results = [np.zeros([evaluate(d, sizes) for d in t.shape], t.dtype.numpy) for t in outputs]
    params = []
    for array, buffer in zip([*inputs, *results], func.params):
        params.append(np.ascontiguousarray(array).reshape([evaluate(d, sizes) for d in buffer.shape]))
    if compiled:
        from nnvm.runtime.llvm_jit import compile_funcs

        (kernel,) = compile_funcs([func], Target.host())
        kernel(*params, symbols=sizes)
    else:
        interpreter.run(func, params, sizes)
    return [p.reshape(r.shape) for p, r in zip(params[len(inputs) :], results)]


def compute(inputs: Sequence[Tensor], outputs: Sequence[Tensor], arrays: Sequence[Array], target: Target = HASWELL,
            symbols: Mapping[str, int] | None = None, compiled: bool = False) -> list[Array]:  # fmt: skip
    return call(lowered(inputs, outputs, target), arrays, outputs, symbols, compiled)
