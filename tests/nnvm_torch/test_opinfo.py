"""PyTorch's operator database through ``torch.compile(op, backend="nnvm")``, against eager.

A fixed sample of operators runs by default. All of them, in float32: `pytest -m slow tests/nnvm_torch/test_opinfo.py`
(a few hours of one core).
"""

import itertools
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import nnvm_torch

BY_NAME = {o.name + (f".{o.variant_test_name}" if o.variant_test_name else ""): o for o in op_db}

#: Operators that must compile with no fallback node.
NATIVE = [
    "add", "atan2", "bmm", "cat", "clamp", "cumsum", "diff", "div.floor_rounding", "exp", "flip", "fmod", "gather",
    "index_select", "logsumexp", "masked_fill", "mean", "nn.functional.avg_pool2d", "nn.functional.conv2d",
    "nn.functional.conv_transpose2d", "nn.functional.gelu", "nn.functional.group_norm", "nn.functional.layer_norm",
    "nn.functional.linear", "nn.functional.max_pool2d", "nn.functional.pad.reflect", "nn.functional.softplus",
    "outer", "roll", "scatter_add", "softmax", "stack", "sum", "tril", "var", "where",
]  # fmt: skip
#: Operators that ATen runs, in part or as a whole.
FALLBACK = ["cummax", "fft.fft", "linalg.inv", "median"]
#: What cannot be compared: random, uninitialised, or not traceable.
LEFT_OUT = ("empty", "rand", "dropout", "bernoulli", "multinomial", "normal", "resize", "uniform", "geometric",
            "cauchy", "exponential", "log_normal")  # fmt: skip


def check(name, dtype, count):
    """Compares the first samples of an operator; gives the number that could be compared."""
    info = BY_NAME[name]
    done = 0
    for sample in itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), count):
        args = (sample.input, *sample.args)

        def fn(*args, sample=sample):
            return info.get_op()(*args, **sample.kwargs)

        expected = fn(*pytree.tree_map(clone, args))
        torch._dynamo.reset()
        got = torch.compile(fn, backend="nnvm", fullgraph=True)(*pytree.tree_map(clone, args))
        for g, e in zip(pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True):
            if isinstance(e, torch.Tensor):
                torch.testing.assert_close(g, e, equal_nan=True, msg=lambda m, a=args: f"{name}{a}: {m}")
        done += 1
    return done


def clone(x):
    return x.clone() if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("name", NATIVE)
def test_native(name):
    nnvm_torch.reset()
    assert check(name, torch.float32, 3)
    report = nnvm_torch.report()
    assert report.native_fraction == 1.0, report


@pytest.mark.parametrize("name", FALLBACK)
def test_fallback(name):
    nnvm_torch.reset()
    assert check(name, torch.float32, 2)
    assert nnvm_torch.report().fallbacks


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in BY_NAME if not any(part in n for part in LEFT_OUT)])
def test_every_operator(name):
    if not BY_NAME[name].supports_dtype(torch.float32, "cpu"):
        pytest.skip("not for float32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check(name, torch.float32, 4)
        except torch._dynamo.exc.Unsupported as e:
            pytest.skip(f"Dynamo does not capture it: {e}")
