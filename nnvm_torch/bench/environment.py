"""What the PyTorch side of this installation is, for ``nnvm doctor`` and the packages that a benchmark records."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import torch

from nnvm.cpu_list import count_usable_cpus

__all__ = ["RECORDED", "openmp_runtimes", "torch_facts"]

#: Packages whose versions belong to a benchmark.
RECORDED = ("nnvm-torch", "torch", "llvmlite", "torchvision", "transformers", "timm", "onnxruntime", "openvino")


def openmp_runtimes() -> list[Path]:
    """OpenMP libraries that this process has loaded; more than one means two pools that can fight."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {Path(line.split(maxsplit=5)[5]) for line in lines if line.count("/")}
    return sorted(path for path in paths if path.name.startswith(("libgomp", "libiomp", "libomp")))


def openmp_threads(library: Path, wanted: int) -> int:
    """How many threads ``GOMP_parallel`` of the library really starts; 0 where it cannot be called."""
    try:
        function = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return 0
    seen: set[int] = set()
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.add(threading.get_ident()))
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    function(ctypes.cast(body, ctypes.c_void_p), None, wanted, 0)
    return len(seen)


def openmp_fact() -> str:
    runtimes = openmp_runtimes()
    if not runtimes:
        return "none found: kernels run on one thread"
    wanted = torch.get_num_threads()
    found = []
    for path in runtimes:
        started = openmp_threads(path, wanted)
        found.append(f"{path} ({f'usable, {started} threads' if started else 'NOT usable'})")
    return "; ".join(found)


def backend_fact() -> str:
    registered = "nnvm" in torch._dynamo.list_backends(exclude_tags=())
    return "registered" if registered else "NOT registered: pip install nnvm-torch (or pip install -e .)"


def torch_facts() -> list[tuple[str, str]]:
    """Lines for ``nnvm doctor``."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return [
        ("torch", torch.__version__),
        ("nnvm backend", backend_fact()),
        ("OpenMP", openmp_fact()),
        ("threads", f"{torch.get_num_threads()} of {count_usable_cpus()} usable cores"),
        ("GPU", gpu),
    ]
