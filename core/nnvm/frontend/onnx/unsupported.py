"""What is said of models that cannot be imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["InvalidModel", "UnsupportedModel", "UnsupportedNode"]


class InvalidModel(ValueError):
    """The file is no ONNX model, or one that contradicts itself."""


@dataclass(frozen=True)
class UnsupportedNode:
    """A node that cannot be imported.

    Attributes:
        op: its type, with the domain in front where it is not ONNX's own.
        needs: graph inputs whose values would have to be known.
        final: there is no converter for it, whatever is known of its inputs.
    """

    op: str
    name: str
    opset: int
    reason: str
    needs: frozenset[str] = frozenset()
    final: bool = False

    def __str__(self) -> str:
        return f"{self.op} (opset {self.opset}) at {self.name}: {self.reason}"


class UnsupportedModel(ValueError):
    """The model has nodes, inputs or outputs that cannot be imported; `nodes` lists all of them."""

    def __init__(self, nodes: Sequence[UnsupportedNode]) -> None:
        self.nodes = tuple(nodes)
        super().__init__("the model cannot be imported:\n" + "\n".join(f"  {n}" for n in nodes))

    @property
    def is_final(self) -> bool:
        """Whether nothing that becomes known at a call can help: an op without a converter, a type, ..."""
        return any(n.final for n in self.nodes)

    @property
    def needs(self) -> frozenset[str]:
        """Graph inputs whose values would make it importable; empty where that is not enough."""
        if not all(n.needs for n in self.nodes):
            return frozenset()
        return frozenset().union(*(n.needs for n in self.nodes))
