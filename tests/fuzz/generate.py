"""A random model from a seed."""

from __future__ import annotations

import random
import re
from typing import Any

import torch

from tests.fuzz import algebra, changing, edits, elementwise, functions, indexing, layers, shapes
from tests.fuzz.build import FLOATS, INTS, Builder, Edit, Skip, Template
from tests.fuzz.program import Program, Statement, pruned

__all__ = ["generate", "generate_changing"]

#: Families of statements, with how often one of each is drawn.
_FAMILIES: tuple[tuple[Any, int], ...] = (
    (elementwise, 45), (shapes, 38), (layers, 38), (indexing, 20), (functions, 30), (algebra, 22), (edits, 26),
)  # fmt: skip
_CHANGING_FAMILIES = (*((f, share // 6) for f, share in _FAMILIES), (changing, 140))

#: What sizes that differ from call to call are written as.
_FORMS = (
    "N", "M", "(N - 1)", "(N + 1)", "(M - 1)", "(M + 1)", "(2 * N)", "(2 * M)", "(N // 2)", "(M // 2)", "(N + M)",
    "(N * M)", "((N + 1) // 2)", "((M + 1) // 2)", "(N + 2)", "(M + 2)",
)  # fmt: skip

#: Part of models that end with a statement that eager refuses, if one comes up.
KEEP_ERRORS = 0.04


def generate(seed: int) -> Program:
    """The model of that seed: the same in every process of one version of torch."""
    rng = random.Random(seed)
    symbolic = rng.random() < 0.2
    n, m = rng.sample((2, 3, 4, 5, 6, 7, 9, 12), 2)
    sizes = ((n, m), *([rng.sample((5, 8, 10, 13, 17), 2)] if symbolic else []))
    b = Builder(rng, seed, tuple((a, b) for a, b in sizes), not symbolic and rng.random() < 0.25)
    return _grown(b, _FAMILIES)


def generate_changing(seed: int) -> Program:
    """The model of that seed that is called with three sizes or more, and with Python numbers that change as well;
    compiled with ``dynamic=True`` or so that Dynamo finds out what changes."""
    rng = random.Random(seed)
    b = Builder(rng, seed, changing.calls(rng), rng.random() < 0.25)
    b.forms = _FORMS
    return _grown(b, _CHANGING_FAMILIES).with_(dynamic=rng.random() < 0.6)


def _grown(b: Builder, families: tuple[tuple[Any, int], ...]) -> Program:
    with torch.random.fork_rng(devices=[]):
        return _generate(b, *_weighted(families))


def _weighted(families: tuple[tuple[Any, int], ...]) -> tuple[list[Template], list[float]]:
    """The families' templates, with how often each is drawn."""
    templates: list[Template] = []
    weights: list[float] = []
    for family, share in families:
        total = sum(weight for weight, _ in family.TEMPLATES)
        for weight, template in family.TEMPLATES:
            templates.append(template)
            weights.append(share * weight / total)
    return templates, weights


def _generate(b: Builder, templates: list[Template], weights: list[float]) -> Program:
    rng, grad = b.rng, b.grad
    b.main = rng.choices((*FLOATS, "int64", "int32"), (12, 2, 2, 2, 1, 1))[0]
    if grad:
        b.main = rng.choices(FLOATS, (10, 2, 1, 1))[0]
    for _ in range(rng.choice((1, 1, 2))):
        shape = tuple(b.size() for _ in range(rng.choices((0, 1, 2, 3, 4), (1, 4, 9, 7, 8))[0]))
        b.fresh(shape, b.main if rng.random() < 0.75 else rng.choice((*FLOATS, *INTS, "bool")), kind="argument")
    wanted = rng.randint(4, 14)
    for _ in range(4 * wanted):
        if len(b.statements) >= wanted or not _step(b, b.rng.choices(templates, weights)[0]):
            break
    return _finish(b)


def _step(b: Builder, template: Template) -> bool:
    """One more statement, or a try of one; False where the model ends here, with a statement that raises."""
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
