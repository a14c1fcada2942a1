"""What the importer gives: a graph, and how to put the results of a call together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import torch

from nnvm.dim import Dim
from nnvm.graph import Graph

__all__ = ["Fallback", "FromGraph", "FromInput", "Imported", "NotImportable", "Plain", "Result", "Strides", "View"]

Strides = Union["tuple[Dim, ...]", None]


class NotImportable(Exception):
    """The whole graph must be left to ATen; the message says why."""


@dataclass(frozen=True)
class Fallback:
    """A call that ATen runs.

    Attributes:
        op: its name.
        reason: why.
        source: the user's source line, "" where it is not known.
    """

    op: str
    reason: str
    source: str

    def __str__(self) -> str:
        return f"{self.op}: {self.reason}" + (f" ({self.source})" if self.source else "")


@dataclass(frozen=True)
class View:
    """A tensor on the memory of another: sizes, strides and the offset from its first element, in elements; `dtype`
    where its elements are of another type of the same size."""

    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class FromGraph:
    """A result that is output `index` of the graph, looked at through `view`; `copy` where it needs its own memory."""

    index: int
    view: View | None = None
    copy: bool = False


@dataclass(frozen=True)
class FromInput:
    """A result that is argument `position`, looked at through `view`; `copy` where it is a new tensor."""

    position: int
    view: View | None = None
    copy: bool = False


@dataclass(frozen=True)
class Plain:
    """A result that is no tensor: None, a number, or a size."""

    value: Any


Result = FromGraph | FromInput | Plain


@dataclass(frozen=True)
class Imported:
    """A graph and its place in the call.

    Attributes:
        graph: with the attributes `input_strides` and `output_strides`.
        positions: for each graph input, its position among the call's arguments; -1 - i for `constants[i]`.
        constants: tensors that the traced code closes over.
        sizes: names of symbolic sizes, with the position of the argument that is the value, and 1, or -1 where it is
            the value with the other sign.
        results: what the call returns.
        writes: (position of an argument, graph output that is written to it), in order.
        fallbacks: calls that ATen runs.
        native, total: compute nodes compiled, and all of them.
        strides: strides of each graph output, as in the attribute.
        faults: conversions that failed although the call is one that is converted, with the reason and source line.
        device: whose memory it works on.
    """

    graph: Graph
    positions: tuple[int, ...]
    constants: tuple[torch.Tensor, ...]
    sizes: tuple[tuple[str, int, int], ...]
    results: tuple[Result, ...]
    writes: tuple[tuple[int, Result], ...]
    fallbacks: tuple[Fallback, ...]
    native: int
    total: int
    strides: tuple[Strides, ...] = field(default=())
    faults: tuple[str, ...] = ()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def sizes_in(self, args: Sequence[Any]) -> dict[str, int]:
        """The values of the symbolic sizes that are arguments by themselves."""
        return {name: sign * int(args[position]) for name, position, sign in self.sizes}
