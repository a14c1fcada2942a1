"""Sums of products on a GPU: matrix products, batched ones, and convolutions as implicit matrix products.

The axes of the result are rows (only the first factor depends on them), columns (only the second) or batch (both); each
kind is flattened, and so is the reduction. A program computes one tile of rows x columns:

    acc[m, n] = 0
    for k_block:  acc[m, n] += sum over k of a[m, k] * b[k, n]
    epilogue of acc[m, n]

The factors are whole expressions: what is fused in front of a product, the padding and the strides of a convolution
are part of their loads. Programs are numbered in groups of rows of tiles, so that those that run together share what
they read in the second cache (P. Tillet et al., Triton, 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

from nnvm.dim import Dim, ceildiv, numel
from nnvm.dtype import F32, F64, DType
from nnvm.schedules.access import affines, parts, rewrite
from nnvm.schedules.axes import Axis
from nnvm.schedules.emit import Emitter, dim_value
from nnvm.schedules.gpu.tiles import Body, Cut, digits, guarded, next_power, written
from nnvm.schedules.row_program import RowProgram
from nnvm.te.expr import INDEX, Binary, Buffer, Cast, Expr, Load, Reduce, Var, binary, const, maximum, minimum
from nnvm.te.tensor import IterVar
from nnvm.tir.affine import Space, atom_affine
from nnvm.tir.stmt import Allocate, For, Let, Stmt, Store, seq

__all__ = ["Product", "matmul_body", "product_of"]

#: Rows or columns, and steps of the reduction, from which on a tile product pays.
LEAST, LEAST_STEPS = 8, 16
#: Rows of tiles in a group of programs.
GROUP = 8
#: Programs that keep a large GPU busy.
BUSY = 128


@dataclass(frozen=True, eq=False)
class Product:
    """A row program that is one sum of products.

    Attributes:
        a, b: the factors.
        rows, columns, batch, steps: axes by what depends on them; `steps` are reduced.
        element, dtype: types of the tiles of the factors, and of the sum.
    """

    a: Expr
    b: Expr
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    steps: tuple[Axis, ...]
    element: DType
    dtype: DType

    @property
    def sizes(self) -> tuple[Dim, Dim, Dim]:
        """Rows, columns, steps."""
        return _extent(self.rows), _extent(self.columns), _extent(self.steps)


def product_of(program: RowProgram) -> Product | None:
    """The product that `program` is; None where it is something else, or too small for tiles."""
    if len(program.passes) != 1 or len(program.passes[0].reductions) != 1 or program.passes[0].writes:
        return None
    (reduction,) = program.passes[0].reductions
    source = reduction.source
    if reduction.op != "sum" or not isinstance(source, Binary) or source.op != "mul" or source.dtype not in (F32, F64):
        return None
    a, b = source.a, source.b
    of_a, of_b = _variables(a), _variables(b)
    rows: list[Axis] = []
    columns: list[Axis] = []
    batch: list[Axis] = []
    for axis in program.kept:
        in_a, in_b = axis.var in of_a, axis.var in of_b
        if not in_a and not in_b:
            return None
        (batch if in_a and in_b else rows if in_a else columns).append(axis)
    if not all(s.var in of_a and s.var in of_b for s in program.row):
        return None
    found = Product(a, b, tuple(rows), tuple(columns), tuple(batch), tuple(program.row), _element(a, b, source.dtype),
                    source.dtype)  # fmt: skip
    m, n, k = found.sizes
    small = any(isinstance(d, int) and d < least for d, least in ((m, LEAST), (n, LEAST), (k, LEAST_STEPS)))
    return None if small or not rows or not columns else found


def _variables(e: Expr) -> set[object]:
    return {v for x in parts(e) for f in affines(x) for v in f.atoms()}


def _element(a: Expr, b: Expr, dtype: DType) -> DType:
    """The type that tiles of the factors have: a half type where both are of that one, else that of the sum."""
    kinds = {f.a.dtype if isinstance(f, Cast) and f.a.dtype.is_half else dtype for f in (a, b)}
    return kinds.pop() if len(kinds) == 1 else dtype


def _extent(axes: tuple[Axis, ...]) -> Dim:
    return numel(tuple(x.extent for x in axes))


@dataclass(frozen=True)
class TileShape:
    """Rows, columns and steps of a tile."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


def tile_shape(m: Dim, n: Dim, batch: Dim, dtype: DType, gathers: bool = False) -> TileShape:
    """A tile for a product: large, for few loads a multiplication, but enough tiles to keep the GPU busy.

    float32 is multiplied without tensor cores, where larger tiles would not fit the registers; nor do they where the
    addresses of rows take registers too (`gathers`: a convolution).
    """
    most = 128 if dtype.is_half else 64
    step = 64 if dtype.is_half else 32 if dtype == F32 else 16
    rows = min(most // 2 if gathers else most, max(16, next_power(m))) if isinstance(m, int) else 64
    columns = min(most, max(16, next_power(n))) if isinstance(n, int) else 64
    while isinstance(m, int) and isinstance(n, int) and isinstance(batch, int) and rows * columns > 1024:
        if -(-m // rows) * -(-n // columns) * batch >= BUSY:
            break
        if rows >= columns:
            rows //= 2
        else:
            columns //= 2
    return TileShape(rows, columns, step, 8 if rows * columns >= 1 << 14 else 4, 3 if dtype.is_half else 2)


def matmul_body(program: RowProgram, product: Product, space: Space) -> Body:
    """The launch of a product and of what follows it element by element."""
    m, n, k = product.sizes
    batch = _extent(product.batch)
    shape = tile_shape(m, n, batch, product.element, len(product.steps) > 1)
    number, row_block, column_block, which = Var("program"), Var("m_block"), Var("n_block"), Var("batch")
    rows = Cut.of("m", m, shape.m, atom_affine(row_block), space)
    columns = Cut.of("n", n, shape.n, atom_affine(column_block), space)
    step, lane = Axis(Var("k_block"), ceildiv(k, shape.k)).bind(space), Axis(Var("k"), shape.k).bind(space)
    Axis(which, batch).bind(space)
    position = atom_affine(step.var) * shape.k + atom_affine(lane.var)
    env = {**digits(product.batch, atom_affine(which), space), **digits(product.rows, atom_affine(rows.index), space),
           **digits(product.columns, atom_affine(columns.index), space)}  # fmt: skip
    memo: dict[int, Expr] = {}
    inner = {**env, **digits(product.steps, position, space)}
    a, b = (rewrite(space, f, inner, memo=memo) for f in (product.a, product.b))
    emitter = Emitter()
    inside_k = None if k % shape.k == 0 else binary("lt", emitter.index(position), dim_value(k))
    a, b = (guarded(emitter.value(f), c.inside, inside_k) for f, c in ((a, rows), (b, columns)))
    acc = Buffer("acc", (shape.m, shape.n), product.dtype, None, "local")
    here = (emitter.index(atom_affine(rows.lane)), emitter.index(atom_affine(columns.lane)))
    total = Reduce("sum", Binary("mul", a, b), (IterVar(lane.var, shape.k, "reduce"),))

    def tile(body: Stmt, guard: bool) -> Stmt:
        return rows.around(columns.around(body, guard), guard)

    (reduction,) = program.passes[0].reductions
    held = {reduction.tensor: Load(acc, here)}
    results = [w.rewrite(space, env, {}) for w in program.results]
    end = written(results, Emitter(held=lambda e: held[e.tensor]))
    body = seq([
        tile(Store(acc, here, const(0.0, product.dtype)), False),
        For(step.var, dim_value(step.extent), tile(Store(acc, here, Load(acc, here) + total), False), "serial"),
        tile(end, True),
    ])  # fmt: skip
    numbered = _numbered(number, which, row_block, column_block, rows.blocks, columns.blocks, Allocate(acc, body))
    return Body(number, batch * rows.blocks * columns.blocks, numbered, shape.warps, shape.stages)


def _numbered(number: Var, which: Var, row_block: Var, column_block: Var, rows: Dim, columns: Dim, body: Stmt) -> Stmt:
    """`body` with the batch and the tile that a program computes: tiles go down a group of rows, then along."""
    per_batch = dim_value(rows * columns)
    inside = Var("tile")
    if isinstance(rows, int) and rows <= GROUP:
        body = Let(column_block, binary("floordiv", inside, dim_value(rows)), body)
        body = Let(row_block, binary("floormod", inside, dim_value(rows)), body)
        return Let(
            which, binary("floordiv", number, per_batch), Let(inside, binary("floormod", number, per_batch), body)
        )
    group = binary("floordiv", inside, dim_value(columns * GROUP))
    first = group * GROUP
    height = maximum(minimum(dim_value(rows) - first, const(GROUP, INDEX)), const(1, INDEX))
    in_group = binary("floormod", inside, dim_value(columns * GROUP))
    first_row, tall = Var("first_row"), Var("group_rows")
    body = Let(column_block, binary("floordiv", in_group, tall), body)
    body = Let(row_block, first_row + binary("floormod", in_group, tall), body)
    body = Let(first_row, first, Let(tall, height, body))
    return Let(which, binary("floordiv", number, per_batch), Let(inside, binary("floormod", number, per_batch), body))
