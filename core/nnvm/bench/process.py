"""The driver's end of a worker: starts it, talks to it with a time limit, and makes sure that it ends."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from .channel import Channel, Message
from .config import REFERENCE, BenchConfig, Job
from .engine import Side
from .pinning import pinned, thread_environment

__all__ = ["Worker", "WorkerFailed"]


class WorkerFailed(Exception):
    """A step did not succeed. ``reason`` is one line for the table, ``detail`` a traceback or the end of the log."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


class Worker:
    """A running worker process. A context manager: leaving it ends the process."""

    def __init__(self, model: str, engine: str, config: BenchConfig, side: Side) -> None:
        self.timeout = config.timeout
        self.folder = tempfile.TemporaryDirectory(prefix="nnvm-bench-", ignore_cleanup_errors=True)
        folder = Path(self.folder.name)
        self.log = folder / "log.txt"
        (folder / "files").mkdir()
        with pinned(config.cores), self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", side.worker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=worker_environment(engine, config, side, folder),
                start_new_session=True,  # so that the processes an engine starts can be ended with it
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.channel = Channel(self.process.stdout, self.process.stdin)  # type: ignore[arg-type]
        self.answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        threading.Thread(target=self.listen, daemon=True).start()
        job = Job(model, engine, config.threads, config.cores, config.batch, config.dtype, config.seed,
                  str(folder / "files"), config.shapes, config.inputs)  # fmt: skip
        with contextlib.suppress(OSError):  # It may be dead already; the first request says so.
            self.channel.send(job.to_json())

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def listen(self) -> None:
        """Moves answers to the queue, so that waiting for one can have a time limit on every system."""
        message: Message | None = {}
        while message is not None:
            try:
                message = self.channel.receive()
            except (OSError, ValueError):
                message = None
            self.answers.put(message)

    def request(self, command: str, **arguments: object) -> Message:
        """Has the worker do something and waits for the answer.

        Raises:
            WorkerFailed: it failed, died, or took longer than the time limit, in which case it is ended.
        """
        with contextlib.suppress(OSError):
            self.channel.send({"do": command, **arguments})
        try:
            message = self.answers.get(timeout=self.timeout)
        except queue.Empty:
            self.close()
            raise WorkerFailed(f"{command} took longer than {self.timeout:g} s (--timeout)", self.log_tail()) from None
        if message is None:
            raise WorkerFailed(f"died during {command}: {self.cause_of_death()}", self.log_tail())
        if "failed" in message:
            raise WorkerFailed(message["failed"], message["traceback"])
        return message

    def cause_of_death(self) -> str:
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        if status >= 0:
            last = [line for line in self.log_tail().splitlines() if line.strip()][-1:]
            return " ".join([f"exit status {status}", *last])
        name = signal.Signals(-status).name
        return f"{name}, perhaps out of memory" if name == "SIGKILL" else name

    def log_tail(self, lines: int = 30) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def close(self) -> None:
        """Ends the process and those it started. Its files go with it."""
        if self.process.poll() is None:
            with contextlib.suppress(OSError):
                if hasattr(os, "killpg"):
                    os.killpg(self.process.pid, signal.SIGKILL)
                else:
                    self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        self.folder.cleanup()


def worker_environment(engine: str, config: BenchConfig, side: Side, folder: Path) -> dict[str, str]:
    """This process's environment with the thread count, offline hubs and, unless they are kept, fresh caches."""
    openmp = side.reference_openmp if engine == REFERENCE else side.find(engine).openmp
    variables = {**os.environ, **thread_environment(config.threads, config.cores, openmp)}
    variables |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    # A worker must find what this process finds, also in a source tree that is not installed.
    variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if not config.keep_caches:
        caches = folder / "caches"
        variables |= {
            "NNVM_CACHE": str(caches / "nnvm"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
        }
    return variables
