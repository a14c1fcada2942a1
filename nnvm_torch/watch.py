"""Are the tensors of a call those that were seen, and as they were then? One native call tells.

It compares identities, version counters and addresses, and then a few elements of each tensor: a write through
``p.data`` moves no counter. Versions and addresses are what functions that PyTorch exports say of a tensor
(``at::TensorBase::_version``, and ``aoti_torch_get_data_ptr`` of its stable C interface). Where it does not export
them, or where they do not agree with what Python is told, Python is asked instead: right too, and slower.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch

from nnvm.runtime.loaded_code import load_ir
from nnvm.runtime.native_function import NativeFunction, context_of, python_api

__all__ = ["Counter", "Probe", "Same", "never", "sampled", "version_of", "watch", "watch_identity"]

#: Elements of a tensor that are compared.
SAMPLES = 4

#: The context's words are those that `_native` writes. Each loop goes on to the next one, or tells of a difference.
_IR = """
declare ptr @PyByteArray_AsString(ptr)
declare ptr @PyBool_FromLong(i64)

define ptr @nnvm_watch(ptr %self, ptr %args, i64 %given) nounwind {
entry:
  %slot = alloca i64, align 8
  %context = call ptr @PyByteArray_AsString(ptr %self)
  %arguments = load i64, ptr %context, align 8
  %ids.count.at = getelementptr i64, ptr %context, i64 1
  %ids.count = load i64, ptr %ids.count.at, align 8
  %ids.at = getelementptr i64, ptr %context, i64 2
  %ids = load ptr, ptr %ids.at, align 8
  %tensors.count.at = getelementptr i64, ptr %context, i64 3
  %tensors.count = load i64, ptr %tensors.count.at, align 8
  %tensors.at = getelementptr i64, ptr %context, i64 4
  %tensors = load ptr, ptr %tensors.at, align 8
  %samples.count.at = getelementptr i64, ptr %context, i64 5
  %samples.count = load i64, ptr %samples.count.at, align 8
  %samples.at = getelementptr i64, ptr %context, i64 6
  %samples = load ptr, ptr %samples.at, align 8
  %wanted.at = getelementptr i64, ptr %context, i64 7
  %wanted = load ptr, ptr %wanted.at, align 8
  %counter.at = getelementptr i64, ptr %context, i64 8
  %counter = load ptr, ptr %counter.at, align 8
  %seen.at = getelementptr i64, ptr %context, i64 9
  %seen = load i64, ptr %seen.at, align 8
  %version.at = getelementptr i64, ptr %context, i64 10
  %version = load ptr, ptr %version.at, align 8
  %pointer.at = getelementptr i64, ptr %context, i64 11
  %pointer = load ptr, ptr %pointer.at, align 8
  %now = load i64, ptr %counter, align 8
  %current = icmp eq i64 %now, %seen
  %enough = icmp sge i64 %given, %arguments
  %begin = and i1 %current, %enough
  br i1 %begin, label %id.loop, label %different

id.loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %id.step ]
  %i.more = icmp slt i64 %i, %ids.count
  br i1 %i.more, label %id.step, label %tensor.loop
id.step:
  %pair = getelementptr { i64, i64 }, ptr %ids, i64 %i
  %position = load i64, ptr %pair, align 8
  %id.wanted.at = getelementptr i8, ptr %pair, i64 8
  %id.wanted = load i64, ptr %id.wanted.at, align 8
  %id.at = getelementptr i64, ptr %args, i64 %position
  %id = load i64, ptr %id.at, align 8
  %i.next = add i64 %i, 1
  %id.same = icmp eq i64 %id, %id.wanted
  br i1 %id.same, label %id.loop, label %different

tensor.loop:
  %t = phi i64 [ 0, %id.loop ], [ %t.next, %pointer.step ]
  %t.more = icmp slt i64 %t, %tensors.count
  br i1 %t.more, label %version.step, label %sample.loop
version.step:
  %tensor = getelementptr { i64, i64, i64 }, ptr %tensors, i64 %t
  %version.seen.at = getelementptr i8, ptr %tensor, i64 8
  %version.seen = load i64, ptr %version.seen.at, align 8
  %untracked = icmp slt i64 %version.seen, 0
  br i1 %untracked, label %pointer.test, label %version.test
version.test:
  %version.now = call i64 %version(ptr %tensor)
  %version.same = icmp eq i64 %version.now, %version.seen
  br i1 %version.same, label %pointer.test, label %different
pointer.test:
  %failed = call i32 %pointer(ptr %tensor, ptr %slot)
  %known = icmp eq i32 %failed, 0
  br i1 %known, label %pointer.step, label %different
pointer.step:
  %pointer.seen.at = getelementptr i8, ptr %tensor, i64 16
  %pointer.seen = load i64, ptr %pointer.seen.at, align 8
  %pointer.now = load i64, ptr %slot, align 8
  %t.next = add i64 %t, 1
  %pointer.same = icmp eq i64 %pointer.now, %pointer.seen
  br i1 %pointer.same, label %tensor.loop, label %different

sample.loop:
  %s = phi i64 [ 0, %tensor.loop ], [ %s.next, %sample.step ]
  %s.more = icmp slt i64 %s, %samples.count
  br i1 %s.more, label %sample.step, label %equal
sample.step:
  %sample.at = getelementptr ptr, ptr %samples, i64 %s
  %sample = load ptr, ptr %sample.at, align 8
  %value = load i32, ptr %sample, align 1
  %value.wanted.at = getelementptr i32, ptr %wanted, i64 %s
  %value.wanted = load i32, ptr %value.wanted.at, align 4
  %s.next = add i64 %s, 1
  %value.same = icmp eq i32 %value, %value.wanted
  br i1 %value.same, label %sample.loop, label %different

equal:
  %yes = call ptr @PyBool_FromLong(i64 1)
  ret ptr %yes
different:
  %no = call ptr @PyBool_FromLong(i64 0)
  ret ptr %no
}
"""


class Counter:
    """A number that only grows, in memory that native code reads."""

    def __init__(self) -> None:
        self._cell = ctypes.c_int64(0)
        self.address = ctypes.addressof(self._cell)

    @property
    def value(self) -> int:
        return self._cell.value

    def increase(self) -> None:
        self._cell.value += 1


#: For what depends on no counter.
_STILL = Counter()

Same = Callable[..., bool]


def never(*args: Any) -> bool:
    """The answer where nothing was seen yet."""
    return False


@lru_cache(maxsize=1)
def _code() -> NativeFunction:
    api = python_api("PyByteArray_AsString", "PyBool_FromLong")
    return NativeFunction(load_ir(_IR, ["nnvm_watch"], api), "nnvm_watch")


def _native(ids: Sequence[tuple[int, int]] = (), tensors: Sequence[tuple[int, int, int]] = (),
            samples: Samples | None = None, counter: Counter = _STILL, seen: int = 0,
            functions: tuple[int, int] = (0, 0)) -> Same:  # fmt: skip
    """The native function that compares what it is given.

    Args:
        ids: (position among the arguments, id of the object that is there).
        tensors: (address of the TensorImpl, version or -1 where it has none, address of the data).
        seen: what `counter` is to be.
        functions: that give version and address of a TensorImpl.
    """
    pairs = (ctypes.c_int64 * max(1, 2 * len(ids)))(*(n for pair in ids for n in pair))
    triples = (ctypes.c_int64 * max(1, 3 * len(tensors)))(*(n for triple in tensors for n in triple))
    addresses, wanted = samples if samples is not None else ((), ())
    arrays = (pairs, triples, addresses, wanted)
    at = [ctypes.addressof(a) if len(a) else 0 for a in arrays]  # type: ignore[arg-type]
    arguments = 1 + max((position for position, _ in ids), default=-1)
    words = (arguments, len(ids), at[0], len(tensors), at[1], len(addresses), at[2], at[3], counter.address, seen,
             *functions)  # fmt: skip
    return _code().bound(context_of(words), (*arrays, counter))


#: Addresses of four bytes each, and what they are to be.
Samples = tuple[Any, Any]


def _samples(tensors: Iterable[torch.Tensor]) -> Samples:
    at = [a for t in tensors for a in sampled(t)]
    values = (ctypes.c_int32.from_address(a).value for a in at)
    return (ctypes.c_int64 * len(at))(*at), (ctypes.c_int32 * len(at))(*values)


def sampled(t: torch.Tensor) -> list[int]:
    """Addresses of four bytes each: the first and the last element, and the greatest of those looked at."""
    size = t.element_size()
    if t.numel() * size < 4 or not t.is_contiguous() or t.device.type != "cpu":
        return []
    n = t.numel()
    step = max(1, n // 1024)
    positions = {0, n - 1}
    looked = t.detach().reshape(-1)[::step]
    if looked.dtype.is_floating_point:
        looked = looked.float().abs()
    if looked.dtype != torch.bool:
        top = looked.topk(min(SAMPLES - 2, looked.numel())).indices
        positions.update(int(i) * step for i in top.tolist())
    first, last = t.data_ptr(), t.data_ptr() + n * size - 4
    return sorted({min(first + p * size, last) for p in positions})


class Probe:
    """Has any of a few elements of some tensors changed since this was made?"""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._same = _native(samples=_samples(tensors))

    def changed(self) -> bool:
        """Only while the tensors have the memory that they had."""
        return not self._same()


def watch(tensors: Sequence[torch.Tensor], positions: Sequence[int], counter: Counter, seen: int) -> Same:
    """A function of a call's arguments: are those at `positions` the very `tensors`, as these are now, and is `counter`
    still `seen`? A negative position: the tensor is none of the arguments.

    It must not be called when one of the tensors is gone: another object may have its identity.
    """
    versions = [version_of(t) for t in tensors]
    pointers = [t.data_ptr() for t in tensors]
    samples = _samples(tensors)
    ids = [(p, id(t)) for p, t in zip(positions, tensors) if p >= 0]
    functions = _functions()
    if functions is not None:
        return _native(ids, list(zip(map(_impl, tensors), versions, pointers)), samples, counter, seen, functions)
    given, same_elements = _native(ids, counter=counter, seen=seen), _native(samples=samples)
    taken = [(p, None if p >= 0 else t) for p, t in zip(positions, tensors)]

    def same(*args: Any) -> bool:
        if not given(*args):
            return False
        now = [args[p] if t is None else t for p, t in taken]
        return (list(map(version_of, now)) == versions and [t.data_ptr() for t in now] == pointers
                and same_elements())  # fmt: skip

    return same


def watch_identity(tensors: Sequence[torch.Tensor], positions: Sequence[int], counter: Counter, seen: int) -> Same:
    """As `watch`, whatever became of the tensors' values and memory."""
    return _native([(p, id(t)) for p, t in zip(positions, tensors) if p >= 0], counter=counter, seen=seen)


def version_of(t: torch.Tensor) -> int:
    """The version counter; -1 where there is none (inference mode)."""
    return -1 if t.is_inference() else t._version


def _impl(t: torch.Tensor) -> int:
    """Address of the TensorImpl. An ``at::Tensor`` is this one word."""
    return t._cdata


@lru_cache(maxsize=1)
def _functions() -> tuple[int, int] | None:
    """``at::TensorBase::_version() const`` and ``aoti_torch_get_data_ptr``; None where PyTorch exports no such
    functions, or they tell other than Python does."""
    try:
        library = ctypes.CDLL(torch._C.__file__)
        found = (library._ZNK2at10TensorBase8_versionEv, library.aoti_torch_get_data_ptr)
    except (OSError, AttributeError):
        return None
    version, pointer = (ctypes.cast(f, ctypes.c_void_p).value or 0 for f in found)
    with torch.inference_mode(False):  # whose tensors have no versions: to ask for one ends the process
        return (version, pointer) if _agree((version, pointer)) else None


def _agree(functions: tuple[int, int]) -> bool:
    """Do the functions tell of some tensors what Python is told, and see each kind of change?"""
    base = torch.arange(12.0)
    tensors = [base, base[3:7], torch.nn.Parameter(torch.ones(2, 3)), torch.zeros(0), torch.ones((), dtype=torch.int8)]
    base.add_(1)

    def agrees() -> bool:
        triples = [(_impl(t), version_of(t), t.data_ptr()) for t in tensors]
        moved = [(i, v, p + 1) for i, v, p in triples]
        older = [(i, v - 1 if v > 0 else v + 1, p) for i, v, p in triples]
        right = [_native(tensors=[t], functions=functions)() for t in triples]
        wrong = [_native(tensors=[t], functions=functions)() for t in (*moved, *older)]
        return all(right) and not any(wrong)

    if not agrees():
        return False
    tensors[1].mul_(2)
    tensors[2].data = torch.ones(2, 3)
    return agrees()
