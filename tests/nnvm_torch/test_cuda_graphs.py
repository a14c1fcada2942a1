"""Calls captured in CUDA graphs, with a double of torch.cuda: order of calls, addresses, and what the caller keeps."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nnvm_torch
from nnvm.runtime import instances
from nnvm_torch import cuda_graphs
from nnvm_torch.tensors import TorchMemory
from tests.nnvm_torch.cuda_double import CudaDouble, Graph, record_launches

pytestmark = pytest.mark.triton
GPU = {"target": "cuda -arch=sm_90"}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaDouble:
    double = CudaDouble()
    monkeypatch.setattr(cuda_graphs, "cuda", double)
    monkeypatch.setattr(cuda_graphs, "serves", lambda device: True)
    monkeypatch.setattr(cuda_graphs, "_pools", {})
    # as on a GPU, a call takes its arena from the allocator: one in a capture belongs to the graph
    monkeypatch.setattr(TorchMemory, "keeps_arenas", property(lambda self: False, lambda self, value: None), False)
    record_launches(double, monkeypatch)
    return double


def compiled(model: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    nnvm_torch.reset()
    return torch.compile(model, backend="nnvm", options={**GPU, **options})


class Net(nn.Module):
    """Several launches, of which two read weights as they are and one packed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.last = nn.Linear(12, 16), nn.LayerNorm(16), nn.Linear(16, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(torch.relu(self.first(x)))).softmax(-1)


def close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-6)


def test_the_second_call_captures_and_each_output_is_the_callers(cuda: CudaDouble) -> None:
    model = Net().eval()
    fast = compiled(model)
    inputs = [torch.randn(5, 12) for _ in range(6)]
    with torch.no_grad():
        results = [fast(x) for x in inputs]
        for got, x in zip(results, inputs):
            close(got, model(x))
    assert len({r.data_ptr() for r in results}) == 6
    assert cuda.events.count("replay") == 5
    assert cuda.events[:4] == ["wait", "capture", "wait", "replay"]
    assert cuda.events.count("capture") == 1  # all addresses differ: one graph with inputs of its own
    assert nnvm_torch.report().graphs[0].cuda_graph == "captured from the second call on"
    assert "CUDA graph: captured" in str(nnvm_torch.report())


def test_addresses_that_come_again_are_read_in_place(cuda: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net().eval()
    fast = compiled(model)
    x = torch.randn(5, 12)
    filled = []
    fill = cuda_graphs._Captured._fill
    monkeypatch.setattr(cuda_graphs._Captured, "_fill",
                        lambda self, inputs: (filled.append(self._inputs is not None), fill(self, inputs)))  # fmt: skip
    with torch.no_grad():
        for _ in range(5):
            x.copy_(torch.randn(5, 12))
            close(fast(x), model(x))
    assert cuda.events.count("capture") == 2  # at the second call it is not yet known that they come again
    assert filled[-2:] == [False, False]


def test_graphs_for_addresses_are_few(cuda: CudaDouble) -> None:
    model = Net().eval()
    fast = compiled(model)
    inputs = [torch.randn(5, 12) for _ in range(9)]
    with torch.no_grad():
        for _ in range(3):
            for x in inputs:
                close(fast(x), model(x))
    assert cuda.events.count("capture") == 1 + cuda_graphs.MAX_ADDRESSES


def test_weights_that_change(cuda: CudaDouble) -> None:
    model = Net().eval()
    fast = compiled(model)
    x = torch.randn(5, 12)
    with torch.no_grad():
        for _ in range(3):
            close(fast(x), model(x))
        for p in model.parameters():
            p.add_(0.3)
        for _ in range(3):
            close(fast(x), model(x))
        model.load_state_dict({k: v * 0.5 for k, v in model.state_dict().items()})
        close(fast(x), model(x))
        model.first.weight = nn.Parameter(torch.randn(16, 12))
        for _ in range(3):
            close(fast(x), model(x))
    assert "replay" in cuda.events


def test_calls_of_aten_between_the_launches(cuda: CudaDouble) -> None:
    def plain(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = torch.sort(x.exp() * 2, -1)
        return (values + 1).softmax(-1) * values.sum(0), places

    fast = compiled(plain)
    for _ in range(4):
        x = torch.randn(7, 9)
        with torch.no_grad():
            got, expected = fast(x), plain(x)
        close(got[0], expected[0])
        torch.testing.assert_close(got[1], expected[1])
    assert cuda.events.count("replay") == 3


@pytest.mark.parametrize(("model", "why"), [
    (lambda x: F.dropout((x + 1).softmax(-1), 0.5, True).softmax(0).softmax(-1), "random numbers"),
    (lambda x: x + 1, "1 launches"),
    (lambda x: torch.linalg.inv(x.softmax(-1)[:, :4].softmax(0)).softmax(-1).softmax(0), "waits for the GPU"),
])  # fmt: skip
def test_what_is_not_captured_says_why(cuda: CudaDouble, model: Any, why: str) -> None:
    fast = compiled(model)
    x = torch.randn(4, 9)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            got = fast(x)
        if "random" not in why:
            torch.testing.assert_close(got, model(x), rtol=1e-3, atol=1e-4)
    assert "capture" not in cuda.events
    reasons = [g.cuda_graph for g in nnvm_torch.report().graphs]
    assert any(why in r for r in reasons), reasons


def dynamic(model: Any) -> Any:
    torch._dynamo.reset()
    nnvm_torch.reset()
    return torch.compile(model, backend="nnvm", options=GPU, dynamic=True)


def test_each_size_that_comes_again_has_its_graph(cuda: CudaDouble) -> None:
    model = Net().eval()
    fast = dynamic(model)
    captures, kept = [], []
    with torch.no_grad():
        for n in (5, 7, 5, 7, 5, 9, 7):
            x = torch.randn(n, 12)
            kept.append((fast(x), model(x), x))  # x: so that no address comes again
            captures.append(cuda.events.count("capture"))
    for got, expected, _ in kept:
        close(got, expected)
    assert captures == [0, 0, 1, 2, 2, 2, 2]
    assert cuda.events.count("replay") == 4
    assert nnvm_torch.report().graphs[0].cuda_graph == "captured from the second call of a size on"


def test_two_sizes_and_a_size_as_a_number(cuda: CudaDouble) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.cat([x.softmax(-1) * x.shape[0], y.relu()]).softmax(0)
        return z.softmax(1) / z.shape[0]

    fast = dynamic(model)
    with torch.no_grad():
        for _ in range(3):
            for m, n in ((3, 4), (4, 3), (4, 4)):
                x, y = torch.randn(m, 6), torch.randn(n, 6)
                close(fast(x, y), model(x, y))
    assert cuda.events.count("capture") >= 2
    assert cuda.events.count("replay") >= 4


def test_graphs_of_sizes_are_few_and_those_not_used_for_longest_go(
    cuda: CudaDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "MAX_SIZES", 2)
    monkeypatch.setattr(cuda_graphs, "MAX_LOST", 2)
    model = Net().eval()
    fast = dynamic(model)
    kept: list[torch.Tensor] = []  # so that no address comes again, for which there would be a graph of its own

    def captures(*sizes: int) -> int:
        before = cuda.events.count("capture")
        with torch.no_grad():
            for n in sizes:
                kept.append(x := torch.randn(n, 12))
                close(fast(x), model(x))
        gc.collect()
        return cuda.events.count("capture") - before

    assert captures(3, 4, 5) == 0
    assert captures(3, 4) == 2
    assert captures(3, 5) == 1  # 4 has to go, as 3 was used after it
    assert captures(3, 5) == 0
    assert captures(4) == 1  # 3 goes
    assert len(cuda.alive) == 2
    replays = cuda.events.count("replay")
    assert captures(3, 3, 6, 6, 6) == 0  # two were lost: no more captures
    assert cuda.events.count("replay") == replays
    assert captures(4, 5) == 0
    assert cuda.events.count("replay") == replays + 2


def test_a_graph_keeps_what_its_launches_write(cuda: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "MAX_INSTANCES", 1)
    model = Net().eval()
    fast = dynamic(model)
    kept: list[torch.Tensor] = []  # so that no address comes again, for which there would be a graph of its own
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of a call that failed and ran in ATen instead
        for n in (5, 5, 6, 7, 5):  # the executor forgets 5 long before the graph is used again
            kept.append(x := torch.randn(n, 12))
            close(fast(x), model(x))
            gc.collect()
    assert cuda.events.count("capture") == 1
    assert cuda.events.count("replay") == 2


def test_the_option_turns_it_off(cuda: CudaDouble) -> None:
    model = Net().eval()
    for how in ({"options": {**GPU, "cuda_graphs": False}},):
        torch._dynamo.reset()
        fast = torch.compile(model, backend="nnvm", **how)
        x = torch.randn(5, 12)
        with torch.no_grad():
            for _ in range(3):
                close(fast(x), model(x))
    assert not cuda.events
    assert not nnvm_torch.options.Options.make(mode="max-autotune-no-cudagraphs").cuda_graphs
    assert nnvm_torch.options.Options.make(mode="max-autotune").cuda_graphs


def test_training_is_not_captured(cuda: CudaDouble) -> None:
    model = Net()
    fast = compiled(model)
    for _ in range(3):
        x = torch.randn(5, 12)
        fast(x).square().sum().backward()
    assert not cuda.events


def test_inside_a_capture_of_the_callers_own(cuda: CudaDouble) -> None:
    model = Net().eval()
    fast = compiled(model)
    x = torch.randn(5, 12)
    cuda.users_capture = True
    with torch.no_grad():
        for _ in range(3):
            close(fast(x), model(x))
    assert not cuda.events


def test_a_capture_that_fails_is_given_up(cuda: CudaDouble) -> None:
    model = Net().eval()
    fast = compiled(model)
    cuda.fails = True
    before = cuda.current_stream()
    x = torch.randn(5, 12)
    with torch.no_grad(), pytest.warns(UserWarning, match="cannot be captured in a CUDA graph"):
        for _ in range(4):
            close(fast(x), model(x))
    assert cuda.events.count("capture") == 1 and "replay" not in cuda.events
    assert cuda.current_stream() is before and cuda.capturing is None


def test_each_stream_has_its_own_graphs_and_pool(cuda: CudaDouble) -> None:
    model = Net().eval()
    fast = compiled(model)
    other = cuda.Stream()
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(5, 12)
            close(fast(x), model(x))
            with cuda.stream(other):
                close(fast(x), model(x))
    assert cuda.events.count("capture") >= 2
    assert len(set(cuda_graphs._pools.values())) == 2


def test_several_threads(cuda: CudaDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, began = Graph.capture_begin, threading.Event()

    def slowly(self: Graph, **how: Any) -> None:
        begin(self, **how)
        began.set()
        time.sleep(0.2)  # the others call meanwhile

    monkeypatch.setattr(Graph, "capture_begin", slowly)
    model = Net().eval()
    fast = compiled(model)
    with torch.no_grad():
        fast(torch.randn(5, 12))
    wrong = []

    def call(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            kept = []
            for _ in range(4):
                x = torch.randn(5, 12, generator=generator)
                kept.append((fast(x), model(x)))
            wrong.extend(1 for got, right in kept if not torch.allclose(got, right, rtol=2e-5, atol=2e-6))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(3)]
    threads[0].start()
    assert began.wait(60)
    for t in threads[1:]:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and cuda.events.count("replay") >= 9
    assert len({len(g.steps) for g in cuda.alive}) == 1  # none holds launches of another thread


def test_inputs_with_strides_and_inference_mode(cuda: CudaDouble) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.t().softmax(-1) + y).softmax(0).softmax(-1)

    fast = compiled(model)
    for _ in range(3):
        x, y = torch.randn(6, 4), torch.randn(4, 1).expand(4, 6)
        with torch.inference_mode():
            close(fast(x, y), model(x, y))
    for _ in range(3):
        x, y = torch.randn(6, 4), torch.randn(4, 1).expand(4, 6)
        with torch.no_grad():
            close(fast(x, y), model(x, y))


def test_an_index_out_of_bounds_still_raises(cuda: CudaDouble) -> None:
    table = nn.Embedding(6, 8)

    def model(i: torch.Tensor) -> torch.Tensor:
        return table(i).softmax(-1).softmax(0).softmax(1)

    fast = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            i = torch.randint(0, 6, (5,))
            close(fast(i), model(i))
        with pytest.raises(IndexError):
            fast(torch.tensor([1, 2, 3, 9, 0]))
        i = torch.randint(0, 6, (5,))
        close(fast(i), model(i))


def test_graphs_go_with_the_model(cuda: CudaDouble) -> None:
    model = Net().eval()
    fast = compiled(model)
    x = torch.randn(5, 12)
    with torch.no_grad():
        for _ in range(4):
            close(fast(x), model(x))
    assert len(cuda.alive) == 2
    del fast, model
    torch._dynamo.reset()
    gc.collect()
    assert len(cuda.alive) == 0
