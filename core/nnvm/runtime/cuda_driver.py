"""CUDA's driver API by ctypes: modules, launches and memory of one GPU, with no toolkit and no framework.

Every call is checked; an error names the call, the driver's name for what went wrong, and what it says about it. The
functions are those of the CUDA Driver API reference (``cuda.h``).
"""

from __future__ import annotations

import ctypes
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

__all__ = ["PROTOTYPES", "CudaDevice", "CudaError", "CudaMemory", "Function", "device_at", "find_device",
           "why_no_device"]  # fmt: skip

_LIBRARIES = ("libcuda.so.1", "libcuda.so", "nvcuda.dll")
#: Handles and addresses on the device are 64 bits wide.
_HANDLE, _ADDRESS = c_void_p, c_uint64
#: Types of the parameters of each function; all give a CUresult.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(_HANDLE), c_int),
    "cuCtxPushCurrent_v2": (_HANDLE,),
    "cuCtxPopCurrent_v2": (POINTER(_HANDLE),),
    "cuCtxSynchronize": (),
    "cuModuleLoadData": (POINTER(_HANDLE), c_void_p),
    "cuModuleGetFunction": (POINTER(_HANDLE), _HANDLE, c_char_p),
    "cuFuncSetAttribute": (_HANDLE, c_int, c_int),
    "cuMemAlloc_v2": (POINTER(_ADDRESS), c_size_t),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemcpyHtoD_v2": (_ADDRESS, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, _ADDRESS, c_size_t),
    "cuMemcpyDtoD_v2": (_ADDRESS, _ADDRESS, c_size_t),
    "cuMemsetD8_v2": (_ADDRESS, ctypes.c_ubyte, c_size_t),
    "cuLaunchKernel": (_HANDLE, *[c_uint] * 7, _HANDLE, POINTER(c_void_p), POINTER(c_void_p)),
}
_OUT_OF_MEMORY = 2
#: CUdevice_attribute and CUfunction_attribute.
_CAPABILITY, _MAX_SHARED, _DYNAMIC_SHARED = (75, 76), 97, 8
#: Bytes of shared memory that a block may have without asking for more.
_PLAIN_SHARED = 48 << 10
_MAX_GRID = (1 << 31) - 1


class CudaError(RuntimeError):
    """A call of CUDA's driver failed."""


class _Driver:
    """The driver's library; its methods raise `CudaError`, and MemoryError where memory is short."""

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, types in PROTOTYPES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code == 0:
            return
        texts = []
        for tell in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            getattr(self._library, tell)(code, byref(text))
            texts.append((text.value or b"?").decode(errors="replace"))
        message = f"{name}: {texts[0]} ({texts[1]})"
        raise MemoryError(message) if code == _OUT_OF_MEMORY else CudaError(message)

    def number(self, name: str, *arguments: Any) -> int:
        """What a function writes to the integer that is its first parameter."""
        out = c_int()
        self.call(name, byref(out), *arguments)
        return out.value

    def handle(self, name: str, *arguments: Any) -> c_void_p:
        out = c_void_p()
        self.call(name, byref(out), *arguments)
        return out


@lru_cache(maxsize=1)
def _load() -> Any:
    """The driver's library; OSError, as what is missing, where there is none."""
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError(f"an NVIDIA driver (looked for {', '.join(_LIBRARIES)})")


def runs(arch: str, capability: tuple[int, int]) -> bool:
    """Whether a GPU runs cubins for an architecture: of its major version, and no later one; ``sm_90a`` exactly."""
    found = re.fullmatch(r"sm_(\d+)(\d)(a?)", arch)
    if found is None:
        return False
    major, minor = int(found[1]), int(found[2])
    return capability == (major, minor) if found[3] else capability[0] == major and capability[1] >= minor


def why_no_device(arch: str) -> str | None:
    """Why cubins for an architecture do not run here, as what is missing; None where they do."""
    try:
        find_device(arch)
    except (OSError, CudaError) as error:
        return str(error)
    return None


_devices: dict[int, CudaDevice] = {}
_lock = threading.Lock()


def find_device(arch: str) -> CudaDevice:
    """The first GPU that runs cubins for `arch`, as ``sm_90`` (CUDA_VISIBLE_DEVICES says which there are).

    Raises:
        OSError: there is no driver; the message is what is missing.
        CudaError: there is no such GPU; the same, with those that there are.
    """
    driver = _started()
    seen = []
    for ordinal in range(driver.number("cuDeviceGetCount")):
        major, minor = _capability(driver, ordinal)
        if runs(arch, (major, minor)):
            return _device(driver, ordinal)
        seen.append(f"sm_{major}{minor}")
    raise CudaError(f"a GPU that runs {arch} (there is {', '.join(seen) or 'none'})")


def device_at(ordinal: int) -> CudaDevice:
    """The GPU of that number.

    Raises:
        OSError: there is no driver; the message is what is missing.
        CudaError: there is no such GPU.
    """
    driver = _started()
    count = driver.number("cuDeviceGetCount")
    if ordinal >= count:
        raise CudaError(f"there is no GPU {ordinal}: there are {count}")
    return _device(driver, ordinal)


def _started() -> _Driver:
    driver = _Driver(_load())
    driver.call("cuInit", 0)
    return driver


def _capability(driver: _Driver, ordinal: int) -> tuple[int, int]:
    device = driver.number("cuDeviceGet", ordinal)
    major, minor = (driver.number("cuDeviceGetAttribute", attribute, device) for attribute in _CAPABILITY)
    return major, minor


def _device(driver: _Driver, ordinal: int) -> CudaDevice:
    with _lock:
        if ordinal not in _devices:
            _devices[ordinal] = CudaDevice(driver, driver.number("cuDeviceGet", ordinal), _capability(driver, ordinal))
        return _devices[ordinal]


class CudaDevice:
    """One GPU, in its primary context, on the default stream: calls of several threads run one after the other.

    Everything but `current` is to be called inside ``with device.current():``.
    """

    def __init__(self, driver: _Driver, device: int, capability: tuple[int, int]) -> None:
        self._driver = driver
        self.arch = f"sm_{capability[0]}{capability[1]}"
        self._context = driver.handle("cuDevicePrimaryCtxRetain", device)
        self.max_shared = driver.number("cuDeviceGetAttribute", _MAX_SHARED, device)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Inside, this thread's calls go to this GPU."""
        self._driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._driver.call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def function(self, code: bytes, symbol: str, shared: int) -> Function:
        """A function of a cubin, for blocks with so many bytes of shared memory."""
        if shared > self.max_shared:
            raise CudaError(f"{symbol} needs {shared} bytes of shared memory a block, the GPU has {self.max_shared}")
        module = self._driver.handle("cuModuleLoadData", code)
        handle = self._driver.handle("cuModuleGetFunction", module, symbol.encode())
        if shared > _PLAIN_SHARED:
            self._driver.call("cuFuncSetAttribute", handle, _DYNAMIC_SHARED, shared)
        return Function(self._driver, handle, symbol, shared)

    def allocate(self, nbytes: int) -> DeviceBlock:
        """New memory, at a multiple of 256 bytes; MemoryError where there is not so much."""
        address = _ADDRESS()
        self._driver.call("cuMemAlloc_v2", byref(address), max(nbytes, 1))
        return DeviceBlock(self, address.value)

    def free(self, address: int) -> None:
        with self.current():
            self._driver.call("cuMemFree_v2", address)

    def to_device(self, target: int, source: int, nbytes: int) -> None:
        """Copies from the host; `source` may be used again at once."""
        if nbytes:
            self._driver.call("cuMemcpyHtoD_v2", target, source, nbytes)

    def to_host(self, target: int, source: int, nbytes: int) -> None:
        """Copies to the host, after all that was started before."""
        if nbytes:
            self._driver.call("cuMemcpyDtoH_v2", target, source, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        if nbytes:
            self._driver.call("cuMemcpyDtoD_v2", target, source, nbytes)

    def zero(self, target: int, nbytes: int) -> None:
        if nbytes:
            self._driver.call("cuMemsetD8_v2", target, 0, nbytes)

    def synchronize(self) -> None:
        """Waits until all that was started is done; raises `CudaError` if some of it failed."""
        self._driver.call("cuCtxSynchronize")


class Function:
    """A function on the GPU."""

    def __init__(self, driver: _Driver, handle: c_void_p, symbol: str, shared: int) -> None:
        self._driver, self._handle, self._symbol, self._shared = driver, handle, symbol, shared

    def launch(self, grid: int, threads: int, arguments: Sequence[Any]) -> None:
        """Starts `grid` blocks (none: nothing happens); `arguments`: ctypes' numbers."""
        if not grid:
            return
        if grid > _MAX_GRID:
            raise CudaError(f"{self._symbol} would need {grid} blocks, a GPU runs {_MAX_GRID} at most")
        pointers = (c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        self._driver.call("cuLaunchKernel", self._handle, grid, 1, 1, threads, 1, 1, self._shared, None,
                          ctypes.cast(pointers, POINTER(c_void_p)), None)  # fmt: skip


class DeviceBlock:
    """Memory of the GPU, freed when nothing refers to it any more."""

    def __init__(self, device: CudaDevice, address: int) -> None:
        self.address = address
        weakref.finalize(self, device.free, address).atexit = False  # the driver frees all when the process ends


class CudaMemory:
    """What an `ArenaPool` takes its arenas from. A call waits for the GPU, so they may be used again after it."""

    keeps_arenas = True

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def arena(self, nbytes: int) -> DeviceBlock:
        return self._device.allocate(nbytes)

    def pointer(self, block: DeviceBlock) -> int:
        return block.address
