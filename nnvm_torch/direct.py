"""Calls without the wrappers that AOTAutograd puts around a compiled graph, where these do nothing.

Each call of a graph goes through functions that apply mutations, restore aliases, unwrap subclasses of tensors and
turn gradients and autocast off. What they would do is known when the graph is compiled; where it is nothing, and the
graph is native code that neither gradients nor autocast could reach, the arguments go straight to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from nnvm_torch.faults import Guard
from nnvm_torch.runner import Runner
from nnvm_torch.weights import Weights

__all__ = ["Marks", "direct_call", "marks_alone"]

#: Outputs whose sizes are symbolic, for graphs that take them on: (position, axes).
Marks = tuple[tuple[int, frozenset[int]], ...]

#: What AOTAutograd's metadata says of a graph around which there is nothing to do.
_NOTHING: dict[str, Any] = {
    "num_mutated_inp_runtime_indices": 0, "num_mutated_graph_handled_indices": 0, "num_outputs_aliased": 0,
    "num_intermediate_bases": 0, "grad_enabled_mutation": None, "tokens": {}, "is_rng_op_functionalized": False,
    "num_graphsafe_rng_states": 0,
}  # fmt: skip
#: Inputs that are results of collectives under way, by the names that it has in several versions of PyTorch.
_COLLECTIVES = ("act_input_indices", "act_input_paths")


def marks_alone(gm: fx.GraphModule, inputs: Sequence[Any]) -> Marks | None:
    """The marks that AOTAutograd, which is having the inference graph `gm` compiled for a function of `inputs`, puts on
    its outputs; None where it does anything else around it, or does not say."""
    context = torch._guards.TracingContext.try_get()
    meta = getattr(context, "fw_metadata", None)
    if meta is None or getattr(context, "fakify_first_call", True) or torch._functorch.config.debug_assert:
        return None
    missing = object()
    if any(getattr(meta, name, missing) != value for name, value in _NOTHING.items()):
        return None
    if [getattr(meta, name) for name in _COLLECTIVES if hasattr(meta, name)] != [[]]:
        return None
    given = sum(n.op == "placeholder" for n in gm.graph.nodes)
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    counts = given == len(inputs) == len(meta.input_info) and len(output.args[0]) == len(meta.output_info)
    if not counts or not _are_plain(meta.subclass_inp_meta, given) or not _are_plain(meta.subclass_fw_graph_out_meta):
        return None
    marks = tuple((i, frozenset(o.dynamic_dims)) for i, o in enumerate(meta.output_info) if o.dynamic_dims)
    return marks if bool(marks) == meta.dynamic_outputs and (not marks or _mark() is not None) else None


def _mark() -> Callable[[torch.Tensor, set[int]], None] | None:
    """AOTAutograd's function that marks an output; None where this version has none."""
    try:
        from torch._functorch._aot_autograd import runtime_wrappers
    except ImportError:
        return None
    return getattr(runtime_wrappers, "mark_dynamo_propagated_dynamic_indices", None)


def _are_plain(metas: Sequence[Any], count: int | None = None) -> bool:
    """Are these no subclasses of tensors, and each at its own place?"""
    if count is not None and len(metas) != count:
        return False
    return all(type(m).__name__ == "PlainTensorMeta" and m.unwrapped_idx == i for i, m in enumerate(metas))


def direct_call(runner: Runner, guard: Guard, marks: Marks = ()) -> Callable[..., Any]:
    """`runner`, which is pure, as a function of the arguments that marks its outputs."""
    weights, outputs = runner.weights, runner.outputs
    if weights is not None and not runner.symbols and weights.given is not None and not marks:
        return _with_weights(weights, outputs, guard)
    mark = _mark()

    def call(*args: Any) -> Any:
        if guard.broken:
            return guard.in_aten(args)
        try:
            results = outputs(args)
        except Exception as e:
            results = guard.after(e, args)
        if mark is not None:
            for i, axes in marks:
                mark(results[i], set(axes))
        return results

    return call


def _with_weights(weights: Weights, outputs: Callable[[Sequence[Any]], Any], guard: Guard) -> Callable[..., Any]:
    """The same in fewer steps: one function looks at the weights, another one runs the graph."""

    def call(*args: Any) -> Any:
        if guard.broken:
            return guard.in_aten(args)
        try:
            state = weights.latest
            if state is None or not state.same(*args):
                state = weights.updated(args)
            return state.run(args) if state.run is not None else outputs(args)
        except Exception as e:
            return guard.after(e, args)

    return call
