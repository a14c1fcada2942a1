"""Sizes known at the call only, as PyTorch traces them: their ranges, and guards that are missing or needless.

Three things are put right. Operators that need two sizes to be equal, and whose tracing does not ask: the guard is
added here, so that the compiler sees one size. Python numbers, which may be negative where a size may not: a guard says
which sign they have, and a negative one is written as minus a size. And the tracing of convolutions, which asks
oneDNN's heuristics (is the batch below 16, are there over 20480 elements?) although nothing about the result depends on
the answer where all tensors are contiguous: each crossing of these bounds would be a compilation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

from nnvm import dim as dims
from nnvm.dim import Dim
from nnvm_torch.tensors import UnsupportedSize, dim_of_expr, strides_of

__all__ = ["DimRanges", "hints_of", "multiples_of", "negative_numbers", "ranges_of", "require_equal_sizes",
           "require_signs"]  # fmt: skip

#: (name, least, greatest or None) of each size.
DimRanges = tuple[tuple[str, int, "int | None"], ...]

#: Remainders that are tried for a size, and sympy's functions that are divisions.
MOST_REMAINDERS = 1 << 10
_DIVISIONS = ("FloorDiv", "CleanDiv", "Mod", "PythonMod")

#: Operators with pairs of sizes that must be equal: ((argument, axis), (argument, axis)).
_EQUAL: dict[Any, tuple[tuple[tuple[int, int], tuple[int, int]], ...]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: (
        ((1, -2), (2, -2)), ((1, -3), (2, -3)), ((0, -4), (1, -4)), ((0, -4), (2, -4)), ((0, -1), (1, -1)),
    ),
}  # fmt: skip


def require_equal_sizes(gm: fx.GraphModule) -> None:
    """Adds a guard for each pair of sizes that an operator needs to be equal and that is written differently, and for
    each size of which the guards so far leave one value only."""
    _fix_decided_sizes(gm)
    for node in gm.graph.nodes:
        for (a, i), (b, j) in _EQUAL.get(node.target, ()):
            x, y = (node.args[k].meta.get("val") for k in (a, b))
            p, q = x.shape[i], y.shape[j]
            if isinstance(p, torch.SymInt) or isinstance(q, torch.SymInt):
                bool(p == q)  # a guard, unless it is known; from here on both have one name


def _fix_decided_sizes(gm: fx.GraphModule) -> None:
    """``16 * s * s == 4096`` (an image, flattened, for a layer of 4096 inputs) means that s is 16."""
    for size in _sizes(gm.graph):
        symbol = size.node.expr
        if not getattr(symbol, "is_Symbol", False):
            continue
        for guard in list(size.node.shape_env.guards):
            if _decides(guard.expr, symbol):
                bool(size == size.node.hint)
                break


def _decides(guard: Any, symbol: Any) -> bool:
    """Is the guard an equation that grows with the size, its only one, so that a single value solves it?"""
    if not isinstance(guard, sympy.Eq) or guard.free_symbols != {symbol}:
        return False
    try:
        coefficients = sympy.Poly(guard.lhs - guard.rhs, symbol).all_coeffs()[:-1]
    except sympy.PolynomialError:
        return False
    return all(c >= 0 for c in coefficients) or all(c <= 0 for c in coefficients)


def require_signs(gm: fx.GraphModule) -> None:
    """Adds a guard for each number among the arguments that may be negative and may be not: on its sign."""
    for size in _sizes(gm.graph):
        if getattr(size.node.expr, "is_Symbol", False):
            bool(size >= 0)


def negative_numbers(gm: fx.GraphModule) -> dict[str, Dim]:
    """The arguments that are negative, by the guards so far, written as `nnvm.dim` can: names stand for what is at
    least 0, so theirs stand for the number without its sign. `ranges_of` and `hints_of` speak of the same."""
    return {name: -dims.symbol(name) for name, (_, high) in _traced_ranges(gm).items() if high is not None and high < 0}


def multiples_of(gm: fx.GraphModule) -> dict[str, Dim]:
    """The sizes among the arguments of which the guards leave one remainder only, written with it: where
    ``2 * (s // 2) == s`` (what was halved and doubled is put beside the whole) `s` is ``2 * (s // 2)``, in which
    divisions by 2 come out even."""
    given = {str(n.meta["val"].node.expr) for n in gm.graph.nodes
             if n.op == "placeholder" and isinstance(n.meta.get("val"), torch.SymInt)}  # fmt: skip
    size = next(_sizes(gm.graph), None)
    equations: dict[str, list[Any]] = {}
    for guard in () if size is None else size.node.shape_env.guards:
        names = {str(x) for x in guard.expr.free_symbols}
        if isinstance(guard.expr, sympy.Eq) and len(names) == 1 and names <= given:
            equations.setdefault(names.pop(), []).append(guard.expr)
    found = {name: _written_with_remainder(name, each) for name, each in equations.items()}
    return {name: d for name, d in found.items() if d is not None}


def _written_with_remainder(name: str, equations: list[Any]) -> Dim | None:
    """The size as ``m * (size // m) + r`` if the equations leave no other remainder `r`; None where they do."""
    divisors = [int(e.args[1]) for x in equations for e in x.atoms(sympy.Function)
                if type(e).__name__ in _DIVISIONS and e.args[1].is_Integer and e.args[1] > 0]  # fmt: skip
    period = math.lcm(*divisors)
    if not 1 < period <= MOST_REMAINDERS:
        return None
    try:
        zeros = [dim_of_expr(e.lhs) - dim_of_expr(e.rhs) for e in equations]
    except UnsupportedSize:
        return None

    def may_be_zero(d: Dim, remainder: int) -> bool:
        try:
            value = dims.substitute(d, {name: dims.symbol(name) * period + remainder})
        except ZeroDivisionError:  # it divides by another remainder, which is 0 here, and so says nothing
            return True
        return not isinstance(value, int) or value == 0

    left = [r for r in range(period) if all(may_be_zero(d, r) for d in zeros)]
    step = math.gcd(period, *(r - left[0] for r in left)) if left else 1
    return dims.symbol(name) // step * step + left[0] % step if step > 1 else None


def ranges_of(gm: fx.GraphModule) -> DimRanges:
    """What the traced code's guards say of the sizes of its arguments (`torch._dynamo.mark_dynamic(min=, max=)`)."""

    def without_sign(low: int | None, high: int | None) -> tuple[int, int | None]:
        return (-high, None if low is None else -low) if high is not None and high < 0 else (low or 0, high)

    return tuple((name, *without_sign(*limits)) for name, limits in sorted(_traced_ranges(gm).items()))


def _traced_ranges(gm: fx.GraphModule) -> dict[str, tuple[int | None, int | None]]:
    found: dict[str, tuple[int | None, int | None]] = {}
    for size in _sizes(gm.graph):
        env = size.node.shape_env
        for symbol in size.node.expr.free_symbols:
            known = env.var_to_range.get(symbol)
            if known is not None and str(symbol) not in found:
                found[str(symbol)] = (_bound(known.lower), _bound(known.upper))
    return found


def hints_of(graph: fx.Graph) -> dict[str, int]:
    """The values that named sizes had when the graph was traced."""
    for size in _sizes(graph):
        env = size.node.shape_env
        known = getattr(env, "backed_var_to_val", None) or env.var_to_val
        return {str(k): abs(int(v)) for k, v in known.items()}
    return {}


def _bound(value: Any) -> int | None:
    """A bound of a range as a number; None where it is infinite, or so large that it says nothing."""
    return int(value) if getattr(value, "is_Integer", False) and abs(int(value)) < 1 << 48 else None


def _sizes(graph: fx.Graph) -> Iterator[torch.SymInt]:
    for node in graph.nodes:
        if node.op != "placeholder":
            return
        val = node.meta.get("val")
        given = (*val.shape, *val.stride()) if isinstance(val, torch.Tensor) and val.layout == torch.strided else (val,)
        yield from (s for s in given if isinstance(s, torch.SymInt))


# convolutions


def _is_plain(t: Any) -> bool:
    """Is the (fake) tensor contiguous, whatever its sizes?"""
    try:
        return t.device.type == "cpu" and t.layout == torch.strided and strides_of(t) is None
    except UnsupportedSize:
        return False


def _needs_no_heuristics(x: Any, weight: Any) -> bool:
    """Has only `x` sizes that are not known, and do the two fit?"""
    open_sizes = any(isinstance(s, torch.SymInt) for s in x.shape)
    closed = all(isinstance(s, int) and s > 0 for s in weight.shape)
    return open_sizes and closed and x.ndim == weight.ndim > 2 and _is_plain(x) and _is_plain(weight)


def _are_steps(args: Sequence[Any]) -> bool:
    """Are strides and dilations positive, paddings not negative? Of those that only the call knows, a guard says."""
    least = (1, 0, 1, None, 0)  # stride, padding, dilation, transposed, padding of the output
    pairs = [(v, low) for given, low in zip(args[3:], least) if low is not None for v in given]
    return all(bool(v >= low) for v, low in pairs)


def _without_heuristics(traced: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's tracing of a convolution; of contiguous tensors of sizes that are not known, without a look at which
    kernel oneDNN would take: all of them give contiguous results. What eager refuses is a guard as before."""

    @functools.wraps(traced)
    def conv(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        x: Any
        x, weight = (args[0], args[1]) if len(args) > 1 else (kwargs.get("input"), kwargs.get("weight"))
        fits = isinstance(x, torch.Tensor) and isinstance(weight, torch.Tensor) and x.dtype == weight.dtype
        if not fits or not _needs_no_heuristics(x, weight) or not _are_steps(args):
            return traced(fake_mode, func, *args, **kwargs)
        with in_kernel_invocation_manager(fake_mode):
            out = func(*args, **kwargs)
        for size in out.shape[2:]:
            if not size > 0:  # the kernel is larger than the padded image, or the image is empty
                return traced(fake_mode, func, *args, **kwargs)
        return FakeTensor(fake_mode, out, x.device)

    conv.traced = traced  # type: ignore[attr-defined]
    return conv


def _install() -> None:
    table = fake_impls.op_implementations_dict
    for name in ("convolution.default", "_convolution.default", "_convolution.deprecated"):
        packet, _, kind = name.partition(".")
        target = getattr(getattr(torch.ops.aten, packet), kind, None)
        if (traced := table.get(target)) is not None and not hasattr(traced, "traced"):
            table[target] = _without_heuristics(traced)


_install()
