"""PrimFunc to the text of one LLVM module with one kernel.

Kernel ABI: ``i32 NAME(ptr bufs, ptr syms, ptr workspace, i64 threads)``. `bufs` holds the pointers of the parameters,
`syms` the sizes (int64); thread t uses ``workspace + t * workspace_bytes``, 64-byte aligned. It returns 0, or k + 1
where k indexes the kernel's list of failure messages. A parallel loop calls
``i32 nnvm_parallel(ptr body, ptr closure, i64 extent, i64 threads)``, which calls
``i32 body(ptr closure, i64 begin, i64 end, i64 thread)`` on several threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from nnvm.codegen.llvm.function import FunctionEmitter
from nnvm.codegen.llvm.index import SIZE_LIMIT, Slot
from nnvm.codegen.llvm.linear import Lin
from nnvm.dim import Dim, is_static, numel
from nnvm.target import Target
from nnvm.te.expr import THREADS, Buffer, Const
from nnvm.tir.stmt import Allocate, PrimFunc, Stmt
from nnvm.tir.visitor import StmtVisitor
from nnvm.tir.workspace import scratch_offsets, workspace_bytes

__all__ = ["KernelIR", "ModuleEmitter", "emit"]


@dataclass(frozen=True)
class KernelIR:
    """A kernel as LLVM IR.

    Attributes:
        name: the exported function.
        ir: the module's text, without target triple and data layout.
        messages: failure messages by code - 1.
        parallel: whether it calls nnvm_parallel.
    """

    name: str
    ir: str
    messages: tuple[str, ...]
    parallel: bool


def emit(func: PrimFunc, target: Target) -> KernelIR:
    """The kernel of a PrimFunc; ValueError or KeyError where it is not legal TIR."""
    return ModuleEmitter(func, target).run()


class ModuleEmitter:
    """What the functions of one module share."""

    def __init__(self, func: PrimFunc, target: Target) -> None:
        self.func = func
        self.target = target
        self.declare: set[str] = set()
        self.loops: list[str] = []
        self.messages: dict[str, int] = {}
        self.bodies: list[FunctionEmitter] = []
        self.pieces: list[FunctionEmitter] = []
        self._body_count = 0
        self.workspace_size: Dim = workspace_bytes(func.body)
        self._offsets = scratch_offsets(func.body)
        self._outputs = set(func.params[len(func.params) - func.outputs :])
        self._in_place = bool(func.attrs.get("inplace"))
        self._has_constants = _Constants.of(func.body)

    # -- asked by functions

    def needs_registers(self, s: Allocate) -> bool:
        """Does a register tile take half of the registers or more, in a kernel that has constants elsewhere? LLVM keeps
        these in registers through the tile's loop, and the tile's sums in memory instead."""
        size = numel(s.buffer.shape)
        if s.buffer.scope != "local" or not isinstance(size, int) or not self._has_constants:
            return False
        vectors = -(-size * s.buffer.dtype.bits // self.target.vector_bits)
        return 2 * vectors >= self.target.vector_registers

    def message(self, text: str) -> int:
        return self.messages.setdefault(text, len(self.messages))

    def scratch_offset(self, buffer: Buffer) -> Dim:
        return self._offsets[buffer]

    def body_name(self) -> str:
        self._body_count += 1
        return f"{self.func.name}.body{self._body_count}"

    def add_body(self, body: FunctionEmitter) -> None:
        self.bodies.append(body)

    def add_piece(self, body: FunctionEmitter) -> None:
        """A part of a function that is one of its own."""
        self.pieces.append(body)

    def attributes(self, buffer: Buffer) -> str:
        """What is true of a buffer's pointer. Inputs may be each other; with `inplace` an output may be an input."""
        if buffer.scope != "global":
            return "align 64"
        out = [f"align {buffer.dtype.bytes}"]
        if not self._in_place:
            out.append("noalias" if buffer in self._outputs else "noalias readonly")
        count = numel(buffer.shape)
        if buffer.strides is None and is_static(buffer.shape) and isinstance(count, int) and count:
            out.append(f"dereferenceable({count * buffer.dtype.bytes})")
        return " ".join(out)

    # -- the module

    def run(self) -> KernelIR:
        func = self.func
        main = FunctionEmitter(self, f"{func.name}.main")
        parameters = []
        for k, p in enumerate(func.params):
            main.buffers[p] = Slot(f"%p{k}", p not in self._outputs and not self._in_place)
            parameters.append(f"ptr {self.attributes(p)} %p{k}")
        for k, name in enumerate(func.symbols):
            main.sizes[name] = Lin({f"%s{k}": 1})
            main.b.ranges[f"%s{k}"] = (0, SIZE_LIMIT)
            parameters.append(f"i64 %s{k}")
        main.sizes[THREADS] = Lin({"%threads": 1})
        main.b.ranges["%threads"] = (1, SIZE_LIMIT)
        main.stmt(func.body)
        parameters += ["ptr %workspace", "i64 %threads"]
        texts = [main.text(", ".join(parameters), "\n")]
        texts += [self._body(body) for body in self.bodies]
        texts += [self._piece(body) for body in self.pieces]
        texts.append(self._entry())
        parallel = bool(self.bodies)
        if parallel:
            self.declare.add("declare i32 @nnvm_parallel(ptr, ptr, i64, i64)")
        ir = "\n".join([*texts, *sorted(self.declare), self._attributes(), *_METADATA, *self.loops, ""])
        return KernelIR(func.name, ir, tuple(self.messages), parallel)

    def _entry(self) -> str:
        """The exported function: unpacks the arrays."""
        lines = [f"define i32 @{self.func.name}(ptr %bufs, ptr %syms, ptr align 64 %workspace, i64 %threads) #0 {{"]
        values = []
        for array, prefix, type_, count in (
            ("bufs", "p", "ptr", len(self.func.params)),
            ("syms", "s", "i64", len(self.func.symbols)),
        ):
            for k in range(count):
                lines.append(f"  %{prefix}{k}.at = getelementptr i8, ptr %{array}, i64 {8 * k}")
                lines.append(f"  %{prefix}{k} = load {type_}, ptr %{prefix}{k}.at, align 8")
                values.append(f"{type_} %{prefix}{k}")
        values += ["ptr %workspace", "i64 %threads"]
        lines.append(f"  %out = call i32 @{self.func.name}.main({', '.join(values)})")
        lines += ["  ret i32 %out", "}"]
        return "\n".join(lines)

    def _piece(self, body: FunctionEmitter) -> str:
        arguments = "".join(f"{declared} {name}, " for declared, _, name, _ in body.arguments)
        return body.text(f"{arguments}ptr %workspace", "\n")

    def _body(self, body: FunctionEmitter) -> str:
        """A parallel loop's body, and the function that unpacks its closure for one thread."""
        arguments = "".join(f"{declared} {name}, " for declared, _, name, _ in body.arguments)
        text = body.text(f"{arguments}i64 %begin, i64 %end, ptr %workspace", "\n")
        lines = [f"define internal i32 @{body.name}.thread(ptr %closure, i64 %begin, i64 %end, i64 %thread) #0 {{"]
        slots = [(plain, name) for _, plain, name, _ in body.arguments]
        slots += [("ptr", "%base"), ("i64", "%stride")]
        for k, (type_, name) in enumerate(slots):
            lines.append(f"  {name}.at = getelementptr i8, ptr %closure, i64 {8 * k}")
            lines.append(f"  {name} = load {type_}, ptr {name}.at, align 8")
        lines.append("  %skip = mul i64 %thread, %stride")
        lines.append("  %workspace = getelementptr i8, ptr %base, i64 %skip")
        values = "".join(f"{plain} {name}, " for _, plain, name, _ in body.arguments)
        lines.append(f"  %out = call i32 @{body.name}({values}i64 %begin, i64 %end, ptr %workspace)")
        lines += ["  ret i32 %out", "}"]
        return text + "\n".join(lines) + "\n"

    def _attributes(self) -> str:
        width = self.target.vector_bits
        common = f'nounwind "no-trapping-math"="true" "prefer-vector-width"="{width}"'
        return f"attributes #0 = {{ {common} }}\nattributes #1 = {{ noinline {common} }}\n"


class _Constants(StmtVisitor):
    """Looks for numbers, other than zero, that are computed with outside of register tiles."""

    found = False

    @staticmethod
    def of(body: Stmt) -> bool:
        visitor = _Constants()
        visitor.stmt(body)
        return visitor.found

    def visit_allocate(self, s: Allocate) -> None:
        if s.buffer.scope != "local":
            self.generic_stmt(s)

    def visit_const(self, e: Const) -> None:
        self.found |= e.dtype.is_float and e.value != 0


#: Our loops are vectorised and unrolled already.
_METADATA = (
    '!0 = !{!"llvm.loop.vectorize.enable", i1 false}',
    '!1 = !{!"llvm.loop.unroll.disable"}',
    '!2 = !{!"branch_weights", i32 1, i32 1000000}',
)
