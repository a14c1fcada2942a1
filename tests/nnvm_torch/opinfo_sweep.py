"""PyTorch's operator and module databases through `torch.compile(backend="nnvm", fullgraph=True)`.

    python tests/nnvm_torch/opinfo_sweep.py --dtypes float32,bfloat16 --ops '^softmax' --out sweep.jsonl

Each entry runs in a child that is forked from a process with torch loaded, under a time limit: a crash is a result.
Statuses, from good to bad:

    pass      every sample equals eager's answer
    skip      nothing to judge: eager, Dynamo or AOTAutograd do not take the call either
    numerics  right, but more than twice as far from the float64 answer as eager's (plus one ulp)
    mismatch  wrong values, types or structure          error    nnvm raised where aot_eager does not
    timeout   killed after --timeout seconds            crash    the child died

The calls of an entry are compiled as one first, and one by one where something is wrong with that.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import os
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from opinfo_cases import Case, Verdict, cases, judge, run, samples, together, uninitialised
from opinfo_cases import Sample as Call
from torch.testing._internal import common_methods_invocations

import nnvm_torch

ORDER = ("pass", "skip", "numerics", "mismatch", "error", "timeout", "crash")
Record = dict[str, Any]
#: A child that is idle is killed after so many times its processor time.
WALL = 20


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dtypes", default="float32", help="comma separated (default float32)")
    p.add_argument("--kinds", default="op", help="op, eval, train (modules), comma separated (default op)")
    p.add_argument("--ops", metavar="REGEX", help="only entries in whose name this is found")
    p.add_argument("--samples", type=int, default=4, help="calls of each entry (default 4)")
    p.add_argument("--limit", type=int, help="a random choice of so many cases")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=1, help="children at a time (default 1)")
    p.add_argument("--timeout", type=float, default=60, help="seconds of processor time for one case (default 60)")
    p.add_argument("--out", metavar="FILE", help="JSON lines, one record for each case")
    p.add_argument("--verbose", action="store_true", help="print passes too, and fallbacks")
    opt = p.parse_args()
    chosen = list(cases([getattr(torch, d) for d in opt.dtypes.split(",")], opt.kinds.split(","), opt.ops))
    if opt.limit is not None:
        random.Random(opt.seed).shuffle(chosen)
        del chosen[opt.limit :]
    warm_up()
    records: list[Record] = []
    with open(opt.out or os.devnull, "w") as out:
        for record in sweep(chosen, opt):
            records.append(record)
            print(json.dumps(record), file=out, flush=True)
            if opt.verbose or record["status"] not in ("pass", "skip"):
                print(*_lines(record, opt.verbose), sep="\n    ", flush=True)
    print(summary(records))
    return int(any(ORDER.index(r["status"]) > ORDER.index("skip") for r in records))


def warm_up() -> None:
    """Imports once what every child would import."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # a process of one thread can be forked; --jobs uses the cores
    # the database's own wrapper around operators cannot be traced; seeds are set by `run`
    common_methods_invocations.wrapper_set_seed = lambda op, *a, **k: op(*a, **k)
    for backend in ("aot_eager", "nnvm"):
        judged = Call("", lambda x: torch.nn.functional.linear(x, x) + 1, (torch.ones(2, 2),), {})
        run(judged, lambda fn, b=backend: torch.compile(fn, backend=b))
    torch._dynamo.reset()
    nnvm_torch.reset()
    # Dynamo times its guards once a compilation, after emptying the processor's caches: a tenth of a second each
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    from torch._dynamo.funcname_cache import get_funcname

    get_funcname(common_methods_invocations.__file__, 1)  # Dynamo reads this file of 27,000 lines once a process


def sweep(chosen: Sequence[Case], opt: argparse.Namespace) -> Iterator[Record]:
    """Records in the order in which the cases end."""
    queue, running = list(reversed(chosen)), []
    while queue or running:
        while queue and len(running) < opt.jobs:
            running.append(Running(queue.pop(), opt))
        wait([r.connection for r in running], timeout=0.5)
        for r in list(running):
            if (record := r.poll()) is not None:
                running.remove(r)
                yield record


class Running:
    """One case in its child."""

    def __init__(self, case: Case, opt: argparse.Namespace) -> None:
        context = mp.get_context("fork")
        self.case, self.limit, self.start, self.at = case, opt.timeout, time.monotonic(), "the first sample"
        self.connection, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=child, args=(theirs, case, opt))
        self.process.start()
        theirs.close()

    def poll(self) -> Record | None:
        """The record, None while the child is at work."""
        record: Record | None = None
        seconds = time.monotonic() - self.start
        try:
            while record is None and self.connection.poll():
                tag, value = self.connection.recv()
                self.at, record = (value, None) if tag == "at" else (self.at, value)
        except (EOFError, ConnectionResetError):
            self.process.join()
            late = self.process.exitcode == -signal.SIGXCPU
            record = {"status": "timeout" if late else "crash", "detail": [f"{self.process.exitcode} at {self.at}"]}
        if record is None and seconds > WALL * self.limit:  # it waits for something
            os.kill(self.process.pid or 0, signal.SIGKILL)
            record = {"status": "timeout", "detail": [f"after {seconds:.0f} s at {self.at}"]}
        if record is None:
            return None
        self.process.join()
        self.connection.close()
        about = {"op": self.case.name, "kind": self.case.kind, "dtype": str(self.case.dtype)[6:]}
        return {**about, **record, "seconds": round(seconds, 2)}


def child(connection: Connection, case: Case, opt: argparse.Namespace) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(opt.timeout), math.ceil(opt.timeout) + 5))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    statuses: Counter[str] = Counter()
    detail, fallbacks = [], {}
    try:
        for i, sample, verdict in judged(connection, case, opt):
            statuses[verdict.status] += 1
            fallbacks.update(dict.fromkeys(verdict.fallbacks))
            if verdict.detail:
                detail.append(f"sample {i} {verdict.status}: {verdict.detail} [{sample.text}]"[:700])
    except Exception as e:
        where = "; ".join(traceback.format_exc(limit=-1).splitlines()[1:2])
        detail.append(f"the database itself: {type(e).__name__}: {e} {where}"[:400])
    worst = max((s for s in statuses if s != "skip"), key=ORDER.index, default="skip")
    record = {"status": worst, "samples": dict(statuses), "detail": detail, "fallbacks": list(fallbacks)}
    connection.send(("done", record))
    connection.close()
    os._exit(0)


def judged(connection: Connection, case: Case, opt: argparse.Namespace) -> Iterator[tuple[int, Call, Verdict]]:
    """The calls of a case with their verdicts."""
    calls = list(samples(case, opt.samples, opt.seed))
    values = not uninitialised(case)
    if case.kind == "op" and len(calls) > 1:
        connection.send(("at", "all samples"))
        verdict = judge(together(calls), values)
        if verdict.status == "pass":
            yield from ((i, call, verdict) for i, call in enumerate(calls))
            return
    for i, call in enumerate(calls):
        connection.send(("at", f"sample {i}: {call.text}"[:300]))
        yield i, call, judge(call, values)


def _lines(record: Record, verbose: bool) -> list[str]:
    head = f"{record['status']:8} {record['op']} {record['kind']} {record['dtype']} {record['seconds']} s"
    return [head, *record["detail"][:2], *(record.get("fallbacks", []) if verbose else [])]


def summary(records: Sequence[Record]) -> str:
    """Counts by dtype and kind, and how many entries compile with no fallback node."""
    columns = sorted({(r["kind"], r["dtype"]) for r in records})
    lines = [f"{'':12}" + "".join(f"{kind + ' ' + dtype:>16}" for kind, dtype in columns)]
    of = {c: [r for r in records if (r["kind"], r["dtype"]) == c] for c in columns}
    for status in ORDER:
        lines.append(f"{status:12}" + "".join(f"{sum(r['status'] == status for r in of[c]):16}" for c in columns))
    ran = {c: [r for r in of[c] if r["status"] != "skip"] for c in columns}
    native = {c: sum(not r.get("fallbacks") for r in ran[c]) for c in columns}
    lines.append(f"{'no fallback':12}" + "".join(f"{native[c]} of {len(ran[c])}".rjust(16) for c in columns))
    causes = Counter(f.partition(":")[0] for r in records for f in r.get("fallbacks", ()))
    if causes:
        lines.append("in ATen: " + ", ".join(f"{op} {n}" for op, n in causes.most_common(20)))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
