"""What the schedules of GPU kernels share: axes cut into tiles, and the launch that a group becomes.

A kernel is a loop of kind `grid` over its programs; in it, loops of kind `tile` span the tile that a program computes
at once, one axis each. An axis of n elements cut by b is `x = block * b + lane`, and x < n is a condition around what
is done with it, which becomes the mask of loads and stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnvm.dim import Dim, ceildiv, symbols
from nnvm.schedules.axes import Axis, Write
from nnvm.schedules.emit import Emitter, dim_value
from nnvm.schedules.kernel import name_apart
from nnvm.te.expr import INDEX, Buffer, Cast, Const, Expr, Select, Var, binary, const, is_size
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.stmt import For, GridKernel, If, Let, PrimFunc, Stmt, Store, seq
from nnvm.tir.visitor import free_vars, loads, stmts

__all__ = ["PERSISTENT", "Body", "Cut", "digits", "guarded", "kernel_of", "lets", "next_power", "warps", "written"]

#: Elements of the longest row that is held whole.
PERSISTENT = 8192
#: Elements of a tile that 4 warps (128 threads) work on, from which on there are 8, and 16.
EIGHT_WARPS, SIXTEEN_WARPS = 4096, 16384


def next_power(n: int) -> int:
    """The least power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def warps(elements: int) -> int:
    """Warps for a tile of so many elements."""
    return 4 if elements < EIGHT_WARPS else 8 if elements < SIXTEEN_WARPS else 16


@dataclass(frozen=True, eq=False)
class Cut:
    """An axis of `extent` elements in tiles of `size`.

    Attributes:
        index: the position on the axis, bound by `around`.
        lane: the position in the tile.
        block: the number of the tile.
    """

    index: Var
    lane: Var
    extent: Dim
    size: int
    block: Affine

    @staticmethod
    def of(name: str, extent: Dim, size: int, block: Affine, space: Space) -> Cut:
        index = Var(name)
        space.bind(index, affine(0), affine(extent) - 1)
        return Cut(index, Var(f"{name}_lane"), extent, size, block)

    @property
    def blocks(self) -> Dim:
        return ceildiv(self.extent, self.size)

    @property
    def position(self) -> Affine:
        """The position in terms of block and lane."""
        return self.block * self.size + atom_affine(self.lane)

    @property
    def inside(self) -> Expr | None:
        """Whether the position exists; None where it always does."""
        if self.extent % self.size == 0:
            return None
        return binary("lt", self.index, dim_value(self.extent))

    def around(self, body: Stmt, guard: bool = True) -> Stmt:
        """`body` for every position of the tile."""
        if guard and (inside := self.inside) is not None:
            body = If(inside, body)
        body = Let(self.index, Emitter().index(self.position), body)
        return For(self.lane, Const(self.size, INDEX), body, "tile")


def digits(axes: Sequence[Axis], index: Affine, space: Space) -> dict[Var, Affine]:
    """The axes in terms of their row-major position."""
    env: dict[Var, Affine] = {}
    rest = index
    for axis in reversed(axes[1:]):
        env[axis.var] = space.floormod(rest, affine(axis.extent))
        rest = space.floordiv(rest, affine(axis.extent))
    if axes:
        env[axes[0].var] = rest
    return env


def lets(places: dict[Var, Affine], body: Stmt) -> Stmt:
    """`body` with variables bound to the values of `places`."""
    for var, value in places.items():
        body = Let(var, Emitter().index(value), body)
    return body


def guarded(value: Expr, *conditions: Expr | None) -> Expr:
    """`value` inside, else 0; the guard goes under a conversion, so that tiles are loaded as they lie in memory."""
    if isinstance(value, Cast):
        return Cast(guarded(value.a, *conditions), value.dtype)
    for c in conditions:
        if c is not None:
            value = Select(c, value, const(0.0, value.dtype))
    return value


def written(writes: Sequence[Write], emitter: Emitter) -> Stmt:
    """The stores of `writes`; `emitter` gives their values."""
    return seq([Store(w.target.buffer, (emitter.index(w.address),), emitter.value(w.value)) for w in writes])


@dataclass(frozen=True, eq=False)
class Body:
    """The body of a launch: `stmt` for each of `programs` values of `program`."""

    program: Var
    programs: Dim
    stmt: Stmt
    warps: int = 4
    stages: int = 2


def kernel_of(name: str, params: Sequence[Buffer], outputs: int, bodies: Sequence[Body],
              scratch: Sequence[Buffer] = ()) -> GridKernel:  # fmt: skip
    """The kernel that runs `bodies` in order."""
    results = {*params[len(params) - outputs :], *scratch}
    steps: list[PrimFunc] = []
    names: set[str] = set()
    for i, body in enumerate(bodies):
        stmt = For(body.program, dim_value(body.programs), body.stmt, "grid")
        used = {x.buffer for x in loads(stmt)} | {s.buffer for s in stmts(stmt) if isinstance(s, Store)}
        stored = {s.buffer for s in stmts(stmt) if isinstance(s, Store)} & results
        own = [b for b in (*params, *scratch) if b in used]
        own.sort(key=lambda b: b in stored)  # written ones last
        name_apart(stmt, {b.name for b in own})
        sizes = {v.name for v in free_vars(stmt) if is_size(v)} | {n for b in own for d in b.shape for n in symbols(d)}
        names |= sizes
        label = name if len(bodies) == 1 else f"{name}_{i}"
        attrs = {"programs": body.programs, "warps": body.warps, "stages": body.stages}
        steps.append(PrimFunc(label, tuple(own), len(stored), tuple(sorted(sizes)), stmt, attrs))
    names |= {n for b in (*params, *scratch) for d in b.shape for n in symbols(d)}
    return GridKernel(name, tuple(params), outputs, tuple(sorted(names)), tuple(steps), tuple(scratch))
