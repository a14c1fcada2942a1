"""The graph passes. Importing this package registers them; `compiler/pipeline.py` says in which order they run."""

from nnvm.graph.passes import (
    alter_op_layout,
    canonicalize_matmul,
    canonicalize_reshape,
    choose_algorithm,
    combine_parallel,
    decompose,
    elide_copies,
    eliminate_common,
    eliminate_dead,
    eliminate_identity,
    finish_prepare,
    fold_constant,
    fold_scale_axis,
    gradient,
    graph_fuse,
    infer_shape,
    infer_type,
    own_inputs,
    own_outputs,
    place_device,
    plan_memory,
    precompute_prune,
    replace_op,
    save_json,
    simplify_inference,
)

__all__ = [
    "alter_op_layout", "canonicalize_matmul", "canonicalize_reshape", "choose_algorithm", "combine_parallel",
    "decompose", "elide_copies", "eliminate_common", "eliminate_dead", "eliminate_identity", "finish_prepare",
    "fold_constant", "fold_scale_axis", "gradient", "graph_fuse", "infer_shape", "infer_type", "own_inputs",
    "own_outputs", "place_device", "plan_memory", "precompute_prune", "replace_op", "save_json", "simplify_inference",
]  # fmt: skip
