"""Where models come from, and that their weights and inputs mean something."""

import builtins
import importlib.util
import sys

import pytest
import torch
from torch import nn

from nnvm.bench.errors import BenchError
from nnvm_torch.bench.models import hf, sources
from nnvm_torch.bench.models.case import ModelCase
from nnvm_torch.bench.models.randomize import calibrate_batch_norms, randomize_constant_parameters
from nnvm_torch.bench.models.sources import load_model, resolve
from nnvm_torch.bench.zoo import ZOO, ZooModel, image
from nnvm_torch.bench.zoo.layers import conv_bn


def load(spec, batch=1, dtype=torch.float32, seed=0):
    return load_model(spec, batch, dtype, seed)


def write(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text("import torch\n" + text)
    return path


# ---- fresh inputs


def test_fresh_inputs_are_reproducible_and_different():
    case = ModelCase(nn.Identity(), (torch.zeros(4, 5),))
    (a,), (b,), (c,) = case.fresh(0, 0), case.fresh(0, 0), case.fresh(0, 1)
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert a.count_nonzero() == 20


def test_fresh_floats_keep_mean_and_deviation():
    (fresh,) = ModelCase(nn.Identity(), (100 + 3 * torch.randn(2000),)).fresh(0, 0)
    assert abs(fresh.mean() - 100) < 1 and abs(fresh.std() - 3) < 0.5


def test_fresh_integers_stay_in_range():
    ids = torch.tensor([[2, 9, 4], [3, 3, 3]])
    (fresh,) = ModelCase(nn.Identity(), (ids,)).fresh(0, 0)
    assert fresh.dtype == torch.int64 and fresh.shape == ids.shape and fresh.min() >= 2 and fresh.max() <= 9
    (ones,) = ModelCase(nn.Identity(), (torch.ones(3, dtype=torch.int32),)).fresh(0, 0)
    assert torch.equal(ones, torch.ones(3, dtype=torch.int32))


def test_masks_and_plain_values_are_taken_as_they_are():
    mask = torch.tensor([0.0, float("-inf")])
    flags = torch.tensor([True, False])
    fresh = ModelCase(nn.Identity(), (mask, flags, 3, None, torch.zeros(0))).fresh(0, 0)
    assert fresh[0] is mask and fresh[1] is flags and fresh[2] == 3 and fresh[3] is None


def test_a_user_may_draw_the_inputs():
    case = ModelCase(nn.Identity(), (torch.zeros(2),), lambda generator: (torch.full((2,), 7.0),))
    assert torch.equal(case.fresh(0, 0)[0], torch.full((2,), 7.0))


# ---- random weights


def test_constant_parameters_are_randomized_and_others_kept():
    module = nn.ModuleDict({"linear": nn.Linear(4, 4), "norm": nn.LayerNorm(8)})
    nn.init.zeros_(module["linear"].bias)
    weight = module["linear"].weight.clone()
    randomize_constant_parameters(module, torch.Generator().manual_seed(0))
    assert torch.equal(module["linear"].weight, weight)
    assert module["linear"].bias.unique().numel() == 4
    scale = module["norm"].weight
    assert scale.unique().numel() == 8 and scale.min() >= 0.5 and scale.max() <= 1.5


def test_batch_norm_statistics_fit_the_activations():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)
    ).eval()
    with torch.no_grad():
        module[0].weight.mul_(1000)
    x = torch.randn(2, 3, 16, 16)
    calibrate_batch_norms(module, (x,), torch.Generator().manual_seed(0))
    assert all(tensor.dtype == torch.float32 for tensor in module.parameters())
    assert module[1].num_batches_tracked.dtype == torch.int64
    assert 0.5 < float(module(x).detach().std()) < 2.0
    assert not module.training


def test_batch_norm_of_single_values_keeps_a_unit_variance():
    module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3)).eval()
    calibrate_batch_norms(module, (torch.randn(1, 3, 4, 4),), torch.Generator().manual_seed(0))
    assert module[1].running_var.min() > 0.5


def test_the_same_seed_gives_the_same_model(monkeypatch):
    model = ZooModel(lambda: nn.Sequential(conv_bn(3, 8, 3), conv_bn(8, 8, 3)), image(16), 0, "")
    monkeypatch.setitem(ZOO, "tiny", model)
    first, second, other = (load("zoo:tiny", seed=seed).module.state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(x, second[name]) for name, x in first.items())
    assert not any(torch.equal(x, other[name]) for name, x in first.items() if x.dim())


@torch.no_grad()
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "gru_classifier"])
def test_outputs_depend_on_inputs(name):
    case = load(f"zoo:{name}")
    a, b = case.module(*case.fresh(0, 0)), case.module(*case.fresh(0, 1))
    assert float((a - b).abs().max() / (a.max() - a.min())) > 0.01


def test_dtype():
    case = load("zoo:mlp", dtype=torch.bfloat16)
    assert case.module[0].weight.dtype == torch.bfloat16
    assert case.fresh(0, 0)[0].dtype == torch.bfloat16
    assert load("zoo:gru_classifier", dtype=torch.float16).inputs[0].dtype == torch.int64


# ---- names


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("zoo:resnt18", "did you mean resnet18"),
        ("resnt18", "did you mean resnet18"),
        ("nets:resnet18", "unknown source 'nets'"),
        ("mine.py", "which function"),
        ("/nowhere/mine.py:factory", "no file"),
    ],
)
def test_names_that_nothing_can_be(spec, message, monkeypatch):
    monkeypatch.setitem(sources.NAMES, "timm", list)  # slow to import
    monkeypatch.setitem(sources.NAMES, "torchvision", list)
    with pytest.raises(BenchError, match=message):
        resolve(spec)


def test_bare_names(monkeypatch):
    monkeypatch.setitem(sources.NAMES, "timm", lambda: ["resnet18", "here", "twice"])
    monkeypatch.setitem(sources.NAMES, "torchvision", lambda: ["resnet18", "twice"])
    assert resolve("resnet18") == "zoo:resnet18"
    assert resolve("here") == "timm:here"
    with pytest.raises(BenchError, match="torchvision:twice or timm:twice"):
        resolve("twice")


def test_full_names_are_kept(tmp_path):
    path = write(tmp_path, "def factory(): pass")
    assert [resolve(s) for s in ("hf:gpt2", "timm:x", f"{path}:factory")] == ["hf:gpt2", "timm:x", f"{path}:factory"]


@pytest.mark.parametrize(
    ("spec", "package", "hint"),
    [
        ("torchvision:resnet18", "torchvision", "pip install torchvision, or use zoo:resnet18"),
        ("timm:resnet18", "timm", "pip install timm, or use one of the zoo"),
        ("hf:gpt2", "transformers", "pip install transformers, or use zoo:minilm"),
    ],
)
def test_missing_packages_are_named(spec, package, hint, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(BenchError, match=hint):
        load(spec)


def test_a_torchvision_for_another_torch(monkeypatch):
    real_import = builtins.__import__

    def broken(name, *args):
        if name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist")
        return real_import(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(BenchError, match=r"does not match torch .*use zoo:resnet18"):
        load("torchvision:resnet18")


# ---- a user's file


def test_a_factory(tmp_path):
    path = write(tmp_path, "def factory(batch=1):\n    return torch.nn.Linear(3, 2), torch.zeros(batch, 3)")
    case = load(f"{path}:factory", batch=5)
    assert not case.module.training and case.inputs[0].shape == (5, 3)


def test_a_users_weights_are_left_alone(tmp_path):
    path = write(tmp_path, "def factory():\n    return torch.nn.LayerNorm(4), (torch.zeros(1, 4),)")
    assert torch.equal(load(f"{path}:factory").module.weight, torch.ones(4))


def test_a_factory_may_import_its_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_neighbour.py").write_text("WIDTH = 6")
    body = "from my_neighbour import WIDTH\ndef factory():\n    return torch.nn.Linear(WIDTH, 1), torch.zeros(1, WIDTH)"
    assert load(f"{write(tmp_path, body)}:factory").inputs[0].shape == (1, 6)


@pytest.mark.parametrize(
    ("body", "batch", "message"),
    [
        ("def factry(): pass", 1, "no function 'factory'; did you mean factry"),
        ("def factory(): return 3", 1, "must return"),
        ("def factory(): return torch.nn.ReLU(), {'x': 1}", 1, "must be a tuple"),
        ("def factory(): return torch.nn.ReLU(), torch.ones(1)", 2, "takes no parameter `batch`"),
    ],
)
def test_wrong_factories(tmp_path, body, batch, message):
    with pytest.raises(BenchError, match=message):
        load(f"{write(tmp_path, body)}:factory", batch=batch)


# ---- transformers


@torch.no_grad()
def test_a_configuration_file(tmp_path):
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(
        '{"model_type": "distilbert", "dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 64, "vocab_size": 50}'
    )
    case = load(f"hf:{path}", batch=2)
    (answer,) = case.module(*case.fresh(0, 0))
    assert answer.shape == (2, hf.TEXT_TOKENS, 32)


@torch.no_grad()
def test_encoder_and_decoder(tmp_path):
    pytest.importorskip("transformers")
    path = tmp_path / "config.json"
    path.write_text(
        '{"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "vocab_size": 50}'
    )
    case = load(f"hf:{path}")
    assert len(case.inputs) == 2
    assert case.module(*case.fresh(0, 0))[0].shape == (1, hf.DECODER_TOKENS, 32)


def test_unknown_and_huge_configurations(monkeypatch):
    pytest.importorskip("transformers")
    with pytest.raises(BenchError, match="did you mean"):
        load("hf:bert-base-uncase")
    monkeypatch.setattr(hf.os, "sysconf", lambda name: 1 << 10)  # a machine of 1 MiB
    with pytest.raises(BenchError, match="too many for this machine"):
        load("hf:all-minilm-l6-v2")
