"""What an ONNX model is fed with: arrays of its declared types, of the sizes asked for, in sensible ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnvm.array_file import load_arrays
from nnvm.bench.engine import Array
from nnvm.bench.errors import BenchError

__all__ = ["InputSpec", "draw", "index_bounds", "input_specs", "load_files", "weight_shapes"]

#: Ops whose output holds the values of their first input, elsewhere or in another type.
_CARRIES = ("Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose", "Unsqueeze")


@dataclass(frozen=True)
class InputSpec:
    """An input with every size known.

    Attributes:
        below: integers are drawn from 0 (or the type's least, where it is narrow) to below this.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    below: int

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


def input_specs(model: Any, batch: int, shapes: Mapping[str, tuple[int, ...]]) -> list[InputSpec]:
    """The inputs of an `onnx.ModelProto`.

    An unknown first size is `batch`; others come from `shapes`, directly or by the name of a size that is given there.

    Raises:
        BenchError: a size is not known, a shape does not fit, a name is no input, or an input is no tensor.
    """
    import onnx

    given = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    values = [v for v in model.graph.input if v.name not in given]
    if unknown := [n for n in shapes if n not in {v.name for v in values}]:
        raise BenchError(f"no input {unknown[0]!r}; the inputs are {', '.join(v.name for v in values)}")
    found: dict[str, set[int]] = {}
    for v in values:
        for d, n in zip(_dims(v), shapes.get(v.name, ())):
            if isinstance(d, str):
                found.setdefault(d, set()).add(n)
    named = {d: n for d, (n, *others) in found.items() if not others}  # "?" of some exporters stands for all sizes
    bounds = index_bounds(model)
    specs = []
    for v in values:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type))
        if dtype.kind not in "biuf" and dtype.name != "bfloat16":
            raise BenchError(f"the input {v.name} is of {dtype}, for which there are no random values")
        shape = _shape(v, batch, shapes.get(v.name), named)
        wide = dtype.itemsize > 1
        below = bounds.get(v.name, 2 if wide else 1 << 8) if dtype.kind in "iu" else 2
        specs.append(InputSpec(v.name, dtype, shape, below))
    return specs


def _dims(value: Any) -> list[int | str | None]:
    """Sizes as numbers, names, or None."""
    if value.type.WhichOneof("value") != "tensor_type":
        raise BenchError(f"the input {value.name} is no tensor")
    dims = value.type.tensor_type.shape.dim  # some exporters write -1 for any
    return [d.dim_param or None if d.dim_param or d.dim_value < 0 or not d.HasField("dim_value") else d.dim_value
            for d in dims]  # fmt: skip


def _shape(value: Any, batch: int, given: tuple[int, ...] | None, named: Mapping[str, int]) -> tuple[int, ...]:
    dims = _dims(value)
    known = value.type.tensor_type.HasField("shape")
    if given is not None:
        if known and (len(given) != len(dims) or any(isinstance(d, int) and d != n for d, n in zip(dims, given))):
            raise BenchError(f"--shape {value.name}={','.join(map(str, given))} does not fit its declared shape "
                             f"[{', '.join('?' if d is None else str(d) for d in dims)}]")  # fmt: skip
        return given
    sizes = [named.get(d) if isinstance(d, str) else d for d in dims]
    if sizes and sizes[0] is None:
        sizes[0] = batch
    if not known or None in sizes:
        shown = ", ".join("?" if d is None else str(d) for d in dims) if known else "unknown"
        raise BenchError(f"the input {value.name} has the shape [{shown}]: --shape {value.name}=SIZE,... says which")
    return tuple(n for n in sizes if n is not None)


def index_bounds(model: Any) -> dict[str, int]:
    """For integer inputs that are used as indices (into an embedding): one more than the largest that is valid."""
    graph, sizes = model.graph, weight_shapes(model)
    bounds: dict[str, int] = {}
    for v in graph.input:
        found = [sizes[data][axis] for data, axis in _looked_up(graph, v.name) if len(sizes.get(data, ())) > axis]
        if found:
            bounds[v.name] = min(found)
    return bounds


def weight_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that the graph holds, as initialisers or as constants."""
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            shapes[node.output[0]] = tuple(node.attribute[0].t.dims)
    return shapes


def _looked_up(graph: Any, name: str) -> Iterator[tuple[str, int]]:
    """(data, axis) of every Gather whose indices are the values of input `name`."""
    same = {name}
    for node in graph.node:
        inputs = list(node.input)
        if node.op_type in _CARRIES and inputs[0] in same:
            same.add(node.output[0])
        elif node.op_type == "Gather" and inputs[1] in same:
            yield inputs[0], max(0, next((a.i for a in node.attribute if a.name == "axis"), 0))


def load_files(files: Mapping[str, str]) -> dict[str, Array]:
    """Arrays of .npy files by input name; BenchError where a file is none."""
    arrays = {}
    for name, file in files.items():
        try:
            loaded = load_arrays(file)
        except (OSError, ValueError) as error:
            raise BenchError(f"--input {name}={file}: {error}") from error
        if isinstance(loaded, dict):
            raise BenchError(f"--input {name}={file}: give an .npy file with one array")
        arrays[name] = loaded
    return arrays


def draw(specs: list[InputSpec], fixed: Mapping[str, Array], seed: int, index: int) -> dict[str, Array]:
    """Arrays number `index`, the same in every process: normal floats, integers in their range, even booleans."""
    rng = np.random.default_rng((seed, index))
    return {s.name: fixed[s.name] if s.name in fixed else _drawn(s, rng) for s in specs}


def _drawn(spec: InputSpec, rng: np.random.Generator) -> Array:
    kind = spec.dtype.kind
    if kind == "b":
        return rng.integers(0, 2, spec.shape).astype(bool)
    if kind in "iu":
        least = int(np.iinfo(spec.dtype).min) if spec.dtype.itemsize == 1 else 0
        return rng.integers(least, min(least + spec.below, np.iinfo(spec.dtype).max + 1), spec.shape).astype(spec.dtype)
    return rng.standard_normal(spec.shape).astype(spec.dtype)
