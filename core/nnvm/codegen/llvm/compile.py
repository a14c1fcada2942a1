"""LLVM IR text to object code or assembly, through llvmlite (LLVM 15 and later)."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import llvmlite.binding as llvm

from nnvm.target import Target

__all__ = ["assembly", "object_code", "optimised", "target_machine"]

_ready = threading.Lock()
_initialised: set[str] = set()
_machines = threading.local()
#: Passes that are not at work. llvmlite frees neither a pass builder nor a pass manager.
_idle_passes: dict[Target, list[_Passes]] = {}


def _initialise(target: Target) -> None:
    """Once per process: LLVM's code generators, all of them when the target is not this machine's."""
    kind = "native" if target.triple.split("-")[0] == llvm.get_process_triple().split("-")[0] else "all"
    with _ready:
        if kind in _initialised:
            return
        if kind == "native":
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            llvm.initialize_native_asmparser()
        else:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
        _initialised.add(kind)


def target_machine(target: Target) -> Any:
    """LLVM's machine for a target; each thread has its own."""
    cache: dict[Target, Any] = _machines.__dict__.setdefault("by_target", {})
    machine = cache.get(target)
    if machine is None:
        machine = cache[target] = _new_machine(target)
    return machine


def _new_machine(target: Target) -> Any:
    _initialise(target)
    features = ""
    if target == Target.host():  # a virtual machine may hide what the processor's name promises
        features = llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=features, opt=2, reloc="pic", codemodel="small"
    )


def optimised(ir: str, target: Target) -> Any:
    """The optimised module, in a context of its own; RuntimeError quotes what LLVM found wrong with the text."""
    machine = target_machine(target)
    try:
        module = llvm.parse_assembly(_header(machine, target) + ir, _context())
        module.verify()
    except RuntimeError as error:
        raise RuntimeError(f"LLVM rejects the IR of a kernel: {error}\n{ir}") from None
    idle = _idle_passes.setdefault(target, [])
    try:
        passes = idle.pop()  # atomic
    except IndexError:
        passes = _Passes(target)
    passes.run(module)
    idle.append(passes)
    return module


def _context() -> Any:
    """A context that knows `ptr`: llvmlite 0.44 (LLVM 15) must be asked for it."""
    if llvm.llvm_version_info[0] < 17:
        return llvm.context.ContextRef(llvm.ffi.lib.LLVMPY_ContextCreate(True))
    return llvm.create_context()


def _header(machine: Any, target: Target) -> str:
    return f'target datalayout = "{machine.target_data}"\ntarget triple = "{target.triple}"\n'


class _Passes:
    """Registers for stack slots, peepholes, branches: what the emitter leaves to do, a tenth of the time of -O2.

    Loops come rotated, vectorised, unrolled and free of invariants; strength reduction is part of LLVM's code
    generation. llvmlite before 0.45 cannot name single passes and gets the standard list. One thread at a time.
    """

    def __init__(self, target: Target) -> None:
        options = llvm.create_pipeline_tuning_options(speed_level=1)
        options.loop_vectorization = options.slp_vectorization = False
        options.loop_interleaving = options.loop_unrolling = False
        self.builder = llvm.create_pass_builder(_new_machine(target), options)
        self.of_functions = llvm.create_new_function_pass_manager()
        self.of_modules: Any = None
        if not hasattr(self.of_functions, "add_sroa_pass"):
            self.of_modules = self.builder.getModulePassManager()
            return
        self.of_functions.add_sroa_pass()
        self.of_functions.add_instruction_combine_pass()
        self.of_functions.add_simplify_cfg_pass()

    def run(self, module: Any) -> None:
        if self.of_modules is not None:
            self.of_modules.run(module, self.builder)
            return
        for function in module.functions:
            if not function.is_declaration:
                self.of_functions.run(function, self.builder)


def object_code(ir: str, target: Target) -> bytes:
    """ELF (or the platform's) object of a module. Several threads may compile side by side."""
    machine, module = target_machine(target), optimised(ir, target)
    emit = getattr(llvm.ffi.lib.LLVMPY_TargetMachineEmitToMemory, "_cfn", None)
    if emit is None:
        return bytes(machine.emit_object(module))
    # llvmlite lets one thread at a time into LLVM. Machine and module (in a context of its own) are this thread's
    # alone, which is all that LLVM asks for; and this call is most of the time.
    with llvm.ffi.OutputString() as error:
        buffer = emit(machine, module, 1, error)
        if not buffer:
            raise RuntimeError(f"LLVM cannot compile a kernel for {target}: {error}")
    try:
        start, size = llvm.ffi.lib.LLVMPY_GetBufferStart(buffer), llvm.ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        llvm.ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def assembly(ir: str, target: Target) -> str:
    """Assembly of a module."""
    return str(target_machine(target).emit_assembly(optimised(ir, target)))
