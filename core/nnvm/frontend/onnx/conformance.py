"""ONNX's own backend tests: ``python -m nnvm.frontend.onnx.conformance [NAME ...]`` prints the counts.

Every case passes, is left out with a reason (`exclusions`), or is refused by an error that names what is unsupported;
none may give a wrong number. NAMEs restrict the run to cases whose names contain one of them.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnvm.frontend.onnx.exclusions import ROUNDED_ONCE, exclusion_of
from nnvm.frontend.onnx.importer import UnsupportedModel

__all__ = ["KINDS", "Outcome", "cases", "main", "run_case"]

Array = np.ndarray[Any, Any]

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
#: One unit in the last place of the half types, relative to the value, at most.
UNIT = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        result: ``passed``, ``excluded``, ``refused`` or ``wrong``.
        reason: of the exclusion or refusal, or the difference.
        pinned: inputs whose values the model was compiled for.
    """

    name: str
    result: str
    reason: str = ""
    pinned: tuple[str, ...] = ()


def cases(kind: str) -> list[Any]:
    """The suite's cases of a kind; see `KINDS`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # generating some expected values overflows on purpose
        from onnx.backend.test.loader import load_model_tests

        return sorted(load_model_tests(kind=kind), key=lambda c: c.name)


def run_case(case: Any) -> Outcome:
    """Runs one case and compares its outputs."""
    import onnx

    from nnvm.frontend.onnx import Backend

    model = case.model if case.model is not None else onnx.load(Path(case.model_dir) / "model.onnx")
    if (why := exclusion_of(case.name, model)) is not None:
        return Outcome(case.name, "excluded", why)
    try:
        prepared = Backend.prepare(model)
        for inputs, wanted in _data(case):
            for result, want in zip(prepared.run(inputs), wanted, strict=True):
                if (difference := _difference(result, want, case)) is not None:
                    return Outcome(case.name, "wrong", difference)
    except UnsupportedModel as e:
        return Outcome(case.name, "refused", str(e))
    return Outcome(case.name, "passed", pinned=tuple(sorted(prepared.fixed)))


def _data(case: Any) -> Iterator[tuple[list[Array], list[Array]]]:
    from onnx import TensorProto, load_tensor, numpy_helper

    def array(value: Any) -> Array:
        return np.asarray(numpy_helper.to_array(value) if isinstance(value, TensorProto) else value)

    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [array(v) for v in inputs], [array(v) for v in outputs]
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield tuple(  # type: ignore[misc]
            [array(load_tensor(str(p))) for p in sorted(folder.glob(f"{what}_*.pb"), key=_number)]
            for what in ("input", "output")
        )


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _difference(result: Array, want: Array, case: Any) -> str | None:
    """How a result differs from what is wanted; None where it is within the case's tolerance."""
    if (result.dtype, result.shape) != (want.dtype, want.shape):
        return f"{result.dtype}{list(result.shape)} in place of {want.dtype}{list(want.shape)}"
    units = max((n for start, n in ROUNDED_ONCE.items() if case.name.startswith(start)), default=0)
    rtol = max(case.rtol, units * UNIT.get(want.dtype.name, 0))
    if want.dtype.kind not in "biufc" or want.dtype.name == "bfloat16":
        result, want = result.astype(np.float32), want.astype(np.float32)
    try:
        np.testing.assert_allclose(result, want, rtol, case.atol)
    except AssertionError as e:
        return " ".join(str(e).split())
    return None


def main(names: Sequence[str]) -> int:
    """Runs the suite and prints a line a kind, then what was refused or wrong; 1 where a number is wrong."""
    wrong = 0
    for kind in KINDS:
        chosen = [c for c in cases(kind) if not names or any(n in c.name for n in names)]
        outcomes = [run_case(c) for c in chosen]
        counts = Counter(o.result for o in outcomes)
        pinned = sum(bool(o.pinned) for o in outcomes)
        print(f"{kind}: {counts['passed']} of {len(chosen)} pass ({pinned} of them compiled for values of inputs), "
              f"{counts['excluded']} excluded, {counts['refused']} refused, {counts['wrong']} wrong")  # fmt: skip
        for why, count in Counter(o.reason for o in outcomes if o.result == "excluded").most_common():
            print(f"  excluded {count}: {why}")
        for o in outcomes:
            if o.result in ("refused", "wrong"):
                print(f"  {o.result} {o.name}: {' '.join(o.reason.split())}")
        wrong += counts["wrong"]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
