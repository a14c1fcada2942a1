"""A double of torch.cuda's streams and graphs, on the CPU: what is captured is recorded, what is replayed runs again.

Launches of ours are recorded where a program of them runs, ATen's calls by a dispatch mode. Everything runs while it is
captured, too, but at the end of a capture all memory that was made in it is overwritten, as a capture computes nothing.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nnvm.runtime.triton_launch import LaunchProgram


class CudaDouble:
    """In place of ``torch.cuda``.

    Attributes:
        events: what happened: ``capture``, ``replay``, ``wait`` in order.
        copies: calls of ``copy_`` outside of graphs, by number of bytes.
        alive: graphs that were not dropped.
        fails: launches in a capture raise, and so does its end.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fails = False
        self.users_capture = False
        self._local = threading.local()
        self._streams = 1
        self._pools = 0
        self.alive: weakref.WeakSet[Graph] = weakref.WeakSet()

    @property
    def capturing(self) -> Graph | None:
        """What this thread captures: what other threads launch meanwhile goes to streams of their own."""
        return getattr(self._local, "capturing", None)

    @capturing.setter
    def capturing(self, graph: Graph | None) -> None:
        self._local.capturing = graph

    def CUDAGraph(self) -> Graph:
        made = Graph(self)
        self.alive.add(made)
        return made

    def Stream(self, device: Any = None) -> Any:
        self._streams += 1
        return Stream(self, self._streams)

    def current_stream(self) -> Any:
        if not hasattr(self._local, "stream"):
            self._local.stream = Stream(self, 1)
        return self._local.stream

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self._local.stream = self.current_stream(), stream
        try:
            yield
        finally:
            self._local.stream = before

    def graph_pool_handle(self) -> int:
        self._pools += 1
        return self._pools

    def is_current_stream_capturing(self) -> bool:
        return self.users_capture or self.capturing is not None


class Stream(SimpleNamespace):
    def __init__(self, double: CudaDouble, number: int) -> None:
        super().__init__(double=double, cuda_stream=number, device=torch.device("cpu"))

    def wait_stream(self, other: Stream) -> None:
        self.double.events.append("wait")


class Graph(TorchDispatchMode):
    """A captured graph; `steps` are run at a replay."""

    def __init__(self, double: CudaDouble) -> None:
        super().__init__()
        self.double = double
        self.steps: list[Callable[[], Any]] = []
        self.made: list[torch.Tensor] = []
        self.pool: Any = None

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        assert self.double.capturing is None and self.double.current_stream().cuda_stream != 1
        assert capture_error_mode == "thread_local"
        self.double.events.append("capture")
        self.double.capturing, self.pool = self, pool
        self.__enter__()

    def capture_end(self) -> None:
        assert self.double.capturing is self
        self.double.capturing = None
        self.__exit__(None, None, None)
        if self.double.fails:
            raise RuntimeError("operation failed due to a previous error during capture")
        for t in self.made:
            ctypes.memset(t.data_ptr(), 0xA5, t.untyped_storage().nbytes())

    def replay(self) -> None:
        assert self.steps and self.double.capturing is None
        self.double.events.append("replay")
        for step in self.steps:
            step()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        results = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        if "empty" in func._schema.name:
            self.made += results
        elif func._schema.is_mutable:
            self.steps.append(lambda: func(*args, **kwargs))
        elif not any(r.alias_info is not None for r in func._schema.returns):
            self.made += results

            def again() -> None:
                for mine, new in zip(results, tree_leaves(func(*args, **kwargs))):
                    mine.copy_(new)

            self.steps.append(again)
        else:
            self.steps.append(lambda held=results: None)  # views stay valid
        return out


def record_launches(double: CudaDouble, monkeypatch: Any) -> None:
    """From now on launches in a capture become steps of the graph."""
    run = LaunchProgram.run

    def recorded(self: LaunchProgram, bases: Any, workspace: int, threads: int) -> None:
        if double.capturing is not None and double.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        run(self, bases, workspace, threads)
        if double.capturing is not None:
            kept, program = type(bases).from_buffer_copy(bases), weakref.ref(self)

            def again() -> None:
                launches = program()
                assert launches is not None, "what captured launches write, their flags, is gone"
                run(launches, kept, workspace, threads)

            double.capturing.steps.append(again)

    monkeypatch.setattr(LaunchProgram, "run", recorded)
