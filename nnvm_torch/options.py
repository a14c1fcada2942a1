"""Options of `torch.compile(..., backend="nnvm", options={...}, mode=...)` and of `nnvm_torch.compile`."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nnvm.compiler.build import BuildOptions
from nnvm.graph.pass_manager import PASSES
from nnvm.graph.passes.graph_fuse import FuseLimits
from nnvm.target import Target
from nnvm_torch.cpu_choice import cpu_rule
from nnvm_torch.gpu import target_of
from nnvm_torch.gpu_choice import LibraryChoice

__all__ = ["Options"]

_CPU = torch.device("cpu")

#: What `torch.compile(mode=...)` means here. Every mode compiles fully.
_MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {},
    "max-autotune-no-cudagraphs": {"cuda_graphs": False},
}


#: Passes whose rewrites give the same formula, but round in other places.
_CHANGE_ROUNDING = frozenset({"ReplaceOp", "SimplifyInference"})


@dataclass(frozen=True)
class Options:
    """Settings of one compilation; every one has a default.

    Attributes:
        precise: no rewrite that changes rounding: scales are not folded into weights, and convolutions are not done by
            Winograd's algorithm.
        fast_math: allow reassociation and approximate functions beyond the usual 2 ulp.
        strict_rounding: every operator rounds to its element type as eager's does: as `precise`, and no product enters
            a sum of another operator without being rounded, no operator is computed by another's formula, and
            evaluation rewrites no normalisation.
        strict: an operator that cannot be compiled is an error that lists all of them, instead of running in ATen.
        opt_level: 0 (no more than needed to run) to 3 (everything).
        disabled_passes: names of graph passes left out.
        verify: compare the first so many calls of each graph with eager and raise where they differ.
        keep_original: False: parameters that only their packed form is read of move to a file that is mapped to memory,
            so that the system may reclaim it; everything that reads or writes them works as before.
        freeze: inference takes parameters, buffers and submodules to be what they were at the first call, without a
            look at each of them at every call, until `nnvm_torch.refresh` is called. Other tensors in their places
            are noticed by ``torch.compile`` only.
        verify_graphs: check the graph after each pass (slow; for finding faults in the compiler).
        target: what to compile for, as in ``"llvm -mcpu=haswell"`` or ``"cuda -arch=sm_90"``; None: the device of the
            tensors.
        cuda_graphs: on a GPU, capture the calls of an inference graph in a CUDA graph and replay that, one for each
            size that comes again; False: launch by launch.
    """

    precise: bool = False
    fast_math: bool = False
    strict_rounding: bool = False
    strict: bool = False
    opt_level: int = 3
    disabled_passes: frozenset[str] = frozenset()
    verify: int = 0
    keep_original: bool = True
    freeze: bool = False
    verify_graphs: bool = False
    target: str | None = None
    cuda_graphs: bool = True

    @staticmethod
    def make(values: Mapping[str, Any] | Options | None = None, mode: str | None = None, **more: Any) -> Options:
        """Checked options. TypeError for an unknown one lists the known ones; ValueError for a bad value or mode."""
        if isinstance(values, Options):
            values = {f.name: getattr(values, f.name) for f in dataclasses.fields(values)}
        merged = {**_of_mode(mode), **dict(values or {}), **more}
        known = {f.name: f for f in dataclasses.fields(Options)}
        for name in merged:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"nnvm has no option {name!r}{hint} Options: {', '.join(known)}")
        made = Options(**{name: _checked(name, value) for name, value in merged.items()})
        if made.target is None:
            Target.current()  # what the environment asks for is checked as the options are
        if made.strict_rounding and made.fast_math:
            raise ValueError("options strict_rounding and fast_math contradict each other: set one of them")
        return made

    def build_options(self, device: torch.device = _CPU, training: bool = False) -> BuildOptions:
        """What the compiler wants to know of them, for a graph on that device; `training`: one whose weights are new at
        each call."""
        settings: dict[str, Any] = {"precise": self.precise or self.strict_rounding, "fast_math": self.fast_math}
        disabled = self.disabled_passes
        if self.strict_rounding:
            # a product inside a reduction's loop becomes a fused multiply-add
            settings["fuse_limits"] = FuseLimits(prologue_nodes=0)
            disabled |= _CHANGE_ROUNDING
        target = target_of(device, self.target)
        if target is not None and target.is_gpu and device.type == "cuda":
            settings["library"] = LibraryChoice(target, device)
            settings["deterministic"] = torch.are_deterministic_algorithms_enabled()
        if training and device.type == "cpu" and (rule := cpu_rule(target)) is not None:
            settings["cpu_library"] = rule
        return BuildOptions(target=target, opt_level=self.opt_level,
                            disabled_passes=disabled, options=settings,
                            verify=self.verify_graphs)  # fmt: skip


def _of_mode(mode: str | None) -> dict[str, Any]:
    if mode is None:
        return {}
    if mode not in _MODES:
        raise ValueError(f"nnvm has no mode {mode!r}; modes: {', '.join(_MODES)}")
    return _MODES[mode]


def _checked(name: str, value: Any) -> Any:
    if name == "disabled_passes":
        return _passes(value)
    if name == "target":
        if value is not None:
            Target.parse(value if isinstance(value, str) else repr(value))
        return value
    if name in ("opt_level", "verify"):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (name == "opt_level" and value > 3):
            raise ValueError(f"option {name} must be {'0 to 3' if name == 'opt_level' else 'a count'}, got {value!r}")
        return value
    if not isinstance(value, bool):
        raise ValueError(f"option {name} must be True or False, got {value!r}")
    return value


def _passes(value: Any) -> frozenset[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Iterable):
        raise ValueError(f"option disabled_passes must be names of passes, got {value!r}")
    for name in (names := list(names)):
        if name not in PASSES:
            near = difflib.get_close_matches(str(name), PASSES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; passes: {', '.join(sorted(PASSES))}"
            raise ValueError(f"option disabled_passes: no pass {name!r}{hint}")
    return frozenset(names)
