"""The compiler. By NNVM's names: `build`, `build_config`, `optimize`, and parameters as bytes.

The module ``nnvm.compiler.build`` is imported by its own name; the attribute ``build`` of this package is the function.
"""

from nnvm.compiler import graph_attr, graph_util
from nnvm.compiler.build_module import build, build_config, optimize
from nnvm.runtime.param_dict import load_param_dict, save_param_dict

__all__ = ["build", "build_config", "graph_attr", "graph_util", "load_param_dict", "optimize", "save_param_dict"]
