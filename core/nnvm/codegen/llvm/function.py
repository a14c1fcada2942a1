"""One loop nest to one LLVM function: statements, and the body of a parallel loop as a function of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnvm.codegen.llvm import linear
from nnvm.codegen.llvm.builder import Builder, Range
from nnvm.codegen.llvm.expr import ExprEmitter
from nnvm.codegen.llvm.index import SIZE_LIMIT, Lanes, Slot
from nnvm.codegen.llvm.linear import Lin
from nnvm.codegen.llvm.lltype import memory_type, register_type
from nnvm.dim import numel
from nnvm.dtype import I64
from nnvm.te.expr import Broadcast, Buffer, Var
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, Prefetch, Seq, Stmt, Store
from nnvm.tir.visitor import loads, stmts

if TYPE_CHECKING:
    from nnvm.codegen.llvm.module import ModuleEmitter

__all__ = ["FunctionEmitter"]


class FunctionEmitter(ExprEmitter):
    """Statements of one function.

    `%workspace` is the running thread's scratch, `%status` its failure code. The body of a parallel loop is emitted by
    a child, which takes what it uses from its `parent` as arguments.
    """

    def __init__(self, module: ModuleEmitter, name: str, parent: FunctionEmitter | None = None) -> None:
        super().__init__(Builder(module.declare, module.loops), module.target, module.message)
        self.module = module
        self.name = name
        self.parent = parent
        #: Arguments as (declaration type with attributes, plain type, name here, value in the parent).
        self.arguments: list[tuple[str, str, str, str]] = []
        #: Whether it is a statement of another function, not all of it or a parallel loop's body.
        self.is_piece = False
        #: Whether this function wants each thread's workspace.
        self.uses_workspace = False

    # -- what comes from the parent

    def capture(self, type_: str, value: str, attributes: str = "") -> str:
        """The parent's value as an argument here."""
        if value[0] != "%":
            return value
        for _, _, name, outer in self.arguments:
            if outer == value:
                return name
        name = f"%a{len(self.arguments)}"
        self.arguments.append((f"{type_} {attributes}".rstrip(), type_, name, value))
        return name

    def variable(self, e: Var) -> Lin | str:
        if self.parent is None or e in self.env:
            return super().variable(e)
        outer = self.parent.variable(e)
        if isinstance(outer, Lin):
            value = linear.materialise(self.parent.b, outer)
            known = self.parent.b.ranges.get(value)
            here = self.capture("i64", value)
            if here[0] != "%":
                self.env[e] = Lin({}, int(here))
                return self.env[e]
            if known is not None:
                self.b.ranges[here] = known
            self.env[e] = Lin({here: 1})
        else:
            self.env[e] = self.capture(register_type(e.dtype, e.lanes), outer)
        return self.env[e]

    def slot(self, buffer: Buffer) -> Slot:
        if self.parent is None or buffer in self.buffers:
            return super().slot(buffer)
        outer = self.parent.slot(buffer)
        pointer = self.capture("ptr", outer.pointer, self.module.attributes(buffer))
        self.buffers[buffer] = Slot(pointer, outer.readonly)  # what the parent loaded is not known here
        return self.buffers[buffer]

    # -- statements

    def stmt(self, s: Stmt) -> None:
        _STMT[type(s)](self, s)

    def _seq(self, s: Seq) -> None:
        for part in s.body:
            self.stmt(part)

    def _store(self, s: Store) -> None:
        if isinstance(s.mask, Broadcast):
            self._if(If(s.mask.a, Store(s.buffer, s.indices, s.value)))
            return
        self.forget()
        mask = None
        if s.mask is not None:
            lanes = max([s.value.lanes, *(i.lanes for i in s.indices)])
            mask = self._mask_for(self.value(s.mask), s.mask.lanes, lanes)
            self.active = (mask, lanes)
        value = self.value(s.value)
        self.store(s, value, mask)
        self.active = None

    def _assert(self, s: Assert) -> None:
        self.forget()
        cond = self.value(s.cond)
        bad = {"true": "false", "false": "true"}.get(cond) or self.b.binary("xor", "i1", cond, "true")
        self.fail(bad, 1, s.message)

    def _prefetch(self, s: Prefetch) -> None:
        """Into the second cache: what a loop reads in order comes from there in time."""
        self.forget()
        where = self.offset(s.buffer, s.indices)
        assert isinstance(where, Lanes)
        at = linear.pointer(self.b, self.slot(s.buffer).pointer, where.base, s.buffer.dtype.bytes)
        self.module.declare.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self.b.effect(f"call void @llvm.prefetch.p0(ptr {at}, i32 0, i32 2, i32 1)")

    def _let(self, s: Let) -> None:
        self.forget()
        self.env[s.var] = self.lin(s.value) if s.var.dtype == I64 and s.var.lanes == 1 else self.value(s.value)
        self.stmt(s.body)
        self.env.pop(s.var)

    def _if(self, s: If) -> None:
        self.forget()
        cond = self.value(s.cond)
        if cond in ("true", "false"):
            taken = s.then if cond == "true" else s.orelse
            if taken is not None:
                self.stmt(taken)
            return
        self.b.open_arm()
        self._arm(s.then)
        then, orelse = self.b.close(), None
        if s.orelse is not None:
            self.b.open_arm()
            self._arm(s.orelse)
            orelse = self.b.close()
        self.b.close_branch(cond, then, orelse)

    def _arm(self, s: Stmt) -> None:
        """One arm of a condition. In kernels of sizes that only the call knows, one with a register tile of its own is
        a function of its own: LLVM keeps the accumulators in memory where one function has many of them."""
        if self.module.func.symbols and _has_own_tile(s):
            self._piece(s)
        else:
            self.stmt(s)

    def _piece(self, s: Stmt) -> None:
        """A statement as a function of its own."""
        body = FunctionEmitter(self.module, self.module.body_name(), self)
        body.is_piece = True
        body.stmt(s)
        self.uses_workspace |= body.uses_workspace
        values = "".join(f"{plain} {value}, " for _, plain, _, value in body.arguments)
        code = self.b.here(f"call i32 @{body.name}({values}ptr %workspace)")
        if body.fails:
            self.fails = True
            self._take_status(code)
        self.module.add_piece(body)
        for buffer in {x.buffer for x in _stores(s)} & body.buffers.keys():
            self.slot(buffer).version += 1  # what was loaded from it before may be another value now

    def _allocate(self, s: Allocate) -> None:
        buffer = s.buffer
        if not self.is_piece and self.module.needs_registers(s) and _has_own_tile(s):
            self._piece(s)
            return
        if buffer.scope == "local":
            size = numel(buffer.shape)
            if not isinstance(size, int):
                raise ValueError(f"local buffer {buffer.name} must have a constant size, not {list(buffer.shape)}")
            type_ = f"[{max(size, 1)} x {memory_type(buffer.dtype)}]"
            self.buffers[buffer] = Slot(self.b.alloca(type_, 64), False, local=True)
        else:
            self.uses_workspace = True
            offset = self.dim(self.module.scratch_offset(buffer))
            self.buffers[buffer] = Slot(linear.pointer(self.b, "%workspace", offset, 1), False)
        self.stmt(s.body)
        del self.buffers[buffer]

    def _for(self, s: For) -> None:
        self.forget()
        extent = self.lin(s.extent)
        if s.kind == "unrolled":
            self._unrolled(s, extent)
        elif s.kind == "vectorized":
            raise ValueError(f"loop {s.var.name} is still vectorized: run the pass `vectorize` first")
        elif s.kind == "parallel" and self.parent is None and extent != Lin({}, 1):
            self._parallel(s, extent)
        else:
            self._serial(s, extent)

    def _unrolled(self, s: For, extent: Lin) -> None:
        if extent.terms:
            raise ValueError(f"unrolled loop {s.var.name} must have a constant extent")
        for i in range(extent.const):
            self.env[s.var] = Lin({}, i)
            self.stmt(s.body)
        self.env.pop(s.var, None)

    def _serial(self, s: For, extent: Lin) -> None:
        if not extent.terms and extent.const <= 1:
            if extent.const == 1:
                self.env[s.var] = Lin({}, 0)
                self.stmt(s.body)
                self.env.pop(s.var)
            return
        self._loop(s, "0", linear.materialise(self.b, extent), extent)

    def _loop(self, s: For, begin: str, end: str, extent: Lin, never_empty: bool = False) -> None:
        known = linear.bounds(self.b, extent)
        last = max(known[1] - 1, 0) if known else SIZE_LIMIT
        loop = self.b.open_loop(begin, (0, last), not (never_empty or (known is not None and known[0] > 0)))
        self.extent_of(loop.var, extent)
        self.env[s.var] = Lin({loop.var: 1})
        self.stmt(s.body)
        self.env.pop(s.var)
        self.b.close_loop(loop, end)

    # -- parallel loops

    def _parallel(self, s: For, extent: Lin) -> None:
        """Outline the loop; run it on one thread directly, on several through nnvm_parallel."""
        known = linear.bounds(self.b, extent)
        body = FunctionEmitter(self.module, self.module.body_name(), self)
        inner = self._captured(body, extent)
        body.parallel_body(s, inner)
        b, module = self.b, self.module
        size = module.workspace_size
        stride = linear.materialise(b, self.dim(size)) if body.uses_workspace else "0"
        self.uses_workspace |= body.uses_workspace
        end = linear.materialise(b, extent)
        stored = [(plain, value) for _, plain, _, value in body.arguments]
        stored += [("ptr", "%workspace"), ("i64", stride)]
        cell = b.alloca(f"[{len(stored)} x i64]", 8)
        many = b.pure("icmp ugt i64 %threads, 1", ("%threads",))
        if known is None or known[0] <= 1:
            several = b.pure(f"icmp sgt i64 {end}, 1", (end,))
            many = b.binary("and", "i1", many, several)
        b.open_arm()
        for k, (type_, value) in enumerate(stored):
            at = b.here(f"getelementptr i8, ptr {cell}, i64 {8 * k}") if k else cell
            b.effect(f"store {type_} {value}, ptr {at}, align 8")
        shared = b.here(f"call i32 @nnvm_parallel(ptr @{body.name}.thread, ptr {cell}, i64 {end}, i64 %threads)")
        first = b.close()
        b.open_arm()
        values = "".join(f"{plain} {value}, " for _, plain, _, value in body.arguments)
        alone = b.here(f"call i32 @{body.name}({values}i64 0, i64 {end}, ptr %workspace)")
        second = b.close()
        b.close_branch(many, first, second)
        code = b.phi("i32", [(shared, first.block), (alone, second.block)])
        if body.fails:
            self.fails = True
            self._take_status(code)
        module.add_body(body)

    def _captured(self, body: FunctionEmitter, extent: Lin) -> Lin:
        """The extent as the child sees it."""
        if not extent.terms:
            return extent
        value = linear.materialise(self.b, extent)
        known: Range | None = self.b.ranges.get(value)
        here = body.capture("i64", value)
        if known is not None:
            body.b.ranges[here] = known
        return Lin({here: 1})

    def _take_status(self, code: str) -> None:
        b = self.b
        old = b.here("load i32, ptr %status, align 4")
        fresh = b.here(f"icmp eq i32 {old}, 0")
        b.effect(f"store i32 {b.here(f'select i1 {fresh}, i32 {code}, i32 {old}')}, ptr %status, align 4")

    def parallel_body(self, s: For, extent: Lin) -> None:
        """Iterations %begin .. %end - 1 of a parallel loop."""
        self._loop(s, "%begin", "%end", extent)

    # -- text

    def text(self, arguments: str, extra: str) -> str:
        """The whole function, returning its status."""
        head = f"define internal i32 @{self.name}({arguments}) #1 {{\nentry:"
        lines = [head]
        if self.fails:
            lines += ["  %status = alloca i32, align 4", "  store i32 0, ptr %status, align 4"]
        lines += self.b.entry
        lines += self.b.scopes[0].lines
        if self.fails:
            lines += ["  %failed = load i32, ptr %status, align 4", "  ret i32 %failed", "}"]
        else:
            lines += ["  ret i32 0", "}"]
        return "\n".join(lines) + extra


def _has_own_tile(s: Stmt) -> bool:
    """Has it, outside of further conditions, loops with registers that it allocates, and uses no others?"""
    if isinstance(s, If):
        return False
    own = {x.buffer for x in stmts(s) if isinstance(x, Allocate) and x.buffer.scope == "local"}
    loops = any(isinstance(x, For) and x.kind == "serial" for x in stmts(s))
    used = {x.buffer for x in loads(s)} | {x.buffer for x in _stores(s)}
    return bool(own) and loops and {b for b in used if b.scope == "local"} <= own


def _stores(s: Stmt) -> list[Store]:
    return [x for x in stmts(s) if isinstance(x, Store)]


_STMT: dict[type, Any] = {
    Store: FunctionEmitter._store,
    Seq: FunctionEmitter._seq,
    For: FunctionEmitter._for,
    If: FunctionEmitter._if,
    Allocate: FunctionEmitter._allocate,
    Let: FunctionEmitter._let,
    Assert: FunctionEmitter._assert,
    Prefetch: FunctionEmitter._prefetch,
}
