"""PyTorch's operator database through ``torch.compile(op, backend="nnvm")``, against eager and float64.

A fixed sample of operators; all of them: `python tests/nnvm_torch/opinfo_sweep.py`.
"""

import warnings

import pytest
import torch
from opinfo_cases import cases, judge, samples

ONE_OF = {c.name: c.info for c in cases([torch.float32], ["op"])}

#: Operators that must compile with no fallback node.
NATIVE = [
    "add", "atan2", "bmm", "cat", "clamp", "cumsum", "diff", "div.floor_rounding", "exp", "flip", "fmod", "gather",
    "index_select", "logsumexp", "masked_fill", "mean", "nn.functional.avg_pool2d", "nn.functional.conv2d",
    "nn.functional.conv_transpose2d", "nn.functional.gelu", "nn.functional.group_norm", "nn.functional.layer_norm",
    "nn.functional.linear", "nn.functional.max_pool2d", "nn.functional.pad.reflect", "nn.functional.softplus",
    "outer", "roll", "scatter_add", "softmax", "stack", "sum", "tril", "var", "var_mean", "where",
]  # fmt: skip
#: Operators that ATen runs, in part or as a whole.
FALLBACK = ["fft.fft", "linalg.inv"]
#: Operators of other element types.
TYPED = [
    ("add", torch.bool), ("sum", torch.bool), ("cumsum", torch.int64), ("sort", torch.int64), ("topk", torch.bfloat16),
    ("softmax", torch.bfloat16), ("mean", torch.float16), ("nn.functional.layer_norm", torch.float16),
    ("bitwise_xor", torch.bool), ("floor_divide", torch.int64), ("mul", torch.bfloat16),
]  # fmt: skip


def verdicts(name, dtype, count=2):
    """The verdicts on some calls of an operator; at least one can be judged, and none is bad."""
    (case,) = [c for c in cases([dtype], ["op"], None) if c.name == name]
    found = [judge(s) for s in samples(case, count)]
    assert [v.status for v in found if v.status != "skip"]
    assert not [v for v in found if v.status not in ("pass", "skip")]
    return found


@pytest.mark.parametrize("name", NATIVE)
def test_native(name):
    assert not [v.fallbacks for v in verdicts(name, torch.float32) if v.fallbacks]


@pytest.mark.parametrize("name", FALLBACK)
def test_fallback(name):
    assert [v.fallbacks for v in verdicts(name, torch.float32) if v.fallbacks]


@pytest.mark.parametrize(("name", "dtype"), TYPED)
def test_other_element_types(name, dtype):
    verdicts(name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF)
def test_every_operator(name):
    (case,) = [c for c in cases([torch.float32], ["op"]) if c.name == name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples(case, 4):
            assert judge(sample).status in ("pass", "skip")
