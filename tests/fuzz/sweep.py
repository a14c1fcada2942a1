"""Many models, in child processes that may crash or hang, one after the other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, TextIO

from tests.fuzz.check import Fault, check, classified
from tests.fuzz.generate import generate
from tests.fuzz.program import Program
from tests.fuzz.shrink import shrink

__all__ = ["Sweep", "same_kind"]

#: Seconds that one model may take.
LIMIT = 240.0
#: Models that one child checks before a new one is forked: what compiled code and caches take is given back.
PER_CHILD = 40

#: Kinds of faults whose detail tells which of them are the same.
TELLING = ("raises", "compiler", "conversion", "no-error", "fuzzer")


def _in_child(work: Callable[..., Any], args: tuple[Any, ...], pipe: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    import torch
    import torch._dynamo.guards

    torch.set_num_threads(1)
    # Dynamo times its guards once a compilation, after emptying the processor's caches
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[assignment]
    try:
        work(*args, pipe.send)
    except BaseException:
        pipe.send(traceback.format_exc())
    pipe.close()
    os._exit(0)


def _forked(work: Callable[..., Any], *args: Any) -> tuple[Any, Connection]:
    mine, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(work, args, theirs))
    child.start()
    theirs.close()
    return child, mine


def _check_some(make: Callable[[int], Program], seeds: list[int], send: Callable[[Any], None]) -> None:
    for seed in seeds:
        try:
            fault, torchs_own = classified(make(seed))
        except Exception:
            fault, torchs_own = Fault("fuzzer", traceback.format_exc(limit=-3)), False
        send((seed, fault, torchs_own))


def _check_one(program: Program, backend: str, send: Callable[[Any], None]) -> None:
    send(check(program, backend))


def alone(program: Program, limit: float = LIMIT, backend: str = "nnvm") -> Fault | None:
    """`check` in a child: a crash and a hang are faults as well."""
    child, pipe = _forked(_check_one, program, backend)
    try:
        answer = pipe.recv() if pipe.poll(limit) else Fault("timeout", f"more than {limit:.0f} s")
    except EOFError:
        child.join()
        answer = Fault("crash", f"exit code {child.exitcode}")
    if child.is_alive():
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    pipe.close()
    return answer if answer is None or isinstance(answer, Fault) else None


def same_kind(a: Fault, b: Fault | None) -> bool:
    """The same fault as far as can be told: the kind, and for errors the beginning of what they say."""
    if b is None or a.kind != b.kind:
        return False
    return a.kind not in TELLING or a.detail[:40] == b.detail[:40]


@dataclass
class Sweep:
    """Checks models and prints what differs.

    Attributes:
        make: the model of a seed.
        checked: models so far.
        faults: (seed, fault, smallest model found).
        torchs_own: kinds of the differences that aot_eager shows too, with their seeds.
    """

    out: TextIO = sys.stdout
    shrink_seconds: float = 90.0
    make: Callable[[int], Program] = generate
    checked: int = 0
    faults: list[tuple[int, Fault, Program]] = field(default_factory=list)
    torchs_own: list[tuple[int, Fault]] = field(default_factory=list)

    def run(self, seeds: Iterable[int], seconds: float = float("inf")) -> None:
        """Checks the models of `seeds`, until the time is over."""
        left, end = list(seeds), time.monotonic() + seconds
        while left and time.monotonic() < end:
            done = self._some(left[:PER_CHILD])
            del left[:done]
            if self.checked % (5 * PER_CHILD) == 0:
                self.say(f"{self.checked} models so far")

    def _some(self, seeds: list[int]) -> int:
        """Checks seeds in one child; gives how many were dealt with, at least one."""
        child, pipe = _forked(_check_some, self.make, seeds)
        done = 0
        for seed in seeds:
            try:
                answer = (
                    pipe.recv() if pipe.poll(LIMIT) else (seed, Fault("timeout", f"more than {LIMIT:.0f} s"), False)
                )
            except EOFError:
                child.join()
                answer = (seed, Fault("crash", f"exit code {child.exitcode}"), False)
            if isinstance(answer, str):
                raise RuntimeError(answer)
            done += 1
            if answer[1] is not None and answer[1].kind == "crash":  # eager's own integer division can end the process
                answer = (*answer[:2], same_kind(answer[1], alone(self.make(seed), backend="eager")))
            self._note(*answer)
            if answer[1] is not None and answer[1].kind in ("timeout", "crash"):
                break
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
        child.join()
        pipe.close()
        return done

    def _note(self, seed: int, fault: Fault | None, torchs_own: bool) -> None:
        self.checked += 1
        if fault is None:
            return
        if torchs_own:
            self.torchs_own.append((seed, fault))
            self.say(f"seed {seed}: torch's own: {fault}")
            return
        program = self.make(seed)
        if any(same_kind(fault, f) and fault.kind in TELLING for _, f, _ in self.faults):
            self.faults.append((seed, fault, program))
            self.say(f"seed {seed}: as before: {fault}")
            return
        if fault.kind != "fuzzer" and self.shrink_seconds:
            program = shrink(program, lambda p: same_kind(fault, alone(p)), self.shrink_seconds)
        self.faults.append((seed, fault, program))
        self.say(f"seed {seed}: FAULT {fault}\n{program.model_source()}\n{program.inputs_source()}\n")

    def say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def summary(self) -> str:
        lines = [f"{self.checked} models, {len(self.faults)} faults, {len(self.torchs_own)} differences of torch's own"]
        for title, kinds in (("faults", [f.kind for _, f, _ in self.faults]),
                             ("torch's own", [f.kind for _, f in self.torchs_own])):  # fmt: skip
            lines += (
                [f"{title}: " + ", ".join(f"{n} {kind}" for kind, n in Counter(kinds).most_common())] if kinds else []
            )
        return "\n".join(lines)
