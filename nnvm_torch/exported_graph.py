"""Programs of `torch.export` as graphs with their weights, for ``nnvm compile`` and ``nnvm show``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from nnvm.dim import SymDim
from nnvm.graph import Graph
from nnvm_torch.capture import CaptureError, give_whole_results
from nnvm_torch.exported import Lifted, lift, load_program
from nnvm_torch.fx_importer import import_graph
from nnvm_torch.imported import FromGraph, NotImportable, Plain
from nnvm_torch.tensors import numpy_of

__all__ = ["FAULTS", "ExportedGraph", "exported_graph"]

#: What `exported_graph` raises where the program is at fault, with a message for the user.
FAULTS = (CaptureError, NotImportable)


@dataclass(frozen=True)
class ExportedGraph:
    """A program without its call: flat inputs and results.

    Attributes:
        graph: its inputs are the program's tensors, named as there, and its weights (kind ``param``). A buffer or input
            ``b`` that a call changes is an input, and its new value the output ``b_next``.
        params: the weights by name (bfloat16 as its bits).
        outputs: a name for each output.
        fallbacks: calls that only PyTorch can run, with the reason.
    """

    graph: Graph
    params: dict[str, np.ndarray[Any, Any]]
    outputs: tuple[str, ...]
    fallbacks: tuple[str, ...]


def exported_graph(program: Any) -> ExportedGraph:
    """The graph of a program or of the ``.pt2`` file of this path.

    Raises:
        CaptureError: it cannot be read, or takes or gives a size, which is no tensor.
        NotImportable: sizes depend on data.
    """
    lifted = lift(load_program(program))
    gm, count = lifted.gm, len(lifted.state)
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    _return_writes(gm, placeholders)
    with torch.no_grad(), _disable_current_modes():
        give_whole_results(gm)
        kept = frozenset(i for i, (name, *_) in enumerate(lifted.state) if name not in lifted.written)
        imported = import_graph(gm, kept)
    names = _unique([*(n for n, _ in lifted.inputs), *(n for n, *_ in lifted.state)])
    names = [*names[-count:], *names[:-count]] if count else names
    if imported.sizes:
        taken = ", ".join(names[position] for _, position, _ in imported.sizes)
        raise CaptureError(f"the program takes {taken} as a number that may differ from call to call; make it a tensor")
    params: dict[str, np.ndarray[Any, Any]] = {}
    for v, p in zip(imported.graph.inputs, imported.positions):
        v.name = names[p] if p >= 0 else f"constant{-1 - p}"
        if v.attrs["kind"] == "param":
            params[v.name] = numpy_of(lifted.state[p][1] if p >= 0 else imported.constants[-1 - p])
    called = _unique([*_result_names(lifted), *(f"{name.replace('.', '_')}_next" for name in lifted.written)])
    entries, outputs = [], []
    for name, result in zip(called, imported.results, strict=True):
        if isinstance(result, FromGraph):
            entries.append(imported.graph.outputs[result.index])
            outputs.append(name)
        elif not isinstance(result, Plain) or isinstance(result.value, SymDim):
            raise CaptureError(f"result {name} is a size, and a compiled file gives tensors only")
    # every input and result lies in order, however the example's did
    graph = Graph(tuple(entries), imported.graph.inputs)
    return ExportedGraph(graph, params, tuple(outputs), tuple(map(str, imported.fallbacks)))


def _result_names(lifted: Lifted) -> list[str]:
    """What the results are called where they come in a dictionary or the like, else ``output``, ``output1``, ..."""
    leaves, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(len(lifted.results))), lifted.out_spec))
    names = []
    for path, i in leaves:
        parts = [str(k) for key in path for k in (getattr(key, "key", getattr(key, "name", getattr(key, "idx", ""))),)]
        is_named = any(not p.isdigit() for p in parts)
        names.append(re.sub(r"\W", "_", "_".join(parts)) if is_named else f"output{i or ''}")
    return names


def _unique(names: list[str]) -> list[str]:
    """The names, later ones with a number where they would be used twice."""
    taken: set[str] = set()
    for i, name in enumerate(names):
        count = 1
        while names[i] in taken:
            names[i], count = f"{name}_{count}", count + 1
        taken.add(names[i])
    return names


def _return_writes(gm: torch.fx.GraphModule, placeholders: list[torch.fx.Node]) -> None:
    """Makes what the graph writes to its arguments further results."""
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    results = list(output.args[0])  # type: ignore[arg-type]
    copies = [n for n in gm.graph.nodes if n.target is torch.ops.aten.copy_.default and n.args[0] in placeholders]
    for node in copies:
        results.append(node.args[1])
    output.args = (tuple(results),)
    for node in copies:
        gm.graph.erase_node(node)
