"""Runs functions through AOTAutograd and the importer, with the reference in place of the compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import _disable_current_modes
from torch_reference import ReferenceRunner

from nnvm_torch.backend import _boxed
from nnvm_torch.decompositions import decompositions, whole
from nnvm_torch.fx_importer import import_graph
from nnvm_torch.imported import Imported
from nnvm_torch.partition import is_view  # noqa: F401  registers torch.op


class Capture:
    """A backend that keeps what was imported in `graphs`."""

    def __init__(self) -> None:
        self.graphs: list[Imported] = []

    def __call__(self, gm: Any, inputs: Any) -> Any:
        def compile_one(graph: Any, example: Any) -> Any:
            context = torch._guards.TracingContext.try_get()
            with _disable_current_modes():
                imported = import_graph(graph, frozenset(context.fw_metadata.static_input_indices))
            self.graphs.append(imported)
            return _boxed(ReferenceRunner(imported))

        with whole():
            backend = aot_autograd(
                fw_compiler=compile_one,
                bw_compiler=lambda graph, example: _plain(graph),
                inference_compiler=compile_one,
                decompositions=decompositions(),
                keep_inference_input_mutations=True,
            )
            return backend(gm, inputs)

    @property
    def fallbacks(self) -> list[str]:
        return [str(f) for g in self.graphs for f in g.fallbacks]


def _plain(gm: Any) -> Any:
    from functorch.compile import make_boxed_func

    return make_boxed_func(gm.forward)


def check(
    fn: Callable[..., Any], *args: Any, native: bool = True, dynamic: bool | None = None, **tolerance: Any
) -> Capture:
    """`fn` through the importer gives what eager gives, with eager's strides; `native`: without a fallback."""
    torch._dynamo.reset()
    capture = Capture()
    compiled = torch.compile(fn, backend=capture, dynamic=dynamic, fullgraph=True)
    with torch.no_grad():
        want, got = fn(*_copies(args)), compiled(*_copies(args))
    same(got, want, **tolerance)
    if native:
        assert not capture.fallbacks, capture.fallbacks
    return capture


def _copies(args: Any) -> Any:
    return [a.clone() if isinstance(a, torch.Tensor) and a.is_contiguous() else a for a in args]


def same(got: Any, want: Any, **tolerance: Any) -> None:
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, equal_nan=True, **tolerance)
        if want.numel():
            used = [(s, t) for n, s, t in zip(want.shape, got.stride(), want.stride()) if n > 1]
            assert all(s == t for s, t in used), (got.stride(), want.stride())
    elif isinstance(want, (tuple, list)):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            same(g, w, **tolerance)
    else:
        assert got == want, (got, want)
