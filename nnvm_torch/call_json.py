"""ATen calls of a graph as JSON: `AtenCall` and the torch values that stand among its arguments."""

from __future__ import annotations

from typing import Any

import torch

from nnvm.graph.json import decode_value, encode_value, register_value
from nnvm_torch.partition import AtenCall, Size, Slot

__all__: list[str] = []

#: torch's constants by their class; each is written as ``torch.NAME``.
_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format)


def _save_call(call: AtenCall) -> dict[str, Any]:
    if not isinstance(call.target, torch._ops.OpOverload):
        raise TypeError(f"a call of {call.target} cannot be written as JSON: it is no ATen or custom operator")
    return {"target": str(call.target), "args": encode_value(call.args), "kwargs": encode_value(dict(call.kwargs)),
            "keep": list(call.keep), "effect": call.effect}  # fmt: skip


def _load_call(data: dict[str, Any]) -> AtenCall:
    namespace, name, overload = data["target"].split(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    return AtenCall(getattr(packet, overload), decode_value(data["args"]), decode_value(data["kwargs"]),
                    tuple(data["keep"]), data["effect"])  # fmt: skip


register_value("aten", AtenCall, _save_call, _load_call)
register_value("slot", Slot, lambda s: [s.index, encode_value(s.strides)],
               lambda data: Slot(data[0], decode_value(data[1])))  # fmt: skip
register_value("callsize", Size, lambda s: encode_value(s.dim), lambda text: Size(decode_value(text)))
register_value("device", torch.device, str, torch.device)
for _cls in _CONSTANTS:
    register_value(f"torch.{_cls.__name__}", _cls, lambda v: str(v).removeprefix("torch."),
                   lambda name: getattr(torch, name))  # fmt: skip
