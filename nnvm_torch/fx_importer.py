"""From an fx graph of functional ATen calls to nnvm's Graph IR."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx

from nnvm import config
from nnvm.dim import SymDim, evaluate, is_static, symbols
from nnvm.graph import Graph, Node, NodeEntry, TensorType, apply, constant, variable
from nnvm.graph.node import TypeInferenceError
from nnvm.ops.params import SymbolicAttribute
from nnvm_torch.aliasing import below_types, look_at_bases, root_of, view_of
from nnvm_torch.convert import Context, NeedsMemory, Unsupported, converter_of
from nnvm_torch.imported import Fallback, FromGraph, FromInput, Imported, NotImportable, Plain, Result, Strides, View
from nnvm_torch.nested import leaves_of, mapped, rebuilt, spread, tensors_of, used_leaves, used_results
from nnvm_torch.open_floats import float_of_sizes, takes_floats
from nnvm_torch.partition import TOKEN, AtenCall, Size, Slot, is_effect, is_view, needs_strides
from nnvm_torch.probe import refusal
from nnvm_torch.sizes import (
    hints_of,
    multiples_of,
    negative_numbers,
    ranges_of,
    require_equal_sizes,
    require_signs,
)
from nnvm_torch.source_line import last_line, module_of
from nnvm_torch.tensors import (
    HANDLE,
    HANDLE_TYPE,
    UnsupportedSize,
    dim_of,
    is_foreign,
    numpy_of,
    on_device,
    strides_of,
    type_of,
    written_as,
)

__all__ = ["import_graph"]

#: A constant tensor of the traced code with more elements becomes a parameter instead of part of the graph.
MAX_CONSTANT = 1 << 12


def device_of(gm: fx.GraphModule) -> torch.device:
    """The device that a graph works on: that of its arguments with any dimension, the first that is no CPU."""
    found = [v.device for n in gm.graph.nodes if n.op == "placeholder"
             and isinstance(v := n.meta.get("val"), torch.Tensor) and v.dim() > 0]  # fmt: skip
    return next((d for d in found if d.type == "cuda"), torch.device("cpu"))


def import_graph(gm: fx.GraphModule, static: frozenset[int] = frozenset()) -> Imported:
    """The graph of `gm`, whose nodes carry fake tensors (``meta["val"]``).

    Args:
        static: positions of arguments that are weights: the same from call to call, but for their values.

    Raises:
        NotImportable: sizes that depend on data, arguments of an unknown kind.
    """
    device = device_of(gm)
    try:
        with on_device(device):
            return replace(_Importer(gm, static).run(), device=device)
    except UnsupportedSize as e:
        raise NotImportable(str(e)) from None


class _Importer:
    """One graph on its way.

    Attributes:
        position: of each placeholder among the call's arguments.
        static: of those, the weights that the graph does not write to.
        env: what each fx node stands for: an entry, a Dim, a plain value, or a tuple of these.
        inputs, positions, input_strides: of the Graph's inputs; `positions` as in `Imported`.
        output_of: fx node -> the graph output that is its value.
        token: what the latest call with an effect gives, which the next one takes: they stay in order.
        of_params: whether a node depends on weights only, where that was asked.
        sources: stack trace -> source line.
    """

    def __init__(self, gm: fx.GraphModule, static: frozenset[int]) -> None:
        self.gm = gm
        self.placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self.position = {n: i for i, n in enumerate(self.placeholders)}
        written = {n.args[0] for n in gm.graph.nodes if n.target is torch.ops.aten.copy_.default}
        self.static = {i for i in static if i < len(self.placeholders) and self.placeholders[i] not in written}
        self.env: dict[fx.Node, Any] = {}
        self.inputs: list[NodeEntry] = []
        self.positions: list[int] = []
        self.input_strides: list[Strides] = []
        self.constants: list[torch.Tensor] = []
        self.sizes: dict[str, int] = {}
        self.outputs: list[NodeEntry] = []
        self.output_strides: list[Strides] = []
        self.output_of: dict[fx.Node, int] = {}
        self.writes: list[tuple[int, Result]] = []
        self.fallbacks: list[Fallback] = []
        self.faults: list[str] = []
        self.native = self.total = 0
        self.token: NodeEntry | None = None
        self.sources: dict[str, str] = {}
        self.of_params: dict[Node, bool] = {}

    def run(self) -> Imported:
        look_at_bases(self.gm)
        require_equal_sizes(self.gm)
        require_signs(self.gm)
        negative = negative_numbers(self.gm)
        with written_as({**multiples_of(self.gm), **negative}):
            results = self._nodes()
        if self.token is not None:
            self.outputs.append(self.token)
            self.output_strides.append(None)
        graph = Graph(tuple(self.outputs), tuple(e.node for e in self.inputs))
        graph = graph.with_attrs(input_strides=tuple(self.input_strides), output_strides=tuple(self.output_strides))
        if ranges := ranges_of(self.gm):
            hints = hints_of(self.gm.graph)
            graph = graph.with_attrs(
                dim_ranges=ranges, dim_hints=tuple((n, hints[n]) for n, *_ in ranges if n in hints)
            )
        sizes = tuple((name, p, -1 if name in negative else 1) for name, p in self.sizes.items())
        return Imported(
            graph, tuple(self.positions), tuple(self.constants), sizes, results, writes=tuple(self.writes),
            fallbacks=tuple(self.fallbacks), native=self.native, total=self.total, strides=tuple(self.output_strides),
            faults=tuple(self.faults),
        )  # fmt: skip

    def _nodes(self) -> tuple[Result, ...]:
        """All nodes in order; the graph's results."""
        results: tuple[Result, ...] = ()
        for node in self.gm.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "get_attr":
                self._get_attr(node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                flat = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
                results = tuple(self._result(r) for r in flat)
            else:
                raise NotImportable(f"an fx node of kind {node.op}")
        return results

    # arguments

    def _placeholder(self, node: fx.Node) -> None:
        val, position = node.meta.get("val"), self.position[node]
        if isinstance(val, torch.Tensor):
            kind = "param" if position in self.static and is_foreign(val) is None else "input"
            self.env[node] = self._input(node.name, val, position, kind)
        elif isinstance(val, torch.SymInt):
            size = dim_of(val)
            self.env[node] = size
            if isinstance(size, SymDim) and (name := str(val.node.expr)) in symbols(size):
                self.sizes[name] = position
        elif val is None or isinstance(val, (int, bool)):
            self.env[node] = val
        elif node.users:
            raise NotImportable(f"an argument of type {type(val).__name__}")

    def _input(self, name: str, val: torch.Tensor, position: int, kind: str) -> NodeEntry:
        entry = variable(name, type_of(val), kind)
        self.inputs.append(entry)
        self.positions.append(position)
        self.input_strides.append(None if is_foreign(val) else strides_of(val))
        return entry

    def _get_attr(self, node: fx.Node) -> None:
        value: Any = self.gm
        for part in cast(str, node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            self.env[node] = value  # a subgraph of a higher-order operator
            return
        node.meta.setdefault("val", value)
        plain = is_foreign(value) is None and type(value) in (torch.Tensor, torch.nn.Parameter)
        if plain and value.numel() <= MAX_CONSTANT:
            self.env[node] = constant(numpy_of(value), type_of(value))
            return
        self.constants.append(value)
        kind = "param" if plain else "input"
        self.env[node] = self._input(node.name, value, -len(self.constants), kind)

    # calls

    def _call(self, node: fx.Node) -> None:
        if node.target is operator.getitem:
            whole = self.env[cast(fx.Node, node.args[0])]
            self.env[node] = whole[node.args[1]]
            return
        if node.target is torch.ops.aten.copy_.default and node.args[0] in self.position:
            self._write(node)
            return
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            return  # of element type, device and layout: tracing has checked it, and all three are the graph's types
        val = node.meta.get("val")
        if isinstance(val, (torch.SymInt, int, bool)):
            self.env[node] = dim_of(val)
            return
        if isinstance(val, (torch.SymFloat, torch.SymBool, float)) and not node.users:
            return
        if isinstance(val, torch.SymFloat) and (number := float_of_sizes(node, self.env)) is not None:
            self.env[node] = number
            return
        effect = is_effect(node)
        if not node.users and not effect:
            return
        counted = not is_view(node.target)
        try:
            self.env[node] = self._convert(node)
            self.native += counted
        except NeedsMemory as e:
            raise NotImportable(str(e)) from None
        except Unsupported as e:
            self.env[node] = self._opaque(node, effect)
            self.fallbacks.append(Fallback(str(node.target), str(e), self.source_of(node)))
            counted = True
        self.total += counted

    def _convert(self, node: fx.Node) -> Any:
        converter = converter_of(node.target)
        if not takes_floats(node):
            _refuse_floats(node)
        if converter is None:
            raise Unsupported("no conversion")
        vals = tensors_of(node.meta["val"])
        for t in (*vals, *(n.meta.get("val") for n in node.all_input_nodes)):
            for tensor in tensors_of(t):
                if (why := is_foreign(tensor)) is not None:
                    raise Unsupported(why)
        if (why := refusal(node)) is not None:
            raise Unsupported(why)
        single = isinstance(node.meta["val"], torch.Tensor)
        outs = [type_of(v) if v is not None else HANDLE_TYPE for v in tensors_of(node.meta["val"], keep_none=True)]
        used = used_results(node, len(outs))
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val", self.env.get(n)))
        context = Context(args, dict(kwargs), outs, used, self.source_of(node), self._is_param)
        values, options = mapped(node.args, self.env), {k: mapped(v, self.env) for k, v in node.kwargs.items()}
        if outs and all(is_static(t.shape) and t.numel == 0 and t.dtype != HANDLE for t in outs):
            # tracing has checked the arguments, and there are no elements to compute
            empty = tuple(context.full(t.shape, 0, t.dtype) for t in outs)
            return empty[0] if single else empty
        try:
            result = converter(context, *values, **options)
        except (Unsupported, UnsupportedSize):
            raise
        except SymbolicAttribute as e:
            raise Unsupported(str(e)) from None
        except Exception as e:
            if config.debug_level():
                raise
            if isinstance(e, TypeError) and any(isinstance(v, SymDim) for v in (*values, *options.values())):
                raise Unsupported(f"a number that only the call knows: {e}") from e
            if not isinstance(e, TypeInferenceError):  # a form of the call that our op does not have
                self.faults.append(f"{Fallback(str(node.target), repr(e), self.source_of(node))}")
            raise Unsupported(f"conversion failed: {e}") from e
        results: tuple[NodeEntry | None, ...] = result if isinstance(result, tuple) else (result,)
        for entry, out, wanted in zip(results, outs, used, strict=True):
            if entry is None and wanted:
                raise Unsupported("a result that is not computed natively")
            if entry is not None and wanted and not _agree(entry.type, out, node):
                raise Unsupported(f"conversion gives {entry.type}, PyTorch {out}")
        return results[0] if single else results

    def _opaque(self, node: fx.Node, effect: bool) -> Any:
        """The call as a node that ATen runs; gives what `node.meta["val"]` looks like, with entries for tensors."""
        _refuse_floats(node)
        tensors: list[NodeEntry] = []
        by_memory = needs_strides(node)

        def template(a: Any) -> Any:
            if isinstance(a, fx.Node):
                return of_value(self.env[a], a.meta.get("val"))
            if isinstance(a, (list, tuple)):
                return [template(x) for x in a] if isinstance(a, list) else tuple(template(x) for x in a)
            if isinstance(a, dict):
                return {k: template(x) for k, x in a.items()}
            if isinstance(a, slice):
                raise NotImportable("a slice with symbolic bounds as an argument")
            return a

        def of_value(value: Any, val: Any) -> Any:
            if isinstance(value, NodeEntry):
                tensors.append(value)
                dense = by_memory and isinstance(val, torch.Tensor) and is_foreign(val) is None
                return Slot(len(tensors) - 1, strides_of(val) if dense else None)
            if isinstance(value, SymDim):
                return Size(value)
            if isinstance(value, (tuple, list)):
                vals = val if isinstance(val, (tuple, list)) else (None,) * len(value)
                return [of_value(v, w) for v, w in zip(value, vals)]
            return value

        args = tuple(template(a) for a in node.args)
        kwargs = {k: template(a) for k, a in node.kwargs.items()}
        val = node.meta.get("val")
        used = used_leaves(node)
        keep = tuple(i for i, v in enumerate(leaves_of(val)) if isinstance(v, torch.Tensor) and used(i))
        types = [type_of(leaves_of(val)[i]) for i in keep]
        if effect:
            types.append(TOKEN)
            if self.token is not None:
                tensors.append(self.token)
        call = AtenCall(cast("Callable[..., Any]", node.target), args, kwargs, keep, effect)
        made = apply("torch.effect" if effect else "torch.op", tensors, {"call": call, "types": tuple(types)},
                     source=self.source_of(node))  # fmt: skip
        if effect:
            self.token = made[len(types) - 1]
        return rebuilt(val, iter(spread(leaves_of(val), keep, made.outputs)))

    def _is_param(self, entry: NodeEntry) -> bool:
        """Does the value depend on weights only?"""
        node = entry.node
        if node not in self.of_params:
            if node.is_variable:
                self.of_params[node] = node.attrs["kind"] == "param"
            else:
                pure = not node.op.attr("stateful") and bool(node.inputs)
                self.of_params[node] = pure and all(self._is_param(e) or e.node.is_constant for e in node.inputs)
        return self.of_params[node]

    def source_of(self, node: fx.Node) -> str:
        trace = node.meta.get("stack_trace")
        if not trace:
            return module_of(node)
        if trace not in self.sources:
            self.sources[trace] = last_line(trace)
        return self.sources[trace]

    # results

    def _write(self, node: fx.Node) -> None:
        """The value that AOTAutograd wants written to an argument after everything else."""
        target, value = cast(fx.Node, node.args[0]), cast(fx.Node, node.args[1])
        self.writes.append((self.position[target], self._result(value)))
        self.env[node] = self.env[value]

    def _result(self, r: Any) -> Result:
        if not isinstance(r, fx.Node):
            return Plain(r)
        if isinstance(r.meta.get("val"), torch.SymFloat):
            raise NotImportable("a result of type SymFloat")
        value = self.env[r]
        if not isinstance(value, NodeEntry):
            return Plain(value)
        base = below_types(r)
        view = None if base is r else view_of(r, base)
        if base in self.position:
            return FromInput(self.position[base], view)
        entry = self.env[base]
        if base in self.output_of:
            return FromGraph(self.output_of[base], view)
        root = root_of(entry)
        for node, index in self.output_of.items():
            if root_of(self.env[node]) == root:  # the same values, in two tensors
                return self._copied(FromGraph(index, None, True), node, base, view)
        if root.node.is_variable or root.node.is_constant:
            entry = apply("identity", [entry])[0] if entry.type.dtype is not HANDLE else entry
        return FromGraph(self._output(base, entry), view)

    def _copied(self, source: FromGraph, of: fx.Node, base: fx.Node, view: View | None) -> Result:
        mine, theirs = base.meta["val"], of.meta["val"]
        same = mine.shape == theirs.shape and mine.stride() == theirs.stride() and view is None
        if same:
            return source
        entry = apply("identity", [self.env[base]])[0]
        return FromGraph(self._output(base, entry), view)

    def _output(self, base: fx.Node, entry: NodeEntry) -> int:
        val = base.meta["val"]
        self.outputs.append(entry)
        self.output_strides.append(None if is_foreign(val) else strides_of(val))
        self.output_of[base] = len(self.outputs) - 1
        return len(self.outputs) - 1


def _refuse_floats(node: fx.Node) -> None:
    if any(isinstance(n.meta.get("val"), torch.SymFloat) for n in node.all_input_nodes):
        raise NotImportable("a result of type SymFloat")


def _agree(got: TensorType, want: TensorType, node: fx.Node) -> bool:
    """Equal types; symbolic sizes that are written differently count as equal where they are for the traced sizes."""
    if got.dtype != want.dtype or got.rank != want.rank:
        return False
    if got.shape == want.shape:
        return True
    hints = hints_of(node.graph)
    try:
        return all(evaluate(a, hints) == evaluate(b, hints) for a, b in zip(got.shape, want.shape))
    except (KeyError, ZeroDivisionError):
        return False


