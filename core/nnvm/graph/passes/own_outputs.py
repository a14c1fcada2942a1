"""OwnOutputs: what the caller wants with strides of its own is a value that nothing else reads.

```
return %a (strides 1, 8), %b = dense(%a)      ->      %c = identity(%a); return %c, %b = dense(%a)
```
Kernels and views take the values inside a graph to be contiguous, so such an output is written apart; the copy is one
more output of the kernel that computes the value. Copied are outputs with strides that others read, that are returned
twice, that are views, or that a loop nest of its own computes, which knows contiguous memory only.
"""

from __future__ import annotations

from nnvm.graph.graph import Graph, Uses
from nnvm.graph.node import apply
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.views import is_view

__all__ = ["own_outputs"]


@register_pass("OwnOutputs", requires=["typed"], opt_level=0)
def own_outputs(graph: Graph, context: PassContext) -> Graph:
    """Copies the outputs that need it. requires: ``typed``; reads ``output_strides``."""
    strides = graph.attrs.get("output_strides") or ()
    if all(s is None for s in strides):
        return graph
    uses = Uses(graph)
    outputs = []
    for i, (e, wanted) in enumerate(zip(graph.outputs, strides, strict=True)):
        alone = e.node.op.has("build_tir") and not e.node.op.has("compute")
        shared = bool(uses.of(e)) or graph.outputs.count(e) > 1 or is_view(e.node) or alone
        if wanted is None or not shared or e.node.is_variable or e.node.is_constant:
            outputs.append(e)
        else:
            outputs.append(apply("identity", [e], name=f"{e.node.name}.output{i}", source=e.node.source)[0])
    return graph if tuple(outputs) == graph.outputs else graph.with_outputs(outputs)
