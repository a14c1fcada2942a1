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

__all__ = ["direct_call", "wrappers_do_nothing"]

#: What AOTAutograd's metadata says of a graph around which there is nothing to do.
_NOTHING: dict[str, Any] = {
    "num_mutated_inp_runtime_indices": 0, "num_mutated_graph_handled_indices": 0, "num_outputs_aliased": 0,
    "num_intermediate_bases": 0, "dynamic_outputs": False, "grad_enabled_mutation": None, "tokens": {},
    "is_rng_op_functionalized": False, "num_graphsafe_rng_states": 0,
}  # fmt: skip
#: Inputs that are results of collectives under way, by the names that it has in several versions of PyTorch.
_COLLECTIVES = ("act_input_indices", "act_input_paths")


def wrappers_do_nothing(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Does AOTAutograd, which is having the inference graph `gm` compiled for a function of `inputs`, put nothing
    around it that does anything? False where it does not say."""
    context = torch._guards.TracingContext.try_get()
    meta = getattr(context, "fw_metadata", None)
    if meta is None or getattr(context, "fakify_first_call", True) or torch._functorch.config.debug_assert:
        return False
    missing = object()
    if any(getattr(meta, name, missing) != value for name, value in _NOTHING.items()):
        return False
    if [getattr(meta, name) for name in _COLLECTIVES if hasattr(meta, name)] != [[]]:
        return False
    given = sum(n.op == "placeholder" for n in gm.graph.nodes)
    (output,) = (n for n in gm.graph.nodes if n.op == "output")
    counts = given == len(inputs) == len(meta.input_info) and len(output.args[0]) == len(meta.output_info)
    return counts and _are_plain(meta.subclass_inp_meta, given) and _are_plain(meta.subclass_fw_graph_out_meta)


def _are_plain(metas: Sequence[Any], count: int | None = None) -> bool:
    """Are these no subclasses of tensors, and each at its own place?"""
    if count is not None and len(metas) != count:
        return False
    return all(type(m).__name__ == "PlainTensorMeta" and m.unwrapped_idx == i for i, m in enumerate(metas))


def direct_call(runner: Runner, guard: Guard) -> Callable[..., Any]:
    """`runner`, which is pure, as a function of the arguments."""
    weights, outputs = runner.weights, runner.outputs

    if weights is None or runner.symbols or weights.given is None:

        def call(*args: Any) -> Any:
            if guard.broken:
                return guard.in_aten(args)
            try:
                return outputs(args)
            except Exception as e:
                return guard.after(e, args)

        return call

    def call_with_weights(*args: Any) -> Any:
        if guard.broken:
            return guard.in_aten(args)
        try:
            state = weights.latest
            if state is None or not state.same(*args):
                state = weights.updated(args)
            return state.run(args) if state.run is not None else outputs(args)
        except Exception as e:
            return guard.after(e, args)

    return call_with_weights
