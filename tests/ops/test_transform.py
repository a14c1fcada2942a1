"""Ops that move elements, creation, and changes of layout, against eager PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from nnvm import te
from nnvm.dim import symbol
from nnvm.dtype import BF16, F32, dtype
from nnvm.graph.layout import Layout
from nnvm.graph.node import TypeInferenceError, apply, variable
from nnvm.graph.types import TensorType
from nnvm.ops.nn_conv import from_plain
from nnvm.ops.transform import regroup
from nnvm.testing.run_op import run_op

X = torch.arange(24.0).reshape(2, 3, 4)


@pytest.mark.parametrize("shape", [(24,), (4, 3, 2), (2, 12), (6, 4), (2, 3, 2, 2), (1, 24, 1), (-1, 8), (3, 1, 8)])
def test_reshape(check: Any, shape: Any) -> None:
    check("reshape", [X], X.reshape(shape), shape=shape)


def test_views(check: Any) -> None:
    check("expand_dims", [X], X[:, None, None], axis=1, num_newaxis=2)
    check("expand_dims", [X], X[..., None], axis=-1)
    check("squeeze", [X[:1]], X[0], axis=0)
    check("squeeze", [X[:1, :, :1]], X[0, :, 0])
    check("flatten", [X], X.reshape(2, 12))
    check("reshape", [torch.tensor(3.0)], torch.tensor([[3.0]]), shape=(1, 1))
    check("reshape", [torch.zeros(0, 3)], torch.zeros(3, 0), shape=(3, 0))
    with pytest.raises(TypeInferenceError, match=r"\[2, 3, 4\] cannot take the shape \[5, 5\]"):
        apply("reshape", [variable("x", TensorType((2, 3, 4)))], {"shape": (5, 5)})


def test_reshape_keeps_plain_indices() -> None:
    """Unchanged axes stay plain, split and merged ones are local: schedules depend on it."""
    s = symbol("s")
    i = [te.Var(n) for n in "abcde"]
    assert regroup((2, s, 12), (2, s, 3, 4), i[:4])[:2] == (i[0], i[1])
    assert regroup((s, 3, 4), (s, 12), i[:2])[0] is i[0]
    assert regroup((2, 3 * s), (2, 3, s), i[:3])[0] is i[0]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_regroup_is_the_view(shape: list[int], random: Any) -> None:
    n = int(np.prod(shape))
    target: list[int] = []
    while n > 1:
        target.append(random.choice([d for d in range(2, n + 1) if n % d == 0]))
        n //= target[-1]
    target.insert(random.randint(0, len(target)), 1)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for at in np.ndindex(*target):
        where = regroup(tuple(shape), tuple(target), [te.const(k) for k in at])
        assert x[tuple(int(w.value) for w in where)] == x.reshape(target)[at]  # type: ignore[attr-defined]


def test_moves(check: Any) -> None:
    check("transpose", [X], X.permute(2, 0, 1), axes=(2, 0, 1))
    check("transpose", [X], X.permute(2, 1, 0))
    check("broadcast_to", [X[:, :1]], X[:, :1].expand(5, 2, 3, 4), shape=(5, 2, 3, 4))
    check("flip", [X], X.flip(0, -1), axes=(0, -1))
    check("roll", [X], X.roll((1, -6), (0, 2)), shifts=(1, -6), axes=(0, 2))
    check("repeat", [X], X.repeat_interleave(3, 1), repeats=3, axis=1)
    for k in (-1, 0, 2):
        check("tril", [X], X.tril(k), k=k)
        check("triu", [X], X.triu(k), k=k)


def test_dtypes_move(check: Any) -> None:
    for t in (torch.bool, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float64):
        x = (torch.arange(12) % 5).to(t).reshape(3, 4)
        check("transpose", [x], x.T, axes=(1, 0))
        check("concatenate", [x, x], torch.cat([x, x], 1), axis=1)
        check("pad", [x], F.pad(x, (1, 2), value=1), pad_width=((0, 0), (1, 2)), value=1)
        check("tril", [x], x.tril())


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concatenate(check: Any, axis: int) -> None:
    shapes = [[2, 3, 4], [2, 3, 4], [2, 3, 4]]
    shapes[1][axis], shapes[2][axis] = 1, 5
    parts = [torch.rand(s) for s in shapes]
    check("concatenate", parts, torch.cat(parts, axis), axis=axis)


def test_concatenate_many_and_empty(check: Any) -> None:
    parts = [torch.full((2, k % 3), float(k)) for k in range(40)]
    check("concatenate", parts, torch.cat(parts, 1), axis=1)
    check("concatenate", [X], X, axis=0)
    with pytest.raises(TypeInferenceError, match=r"\[2, 3\] and \[3, 3\] differ outside axis 1"):
        apply("concatenate", [variable("a", TensorType((2, 3))), variable("b", TensorType((3, 3)))], {"axis": 1})


@pytest.mark.parametrize("begin,end,step", [
    ((0, 1, 0), (2, 3, 4), None), ((1, None, -3), (None, 2, None), None), ((0, 0, 1), (9, 9, 9), (1, 2, 2)),
    ((0, 2, 3), (2, 1, 4), None), ((0,), (1,), None), ((-9, -1, 0), (2, 9, -1), (1, 1, 3)),
])  # fmt: skip
def test_slice(check: Any, begin: Any, end: Any, step: Any) -> None:
    steps = step or (1,) * len(begin)
    expected = X[tuple(slice(b, e, s) for b, e, s in zip(begin, end, steps))]
    check("slice", [X], expected, begin=begin, end=end, step=step)


@pytest.mark.parametrize("mode,torch_mode", [("constant", "constant"), ("reflect", "reflect"), ("edge", "replicate"),
                                             ("wrap", "circular")])  # fmt: skip
def test_pad(check: Any, mode: str, torch_mode: str) -> None:
    x = torch.rand(2, 3, 4, 5)
    for widths in ((1, 2, 2, 0), (3, 0, 1, 1), (-1, 2, 0, -2)):
        if torch_mode == "circular" and min(widths) < 0:
            continue  # eager's circular padding does not crop
        expected = F.pad(x, widths, torch_mode)
        check("pad", [x], expected, pad_width=((0, 0), (0, 0), widths[2:], widths[:2]), mode=mode)


def test_pad_misfits() -> None:
    for width, mode, message in (((4, 0), "reflect", "too wide"), ((-3, -3), "constant", "less than nothing")):
        with pytest.raises(TypeInferenceError, match=message):
            apply("pad", [variable("x", TensorType((4,)))], {"pad_width": (width,), "mode": mode})


@pytest.mark.parametrize(
    "axis,start,end,step", [(0, 1, 2, 1), (1, None, None, 2), (2, 1, 4, 3), (-1, 0, 99, 1), (1, 2, 2, 1)]
)
def test_slice_scatter(check: Any, axis: int, start: Any, end: Any, step: int) -> None:
    src = -torch.ones_like(torch.slice_scatter(X, X, 0)[(slice(None),) * (axis % 3) + (slice(start, end, step),)])
    expected = torch.slice_scatter(X, src, axis, start, end, step)
    check("slice_scatter", [X, src], expected, axis=axis, start=start, end=end, step=step)


def test_create(check: Any) -> None:
    for name in ("float32", "float16", "bfloat16", "int64", "uint8", "bool"):
        t = getattr(torch, name)
        check("full", [], torch.full((2, 3), 1, dtype=t), shape=(2, 3), dtype=name, value=1)
        if name != "bool":
            check("arange", [], torch.arange(2, 9, 3).to(t), start=2, step=3, length=3, dtype=name)
    check("arange", [], torch.arange(0.1, 1.0, 0.1), start=0.1, step=0.1, length=9, dtype="float32")
    check("arange", [], torch.arange(5, 0, -2), start=5, step=-2, length=3, dtype="int64")
    check("full", [], torch.tensor(255, dtype=torch.uint8).expand(3), shape=(3,), dtype="uint8", value=-1)
    check("full", [], torch.tensor(-128, dtype=torch.int8).expand(3), shape=(3,), dtype="int8", value=128)
    check("full", [], torch.tensor(float("-inf")), shape=(), value=float("-inf"))


@pytest.mark.parametrize("src,dst,sizes", [
    ("NCHW", "NCHW8c", (2, 16, 3, 3)), ("NCHW", "NCHW8c", (1, 13, 2, 3)), ("NCHW8c", "NCHW4c", (1, 16, 2, 3)),
    ("NCHW4c", "NCHW8c", (1, 12, 2, 3)), ("NCHW8c", "NCHW", (1, 16, 2, 3)), ("NCHW", "NHWC", (2, 3, 4, 5)),
    ("OIHW", "OIHW4i8o", (8, 6, 3, 3)), ("NK", "NK16n", (20, 7)), ("NCHW8c", "NHWC", (2, 8, 3, 3)),
])  # fmt: skip
def test_layout_transform(check: Any, src: str, dst: str, sizes: Any) -> None:
    order = Layout.parse(src).names
    plain = np.random.default_rng(0).random(sizes).astype(np.float32)
    given = from_plain(plain, Layout.parse(src), order)
    expected = from_plain(plain, Layout.parse(dst), order)
    check("layout_transform", [torch.from_numpy(given)], torch.from_numpy(expected), src_layout=src, dst_layout=dst)


def test_layout_transform_drops_padding(check: Any) -> None:
    plain = np.random.default_rng(0).random((1, 5, 2, 2)).astype(np.float32)
    packed = torch.from_numpy(from_plain(plain, Layout.parse("NCHW4c"), "NCHW"))
    check(
        "layout_transform",
        [packed],
        torch.from_numpy(plain),
        src_layout="NCHW4c",
        dst_layout="NCHW",
        sizes=(1, 5, 2, 2),
    )


def test_layout_errors() -> None:
    for text in ("", "NCHWc", "8cN", "NN", "NC8c4c", "N-C"):
        with pytest.raises(ValueError):
            Layout.parse(text)


def test_symbolic_shapes_run_natively() -> None:
    s = symbol("s")
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    t = [TensorType((s, 3))]
    for op, attrs, expected in [
        ("slice", {"begin": (1,), "end": (s,)}, x[1:]),
        ("concatenate", {"axis": 0}, x),
        ("roll", {"shifts": (2,), "axes": (0,)}, np.roll(x, 2, 0)),
        ("reshape", {"shape": (3 * s,)}, x.reshape(-1)),
        ("pad", {"pad_width": ((1, 1), (0, 0))}, np.pad(x, ((1, 1), (0, 0)))),
        ("sum", {"axis": 0}, x.sum(0)),
    ]:
        for route in ("reference", "llvm"):
            np.testing.assert_allclose(run_op(op, [x], t, attrs, route, {"s": 5})[0], expected, rtol=1e-6)


def test_interpreter_agrees() -> None:
    """One op of each kind through the definition of the loop nests."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for op, attrs in [("pad", {"pad_width": ((1, 0), (0, 2))}), ("softmax", {}), ("sort", {"descending": True}),
                      ("cumsum", {"axis": 0}), ("gelu", {}), ("topk", {"k": 2})]:  # fmt: skip
        a = run_op(op, [x], [TensorType((3, 4))], attrs, "interpreter")
        for got, want in zip(a, run_op(op, [x], [TensorType((3, 4))], attrs, "reference")):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert dtype("bfloat16") == BF16 and F32.compute == F32
