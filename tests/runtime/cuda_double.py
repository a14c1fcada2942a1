"""A double of CUDA's driver: its memory is the host's, its launches go to Triton's interpreter.

Functions are real C function pointers with the types of `cuda_driver.PROTOTYPES`, so that arguments pass through ctypes
as they would on their way to the driver.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from ctypes import CFUNCTYPE, c_int

from nnvm.codegen.triton import TritonSource
from nnvm.runtime.artifact.container import Container
from nnvm.runtime.artifact.module import read_spec
from nnvm.runtime.cuda_driver import PROTOTYPES
from nnvm.runtime.triton_interpret import interpret
from nnvm.runtime.triton_launch import load_source

INVALID, OUT_OF_MEMORY, NOT_FOUND = 1, 2, 500
_NAMES = {INVALID: b"CUDA_ERROR_INVALID_VALUE", OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
          NOT_FOUND: b"CUDA_ERROR_NOT_FOUND"}  # fmt: skip


class CudaDouble:
    """Devices of these capabilities, and the kernels of these artifacts.

    Attributes:
        calls: names of the functions called, in order.
        launches: (symbol, grid, threads, shared bytes, wide) of each launch.
        memory: blocks that are allocated, by address.
        limit: bytes that a block may have.
    """

    def __init__(self, capabilities, paths=()):
        self.capabilities = capabilities
        self.calls, self.launches, self.memory, self.limit = [], [], {}, 1 << 30
        self.depth, self.shared = 0, {}
        self._kernels, self._modules, self._functions = {}, [], []
        for path in paths:
            self._read(Container(path))

    def _read(self, container):
        for level in read_spec(container).levels:
            if not level.triple.startswith("nvptx"):
                continue
            code = bytes(container.read(level.main.code))
            (section,) = (n for n in container.names() if n.startswith("triton"))
            sources = {s["start"]: s for s in json.loads(bytes(container.read(section)))}
            for launch in (la for k in level.main.kernels for la in k.launches):
                for b in (b for b in (launch.narrow, launch.wide) if b is not None):
                    s = sources[b.start]
                    source = TritonSource(s["symbol"], s["source"], tuple(map(tuple, s["signature"])), launch.messages)
                    self.know(code[b.start : b.start + b.size], source, b, b is launch.wide)

    def know(self, code, source, binary, wide):
        """From now on `code` is a module with the function of `source`."""
        self._kernels[hashlib.sha256(code).digest()] = (source, binary, wide)

    def __getattr__(self, name):
        if name not in PROTOTYPES:
            raise AttributeError(name)
        method = getattr(type(self), f"_{name}")

        def call(*arguments):
            if not name.startswith("cuGetError"):
                self.calls.append(name)
            return method(self, *arguments) or 0

        function = CFUNCTYPE(c_int, *PROTOTYPES[name])(call)
        setattr(self, name, function)
        return function

    def _cuInit(self, flags):
        return INVALID if flags else 0

    def _cuGetErrorName(self, code, out):
        out[0] = _NAMES[code]

    def _cuGetErrorString(self, code, out):
        out[0] = b"told by the double"

    def _cuDeviceGetCount(self, out):
        out[0] = len(self.capabilities)

    def _cuDeviceGet(self, out, ordinal):
        out[0] = 100 + ordinal

    def _cuDeviceGetAttribute(self, out, attribute, device):
        major, minor = self.capabilities[device - 100]
        out[0] = {75: major, 76: minor, 97: 227 << 10}[attribute]

    def _cuDevicePrimaryCtxRetain(self, out, device):
        out[0] = 1000 + device

    def _cuCtxPushCurrent_v2(self, context):
        self.depth += 1

    def _cuCtxPopCurrent_v2(self, out):
        self.depth -= 1

    def _cuCtxSynchronize(self):
        return 0 if self.depth else INVALID

    def _cuModuleLoadData(self, out, address):
        for size in sorted({binary.size for _, binary, _ in self._kernels.values()}):
            found = self._kernels.get(hashlib.sha256(ctypes.string_at(address, size)).digest())
            if found is not None:
                self._modules.append(found)
                out[0] = len(self._modules)
                return 0
        return INVALID

    def _cuModuleGetFunction(self, out, module, symbol):
        source, binary, wide = self._modules[module - 1]
        if symbol.decode() != binary.symbol:
            return NOT_FOUND
        self._functions.append((source, binary, wide))
        out[0] = len(self._functions)
        return 0

    def _cuFuncSetAttribute(self, function, attribute, value):
        self.shared[function] = value
        return 0 if attribute == 8 and value <= 227 << 10 else INVALID

    def _cuMemAlloc_v2(self, out, size):
        if size > self.limit:
            return OUT_OF_MEMORY
        block = ctypes.create_string_buffer(size + 256)
        address = -(-ctypes.addressof(block) // 256) * 256
        ctypes.memset(address, 0xA5, size)
        self.memory[address] = (block, size)
        out[0] = address
        return 0

    def _cuMemFree_v2(self, address):
        return 0 if self.memory.pop(address, None) is not None else INVALID

    def _inside(self, address, size):
        return any(start <= address and address + size <= start + n for start, (_, n) in self.memory.items())

    def _cuMemcpyHtoD_v2(self, target, source, size):
        if not self._inside(target, size):
            return INVALID
        ctypes.memmove(target, source, size)
        return 0

    def _cuMemcpyDtoH_v2(self, target, source, size):
        if not self._inside(source, size):
            return INVALID
        ctypes.memmove(target, source, size)
        return 0

    def _cuMemcpyDtoD_v2(self, target, source, size):
        if not (self._inside(source, size) and self._inside(target, size)):
            return INVALID
        ctypes.memmove(target, source, size)
        return 0

    def _cuMemsetD8_v2(self, target, value, size):
        if not self._inside(target, size):
            return INVALID
        ctypes.memset(target, value, size)
        return 0

    def _cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, params, extra):
        source, binary, wide = self._functions[function - 1]
        if not self.depth or (gy, gz, by, bz, stream) != (1, 1, 1, 1, None) or shared != binary.shared:
            return INVALID
        if shared > 48 << 10 and self.shared.get(function) != shared:
            return INVALID
        self.launches.append((source.name, gx, bx, shared, wide))
        values = []
        for i, (_, kind) in enumerate((*source.signature, *[("hidden", "*i8")] * binary.hidden)):
            if kind.startswith("*"):
                values.append(ctypes.c_uint64.from_address(params[i]).value)
            else:
                values.append((ctypes.c_int64 if kind == "i64" else ctypes.c_int32).from_address(params[i]).value)
        arguments = values[: len(source.signature)]
        if any(values[len(source.signature) :]):
            return INVALID
        checks = source.signature[-1][0] == "failure"
        pointers = [v for v, (n, k) in zip(values, source.signature) if k.startswith("*")]
        if not all(self._inside(p, 0) for p in pointers):
            return INVALID
        code = interpret(load_source(source), source.signature, arguments[:-1] if checks else arguments, gx)
        if code and checks:
            ctypes.c_int32.from_address(arguments[-1]).value = code
        return 0
