"""The op that orders work: a value that is there only once others are computed.

It costs nothing (its output is its first input's memory), and no pass looks through it, so that what is computed from
it is not the same as what is computed from its input: recomputed values stay recomputed.
"""

from __future__ import annotations

from nnvm.graph.op import register
from nnvm.graph.op_attrs import OpPattern
from nnvm.ops.bodies import over

__all__: list[str] = []

register(
    "optimization_barrier", inputs=["data", "*after"], doc="data, once all of `after` are computed.",
    infer_type=lambda attrs, t: (t[0],), pattern=OpPattern.INJECTIVE, view_offset=lambda attrs, t: 0,
    compute=lambda attrs, inputs, outputs: [over(outputs[0].shape, "barrier", lambda *i: inputs[0][i])],
    reference=lambda attrs, x, *after: (x,),
    gradient=lambda node, out_grads: [out_grads[0], *(None for _ in node.inputs[1:])],
)  # fmt: skip
