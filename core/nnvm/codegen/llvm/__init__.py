"""TIR to LLVM IR text, and that to object code."""

from nnvm.codegen.llvm.compile import assembly, object_code
from nnvm.codegen.llvm.module import KernelIR, emit

__all__ = ["KernelIR", "assembly", "emit", "object_code"]
