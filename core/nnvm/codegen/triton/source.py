"""A launch as Triton source: the statements of its tiles.

A `tile` loop is one axis of the tile; its variable is a block of positions. Local buffers are blocks too, with an axis
for each tile loop around the stores to them. `acc = acc + sum(a * b)` over tiles is `tl.dot`.
"""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from nnvm.codegen.triton.expand import expand, positions
from nnvm.codegen.triton.expr import Writer
from nnvm.codegen.triton.scopes import Tile, Value, paren
from nnvm.codegen.triton.types import number, pointer_type, type_name
from nnvm.dtype import F64, DType
from nnvm.te.expr import Binary, Buffer, Cast, Const, Expr, Load, Reduce, Select, Var
from nnvm.tir.atomic import nan_bits
from nnvm.tir.stmt import Allocate, Assert, For, If, Let, PrimFunc, Seq, Stmt, Store
from nnvm.tir.visitor import children, free_vars, post_order, reduced, reductions, roots, stmts

__all__ = ["TritonSource", "triton_source"]

#: Combining functions for `tl.reduce`.
_HELPERS = {
    "max_nan": "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "min_nan": "tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "product": "a * b",
}
_RESERVED = {"tl", "triton", "libdevice", "float", "range", "failure", *_HELPERS}


@dataclass(frozen=True)
class TritonSource:
    """Source of one launch.

    Attributes:
        name: of its function.
        text: a Python module with that function.
        signature: Triton's type of each argument: pointers, then sizes, then ``failure`` where the kernel checks
            anything (a pointer to an int32 that is 0, or becomes the number of a message + 1).
        messages: failure messages.
    """

    name: str
    text: str
    signature: tuple[tuple[str, str], ...]
    messages: tuple[str, ...]


def triton_source(func: PrimFunc, comment: str = "", wide: bool = False, tf32: bool = False) -> TritonSource:
    """The source of `func`, whose body is a loop of kind `grid`.

    Args:
        comment: one line that says what the kernel does.
        wide: 64-bit index arithmetic.
        tf32: products of float32 may be rounded to tf32.

    Raises:
        ValueError: it uses a function that Triton does not have.
    """
    return _Source(expand(func), comment, wide, tf32).write()


class _Source:
    def __init__(self, func: PrimFunc, comment: str, wide: bool, tf32: bool) -> None:
        self.func, self.comment, self.wide, self.tf32 = func, comment, wide, tf32
        self.lines: list[str] = []
        self.depth = 1
        self.around: list[Var] = []  # tile variables of the loops around
        taken = {*_RESERVED, *keyword.kwlist, *(f"{b.name}_ptr" for b in func.params), *func.symbols}
        written = {s.buffer for s in stmts(func.body) if isinstance(s, Store)}
        self.extents = _extents(func.body)
        self.tiles: dict[tuple[int, ...], Tile] = {}
        self.writer = Writer(self._tile(()), self._line, wide=wide, uses=_uses(func.body), taken=taken,
                             written=written, positions=positions(func.body))  # fmt: skip

    def _tile(self, variables: Sequence[Var]) -> Tile:
        """The tile inside the loops of `variables`; along other places the only size that there is."""
        sizes = [max(s) if len(s) == 1 else 1 for s in self.extents.sizes]
        for v in variables:
            sizes[self.extents.places[v]] = self.extents.of[v]
        key = tuple(sizes)
        return self.tiles.setdefault(key, Tile(self.extents.places, key))

    def _line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def write(self) -> TritonSource:
        func, writer = self.func, self.writer
        outer = func.body
        assert isinstance(outer, For) and outer.kind == "grid", "a GPU kernel is a loop over its programs"
        program = writer.unique(outer.var.name)
        self._line(f"{program} = tl.program_id(0)" + (".to(tl.int64)" if self.wide else ""))
        writer.names[outer.var] = Value(program)
        self.stmt(outer.body)
        signature = [(f"{b.name}_ptr", pointer_type(b.dtype)) for b in func.params]
        signature += [(s, "i64" if self.wide else "i32") for s in func.symbols]
        if writer.messages:
            signature.append(("failure", "*i32"))
        head = ["import triton", "import triton.language as tl"]
        if any("libdevice." in line for line in self.lines):
            head.append("from triton.language.extra import libdevice")
        head.append("")
        for helper in sorted(writer.helpers):
            head += ["", "@triton.jit", f"def {helper}(a, b):", f"    return {_HELPERS[helper]}", ""]
        names = ", ".join(n for n, _ in signature)
        head += ["", "@triton.jit", f"def {func.name}({names}):"]
        if self.comment:
            head.append(f"    # {self.comment}")
        text = "\n".join([*head, *self.lines]) + "\n"
        return TritonSource(func.name, text, tuple(signature), tuple(writer.messages))

    # --- statements

    def stmt(self, s: Stmt) -> None:
        found = () if isinstance(s, (Seq, For)) else reductions(s)
        if found and not _is_dot(s) and _running(s) is None:
            inner = [a.var for e in found for a in reduced(e)]
            with self.writer.placed(self._tile([*self.around, *inner])):
                self._one(s)
        else:
            self._one(s)

    def _one(self, s: Stmt) -> None:
        if isinstance(s, Seq):
            for x in s.body:
                self.stmt(x)
        elif isinstance(s, For):
            self.loop(s)
        elif isinstance(s, Let):
            self.let(s)
            with self.writer.placed(self._tile(self.around)):
                self.stmt(s.body)
        elif isinstance(s, If):
            with self.writer.where(s.cond):
                self.stmt(s.then)
            if s.orelse is not None:
                with self.writer.where(s.cond, False):
                    self.stmt(s.orelse)
        elif isinstance(s, Allocate):
            self.writer.names[s.buffer] = Value(self.writer.unique(s.buffer.name))
            self.stmt(s.body)
        elif isinstance(s, Store):
            self.local_store(s) if s.buffer.scope == "local" else self.store(s)
        elif isinstance(s, Assert):
            self.writer.fail_unless(self.writer.value(s.cond), s.message)
        else:
            raise TypeError(f"{type(s).__name__} in a GPU kernel")

    def let(self, s: Let) -> None:
        if not self.writer.facts(s.value)[0]:
            self.writer.names[s.var] = self.writer.named(self.writer.value(s.value), s.var.name)
            return
        value = self.writer.raw(s.value, s.var.name)
        bare = value.text.isdigit() or value.text.isidentifier()
        self.writer.names[s.var] = value if bare else self.writer.once(value, s.var.name)

    def loop(self, s: For) -> None:
        if s.kind == "tile":
            self.around.append(s.var)
            with self.writer.placed(self._tile(self.around)):
                self.stmt(s.body)
            self.around.pop()
            return
        if s.kind not in ("serial", "unrolled"):
            raise ValueError(f"a {s.kind} loop inside a GPU kernel")
        extent = self.writer.raw(s.extent)
        name = self.writer.unique(s.var.name)
        counter = "tl.static_range" if s.kind == "unrolled" else "range"
        self._line(f"for {name} in {counter}({extent.text}):")
        self.writer.names[s.var] = Value(name)
        self.depth += 1
        with self.writer.scope():
            if self.wide and s.kind == "serial":
                self.writer.names[s.var] = self.writer.named(Value(f"tl.cast({name}, tl.int64)"), name)
            self.stmt(s.body)
        self.depth -= 1

    def store(self, s: Store) -> None:
        writer = self.writer
        combined = _combined_in_memory(s)
        value = writer.value(s.value if combined is None else combined.b)
        mask = writer.mask()
        if s.mask is not None:
            own = writer.value(s.mask)
            mask = own if mask is None else Value(f"{mask.text} & {own.text}", mask.dims | own.dims)
        dims = value.dims | (mask.dims if mask is not None else frozenset())
        (index,) = s.indices
        pointer = writer.pointer(s.buffer, index, dims, True)
        extra = "" if mask is None else f", mask={mask.text}"
        if combined is not None:
            whole = writer.broadcast(value, pointer.dims | dims)
            if combined.op in ("max", "min") and s.buffer.dtype.is_float:
                self._compared_by_bits(combined.op, s.buffer.dtype, pointer.text, whole, mask)
            else:
                self._line(f'tl.atomic_{combined.op}({pointer.text}, {whole.text}{extra}, sem="relaxed")')
            return
        self._line(f"tl.store({pointer.text}, {value.text}{extra})")

    def _compared_by_bits(self, op: str, t: DType, pointer: str, value: Value, mask: Value | None) -> None:
        """An atomic maximum or minimum of floats: see `nnvm.tir.atomic`."""
        kinds = [f"tl.{sign}int{t.bits}" for sign in ("", "u")]
        value = value if value.text.isidentifier() else self.writer.named(value, "value")
        text = f"tl.where({value.text} == {value.text}, {value.text}.to({kinds[0]}, bitcast=True), "
        bits = self.writer.named(Value(f"{text}{nan_bits(op, t.bits)})", value.dims), "bits").text
        also = "" if mask is None else f"{paren(mask.text)} & "
        other = "min" if op == "max" else "max"
        for fn, kind, sign in ((op, kinds[0], ">="), (other, kinds[1], "<")):
            place = f"({pointer}).to(tl.pointer_type({kind}), bitcast=True)"
            operand = bits if kind == kinds[0] else f"{bits}.to({kind}, bitcast=True)"
            self._line(f'tl.atomic_{fn}({place}, {operand}, mask={also}({bits} {sign} 0), sem="relaxed")')

    def local_store(self, s: Store) -> None:
        """A local buffer as a block that is assigned as a whole."""
        writer = self.writer
        name = writer.names[s.buffer].text
        dims = frozenset(writer.tile.places[v] for v in self.around)
        shape = writer.tile.shape(dims)
        if isinstance(s.value, Const):
            text = f"tl.full({shape}, {number(s.value.value)}, {type_name(s.buffer.dtype)})"
        elif (product := self._dot(s)) is not None:
            text = product
        elif (running := _running(s)) is not None:
            place = writer.tile.places[self.around[-1]]
            text = f"tl.{running[0]}({writer.names[running[1]].text}, axis={place})"
        else:
            value = writer.broadcast(writer.value(s.value), dims)
            text = value.text
        writer.names[s.buffer] = Value(name, dims)
        self._line(f"{name} = {text}")

    def _dot(self, s: Store) -> str | None:
        """``acc + sum over k of a[m, k] * b[k, n]`` as `tl.dot`; None where the value is something else."""
        e = s.value
        if not (isinstance(e, Binary) and e.op == "add" and isinstance(e.a, Load) and e.a.buffer is s.buffer):
            return None
        if not isinstance(e.b, Reduce) or e.b.op != "sum" or len(self.around) != 2:
            return None
        product = e.b.source
        if not isinstance(product, Binary) or product.op != "mul":
            return None
        rows, columns = self.around
        (axis,) = reduced(e.b)
        a, b = product.a, product.b
        if self._depends(b, rows) or self._depends(a, columns):
            a, b = b, a
        if self._depends(b, rows) or self._depends(a, columns):
            return None
        m, n = (self.writer.tile.sizes[self.writer.tile.places[v]] for v in (rows, columns))
        k = axis.extent
        assert isinstance(k, int)
        kinds = {x.a.dtype if _half(x) else None for x in (a, b) if not _is_tile(x)}
        half = kinds.pop() if len(kinds) == 1 else None  # what was computed in a tile is rounded to the other's type
        left = self._factor(a, {rows: 0, axis.var: 1}, (m, k), half)
        right = self._factor(b, {axis.var: 0, columns: 1}, (k, n), half)
        exact = ', input_precision="ieee"' if not self.tf32 and not half else ""
        if s.buffer.dtype == F64:
            exact += ", out_dtype=tl.float64"
        return f"tl.dot({left}, {right}, {self.writer.names[s.buffer].text}{exact})"

    def _factor(self, e: Expr, places: dict[Var, int], sizes: tuple[int, int], half: DType | None) -> str:
        """A factor of a product as a block of that size."""
        if half is not None and not _is_tile(e):
            assert isinstance(e, Cast)
            e = e.a
        tile = self.tiles.setdefault((id(e), *sizes), Tile(places, sizes))
        with self.writer.placed(tile):
            text = self.writer.broadcast(self.writer.value(e), frozenset((0, 1))).text
        return f"{text}.to({type_name(half)})" if half is not None and _is_tile(e) else text

    def _depends(self, e: Expr, lane: Var) -> bool:
        place = self.writer.tile.places[lane]
        return any(v is lane or place in self.writer.names.get(v, Value("")).dims for v in free_vars(e))


def _combined_in_memory(s: Store) -> Binary | None:
    """``out[p] + value``, and the like, that is stored to out[p], where p comes from memory: so several lanes may store
    to one element, and each must add to what the others left there."""
    e = s.value
    if not isinstance(e, Binary) or e.op not in ("add", "max", "min") or not isinstance(e.a, Load):
        return None
    if e.a.buffer is not s.buffer or e.a.indices != s.indices:
        return None
    return e if any(isinstance(x, Load) for i in s.indices for x in post_order(i)) else None


def _half(e: Expr) -> TypeGuard[Cast]:
    return isinstance(e, Cast) and e.a.dtype.is_half


def _is_tile(e: Expr) -> bool:
    """Whether it is a block that the kernel computed."""
    return isinstance(e, Load) and e.buffer.scope == "local"


@dataclass
class _Extents:
    """Of tile variables: the place (how deep a loop is nested in others; reduced axes come after) and the size."""

    places: dict[Var, int] = field(default_factory=dict)
    of: dict[Var, int] = field(default_factory=dict)
    sizes: list[set[int]] = field(default_factory=list)

    def put(self, v: Var, place: int, size: int) -> None:
        self.places[v], self.of[v] = place, size
        while len(self.sizes) <= place:
            self.sizes.append(set())
        self.sizes[place].add(size)


def _extents(body: Stmt) -> _Extents:
    found = _Extents()

    def walk(s: Stmt, depth: int) -> None:
        if not isinstance(s, (Seq, For)) and not _is_dot(s) and _running(s) is None:
            for axis in (a for e in reductions(s) for a in reduced(e)):
                assert isinstance(axis.extent, int)
                found.put(axis.var, depth, axis.extent)
        if isinstance(s, For):
            if s.kind == "tile":
                assert isinstance(s.extent, Const)
                found.put(s.var, depth, int(s.extent.value))
            walk(s.body, depth + (s.kind == "tile"))
        elif isinstance(s, Seq):
            for x in s.body:
                walk(x, depth)
        elif isinstance(s, (Let, Allocate)):
            walk(s.body, depth)
        elif isinstance(s, If):
            walk(s.then, depth)
            if s.orelse is not None:
                walk(s.orelse, depth)

    walk(body, 0)
    return found


def _is_dot(s: Stmt) -> bool:
    e = s.value if isinstance(s, Store) and s.buffer.scope == "local" else None
    return isinstance(e, Binary) and e.op == "add" and isinstance(e.a, Load) and isinstance(e.b, Reduce)


_RUNNING = {"sum": "cumsum", "prod": "cumprod"}


def _running(s: Stmt) -> tuple[str, Buffer] | None:
    """``run[i, j] = sum over r of (part[i, r] where r <= j, else 0)`` of tiles: Triton's function, and `part`."""
    e = s.value if isinstance(s, Store) and s.buffer.scope == "local" else None
    if not isinstance(e, Reduce) or e.op not in _RUNNING or e.index is not None or not isinstance(e.source, Select):
        return None
    (axis,), cond, part = reduced(e), e.source.cond, e.source.a
    assert isinstance(s, Store)
    lane = s.indices[-1]
    if not isinstance(cond, Binary) or cond.op != "le" or cond.a is not axis.var or cond.b is not lane:
        return None
    fits = isinstance(part, Load) and part.buffer.scope == "local" and part.indices == (*s.indices[:-1], axis.var)
    return (_RUNNING[e.op], part.buffer) if fits and isinstance(part, Load) else None


def _uses(body: Stmt) -> dict[Expr, int]:
    """How many expressions and statements use each expression."""
    uses: dict[Expr, int] = {}
    seen: set[Expr] = set()
    for s in stmts(body):
        for root in roots(s):
            uses[root] = uses.get(root, 0) + 1
            for x in post_order(root):
                if x not in seen:
                    seen.add(x)
                    for c in children(x):
                        uses[c] = uses.get(c, 0) + 1
    return uses
