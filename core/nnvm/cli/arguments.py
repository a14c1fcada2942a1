"""Types of command line arguments, and options that several commands have."""

from __future__ import annotations

import argparse

from nnvm.cpu_list import parse_cpu_list

__all__ = ["add_model_arguments", "core_list", "name_list", "named_file", "opt_level", "output", "positive_float",
           "positive_int", "shape", "size"]  # fmt: skip

#: The most that a size, a count or a number of seconds may be: more is a slip, and would overflow somewhere.
_MOST = 1 << 40


def positive_int(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def name_list(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def core_list(text: str) -> tuple[int, ...]:
    """``0,2-4`` as (0, 2, 3, 4)."""
    try:
        return parse_cpu_list(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of processors as 0,2-4: {error}") from error


def shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """``x=batch,3,224`` as ("x", ("batch", 3, 224)); an input's name may have an equals sign."""
    name, equals, sizes = text.rpartition("=")
    parts = [p.strip() for p in sizes.split(",")] if sizes.strip() else []
    if not equals or not name or not all(p.isascii() and (p.isdigit() or p.isidentifier()) for p in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZE,SIZE,... with numbers or names as sizes")
    found = tuple(int(p) if p.isdigit() else p for p in parts)
    if any(isinstance(n, int) and n > _MOST for n in found):
        raise argparse.ArgumentTypeError(f"{text!r} has a size that no memory holds")
    return name, found


def size(text: str) -> tuple[str, int]:
    """``n=8`` as ("n", 8)."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier() or not value.isascii() or not value.isdigit() or int(value) > _MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER")
    return name, int(value)


def output(text: str) -> str:
    """A path to write to."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file or folder")
    return text


def named_file(text: str) -> tuple[str, str]:
    """``x=x.npy`` as ("x", "x.npy")."""
    name, equals, file = text.partition("=")
    if not equals or not name or not file:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE")
    return name, file


def opt_level(text: str) -> int:
    if text not in ("0", "1", "2", "3"):
        raise argparse.ArgumentTypeError(f"{text!r} is not 0, 1, 2 or 3")
    return int(text)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of models that PyTorch builds, and how much to optimise."""
    parser.add_argument("--batch", type=positive_int, default=1, help="batch size of a model that PyTorch builds (1)")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="of a model that PyTorch builds"
    )
    parser.add_argument("--opt-level", type=opt_level, default=3, metavar="0-3", help="how much to optimise (3)")
