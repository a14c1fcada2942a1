"""Gradient: reverse-mode differentiation, in the graph's own operators.

```
(%x, %w)                         (%x, %w, %y_grad)
%y = multiply(%x, %w)    ->      %x_grad = multiply(%y_grad, %w)
-> %y                            %w_grad = multiply(%y_grad, %x)
                                 -> %x_grad, %w_grad
```
Each op says by its attribute ``gradient`` what the gradients of its inputs are. The nodes are visited from the outputs
to the inputs; what several users of a value contribute is summed. Only what lies between `wrt` and the outputs is
visited, and where an op gives None for an input nothing is computed for it.

The result shares the nodes of the forward graph, so both run as one:

>>> grads = gradient(graph, wrt=["w"])
>>> both = Graph((*graph.outputs, *grads.outputs), grads.inputs, {"typed": True})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnvm.dim import Dim
from nnvm.graph.graph import Graph
from nnvm.graph.node import Node, NodeEntry, apply, variable
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.graph.passes.mirror import Policy, mirror
from nnvm.graph.types import TensorType

__all__ = ["GradientError", "NotDifferentiableError", "gradient", "gradient_pass", "sum_to_shape"]


class GradientError(ValueError):
    """The graph cannot be differentiated; the message lists every node that stands in the way."""


class NotDifferentiableError(ValueError):
    """Raised by an op's ``gradient`` where these attributes or types have none; the message says which."""


@register_pass("Gradient", requires=["typed"], provides=["typed"])
def gradient_pass(graph: Graph, context: PassContext) -> Graph:
    """The gradients as a graph, from new inputs ``{output}_grad``. Option ``wrt``: names of inputs; without it, all
    parameters of a float type. Option ``mirror``: what is recomputed. requires: ``typed``. provides: ``typed``."""
    names: Sequence[str] | None = context.options.get("wrt")
    if names is None:
        names = [v.name for v in graph.inputs if v.attrs["kind"] == "param" and v[0].type.dtype.is_float]
    return gradient(graph, names, mirrored=context.options.get("mirror", "marked"))


def gradient(
    graph: Graph, wrt: Sequence[str | NodeEntry], out_grads: Sequence[NodeEntry | None] | None = None,
    mirrored: Policy = "marked",
) -> Graph:  # fmt: skip
    """Gradients of the graph's outputs by each of `wrt`: of sum(output * out_grad) over all outputs.

    Args:
        graph: with types.
        wrt: inputs by name, or any values of the graph; of a float type.
        out_grads: a value for each output, of its type; None: the output contributes nothing. Left out, each float
            output gets a new input ``{output}_grad``.
        mirrored: which forward values are recomputed to save memory: ``sqrt``, ``cheap``, ``marked`` or a function of
            the node (graph/passes/mirror.py).

    Returns:
        A graph with one output per entry of `wrt`, of the same type (zeros where nothing depends on it). Its inputs
        are those of `graph`, and after them the variables of `out_grads`.

    Raises:
        GradientError: listing all nodes on the way from `wrt` to the outputs whose op has no gradient.
    """
    targets = [_resolve(graph, w) for w in wrt]
    heads = _placeholders(graph) if out_grads is None else list(out_grads)
    _check_heads(graph, targets, heads)
    order = graph.nodes
    reached = _depends_on(order, targets)
    grads: dict[NodeEntry, NodeEntry] = {}
    for output, head in zip(graph.outputs, heads):
        if head is not None and output in reached:
            _accumulate(grads, output, head)
    refused: list[str] = []
    _visit(order, grads, reached, refused)
    if refused:
        raise GradientError("no gradient for:\n" + "\n".join(refused))
    outputs = tuple(grads[t] if t in grads else _zeros(t.type) for t in targets)
    backward = Graph(outputs, _inputs(graph, heads), {"typed": True})
    return mirror(graph, backward, [h for h in heads if h is not None], mirrored)


def sum_to_shape(grad: NodeEntry, shape: tuple[Dim, ...]) -> NodeEntry:
    """The gradient of an operand of `shape` that was broadcast to the shape of `grad`: summed over the new axes."""
    have = grad.type.shape
    if have == shape:
        return grad
    lead = len(have) - len(shape)
    spread = tuple(i for i, d in enumerate(have) if i < lead or (shape[i - lead] == 1 and d != 1))
    total = apply("sum", [grad], {"axis": spread, "keepdims": True})[0] if spread else grad
    return total if total.type.shape == shape else apply("reshape", [total], {"shape": shape})[0]


def _resolve(graph: Graph, wrt: str | NodeEntry) -> NodeEntry:
    if not isinstance(wrt, str):
        return wrt
    found = next((v for v in graph.inputs if v.name == wrt), None)
    if found is None:
        raise GradientError(f"no input {wrt!r}; the graph has {', '.join(v.name for v in graph.inputs)}")
    return found[0]


def _placeholders(graph: Graph) -> list[NodeEntry | None]:
    """A new variable for each float output."""
    names = {v.name for v in graph.inputs}
    out: list[NodeEntry | None] = []
    for i, e in enumerate(graph.outputs):
        name = f"{e}_grad"
        name = f"{name}_{i}" if name in names else name
        names.add(name)
        out.append(variable(name, e.type) if e.type.dtype.is_float else None)
    return out


def _check_heads(graph: Graph, targets: Sequence[NodeEntry], heads: Sequence[NodeEntry | None]) -> None:
    if len(heads) != len(graph.outputs):
        raise GradientError(f"{len(heads)} out_grads for {len(graph.outputs)} outputs")
    for e, head in zip(graph.outputs, heads):
        if head is not None and not _same_type(head.type, e.type):
            raise GradientError(f"the out_grad of {e}: {e.type} has the type {head.type}")
    if wrong := [f"{t}: {t.type}" for t in targets if not t.type.dtype.is_float]:
        raise GradientError(f"only floats have gradients, not {', '.join(wrong)}")


def _same_type(a: TensorType, b: TensorType) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


def _depends_on(order: Sequence[Node], targets: Sequence[NodeEntry]) -> set[NodeEntry]:
    """The float values that depend on one of `targets`, these included."""
    reached = set(targets)
    for node in order:
        if any(e in reached for e in node.inputs):
            reached.update(e for e in node.outputs if e.type.dtype.is_float)
    return reached


def _visit(
    order: Sequence[Node], grads: dict[NodeEntry, NodeEntry], reached: set[NodeEntry], refused: list[str]
) -> None:
    """Fills `grads` from the outputs to the inputs; nodes without a gradient are described in `refused`.

    Beyond such a node the way goes on with its inputs taken as reached, so that one error names all of them.
    """
    blocked: set[NodeEntry] = set()
    for node in reversed(order):
        needed = [e for e in node.inputs if e in reached]
        arrived = [grads.get(e) for e in node.outputs]
        unknown = any(e in blocked for e in node.outputs)
        if not needed or not (unknown or any(g is not None for g in arrived)):
            continue
        rule = node.op.attr("gradient")
        if rule is None:
            refused.append(f"  {node!r}: op {node.op.name} has no attribute gradient{_at(node)}")
            blocked.update(needed)
        elif unknown:
            blocked.update(needed)
        else:
            try:
                found = rule(node, arrived)
            except NotDifferentiableError as e:
                refused.append(f"  {node!r}: {e}{_at(node)}")
                blocked.update(needed)
                continue
            _spread(node, found, grads, reached)


def _spread(
    node: Node, found: Sequence[NodeEntry | None], grads: dict[NodeEntry, NodeEntry], reached: set[NodeEntry]
) -> None:
    if len(found) != len(node.inputs):
        raise GradientError(f"op {node.op.name} gives {len(found)} gradients for {len(node.inputs)} inputs: {node!r}")
    for e, g in zip(node.inputs, found):
        if g is None or e not in reached:
            continue
        if not _same_type(g.type, e.type):
            raise GradientError(f"op {node.op.name} gives a gradient of type {g.type} for input {e}: {e.type}")
        _accumulate(grads, e, g)


def _accumulate(grads: dict[NodeEntry, NodeEntry], entry: NodeEntry, grad: NodeEntry) -> None:
    grads[entry] = apply("add", [grads[entry], grad])[0] if entry in grads else grad


def _zeros(t: TensorType) -> NodeEntry:
    return apply("full", [], {"shape": t.shape, "dtype": t.dtype, "value": 0})[0]


def _inputs(graph: Graph, heads: Sequence[NodeEntry | None]) -> tuple[Node, ...]:
    """The graph's inputs, and the variables among `heads` that are new."""
    fresh: Mapping[Node, None] = dict.fromkeys(n for n in Graph(tuple(h for h in heads if h is not None), ()).nodes
                                               if n.is_variable and n not in graph.inputs)  # fmt: skip
    return (*graph.inputs, *fresh)


def _at(node: Node) -> str:
    return f" ({node.source})" if node.source else ""
