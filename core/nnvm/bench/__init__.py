"""The A/B benchmark: engines side by side, each in its own process, in interleaved rounds.

``driver`` is the experiment, ``process`` and ``session`` the two ends of one engine's process, ``report`` the table,
``onnx`` the engines that ONNX files run in. The models and engines of PyTorch are ``nnvm_torch.bench``.
"""
