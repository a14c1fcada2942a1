"""From what the user typed to a model: ``zoo:``, ``torchvision:``, ``timm:``, ``hf:`` and ``FILE.py:FACTORY``."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nnvm.bench.errors import BenchError, require

from ..zoo import ZOO
from .case import ModelCase
from .hf import PUBLISHED, load_hf
from .randomize import calibrate_batch_norms, randomize_constant_parameters

__all__ = ["SOURCES", "load_model", "model_names", "resolve"]


def load_zoo(name: str, batch: int) -> ModelCase:
    if name == "whisper":  # the one network that is not written out here
        return load_hf("whisper-tiny", batch)
    entry = ZOO.get(name)
    if entry is None:
        raise BenchError(f"zoo: no model {name!r}{suggestion(name, list(ZOO))}")
    return ModelCase(entry.build(), entry.inputs(batch))


def load_torchvision(name: str, batch: int) -> ModelCase:
    alternative = f"use zoo:{name}" if name in ZOO else "use one of the zoo (nnvm bench --list)"
    require("torchvision", otherwise=alternative)
    try:
        from torchvision import models
    except Exception as error:  # Built for another torch: fails in its C++ operators with whatever comes first.
        raise BenchError(
            f"torchvision does not match torch {torch.__version__} ({error}): "
            f"pip install --upgrade torchvision, or {alternative}"
        ) from error
    known = torchvision_names()
    if name in set(models.list_models()) - set(known):
        raise BenchError(f"torchvision:{name} does not simply take a batch of float images; use FILE.py:FACTORY")
    if name not in known:
        raise BenchError(f"torchvision: no model {name!r}{suggestion(name, known)}")
    builder = models.get_model_builder(name)
    options: dict[str, Any] = (
        {"weights_backbone": None} if "weights_backbone" in inspect.signature(builder).parameters else {}
    )
    if name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True}
    shape = (3, 16, 112, 112) if ".video." in builder.__module__ + "." else (3, 224, 224)
    shape = (3, 299, 299) if name == "inception_v3" else shape
    return ModelCase(models.get_model(name, weights=None, **options), (torch.randn(batch, *shape),))


def load_timm(name: str, batch: int) -> ModelCase:
    require("timm", otherwise="use one of the zoo (nnvm bench --list)")
    import timm

    if not timm.is_model(name):
        raise BenchError(f"timm: no model {name!r}{suggestion(name, timm.list_models())}")
    module: nn.Module = timm.create_model(name, pretrained=False)
    channels, height, width = module.pretrained_cfg["input_size"]  # type: ignore[index]
    return ModelCase(module, (torch.randn(batch, channels, height, width),))


def load_file(path: str, factory: str, batch: int) -> ModelCase:
    """Calls ``factory`` of the file. It may take ``batch``; it returns module, inputs and, if it likes, a ``draw``."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise BenchError(f"no file {path}")
    namespace = importlib.util.module_from_spec(spec)
    # Both so that the file may import its neighbours, and so that its classes can be found again by name.
    sys.path.insert(0, str(Path(path).resolve().parent))
    sys.modules[spec.name] = namespace
    spec.loader.exec_module(namespace)
    function = getattr(namespace, factory, None)
    if not callable(function):
        names = [key for key, value in vars(namespace).items() if inspect.isfunction(value)]
        raise BenchError(f"{path} has no function {factory!r}{suggestion(factory, names)}")
    takes_batch = "batch" in inspect.signature(function).parameters
    if batch != 1 and not takes_batch:
        raise BenchError(f"{path}:{factory} takes no parameter `batch`, so --batch {batch} cannot be obeyed")
    made = function(batch=batch) if takes_batch else function()
    return case_of(made, f"{path}:{factory}")


def case_of(made: Any, where: str) -> ModelCase:
    if not isinstance(made, tuple | list) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise BenchError(f"{where} must return (module, example_inputs) or (module, example_inputs, draw)")
    inputs = (made[1],) if isinstance(made[1], torch.Tensor) else made[1]
    if not isinstance(inputs, tuple | list):
        raise BenchError(f"{where}: example_inputs must be a tuple of the module's positional arguments")
    return ModelCase(made[0], tuple(inputs), made[2] if len(made) == 3 else None)


def suggestion(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, dict.fromkeys(known), n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def torchvision_names() -> list[str]:
    """Those that take images or clips alone: no detection, optical flow or quantized models."""
    from torchvision import models

    return sorted(
        str(name)
        for module in (models, models.segmentation, models.video)
        for name in models.list_models(module=module)
    )


def timm_names() -> list[str]:
    import timm

    return [str(name) for name in timm.list_models()]


LOADERS: dict[str, Callable[[str, int], ModelCase]] = {
    "zoo": load_zoo,
    "torchvision": load_torchvision,
    "timm": load_timm,
    "hf": load_hf,
}
NAMES: dict[str, Callable[[], list[str]]] = {
    "zoo": lambda: [*ZOO, "whisper"],
    "torchvision": torchvision_names,
    "timm": timm_names,
    "hf": lambda: list(PUBLISHED),
}
SOURCES = tuple(LOADERS)


def model_names(source: str) -> list[str]:
    """Names that a source has; none where its package is missing or broken."""
    with contextlib.suppress(Exception):
        return NAMES[source]()
    return []


def split(spec: str) -> tuple[str, str] | None:
    """(source, name) of a spec with a prefix, (path, factory) of a file; None for a bare name."""
    if ".py:" in spec:
        path, _, factory = spec.rpartition(":")
        return path, factory
    source, colon, name = spec.partition(":")
    return (source, name) if colon else None


def resolve(spec: str) -> str:
    """The full spec of what the user typed; BenchError if it cannot be one. Builds nothing."""
    parts = split(spec)
    if parts is None:
        return resolve_bare(spec)
    source, name = parts
    if ".py:" in spec:
        if not Path(source).is_file():
            raise BenchError(f"no file {source}")
        return spec
    if source not in LOADERS:
        raise BenchError(f"unknown source {source!r} in {spec!r}; known: {', '.join(SOURCES)}, FILE.py:FACTORY")
    if source == "zoo" and name not in model_names("zoo"):
        raise BenchError(f"zoo: no model {name!r}{suggestion(name, model_names('zoo'))}")
    return spec


def resolve_bare(name: str) -> str:
    if name.endswith(".py"):
        raise BenchError(f"{name}: which function? Write {name}:FACTORY")
    if name in model_names("zoo"):
        return f"zoo:{name}"
    found = [source for source in SOURCES if name in model_names(source)]
    if len(found) == 1:
        return f"{found[0]}:{name}"
    if found:
        raise BenchError(f"{name!r} is in several places; write {' or '.join(f'{s}:{name}' for s in found)}")
    everything = [known for source in SOURCES for known in model_names(source)]
    raise BenchError(f"no model {name!r}{suggestion(name, everything) or '; see nnvm bench --list'}")


def load_model(spec: str, batch: int, dtype: torch.dtype, seed: int) -> ModelCase:
    """Builds the model in eval mode with meaningful random weights, the same ones in every process.

    Raises:
        BenchError: the name is unknown or a package is missing.
    """
    torch.manual_seed(seed)
    parts = split(spec)
    assert parts is not None, "resolve() comes first"
    if ".py:" in spec:
        case = load_file(*parts, batch)
        case.module.eval()
    else:
        case = LOADERS[parts[0]](parts[1], batch)
        case.module.eval()
        # A user's own weights are left alone: they may be real ones.
        generator = torch.Generator().manual_seed(seed)
        randomize_constant_parameters(case.module, generator)
        calibrate_batch_norms(case.module, case.inputs, generator)
    if dtype == torch.float32:
        return case
    inputs = tuple(x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in case.inputs)
    return ModelCase(case.module.to(dtype), inputs, case.draw)
