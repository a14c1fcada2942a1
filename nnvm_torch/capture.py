"""A module as one graph on its own parameters: traced by torch.export and AOTAutograd."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx, nn
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from nnvm_torch.backend import Call, compile_lock
from nnvm_torch.decompositions import decompositions, whole
from nnvm_torch.direct import marks_alone
from nnvm_torch.dynamic import Placed
from nnvm_torch.fx_importer import import_graph
from nnvm_torch.imported import Imported
from nnvm_torch.shared_memory import apart, written_inputs
from nnvm_torch.symbolic_inputs import SymbolicInputs, exported_shapes

__all__ = ["CaptureError", "Captured", "Traced", "capture", "give_whole_results", "trace"]

#: (kind, graph, example inputs, number of leading arguments that are parameters or buffers) -> the compiled graph
Compiler = Callable[[str, Any, Any, int], Call]


class CaptureError(RuntimeError):
    """The module cannot be captured as one graph; the message says why."""


@dataclass(frozen=True)
class Traced:
    """What tracing gave.

    Attributes:
        run: takes the parameters and buffers, then the tensors among the arguments; gives the flat results.
        names: of the parameters and buffers, as ``module.named_parameters()`` has them.
        places: dictionary and name of each parameter and buffer, so that one that is replaced is seen.
        out_spec: the structure of the results.
        fits: do the guards on symbolic sizes hold for the tensors among the arguments?
        written: positions in that row of what is written to.
    """

    run: Callable[..., Any]
    names: list[str]
    places: list[tuple[dict[str, Any], str]]
    out_spec: Any
    fits: Callable[[Sequence[torch.Tensor]], bool]
    written: tuple[int, ...]


@dataclass(frozen=True)
class Captured:
    """An inference graph with the tensors of its inputs, in order: weights as the module has them, example inputs."""

    imported: Imported
    tensors: tuple[torch.Tensor, ...]


def capture(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Captured:
    """The graph of one inference call of `module`, not compiled.

    Raises:
        CaptureError: it cannot be captured as one graph.
        NotImportable: sizes depend on data, or an argument is of an unknown kind.
    """
    found: list[Imported] = []

    def keep(kind: str, gm: Any, inputs: Any, weights: int) -> Call:
        from functorch.compile import make_boxed_func

        with _disable_current_modes():
            give_whole_results(gm)
            found.append(import_graph(gm, frozenset(range(weights))))
        return Call(make_boxed_func(gm.forward))

    args, kwargs = tuple(args), dict(kwargs or {})
    with torch.no_grad():
        traced = trace(module, args, kwargs, keep)
    (imported,) = found
    given = [where[name] for where, name in traced.places]
    given += [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    _name_inputs(imported, traced.names)
    return Captured(imported, tuple(given[p] if p >= 0 else imported.constants[-1 - p] for p in imported.positions))


def give_whole_results(gm: fx.GraphModule) -> None:
    """Makes every tensor among the results one of its own, laid out in order: a graph's output then is the result, and
    not what the result is a view of."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    flat = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    results = []
    for r in flat:
        val = r.meta.get("val") if isinstance(r, fx.Node) else None
        if isinstance(val, torch.Tensor) and val.layout == torch.strided:
            with gm.graph.inserting_before(output):
                layout: Any = {"memory_format": torch.contiguous_format}
                r = gm.graph.call_function(torch.ops.aten.clone.default, (r,), layout)
            r.meta["val"] = val.new_empty(val.shape)
        results.append(r)
    output.args = (tuple(results),)
    gm.recompile()


def _name_inputs(imported: Imported, names: Sequence[str]) -> None:
    """Calls the graph's weights as the module does, and its inputs ``input``, ``input1``, ..."""
    nodes = dict.fromkeys((*imported.graph.inputs, *imported.graph.nodes))
    taken = {n.name for n in nodes}
    for v, p in zip(imported.graph.inputs, imported.positions):
        wanted = f"constant{-1 - p}" if p < 0 else names[p] if p < len(names) else f"input{p - len(names) or ''}"
        if wanted not in taken:
            taken.add(wanted)
            v.name = wanted


def trace(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], compiler: Compiler,
          sizes: Placed | None = None) -> Traced:  # fmt: skip
    """Traces one call of `module` and hands its graph, or the graphs of its forward and backward, to `compiler`.

    `sizes`: axes of the tensors among the arguments whose sizes are symbolic.
    """
    from torch._functorch.aot_autograd import aot_module_simplified

    leaves, spec = pytree.tree_flatten((args, kwargs))
    leaves = apart(leaves, [*module.parameters(), *module.buffers()])
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    with compile_lock, whole():
        graph = _captured(module, args, kwargs, sizes)
        named = (*graph.named_parameters(remove_duplicate=False), *graph.named_buffers(remove_duplicate=False))
        names = [n for n, _ in named if _holder(module, n) is not None]
        places = [place for n in names if (place := _holder(module, n)) is not None]
        flat = _Flat(graph, names, spec, [_TENSOR if isinstance(x, torch.Tensor) else x for x in leaves])
        weights = [where[name] for where, name in places]
        symbolic = SymbolicInputs(weights, [x for x in leaves if isinstance(x, torch.Tensor)], sizes or {})

        values, graphs = symbolic.take(), list[Any]()

        def compiling(kind: str) -> Callable[[Any, Any], Any]:
            def compile_one(gm: Any, inputs: Any) -> Any:
                marks = marks_alone(gm, inputs) if kind == "inference" else None
                call = compiler(kind, gm, inputs, len(names))
                graphs.append(call.direct(marks) if call.direct is not None and marks is not None else None)
                return call.boxed

            return compile_one

        # a context, in which AOTAutograd says what it knows of the graph
        context = torch._guards.TracingContext(detect_fake_mode(values) or FakeTensorMode())
        with torch._guards.tracing(context):
            try:
                run = cast(Any, aot_module_simplified)(
                    flat, values, fw_compiler=compiling("forward"), bw_compiler=compiling("backward"),
                    inference_compiler=compiling("inference"), decompositions=decompositions(),
                    keep_inference_input_mutations=True,
                )  # fmt: skip
            except (DataDependentOutputException, DynamicOutputShapeException) as e:
                raise _no_graph(module, f"what {e.func} gives is a number or a size that depends on values") from e
        if len(graphs) == 1 and graphs[0] is not None:
            run = graphs[0]
    flat.hidden.clear()  # traced; it would keep parameters alive that are replaced
    written = written_inputs(context, len(values), len(weights))
    return Traced(run, names, places, flat.out_spec, symbolic.fit, written)


_TENSOR = object()


class _Flat(nn.Module):
    """A captured graph as a function of (parameters and buffers, inputs), all tensors in one row."""

    def __init__(self, graph: nn.Module, names: Sequence[str], spec: pytree.TreeSpec, plain: Sequence[Any]) -> None:
        super().__init__()
        self.hidden = [graph]  # in a list, so that its parameters are not ours
        self.names, self.spec, self.plain = list(names), spec, list(plain)
        self.out_spec: pytree.TreeSpec | None = None

    def forward(self, *flat: Any) -> Any:
        n = len(self.names)
        state, tensors = dict(zip(self.names, flat[:n])), iter(flat[n:])
        leaves = [next(tensors) if p is _TENSOR else p for p in self.plain]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        # tied weights have a value for each of their names
        out = torch.func.functional_call(self.hidden[0], state, args, kwargs, tie_weights=False)
        results, self.out_spec = pytree.tree_flatten(out)
        return tuple(results)


def _captured(module: nn.Module, args: Any, kwargs: Any, sizes: Placed | None = None) -> nn.Module:
    """The module as an fx graph on its own parameters."""
    try:
        shapes = exported_shapes(module, args, kwargs, sizes) if sizes else None
        program = torch.export.export(module, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as e:
        _raise_as_eager(module, args, kwargs)
        raise _no_graph(module, e) from e
    try:
        return program.module(check_guards=False)  # type: ignore[call-arg]
    except TypeError:  # an older torch without guards in the module
        return program.module()


def _no_graph(module: nn.Module, why: Any) -> CaptureError:
    return CaptureError(
        f"{type(module).__name__} cannot be captured as one graph: {why}\n"
        f"torch.compile(module, backend='nnvm') compiles what it can of such a module"
    )


def _raise_as_eager(module: nn.Module, args: Any, kwargs: Any) -> None:
    """Runs a copy of the module, for eager's own error where the call is wrong."""
    args, kwargs = pytree.tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, (args, kwargs))
    with torch.no_grad():
        copy.deepcopy(module)(*args, **kwargs)


def _holder(module: nn.Module, name: str) -> tuple[dict[str, Any], str] | None:
    """The dictionary that holds a parameter or buffer, so that one that is replaced is seen at the next call."""
    path, _, last = name.rpartition(".")
    try:
        inner = module.get_submodule(path)
    except AttributeError:
        return None
    for where in (inner._parameters, inner._buffers):
        if where.get(last) is not None:
            return where, last
    return None
