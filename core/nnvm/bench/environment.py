"""What somebody needs to know of a machine and an installation to judge the numbers of a benchmark."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnvm.cpu_list import count_usable_cpus
from nnvm.target import Target

__all__ = ["cpu_model", "environment", "package_version"]


def package_version(distribution: str) -> str | None:
    """The installed version; None where there is none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def cpu_model() -> str:
    """The processor's name as its maker writes it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def environment(packages: Sequence[str]) -> dict[str, Any]:
    """The machine, and the versions of those of `packages` that are installed."""
    host = Target.host()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "llvm_cpu": host.cpu,
        "vector_bits": host.vector_bits,
        "cores": os.cpu_count(),
        "usable_cores": count_usable_cpus(),
        "packages": {name: found for name in packages if (found := package_version(name)) is not None},
    }
