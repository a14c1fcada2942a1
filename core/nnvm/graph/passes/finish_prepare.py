"""FinishPrepare: fuses the prepare graph and plans its memory, as the main graph's.

```
prepare: %t = transpose(%w); %s = negative(%t)    ->    prepare: %s = group(%w), with a memory plan
```
"""

from __future__ import annotations

from dataclasses import replace

from nnvm.graph.graph import Graph
from nnvm.graph.pass_manager import PassContext, apply_passes, register_pass

__all__ = ["STEPS", "finish_prepare"]

#: What the prepare graph goes through; it was simplified as part of the whole graph.
STEPS = ("GraphFuse", "EliminateDead", "PlanMemory")


def _plainly(graph: Graph, context: PassContext) -> Graph:
    """Without FinishPrepare: every node of the prepare graph on its own, in memory of its own."""
    return finish_prepare(graph, replace(context, disabled=context.disabled | set(STEPS)))


@register_pass("FinishPrepare", requires=["prepare"], without=_plainly)
def finish_prepare(graph: Graph, context: PassContext) -> Graph:
    """Replaces the attribute ``prepare`` by the fused and planned graph. requires: ``prepare``."""
    prepare: Graph = graph.attrs["prepare"]
    finished = apply_passes(prepare, STEPS, context)
    return graph if finished is prepare else graph.with_attrs(prepare=finished)
