"""Loop nests: the statements of the Tensor IR. Expressions are those of `nnvm.te.expr`, without Read; a Reduce has a
place only in the tiles of a GPU kernel (inside a loop of kind `grid`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nnvm.dim import Dim
from nnvm.te.expr import Buffer, Expr, Var

__all__ = ["LOOP_KINDS", "Allocate", "Assert", "For", "GridKernel", "If", "Let", "Prefetch", "PrimFunc", "Seq", "Stmt",
           "Store", "seq"]  # fmt: skip

#: `serial`; `parallel` (iterations independent, shared out among threads; only as an outermost loop);
#: `vectorized` (constant extent; the pass `vectorize` turns it into vectors); `unrolled` (constant extent); `grid`
#: (GPU: the iterations are the programs of the launch; only as the outermost loop); `tile` (GPU: constant extent, a
#: power of two; all iterations at once as one axis of a tile, each nested one is a further axis).
LOOP_KINDS = ("serial", "parallel", "vectorized", "unrolled", "grid", "tile")


class Stmt:
    """Base of all statements; immutable by convention, compared by identity."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class Store(Stmt):
    """`buffer[indices] = value`, only in lanes where `mask` holds (None: in all)."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    mask: Expr | None = None


@dataclass(eq=False, slots=True)
class For(Stmt):
    """`for var in range(extent): body`, run as `kind` says."""

    var: Var
    extent: Expr
    body: Stmt
    kind: str = "serial"


@dataclass(eq=False, slots=True)
class Seq(Stmt):
    """Statements one after the other."""

    body: tuple[Stmt, ...]


@dataclass(eq=False, slots=True)
class If(Stmt):
    """A branch on a scalar condition."""

    cond: Expr
    then: Stmt
    orelse: Stmt | None = None


@dataclass(eq=False, slots=True)
class Allocate(Stmt):
    """`buffer` (scope ``local`` or ``scratch``) exists, uninitialised, during `body`."""

    buffer: Buffer
    body: Stmt


@dataclass(eq=False, slots=True)
class Let(Stmt):
    """`var` stands for `value` in `body`."""

    var: Var
    value: Expr
    body: Stmt


@dataclass(eq=False, slots=True)
class Assert(Stmt):
    """The kernel fails with `message` where the scalar `cond` is false."""

    cond: Expr
    message: str


@dataclass(eq=False, slots=True)
class Prefetch(Stmt):
    """A hint: the cache line of `buffer[indices]` will be read soon. The element need not exist."""

    buffer: Buffer
    indices: tuple[Expr, ...]


@dataclass(eq=False, slots=True)
class PrimFunc:
    """One kernel.

    Attributes:
        name: a valid C identifier.
        params: argument buffers (scope ``global``), inputs first.
        outputs: how many of the last params are written.
        symbols: names of the sizes it takes, in the order of the call.
        body: the loop nest.
        attrs: facts for the report and for code generation.
    """

    name: str
    params: tuple[Buffer, ...]
    outputs: int
    symbols: tuple[str, ...]
    body: Stmt
    attrs: Mapping[str, object] = field(default_factory=dict)

    def workspace(self) -> Dim:
        """Bytes of scratch one thread needs: `nnvm.tir.workspace.workspace_bytes` of the body."""
        from nnvm.tir.workspace import workspace_bytes

        return workspace_bytes(self.body)


@dataclass(frozen=True, eq=False, slots=True)
class GridKernel:
    """A group as launches one after the other.

    Attributes:
        name: a C identifier.
        params: argument buffers, inputs first; the last `outputs` are written.
        symbols: names of the sizes that it takes, in the order of the call.
        steps: a function each, whose params are those of `params` and `scratch` that it uses.
        scratch: memory between the steps, flat.
        attrs: facts for reports.
    """

    name: str
    params: tuple[Buffer, ...]
    outputs: int
    symbols: tuple[str, ...]
    steps: tuple[PrimFunc, ...]
    scratch: tuple[Buffer, ...] = ()
    attrs: Mapping[str, object] = field(default_factory=dict)


def seq(stmts: Sequence[Stmt]) -> Stmt:
    """One statement out of several, flattened; a single one is returned as it is."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.body if isinstance(s, Seq) else (s,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))
