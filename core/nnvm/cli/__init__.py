"""The ``nnvm`` command: the compiler and its benchmark from a shell."""
