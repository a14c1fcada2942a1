"""A random model from a seed."""

from __future__ import annotations

import random
import re

import torch

from tests.fuzz import algebra, edits, elementwise, functions, indexing, layers, shapes
from tests.fuzz.build import FLOATS, INTS, Builder, Edit, Skip, Template
from tests.fuzz.program import Program, Statement, pruned

__all__ = ["generate"]

_TEMPLATES: list[Template] = []
_WEIGHTS: list[float] = []
for _family, _share in ((elementwise, 45), (shapes, 38), (layers, 38), (indexing, 20), (functions, 30), (algebra, 22),
                        (edits, 26)):  # fmt: skip
    _total = sum(weight for weight, _ in _family.TEMPLATES)
    for _weight, _template in _family.TEMPLATES:
        _TEMPLATES.append(_template)
        _WEIGHTS.append(_share * _weight / _total)

#: Part of models that end with a statement that eager refuses, if one comes up.
KEEP_ERRORS = 0.04


def generate(seed: int) -> Program:
    """The model of that seed: the same in every process of one version of torch."""
    rng = random.Random(seed)
    symbolic = rng.random() < 0.2
    n, m = rng.sample((2, 3, 4, 5, 6, 7, 9, 12), 2)
    sizes = ((n, m), *([rng.sample((5, 8, 10, 13, 17), 2)] if symbolic else []))
    with torch.random.fork_rng(devices=[]):
        return _generate(rng, seed, tuple((a, b) for a, b in sizes), not symbolic and rng.random() < 0.25)


def _generate(rng: random.Random, seed: int, sizes: tuple[tuple[int, int], ...], grad: bool) -> Program:
    b = Builder(rng, seed, sizes, grad)
    b.main = rng.choices((*FLOATS, "int64", "int32"), (12, 2, 2, 2, 1, 1))[0]
    if grad:
        b.main = rng.choices(FLOATS, (10, 2, 1, 1))[0]
    for _ in range(rng.choice((1, 1, 2))):
        shape = tuple(b.size() for _ in range(rng.choices((0, 1, 2, 3, 4), (1, 4, 9, 7, 8))[0]))
        b.fresh(shape, b.main if rng.random() < 0.75 else rng.choice((*FLOATS, *INTS, "bool")), kind="argument")
    wanted = rng.randint(4, 14)
    for _ in range(4 * wanted):
        if len(b.statements) >= wanted or not _step(b):
            break
    return _finish(b)


def _step(b: Builder) -> bool:
    """One more statement, or a try of one; False where the model ends here, with a statement that raises."""
    template = b.rng.choices(_TEMPLATES, _WEIGHTS)[0]
    before, names = len(b.inputs), [set(env) for env in b.envs]
    try:
        text = template(b)
    except (Skip, RuntimeError, IndexError, ValueError):
        text = ""
    if text and b.emit(text):
        return True
    if text and not isinstance(text, Edit) and b.rng.random() < KEEP_ERRORS / 4 and _raises_always(b, text):
        b.statements.append(_failing(b, text))
        return False
    del b.inputs[before:]
    for env, old in zip(b.envs, names):
        for name in set(env) - old:
            del env[name]
    return True


def _raises_always(b: Builder, text: str) -> bool:
    """Does it raise for a reason that is not the want of an operator for a dtype?"""
    for env in b.envs:
        try:
            exec(f"result = {text}", dict(env))
        except (RuntimeError, IndexError, ValueError, TypeError) as e:
            if re.search("not implemented|not supported|unsupported", str(e), re.IGNORECASE):
                return False
        except Exception:  # a number where only a tensor makes sense: no error of the operator
            return False
        else:
            return False
    return True


def _failing(b: Builder, text: str) -> Statement:
    name = b.new_name("v")
    for env in b.envs:
        env[name] = torch.zeros(())
    return Statement(f"{name} = {text}", (name,))


def _finish(b: Builder) -> Program:
    defined = [d for s in b.statements for d in s.defines]
    rng = b.rng
    used = {name for s in b.statements for name in s.uses}
    ends = [d for d in defined if d not in used]
    results = rng.sample(ends, min(len(ends), 3)) or [b.inputs[0].name]
    others = [name for name in (*defined, *(i.name for i in b.inputs)) if name not in results]
    more = rng.sample(others, min(len(others), rng.choice((0, 0, 1, 2))))
    packing = rng.choice(("tuple", "tuple", "dict", "single"))
    return pruned(b.program((*results, *more), packing))
