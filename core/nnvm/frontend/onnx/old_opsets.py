"""Models of opsets before 7, by the conversion that the package `onnx` has."""

from __future__ import annotations

from typing import Any

from nnvm.frontend.onnx.unsupported import UnsupportedModel, UnsupportedNode

__all__ = ["at_opset"]


def at_opset(model: Any, version: int, wanted: int) -> Any:
    """A model of opset `version` as one of opset `wanted`; UnsupportedModel where ONNX has no rule for a node."""
    import onnx
    import onnx.version_converter

    model = _with_channel_slopes(model, version)
    try:
        return onnx.version_converter.convert_version(model, wanted)
    except (RuntimeError, onnx.checker.ValidationError) as e:
        why = f"opset before {wanted}, and ONNX cannot convert it: {str(e).splitlines()[0]}"
        nodes = [UnsupportedNode(n.op_type, n.name or n.output[0], version, why) for n in model.graph.node]
        raise UnsupportedModel(nodes) from None


def _with_channel_slopes(model: Any, version: int) -> Any:
    """Slopes [C] of PRelu as [C, 1, ...]: from opset 7 on they broadcast from the last axis, and ONNX's own conversion
    leaves them as they are."""
    import onnx

    nodes = [n for n in model.graph.node if n.op_type == "PRelu"]
    if not nodes:
        return model
    typed = onnx.shape_inference.infer_shapes(model).graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*typed.value_info, *typed.input)}
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    tensors = {t.name: t for t in changed.graph.initializer}
    infos = {v.name: v for v in changed.graph.input}
    refused = []
    for node in nodes:
        slope, rank = node.input[1], ranks.get(node.input[0], 0)
        tensor = tensors.get(slope)
        if tensor is None or rank == 0:
            why = "slopes per channel must be initialisers, and the rank of the data known"
            refused.append(UnsupportedNode("PRelu", node.name or node.output[0], version, why))
        elif len(tensor.dims) == 1 and tensor.dims[0] != 1 and rank > 2:
            tensor.dims.extend([1] * (rank - 2))
            if slope in infos:
                infos[slope].type.CopyFrom(onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims))
    if refused:
        raise UnsupportedModel(refused)
    return changed
