"""`nnvm_torch.compile`: a module that takes another one's place and runs it compiled, without Dynamo's guards."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from nnvm_torch.backend import compile_fx
from nnvm_torch.capture import CaptureError, trace
from nnvm_torch.options import Options
from nnvm_torch.report import number_of
from nnvm_torch.weights import drop_prepared

__all__ = ["CaptureError", "CompiledModule", "compile", "refresh"]

#: Sets of shapes that one module is compiled for before a new one is an error.
MAX_SHAPES = 64


def compile(
    module: nn.Module, example_inputs: Any = None, example_kwargs: Mapping[str, Any] | None = None, **options: Any
) -> CompiledModule:
    """Compiles `module` for inputs like the examples; gives a module that takes its place.

    The result has the parameters, buffers and submodules of `module` itself, so that `state_dict()` and everything
    else is as before. Other shapes compile again at their first call. What is not an input, a parameter or a buffer
    (attributes, global state) counts as it was when a shape was compiled.

    Args:
        example_inputs: positional arguments: a tuple or list, or a single tensor; None: compile at the first call.
        options: see `nnvm_torch.Options`.

    Raises:
        TypeError, ValueError: `module` is no module, or an option is wrong.
        CaptureError: the module cannot be captured.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"nnvm_torch.compile takes a torch.nn.Module, got {type(module).__name__}")
    compiled = CompiledModule(module, Options.make(options))
    if example_inputs is not None or example_kwargs is not None:
        args = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
        compiled.prepare(tuple(args) if example_inputs is not None else (), dict(example_kwargs or {}))
    return compiled


def refresh(module: Any = None) -> None:
    """Makes the next call prepare weights anew, for a change that nothing shows (a write through ``p.data`` that left
    the elements that are compared as they were). Holds for every compiled module."""
    for p in () if module is None else module.parameters():
        with torch.no_grad():
            torch.autograd.graph.increment_version(p)
    drop_prepared()


class _Shape:
    """The module compiled for inputs of one kind."""

    def __init__(self, run: Callable[..., Any], places: list[tuple[dict[str, Any], str]], out_spec: Any) -> None:
        self.run, self.places, self.out_spec = run, places, out_spec

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        state = [where[name] for where, name in self.places]
        return pytree.tree_unflatten(self.run(*state, *tensors), self.out_spec)


class CompiledModule(nn.Module):
    """What `nnvm_torch.compile` gives. Copies and pickles compile again at their first call."""

    def __init__(self, module: nn.Module, options: Options) -> None:
        super().__init__()
        own = self.__dict__
        own["_nnvm_module"] = module
        own["_nnvm_options"] = options
        own["_nnvm_shapes"] = {}
        own["_nnvm_quick"] = {}
        own["_nnvm_lock"] = threading.RLock()
        own["_nnvm_number"] = 0
        # the same dictionaries, not copies: both modules have the same parameters for ever
        own["_parameters"], own["_buffers"], own["_modules"] = module._parameters, module._buffers, module._modules
        own["_non_persistent_buffers_set"] = module._non_persistent_buffers_set
        own.pop("training", None)
        number_of(self)

    @property
    def training(self) -> bool:  # type: ignore[override]
        return bool(self._nnvm_module.training)

    @training.setter
    def training(self, mode: bool) -> None:
        if "_nnvm_module" in self.__dict__:
            self._nnvm_module.training = mode

    def train(self, mode: bool = True) -> CompiledModule:
        self._nnvm_module.train(mode)
        return self

    def __getattr__(self, name: str) -> Any:
        if name == "_nnvm_module":
            raise AttributeError(name)
        return getattr(self._nnvm_module, name)

    def extra_repr(self) -> str:
        return f"nnvm, {len(self._nnvm_shapes)} compiled shapes"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or not all(type(a) is torch.Tensor for a in args):
            return self._general(args, kwargs)
        mode = (self._nnvm_module.training, torch.is_grad_enabled())
        quick = (mode, tuple([(a.dtype, a.shape, a.stride(), a.requires_grad, a.device) for a in args]))
        shape = self._nnvm_quick.get(quick)
        if shape is None:
            result = self._general(args, kwargs)
            leaves, spec = pytree.tree_flatten((args, kwargs))
            key = (spec, *mode, *map(_kind, leaves))
            self._nnvm_quick[quick] = self._nnvm_shapes[key]
            return result
        return shape(list(args))

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with arguments of any structure."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        key = (spec, self._nnvm_module.training, torch.is_grad_enabled(), *map(_kind, leaves))
        shape = self._nnvm_shapes.get(key)
        if shape is None:
            shape = self._compiled(key, args, kwargs, leaves, spec)
        return shape(tensors)

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compiles for arguments like these, without running anything."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        key = (spec, self._nnvm_module.training, torch.is_grad_enabled(), *map(_kind, leaves))
        if key not in self._nnvm_shapes:
            self._compiled(key, args, kwargs, leaves, spec)

    def _compiled(self, key: Any, args: Any, kwargs: Any, leaves: list[Any], spec: pytree.TreeSpec) -> _Shape:
        with self._nnvm_lock:
            if key not in self._nnvm_shapes:
                if len(self._nnvm_shapes) >= MAX_SHAPES:
                    raise RuntimeError(
                        f"this module is compiled for {MAX_SHAPES} kinds of inputs already; for sizes that change "
                        f"from call to call use torch.compile(module, backend='nnvm', dynamic=True)"
                    )
                _check_inputs(self._nnvm_module, leaves)
                self._nnvm_shapes[key] = _compile_shape(self, args, kwargs)
            shape: _Shape = self._nnvm_shapes[key]
            return shape

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        return CompiledModule(copy.deepcopy(self._nnvm_module, memo), self._nnvm_options)

    def __reduce__(self) -> Any:
        return CompiledModule, (self._nnvm_module, self._nnvm_options)


def _kind(leaf: Any) -> Any:
    """What of an argument a compilation depends on."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.shape, leaf.stride(), leaf.requires_grad, leaf.device
    if isinstance(leaf, (int, float, bool, str, type(None), torch.dtype, torch.device)):
        return type(leaf), leaf
    raise TypeError(f"nnvm_torch.compile: an argument of type {type(leaf).__name__} is neither a tensor nor a constant")


def _check_inputs(module: nn.Module, leaves: Sequence[Any]) -> None:
    """The errors that are clearer before tracing than from inside it."""
    floats = {p.dtype for p in module.parameters() if p.dtype.is_floating_point}
    for x in leaves:
        if isinstance(x, torch.Tensor) and x.dtype.is_floating_point and len(floats) == 1 and x.dtype not in floats:
            (dtype,) = floats
            raise TypeError(f"the module's parameters are {dtype}, an input is {x.dtype}")


def _compile_shape(owner: CompiledModule, args: Any, kwargs: Any) -> _Shape:
    options, number = owner._nnvm_options, number_of(owner)

    def compile_one(kind: str, gm: Any, inputs: Any, weights: int) -> Callable[..., Any]:
        static = frozenset(range(weights)) if kind == "inference" else frozenset[int]()
        return compile_fx(gm, kind, options, number, static)

    traced = trace(owner._nnvm_module, args, kwargs, compile_one)
    return _Shape(traced.run, traced.places, traced.out_spec)
