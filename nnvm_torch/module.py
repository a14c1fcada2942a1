"""`nnvm_torch.compile`: a module that takes another one's place and runs it compiled, without Dynamo's guards."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch._C._functorch import maybe_current_level as transform_level
from torch.utils import _device
from torch.utils import _pytree as pytree

from nnvm_torch.backend import Call, compile_call, compile_lock, forward_mode, is_plain_subclass
from nnvm_torch.capture import CaptureError, Traced, trace
from nnvm_torch.dynamic import Bucket, DynamicAxes, Placed
from nnvm_torch.faults import warn_once
from nnvm_torch.options import Options
from nnvm_torch.report import number_of
from nnvm_torch.shared_memory import SharedMemory
from nnvm_torch.structure import hidden_work, state_of, training_of
from nnvm_torch.weights import WeightsOfAnotherKind, look_again, looks, refresh_all

__all__ = ["CaptureError", "CompiledModule", "compile", "refresh"]

#: Sets of shapes that one module is compiled for before a new one is an error.
MAX_SHAPES = 64
#: Calls that a module knows without a look at their structure, by the shapes of their tensors.
MAX_QUICK = 1024


def compile(
    module: nn.Module, example_inputs: Any = None, example_kwargs: Mapping[str, Any] | None = None, *,
    dynamic: Mapping[str, Any] | None = None, axes: Mapping[str, Any] | None = None, **options: Any,
) -> CompiledModule:  # fmt: skip
    """Compiles `module` for inputs like the examples; gives a module that takes its place.

    The result has the parameters, buffers and submodules of `module` itself, so that `state_dict()` and everything
    else is as before. Other shapes compile again at their first call. What is not an input, a parameter or a buffer
    (attributes, global state) counts as it was when a shape was compiled; but for the training flag of each submodule,
    autocast, the gradient mode, the default type and device, and whether algorithms have to be deterministic, for each
    of which it is compiled anew. A call whose arguments share memory that the module writes to runs in eager.

    Args:
        example_inputs: positional arguments: a tuple or list, or a single tensor; None: compile at the first call.
        dynamic: names of sizes and between which values they lie: ``{"batch": (1, 64)}``, or buckets with a graph each,
            ``{"batch": [1, (2, 8), (9, 64)]}``. One compilation serves all sizes of a bucket.
        axes: which axes have these sizes: argument of ``forward`` -> a tuple of names (None for others), or axis ->
            name. Without it the name (there must be just one) is axis 0 of every tensor.
        options: see `nnvm_torch.Options`.

    Raises:
        TypeError, ValueError: `module` is no module, or an option is wrong; at a call: a size that was not declared.
        CaptureError: the module cannot be captured.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"nnvm_torch.compile takes a torch.nn.Module, got {type(module).__name__}")
    if axes is not None and dynamic is None:
        raise ValueError("axes says which axes have the sizes of dynamic, which is missing")
    compiled = CompiledModule(module, Options.make(options), dynamic, axes)
    if example_inputs is not None or example_kwargs is not None:
        args = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
        try:
            compiled.prepare(tuple(args) if example_inputs is not None else (), dict(example_kwargs or {}))
        except _InEager as e:
            compiled._say_in_eager(e)
    return compiled


def refresh(module: Any = None) -> None:
    """Makes the next call prepare weights anew, for a change that nothing shows: a write to the elements of ``p.data``
    or of a numpy array on a parameter's memory that left the few elements that are compared as they were.

    Args:
        module: whose parameters and buffers changed; None: those of every compiled module may have.
    """
    if module is None:
        refresh_all()
        return
    look_again()
    if not isinstance(module, nn.Module):
        raise TypeError(f"nnvm_torch.refresh takes a module, or nothing for all of them; got {type(module).__name__}")
    with torch.no_grad():
        for t in (*module.parameters(), *module.buffers()):
            if t.is_inference():
                refresh_all()  # it has no version that could be raised
            else:
                torch.autograd.graph.increment_version(t)


class _Changed(Exception):
    """The module is no longer what was compiled: it has other submodules, or parameters of another kind."""


class _InEager(Exception):
    """A call that compiled code would get wrong; the text says why."""


class _Shape:
    """The module compiled for inputs of one kind; `fits` says whether for these tensors, where sizes are symbolic."""

    def __init__(self, traced: Traced, module: nn.Module, freeze: bool) -> None:
        self.run, self.places, self.out_spec, self.fits = traced.run, traced.places, traced.out_spec, traced.fits
        self.build = _builder(traced.out_spec)
        self.now = state_of(module, traced.places)
        weights = [where[name] for where, name in self.places]
        self.kinds = list(map(_weight_kind, weights))
        self.ties = _ties(weights)
        self.freeze = freeze
        self.frozen: tuple[int, list[torch.Tensor]] = (-1, [])
        self.count = len(weights)
        self.shared: SharedMemory | None = None
        self.written = traced.written

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        state = self._state()
        if self.written and self._shares(state, tensors):
            raise _InEager("arguments share memory that is written to")
        try:
            results = self.run(*state, *tensors)
        except WeightsOfAnotherKind:
            raise _Changed from None
        return self.build(results)

    def _shares(self, state: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> bool:
        """Does a tensor share memory that is written to? None did when the module was traced."""
        if self.shared is None:
            self.shared = SharedMemory(self.written, range(self.count, self.count + len(tensors)))
        return self.shared.matters and any(j >= self.count for _, j in self.shared.pairs((*state, *tensors)))

    def _state(self) -> list[torch.Tensor]:
        """The parameters and buffers. _Changed: the module has others, or other submodules."""
        grad = torch.is_grad_enabled()
        frozen, now = self.freeze and not grad, looks() if self.freeze else 0
        if frozen and self.frozen[0] == now:
            return self.frozen[1]
        state = self.now()
        if state is None or any(state[i] is not state[j] for i, j in self.ties):
            raise _Changed
        if grad and [_weight_kind(t) for t in state] != self.kinds:
            raise _Changed
        if frozen:
            self.frozen = (now, state)
        return state


def _builder(spec: pytree.TreeSpec) -> Callable[[Sequence[Any]], Any]:
    """What makes a result of this structure of its leaves; the plain ones without a walk through it."""
    if spec.is_leaf():
        return lambda leaves: leaves[0]
    if spec.type in (tuple, list) and all(c.is_leaf() for c in spec.children()):
        return tuple if spec.type is tuple else list
    return lambda leaves: pytree.tree_unflatten(leaves, spec)


def _mode() -> tuple[Any, ...]:
    """What a trace depends on besides the module and its arguments."""
    autocast = None
    if torch._C._is_any_autocast_enabled():
        kinds = ("cpu", "cuda")
        autocast = tuple((torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in kinds)
    return (torch.is_grad_enabled(), torch.get_default_dtype(), _device.CURRENT_DEVICE,
            torch.are_deterministic_algorithms_enabled(), autocast)  # fmt: skip


class _Latest(NamedTuple):
    """What the latest call was like, and what ran it."""

    mode: tuple[Any, ...]
    tensors: tuple[Any, ...]
    shape: _Shape

    def fits(self, mode: tuple[Any, ...], args: tuple[Any, ...]) -> bool:
        if mode != self.mode or len(args) != len(self.tensors):
            return False
        for a, (dtype, shape, strides, requires_grad, device, signs) in zip(args, self.tensors):
            if type(a) is not torch.Tensor or a.dtype is not dtype or a.shape != shape or a.stride() != strides:
                return False
            if a.requires_grad is not requires_grad or a.device != device or _signs(a) != signs:
                return False
        return True


class CompiledModule(nn.Module):
    """What `nnvm_torch.compile` gives. Copies and pickles compile again at their first call."""

    def __init__(self, module: nn.Module, options: Options, dynamic: Mapping[str, Any] | None = None,
                 axes: Mapping[str, Any] | None = None) -> None:  # fmt: skip
        super().__init__()
        own = self.__dict__
        own["_nnvm_module"] = module
        own["_nnvm_options"] = options
        own["_nnvm_dynamic"] = (dynamic, axes)
        own["_nnvm_axes"] = DynamicAxes(module, dynamic, axes) if dynamic is not None else None
        own["_nnvm_shapes"] = {}
        own["_nnvm_quick"] = {}
        own["_nnvm_latest"] = None
        own["_nnvm_training"] = None
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
        return f"nnvm, compiled for {len(self._nnvm_shapes)} kinds of inputs"

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """Without the hooks of all modules, unless it has hooks of its own: they run for the module that it replaces,
        and would run once more."""
        if self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks:
            return super()._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._checked(args, kwargs)
        except _Changed:
            with compile_lock:
                self._nnvm_shapes.clear()
                self._nnvm_quick.clear()
                self.__dict__["_nnvm_latest"] = self.__dict__["_nnvm_training"] = None
        return self._checked(args, kwargs)

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self._forward(args, kwargs)
        except _InEager as e:
            self._say_in_eager(e)
            return self._nnvm_module(*args, **kwargs)

    def _say_in_eager(self, why: Exception) -> None:
        """Warns, once, that calls run in eager."""
        warn_once(f"{type(self._nnvm_module).__name__}: {why}; such a call runs in eager")

    def _training(self) -> tuple[bool, ...]:
        """The training flag of each module."""
        known = self._nnvm_training
        if known is None or known[1]() is None:
            known = self.__dict__["_nnvm_training"] = training_of(self._nnvm_module)
        return cast("tuple[bool, ...]", known[0])

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if transform_level() is not None:
            raise _InEager("a transform of torch.func is applied to it")
        if forward_mode():
            raise _InEager("it is called inside a dual_level of forward-mode differentiation")
        mode = (self._training(), *_mode())
        latest = self._nnvm_latest
        if latest is not None and not kwargs and latest.fits(mode, args):
            return latest.shape(args)
        if kwargs or not all(type(a) is torch.Tensor for a in args):
            return self._general(args, kwargs)
        quick = (mode, tuple(map(_tensor_kind, args)))
        shape = self._nnvm_quick.get(quick)
        if shape is None:
            shape = self.prepare(args, kwargs)
            if len(self._nnvm_quick) >= MAX_QUICK:
                self._nnvm_quick.clear()
            self._nnvm_quick[quick] = shape
        self.__dict__["_nnvm_latest"] = _Latest(mode, quick[1], shape)
        return shape(args)

    def _general(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with arguments of any structure."""
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        return self.prepare(args, kwargs)(tensors)

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Shape:
        """What runs calls with arguments like these, compiled if need be."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        sizes = self._nnvm_axes.sizes(args, kwargs) if self._nnvm_axes is not None else None
        # tensors that lie in memory otherwise are compiled for each size: their strides depend on it
        open_axes = sizes.open if sizes is not None and all(t.is_contiguous() for t in tensors) else {}
        mode = (spec, self._training(), *_mode())
        if open_axes:
            numbers = {id(t): i for i, t in enumerate(tensors)}
            kinds = [_kind(x, open_axes.get(numbers.get(id(x), -1))) for x in leaves]
            shape: _Shape | None = self._compiled((*mode, *kinds), args, kwargs, leaves, open_axes)
            if shape is not None and shape.fits(tensors):
                return shape
        shape = self._compiled((*mode, *map(_kind, leaves)), args, kwargs, leaves, {})
        assert shape is not None
        return shape

    def _compiled(self, key: Any, args: Any, kwargs: Any, leaves: list[Any], open_axes: Placed) -> _Shape | None:
        """The graph for inputs of this kind; None where the module does not allow for sizes that are not known."""
        if key in self._nnvm_shapes:
            return cast("_Shape | None", self._nnvm_shapes[key])
        with compile_lock:
            if key not in self._nnvm_shapes:
                # what is compiled finds out by itself that there are other hooks or parameters
                if (reason := hidden_work(self._nnvm_module)) is not None:
                    raise _InEager(reason)
                if len(self._nnvm_shapes) >= MAX_SHAPES:
                    raise RuntimeError(
                        f"this module is compiled for {MAX_SHAPES} kinds of inputs already; for sizes that change "
                        f"from call to call use dynamic={{...}}, or torch.compile(module, backend='nnvm', dynamic=True)"
                    )
                _check_inputs(self._nnvm_module, leaves)
                try:
                    self._nnvm_shapes[key] = _compile_shape(self, args, kwargs, open_axes)
                except CaptureError as e:
                    if not open_axes:
                        raise
                    self._nnvm_shapes[key] = None
                    names = ", ".join(sorted({b.name for axes in open_axes.values() for b in axes.values()}))
                    warnings.warn(
                        f"nnvm_torch.compile: {type(self._nnvm_module).__name__} cannot be traced with {names} of any "
                        f"size, so each size is compiled for itself: {str(e)[:1000]}", stacklevel=4,
                    )  # fmt: skip
            return cast("_Shape | None", self._nnvm_shapes[key])

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        return CompiledModule(copy.deepcopy(self._nnvm_module, memo), self._nnvm_options, *self._nnvm_dynamic)

    def __reduce__(self) -> Any:
        return CompiledModule, (self._nnvm_module, self._nnvm_options, *self._nnvm_dynamic)


def _signs(t: torch.Tensor) -> int:
    """Are its elements the negatives, or the conjugates, of those in memory? Has it no memory but is all zeros?"""
    return t.is_neg() + 2 * t.is_conj() + 4 * t._is_zerotensor()


def _tensor_kind(t: torch.Tensor) -> tuple[Any, ...]:
    """What of a tensor of known sizes a compilation depends on (`_Latest.fits` compares it piece by piece)."""
    return t.dtype, t.shape, t.stride(), t.requires_grad, t.device, _signs(t)


def _kind(leaf: Any, open_axes: Mapping[int, Bucket] | None = None) -> Any:
    """What of an argument a compilation depends on; `open_axes` of a tensor have symbolic sizes."""
    if isinstance(leaf, torch.Tensor):
        if is_plain_subclass(leaf):
            raise TypeError(f"nnvm_torch.compile: an argument is a {type(leaf).__name__}, whose methods would be lost; "
                            f"torch.compile(module, backend='nnvm') keeps them, argument.as_subclass(torch.Tensor) "
                            f"does without")  # fmt: skip
        if open_axes:
            shape = tuple(open_axes.get(a, n) for a, n in enumerate(leaf.shape))
            return leaf.dtype, shape, leaf.requires_grad, leaf.device, _signs(leaf)
        return _tensor_kind(leaf)
    if isinstance(leaf, (int, float, bool, str, type(None), torch.dtype, torch.device)):
        return type(leaf), leaf
    raise TypeError(f"nnvm_torch.compile: an argument of type {type(leaf).__name__} is neither a tensor nor a constant")


def _ties(weights: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Pairs of positions with one tensor: a traced graph reads it by one of its names only."""
    first: dict[int, int] = {}
    return [(at, i) for i, t in enumerate(weights) if (at := first.setdefault(id(t), i)) != i]


def _weight_kind(t: torch.Tensor) -> tuple[Any, ...]:
    """What of a parameter or buffer a compilation depends on."""
    return t.dtype, t.shape, t.requires_grad


def _check_inputs(module: nn.Module, leaves: Sequence[Any]) -> None:
    """The errors that are clearer before tracing than from inside it."""
    floats = {p.dtype for p in module.parameters() if p.dtype.is_floating_point}
    for x in leaves:
        if isinstance(x, torch.Tensor) and x.dtype.is_floating_point and len(floats) == 1 and x.dtype not in floats:
            (dtype,) = floats
            raise TypeError(f"the module's parameters are {dtype}, an input is {x.dtype}")


def _compile_shape(owner: CompiledModule, args: Any, kwargs: Any, sizes: Placed) -> _Shape:
    options, number = owner._nnvm_options, number_of(owner)

    def compile_one(kind: str, gm: Any, inputs: Any, weights: int) -> Call:
        static = frozenset(range(weights)) if kind == "inference" else frozenset[int]()
        return compile_call(gm, kind, options, number, static)

    return _Shape(trace(owner._nnvm_module, args, kwargs, compile_one, sizes), owner._nnvm_module, options.freeze)
