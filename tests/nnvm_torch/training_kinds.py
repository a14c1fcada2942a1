"""Networks of further kinds whose training steps `training_models.py` measures: perceptrons, encoders of images and of
text, depthwise and transposed convolutions, recurrent networks, bags of embeddings."""

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["Bags", "Bert", "Lstm", "MobileNet", "UNet", "ViT", "mlp"]


def mlp(width=1024, depth=3, classes=10):
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, classes))


def encoder(width, depth, heads, norm_first):
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


class ViT(nn.Module):
    """[batch, 3, size, size] -> [batch, classes]"""

    def __init__(self, size=64, patch=8, width=192, depth=4, heads=3, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.encoder, self.norm = encoder(width, depth, heads, True), nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.encoder(x))[:, 0])


class Bert(nn.Module):
    """Token ids [batch, tokens] -> scores [batch, tokens, vocabulary]; layer norms after the sums."""

    def __init__(self, width=256, depth=4, heads=4, vocabulary=1024, context=128):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.norm, self.encoder = nn.LayerNorm(width), encoder(width, depth, heads, False)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, ids):
        x = self.norm(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))
        return self.head(self.encoder(x))


def conv_norm(inputs, outputs, kernel=3, stride=1, groups=1, act=nn.ReLU6):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), act())


class Inverted(nn.Module):
    def __init__(self, inputs, outputs, stride, wider):
        super().__init__()
        hidden = inputs * wider
        self.convs = nn.Sequential(
            conv_norm(inputs, hidden, 1), conv_norm(hidden, hidden, 3, stride, hidden),
            conv_norm(hidden, outputs, 1, act=nn.Identity),
        )  # fmt: skip
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.convs(x) if self.adds else self.convs(x)


class MobileNet(nn.Module):
    """[batch, 3, H, W] -> [batch, classes], as MobileNet v2 with fewer layers."""

    def __init__(self, classes=10):
        super().__init__()
        widths = ((16, 1, 1), (24, 2, 6), (24, 1, 6), (32, 2, 6), (32, 1, 6), (64, 2, 6), (64, 1, 6), (96, 1, 6))
        blocks, inputs = [conv_norm(3, 32, 3, 2)], 32
        for outputs, stride, wider in widths:
            blocks.append(Inverted(inputs, outputs, stride, wider))
            inputs = outputs
        self.blocks = nn.Sequential(*blocks, conv_norm(inputs, 256, 1))
        self.head = nn.Linear(256, classes)

    def forward(self, x):
        return self.head(self.blocks(x).mean((2, 3)))


class UNet(nn.Module):
    """[batch, 3, H, W] -> [batch, H, W, classes]; up again by transposed convolutions."""

    def __init__(self, width=16, classes=4):
        super().__init__()
        widths = [width << i for i in range(4)]

        def double(a, b):
            return nn.Sequential(conv_norm(a, b, act=nn.ReLU), conv_norm(b, b, act=nn.ReLU))

        self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.join = nn.ModuleList(double(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        kept = []
        for i, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for up, join, skip in zip(self.up, self.join, kept[-2::-1]):
            x = join(torch.cat([skip, up(x)], 1))
        return self.head(x).permute(0, 2, 3, 1)


class Lstm(nn.Module):
    """Token ids [batch, tokens] -> [batch, classes]"""

    def __init__(self, width=128, layers=2, vocabulary=512, classes=10):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, ids):
        return self.head(self.lstm(self.tokens(ids))[0][:, -1])


class Bags(nn.Module):
    """A recommender: bags of items [batch, fields, items] -> [batch, classes]"""

    def __init__(self, fields=8, width=32, items=5000, hidden=256, classes=2):
        super().__init__()
        self.fields = nn.ModuleList(nn.EmbeddingBag(items, width, mode="sum") for _ in range(fields))
        self.head = nn.Sequential(
            nn.Linear(fields * width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, ids):
        return self.head(torch.cat([bag(ids[:, i]) for i, bag in enumerate(self.fields)], 1))
