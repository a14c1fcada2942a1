"""The Symbol API of NNVM: networks out of operators with keyword attributes, typed later.

>>> import nnvm.symbol as sym
>>> x = sym.Variable("data")
>>> net = sym.relu(sym.conv2d(x, channels=16, kernel_size=(3, 3), padding=(1, 1), name="conv1"))
>>> net.list_input_names()
['data', 'conv1_weight', 'conv1_bias']
>>> net.infer_shape(data=(1, 3, 8, 8))[1]
[(1, 16, 8, 8)]

Every operator of the registry is a function of this module, under its own name and NNVM's. The weights of layers
(convolutions, dense, batch_norm) that are not given become variables called ``{name}_{input}``, whose shapes follow
from the data's. `nnvm.attribute.AttrScope` and `nnvm.name.Prefix` give attributes and names to all that is made in
their ``with`` block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import nnvm.ops  # noqa: F401  registers the operators
from nnvm.arithmetic import Arithmetic
from nnvm.attribute import is_note, note, notes_of
from nnvm.dim import Shape, as_partial_shape
from nnvm.dtype import F32, DType
from nnvm.dtype import dtype as as_dtype
from nnvm.graph import op as registry
from nnvm.graph.graph import Graph, topological
from nnvm.graph.json import load_json as load_graph
from nnvm.graph.node import Node, NodeEntry, variable
from nnvm.graph.node import apply as apply_node
from nnvm.graph.number import exact_constant
from nnvm.graph.op import Op
from nnvm.graph.passes.infer_type import infer_type
from nnvm.graph.type_solver import ELEMWISE, SCALAR, Hint, PartialShape, TypeSolution, partial, solve_types
from nnvm.graph.types import TensorType
from nnvm.graph.unique_names import new_names, with_unique_names
from nnvm.name import NameManager
from nnvm.ops.call_advice import attributes_of, weights_advice

__all__ = ["Group", "Symbol", "Variable", "load_json", "var"]


class Symbol(Arithmetic):
    """One or several values of a network under construction; immutable.

    Attributes:
        entries: the values.
        hints: what is known of the types of variables and scalars that wait for theirs, by node.
    """

    def __init__(self, entries: Sequence[NodeEntry], hints: Mapping[Node, Hint] | None = None) -> None:
        self.entries = tuple(entries)
        self.hints = dict(hints or {})

    @property
    def name(self) -> str:
        """Name of the node; of a group, of its first."""
        return self.entries[0].node.name

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Symbol]:
        return (Symbol([e], self.hints) for e in self.entries)

    def __getitem__(self, which: int | str | slice) -> Symbol:
        """One of the values, by position or by the name of its output; several by a slice."""
        if isinstance(which, slice):
            return Symbol(self.entries[which], self.hints)
        if isinstance(which, str):
            names = self.list_output_names()
            if which not in names:
                raise KeyError(f"no output {which!r}; there are {', '.join(names)}")
            which = names.index(which)
        if not -len(self) <= which < len(self):
            raise IndexError(f"value {which} of {len(self)} ({', '.join(self.list_output_names())})")
        return Symbol([self.entries[which]], self.hints)

    def __call__(self, *args: Symbol, name: str | None = None, **kwargs: Symbol) -> Symbol:
        """Composition: variables replaced by other symbols, given in order or by name."""
        names = self.list_input_names()
        given = {**dict(zip(names, args)), **kwargs}
        if twice := [k for k in names[: len(args)] if k in kwargs]:
            raise TypeError(f"the input {twice[0]} is given twice, in order and by name")
        if wrong := [k for k, s in given.items() if not isinstance(s, Symbol)]:
            raise TypeError(f"inputs are replaced by Symbols; {wrong[0]} is given {given[wrong[0]]!r}")
        unknown = [k for k in given if k not in names]
        if len(args) > len(names) or unknown:
            raise TypeError(f"the symbol has the inputs {', '.join(names)}; got {', '.join(unknown) or len(args)}")
        hints = {**self.hints, **{n: h for s in given.values() for n, h in s.hints.items()}}
        new: dict[Node, Node | NodeEntry] = {}
        for node in topological(self.entries):
            if node.is_variable:
                new[node] = given[node.name]._entry() if node.name in given else node
                continue
            inputs = [_replaced(new, e) for e in node.inputs]
            same = all(a == b for a, b in zip(inputs, node.inputs))
            new[node] = made = node if same else Node(node.op, tuple(inputs), node.attrs, node.name, None, node.source)
            if node in hints:
                hints[made] = hints[node]
        entries = [_replaced(new, e) for e in self.entries]
        if name is not None and len(entries) == 1:
            n = entries[0].node
            entries = [Node(n.op, n.inputs, n.attrs, name, n.types, n.source)[entries[0].index]]
        return Symbol(entries, hints)

    def list_input_names(self, option: str = "all") -> list[str]:
        """Names of the variables, in topological order.

        `option`: ``all``; ``read_only``, those that training does not update as it runs; ``aux_state``, those that it
        does (the running statistics of batch_norm).
        """
        return [n.name for n in self._variables(option)]

    def list_input_variables(self, option: str = "all") -> list[Symbol]:
        """The variables themselves; `option` as in `list_input_names`."""
        return [Symbol(n.outputs, self.hints) for n in self._variables(option)]

    def list_output_names(self) -> list[str]:
        """``{name}_output`` of each value, with its number where the node has several; of a variable its name."""
        return [_output_name(e) for e in self.entries]

    def get_internals(self) -> Symbol:
        """All values that lead here, as a group."""
        return Symbol([e for n in topological(self.entries) for e in n.outputs], self.hints)

    def get_children(self) -> Symbol | None:
        """What the values are computed from; None of variables."""
        inputs = [e for s in dict.fromkeys(e.node for e in self.entries) for e in s.inputs]
        return Symbol(inputs, self.hints) if inputs else None

    def attr(self, key: str) -> Any:
        """An attribute of the node: a param of its op, what the user gave, or ``op_name``; None where it has none."""
        node = self._entry().node
        if key == "op_name":
            return node.op.name
        return node.attrs.get(key, node.attrs.get(note(key)))

    def list_attr(self, recursive: bool = False) -> dict[str, Any]:
        """The attributes of the node by name; `recursive`: of all nodes that lead here, by ``{node}${name}``."""
        if not recursive:
            return dict(self._entry().node.attrs)
        return {f"{n.name}${k}": v for n in topological(self.entries) for k, v in n.attrs.items()}

    def graph(self) -> Graph:
        """The graph; types may be missing until `nnvm.graph` passes infer them.

        Nodes that are called as another one get a number after their name (graph/unique_names.py).
        """
        order = topological(self.entries)
        graph = Graph(self.entries, tuple(n for n in order if n.is_variable))
        renamed = new_names(graph)
        hints = [(renamed.get(n, n.name), self.hints[n]) for n in order if n in self.hints]
        return with_unique_names(graph.with_attrs(type_hints=tuple(hints)) if hints else graph)

    def infer_type(self, **types: TensorType | Hint) -> Graph:
        """The graph with types, from those of variables, or of outputs and other values, by name.

        A type may be known in part: ``partial((None, 3), "float32")`` of `nnvm.graph.type_solver`.
        """
        return infer_type(self.graph(), types)

    def infer_shape(
        self, dtype: DType | str | None = None, **shapes: PartialShape
    ) -> tuple[dict[str, Shape], list[Shape], dict[str, Shape]]:
        """Shapes of the arguments by name, of the outputs, and of the auxiliary states by name.

        Args:
            dtype: of what `shapes` tells of; shapes do not depend on it, so it only makes the check stricter.
            shapes: by the name of a variable, an output (``fc_output``) or another node. A size of 0 or None is not
                known, as in NNVM. They flow forward and backward.

        TypeInferenceError names what does not follow, or the nodes that contradict each other.
        """
        solution = self._solve(dtype, shapes)
        solution.require(dtypes=False)
        found: dict[str, Shape] = {v.name: solution.known_shape(v[0]) for v in solution.graph.inputs}
        states = self.list_input_names("aux_state")
        arguments = {name: shape for name, shape in found.items() if name not in states}
        return (
            arguments,
            [solution.known_shape(e) for e in solution.graph.outputs],
            {name: found[name] for name in states},
        )

    def infer_shape_partial(
        self, dtype: DType | str | None = None, **shapes: PartialShape
    ) -> tuple[dict[str, PartialShape], list[PartialShape], dict[str, PartialShape]]:
        """`infer_shape` as far as it goes: sizes that do not follow are None, and so is a shape of unknown rank."""
        solution = self._solve(dtype, shapes)
        found = {v.name: solution.shape(v[0]) for v in solution.graph.inputs}
        states = self.list_input_names("aux_state")
        arguments = {name: shape for name, shape in found.items() if name not in states}
        return arguments, [solution.shape(e) for e in solution.graph.outputs], {name: found[name] for name in states}

    def _solve(self, dtype: DType | str | None, shapes: Mapping[str, PartialShape]) -> TypeSolution:
        return solve_types(self.graph(), {k: partial(_with_unknowns(s, k), dtype, k) for k, s in shapes.items()})

    def debug_str(self) -> str:
        return self.graph().ir()

    def tojson(self) -> str:
        """NNVM's JSON; `nnvm.graph.load_json` reads it."""
        return self.graph().json()

    def __copy__(self) -> Symbol:
        return Symbol(self.entries, self.hints)

    def __deepcopy__(self, memo: dict[int, Any]) -> Symbol:
        return self.__copy__()  # nodes never change

    def __reduce__(self) -> tuple[Callable[[str], Symbol], tuple[str]]:
        return load_json, (self.tojson(),)

    def __repr__(self) -> str:
        return f"<Symbol {', '.join(map(str, self.entries))}>"

    def _entry(self) -> NodeEntry:
        if len(self.entries) != 1:
            raise TypeError(f"one value is wanted, {self!r} has {len(self.entries)}; pick one with [i]")
        return self.entries[0]

    def _variables(self, option: str) -> list[Node]:
        if option not in ("all", "read_only", "aux_state"):
            raise ValueError(f"option {option!r}: expected all, read_only or aux_state")
        order = topological(self.entries)
        mutable = {n.inputs[i].node for n in order for i in n.op.attr("mutable_inputs", ())}
        return [n for n in order if n.is_variable and (option == "all" or (n in mutable) == (option == "aux_state"))]

    def _apply(self, name: str, *operands: Symbol | float) -> Symbol:
        return _function(registry.get(name))(*operands)


def Variable(
    name: str, shape: PartialShape = None, dtype: DType | str | None = None, init: Any = None, kind: str = "input",
    attr: Mapping[str, Any] | None = None,
) -> Symbol:  # fmt: skip
    """An input of the network.

    Args:
        shape: with it the variable is typed at once; a size of 0 or None is not known (as in NNVM), and what is not
            known, or has a name, is found by inference.
        dtype: element type; float32 by default.
        init: how `nnvm.testing.init` fills it: the name of an initializer, a number, or an array.
        kind: ``input`` (new at each call) or ``param`` (a weight).
        attr: attributes of the user's.
    """
    notes = notes_of(attr)
    if init is not None:
        notes["__init__"] = init
    if shape is None and dtype is not None:
        notes["__dtype__"] = as_dtype(dtype)
    if not isinstance(name, str) or not name:
        raise TypeError(f"a variable is called by a text, got the name {name!r}")
    known = _with_unknowns(shape, name)
    sizes = [d for d in known or () if isinstance(d, int)]
    if known is not None and len(sizes) == len(known):
        return Symbol([variable(name, TensorType(tuple(sizes), as_dtype(dtype or F32)), kind, notes)])
    entry = variable(name, None, kind, notes)
    return Symbol([entry], {} if known is None else {entry.node: partial(known, dtype or F32)})


var = Variable


def Group(symbols: Sequence[Symbol]) -> Symbol:
    """Several symbols as one, for a network with several outputs."""
    if wrong := [s for s in symbols if not isinstance(s, Symbol)]:
        raise TypeError(f"a group is of Symbols, got {wrong[0]!r}")
    return Symbol([e for s in symbols for e in s.entries], {n: h for s in symbols for n, h in s.hints.items()})


def load_json(text: str) -> Symbol:
    """The symbol that `Symbol.tojson` wrote."""
    graph = load_graph(text)
    nodes = {n.name: n for n in graph.nodes}
    return Symbol(graph.outputs, {nodes[k]: h for k, h in graph.attrs.get("type_hints", ()) if k in nodes})


def _output_name(e: NodeEntry) -> str:
    if e.node.is_variable:
        return e.node.name
    return f"{e.node.name}_output" + (str(e.index) if e.node.num_outputs > 1 else "")


def _replaced(new: Mapping[Node, Node | NodeEntry], e: NodeEntry) -> NodeEntry:
    found = new[e.node]
    return found if isinstance(found, NodeEntry) else found[e.index]


def _with_unknowns(shape: PartialShape, of: str) -> PartialShape:
    """A shape as NNVM writes it, where 0 is a size that is not known."""
    return None if shape is None else tuple(None if d == 0 else d for d in as_partial_shape(shape, of))


def _function(op: Op, same_shape: bool = False) -> Callable[..., Symbol]:
    """The function that applies an op to symbols; `same_shape`: to inputs of one shape, as NNVM's elemwise_add does."""

    def call(
        *args: Symbol | float, name: str | None = None, attr: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> Symbol:
        name = NameManager.current().get(name, op.name)
        given = {k: v for k, v in kwargs.items() if isinstance(v, Symbol) or _is_input(op, k)}
        attrs = {k: v for k, v in kwargs.items() if k not in given}
        use_bias = attrs.pop("use_bias", True)
        form = op.attr("symbol_form")
        kind, attrs = (op.name, attrs) if form is None else form(attrs)
        made = registry.get(kind)
        weights = made.attr("layer_weights")
        try:
            shapes: dict[str, Hint] = (weights(attrs) if weights is not None else None) or {}
        except (TypeError, ValueError) as error:
            raise type(error)(f"{op.name} {name}: {error}") from None
        if unknown := [k for k in attrs if k not in made.params and not is_note(k)]:
            raise TypeError(f"{op.name} has no attribute {unknown[0]!r}; {attributes_of(made, unknown[0])}")
        inputs = _inputs(made, args, given, name, shapes, use_bias)
        hints = {n: h for s in inputs for n, h in s.hints.items()}
        entries, attrs = [s._entry() for s in inputs], {**attrs, **notes_of(attr)}
        if any(hints.get(e.node) == SCALAR for e in entries):  # its type is to be found first
            made.check_inputs(len(entries))
            node = Node(made, tuple(entries), made.normalise(attrs), name, None)
        else:
            node = apply_node(made, entries, attrs, name)
        if same_shape and node.types is None and all(isinstance(a, Symbol) for a in args):
            hints[node] = ELEMWISE
        return Symbol(node.outputs, hints)

    call.__name__, call.__doc__ = op.name, op.doc
    return call


def _inputs(
    op: Op, args: Sequence[Symbol | float], named: Mapping[str, Symbol | float], name: str, shapes: Mapping[str, Hint],
    use_bias: bool,
) -> list[Symbol]:  # fmt: skip
    """The inputs of a node, with new variables for the weights that are not given."""
    names = [i.rstrip("?") for i in op.inputs]
    if names and names[-1].startswith("*"):
        if named:
            raise TypeError(f"{op.name} takes its inputs in order, not by name ({', '.join(named)})")
        return [_symbol(a) for a in args]
    if len(args) > len(names):
        raise TypeError(f"{op.name} takes the inputs {', '.join(names) or 'none'}; got {len(args)}")
    if twice := [k for k in names[: len(args)] if k in named]:
        raise TypeError(f"{op.name} {name}: the input {twice[0]} is given twice, in order and by name")
    given: dict[str, Symbol | float] = {**dict(zip(names, args)), **named}
    if unknown := [k for k in given if k not in names]:
        raise TypeError(f"{op.name} has no input {unknown[0]!r}; it has: {', '.join(names)}")
    inputs = []
    for i in op.inputs:
        key = i.rstrip("?")
        if key in given:
            inputs.append(_hinted(_symbol(given[key]), shapes.get(key)))
        elif key in shapes and (key != "bias" or use_bias):
            inputs.append(_missing(f"{name}_{key}", shapes[key]))
        elif not i.endswith("?"):
            raise TypeError(
                f"{op.name} {name} lacks the input {key!r}; it takes: {', '.join(names)}" + weights_advice(op)
            )
    return inputs


def _is_input(op: Op, key: str) -> bool:
    """Whether a keyword is an input, which may be a number, and no attribute."""
    return key not in op.params and any(i.rstrip("?") == key for i in op.inputs)


def _hinted(symbol: Symbol, hint: Hint | None) -> Symbol:
    """A weight that the user gave: what the layer says of its type, where the user said nothing."""
    node = symbol._entry().node
    if hint is None or not node.is_variable or node.types is not None or node in symbol.hints:
        return symbol
    return Symbol(symbol.entries, {**symbol.hints, node: hint})


def _missing(name: str, hint: Hint) -> Symbol:
    entry = variable(name, None, "param", notes_of(None))
    return Symbol([entry], {entry.node: hint})


def _symbol(value: Symbol | float) -> Symbol:
    """A symbol; a number becomes a constant that takes the type of its neighbour."""
    if isinstance(value, Symbol):
        return value
    entry = exact_constant(value)
    return Symbol([entry], {entry.node: SCALAR})


def __getattr__(name: str) -> Callable[..., Symbol]:
    """An operator, by its name or an alias of NNVM."""
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return _function(registry.get(name), name.startswith("elemwise_"))
    except KeyError as e:
        raise AttributeError(f"nnvm.symbol: {e.args[0]}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *registry.known()})
