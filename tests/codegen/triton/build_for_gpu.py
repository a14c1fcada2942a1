"""Builds a network for a GPU without one, and prints the sizes of its machine code as JSON."""

from __future__ import annotations

import json
import sys

import numpy as np

import nnvm
import nnvm.symbol as sym

x = sym.max_pool2d(sym.relu(sym.batch_norm(sym.conv2d(sym.Variable("data"), channels=16, kernel_size=(3, 3),
                                                       padding=(1, 1), name="conv1"), name="bn1")),
                   pool_size=(2, 2), strides=(2, 2))  # fmt: skip
net = sym.softmax(sym.dense(sym.flatten(x), units=10, name="fc1"))
net, params = nnvm.testing.create_workload(net, batch_size=2, image_shape=(3, 8, 8))
graph, lib, params = nnvm.compiler.build(net, sys.argv[1], shape={"data": (2, 3, 8, 8)}, params=params)
assert all(isinstance(p, np.ndarray) for p in params.values())
try:
    nnvm.runtime.create(graph, lib)
except ValueError as error:
    print(json.dumps({"refused": str(error)}))
print(json.dumps({name: [len(code), code[:4].hex()] for name, code in lib.machine_code().items()}))
