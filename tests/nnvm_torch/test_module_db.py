"""PyTorch's module database through ``torch.compile(module, backend="nnvm")``: evaluation, and training with gradients.

A fixed sample; all of it: `python tests/nnvm_torch/opinfo_sweep.py --kinds eval,train`.
"""

import pytest
import torch
from opinfo_cases import cases, judge, samples

EVAL = ["nn.BatchNorm2d", "nn.Conv2d", "nn.ConvTranspose1d", "nn.Embedding", "nn.GELU", "nn.GRUCell", "nn.GroupNorm",
        "nn.LayerNorm", "nn.LSTM", "nn.MaxPool2d", "nn.MultiheadAttention", "nn.PReLU", "nn.Softmax"]  # fmt: skip
TRAIN = ["nn.BatchNorm2d", "nn.Bilinear", "nn.Conv1d", "nn.CrossEntropyLoss", "nn.InstanceNorm1d", "nn.Linear",
         "nn.MSELoss", "nn.ReLU", "nn.SmoothL1Loss"]  # fmt: skip


def check(name, kind, dtype=torch.float32):
    (case,) = [c for c in cases([dtype], [kind]) if c.name == name]
    found = [judge(s) for s in samples(case, 2)]
    assert [v.status for v in found if v.status != "skip"]
    assert not [v for v in found if v.status not in ("pass", "skip")]


@pytest.mark.parametrize("name", EVAL)
def test_evaluation(name):
    check(name, "eval")


@pytest.mark.parametrize("name", TRAIN)
def test_training(name):
    check(name, "train")


@pytest.mark.parametrize("name", ["nn.Linear", "nn.LayerNorm", "nn.Conv2d"])
def test_half_types(name):
    check(name, "eval", torch.bfloat16)
