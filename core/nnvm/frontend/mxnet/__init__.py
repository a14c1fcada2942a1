"""Models of MXNet: a symbol in JSON and its ``.params``.

>>> from nnvm.frontend.mxnet import from_mxnet
>>> graph, params, outputs = from_mxnet(
...     "net-symbol.json", "net-0000.params", shapes={"data": ("batch", 3, 224, 224)}
... )  # doctest: +SKIP
"""

from nnvm.frontend.mxnet.document import SymbolError
from nnvm.frontend.mxnet.importer import ImportedSymbol, RefusedNode, UnsupportedSymbol, from_mxnet
from nnvm.frontend.mxnet.params import ParamsError, load_params

__all__ = [
    "ImportedSymbol", "ParamsError", "RefusedNode", "SymbolError", "UnsupportedSymbol", "from_mxnet", "load_params",
]  # fmt: skip
