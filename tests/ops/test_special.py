"""Special functions against PyTorch's in float64, and against what is known of them."""

import math

import numpy as np
import pytest
import torch
from torch import special

from nnvm.graph.op import get
from nnvm.testing.run_op import run_op
from tests.ops.conftest import type_of
from tests.ops.gradient_check import check_gradient, normal, uniform

R = torch.Generator().manual_seed(0)
EVERYWHERE = torch.cat([torch.randn(60, generator=R, dtype=torch.float64) * 12,
                        torch.tensor([0.0, -0.0, 8.0, -8.0, 7.999, 8.001, 2.0, 1e-9, 700.0])])  # fmt: skip
WITHIN = torch.cat(
    [
        torch.rand(60, generator=R, dtype=torch.float64) * 2 - 1,
        torch.tensor([0.0, 1.0, -1.0, 1.5, 1e-300, 1 - 1e-15, 0.5, -0.5], dtype=torch.float64),
    ]
)

FUNCTIONS = {
    "i0": special.i0, "i0e": special.i0e, "i1": special.i1, "i1e": special.i1e,
    "k0": special.modified_bessel_k0, "k1": special.modified_bessel_k1, "k0e": special.scaled_modified_bessel_k0,
    "k1e": special.scaled_modified_bessel_k1, "spherical_bessel_j0": special.spherical_bessel_j0,
    "erfcx": special.erfcx, "log_ndtr": special.log_ndtr,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_as_pytorch(check, name, dtype):
    x = EVERYWHERE.to(dtype)
    check(name, [x], FUNCTIONS[name](x.double()).to(dtype))


@pytest.mark.parametrize("route", ["reference", "scheduled"])
@pytest.mark.parametrize("name", ["i0", "i0e", "i1", "i1e", "k0", "k0e", "k1", "k1e"])
def test_modified_bessel_functions_to_the_last_digits(name, route):
    """PyTorch's own err by up to 5 units in the last place of float64, ours by as many."""
    spans = torch.logspace(-8, 0, 80), torch.linspace(1, 9, 200), torch.logspace(0.95, 2.7, 80)
    x = torch.cat(spans).double()
    (got,) = run_op(name, [x.numpy()], [type_of(x)], {}, route)
    torch.testing.assert_close(torch.from_numpy(got), FUNCTIONS[name](x), rtol=2.5e-15, atol=0)


@pytest.mark.parametrize("name", ["ndtri", "erfinv"])
def test_inverses(check, name):
    x = WITHIN if name == "erfinv" else (WITHIN + 1) / 2
    check(name, [x], getattr(special, name)(x))
    check(name, [x.float()], getattr(special, name)(x.float().double()).float())


@pytest.mark.parametrize("order", [0, 1])
def test_bessel_functions_as_pytorch_gives_them_in_float32(check, order):
    x = torch.cat([EVERYWHERE, torch.tensor([math.nan])]).float()
    for kind, error in (("j", 1), ("y", 20)):
        expected = getattr(special, f"bessel_{kind}{order}")(x)
        check(f"bessel_{kind}{order}", [x], expected, tolerance=error)


def test_bessel_functions_satisfy_their_wronskian():
    """J1 Y0 - J0 Y1 = 2 / (pi x): to more digits than PyTorch's own have."""
    x = np.concatenate([np.linspace(0.05, 30, 500), [7.999, 8.0, 8.001, 500.0]])
    j0, j1, y0, y1 = (get(f"bessel_{f}").attr("reference")({}, x)[0] for f in ("j0", "j1", "y0", "y1"))
    np.testing.assert_allclose((j1 * y0 - j0 * y1) * (math.pi * x / 2), 1, rtol=1e-12)
    zeros = np.array([2.404825557695773, 5.520078110286311, 8.653727912911013])
    np.testing.assert_allclose(get("bessel_j0").attr("reference")({}, zeros)[0], 0, atol=1e-14)


POLYNOMIALS = {
    "chebyshev_t": special.chebyshev_polynomial_t, "chebyshev_u": special.chebyshev_polynomial_u,
    "chebyshev_v": special.chebyshev_polynomial_v, "chebyshev_w": special.chebyshev_polynomial_w,
    "hermite_h": special.hermite_polynomial_h, "hermite_he": special.hermite_polynomial_he,
    "laguerre_l": special.laguerre_polynomial_l, "legendre_p": special.legendre_polynomial_p,
}  # fmt: skip


@pytest.mark.parametrize("family", POLYNOMIALS)
def test_orthogonal_polynomials(check, family):
    x = torch.cat([torch.randn(40, generator=R) * 1.5, torch.tensor([0.0, 1.0, -1.0, 0.5])]).repeat(2)
    n = torch.cat([torch.randint(-2, 14, (86,), generator=R), torch.tensor([140, 0])])
    check("orthogonal_polynomial", [x, n], POLYNOMIALS[family](x, n.float()), tolerance=50, family=family)


@pytest.mark.parametrize("family", ["hermite_h", "hermite_he", "laguerre_l", "legendre_p", "chebyshev_v"])
def test_orthogonal_polynomials_round_as_eager_does(check, family):
    """Near a zero the terms cancel, and what is left is what was rounded."""
    x, n = torch.randn(500, generator=R) * 3, torch.randint(2, 9, (500,), generator=R)
    check("orthogonal_polynomial", [x, n], POLYNOMIALS[family](x, n.float()), tolerance=0, family=family)


def test_polynomials_of_nan(check):
    """PyTorch's own of degree 2 and more are memory that nobody wrote."""
    x, n = torch.full((4,), math.nan), torch.tensor([0, 1, 2, 9])
    check("orthogonal_polynomial", [x, n], torch.tensor([1.0, *[math.nan] * 3]), family="legendre_p")


def test_shifted_polynomials(check):
    x, n = torch.rand(40, generator=R), torch.randint(0, 12, (40,), generator=R)
    expected = special.shifted_chebyshev_polynomial_t(x, n.float())
    check("orthogonal_polynomial", [x, n], expected, tolerance=10, family="chebyshev_t", shifted=True)


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_running_extremes(check, name, dtype):
    x = torch.randint(0, 4, (3, 7, 5), generator=R).to(dtype)
    if dtype.is_floating_point:
        x[1, 3, 2] = math.nan
    for axis in range(3):
        check(name, [x], getattr(torch, name)(x, axis), axis=axis)


def test_running_logsumexp(check):
    x = torch.randn(3, 6, 4, generator=R) * 30
    x[0, :2, 1], x[1, 2, 0], x[2, 3, 3] = -math.inf, math.inf, math.nan
    for axis in range(3):
        check("logcumsumexp", [x], torch.logcumsumexp(x.double(), axis).float(), axis=axis)


def test_next_numbers(check):
    x, y = torch.randn(2, 30, generator=R)
    x[:3], y[3] = 0.0, math.nan
    check("nextafter", [x, y], torch.nextafter(x, y))


POSITIVE, ANY, UNIT = uniform(20, low=0.1, high=9), normal(20) * 3, uniform(20, low=0.02, high=0.98)
GRADIENTS = {
    "i0": (special.i0, ANY), "i0e": (special.i0e, ANY), "i1": (special.i1, ANY), "i1e": (special.i1e, ANY),
    "erfcx": (lambda x: torch.exp(x * x) * torch.erfc(x), ANY / 3), "log_ndtr": (special.log_ndtr, ANY),
    "ndtri": (special.ndtri, UNIT), "erfinv": (special.erfinv, UNIT),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    expected, x = GRADIENTS[name]
    check_gradient(name, [x], expected, tolerance=1e-8)


@pytest.mark.parametrize("name", ["k0", "k0e", "k1", "k1e", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1",
                                  "spherical_bessel_j0"])  # fmt: skip
def test_gradients_that_pytorch_lacks(name):
    """Against central differences: autograd has no formula for them."""
    reference = get(name).attr("reference")

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.from_numpy(reference({}, x.numpy())[0])

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            high, low = (torch.from_numpy(reference({}, (x + h).numpy())[0]) for h in (1e-5, -1e-5))
            return g * (high - low) / 2e-5

    check_gradient(name, [POSITIVE], Function.apply, tolerance=1e-5)


def test_gradients_of_running_operators():
    x = normal(3, 6, 4)
    for axis in range(3):
        check_gradient("cummax", [x], lambda x, a=axis: torch.cummax(x, a)[0], axis=axis)
        check_gradient("logcumsumexp", [x], lambda x, a=axis: torch.logcumsumexp(x, a), axis=axis)
