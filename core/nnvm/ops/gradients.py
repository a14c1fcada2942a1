"""The op attribute ``gradient`` of every differentiable op, family by family, written in existing ops.

Ops with integer or bool results need none.
"""

from nnvm.ops import gradients_elementwise as gradients_elementwise

__all__: list[str] = []
