"""Damaged and hostile artifacts: an error that says so, never a crash, whatever the bytes."""

from __future__ import annotations

import json
import re
import struct

import numpy as np
import pytest

import nnvm
import nnvm.symbol as sym
from nnvm.artifact import compile_artifact, default_levels
from nnvm.compiler.build_module import typed_graph
from nnvm.runtime.artifact.container import ArtifactError, Container, write_container
from nnvm.runtime.artifact.plan import dump_spec, load_spec
from nnvm.runtime.artifact.tensors import read_tensors

RNG = np.random.default_rng(11)
X = RNG.standard_normal((3, 8)).astype(np.float32)
WEIGHT = RNG.standard_normal((5, 8)).astype(np.float32)
WANTED = X.astype(np.float64) @ WEIGHT.T


def made(folder, weights):
    """The bytes of a good artifact."""
    path = folder / "good.nnvm"
    params = {"fc_weight": WEIGHT}
    net = sym.dense(sym.Variable("x"), units=5, use_bias=False, name="fc")
    graph = typed_graph(net, {"x": (3, 8)}, params=params)
    compile_artifact(graph, params, path, default_levels()[:1], weights=weights)
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return made(tmp_path_factory.mktemp("damage"), "packed")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """One whose weights are packed before the first call."""
    return made(tmp_path_factory.mktemp("original"), "original")


def outcome(path, data):
    """None where the file is refused; else what it computes."""
    path.write_bytes(data)
    try:
        return nnvm.runtime.load(path).run(x=X)["output0"]
    except ArtifactError as error:
        assert str(path) in str(error)
        return None


def test_the_whole_file_is_good(whole, tmp_path):
    np.testing.assert_allclose(outcome(tmp_path / "m.nnvm", whole), WANTED, rtol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.6, 0.95, 0.9999])
def test_cut_off(whole, tmp_path, share):
    assert outcome(tmp_path / "m.nnvm", whole[: int(len(whole) * share)]) is None


def test_something_added(whole, tmp_path):
    assert outcome(tmp_path / "m.nnvm", whole + b"\0") is None


def mutated(whole, number, rng):
    """Bits flipped, lengths made absurd, pieces moved; every second one in the header."""
    data = bytearray(whole)
    at = int(rng.integers(256 if number % 2 else len(data)))
    kind = number % 3
    if kind == 0:
        data[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        data[at : at + 8] = struct.pack("<Q", int(rng.integers(1 << 63)) | 1 << 63)[: len(data) - at]
    else:
        other = int(rng.integers(len(data) - 64))
        data[at : at + 64] = data[other : other + 64]
    return bytes(data[: len(whole)])


@pytest.mark.parametrize(("seed", "count"), [(3, 100), pytest.param(4, 2500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["whole", "original"])
def test_mutations(kind, request, tmp_path, seed, count):
    """Each is refused, or (where nobody reads the bytes) computes what is right."""
    rng, good = np.random.default_rng(seed), request.getfixturevalue(kind)
    refused = 0
    for number in range(count):
        found = outcome(tmp_path / "m.nnvm", mutated(good, number, rng))
        if found is None:
            refused += 1
        else:
            np.testing.assert_allclose(found, WANTED, rtol=1e-5)
    assert refused > count // 2


def test_every_section_has_its_checksum(whole, tmp_path):
    path = tmp_path / "m.nnvm"
    path.write_bytes(whole)
    container = Container(path)
    for name in ("plan", "code0", "weights"):
        start = whole.index(bytes(container.read(name)))
        data = bytearray(whole)
        data[start + container.size_of(name) // 2] ^= 16
        (tmp_path / name).write_bytes(bytes(data))
        with pytest.raises(ArtifactError, match=f"section '{name}' is damaged"):
            nnvm.runtime.load(tmp_path / name).run(x=X)


def test_weights_are_checked_at_the_first_run_unless_told_not_to(whole, tmp_path):
    path = tmp_path / "m.nnvm"
    path.write_bytes(whole)
    container = Container(path)
    data = bytearray(whole)
    weights = bytes(container.read("weights"))
    head = 8 + struct.unpack_from("<Q", weights)[0]
    data[whole.index(weights) + head + 3] ^= 1  # the sign and exponent of the first weight
    path.write_bytes(bytes(data))
    module = nnvm.runtime.load(path)
    for _ in range(2):
        with pytest.raises(ArtifactError, match="section 'weights' is damaged"):
            module.run(x=X)
    found = nnvm.runtime.load(path, verify=False).run(x=X)["output0"]
    assert not np.allclose(found, WANTED, rtol=1e-3)


def test_what_is_no_artifact(tmp_path):
    path = tmp_path / "m.nnvm"
    for data, says in ((b"", "fewer than"), (b"PK\3\4" * 100, "no artifact")):
        path.write_bytes(data)
        with pytest.raises(ArtifactError, match=says):
            nnvm.runtime.load(path)
    with pytest.raises(OSError):
        nnvm.runtime.load(tmp_path / "nowhere.nnvm")


def test_another_version_is_named(whole, tmp_path):
    path = tmp_path / "m.nnvm"
    path.write_bytes(whole[:8] + struct.pack("<I", 99) + whole[12:])
    with pytest.raises(ArtifactError, match="format version 99, this nnvm reads 2"):
        nnvm.runtime.load(path)


def sections_of(whole, tmp_path):
    path = tmp_path / "good.nnvm"
    path.write_bytes(whole)
    container = Container(path)
    return {name: [bytes(container.read(name))] for name in container.names()}


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        (("levels", 0, "main", "steps", 0, "kernel"), 9, "no kernel 9"),
        (("levels", 0, "main", "steps", 0, "buffers", 0, 0), 77, "no memory 77"),
        (("levels", 0, "main", "steps", 0, "buffers"), [], "other buffers than it takes"),
        (("levels", 0, "main", "steps", 0, "buffers", 0, 1), [[1, "n"]], "the size n is not known"),
        (("levels", 0, "main", "kernels", 0, "start"), 1 << 40, "outside the code"),
        (("levels", 0, "main", "kernels", 0, "size"), -1, "at least 0"),
        (("levels", 0, "main", "kernels", 0, "name"), "no_such_symbol", "cannot be linked"),
        (("levels", 0, "main", "code"), "elsewhere", "no section 'elsewhere'"),
        (("levels", 0, "weights"), ["none"], "no memory|is missing"),
        (("levels", 0, "main", "arena"), 1 << 70, "a number is wanted"),
        (("levels", 0, "main", "arena"), [[1, ["floordiv", 4, 0]]], "damaged"),
        (("levels",), [], "no code"),
        (("inputs", 0, "dtype"), "float7", "float7"),
        (("inputs", 0, "shape"), [-3, 8], "at least 0"),
        (("sizes",), {"n": [5, 0]}, "nowhere"),
    ],
)
def test_a_plan_that_makes_no_sense(whole, tmp_path, where, value, says):
    """With a checksum that is right: what a run relies on is checked all the same."""
    sections = sections_of(whole, tmp_path)
    plan = json.loads(sections["plan"][0])
    inside = plan
    for key in where[:-1]:
        inside = inside[key]
    inside[where[-1]] = value
    write_container(tmp_path / "m.nnvm", {**sections, "plan": [json.dumps(plan).encode()]})
    with pytest.raises(ArtifactError, match=says):
        nnvm.runtime.load(tmp_path / "m.nnvm")


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        (("prepare",), None, "nothing prepares its weights"),
        (("prepared",), [], "no memory"),
        (("prepared", 0), -4, "at least 0"),
        (("prepare", "code"), "plan", "cannot be linked|outside the code"),
        (("prepare", "steps", 0, "buffers", 0, 1), [[1, "n"]], "the size n is not known"),
        (("prepare", "steps", 0, "kernel"), 9, "no kernel 9"),
    ],
)
def test_a_preparation_that_makes_no_sense(original, tmp_path, where, value, says):
    sections = sections_of(original, tmp_path)
    plan = json.loads(sections["plan"][0])
    inside = plan["levels"][0]
    for key in where[:-1]:
        inside = inside[key]
    inside[where[-1]] = value
    write_container(tmp_path / "m.nnvm", {**sections, "plan": [json.dumps(plan).encode()]})
    with pytest.raises(ArtifactError, match=says):
        nnvm.runtime.load(tmp_path / "m.nnvm").run(x=X)


def test_more_memory_than_there_is(whole, tmp_path):
    sections = sections_of(whole, tmp_path)
    plan = json.loads(sections["plan"][0])
    plan["levels"][0]["main"]["arena"] = 1 << 60
    write_container(tmp_path / "m.nnvm", {**sections, "plan": [json.dumps(plan).encode()]})
    with pytest.raises(MemoryError, match=f"needs {(1 << 60) // 10**9}"):
        nnvm.runtime.load(tmp_path / "m.nnvm").run(x=X)


def test_plans_are_read_as_they_were_written(whole, tmp_path):
    (plan,) = sections_of(whole, tmp_path)["plan"]
    assert dump_spec(load_spec(plan)) == plan


def test_mutated_plans_raise_value_errors_only(whole, tmp_path):
    """300 plans with a value replaced: what `load_spec` takes, it writes again; everything else is a ValueError."""
    (plan,) = sections_of(whole, tmp_path)["plan"]
    rng = np.random.default_rng(5)
    spots = [m.span() for m in re.finditer(rb'-?\d+|"[^"]*"|\[\]|true|false', plan)]
    others = [b"-1", b"1e400", b"99999999999999999999", b'""', b"[]", b"{}", b"null", b"[[1,[]]]", b"[" * 2000]
    failed = 0
    for _ in range(300):
        start, end = spots[int(rng.integers(len(spots)))]
        data = plan[:start] + others[int(rng.integers(len(others)))] + plan[end:]
        try:
            dump_spec(load_spec(data))
        except ValueError:
            failed += 1
    assert failed > 200


def test_sizes_nested_too_deep(whole, tmp_path):
    plan = json.loads(sections_of(whole, tmp_path)["plan"][0])
    size = 1
    for _ in range(100):
        size = [[1, ["max", size, "n"]]]
    plan["levels"][0]["main"]["arena"] = size
    with pytest.raises(ValueError, match="nested too deep"):
        load_spec(json.dumps(plan).encode())


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 50]},
        {"dtype": "F32", "shape": [1 << 62], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [-4, -1], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4.0], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [4], "data_offsets": [2, 18]},
        {"dtype": "F32", "shape": [4], "data_offsets": [16]},
        {"dtype": "F33", "shape": [4], "data_offsets": [0, 16]},
        ["F32"],
    ],
)
def test_weights_that_lie_nowhere(entry):
    head = json.dumps({"w": entry}).encode()
    with pytest.raises(ValueError, match="'w'"):
        read_tensors(memoryview(struct.pack("<Q", len(head)) + head + bytes(64)))


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 4) + b"\xff\xff{}"])
def test_weights_without_a_header(data):
    with pytest.raises(ValueError):
        read_tensors(memoryview(data))
