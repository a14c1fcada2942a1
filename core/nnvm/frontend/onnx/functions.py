"""Operators that ONNX defines by others: they are replaced by their definitions where there is no converter."""

from __future__ import annotations

from typing import Any

from nnvm.frontend.onnx.table import find

__all__ = ["definition_of", "inline_definitions"]

#: Definitions inside definitions, at most.
DEPTH = 8
#: Domain of the functions that stand for single nodes while they are inlined.
DOMAIN = "nnvm.definition"


def inline_definitions(model: Any) -> Any:
    """The model (the same object where nothing changes) without nodes that only have a definition."""
    for _ in range(DEPTH):
        opsets = {o.domain: o.version for o in model.opset_import}
        if not any(_is_defined(n, opsets) for n in model.graph.node):
            return model
        inlined = _inline_once(model, opsets)
        if inlined is None:
            return model
        model = inlined
    return model


def definition_of(node: Any, types: dict[str, Any], opsets: dict[str, int]) -> Any:
    """A node alone as the GraphProto of its definition; None where it has none.

    `types`: of its inputs, as `onnx.TypeProto`. Values inside may have any names.
    """
    import onnx

    if not _is_defined(node, opsets):
        return None
    inputs = [onnx.ValueInfoProto(name=name, type=types[name]) for name in dict.fromkeys(node.input) if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "definition", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in opsets.items()])
    inlined = inline_definitions(model)
    return None if inlined is model else inlined.graph


def _is_defined(node: Any, opsets: dict[str, int]) -> bool:
    import onnx

    domain = "" if node.domain == "ai.onnx" else node.domain
    opset = opsets.get(domain, 0)
    if find(domain, node.op_type, opset) is not None or not onnx.defs.has(node.op_type, opset, domain):
        return False
    schema: Any = onnx.defs.get_schema(node.op_type, opset, domain)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _inline_once(model: Any, opsets: dict[str, int]) -> Any:
    """None where no definition fits."""
    import onnx
    import onnx.inliner

    typed = onnx.shape_inference.infer_shapes(model)
    graph = typed.graph
    types = {v.name: v.type for v in (*graph.value_info, *graph.input, *graph.output)}
    for t in graph.initializer:
        types[t.name] = onnx.helper.make_tensor_type_proto(t.data_type, t.dims)
    changed = False
    for i, node in enumerate(typed.graph.node):
        if not _is_defined(node, opsets):
            continue
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = onnx.defs.get_schema(node.op_type, opsets[domain], domain)
        _add_defaults(node, schema)
        function = _definition(node, schema, types, opsets[domain])
        if function is None:
            continue
        function.domain, function.name = DOMAIN, f"{node.op_type}_{i}"
        node.domain, node.op_type = DOMAIN, function.name
        typed.functions.append(function)
        changed = True
    if not changed:
        return None
    typed.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return onnx.inliner.inline_local_functions(typed)


def _add_defaults(node: Any, schema: Any) -> None:
    """Writes out the attributes that are left out: a definition refers to them by name."""
    given = {a.name for a in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def _definition(node: Any, schema: Any, types: dict[str, Any], opset: int) -> Any:
    """The definition of this node at the model's opset, as a FunctionProto; None where there is none."""
    import onnx

    function = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        absent = onnx.TypeProto()
        given = [(types.get(name, absent) if name else absent).SerializeToString() for name in node.input]
        body = schema.get_context_dependent_function_with_opset_version(opset, node.SerializeToString(), given)
    else:
        body = schema.get_function_with_opset_version(opset)
    if not body:
        return None
    function.ParseFromString(body)
    return _at_opset(function, opset)


def _at_opset(function: Any, opset: int) -> Any:
    """A definition that was written for an older opset, where its nodes mean the same in this one; None elsewhere.

    The inliner takes only definitions of the model's own opset. Later versions of an op take what earlier ones did, but
    for attributes that became inputs.
    """
    import onnx

    for imported in function.opset_import:
        if imported.domain in ("", "ai.onnx") and imported.version != opset:
            for node in function.node:
                if node.domain in ("", "ai.onnx"):
                    known = onnx.defs.get_schema(node.op_type, opset).attributes
                    if any(a.name not in known for a in node.attribute):
                        return None
            imported.version = opset
    return function
