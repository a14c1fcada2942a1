"""Compiles groups for GPUs that need not be in this machine; prints their resources as JSON.

Run in a process of its own: Triton either interprets or compiles.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from nnvm.runtime.triton_launch import TritonKernel, compile_launch
from nnvm.runtime.triton_resources import resources_of
from nnvm.target import Target
from tests.codegen.triton.groups import lowered


def main(targets: Sequence[str], names: Sequence[str]) -> None:
    for text in targets:
        target = Target.parse(text)
        for name in names:
            for launch in TritonKernel.of(lowered(name), target, name).steps:
                found = resources_of(compile_launch(launch.source(False), launch.func, target))
                told = {"group": name, "registers": found.registers, "shared": found.shared, "spilled": found.spilled}
                print(json.dumps({**told, "arch": target.cpu.removeprefix("sm_")}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1].split(","), sys.argv[2].split(","))
