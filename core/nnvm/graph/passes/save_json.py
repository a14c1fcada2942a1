"""SaveJSON and LoadJSON: a graph as its JSON text in the graph attribute ``json``, and back, as NNVM has them.

>>> text = graph.apply("SaveJSON").json_attr("json")
>>> again = empty.with_attrs(json=text).apply("LoadJSON")
"""

from __future__ import annotations

from nnvm.graph.graph import Graph
from nnvm.graph.graph_attrs import declare_graph_attr
from nnvm.graph.json import load_json, save_json
from nnvm.graph.pass_manager import PassContext, register_pass

__all__ = ["load_json_pass", "save_json_pass"]

declare_graph_attr("json", "str", "A graph in NNVM's JSON format.")


@register_pass("SaveJSON", provides=["json"])
def save_json_pass(graph: Graph, context: PassContext) -> Graph:
    """Leaves the graph's text. provides: ``json``."""
    plain = Graph(graph.outputs, graph.inputs, {k: v for k, v in graph.attrs.items() if k != "json"})
    return graph.with_attrs(json=save_json(plain))


@register_pass("LoadJSON", requires=["json"])
def load_json_pass(graph: Graph, context: PassContext) -> Graph:
    """Gives the graph that the text is of. requires: ``json``."""
    return load_json(graph.attrs["json"])
