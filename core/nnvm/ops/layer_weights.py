"""What NNVM's attributes of layers (channels, kernel_size, units) say of the types of their weights.

The op attribute ``layer_weights``, (attrs) -> hints by input, takes the attributes that are no params of the op out of
`attrs`; None where they do not tell. The Symbol API makes the weights that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nnvm.graph import op as registry
from nnvm.graph.op_attrs import declare
from nnvm.graph.type_solver import Hint, partial
from nnvm.ops.params import integer

__all__: list[str] = []

declare("layer_weights", "(attrs) -> dict[str, Hint] | None (ops/layer_weights.py)",
        "What the attributes of a layer say of its weights, by input.")  # fmt: skip

Hints = dict[str, Hint]


def _conv(rank: int, transposed: bool) -> Callable[[dict[str, Any]], Hints | None]:
    def weights(attrs: dict[str, Any]) -> Hints | None:
        if "kernel_size" not in attrs:
            return None
        if "channels" not in attrs:
            raise TypeError("a convolution makes its weights from channels and kernel_size; channels is missing")
        channels = _checked(attrs.pop("channels"), "channels", 0)
        sizes = attrs.pop("kernel_size")
        kernel = [
            _checked(k, "kernel_size", 1) for k in (sizes if isinstance(sizes, (tuple, list)) else [sizes] * rank)
        ]
        if len(kernel) != rank:
            raise ValueError(f"kernel_size={sizes}: expected {rank} sizes, one a spatial axis")
        groups = _checked(attrs.get("groups", 1), "groups", 1)
        if channels % groups:
            raise ValueError(f"{channels} channels cannot be divided among {groups} groups")
        plain = (None, channels // groups, *kernel) if transposed else (channels, None, *kernel)
        layout = attrs.get("kernel_layout")
        by_axis = dict(zip(("IO" if transposed else "OI") + "DHW"[-rank:], plain))
        return {"weight": partial(plain if layout is None else tuple(by_axis[a] for a in layout)),
                "bias": partial((channels,))}  # fmt: skip

    return weights


def _dense(attrs: dict[str, Any]) -> Hints | None:
    if "units" not in attrs:
        return None
    units = _checked(attrs.pop("units"), "units", 0)
    return {"weight": partial((units, None)), "bias": partial((units,))}


def _checked(value: Any, key: str, least: int) -> int:
    try:
        size = integer(value)
    except TypeError as error:
        raise TypeError(f"{key}={value!r}: {error}") from None
    if size < least:
        raise ValueError(f"{key}={value}: expected at least {least}")
    return size


def _unknown(*names: str) -> Callable[[dict[str, Any]], Hints]:
    """Their shapes follow from the data's."""
    return lambda attrs: dict.fromkeys(names, partial())


for _name, _rule in {
    "dense": _dense, "batch_norm": _unknown("gamma", "beta", "moving_mean", "moving_var"),
    "layer_norm": _unknown("gamma", "beta"), "prelu_channels": _unknown("alpha"), "rms_norm": _unknown("gamma", "beta"),
    **{f"conv{r}d": _conv(r, False) for r in (1, 2, 3)}, **{f"conv{r}d_transpose": _conv(r, True) for r in (1, 2, 3)},
}.items():  # fmt: skip
    registry.get(_name).set_attr("layer_weights", _rule)
