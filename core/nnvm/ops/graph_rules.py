"""What graph passes know about ops: facts that concern no op's meaning, attached here family by family.

The passes in graph/passes read these attributes and no op's name.
"""

from __future__ import annotations

from nnvm.graph import op as registry

__all__: list[str] = []

_EXPENSIVE = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc sigmoid "
    "lgamma gelu silu elu softplus mish log_sigmoid power atan2 hypot floor_divide remainder trunc_divide fmod"
)
_ROW_MASTERS = "softmax log_softmax layer_norm rms_norm"


def _attach(names: str, attribute: str, value: object) -> None:
    for name in names.split():
        if name in registry.known():
            registry.get(name).set_attr(attribute, value)


_attach(_EXPENSIVE, "expensive", True)
_attach(_ROW_MASTERS, "prologue", (0,))
