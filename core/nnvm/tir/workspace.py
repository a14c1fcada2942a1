"""Where `scratch` buffers lie in the workspace of one thread.

A buffer lives during its Allocate. Buffers nested in each other lie one behind the other; siblings share the same
bytes, as only one of them lives at a time. Every offset is a multiple of 64 bytes. A kernel that runs a parallel loop
has one workspace a thread, so a scratch buffer allocated outside a parallel loop and used inside it would not be
shared: `nnvm.tir.verify` refuses it.
"""

from __future__ import annotations

from nnvm.dim import Dim, ceildiv, dim_max, numel
from nnvm.te.expr import Buffer
from nnvm.tir.stmt import Allocate, For, If, Let, Seq, Stmt

__all__ = ["ALIGNMENT", "buffer_bytes", "scratch_offsets", "workspace_bytes"]

#: Bytes; a cache line, and the widest vector register.
ALIGNMENT = 64


def buffer_bytes(buffer: Buffer) -> Dim:
    """Bytes a dense or strided buffer spans, rounded up to `ALIGNMENT`; 0 when it has no elements."""
    if buffer.strides is None:
        elements = numel(buffer.shape)
    elif any(d == 0 for d in buffer.shape):
        elements = 0
    else:
        elements = 1
        for d, stride in zip(buffer.shape, buffer.strides):
            elements = elements + (d - 1) * stride
    return ceildiv(elements * buffer.dtype.bytes, ALIGNMENT) * ALIGNMENT


def workspace_bytes(stmt: Stmt) -> Dim:
    """Bytes of scratch that one thread needs to run `stmt`; a SymDim where a buffer's shape is symbolic."""
    return _place(stmt, 0, {})


def scratch_offsets(stmt: Stmt) -> dict[Buffer, Dim]:
    """Byte offset in the workspace of every scratch buffer that `stmt` allocates, outer before inner."""
    offsets: dict[Buffer, Dim] = {}
    _place(stmt, 0, offsets)
    return offsets


def _place(s: Stmt, start: Dim, offsets: dict[Buffer, Dim]) -> Dim:
    """Places the buffers of `s` from byte `start` on; returns the end of the furthest."""
    if isinstance(s, Allocate):
        if s.buffer.scope == "scratch":
            offsets[s.buffer] = start
            start = start + buffer_bytes(s.buffer)
        return _place(s.body, start, offsets)
    if isinstance(s, (For, Let)):
        return _place(s.body, start, offsets)
    if isinstance(s, Seq):
        inner = s.body
    elif isinstance(s, If):
        inner = (s.then,) if s.orelse is None else (s.then, s.orelse)
    else:
        return start
    end = start
    for x in inner:
        end = dim_max(end, _place(x, start, offsets))
    return end
