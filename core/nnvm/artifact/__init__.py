"""Compiles a graph into one file, for several kinds of processors and GPUs, that `nnvm.runtime.load` runs.

>>> from nnvm.artifact import compile_artifact
>>> compile_artifact(graph, params, "model.nnvm")                                 # every x86-64 with SSE4.2 or better
>>> compile_artifact(graph, params, "model.nnvm", [as_level("aarch64")])          # from any machine
>>> compile_artifact(graph, params, "model.nnvm", [as_level("cuda -arch=sm_90")]) # cubins, made without the GPU
"""

from nnvm.artifact.build import ArtifactInfo, NotCompilable, compile_artifact, save_library
from nnvm.artifact.levels import CpuLevel, as_level, default_levels, level_of

__all__ = ["ArtifactInfo", "CpuLevel", "NotCompilable", "as_level", "compile_artifact", "default_levels",
           "level_of", "save_library"]  # fmt: skip
