"""The one table of op attributes: every fact that a pass may know about an op, documented once.

Anybody may add an attribute (`declare`) and attach it to any op from any file (`Op.set_attr`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["ATTRIBUTES", "OpPattern", "declare"]


class OpPattern(enum.IntEnum):
    """How an op's output elements depend on its input elements; what may be fused follows from it."""

    ELEMWISE = 0
    """Output element i needs element i of each input, all of one shape."""
    BROADCAST = 1
    """Elementwise after broadcasting."""
    INJECTIVE = 2
    """Each output element needs a bounded number of input elements (transpose, slice, concat, take)."""
    REDUCE = 3
    """Reduces axes of its input; elementwise producers can be fused into it."""
    OUT_FUSABLE = 4
    """A master (convolution, matmul, softmax, ...): elementwise consumers can be fused to its output."""
    OPAQUE = 5
    """Nothing is known: never fused."""


@dataclass(frozen=True)
class Attribute:
    name: str
    signature: str
    doc: str


ATTRIBUTES: dict[str, Attribute] = {}


def declare(name: str, signature: str, doc: str) -> None:
    """Adds an attribute to the table; declaring one twice is a ValueError."""
    if name in ATTRIBUTES:
        raise ValueError(f"op attribute {name!r} is declared already: {ATTRIBUTES[name].doc}")
    ATTRIBUTES[name] = Attribute(name, signature, doc)


declare("infer_type", "(attrs, inputs: tuple[TensorType, ...]) -> tuple[TensorType, ...]",
        "Types of the outputs; ValueError says what does not fit.")  # fmt: skip
declare("type_relation", "TypeRelation (graph/type_relation.py)",
        "Equations between the types of inputs and outputs, for inference forward and backward.")  # fmt: skip
declare("pattern", "OpPattern", "How outputs depend on inputs, for fusion.")
declare("compute", "(attrs, inputs: list[te.Tensor], outputs: tuple[TensorType, ...]) -> list[te.Tensor]",
        "The algorithm as tensor expressions, one tensor per output.")  # fmt: skip
declare("build_tir", "(attrs, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], name) -> PrimFunc",
        "The loop nest of an op that is no tensor expression (scatter, sort, cumsum); it is never fused.")  # fmt: skip
declare("reference", "(attrs, *arrays) -> tuple of numpy arrays", "What the op means, in numpy.")
declare("gradient", "(node, out_grads: list[NodeEntry | None]) -> list[NodeEntry | None]",
        "Gradients of the inputs, from those of the outputs; None where there is none.")  # fmt: skip
declare("layout_rule", "LayoutRule (graph/passes/alter_op_layout.py)",
        "The layouts that the op can run in, and how it is made in them.")  # fmt: skip
declare("layout_cost", "(node, ways: Sequence[Way], machine: Machine) -> Sequence[float]",
        "Estimated seconds of the op in each way (graph/passes/layout_plan.py); absent: the same in all.")  # fmt: skip
declare("combine", "(nodes: Sequence[Node]) -> Sequence[NodeEntry] | None",
        "Nodes of the op on the same first input as one wider op (graph/passes/combine_parallel.py).")  # fmt: skip
declare("algorithm", "(node, is_fixed: Callable[[Node], bool], target) -> tuple[NodeEntry, ...] | None",
        "The op by another algorithm, where that is faster (graph/passes/choose_algorithm.py).")  # fmt: skip
declare("decompose", "(node) -> NodeEntry | None",
        "The op as others that together are faster (graph/passes/decompose.py).")  # fmt: skip
declare("inplace", "tuple[tuple[int, int], ...]", "(input, output) pairs that may share memory.")
declare("view", "bool", "The single output is the first input under another shape: contiguous, no copy.")
declare("scale_axis", "see graph/passes/fold_scale_axis.py", "How scales along an axis move through the op.")
declare("simplify_inference", "(node) -> NodeEntry | tuple[NodeEntry, ...]", "The op at inference, in simpler ops.")
declare("is_constant", "bool", "The outputs depend on attributes only.")
declare("linear_in", "int", "Index of the input that the op is linear in (for scale folding and gradients).")
declare("targets", "frozenset[str]", "Target kinds that can run the op; absent: all with a compute.")
declare("symbol_form", "(attrs) -> (str, attrs)",
        "The op and its params that NNVM's keyword attributes stand for in the Symbol API.")  # fmt: skip
declare("mutable_inputs", "tuple[int, ...]",
        "Inputs that training updates in place (running statistics): the auxiliary states of a Symbol.")  # fmt: skip
declare("sets_device", "bool", "The output's device is not that of the inputs: infer_type says which it is.")
declare("stateful", "bool", "Has effects or draws random numbers: never merged, removed or reordered.")
declare("flops", "(attrs, inputs, outputs) -> Dim", "Floating point operations, for reports and cost models.")
declare("host_call", "(attrs) -> callable(env: Mapping[str, int], *tensors) -> sequence of tensors",
        "How the frontend runs an OPAQUE node itself; results must not share memory with the arguments.")  # fmt: skip
declare("host_sizes", "(attrs) -> set[str]", "Names of the sizes that a host_call looks up; absent: none.")
declare(
    "library_call",
    "(attrs) -> callable(env: Mapping[str, int], *tensors) -> sequence of tensors | None",
    "How a vendor's library runs a node, where that is chosen (results share no memory); None: it cannot.",
)
declare(
    "library_into",
    "(attrs) -> callable(env: Mapping[str, int], *tensors)",
    "As ``library_call``, of a node that it can run, with the results' tensors last, into which it writes.",
)
declare(
    "any_order",
    "(attrs, inputs) -> bool",
    "Whether build_tir's loops may run in any order, and contributions to one element be combined as they come.",
)
declare(
    "running",
    "(attrs, inputs) -> str | None",
    "It combines running elements along attribute `axis`, by that operation; None: not in types that a GPU does.",
)
declare("permutation", "(attrs, rank) -> tuple[int, ...]", "Output axis i is input axis permutation[i]; nothing else.")
declare("algebra", "str", "Which operation of arithmetic it is (add, subtract, multiply, divide), for rewriting.")
declare("commutative", "bool", "Its two inputs may be swapped.")
declare("is_copy", "bool", "The output is the input.")
declare("is_cast", "bool", "The output is the input in another element type.")
declare("is_broadcast", "bool", "The output is the input, broadcast.")
declare("is_slice", "bool", "A range of each axis, by the attributes begin, end and step.")
declare("is_select", "bool", "Input 1 where input 0 holds, else input 2.")
declare("is_softmax", "bool", "Softmax along the attribute axis.")
declare("is_attention", "bool", "Attention with the attributes scale, causal and groups.")
declare("is_matmul", "bool", "A batched matrix product with the attributes transpose_a and transpose_b.")
declare("same_shape_is_identity", "bool", "Where output and input have one shape, they are equal.")
declare("broadcast_inputs", "tuple[int, ...]", "Inputs whose leading axes broadcast against the other inputs'.")
declare("trailing_axes", "(attrs, rank) -> (int, attrs) | None",
        "How many last axes of input 0 the op works on, and its attributes for any rank.")  # fmt: skip
declare("expensive", "bool", "Elementwise, but of many instructions (exp, tanh): not computed twice.")
declare("prologue", "tuple[int, ...]",
        "Inputs of a master that take cheap elementwise producers of the output's shape.")  # fmt: skip
declare("view_offset", "(attrs, inputs: tuple[TensorType, ...]) -> Dim | None",
        "Byte offset in the first input where the output is a contiguous part of it; else None.")  # fmt: skip
declare("joins", "(attrs, rank) -> int", "The axis along which the inputs follow each other and make up the output.")
declare("places", "(attrs, shapes of the inputs, strides of the output) -> sequence of (begin: Dim, strides)",
        "Where the inputs, which make up the output, lie in its memory, in elements.")  # fmt: skip
declare("strided_view", "(attrs, input: TensorType, strides) -> (begin: Dim, strides: tuple[Dim, ...])",
        "Where the output lies in the memory of an input with these strides, in elements.")  # fmt: skip
