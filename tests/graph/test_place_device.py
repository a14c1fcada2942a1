"""PlaceDevice: wishes, borders, fewest copies, reasons; and graphs that really run on two devices."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

import nnvm
import nnvm.symbol as sym
from nnvm.attribute import AttrScope
from nnvm.compiler.build import BuildOptions, compile_graph
from nnvm.dim import symbol
from nnvm.dtype import BF16
from nnvm.graph import Graph, OpPattern, TensorType, apply, get, load_json, register, variable
from nnvm.graph.device_copy import device_copy
from nnvm.graph.device_wishes import PlacementError
from nnvm.graph.max_flow import FlowNetwork
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.passes.device_assignment import Flow, assign, total_cost
from nnvm.graph.passes.gradient import gradient
from nnvm.graph.verify import verify
from nnvm.runtime.device import DeviceRuntime, copy_on_host, register_runtime
from nnvm.runtime.executor import Executor
from nnvm.runtime.memory import NumpyMemory
from nnvm.runtime.plan import DeviceStep, KernelStep
from nnvm.runtime.reference_device import REFERENCE
from nnvm.target import Target
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import const, graph, op, ops, param, scalar, var

register(
    "test.only_numpy", inputs=["x"], infer_type=lambda attrs, t: (t[0],), pattern=OpPattern.OPAQUE,
    reference=lambda attrs, x: (x * 3 + 1,), doc="An op that only numpy can run.",
)  # fmt: skip
register(
    "test.only_llvm", inputs=["x"], infer_type=lambda attrs, t: (t[0],), pattern=OpPattern.ELEMWISE,
    compute=lambda attrs, x, t: get("negative").attr("compute")({}, x, t), doc="An op that numpy cannot run.",
)  # fmt: skip


def place(g, wishes=(), **options):
    out = apply_passes(g.with_attrs(typed=True), ["PlaceDevice"],
                       PassContext(verify=True, options={"device_wishes": dict(wishes), **options}))  # fmt: skip
    for node in out.nodes:
        if not node.is_variable and node.op.name != "device_copy":
            assert {e.type.device for e in node.inputs} <= {node.types[0].device}, node
    assert all(e.type.device == "cpu" for e in out.outputs)
    return out


def copies(g):
    return [n.name for n in g.nodes if n.op.name == "device_copy"]


def on(g, device):
    """Names of the nodes on a device."""
    return [
        n.name
        for n in g.nodes
        if not n.is_variable and not n.is_constant and n.op.name != "device_copy" and n.types[0].device == device
    ]


def compiled(g, wishes=(), **options):
    """(compiled graph, function on arrays in the order of the graph's inputs)."""
    settings = {"device_wishes": dict(wishes), **options}
    built = compile_graph(g.with_attrs(typed=True), BuildOptions(verify=True, options=settings))
    return built, lambda arrays: run(built, arrays)


def run(built, arrays):
    def executor(part):
        return Executor(part.plan, NumpyMemory(), [e.node.attrs["value"] for e in part.plan.constants])

    prepared = []
    if built.prepare is not None:
        by_name = {v.name: a for v, a in zip(built.graph.inputs, arrays)}
        prepared = executor(built.prepare).run([by_name[v.name] for v in built.prepare.graph.inputs])
    return executor(built).run([*arrays, *prepared])


def check(g, wishes=(), count=None, **options):
    """Compiles and runs; values as without devices. Gives the compiled graph."""
    built, call = compiled(g, wishes, **options)
    arrays = random_inputs(g, seed=3)
    for got, expected in zip(call(arrays), run_graph(g, arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=3e-6 * (1 + np.abs(expected).max(initial=0)))
    if count is not None:
        assert sum(n.op.name == "device_copy" for n in built.graph.nodes) == count
    return built


def chain(x, *names):
    for name in names:
        x = op(name.rstrip("_0123456789"), x, at=name)
    return x


# Assignment


def test_fewest_copies_against_every_assignment():
    rng = np.random.default_rng(0)
    devices = ("cpu", "a", "b")
    for case in range(150):
        count = int(rng.integers(2, 7))
        used = devices[: 2 + case % 2]
        allowed = {i: ((used[rng.integers(len(used))],) if rng.random() < 0.4 else used) for i in range(count)}
        flows = [Flow(p, tuple(int(r) for r in rng.choice([i for i in range(count) if i != p], rng.integers(1, count),
                                                          replace=False)), int(rng.integers(1, 9)), rng.random() < 0.2)
                 for p in range(count)]  # fmt: skip
        chosen = assign(allowed, flows, used)
        assert all(chosen[i] in allowed[i] for i in allowed)
        every = itertools.product(*(allowed[i] for i in range(count)))
        best = min(total_cost(dict(enumerate(c)), flows, "cpu") for c in every)
        assert total_cost(chosen, flows, "cpu") == best


def test_least_cut():
    network = FlowNetwork()
    a, b = network.vertex(), network.vertex()
    for start, end, capacity in ((network.SOURCE, a, 5), (a, b, 2), (b, network.SINK, 4), (network.SOURCE, b, 1)):
        network.edge(start, end, capacity)
    assert network.source_side() == {network.SOURCE, a}


# The pass


def test_without_wishes_nothing_changes():
    g = graph(chain(var("x", 4), "relu", "exp")).with_attrs(typed=True)
    assert apply_passes(g, ["PlaceDevice"], PassContext()) is g


def test_copies_stand_exactly_at_the_borders():
    g = place(graph(chain(var("x", 4), "relu", "exp", "negative", "abs")), {"exp": "reference", "abs": "cpu"})
    assert on(g, "reference") == ["exp"] and copies(g) == ["relu.to_reference", "exp.to_cpu"]
    assert str(g).count("@reference") == 2
    assert apply_passes(g, ["PlaceDevice"], PassContext(verify=True)) is g


def test_one_copy_for_each_value_and_destination():
    a = chain(var("x", 4), "relu")
    readers = [op(n, a, at=n) for n in ("exp", "tanh", "abs", "negative")]
    g = place(graph(readers), {"exp": "reference", "tanh": "reference"})
    assert copies(g) == ["relu.to_reference", "exp.to_cpu", "tanh.to_cpu"]
    assert on(g, "cpu") == ["relu", "abs", "negative"]


def test_what_no_wish_speaks_of_goes_where_fewest_copies_are_made():
    # exp and log are wished there; what stands between them stays there, and the reduced value goes back
    g = place(graph(op("sum", chain(var("x", 4, 8), "exp", "relu", "tanh", "log"), axis=(1,), at="sum")),
              {"exp": "reference", "log": "reference"})  # fmt: skip
    assert on(g, "reference") == ["exp", "relu", "tanh", "log", "sum"] and copies(g) == ["x.to_reference", "sum.to_cpu"]
    two = chain(var("x", 4, 8), "relu")
    wide = op("broadcast_to", op("reshape", two, shape=(1, 4, 8)), shape=(16, 4, 8), at="wide")
    g = place(graph(op("exp", wide, at="exp")), {"relu": "cpu", "exp": "reference"})
    assert on(g, "reference") == ["wide", "exp"], "the smaller value is the one that is copied"


def test_parameters_weigh_less_as_they_are_copied_once():
    x, w = chain(var("x", 4, 8), "relu"), param("w", 8, 8)
    g = place(graph(chain(op("dense", x, w, at="fc"), "exp")), {"relu": "reference", "exp": "reference"})
    assert on(g, "reference") == ["relu", "fc", "exp"] and "w.to_reference" in copies(g)
    placement = g.attrs["placement"]
    assert (placement.copies, placement.once) == (2, 1) and "2 copies a call, 1 once" in str(placement)


def test_a_way_there_and_back_without_work_disappears():
    x = var("x", 4, 6)
    there = device_copy(chain(x, "relu"), "reference", "there")
    back = device_copy(op("reshape", there, shape=(24,), at="flat"), "cpu", "back")
    g = place(graph(chain(back, "exp")))
    assert not copies(g) and ops(g) == ["relu", "reshape", "exp"]
    again = device_copy(device_copy(there, "cpu", "b1"), "reference", "b2")
    g = place(graph(chain(again, "exp")))
    assert copies(g) == ["relu.to_reference", "exp.to_cpu"] and on(g, "reference") == ["exp"]
    # a view on its own is not worth a copy, whoever wishes it
    g = place(graph(chain(op("reshape", chain(x, "relu"), shape=(24,), at="flat"), "exp")), {"flat": "reference"})
    assert not copies(g) and "computes nothing" in g.attrs["placement"].reasons["flat"]


def test_a_wish_that_its_device_cannot_fulfil():
    g = place(graph(chain(op("test.only_llvm", chain(var("x", 4), "relu"), at="mine"), "exp")),
              {"mine": "reference", "exp": "reference"})  # fmt: skip
    assert on(g, "cpu") == ["relu", "mine"] and g.attrs["placement"].moved == ("mine",)
    assert re.search(
        r"# mine on cpu: wished on reference \(the wish for 'mine'\), but test.only_llvm has no ref", str(g)
    )
    g = place(graph(op("test.only_numpy", chain(var("x", 4), "relu"), at="mine")), devices=("reference",))
    assert on(g, "reference") == ["mine"] and "cpu cannot run it" in g.attrs["placement"].reasons["mine"]


def test_what_has_no_inputs_is_made_on_the_host():
    full = op("full", shape=(4,), value=2.0, at="made")
    g = graph(op("multiply", chain(var("x", 4), "exp"), full, at="m"))
    placed = place(g, {"made": "reference", "m": "reference"})
    assert copies(placed) == ["exp.to_reference", "made.to_reference", "m.to_cpu"]
    assert "has no inputs and is made on cpu" in placed.attrs["placement"].reasons["made"]
    check(g, {"made": "reference", "m": "reference"})


def test_wishes_that_cannot_be():
    g = graph(chain(var("x", 4), "relu"))
    with pytest.raises(PlacementError, match=r"'relu' of relu names 'tpu:0'.*known kinds? of.*cpu, cuda, reference"):
        place(g, {"relu": "tpu:0"})
    with pytest.raises(PlacementError, match=r"'layer\*' fits no node of the graph, whose nodes are relu"):
        place(g, {"layer*": "reference"})
    with pytest.raises(PlacementError, match=r"known kinds of devices"):
        place(g, devices=("cpu:1",))
    register("test.nobody", inputs=["x"], infer_type=lambda attrs, t: (t[0],), pattern=OpPattern.OPAQUE)
    with pytest.raises(PlacementError, match=r"no device can run test.nobody n \(cpu: .*; reference: .*numpy\)"):
        place(graph(op("test.nobody", var("x", 4), at="n")), devices=("reference",))


def test_nodes_and_groups_wish_too():
    with AttrScope(device_group="tail"):
        tail = sym.exp(sym.relu(sym.Variable("x", shape=(4,)), name="a"), name="b", attr={"device": "cpu"})
    head = sym.tanh(tail, name="c", attr={"device_group": "head"})
    g = place(head.graph(), device_groups={"tail": "reference", "head": "cpu"})
    assert on(g, "reference") == ["a"] and g.attrs["placement"].reasons["a"] == "its attribute __device_group__"
    with pytest.raises(PlacementError, match=r"names 'tail', which is neither a group \(known: head: cpu\)"):
        place(head.graph(), device_groups={"head": "cpu"})
    said = head.graph().with_attrs(
        device_groups=(("tail", "cpu"), ("head", "cpu")), device_wishes=(("?", "reference"),)
    )
    assert on(place(said), "reference") == [], "a node's own wish wins"


def test_three_devices():
    g = graph(chain(var("x", 4), "relu", "exp", "tanh", "abs", "log1p"))
    placed = place(g, {"relu": "reference:0", "abs": "reference:1", "log1p": "cpu"})
    assert len(copies(placed)) == 3
    check(g, {"relu": "reference:0", "abs": "reference:1", "log1p": "cpu"}, count=3)


# What runs


def test_two_devices_run_for_real():
    x = var("x", 4, 16)
    w, b = param("w", 8, 16), param("b", 8)
    y = op("softmax", op("add", op("dense", x, w, at="fc"), b, at="bias"), axis=-1, at="soft")
    built = check(graph([op("exp", y, at="e"), chain(y, "log1p")]), {"soft": "reference"}, count=2)
    kinds = [type(s) for s in built.plan.steps]
    assert kinds == [KernelStep, DeviceStep, DeviceStep, DeviceStep, KernelStep, KernelStep]
    assert built.placement.device_of["soft"] == "reference" and not built.host_nodes


def test_parameters_are_copied_when_they_are_prepared():
    x, w = var("x", 4, 16), param("w", 8, 16)
    built = check(graph(chain(op("dense", chain(x, "relu"), w, at="fc"), "tanh")), {"relu": "reference",
                                                                                  "tanh": "reference"})  # fmt: skip
    assert built.prepare is not None
    assert [n.op.name for n in built.prepare.graph.nodes if not n.is_variable].count("device_copy") == 1
    assert sum(n.op.name == "device_copy" for n in built.graph.nodes) == 2


def test_nothing_is_fused_across_devices():
    g = graph(chain(var("x", 8), "relu", "exp", "tanh", "abs"))
    built = check(g, {"exp": "reference", "tanh": "reference", "abs": "cpu", "relu": "cpu"}, count=2)
    inner = [ops(n.attrs["graph"]) for n in built.graph.nodes if n.op.name == "group"]
    assert inner == [["relu"], ["exp", "tanh"], ["abs"]]
    together = [ops(n.attrs["graph"]) for n in check(g).graph.nodes if n.op.name == "group"]
    assert together == [["relu", "exp", "tanh", "abs"]]


def test_constants_views_and_several_outputs_on_a_device():
    x = var("x", 6, 4)
    table = const(np.random.default_rng(1).standard_normal((6, 4)))
    y = op("add", op("multiply", x, scalar(2.5), at="m"), table, at="a")
    s = apply("topk", [op("reshape", y, shape=(4, 6), at="view")], {"k": 2, "axis": 1}, "top")
    g = graph([s[0], op("add", s[0], scalar(1), at="plus"), y])
    built = check(g, {"m": "reference", "a": "reference", "top": "reference", "plus": "cpu"})
    assert {"m", "a", "view", "top"} <= {n for n, d in built.placement.device_of.items() if d == "reference"}


def test_parts_of_one_tensor_on_a_device():
    """What could share memory on the host is on another device a tensor of its own."""
    x = var("x", 4, 6)
    a, b = op("exp", x, at="a"), op("tanh", x, at="b")
    joined = op("concatenate", a, b, axis=0, at="joined")
    left = op("slice", joined, begin=(0, 0), end=(4, 2), at="left")
    right = op("slice", joined, begin=(2, 0), end=(6, 6), at="right")
    g = graph(
        [op("softmax", left, axis=-1, at="s1"), op("softmax", right, axis=-1, at="s2"), op("relu", joined, at="r")]
    )
    for wished in itertools.chain.from_iterable(
        itertools.combinations(["a", "b", "joined", "s1", "s2"], k) for k in (1, 2, 3)
    ):
        check(g, dict.fromkeys(wished, "reference"))


def test_named_sizes_and_half_types():
    n = symbol("n")
    x = variable("x", TensorType((n, 3)))
    g = Graph((chain(op("softmax", chain(x, "relu"), axis=0, at="s"), "exp"),), (x.node,))
    _, call = compiled(g, {"s": "reference"})
    for size in (5, 1, 0):
        a = np.random.default_rng(size).standard_normal((size, 3)).astype(np.float32)
        np.testing.assert_allclose(call([a])[0], run_graph(g, [a])[0], rtol=1e-5)
    h = variable("h", TensorType((5, 3), BF16))
    halves = Graph((chain(h, "relu", "exp", "abs"),), (h.node,))
    arrays = random_inputs(halves)
    _, call = compiled(halves, {"exp": "reference", "abs": "cpu"})
    assert np.abs(call(arrays)[0].astype(int) - run_graph(halves, arrays)[0].astype(int)).max() <= 1


def test_strided_inputs_are_copied_as_they_are():
    x = var("x", 4, 5)
    g = graph(chain(x, "exp")).with_attrs(input_strides=((1, 4),), output_strides=((1, 4),))
    _, call = compiled(g, {"exp": "reference"})
    given = NumpyMemory().empty((4, 5), x.type.dtype, (1, 4))
    given[...] = np.random.default_rng(0).standard_normal((4, 5))
    (out,) = call([given])
    assert out.strides == (4, 16)
    np.testing.assert_allclose(out, np.exp(given), rtol=1e-6)


def test_the_whole_graph_on_another_target():
    x, w = var("x", 2, 3, 8, 8), param("w", 4, 3, 3, 3)
    g = graph(op("test.only_numpy", chain(op("conv2d", x, w, padding=((1, 1), (1, 1)), at="c"), "relu"), at="own"))
    built = compile_graph(g.with_attrs(typed=True), BuildOptions(target=Target.parse("reference"), verify=True))
    assert not any(isinstance(s, KernelStep) for s in built.plan.steps)
    assert set(built.placement.device_of.values()) == {"reference"}
    arrays = random_inputs(g)
    np.testing.assert_allclose(run(built, arrays)[0], run_graph(g, arrays)[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(PlacementError, match="known kinds of devices"):
        compile_graph(g.with_attrs(typed=True), BuildOptions(target=Target("npu", "one", (), "")))


def random_graph(rng):
    """A graph of 12 nodes on two inputs and a weight, each node reading what is there."""
    values = [var("x", 4, 4), var("y", 4, 4), param("w", 4, 4)]
    for i in range(12):
        kind = rng.choice(["exp", "tanh", "relu", "add", "multiply", "dense", "softmax", "transpose", "reshape"])
        a, b = (values[int(rng.integers(max(0, len(values) - 5), len(values)))] for _ in "ab")
        name = f"{kind}{i}"
        if kind in ("add", "multiply", "dense"):
            values.append(op("tanh", op(kind, a, b, at=name), at=f"{name}.bounded"))
        elif kind == "reshape":
            values.append(op("reshape", op("reshape", a, shape=(16,), at=f"{name}.flat"), shape=(4, 4), at=name))
        else:
            values.append(op("tanh" if kind == "exp" else kind, a, at=name))
    return graph([values[-1], values[-3], values[int(rng.integers(3, 8))]])


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_and_wishes(seed):
    rng = np.random.default_rng(seed)
    g = random_graph(rng)
    devices = ["cpu", "reference:0", "reference:1"][: 2 + seed % 2]
    names = [n.name for n in g.nodes if not n.is_variable]
    wishes = {n: str(rng.choice(devices)) for n in names if rng.random() < 0.4}
    wishes[names[-1]] = devices[1]
    placed = place(g, wishes)
    for name, device in wishes.items():
        reason = placed.attrs["placement"].reasons[name]
        assert placed.attrs["placement"].device_of[name] == device or "computes nothing" in reason
    # each copy is read on its device, and made once
    made = [(n.inputs[0], n.attrs["device"]) for n in placed.nodes if n.op.name == "device_copy"]
    assert len(made) == len(set(made)) and all(e.type.device != d and e.node.op.name != "device_copy" for e, d in made)
    assert apply_passes(placed, ["PlaceDevice"], PassContext()) is placed
    check(g, wishes)


def test_what_is_chosen_for_the_main_target_is_for_its_nodes_only():
    x, w, v = var("x", 1, 32, 16, 16), param("w", 32, 32, 3, 3), param("v", 32, 32, 3, 3)
    y = op("conv2d", x, w, padding=((1, 1), (1, 1)), at="first")
    g = graph(op("conv2d", chain(y, "relu"), v, padding=((1, 1), (1, 1)), at="second"))
    built = check(g, {"first": "reference"}, count=2)
    inner = [ops(n.attrs["graph"]) for n in built.graph.nodes if n.op.name == "group" and n.types[0].device != "cpu"]
    assert inner == [["conv2d"]] and built.placement.device_of["relu"] == "cpu"
    assert "conv2d_winograd" in {name for k in built.kernels for name in k.ops}


def test_from_symbols_to_values():
    """NNVM's way: groups by AttrScope, their devices as an option of the build."""
    x = sym.conv2d(sym.Variable("data"), channels=4, kernel_size=(3, 3), name="conv")
    with AttrScope(device_group="head"):
        x = sym.relu(sym.batch_norm(x, name="bn"), name="act")
        x = sym.dense(sym.flatten(x), units=5, name="fc")
    net = sym.softmax(x, name="soft")
    rng = np.random.default_rng(2)
    shapes = {"data": (2, 3, 6, 6)}
    arguments, _, states = net.infer_shape(**shapes)
    arrays = {k: rng.standard_normal(s).astype(np.float32) for k, s in {**arguments, **states}.items()}
    arrays["bn_moving_var"] = np.abs(arrays["bn_moving_var"]) + 0.5
    params = {k: v for k, v in arrays.items() if k != "data"}
    with nnvm.compiler.build_config(options={"device_groups": {"head": "reference"}}, verify=True):
        g, lib, new = nnvm.compiler.build(net, "llvm", shape=shapes, params=params)
    placement = g.attrs["placement"]
    assert placement.device_of["conv"] == "cpu" and placement.device_of["fc"] == "reference"
    assert (placement.copies, g.ir().count("device_copy")) == (2, 2)
    module = nnvm.runtime.create(g, lib)
    module.run(data=arrays["data"], **new)
    typed = net.infer_type(data=TensorType(shapes["data"]))
    np.testing.assert_allclose(module.get_output(0), run_graph(typed, arrays)[0], rtol=1e-4, atol=1e-5)


def test_copies_that_a_network_asks_for():
    """What reads a copy is wished where the copy is; the gradient goes back the same way."""
    x = sym.Variable("x")
    there = sym.exp(sym.device_copy(sym.relu(x, name="r"), device="reference", name="there"), name="e")
    net = sym.sum(sym.tanh(sym.device_copy(there, device="cpu", name="back"), name="t"), name="loss")
    assert net.infer_shape(there_output=(2, 3))[0] == {"x": (2, 3)}
    forward = net.infer_type(x=TensorType((2, 3)))
    placed = place(forward)
    assert on(placed, "reference") == ["e"] and copies(placed) == ["there", "back"]
    both = gradient(forward, ["x"])
    built = check(both)
    assert built.placement.device_of["e"] == "reference" and built.placement.copies <= 4
    a, g = random_inputs(both, seed=1)
    e = np.exp(np.maximum(a.astype(np.float64), 0))
    np.testing.assert_allclose(run(built, [a, g])[-1], g * (1 - np.tanh(e) ** 2) * e * (a > 0), rtol=1e-3, atol=1e-5)


def test_a_further_target_is_a_registration(monkeypatch):
    """Its values are tensors of its own kind; the executor only hands them on."""
    from nnvm.graph import devices
    from nnvm.runtime import device as runtimes

    monkeypatch.setattr(devices, "_KINDS", dict(devices._KINDS))
    monkeypatch.setattr(runtimes, "_RUNTIMES", dict(runtimes._RUNTIMES))
    log = []

    class Box:
        def __init__(self, inside):
            self.inside = inside

    def build(inner, device):
        call = REFERENCE.build(inner, device)
        log.append((device, ops(inner)))
        return lambda memory, sizes, boxes: [Box(t) for t in call(memory, sizes, [b.inside for b in boxes])]

    devices.register_device_kind("boxed", lambda node: None if node.op.has("reference") else "no reference")
    register_runtime(DeviceRuntime("boxed", build, receive=lambda *a: Box(copy_on_host(*a)),
                                   send=lambda memory, box, *a: copy_on_host(memory, box.inside, *a),
                                   view=lambda memory, box, *a: Box(memory.reshape(box.inside, *a))))  # fmt: skip
    x, big, w = var("x", 2, 4), const(np.arange(8.0).reshape(2, 4)), param("w", 3, 4)
    y = op("dense", op("add", chain(x, "relu"), big, at="sum"), w, at="fc")
    soft = op("softmax", op("reshape", y, shape=(3, 2), at="view"), axis=-1, at="soft")
    wishes = {"sum": "boxed:1", "fc": "boxed:1", "soft": "boxed:1", "abs": "reference", "tanh": "cpu"}
    check(graph(chain(soft, "abs", "tanh")), wishes, count=3)
    assert log == [("boxed:1", ["add"]), ("boxed:1", ["dense"]), ("boxed:1", ["softmax"])]


def test_a_dump_shows_where_what_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("NNVM_DUMP", str(tmp_path))
    compiled(
        graph(op("test.only_llvm", chain(var("x", 4), "exp"), at="mine")), {"exp": "reference", "mine": "reference"}
    )
    text = min(tmp_path.glob("*/*_PlaceDevice.txt"))
    shown = text.read_text()
    assert "device_copy(%x, device='reference'): float32[4] @reference" in shown and "# mine on cpu: wished" in shown
    assert "@reference" in text.with_suffix(".diff").read_text()


def test_placed_graphs_go_through_json():
    g = place(graph(chain(var("x", 4), "relu", "exp")), {"exp": "reference"})
    again = load_json(g.json())
    verify(again)
    assert on(again, "reference") == ["exp"] and copies(again) == copies(g)


def test_a_plan_with_the_steps_of_some_outputs():
    """Weights of which some are prepared already: nothing gives the others."""
    params = [param("a", 4), param("b", 4)]
    copied = tuple(device_copy(op("exp", p), "reference") for p in params)
    compiled = compile_graph(Graph(copied, tuple(p.node for p in params)), BuildOptions(verify=True))
    plan = compiled.prepare.plan if compiled.prepare is not None else compiled.plan
    made = plan.graph.outputs[1]
    needed = set(Graph((made,), plan.graph.inputs).nodes)
    part = replace(plan, steps=tuple(s for s in plan.steps if s.node in needed))
    assert len(part.steps) < len(plan.steps)
    values = [np.random.default_rng(4).standard_normal(4).astype(np.float32) for _ in plan.graph.inputs]
    found = Executor(part, NumpyMemory(), []).run(values)[1]
    np.testing.assert_allclose(found, np.exp(values[1]), rtol=1e-6)
