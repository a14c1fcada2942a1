"""FoldConstant: what depends on constants only is computed now.

```
%a = constant(2.0); %b = constant(3.0)
%c = multiply(%a, %b)                     ->      %c = constant(6.0)
```
Values are those of the reference executor. Large results stay as they are, so that a constant tensor of one value or a
range does not become megabytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nnvm.graph.dependence import depends_on_sizes, is_pure
from nnvm.graph.evaluate import can_evaluate, evaluate_node
from nnvm.graph.graph import Graph, rebuild
from nnvm.graph.node import Node, NodeEntry, constant
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.types import TensorType

__all__ = ["LIMIT_BYTES", "fold_constant"]

#: Largest result that is stored where the inputs are smaller.
LIMIT_BYTES = 1 << 22
#: The same for ops without inputs: a tensor of one value or a range is cheaper to compute than to read.
_CREATION_BYTES = 1 << 16


@register_pass("FoldConstant", requires=["typed"], opt_level=1)
def fold_constant(graph: Graph, context: PassContext) -> Graph:
    """Evaluates nodes whose inputs are constants. requires: ``typed``. Option ``fold_limit``: bytes of one result."""
    limit = int(context.options.get("fold_limit", LIMIT_BYTES))
    creation_limit = min(limit, _CREATION_BYTES)

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> tuple[NodeEntry, ...] | None:
        if not all(e.node.is_constant for e in inputs) or not _is_foldable(
            node, inputs, limit if inputs else creation_limit
        ):
            return None
        try:
            arrays = evaluate_node(node, [e.node.attrs["value"] for e in inputs])
        except (IndexError, ZeroDivisionError):
            return None  # fails at the call, as it must
        assert node.types is not None
        return tuple(constant(np.ascontiguousarray(a).reshape(t.shape), t, _name(node, i))
                     for i, (a, t) in enumerate(zip(arrays, node.types)))  # fmt: skip

    return rebuild(graph, rewrite)


def _is_foldable(node: Node, inputs: tuple[NodeEntry, ...], limit: int) -> bool:
    if node.is_constant or node.types is None or not is_pure(node) or not can_evaluate(node):
        return False
    if depends_on_sizes(node):
        return False
    return _bytes(node.types) <= max(limit, _bytes(e.type for e in inputs))


def _bytes(types: Iterable[TensorType]) -> int:
    return sum(n for t in types if isinstance(n := t.nbytes, int))


def _name(node: Node, index: int) -> str:
    return node.name if node.num_outputs == 1 else f"{node.name}.{index}"
