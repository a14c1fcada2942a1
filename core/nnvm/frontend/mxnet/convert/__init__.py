"""MXNet's operators, by family."""

from nnvm.frontend.mxnet.convert import (  # noqa: F401  each registers its family
    elementwise,
    indexing,
    layers,
    recurrent,
    reduction,
    shape,
)

__all__: list[str] = []
