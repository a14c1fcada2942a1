"""The A/B benchmark: nnvm, eager PyTorch and other engines, each in its own process, in interleaved rounds.

``run`` is the command, ``driver`` the experiment, ``worker`` one engine's process, ``engines`` and ``models`` what can
be compared, ``report`` the table. ``python -m benchmarks`` runs whole suites through the same code.
"""
