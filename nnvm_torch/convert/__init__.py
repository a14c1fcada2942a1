"""ATen operators to nnvm operators: one small function each, by family, in one table."""

from nnvm_torch.convert import (  # noqa: F401  each registers its family
    activation,
    attention,
    conv,
    creation,
    elementwise,
    indexing,
    matmul,
    norm,
    order,
    placing,
    pooling,
    recurrent,
    reduction,
    shape,
    shape_edit,
    special,
    strided,
)
from nnvm_torch.convert.table import TABLE, Context, NeedsMemory, Unsupported, converter_of

__all__ = ["TABLE", "Context", "NeedsMemory", "Unsupported", "converter_of"]
