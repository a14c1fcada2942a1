"""ATen operators to nnvm operators: one small function each, by family, in one table."""

from nnvm_torch.convert import (  # noqa: F401  each registers its family
    attention,
    conv,
    creation,
    elementwise,
    indexing,
    matmul,
    norm,
    pooling,
    reduction,
    shape,
    shape_edit,
    strided,
)
from nnvm_torch.convert.table import TABLE, Context, NeedsMemory, Unsupported

__all__ = ["TABLE", "Context", "NeedsMemory", "Unsupported"]
