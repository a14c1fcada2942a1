"""Runs passes on a graph and compares values, the prepare graph included."""

import numpy as np

from nnvm.graph import Graph
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.verify import verify
from nnvm.graph.views import is_view
from nnvm.testing.reference import random_inputs, run_graph


def run_main(main: Graph, g: Graph, arrays):
    """Outputs of a main graph that came from `g`, for the inputs of `g`."""
    by_name = dict(zip((v.name for v in g.inputs), arrays))
    prepare = main.attrs.get("prepare")
    early = [] if prepare is None else run_graph(prepare, [by_name[v.name] for v in prepare.inputs])
    return run_graph(main, [*arrays, *early])


def checked(g: Graph, *passes: str, rtol=1e-4, atol=1e-4, arrays=None, **options) -> Graph:
    """The graph after the passes, verified after each and with the same values."""
    g = g.with_attrs(typed=True)
    target = options.pop("target", None)
    context = PassContext(verify=True, options=options) if target is None else PassContext(
        verify=True, options=options, target=target)  # fmt: skip
    out = verify(apply_passes(g, passes, context))
    arrays = arrays or random_inputs(g)
    for a, b in zip(run_main(out, g, arrays), run_graph(g, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
    return out


def work(g: Graph) -> list[str]:
    """Op names without variables, constants and views."""
    return [n.op.name for n in g.nodes if not (n.is_variable or n.is_constant or is_view(n))]
