"""Programs of `torch.export` as modules, without Dynamo: `nnvm_torch.from_exported`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from nnvm.dim import Dim, SymDim, evaluate, symbols
from nnvm_torch.backend import compile_fx, compile_lock
from nnvm_torch.capture import CaptureError
from nnvm_torch.decompositions import exported_decompositions, whole
from nnvm_torch.options import Options
from nnvm_torch.report import number_of
from nnvm_torch.tensors import UnsupportedSize, dim_of, laid_out

__all__ = ["ExportedModule", "Lifted", "from_exported", "lift", "load_program"]


def from_exported(program: Any, **options: Any) -> ExportedModule:
    """A program of `torch.export` as a module, for inference.

    Args:
        program: a `torch.export.ExportedProgram`, or the path of a ``.pt2`` file that `torch.export.save` wrote.
        options: see `nnvm_torch.Options`.

    Raises:
        TypeError, ValueError: it is neither, or an option is wrong.
        CaptureError: the file holds no program, or one with inputs or results that are no tensors or numbers.
        StrictError: ``strict=True``, and something cannot be compiled.
    """
    chosen = Options.make(options)
    return ExportedModule(load_program(program), chosen)


def load_program(program: Any) -> torch.export.ExportedProgram:
    """The program itself, or the one in the file of this path."""
    if isinstance(program, torch.export.ExportedProgram):
        return program
    if not isinstance(program, (str, os.PathLike)):
        raise TypeError(f"from_exported takes an ExportedProgram or a path, got {type(program).__name__}")
    path = os.fspath(program)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no file {path}")
    try:
        return torch.export.load(path)
    except Exception as e:  # of many kinds: what is no zip file, an unknown version, an operator that is not registered
        raise CaptureError(
            f"{path} holds no program that this PyTorch ({torch.__version__}) can read: {type(e).__name__}: {e}"
        ) from e


@dataclass(frozen=True)
class Lifted:
    """A program as one functional graph whose weights are arguments.

    Attributes:
        gm: takes `state`, then the flat arguments; what it changes it writes to its arguments at the end.
        state: (name, tensor, whether it is a parameter, whether it is saved) of the leading arguments.
        inputs: name and fake tensor, size or number of each further argument.
        written: names of the arguments that a call writes to.
        results: what each flat result is: a node, or a constant.
        in_spec, out_spec: the structure of (args, kwargs) and of the results.
        limits: least and greatest value of each symbolic size.
    """

    gm: fx.GraphModule
    state: tuple[tuple[str, torch.Tensor, bool, bool], ...]
    inputs: tuple[tuple[str, Any], ...]
    written: tuple[str, ...]
    results: tuple[Any, ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    limits: Mapping[str, tuple[int, int]]


def lift(program: torch.export.ExportedProgram) -> Lifted:
    """The functional graph of a program, of the operators that have converters.

    CaptureError where an argument or a result is of a kind that only PyTorch knows.
    """
    in_spec, out_spec = program.call_spec.in_spec, program.call_spec.out_spec
    try:
        with compile_lock, whole():
            program = program.run_decompositions(exported_decompositions())
    except Exception as e:
        raise CaptureError(f"PyTorch cannot take the program apart: {type(e).__name__}: {e}") from e
    gm, signature = program.graph_module, program.graph_signature
    nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
    state: list[tuple[str, torch.Tensor, bool, bool]] = []
    inputs: list[tuple[str, Any]] = []
    names: dict[str, fx.Node] = {}
    for spec, node in zip(signature.input_specs, nodes, strict=True):
        kind, target = spec.kind.name, spec.target
        if kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            names.setdefault(str(target), node)
            tensor = program.constants[target] if target in program.constants else program.state_dict[target]
            is_saved = kind == "PARAMETER" or (kind == "BUFFER" and bool(spec.persistent))
            state.append((str(target), tensor, kind == "PARAMETER", is_saved))
        elif kind == "USER_INPUT":
            names.setdefault(node.name, node)
            inputs.append((node.name, node.meta.get("val", getattr(spec.arg, "value", None))))
        else:
            raise CaptureError(f"the program has an input of kind {kind} ({node.name}), which only PyTorch can run")
    written, results = _outputs(gm, signature, names)
    limits = {str(s): (_int(r.lower), _int(r.upper)) for s, r in program.range_constraints.items()}
    return Lifted(gm, tuple(state), tuple(inputs), written, results, in_spec, out_spec, limits)


def _outputs(gm: fx.GraphModule, signature: Any, names: Mapping[str, fx.Node]) -> tuple[Any, Any]:
    """Replaces the new values of buffers and inputs among the results by writes; (written, the others)."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    values, kept, written = list(output.args[0]), [], []
    with gm.graph.inserting_before(output):
        for spec, value in zip(signature.output_specs, values, strict=True):
            kind = spec.kind.name
            if kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION"):
                target = names[spec.target]
                write = gm.graph.call_function(torch.ops.aten.copy_.default, (target, value))
                write.meta["val"] = target.meta["val"]
                written.append(spec.target)
            elif kind == "USER_OUTPUT":
                kept.append(value)
            else:
                raise CaptureError(f"the program has a result of kind {kind}, which only PyTorch can give")
    output.args = (tuple(kept),)
    gm.graph._codegen = fx.graph.CodeGen()  # plain arguments and results in a row
    gm.recompile()
    return tuple(written), tuple(kept)


def _int(bound: Any) -> int:
    """A bound of a size; those without limit are far beyond any size."""
    return int(bound) if getattr(bound, "is_Integer", isinstance(bound, int)) else 1 << 62


class ExportedModule(nn.Module):
    """Runs a compiled program; its parameters and buffers are the program's, under the names they have there.

    Called as the program is; sizes may differ from the example's where it says so. What a call changes (buffers,
    inputs) is changed. A changed parameter counts from the next call on. Nothing is recorded for gradients.
    """

    def __init__(self, program: torch.export.ExportedProgram, options: Options) -> None:
        super().__init__()
        lifted = lift(program)
        own = self.__dict__
        own["_nnvm_number"] = 0
        own["_nnvm_places"] = [_register(self, *s) for s in lifted.state]
        own["_nnvm_checks"] = [_Check(name, val, lifted.limits) for name, val in lifted.inputs]
        own["_nnvm_specs"] = (lifted.in_spec, lifted.out_spec)
        own["_nnvm_written"] = [name in lifted.written for name, _ in lifted.inputs]
        static = frozenset(range(len(lifted.state)))
        with torch.no_grad():
            own["_nnvm_run"] = compile_fx(lifted.gm, "inference", options, number_of(self), static)

    def __getattr__(self, name: str) -> Any:  # what is in `__dict__` above is of any type
        return super().__getattr__(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves = self._flat(args, kwargs)
        sizes: dict[str, int] = {}
        checks = self._nnvm_checks
        for check, leaf in zip(checks, leaves):
            check.bind(leaf, sizes)
        given = [check.fitted(leaf, sizes) for check, leaf in zip(checks, leaves)]
        state = [where[name] for where, name in self._nnvm_places]
        with torch.no_grad():
            results = self._nnvm_run([*state, *given])
            for leaf, used, is_written in zip(leaves, given, self._nnvm_written):
                if is_written and leaf is not used:
                    leaf.copy_(used)
        return pytree.tree_unflatten(results, self._nnvm_specs[1])

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        wanted: pytree.TreeSpec = self._nnvm_specs[0]
        order = wanted.child(1).context if wanted.num_children == 2 else None
        if order and {*order} == {*kwargs}:
            kwargs = {name: kwargs[name] for name in order}
        leaves, spec = pytree.tree_flatten((args, kwargs))
        if spec != wanted:
            raise TypeError(f"the program takes arguments of the structure {wanted}, got {spec}")
        return leaves


class _Check:
    """What one argument must be."""

    def __init__(self, name: str, val: Any, limits: Mapping[str, tuple[int, int]]) -> None:
        self.name, self.val, self.limits = name, val, limits
        self.dims: list[Dim] = []
        self.strides: list[Dim] | None = None
        try:
            if isinstance(val, torch.Tensor):
                self.dims = [dim_of(d) for d in val.shape]
                self.strides = [dim_of(d) for d in val.stride()] if val.layout == torch.strided else None
            elif isinstance(val, torch.SymInt):
                self.dims = [dim_of(val)]
        except UnsupportedSize as e:
            raise CaptureError(f"input {name}: {e}") from e

    def __deepcopy__(self, memo: dict[int, Any]) -> _Check:
        return self  # it never changes

    def bind(self, given: Any, sizes: dict[str, int]) -> None:
        """Checks the argument's type and reads the sizes that stand in it by themselves."""
        val = self.val
        if isinstance(val, torch.Tensor):
            same = isinstance(given, torch.Tensor) and given.dtype == val.dtype and given.dim() == val.dim()
            if not same or given.device.type != val.device.type or given.layout != val.layout:
                raise TypeError(f"input {self.name} is a {self}, got {_told(given)}")
            found: Sequence[int] = given.shape
        elif isinstance(val, torch.SymInt):
            if isinstance(given, bool) or not isinstance(given, int):
                raise TypeError(f"input {self.name} is an int, got {_told(given)}")
            found = (given,)
        else:
            if type(given) is not type(val) or given != val:
                raise TypeError(f"input {self.name} is {val!r} in this program, got {_told(given)}")
            return
        for d, n in zip(self.dims, found):
            if isinstance(d, SymDim) and str(d) in symbols(d):
                sizes.setdefault(str(d), n)

    def fitted(self, given: Any, sizes: Mapping[str, int]) -> Any:
        """The argument, in memory as the program has it; ValueError where its sizes do not fit."""
        if not self.dims:
            return given
        found = given.shape if isinstance(given, torch.Tensor) else (given,)
        for axis, (d, n) in enumerate(zip(self.dims, found)):
            wanted = n if isinstance(d, SymDim) and not symbols(d) <= sizes.keys() else evaluate(d, sizes)
            low, high = self.limits.get(str(d), (0, n))
            if n != wanted or not low <= n <= high:
                limit = f", from {low} to {high}" if wanted == n else f", {wanted} here" if wanted != d else ""
                raise ValueError(f"input {self.name} is a {self}: axis {axis} is {d}{limit}, got {n}")
        if not isinstance(given, torch.Tensor) or self.strides is None:
            return given
        strides = tuple(evaluate(s, sizes) for s in self.strides)
        if given.is_neg() or not _lies_as(given, strides):
            return laid_out(given.resolve_neg(), strides)
        return given

    def __str__(self) -> str:
        if not isinstance(self.val, torch.Tensor):
            return "size"
        dtype, device = str(self.val.dtype).removeprefix("torch."), self.val.device.type
        return f"{dtype}[{', '.join(map(str, self.dims))}] on {device}"


def _lies_as(t: torch.Tensor, strides: Sequence[int]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(t.shape, t.stride(), strides)) or t.numel() == 0


def _told(given: Any) -> str:
    if isinstance(given, torch.Tensor):
        return f"{str(given.dtype).removeprefix('torch.')}{list(given.shape)} on {given.device.type}"
    return repr(given) if isinstance(given, (int, float, bool, str, type(None))) else type(given).__name__


def _register(root: nn.Module, name: str, tensor: torch.Tensor, is_param: bool, is_saved: bool) -> tuple[Any, str]:
    """Puts a tensor where its name says, under modules without a forward; the dictionary that holds it, and its key."""
    *path, last = name.split(".")
    module = root
    for part in path:
        inner = module._modules.get(part)
        if inner is None:
            inner = nn.Module()
            module.add_module(part, inner)
        module = inner
    if is_param:
        if last not in module._parameters:
            held = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)
            module.register_parameter(last, held)
        return module._parameters, last
    if last not in module._buffers:
        module.register_buffer(last, tensor, persistent=is_saved)
    return module._buffers, last
