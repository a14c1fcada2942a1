"""Which values of an fx graph lie in the memory of others."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from nnvm.graph import NodeEntry
from nnvm_torch.imported import View
from nnvm_torch.partition import is_view
from nnvm_torch.tensors import dim_of, is_foreign, shape_of

__all__ = ["base_of", "below_types", "look_at_bases", "refuse_lost_edits", "root_of", "view_of"]


def base_of(node: fx.Node) -> fx.Node:
    """The node whose memory this one's value lies in (itself, where it is no view)."""
    while node.op == "call_function":
        source: Any = node
        if node.target is operator.getitem:
            source = node.args[0]
        if not is_view(source.target) or not isinstance(source.args[0], fx.Node):
            break
        below = source.args[0]
        vals = node.meta.get("val"), below.meta.get("val")
        if not all(isinstance(v, torch.Tensor) and is_foreign(v) is None for v in vals):
            break
        if vals[0].dtype != vals[1].dtype:  # type: ignore[union-attr]
            break
        node = below
    return node


def look_at_bases(gm: fx.GraphModule) -> None:
    """Makes `as_strided` of a view one of the tensor whose memory it is: it may look beyond the view."""
    looks = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)
    for node in gm.graph.nodes:
        if node.target in looks and isinstance(node.args[0], fx.Node) and len(node.args) > 2:
            base = base_of(node.args[0])
            if base is not node.args[0]:
                offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
                if offset is None:
                    offset = node.meta["val"].storage_offset()
                if isinstance(offset, (int, fx.Node)):
                    node.args, node.kwargs = (base, *node.args[1:3], offset), {}


def refuse_lost_edits(gm: fx.GraphModule) -> None:
    """RuntimeError where a graph of Dynamo edits windows with gaps between them (`unfold` with a step greater than the
    window) in place: AOTAutograd writes zeros to what lies between; or multiplies in place what cannot have the type of
    the product, of which AOTAutograd makes a cast."""
    windows: set[fx.Node] = set()
    for node in gm.graph.nodes:
        below = node.args[0] if node.args else None
        if not isinstance(below, fx.Node):
            continue
        if node.target in _PRODUCTS_IN_PLACE and len(node.args) == 2:
            _refuse_cast(below, node.args[1])
        if below in windows and _edits(node):
            raise RuntimeError("an edit in place of windows that leave gaps (unfold with a step greater than its size)")
        if (below in windows and _share_memory(node, below)) or _leaves_gaps(node):
            windows.add(node)


_PRODUCTS_IN_PLACE = (operator.imul, "mul_", "multiply_")


def _refuse_cast(x: fx.Node, by: Any) -> None:
    """RuntimeError, as eager's, where the product cannot be written to `x`."""
    of, other = (a.meta.get("example_value") if isinstance(a, fx.Node) else a for a in (x, by))
    if not isinstance(of, torch.Tensor) or not isinstance(other, (torch.Tensor, int, float, complex)):
        return
    result = torch.result_type(of, other)
    if not torch.can_cast(result, of.dtype):
        raise RuntimeError(f"result type {result} can't be cast to the desired output type {of.dtype}")


def _leaves_gaps(node: fx.Node) -> bool:
    if node.target not in ("unfold", torch.Tensor.unfold, torch.ops.aten.unfold.default):
        return False
    given = dict(zip(("dimension", "size", "step"), node.args[1:])) | node.kwargs
    size, step = given.get("size"), given.get("step")
    return not (isinstance(size, int) and isinstance(step, int)) or step > size


def _edits(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op == "call_function" and getattr(node.target, "__module__", "") == "_operator":
        return name == "setitem" or (name.startswith("i") and hasattr(operator, f"__{name}__"))
    return (name.endswith("_") and not name.endswith("__")) or node.kwargs.get("inplace") is True


def _share_memory(a: fx.Node, b: fx.Node) -> bool:
    vals = [n.meta.get("example_value") for n in (a, b)]
    if not all(isinstance(v, torch.Tensor) and is_foreign(v) is None for v in vals):
        return False
    mine, theirs = (v.untyped_storage()._cdata for v in vals)  # type: ignore[union-attr]
    return bool(mine == theirs)


def below_types(node: fx.Node) -> fx.Node:
    """As `base_of`, through views as other types of the same size too."""
    while (base := base_of(node)).target is torch.ops.aten.view.dtype:
        below = base.args[0]
        if not isinstance(below, fx.Node) or is_foreign(below.meta["val"]):
            break
        if base.meta["val"].element_size() != below.meta["val"].element_size():
            break
        node = below
    return base


def view_of(node: fx.Node, base: fx.Node) -> View:
    val, under = node.meta["val"], base.meta["val"]
    offset = dim_of(val.storage_offset()) - dim_of(under.storage_offset())
    dtype = val.dtype if val.dtype != under.dtype else None
    return View(shape_of(val), tuple(dim_of(s) for s in val.stride()), offset, dtype)


def root_of(entry: NodeEntry) -> NodeEntry:
    """What the entry is the memory of, through reshapes."""
    while entry.node.op.attr("view"):
        entry = entry.node.inputs[0]
    return entry
