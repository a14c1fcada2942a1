"""Values of many dimensions at once: all of their expressions as one Python function, common parts computed once.

A model whose sizes change with every call (a cache that grows by a token) evaluates all offsets of its memory plan each
time; term by term (`nnvm.dim.evaluate`) that can take longer than the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from nnvm.dim import Atom, Dim, SymDim, Term, symbols

__all__ = ["DimValues"]


class DimValues:
    """What the dimensions it was made of are worth, for any values of their names.

    ```
    values = DimValues([s * 4, (s + 15) // 16])
    values({"s": 20})(s * 4) == 80
    ```
    """

    def __init__(self, dims: Iterable[Dim]) -> None:
        self._dims = [d for d in dict.fromkeys(dims) if isinstance(d, SymDim)]
        self._names = sorted({name for d in self._dims for name in symbols(d)})
        writer = _Writer(self._names)
        results = [writer.dim(d) for d in self._dims]
        lines = [f"def values({', '.join(writer.arguments)}):", *writer.lines, f"    return [{', '.join(results)}]"]
        space: dict[str, Any] = {}
        exec(compile("\n".join(lines), "<sizes>", "exec"), space)  # of our own text; names of sizes are not in it
        self._function: Callable[..., list[int]] = space["values"]

    def __call__(self, env: Mapping[str, int]) -> Callable[[Dim], int]:
        """The value of each dimension. KeyError names a size that `env` lacks, or is a dimension that was not given;
        ZeroDivisionError where one divides by 0."""
        values = dict(zip(self._dims, self._function(*[env[name] for name in self._names])))
        return lambda d: d if isinstance(d, int) else values[d]


class _Writer:
    """Statements that compute dimensions, each distinct part once."""

    def __init__(self, names: Iterable[str]) -> None:
        self.lines: list[str] = []
        self._known: dict[object, str] = {("sym", name): f"s{i}" for i, name in enumerate(names)}
        self.arguments = list(self._known.values())

    def dim(self, d: Dim) -> str:
        """An operand with the value of `d`."""
        if isinstance(d, int):
            return f"({d})"
        return self._once(d, lambda: " + ".join(self._term(t, c) for t, c in d.terms))

    def _term(self, term: Term, coef: int) -> str:
        factors = [self._atom(a) for a in term]
        return " * ".join(factors if coef == 1 and factors else [str(coef), *factors])

    def _atom(self, atom: Atom) -> str:
        def text() -> str:
            a, b = self.dim(cast(Dim, atom[1])), self.dim(cast(Dim, atom[2]))
            if atom[0] == "max":
                return f"{a} if {a} >= {b} else {b}"
            if atom[0] == "min":
                return f"{a} if {a} <= {b} else {b}"
            return f"{a} {'//' if atom[0] == 'floordiv' else '%'} {b}"

        return self._once(atom, text)

    def _once(self, part: object, text: Callable[[], str]) -> str:
        found = self._known.get(part)
        if found is None:
            value = text()
            found = self._known[part] = f"v{len(self.lines)}"
            self.lines.append(f"    {found} = {value}")
        return found
