"""Operator definitions by family. Importing this package registers all of them."""

from nnvm.ops import (
    attention,
    barrier,
    bessel_functions,
    bitcast,
    broadcast,
    create,
    elemwise,
    gamma_functions,
    im2col,
    index,
    interleave,
    layout_transform,
    nn_conv,
    nn_conv_transpose,
    nn_dense,
    nn_norm,
    nn_norm_gradient,
    nn_pool,
    nn_winograd,
    nnvm_forms,
    normal_functions,
    orthogonal,
    pad,
    recurrent,
    reduce,
    resize,
    running,
    scan_sort,
    scatter,
    search,
    transform,
    winograd_choice,
)
from nnvm.ops import gradients as gradients  # after the ops it differentiates
from nnvm.ops import graph_rules as graph_rules  # last: it attaches facts to the ops above
from nnvm.ops import layer_relations as layer_relations
from nnvm.ops import layer_weights as layer_weights
from nnvm.ops import nnvm_names as nnvm_names
from nnvm.ops import nnvm_relations as nnvm_relations
from nnvm.ops import type_relations as type_relations

__all__ = [
    "attention", "barrier", "bessel_functions", "bitcast", "broadcast", "create", "elemwise", "gamma_functions",
    "im2col", "index", "interleave", "layout_transform", "nn_conv", "nn_conv_transpose", "nn_dense", "nn_norm",
    "nn_norm_gradient", "nn_pool", "nn_winograd", "nnvm_forms", "normal_functions", "orthogonal", "pad", "recurrent",
    "reduce", "resize", "running", "scan_sort", "scatter", "search", "transform", "winograd_choice",
]  # fmt: skip
