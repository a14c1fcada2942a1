"""Sequence networks: recurrent classifiers, the BERT family, GPT-2 and one decode step of a Llama block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .vision import SelfAttention


class RecurrentClassifier(nn.Module):
    """Token ids ``[batch, tokens]`` to class scores, from the last step's state of a two-layer LSTM or GRU."""

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU], vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.cells = cell(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.cells(self.embed(tokens))
        y: torch.Tensor = self.head(states[:, -1])
        return y


def lstm_classifier() -> nn.Module:
    return RecurrentClassifier(nn.LSTM, 10_000, 256, 10)


def gru_classifier() -> nn.Module:
    return RecurrentClassifier(nn.GRU, 10_000, 256, 10)


def mlp() -> nn.Module:
    """Small enough that the cost of a call shows."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


class BertLayer(nn.Module):
    """Post-norm transformer block of BERT (Devlin et al., 2018)."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, 1e-12)
        self.expand = nn.Linear(width, hidden)
        self.project = nn.Linear(hidden, width)
        self.norm2 = nn.LayerNorm(width, 1e-12)

    def split(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        return x.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).reshape(x.shape)
        x = self.norm1(self.out(mixed) + x)
        y: torch.Tensor = self.norm2(self.project(F.gelu(self.expand(x))) + x)
        return y


class Bert(nn.Module):
    """Token ids and a mask of 0 and 1, both ``[batch, tokens]``, to hidden states and, with ``pooler``, a vector.

    With neither segments nor a pooler the parameters are DistilBERT's (Sanh et al., 2019).
    """

    def __init__(self, width: int, depth: int, heads: int, segments: bool = True, pooler: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, width)
        self.positions = nn.Embedding(512, width)
        self.segments = nn.Embedding(2, width) if segments else None
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads, 4 * width) for _ in range(depth))
        self.pooler = nn.Linear(width, width) if pooler else None
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]]
        if self.segments is not None:
            x = x + self.segments.weight[0]
        x = self.norm(x)
        attend = mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, attend)
        if self.pooler is None:
            return (x,)
        return x, torch.tanh(self.pooler(x[:, 0]))


def bert_base() -> nn.Module:
    return Bert(width=768, depth=12, heads=12)


def minilm() -> nn.Module:
    """The encoder of all-MiniLM-L6 (Wang et al., 2020)."""
    return Bert(width=384, depth=6, heads=12)


def distilbert() -> nn.Module:
    return Bert(width=768, depth=6, heads=12, segments=False, pooler=False)


class Gpt2Block(nn.Module):
    """Pre-norm causal block of GPT-2 (Radford et al., 2019), with its tanh form of GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.project = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), causal=True)
        y: torch.Tensor = x + self.project(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))
        return y


class Gpt2(nn.Module):
    """Token ids ``[batch, tokens]`` to the scores of the next token ``[batch, vocabulary]``: a prefill step."""

    def __init__(self, width: int, depth: int, heads: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Gpt2Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, 0.0, 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]]
        x = self.norm(self.blocks(x))[:, -1]
        return F.linear(x, self.words.weight)


def gpt2_prefill() -> nn.Module:
    return Gpt2(width=768, depth=12, heads=12, vocabulary=50257, context=1024)


class LlamaDecodeBlock(nn.Module):
    """One transformer block of TinyLlama's size, for one new token after ``past`` cached ones.

    ``x`` is ``[batch, 1, width]``, the caches ``[batch, key_heads, past, head]``. Returns the new hidden state and the
    token's own key and value, which a server appends to its cache. Grouped-query attention, rotary positions, RMSNorm
    and SwiGLU (Touvron et al., 2023).
    """

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, width: int, heads: int, key_heads: int, hidden: int, past: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head = heads, key_heads, width // heads
        self.norm1 = nn.RMSNorm(width, 1e-5)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * self.head, bias=False)
        self.value = nn.Linear(width, key_heads * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.RMSNorm(width, 1e-5)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        frequency = 10_000.0 ** (-torch.arange(0, self.head, 2, dtype=torch.float32) / self.head)
        angle = torch.cat([past * frequency, past * frequency])
        self.register_buffer("cosine", angle.cos(), persistent=False)
        self.register_buffer("sine", angle.sin(), persistent=False)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        low, high = x.chunk(2, -1)
        return x * self.cosine + torch.cat([-high, low], -1) * self.sine

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        batch, tokens, width = x.shape
        y = self.norm1(x)
        query = self.rotate(self.query(y).view(batch, tokens, self.heads, self.head).transpose(1, 2))
        key = self.rotate(self.key(y).view(batch, tokens, self.key_heads, self.head).transpose(1, 2))
        value = self.value(y).view(batch, tokens, self.key_heads, self.head).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            query, torch.cat([keys, key], 2), torch.cat([values, value], 2), enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), key, value


def llama_block_decode() -> nn.Module:
    return LlamaDecodeBlock(width=2048, heads=32, key_heads=4, hidden=5632, past=LLAMA_PAST)


LLAMA_PAST = 511
