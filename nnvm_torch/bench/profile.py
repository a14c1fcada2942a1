"""``nnvm bench --profile``: where the time of a model goes, kernel by kernel, against what the machine reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from nnvm.bench.pinning import pinned
from nnvm.cli.page.facts import Kernel, Roof, kernels_of, size_names
from nnvm.cli.source import load
from nnvm.cli.timing import kernel_times
from nnvm.compiler.build import compile_graph

from .roof import MeasuredRoof, measure_roof

__all__ = ["ProfileRow", "print_profile", "profile_model", "rows_of"]

#: Kernels that are printed; the rest are added up in a last row.
MOST_ROWS = 25


@dataclass(frozen=True)
class ProfileRow:
    """Kernels that share machine code and shapes.

    Attributes:
        shape: type of the first output.
        calls: how many there are.
        nanoseconds: of all of them.
        flops, nbytes: operations, and bytes read and written, of all of them.
    """

    name: str
    shape: str
    calls: int
    nanoseconds: float
    flops: int
    nbytes: int

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "shape": self.shape, "calls": self.calls, "nanoseconds": self.nanoseconds,
                "flops": self.flops, "bytes": self.nbytes}  # fmt: skip


def profile_model(spec: str, *, threads: int, cores: Sequence[int], batch: int, dtype: str, calls: int = 21
                  ) -> tuple[list[ProfileRow], MeasuredRoof]:  # fmt: skip
    """The kernels of one call by their medians over `calls` calls, longest first; CliError where the model is bad."""
    with pinned(tuple(cores)):
        torch.set_num_threads(threads)
        roof = measure_roof(threads)
        model = load(spec, batch=batch, dtype=dtype)
        compiled = compile_graph(model.graph)
        sizes = dict.fromkeys(size_names(compiled.graph), 1)
        times = kernel_times(model, compiled, sizes, calls)
    kernels = kernels_of(compiled.graph, Roof(roof.flops, roof.bytes), sizes, times)
    return rows_of(kernels), roof


def rows_of(kernels: Sequence[Kernel]) -> list[ProfileRow]:
    """Kernels with one name's code put together; what the host runs has no time and is left out."""
    rows: dict[object, ProfileRow] = {}
    for k in kernels:
        if k.measured is None:
            continue
        old = rows.get(k.code, ProfileRow(k.name, k.outputs[0], 0, 0.0, 0, 0))
        rows[k.code] = ProfileRow(old.name, old.shape, old.calls + 1, old.nanoseconds + k.measured,
                                  old.flops + k.flops, old.nbytes + k.nbytes)  # fmt: skip
    return sorted(rows.values(), key=lambda r: -r.nanoseconds)


def print_profile(spec: str, rows: Sequence[ProfileRow], roof: MeasuredRoof, console: Console) -> None:
    total = sum(r.nanoseconds for r in rows)
    calls = sum(r.calls for r in rows)
    console.print(
        f"[bold]{spec}[/bold]: {total / 1e6:.2f} ms in {calls} kernels, {roof.threads} thread"
        f"{'s' * (roof.threads > 1)}. The machine, measured: {roof.flops:.0f} GFLOP/s, {roof.bytes:.1f} GB/s.",
        highlight=False,
    )
    rates = ("GFLOP/s", "of peak", "GB/s", "of memory")
    table = Table("kernel", "output", "calls", "ms", "share", *rates, "bound by")
    for column in table.columns[2:-1]:
        column.justify = "right"
    for r in rows[:MOST_ROWS]:
        flops, moved = r.flops / max(r.nanoseconds, 1), r.nbytes / max(r.nanoseconds, 1)
        bound = "arithmetic" if r.flops / roof.flops > r.nbytes / roof.bytes else "memory"
        shown = (f"{flops:.1f}", f"{flops / roof.flops:.0%}", f"{moved:.1f}", f"{moved / roof.bytes:.0%}")
        table.add_row(r.name, r.shape, str(r.calls), f"{r.nanoseconds / 1e6:.3f}", f"{r.nanoseconds / total:.1%}",
                      *shown, bound)  # fmt: skip
    if rest := rows[MOST_ROWS:]:
        taken = sum(r.nanoseconds for r in rest)
        calls = sum(r.calls for r in rest)
        table.add_row(f"{len(rest)} more", "", str(calls), f"{taken / 1e6:.3f}", f"{taken / total:.1%}")
    console.print(table)
    console.print("Bytes count every tensor once; what stays in a cache between kernels may be moved faster than "
                  "memory. Convolutions count as direct ones: Winograd's algorithm may pass the peak.\n",
                  style="dim", highlight=False)  # fmt: skip
