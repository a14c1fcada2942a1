"""Where results lie: in the memory that eager puts them in, whatever takes operators apart before us."""

import pytest
import torch
import torch.nn.functional as F

import nnvm_torch

#: Calls that give their argument itself, a view of it or a tensor of their own, as their arguments say.
CALLS = {
    "dropout of nothing": lambda x: F.dropout(x, 0.0, True), "dropout in eval": lambda x: F.dropout(x, 0.5, False),
    "dropout after relu": lambda x: F.dropout(x.relu(), 0.5, False), "dropout1d": lambda x: F.dropout1d(x, 0.5, False),
    "dropout in place": lambda x: F.dropout(x, 0.5, False, True),
    "dropout2d": lambda x: F.dropout2d(x[None], 0.5, False), "alpha": lambda x: F.alpha_dropout(x, 0.5, False),
    "feature alpha": lambda x: F.feature_alpha_dropout(x, 0.5, False), "identity": lambda x: torch.nn.Identity()(x),
    "to": lambda x: x.to(torch.float32), "to copy": lambda x: x.to(torch.float32, copy=True),
    "float": lambda x: x.float(), "type_as": lambda x: x.type_as(x), "contiguous": lambda x: x.contiguous(),
    "turned": lambda x: x.mT.contiguous(),
    "channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last), "clone": lambda x: x.clone(),
    "reshape": lambda x: x.reshape(-1), "reshape copies": lambda x: x.mT.reshape(-1),
    "flatten": lambda x: x.flatten(1), "flatten one": lambda x: x[0, 0].flatten(), "ravel": lambda x: x.ravel(),
    "unflatten": lambda x: x.unflatten(2, (2, 3)), "expand": lambda x: x.expand(2, 4, 6),
    "expand more": lambda x: x.expand(3, 2, 4, 6), "view_as": lambda x: x.view_as(x),
    "broadcast_to": lambda x: x.broadcast_to(2, 4, 6), "repeat": lambda x: x.repeat(1, 1, 1),
    "tile": lambda x: x.tile(1), "squeeze": lambda x: x.squeeze(), "unsqueeze": lambda x: x.unsqueeze(1),
    "movedim": lambda x: x.movedim(0, 2), "real": lambda x: x.real, "conj": lambda x: x.conj(),
    "resolve": lambda x: x.resolve_conj().resolve_neg(), "positive": lambda x: +x, "detach": lambda x: x.detach(),
    "atleast_3d": lambda x: torch.atleast_3d(x), "atleast more": lambda x: torch.atleast_3d(x[0]),
    "einsum": lambda x: torch.einsum("ijk->kij", x), "einsum same": lambda x: torch.einsum("ijk->ijk", x),
    "diagonal": lambda x: x.diagonal(0, 1, 2), "einsum diagonal": lambda x: torch.einsum("ijj->ij", x[:, :, :4]),
    "unfold": lambda x: x.unfold(2, 2, 2), "cat of one": lambda x: torch.cat([x]),
    "stack of one": lambda x: torch.stack([x]), "mT": lambda x: x.mT,
    "cat with nothing": lambda x: torch.cat([x, x[:0]]), "hstack": lambda x: torch.hstack([x]),
    "roll": lambda x: x.roll(0), "flip": lambda x: x.flip(()), "pad": lambda x: F.pad(x, (0, 0)),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[None], 1), "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[None], 1),
    "channels": lambda x: F.channel_shuffle(x[None], 1), "slice": lambda x: x[:],
    "slice of all": lambda x: x[0:2, 0:4], "ellipsis": lambda x: x[...], "none": lambda x: x[None],
    "narrow": lambda x: x.narrow(1, 1, 2), "select": lambda x: x[1], "index": lambda x: x[torch.tensor([0, 1])],
    "mask": lambda x: x[:, [0, 1, 2, 3]], "take_along": lambda x: x.index_select(0, torch.tensor([0, 1])),
    "where": lambda x: torch.where(torch.tensor(True), x, 0), "add zero": lambda x: x + 0,
    "times one": lambda x: x * 1, "power": lambda x: x**1, "sum of nothing": lambda x: x.sum(()),
    "round": lambda x: x.round().round(), "as_strided": lambda x: x.as_strided((2, 3), (12, 2), 1),
    "interpolate": lambda x: F.interpolate(x, scale_factor=1.0), "pool": lambda x: F.max_pool1d(x, 1),
    "adaptive": lambda x: F.adaptive_avg_pool1d(x, 6), "view": lambda x: x.view(8, 6),
    "dtype": lambda x: x.view(torch.int32), "dtype and back": lambda x: x.view(torch.int32).view(torch.float32),
    "nan_to_num": lambda x: x.nan_to_num(), "clamp": lambda x: x.clamp(-9), "rrelu": lambda x: F.rrelu(x),
    "softmax twice": lambda x: x.softmax(0), "zero_": lambda x: x.clone().mul_(1), "swap": lambda x: x.swapaxes(0, 1),
}  # fmt: skip
#: Calls that give several.
MANY = {
    "chunk": lambda x: x.chunk(2, 1), "split": lambda x: x.split([1, 3], 1), "unbind": lambda x: x.unbind(1),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2, 2), "unsafe_split": lambda x: x.unsafe_split(1, 0),
    "tensor_split": lambda x: x.tensor_split(3, 2), "hsplit": lambda x: x.hsplit(2), "vsplit": lambda x: x.vsplit(2),
    "split_copy": lambda x: torch.split_copy(x, 2, 1), "unbind_copy": lambda x: torch.unbind_copy(x),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x[:1]),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[1, 0], indexing="ij"),
    "atleast": lambda x: torch.atleast_1d(x, x[0, 0, 0]), "aminmax": lambda x: x.aminmax(dim=1),
    "twice": lambda x: (x, x), "view and base": lambda x: ((y := x + 1), y[0], y), "sort": lambda x: x.sort(1),
}  # fmt: skip


def places(results, x):
    """Of each result: does it lie in the argument's memory or in that of another result, from where on, and how?"""
    storages = [t.untyped_storage().data_ptr() for t in (x, *results)]
    return [(storages.index(s), t.storage_offset(), t.stride(), tuple(t.shape), t is x)
            for s, t in zip(storages[1:], results)]  # fmt: skip


@pytest.mark.parametrize("layout", ["contiguous", "turned", "every other"])
def test_results_lie_where_eager_puts_them(layout):
    def argument():
        x = torch.randn(2, 4, 6)
        if layout == "turned":
            return x.transpose(0, 2).contiguous().transpose(0, 2)
        return torch.randn(2, 8, 6)[:, ::2] if layout == "every other" else x

    fitting = {k: f for k, f in (CALLS | MANY).items() if takes(f, argument())}
    assert len(fitting) > 80

    def fn(x):
        return [f(x) for f in fitting.values()]

    torch._dynamo.reset()
    nnvm_torch.reset()
    with torch.no_grad():
        x = argument()
        got, want = torch.compile(fn, backend="nnvm", fullgraph=True)(x), fn(x)
    for name, a, b in zip(fitting, got, want):
        a, b = ([t] if isinstance(t, torch.Tensor) else list(t) for t in (a, b))
        assert places(a, x) == places(b, x), name
        torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")


#: Calls on images whose channels come last: results in that format, or in order, or as it happens.
IMAGES = {
    "reflect": lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), "roll": lambda x: x.roll(1, 2),
    "replicate": lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"), "roll all": lambda x: x.roll(1),
    "circular": lambda x: F.pad(x, (1, 2, 2, 1), mode="circular"), "pad": lambda x: F.pad(x, (1, 2)),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2), "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2), "group_norm": lambda x: F.group_norm(x, 2),
    "layer_norm": lambda x: F.layer_norm(x, (6, 6)), "instance_norm": lambda x: F.instance_norm(x),
    "pool": lambda x: F.avg_pool2d(x, 2), "adaptive": lambda x: F.adaptive_avg_pool2d(x, 3),
    "nearest": lambda x: F.interpolate(x, scale_factor=2), "softmax": lambda x: x.softmax(1),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), "cumsum": lambda x: x.cumsum(1),
    "conv": lambda x: F.conv2d(x, torch.ones(3, 4, 3, 3)), "glu": lambda x: F.glu(x, 1),
    "sort": lambda x: x.sort(1)[0], "cat": lambda x: torch.cat([x, x], 1), "stack": lambda x: torch.stack([x, x], 1),
    "flip": lambda x: x.flip(2), "topk": lambda x: x.topk(2, 1)[0],
    "select": lambda x: x.index_select(1, torch.tensor([0, 2])), "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "mean": lambda x: x.mean((2, 3), True), "amax": lambda x: x.amax(2),
    "interleave": lambda x: x.repeat_interleave(2, 1), "fill": lambda x: x.index_fill(1, torch.tensor([0]), 1),
    "unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), "dropout": lambda x: F.dropout(x),
    "poisson": lambda x: torch.poisson(x.abs()), "normal": lambda x: torch.normal(x, 2.0),
    "rrelu": lambda x: F.rrelu(x), "normal of two": lambda x: torch.normal(1.0, x.abs()),
    "gamma": lambda x: torch._standard_gamma(x.abs()), "copysign": lambda x: torch.copysign(x, x[0]),
    "floor": lambda x: x // (x[0] + 9), "half": lambda x: x.half(),
    "transposed": lambda x: F.conv_transpose2d(x, torch.ones(4, 3, 3, 3)), "unfold": lambda x: F.unfold(x, 2),
}  # fmt: skip


def test_results_have_the_memory_format_of_eagers():
    """Traces are wrong about some of these; random numbers come in the order of memory."""
    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)

    def fn(x):
        return [f(x) for f in IMAGES.values()]

    torch._dynamo.reset()
    with torch.no_grad():
        torch.manual_seed(3)
        got = torch.compile(fn, backend="nnvm", fullgraph=True)(x)
        torch.manual_seed(3)
        want = fn(x)
    for name, a, b in zip(IMAGES, got, want):
        assert a.shape == b.shape and used_strides(a) == used_strides(b), name
        torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")


def used_strides(t):
    return [s for s, n in zip(t.stride(), t.shape) if n > 1]


def takes(f, x):
    try:
        f(x)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("source", "target"), [(torch.int8, torch.uint8), (torch.float32, torch.int32),
                                                (torch.int64, torch.int32), (torch.int16, torch.int32)])  # fmt: skip
def test_an_argument_looked_at_as_another_type(source, target, dynamic):
    def fn(x):
        same = source.itemsize == target.itemsize
        broad = x.broadcast_to(2, *x.shape).view(target) if same else x[None].view(target)
        return broad, x[1:].view(target), x[1:].t().view(target) if same else x + 1, x.view(target).view(source)

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="nnvm", dynamic=dynamic)
    for n in (4, 6):
        x = (torch.randn(3, n) * 100).to(source)
        got, want = compiled(x), fn(x)
        assert [t.dtype for t in got] == [t.dtype for t in want]
        assert places(got, x) == places(want, x)
        assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("source", "target"), [(torch.float32, torch.int32), (torch.int64, torch.float64),
                                                (torch.bfloat16, torch.int16)])  # fmt: skip
def test_a_result_looked_at_as_another_type(source, target, dynamic):
    """The other type comes back as a look at the same memory, whether what it looks at is a result itself or not."""

    def fn(x):
        y, z = x * 3, x.flip(0)
        return y.view(target), y, z[1:].t().view(target), (x + x).view(target).view(source)

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend="nnvm", dynamic=dynamic)
    for n in (4, 6):
        x = (torch.randn(3, n) * 100).to(source)
        got, want = compiled(x), fn(x)
        assert [(t.dtype, used_strides(t)) for t in got] == [(t.dtype, used_strides(t)) for t in want]
        assert got[0].data_ptr() == got[1].data_ptr() and len({t.data_ptr() for t in got}) == 3
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("edit", [
    lambda x: x.unfold(0, 1, 2).mul_(2), lambda x: x.unfold(1, 2, 3)[0].exp_(),
    lambda x: x.unfold(0, 1, 2).copy_(x[3, :, None]),
    lambda x: x.unfold(dimension=1, size=2, step=3).transpose(0, 1).add_(1),
])  # fmt: skip
def test_an_edit_of_windows_with_gaps_leaves_what_lies_between(edit, monkeypatch):
    """AOTAutograd would write zeros there: the graph runs in eager, with a warning."""

    def fn(x):
        edit(x)
        return x.exp()

    x = torch.randn(4, 9)
    mine, theirs = x.clone(), x.clone()
    torch._dynamo.reset()
    monkeypatch.setattr("nnvm_torch.faults._warned", set())
    with pytest.warns(UserWarning, match="windows that leave gaps"):
        got = torch.compile(fn, backend="nnvm")(mine)
    torch.testing.assert_close(got, fn(theirs))
    torch.testing.assert_close(mine, theirs)


def test_windows_without_gaps_and_windows_that_are_read_are_compiled():
    def fn(x):
        y = x.unfold(1, 2, 3)
        z = (y * 2).add_(1)
        x[0].mul_(2)
        return y.sum(), z

    def edited(x):
        x.unfold(1, 3, 3).mul_(2)
        return x + 1

    for f in (fn, edited):
        x = torch.randn(4, 9)
        mine, theirs = x.clone(), x.clone()
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(f, backend="nnvm", fullgraph=True)(mine), f(theirs))
        torch.testing.assert_close(mine, theirs)
