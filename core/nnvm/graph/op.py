"""The operator registry. An Op is a name, its parameters, and an open table of attributes (`op_attrs`).

>>> relu = register("relu", inputs=["data"], doc="max(x, 0)")
>>> relu.set_attr("pattern", OpPattern.ELEMWISE)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nnvm.attribute import is_note
from nnvm.graph.op_attrs import ATTRIBUTES

__all__ = ["Op", "Param", "add_alias", "get", "known", "register"]

_REGISTRY: dict[str, Op] = {}
_ALIASES: dict[str, str] = {}


@dataclass(frozen=True)
class Param:
    """A keyword attribute of an op. Without a default it must be given; `convert` normalises and checks a value."""

    doc: str
    convert: Callable[[Any], Any]
    default: Any = ...

    @property
    def required(self) -> bool:
        return self.default is ...


@dataclass(eq=False)
class Op:
    """An operator.

    Attributes:
        name: unique.
        inputs: names of the inputs; a last one beginning with ``*`` takes any number, one ending in ``?`` may be
            absent.
        params: keyword attributes by name.
        num_outputs: a number, or a function of the attributes.
    """

    name: str
    inputs: tuple[str, ...]
    params: Mapping[str, Param]
    num_outputs: int | Callable[[Mapping[str, Any]], int]
    doc: str
    _attrs: dict[str, Any] = field(default_factory=dict, repr=False)

    def set_attr(self, name: str, value: Any, *, override: bool = False) -> Op:
        """Attaches an attribute; attaching it twice needs `override`."""
        if name not in ATTRIBUTES:
            raise KeyError(f"op attribute {name!r} is not declared; known: {', '.join(sorted(ATTRIBUTES))}")
        if name in self._attrs and not override:
            raise ValueError(f"{self.name} has attribute {name!r} already; pass override=True to replace it")
        self._attrs[name] = value
        return self

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute, or `default` where the op has none."""
        if name not in ATTRIBUTES:
            raise KeyError(f"op attribute {name!r} is not declared; known: {', '.join(sorted(ATTRIBUTES))}")
        return self._attrs.get(name, default)

    def has(self, name: str) -> bool:
        return name in self._attrs

    def outputs(self, attrs: Mapping[str, Any]) -> int:
        """Number of outputs under these attributes."""
        return self.num_outputs(attrs) if callable(self.num_outputs) else self.num_outputs

    def check_inputs(self, count: int) -> None:
        """ValueError where the op does not take `count` inputs."""
        least = sum(not i.endswith("?") and not i.startswith("*") for i in self.inputs)
        variadic = bool(self.inputs) and self.inputs[-1].startswith("*")
        if count < least or (count > len(self.inputs) and not variadic):
            raise ValueError(f"{self.name} takes inputs ({', '.join(self.inputs)}), got {count}")

    def normalise(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """All params of the op with values checked and defaults filled in; an unknown one is a TypeError.

        Attributes of users (``__key__``, see `nnvm.attribute`) are kept as they are.
        """
        unknown = [k for k in attrs if k not in self.params and not is_note(k)]
        if unknown:
            known_names = ", ".join(self.params) or "none"
            raise TypeError(f"{self.name} has no attribute {unknown[0]!r}; it has: {known_names}")
        out: dict[str, Any] = {}
        for name, param in self.params.items():
            if name not in attrs:
                if param.required:
                    raise TypeError(f"{self.name} needs the attribute {name!r}: {param.doc}")
                out[name] = param.default
                continue
            try:
                out[name] = param.convert(attrs[name])
            except (TypeError, ValueError) as e:
                raise type(e)(f"{self.name}: attribute {name}={attrs[name]!r}: {e}") from None
        out.update((k, v) for k, v in attrs.items() if is_note(k))
        return out

    def __reduce__(self) -> tuple[Callable[[str], Op], tuple[str]]:
        """A copy, and what is pickled, is the op of that name: there is one."""
        return get, (self.name,)

    def __repr__(self) -> str:
        return f"Op({self.name})"


def register(
    name: str, *, inputs: Sequence[str] = (), params: Mapping[str, Param] | None = None,
    num_outputs: int | Callable[[Mapping[str, Any]], int] = 1, doc: str = "", aliases: Sequence[str] = (),
    **attributes: Any,
) -> Op:  # fmt: skip
    """Makes a new op, with any op attributes as keywords; ValueError where the name is taken."""
    for n in (name, *aliases):
        if n in _REGISTRY or n in _ALIASES:
            raise ValueError(f"op {n!r} is registered already")
    op = Op(name, tuple(inputs), dict(params or {}), num_outputs, doc)
    for key, value in attributes.items():
        op.set_attr(key, value)
    _REGISTRY[name] = op
    _ALIASES.update(dict.fromkeys(aliases, name))
    return op


def add_alias(name: str, *aliases: str) -> None:
    """Gives the op `name` further names; ValueError where one is taken."""
    for n in aliases:
        if n in _REGISTRY or n in _ALIASES:
            raise ValueError(f"op {n!r} is registered already")
        _ALIASES[n] = get(name).name


def get(name: str) -> Op:
    """The op of that name or alias; KeyError suggests near names."""
    op = _REGISTRY.get(_ALIASES.get(name, name))
    if op is None:
        import difflib

        near = difflib.get_close_matches(name, [*_REGISTRY, *_ALIASES], 3)
        raise KeyError(f"no op {name!r}" + (f"; did you mean {', '.join(near)}?" if near else ""))
    return op


def known() -> list[str]:
    """Names of all ops, sorted."""
    return sorted(_REGISTRY)
