"""Options: what is accepted, and what errors say."""

from __future__ import annotations

import pytest
import torch

import nnvm_torch
from nnvm_torch import Options


def test_an_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"no option 'stric'; did you mean 'strict'\? Options: precise, fast_math"):
        Options.make({"stric": True})
    with pytest.raises(TypeError, match="no option 'colour'"):
        nnvm_torch.compile(torch.nn.Linear(2, 2), colour=1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"strict": 1}, "strict must be True or False"),
        ({"opt_level": 4}, "opt_level must be 0 to 3"),
        ({"verify": -1}, "verify must be a count"),
        ({"disabled_passes": ["GraphFusion"]}, "no pass 'GraphFusion'; did you mean 'GraphFuse'"),
    ],
)
def test_bad_values(options: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Options.make(options)


def test_modes_of_torch_compile() -> None:
    assert Options.make(None, "max-autotune") == Options.make({}) == Options()
    with pytest.raises(ValueError, match="no mode 'fastest'; modes: default"):
        Options.make(None, "fastest")


def test_torch_compile_passes_options_on() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(torch.nn.Linear(2, 2), backend=nnvm_torch.nnvm, options={"stric": True})
    with pytest.raises(Exception, match="did you mean 'strict'"):
        compiled(torch.ones(1, 2))


def test_options_reach_the_compiler() -> None:
    built = Options.make(precise=True, opt_level=1, disabled_passes="GraphFuse").build_options()
    assert built.options["precise"] and built.opt_level == 1 and built.disabled_passes == {"GraphFuse"}


def test_a_target_of_the_environment_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNVM_TARGET", "llvm -mcpu=nosuch")
    with pytest.raises(ValueError, match=r"NNVM_TARGET='llvm -mcpu=nosuch': processor 'nosuch' is not known; known:"):
        Options.make({})
    torch._dynamo.reset()
    with pytest.raises(Exception, match="processor 'nosuch' is not known"):
        torch.compile(torch.nn.Linear(2, 2), backend="nnvm")(torch.ones(1, 2))
    assert Options.make({"target": "llvm -mcpu=haswell"}).target == "llvm -mcpu=haswell"
