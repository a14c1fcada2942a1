"""A level of an artifact as C: header, source, kernels in a static library, weights, an example.

The source is the plan written out, one call a step. Kernels are the artifact's objects as they are; what they call,
``nnvm_parallel``, is part of the source: a loop of OpenMP where that is switched on (``-fopenmp``), else one thread.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nnvm.artifact.c_text import EXAMPLE, HEADER, MAKE_READY, PREPARE, RUN, SOURCE, STAGE
from nnvm.atomic_write import atomic_write
from nnvm.dim import Dim, numel
from nnvm.runtime.artifact.container import Container
from nnvm.runtime.artifact.module import read_spec
from nnvm.runtime.artifact.plan import KernelSpec, Level, Ref, Spec, Stage, Step, TensorSpec
from nnvm.runtime.memory import aligned
from nnvm.target import Target

__all__ = ["compiler", "export_c", "link_shared"]


def export_c(container: Container, folder: Path, level: str | None = None) -> list[Path]:
    """Writes the C files of one level into `folder`, which is made where it is not there; the paths.

    ValueError lists the levels where `level` is none of them, or is not given and there are several.
    """
    spec = read_spec(container)
    chosen = _chosen(spec, level)
    name = re.sub(r"\W", "_", spec.model, flags=re.ASCII) or "model"
    if name[0].isdigit():
        name = f"m{name}"
    weights = bytes(container.read("weights"))
    objects = [(k.name, bytes(code[k.start : k.start + k.size])) for stage in _stages(chosen)
               for code in (container.read(stage.code),) for k in stage.kernels]  # fmt: skip
    writer = _Writer(name, spec, chosen, weights)
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, bytes] = {
        f"{name}.h": writer.header().encode(),
        f"{name}.c": writer.source().encode(),
        "example.c": writer.example().encode(),
        f"lib{name}_kernels.a": _archive(objects),
        f"{name}.safetensors": weights,
    }
    for file, data in files.items():
        with atomic_write(folder / file) as out:
            out.write(data)
    return [folder / file for file in files]


def compiler(triple: str) -> list[str] | None:
    """The command of a C compiler for `triple`; None where there is none.

    It is ``$CC``, else one that is on the PATH (cc, gcc or clang for this machine, aarch64-linux-gnu-gcc and the like
    for others), else the one that the package ``ziglang`` brings, which compiles for any machine.
    """
    if given := os.environ.get("CC"):
        return shlex.split(given)
    arch = triple.partition("-")[0]
    native = arch == Target.host().triple.partition("-")[0]
    names = ("cc", "gcc", "clang") if native else (f"{arch}-linux-gnu-gcc",)
    if (found := next((path for name in names if (path := shutil.which(name))), None)) is not None:
        return [found]
    if importlib.util.find_spec("ziglang") is None:
        return None
    return [sys.executable, "-m", "ziglang", "cc", *([] if native else ["-target", f"{arch}-linux-gnu"])]


def link_shared(files: Sequence[Path], command: Sequence[str]) -> Path:
    """Makes a shared library of what `export_c` wrote. RuntimeError quotes the compiler where it fails."""
    source, library = (next(f for f in files if f.suffix == s and f.name != "example.c") for s in (".c", ".a"))
    made = source.with_name(f"lib{source.stem}.so")
    part = made.with_suffix(".so.tmp")  # an interruption leaves no half of a library
    arguments = [*command, "-shared", "-fPIC", "-O2", str(source), str(library), "-lm", "-o", str(part)]
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(arguments)} failed: {done.stderr.strip()[:400]}")
        part.replace(made)
    except OSError as error:
        raise RuntimeError(f"{command[0]} cannot be run: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    return made


def _chosen(spec: Spec, level: str | None) -> Level:
    on_cpu = [one for one in spec.levels if not any(k.launches for k in one.main.kernels)]
    names = [one.name for one in on_cpu]
    if not names:
        raise ValueError(f"the code is for a GPU ({spec.levels[0].name}), of which there is no C; compile the model "
                         "for a processor")  # fmt: skip
    if level is None and len(names) == 1:
        return on_cpu[0]
    if level is None or level not in names:
        what = "several levels are there" if level is None else f"no level {level!r}"
        raise ValueError(f"{what}; choose one of {', '.join(names)}")
    return on_cpu[names.index(level)]


class _Writer:
    """The texts of one level."""

    def __init__(self, name: str, spec: Spec, level: Level, weights: bytes) -> None:
        self.name, self.spec, self.level, self.weights = name, spec, level, weights
        self._sizes = list(spec.sizes)
        self._head = 8 + struct.unpack_from("<Q", weights)[0]
        self._entries = json.loads(weights[8 : self._head])
        self._prepared = [0]  # where each thing that is prepared begins, then the end
        for nbytes in level.prepared:
            self._prepared.append(self._prepared[-1] + aligned(nbytes))

    def header(self) -> str:
        return HEADER.format(name=self.name, guard=self.name.upper(), level=self.level.name,
                             triple=self.level.triple, inputs=_listed("inputs", self.spec.inputs),
                             outputs=_listed("outputs", self.spec.outputs), sizes=self._told_sizes(),
                             num_inputs=len(self.spec.inputs), num_outputs=len(self.spec.outputs),
                             num_sizes=len(self._sizes),
                             and_packs="" if self.level.prepare is None else " and packs a copy of them")  # fmt: skip

    def source(self) -> str:
        level = self.level
        externs = "\n".join(f"extern int32_t {k.name}(void **, const int64_t *, void *, int64_t);"
                            for stage in _stages(level) for k in stage.kernels)  # fmt: skip
        all_messages = [m for stage in _stages(level) for k in stage.kernels for m in k.messages]
        first, prepare, ready = len([m for k in level.main.kernels for m in k.messages]), "", ""
        lasting = [*(f"model->prepared + {start}" for start in self._prepared[:-1]), *self._weights()]
        if level.prepare is not None:
            outputs = [(f"base[{1 + i}]", f"INT64_C({nbytes})") for i, nbytes in enumerate(level.prepared)]
            prepare = self._stage(level.prepare, PREPARE, lasting, outputs, first) + "\n"
            ready = MAKE_READY.format(bytes=self._prepared[-1] or 64)
        outputs = [(f"outputs[{i}]", f"nnvm_output_bytes({i}, n)") for i in range(len(self.spec.outputs))]
        bases = [f"(char *)inputs[{i}]" for i in range(len(self.spec.inputs))]
        bases += [f"(char *)outputs[{i}]" for i in range(len(self.spec.outputs))]
        return SOURCE.format(
            name=self.name, externs=externs, weight_bytes=len(self.weights), head=self._head,
            hash=_fnv1a(self.weights[: self._head]), messages="".join(f"    {_quoted(m)},\n" for m in all_messages),
            num_messages=len(all_messages), input_bytes=self._bytes_cases(self.spec.inputs),
            output_bytes=self._bytes_cases(self.spec.outputs), prepare=prepare, make_ready=ready,
            stages=self._stage(level.main, RUN, [*bases, *lasting], outputs, 0, "    (void)inputs;\n"),
        )  # fmt: skip

    def example(self) -> str:
        return EXAMPLE.format(name=self.name, num_inputs=len(self.spec.inputs), num_outputs=len(self.spec.outputs),
                              num_sizes=len(self._sizes), inputs=_listed("inputs", self.spec.inputs),
                              outputs=_listed("outputs", self.spec.outputs))  # fmt: skip

    def _told_sizes(self) -> str:
        if not self._sizes:
            return " * sizes: none; give NULL."
        told = ", ".join(f"{n} (axis {a} of {self.spec.inputs[p].name})" for n, (p, a) in self.spec.sizes.items())
        return f" * sizes: {_comment(told)}."

    def _weights(self) -> list[str]:
        return [f"model->weights + {self._head + self._entries[w]['data_offsets'][0]}" for w in self.level.weights]

    def _stage(self, stage: Stage, head: str, bases: Sequence[str], outputs: Sequence[tuple[str, str]],
               message: int, unused: str = "") -> str:  # fmt: skip
        """A function that runs the stage.

        Args:
            head: the function's, without its brace.
            bases: the table of bases, but for the arena.
            outputs: address and bytes of each.
            message: number of the first message of its kernels.
            unused: lines that name parameters which may be unused.
        """
        first_message = []
        for kernel in stage.kernels:
            first_message.append(message)
            message += len(kernel.messages)
        steps = [self._step(s, stage.kernels[s.kernel], first_message[s.kernel]) for s in stage.steps]
        copies = [f"    memcpy({outputs[c.output][0]}, {self._pointer(c.source)}, (size_t){outputs[c.output][1]});"
                  for c in stage.copies]  # fmt: skip
        return STAGE.format(head=head, unused=unused, arena=self._expr(stage.arena),
                            bases=",\n        ".join(["memory", *bases]), steps="\n".join(steps),
                            workspaces="\n".join(self._workspaces(stage)), copies="\n".join(copies))  # fmt: skip

    def _workspaces(self, stage: Stage) -> list[str]:
        """One line for each distinct workspace of a step that needs one."""
        found: dict[str, None] = {}
        for step in stage.steps:
            kernel = stage.kernels[step.kernel]
            if kernel.workspace != 0:
                local = dict(zip(kernel.sizes, step.sizes))
                found[self._expr(kernel.workspace, {k: self._expr(v) for k, v in local.items()})] = None
        return [f"    work = max_of(work, {text});" for text in found]

    def _step(self, step: Step, kernel: KernelSpec, message: int) -> str:
        buffers = ", ".join(self._pointer(r) for r in step.buffers) or "0"
        sizes = ", ".join(self._expr(d) for d in step.sizes) or "0"
        return (f"    {{\n        void *b[] = {{{buffers}}};\n        const int64_t s[] = {{{sizes}}};\n"
                f"        if ((code = {kernel.name}(b, s, workspace, threads)) != 0) {{\n"
                f"            code += {message};\n            goto done;\n        }}\n"
                "    }")  # fmt: skip

    def _pointer(self, ref: Ref) -> str:
        return f"base[{ref.base}]" if ref.offset == 0 else f"base[{ref.base}] + {self._expr(ref.offset)}"

    def _bytes_cases(self, tensors: Sequence[TensorSpec]) -> str:
        return "\n".join(f"    case {i}: return {self._expr(numel(t.shape) * t.dtype.bytes)};"
                         for i, t in enumerate(tensors))  # fmt: skip

    def _expr(self, d: Dim, names: dict[str, str] | None = None) -> str:
        """A size as C; `names`: C of the sizes in it, by default the caller's."""
        if isinstance(d, int):
            return f"INT64_C({d})"
        terms = []
        for term, coef in d.terms:
            factors = [] if coef == 1 and term else [f"INT64_C({coef})"]
            terms.append(" * ".join([*factors, *(self._atom(a, names) for a in term)]))
        return f"({' + '.join(terms)})"

    def _atom(self, atom: tuple[object, ...], names: dict[str, str] | None) -> str:
        if atom[0] == "sym":
            name = str(atom[1])
            return names[name] if names is not None else f"n[{self._sizes.index(name)}]"
        function = {"floordiv": "div_of", "mod": "mod_of", "max": "max_of", "min": "min_of"}[str(atom[0])]
        a, b = (self._expr(x, names) for x in atom[1:])  # type: ignore[arg-type]
        return f"{function}({a}, {b})"


def _stages(level: Level) -> list[Stage]:
    return [level.main] if level.prepare is None else [level.main, level.prepare]


def _listed(what: str, tensors: Sequence[TensorSpec]) -> str:
    lines = [f" *   {i}: {_comment(t.name)}: {_comment(str(t))}" for i, t in enumerate(tensors)]
    return "\n".join([f" * {what}, contiguous arrays:", *lines])


def _comment(text: str) -> str:
    """Text that cannot end a comment in C."""
    return text.replace("*/", "* /").replace("\n", " ").replace("\\", "/")


def _quoted(text: str) -> str:
    """A string literal of C."""
    return '"' + "".join(c if c.isascii() and c.isprintable() and c not in '"\\?' else
                         "".join(f"\\{b:03o}" for b in c.encode()) for c in text) + '"'  # fmt: skip


def _fnv1a(data: bytes) -> str:
    """FNV-1a of 64 bits, as the source computes it too."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"UINT64_C(0x{value:016x})"


def _archive(objects: Sequence[tuple[str, bytes]]) -> bytes:
    """A static library (System V ar with its index) of objects, each with the one symbol that it defines."""
    members = [data for _, data in objects]
    names = b"".join(name.encode() + b"\0" for name, _ in objects)
    names += b"\0" * (len(names) % 2)
    index_size = 4 + 4 * len(objects) + len(names)
    at, starts = 8 + 60 + index_size, []
    for data in members:
        starts.append(at)
        at += 60 + len(data) + len(data) % 2
    out = [b"!<arch>\n", _member("/", index_size), struct.pack(f">{1 + len(starts)}I", len(starts), *starts), names]
    for number, data in enumerate(members):
        out += [_member(f"k{number}.o/", len(data)), data, b"\n" * (len(data) % 2)]
    return b"".join(out)


def _member(name: str, size: int) -> bytes:
    """The header of a member; no date and owner, so that equal contents are equal files."""
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{size:<10}`\n".encode()
