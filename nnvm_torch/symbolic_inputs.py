"""Example inputs with symbolic sizes, for tracing outside Dynamo, and the guards that tracing left on these sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import nn
from torch.utils import _pytree as pytree

from nnvm_torch.dynamic import Bucket, Placed

__all__ = ["SymbolicInputs", "exported_shapes"]


def exported_shapes(module: nn.Module, args: Any, kwargs: Any, sizes: Placed) -> Any:
    """`sizes` as the argument ``dynamic_shapes`` of `torch.export.export`."""
    dims: dict[Bucket, Any] = {}
    collection: Any = torch.export.ShapesCollection
    shapes = collection()
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    for i, axes in sizes.items():
        shapes[tensors[i]] = {
            a: dims.setdefault(b, torch.export.Dim(b.name, min=b.low, max=b.high)) for a, b in axes.items()
        }
    return shapes.dynamic_shapes(module, args, kwargs)


class SymbolicInputs:
    """Weights and input tensors as AOTAutograd is to trace them.

    Attributes:
        values: the tensors themselves where no size is symbolic, else fake ones; see `take`.
    """

    def __init__(self, weights: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], sizes: Placed) -> None:
        self.values: list[torch.Tensor] = [*weights, *tensors]
        self._env: Any = None
        self._known: dict[tuple[int, ...], bool] = {}
        self._axes = [(i, a) for i, axes in sizes.items() for a in axes]
        if not sizes:
            return
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self._env = ShapeEnv(duck_shape=False)
        mode = FakeTensorMode(shape_env=self._env)
        inputs = [_fake(mode, f"input{i}", t, sizes.get(i, {})) for i, t in enumerate(tensors)]
        self.values = [*(mode.from_tensor(w, static_shapes=True) for w in weights), *inputs]
        self._symbols = [_symbol(inputs[i].shape[a]) for i, a in self._axes]
        first: dict[Bucket, Any] = {}
        for i, a in self._axes:  # sizes of one name are equal: a guard, after which they are one symbol
            bool(inputs[i].shape[a] == first.setdefault(sizes[i][a], inputs[i].shape[a]))

    def take(self) -> list[torch.Tensor]:
        """The tensors to trace, which are let go of here: weights must not live on because they were traced once."""
        values, self.values = self.values, []
        return values

    def fit(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Does what the trace assumed of the symbolic sizes hold for these tensors?"""
        if self._env is None:
            return True
        sizes = tuple(int(tensors[i].shape[a]) for i, a in self._axes)
        known = self._known.get(sizes)
        if known is None:
            env = dict(zip(self._symbols, sizes))
            known = all(_holds(guard.expr, env) for guard in self._env.guards)
            if len(self._known) < 1 << 12:
                self._known[sizes] = known
        return known


def _holds(guard: Any, env: Mapping[Any, int]) -> bool:
    return bool(sympy.sympify(guard).subs(env) == True)  # noqa: E712  a relation that is not decided holds not


def _symbol(size: Any) -> Any:
    return size.node._expr if isinstance(size, torch.SymInt) else None


def _fake(mode: Any, name: str, tensor: torch.Tensor, axes: Mapping[int, Bucket]) -> torch.Tensor:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext, StrictMinMaxConstraint
    from torch.utils._sympy.value_ranges import ValueRanges

    if not axes:
        return mode.from_tensor(tensor, static_shapes=True)  # type: ignore[no-any-return]
    kinds = [DimDynamic.DYNAMIC if a in axes else DimDynamic.STATIC for a in range(tensor.ndim)]
    ranges: list[Any] = [
        StrictMinMaxConstraint(vr=ValueRanges(axes[a].low, axes[a].high), warn_only=False) if a in axes else None
        for a in range(tensor.ndim)
    ]
    context: Callable[..., Any] = StatelessSymbolicContext
    return mode.from_tensor(  # type: ignore[no-any-return]
        tensor, source=ConstantSource(name),
        symbolic_context=context(dynamic_sizes=kinds, constraint_sizes=ranges),
    )  # fmt: skip
