"""Whole models through `torch.compile` for a GPU, kernel by kernel in Triton's interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import nnvm_torch
from nnvm_torch.fx_importer import import_graph

pytestmark = pytest.mark.triton

GPU = {"target": "cuda -arch=sm_90", "strict": True}


def compiled(model: Callable[..., Any], **more: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    nnvm_torch.reset()  # the report speaks of this model alone
    return torch.compile(model, backend="nnvm", options={**GPU, **more})


def check(model: nn.Module, *args: Any, tolerance: float = 2e-5, **kwargs: Any) -> None:
    with torch.no_grad():
        expected, got = model(*args, **kwargs), compiled(model)(*args, **kwargs)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


class ResNetBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + x)


def test_resnet_block() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.MaxPool2d(3, 2, 1), ResNetBlock(16),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval()  # fmt: skip
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.uniform_(-1, 1), m.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    check(model, torch.randn(2, 3, 32, 32))


def test_bert_layer() -> None:
    torch.manual_seed(1)
    config = transformers.BertConfig(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128,
                                     vocab_size=100)  # fmt: skip
    model = transformers.BertModel(config).eval()
    ids, mask = torch.randint(0, 100, (2, 17)), torch.ones(2, 17, dtype=torch.long)
    mask[1, 9:] = 0
    with torch.no_grad():
        expected, got = model(ids, attention_mask=mask), compiled(model)(ids, attention_mask=mask)
    torch.testing.assert_close(got[0], expected[0], rtol=2e-5, atol=2e-5)
    assert nnvm_torch.report().native_fraction == 1


def test_gpt_block_with_cache() -> None:
    torch.manual_seed(2)
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=90, n_positions=64)
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 90, (1, 11))
    with torch.no_grad():
        whole = model(ids).logits
        fast = compiled(model, strict=False)
        first = fast(ids[:, :8], use_cache=True)
        second = fast(ids[:, 8:9], past_key_values=first.past_key_values, use_cache=True)
    torch.testing.assert_close(first.logits, whole[:, :8], rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(second.logits, whole[:, 8:9], rtol=2e-5, atol=2e-5)


def test_mobilenet_block() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(8, 24, 1), nn.Hardswish(), nn.Conv2d(24, 24, 3, 2, 1, groups=24), nn.SiLU(),
                          nn.Conv2d(24, 12, 1)).eval()  # fmt: skip
    check(model, torch.randn(2, 8, 14, 15))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32)).to(dtype).eval()
    x = torch.randn(20, 48).to(dtype)
    with torch.no_grad():
        right = model.float()(x.float())
        model.to(dtype)
        error = (model(x).float() - right).abs().max()
        got = (compiled(model)(x).float() - right).abs().max()
    assert got <= 2 * error + 1e-3


def test_sizes_that_change() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.LayerNorm(40), nn.Linear(40, 8), nn.Softmax(-1)).eval()
    torch._dynamo.reset()
    fast = torch.compile(model, backend="nnvm", dynamic=True, options=GPU)
    with torch.no_grad():
        for rows in (7, 33, 2, 128):
            x = torch.randn(rows, 24)
            torch.testing.assert_close(fast(x), model(x), rtol=2e-5, atol=2e-5)


def test_gradients() -> None:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 4))
    x, target = torch.randn(10, 16), torch.randint(0, 4, (10,))
    grads = []
    for run in (model, compiled(model, strict=False)):
        model.zero_grad()
        F.cross_entropy(run(x), target).backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)


def test_ops_without_a_kernel_run_in_aten() -> None:
    def model(x: torch.Tensor, i: torch.Tensor) -> Sequence[torch.Tensor]:
        y = (x * 2).cumsum(1)
        values, places = y.sort(1)
        top = torch.topk(x.relu() + 1, 3).values
        return values + 1, places, top * 2, torch.zeros(6, 8).scatter_add(1, i, x) - 1, x.index_put((i[0],), x[:8] * 3)

    x = torch.randn(8, 8)
    i = torch.randperm(8).expand(6, 8).contiguous()
    for got, expected in zip(compiled(model)(x, i), model(x, i), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)


def test_every_op_runs_on_a_gpu() -> None:
    """In a kernel of ours, or in ATen. In a process without the ops of other tests."""
    script = "import nnvm.ops, nnvm_torch; from nnvm.graph.op import get, known; " \
             "print(*(f'{n}:{get(n).has(\"compute\") or get(n).has(\"host_call\")}' for n in known()))"  # fmt: skip
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    runs = dict(x.split(":") for x in found)
    structure = {"variable", "constant", "group", "device_copy"}
    assert len(runs) > 200
    assert not {name for name, where in runs.items() if where == "False"} - structure


def test_moments_are_in_float64_on_a_cpu_only() -> None:
    """As in eager; the tensors of a graph on a GPU are stood in for."""
    for device, wide in (("cpu", "float64"), ("cuda", "float32")):
        with FakeTensorMode():
            x = torch.empty(3, 50, device=device, dtype=torch.float16)
            traced = make_fx(lambda x: torch.ops.aten.var_mean.correction(x, [1], correction=1))(x)
        nodes = import_graph(traced).graph.nodes
        moments = [str(n[0].type.dtype) for n in nodes if n.op is not None and n.op.name in ("variance", "mean")]
        assert moments == [wide] * 2


def test_searches_and_polynomials_run_in_aten_between_kernels() -> None:
    def model(edges: torch.Tensor, x: torch.Tensor) -> Sequence[torch.Tensor]:
        found = torch.searchsorted(edges.exp(), x * 2, right=True) + 1
        below = torch.bucketize(x, edges[0]) * 3
        return found, below, torch.special.shifted_chebyshev_polynomial_t(x.sigmoid(), 5) * 2

    edges, x = torch.randn(3, 17).sort(1).values, torch.randn(3, 40)
    for got, expected in zip(compiled(model)(edges, x), model(edges, x), strict=True):
        torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-5)
    assert nnvm_torch.report().kernels


def test_views_strides_and_mutation() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(x.t())
        return torch.cat([x[:, ::2], y[:, 1:5].relu()], 1).permute(1, 0)

    base = torch.randn(12, 9)
    x, y = base[:, :6].t(), torch.randn(12, 6)
    expected_y = y.clone()
    expected = model(x, expected_y) if x.shape[0] == y.shape[0] else None
    assert expected is None  # the shapes below are the ones that fit
    x, y = torch.randn(6, 12).t()[:6], torch.randn(6, 6)
    kept = y.clone()
    expected = model(x, kept)
    got = compiled(model)(x, y)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(y, kept, rtol=1e-6, atol=1e-6)
    assert got.stride() == expected.stride()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_run_in_aten(kind: Any) -> None:
    torch.manual_seed(0)
    model, x = kind(3, 5, bidirectional=True).eval(), torch.randn(4, 2, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-5, atol=1e-6)


def test_joined_results_of_aten() -> None:
    """What ATen makes lies where it made it, and is copied to where it is joined."""

    def model(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parts = [x.sort()[0], y.cumsum(0), y.topk(3)[0]]
        return torch.cat(parts, 1), torch.stack([x.sort(0)[0], (x + 1).sort(1)[0]]), torch.cat([y.cumsum(1), y + 1])

    x, y = torch.randn(4, 5), torch.randn(4, 6)
    for got, expected in zip(compiled(model)(x, y), model(x, y)):
        torch.testing.assert_close(got, expected)


def test_index_out_of_bounds_raises() -> None:
    table = nn.Embedding(10, 4)
    with torch.no_grad(), pytest.raises(IndexError):
        compiled(table)(torch.tensor([3, 10]))


def test_wrong_targets() -> None:
    for target, words in (("cuda -arch=9", "sm_NN"), ("gpu", "must begin with"), (3, "must begin with")):
        with pytest.raises(ValueError, match=words):
            nnvm_torch.Options.make(target=target)
