"""Grows a random model statement by statement, each tried in eager at once: what raises is left out."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import torch

from tests.fuzz.program import Input, Program, Size, Statement, namespace

__all__ = ["FLOATS", "INTS", "Builder", "Edit", "Skip", "Template"]

FLOATS = ("float32", "float64", "bfloat16", "float16")
INTS = ("int64", "int32", "int16", "int8", "uint8")
LAYOUTS = ("transposed", "permuted", "stepped", "sliced", "inner", "expanded", "channels_last", "overlapping")
#: Results with more elements are left out.
MAX_ELEMENTS = 6000


class Skip(Exception):
    """This template has nothing to work on."""


class Edit(str):
    """A statement that defines nothing: an edit in place."""


Template = Callable[["Builder"], str]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Builder:
    """Attributes:
    rng: all choices.
    envs: for each pair of sizes, the value of every name.
    forms: what sizes that vary are written as, where it fits every call.
    grad: inputs of floats require gradients.
    """

    def __init__(self, rng: random.Random, seed: int, sizes: tuple[tuple[int, int], ...], grad: bool) -> None:
        self.rng, self.seed, self.sizes, self.grad = rng, seed, sizes, grad
        self.symbolic = len(set(sizes)) > 1
        self.forms: tuple[str, ...] = ("N", "M")
        self.inputs: list[Input] = []
        self.statements: list[Statement] = []
        self.envs: list[dict[str, object]] = [{**namespace(), "N": n, "M": m} for n, m in sizes]
        self.main = "float32"
        self.count = 0

    # names and values

    def new_name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def tensors(self) -> dict[str, torch.Tensor]:
        return {k: v for k, v in self.envs[0].items() if isinstance(v, torch.Tensor)}

    def value(self, name: str) -> torch.Tensor:
        found = self.envs[0][name]
        assert isinstance(found, torch.Tensor)
        return found

    def pick(self, want: Callable[[torch.Tensor], bool] = lambda t: True) -> str:
        """A name whose value is wanted, recent ones rather than old ones. Skip where there is none."""
        names = [k for k, t in self.tensors().items() if want(t)]
        if not names:
            raise Skip
        weights = [1 + i * i for i in range(len(names))]
        return self.rng.choices(names, weights)[0]

    def number(self, rank: int | None = None, low: int = 0) -> str:
        """A float tensor of that rank."""
        return self.pick(lambda t: t.is_floating_point() and t.dim() >= low and rank in (None, t.dim()))

    def integer(self) -> str:
        return self.pick(lambda t: not t.is_floating_point() and t.dtype != torch.bool)

    def any(self, low: int = 0) -> str:
        return self.pick(lambda t: t.dim() >= low)

    def shape(self, name: str) -> tuple[Size, ...]:
        """Its sizes, in terms of N and M where they vary. Skip where they are something else."""
        shapes = [tuple(env[name].shape) for env in self.envs]  # type: ignore[attr-defined]
        out: list[Size] = []
        for values in zip(*shapes):
            if len(set(values)) == 1:
                out.append(values[0])
            else:
                fitting = (f for f in self.forms if values == tuple(eval(f, {"N": n, "M": m}) for n, m in self.sizes))
                form = next(fitting, None)
                if form is None:
                    raise Skip
                out.append(form)
        return tuple(out)

    def rank(self, name: str) -> int:
        return self.value(name).dim()

    def dim(self, name: str) -> int:
        """A dimension of it, sometimes counted from the end."""
        rank = self.rank(name)
        if rank == 0:
            raise Skip
        d = self.rng.randrange(rank)
        return d - rank if self.rng.random() < 0.4 else d

    def dtype(self, name: str) -> str:
        return name_of(self.value(name).dtype)

    # new inputs

    def fresh(
        self, shape: tuple[Size, ...], dtype: str | None = None, values: str | None = None, kind: str | None = None,
        layout: str | None = None,
    ) -> str:  # fmt: skip
        """A new input; what is not given is drawn."""
        rng = self.rng
        dtype = dtype or self.main
        if values is None:
            values = self.draw_values(dtype)
        if layout is None:
            layout = rng.choice(LAYOUTS) if rng.random() < 0.35 else "contiguous"
        if self.grad and layout in ("expanded", "overlapping") and dtype in FLOATS:
            layout = "contiguous"  # a gradient of its own cannot be accumulated there
        kind = kind or ("parameter" if dtype in FLOATS and rng.random() < 0.2 else "argument")
        if kind == "parameter" and any(isinstance(s, str) for s in shape):
            kind = "argument"
        made = Input(self.new_name("w" if kind != "argument" else "x"), shape, dtype, values, layout, kind)
        return self.add_input(made)

    def fresh_number(self, expression: str) -> str:
        """A new Python number among the arguments, in terms of N and M."""
        made = Input(self.new_name("k"), (), "number", expression)
        for env in self.envs:
            exec(made.code(), env)
        self.inputs.append(made)
        return made.name

    def add_input(self, made: Input) -> str:
        for env in self.envs:
            env["g"] = torch.Generator().manual_seed(self.seed + len(self.inputs))
            exec(made.code(), env)
            value = env[made.name]
            assert isinstance(value, torch.Tensor)
            if self.grad and value.is_floating_point():
                value.requires_grad_()
        self.inputs.append(made)
        return made.name

    def draw_values(self, dtype: str) -> str:
        rng = self.rng
        if dtype in FLOATS:
            return "normal()" if rng.random() < 0.85 else rng.choice(("special()", "positive()", "integers()"))
        if dtype == "bool":
            return "integers()"
        return "integers()" if rng.random() < 0.85 else "extremes()"

    def size(self) -> Size:
        """0, 1, odd and even ones, and sizes beside the width of vectors."""
        rng = self.rng
        if self.symbolic and rng.random() < 0.5:
            return rng.choice(("N", "M"))
        return rng.choices((0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33), (1, 6, 10, 14, 14, 10, 8, 8, 3, 5, 4, 3))[0]

    # statements

    def emit(self, text: str) -> bool:
        """Adds an expression or an edit; False where eager raises, or the result is unusable."""
        if isinstance(text, Edit):
            ok = self.run(text)
            if ok:
                self.statements.append(Statement(str(text)))
            return ok
        before = [dict(env) for env in self.envs]
        if not self.run(f"result = {text}"):
            return False
        results = [env.pop("result") for env in self.envs]
        first = results[0]
        parts = first if isinstance(first, (tuple, list)) else (first,)
        every = [t for r in results for t in (r if isinstance(r, (tuple, list)) else (r,))]
        tensors = all(isinstance(t, torch.Tensor) for t in every)
        if not parts or not tensors or not all(usable(t) for t in parts):
            for env, old in zip(self.envs, before):
                env.clear()
                env.update(old)
            return False
        names = [self.new_name("v") for _ in parts]
        for env, result in zip(self.envs, results):
            values = result if isinstance(result, (tuple, list)) else (result,)
            if len(values) != len(names):
                return False
            env.update(zip(names, values))
        comma = "," if isinstance(first, (tuple, list)) and len(names) == 1 else ""
        self.statements.append(Statement(f"{', '.join(names)}{comma} = {text}", tuple(names)))
        return True

    def run(self, text: str) -> bool:
        code = compile(text, "<model>", "exec")
        for env in self.envs:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    exec(code, env)
            except Exception:
                return False
        return True

    def program(self, results: tuple[str, ...], packing: str) -> Program:
        return Program(self.seed, tuple(self.inputs), tuple(self.statements), results, self.sizes,
                       self.symbolic, self.grad, packing)  # fmt: skip


def usable(t: torch.Tensor) -> bool:
    known = name_of(t.dtype) in (*FLOATS, *INTS, "bool")
    return known and t.numel() <= MAX_ELEMENTS and t.dim() <= 5 and t.layout == torch.strided
