"""``nnvm show``: a model's graph as text, as JSON, as a page, and its memory over time."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from nnvm.atomic_write import atomic_write
from nnvm.progress import progress_bar

from .arguments import add_model_arguments, output, positive_int, size
from .command import CliError, Command

if TYPE_CHECKING:  # what is imported here would make every `nnvm` call wait
    from nnvm.cli.page.facts import PassRecord, Shown
    from nnvm.cli.source import Model
    from nnvm.compiler.build import CompiledGraph
    from nnvm.graph import Graph

__all__ = ["COMMAND"]

DESCRIPTION = """\
Show what the compiler makes of a model. Without an option: its graph as text, as it comes in and after the passes.

MODEL is one of
  FILE.onnx          an ONNX model (needs the package onnx)
  FILE.pt2           a program that torch.export.save wrote (needs PyTorch)
  FILE.json          a graph in NNVM's JSON format, as --json writes it
  FILE.nnvm          what `nnvm compile` wrote: the graph that it was given
  zoo:NAME, torchvision:NAME, timm:NAME, hf:NAME, FILE.py:FACTORY or NAME
                     a model that PyTorch builds, as for `nnvm bench` (see there)

examples
  nnvm show resnet18                      the graph as text
  nnvm show resnet50 -o page.html --time  a page with everything, kernels measured
  nnvm show model.onnx --memory           live bytes over time, in the terminal
  nnvm show model.onnx --json -o m.json   NNVM's JSON, which Netron opens
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="what to show; see above")
    parser.add_argument("--json", action="store_true", help="JSON instead of text: NNVM's own, or the memory plan")
    parser.add_argument("--memory", action="store_true", help="the memory plan and its timeline instead of the graph")
    parser.add_argument(
        "-o",
        "--output",
        type=output,
        metavar="FILE",
        help="write to FILE: a page where it ends in .html, else the text",
    )
    parser.add_argument(
        "--stage", choices=("before", "after"), help="the graph before or after the passes (text: both; JSON: before)"
    )
    parser.add_argument("--time", action="store_true", help="compile and measure every kernel (for a page)")
    parser.add_argument("--calls", type=positive_int, default=11, help="calls that are measured (11)")
    parser.add_argument(
        "--size", type=size, action="append", default=[], metavar="NAME=N", help="value of a symbolic size (1)"
    )
    add_model_arguments(parser)
    parser.add_argument(
        "--disable-pass", action="append", default=[], metavar="PASS", help="leave a pass out; may be repeated"
    )


def run(args: argparse.Namespace) -> int:
    page = args.output is not None and args.output.endswith((".html", ".htm"))
    if args.time and not page:
        raise CliError("--time needs a page to show it on: add -o page.html")
    if args.size and not (page or args.memory):
        raise CliError("--size is for the memory plan and for pages: add --memory or -o page.html")
    if page and (args.json or args.memory):
        raise CliError("a page shows everything: leave out --json and --memory, or give -o another ending than .html")
    text = _page(args) if page else _text(args)
    if args.output is None:
        print(text)
        return 0
    with atomic_write(args.output) as file:
        file.write((text + ("" if text.endswith("\n") else "\n")).encode())
    print(f"wrote {args.output} ({len(text) / 1024:.0f} KiB)", file=sys.stderr)
    return 0


@dataclass(frozen=True)
class _Optimised:
    graph: Graph
    prepare: Graph | None
    passes: tuple[PassRecord, ...]
    compiled: CompiledGraph | None


def _text(args: argparse.Namespace) -> str:
    model = _load(args)
    if args.memory:
        optimised = _optimised(args, model)
        report = optimised.graph.attrs["memory_plan"].report(_sizes(args, optimised.graph))
        return json.dumps(asdict(report), indent=2) if args.json else f"{report}\n\n{report.draw()}"
    if args.json:
        return (_optimised(args, model).graph if args.stage == "after" else model.graph).json()
    parts = []
    if args.stage != "after":
        parts.append(_titled("before the passes", model.graph, args.stage is None))
    if args.stage != "before":
        optimised = _optimised(args, model)
        parts.append(_titled("after the passes", optimised.graph, args.stage is None))
        if optimised.prepare is not None and optimised.prepare.outputs:
            parts.append(_titled("once per version of the weights", optimised.prepare, True))
    return "\n\n".join(parts)


def _titled(title: str, graph: Graph, titled: bool) -> str:
    return f"# {title}\n{graph.ir()}" if titled else graph.ir()


def _page(args: argparse.Namespace) -> str:
    from nnvm.cli.page.document import page_html

    return page_html(_shown(args))


def _shown(args: argparse.Namespace) -> Shown:
    """Everything that the page shows."""
    from nnvm.cli.page.facts import Roof, Shown, kernels_of
    from nnvm.target import Target

    model = _load(args)
    with progress_bar() as tell:
        if args.time:
            tell("compiling", 0.0)
        done = _optimised(args, model)
        sizes = _sizes(args, done.graph)
        target = Target.current()
        roof = Roof.of(target)
        times = None
        if done.compiled is not None:
            from nnvm.cli.timing import kernel_times

            times = kernel_times(model, done.compiled, sizes, args.calls,
                                 lambda text, part: tell(text, 0.5 + part / 2))  # fmt: skip
    prepare = kernels_of(done.prepare, roof, sizes) if done.prepare is not None else ()
    measured = f"Measured: the median of {args.calls} calls, on this machine." if times is not None else ""
    memory = done.graph.attrs["memory_plan"].report(sizes)
    return Shown(model.name, target, model.graph, done.graph, kernels_of(done.graph, roof, sizes, times), prepare,
                 memory, done.passes, sizes, measured, model.fallbacks)  # fmt: skip


def _load(args: argparse.Namespace) -> Model:
    from nnvm.cli.source import load

    _check_passes(args.disable_pass)
    return load(args.model, batch=args.batch, dtype=args.dtype)


def _check_passes(names: Iterable[str]) -> None:
    import difflib

    from nnvm.compiler.pipeline import pipeline

    for name in names:
        if name not in pipeline():
            near = difflib.get_close_matches(name, pipeline(), 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(dict.fromkeys(pipeline()))}"
            raise CliError(f"no pass {name!r}{hint}")


def _optimised(args: argparse.Namespace, model: Model) -> _Optimised:
    """The graph after the passes; compiled too where kernels are to be measured."""
    from nnvm.cli.page.facts import Recorder
    from nnvm.compiler.build import BuildOptions, compile_graph
    from nnvm.compiler.pipeline import pipeline
    from nnvm.graph.pass_manager import PassContext, apply_passes

    recorder, disabled = Recorder(), frozenset(args.disable_pass)
    if args.time:
        options = BuildOptions(opt_level=args.opt_level, disabled_passes=disabled, instruments=(recorder,))
        compiled = compile_graph(model.graph, options)
        prepare = compiled.prepare.graph if compiled.prepare is not None else None
        return _Optimised(compiled.graph, prepare, tuple(recorder.passes), compiled)
    graph = model.graph
    # a graph that was fused already only lacks its memory plan, which JSON leaves out
    passes = ("PlanMemory", "FinishPrepare") if graph.attrs.get("fused") else pipeline()
    context = PassContext(opt_level=args.opt_level, disabled=disabled, instruments=(recorder,))
    graph = apply_passes(graph, passes, context)
    return _Optimised(graph, graph.attrs.get("prepare"), tuple(recorder.passes), None)


def _sizes(args: argparse.Namespace, graph: Graph) -> Mapping[str, int]:
    from nnvm.cli.page.facts import size_names

    names, given = size_names(graph), dict(args.size)
    if unknown := [n for n in given if n not in names]:
        known = f"it has {', '.join(names)}" if names else "it has none"
        raise CliError(f"the model has no symbolic size {unknown[0]!r}; {known}")
    return {n: given.get(n, 1) for n in names}


COMMAND = Command("show", "show a model's graph, kernels, memory and passes", DESCRIPTION, add_arguments, run)
