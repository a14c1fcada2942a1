"""``nnvm compile``: a model to one file that runs without PyTorch, on any processor of a family."""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnvm.progress import progress_bar

from .arguments import add_model_arguments, output, shape
from .command import CliError, Command, one_line

if TYPE_CHECKING:  # what is imported here would make every `nnvm` call wait
    from nnvm.artifact import ArtifactInfo
    from nnvm.cli.source import Model
    from nnvm.graph import Graph

__all__ = ["COMMAND"]

DESCRIPTION = """\
Compile a model into one file: code for several kinds of processors, the plan of its memory, and its weights.
`nnvm run`, and nnvm.runtime.load in Python, run it with numpy and llvmlite alone.

MODEL is one of
  FILE.onnx          an ONNX model (needs the package onnx)
  FILE.pt2           a program that torch.export.save wrote (needs PyTorch)
  FILE.json          a graph in NNVM's JSON format, or a symbol of MXNet's; weights from --params (for a symbol
                     NAME-symbol.json else from the last NAME-0000.params beside it)
  zoo:NAME, torchvision:NAME, timm:NAME, hf:NAME, FILE.py:FACTORY or NAME
                     a model that PyTorch builds, as for `nnvm bench` (see there)

Without --target the file runs on every x86-64 with SSE4.2 (x86-64-v2), with better code for AVX2 (x86-64-v3) and
AVX-512 (x86-64-v4); the best one is picked when it is loaded. Such a file holds the weights once, as they are, and each
process packs them for its vectors before the first call. With one --target they are packed in the file, and processes
share them; --weights chooses. Code for a GPU (--target "cuda -arch=sm_90") reads packed weights; a file with code for
both runs on the GPU where there is one that fits.

examples
  nnvm compile model.onnx -o model.nnvm
  nnvm compile model.onnx -o model.nnvm --shape x=batch,3,224,224    a named size stands for any
  nnvm compile model.onnx -o model.nnvm --target aarch64             for another machine
  nnvm compile net.json --params net.npz -o net.nnvm --target "llvm -mcpu=haswell"
  nnvm compile model.onnx -o model.nnvm --target "cuda -arch=sm_90"  cubins, made without the GPU (needs triton)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="what to compile; see above")
    parser.add_argument(
        "-o", "--output", type=output, metavar="FILE", required=True, help="the file to write, as model.nnvm"
    )
    parser.add_argument(
        "--target", action="append", default=[], metavar="TARGET",
        help="what to compile for: x86-64-v2, -v3, -v4, aarch64, host, 'llvm -mcpu=NAME [-mtriple=TRIPLE]' or "
        "'cuda -arch=sm_NN'; may be repeated, from the least to the most demanding",
    )  # fmt: skip
    parser.add_argument(
        "--shape", action="append", default=[], type=shape, metavar="NAME=SIZES",
        help="shape of an input, as x=1,3,224,224; a name among the sizes stands for any number; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--params", metavar="FILE", help="weights by name: an .npz or .safetensors file, or NNVM's or MXNet's .params"
    )
    add_model_arguments(parser)
    parser.add_argument(
        "--weights", choices=("auto", "packed", "original"), default="auto",
        help="packed: for each target, read from the file in place; original: once, and packed before the first call; "
        "auto: packed for one target, original for several (auto)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="say what was written as JSON")


def run(args: argparse.Namespace) -> int:
    start = time.perf_counter()
    with progress_bar() as tell:
        info = _compile(args, tell)
    seconds = time.perf_counter() - start
    print(json.dumps(_facts(info, seconds), indent=2) if args.json else _text(info, seconds))
    return 0


def _compile(args: argparse.Namespace, progress: Callable[[str, float], None]) -> ArtifactInfo:
    from nnvm.artifact import NotCompilable, as_level, compile_artifact
    from nnvm.cli.source import load

    try:
        levels = [as_level(text) for text in args.target]
    except ValueError as error:
        raise CliError(str(error)) from error
    shapes = dict(args.shape)
    onnx = Path(args.model).suffix == ".onnx"
    given = _read_params(args.params) if args.params else {}
    model = load(args.model, batch=args.batch, dtype=args.dtype, shapes=shapes, params=given or None)
    imported = onnx or (Path(args.model).suffix == ".json" and bool(model.params))
    if shapes and imported:
        _check_names(shapes, model.graph)
    graph, params = _with_weights(model, {} if imported else shapes, given if onnx or not imported else {})
    folder = Path(args.output).parent
    if not folder.is_dir():
        raise CliError(f"no folder {folder} to write {args.output} to")
    try:
        return compile_artifact(graph, params, args.output, levels, name=model.name, opt_level=args.opt_level,
                                output_names=model.output_names, weights=args.weights, progress=progress)  # fmt: skip
    except NotCompilable as error:
        more = "; --params FILE.npz gives them" if "no values" in str(error) else ""
        raise CliError(f"{args.model}: {error}{more}", status=1) from error
    except RuntimeError as error:
        if not any(level.target.is_gpu for level in levels):
            raise
        raise CliError(f"{args.model}: {one_line(error)}", status=1) from error
    except ModuleNotFoundError as error:
        if error.name != "triton" or not any(level.target.is_gpu for level in levels):
            raise
        raise CliError("code for a GPU is made by Triton, which is not installed: pip install triton",
                       status=1) from error  # fmt: skip


def _check_names(shapes: Mapping[str, Any], graph: Graph) -> None:
    names = [v.name for v in graph.inputs if v.attrs["kind"] == "input"]
    if unknown := [n for n in shapes if n not in names]:
        raise CliError(f"no input {unknown[0]!r}; the inputs are {', '.join(names)}")


def _with_weights(model: Model, shapes: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[Graph, dict[str, Any]]:
    """The model's graph with its types, and the arrays of its parameters."""
    from nnvm.compiler.build_module import typed_graph
    from nnvm.dim import symbol

    graph = model.graph
    if given or shapes:
        sizes = {n: tuple(symbol(d) if isinstance(d, str) else d for d in s) for n, s in shapes.items()}
        known = {**{n: a for n, a in model.params.items() if n not in given}, **given}
        dtypes = {v.name: v.types[0].dtype for v in graph.inputs if v.types is not None}
        return typed_graph(graph, sizes, dtypes, known or None), known
    if model.params or not any(v.attrs["kind"] == "param" for v in graph.inputs):
        return graph, dict(model.params)
    if type(model.memory).__name__ == "NumpyMemory":
        return graph, {}  # NNVM's JSON holds no weights: what is missing is said when it is compiled
    return graph, _copied(model)


def _copied(model: Model) -> dict[str, Any]:
    """The parameters of a model whose tensors are a frontend's own, as arrays (bfloat16 as its bits)."""
    import numpy as np

    from nnvm.dim import evaluate

    arrays = {}
    for v, tensor in zip(model.graph.inputs, model.tensors({})):
        if v.attrs["kind"] != "param":
            continue
        t = v[0].type
        shape = tuple(evaluate(d, {}) for d in t.shape)
        plain = model.memory.contiguous(tensor, shape, t.dtype)
        out = np.empty(shape, t.dtype.numpy)
        ctypes.memmove(out.ctypes.data, model.memory.pointer(plain), out.nbytes)
        arrays[v.name] = out
    return arrays


def _read_params(file: str) -> dict[str, Any]:
    from nnvm.array_file import load_arrays
    from nnvm.frontend.mxnet.params import is_params, load_params
    from nnvm.runtime.artifact.tensors import read_tensors
    from nnvm.runtime.param_dict import load_param_dict

    try:
        if file.endswith(".safetensors"):
            return dict(read_tensors(memoryview(Path(file).read_bytes())))
        if file.endswith(".params"):
            data = Path(file).read_bytes()
            return load_params(data) if is_params(data) else load_param_dict(data)
        arrays = load_arrays(file)
        if isinstance(arrays, dict):
            return arrays
        raise ValueError("an .npy file has no names")
    except (ValueError, RecursionError) as error:
        raise CliError(f"--params {file}: no .npz, .safetensors or .params file with arrays ({error})",
                       status=1) from error  # fmt: skip


def _facts(info: ArtifactInfo, seconds: float) -> dict[str, Any]:
    return {
        "file": info.path,
        "bytes": info.nbytes,
        "weight_bytes": info.weight_bytes,
        "levels": {n: {"code_bytes": info.code_bytes[n], "kernels": info.kernels[n]} for n in info.code_bytes},
        "inputs": {t.name: str(t) for t in info.inputs},
        "outputs": {t.name: str(t) for t in info.outputs},
        "seconds": round(seconds, 3),
    }


def _text(info: ArtifactInfo, seconds: float) -> str:
    lines = [f"wrote {info.path}: {info.nbytes / 1e6:.2f} MB, {info.weight_bytes / 1e6:.2f} of it weights, "
             f"in {seconds:.1f} s"]  # fmt: skip
    lines += [f"  input  {t.name}: {t}" for t in info.inputs]
    lines += [f"  output {t.name}: {t}" for t in info.outputs]
    lines += [f"  {n}: {info.kernels[n]} kernels, {info.code_bytes[n] / 1e3:.0f} kB of code" for n in info.code_bytes]
    return "\n".join(lines)


COMMAND = Command("compile", "compile a model into one file that runs anywhere", DESCRIPTION, add_arguments, run)
