"""Tensors and how each is computed: the algorithm, without a word on loops.

>>> x = placeholder((m, k), F32, "x"); w = placeholder((k, n), F32, "w")
>>> r = reduce_axis(k, "r")
>>> y = compute((m, n), lambda i, j: sum(x[i, r] * w[r, j], [r]), "y")
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from nnvm.dim import Dim, Shape
from nnvm.dtype import DType
from nnvm.dtype import dtype as as_dtype
from nnvm.te.expr import Expr, ExprLike, Reduce, Var, const

__all__ = ["IterVar", "Read", "Tensor", "all", "any", "argmax", "argmin", "compute", "max", "min", "placeholder",
           "prod", "reduce_axis", "sum", "topological"]  # fmt: skip


@dataclass(eq=False, slots=True)
class IterVar:
    """An axis of iteration: `var` runs over 0 .. extent - 1. `kind` is ``spatial`` or ``reduce``."""

    var: Var
    extent: Dim
    kind: str

    @property
    def name(self) -> str:
        return self.var.name

    def __repr__(self) -> str:
        return f"{self.var.name}[{self.extent}]"


@dataclass(eq=False, slots=True)
class Tensor:
    """A tensor: a placeholder (`body` is None) or computed, element by element, as `body` over `axes`.

    Attributes:
        attrs: facts for schedules (never an op's name). Ops set
            ``row_axes``: n, the first n axes count rows, and a row is computed whole by all stages that have it;
            ``row_factor``: c, the last row axis runs in steps of c elements per row (channels of a group);
            ``cheap``: True, a few instructions per element: better computed again than stored;
            ``pad``: (widths, value), a border of `value` around what is read;
            ``sections``: (axis, starts), the pieces of a concatenation along `axis` and its end;
            ``gather_axis``: the axis along which whole slices are read by index;
            ``causal``: bool, on scores of an attention: element [..., i, j] counts for j <= i only.
    """

    name: str
    shape: Shape
    dtype: DType
    axes: tuple[IterVar, ...] = ()
    body: Expr | None = None
    attrs: dict[str, object] = field(default_factory=dict)

    def __getitem__(self, indices: ExprLike | IterVar | tuple[ExprLike | IterVar, ...]) -> Expr:
        items = indices if isinstance(indices, tuple) else (indices,)
        if len(items) != len(self.shape):
            raise IndexError(f"{self.name} has {len(self.shape)} dimensions, indexed with {len(items)}")
        return Read(self, tuple(i.var if isinstance(i, IterVar) else const(i) for i in items))

    @property
    def is_placeholder(self) -> bool:
        return self.body is None

    @property
    def reduce_axes(self) -> tuple[IterVar, ...]:
        """The axes that the body reduces over; () for an elementwise body."""
        return tuple(self.body.axes) if isinstance(self.body, Reduce) else ()  # type: ignore[arg-type]

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Tensors that the body reads, each once, in order of first use."""
        return tuple(dict.fromkeys(r.tensor for r in reads(self.body))) if self.body is not None else ()

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(eq=False, slots=True)
class Read(Expr):
    """One element of a tensor inside a compute body; lowering makes a Load of it, or the tensor's own body."""

    tensor: Tensor
    indices: tuple[Expr, ...]
    dtype: DType = field(init=False)
    lanes: int = 1

    def __post_init__(self) -> None:
        self.dtype = self.tensor.dtype


def placeholder(shape: Sequence[Dim], dtype: DType | str, name: str) -> Tensor:
    return Tensor(name, tuple(shape), as_dtype(dtype))


def compute(
    shape: Sequence[Dim], fn: Callable[..., ExprLike], name: str, attrs: dict[str, object] | None = None,
    axis_names: Sequence[str] | None = None,
) -> Tensor:  # fmt: skip
    """The tensor whose element at i, j, ... is `fn(i, j, ...)`; its dtype is that of the expression.

    `fn` may also take one `*indices`. Axis names come from `fn`'s parameters unless given.
    """
    shape = tuple(shape)
    if axis_names is None:
        parameters = list(inspect.signature(fn).parameters.values())
        variadic = len(parameters) == 1 and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL
        axis_names = [f"i{d}" for d in range(len(shape))] if variadic else [p.name for p in parameters]
    if len(axis_names) != len(shape):
        raise ValueError(f"{name}: {len(shape)} dimensions but the function takes {len(axis_names)} indices")
    axes = tuple(IterVar(Var(n), d, "spatial") for n, d in zip(axis_names, shape))
    body = fn(*(a.var for a in axes))
    if not isinstance(body, Expr):
        raise TypeError(f"{name}: the function gave {body!r}; use const(value, dtype)")
    return Tensor(name, shape, body.dtype, axes, body, dict(attrs or {}))


def reduce_axis(extent: Dim, name: str) -> IterVar:
    return IterVar(Var(name), extent, "reduce")


def _reducer(op: str) -> Callable[[Expr, Sequence[IterVar]], Reduce]:
    def reduce(source: Expr, axes: Sequence[IterVar]) -> Reduce:
        return Reduce(op, source, tuple(axes))

    reduce.__doc__ = f"`source` combined over `axes` by {op}."
    return reduce


sum, prod, max, min, any, all = map(_reducer, ("sum", "prod", "max", "min", "any", "all"))


def argmax(value: Expr, index: Expr, axes: Sequence[IterVar]) -> Reduce:
    """The `index` at which `value` is greatest: the first of equal ones, the first NaN before all numbers."""
    return Reduce("argmax", value, tuple(axes), index)


def argmin(value: Expr, index: Expr, axes: Sequence[IterVar]) -> Reduce:
    """The `index` at which `value` is least: the first of equal ones, the first NaN before all numbers."""
    return Reduce("argmin", value, tuple(axes), index)


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions, in field order (`Read` and `Load` give their indices)."""
    out: list[Expr] = []
    for name in type(e).__dataclass_fields__:  # type: ignore[attr-defined]
        value = getattr(e, name)
        if isinstance(value, Expr):
            out.append(value)
        elif isinstance(value, tuple):
            out.extend(v for v in value if isinstance(v, Expr))
    return tuple(out)


def reads(e: Expr | None) -> Iterator[Read]:
    """Every `Read` in an expression, shared ones once, outer before inner."""
    seen: set[int] = set()
    stack = [e] if e is not None else []
    while stack:
        x = stack.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, Read):
            yield x
        stack.extend(reversed(children(x)))


def topological(outputs: Sequence[Tensor]) -> list[Tensor]:
    """All tensors that `outputs` depend on, themselves included, each after its inputs."""
    order: dict[Tensor, None] = {}
    stack: list[tuple[Tensor, bool]] = [(t, False) for t in reversed(outputs)]
    while stack:
        tensor, done = stack.pop()
        if tensor in order:
            continue
        if done:
            order[tensor] = None
        else:
            stack.append((tensor, True))
            stack.extend((i, False) for i in reversed(tensor.inputs))
    return list(order)
