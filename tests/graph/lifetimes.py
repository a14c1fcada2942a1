"""Which values of a planned graph are alive when, told from the graph alone, and what of them overlaps."""

from nnvm.dim import evaluate
from nnvm.graph import Graph


def assert_no_overlap(g: Graph, plan, sizes=None) -> int:
    """No step writes memory of the arena that holds something that is still needed; gives the values looked at.

    What is needed is told from the steps' reads and the outputs alone. A step may write over an input that only it
    still needs: only where its group says so, from the input's first byte on.
    """
    sizes = sizes or {}
    step_of = {node: i for i, node in enumerate(plan.steps)}
    last: dict[object, int] = {}
    for node, i in step_of.items():
        for e in node.inputs:
            last[plan.root(e)] = i
    for e in g.outputs:
        last[plan.root(e)] = len(plan.steps)
    values = []
    for node, i in step_of.items():
        for e in node.outputs:
            place, extra = plan.locate(e)
            if place.kind == "arena":
                start = evaluate(place.offset + extra, sizes)
                end = start + evaluate(e.type.nbytes, sizes)
                assert start >= 0 and end <= evaluate(plan.arena_bytes, sizes), f"{e} lies outside the arena"
                values.append((e, i, last.get(e, i), start, end))
    for a, born, _, begin, end in values:
        for b, first, died, low, high in values:
            if a is b or begin >= high or low >= end or first > born or died < born:
                continue
            if plan.root(a) == plan.root(b):
                continue  # views of one value
            assert died == born and first < born, f"{a} is written over {b}, which is needed until step {died}"
            assert _may_overwrite(plan, a, b), f"{a} is written over {b}, which the same step reads"
    return len(values)


def _may_overwrite(plan, out, dying) -> bool:
    node = out.node
    pairs = node.attrs["graph"].attrs.get("inplace", ()) if "graph" in node.attrs else ()
    reads = [i for i, e in enumerate(node.inputs) if plan.root(e) == dying]
    return len(reads) == 1 and (reads[0], out.index) in pairs and plan.locate(out) == plan.locate(node.inputs[reads[0]])
