"""Compiles a graph into one file, for several kinds of processors, that `nnvm.runtime.load` runs.

>>> from nnvm.artifact import compile_artifact
>>> compile_artifact(graph, params, "model.nnvm")                                 # every x86-64 with SSE4.2 or better
>>> compile_artifact(graph, params, "model.nnvm", [as_level("aarch64")])          # from any machine
"""

from nnvm.artifact.build import ArtifactInfo, NotCompilable, compile_artifact
from nnvm.artifact.levels import CpuLevel, as_level, default_levels

__all__ = ["ArtifactInfo", "CpuLevel", "NotCompilable", "as_level", "compile_artifact", "default_levels"]
