"""Writes MXNet's files: symbols in JSON, of the newer and the older form, and arrays."""

from __future__ import annotations

import json
import struct

import numpy as np

TYPES = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6, "bool": 7}
MAGIC = {1: 0xF993FAC8, 2: 0xF993FAC9, 3: 0xF993FACA}


def params_bytes(arrays, version=2):
    """The arrays as `mx.nd.save` of that version of the format writes them (0: before there were versions)."""
    out = struct.pack("<QQQ", 0x112, 0, len(arrays))
    for array in arrays.values():
        if version:
            out += struct.pack("<I", MAGIC[version])
        if version >= 2:
            out += struct.pack("<i", 0)
        out += struct.pack("<i", array.ndim) if version else struct.pack("<I", array.ndim)
        out += struct.pack(f"<{array.ndim}{'q' if version else 'I'}", *array.shape)
        out += struct.pack("<iii", 1, 0, TYPES[array.dtype.name]) + np.ascontiguousarray(array).tobytes()
    out += struct.pack("<Q", len(arrays))
    for name in arrays:
        raw = name.encode()
        out += struct.pack("<Q", len(raw)) + raw
    return out


class Net:
    """A symbol, written node by node; `form`: where attributes are: ``attrs``, ``attr`` or ``param``."""

    def __init__(self, form="attrs"):
        self.form, self.nodes, self.params, self.shapes = form, [], {}, {}

    def variable(self, name, array=None, **attrs):
        """A variable; with an array, which is a param where the name does not begin with ``data``."""
        if array is not None and not name.startswith("data"):
            self.params[name] = array
        self.nodes.append({"op": "null", "name": name, "inputs": [], **({"attr": attrs} if attrs else {})})
        return [len(self.nodes) - 1, 0, 0]

    def op(self, kind, *inputs, name=None, **attrs):
        text = {k: str(v) for k, v in attrs.items()}
        node = {"op": kind, "name": name or f"{kind.lower()}{len(self.nodes)}", "inputs": [list(i) for i in inputs]}
        if self.form == "param":
            node.update(param=text, attr={"ctx_group": "dev1"}, backward_source_id=-1)
            node["inputs"] = [i[:2] for i in node["inputs"]]
        else:
            node[self.form] = text
        self.nodes.append(node)
        return [len(self.nodes) - 1, 0, 0]

    def json(self, *heads):
        arguments = [i for i, n in enumerate(self.nodes) if n["op"] == "null"]
        heads = heads or ([len(self.nodes) - 1, 0, 0],)
        data = {"nodes": self.nodes, "arg_nodes": arguments, "heads": [list(h) for h in heads]}
        if self.form == "attrs":
            data.update(node_row_ptr=list(range(len(self.nodes) + 1)), attrs={"mxnet_version": ["int", 10700]})
        return json.dumps(data)
