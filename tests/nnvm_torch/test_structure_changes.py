"""Parameters, buffers and hooks that a module gets after `nnvm_torch.compile`, and functions that transform it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nnvm_torch


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ParameterList([torch.randn(8), torch.randn(8)])
        self.register_parameter("scale", None)
        self.register_buffer("shift", None)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = x * step + 1
        x = x if self.scale is None else x * self.scale
        x = x if self.shift is None else x + self.shift
        return self.last(x + self.more if hasattr(self, "more") else x)


def test_all_are_noticed() -> None:
    torch.manual_seed(0)
    module, x = Chain(), torch.randn(3, 8)
    run = nnvm_torch.compile(module)
    seen = [run(x).detach()]

    def check() -> None:
        torch.testing.assert_close(run(x), module(x))
        assert not any(torch.equal(run(x), before) for before in seen)
        seen.append(run(x).detach())

    module.steps.append(nn.Parameter(torch.randn(8)))
    check()
    module.scale = nn.Parameter(torch.randn(8))
    check()
    module.shift = torch.randn(8)
    check()
    module.register_buffer("more", torch.randn(8))
    check()
    hook = module.last.register_forward_hook(lambda m, args, out: out * 2)
    check()
    hook.remove()
    torch.testing.assert_close(run(x), seen[-2])
    module.last.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    check()


def test_a_hook_in_the_place_of_another_is_noticed() -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), torch.randn(3, 4)
    run = nnvm_torch.compile(module)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            plain = module(x)
            for factor in (2, 3):
                handle = module[0].register_forward_hook(lambda m, args, out, factor=factor: out * factor)
                torch.testing.assert_close(run(x), module(x))
                handle.remove()
            torch.testing.assert_close(run(x), plain)


@pytest.mark.filterwarnings("ignore:.*runs in eager")
def test_backward_hooks_do_their_work() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    run, x = nnvm_torch.compile(module), torch.randn(3, 4)

    def gradient(f: object) -> torch.Tensor:
        y = x.clone().requires_grad_()
        f(y).sum().backward()
        assert y.grad is not None
        return y.grad

    plain = gradient(run)
    torch.testing.assert_close(plain, gradient(module))
    for register, hook in (
        (module[2].register_full_backward_hook, lambda m, given, out: (given[0] * 2,)),
        (module[0].register_full_backward_pre_hook, lambda m, out: (out[0] * 3,)),
    ):
        handle = register(hook)
        assert not torch.allclose(gradient(run), plain)
        torch.testing.assert_close(gradient(run), gradient(module))
        with torch.no_grad():
            torch.testing.assert_close(run(x), module(x))
        handle.remove()
        torch.testing.assert_close(gradient(run), plain)


@pytest.mark.filterwarnings("ignore:.*runs in eager")
def test_transforms_of_torch_func() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    run, x = nnvm_torch.compile(module), torch.randn(7, 4)
    others = {name: torch.randn_like(p) for name, p in module.named_parameters()}
    several = {name: torch.stack([p, p * 2]) for name, p in others.items()}
    func = torch.func
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            for f in (  # inside of a transform a tensor has the sizes of those that came before
                lambda m: m(x),
                lambda m: torch.vmap(m)(x.expand(2, 7, 4)),
                lambda m: func.grad(lambda y: m(y).sum())(x),
                lambda m: func.jvp(m, (x,), (x,))[1],
                lambda m: func.jacrev(m)(x[0]),
                lambda m: func.functional_call(m, others, (x,)),
                lambda m: torch.vmap(lambda p: func.functional_call(m, p, (x,)))(several),
                lambda m: m(x),
            ):
                torch.testing.assert_close(f(run), f(module))


@pytest.mark.filterwarnings("ignore:.*runs? in eager")
def test_hooks_of_all_modules_run_as_often_as_in_eager() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Tanh()))
    run, x = nnvm_torch.compile(module), torch.randn(3, 4)
    run(x)
    hooks = torch.nn.modules.module
    seen: list[str] = []
    for register in (
        hooks.register_module_forward_hook, hooks.register_module_forward_pre_hook,
        hooks.register_module_full_backward_hook, hooks.register_module_full_backward_pre_hook,
    ):  # fmt: skip
        orders = []
        for call in (module, run):
            with register(lambda m, *_: seen.append(type(m).__name__)):
                call(x.clone().requires_grad_()).sum().backward()
            orders.append(seen.copy())
            seen.clear()
        assert len(orders[0]) == 4 and orders[1] == orders[0]
    run.register_forward_hook(lambda m, args, out: seen.append("own"))
    run(x)
    assert seen == ["own"]


@pytest.mark.filterwarnings("ignore:.*in eager")
@pytest.mark.parametrize("grad", [True, False])
def test_forward_mode_differentiation(grad: bool) -> None:
    """Tangents of inputs, with and without parameters that want gradients, of what is compiled and is not yet."""
    from torch.autograd import forward_ad

    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh()).requires_grad_(grad)
    x, tangent = torch.randn(3, 4), torch.randn(3, 4)

    def differentiated(call: nn.Module) -> torch.Tensor:
        with forward_ad.dual_level():
            result = forward_ad.unpack_dual(call(forward_ad.make_dual(x, tangent))).tangent
        assert result is not None
        return result

    for compiled in (nnvm_torch.compile(module), torch.compile(module, backend="nnvm")):
        for _ in range(2):
            torch.testing.assert_close(differentiated(compiled), differentiated(module))
            torch.testing.assert_close(torch.func.jvp(compiled, (x,), (tangent,))[1], differentiated(module))
            torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.filterwarnings("ignore")
def test_quantised_modules_give_eagers_answers() -> None:
    from torch.ao.quantization import quantize_dynamic

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    quantised = quantize_dynamic(module, {nn.Linear}, dtype=torch.qint8)
    x = torch.randn(3, 8)
    for compiled in (nnvm_torch.compile(quantised, x), torch.compile(quantised, backend="nnvm")):
        for _ in range(2):
            assert torch.equal(compiled(x), quantised(x))
