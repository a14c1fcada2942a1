"""The layers of the house: who may import whom (DESIGN: left never imports right)."""

import ast
import itertools
from pathlib import Path

ROOT = Path(__file__).parent.parent
CORE = ROOT / "core" / "nnvm"

#: Layers from left to right; a module may import its own layer's room and anything to the left.
LAYERS = [
    {"arithmetic", "array_file", "atomic_write", "attribute", "config", "cpu_list", "dtype", "dim", "dim_values",
     "garbage", "kernel_error", "name", "progress", "target"},
    {"graph", "te"},
    {"tir"},
    {"ops", "schedules", "codegen", "runtime"},
    {"compiler"},
    {"artifact"},
    {"tuning", "frontend", "symbol"},
    {"testing"},
    {"bench"},
    {"cli"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}
#: Rooms of one layer that do know each other, and rooms that must not although the order would allow it.
ALLOWED = {*itertools.permutations(LAYERS[0], 2), ("runtime", "codegen"), ("symbol", "frontend")}  # fmt: skip
FORBIDDEN = {("te", "graph"), ("tir", "graph"), ("graph", "te"), ("codegen", "graph"), ("codegen", "ops"),
             ("codegen", "schedules")}  # fmt: skip
LAZY_ONLY = {"onnx", "triton", "onnxruntime", "openvino"}


def imports(path):
    """(module, is it at the top level) of every import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((a.name, id(node) in top) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ROOT / "core" if path.is_relative_to(ROOT / "core") else ROOT
                parts = path.relative_to(base).parts[: -node.level]
                yield ".".join([*parts, *([node.module] if node.module else [a.name for a in node.names])]), True
            elif node.module == "nnvm":
                yield from ((f"nnvm.{a.name}", id(node) in top) for a in node.names)
            else:
                yield node.module, id(node) in top


def room_of(path):
    return path.relative_to(CORE).with_suffix("").parts[0]


def core_files():
    return [p for p in CORE.rglob("*.py") if room_of(p) != "__init__"]


def test_layers():
    wrong = []
    for path in core_files():
        room = room_of(path)
        for module, _ in imports(path):
            parts = module.split(".")
            if parts[0] != "nnvm" or len(parts) < 2 or parts[1] == room or parts[1] not in LEVEL:
                continue
            ok = LEVEL[parts[1]] < LEVEL[room] or (room, parts[1]) in ALLOWED
            if not ok or (room, parts[1]) in FORBIDDEN:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_every_room_has_a_layer():
    assert {room_of(p) for p in core_files()} <= set(LEVEL)


def test_core_knows_no_torch():
    wrong = [f"{p.relative_to(ROOT)}: {m}" for p in core_files() for m, _ in imports(p)
             if m.split(".")[0] in ("torch", "torchvision", "transformers")]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_optional_packages_are_imported_where_used():
    wrong = [f"{p.relative_to(ROOT)}: {m}" for p in [*core_files(), *(ROOT / "nnvm_torch").rglob("*.py")]
             for m, top in imports(p) if top and m.split(".")[0] in LAZY_ONLY]  # fmt: skip
    assert not wrong, "\n".join(wrong)


def test_the_rule_catches_a_wrong_import(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("import nnvm.ops\ndef f():\n    from nnvm import te\n")
    assert list(imports(file)) == [("nnvm.ops", True), ("nnvm.te", False)]
