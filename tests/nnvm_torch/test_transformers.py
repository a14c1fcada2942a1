"""Whole models of transformers, small and with random weights: eval, a training step, generate().

A few run by default, all of them by ``pytest -m slow tests/nnvm_torch/test_transformers.py``. What of each model is
compiled, and what falls back: ``python tests/nnvm_torch/test_transformers.py [NAME ...]``.
"""

import copy
import sys
import warnings

import pytest
import torch
from transformers_models import MODELS, build

import nnvm_torch

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

#: What runs by default: one of each kind.
FEW = ("bert", "llama", "t5", "resnet", "clip")
FEW_TRAINED = ("bert", "resnet")
FEW_GENERATING = ("gpt2",)
#: Of the output's range: Winograd's convolutions, and for everything a few units in the last place.
CONVOLUTIONS, FLOOR = 1e-4, 4e-6


def some(names, default):
    """Parameters of a test: the default ones, and the others marked slow."""
    return [n if n in default else pytest.param(n, marks=pytest.mark.slow) for n in names]


def flat(x, path="out"):
    """(path, tensor) of everything in an answer: dataclasses, dicts, lists, caches; None counts as well."""
    if isinstance(x, torch.Tensor) or x is None:
        return [(path, x)]
    if hasattr(x, "layers"):  # a cache
        return [t for i, c in enumerate(x.layers) for k in ("keys", "values", "conv_states", "recurrent_states")
                if hasattr(c, k) for t in flat(getattr(c, k), f"{path}.{i}.{k}")]  # fmt: skip
    if isinstance(x, dict):
        return [t for k, v in x.items() for t in flat(v, f"{path}.{k}")]
    if isinstance(x, (list, tuple)):
        return [t for i, v in enumerate(x) for t in flat(v, f"{path}.{i}")]
    if hasattr(x, "__dict__"):
        return flat({k: v for k, v in vars(x).items() if isinstance(v, (torch.Tensor, list, tuple, dict))}, path)
    return []


def error(got, right):
    """The largest difference, relative to the range."""
    if right.numel() == 0:
        return 0.0
    span = float(right.max() - right.min()) or float(right.abs().max()) or 1.0
    return float((got.double() - right).abs().max()) / span


def compare(got, eager, right, bound):
    got, eager, right = flat(got), flat(eager), flat(right)
    assert [p for p, _ in got] == [p for p, _ in eager]
    assert any(isinstance(t, torch.Tensor) for _, t in got)
    for (path, a), (_, b), (_, r) in zip(got, eager, right, strict=True):
        assert (a is None) == (b is None), path
        if b is None:
            continue
        assert a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride(), path
        if not b.is_floating_point():
            assert torch.equal(a, b), path
            continue
        assert bool(torch.equal(a.isfinite(), b.isfinite())), path
        keep = r.isfinite()
        mine, theirs = error(a[keep], r[keep]), error(b[keep], r[keep])
        assert mine <= max(2 * theirs, bound), f"{path}: error {mine:.2e}, eager's {theirs:.2e}"


def reference_of(module):
    """The module in float64."""
    made = copy.deepcopy(module).double()
    for m in made.modules():
        if getattr(m, "config", None) is not None and hasattr(m.config, "_experts_implementation"):
            m.config._experts_implementation = "eager"  # the grouped product has no float64
    return made


def wide(inputs):
    return {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


def bound_of(module):
    return CONVOLUTIONS if any(isinstance(m, torch.nn.Conv2d) for m in module.modules()) else FLOOR


def fresh():
    torch._dynamo.reset()
    nnvm_torch.reset()
    warnings.filterwarnings("error", message="nnvm could not")


@pytest.mark.parametrize("name", some(MODELS, FEW))
def test_eval(name):
    fresh()
    module, inputs = build(MODELS[name])
    reference = reference_of(module)
    compiled = torch.compile(module, backend="nnvm")
    with torch.no_grad():
        for seed in (1, 2):
            args = inputs(seed)
            got, eager, right = compiled(**args), module(**args), reference(**wide(args))
            assert type(got) is type(eager)
            compare(got, eager, right, bound_of(module))
    assert nnvm_torch.report().native_fraction >= 0.9, nnvm_torch.report()


def without_dropout(module):
    """In training mode, but with nothing random: dropout, dropped layers and masked time steps."""
    module.train()
    for m in module.modules():
        for k, v in list(vars(m).items()):
            if isinstance(v, float) and any(part in k for part in ("dropout", "layerdrop", "drop_prob", "drop_path")):
                setattr(m, k, 0.0)
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0
    for config in {id(c): c for m in module.modules() if (c := getattr(m, "config", None)) is not None}.values():
        for k, v in list(vars(config).items()):
            if isinstance(v, float) and any(
                part in k for part in ("dropout", "layerdrop", "mask_time_prob", "drop_path")
            ):
                setattr(config, k, 0.0)
    return module


def step(module, args, precise=torch.float32):
    """One step: the loss is a fixed sum of all results; gives gradients by name."""
    out = module(**args)
    g = torch.Generator().manual_seed(11)
    loss = torch.zeros((), dtype=precise)
    for _, t in flat(out):
        if isinstance(t, torch.Tensor) and t.requires_grad:
            weights = torch.randn(t.shape, generator=g).to(t.dtype)
            loss = loss + (torch.where(t.isfinite(), t, 0) * weights).mean()
    loss.backward()
    return {k: p.grad for k, p in module.named_parameters()}, {k: b.clone() for k, b in module.named_buffers()}


@pytest.mark.parametrize("name", some(MODELS, FEW_TRAINED))
def test_training_step(name):
    fresh()
    module, inputs = build(MODELS[name])
    without_dropout(module)
    mine, right = copy.deepcopy(module), reference_of(module)
    compiled = torch.compile(mine, backend="nnvm")
    args = inputs(3)
    eager_grads, eager_buffers = step(module, args)
    right_grads, right_buffers = step(right, wide(args), torch.float64)
    step_of_mine, buffers = step(compiled, args)
    grads = {k.removeprefix("_orig_mod."): g for k, g in step_of_mine.items()}
    whole = max(float(g.abs().max()) for g in right_grads.values() if g is not None)
    for k, b in eager_grads.items():
        if b is None:
            # where a graph has an output that nothing uses, AOTAutograd gives zeros
            assert grads[k] is None or not grads[k].any(), k
            continue
        a, r = grads[k], right_grads[k]
        assert a.dtype == b.dtype and a.shape == b.shape, k
        distance, theirs = (float((t.double() - r).abs().max()) for t in (a, b))
        # a gradient that cancels to nearly nothing is measured by what cancelled
        size = max(float(r.abs().max()), 1e-2 * whole)
        assert distance <= max(2 * theirs, bound_of(module) * size), (
            f"{k}: {distance:.2e}, eager's {theirs:.2e}, of {size:.2e}"
        )
    assert [k.removeprefix("_orig_mod.") for k in buffers] == [*eager_buffers] == [*right_buffers]
    for a, (k, b) in zip(buffers.values(), eager_buffers.items(), strict=True):
        r = right_buffers[k]
        distance, theirs = (float((t.double() - r.double()).abs().max()) if r.numel() else 0.0 for t in (a, b))
        assert distance <= max(2 * theirs, bound_of(module) * float(r.abs().max()) if r.numel() else 0.0), (
            f"{k}: {distance:.2e}, eager's {theirs:.2e}"
        )


@pytest.mark.parametrize("name", some([n for n, m in MODELS.items() if m.generates], FEW_GENERATING))
def test_generate(name):
    fresh()
    module, inputs = build(MODELS[name])
    args = {k: v for k, v in inputs(4).items() if k != "decoder_input_ids"}
    if "attention_mask" in args:
        args["attention_mask"] = torch.ones_like(args["attention_mask"])
    options = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False}
    want = module.generate(**args, **options)
    module.forward = torch.compile(module.forward, backend="nnvm")
    got = module.generate(**args, **options)
    assert torch.equal(got, want), f"{got.tolist()}, not {want.tolist()}"
    assert nnvm_torch.report().graphs


def main(names):
    """Prints the native part of each model's eval and training graphs, and what falls back."""
    for name in names or MODELS:
        for kind in ("eval", "train"):
            fresh()
            module, inputs = build(MODELS[name])
            try:
                if kind == "eval":
                    with torch.no_grad():
                        torch.compile(module, backend="nnvm")(**inputs(1))
                else:
                    step(torch.compile(without_dropout(module), backend="nnvm"), inputs(1))
            except Exception as e:
                print(f"{name:16} {kind:5} {type(e).__name__}: {str(e).splitlines()[0][:150]}")
                continue
            r = nnvm_torch.report()
            breaks = f", {sum(r.graph_breaks.values())} graph breaks" if r.graph_breaks else ""
            lost = sorted({f"{f.op.removeprefix('aten.')} ({f.reason[:60]})" for f in r.fallbacks})
            print(f"{name:16} {kind:5} {r.native_fraction:6.1%} of {sum(g.total for g in r.graphs)} nodes in "
                  f"{len(r.graphs)} graphs{breaks}" + (f": {', '.join(lost)}" if lost else ""), flush=True)  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
