"""The table, for a terminal and as markdown, from the same cells."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from .accuracy import ABSOLUTE_TOLERANCE
from .results import BenchResult, EngineResult, ModelResult, Ratio

__all__ = ["Row", "markdown", "notes", "print_result", "rows", "title"]

COLUMNS = ("model", "engine", "latency", "ratio", "quartiles", "error", "compile", "memory", "")
NUMBERS = ("latency", "ratio", "quartiles", "error", "compile", "memory")
#: Left out, in this order, where the terminal is too narrow.
EXPENDABLE = ("quartiles", "memory")
#: Where there is no terminal: wide enough that no line is folded.
WIDTH_WITHOUT_TERMINAL = 140
GAP = 2
#: What answers are compared with where a model says nothing else.
FLOAT64 = "float64"
#: With less of its core than this for the baseline, other programs were in the way.
BUSY_SHARE = 0.9
#: What of an engine's compile time lies outside of the phases that it reports.
OUTSIDE = "Dynamo, AOTAutograd and the first call"


@dataclass(frozen=True)
class Row:
    """A line of the table: plain text for each column, and a rich style for the line."""

    cells: tuple[str, ...]
    style: str = ""
    ends_section: bool = False


def duration(seconds: float | None) -> str:
    """Three digits and a unit."""
    if seconds is None:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1.0 or unit == "µs":
            value = seconds * scale
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    raise AssertionError


def megabytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 2**20:,.0f} MiB"


def parameters(count: int) -> str:
    if count >= 1e6:
        return f"{count / 1e6:.1f} M"
    return f"{count / 1e3:.0f} k" if count >= 1e4 else str(count)


def operations(count: int) -> str:
    return f"{count / 1e9:.1f} GFLOP" if count >= 1e8 else f"{count / 1e6:.1f} MFLOP"


def ratio_cells(ratio: Ratio | None) -> tuple[str, str]:
    if ratio is None:
        return "–", ""
    return f"{ratio.median:.2f}×", f"{ratio.low:.2f}–{ratio.high:.2f}"


def error_cell(error: float | None) -> str:
    return "–" if error is None else f"{error:.1e}"


def remark(row: EngineResult) -> str:
    """The last column: what is wrong, or how much of the model the engine compiled."""
    if row.status != "ok":
        return f"{row.status.upper()}: {row.reason}"
    fraction = row.details.get("native_fraction")
    if fraction is None:
        return ""
    if row.details.get("graphs") == 0:
        return "nothing was compiled"
    fallbacks = row.details.get("fallbacks") or []
    text = f"{fraction:.0%} native"
    return f"{text}, {len(fallbacks)} fallback{'s' * (len(fallbacks) != 1)}" if fallbacks else text


def style_of(row: EngineResult, subject: str) -> str:
    if row.status != "ok":
        return "red"
    return "bold" if row.engine == subject else ""


def short_name(model: str) -> str:
    """Without the prefix that most have, and without the folders of a file."""
    return Path(model).name if ".py:" in model or model.endswith(".onnx") else model.removeprefix("zoo:")


def model_rows(model: ModelResult, subject: str, baseline: str) -> Iterator[Row]:
    name = short_name(model.model)
    if model.reason:
        yield Row((name, "", *[""] * 6, f"FAILED: {model.reason}"), "red", ends_section=True)
        return
    for index, row in enumerate(model.engines):
        label = name if index == 0 else ""
        if index == 1 and "parameters" in model.facts:
            label = f"  {parameters(model.facts['parameters'])} parameters"
        if index == 2 and model.facts.get("flops"):
            label = f"  {operations(model.facts['flops'])}"
        ratio, quartiles = ratio_cells(row.ratio)
        if row.engine == baseline:
            quartiles = ""
        if row.status == "failed":
            yield Row((label, row.engine, *[""] * 6, remark(row)), "red", ends_section=index + 1 == len(model.engines))
            continue
        cells = (
            *(label, row.engine, duration(row.latency), ratio, quartiles, error_cell(row.error)),
            *(duration(row.compile_seconds), megabytes(row.memory.get("peak")), remark(row)),
        )
        yield Row(cells, style_of(row, subject), ends_section=index + 1 == len(model.engines))


def rows(result: BenchResult) -> list[Row]:
    """All lines: the models' in order, then the geometric means, where there is more than one model."""
    subject = result.config.subject
    found = [row for model in result.models for row in model_rows(model, subject, result.config.baseline)]
    if len(result.models) < 2:
        return found
    label = "geometric mean"
    for engine in result.config.engines:
        mean = result.mean_ratio(engine)
        if engine == result.config.baseline or mean is None:
            continue
        ratio, count = mean
        style = "bold" if engine == subject else ""
        remark_text = f"{count} of {len(result.models)} models"
        found.append(Row((label, engine, "", f"{ratio:.2f}×", "", "", "", "", remark_text), style))
        label = ""
    return found


def title(result: BenchResult) -> str:
    config, environment = result.config, result.environment
    cores = f" on core{'s' * (len(config.cores) > 1)} {', '.join(map(str, config.cores))}" if config.cores else ""
    threads = f"{config.threads} thread{'s' * (config.threads > 1)}{cores}"
    packages = environment.get("packages", {})
    names = ("torch",) if "torch" in packages else ("onnxruntime", "openvino")
    versions = " · ".join(f"{name} {packages[name]}" for name in names if name in packages)
    processor = f"{environment.get('cpu')} ({environment.get('llvm_cpu')}, {environment.get('vector_bits')} bits)"
    from_files = all(model.endswith(".onnx") for model in config.models)
    kind = "types and shapes of the files" if from_files else f"{config.dtype} · batch {config.batch}"
    return " · ".join(part for part in (threads, kind, versions, processor) if part)


def notes(result: BenchResult) -> list[str]:
    """Lines below the table: fallbacks one by one, compile phases, why there is no error column."""
    lines = []
    for model in result.models:
        if "no_reference" in model.facts:
            lines.append(f"{model.model}: no reference: {model.facts['no_reference']}")
        if model.model.endswith(".onnx") and "inputs" in model.facts:
            lines.append(f"{short_name(model.model)}: inputs {', '.join(model.facts['inputs'])}")
        baseline = model.engine(result.config.baseline)
        share = baseline.core_share if baseline is not None else None
        if baseline is not None and share is not None and share < BUSY_SHARE:
            lines.append(
                f"{model.model}: the machine was busy: {baseline.engine} got {share:.0%} of its core; do not quote this"
            )
        for row in model.engines:
            where = f"{model.model}, {row.engine}"
            lines += [f"{where}: fallback {fallback}" for fallback in row.details.get("fallbacks") or []]
            breaks = row.details.get("graph_breaks") or {}
            lines += [f"{where}: {count} graph break{'s' * (count != 1)}: {why}" for why, count in breaks.items()]
            phases = row.details.get("compile_phases") or {}
            if phases and row.compile_seconds is not None:
                phases = {**phases, OUTSIDE: row.compile_seconds - sum(phases.values())}
                parts = [f"{phase} {duration(seconds)}" for phase, seconds in phases.items() if seconds >= 0.01]
                lines.append(f"{where}: compile: {' · '.join(parts) or 'under 10 ms a phase'}")
    return lines


def header(result: BenchResult) -> tuple[str, ...]:
    return tuple(f"vs {result.config.baseline}" if name == "ratio" else name for name in COLUMNS)


def legend(result: BenchResult) -> str:
    baseline = result.config.baseline
    references = dict.fromkeys(model.facts.get("reference", FLOAT64) for model in result.models) or {FLOAT64: None}
    return (
        f"vs {baseline}: median of per-round ratios, above 1 is faster. error: largest difference from "
        f"{' or '.join(references)} relative to the output's range; accepted up to twice {baseline}'s or "
        f"{ABSOLUTE_TOLERANCE:g}. compile: through the first call, cold. memory: peak of the process."
    )


def print_result(result: BenchResult, console: Console) -> None:
    """Prints the table, then the notes.

    Not a ``rich.table``: the reason of a failure runs across the columns that such a row has no numbers for.
    """
    shown = rows(result)
    widths = column_widths(shown, header(result), console.width)
    plain(console, title(result), "")
    plain(console, "")
    plain(console, align(header(result), widths), "bold")
    plain(console, "─" * min(console.width, sum(widths) + GAP * len(widths)), "dim")
    for row in shown:
        for line in row_lines(row, widths, console.width):
            plain(console, line, row.style)
        if row.ends_section:
            plain(console, "")
    for line in notes(result):
        plain(console, line)
    if notes(result) or len(result.models) > 1:
        plain(console, "")
    plain(console, legend(result), "dim")


def column_widths(shown: Sequence[Row], names: Sequence[str], available: int) -> list[int]:
    """Width of each column but the last, which is free; 0 where it is empty or the terminal too narrow."""
    widths = []
    for column in range(len(names) - 1):
        cells = [row.cells[column] for row in shown]
        widths.append(max(map(len, (names[column], *cells))) if any(cells) else 0)
    for name in EXPENDABLE:
        if sum(widths) + GAP * len(widths) > available:
            widths[COLUMNS.index(name)] = 0
    return widths


def plain(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style or None, markup=False, highlight=False)


def align(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Numbers to the right, names to the left; a column of width 0 is left out."""
    parts = [
        f"{cell:>{width}}" if name in NUMBERS else f"{cell:<{width}}"
        for name, cell, width in zip(COLUMNS, cells, widths, strict=False)
        if width
    ]
    if len(widths) == len(COLUMNS) - 1:
        parts.append(cells[-1])
    return (" " * GAP).join(parts).rstrip()


def row_lines(row: Row, widths: Sequence[int], width: int) -> list[str]:
    """One line; what does not fit of the last cell, as of a failure's reason, goes below, from the third column on."""
    line = align(row.cells, widths)
    has_numbers = any(row.cells[2:-1])
    if has_numbers and len(line) <= width:
        return [line]
    if has_numbers:
        continued = row_lines(Row(("", "", *[""] * 6, row.cells[-1])), widths, width)
        return [align((*row.cells[:-1], ""), widths), *continued]
    start = align(row.cells[:2], widths[:2]).ljust(sum(widths[:2]) + GAP) + " " * GAP
    reason = textwrap.wrap(row.cells[-1], max(30, width - len(start)))
    return [(start if index == 0 else " " * len(start)) + line for index, line in enumerate(reason)]


def markdown(result: BenchResult) -> str:
    """The same as a document."""
    lines = [title(result), "", f"| {' | '.join(header(result))} |"]
    lines.append("|" + "|".join("---:" if name in NUMBERS else "---" for name in COLUMNS) + "|")
    for row in rows(result):
        lines.append(f"| {' | '.join(cell.strip().replace('|', '/') for cell in row.cells)} |")
    lines += ["", legend(result), ""]
    lines += [f"- {line}" for line in notes(result)]
    return "\n".join(lines).rstrip() + "\n"
