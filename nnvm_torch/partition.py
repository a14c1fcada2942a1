"""What ATen runs itself: the graph operators ``torch.op`` and ``torch.effect``, each one ATen call.

The compiler sees opaque nodes with known output types; the executor calls them between native segments on views of
its memory. Values that native code cannot hold (complex numbers, another device) pass between such nodes as handles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from nnvm.dim import Dim, SymDim, evaluate, symbols
from nnvm.graph import OpPattern, Param, TensorType, register
from nnvm_torch.tensors import HANDLE, HANDLE_TYPE, laid_out, torch_dtype

__all__ = ["TOKEN", "AtenCall", "Size", "Slot", "is_effect", "is_view", "needs_strides"]

#: The type of the value that keeps effects in order: each effect takes its predecessor's token.
TOKEN = HANDLE_TYPE

#: Operators whose meaning depends on how their argument lies in memory.
_BY_MEMORY = {"as_strided", "as_strided_copy", "as_strided_scatter", "view", "view_as_complex", "view_as_real"}

#: Arguments that are the only chance of something random: the part of the elements that a dropout drops.
_CHANCES = frozenset({"dropout_p"})


@dataclass(frozen=True)
class Slot:
    """Stands for tensor argument `index` in an argument template; `strides` where the call depends on them."""

    index: int
    strides: tuple[Dim, ...] | None = None


@dataclass(frozen=True)
class Size:
    """Stands for a size known at the call."""

    dim: SymDim


@dataclass(frozen=True, eq=False)
class AtenCall:
    """One ATen (or custom, or higher-order) operator call.

    Attributes:
        target: what is called.
        args, kwargs: its arguments, with `Slot` and `Size` in place of tensors and sizes.
        keep: which of its results, counted flat, are wanted tensors.
        effect: it has an effect or draws random numbers; its last input and output are tokens.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    keep: tuple[int, ...]
    effect: bool

    def __call__(self, env: Mapping[str, int], *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The wanted results, none of which shares memory with an argument."""
        args = [_fill(a, tensors, env) for a in self.args]
        kwargs = {k: _fill(a, tensors, env) for k, a in self.kwargs.items()}
        flat = _flat(self.target(*args, **kwargs))
        results = [flat[i] for i in self.keep]
        storages = {t.untyped_storage()._cdata for t in tensors if t is not None and t.layout == torch.strided}
        out = [_own(r, storages) for r in results]
        if self.effect:
            out.append(torch.empty(0, dtype=torch.uint8))
        return out


def is_effect(call: fx.Node) -> bool:
    """Does the call have effects, or draw random numbers: is its place among the others part of its meaning?"""
    target = call.target
    if not isinstance(target, torch._ops.OpOverload):
        return getattr(target, "_name", "") == "with_effects"
    if _is_random(call) or target._schema.is_mutable:
        return True
    if target.namespace in ("_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "profiler"):
        return True
    return target._schema.name.startswith("aten::_assert") or not target._schema.returns


#: Calls whose results lie in their argument's memory though their schema promises nothing.
_UNDECLARED_VIEWS = frozenset(
    {"aten::unsafe_split", "aten::unsafe_split_with_sizes", "aten::unsafe_chunk", "aten::_unsafe_view"}
)


def is_view(target: Any) -> bool:
    """Do its results lie in the memory of its first argument?"""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target._schema.name in _UNDECLARED_VIEWS:
        return True
    returns = target._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write


def _is_random(call: fx.Node) -> bool:
    """Does the call draw random numbers? Not for a dropout of nothing: attention without one is marked random too."""
    target = call.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    given = dict(zip((a.name for a in target._schema.arguments), call.args)) | call.kwargs
    chances = [given.get(a.name, a.default_value) for a in target._schema.arguments if a.name in _CHANCES]
    return not chances or any(not isinstance(p, (int, float)) or p != 0 for p in chances)


def needs_strides(call: fx.Node) -> bool:
    """Must its tensor arguments lie in memory as they do in eager?"""
    target = call.target
    if not isinstance(target, torch._ops.OpOverload):
        return True
    if _is_random(call):
        return True  # random numbers are drawn in the order of memory
    return target.namespace not in ("aten", "prims") or target._schema.name.split("::")[1] in _BY_MEMORY


def _fill(template: Any, tensors: Sequence[torch.Tensor], env: Mapping[str, int]) -> Any:
    kind = type(template)
    if kind is Slot:
        tensor = tensors[template.index]
        if template.strides is None:
            return tensor
        return laid_out(tensor, tuple(evaluate(s, env) for s in template.strides))
    if kind is Size:
        return evaluate(template.dim, env)
    if kind is list or kind is tuple:
        return kind(_fill(t, tensors, env) for t in template)
    if kind is dict:
        return {k: _fill(t, tensors, env) for k, t in template.items()}
    return template


def _flat(result: Any) -> list[Any]:
    """The leaves of nested tuples and lists."""
    if isinstance(result, (tuple, list)):
        return [t for r in result for t in _flat(r)]
    return [result]


def _own(result: torch.Tensor, storages: set[int]) -> torch.Tensor:
    if result.layout == torch.strided and result.untyped_storage()._cdata in storages:
        return result.clone()
    return result


def _host_call(attrs: Mapping[str, Any]) -> Callable[..., list[torch.Tensor]]:
    """The call, whose results have the element types that were traced: some of torch's traces are wrong in that."""
    call: AtenCall = attrs["call"]
    dtypes = [None if t.dtype == HANDLE else torch_dtype(t.dtype) for t in attrs["types"]]

    def run(env: Mapping[str, int], *tensors: torch.Tensor) -> list[torch.Tensor]:
        return [r if t is None or r.dtype == t else r.to(t) for r, t in zip(call(env, *tensors), dtypes)]

    return run


def _sizes(template: Any) -> set[str]:
    """Names of the sizes that `_fill` looks up."""
    if isinstance(template, (list, tuple)):
        return set[str]().union(*map(_sizes, template))
    if isinstance(template, dict):
        return _sizes(tuple(template.values()))
    if isinstance(template, Slot):
        return set[str]().union(*map(symbols, template.strides or ()))
    return symbols(template.dim) if isinstance(template, Size) else set()


def _host_sizes(attrs: Mapping[str, Any]) -> set[str]:
    call: AtenCall = attrs["call"]
    return _sizes((call.args, dict(call.kwargs)))


def _infer(attrs: Mapping[str, Any], inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    types: tuple[TensorType, ...] = attrs["types"]
    return types


for _name, _stateful in (("torch.op", False), ("torch.effect", True)):
    register(
        _name, inputs=["*tensors"], num_outputs=lambda attrs: len(attrs["types"]), infer_type=_infer,
        params={"call": Param("the AtenCall", lambda c: c), "types": Param("types of its results", tuple)},
        pattern=OpPattern.OPAQUE, host_call=_host_call, host_sizes=_host_sizes, stateful=_stateful,
        doc="One call that ATen runs.",
    )  # fmt: skip
