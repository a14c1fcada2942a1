"""What graph passes know about ops: facts that concern no op's meaning, attached here family by family.

The passes in graph/passes read these attributes and no op's name.
"""

from __future__ import annotations

from nnvm.graph import op as registry
from nnvm.graph.passes.fold_scale_axis import Commutes, ScaleAxis

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


for _name in ("add", "subtract", "multiply", "divide"):
    _attach(_name, "algebra", _name)
_attach(_EXPENSIVE, "expensive", True)
_attach(_ROW_MASTERS, "prologue", (0,))

_LAYOUTS = ("data_layout", "kernel_layout", "out_layout", "channels")
_attach("conv1d conv2d conv3d", "scale_axis", ScaleAxis(1, 0, 1, "in", _LAYOUTS))
_attach("conv1d_transpose conv2d_transpose conv3d_transpose", "scale_axis", ScaleAxis(1, 1, 0, "out", _LAYOUTS))
_attach("dense", "scale_axis", ScaleAxis(-1, 0, 1, plain=("kernel_layout", "units")))
_attach("relu leaky_relu max_pool1d max_pool2d max_pool3d", "scale_axis", Commutes(positive=True))
_attach("avg_pool1d avg_pool2d avg_pool3d", "scale_axis", Commutes(positive=False))
