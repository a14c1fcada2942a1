"""Guards on sizes: at most two compilations a model, ranges that users declare reach the compiler, and what eager
refuses is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sympy
import torch
from import_capture import Capture, same
from torch import nn
from torch.utils._sympy.functions import FloorDiv, Mod

import nnvm_torch
from nnvm import dim
from nnvm_torch import weights
from nnvm_torch.sizes import _written_with_remainder

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    nnvm_torch.reset()
    torch.manual_seed(0)


def compilations() -> int:
    graphs = nnvm_torch.report().graphs
    assert not any(g.fallbacks or g.failure for g in graphs)
    return len(graphs)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [True, None])
def test_bert_of_any_batch_and_length(dynamic: bool | None) -> None:
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
                                     vocab_size=100)  # fmt: skip
    m = transformers.BertModel(config).eval()
    run = torch.compile(m, backend=nnvm_torch.nnvm, dynamic=dynamic)
    with torch.no_grad():
        for batch, length in ((2, 9), (3, 17), (2, 64), (5, 30), (7, 3), (5, 128), (16, 5), (6, 33)):
            ids, mask = torch.randint(0, 100, (batch, length)), (torch.rand(batch, length) < 0.8).long()
            mask[:, 0] = 1
            got, want = run(ids, attention_mask=mask), m(ids, attention_mask=mask)
            same(got.last_hidden_state, want.last_hidden_state, atol=1e-5, rtol=1e-4)
    assert compilations() == (1 if dynamic else 2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [True, None])
def test_gpt2_with_a_cache_that_grows(dynamic: bool | None) -> None:
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64)
    m = transformers.GPT2LMHeadModel(config).eval()
    run = torch.compile(m, backend=nnvm_torch.nnvm, dynamic=dynamic)
    with torch.no_grad():
        for batch, length in ((2, 5), (2, 9), (3, 3)) if dynamic else ((2, 5), (2, 9)):
            ids = torch.randint(0, 100, (batch, length))
            want = m(ids, use_cache=True)
            got = run(ids, use_cache=True) if dynamic else m(ids, use_cache=True)
            for _ in range(6):
                token = torch.randint(0, 100, (batch, 1))
                want = m(token, past_key_values=want.past_key_values, use_cache=True)
                got = run(token, past_key_values=got.past_key_values, use_cache=True)
                same(got.logits, want.logits, atol=1e-5, rtol=1e-4)
    # one for the prompt and one for all steps; without the prompt one for the first step and one for all others
    assert compilations() == 2


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [True, None])
def test_resnet_with_images_of_160_to_512(dynamic: bool | None) -> None:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    m = transformers.ResNetModel(config).eval()
    run = torch.compile(m, backend=nnvm_torch.nnvm, dynamic=dynamic)
    with torch.no_grad():
        for size in (160, 192, 224, 256, 320, 384, 512, 161, 233):
            x = torch.randn(1, 3, size, size)
            same(run(x).pooler_output, m(x).pooler_output, atol=1e-5, rtol=1e-4)
    assert compilations() == (1 if dynamic else 2)


def test_batches_of_images_on_both_sides_of_oneDNNs_bounds() -> None:
    m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(4, 8, 1)).eval()
    run = torch.compile(m, backend=nnvm_torch.nnvm, dynamic=True)
    with torch.no_grad():
        for batch, size in ((2, 16), (15, 12), (16, 12), (33, 8), (2, 128)):
            x = torch.randn(batch, 3, size, size + 1)
            same(run(x), m(x), atol=1e-5, rtol=1e-4)
    assert compilations() == 1


def test_an_image_that_is_smaller_than_the_kernel_is_eagers_error() -> None:
    m = nn.Conv2d(1, 2, 5).eval()
    run = torch.compile(m, backend=nnvm_torch.nnvm, dynamic=True)
    with torch.no_grad():
        x = torch.randn(2, 1, 9, 8)
        same(run(x), m(x), atol=1e-5, rtol=1e-4)
        for fn in (m, run):
            with pytest.raises(RuntimeError, match=r"(?i)kernel size"):
                fn(torch.randn(2, 1, 4, 8))


def test_channels_last_images_keep_their_format() -> None:
    m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval().to(memory_format=torch.channels_last)
    run = torch.compile(m, backend=nnvm_torch.nnvm, dynamic=True)
    with torch.no_grad():
        for size in (16, 25):
            x = torch.randn(2, 3, size, size).to(memory_format=torch.channels_last)
            same(run(x), m(x), atol=1e-5, rtol=1e-4)


def test_a_flattened_image_decides_its_size() -> None:
    m = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 5)).eval()
    run = torch.compile(m, backend=nnvm_torch.nnvm, dynamic=True)
    with torch.no_grad():
        for batch in (2, 5):
            x = torch.randn(batch, 3, 8, 8)
            same(run(x), m(x), atol=1e-5, rtol=1e-4)
        assert compilations() == 1
        for fn in (m, run):
            with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|same reduction dim"):
                fn(torch.randn(2, 3, 7, 7))


class Halved(nn.Module):
    """Halves an image twice and puts what is doubled again beside what was there: a network for segmentation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 8), (8, 16), (16, 16)))
        self.up = nn.ModuleList([nn.ConvTranspose2d(16, 16, 2, 2), nn.ConvTranspose2d(32, 8, 2, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(self.down[0](x))
        b = torch.relu(self.down[1](torch.max_pool2d(a, 2)))
        c = torch.cat([b, self.up[0](self.down[2](torch.max_pool2d(b, 2)))], 1)
        return torch.cat([a, self.up[1](c)], 1)


def test_sizes_that_are_halved_and_doubled_again_are_one_size() -> None:
    m = Halved().eval()
    run = torch.compile(m, backend=nnvm_torch.nnvm, dynamic=True)
    with torch.no_grad():
        for batch, height, width in ((2, 24, 16), (3, 8, 20), (2, 36, 52)):
            x = torch.randn(batch, 3, height, width)
            same(run(x), m(x), atol=1e-5, rtol=1e-4)
        assert compilations() == 1
        assert nnvm_torch.report().native_fraction == 1.0
        for fn in (m, run):
            with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
                fn(torch.randn(2, 3, 24, 18))


@pytest.mark.parametrize("equations,written", [
    ([("2 * (s // 2)", "s")], "2 * (s // 2)"), ([("2 * (s // 2) + 1", "s")], "2 * (s // 2) + 1"),
    ([("2 * (s // 4)", "s // 2"), ("2 * (s // 2)", "s")], "4 * (s // 4)"), ([("s % 6", "2")], "6 * (s // 6) + 2"),
    ([("3 * (s // 3)", "s"), ("s % 4", "2")], "12 * (s // 12) + 6"), ([("2 * (s // 4)", "s // 2")], None),
    ([("s // 2", "7")], None), ([("s", "16")], None), ([("floor(s, mod(s, 3))", "2")], None),
    ([("s % 2", "1"), ("mod(s, mod(s, 3))", "0")], "2 * (s // 2) + 1"),
])  # fmt: skip
def test_sizes_are_written_with_the_remainder_that_guards_leave(equations: Any, written: str | None) -> None:
    def parsed(text: str) -> Any:
        s = sympy.Symbol("s0", integer=True, positive=True)
        text = re.sub(r"\(?s // (\d+)\)?", r"floor(s, \1)", text)
        text = re.sub(r"s % (\d+)", r"mod(s, \1)", text)
        return eval(text, {"s": s, "floor": FloorDiv, "mod": Mod})

    found = _written_with_remainder("s0", [sympy.Eq(parsed(a), parsed(b), evaluate=False) for a, b in equations])
    assert found == (None if written is None else eval(written, {"s": dim.symbol("s0")}))


def test_compilations_of_one_module_share_packed_weights() -> None:
    m = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).eval()
    weights.drop_prepared()
    run, seen = torch.compile(m, backend=nnvm_torch.nnvm), []
    with torch.no_grad():
        for rows in (8, 16, 32):
            x = torch.randn(rows, 64)
            same(run(x), m(x), atol=1e-5, rtol=1e-4)
            seen.append((compilations(), weights.prepared_bytes(), len(weights._shared)))
    packed = 2 * 64 * 256 * 4
    assert seen == [(1, packed, 2), (2, packed, 2), (2, packed, 2)]


def test_a_declared_range_reaches_the_compiler() -> None:
    def imported(low: int | None, high: int | None) -> Any:
        torch._dynamo.reset()
        capture, x = Capture(), torch.randn(6, 8)
        torch._dynamo.mark_dynamic(x, 0, min=low, max=high)
        with torch.no_grad():
            torch.compile(lambda x: (x * 2).softmax(-1), backend=capture)(x)
        return capture.graphs[0].graph.attrs["dim_ranges"]

    assert [r[1:] for r in imported(4, 64)] == [(4, 64)]
    assert [r[1:] for r in imported(None, None)] == [(2, None)]


def test_sizes_within_a_declared_range_are_one_compilation_and_others_are_not_run_with_it() -> None:
    m = nn.Sequential(nn.Linear(8, 16), nn.ReLU()).eval()
    run = torch.compile(m, backend=nnvm_torch.nnvm)
    with torch.no_grad():
        for rows in (6, 4, 17, 64):
            x = torch.randn(rows, 8)
            torch._dynamo.mark_dynamic(x, 0, min=4, max=64)
            same(run(x), m(x), atol=1e-5, rtol=1e-4)
        assert compilations() == 1
        for rows in (3, 65):
            x = torch.randn(rows, 8)
            same(run(x), m(x), atol=1e-5, rtol=1e-4)
        assert compilations() > 1
