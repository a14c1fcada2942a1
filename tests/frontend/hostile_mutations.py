"""Damage to ONNX models: to the bytes of a file, and to the fields of the message in it."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor as Field
from onnx import TensorProto, helper, numpy_helper

#: Numbers that sizes, axes, counts and offsets are replaced by.
NUMBERS = (
    0,
    -1,
    1,
    2,
    3,
    -2,
    5,
    7,
    100,
    -100,
    1 << 16,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 31,
    1 << 33,
    1 << 40,
    (1 << 62) - 1,
    (1 << 63) - 1,
    -(1 << 63),
    999_999_937,
)
FLOATS = (0.0, -1.0, 1e-45, 1e38, -1e38, float("nan"), float("inf"), float("-inf"), 0.5, 3.0, 1e10)
OPS = (
    "Relu",
    "Conv",
    "Reshape",
    "Gather",
    "If",
    "Loop",
    "Tile",
    "Expand",
    "Range",
    "Slice",
    "ConstantOfShape",
    "LSTM",
    "Pad",
    "Concat",
    "MatMul",
    "Einsum",
    "Resize",
    "NoSuchOp",
    "Constant",
    "TopK",
    "ScatterND",
    "Split",
    "Squeeze",
    "Cast",
    "SequenceConstruct",
    "NonMaxSuppression",
    "Scan",
    "QuantizeLinear",
    "DFT",
    "Identity",
)


def damage(data: bytes, seed: int) -> bytes:
    """The damaged file; the same for the same seed."""
    rng = np.random.default_rng(seed)
    if rng.random() < 0.15:
        return _bytes(data, rng)
    proto = onnx.load_from_string(data)
    for _ in range(int(_pick((1, 1, 1, 2, 3), rng))):
        with contextlib.suppress(IndexError, ValueError, TypeError):  # nothing left to edit, or edits before broke it
            EDITS[int(rng.integers(len(EDITS)))](proto, rng)
    return proto.SerializeToString()


def _bytes(data, rng):
    raw = bytearray(data)
    kind = rng.integers(4)
    if kind == 0:
        return bytes(raw[: int(rng.integers(len(raw) + 1))])
    for _ in range(int(rng.integers(1, 9))):
        at = int(rng.integers(len(raw)))
        if kind == 1:
            raw[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            raw[at] = int(rng.integers(256))
        else:
            part = raw[at : at + int(rng.integers(1, 20))]
            raw[at:at] = part if rng.random() < 0.5 else b""
            del raw[at : at + int(rng.integers(0, 6))]
    return bytes(raw)


def _pick(items, rng):
    items = list(items)
    return items[int(rng.integers(len(items)))] if items else None


def _number(rng):
    kind = rng.random()
    if kind < 0.45:
        return int(rng.integers(-3, 6))
    return int(_pick(NUMBERS, rng)) if kind < 0.9 else int(rng.integers(-(1 << 62), 1 << 62))


def _graphs(graph):
    yield graph
    for n in graph.node:
        for a in n.attribute:
            if a.HasField("g"):
                yield from _graphs(a.g)


def _node(proto, rng):
    lists = [g.node for g in _graphs(proto.graph)] + [f.node for f in proto.functions]
    return _pick([n for nodes in lists for n in nodes], rng)


def _any_field(proto, rng):
    """A random field of a random message, set to what its type allows."""
    message = proto
    for _ in range(int(rng.integers(1, 9))):
        inner = [v for f, v in message.ListFields() if f.type == Field.TYPE_MESSAGE]
        value = _pick(inner, rng)
        if value is None:
            break
        message = value if hasattr(value, "ListFields") else _pick(value, rng)
    field = _pick([f for f in message.DESCRIPTOR.fields if f.type != Field.TYPE_MESSAGE], rng)
    if field is None:
        return
    value = _value(field, rng)
    try:
        if isinstance(getattr(message, field.name), (str, bytes, int, float)):
            setattr(message, field.name, value)
        else:
            values = getattr(message, field.name)
            if len(values) and rng.random() < 0.6:
                values[int(rng.integers(len(values)))] = value
            else:
                values.append(value)
    except (ValueError, TypeError):  # the number does not fit the field
        message.ClearField(field.name)


def _value(field, rng):
    if field.type in (Field.TYPE_FLOAT, Field.TYPE_DOUBLE):
        return float(_pick(FLOATS, rng))
    if field.type == Field.TYPE_STRING:
        return str(_pick(("", "x", "y", "w", "ai.onnx", "no such name", "\u0000", "a" * 1000), rng))
    if field.type == Field.TYPE_BYTES:
        return bytes(rng.integers(0, 256, int(rng.integers(0, 40)), dtype=np.uint8))
    if field.type == Field.TYPE_ENUM:
        return int(rng.integers(0, 28))
    return _number(rng)


def _attribute(proto, rng):
    n = _node(proto, rng)
    a = _pick(n.attribute, rng) if n is not None else None
    if a is None:
        return
    kind = rng.integers(6)
    if kind == 0:
        n.attribute.remove(a)
    elif kind == 1:
        a.i = _number(rng)
    elif kind == 2 and len(a.ints):
        a.ints[int(rng.integers(len(a.ints)))] = _number(rng)
    elif kind == 3:
        values = [_number(rng) for _ in range(int(rng.integers(0, 5)))]
        a.CopyFrom(helper.make_attribute(a.name, values or 3))
    elif kind == 4:
        a.f = float(_pick(FLOATS, rng))
        a.s = b"\xff\x00nonsense"
    else:
        a.type = int(rng.integers(0, 15))


def _wiring(proto, rng):
    """Missing, cyclic, repeated and surplus values."""
    n, other = _node(proto, rng), _node(proto, rng)
    if n is None:
        return
    kind = rng.integers(8)
    if kind == 0 and len(n.input):
        n.input[int(rng.integers(len(n.input)))] = "nothing gives this"
    elif kind == 1 and len(n.input) and len(n.output):
        n.input[int(rng.integers(len(n.input)))] = n.output[0]
    elif kind == 2 and len(n.input) and len(other.output):
        n.input[int(rng.integers(len(n.input)))] = _pick(other.output, rng)
    elif kind == 3 and len(n.output):
        n.output[0] = _pick([o for m in proto.graph.node for o in m.output] or ["z"], rng)
    elif kind == 4 and len(n.input):
        del n.input[int(rng.integers(len(n.input)))]
    elif kind == 5:
        n.input.append(
            _pick(["", *(i.name for i in proto.graph.input), *(t.name for t in proto.graph.initializer)], rng)
        )
    elif kind == 6 and len(n.output):
        del n.output[int(rng.integers(len(n.output)))]
    else:
        n.output.append("another")


def _operator(proto, rng):
    n = _node(proto, rng)
    if n is None:
        return
    kind = rng.integers(5)
    if kind < 2:
        n.op_type = str(_pick(OPS, rng))
    elif kind == 2:
        n.domain = str(_pick(("", "ai.onnx.ml", "com.microsoft", "nowhere", "mine"), rng))
    elif kind == 3:
        proto.opset_import[0].version = int(_pick((1, 6, 7, 9, 11, 13, 17, 18, 21, 22, 25, 99, -1, 0, 1 << 40), rng))
    else:
        proto.graph.node.append(n)


def _order(proto, rng):
    nodes = list(proto.graph.node)
    if len(nodes) > 1:
        i, j = rng.integers(len(nodes), size=2)
        nodes[i], nodes[j] = nodes[j], nodes[i]
        copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del proto.graph.node[:]
        proto.graph.node.extend(copies if rng.random() < 0.7 else copies[:-1])


def _tensors(proto):
    found = [t for g in _graphs(proto.graph) for t in g.initializer]
    return found + [a.t for g in _graphs(proto.graph) for n in g.node for a in n.attribute if a.HasField("t")]


def _elements(proto, rng):
    """Elements of a small integer tensor: sizes, axes, positions."""
    small = [t for t in _tensors(proto) if t.data_type == TensorProto.INT64 and len(t.raw_data) in range(8, 80)]
    t = _pick(small, rng)
    if t is None:
        return
    try:
        array = numpy_helper.to_array(t).copy()
    except ValueError:  # an edit before has broken it
        return
    if not array.size:
        return
    array.reshape(-1)[int(rng.integers(array.size))] = _number(rng)
    t.CopyFrom(numpy_helper.from_array(array, t.name))


def _tensor(proto, rng):
    """Sizes, type and data of a tensor that do not fit each other."""
    t = _pick(_tensors(proto), rng)
    if t is None:
        return
    kind = rng.integers(6)
    if kind == 0 and len(t.dims):
        t.dims[int(rng.integers(len(t.dims)))] = _number(rng)
    elif kind == 1:
        t.dims.append(_number(rng))
    elif kind == 2:
        t.data_type = int(rng.integers(0, 28))
    elif kind == 3:
        t.raw_data = t.raw_data[: int(rng.integers(len(t.raw_data) + 1))]
    elif kind == 4:
        t.float_data.extend([1.0, 2.0])
    else:
        t.name = str(_pick(("", "x", "y", "w"), rng))


PATHS = (
    "weights.bin",
    "../../../../../../etc/passwd",
    "/etc/passwd",
    "none.bin",
    ".",
    "",
    "a/../../b",
    "/dev/zero",
    "\u0000",
    "link.bin",
)


def _external(proto, rng):
    t = _pick(_tensors(proto), rng)
    if t is None:
        return
    t.ClearField("raw_data")
    t.data_location = TensorProto.EXTERNAL
    entries = {"location": str(_pick(PATHS, rng)), "offset": str(_number(rng)), "length": str(_number(rng))}
    for key, value in entries.items():
        if key == "location" or rng.random() < 0.7:
            t.external_data.add(key=key, value=value if rng.random() < 0.9 else "many")


def _interface(proto, rng):
    """Types and sizes of inputs and outputs."""
    kind = rng.integers(6)
    inputs = [i for g in _graphs(proto.graph) for i in (*g.input, *g.output)]
    i = _pick(inputs, rng)
    if i is None:
        return
    t = i.type.tensor_type
    if kind == 0 and len(t.shape.dim):
        _pick(t.shape.dim, rng).dim_value = _number(rng)
    elif kind == 1 and len(t.shape.dim):
        _pick(t.shape.dim, rng).dim_param = str(_pick(("n", "", "a b", "n-1", "?"), rng))
    elif kind == 2:
        t.elem_type = int(rng.integers(0, 28))
    elif kind == 3:
        t.ClearField("shape")
    elif kind == 4:
        i.name = str(_pick(("nobody", "x", ""), rng))
    else:
        i.type.sequence_type.elem_type.tensor_type.elem_type = 1


def _deep(proto, rng):
    """Very many bodies in each other, functions that call themselves, very long chains."""
    kind = rng.integers(3)
    if kind == 0:
        graph = helper.make_graph(
            [helper.make_node("Relu", [proto.graph.input[0].name], ["q"])],
            "q",
            [],
            [helper.make_tensor_value_info("q", 1, None)],
        )
        for _ in range(int(_pick((2, 10, 20), rng))):
            inner = helper.make_node(
                "If",
                ["always"],
                ["q"],
                then_branch=graph,
                else_branch=graph if rng.random() < 0.1 else helper.make_graph([], "n", [], []),
            )
            graph = helper.make_graph([inner], "q", [], [helper.make_tensor_value_info("q", 1, None)])
            if graph.ByteSize() > 1 << 20:
                break
        proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
        proto.graph.node.extend(graph.node)
    elif kind == 1:
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("self", 1)]
        call = [helper.make_node("F", ["a"], ["b"], domain="self")]
        proto.functions.append(helper.make_function("self", "F", ["a"], ["b"], call, opsets))
        proto.opset_import.append(helper.make_opsetid("self", 1))
        proto.graph.node.append(
            helper.make_node("F", [proto.graph.input[0].name if proto.graph.input else "x"], ["ff"], domain="self")
        )
    else:
        name = proto.graph.input[0].name if len(proto.graph.input) else "x"
        for i in range(int(_pick((50, 1500), rng))):
            proto.graph.node.append(helper.make_node("Neg", [name], [f"chain{i}"]))
            name = f"chain{i}"
        if len(proto.graph.output):
            proto.graph.output[0].name = name


EDITS = (
    _any_field,
    _any_field,
    _attribute,
    _attribute,
    _wiring,
    _wiring,
    _operator,
    _order,
    _elements,
    _elements,
    _tensor,
    _external,
    _interface,
    _deep,
)
