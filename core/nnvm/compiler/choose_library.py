"""ChooseLibrary: products that a vendor's library computes sooner than our kernel.

```
%g = group(%x, %w, %b):                         %d = dense(%x, %w, %b)         in the library
  %d = dense(%p0, %p1, %p2)               ->    %g = group(%d):
  %r = relu(%d); return %r                        %r = relu(%p0); return %r
return %g                                       return %g
```
What was fused behind the product becomes a kernel of its own; products with something fused in front stay. Who decides
is the setting ``library`` of the pass for a GPU, a `Choose`, and ``cpu_library`` for a CPU, a `ChooseOnCpu`; without it
(code for a machine without the library, as in an artifact) all products stay. On a CPU only products of weights that
are new at each call are asked for: what depends on parameters only is packed for our kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnvm.compiler.lower_group import group_bytes, tensors_of
from nnvm.dim import estimate, evaluate
from nnvm.graph.graph import Graph, Uses, rebuild
from nnvm.graph.group import fused_nodes, make_group
from nnvm.graph.node import Node, NodeEntry, apply, variable
from nnvm.graph.op_attrs import OpPattern
from nnvm.graph.pass_manager import PassContext, register_pass
from nnvm.schedules.gpu.cost import ProductSize, library_seconds, product_size, template_seconds

__all__ = ["Choice", "Choose", "ChooseOnCpu", "ProductCase", "choose_library"]


@dataclass(frozen=True)
class Choice:
    """Which is used for a product, and why.

    Attributes:
        ours, library: seconds of the kernel with everything fused, and of the library's with a kernel for the rest.
        measured: whether they were measured on the GPU, or estimated.
    """

    ours: float
    library: float
    measured: bool

    @property
    def takes_library(self) -> bool:
        return self.library < self.ours


@dataclass(frozen=True)
class ProductCase:
    """A group with one product, to be decided on.

    Attributes:
        name: of the group.
        ops: names of its operators.
        size: of the product.
        whole, apart: graphs of the group as it is, and of the library's call and the kernel for the rest: with the same
            inputs and outputs, fused.
        estimate: by rule.
    """

    name: str
    ops: tuple[str, ...]
    size: ProductSize
    whole: Graph
    apart: Graph
    estimate: Choice


Choose = Callable[[ProductCase], Choice]
#: Value that a named size is taken to have where none is likely.
_UNKNOWN = 64
#: Of a product on a CPU and the bytes that a kernel for the rest of its group moves: None where there is no doubt.
ChooseOnCpu = Callable[[Node, float], Choice | None]


@register_pass("ChooseLibrary", requires=["fused"], opt_level=3)
def choose_library(graph: Graph, context: PassContext) -> Graph:
    """Takes products out of their groups where the library is sooner. requires: ``fused``; provides, where there was
    anything to decide, ``library_choices``: (group, operator, `Choice`) of each."""
    decide = _decide(context)
    if decide is None:
        return graph
    uses = Uses(graph)
    given = graph.attrs.get("output_strides") or ()
    strided = {e for e, strides in zip(graph.outputs, given) if strides is not None}
    decided: list[tuple[str, str, Choice]] = []

    def rewrite(node: Node, inputs: tuple[NodeEntry, ...]) -> tuple[NodeEntry, ...] | None:
        product = _product(node)
        if product is None or any(e.node.attrs.get("in_place") for e in node.inputs):
            return None
        if any(e in strided or any(u.attrs.get("in_place") for u, _ in uses.of(e)) for e in node.outputs):
            return None  # it is written through strides, or where a longer value lies
        choice = decide(node, product)
        if choice is None:
            return None
        decided.append((node.name, product.op.name, choice))
        return _apart(node, product, inputs) if choice.takes_library else None

    made = rebuild(graph, rewrite)
    return made.with_attrs(library_choices=tuple(decided)) if decided else graph


def _decide(context: PassContext) -> Callable[[Node, Node], Choice | None] | None:
    """What decides on a (group, product); None: nobody does."""
    if not context.target.is_gpu:
        on_cpu: ChooseOnCpu | None = context.options.get("cpu_library")
        if on_cpu is None:
            return None
        return lambda node, of: None if _is_prepared(node, of) else on_cpu(of, _rest_bytes(node, of))
    choose: Choose | None = context.options.get("library")
    if choose is None:
        return None

    def on_gpu(node: Node, product: Node) -> Choice | None:
        found = _case(node, product, context)
        return None if found is None else choose(found)

    return on_gpu


def _is_prepared(node: Node, product: Node) -> bool:
    """Whether the product's weight is the same at all calls."""
    outer = {v[0]: e.node for v, e in zip(node.attrs["graph"].inputs, node.inputs)}
    weight = outer[product.inputs[1]]
    return weight.is_constant or (weight.is_variable and weight.attrs.get("kind") in ("param", "prepared"))


def _rest_bytes(node: Node, product: Node) -> float:
    """Bytes that a kernel for what is fused behind the product moves."""
    whole: Graph = node.attrs["graph"]
    if all(n is product for n in fused_nodes(whole)):
        return 0.0
    inputs = [variable(v.name, v[0].type) for v in whole.inputs]
    apart = Graph(_apart(node, product, tuple(inputs)), tuple(v.node for v in inputs))
    return sum(float(estimate(group_bytes(n.attrs["graph"]), _UNKNOWN)) for n in apart.nodes if n.op.name == "group")


def _product(node: Node) -> Node | None:
    """The only product of a group, which reads the group's inputs themselves and can be called in a library."""
    if node.op.name != "group":
        return None
    inner = fused_nodes(node.attrs["graph"])
    masters = [n for n in inner if n.op.attr("pattern") == OpPattern.OUT_FUSABLE]
    if len(masters) != 1:
        return None
    (product,) = masters
    call = product.op.attr("library_call")
    if call is None or call(product.attrs) is None:
        return None
    return product if all(e.node.is_variable for e in product.inputs) else None


def _case(node: Node, product: Node, context: PassContext) -> ProductCase | None:
    whole: Graph = node.attrs["graph"]
    alone = make_group([product], product.outputs, OpPattern.OUT_FUSABLE).attrs["graph"]
    size = product_size(*tensors_of(alone))
    if size is None:
        return None
    inputs = [variable(v.name, v[0].type) for v in whole.inputs]
    names = tuple(v.node for v in inputs)
    again = apply("group", inputs, node.attrs, node.name)
    apart = Graph(_apart(node, product, tuple(inputs)), names)
    rest = sum(_bytes(n.attrs["graph"]) for n in apart.nodes if n.op.name == "group")
    ours = template_seconds(size, _bytes(whole), context.target)
    library = library_seconds(size, _bytes(alone), rest, context.target)
    ops = tuple(n.op.name for n in fused_nodes(whole))
    fused = {"fused": True}
    return ProductCase(node.name, ops, size, Graph(again.outputs, names, fused), apart.with_attrs(**fused),
                       Choice(ours, library, False))  # fmt: skip


def _bytes(group: Graph) -> float:
    return float(evaluate(group_bytes(group), {}))  # where the product's sizes are known, all are


def _apart(node: Node, product: Node, inputs: tuple[NodeEntry, ...]) -> tuple[NodeEntry, ...]:
    """The outputs of a group as a call of its product and a group of the rest."""
    whole: Graph = node.attrs["graph"]
    outer = {v[0]: e for v, e in zip(whole.inputs, inputs)}
    call = apply(product.op, [outer[e] for e in product.inputs], product.attrs, product.name, product.source)
    outer.update(zip(product.outputs, call.outputs))
    rest = [n for n in fused_nodes(whole) if n is not product]
    new: dict[Node, Node] = {}

    def moved(e: NodeEntry) -> NodeEntry:
        if e in outer:
            return outer[e]
        return new[e.node][e.index] if e.node in new else e

    for n in rest:
        new[n] = apply(n.op, [moved(e) for e in n.inputs], n.attrs, n.name, n.source)
    stored = [e for e in whole.outputs if e not in outer]
    if not stored:
        return tuple(moved(e) for e in whole.outputs)
    pattern = max(n.op.attr("pattern", OpPattern.OPAQUE) for n in rest)
    group = make_group([new[n] for n in rest], [moved(e) for e in stored], pattern)
    place = {e: group[i] for i, e in enumerate(stored)}
    return tuple(place[e] if e in place else moved(e) for e in whole.outputs)
