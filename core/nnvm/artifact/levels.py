"""The processors and GPUs that an artifact is compiled for, and all that each must have for the code to run.

A `Target` names the features that schedules look at. LLVM uses whatever a processor's name implies: the rest of it,
as far as it changes the code of kernels, is listed here, so that code is only picked where all of it is there.
"""

from __future__ import annotations

from dataclasses import dataclass

from nnvm.target import Target

__all__ = ["CpuLevel", "as_level", "default_levels", "level_of"]

#: What the levels of the x86-64 psABI have beside the features of `Target`.
_PSABI = {
    "x86-64": (),
    "x86-64-v2": ("sse3", "cx16", "sahf"),
    "x86-64-v3": ("sse3", "cx16", "sahf", "lzcnt", "movbe", "xsave"),
}  # fmt: skip
_ICELAKE = ("avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512ifma", "gfni", "vaes",
            "vpclmulqdq")  # fmt: skip
_SAPPHIRE = (*_ICELAKE, "avx512fp16", "avx512bf16", "avxvnni")
_ZEN4 = (*_ICELAKE, "avx512bf16", "sse4a")
#: What single processors have beside their level.
_PROCESSORS = {
    "cascadelake": ("avx512vnni",), "icelake-server": _ICELAKE, "sapphirerapids": _SAPPHIRE,
    "emeraldrapids": _SAPPHIRE, "znver1": ("sse4a",), "znver2": ("sse4a",), "znver3": ("sse4a",), "znver4": _ZEN4,
    "znver5": (*_ZEN4, "avxvnni", "avx512vp2intersect"),
}  # fmt: skip
#: Short names of targets.
_SHORT = {
    "aarch64": "llvm -mtriple=aarch64-unknown-linux-gnu",
    "x86-64-v2": "llvm -mcpu=x86-64-v2 -mtriple=x86_64-unknown-linux-gnu",
    "x86-64-v3": "llvm -mcpu=x86-64-v3 -mtriple=x86_64-unknown-linux-gnu",
    "x86-64-v4": "llvm -mcpu=x86-64-v4 -mtriple=x86_64-unknown-linux-gnu",
}  # fmt: skip


@dataclass(frozen=True)
class CpuLevel:
    """A kind of processor, or of GPU.

    Attributes:
        name: as an artifact calls it.
        target: what is compiled for.
        features: all that a processor must have, in LLVM's names, sorted; of a GPU its architecture.
    """

    name: str
    target: Target
    features: tuple[str, ...]


def as_level(text: str) -> CpuLevel:
    """A level from a target (``llvm -mcpu=haswell``, ``cuda -arch=sm_90``), ``host``, or ``x86-64-v2``, ``-v3``,
    ``-v4``, ``aarch64``.

    ValueError says what was not understood, or that the target is neither a CPU nor a CUDA GPU.
    """
    target = Target.host() if text == "host" else Target.parse(_SHORT.get(text, text))
    return level_of(target)


def level_of(target: Target) -> CpuLevel:
    """The level of a target; ValueError where an artifact holds no code for it."""
    if target.kind == "cuda":
        return CpuLevel("-".join((target.kind, target.cpu, *target.features)), target, (target.cpu,))
    if target.kind != "llvm":
        raise ValueError(f"target '{target}' is neither a CPU nor a CUDA GPU; an artifact holds code for these "
                         "(llvm -mcpu=..., aarch64, cuda -arch=sm_90)")  # fmt: skip
    arch = target.triple.partition("-")[0]
    if target == Target.host():
        return CpuLevel(f"{target.cpu}-host", target, target.features)
    if arch != "x86_64":
        return CpuLevel(f"{arch}-{target.cpu}" if target.cpu != "generic" else arch, target, target.features)
    level = "x86-64-v3" if target.has("avx2") else "x86-64-v2" if target.has("sse4.2") else "x86-64"
    features = {*target.features, *_PSABI[level], *_PROCESSORS.get(target.cpu, ())}
    return CpuLevel("x86-64" if target.cpu == "generic" else target.cpu, target, tuple(sorted(features)))


def default_levels() -> tuple[CpuLevel, ...]:
    """The levels for machines like this one: SSE4.2, AVX2 and AVX-512 on x86-64; its own elsewhere."""
    arch = Target.host().triple.partition("-")[0]
    if arch in ("x86_64", "amd64"):
        triple = Target.host().triple
        return tuple(as_level(f"llvm -mcpu=x86-64-v{n} -mtriple={triple}") for n in (2, 3, 4))
    return (as_level(f"llvm -mtriple={Target.host().triple}"),)
