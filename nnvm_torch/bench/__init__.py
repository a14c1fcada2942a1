"""PyTorch's side of the A/B benchmark (`nnvm.bench`): its models and the engines that run modules.

``run`` is the command, ``worker`` one engine's process, ``engines`` and ``models`` what can be compared.
``python -m benchmarks`` runs whole suites through the same code.
"""
