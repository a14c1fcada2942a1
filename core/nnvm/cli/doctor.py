"""``nnvm doctor``: what this machine and installation offer, and what is missing."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys

from nnvm import config
from nnvm.bench.environment import package_version
from nnvm.cpu_list import count_usable_cpus
from nnvm.target import Target

from .command import Command

__all__ = ["COMMAND"]

#: Packages that bring something but are not required: distribution, what for.
OPTIONAL = (
    ("onnx", "nnvm.frontend.onnx"),
    ("triton", "kernels for the GPU"),
    ("transformers", "nnvm bench hf:NAME"),
    ("torchvision", "nnvm bench torchvision:NAME"),
    ("timm", "nnvm bench timm:NAME"),
    ("onnxruntime", "nnvm bench --against onnxruntime"),
    ("openvino", "nnvm bench --against openvino"),
    ("onnxscript", "nnvm bench --against onnxruntime,openvino"),
    ("ziglang", "nnvm export-c without a C compiler"),
)


def compiler_facts() -> list[tuple[str, str]]:
    """What the compiler sees without torch."""
    facts = [
        ("nnvm-torch", package_version("nnvm-torch") or "runs from a source tree, not installed"),
        ("python", f"{platform.python_version()} ({sys.executable})"),
        ("platform", platform.platform()),
        ("numpy", package_version("numpy") or "missing: pip install numpy"),
    ]
    try:
        import llvmlite.binding as llvm
    except ImportError as error:
        return [*facts, ("llvmlite", f"cannot be imported ({error}): pip install llvmlite")]
    host = Target.host()
    facts += [
        ("llvmlite", f"{package_version('llvmlite')}, LLVM {'.'.join(map(str, llvm.llvm_version_info))}"),
        ("host CPU", f"{host.cpu} ({host.triple}), {count_usable_cpus()} cores usable"),
        ("features", " ".join(host.features)),
        ("vector width", f"{host.vector_bits} bits, {host.lanes()} float32"),
    ]
    if str(Target.current()) != str(host):
        facts.append(("NNVM_TARGET", str(Target.current())))
    return facts


def cache_fact() -> tuple[str, str]:
    if not config.object_cache_enabled():
        return "object cache", "off (NNVM_CACHE=0)"
    folder = config.cache_dir()
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    writable = os.access(parent, os.W_OK)
    return "object cache", f"{folder}{'' if writable else ' (NOT writable: nothing is kept)'}"


def torch_facts() -> list[tuple[str, str]]:
    """What torch brings, from the PyTorch side where it can be imported."""
    try:
        facts: list[tuple[str, str]] = importlib.import_module("nnvm_torch.bench.environment").torch_facts()
    except ModuleNotFoundError as error:
        hint = {"torch": "pip install torch", "nnvm_torch": "pip install nnvm-torch"}.get(error.name or "")
        return [("torch", f"missing: {hint}" if hint else f"broken: {error}")]
    except Exception as error:  # A torch that cannot be loaded is exactly what a doctor must be able to say.
        return [("torch", f"broken: {type(error).__name__}: {error}")]
    return facts


def package_facts() -> list[tuple[str, str]]:
    facts = []
    for name, purpose in OPTIONAL:
        found = package_version(name)
        facts.append((name, f"{found} ({purpose})" if found else f"not installed ({purpose}): pip install {name}"))
    return facts


def print_section(title: str, facts: list[tuple[str, str]]) -> None:
    print(title)
    for name, value in facts:
        print(f"  {name:<14} {value}")
    print()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the same as JSON")


def run(args: argparse.Namespace) -> int:
    sections = {
        "Compiler": [*compiler_facts(), cache_fact()],
        "PyTorch": torch_facts(),
        "Optional packages": package_facts(),
    }
    if args.json:
        print(json.dumps({title: dict(facts) for title, facts in sections.items()}, indent=2))
        return 0
    for title, facts in sections.items():
        print_section(title, facts)
    return 0


COMMAND = Command(
    "doctor",
    "show what this machine and installation offer",
    "Show the versions, the processor, the OpenMP runtime, the cache and the optional packages that nnvm finds.",
    add_arguments,
    run,
)
