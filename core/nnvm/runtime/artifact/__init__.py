"""Compiled models in one file: `nnvm.runtime.load` runs what ``nnvm compile`` wrote, with numpy and llvmlite alone."""
