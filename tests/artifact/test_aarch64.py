"""Code for aarch64: exported as C, linked for that machine, run in an emulator, compared with the code for this one."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest

import nnvm
import nnvm.symbol as sym
from nnvm.artifact import as_level, compile_artifact
from nnvm.artifact.c_source import compiler, export_c
from nnvm.compiler.build_module import typed_graph
from nnvm.dim import symbol
from nnvm.dtype import F16, F32, F64, I8, I32, I64, U8
from nnvm.graph import Graph, TensorType, apply, variable
from nnvm.runtime.artifact.container import Container

QEMU = shutil.which("qemu-aarch64")
CC = compiler(as_level("aarch64").target.triple)
pytestmark = [
    pytest.mark.skipif(QEMU is None, reason="there is no qemu-aarch64 here (Debian's package qemu-user has it)"),
    pytest.mark.skipif(CC is None, reason="nothing links for aarch64 here (Debian: gcc-aarch64-linux-gnu, or ziglang)"),
]
RNG = np.random.default_rng(41)


def fresh(*shape, dtype=np.float32):
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return RNG.integers(info.min // 4, info.max // 4, shape, dtype, endpoint=True)
    return RNG.standard_normal(shape).astype(dtype)


def emulated(folder, graph, params, arrays, sizes=(), weights="packed", options=()):
    """The outputs of the code for aarch64, and those of the code for this machine."""
    compile_artifact(graph, params, folder / "here.nnvm", [as_level("host")])
    compile_artifact(graph, params, folder / "m.nnvm", [as_level("aarch64")], weights=weights)
    made = folder / "source"
    export_c(Container(folder / "m.nnvm"), made)
    program = folder / "example"
    command = [part.replace("linux-gnu", "linux-musl") if "ziglang" in CC else part for part in CC]
    command += ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-static", *options, str(made / "example.c"),
                str(made / "m.c"), f"-L{made}", "-lm_kernels", "-lm", "-o", str(program)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wanted = list(nnvm.runtime.load(folder / "here.nnvm").run(arrays).values())
    argv = [QEMU, str(program), str(made / "m.safetensors"), *map(str, sizes)]
    for name, array in arrays.items():
        array.tofile(folder / name)
        argv.append(str(folder / name))
    files = [folder / f"out{i}" for i in range(len(wanted))]
    done = subprocess.run([*argv, *map(str, files)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [np.fromfile(f, w.dtype).reshape(w.shape) for f, w in zip(files, wanted)], wanted


@pytest.mark.parametrize("weights", ["packed", "original"])
def test_a_convolutional_network(tmp_path, weights):
    """Convolutions by Winograd's algorithm and directly; weights packed in the file, and by the program."""
    shapes = {"a_weight": (32, 32, 3, 3), "a_bias": (32,), "b_weight": (24, 32, 3, 3), "b_bias": (24,),
              "d_weight": (10, 24), "d_bias": (10,)}  # fmt: skip
    params = {n: fresh(*s) / 8 for n, s in shapes.items()}
    x = sym.relu(sym.conv2d(sym.Variable("x"), channels=32, kernel_size=(3, 3), padding=(1, 1), name="a"))
    x = sym.max_pool2d(x, pool_size=(2, 2), strides=(2, 2))
    x = sym.relu(sym.conv2d(x, channels=24, kernel_size=(3, 3), strides=(2, 2), padding=(1, 1), name="b"))
    net = sym.softmax(sym.dense(sym.flatten(sym.global_avg_pool2d(x)), units=10, name="d"))
    graph = typed_graph(net, {"x": (2, 32, 28, 28)}, params=params)
    found, wanted = emulated(tmp_path, graph, params, {"x": fresh(2, 32, 28, 28)}, weights=weights)
    assert np.ptp(wanted[0]) > 0.01
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", [[], ["-fopenmp"]])
def test_a_block_of_a_transformer_of_any_length(tmp_path, options):
    if options and "ziglang" in CC:
        pytest.skip("ziglang brings no OpenMP runtime")
    n, width, heads = symbol("n"), 32, 4
    shapes = {"scale": (width,), "shift": (width,), "qkv": (3 * width, width), "out": (width, width),
              "up": (4 * width, width), "down": (width, 4 * width)}  # fmt: skip
    params = {k: fresh(*s) / 4 for k, s in shapes.items()}
    x = variable("x", TensorType((n, width)))
    w = {k: variable(k, TensorType(s), "param") for k, s in shapes.items()}

    def dense(data, weight):
        return apply("dense", [data, weight])[0]

    def norm(data):
        return apply("layer_norm", [data, w["scale"], w["shift"]], {"axis": -1})[0]

    packed = apply("reshape", [dense(norm(x), w["qkv"])], {"shape": (n, 3, heads, width // heads)})[0]
    turned = apply("transpose", [packed], {"axes": (1, 2, 0, 3)})[0]
    parts = apply("split", [turned], {"axis": 0, "indices_or_sections": 3})
    q, k, v = (apply("reshape", [parts[i]], {"shape": (heads, n, width // heads)})[0] for i in range(3))
    scores = apply("matmul", [q, apply("transpose", [k], {"axes": (0, 2, 1)})[0]])[0]
    mixed = apply("matmul", [apply("softmax", [scores], {"axis": -1})[0], v])[0]
    joined = apply("reshape", [apply("transpose", [mixed], {"axes": (1, 0, 2)})[0]], {"shape": (n, width)})[0]
    middle = apply("add", [x, dense(joined, w["out"])])[0]
    wide = apply("gelu", [dense(norm(middle), w["up"])])[0]
    result = apply("add", [middle, dense(wide, w["down"])])[0]
    graph = Graph((result,), (x.node, *(v.node for v in w.values())))
    for length in (1, 19):
        found, wanted = emulated(tmp_path, graph, params, {"x": fresh(length, width)}, [length], options=options)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4, atol=1e-5)


def test_integers(tmp_path):
    """Wrapping, division towards both sides, shifts, comparisons, sums, sorting, indices: equal to the bit."""
    types = {"a": I32, "b": I32, "c": I8, "d": U8, "e": I64}
    inputs = {name: variable(name, TensorType((6, 37), t)) for name, t in types.items()}
    a, b, c, d, e = inputs.values()
    one = apply("maximum", [apply("abs", [b])[0], apply("ones_like", [b])[0]])[0]
    narrow = apply("cast", [c], {"dtype": "int32"})[0]
    small = apply("bitwise_and", [a, apply("full_like", [a], {"fill_value": 31})[0]])[0]
    outputs = [
        apply("floor_divide", [a, one])[0], apply("trunc_divide", [a, one])[0], apply("remainder", [a, one])[0],
        apply("multiply", [a, b])[0], apply("add", [c, c])[0], apply("multiply", [d, d])[0],
        apply("left_shift", [a, small])[0], apply("right_shift", [a, small])[0], apply("less", [narrow, a])[0],
        apply("sum", [e], {"axis": 1})[0], apply("cumsum", [e], {"axis": 1})[0], apply("argmax", [a], {"axis": 1})[0],
        apply("sort", [b], {"axis": 1})[0], apply("cast", [e], {"dtype": "int8"})[0],
        apply("bitwise_xor", [narrow, b])[0],
    ]  # fmt: skip
    graph = Graph(tuple(outputs), tuple(v.node for v in inputs.values()))
    arrays = {name: fresh(6, 37, dtype=t.numpy) for name, t in types.items()}
    found, wanted = emulated(tmp_path, graph, {}, arrays)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_functions_of_all_floats(tmp_path):
    """The polynomials for exp and others, and what stays with libm; half types through float32."""
    names = ("exp", "log1p", "tanh", "erf", "sin", "cos", "sigmoid", "rsqrt", "atan", "expm1", "floor", "round")
    tolerance = {F16: 2e-3, F32: 2e-6, F64: 1e-12}
    inputs = {t: variable(f"x_{t}", TensorType((5, 23), t)) for t in tolerance}
    outputs, of = [], []
    for t, x in inputs.items():
        positive = apply("add", [apply("abs", [x])[0], apply("ones_like", [x])[0]])[0]
        for name in names:
            outputs.append(apply(name, [positive if name in ("log1p", "rsqrt") else x])[0])
            of.append((name, t))
        outputs.append(apply("sum", [x], {"axis": 1})[0])
        of.append(("sum", t))
    graph = Graph(tuple(outputs), tuple(v.node for v in inputs.values()))
    arrays = {f"x_{t}": fresh(5, 23, dtype=t.numpy) for t in inputs}
    found, wanted = emulated(tmp_path, graph, {}, arrays)
    for (name, t), got, want in zip(of, found, wanted, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=tolerance[t],
                                   atol=tolerance[t] * 4, err_msg=f"{name} of {t}")  # fmt: skip
