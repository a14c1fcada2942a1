"""What of ONNX is left out, with the reason. The conformance run takes its list from here.

A case of ONNX's suite that has one of these is not expected to pass; like every model with them it is refused, by an
error that names the op, type or input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["ROUNDED_ONCE", "exclusion_of"]

_TEXT = "text: tensors of strings are no arrays of numbers, and no kernel reads them"
_SEQUENCE = "sequences that come in or go out, and optional values: their length is known at the call only"
_RANDOM = "random numbers: whoever draws others has other results"
_CLASSIC = "classic machine learning (trees, encoders, vectorisers), which this compiler of tensor programs does not do"
_TRAINING = "training: an optimiser's step or a gradient is made by this project's own training path"
_SIZE = "the number of results depends on the values of floats, so no memory can be planned for them"

#: Element types and kinds of values.
TYPES: Mapping[str, str] = {"string": _TEXT, "sequence_type": _SEQUENCE, "optional_type": _SEQUENCE}

#: Operators, with their domain where it is not ONNX's own.
OPERATORS: Mapping[str, str] = {
    **dict.fromkeys(("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch"), _TEXT),
    **dict.fromkeys(("Optional", "OptionalGetElement", "OptionalHasElement"), _SEQUENCE),
    **dict.fromkeys(("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                     "RandomUniformLike"), _RANDOM),
    **dict.fromkeys(("TfIdfVectorizer", "ai.onnx.ml.ArrayFeatureExtractor", "ai.onnx.ml.Binarizer",
                     "ai.onnx.ml.LabelEncoder", "ai.onnx.ml.TreeEnsemble"), _CLASSIC),
    **dict.fromkeys(("ai.onnx.preview.training.Adagrad", "ai.onnx.preview.training.Adam",
                     "ai.onnx.preview.training.Momentum", "ai.onnx.preview.training.Gradient"), _TRAINING),
    "ImageDecoder": "decoding of image files (JPEG, PNG, ...), which needs a library of its own",
    "NonMaxSuppression": _SIZE,
}  # fmt: skip

#: Single cases.
CASES: Mapping[str, str] = {
    **dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"),
                    "where the exact result is 0 the expected one is the noise of a float32 FFT, 1.9e-7, and the "
                    "tolerance 1e-7; the results here are below 1e-14"),
    **dict.fromkeys(("test_training_dropout", "test_training_dropout_default", "test_training_dropout_default_mask",
                     "test_training_dropout_mask"), _RANDOM),
    "test_unique_bfloat16_sorted_without_axis": "Unique of bfloat16 values, which are not sorted here",
}  # fmt: skip

#: Beginnings of the names of cases made of several steps whose expected half-type values are rounded after each step,
#: where a fused kernel rounds once: units in the last place by which results of half types may differ.
ROUNDED_ONCE: Mapping[str, int] = {"test_attention_": 2}


def exclusion_of(name: str, model: Any) -> str | None:
    """Why a case is left out; None where it is expected to pass."""
    if name in CASES:
        return CASES[name]
    return next((why for what in _used(model.graph) if (why := TYPES.get(what) or OPERATORS.get(what))), None)


def _used(graph: Any) -> Iterator[str]:
    """Kinds and element types of the inputs and outputs, and the ops, also of subgraphs."""
    import onnx

    for info in (*graph.input, *graph.output):
        kind = info.type.WhichOneof("value")
        if kind == "tensor_type":
            yield onnx.TensorProto.DataType.Name(info.type.tensor_type.elem_type).lower()
        elif kind is not None:
            yield kind
    for node in graph.node:
        yield node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        for a in node.attribute:
            for inner in ([a.g] if a.HasField("g") else [*a.graphs]):
                yield from _used(inner)
