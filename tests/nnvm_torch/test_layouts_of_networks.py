"""AlterOpLayout on whole networks of the zoo: which layout transforms are left in what runs at each call."""

from functools import cache

import pytest
import torch
from torch import nn

from nnvm.compiler.pipeline import pipeline
from nnvm.graph.pass_manager import PassContext, apply_passes
from nnvm.target import Target
from nnvm_torch.bench.zoo import ZOO, classic
from nnvm_torch.capture import capture

BEFORE = pipeline()[: pipeline().index("AlterOpLayout")]
AFTER = ("AlterOpLayout", "FoldConstant", "EliminateCommon", "PrecomputePrune")
#: Transforms that run at each call. Not even two are left in most: the stem reads the image as it is, and where pooling
#: leaves one position per channel, the blocks lie as the plain tensor does.
LEFT = {
    ("resnet50", "haswell"): 0, ("resnet50", "skylake-avx512"): 0,
    ("mobilenet_v2", "haswell"): 0, ("mobilenet_v2", "skylake-avx512"): 0,
    ("efficientnet_b0", "haswell"): 0, ("efficientnet_b0", "skylake-avx512"): 0,
    ("densenet121", "haswell"): 0, ("densenet121", "skylake-avx512"): 0,
    ("squeezenet1_1", "haswell"): 0,
    # 1000 classes are no whole blocks of 16: the pooled ones are taken out of the padding
    ("squeezenet1_1", "skylake-avx512"): 1,
    # the last convolution writes the four classes plain
    ("unet_small", "haswell"): 0, ("unet_small", "skylake-avx512"): 0,
}  # fmt: skip


def shallow_densenet():
    """DenseNet-121 with two layers a stage in place of up to 24: tracing them all takes long."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for _ in range(3):
        layers += [classic.DenseLayer(64, 32), classic.DenseLayer(96, 32)]
        layers += [*classic.norm_relu_conv(128, 64, 1), nn.AvgPool2d(2, 2)]
    tail = (nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(64, 1000))
    return nn.Sequential(*layers, *tail)


@cache
def simplified(name):
    """The network on a small image, after all that runs before AlterOpLayout."""
    torch.manual_seed(0)
    module = shallow_densenet() if name == "densenet121" else ZOO[name].build()
    graph = capture(module.eval(), (torch.randn(1, 3, 64, 64),)).imported.graph
    return apply_passes(graph, BEFORE, PassContext())


@pytest.mark.parametrize(("name", "cpu"), LEFT)
def test_transforms_remain_only_where_they_must(name, cpu):
    target = Target.parse(f"llvm -mcpu={cpu}")
    main = apply_passes(simplified(name), AFTER, PassContext(target=target))
    runs = [n for n in main.nodes if n.op.name == "layout_transform"]
    assert len(runs) == LEFT[name, cpu], runs
    convolutions = [n for n in main.nodes if n.op.name.startswith("conv")]
    block = f"{target.lanes(32)}c"
    whole = [n for n in convolutions if n.outputs[0].type.shape[-1] == target.lanes(32)]
    assert len(whole) >= 0.8 * len(convolutions), f"in blocks of {block}"
    packed = [n for n in main.attrs["prepare"].nodes if n.op.name == "layout_transform"]
    assert len(packed) >= len(convolutions), "the weights' transforms are prepared"


def test_without_convolutions_nothing_is_done():
    torch.manual_seed(0)
    graph = capture(ZOO["mlp"].build().eval(), (torch.randn(1, 64),)).imported.graph
    main = apply_passes(graph, (*BEFORE, *AFTER), PassContext())
    assert not any(n.op.name == "layout_transform" for n in main.nodes)
