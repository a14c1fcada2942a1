"""Models compiled into artifacts for a GPU that need not be there, each with inputs and right results beside it.

Run in a process of its own (`python -m tests.runtime.gpu_artifacts FOLDER`): Triton either interprets or compiles.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import nnvm
import nnvm.symbol as sym
from nnvm.artifact import as_level, compile_artifact, save_library
from nnvm.compiler.build_module import typed_graph
from nnvm.dim import symbol
from nnvm.dtype import I64
from nnvm.graph import Graph, TensorType, apply, variable

LEVEL = as_level("cuda -arch=sm_90")
RNG = np.random.default_rng(41)
WEIGHTS = {"a_weight": (24, 12), "a_bias": (24,), "b_weight": (10, 24), "b_bias": (10,)}
PARAMS = {name: RNG.standard_normal(shape).astype(np.float32) / 3 for name, shape in WEIGHTS.items()}


def perceptron():
    net = sym.dense(sym.relu(sym.dense(sym.Variable("x"), units=24, name="a")), units=10, name="b")
    return sym.softmax(net)


def perceptron_of(x):
    wide = {k: v.astype(np.float64) for k, v in PARAMS.items()}
    hidden = np.maximum(x @ wide["a_weight"].T + wide["a_bias"], 0)
    logits = hidden @ wide["b_weight"].T + wide["b_bias"]
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def main(folder: Path) -> None:
    def keep(name, inputs, outputs):
        np.savez(folder / f"{name}.in.npz", **inputs)
        np.savez(folder / f"{name}.out.npz", **outputs)

    x = RNG.standard_normal((5, 12)).astype(np.float32)
    _, lib, params = nnvm.compiler.build(perceptron(), "cuda -arch=sm_90", shape={"x": (5, 12)}, params=PARAMS)
    save_library(lib, params, folder / "library.nnvm", output_names=["y"])
    keep("library", {"x": x}, {"y": perceptron_of(x)})

    named = typed_graph(perceptron(), {"x": (symbol("n"), 12)}, params=PARAMS)
    for name in ("sizes", "again"):
        compile_artifact(named, PARAMS, folder / f"{name}.nnvm", [LEVEL], name="sizes", output_names=["y"])
    for n in (3, 100):
        x = RNG.standard_normal((n, 12)).astype(np.float32)
        keep(f"sizes.{n}", {"x": x}, {"y": perceptron_of(x)})
    compile_artifact(named, PARAMS, folder / "both.nnvm", [as_level("host"), LEVEL], output_names=["y"])

    image, w = (RNG.standard_normal(s).astype(np.float32) for s in ((2, 3, 9, 9), (8, 3, 3, 3)))
    net = sym.max_pool2d(sym.conv2d(sym.Variable("x"), channels=8, kernel_size=(3, 3), use_bias=False, name="c"),
                         pool_size=(2, 2), strides=(2, 2))  # fmt: skip
    compile_artifact(typed_graph(net, {"x": image.shape}, params={"c_weight": w}), {"c_weight": w},
                     folder / "conv.nnvm", [LEVEL], output_names=["y"])  # fmt: skip
    wide = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (3, 3), (2, 3))
    conv = np.einsum("nchwij,ocij->nohw", wide, w)[:, :, :6, :6].reshape(2, 8, 3, 2, 3, 2).max((3, 5))
    keep("conv", {"x": image}, {"y": conv})

    table, index = variable("table", TensorType((6, 40))), variable("index", TensorType((symbol("n"),), I64))
    taken = apply("take", [table, index], {"axis": 0})[0]
    doubled = apply("add", [taken, taken])[0]
    total = apply("sum", [doubled], {"axis": (0, 1)})[0]
    graph = Graph((doubled, table, total, doubled), (table.node, index.node))
    compile_artifact(graph, {}, folder / "take.nnvm", [LEVEL], output_names=["doubled", "table", "total", "twice"])
    values, places = RNG.standard_normal((6, 40)).astype(np.float32), np.array([3, 0, 5, 3])
    twice = 2 * values[places]
    keep("take", {"table": values, "index": places},
         {"doubled": twice, "table": values, "total": twice.sum(dtype=np.float64), "twice": twice})  # fmt: skip

    rows = RNG.standard_normal((1, 70000)).astype(np.float32)
    long = variable("x", TensorType(rows.shape))
    compile_artifact(Graph((apply("sum", [apply("exp", [long])[0]], {"axis": (1,)})[0],), (long.node,)), {},
                     folder / "workspace.nnvm", [LEVEL], output_names=["y"])  # fmt: skip
    keep("workspace", {"x": rows}, {"y": np.exp(rows.astype(np.float64)).sum(1)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
