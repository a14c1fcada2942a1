"""Text of the Tensor IR, to read and to compare.

    func scale(x: float32[n, 8], y: float32[n, 8]) outputs=1 sizes=(n)
      parallel i in 0..n:
        y[i, ramp(0, 1, 8)] = x[i, ramp(0, 1, 8)] * 2.0

A sub-expression that a statement uses several times is printed once, as a line `t0 := ...` before the statement, so
the text is never longer than the DAG. Names that occur twice get a number. `structural_key` is for machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from nnvm.dim import Dim, symbol
from nnvm.dim import substitute as substitute_dim
from nnvm.te.expr import (
    THREADS,
    Binary,
    Bitcast,
    Broadcast,
    Buffer,
    Cast,
    Check,
    Const,
    Expr,
    Fma,
    Load,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
)
from nnvm.te.tensor import Read
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, Prefetch, PrimFunc, Seq, Stmt, Store
from nnvm.tir.visitor import children, post_order, reduced, roots

__all__ = ["show", "structural_key"]

#: Operator and how tightly it binds.
_INFIX = {
    "or": ("|", 1), "xor": ("^", 2), "and": ("&", 3), "eq": ("==", 4), "ne": ("!=", 4), "lt": ("<", 4), "le": ("<=", 4),
    "gt": (">", 4), "ge": (">=", 4), "shl": ("<<", 5), "shr": (">>", 5), "add": ("+", 6), "sub": ("-", 6),
    "mul": ("*", 7), "div": ("/", 7), "floordiv": ("//", 7), "floormod": ("%", 7),
}  # fmt: skip
_ATOM = 9
_SHARED_SIZE = 3  # nodes from which on a shared sub-expression gets a line of its own


def show(node: PrimFunc | Stmt | Expr) -> str:
    """`node` as text: a function or statement as lines (without a final newline), an expression as one line.

    A shared sub-expression of a bare expression follows as `where t0 := ...` lines.
    """
    printer = _Printer()
    if isinstance(node, PrimFunc):
        printer.func(node)
    elif isinstance(node, Expr):
        names = printer.name_shared((node,))
        lines = [printer.text(node), *(f"where {n} := {printer.text(e, named=False)}" for e, n in names)]
        return "\n".join(lines)
    else:
        printer.stmt(node, 0)
    return "\n".join(printer.lines)


class _Printer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[Var | Buffer, str] = {}
        self._taken: set[str] = set()
        self._shared: dict[Expr, str] = {}
        self._count = 0

    # --- names

    def name(self, x: Var | Buffer) -> str:
        known = self._names.get(x)
        if known is None:
            known, n = x.name, 1
            while known in self._taken:
                known, n = f"{x.name}_{n}", n + 1
            self._taken.add(known)
            self._names[x] = known
        return known

    def name_shared(self, items: Iterable[Expr]) -> list[tuple[Expr, str]]:
        """Gives each sub-expression used more than once a name; in order of evaluation."""
        uses: dict[Expr, int] = {}
        order: dict[Expr, None] = {}
        for root in items:
            uses[root] = uses.get(root, 0) + 1
            for x in post_order(root):
                if x not in order:
                    order[x] = None
                    for c in children(x):
                        uses[c] = uses.get(c, 0) + 1
        sizes: dict[Expr, int] = {}
        self._shared = {}
        for x in order:
            sizes[x] = 1 + sum(1 if c in self._shared else sizes[c] for c in children(x))
            if uses[x] > 1 and sizes[x] >= _SHARED_SIZE:
                self._shared[x] = f"t{self._count}"
                self._count += 1
        return list(self._shared.items())

    # --- statements

    def func(self, f: PrimFunc) -> None:
        params = ", ".join(f"{self.name(b)}: {_buffer_type(b)}" for b in f.params)
        sizes = f" sizes=({', '.join(f.symbols)})" if f.symbols else ""
        attrs = "".join(f" {k}={v!r}" for k, v in f.attrs.items())
        self.lines.append(f"func {f.name}({params}) outputs={f.outputs}{sizes}{attrs}")
        self.stmt(f.body, 1)

    def line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def stmt(self, s: Stmt, depth: int) -> None:
        if isinstance(s, Seq):
            for x in s.body:
                self.stmt(x, depth)
            if not s.body:
                self.line(depth, "pass")
            return
        for e, name in self.name_shared(roots(s)):
            self.line(depth, f"{name} := {self.text(e, named=False)}")
        if isinstance(s, Store):
            mask = "" if s.mask is None else f" if {self.text(s.mask)}"
            self.line(depth, f"{self._element(s.buffer, s.indices)} = {self.text(s.value)}{mask}")
        elif isinstance(s, For):
            kind = "for" if s.kind == "serial" else s.kind
            self.line(depth, f"{kind} {self.name(s.var)} in 0..{self.text(s.extent, 8)}:")
            self.stmt(s.body, depth + 1)
        elif isinstance(s, If):
            self.line(depth, f"if {self.text(s.cond)}:")
            self.stmt(s.then, depth + 1)
            if s.orelse is not None:
                self.line(depth, "else:")
                self.stmt(s.orelse, depth + 1)
        elif isinstance(s, Allocate):
            self.line(depth, f"{s.buffer.scope} {self.name(s.buffer)}: {_buffer_type(s.buffer)}")
            self.stmt(s.body, depth)
        elif isinstance(s, Let):
            self.line(depth, f"let {self.name(s.var)}: {s.var.dtype} = {self.text(s.value)}")
            self.stmt(s.body, depth)
        elif isinstance(s, Assert):
            self.line(depth, f"assert {self.text(s.cond)}, {s.message!r}")
        elif isinstance(s, Prefetch):
            self.line(depth, f"prefetch {self._element(s.buffer, s.indices)}")
        else:
            raise TypeError(f"no statement: {s!r}")

    # --- expressions

    def text(self, e: Expr, outer: int = 0, named: bool = True) -> str:
        """Text of an expression, in parentheses where it binds less tightly than `outer`."""
        if named and e in self._shared:
            return self._shared[e]
        if isinstance(e, Binary) and e.op in _INFIX:
            sign, level = _INFIX[e.op]
            left, right = self.text(e.a, level), self.text(e.b, level + 1)
            out = f"{left} {sign} {right}"
            return f"({out})" if level < outer else out
        if isinstance(e, Const) and not isinstance(e.value, bool) and e.value < 0:
            return f"({_const_text(e)})" if outer > 6 else _const_text(e)
        return _TEXT[type(e)](self, e)

    def call(self, name: str, *args: Any) -> str:
        return f"{name}({', '.join(self.text(a) if isinstance(a, Expr) else str(a) for a in args)})"

    def _element(self, buffer: Buffer, indices: tuple[Expr, ...]) -> str:
        return f"{self.name(buffer)}[{', '.join(map(self.text, indices))}]"

    def load(self, e: Load) -> str:
        mask = "" if e.mask is None else f" if {self.text(e.mask)}"
        out = self._element(e.buffer, e.indices)
        return f"({out}{mask})" if mask else out


def _const_text(e: Const) -> str:
    suffix = "" if e.dtype.name in ("int64", "float32", "bool") else f":{e.dtype}"
    lanes = "" if e.lanes == 1 else f"x{e.lanes}"
    return f"{e.value!r}{suffix}{lanes}"


_TEXT: dict[type, Callable[[_Printer, Any], str]] = {
    Const: lambda p, e: _const_text(e),
    Var: lambda p, e: p.name(e),
    Unary: lambda p, e: p.call(e.op, e.a),
    Binary: lambda p, e: p.call(e.op, e.a, e.b),
    Fma: lambda p, e: p.call("fma", e.a, e.b, e.c),
    Cast: lambda p, e: p.call(e.dtype.name, e.a),
    Bitcast: lambda p, e: p.call(f"bits_{e.dtype}", e.a),
    Select: lambda p, e: p.call("select", e.cond, e.a, e.b),
    Load: _Printer.load,
    Ramp: lambda p, e: p.call("ramp", e.base, e.stride, e.lanes),
    Broadcast: lambda p, e: p.call(f"x{e.lanes}", e.a),
    Shuffle: lambda p, e: p.call("shuffle", e.a, e.b, list(e.order)),
    VectorReduce: lambda p, e: p.call(f"reduce_{e.op}", e.a),
    Check: lambda p, e: p.call("check", e.value, e.cond, repr(e.message)),
    Reduce: lambda p, e: p.call(f"reduce_{e.op}", e.source, *e.axes, *(() if e.index is None else (e.index,))),
    Read: lambda p, e: f"{e.tensor.name}[{', '.join(map(p.text, e.indices))}]",
}


def _buffer_type(b: Buffer) -> str:
    strides = "" if b.strides is None else f" strides=({', '.join(map(str, b.strides))})"
    return f"{b.dtype}[{', '.join(map(str, b.shape))}]{strides}"


# --- structural key


def structural_key(func: PrimFunc) -> str:
    """A hash that functions share when they are equal up to the names of function, buffers, variables and sizes.

    Whether equal sub-expressions are one object or two makes no difference.
    """
    text = _Key(func).parts
    return hashlib.blake2b("\n".join(text).encode(), digest_size=20).hexdigest()


class _Key:
    def __init__(self, func: PrimFunc) -> None:
        self.parts: list[str] = []
        self._sizes = {THREADS: THREADS, **{name: f"s{n}" for n, name in enumerate(func.symbols)}}
        self._dims = {name: symbol(new) for name, new in self._sizes.items()}
        self._buffers: dict[Buffer, int] = {}
        self._numbers: dict[tuple[object, ...], int] = {}  # value numbers by content
        self._of: dict[Expr, int] = {}
        self._variables: dict[Var, str] = {}
        for b in func.params:
            self._declare(b)
        attrs = sorted((k, repr(v)) for k, v in func.attrs.items())
        self.parts.append(f"func {func.outputs} {len(func.symbols)} {attrs}")
        self._stmt(func.body)

    def _dim(self, d: Dim) -> str:
        return str(d if isinstance(d, int) else substitute_dim(d, self._dims))

    def _declare(self, b: Buffer) -> None:
        self._buffers[b] = len(self._buffers)
        strides = None if b.strides is None else tuple(map(self._dim, b.strides))
        self.parts.append(f"buffer {b.scope} {b.dtype} {tuple(map(self._dim, b.shape))} {strides}")

    def _bind(self, v: Var) -> str:
        if v in self._of:  # bound before, by another loop: what was said with it is to be said anew
            self._of = {}
        self._variables[v] = f"v{len(self._variables)}:{v.dtype}"
        return self._variables[v]

    def _expr(self, root: Expr) -> int:
        of, numbers = self._of, self._numbers
        for e in post_order(root):
            if e in of:
                continue
            content = (type(e).__name__, *_own(e, self), *[of[c] for c in children(e)])
            number = numbers.get(content)
            if number is None:
                number = numbers[content] = len(numbers)
                self.parts.append(f"{number}={content}")
            of[e] = number
        return of[root]

    def _stmt(self, s: Stmt) -> None:
        numbers = [self._expr(e) for e in roots(s)]
        kind = type(s).__name__
        if isinstance(s, Store):
            self.parts.append(f"{kind} b{self._buffers[s.buffer]} {numbers} {s.mask is not None}")
        elif isinstance(s, For):
            self.parts.append(f"{kind} {s.kind} {self._bind(s.var)} {numbers}")
            self._nested(s.body)
        elif isinstance(s, Seq):
            for x in s.body:
                self._stmt(x)
        elif isinstance(s, If):
            self.parts.append(f"{kind} {numbers} {s.orelse is not None}")
            self._nested(s.then)
            if s.orelse is not None:
                self._nested(s.orelse)
        elif isinstance(s, Allocate):
            self._declare(s.buffer)
            self._nested(s.body)
        elif isinstance(s, Let):
            self.parts.append(f"{kind} {self._bind(s.var)} {numbers}")
            self._nested(s.body)
        elif isinstance(s, Assert):
            self.parts.append(f"{kind} {numbers} {s.message!r}")
        elif isinstance(s, Prefetch):
            self.parts.append(f"{kind} {self.buffer(s.buffer)} {numbers}")

    def _nested(self, s: Stmt) -> None:
        self._stmt(s)
        self.parts.append("end")

    def variable(self, v: Var) -> str:
        known = self._variables.get(v)
        return known if known is not None else self._sizes.get(v.name, f"free {v.name}:{v.dtype}")

    def buffer(self, b: Buffer) -> str:
        known = self._buffers.get(b)
        return f"b{known}" if known is not None else f"free {b.name}:{b.dtype}"


#: What a node says besides its operands.
_OWN: dict[type, Callable[[Any, _Key], tuple[object, ...]]] = {
    Const: lambda e, k: (repr(e.value), e.dtype.name, e.lanes),
    Var: lambda e, k: (k.variable(e),),
    Unary: lambda e, k: (e.op,),
    Binary: lambda e, k: (e.op,),
    Cast: lambda e, k: (e.dtype.name,),
    Bitcast: lambda e, k: (e.dtype.name,),
    Load: lambda e, k: (k.buffer(e.buffer), e.mask is not None),
    Ramp: lambda e, k: (e.stride, e.lanes),
    Broadcast: lambda e, k: (e.lanes,),
    Shuffle: lambda e, k: (e.order,),
    VectorReduce: lambda e, k: (e.op,),
    Reduce: lambda e, k: (e.op, *((k.variable(a.var), a.extent) for a in reduced(e))),
    Check: lambda e, k: (e.message,),
}


def _own(e: Expr, key: _Key) -> tuple[object, ...]:
    own = _OWN.get(type(e))
    return () if own is None else own(e, key)
