"""What is wrong with a node, by ONNX's own definition of its operator."""

from __future__ import annotations

from typing import Any

__all__ = ["misfit"]


def misfit(node: Any, domain: str, opset: int) -> str | None:
    """How a node's attributes or number of inputs differ from what its operator has; None where they do not."""
    import onnx

    if not onnx.defs.has(node.op_type, opset, domain):
        return None
    schema: Any = onnx.defs.get_schema(node.op_type, opset, domain)
    count = len(node.input)
    if not schema.min_input <= count <= schema.max_input:
        return f"{count} inputs; {node.op_type} takes {_range(schema.min_input, schema.max_input)}"
    if any(not name for name in node.input[: schema.min_input]):
        return f"an input that is left out; {node.op_type} needs the first {schema.min_input}"
    given = {a.name: a for a in node.attribute}
    for name, wanted in schema.attributes.items():
        if name not in given:
            if wanted.required:
                return f"its attribute {name} is missing"
            continue
        kind, known = given[name].type, onnx.AttributeProto.AttributeType
        if int(kind) != int(wanted.type.value):
            is_known = kind in known.values()
            told = known.Name(kind) if is_known else str(kind)
            return f"its attribute {name} is of kind {told}, not {known.Name(int(wanted.type.value))}"
    unknown = [name for name in given if name not in schema.attributes]
    return f"its attribute {unknown[0]} is none that {node.op_type} has" if unknown else None


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} or more" if high > 1 << 20 else f"{low} to {high}"
