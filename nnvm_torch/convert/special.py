"""Special functions."""

from __future__ import annotations

from typing import Any

from nnvm.dtype import I64
from nnvm.graph import NodeEntry
from nnvm_torch.convert.table import Context, Scalar, Unsupported, Value, converts

__all__: list[str] = []

#: ATen's function, and the op of the same meaning.
_UNARY = {
    "erfinv": "erfinv", "special_erfcx": "erfcx", "special_log_ndtr": "log_ndtr", "special_ndtri": "ndtri",
    "i0": "i0", "special_i0e": "i0e", "special_i1": "i1", "special_i1e": "i1e",
    "special_modified_bessel_i0": "i0", "special_modified_bessel_i1": "i1",
    "special_modified_bessel_k0": "k0", "special_modified_bessel_k1": "k1",
    "special_scaled_modified_bessel_k0": "k0e", "special_scaled_modified_bessel_k1": "k1e",
    "special_bessel_j0": "bessel_j0", "special_bessel_j1": "bessel_j1", "special_bessel_y0": "bessel_y0",
    "special_bessel_y1": "bessel_y1", "special_spherical_bessel_j0": "spherical_bessel_j0",
}  # fmt: skip


def _unary(name: str) -> Any:
    return lambda c, x: c.op(name, c.cast(x, c.dtype))


for _aten, _op in _UNARY.items():
    converts(f"{_aten}.default")(_unary(_op))
for _prim in ("erf_inv", "bessel_i0", "bessel_i0e", "bessel_i1", "bessel_i1e", "bessel_j0", "bessel_j1", "erfcx",
              "ndtri", "spherical_bessel_j0"):  # fmt: skip
    _name = {"erf_inv": "erfinv"}.get(_prim, _prim.removeprefix("bessel_") if "_i" in _prim else _prim)
    converts(f"prims.{_prim}.default")(_unary(_name))


def _polynomial(family: str, shifted: bool) -> Any:
    def convert(c: Context, x: NodeEntry | Scalar, n: NodeEntry | Scalar) -> Value:
        if c.dtype.is_half:
            raise Unsupported(f"orthogonal polynomials of {c.dtype}")
        degree = c.cast(c.value(n, c.dtype), I64)
        return c.op("orthogonal_polynomial", c.broadcast(c.value(x, c.dtype), c.shape), c.broadcast(degree, c.shape),
                    family=family, shifted=shifted)  # fmt: skip

    return convert


for _family in ("chebyshev_t", "chebyshev_u", "chebyshev_v", "chebyshev_w", "hermite_h", "hermite_he", "laguerre_l",
                "legendre_p"):  # fmt: skip
    _kind, _, _letter = _family.partition("_")
    for _shifted in (False, True):
        _aten = f"special_{'shifted_' * _shifted}{_kind}_polynomial_{_letter}"
        converts(f"{_aten}.default", f"{_aten}.x_scalar", f"{_aten}.n_scalar")(_polynomial(_family, _shifted))


@converts("polygamma.default")
def _polygamma(c: Context, n: int, x: NodeEntry) -> Value:
    return c.op("polygamma", c.cast(x, c.dtype), n=n)


@converts("nextafter.default")
def _nextafter(c: Context, x: NodeEntry, y: NodeEntry) -> Value:
    if c.dtype.is_half:
        raise Unsupported(f"nextafter of {c.dtype}")
    return c.op("nextafter", c.cast(x, c.dtype), c.cast(y, c.dtype))
