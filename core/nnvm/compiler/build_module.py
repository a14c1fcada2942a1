"""Build of the original NNVM: a graph or symbol, by the names of its inputs, to code and parameters.

>>> with nnvm.compiler.build_config(opt_level=3):
...     graph, lib, params = nnvm.compiler.build(net, "llvm", shape={"data": (1, 3, 224, 224)}, params=params)
>>> module = nnvm.runtime.create(graph, lib)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.compiler.debug_log import log_compilation
from nnvm.compiler.pipeline import rewriting
from nnvm.dim import Dim, as_shape
from nnvm.dtype import BF16, F32, DType, f32_to_bf16
from nnvm.dtype import dtype as as_dtype
from nnvm.graph import HasGraph, create
from nnvm.graph.graph import Graph
from nnvm.graph.input_types import check_names, replace_variables, with_input_types
from nnvm.graph.node import Node
from nnvm.graph.pass_manager import Instrument, PassContext, apply_passes, get_pass
from nnvm.graph.passes.infer_type import infer_type
from nnvm.graph.types import TensorType
from nnvm.graph.unique_names import with_unique_names
from nnvm.graph.verify import verify
from nnvm.runtime.graph_runtime import Library, on_host, run_prepare
from nnvm.target import Target

__all__ = ["DTypes", "Shapes", "build", "build_config", "optimize", "typed_graph"]

Array = np.ndarray[Any, Any]
Shapes = Mapping[str, Sequence[Dim]]
DTypes = Mapping[str, "DType | str"] | DType | str


@contextmanager
def build_config(
    opt_level: int | None = None, add_pass: Collection[str] | None = None, *,
    disable_pass: Collection[str] | None = None, options: Mapping[str, Any] | None = None,
    instruments: Sequence[Instrument] = (), verify: bool | None = None,
) -> Iterator[PassContext]:  # fmt: skip
    """Settings of all builds in the ``with`` block; what is not given stays as around it.

    Args:
        opt_level: 0 (no more than needed to run) to 3 (all, the default).
        add_pass: passes that run at any level; registered ones that are not in the pipeline run after the rewriting.
        disable_pass: passes left out.
        options: settings of single passes (``fast_math``, ``training``, ...).
        instruments: watchers of passes.
        verify: check the graph after every pass.

    PassError: no pass has a name that is given; it lists those there are.
    """
    around = PassContext.current()
    for name in (*(add_pass or ()), *(disable_pass or ())):
        get_pass(name)  # a name that is none would change nothing, unnoticed
    if opt_level is not None and opt_level not in range(4):
        raise ValueError(f"opt_level is 0 to 3, got {opt_level!r}")
    context = replace(
        around,
        opt_level=around.opt_level if opt_level is None else opt_level,
        enabled=around.enabled | frozenset(add_pass or ()),
        disabled=around.disabled | frozenset(disable_pass or ()),
        options={**around.options, **(options or {})},
        instruments=(*around.instruments, *instruments),
        verify=around.verify if verify is None else verify,
        seconds={},
    )
    with context.use():
        yield context


def build(
    graph: Graph | HasGraph, target: Target | str | None = None, shape: Shapes | None = None, dtype: DTypes = "float32",
    params: Mapping[str, Any] | None = None,
) -> tuple[Graph, Library, dict[str, Array]]:  # fmt: skip
    """Optimises and compiles a graph.

    Args:
        graph: a Graph or a Symbol.
        target: what to compile for, as ``llvm``, ``llvm -mcpu=haswell`` or ``cuda -arch=sm_90``; this machine by
            default. A GPU need not be in this machine: `Library.machine_code` gives its code, and
            `nnvm.artifact.save_library` writes it to a file that runs where there is one.
        shape: sizes of inputs by name; the others follow from them and from `params`.
        dtype: element type of the inputs in `shape`: one, or by name.
        params: weights by name (arrays), which do not change from call to call: what depends on them only is computed
            here. Inputs that are not among them are given at the call, weights too.

    Returns:
        The optimised graph, its code, and the parameters that it takes in place of `params`.

    Raises:
        ValueError: a name in `shape` or `params` is none of the graph's; a target is not known.
        TypeInferenceError: shapes do not fit together, or do not follow.
        VerifyError: a Graph that is malformed, such as one whose inputs lack a variable that it reads.
    """
    weights = {k: _array(v) for k, v in (params or {}).items()}
    typed = typed_graph(graph, shape, dtype, weights)
    context = PassContext.current()
    chosen = context.target if target is None else Target.parse(target) if isinstance(target, str) else target
    options = BuildOptions(target=chosen, opt_level=context.opt_level, disabled_passes=context.disabled,
                           enabled_passes=context.enabled, options=context.options, verify=context.verify,
                           instruments=tuple(context.instruments), prepare_on_host=chosen.is_gpu)  # fmt: skip
    compiled = compile_graph(typed, options)
    log_compilation(compiled)
    main = compiled.graph
    weights = {v.name: _as_type(weights[v.name], v) for v in main.inputs if v.name in weights}
    read = set(main.nodes)
    kept = {v.name: weights[v.name] for v in main.inputs if v.name in weights and v in read}
    if compiled.prepare is None:
        return main, Library(compiled.plan, None, {}, chosen), kept
    early = compiled.prepare.plan
    prepared = [v for v in main.inputs if v.attrs["kind"] == "prepared"]
    kept.update((v.name, on_host(v, a)) for v, a in zip(prepared, run_prepare(early, weights), strict=True))
    used = {v.name: weights[v.name] for v in early.graph.inputs}
    return main, Library(compiled.plan, early, used, chosen), kept


def optimize(graph: Graph | HasGraph, shape: Shapes | None = None, dtype: DTypes = "float32") -> Graph:
    """The graph after the rewriting passes, before it is laid out to run; the arguments are `build`'s."""
    context = PassContext.current()
    return apply_passes(typed_graph(graph, shape, dtype), rewriting(context.enabled), context)


def typed_graph(
    graph: Graph | HasGraph, shape: Shapes | None = None, dtype: DTypes = "float32",
    params: Mapping[str, Array] | None = None,
) -> Graph:  # fmt: skip
    """The graph with every type known, from shapes and element types by name, and weights.

    With `params`, these are the graph's parameters and all other variables its inputs.
    """
    by_hand = isinstance(graph, Graph)
    graph = with_unique_names(graph if isinstance(graph, Graph) else create(graph))
    shape = shape or {}
    if twice := sorted({v.name for v in graph.inputs if sum(v.name == w.name for w in graph.inputs) > 1}):
        raise ValueError(f"several inputs are called {', '.join(twice)}; inputs need names of their own")
    if by_hand:  # a variable that is not listed would be read where nothing is
        verify(graph, "given to the compiler")
    if not isinstance(dtype, (DType, str)):
        check_names(graph, dtype)
    if params is not None:
        check_names(graph, params, "parameter")
        graph = replace_variables(graph, lambda v: _of_kind(v, "param" if v.name in params else "input"))
    types = {}
    for v in graph.inputs:
        given = dtype.get(v.name) if isinstance(dtype, Mapping) else dtype if v.name in shape else None
        if v.name in shape:
            types[v.name] = TensorType(
                as_shape(shape[v.name], v.name), as_dtype(given or v.attrs.get("__dtype__") or F32)
            )
        elif params is not None and v.name in params:
            found = as_dtype(params[v.name].dtype)
            types[v.name] = TensorType(params[v.name].shape, as_dtype(given) if given is not None else found)
        elif given is not None and v.types is not None:
            types[v.name] = v[0].type.with_dtype(as_dtype(given))
    check_names(graph, shape)
    return infer_type(with_input_types(graph, types))


def _of_kind(v: Node, kind: str) -> Node:
    return v if v.attrs["kind"] == kind else Node(v.op, (), {**v.attrs, "kind": kind}, v.name, v.types)


def _array(value: Any) -> Array:
    array = np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value, order="C")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _as_type(array: Array, v: Node) -> Array:
    """A weight as its variable's type wants it; float32 for bfloat16 is rounded."""
    t = v[0].type
    if t.dtype == BF16 and array.dtype == np.float32:
        array = f32_to_bf16(array)
    if array.dtype != t.dtype.numpy or array.shape != t.shape:
        cast = "" if array.dtype == t.dtype.numpy else f"; use astype('{t.dtype.name}'), or say its dtype"
        raise ValueError(f"the parameter {v.name} is {t}, got {array.dtype}{list(array.shape)}{cast}")
    return array
