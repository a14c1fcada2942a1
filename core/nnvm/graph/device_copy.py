"""The op ``device_copy``: a value on another device. PlaceDevice inserts it at the borders."""

from __future__ import annotations

from dataclasses import replace

from nnvm.graph.node import NodeEntry, apply
from nnvm.graph.op import Param, register
from nnvm.graph.op_attrs import OpPattern

__all__ = ["device_copy", "is_device_copy"]

register(
    "device_copy", inputs=["data"], params={"device": Param("where the copy is", str)}, pattern=OpPattern.OPAQUE,
    doc="The data on another device.", sets_device=True, reference=lambda attrs, x: (x,),
    infer_type=lambda attrs, inputs: (replace(inputs[0], device=attrs["device"]),),
    gradient=lambda node, grads: [
        None if grads[0] is None else device_copy(grads[0], node.inputs[0].type.device, f"{node.name}.gradient")],
)  # fmt: skip


def device_copy(entry: NodeEntry, device: str, name: str = "") -> NodeEntry:
    """`entry` on `device`."""
    return apply("device_copy", [entry], {"device": device}, name, entry.node.source)[0]


def is_device_copy(entry: NodeEntry) -> bool:
    return entry.node.op.name == "device_copy"
