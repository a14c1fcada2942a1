"""ONNX files side by side in nnvm, ONNX Runtime and OpenVINO, without PyTorch.

``run`` is the command, ``worker`` one engine's process, ``inputs`` what models are fed with.
"""
