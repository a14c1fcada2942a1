"""`as_strided` and writes through it: compiled where what is looked at are the argument's own elements."""

import warnings

import pytest
import torch

import nnvm_torch
from nnvm_torch.backend import compile_fx
from nnvm_torch.options import Options

#: (shape of the argument, order of its axes in memory, size, stride, offset)
LOOKS = [
    ((6, 4), (0, 1), (4, 6), (1, 4), 0),  # transposed
    ((24,), (0,), (5, 8), (4, 1), 0),  # windows that overlap
    ((24,), (0,), (3, 2, 2), (8, 1, 4), 1),  # interleaved, from an offset
    ((4, 6), (1, 0), (4, 3), (1, 8), 0),  # every second column of what lies column by column
    ((2, 3, 4), (0, 1, 2), (2, 5, 4), (12, 0, 1), 4),  # repeated
    ((2, 3, 4), (1, 2, 0), (7, 3), (3, 1), 0),  # windows over all axes in another order
    ((2, 3, 4), (0, 1, 2), (), (), 7),  # one element
    ((2, 3, 4), (0, 1, 2), (3, 0), (1, 1), 5),  # none
    ((5, 5), (0, 1), (5,), (6,), 0),  # the diagonal
    ((4, 1, 3), (0, 1, 2), (1, 4, 1), (99, 3, 99), 2),  # strides of axes of length one mean nothing
]  # fmt: skip


def laid_out(shape, order):
    """Random values of `shape` whose axes follow each other in memory in this order."""
    inverse = [order.index(i) for i in range(len(order))]
    return torch.randn([shape[i] for i in order]).permute(inverse)


def compiled(fn, *args, **kwargs):
    nnvm_torch.reset()
    torch._dynamo.reset()
    got = torch.compile(fn, backend="nnvm", **kwargs)(*args)
    assert nnvm_torch.report().native_fraction == 1.0, nnvm_torch.report()
    return got


@pytest.mark.parametrize("shape, order, size, stride, offset", LOOKS)
def test_looks_at_memory(shape, order, size, stride, offset):
    torch.manual_seed(0)
    x = laid_out(shape, order)

    def fn(x):
        return torch.as_strided(x + 1, size, stride, offset) * 2  # the sum lies as x does

    torch.testing.assert_close(compiled(fn, x), fn(x))


@pytest.mark.parametrize("shape, order, size, stride, offset", [k for k in LOOKS if 0 not in k[3] and len(k[0]) != 1])
def test_writes_through_a_look(shape, order, size, stride, offset):
    torch.manual_seed(1)
    x, update = laid_out(shape, order), torch.randn(())
    if size == (7, 3):
        size, stride = (3, 5), (5, 1)

    def fn(x, update):
        return torch.as_strided_scatter(x + 1, (update * 3).expand(size), size, stride, offset) * 2

    torch.testing.assert_close(compiled(fn, x, update), fn(x, update))


def test_sizes_of_the_call():
    def fn(x):
        n, k = x.shape
        look = x.relu().as_strided
        return look((n, n - 1, k - 1), (k, 0, 1), 1), look((n * k - 2, 3), (1, 1)), look((k, n), (n, 1))

    torch.manual_seed(2)
    run = torch.compile(fn, backend="nnvm", dynamic=True)
    nnvm_torch.reset()
    for shape in ((5, 7), (3, 4), (9, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), fn(x))
    assert nnvm_torch.report().native_fraction == 1.0, nnvm_torch.report()


def test_an_offset_by_name():
    """As fx graphs may have it: an offset from the beginning of the storage, of a view."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    doubled = graph.call_function(torch.ops.aten.mul.Tensor, (x, 2))
    row = graph.call_function(torch.ops.aten.select.int, (doubled, 0, 2))
    look = graph.call_function(torch.ops.aten.as_strided.default, (row, [2, 3], [6, 1]), {"storage_offset": 7})
    graph.output((look,))
    gm, data = torch.fx.GraphModule({}, graph), torch.randn(4, 6)
    with torch._subclasses.FakeTensorMode() as mode:
        x.meta["val"] = mode.from_tensor(data)
        for node, fn in ((doubled, lambda: x.meta["val"] * 2), (row, lambda: doubled.meta["val"][2]),
                         (look, lambda: row.meta["val"].as_strided((2, 3), (6, 1), 7))):  # fmt: skip
            node.meta["val"] = fn()
    nnvm_torch.reset()
    (got,) = compile_fx(gm, "inference", Options.make({}), 0, frozenset())([data])
    torch.testing.assert_close(got, (data * 2)[1:3, 1:4])
    assert nnvm_torch.report().native_fraction == 1.0, nnvm_torch.report()


def test_other_memory_is_left_to_pytorch():
    x = torch.randn(4, 6)

    def fn(x):
        return torch.as_strided(x * 2, (2, 3), (6, 1), 6)[:, 1:].as_strided((2, 2), (6, 1), 0) + 1

    nnvm_torch.reset()
    torch.testing.assert_close(torch.compile(fn, backend="nnvm")(x), fn(x))


@pytest.mark.parametrize(
    "lies", [((4, 3), (1, 1)), ((4, 3), (0, 1)), ((3, 4), (2, 1)), ((1, 5), (0, 1)), ((4, 3), (3, 1))]
)
def test_writes_to_copies_of_what_shares_memory(lies):
    """Eager's copy shares memory as its original does, so that what is written shows in other elements too."""

    def fn(x):
        return (torch.slice_scatter(x, x[:, ::2] * 2, 1, 0, None, 2), torch.select_scatter(x, x[0] - 1, 0, -1),
                torch.diagonal_scatter(x, x.diagonal() - 3), x + 1)  # fmt: skip

    x = torch.randn(20).as_strided(*lies)
    nnvm_torch.reset()
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = torch.compile(fn, backend="nnvm")(x)
    torch.testing.assert_close(got, fn(x), rtol=0, atol=0)
    apart = lies[0][0] == 1 or lies[1] == (3, 1)
    assert (nnvm_torch.report().native_fraction == 1.0) == apart


OVERLAPPING = {
    "windows": lambda n: torch.randn(4 + n).as_strided((4, n), (1, 1)),
    "tall windows": lambda n: torch.randn(4 + n).as_strided((n, 4), (1, 1)),
    "rows": lambda n: torch.randn(3 * n).as_strided((3, n), (n - 1, 1)),
    "expanded": lambda n: torch.randn(n, 1).expand(n, 4),
}
APART = {
    "in order": lambda n: torch.randn(4, n), "transposed": lambda n: torch.randn(n, 4).t(),
    "a part": lambda n: torch.randn(n, 9)[1:, 2:-1], "permuted": lambda n: torch.randn(n, 3, n).permute(2, 0, 1),
    "stepped": lambda n: torch.randn(3, 2 * n)[:, ::2],
}  # fmt: skip


@pytest.mark.parametrize("lies", [*OVERLAPPING, *APART])
def test_writes_to_copies_of_sizes_that_only_the_call_knows(lies):
    def fn(x):
        return torch.select_scatter(x, x.select(1, 0) * 2, 1, 0)

    nnvm_torch.reset()
    torch._dynamo.reset()
    made = torch.compile(fn, backend="nnvm", dynamic=True)
    for n in (3, 5, 7):
        x = {**OVERLAPPING, **APART}[lies](n)
        got, want = made(x), fn(x)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert got.stride() == want.stride()
    if lies in APART:
        assert nnvm_torch.report().native_fraction == 1.0, nnvm_torch.report()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 0, 1, 2), (0, 2, 3, 1), (1, 0, 3, 2)])
@pytest.mark.parametrize("stats", [True, False])
def test_batch_norms_over_a_batch_lie_as_in_eager(order, stats):
    """The trace has the strides of the argument; a look at the memory of what follows tells."""

    def fn(x, mean, var):
        y = torch.nn.functional.batch_norm(x, mean, var, training=True)
        return torch.as_strided_scatter(y, y.flatten()[:2] * 2, (2,), (1,)), y, y.exp()

    x = laid_out((3, 4, 5, 6), order)
    got, want = (
        f(x, *((torch.zeros(4), torch.ones(4)) if stats else (None, None)))
        for f in (torch.compile(fn, backend="nnvm"), fn)
    )
    torch.testing.assert_close(got, want)
    assert [t.stride() for t in got] == [t.stride() for t in want]
