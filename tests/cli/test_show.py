"""``nnvm show``: text, JSON, memory, and the page, read with html.parser."""

import importlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from nnvm.cli import main, show, source
from nnvm.graph.json import load_json
from nnvm.testing.assert_graph_equal import assert_graph_equal
from tests.graph.build import graph, op, var
from tests.graph.test_pipeline import residual_network

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """All elements with their attributes, and the text inside of each; fails on tags that are not closed in order."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open = [], []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {[tag for tag, _, _ in self.open]}"

    def handle_starttag(self, tag, attrs):
        entry = (tag, dict(attrs), [])
        self.elements.append(entry)
        if tag not in VOID:
            self.open.append(entry)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data):
        for _, _, texts in self.open:
            texts.append(data)

    def find(self, tag, **attrs):
        return [(a, "".join(t)) for name, a, t in self.elements
                if name == tag and all(v in (a.get(k) or "").split() for k, v in attrs.items())]  # fmt: skip


@pytest.fixture
def model_json(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(residual_network().json())
    return path


@pytest.fixture
def onnx_file(tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4), helper.make_node("Relu", ["c"], ["r"]),
             helper.make_node("Conv", ["r", "v"], ["d"]), helper.make_node("Sigmoid", ["d"], ["y"])]  # fmt: skip
    values = {"w": weight, "v": weight[:5, :1, :1, :1].repeat(8, 1)}
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", c, 6, 6]) for n, c in (("x", 3), ("y", 5))]
    net = helper.make_graph(
        nodes, "g", infos[:1], infos[1:], [numpy_helper.from_array(a, n) for n, a in values.items()]
    )
    onnx.save(helper.make_model(net, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "small.onnx")
    return tmp_path / "small.onnx"


def run(capsys, *argv, status=0):
    assert main.main(["show", *map(str, argv)]) == status
    return capsys.readouterr()


def test_text_has_the_graph_before_and_after(capsys, model_json):
    out = run(capsys, model_json).out
    before, after = out.split("# after the passes\n")
    assert before.startswith("# before the passes\ngraph(") and "batch_norm" in before and "group(" not in before
    assert "# once per version of the weights" in after and "batch_norm" not in after and "group(" in after
    assert run(capsys, model_json, "--stage", "before").out == residual_text(model_json)
    assert run(capsys, model_json, "--stage", "after").out.startswith("graph(")


def residual_text(path):
    return load_json(path.read_text()).ir() + "\n"


def test_json_comes_back_the_same(capsys, model_json, tmp_path):
    out = run(capsys, model_json, "--json").out
    assert_graph_equal(load_json(out), residual_network())
    target = tmp_path / "after.json"
    run(capsys, model_json, "--json", "--stage", "after", "-o", target)
    fused = load_json(target.read_text())
    assert any(n.op.name == "group" for n in fused.nodes)
    # what is fused already is shown as it is
    again = run(capsys, target, "--stage", "after").out
    assert fused.ir() in again and "group" in again
    assert "planned" in run(capsys, target, "--memory").out


def test_memory_as_json(capsys, model_json):
    facts = json.loads(run(capsys, model_json, "--memory", "--json").out)
    assert facts["lower_bound"] == max(facts["timeline"]) <= facts["planned"] <= facts["unplanned"]
    assert len(facts["steps"]) == len(facts["timeline"]) and facts["sizes"] == {}
    assert all(life["offset"] + life["size"] <= facts["planned"] for life in facts["lives"])


def test_memory_is_drawn(capsys, model_json):
    out = run(capsys, model_json, "--memory").out
    for word in ("planned", "without sharing", "lower bound", "most is alive at step"):
        assert word in out
    assert "█" in out and re.search(r"0 +step \d+$", out.strip())


def test_the_page(capsys, model_json, tmp_path):
    target = tmp_path / "page.html"
    done = run(capsys, model_json, "-o", target, "--time", "--calls", "3")
    assert done.out == "" and "wrote" in done.err
    text = target.read_text("utf-8")
    page = Page(text)
    links = {k: v for _, a, _ in page.elements for k, v in a.items() if k in ("src", "href", "xlink:href", "data")}
    assert all(v.startswith("#") for v in links.values()) and "http" not in text and "@import" not in text
    assert "url(" not in text
    rows = [a for a, _ in page.find("tr") if "data-group" in a]
    boxes = [a for a, _ in page.find("g", **{"class": "node"})]
    groups = {a["data-group"] for a in boxes if "data-group" in a}
    assert groups == {a["data-group"] for a in rows} and len(groups) >= 6
    ids = [a["id"] for _, a, _ in page.elements if "id" in a]
    assert {"summary", "graphs", "kernels", "memory", "passes", "text", "before", "after"} <= set(ids)
    before, after = (t for a, t in page.find("svg") if "passes" in a.get("aria-label", ""))
    assert "batch_norm" in before and "batch_norm" not in after and "conv2d" in after and "output 0" in after
    kernels = page.find("table", **{"class": "kernels"})[0][1]
    assert "conv2d + relu" in kernels and "measured µs" in kernels and "–" not in kernels
    assert all(
        label in text for label in ("Live bytes at each step", "without sharing", "lower bound", "AlterOpLayout")
    )
    lives = page.find("rect", **{"class": "life"})
    assert lives and all(float(a["width"]) > 0 and float(a["height"]) > 0 for a, _ in lives)
    assert len(page.find("rect", **{"class": "live"})) == len(rows)


def test_estimates_need_no_compilation(capsys, model_json, tmp_path, monkeypatch):
    build = importlib.import_module("nnvm.compiler.build")
    monkeypatch.setattr(build, "compile_graph", lambda *a: pytest.fail("compiled"))
    run(capsys, model_json, "-o", tmp_path / "page.html")
    kernels = Page((tmp_path / "page.html").read_text("utf-8")).find("table", **{"class": "kernels"})[0][1]
    assert "estimate µs" in kernels and "measured" not in kernels


def test_names_cannot_break_the_page(capsys, tmp_path):
    x = op("relu", var('<x>&"</script>', 3), at="</svg><b>")
    (tmp_path / "a.json").write_text(graph(op("softmax", x)).json())
    run(capsys, tmp_path / "a.json", "-o", tmp_path / "a.html")
    page = Page((tmp_path / "a.html").read_text("utf-8"))
    assert not page.find("b", title="") or all(t.startswith(("Before", "After")) for _, t in page.find("b"))
    assert any('<x>&"</script>' in t for _, t in page.find("text"))


def test_nested_passes_follow_the_one_that_runs_them(model_json):
    args = main.build_parser().parse_args(["show", str(model_json)])
    passes = show._optimised(args, source.load(str(model_json))).passes
    at = next(i for i, p in enumerate(passes) if p.name == "FinishPrepare")
    assert [p.depth for p in passes[at:]] == [0, *([1] * (len(passes) - at - 1))]
    assert {"GraphFuse", "PlanMemory"} <= {p.name for p in passes[at + 1 :]}
    assert sum(p.seconds for p in passes[at + 1 :]) <= passes[at].seconds


def test_onnx_with_a_symbolic_size(capsys, onnx_file, tmp_path):
    assert "float32[n, 8, 6, 6]" in run(capsys, onnx_file).out
    one, seven = (run(capsys, onnx_file, "--memory", "--size", f"n={n}").out for n in (1, 7))
    planned = [re.search(r"planned +([\d.]+ \w+)", text)[1] for text in (one, seven)]
    assert "n = 7" in seven and planned[0] != planned[1]
    run(capsys, onnx_file, "-o", tmp_path / "p.html", "--time", "--calls", "2", "--size", "n=3")
    assert "n = 3" in (tmp_path / "p.html").read_text("utf-8")
    assert "no symbolic size 'm'; it has n" in run(capsys, onnx_file, "--memory", "--size", "m=3", status=2).err


def test_a_model_that_pytorch_builds(capsys, tmp_path):
    pytest.importorskip("torch")
    out = run(capsys, "mlp", "--batch", "3").out
    assert "%4.weight: float32[10, 256] param" in out and "float32[3, 10]" in out
    run(capsys, "zoo:mlp", "-o", tmp_path / "p.html", "--time", "--calls", "2", "--dtype", "bfloat16")
    assert "bfloat16[1, 64]" in (tmp_path / "p.html").read_text("utf-8")


def test_passes_can_be_left_out(capsys, model_json):
    assert "NCHW" not in run(capsys, model_json, "--disable-pass", "AlterOpLayout", "--stage", "after").out
    assert "did you mean GraphFuse?" in run(capsys, model_json, "--disable-pass", "GraphFus", status=2).err
    assert run(capsys, model_json, "--opt-level", "0", "--stage", "after").out.count("group(") > 20


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.onnx", None, "no file"),
        ("none.json", None, "no file"),
        ("bad.json", "{", "line 1"),
        ("other.json", "[1, 2]", "no graph in NNVM's JSON format"),
        ("op.json", '{"nodes": [{"op": "nonsense", "name": "a", "inputs": []}], "arg_nodes": [], "heads": [[0, 0, 0]]}',
         "no op 'nonsense'"),
        ("bad.onnx", "this is no protocol buffer", "no ONNX model"),
        ("model.pth", "x", "a model is an .onnx file"),
    ],
)  # fmt: skip
def test_errors_are_one_line(capsys, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    if name.endswith(".onnx"):
        pytest.importorskip("onnx")
    assert main.main(["show", str(tmp_path / name)]) in (1, 2)
    err = capsys.readouterr().err
    assert err.startswith("nnvm show: ") and err.count("\n") == 1 and message in err, err


def test_unknown_models_and_wrong_use(capsys, model_json, tmp_path):
    pytest.importorskip("torch")
    assert "did you mean resnet" in run(capsys, "resnet19", status=1).err
    assert "add -o page.html" in run(capsys, model_json, "--time", status=2).err
    assert "leave out --json" in run(capsys, model_json, "--json", "-o", "a.html", status=2).err
    err = run(capsys, model_json, "-o", tmp_path / "no" / "a.html", status=1).err
    assert err.count("\n") == 1 and "there is no such folder" in err
    err = run(capsys, model_json, "-o", tmp_path / "no" / "a.html", "--debug", status=1).err
    assert "Traceback" in err and "FileNotFoundError" in err


def test_everything_unsupported_is_said_in_one_line(capsys, tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in ("x", "y")]
    net = helper.make_graph([helper.make_node("Unique", ["x"], ["y"])], "g", infos[:1], infos[1:])
    onnx.save(helper.make_model(net, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "u.onnx")
    err = run(capsys, tmp_path / "u.onnx", status=1).err
    assert err.count("\n") == 1 and "Unique (opset 18)" in err


def test_without_torch_it_says_what_to_install(capsys, monkeypatch):
    def import_module(name):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(source.importlib, "import_module", import_module)
    assert "pip install torch" in run(capsys, "resnet18", status=1).err


def test_json_is_plain_enough_for_other_readers(capsys, model_json):
    data = json.loads(run(capsys, model_json, "--json", "--stage", "after").out)
    assert {"nodes", "arg_nodes", "heads", "node_row_ptr"} <= set(data)
