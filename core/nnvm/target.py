"""What to compile for. A Target is plain data: equal targets give equal code.

`Target.host()` is this machine; `Target.parse("llvm -mcpu=haswell")` is another one of the same architecture, and
`Target.parse("cuda -arch=sm_90")` or `Target.parse("hip -arch=gfx942")` a GPU, which need not be in this machine.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from . import config
from .cpu_list import read_cpu_list

__all__ = ["Target"]

#: Vector registers (count, bits) by the feature that brings them, widest first.
_VECTORS = (("avx512f", 32, 512), ("avx2", 16, 256), ("avx", 16, 256), ("sse2", 16, 128), ("neon", 32, 128))


#: Kinds of GPUs: the architecture where none is named, and the LLVM triple.
_GPUS = {"cuda": ("sm_90", "nvptx64-nvidia-cuda"), "hip": ("gfx942", "amdgcn-amd-amdhsa")}
_ARCH = {"cuda": re.compile(r"sm_\d{2,3}a?"), "hip": re.compile(r"gfx[0-9a-f]{3,4}")}


@dataclass(frozen=True)
class Target:
    """A machine to compile for.

    Attributes:
        kind: ``llvm`` (a CPU), ``cuda`` or ``hip`` (a GPU), or ``reference`` (numpy, by the ops' definitions).
        cpu: LLVM's name of the processor (``haswell``, ``sapphirerapids``, ``sm_90``, ``gfx942``).
        features: LLVM's feature names that it has, sorted; of a GPU ``tf32`` where products of float32 may be rounded
            to it.
        triple: LLVM target triple.
        l1_bytes, l2_bytes: data caches of one core, for blocking.
    """

    kind: str
    cpu: str
    features: tuple[str, ...]
    triple: str
    l1_bytes: int = 32 << 10
    l2_bytes: int = 512 << 10

    #: Bytes that come from beyond the second cache in a cycle.
    far_bytes_per_cycle: ClassVar[int] = 6
    #: Multiply-adds that are written out in an innermost loop: as many as the instruction caches like.
    unrolled_work: ClassVar[int] = 64
    #: Tiles of a Winograd convolution that share one reading of the weight, at most; more make the sums longer than the
    #: caches like and the loads of the weight no fewer.
    winograd_tiles: ClassVar[int] = 64

    @staticmethod
    def host() -> Target:
        """This machine."""
        return _host()

    @staticmethod
    def current() -> Target:
        """`NNVM_TARGET` where it is set, this machine otherwise; ValueError where it is not understood."""
        text = config.target_string()
        if not text:
            return Target.host()
        try:
            return Target.parse(text)
        except ValueError as e:
            raise ValueError(f"NNVM_TARGET={text!r}: {e}") from None

    @staticmethod
    def parse(text: str) -> Target:
        """A Target from ``kind [-mcpu=NAME] [-mtriple=TRIPLE] [-arch=NAME] [-mtf32]``; ValueError says what was not
        understood."""
        return _parse(text)

    @property
    def is_gpu(self) -> bool:
        return self.kind in _GPUS

    def is_far(self, nbytes: int) -> bool:
        """Whether so many bytes come so slowly to one core, as less of them is in the caches, that work shares a
        reading of them."""
        return nbytes > 8 * self.l2_bytes

    @property
    def has_kernels(self) -> bool:
        """Whether groups become kernels of ours that work on the graph's own memory; others are devices of their
        own, to which nodes are placed."""
        return self.kind == "llvm" or self.is_gpu

    def has(self, feature: str) -> bool:
        return feature in self.features

    @property
    def vector_bits(self) -> int:
        """Width of a vector register in bits."""
        return next((bits for name, _, bits in _VECTORS if name in self.features), 128)

    @property
    def vector_registers(self) -> int:
        """Number of vector registers."""
        return next((count for name, count, _ in _VECTORS if name in self.features), 16)

    @property
    def has_fma(self) -> bool:
        return self.has("fma") or self.has("avx512f") or self.triple.startswith("aarch64")

    def lanes(self, bits: int = 32) -> int:
        """Elements of `bits` bits in one vector register."""
        return max(1, self.vector_bits // max(bits, 8))

    def __str__(self) -> str:
        if self.is_gpu:
            return f"{self.kind} -arch={self.cpu}" + "".join(f" -m{f}" for f in self.features)
        return f"{self.kind} -mcpu={self.cpu}"


@lru_cache
def _host() -> Target:
    import llvmlite.binding as llvm

    found = llvm.get_host_cpu_features()
    features = tuple(sorted(name for name, on in found.items() if on))
    return Target("llvm", llvm.get_host_cpu_name(), features, llvm.get_process_triple(), *_host_caches())


def _host_caches(folder: Path = Path("/sys/devices/system/cpu/cpu0")) -> tuple[int, int]:
    """Bytes of the first and second data cache of one core, as Linux tells them; usual sizes where it does not."""
    found = [Target.l1_bytes, Target.l2_bytes]
    threads = max(1, len(read_cpu_list(folder / "topology" / "thread_siblings_list")))
    for cache in sorted(folder.glob("cache/index*")):
        try:
            level, kind = int((cache / "level").read_text()), (cache / "type").read_text().strip()
            text = (cache / "size").read_text().strip()
            size = int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)
        except (OSError, ValueError):
            continue
        cores = max(1, len(read_cpu_list(cache / "shared_cpu_list")) // threads)
        if kind != "Instruction" and level in (1, 2) and size >> 13 > 0:
            found[level - 1] = size // cores
    return found[0], max(found)


@lru_cache
def _parse(text: str) -> Target:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"target {text!r}: {error}") from error
    kinds = ("llvm", *_GPUS, "reference")
    if not words or words[0] not in kinds:
        raise ValueError(f"target {text!r} must begin with one of {', '.join(kinds)}, as in 'llvm -mcpu=haswell'")
    if words[0] in _GPUS:
        return _parse_gpu(text, words)
    options: dict[str, str] = {}
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name not in ("-mcpu", "-mtriple") or not value:
            raise ValueError(f"target {text!r}: {word!r} is none of -mcpu=NAME, -mtriple=TRIPLE")
        options[name] = value
    host = _host()
    if words[0] == "reference":
        return Target("reference", "numpy", (), host.triple)
    if "-mcpu" not in options and "-mtriple" not in options:
        return host
    triple, cpu = options.get("-mtriple", host.triple), options.get("-mcpu", "generic")
    return Target("llvm", cpu, _features_of(cpu, triple), triple)


def _parse_gpu(text: str, words: list[str]) -> Target:
    kind = words[0]
    arch, triple = _GPUS[kind]
    features: tuple[str, ...] = ()
    for word in words[1:]:
        name, _, value = word.partition("=")
        if word == "-mtf32" and kind == "cuda":
            features = ("tf32",)
        elif name == "-arch" and _ARCH[kind].fullmatch(value):
            arch = value
        else:
            allowed = "-arch=sm_NN, -mtf32" if kind == "cuda" else "-arch=gfxNNN"
            raise ValueError(f"target {text!r}: {word!r} is none of {allowed}")
    return Target(kind, arch, features, triple)


#: Features by processor level, as far as schedules look at them (LLVM itself knows the rest from the name).
_LEVELS: dict[str, tuple[str, ...]] = {
    "x86-64": ("sse2",),
    "x86-64-v2": ("sse2", "sse4.1", "sse4.2", "ssse3", "popcnt"),
    "x86-64-v3": ("sse2", "sse4.1", "sse4.2", "ssse3", "popcnt", "avx", "avx2", "fma", "f16c", "bmi", "bmi2"),
}
_LEVELS["x86-64-v4"] = (*_LEVELS["x86-64-v3"], "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd")
_LEVEL_OF = {
    "nehalem": "x86-64-v2", "westmere": "x86-64-v2", "haswell": "x86-64-v3", "broadwell": "x86-64-v3",
    "skylake": "x86-64-v3", "znver1": "x86-64-v3", "znver2": "x86-64-v3", "znver3": "x86-64-v3",
    "skylake-avx512": "x86-64-v4", "icelake-server": "x86-64-v4", "cascadelake": "x86-64-v4",
    "sapphirerapids": "x86-64-v4", "emeraldrapids": "x86-64-v4", "znver4": "x86-64-v4", "znver5": "x86-64-v4",
}  # fmt: skip


def _features_of(cpu: str, triple: str) -> tuple[str, ...]:
    arch = triple.partition("-")[0]
    level = cpu if cpu in _LEVELS else _LEVEL_OF.get(cpu)
    if arch in ("aarch64", "arm64"):
        if level is not None:
            raise ValueError(f"processor {cpu!r} is none of {triple}")
        return ("neon",)
    if arch not in ("x86_64", "amd64"):
        raise ValueError(f"triple {triple!r} is of no architecture that there is code for: x86_64, aarch64")
    if cpu == "generic":
        return _LEVELS["x86-64"]
    if level is None:
        raise ValueError(f"processor {cpu!r} is not known; known: {', '.join(sorted({*_LEVELS, *_LEVEL_OF}))}")
    return tuple(sorted(_LEVELS[level]))
