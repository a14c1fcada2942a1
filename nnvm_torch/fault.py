"""What is at fault where a compiled graph gives wrong results: a graph pass, a fused group, or a call's conversion.

Passes: all of them are left out, and if the results are right then, a bisection finds the first whose turn makes them
wrong. Groups: the kernel of each runs on the inputs that the ops' definitions in numpy give it, and is compared with
the definition. Calls: where all groups do what their ops say, each ATen call is compiled alone and compared with eager.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from nnvm.compiler.build import compile_graph
from nnvm.compiler.pipeline import pipeline
from nnvm_torch.fx_importer import import_graph
from nnvm_torch.group_check import GroupFault, first_wrong_group
from nnvm_torch.imported import Imported
from nnvm_torch.options import Options
from nnvm_torch.runner import Runner

__all__ = ["Fault", "find_fault"]

Judge = Callable[[Sequence[Any]], bool]


@dataclass(frozen=True)
class Fault:
    """What was found.

    Attributes:
        first_pass: the pass whose turn makes the results wrong; "" where they are wrong without any.
        group: the first fused group whose kernel does not do what its ops say.
        call: the first ATen call that is wrong when compiled alone, with the user's source line.
    """

    first_pass: str = ""
    group: GroupFault | None = None
    call: str = ""

    def __str__(self) -> str:
        lines = []
        if self.first_pass:
            lines.append(f"first wrong with the graph pass {self.first_pass} "
                         f"(options={{'disabled_passes': ['{self.first_pass}']}} avoids it)")  # fmt: skip
        if self.group is not None:
            lines.append(f"first fused group that differs: {self.group}")
        if self.call:
            lines.append(f"first call that is converted wrongly: {self.call}")
        return (
            "\n".join(lines) or "no single pass, fused group or call is at fault: rounding adds up, or memory clashes"
        )


def find_fault(gm: fx.GraphModule, imported: Imported, options: Options, args: Sequence[Any], right: Judge) -> Fault:
    """Looks for the fault.

    Args:
        args: of a call whose results are wrong; not written to.
        right: are these results right?
    """

    def is_right(left_out: Sequence[str]) -> bool:
        chosen = replace(options, disabled_passes=options.disabled_passes | frozenset(left_out))
        runner = Runner(imported, compile_graph(imported.graph, chosen.build_options(imported.device)))
        return right(list(runner([a.clone() if isinstance(a, torch.Tensor) else a for a in args])))

    passes = [p for p in dict.fromkeys(pipeline()) if p not in ("InferType", *options.disabled_passes)]
    first = _first_wrong_pass(passes, is_right)
    compiled = compile_graph(imported.graph, options.build_options(imported.device))
    group = first_wrong_group(imported, compiled, args)
    call = "" if first or group is not None else _first_wrong_call(gm, options, args)
    return Fault(first, group, call)


def _first_wrong_pass(passes: Sequence[str], is_right: Callable[[Sequence[str]], bool]) -> str:
    """The pass that makes the results wrong when it runs after those before it; "" where they are wrong without any."""
    if not is_right(passes):
        return ""
    good, bad = 0, len(passes)  # right with the first `good` passes, wrong with the first `bad`
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if is_right(passes[middle:]) else (good, middle)
    return passes[good]


def _first_wrong_call(gm: fx.GraphModule, options: Options, args: Sequence[Any]) -> str:
    """The first ATen call whose conversion, compiled alone on eager's values, does not give eager's result."""
    recorded = _Recorded(gm)
    recorded.run(*(a.clone() if isinstance(a, torch.Tensor) else a for a in args))
    for node in gm.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        alone, inputs, leaves = _alone(gm, node)
        imported = import_graph(alone)
        if not leaves or imported.fallbacks or not imported.graph.outputs:
            continue
        runner = Runner(imported, compile_graph(imported.graph, options.build_options(imported.device)))
        given = [recorded.before[node][n] for n in inputs]
        got = runner([a.clone() if isinstance(a, torch.Tensor) else a for a in given])
        want = recorded.results[node]
        for g, i in zip(got, leaves):
            w = want if i is None else want[i]
            tolerance: dict[str, Any] = {}
            if w.dtype == torch.float32:
                tolerance = {"rtol": 1e-3, "atol": 1e-3 * float(w.abs().max() or 1)}
            try:
                torch.testing.assert_close(g, w, equal_nan=True, check_stride=False, **tolerance)
            except AssertionError as e:
                source = imported.graph.outputs[0].node.source
                return f"{node.target}" + (f" ({source})" if source else "") + f": {str(e).splitlines()[0]}"
    return ""


class _Recorded(fx.Interpreter):
    """Runs a graph and keeps each call's results and what it was given."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm, garbage_collect_values=False)
        self.results: dict[fx.Node, Any] = {}
        self.before: dict[fx.Node, dict[fx.Node, Any]] = {}

    def run_node(self, n: fx.Node) -> Any:
        self.before[n] = {a: _kept(self.env[a]) for a in n.all_input_nodes}
        result = super().run_node(n)
        self.results[n] = _kept(result)
        return result


def _kept(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return tuple(map(_kept, value)) if isinstance(value, (tuple, list)) else value


def _alone(gm: fx.GraphModule, node: fx.Node) -> tuple[fx.GraphModule, list[fx.Node], list[int | None]]:
    """A graph of that call only, the nodes that its arguments stand for, and which of its results it gives."""
    graph = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}

    def argument(n: fx.Node) -> fx.Node:
        if n not in made:
            made[n] = graph.placeholder(n.name)
            made[n].meta = dict(n.meta)
        return made[n]

    call = graph.node_copy(node, argument)
    val = node.meta.get("val")
    leaves: list[int | None] = [None]
    results = [call]
    if not isinstance(val, torch.Tensor):
        parts: dict[int | None, Any] = dict(enumerate(val)) if isinstance(val, (tuple, list)) else {}
        leaves = [i for i, v in parts.items() if isinstance(v, torch.Tensor)]
        results = [graph.call_function(operator.getitem, (call, i)) for i in leaves]
        for r, i in zip(results, leaves):
            r.meta["val"] = parts[i]
    graph.output(tuple(results))
    return fx.GraphModule(gm, graph), list(made), leaves
