"""The backend of `torch.compile(..., backend="nnvm")`: AOTAutograd, import, compile, run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from nnvm import config
from nnvm.compiler.build import CompilerFault, compile_graph
from nnvm.runtime.fork_lock import fork_safe
from nnvm_torch.aliasing import refuse_lost_edits
from nnvm_torch.cuda_graphs import when_captured
from nnvm_torch.decompositions import decompositions, whole
from nnvm_torch.direct import Marks, direct_call, marks_alone
from nnvm_torch.faults import Guard, guarded, text_of, warn_of_fault, warn_once
from nnvm_torch.fx_importer import import_graph
from nnvm_torch.imported import Fallback, Imported, NotImportable
from nnvm_torch.options import Options
from nnvm_torch.report import GraphRecord, calling_owner, record, record_of
from nnvm_torch.runner import Runner
from nnvm_torch.shared_memory import SharedMemory, apart, written_inputs
from nnvm_torch.verifying import Verified, forced_calls, is_repeatable

__all__ = ["Call", "StrictError", "compile_call", "compile_fx", "compile_lock", "forward_mode", "is_plain_subclass",
           "nnvm"]  # fmt: skip

Compiled = Callable[[list[Any]], Any]

#: One compilation at a time: tracing changes global state of torch, and the compiler's caches are shared.
compile_lock = fork_safe(threading.RLock())

# nn.LSTM and nn.GRU stay in the graph; their decomposition unrolls them into operators that we have.
if hasattr(torch._dynamo.config, "allow_rnn"):
    torch._dynamo.config.allow_rnn = True


class StrictError(RuntimeError):
    """`strict=True`, and some operators cannot be compiled; the message lists all of them."""

    def __init__(self, fallbacks: Sequence[Fallback]) -> None:
        listed = "\n".join(f"  {f}" for f in fallbacks)
        super().__init__(f"strict=True: {len(fallbacks)} calls cannot be compiled by nnvm:\n{listed}")
        self.fallbacks = tuple(fallbacks)


def nnvm(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Any = None, mode: str | None = None, **more: Any
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured. Options: `nnvm_torch.options.Options`.

    Raises:
        TypeError, ValueError: an option that does not exist, or a bad value.
        StrictError: `strict=True` and something cannot be compiled.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis

    chosen = Options.make(options, mode, **more)
    if forward_mode():
        warn_once("forward-mode differentiation needs eager's operators; graphs run in eager inside a dual_level")
        record(GraphRecord("inference", 0, len(gm.graph.nodes), failure="forward-mode differentiation",
                           owner=calling_owner()))  # fmt: skip
        return gm.forward  # type: ignore[no-any-return]
    _compile_anew_in_forward_mode()
    if any(map(_is_zeros, example_inputs)):
        # Dynamo compiles once more for inputs that are none: these have other dispatch keys
        compiled = nnvm(gm, [_dense(a) for a in example_inputs], options=chosen)
        return lambda *args: compiled(*map(_dense, args))
    owner = calling_owner()

    graphs: list[Callable[..., Any] | None] = []
    written, static = set[int](), set[int]()

    def compiler(kind: str) -> Callable[[fx.GraphModule, Sequence[Any]], Compiled]:
        def compile_one(graph: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
            marks = marks_alone(graph, example_inputs) if kind == "inference" else None
            if kind != "backward":
                written.update(written_inputs(torch._guards.TracingContext.try_get(), len(example_inputs)))
                static.update(_static_inputs())
            call = compile_call(graph, kind, chosen, owner)
            graphs.append(call.direct(marks) if call.direct is not None and marks is not None else None)
            return call.boxed

        return compile_one

    with compile_lock, whole():
        backend = aot_autograd(
            fw_compiler=compiler("forward"), bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"), decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )  # fmt: skip
        try:
            refuse_lost_edits(gm)
            wrapped: Callable[..., Any] = backend(gm, example_inputs)
            if len(graphs) == 1 and graphs[0] is not None:
                return graphs[0]
            if any(map(is_plain_subclass, example_inputs)):
                wrapped = _unchecked(wrapped)
            shared = SharedMemory(tuple(written), [i for i in range(len(example_inputs)) if i not in static])
            if not shared.matters:
                return wrapped
            if not shared.pairs(example_inputs, exact=False):  # else AOTAutograd took them to be views of one tensor
                return _apart_only(wrapped, gm, shared)
            return nnvm(gm, _apart_as_traced(example_inputs), options=chosen)
        except (StrictError, TensorifyScalarRestartAnalysis):
            raise
        except Exception as e:
            return _untraceable(gm, example_inputs, e, chosen, owner)


def _untraceable(
    gm: fx.GraphModule, example_inputs: Sequence[Any], error: Exception, options: Options, owner: int
) -> Callable[..., Any]:
    """What runs a graph that AOTAutograd failed to trace with `error`; it is raised where Dynamo has a better way."""
    from torch._subclasses.fake_tensor import DataDependentOutputException

    if isinstance(error, DataDependentOutputException) and not _whole_graph_wanted():
        raise error  # Dynamo breaks the graph before the call whose result depends on values
    separate = _apart_as_traced(example_inputs)
    if any(mine is not given for mine, given in zip(separate, example_inputs)):
        return nnvm(gm, separate, options=options)  # it takes no views of one tensor with two element types
    # AOTAutograd has no form for the code (as_strided beyond a view, ...); eager has
    if config.debug_level():
        raise error
    warn_once(f"PyTorch's AOTAutograd could not trace a graph, which runs in eager instead: {text_of(error)}")
    record(GraphRecord("inference", 0, len(gm.graph.nodes), failure=f"AOTAutograd: {error}", owner=owner))
    return gm.forward  # type: ignore[no-any-return]


def forward_mode() -> bool:
    """Is a level of forward-mode differentiation open, where tensors may carry tangents?"""
    return torch.autograd.forward_ad._current_level >= 0


def _compile_anew_in_forward_mode() -> None:
    """Has Dynamo compile again what is called in another level of forward-mode differentiation, which it does not."""
    if torch._guards.TracingContext.try_get() is not None:
        from torch._dynamo.guards import install_guard
        from torch._dynamo.variables.ctx_manager import DualLevelContextManager

        install_guard(DualLevelContextManager._guards_singleton)


def _is_zeros(a: Any) -> bool:
    """Is it one of autograd's tensors of zeros that have no memory?"""
    return isinstance(a, torch.Tensor) and a._is_zerotensor()


def _apart_as_traced(example_inputs: Sequence[Any]) -> list[Any]:
    """The inputs, those that share memory as copies, with the sizes that Dynamo took for dynamic."""
    inputs = apart(example_inputs)
    contexts = getattr(torch._guards.TracingContext.try_get(), "tensor_to_context", {})
    for given, taken in zip(example_inputs, inputs):
        if taken is not given and given in contexts:
            contexts[taken] = contexts[given]
    return inputs


def _apart_only(call: Callable[..., Any], gm: fx.GraphModule, shared: SharedMemory) -> Callable[..., Any]:
    """`call` for arguments that share no memory that it writes to, as it was traced for; eager for others."""

    def apart_only(*args: Any) -> Any:
        if not shared.pairs(args):
            return call(*args)
        warn_once("arguments share memory that a graph writes to; such a call runs in eager")
        return gm.forward(*args)

    return apart_only


def is_plain_subclass(a: Any) -> bool:
    """Is it of a class of tensors that has methods of its own, and operators as any tensor?"""
    kind = type(a)
    return (isinstance(a, torch.Tensor) and kind not in (torch.Tensor, torch.nn.Parameter)
            and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__)  # fmt: skip


def _unchecked(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` without AOTAutograd's look at what custom operators share, which no plain subclass gets through."""
    import torch._functorch.config as functorch

    if not hasattr(functorch, "check_custom_op_aliasing"):
        return call

    def unchecked(*args: Any) -> Any:
        with functorch.patch(check_custom_op_aliasing=False):
            return call(*args)

    return unchecked


def _dense(a: Any) -> Any:
    return a.clone() if _is_zeros(a) else a


@dataclass(frozen=True)
class Call:
    """A compiled graph.

    Attributes:
        boxed: takes its arguments as one list, which it empties, as AOTAutograd has it.
        direct: of the marks that its outputs are to have, what takes its arguments one by one: for who needs nothing
            else of what AOTAutograd does around a graph. None where the graph is not native code alone.
    """

    boxed: Compiled
    direct: Callable[[Marks], Callable[..., Any]] | None = None


def compile_fx(
    gm: fx.GraphModule, kind: str, options: Options, owner: int = 0, static: frozenset[int] | None = None
) -> Compiled:
    """`compile_call`, of which the callable: a list of arguments -> a list of results."""
    return compile_call(gm, kind, options, owner, static).boxed


def compile_call(
    gm: fx.GraphModule, kind: str, options: Options, owner: int = 0, static: frozenset[int] | None = None
) -> Call:
    """Compiles a graph of functional ATen calls.

    `static`: positions of weights among the arguments; None: what AOTAutograd says of an inference graph.
    A fault inside the compiler is one warning. What failed is done without: a pass is left out, a call is left to ATen,
    a group is run by the definitions of its ops; where that cannot be, the graph runs in ATen. With NNVM_DEBUG=1 it is
    raised.
    """
    with compile_lock, _disable_current_modes():
        if static is None:
            static = _static_inputs() if kind == "inference" else frozenset()
        start = time.perf_counter()
        try:
            imported = import_graph(gm, static)
            if options.strict and imported.fallbacks:
                raise StrictError(imported.fallbacks)
            seconds = {"import": time.perf_counter() - start}
            runner = _verified(_built(imported, kind, options, owner, seconds, gm), imported, options, gm)
        except NotImportable as e:
            return Call(_all_in_aten(gm, kind, options, owner, str(e)))
        except StrictError:
            raise
        except Exception as e:
            if config.debug_level():
                raise
            warn_of_fault("nnvm could not compile a graph, which runs in ATen instead", text_of(e))
            return Call(_all_in_aten(gm, kind, options, owner, f"fault in the compiler: {type(e).__name__}: {e}"))
    guard = Guard(gm) if is_repeatable(gm) else None
    direct = None
    if isinstance(runner, Runner) and runner.is_pure and guard is not None:
        direct = partial(direct_call, runner, guard)
    return Call(_boxed(runner, guard), direct)


def _built(
    imported: Imported, kind: str, options: Options, owner: int, seconds: dict[str, float], gm: fx.GraphModule
) -> Compiled:
    if not imported.graph.outputs:
        record(GraphRecord(kind, imported.native, imported.total, imported.fallbacks, seconds=seconds, owner=owner))
        return Runner(imported, None)
    if imported.native == 0 and imported.total > 0:
        record(GraphRecord(kind, 0, imported.total, imported.fallbacks, seconds=seconds, owner=owner))
        return _eager(gm)
    faults: list[CompilerFault] = []

    def on_fault(fault: CompilerFault) -> None:
        if config.debug_level():
            raise fault.error
        faults.append(fault)

    build = options.build_options(imported.device, training=kind != "inference")
    compiled = compile_graph(imported.graph, replace(build, on_fault=on_fault))
    if options.strict and faults:
        raise StrictError([Fallback(f.what, f"{f.stage}: {f.error}", ", ".join(f.sources)) for f in faults])
    captures = options.cuda_graphs and kind == "inference"
    runner = Runner(imported, compiled, options.keep_original, options.freeze, captures)
    told = (*imported.faults, *map(str, faults))
    if told:
        more = f"; and {len(told) - 1} more, see nnvm_torch.report()" if len(told) > 1 else ""
        warn_of_fault("nnvm could not compile a part of a graph, and does without it", told[0][:500] + more)
    entry = record_of(kind, compiled, imported, {**seconds, **compiled.seconds}, owner, told)
    if runner.graphs is not None or runner.why_not_captured:
        entry = replace(entry, cuda_graph=runner.why_not_captured or when_captured(compiled.plan))
    record(entry)
    if config.debug_level():
        took = sum(entry.seconds.values())
        print(f"nnvm: {kind} graph, {entry.native} of {entry.total} nodes native, {len(entry.kernels)} kernels, "
              f"{took:.2f} s", file=sys.stderr)  # fmt: skip
    return runner


def _verified(run: Compiled, imported: Imported, options: Options, gm: fx.GraphModule) -> Compiled:
    """`run`, compared with eager for its first calls where that is asked for and possible."""
    calls = max(options.verify, forced_calls())
    if not calls or not is_repeatable(gm):
        return run

    def locate(args: Sequence[Any], right: Callable[[Sequence[Any]], bool]) -> Any:
        from nnvm_torch.fault import find_fault

        with compile_lock, torch.no_grad():
            return find_fault(gm, imported, options, args, right)

    return Verified(run, gm, calls, options.precise, locate)


def _boxed(run: Compiled, guard: Guard | None = None) -> Compiled:
    """As a plain function, which AOTAutograd may wrap, with the mark that it takes its arguments as one list."""

    def plain(args: list[Any]) -> Any:
        return run(args)

    boxed = guarded(run, guard) if guard is not None else plain
    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def _static_inputs() -> frozenset[int]:
    """Positions of the arguments that are parameters and buffers, by AOTAutograd's word; none where it says none."""
    context = torch._guards.TracingContext.try_get()
    meta = getattr(context, "fw_metadata", None)
    return frozenset(getattr(meta, "static_input_indices", None) or ())


def _all_in_aten(gm: fx.GraphModule, kind: str, options: Options, owner: int, why: str) -> Compiled:
    """The whole graph as it is, for ATen."""
    calls = [n for n in gm.graph.nodes if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)]
    fallbacks = tuple(Fallback(str(n.target), why, "") for n in calls)
    if options.strict and fallbacks:
        raise StrictError(fallbacks)
    record(GraphRecord(kind, 0, len(calls), fallbacks, failure=why, owner=owner))
    return _eager(gm)


def _eager(gm: fx.GraphModule) -> Compiled:
    from functorch.compile import make_boxed_func

    return make_boxed_func(gm.forward)  # type: ignore[no-any-return]


def _whole_graph_wanted() -> bool:
    """Was `torch.compile` called with ``fullgraph=True``, so that a break of the graph is an error?"""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        return bool(InstructionTranslator.current_tx().one_graph)
    except AttributeError:
        return False
