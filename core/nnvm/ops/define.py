"""Registration of ops: `register` as in `nnvm.graph.op`, with numpy references that need not mind their dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnvm.dtype import BF16, F16, DType, dtype, f32_to_bf16
from nnvm.graph import op as registry
from nnvm.graph.op import Op, Param
from nnvm.graph.types import TensorType

__all__ = ["register"]

Array = np.ndarray[Any, Any]


def register(
    name: str, *, inputs: Sequence[str] = (), params: Mapping[str, Param] | None = None,
    num_outputs: int | Callable[[Mapping[str, Any]], int] = 1, doc: str = "", aliases: Sequence[str] = (),
    infer_type: Callable[..., tuple[TensorType, ...]], reference: Callable[..., Sequence[Any]] | None = None,
    **attributes: Any,
) -> Op:  # fmt: skip
    """Makes a new op.

    `reference(attrs, *arrays)` is given half types as float32 (bfloat16 comes as float32 already) and may return any
    dtype: results are narrowed to the inferred types here.
    """

    def typed(attrs: Mapping[str, Any], *arrays: Array) -> tuple[Array, ...]:
        assert reference is not None
        outputs = infer_type(attrs, tuple(TensorType(a.shape, dtype(a.dtype)) for a in arrays))
        wide = (a.astype(np.float32) if a.dtype == F16.numpy else a for a in arrays)
        with np.errstate(all="ignore"):
            return tuple(_narrow(r, t.dtype) for r, t in zip(reference(attrs, *wide), outputs, strict=True))

    if reference is not None:
        attributes["reference"] = typed
    return registry.register(name, inputs=inputs, params=params, num_outputs=num_outputs, doc=doc, aliases=aliases,
                             infer_type=infer_type, **attributes)  # fmt: skip


def _narrow(value: Any, to: DType) -> Array:
    array = np.asarray(value)
    if to == BF16:
        return f32_to_bf16(array.astype(np.float32))
    return np.ascontiguousarray(array.astype(to.numpy, copy=False)).reshape(array.shape)
