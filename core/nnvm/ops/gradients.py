"""The op attribute ``gradient`` of every differentiable op, family by family, written in existing ops.

Ops with integer or bool results need none.
"""

from nnvm.ops import gradients_conv as gradients_conv
from nnvm.ops import gradients_elementwise as gradients_elementwise
from nnvm.ops import gradients_forms as gradients_forms
from nnvm.ops import gradients_nn as gradients_nn
from nnvm.ops import gradients_pool as gradients_pool
from nnvm.ops import gradients_reduce as gradients_reduce
from nnvm.ops import gradients_special as gradients_special
from nnvm.ops import gradients_transform as gradients_transform

__all__: list[str] = []
