"""InferShape and InferType: forward and backward, partial shapes, named sizes, contradictions."""

import numpy as np
import pytest

import nnvm.graph
import nnvm.symbol as sym
from nnvm.dim import symbol
from nnvm.dtype import BOOL, F16, F32, I64
from nnvm.graph import Graph, TensorType, TypeInferenceError, apply, variable
from nnvm.graph.dim_solver import Contradiction, DimSolver
from nnvm.graph.op import get, known
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.passes.infer_type import infer_type
from nnvm.graph.type_solver import ELEMWISE, partial, solve_types
from nnvm.graph.verify import verify
from nnvm.testing.reference import random_inputs, run_graph


def untyped(name, count, **attrs):
    """(graph of one op on variables a, b, ... without types, its node)."""
    names = "abcdefgh"[:count]
    variables = [variable(n) for n in names]
    node = apply(name, variables, attrs, "y")
    return Graph(node.outputs, tuple(v.node for v in variables))


def shapes(graph, **given):
    """Shapes of the inputs in order, then of the outputs, from those `given` by name."""
    found = solve_types(graph, {k: partial(s) for k, s in given.items()})
    return [found.shape(v[0]) for v in graph.inputs] + [found.shape(e) for e in graph.outputs]


# Solver


def test_unknowns_are_solved_for():
    s = DimSolver()
    m, n, k = s.unknown(), s.unknown(), s.unknown()
    a, b = symbol("a"), symbol("b")
    assert s.equate(m * 4 + 2, 26) and s.resolve(m) == 6
    assert s.equate(n * a * 4, a * 24) and s.resolve(n) == 6
    assert not s.equate(k * b, k * a * 0 + b * k) and s.version == 2
    assert s.equate(a, b) and s.resolve(b * 3 + a) == a * 4
    assert s.equate(a * 2, 32) and s.bindings() == {"a": 16, "b": 16}


def test_open_equations_are_tried_again():
    s = DimSolver()
    m, n = s.unknown(), s.unknown()
    assert not s.equate(m * n, 24) and s.open_equations() == [(m * n, 24)]
    s.equate(n, 4)
    s.settle()
    assert s.resolve(m) == 6 and not s.open_equations()
    halved = s.unknown()
    s.equate(halved // 2, 5)
    s.equate(halved, 9)
    with pytest.raises(Contradiction):
        s.settle()


@pytest.mark.parametrize("zero", [lambda m, a: (m * 2, 5), lambda m, a: (m + 7, 3), lambda m, a: (a + 1, a + 2)])
def test_what_has_no_solution(zero):
    s = DimSolver()
    with pytest.raises(Contradiction):
        s.equate(*zero(s.unknown(), symbol("a")))


# Ops in all directions: (op, attributes, number of inputs, given, all shapes)

N = None
CASES = [
    ("relu", {}, 1, {"y": (2, 3)}, [(2, 3), (2, 3)]),
    ("relu", {}, 1, {"a": (2, N), "y": (N, 3)}, [(2, 3), (2, 3)]),
    ("cast", {"dtype": I64}, 1, {"y": (2,)}, [(2,), (2,)]),
    ("isnan", {}, 1, {"y": (2,)}, [(2,), (2,)]),
    ("softmax", {"axis": -1}, 1, {"y": (2, 3)}, [(2, 3), (2, 3)]),
    ("dense", {}, 3, {"a": (5, 8), "b": (16, N)}, [(5, 8), (16, 8), (16,), (5, 16)]),
    ("dense", {}, 2, {"b": (16, 8), "y": (5, N)}, [(5, 8), (16, 8), (5, 16)]),
    ("dense", {}, 3, {"a": (N, 8), "y": (5, 7, 16)}, TypeInferenceError),
    ("dense", {}, 3, {"a": (N, 7, 8), "y": (5, N, 16)}, [(5, 7, 8), (16, 8), (16,), (5, 7, 16)]),
    ("dense", {}, 3, {"a": (5, 8), "c": (16,)}, [(5, 8), (16, 8), (16,), (5, 16)]),
    ("dense", {"kernel_layout": "NK16n", "units": 20}, 3, {"a": (5, 8), "b": (2, N, 16)},
     [(5, 8), (2, 8, 16), (20,), (5, 20)]),
    ("matmul", {}, 2, {"a": (4, 5), "y": (N, 6)}, [(4, 5), (5, 6), (4, 6)]),
    ("matmul", {"transpose_b": True}, 2, {"a": (2, 4, 5), "b": (2, 6, N)}, [(2, 4, 5), (2, 6, 5), (2, 4, 6)]),
    ("matmul", {"transpose_a": True}, 2, {"a": (2, 5, N), "b": (N, N, 6), "y": (2, 4, N)},
     [(2, 5, 4), (N, 5, 6), (2, 4, 6)]),
    ("conv2d", {"padding": (1, 1)}, 3, {"a": (2, 3, 9, 9), "b": (16, N, 3, 3)},
     [(2, 3, 9, 9), (16, 3, 3, 3), (16,), (2, 16, 9, 9)]),
    ("conv2d", {"groups": 2}, 2, {"a": (N, N, N, N), "b": (16, 3, 3, 3), "y": (2, N, 7, 8)},
     [(2, 6, 9, 10), (16, 3, 3, 3), (2, 16, 7, 8)]),
    ("conv2d", {"strides": (2, 2)}, 2, {"b": (16, 3, 3, 3), "y": (2, N, 7, 8)},
     [(2, 3, N, N), (16, 3, 3, 3), (2, 16, 7, 8)]),
    ("conv2d", {"data_layout": "NCHW8c", "kernel_layout": "OIHW8i16o", "out_layout": "NCHW16c"}, 2,
     {"a": (1, 2, 5, 5, 8), "b": (1, N, 3, 3, 8, N)}, [(1, 2, 5, 5, 8), (1, 2, 3, 3, 8, 16), (1, 1, 3, 3, 16)]),
    ("conv1d", {"data_layout": "NWC", "kernel_layout": "WIO"}, 2, {"a": (1, 9, 4), "b": (3, N, 8)},
     [(1, 9, 4), (3, 4, 8), (1, 7, 8)]),
    ("conv3d", {}, 2, {"a": (1, 4, 5, 6, 7), "b": (8, N, 1, 2, 3)},
     [(1, 4, 5, 6, 7), (8, 4, 1, 2, 3), (1, 8, 5, 5, 5)]),
    ("conv2d_transpose", {"strides": (2, 2)}, 3, {"a": (1, 4, 5, 5), "b": (N, 8, 2, 2)},
     [(1, 4, 5, 5), (4, 8, 2, 2), (8,), (1, 8, 10, 10)]),
    ("conv2d_transpose", {"strides": (2, 2), "groups": 2}, 2, {"b": (4, 3, 2, 2), "y": (1, N, 10, 8)},
     [(1, 4, 5, 4), (4, 3, 2, 2), (1, 6, 10, 8)]),
    ("max_pool2d", {"pool_size": (3, 3), "strides": (1, 1)}, 1, {"y": (1, 4, 5, 6)}, [(1, 4, 7, 8), (1, 4, 5, 6)]),
    ("avg_pool2d", {"pool_size": (2, 2)}, 1, {"y": (1, 4, 5, 6)}, [(1, 4, N, N), (1, 4, 5, 6)]),
    ("max_pool2d", {"pool_size": (2, 2), "ceil_mode": True}, 1, {"a": (1, N, 5, 6), "y": (N, 3, N, N)},
     [(1, 3, 5, 6), (1, 3, 3, 3)]),
    ("global_avg_pool2d", {}, 1, {"a": (2, N, N, N), "y": (N, 4, N, N)}, [(2, 4, N, N), (2, 4, 1, 1)]),
    ("batch_norm", {}, 5, {"a": (2, 3, 4, 4)}, [(2, 3, 4, 4), (3,), (3,), (3,), (3,), (2, 3, 4, 4)]),
    ("batch_norm", {"axis": -1}, 5, {"a": (2, 3, 4, N), "d": (5,)},
     [(2, 3, 4, 5), (5,), (5,), (5,), (5,), (2, 3, 4, 5)]),
    ("layer_norm", {"axis": -2}, 3, {"y": (2, 3, 4)}, [(2, 3, 4), (3, 4), (3, 4), (2, 3, 4)]),
    ("layer_norm", {}, 3, {"a": (2, N), "b": (4,)}, [(2, 4), (4,), (4,), (2, 4)]),
    ("rms_norm", {}, 2, {"a": (2, 4)}, [(2, 4), (4,), (2, 4)]),
    ("row_norm_grad", {}, 5, {"b": (2, 3, 4)}, [(2, 3, 4), (2, 3, 4), (2, 3, 1), (2, 3, 1), (4,), (2, 3, 4)]),
    ("norm_sums", {"axis": (0, 2)}, 3, {"b": (2, 3, 4)}, [(2, 3, 4), (2, 3, 4), (1, 3, 1), (1, 3, 1), (1, 3, 1)]),
    ("group_norm", {"num_groups": 2}, 3, {"a": (2, 4, 3), }, [(2, 4, 3), (4,), (4,), (2, 4, 3)]),
    ("instance_norm", {}, 3, {"a": (2, N, 3), "c": (6,)}, [(2, 6, 3), (6,), (6,), (2, 6, 3)]),
    ("attention", {"scale": 1.0, "groups": 2}, 3, {"a": (1, 4, 5, 8), "c": (N, N, 7, 6)},
     [(1, 4, 5, 8), (1, 2, 7, 8), (1, 2, 7, 6), (1, 4, 5, 6)]),
    ("transpose", {"axes": (2, 0, 1)}, 1, {"y": (4, 2, 3)}, [(2, 3, 4), (4, 2, 3)]),
    ("transpose", {}, 1, {"a": (2, N, 4), "y": (N, 3, N)}, [(2, 3, 4), (4, 3, 2)]),
    ("reshape", {"shape": (4, -1)}, 1, {"a": (2, 6)}, [(2, 6), (4, 3)]),
    ("reshape", {"shape": (4, 3)}, 1, {"a": (2, N)}, [(2, 6), (4, 3)]),
    ("reshape", {"shape": (-1, 3)}, 1, {"a": (2, N), "y": (8, N)}, [(2, 12), (8, 3)]),
    ("flatten", {}, 1, {"a": (N, 3, N), "y": (2, 12)}, [(2, 3, 4), (2, 12)]),
    ("expand_dims", {"axis": 1}, 1, {"y": (2, 1, 3)}, [(2, 3), (2, 1, 3)]),
    ("squeeze", {"axis": (1,)}, 1, {"y": (2, 3)}, [(2, 1, 3), (2, 3)]),
    ("squeeze", {}, 1, {"a": (2, 1, 3)}, [(2, 1, 3), (2, 3)]),
    ("squeeze", {}, 1, {"a": (2, N, 3), }, [(2, N, 3), N]),
    ("broadcast_to", {"shape": (2, 3)}, 1, {"a": (1, 3)}, [(1, 3), (2, 3)]),
    ("concatenate", {"axis": 1}, 3, {"a": (2, 3), "b": (N, 4), "y": (N, 12)}, [(2, 3), (2, 4), (2, 5), (2, 12)]),
    ("slice", {"begin": (0, 1), "end": (None, 3)}, 1, {"y": (5, 2)}, [(5, N), (5, 2)]),
    ("slice", {"begin": (0, 1), "end": (None, 8)}, 1, {"a": (5, 6)}, [(5, 6), (5, 5)]),
    ("slice", {"begin": (1,), "end": (3,)}, 1, {"a": (N, 6), }, [(N, 6), (N, 6)]),
    ("pad", {"pad_width": ((0, 0), (1, 2))}, 1, {"y": (2, 8)}, [(2, 5), (2, 8)]),
    ("repeat", {"repeats": 3, "axis": 1}, 1, {"y": (2, 9)}, [(2, 3), (2, 9)]),
    ("flip", {"axes": (0,)}, 1, {"y": (2, 9)}, [(2, 9), (2, 9)]),
    ("sum", {"axis": (1,)}, 1, {"y": (2, 3)}, [(2, N, 3), (2, 3)]),
    ("mean", {"axis": (-1,), "keepdims": True}, 1, {"y": (2, 3, 1)}, [(2, 3, N), (2, 3, 1)]),
    ("max", {}, 1, {"a": (2, 3)}, [(2, 3), ()]),
    ("argmax", {"axis": 0}, 1, {"a": (N, 3), "y": (N,)}, [(N, 3), (3,)]),
    ("take", {"axis": 0}, 2, {"a": (10, 4), "y": (2, 3, N)}, [(10, 4), (2, 3), (2, 3, 4)]),
    ("gather", {"axis": 1}, 2, {"a": (2, 5), "y": (2, 3)}, [(2, 5), (2, 3), (2, 3)]),
    ("one_hot", {"depth": 7}, 1, {"y": (2, 7)}, [(2,), (2, 7)]),
    ("cumsum", {"axis": 0}, 1, {"y": (2, 7)}, [(2, 7), (2, 7)]),
    ("add", {}, 2, {"a": (1, 3), "y": (2, 3)}, [(1, 3), (2, N), (2, 3)]),
    ("add", {}, 2, {"a": (4,), "b": ()}, [(4,), (), (4,)]),
    ("add", {}, 2, {"b": (), "y": (2, 3)}, [(2, 3), (), (2, 3)]),
    ("add", {}, 2, {"a": (4,)}, [(4,), N, N]),
    ("add", {}, 2, {"a": (2, N), "b": (1, 5), "y": (N, 1)}, TypeInferenceError),
    ("maximum", {}, 2, {"y": (1, 1), "a": (1, N), "b": (N, N)}, [(1, 1), (1, 1), (1, 1)]),
    ("where", {}, 3, {"a": (2, 1), "b": (1, 3), "c": ()}, [(2, 1), (1, 3), (), (2, 3)]),
    ("resize", {"size": (4, 6)}, 1, {"a": (1, 2, 3, 3)}, [(1, 2, 3, 3), (1, 2, 4, 6)]),
    ("im2col", {"kernel_size": (3, 3)}, 1, {"a": (1, N, 5, 5), "y": (N, 18, N)}, [(1, 2, 5, 5), (1, 18, 9)]),
    ("layout_transform", {"src_layout": "NCHW", "dst_layout": "NHWC"}, 1, {"y": (1, 4, 5, 3)},
     [(1, 3, 4, 5), (1, 4, 5, 3)]),
    ("split", {"indices_or_sections": 3, "axis": 1}, 1, {"y_output1": (2, 4)}, [(2, 12), (2, 4), (2, 4), (2, 4)]),
    ("split", {"indices_or_sections": (2, 5)}, 1, {"a": (N, 3), "y_output2": (4, N)}, [(9, 3), (2, 3), (3, 3), (4, 3)]),
    ("elemwise_sum", {}, 3, {"b": (2, N), "y": (N, 3)}, [(2, 3), (2, 3), (2, 3), (2, 3)]),
    ("full_like", {"fill_value": 1.0}, 1, {"y": (2, 3)}, [(2, 3), (2, 3)]),
    ("slice_like", {"axis": (0,)}, 2, {"a": (5, 4), "y": (3, N)}, [(5, 4), N, (3, 4)]),
    ("slice_like", {}, 2, {"a": (5, 4), "y": (3, 2)}, [(5, 4), (3, 2), (3, 2)]),
    ("expand_like", {"axis": (1,)}, 2, {"a": (2, 3), "y": (2, 4, 3)}, [(2, 3), (2, 4, 3), (2, 4, 3)]),
    ("reshape_codes", {"shape": (0, -1)}, 1, {"a": (2, 3, 4)}, [(2, 3, 4), (2, 12)]),
    ("upscale", {"scale": 2}, 1, {"y": (1, 3, 8, 10)}, [(1, 3, 4, 5), (1, 3, 8, 10)]),
    ("recurrent", {"kind": "gru"}, 4, {"a": (5, 2, N), "c": (N, 6)},
     [(5, 2, 18), (18, 6), (2, 6), (6,), (5, 2, 6), (2, 6)]),
    ("recurrent", {}, 4, {"y_output0": (5, 2, 6)}, [(5, 2, 24), (24, 6), (2, 6), (2, 6), *[(5, 2, 6), (2, 6), (2, 6)]]),
    ("slice_scatter", {"axis": 0, "start": 1, "end": 3}, 2, {"y": (5, 4)}, [(5, 4), (N, 4), (5, 4)]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attrs", "count", "given", "expected"), CASES)
def test_shapes_flow_in_every_direction(op, attrs, count, given, expected):
    graph = untyped(op, count, **attrs)
    if isinstance(expected, type):
        with pytest.raises(expected, match="y"):
            shapes(graph, **given)
        return
    assert shapes(graph, **given) == expected


DETERMINED = [c for c in CASES if isinstance(c[4], list) and all(s is not None and None not in s for s in c[4])]


@pytest.mark.parametrize(("op", "attrs", "count", "given", "expected"), DETERMINED)
def test_what_is_found_is_what_forward_inference_gives(op, attrs, count, given, expected):
    floats = [F32] * count
    if op in ("take", "gather", "one_hot"):
        floats[-1] = I64
    if op == "where":
        floats[0] = BOOL
    variables = [variable(f"v{i}", TensorType(s, t)) for i, (s, t) in enumerate(zip(expected, floats))]
    assert [e.type.shape for e in apply(op, variables, attrs).outputs] == expected[count:]


def test_every_op_that_takes_inputs_has_a_relation():
    ours = [get(n) for n in known() if get(n).attr("infer_type", known).__module__.startswith("nnvm.ops")]
    without = {op.name for op in ours if op.inputs and not op.has("type_relation")}
    # those that only the compiler makes, from types that are known
    assert without <= {"conv2d_winograd"} and len(ours) > 100


# Graphs


def mlp():
    """relu(dense(x)) + dense, of which nothing is known but the first weight's rows."""
    x, w, b, v = (variable(n) for n in ("x", "w", "b", "v"))
    a = apply("relu", [apply("dense", [x, w, b], {}, "fc1")[0]], {}, "act")[0]
    return Graph((apply("dense", [a, v], {}, "fc2")[0],), (x.node, w.node, b.node, v.node))


def test_types_flow_through_a_graph_against_its_direction():
    g = infer_type(mlp(), {"x": TensorType((2, 5)), "fc2": TensorType((2, 3)), "b": partial((7,))})
    verify(g)
    assert [str(v[0].type) for v in g.inputs] == ["float32[2, 5]", "float32[7, 5]", "float32[7]", "float32[3, 7]"]
    arrays = random_inputs(g)
    x, w, b, v = arrays
    expected = np.maximum(x.astype(np.float64) @ w.T + b, 0) @ v.T
    np.testing.assert_allclose(run_graph(g, arrays)[0], expected, rtol=1e-5)


def test_the_passes_one_after_the_other_and_alone():
    g = mlp().with_attrs(type_hints=(("x", partial((2, 5), F16)), ("w", partial((7, None))), ("v", partial((3, None)))))
    found = apply_passes(g, ["InferShape"], PassContext(verify=True))
    assert dict(found.attrs["type_hints"])["b"] == ((7,), "float16")
    assert dict(found.attrs["shapes"]) == {"x": ((2, 5),), "w": ((7, 5),), "b": ((7,),), "v": ((3, 7),),
                                           "fc1": ((2, 7),), "act": ((2, 7),), "fc2": ((2, 3),)}  # fmt: skip
    assert apply_passes(found, ["InferShape"], PassContext()) is found
    both = apply_passes(found, ["InferType"], PassContext(verify=True))
    alone = apply_passes(g, ["InferType"], PassContext(verify=True))
    for typed in (both, alone):
        assert typed.outputs[0].type == TensorType((2, 3), F16) and not {"type_hints", "shapes"} & set(typed.attrs)
    assert apply_passes(both, ["InferShape", "InferType"], PassContext()) is both


def test_undetermined_variables_are_listed_with_what_is_known():
    with pytest.raises(TypeInferenceError, match=r"variables v \(known: float32\[\?, 7\]\)"):
        infer_type(mlp(), {"x": TensorType((2, 5)), "b": TensorType((7,))})
    with pytest.raises(TypeInferenceError, match=r"no value nothing; it has: x, .*fc2"):
        infer_type(mlp(), {"nothing": TensorType((2, 5))})


def test_a_contradiction_names_both_nodes_with_their_shapes():
    graph = mlp()
    with pytest.raises(TypeInferenceError) as e:
        infer_type(graph, {"x": TensorType((2, 5)), "w": TensorType((7, 6)), "v": TensorType((3, 7))})
    for part in ("dense fc1", "features: 5 against 6", "%x is float32[2, 5]", "%w is float32[7, 6]"):
        assert part in str(e.value)
    # across the graph: fc1 gives 7 features, and the weight of fc2 wants 9 of what relu gives
    with pytest.raises(TypeInferenceError) as e:
        infer_type(graph, {"x": TensorType((2, 5)), "b": TensorType((7,)), "v": TensorType((3, 9))})
    for part in ("dense fc2", "7", "9", "%act is", "%v is float32[3, 9]"):
        assert part in str(e.value), str(e.value)
    with pytest.raises(TypeInferenceError, match=r"dense fc2: needs one dtype.*%act.*float32.*%v.*float16"):
        infer_type(graph, {"x": TensorType((2, 5)), "b": partial((7,)), "v": TensorType((3, 7), F16)})


def test_dtypes_flow_too():
    c, x, y = variable("c"), variable("x"), variable("y")
    g = Graph((apply("where", [c, x, y])[0],), (c.node, x.node, y.node))
    t = infer_type(g, {"c": partial((2, 1)), "x": partial((2, 3)), "y": TensorType((1, 3), F16)})
    assert [v[0].type.dtype for v in t.inputs] == [BOOL, F16, F16]
    table, i = variable("t", TensorType((9, 4))), variable("i")
    taken = Graph((apply("take", [table, i], {"axis": 0}, "taken")[0],), (table.node, i.node))
    assert infer_type(taken, {"taken": partial((5, None))}).inputs[1][0].type == TensorType((5,), I64)


# Named sizes


def test_named_sizes_that_are_found_equal_become_one():
    a, b, n = symbol("a"), symbol("b"), symbol("n")
    x, y = variable("x", TensorType((a, 4))), variable("y", TensorType((b, 4)))
    z = apply("reshape", [mixed_sum(x, y)], {"shape": (b * 4,)})[0]
    g = infer_type(Graph((z,), (x.node, y.node)).with_attrs(input_strides=((b * 0 + 4, 1), None)))
    assert [v[0].type.shape for v in g.inputs] == [(a, 4), (a, 4)] and g.outputs[0].type.shape == (a * 4,)
    verify(g)
    w = variable("w", TensorType((16, 8)))
    d = apply("dense", [variable("d"), w], {}, "fc")
    g = infer_type(Graph(d.outputs, (d.inputs[0].node, w.node)), {"d": TensorType((n, symbol("k")))})
    assert g.inputs[0][0].type.shape == (n, 8) and g.outputs[0].type.shape == (n, 16)


def mixed_sum(x, y):
    """`add` of two values whose types do not fit as they stand: made without inferring."""
    node = apply("add", [variable("p"), variable("q")], {}, "total")
    return type(node)(node.op, (x, y), node.attrs, "total", None)[0]


def test_a_named_size_that_contradicts_itself():
    n = symbol("n")
    w, v = variable("w", TensorType((4, 8))), variable("v", TensorType((4, 9)))
    x = variable("x")
    out = [apply("dense", [x, p], {}, f"fc{i}")[0] for i, p in enumerate((w, v))]
    with pytest.raises(TypeInferenceError, match=r"features: 8 against 9.*%x is .*\(says .*dense fc0"):
        infer_type(Graph(tuple(out), (x.node, w.node, v.node)), {"x": TensorType((2, n))})


# Through the Symbol API


def test_nnvm_s_own_way():
    """As the tests of NNVM ask: the attribute `shape` of the graph after InferShape, by number of the value."""
    y = sym.concatenate(*sym.split(sym.dense(sym.Variable("x", shape=(10, 20)), units=30, name="fc"),
                                   indices_or_sections=3, axis=1), axis=0, name="joined")  # fmt: skip
    g = nnvm.graph.create(y)
    assert g.json_attr("shape") is None or g.json_attr("shape_num_unknown_nodes") > 0
    g = g.apply("InferShape")
    shape = {n["name"]: g.json_attr("shape")[a:b]
             for n, a, b in zip(g.index.nodes, g.index.entry_ptr, g.index.entry_ptr[1:])}  # fmt: skip
    assert shape["fc"] == [[10, 30]] and shape["fc_weight"] == [[30, 20]] and shape["joined"] == [[30, 10]]
    assert [s for n, s in shape.items() if n.startswith("split")] == [[[10, 10]] * 3]
    assert g.json_attr("shape_num_unknown_nodes") == 0


def test_variables_of_partial_shape():
    x, w = sym.Variable("x", shape=(None, 8)), sym.Variable("w", shape=(16, 0))
    net = sym.dense(sym.relu(x), w, name="fc")
    with pytest.raises(TypeInferenceError, match=r"x \(known: float32\[\?, 8\]\)"):
        net.infer_shape()
    assert net.infer_shape_partial() == ({"x": (None, 8), "w": (16, 8)}, [(None, 16)], {})
    assert net.infer_type(fc=partial((4, None))).outputs[0].type == TensorType((4, 16))
    halves = sym.dense(x, sym.Variable("v", shape=(16, 0), dtype="float16"), name="fc")
    with pytest.raises(TypeInferenceError, match=r"fc: needs one dtype; %x is float32.*%v is float16"):
        halves.infer_type(fc=partial((4, None)))
    n, m = symbol("n"), symbol("m")
    both = sym.Variable("a", shape=(n, 4)) + sym.Variable("b", shape=(m, 4), dtype="float32")
    assert both.infer_shape()[1] == [(m, 4)] and both.infer_shape(b=(3, 4))[0] == {"a": (3, 4), "b": (3, 4)}


# Elementwise ops that do not broadcast


def test_elemwise_hint():
    g = untyped("add", 2).with_attrs(type_hints=(("y", ELEMWISE),))
    assert shapes(g, a=(4,)) == [(4,), (4,), (4,)]
    assert shapes(g, y=(4, 2)) == [(4, 2), (4, 2), (4, 2)]
    with pytest.raises(TypeInferenceError, match=r"add y: axis 0 of %b: 1 against 4; %b is \[1\] .*%a is \[4\]"):
        shapes(g, a=(4,), b=(1,))


# Soundness: what is found from a part of the truth is the truth


def masked(rng, shape, share):
    """A shape of which sizes, or all, are forgotten."""
    if rng.random() < share / 2:
        return None
    return tuple(None if rng.random() < share else d for d in shape)


@pytest.mark.parametrize(("op", "attrs", "count", "given", "expected"), DETERMINED)
def test_a_part_of_the_truth_gives_no_other_truth(op, attrs, count, given, expected):
    rng = np.random.default_rng(len(str(given)))
    graph = untyped(op, count, **attrs)
    entries = [*(v[0] for v in graph.inputs), *graph.outputs]
    names = [*(v.name for v in graph.inputs)]
    names += ["y"] if len(graph.outputs) == 1 else [f"y_output{i}" for i in range(len(graph.outputs))]
    for share in (0.2, 0.4, 0.6, 0.9):
        for _ in range(4):
            known = {n: partial(s) for n, t in zip(names, expected) if (s := masked(rng, t, share)) is not None}
            found = solve_types(graph, known)
            for e, truth in zip(entries, expected):
                shape = found.shape(e)
                if shape is not None:
                    assert len(shape) == len(truth), (known, shape, truth)
                    assert all(d in (None, t) for d, t in zip(shape, truth)), (known, shape, truth)


def test_a_network_from_parts_of_its_truth():
    """Variables forgotten at random: whatever is found is right, and enough of it finds all."""
    x = sym.conv2d(sym.Variable("data"), channels=4, kernel_size=(3, 3), padding=(1, 1), name="c1")
    x = sym.relu(sym.batch_norm(x, name="bn"))
    x = sym.elemwise_add(x, sym.conv2d(x, channels=4, kernel_size=(1, 1), name="c2"))
    x = sym.max_pool2d(x, pool_size=(2, 2), strides=(2, 2))
    a, b = sym.split(sym.flatten(x), indices_or_sections=2, axis=1)
    y = sym.concatenate(sym.dense(a, units=3, name="fc1"), sym.layer_norm(sym.dense(b, units=5, name="fc2")), axis=1)
    net = sym.transpose(sym.softmax(y), axes=(1, 0), name="out")
    arguments, outputs, states = net.infer_shape(data=(2, 3, 8, 8))
    truth = {**arguments, **states, "out": outputs[0]}
    assert outputs == [(8, 2)] and truth["fc1_weight"] == (3, 32)
    rng = np.random.default_rng(0)
    for share in (0.1, 0.3, 0.5, 0.8):
        for _ in range(8):
            known = {n: s for n, t in truth.items() if (s := masked(rng, t, share)) is not None}
            arguments, outputs, states = net.infer_shape_partial(**known)
            for name, shape in {**arguments, **states, "out": outputs[0]}.items():
                assert shape is None or all(d in (None, t) for d, t in zip(shape, truth[name], strict=True))
    assert net.infer_shape(data=(None, None, 8, 8), out_output=(None, 2), c1_weight=(4, 3, 3, 3))[0] == {
        n: s for n, s in truth.items() if n in arguments
    }
