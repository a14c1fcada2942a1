"""Two networks to train: a ResNet-18 for small images, and a small GPT. `python tests/nnvm_torch/training_models.py`
measures a training step of each against eager, on one thread."""

import copy
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["Gpt", "ResNet18", "images", "tokens"]


class Block(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.short = nn.Sequential()
        if stride != 1 or inputs != width:
            self.short = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.short(x))


class ResNet18(nn.Module):
    """[batch, 3, H, W] -> [batch, classes]; `width` 64 is the published one."""

    def __init__(self, width=64, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        blocks, inputs = [], width
        for i in range(4):
            for stride in (1 if i == 0 else 2, 1):
                blocks.append(Block(inputs, width << i, stride))
                inputs = width << i
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class GptBlock(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (s.view(n, t, self.heads, -1).transpose(1, 2) for s in self.qkv(self.norm1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(n, t, c)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Gpt(nn.Module):
    """Token ids [batch, tokens] -> scores [batch, tokens, vocabulary]."""

    def __init__(self, width=128, depth=4, heads=4, vocabulary=512, context=64, dropout=0.0):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GptBlock(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def images(seed, batch=8, size=32, classes=10):
    """Images whose class can be learnt: a pattern of the class under noise."""
    patterns = torch.randn(classes, 3, size, size, generator=torch.Generator().manual_seed(77))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (batch,), generator=g)
    return patterns[y] + torch.randn(batch, 3, size, size, generator=g), y


def tokens(seed, batch=4, length=64, vocabulary=512):
    """Sequences in which each token follows from the one before, mostly."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.empty(batch, length + 1, dtype=torch.int64)
    ids[:, 0] = torch.randint(0, vocabulary, (batch,), generator=g)
    for i in range(length):
        jump = torch.rand(batch, generator=g) < 0.1
        ids[:, i + 1] = torch.where(
            jump, torch.randint(0, vocabulary, (batch,), generator=g), (ids[:, i] * 7 + 3) % vocabulary
        )
    return ids[:, :-1], ids[:, 1:]


def measure(name, model, batch, rounds):
    """Median seconds of a training step (forward, backward, SGD), eager and nnvm in turn."""
    import nnvm_torch

    nnvm_torch.reset()
    x, y = batch
    mine = copy.deepcopy(model)
    runs = {"eager": (model, model), "nnvm": (mine, torch.compile(mine, backend="nnvm"))}
    optimizers = {k: torch.optim.SGD(m.parameters(), 1e-3) for k, (m, _) in runs.items()}
    seconds = {k: [] for k in runs}
    for _ in range(rounds + 2):
        for k, (_, call) in runs.items():
            begin = time.perf_counter()
            optimizers[k].zero_grad()
            F.cross_entropy(call(x).flatten(0, -2), y.flatten()).backward()
            optimizers[k].step()
            seconds[k].append(time.perf_counter() - begin)
    eager, ours = (sorted(s[2:])[rounds // 2] for s in seconds.values())
    report = nnvm_torch.report()
    aten = sorted({f.op for f in report.fallbacks})
    times = f"eager {1e3 * eager:.1f} ms, nnvm {1e3 * ours:.1f} ms, {eager / ours:.2f} x"
    print(f"{name}: {times}, {report.native_fraction:.1%} native, ATen: {aten}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    measure("ResNet-18, 8 images of 32", ResNet18(), images(0), rounds)
    measure("ResNet-18, 4 images of 112", ResNet18(), images(0, 4, 112), rounds)
    measure("GPT, 4 x 64 tokens, 4 layers of 128", Gpt(), tokens(0), rounds)
    measure("GPT, 4 x 64 tokens, 4 layers of 256", Gpt(256, 4, 8, 1024), tokens(0, 4, 64, 1024), rounds)
    measure("GPT, 4 x 128 tokens, 6 layers of 384", Gpt(384, 6, 6, 4096, 128), tokens(0, 4, 128, 4096), rounds)
