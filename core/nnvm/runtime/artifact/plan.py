"""What an artifact says of itself and of how to run: data, written as JSON and checked when it is read.

Sizes are numbers, or sums ``[[coefficient, atom, ...], ...]`` where an atom is a name or ``[operation, size, size]``.
The memory of a call is a table of base addresses: the arena, the model's inputs, its outputs, what was prepared, then
the level's weights. A level may have a stage that prepares weights for it, once, before the first call (packs them for
the width of its vectors): the table of that one is its arena, what it prepares, then the weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from nnvm.dim import Dim, SymDim, dim_max, dim_min, symbol, symbols
from nnvm.dtype import DType, dtype

__all__ = ["Binary", "Copy", "KernelSpec", "LaunchSpec", "Level", "Ref", "Spec", "Stage", "Step", "TensorSpec",
           "dump_spec", "load_spec"]  # fmt: skip

_LARGEST = 1 << 62
_DEEPEST = 40


@dataclass(frozen=True)
class TensorSpec:
    """An input or output.

    Attributes:
        name: as the model calls it.
        dtype: element type; bfloat16 is handed over as its uint16 bits.
        shape: sizes; names stand for any.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Ref:
    """Memory: a position in the table of bases, and bytes from there on."""

    base: int
    offset: Dim


@dataclass(frozen=True)
class Binary:
    """Machine code of one launch on a GPU: a cubin in the section of code.

    Attributes:
        start, size: where it lies.
        symbol: the function's name in it.
        threads: of a block.
        shared: bytes of shared memory of a block.
        hidden: null pointers that it takes after its arguments.
    """

    start: int
    size: int
    symbol: str
    threads: int
    shared: int
    hidden: int


@dataclass(frozen=True)
class LaunchSpec:
    """One launch of a kernel on a GPU: pointers, then sizes, then a flag where there are messages.

    Attributes:
        grid: blocks, in the kernel's sizes.
        pointers: each a buffer of the kernel (its position) or, counted after those, its workspace.
        sizes: names of those of the kernel's sizes that it takes.
        elements: of its buffers, as far as sizes decide how many there are.
        messages: what its checks say; they store the number + 1 to the flag, an int32.
        narrow: for 32-bit indices; None where some buffer always has more elements.
        wide: for 64-bit indices; None where no buffer has so many.
    """

    grid: Dim
    pointers: tuple[Ref, ...]
    sizes: tuple[str, ...]
    elements: tuple[Dim, ...]
    messages: tuple[str, ...]
    narrow: Binary | None
    wide: Binary | None


@dataclass(frozen=True)
class KernelSpec:
    """A kernel in a stage's code.

    Attributes:
        name: its symbol.
        start, size: where its object lies in the section of code.
        messages: what its checks say, by code - 1.
        buffers: how many pointers it takes.
        sizes: names of the sizes it takes.
        workspace: bytes that one thread needs, in these sizes.
        parallel: whether it has a parallel loop.
        launches: what it consists of on a GPU, where it has no object of its own; a processor's has none.
    """

    name: str
    start: int
    size: int
    messages: tuple[str, ...]
    buffers: int
    sizes: tuple[str, ...]
    workspace: Dim
    parallel: bool
    launches: tuple[LaunchSpec, ...] = ()


@dataclass(frozen=True)
class Step:
    """A call of kernel `kernel` with these buffers and sizes."""

    kernel: int
    buffers: tuple[Ref, ...]
    sizes: tuple[Dim, ...]


@dataclass(frozen=True)
class Copy:
    """An output that no kernel writes: a copy of what lies at `source`."""

    output: int
    source: Ref


@dataclass(frozen=True)
class Stage:
    """Calls of kernels, one after the other.

    Attributes:
        code: name of the section with the kernels' objects.
        arena: bytes of activations.
    """

    code: str
    kernels: tuple[KernelSpec, ...]
    steps: tuple[Step, ...]
    copies: tuple[Copy, ...]
    arena: Dim


@dataclass(frozen=True)
class Level:
    """The model for one kind of processor, or for one kind of GPU.

    Attributes:
        name: of the processor or level, as ``x86-64-v3``; ``cuda-sm_90``.
        triple: LLVM's target triple.
        features: all that a processor must have, in LLVM's names; of a GPU its architecture.
        main: what a call runs.
        prepare: what runs once, before the first call; None where nothing is to be prepared.
        prepared: bytes of each thing that it makes, in the order of their bases.
        weights: names of the tensors that both stages read, in the order of their bases.
    """

    name: str
    triple: str
    features: tuple[str, ...]
    main: Stage
    prepare: Stage | None
    prepared: tuple[int, ...]
    weights: tuple[str, ...]


@dataclass(frozen=True)
class Spec:
    """A whole artifact.

    Attributes:
        model: its name.
        producer: what wrote it.
        sizes: where each named size is read: name -> (position of an input, axis).
        digests: SHA-256 of each weight's bytes in hex, by name: a run checks those that its level reads.
        levels: from the least to the most demanding one.
    """

    model: str
    producer: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sizes: Mapping[str, tuple[int, int]]
    digests: Mapping[str, str]
    levels: tuple[Level, ...]


# -- writing


def dump_spec(spec: Spec) -> bytes:
    """JSON; equal specs give equal bytes."""
    return json.dumps(_plain(spec), separators=(",", ":"), sort_keys=True, ensure_ascii=True).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, SymDim):
        return [[coef, *map(_plain_atom, term)] for term, coef in value.terms]
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Ref):
        return [value.base, _plain(value.offset)]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _plain_atom(atom: tuple[Any, ...]) -> Any:
    return atom[1] if atom[0] == "sym" else [atom[0], _plain(atom[1]), _plain(atom[2])]


# -- reading


def load_spec(data: bytes) -> Spec:
    """What `dump_spec` wrote. ValueError says what is wrong with it: everything is checked that a run relies on."""
    try:
        spec = _spec(json.loads(data))
    except (KeyError, TypeError, IndexError, AttributeError, ZeroDivisionError, RecursionError) as error:
        raise ValueError(f"its plan is damaged: {type(error).__name__} {error}") from error
    _check(spec)
    return spec


def _spec(d: Any) -> Spec:
    return Spec(_text(d["model"]), _text(d["producer"]), _several(d["inputs"], _tensor),
                _several(d["outputs"], _tensor),
                {_text(k): (_count(v[0]), _count(v[1])) for k, v in d["sizes"].items()},
                {_text(k): _text(v) for k, v in d["digests"].items()},
                _several(d["levels"], _level))  # fmt: skip


def _tensor(d: Any) -> TensorSpec:
    return TensorSpec(_text(d["name"]), dtype(_text(d["dtype"])), _several(d["shape"], _dim))


def _level(d: Any) -> Level:
    prepare = None if d["prepare"] is None else _stage(d["prepare"])
    return Level(_text(d["name"]), _text(d["triple"]), _several(d["features"], _text), _stage(d["main"]), prepare,
                 _several(d["prepared"], _count), _several(d["weights"], _text))  # fmt: skip


def _stage(d: Any) -> Stage:
    return Stage(_text(d["code"]), _several(d["kernels"], _kernel), _several(d["steps"], _step),
                 _several(d["copies"], _copy), _dim(d["arena"]))  # fmt: skip


def _kernel(d: Any) -> KernelSpec:
    return KernelSpec(_text(d["name"]), _count(d["start"]), _count(d["size"]), _several(d["messages"], _text),
                      _count(d["buffers"]), _several(d["sizes"], _text), _dim(d["workspace"]),
                      _truth(d["parallel"]), _several(d.get("launches", []), _launch))  # fmt: skip


def _launch(d: Any) -> LaunchSpec:
    return LaunchSpec(_dim(d["grid"]), _several(d["pointers"], _ref), _several(d["sizes"], _text),
                      _several(d["elements"], _dim), _several(d["messages"], _text), _binary(d["narrow"]),
                      _binary(d["wide"]))  # fmt: skip


def _binary(d: Any) -> Binary | None:
    if d is None:
        return None
    return Binary(_count(d["start"]), _count(d["size"]), _text(d["symbol"]), _count(d["threads"]), _count(d["shared"]),
                  _count(d["hidden"]))  # fmt: skip


def _step(d: Any) -> Step:
    return Step(_count(d["kernel"]), _several(d["buffers"], _ref), _several(d["sizes"], _dim))


def _copy(d: Any) -> Copy:
    return Copy(_count(d["output"]), _ref(d["source"]))


def _ref(d: Any) -> Ref:
    base, offset = d
    return Ref(_count(base), _dim(offset))


def _several(d: Any, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    if not isinstance(d, list):
        raise TypeError(f"a list is wanted, not {d!r:.40}")
    return tuple(map(read, d))


def _text(d: Any) -> str:
    if not isinstance(d, str):
        raise TypeError(f"text is wanted, not {d!r:.40}")
    return d


def _truth(d: Any) -> bool:
    if not isinstance(d, bool):
        raise TypeError(f"true or false is wanted, not {d!r:.40}")
    return d


def _number(d: Any) -> int:
    if type(d) is not int or abs(d) >= _LARGEST:
        raise TypeError(f"a number is wanted, not {d!r:.40}")
    return d


def _count(d: Any) -> int:
    if _number(d) < 0:
        raise TypeError(f"a number of at least 0 is wanted, not {d}")
    return int(d)


def _dim(d: Any, depth: int = 0) -> Dim:
    if not isinstance(d, list):
        return _count(d) if depth == 0 else _number(d)
    if depth > _DEEPEST:
        raise TypeError("a size is nested too deep")
    total: Dim = 0
    for coef, *atoms in d:
        product: Dim = _number(coef)
        for atom in atoms:
            product = product * _atom(atom, depth)
        total = total + product
    return total


def _atom(d: Any, depth: int) -> Dim:
    if isinstance(d, str):
        return symbol(d)
    operation, a, b = d
    left, right = _dim(a, depth + 1), _dim(b, depth + 1)
    if operation in ("floordiv", "mod"):
        return left // right if operation == "floordiv" else left % right
    if operation not in ("max", "min"):
        raise TypeError(f"no operation {operation!r:.40} of sizes")
    return dim_max(left, right) if operation == "max" else dim_min(left, right)


# -- checking


def _check(spec: Spec) -> None:
    names = [t.name for t in spec.inputs]
    known = set(spec.sizes)
    for what, tensors in (("inputs", spec.inputs), ("outputs", spec.outputs)):
        if len({t.name for t in tensors}) != len(tensors):
            raise ValueError(f"its plan is damaged: two {what} of one name")
        for t in tensors:
            _know(known, *t.shape)
    for name, (position, axis) in spec.sizes.items():
        if position >= len(names) or axis >= len(spec.inputs[position].shape):
            raise ValueError(f"its plan is damaged: the size {name} is nowhere")
    if missing := sorted({w for level in spec.levels for w in level.weights} - spec.digests.keys()):
        raise ValueError(f"its plan is damaged: the weight {missing[0]!r} is missing from its checksums")
    if not spec.levels:
        raise ValueError("its plan is damaged: it has no code")
    for level in spec.levels:
        lasting = len(level.prepared) + len(level.weights)
        _check_stage(level.main, known, 1 + len(spec.inputs) + len(spec.outputs) + lasting, len(spec.outputs))
        if level.prepare is not None:
            _check_stage(level.prepare, (), 1 + lasting, len(level.prepared))
        elif level.prepared:
            raise ValueError("its plan is damaged: nothing prepares its weights")


def _check_stage(stage: Stage, known: Collection[str], bases: int, outputs: int) -> None:
    _know(known, stage.arena)
    for ref in [*(r for s in stage.steps for r in s.buffers), *(c.source for c in stage.copies)]:
        _know(known, ref.offset)
        if ref.base >= bases:
            raise ValueError(f"its plan is damaged: there is no memory {ref.base} of {bases}")
    for step in stage.steps:
        if step.kernel >= len(stage.kernels):
            raise ValueError(f"its plan is damaged: there is no kernel {step.kernel}")
        kernel = stage.kernels[step.kernel]
        if len(step.buffers) != kernel.buffers or len(step.sizes) != len(kernel.sizes):
            raise ValueError(f"its plan is damaged: {kernel.name} is called with other buffers than it takes")
        _know(known, *step.sizes)
    for kernel in stage.kernels:
        _know(kernel.sizes, kernel.workspace)
        for launch in kernel.launches:
            _check_launch(kernel, launch)
    if any(c.output >= outputs for c in stage.copies):
        raise ValueError("its plan is damaged: a copy goes to no output")


def _check_launch(kernel: KernelSpec, launch: LaunchSpec) -> None:
    _know(kernel.sizes, launch.grid, *launch.elements, *(r.offset for r in launch.pointers))
    if any(r.base > kernel.buffers for r in launch.pointers) or not set(launch.sizes) <= set(kernel.sizes):
        raise ValueError(f"its plan is damaged: {kernel.name} is launched with what it does not take")
    for b in (launch.narrow, launch.wide):
        if b is not None and not (0 < b.threads <= 1024 and b.hidden <= 8 and b.shared < 1 << 20):
            raise ValueError(f"its plan is damaged: {b.symbol} has blocks that no GPU runs")
    if launch.narrow is None and launch.wide is None:
        raise ValueError(f"its plan is damaged: a launch of {kernel.name} has no code")


def _know(known: Collection[str], *dims: Dim) -> None:
    for d in dims:
        if unknown := symbols(d) - set(known):
            raise ValueError(f"its plan is damaged: the size {sorted(unknown)[0]} is not known")
