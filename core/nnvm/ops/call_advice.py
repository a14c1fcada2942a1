"""What the caller of an op is told who gives it a wrong attribute, or too few inputs."""

from __future__ import annotations

import difflib

from nnvm.graph.op import Op

__all__ = ["attributes_of", "weights_advice"]


def attributes_of(op: Op, wanted: str) -> str:
    """What the op's attributes are called, those of which it makes its weights included: near ones to `wanted`, or
    all."""
    known = [*op.params, *_of_weights(op), *(["use_bias"] if _of_weights(op) else [])]
    near = difflib.get_close_matches(wanted, known, 2)
    return f"did you mean {' or '.join(near)}?" if near else f"it has: {', '.join(dict.fromkeys(known)) or 'none'}"


def weights_advice(op: Op) -> str:
    """How a layer that lacks weights would make them itself."""
    wanted = " and ".join(_of_weights(op))
    return f". With the attributes {wanted} it makes its weights itself" if wanted else ""


def _of_weights(op: Op) -> list[str]:
    """Attributes that say how large a layer's weights are."""
    if not op.has("layer_weights"):
        return []
    return ["units"] if op.name == "dense" else ["channels", "kernel_size"] if op.name.startswith("conv") else []
