"""FinishPrepare: fuses the prepare graph and plans its memory, as the main graph's.

```
prepare: %t = transpose(%w); %s = negative(%t)    ->    prepare: %s = group(%w), with a memory plan
```
"""

from __future__ import annotations

from nnvm.graph.graph import Graph
from nnvm.graph.pass_manager import PassContext, apply_passes, register_pass

__all__ = ["STEPS", "finish_prepare"]

#: What the prepare graph goes through; it was simplified as part of the whole graph.
STEPS = ("GraphFuse", "EliminateDead", "PlanMemory")


@register_pass("FinishPrepare", requires=["prepare"])
def finish_prepare(graph: Graph, context: PassContext) -> Graph:
    """Replaces the attribute ``prepare`` by the fused and planned graph. requires: ``prepare``."""
    prepare: Graph = graph.attrs["prepare"]
    finished = apply_passes(prepare, STEPS, context)
    return graph if finished is prepare else graph.with_attrs(prepare=finished)
