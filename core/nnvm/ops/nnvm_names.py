"""What NNVM calls the params of ops, and the values that it gives them where nothing is said: for the Symbol API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnvm.graph import op as registry

__all__: list[str] = []

Attrs = Mapping[str, Any]
Form = Callable[[Attrs], tuple[str, dict[str, Any]]]


def _form(name: str, default: Attrs | None = None, **renamed: str) -> Form:
    """Params `renamed` from NNVM's name to ours, with the values that NNVM takes where none are given."""

    def form(attrs: Attrs) -> tuple[str, dict[str, Any]]:
        return name, {**(default or {}), **{renamed.get(k, k): v for k, v in attrs.items()}}

    return form


def _reshape(attrs: Attrs) -> tuple[str, dict[str, Any]]:
    """In NNVM 0 and -2 to -4 are codes; a tensor without elements has no name there."""
    shape = attrs.get("shape", ())
    coded = isinstance(shape, (tuple, list)) and any(isinstance(d, int) and (d == 0 or d < -1) for d in shape)
    return ("reshape_codes" if coded else "reshape"), dict(attrs)


def _resize(attrs: Attrs) -> tuple[str, dict[str, Any]]:
    return ("upscale" if "scale" in attrs else "resize"), dict(attrs)


def _reduction(name: str) -> Form:
    """In NNVM no axes are all axes."""

    def form(attrs: Attrs) -> tuple[str, dict[str, Any]]:
        if attrs.get("exclude"):
            raise TypeError(f"{name}: exclude=True is not known here; give the axes that are reduced")
        given = {k: v for k, v in attrs.items() if k != "exclude"}
        return name, {**given, "axis": None} if given.get("axis") in ((), []) else given

    return form


def _pool(name: str, rank: int) -> Form:
    """In NNVM windows overlap where no strides are given, and border elements do not count in a mean."""
    default: dict[str, Any] = {"strides": (1,) * rank}
    return _form(name, {**default, "count_include_pad": False} if name.startswith("avg") else default)


def _axes_or_none(name: str, key: str) -> Form:
    """In NNVM an empty tuple stands for nothing said."""
    return lambda attrs: (name, {k: None if k == key and v in ((), []) else v for k, v in attrs.items()})


_FORMS: dict[str, Form] = {
    **{f"{kind}_pool{r}d": _pool(f"{kind}_pool{r}d", r) for kind in ("max", "avg") for r in (1, 2, 3)},
    **{name: _reduction(name) for name in ("sum", "mean", "max", "min", "prod", "argmax", "argmin")},
    "prelu": lambda attrs: ("prelu_channels", dict(attrs)),
    "transpose": _axes_or_none("transpose", "axes"),
    "squeeze": _axes_or_none("squeeze", "axis"),
    "lrn": _form("lrn", {"bias": 2}),
    **{f"conv{r}d{t}": _form(f"conv{r}d{t}", layout="data_layout") for r in (1, 2, 3) for t in ("", "_transpose")},
    "pad": _form("pad", pad_value="value"),
    "slice": _form("slice", stride="step"),
    "flip": _form("flip", axis="axes"),
    "concatenate": _form("concatenate", default={"axis": 1}),
    "leaky_relu": _form("leaky_relu", default={"alpha": 0.25}),
    "layer_norm": _form("layer_norm", epsilon="eps"),
    "instance_norm": _form("instance_norm", epsilon="eps"),
    "full": _form("full", fill_value="value"),
    "reshape": _reshape,
    "resize": _resize,
}

for _name, _rule in _FORMS.items():
    registry.get(_name).set_attr("symbol_form", _rule)

registry.add_alias("identity", "copy")
registry.add_alias("elemwise_sum", "add_n")
