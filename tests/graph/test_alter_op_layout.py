"""AlterOpLayout: blocked convolutions, how blocks pass through other ops, and where they must end."""

import numpy as np
import pytest

from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.graph.views import is_view
from nnvm.target import Target
from nnvm.testing.reference import random_inputs, run_graph
from tests.graph.build import graph, op, ops, param, scalar, var

PAD = {"padding": ((1, 1), (1, 1))}


def alter(g, cpu="haswell", rtol=1e-4):
    """The main graph after AlterOpLayout, values checked; views left out of the op names."""
    g = g.with_attrs(typed=True)
    context = PassContext(verify=True, target=Target.parse(f"llvm -mcpu={cpu}"))
    names = ["Decompose", "AlterOpLayout", "EliminateCommon", "FoldConstant", "PrecomputePrune"]
    main = apply_passes(g, names, context)
    arrays = random_inputs(g)
    prepare = main.attrs["prepare"]
    by_name = dict(zip((v.name for v in g.inputs), arrays))
    got = run_graph(main, [*arrays, *run_graph(prepare, [by_name[v.name] for v in prepare.inputs])])
    for a, b in zip(got, run_graph(g, arrays), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-4)
    return main


def work(g):
    return [n.op.name for n in g.nodes if not (n.is_variable or n.is_constant or is_view(n))]


def conv(x, name, out, k=3, **attrs):
    groups = attrs.get("groups", 1)
    attrs = {"padding": (((k - 1) // 2,) * 2,) * 2, **attrs}
    return op("conv2d", x, param(name, out, x.type.shape[1] // groups, k, k), **attrs)


def layouts(g):
    return [(n.attrs["data_layout"], n.attrs["kernel_layout"], n.attrs["out_layout"])
            for n in g.nodes if n.op.name.startswith("conv")]  # fmt: skip


def test_two_convolutions_share_blocks():
    x = var("x", 1, 16, 12, 12)
    main = alter(graph(conv(op("relu", conv(x, "a", 24)), "b", 24)))
    assert work(main) == ["layout_transform", "conv2d", "relu", "conv2d", "layout_transform"]
    assert layouts(main) == [("NCHW8c", "OIHW8i8o", "NCHW8c")] * 2
    wide = alter(graph(conv(op("relu", conv(x, "a", 32)), "b", 32)), "skylake-avx512")
    assert layouts(wide) == [("NCHW16c", "OIHW16i16o", "NCHW16c")] * 2


def test_the_first_layer_reads_plain_data():
    main = alter(graph(conv(conv(var("x", 1, 3, 12, 12), "a", 16, strides=(2, 2)), "b", 16)))
    assert layouts(main) == [("NCHW", "OIHW8o", "NCHW8c"), ("NCHW8c", "OIHW8i8o", "NCHW8c")]
    assert work(main) == ["conv2d", "conv2d", "layout_transform"]


def test_residual_network_keeps_one_transform():
    x = var("x", 1, 3, 8, 8)
    y = op("max_pool2d", op("relu", conv(x, "stem", 16)), pool_size=(3, 3), strides=(2, 2), **PAD)
    z = op("relu", op("add", conv(op("relu", conv(y, "a", 16)), "b", 16), y))
    down = op("add", conv(z, "c", 32, strides=(2, 2)), conv(z, "d", 32, k=1, strides=(2, 2)))
    pooled = op("reshape", op("global_avg_pool2d", down), shape=(1, 32))
    main = alter(graph(op("dense", pooled, param("fc", 10, 32))))
    assert "layout_transform" not in work(main), "not even one: what is left of the image are its channels"


@pytest.mark.parametrize("keepdims", [False, True])
def test_mean_over_the_image(keepdims):
    y = op("mean", conv(var("x", 2, 16, 12, 12), "a", 32), axis=(-1, -2), keepdims=keepdims)
    main = alter(graph(op("exp", op("reshape", y, shape=(2, 32)))))
    assert work(main) == ["layout_transform", "conv2d", "mean", "exp"]


def test_depthwise_and_channel_scales():
    x = var("x", 1, 32, 12, 12)
    y = conv(conv(x, "a", 40), "b", 40, groups=40)
    y = op("clip", op("add", op("multiply", y, param("s", 40, 1, 1)), param("t", 40, 1, 1)), a_min=0, a_max=6)
    main = alter(graph(conv(y, "c", 32)))
    assert layouts(main)[1] == ("NCHW8c", "OIHW1i8o", "NCHW8c")
    assert work(main).count("layout_transform") == 2


def test_blocks_of_other_sizes_meet():
    x = op("resize", var("x", 1, 4, 6, 6), size=(12, 12))
    main = alter(graph(conv(op("add", conv(op("relu", x), "a", 32), conv(x, "b", 32)), "c", 32)))
    assert layouts(main) == [("NCHW4c", "OIHW4i8o", "NCHW8c")] * 2 + [("NCHW8c", "OIHW8i8o", "NCHW8c")]
    assert work(main).count("layout_transform") == 2, "before the resizing, and at the end"
    deep = op("concatenate", conv(x, "e", 8), conv(x, "f", 12), axis=1)
    main = alter(graph(conv(op("add", deep, conv(x, "d", 20)), "g", 32)))
    assert layouts(main)[-1][2] == "NCHW8c"


def test_squeeze_and_excitation():
    x = conv(var("x", 2, 16, 12, 12), "a", 32)
    s = op("sigmoid", conv(op("relu", conv(op("mean", x, axis=(2, 3), keepdims=True), "b", 8, k=1)), "c", 32, k=1))
    main = alter(graph(conv(op("multiply", x, s), "d", 32)))
    assert work(main).count("layout_transform") == 2


def test_channels_that_do_not_divide_are_padded():
    x = var("x", 1, 3, 12, 12)
    y = op("sigmoid", conv(x, "a", 20))
    y = op("add", y, scalar(1))
    y = conv(op("relu", conv(y, "b", 20, groups=20)), "c", 12)
    main = alter(graph(op("add", y, param("bias", 12, 1, 1))))
    assert work(main).count("layout_transform") == 1
    assert [n.attrs["channels"] for n in main.nodes if n.op.name == "conv2d"] == [20, 20, 12]
    assert layouts(alter(graph(conv(x, "a", 2)))) == [("NCHW", "OIHW", None)], "mostly padding"


def test_padding_is_not_seen_through_ops_that_make_infinities():
    x = var("x", 1, 16, 12, 12)
    main = alter(graph(conv(op("log", op("exp", conv(x, "a", 21))), "b", 32)))
    assert work(main)[1:5] == ["conv2d", "layout_transform", "exp", "log"]
    main = alter(graph(conv(op("log", op("exp", conv(x, "a", 24))), "b", 32)))
    assert work(main)[1:4] == ["conv2d", "exp", "log"], "whole blocks"


def test_bias_of_whole_and_padded_blocks():
    x = var("x", 1, 16, 12, 12)
    for c in (16, 20):
        y = op("conv2d", x, param("w", c, 16, 3, 3), param("b", c), **PAD)
        assert work(alter(graph(y))) == ["layout_transform", "conv2d", "layout_transform"]


@pytest.mark.parametrize(("groups", "width", "expected"), [(4, 8, 4), (8, 4, 4), (8, 2, 2), (32, 1, None)])
def test_grouped_convolutions_in_whole_blocks(groups, width, expected):
    x = var("x", 1, groups * width, 12, 12)
    y = conv(x, "a", groups * width * (2 if width == 1 else 1), groups=groups)
    main = alter(graph(y))
    node = next(n for n in main.nodes if n.op.name == "conv2d")
    assert node.attrs["groups"] == (expected or groups)
    assert (node.attrs["out_layout"] is None) == (expected is None)


def test_concatenation_of_whole_blocks():
    x = var("x", 1, 16, 12, 12)
    a, b, c = conv(x, "a", 16), conv(x, "b", 32), conv(x, "c", 12)

    def rank(*parts):
        main = alter(graph(conv(op("concatenate", *parts, axis=1), "d", 32)))
        return main.nodes[[n.op.name for n in main.nodes].index("concatenate")].types[0].rank

    assert rank(a, b) == 5
    assert rank(b, c) == 5, "the last part may fill its last block with zeros"
    assert rank(c, a) == 4, "others may not: there would be a hole"


def test_slices_pads_and_resizing():
    x = conv(var("x", 1, 16, 12, 12), "a", 32)
    left = op("slice", x, begin=(0, 8, 1, 0), end=(1, 24, 12, 12))
    y = op("resize", op("pad", left, pad_width=((0, 0), (0, 0), (1, 0), (0, 0))), size=(24, 24))
    assert work(alter(graph(conv(y, "b", 32)))).count("layout_transform") == 2
    odd = op("slice", x, begin=(0, 4, 0, 0), end=(1, 20, 12, 12))
    assert work(alter(graph(conv(odd, "b", 32)))).count("layout_transform") == 4


def test_transposes_are_done_with_the_blocks():
    x = op("transpose", var("x", 1, 4, 4, 16), axes=(0, 3, 1, 2))
    y = op("transpose", conv(x, "a", 16, groups=16, k=3), axes=(0, 2, 3, 1))
    main = alter(graph(op("layer_norm", y, param("g", 16), param("b", 16))))
    assert work(main) == ["layout_transform", "conv2d", "layout_transform", "layer_norm"]


def test_other_ranks_and_transposed_convolutions():
    x1 = var("x", 1, 16, 64)
    y1 = op("conv1d", op("conv1d", x1, param("w", 32, 16, 3)), param("v", 32, 32, 3))
    assert layouts(alter(graph(y1))) == [("NCW", "OIW8o", "NCW8c"), ("NCW8c", "OIW8i8o", "NCW8c")]
    y3 = op("conv3d", var("x", 1, 16, 5, 6, 6), param("w", 16, 16, 3, 3, 3))
    assert layouts(alter(graph(y3))) == [("NCDHW8c", "OIDHW8i8o", "NCDHW8c")]
    t = op("conv2d_transpose", conv(var("x", 1, 8, 12, 12), "a", 16), param("w", 16, 16, 2, 2), strides=(2, 2))
    assert layouts(alter(graph(t)))[1:] == [("NCHW8c", "OIHW8i8o", "NCHW8c")] * 4


def test_a_plain_residual_is_brought_into_blocks():
    x, r = var("x", 1, 16, 12, 12), var("r", 1, 32, 12, 12)
    main = alter(graph(conv(op("add", conv(x, "a", 32), r), "b", 32)))
    assert work(main).count("layout_transform") == 3


def test_blocks_that_do_not_pay_for_their_transforms_are_not_made():
    x, r = var("x", 1, 8, 4, 4), var("r", 1, 8, 4, 4)
    g = graph(op("where", op("greater", r, var("q", 1, 8, 4, 4)), conv(x, "a", 8), r))
    assert work(alter(g)) == ["greater", "conv2d", "where"]
    lone = graph(conv(var("x", 1, 256, 14, 14), "a", 4, k=1))
    assert work(alter(lone)) == ["conv2d"]


@pytest.mark.parametrize(("units", "layout"), [(64, "NK16n"), (40, "NK16n"), (7, "NK8n"), (3, "NK")])
def test_dense_weights_are_packed(units, layout):
    x, w, b = var("x", 2, 3, 12), param("w", units, 12), param("b", units)
    main = alter(graph(op("dense", x, w, b)))
    assert [n.attrs["kernel_layout"] for n in main.nodes if n.op.name == "dense"] == [layout]
    assert work(main) == ["dense"], "packing is prepared"


@pytest.mark.parametrize("k", [1, 3])
def test_a_weight_that_changes_is_packed_where_strides_forbid_the_plain_layout(k):
    """As in training: the pixels of the output are no neighbours in the input."""
    x, w = var("x", 2, 32, 12, 12), var("w", 64, 32, k, k)
    main = alter(graph(op("conv2d", x, w, strides=(2, 2), padding=((k // 2,) * 2,) * 2)))
    ((_, kernel, _),) = layouts(main)
    assert kernel.endswith("8o") and "layout_transform" in work(main)
    plain = alter(graph(op("conv2d", x, w, padding=((k // 2,) * 2,) * 2)))
    assert work(plain) == ["conv2d"]


def test_nothing_to_do():
    g = graph(op("relu", var("x", 1, 8, 4, 4))).with_attrs(typed=True)
    assert apply_passes(g, ["AlterOpLayout"], PassContext()) is g
    runtime = graph(op("conv2d", var("x", 1, 8, 4, 4), var("w", 8, 8, 3, 3)))
    assert ops(alter(runtime)) == ["conv2d"], "a weight that changes at each call is not packed"


def test_sums_over_long_vectors_cost_more_than_padding():
    """From blocks to plain data a 1x1 convolution sums products over the lanes: dear where few make up a sum."""
    narrow = conv(op("relu", conv(conv(var("x", 1, 3, 56, 56), "a", 64), "b", 24, k=1)), "c", 80, k=1)
    y = conv(op("relu", narrow), "d", 80, k=1)
    assert layouts(alter(graph(y), "skylake-avx512"))[1] == ("NCHW16c", "OIHW16i16o", "NCHW16c")
    assert layouts(alter(graph(y)))[1] == ("NCHW8c", "OIHW8i8o", "NCHW8c")
