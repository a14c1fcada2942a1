"""The first layers of networks, convolutions of a few channels of an image: as accurate as eager's, in its layout."""

import copy

import pytest
import torch
from torch import nn

import nnvm_torch
from tests.nnvm_torch.accuracy import assert_as_accurate

#: Shape of the data, then the arguments of nn.Conv2d, what comes after it, whether the data are channels_last.
LAYERS = {
    "resnet": ((1, 3, 65, 81), (64, 7, 2, 3), nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3)), False),
    "resnet channels last": ((2, 3, 64, 64), (64, 7, 2, 3), nn.Sequential(nn.BatchNorm2d(64), nn.ReLU()), True),
    "vgg": ((2, 3, 56, 57), (64, 3, 1, 1), nn.Sequential(nn.ReLU(), nn.Conv2d(64, 16, 1), nn.ReLU()), False),
    "vgg channels last": ((1, 3, 40, 43), (64, 3, 1, 1), nn.ReLU(), True),
    "mobilenet": ((1, 3, 63, 64), (16, 3, 2, 1), nn.Sequential(nn.Hardswish(), nn.Conv2d(16, 8, 1)), False),
    "efficientnet": ((8, 3, 33, 40), (32, 3, 2, 1), nn.Sequential(nn.BatchNorm2d(32), nn.SiLU()), False),
    "squeezenet": ((1, 3, 66, 70), (64, 3, 2), nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)), False),
    "patches": ((2, 3, 48, 32), (96, 16, 16), nn.Flatten(2), False),
    "alexnet": ((1, 3, 71, 75), (64, 11, 4, 2), nn.ReLU(), False),
    "one channel": ((2, 1, 50, 50), (32, 5, 1, 2), nn.Tanh(), False),
    "four channels": ((1, 4, 40, 37), (48, (3, 5), (1, 2), (2, 0)), nn.GELU(), True),
    "dilated": ((1, 3, 45, 45), (24, 3, 1, 2, 2), nn.ReLU6(), False),
    "groups": ((1, 6, 33, 35), (96, 5, 1, 2, 1, 2), nn.ReLU(), False),
    "on one side": ((1, 3, 32, 32), (32, 3, 2), nn.LeakyReLU(), False),
    "circular": ((1, 2, 30, 34), (40, 7, 1, 3, 1, 1, True, "circular"), nn.ReLU(), False),
}


@pytest.mark.parametrize("name", LAYERS)
def test_first_layers(name):
    shape, arguments, after, channels_last = LAYERS[name]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(shape[1], *arguments), copy.deepcopy(after)).eval()
    if name == "on one side":
        model.insert(0, nn.ZeroPad2d((0, 1, 2, 0)))
    x = torch.randn(shape)
    if channels_last:
        x, model = (t.to(memory_format=torch.channels_last) for t in (x, model))
    nnvm_torch.reset()
    with torch.no_grad():
        got, eager = torch.compile(model, backend="nnvm")(x), model(x)
        exact = copy.deepcopy(model).double()(x.double())
    assert_as_accurate([got], [eager], [exact])


@pytest.mark.parametrize("kernel,stride", [(3, 1), (7, 2), (5, 4)])
def test_first_layers_of_images_of_any_size(kernel, stride):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, kernel, stride, kernel // 2), nn.ReLU()).eval()
    nnvm_torch.reset()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="nnvm", dynamic=True)
    for size in ((1, 3, 41, 40), (3, 3, 64, 29), (2, 3, 90, 77)):
        x = torch.randn(size)
        with torch.no_grad():
            assert_as_accurate([compiled(x)], [model(x)], [copy.deepcopy(model).double()(x.double())])


def test_first_layers_of_signals():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 64, 10, 5), nn.GELU(), nn.Conv1d(64, 32, 3, 1, 1)).eval()
    x = torch.randn(2, 1, 1200)
    nnvm_torch.reset()
    with torch.no_grad():
        got, eager, exact = torch.compile(model, backend="nnvm")(x), model(x), copy.deepcopy(model).double()(x.double())
    assert_as_accurate([got], [eager], [exact])
