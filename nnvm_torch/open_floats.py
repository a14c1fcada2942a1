"""Floats that are computed of sizes (``1 / n``), which only the call knows: tensors of shape () in float64, in which
Python computes them too."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from nnvm.dim import SymDim
from nnvm.dtype import F64, I64
from nnvm.graph import NodeEntry, TensorType, apply, constant
from nnvm_torch.tensors import dtype_of, numpy_of

__all__ = ["float_of_sizes", "takes_floats"]

_BINARY: dict[Any, str] = {operator.add: "add", operator.sub: "subtract", operator.mul: "multiply",
                           operator.truediv: "divide"}  # fmt: skip

#: Operators whose converters take such a tensor for a number: those that take any, and those that refuse one that the
#: type of their tensors does not hold.
_TAKE_ANY = frozenset({
    torch.ops.aten.mul.Tensor, torch.ops.aten.mul.Scalar, torch.ops.aten.div.Tensor, torch.ops.aten.div.Scalar,
})  # fmt: skip
_TAKE = _TAKE_ANY | {
    torch.ops.aten.add.Tensor, torch.ops.aten.add.Scalar, torch.ops.aten.sub.Tensor, torch.ops.aten.sub.Scalar,
    torch.ops.aten.rsub.Scalar, torch.ops.aten.leaky_relu.default, torch.ops.aten.elu.default,
    torch.ops.aten.celu.default, torch.ops.aten.softplus.default,
}  # fmt: skip


def takes_floats(node: fx.Node) -> bool:
    """May the call be converted with such a tensor among its arguments? That its number is one that ATen takes is a
    guard."""
    vals = [n.meta.get("val") for n in node.all_input_nodes]
    types = [v.dtype for v in vals if isinstance(v, torch.Tensor)]
    if node.target not in _TAKE or not all(t.is_floating_point and dtype_of(t) is not None for t in types):
        return False
    most = min((torch.finfo(t).max for t in types), default=0.0)
    numbers = [v for v in vals if isinstance(v, torch.SymFloat)]
    return node.target in _TAKE_ANY or all(bool(v <= most) and bool(v >= -most) for v in numbers)


def float_of_sizes(node: fx.Node, env: Mapping[fx.Node, Any]) -> NodeEntry | None:
    """The value of a call that gives a `torch.SymFloat`; None where it is of another kind. That nothing is divided by
    0, which Python refuses, is a guard."""
    made = [_entry(env.get(a) if isinstance(a, fx.Node) else a) for a in node.args]
    if node.kwargs or not made or None in made:
        return None
    if node.target is torch.sym_float:
        return made[0]
    if node.target is operator.neg:
        return apply("negative", [made[0]])[0]  # type: ignore[list-item]
    if (name := _BINARY.get(node.target)) is None:
        return None
    divisor = node.args[1].meta["val"] if isinstance(node.args[1], fx.Node) else node.args[1]
    if name == "divide" and divisor == 0:
        return None
    return apply(name, made)[0]  # type: ignore[arg-type]


def _entry(value: Any) -> NodeEntry | None:
    if isinstance(value, NodeEntry):
        return value
    if isinstance(value, SymDim):
        size = apply("full", [], {"shape": (), "dtype": I64, "value": value})[0]
        return apply("cast", [size], {"dtype": F64})[0]
    if isinstance(value, (int, float)):
        return constant(numpy_of(torch.tensor(float(value), dtype=torch.float64)), TensorType((), F64))
    return None
