"""Code that is dropped gives its memory back: what LLVM keeps of what it compiled and linked is bounded."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
from collections.abc import Callable

import pytest

from nnvm.codegen.llvm.compile import object_code
from nnvm.runtime import loaded_code
from nnvm.runtime.loaded_code import LoadedCode
from nnvm.target import Target

IR = """
declare float @expf(float)

define float @grown(float %x) {{
  %y = call float @expf(float %x)
  %z = fadd float %y, {value}
  ret float %z
}}
"""


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2 of the GNU C library."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


def allocated() -> int:
    """Bytes that the C library has handed out; skips the test where it cannot tell."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("this C library has no mallinfo2")
    mallinfo2.restype = _MallocInfo
    gc.collect()
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def growth(work: Callable[[], object], times: int) -> float:
    """Bytes that one more of `work` takes for good."""
    for _ in range(times):
        work()
    before = allocated()
    for _ in range(times):
        work()
    return (allocated() - before) / times


def call(code: LoadedCode) -> float:
    return float(ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(code["grown"])(1.0))


@pytest.fixture
def few_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_code, "MAX_LATEST", 4)


def load(value: float) -> LoadedCode:
    return LoadedCode([object_code(IR.format(value=value), Target.host())], ["grown"], {})


@pytest.mark.usefixtures("few_kept")
def test_linked_code_that_is_dropped_leaves_nothing() -> None:
    code = object_code(IR.format(value="1.0"), Target.host())
    monotone = iter(range(10**6))
    # a name that differs each time is an import that nothing uses: the code is linked each time
    assert growth(lambda: LoadedCode([code], ["grown"], {f"nnvm_unused_{next(monotone)}": 1}), 2 * 64) < 2000


@pytest.mark.usefixtures("few_kept")
def test_code_outlives_its_linker() -> None:
    kept = [load(float(i)) for i in range(5)]
    code = object_code(IR.format(value="0.5"), Target.host())
    for i in range(3 * loaded_code.MAX_LINKS):
        LoadedCode([code], ["grown"], {f"nnvm_other_{i}": 1})
    gc.collect()
    assert [call(c) for c in kept] == pytest.approx([2.7182817 + i for i in range(5)])


def test_compiling_leaves_nothing() -> None:
    assert growth(lambda: object_code(IR.format(value="1.0"), Target.host()), 100) < 1000


def test_equal_code_is_linked_once() -> None:
    one, other = load(7.0), load(7.0)
    assert one["grown"] == other["grown"] and call(one) == pytest.approx(9.7182817)


#: Links code with constants where the address space has one free page far above all else that is free.
FULL = """
import ctypes, mmap
from nnvm.codegen.llvm.compile import object_code
from nnvm.runtime.loaded_code import LoadedCode
from nnvm.target import Target

IR = '''
declare float @expf(float)
@table = private constant [300 x float] [{}]
@written = internal global [2000 x float] zeroinitializer
define float @f(i64 %i) {{
  %p = getelementptr [300 x float], ptr @table, i64 0, i64 %i
  %v = load float, ptr %p
  %q = getelementptr [2000 x float], ptr @written, i64 0, i64 %i
  %w = load float, ptr %q
  store float %v, ptr %q
  %e = call float @expf(float %w)
  %s = fadd float %v, %e
  ret float %s
}}
'''
first, second = (
    object_code(IR.format(", ".join(f"float {i + k}.0" for i in range(300))), Target.host()) for k in (0, 9)
)
kept = LoadedCode([first], ["f"], {})  # what linking needs for the first time is there
c = ctypes.CDLL(None)
c.mmap.restype, c.munmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]

def take(size):
    return c.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)

SIZE, PAGE = 6 << 30, 4096
block = take(SIZE)
for size in (64 << 20, 1 << 20, 1 << 16, PAGE):  # all that is free above it
    while (place := take(size)) > block:
        pass
    c.munmap(place, size)
c.munmap(block + SIZE - PAGE, PAGE)
code = LoadedCode([second], ["f"], {})
f = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_int64)(code["f"])
print(f(7), round(f(0), 3))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="fills the address space of Linux")
def test_code_and_constants_are_linked_where_the_address_space_is_nearly_full() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "17.0 10.0\n"), done.stderr
