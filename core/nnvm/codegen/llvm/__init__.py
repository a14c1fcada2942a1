"""TIR to LLVM IR text, and that to object code."""

from typing import TYPE_CHECKING, Any

from nnvm.codegen.llvm.compile import assembly, object_code

if TYPE_CHECKING:
    from nnvm.codegen.llvm.module import KernelIR, emit

__all__ = ["KernelIR", "assembly", "emit", "object_code"]


def __getattr__(name: str) -> Any:
    if name in ("KernelIR", "emit"):  # when first used: what only loads code does without Tensor IR
        from nnvm.codegen.llvm import module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
