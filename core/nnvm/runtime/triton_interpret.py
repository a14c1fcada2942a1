"""Triton's interpreter on raw addresses of the host's memory.

Triton interprets when the variable TRITON_INTERPRET is 1 before it is first imported. The device's math library is not
there then: its functions are numpy's and the C library's instead.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from nnvm.dtype import bf16_to_f32, f32_to_bf16
from nnvm.runtime.triton_bounds import OutsideError, within

__all__ = ["interpret", "is_interpreting"]

#: The interpreter keeps the program it is at in a global.
_lock = threading.RLock()


@lru_cache(maxsize=1)
def is_interpreting() -> bool:
    """Whether Triton interprets in this process."""
    import triton

    knobs = getattr(triton, "knobs", None)
    if knobs is not None:
        return bool(knobs.runtime.interpret)
    import os

    return os.environ.get("TRITON_INTERPRET") == "1"


def interpret(
    fn: Any, signature: Sequence[tuple[str, str]], arguments: Sequence[int], programs: int,
    sizes: Sequence[int] | None = None,
) -> int:  # fmt: skip
    """Runs `programs` programs of a kernel; the number of the check that failed, 0 where none did.

    Args:
        fn: the decorated function.
        signature: name and Triton type of each argument.
        arguments: addresses and sizes; without the last one where that is ``failure``.
        sizes: bytes behind each of the addresses; None: nobody looks where the kernel reads and writes.

    OutsideError: it reads or writes behind them.
    """
    import triton.language as tl
    from triton.runtime.interpreter import GridExecutor, TensorHandle

    class Direct(GridExecutor):  # type: ignore[misc]
        """Arguments are on the host already."""

        def _init_args_hst(self, args: Any, kwargs: Any) -> Any:
            return args, kwargs

        def _restore_args_dev(self, *args: Any) -> None:
            pass

    def argument(value: int, kind: str) -> Any:
        if not kind.startswith("*"):
            t = tl.str_to_ty(kind, None)
            return tl.tensor(TensorHandle(np.array([value], np.int64 if kind == "i64" else np.int32), t), t)
        pointer = tl.pointer_type(tl.str_to_ty(kind[1:], None))
        return tl.tensor(TensorHandle(np.array([value], np.uint64), pointer), pointer)

    flag = ctypes.c_int32(0)
    values = list(arguments)
    if signature and signature[-1][0] == "failure":
        values.append(ctypes.addressof(flag))
    buffers = None if sizes is None else [*zip(arguments, sizes), (ctypes.addressof(flag), 4)]
    with _lock, within(fn.__name__, buffers):
        _mend_interpreter()
        fn.fn.__globals__.update(libdevice=_Library())
        run = Direct(fn.rewrite() if hasattr(fn, "rewrite") else fn.fn, fn.arg_names, (programs,))
        try:
            run(*(argument(v, kind) for v, (_, kind) in zip(values, signature, strict=True)))
        except Exception as error:  # Triton's own, about whatever was raised inside
            if isinstance(error.__cause__, OutsideError):
                raise error.__cause__ from None
            raise
    return flag.value


@lru_cache(maxsize=1)
def _mend_interpreter() -> None:
    """Three things that the interpreter does otherwise than compiled code: it keeps bfloat16 as its bits and multiplies
    these in `tl.dot`; conversions to bfloat16 cut off bits, and those between it and integers convert the bits; a
    scalar condition becomes a block of integers. And one that it does slowly: reductions by our own combining
    functions, element by element."""
    import triton.language as tl
    from triton.runtime.interpreter import ReduceOps, TensorHandle, interpreter_builder

    dot = interpreter_builder.create_dot

    def wide(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return TensorHandle(bf16_to_f32(x.data), tl.float32)

    cast = interpreter_builder.cast_impl

    def cast_impl(x: Any, kind: Any) -> Any:
        if x.dtype.scalar == tl.bfloat16 and kind.scalar != tl.bfloat16:
            x = wide(x)
        elif kind.scalar == tl.bfloat16 and x.dtype.scalar != tl.bfloat16:
            return TensorHandle(f32_to_bf16(x.data.astype(np.float32)), tl.bfloat16)
        return x if x.dtype.scalar == kind.scalar else cast(x, kind)

    def create_dot(a: Any, b: Any, d: Any, *more: Any) -> Any:
        return dot(wide(a), wide(b), d, *more)

    splat = interpreter_builder.create_splat

    def create_splat(kind: Any, x: Any) -> Any:
        if x.data.dtype == np.bool_:
            return TensorHandle(np.full(kind.shape, x.data.reshape(-1)[0]), tl.int1)
        return splat(kind, x)

    generic_reduce = ReduceOps.generic_reduce
    known: dict[str, Callable[..., Any]] = {"max_nan": np.max, "min_nan": np.min, "product": np.prod}

    def reduce(self: Any, operands: Any) -> Any:
        function = known.get(getattr(self.combine_fn, "__name__", ""))
        if function is None or self.axis is None or len(operands) != 1:
            return generic_reduce(self, operands)
        (x,) = operands
        return [self.to_tensor(function(x.handle.data, axis=self.axis, keepdims=self.keep_dims), x.dtype)]

    ReduceOps.generic_reduce = reduce
    interpreter_builder.cast_impl = cast_impl
    interpreter_builder.create_fp_to_fp = lambda x, kind, rounding: cast_impl(x, kind)
    interpreter_builder.create_dot = create_dot
    interpreter_builder.create_splat = create_splat
    _mend_older_interpreter()


def _mend_older_interpreter() -> None:
    """What Triton 3.6 has wrong and later ones have not: the bound of a loop that is computed is an array of one
    element, which NumPy from 2.5 on does not take for a number; what is broadcast and then combined atomically is read
    beyond its one element; the least and the greatest that are to skip NaN do not; and there are no constants of
    bfloat16, nor one of unsigned integers with all bits set."""
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import TensorHandle
    from triton.runtime.interpreter import interpreter_builder as builder

    combine, all_ones, patch_tensor = (
        builder.create_atomic_rmw, builder.get_all_ones_value, interpreter._patch_lang_tensor
    )  # fmt: skip

    def create_atomic_rmw(op: Any, *operands: Any) -> Any:
        blocks = (TensorHandle(np.ascontiguousarray(x.data), x.dtype) for x in operands[:3])  # pointers, values, mask
        return combine(op, *blocks, *operands[3:])

    def get_all_ones_value(kind: Any) -> Any:
        name = kind.scalar.name
        if not name.startswith("uint"):
            return all_ones(kind)
        return TensorHandle(np.full(1, np.iinfo(name).max, name), kind.scalar)

    def patch_lang_tensor(tensor: Any, *scope: Any) -> None:
        patch_tensor(tensor, *scope)  # what it sets while a kernel runs is put back after
        tensor.__index__ = lambda self: self.handle.data.item()

    builder.create_atomic_rmw, builder.get_all_ones_value = create_atomic_rmw, get_all_ones_value
    builder.create_minnumf = lambda a, b: builder.binary_op(a, b, np.fmin)
    builder.create_maxnumf = lambda a, b: builder.binary_op(a, b, np.fmax)
    builder.get_bf16 = lambda value: TensorHandle(f32_to_bf16(np.array([value])), tl.bfloat16)
    interpreter._patch_lang_tensor = patch_lang_tensor


class _Library:
    """`triton.language.extra.libdevice` on the interpreter's values."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = _FUNCTIONS.get(name)
        if function is None:
            raise AttributeError(f"the interpreter knows no libdevice.{name}")

        def call(*operands: Any) -> Any:
            import triton.language as tl
            from triton.runtime.interpreter import TensorHandle

            arrays = [o.handle.data for o in operands]
            shaped = max(operands, key=lambda o: o.handle.data.size)
            dtype = shaped.dtype.scalar
            with np.errstate(all="ignore"):
                out = np.asarray(function(*arrays), arrays[0].dtype)
            kind = tl.block_type(dtype, list(out.shape)) if shaped.type.is_block() else dtype
            return tl.tensor(TensorHandle(out, dtype), kind)

        return call


def _by_element(f: Callable[..., float]) -> Callable[..., Any]:
    def safe(*x: float) -> float:
        try:
            return f(*x)
        except (ValueError, OverflowError):
            return math.inf

    return np.vectorize(safe, otypes=[np.float64])


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f: getattr(np, f) for f in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh",
                                   "cosh", "tanh", "trunc", "rint", "hypot", "copysign", "nextafter", "fmod")},
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "atan2": np.arctan2, "pow": np.power, "erf": _by_element(math.erf),
    "erfc": _by_element(math.erfc), "lgamma": _by_element(math.lgamma),
}  # fmt: skip
