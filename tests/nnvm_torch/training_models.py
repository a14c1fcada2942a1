"""Two networks to train: a ResNet-18 for small images, and a small GPT.

`python tests/nnvm_torch/training_models.py [NAME ...] [ROUNDS]` measures a training step of each, and of the networks
of `training_kinds.py`, against eager, on one thread.
"""

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
    """Prints how much faster than eager a training step is (forward with the loss, backward, all with SGD): medians of
    the ratios of steps in turn."""
    import nnvm_torch

    torch._dynamo.reset()
    nnvm_torch.reset()
    x, y = batch
    mine = copy.deepcopy(model)
    runs = {"eager": (model, model), "nnvm": (mine, torch.compile(mine, backend="nnvm"))}
    optimizers = {k: torch.optim.SGD(m.parameters(), 1e-3) for k, (m, _) in runs.items()}
    seconds = {k: [] for k in runs}
    for i in range(rounds + 3):
        for k in reversed(runs) if i % 2 else runs:
            optimizers[k].zero_grad()
            begin = time.perf_counter()
            loss = F.cross_entropy(runs[k][1](x).flatten(0, -2), y.flatten())
            middle = time.perf_counter()
            loss.backward()
            end = time.perf_counter()
            optimizers[k].step()
            seconds[k].append((middle - begin, end - middle, time.perf_counter() - begin))
    times = {k: torch.tensor(s[3:], dtype=torch.float64) for k, s in seconds.items()}
    eager, ours = (1e3 * times[k].median(0).values for k in runs)
    forward, backward, step = (times["eager"] / times["nnvm"]).median(0).values
    report = nnvm_torch.report()
    aten = sorted({f.op.removeprefix("aten.").removesuffix(".default") for f in report.fallbacks})
    print(f"{name:36} {step:.2f} x (forward {forward:.2f}, backward {backward:.2f}); eager {eager[2]:.1f} ms = "
          f"{eager[0]:.1f} + {eager[1]:.1f}, nnvm {ours[2]:.1f} = {ours[0]:.1f} + {ours[1]:.1f}; "
          f"{report.native_fraction:.1%} native, ATen: {', '.join(aten) or 'none'}", flush=True)  # fmt: skip


def networks():
    """Name -> (what makes the network, its batch)."""
    from training_kinds import Bags, Bert, Lstm, MobileNet, UNet, ViT, mlp

    def classes(*shape, count=10):
        return torch.randint(0, count, shape)

    return {
        "resnet-32": (ResNet18, lambda: images(0)),
        "resnet-112": (ResNet18, lambda: images(0, 4, 112)),
        "gpt-128": (Gpt, lambda: tokens(0)),
        "gpt-256": (lambda: Gpt(256, 4, 8, 1024), lambda: tokens(0, 4, 64, 1024)),
        "gpt-384": (lambda: Gpt(384, 6, 6, 4096, 128), lambda: tokens(0, 4, 128, 4096)),
        "mlp-256x1024": (mlp, lambda: (torch.randn(256, 1024), classes(256))),
        "mlp-32x1024": (mlp, lambda: (torch.randn(32, 1024), classes(32))),
        "mlp-64x128": (lambda: mlp(128), lambda: (torch.randn(64, 128), classes(64))),
        "vit-192": (ViT, lambda: images(0, 8, 64)),
        "bert-256": (Bert, lambda: tokens(0, 4, 128, 1024)),
        "mobilenet-96": (MobileNet, lambda: images(0, 8, 96)),
        "unet-96": (UNet, lambda: (torch.randn(4, 3, 96, 96), classes(4, 96, 96, count=4))),
        "lstm-128": (Lstm, lambda: (torch.randint(0, 512, (16, 32)), classes(16))),
        "bags": (Bags, lambda: (torch.randint(0, 5000, (256, 8, 10)), classes(256, count=2))),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = [a for a in sys.argv[1:] if not a.isdigit()]
    rounds = next((int(a) for a in sys.argv[1:] if a.isdigit()), 24)
    for name, (make, batch) in networks().items():
        if not wanted or name in wanted:
            torch.manual_seed(0)
            measure(name, make(), batch(), rounds)
