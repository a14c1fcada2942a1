"""One of several processes whose compiled graphs have collectives: ``python -m tests.nnvm_torch.distributed_program
RANK SIZE FILE PART ...``, all with the same FILE, in which they meet. Prints each part that is right."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn

import nnvm_torch

close = torch.testing.assert_close
#: After so long a partner that does not come is an error.
PATIENCE = timedelta(seconds=120)


def compiled(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What the compiled function gives; its collectives are calls of torch.distributed, the rest is native."""
    nnvm_torch.reset()
    torch._dynamo.reset()
    results = torch.compile(fn, backend="nnvm", **options)(*args)
    report = nnvm_torch.report()
    assert report.kernels, fn.__name__
    assert report.fallbacks and all("c10d" in f.op for f in report.fallbacks), report
    return results


def data(rank: int) -> torch.Tensor:
    return torch.arange(8.0).reshape(4, 2) / 3 + rank


def collectives(rank: int, size: int) -> None:
    """Functional collectives, between operators that are fused around them."""
    group = dist.group.WORLD

    def several(x: torch.Tensor) -> Any:
        a = funcol.all_reduce(x * 2, "max", group) + 1
        b = funcol.all_gather_tensor(a * x, 0, group).relu()
        c = funcol.reduce_scatter_tensor(b + 1, "sum", 0, group) * 3
        return funcol.all_reduce(b.sum(0), "sum", group).softmax(-1), c, b.t() @ b

    close(compiled(several, data(rank), fullgraph=True), several(data(rank)))


def in_place(rank: int, size: int) -> None:
    """`torch.distributed`'s own calls, which write to their argument."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * (dist.get_rank() + 1)
        dist.all_reduce(y)
        return y + 1

    close(compiled(fn, data(rank)), fn(data(rank)))


def order(rank: int, size: int) -> None:
    """Collectives happen in the order of the program, also where the processes use the results in different orders, and
    where one does not use them at all."""
    group = dist.group.WORLD

    def fn(x: torch.Tensor) -> Any:
        a = funcol.all_reduce(x + 1, "sum", group)
        b = funcol.all_reduce(x * x, "max", group)
        c = funcol.all_gather_tensor(x.exp(), 0, group)
        return (c * 2, b - 1, a * 3) if rank == 0 else (a * 3 + b,)

    for _ in range(3):
        close(compiled(fn, data(rank), fullgraph=True), fn(data(rank)))


def exchange(rank: int, size: int) -> None:
    """Broadcast, all-to-all, uneven sizes, other types and gradients through collectives."""
    group = dist.group.WORLD

    def exchanged(x: torch.Tensor, n: torch.Tensor) -> Any:
        rows = [1, 3] if rank == 0 else [3, 1]  # to and from each process
        y = funcol.all_to_all_single(x * 2, rows, rows, group)
        return y + 1, funcol.broadcast(n + rank, 1, group) * 2, funcol.all_reduce(n.bfloat16(), "sum", group).float()

    if size == 2:
        args = data(rank), torch.arange(5) + rank
        close(compiled(exchanged, *args, fullgraph=True), exchanged(*args))

    def loss(x: torch.Tensor) -> torch.Tensor:
        whole = funcol.all_gather_tensor_autograd(x.tanh(), 0, group)
        return (whole * whole.cos()).sum() * (rank + 1)

    grads = []
    for run in (torch.compile(loss, backend="nnvm"), loss):
        x = data(rank).requires_grad_()
        run(x).backward()
        grads.append(x.grad)
    close(*grads)


def tensor_parallel(rank: int, size: int) -> None:
    """DTensor: layers split by columns and by rows, in eval and with gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 6))
    x = torch.randn(3, 8)
    want = m(x).detach()
    m(x).square().sum().backward()
    wanted = [p.grad for p in m.parameters()]
    m.zero_grad()
    mesh = init_device_mesh("cpu", (size,))
    parallel = parallelize_module(m, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    nnvm_torch.reset()
    torch._dynamo.reset()
    run = torch.compile(parallel, backend="nnvm")
    with torch.no_grad():
        close(run(x), want)
    assert nnvm_torch.report().kernels
    assert any("c10d" in f.op for f in nnvm_torch.report().fallbacks)
    run(x).square().sum().backward()
    close([p.grad.full_tensor() for p in parallel.parameters()], wanted)


class Network(nn.Module):
    """Dynamo leaves DDP's own code to Python and compiles the module inside; classes of torch.nn it passes by."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).tanh())  # type: ignore[no-any-return]


def data_parallel(rank: int, size: int) -> None:
    """DDP: three steps of training, as in eager, with equal parameters in all processes."""

    def train(compile: bool) -> list[torch.Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        m = Network()
        ddp = nn.parallel.DistributedDataParallel(m)
        run = torch.compile(ddp, backend="nnvm") if compile else ddp
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        torch.manual_seed(10 + rank)
        for _ in range(3):
            optimizer.zero_grad()
            run(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in m.parameters()]

    nnvm_torch.reset()
    got = train(True)
    assert {g.kind for g in nnvm_torch.report().graphs} == {"forward", "backward"}
    assert nnvm_torch.report().native_fraction == 1.0
    close(got, train(False), atol=1e-5, rtol=1e-4)
    for p in got:
        other = p.clone()
        dist.broadcast(other, 0)
        close(p, other, atol=0, rtol=0)


PARTS = {f.__name__: f for f in (collectives, in_place, order, exchange, tensor_parallel, data_parallel)}


def main(rank: int, size: int, meeting: str, parts: list[str]) -> None:
    torch.set_num_threads(1)
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # not by the host's name, which may lead nowhere
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=PATIENCE)
    for part in parts:
        PARTS[part](rank, size)
        dist.barrier()
        print(part, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
