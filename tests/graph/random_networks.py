"""Pieces of networks, for random graphs: what the compiler looks for, as networks write it."""

from __future__ import annotations

from nnvm.graph import NodeEntry
from tests.graph.build import op, param, scalar
from tests.graph.random_values import CHANNELS, SIZES, Values

__all__ = ["Networks"]


class Networks(Values):
    """Each step adds at most a few values."""

    def conv(self) -> None:
        x = self.floats(4) or self.image()
        c = x.shape[1]
        k = self.rng.choice([(1, 1), (3, 3), (3, 3), (1, 3), (5, 5), (2, 2)])
        depthwise = self.rng.random() < 0.25
        groups = c if depthwise else self.rng.choice([1, 1, 1, 2]) if c % 2 == 0 else 1
        out = c * self.rng.choice([1, 1, 2]) if depthwise else self.rng.choice(CHANNELS) * groups
        pad = ((k[0] // 2, (k[0] - 1) // 2), (k[1] // 2, k[1] // 2)) if self.rng.random() < 0.8 else ((0, 1), (1, 0))
        attrs = {"strides": self.rng.choice([(1, 1), (1, 1), (2, 2), (1, 2)]), "padding": pad, "groups": groups,
                 "dilation": self.rng.choice([(1, 1)] * 4 + [(2, 1)])}  # fmt: skip
        e = op("conv2d", self.calm(x), self.weight(out, c // max(groups, 1), *k), *self.maybe_bias(out), **attrs)
        e = self.norm_relu(e)
        self.add(e)
        if self.rng.random() < 0.4 and (same := self.pick(lambda v: v.dtype == "float32" and v.shape == e.type.shape)):
            self.add(self.activate(op("add", *self.shuffled(e, same.entry))))

    def norm_relu(self, e: NodeEntry) -> NodeEntry:
        c = e.type.shape[1]
        if self.rng.random() < 0.5:
            variance = op("add", op("square", self.weight(c)), scalar(0.5))
            e = op("batch_norm", e, self.weight(c), self.weight(c), self.weight(c), variance)
        elif self.rng.random() < 0.3:
            e = op(self.rng.choice(["add", "multiply"]), e, self.weight(c, *[1] * (len(e.type.shape) - 2)))
        return self.activate(e)

    def activate(self, e: NodeEntry) -> NodeEntry:
        if self.rng.random() < 0.25:
            return e
        return op(self.rng.choice(["relu", "relu", "tanh", "hardswish", "silu", "sigmoid"]), e)

    def other_conv(self) -> None:
        kind = self.rng.choice(["conv1d", "conv2d_transpose", "conv1d_transpose", "conv3d"])
        spatial = {"conv1d": 1, "conv1d_transpose": 1, "conv2d_transpose": 2, "conv3d": 3}[kind]
        size = self.rng.choice([3, 4, 5])
        x = self.floats(spatial + 2)
        x = x or self.new_input(self.rng.choice([1, 2]), self.rng.choice(CHANNELS[:6]), *[size] * spatial)
        c, out, k = x.shape[1], self.rng.choice(CHANNELS[:6]), self.rng.choice([1, 2, 3])
        pair = (c, out) if "transpose" in kind else (out, c)
        e = op(kind, self.calm(x), self.weight(*pair, *[k] * spatial), *self.maybe_bias(out),
               strides=(self.rng.choice([1, 2]),) * spatial, padding=((k // 2, k // 2),) * spatial)  # fmt: skip
        self.add(self.norm_relu(e))

    def pool(self) -> None:
        x = self.floats(4) or self.image()
        kind = self.rng.randrange(5)
        if kind == 3:
            adaptive = self.rng.random() < 0.5
            self.add(op("adaptive_avg_pool2d", x.entry, output_size=(2, 3)) if adaptive
                     else op("global_avg_pool2d", x.entry))  # fmt: skip
            return
        k = self.rng.choice([(2, 2), (3, 3), (3, 2)])
        padding = ((k[0] // 2, k[0] // 2), (k[1] // 2, k[1] // 2)) if self.rng.random() < 0.5 else ((0, 0), (0, 0))
        strides = self.rng.choice([(1, 1), (2, 2), k])
        attrs = {"pool_size": k, "strides": strides, "ceil_mode": self.rng.random() < 0.3, "padding": padding}
        if kind == 4:
            self.add(op("max_pool2d", x.entry, **attrs), x.exact)
            return
        self.add(op("avg_pool2d", x.entry, count_include_pad=self.rng.random() < 0.5, **attrs))

    def norm(self) -> None:
        x = self.floats(least=1)
        if x is None or 0 in x.shape:
            return
        c, last = x.shape[1] if len(x.shape) > 1 else 1, x.shape[-1]
        kinds = ["layer_norm", "rms_norm", "softmax", "log_softmax", "l2", "softmax_axis"]
        kinds += ["group_norm", "instance_norm"] if len(x.shape) >= 3 else []
        kind = self.rng.choice(kinds)
        if kind == "layer_norm":
            affine = [self.weight(last), self.weight(last)] if self.rng.random() < 0.7 else []
            self.add(op("layer_norm", x.entry, *affine, axis=-1, eps=0.1))
        elif kind == "rms_norm":
            self.add(op("rms_norm", x.entry, self.weight(last), axis=-1, eps=0.1))
        elif kind == "group_norm":
            groups = self.rng.choice([g for g in (1, 2, 3, 4) if c % g == 0])
            self.add(op("group_norm", x.entry, self.weight(c), self.weight(c), num_groups=groups, eps=0.1))
        elif kind == "instance_norm":
            self.add(op("instance_norm", x.entry, eps=0.1))
        elif kind == "l2":
            self.add(op("l2_normalize", op("add", op("abs", x.entry), scalar(0.5)), axis=(len(x.shape) - 1,)))
        else:
            axis = self.rng.randrange(len(x.shape)) if kind == "softmax_axis" else -1
            self.add(op("softmax" if kind != "log_softmax" else kind, x.entry, axis=axis))

    def dense(self) -> None:
        x = self.floats(least=1)
        if x is None:
            return
        n, k = self.rng.choice(CHANNELS), x.shape[-1]
        if self.rng.random() < 0.5:
            e = op("dense", self.calm(x), self.weight(n, k), *self.maybe_bias(n))
        else:
            e = op("matmul", self.calm(x), self.weight(*((n, k) if (turned := self.rng.random() < 0.5) else (k, n))),
                   transpose_b=turned)  # fmt: skip
            e = op("add", e, self.weight(n)) if self.rng.random() < 0.5 else e
        e = op(self.rng.choice(["gelu", "relu", "tanh"]), e) if self.rng.random() < 0.6 else e
        self.add(e)
        if n == k and self.rng.random() < 0.5:
            self.add(op("add", *self.shuffled(e, x.entry)))

    def matmul(self) -> None:
        x = self.floats(3) or self.new_input(2, self.rng.choice(SIZES[1:6]), self.rng.choice(SIZES[1:6]))
        y = self.pick(lambda v: v.dtype == "float32" and len(v.shape) == 3 and v.shape[0] == x.shape[0]) or x
        for ta in (False, True):
            for tb in (False, True):
                if x.shape[1 if ta else 2] == y.shape[2 if tb else 1]:
                    self.add(self.small(op("matmul", self.calm(x), self.calm(y), transpose_a=ta, transpose_b=tb)))
                    return

    def attention(self) -> None:
        """Projections, heads, scores, softmax, and back: as networks write it, or as the one op."""
        width, tokens = self.rng.choice([4, 8, 12]), self.rng.choice([1, 3, 5, 8])
        x = self.pick(
            lambda v: v.dtype == "float32" and len(v.shape) == 3 and v.shape[2] in (4, 8, 12) and v.shape[1] <= 9
        )
        x = x or self.new_input(self.rng.choice([1, 2]), tokens, width)
        b, t, width = x.shape
        heads = self.rng.choice([1, 2, 4])
        d = width // heads

        def head(e: NodeEntry) -> NodeEntry:
            return op("transpose", op("reshape", e, shape=(b, t, heads, d)), axes=(0, 2, 1, 3))

        rows = self.small(x.entry) if self.rng.random() < 0.5 else x.entry
        q, k, v = (head(op("dense", rows, self.weight(width, width), *self.maybe_bias(width))) for _ in range(3))
        if self.rng.random() < 0.4:
            o = op("attention", q, k, v, scale=d**-0.5, causal=self.rng.random() < 0.5)
        else:
            q3, k3, v3 = (op("reshape", e, shape=(b * heads, t, d)) for e in (q, k, v))
            s = op("multiply", op("matmul", q3, k3, transpose_b=True), scalar(d**-0.5))
            if self.rng.random() < 0.4:
                s = op("add", s, param(self.fresh("mask"), 1, t, t))
            o = op("reshape", op("matmul", op("softmax", s, axis=-1), v3), shape=(b, heads, t, d))
        o = op("reshape", op("transpose", o, axes=(0, 2, 1, 3)), shape=(b, t, width))
        self.add(op("add", op("dense", o, self.weight(width, width)), x.entry))

    def gate(self) -> None:
        """Squeeze and excite."""
        x = self.floats(4)
        if x is None or 0 in x.shape:
            return
        c = x.shape[1]
        m = op("mean", x.entry, axis=(2, 3), keepdims=True)
        g = op("conv2d", op("relu", op("conv2d", m, self.weight(4, c, 1, 1))), self.weight(c, 4, 1, 1))
        self.add(op("multiply", *self.shuffled(x.entry, op("sigmoid", g))))

    def half(self) -> None:
        """To a half type and back, with something computed there."""
        x = self.floats()
        if x is None:
            return
        e = op("cast", op("tanh", x.entry), dtype=self.rng.choice(["float16", "bfloat16"]))
        e = op(self.rng.choice(["relu", "negative", "square", "sigmoid"]), e)
        self.add(op("cast", e, dtype="float32"))
