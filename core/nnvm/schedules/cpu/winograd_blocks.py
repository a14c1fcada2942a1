"""Which tiles of an image a Winograd convolution works on at a time.

Where the size of the image is known, the block is the one for which all of the batch takes the fewest cycles: a part of
an image, or several small images, which then share one reading of the weight. Where
only the call knows it, the number of tiles that a block has at most is chosen here, and its rows and columns by the
kernel: whole rows of tiles, or parts of one where they are longer, all of about equal size. What the kernel computes
once are *locals*, sizes with names that stand for them in every expression.
"""

from __future__ import annotations

from dataclasses import dataclass

from nnvm.dim import Dim, ceildiv, dim_max, dim_min, symbol
from nnvm.schedules.cpu.contraction_tile import step_cycles
from nnvm.target import Target
from nnvm.te.expr import THREADS, Expr, Var, dim_expr, size_var

__all__ = ["Blocks", "Products", "blocks_of", "most_rows", "register_tiles"]

#: Blocks that there should be, so that threads share them evenly.
PARALLEL_BLOCKS = 4


@dataclass(frozen=True)
class Products:
    """The products of a convolution: for each of `positions` a matrix of `channels` by `panels` times `vectors` vectors
    of `lanes`, elements of `size` bytes."""

    positions: int
    channels: int
    panels: int
    vectors: int
    lanes: int
    size: int

    @property
    def width(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True)
class Blocks:
    """Blocks of tiles, and parts of the panels.

    Attributes:
        tiles: most tiles of a block.
        rows, columns: of tiles of an image in a block; the last one of an image may have fewer rows.
        down, across: blocks of an image.
        part, parts: panels of a part, and how many parts there are.
        chunk: panels whose products are kept at a time.
        images: in a block; more than one only where each is there as a whole.
        locals: sizes that the kernel computes first, each with its value.
    """

    tiles: int
    rows: Dim
    columns: Dim
    down: Dim
    across: Dim
    part: Dim
    parts: Dim
    chunk: int
    images: int = 1
    locals: tuple[tuple[Var, Expr], ...] = ()

    @property
    def known(self) -> bool:
        """Are the blocks known now (the parts need not be)?"""
        return all(isinstance(d, int) for d in (self.rows, self.columns, self.down, self.across))


def register_tiles(tiles: int, most: int) -> tuple[int, int]:
    """Register tiles of about equal size: some have `rows` + 1 rows (their number is the second), the others `rows`."""
    return divmod(tiles, -(-tiles // most))


def most_rows(vectors: int, target: Target) -> int:
    """Rows of a register tile at most."""
    return max(1, (target.vector_registers - vectors - 1) // vectors)


def blocks_of(rows: Dim, columns: Dim, batch: Dim, p: Products, target: Target) -> Blocks:
    """The blocks of images of `rows` x `columns` tiles."""
    if isinstance(rows, int) and isinstance(columns, int):
        return _of_known(rows, columns, batch, p, target)
    return _of_unknown(rows, columns, batch, p, target)


def _of_known(rows: int, columns: int, batch: Dim, p: Products, target: Target) -> Blocks:
    across = {_ceildiv(columns, n) for n in range(1, columns + 1)}
    down = {_ceildiv(rows, n) for n in range(1, rows + 1)}
    known = batch if isinstance(batch, int) else 1
    weight = p.positions * p.channels * p.panels * p.width * p.size
    limit = target.winograd_tiles
    most = limit if target.is_far(weight) else 0
    sizes = [(x, y, 1) for x in across for y in down if x * y <= limit and (y == 1 or x == columns)]
    sizes += [(columns, rows, n) for n in range(2, known + 1) if known % n == 0 and n * columns * rows <= most]

    def number(s: tuple[int, int, int]) -> int:
        return _ceildiv(columns, s[0]) * _ceildiv(rows, s[1]) * (known // s[2])

    def cycles(s: tuple[int, int, int]) -> float:
        return number(s) * _block_cycles(s[0] * s[1] * s[2], p, target)

    x, y, images = min(sizes, key=lambda s: (cycles(s), s))
    tiles, local = x * y * images, _Locals()
    part, parts = _parts(p.panels, number((x, y, images)), local)
    return Blocks(tiles, y, x, _ceildiv(rows, y), _ceildiv(columns, x), part, parts,
                  _chunk(tiles, p.panels, p, target), images, local.found)  # fmt: skip


def _of_unknown(rows: Dim, columns: Dim, batch: Dim, p: Products, target: Target) -> Blocks:
    least = min(target.winograd_tiles, most_rows(p.vectors, target))
    tiles = min(range(least, target.winograd_tiles + 1), key=lambda t: (_block_cycles(t, p, target) / t, t))
    local = _Locals()
    x = local("columns", _even(columns, tiles))
    y = local("rows", _even(rows, dim_max(1, tiles // x)))
    across, down = local("across", ceildiv(columns, x)), local("down", ceildiv(rows, y))
    part, parts = _parts(p.panels, dim_max(1, batch * down * across), local)
    return Blocks(tiles, y, x, down, across, part, parts, _chunk(tiles, p.panels, p, target), locals=local.found)


class _Locals:
    """Gives names to sizes."""

    def __init__(self) -> None:
        self.found: tuple[tuple[Var, Expr], ...] = ()

    def __call__(self, name: str, value: Dim) -> Dim:
        if isinstance(value, int):
            return value
        self.found = (*self.found, (size_var(f"winograd_{name}"), dim_expr(value)))
        return symbol(f"winograd_{name}")


def _parts(panels: int, blocks: Dim, local: _Locals) -> tuple[Dim, Dim]:
    """Panels of a part, and parts, of which there are no more than threads want: each transforms the data anew."""
    if isinstance(blocks, int) and blocks >= PARALLEL_BLOCKS:
        return panels, 1
    wanted = dim_min(panels, ceildiv(dim_min(PARALLEL_BLOCKS, symbol(THREADS)), blocks))
    part = local("part", ceildiv(panels, wanted))
    return part, local("parts", ceildiv(panels, part))


def _even(extent: Dim, most: Dim) -> Dim:
    """Steps of blocks of about equal size, at most `most`, at least 1."""
    return dim_max(1, ceildiv(extent, dim_max(1, ceildiv(extent, most))))


def _ceildiv(a: int, b: int) -> int:
    return -(-a // b)


def _chunk(tiles: int, panels: int, p: Products, target: Target) -> int:
    """Panels of which the products of a block stay within a quarter of the second cache."""
    most = target.l2_bytes // 4 // (p.positions * tiles * p.width * p.size)
    return _ceildiv(panels, _ceildiv(panels, max(1, min(panels, most))))


def _block_cycles(tiles: int, p: Products, target: Target) -> float:
    """An estimate for one block: the multiply-adds, and what comes from beyond the second cache."""
    chunks = _ceildiv(p.panels, _chunk(tiles, p.panels, p, target))
    most = most_rows(p.vectors, target)
    rows, larger = register_tiles(tiles, most)
    steps = larger * _tile_cycles(rows + 1, p) + (_ceildiv(tiles, most) - larger) * _tile_cycles(rows, p)
    weight = p.positions * p.channels * p.panels * p.width * p.size
    data = p.positions * p.channels * tiles * p.size
    far = data * (1 + chunks) // 2 if 2 * data > target.l2_bytes else 0
    far += weight if 2 * weight > target.l2_bytes else weight // 4  # nearer ones still cost a little
    return p.positions * p.panels * steps + far / target.far_bytes_per_cycle


def _tile_cycles(rows: int, p: Products) -> float:
    """Of a register tile over all channels: multiply-adds, loads, latency; then the sums are stored."""
    return p.channels * step_cycles(rows, p.vectors) + 2 * rows * p.vectors + 10 if rows else 0.0
