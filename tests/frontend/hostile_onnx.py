"""Damaged ONNX models: each ends in an error of ours or in an answer, within bounds of time and memory.

``python -m tests.frontend.hostile_onnx FIRST COUNT [-v]`` runs the damages FIRST, FIRST + 1, ...; each in a process of
its own with limits. What counts as a fault: a process that dies, an error that is not one of `OURS`, a run without an
end, and numbers that differ from those of the reference executor.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from hostile_mutations import damage
from hostile_seeds import seeds

from nnvm.compiler.build import BuildOptions
from nnvm.frontend.onnx import InvalidModel, UnsupportedModel, from_onnx
from nnvm.frontend.onnx.session import Session
from nnvm.kernel_error import KernelError
from nnvm.testing.reference import random_inputs, run_graph

#: Seconds of processor time, and bytes of memory, that one model may take.
SECONDS, MEMORY = 60, 3 << 30
#: The errors that a damaged model may end in.
OURS = (InvalidModel, UnsupportedModel, KernelError)
#: Elements of a result up to which it is compared with the reference executor.
COMPARED = 20_000


def attempt(data: bytes, folder: str) -> tuple[str, str]:
    """(outcome, what to say of it) of one file: imports, compiles and runs it."""
    path = os.path.join(folder, "model.onnx")
    Path(path).write_bytes(data)
    stage = "import"
    try:
        graph, params = from_onnx(path)
        sizes = {s: 2 for v in graph.inputs for d in v[0].type.shape if not isinstance(d, int) for s in _names(d)}
        stage = "compile"
        session = Session(graph, params, BuildOptions(opt_level=1))
        stage = "run"
        drawn = dict(zip((v.name for v in graph.inputs), random_inputs(graph, symbols=sizes)))
        got = session.run([drawn[v.name] for v in session.inputs])
        if (
            sum(g.size for g in got) > COMPARED
            or max((v[0].type.numel for v in graph.inputs if not sizes), default=0) > COMPARED
        ):
            return "ran", ""
        stage = "compare"
        with np.errstate(all="ignore"):
            want = run_graph(graph, {**drawn, **params}, sizes)
        for g, w in zip(got, want, strict=True):
            if g.dtype.kind == "f":
                np.testing.assert_allclose(g, w, rtol=2e-2, atol=1e-2)
            else:
                np.testing.assert_array_equal(g, w)
        return "ran", ""
    except OURS as e:
        return "refused", f"{type(e).__name__}: {e}"
    except MemoryError as e:
        return ("too large" if stage == "run" else "fault"), f"{stage}: MemoryError: {e}"
    except AssertionError as e:
        return "fault", f"{stage}: wrong: {' '.join(str(e).split())[:200]}"
    except BaseException as e:
        where = traceback.extract_tb(e.__traceback__)[-1]
        lines = [f for f in traceback.extract_tb(e.__traceback__) if "nnvm" in f.filename]
        at = lines[-1] if lines else where
        return "fault", f"{stage}: {type(e).__name__}: {str(e)[:160]} at {Path(at.filename).name}:{at.lineno}"


def _names(d):
    from nnvm.dim import symbols

    return symbols(d)


#: Damages that one process tries, one after the other, before the next one takes over.
BATCH = 16


def isolated(models: list[bytes]) -> list[tuple[str, str]]:
    """`attempt` of each, in a forked process with limits; what kills it counts against the one it was at, and another
    process goes on behind it."""
    outcomes: list[tuple[str, str]] = []
    while len(outcomes) < len(models):
        told, status = _process(models[len(outcomes) :])
        outcomes += told
        if len(outcomes) < len(models):
            outcomes.append(("fault", _death(status)))
    return outcomes


def _process(models: list[bytes]) -> tuple[list[tuple[str, str]], int]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "weights.bin").write_bytes(bytes(64))
        os.symlink("/etc/hostname", os.path.join(folder, "link.bin"))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            _child(models, folder, read, write)
        os.close(write)
        told = []
        with os.fdopen(read, "rb") as pipe:
            while select.select([pipe], [], [], SECONDS * 8)[0]:
                try:
                    told.append(pickle.load(pipe))
                except EOFError:
                    break
            else:
                os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return told, status


def _death(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"the process ended with {os.WEXITSTATUS(status)}"
    name = signal.Signals(os.WTERMSIG(status)).name
    return "no end: it ran out of time" if name in ("SIGXCPU", "SIGKILL") else f"the process died of {name}"


def _child(models: list[bytes], folder: str, read: int, write: int) -> None:
    os.close(read)
    with contextlib.suppress(Exception):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        with os.fdopen(write, "wb", buffering=0) as pipe:
            for data in models:
                spent = int(time.process_time())
                resource.setrlimit(resource.RLIMIT_CPU, (spent + SECONDS, resource.RLIM_INFINITY))
                pipe.write(pickle.dumps(attempt(data, folder)))
        os._exit(0)
    os._exit(77)


def sweep(first: int, count: int, cases: bool, verbose: bool = False) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Outcomes, and the faults as (number of the damage, what happened)."""
    models, outcomes, faults = seeds(cases), Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for data in seeds():  # what is imported and set up now is there in every process
            outcome, text = attempt(data, folder)
            assert outcome == "ran", text
    gc.freeze()  # so that the processes share more memory
    start = time.monotonic()
    for batch in range(first, first + count, BATCH):
        numbers = range(batch, min(batch + BATCH, first + count))
        told = isolated([damage(models[i % len(models)], i) for i in numbers])
        for i, (outcome, text) in zip(numbers, told, strict=True):
            outcomes[outcome] += 1
            if outcome == "fault":
                faults.append((i, text))
            if verbose or outcome == "fault":
                print(f"{i} {outcome} {' '.join(text.split())[:300]}", flush=True)
        if batch // 400 != (batch + BATCH) // 400:
            print(f"-- up to {batch}, {time.monotonic() - start:.0f} s: {dict(outcomes)}", flush=True)
    return outcomes, faults


def main(args: list[str]) -> int:
    verbose = "-v" in args
    first, count = (int(a) for a in args if a != "-v")
    outcomes, faults = sweep(first, count, cases=True, verbose=verbose)
    print(f"{count} damaged models: {dict(outcomes)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["0", "5000"]))
