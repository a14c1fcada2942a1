"""Writes one LLVM function as text, with value numbering and hoisting on the way.

Text is several times faster to make than objects. Two things keep it short, so that LLVM has little left to do:

* equal instructions are written once per scope: `Builder.pure` looks their text up;
* an instruction goes to the outermost scope that has all its operands, so what a loop does not change stands before
  the loop. The text of a loop or branch joins its parent only when it is closed; until then the parent can take
  more instructions, and these dominate everything inside.

Values are strings: ``%v12`` or a constant.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

__all__ = ["Builder", "Loop", "Range"]

#: Least and greatest value of an integer, both included.
Range = tuple[int, int]


@dataclass(slots=True)
class _Scope:
    """Straight-line text of one loop body, branch or function, with what to forget when it is closed."""

    lines: list[str]
    block: str
    written: list[Hashable] = field(default_factory=list)


@dataclass(slots=True)
class Loop:
    """An open loop: its variable and the labels of its ends."""

    var: str
    begin: str
    label: str
    conditional: bool


class Builder:
    """Text of one function's body.

    Attributes:
        depth: the scope (0: function) that each value is defined in; constants and arguments are missing, depth 0.
        ranges: bounds of i64 values that cannot wrap; values made of data have none.
        floor: depth of the innermost scope that may not run: nothing costly or unsafe is hoisted above it.
        epoch: counts the loops entered; what was loaded before a loop may have changed in its second round.
    """

    def __init__(self, declare: set[str], loops: list[str]) -> None:
        self.declare = declare
        self.loop_metadata = loops
        self.entry: list[str] = []
        self.scopes = [_Scope([], "entry")]
        self.cse: dict[Hashable, str] = {}
        self.depth: dict[str, int] = {}
        self.ranges: dict[str, Range] = {}
        self.floor = 0
        self.epoch = 0
        self._floors: list[int] = []
        self._count = 0

    # -- instructions

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"%{prefix}{self._count}"

    def pure(self, text: str, operands: Iterable[str], cheap: bool = False) -> str:
        """Value of an instruction without effects; `cheap` ones may move above branches too."""
        name = self.cse.get(text)
        if name is not None:
            return name
        level = 0 if cheap else self.floor
        depth = self.depth
        for operand in operands:
            at = depth.get(operand)
            if at is not None and at > level:
                level = at
        self._count += 1
        name = f"%v{self._count}"
        scope = self.scopes[level]
        scope.lines.append(f"  {name} = {text}")
        scope.written.append(text)
        self.cse[text] = name
        if level:
            depth[name] = level
        return name

    def here(self, text: str) -> str:
        """Value of an instruction that must stand where it is (a load of memory that changes)."""
        name = self.fresh()
        self.scopes[-1].lines.append(f"  {name} = {text}")
        self.depth[name] = len(self.scopes) - 1
        return name

    def effect(self, text: str) -> None:
        self.scopes[-1].lines.append(f"  {text}")

    def binary(self, op: str, type_: str, a: str, b: str) -> str:
        return self.pure(f"{op} {type_} {a}, {b}", (a, b))

    def convert(self, op: str, from_: str, a: str, to: str) -> str:
        return self.pure(f"{op} {from_} {a} to {to}", (a,))

    def select(self, cond_type: str, cond: str, type_: str, a: str, b: str) -> str:
        if a == b or cond == "true":
            return a
        if cond == "false":
            return b
        return self.pure(f"select {cond_type} {cond}, {type_} {a}, {type_} {b}", (cond, a, b))

    def call(self, result: str, function: str, arguments: Sequence[tuple[str, str]], flags: str = "") -> str:
        """Value of a call without effects; the function is declared."""
        types = ", ".join(t for t, _ in arguments)
        self.declare.add(f"declare {result} @{function}({types})")
        values = ", ".join(f"{t} {v}" for t, v in arguments)
        return self.pure(f"call {flags}{result} @{function}({values})", [v for _, v in arguments])

    # -- memory of values

    def remember(self, key: Hashable, value: str = "") -> bool:
        """Whether `key` is new; it counts as known until the current scope is closed."""
        if key in self.cse:
            return False
        self.cse[key] = value
        self.scopes[-1].written.append(key)
        return True

    def remember_for(self, key: Hashable, value: str) -> None:
        """Know `value` by `key`, as long as the scope that it stands in is open."""
        self.cse[key] = value
        self.scopes[self.depth.get(value, 0)].written.append(key)

    def alloca(self, type_: str, align: int) -> str:
        name = self.fresh("stack")
        self.entry.append(f"  {name} = alloca {type_}, align {align}")
        return name

    # -- scopes

    @property
    def block(self) -> str:
        """Label of the block being written."""
        return self.scopes[-1].block

    def label(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def open(self, label: str, conditional: bool) -> None:
        self.scopes.append(_Scope([], label))
        self._floors.append(self.floor)
        if conditional:
            self.floor = len(self.scopes) - 1

    def close(self) -> _Scope:
        scope = self.scopes.pop()
        self.floor = self._floors.pop()
        for key in scope.written:
            del self.cse[key]
        return scope

    def open_loop(self, begin: str, bounds: Range, conditional: bool) -> Loop:
        """Enter a loop whose variable starts at `begin`; `conditional` when it may run zero times.

        What does not change in such a loop is computed ahead of it, in a scope that is entered only if it runs.
        """
        self.epoch += 1
        loop = Loop(self.fresh("i"), begin, self.label("loop"), conditional)
        if conditional:
            self.open(self.label("first"), True)
        self.open(loop.label, False)
        self.depth[loop.var] = len(self.scopes) - 1
        self.ranges[loop.var] = bounds
        return loop

    def close_loop(self, loop: Loop, end: str) -> None:
        """Leave the loop, which runs while its variable is below `end`."""
        body = self.close()
        ahead = self.close() if loop.conditional else None
        parent = self.scopes[-1]
        done, before = self.label("done"), parent.block
        following, again, metadata = self.fresh("next"), self.fresh("again"), len(self.loop_metadata)
        self.loop_metadata.append(f"!{metadata + 3} = distinct !{{!{metadata + 3}, !0, !1}}")
        if ahead is not None:
            enter, before = self.fresh("enter"), ahead.block
            parent.lines.append(f"  {enter} = icmp slt i64 {loop.begin}, {end}")
            parent.lines.append(f"  br i1 {enter}, label %{before}, label %{done}")
            parent.lines.append(f"{before}:")
            parent.lines.extend(ahead.lines)
        parent.lines.append(f"  br label %{loop.label}")
        parent.lines.append(f"{loop.label}:")
        parent.lines.append(f"  {loop.var} = phi i64 [ {loop.begin}, %{before} ], [ {following}, %{body.block} ]")
        parent.lines.extend(body.lines)
        parent.lines.append(f"  {following} = add nuw nsw i64 {loop.var}, 1")
        parent.lines.append(f"  {again} = icmp slt i64 {following}, {end}")
        parent.lines.append(f"  br i1 {again}, label %{loop.label}, label %{done}, !llvm.loop !{metadata + 3}")
        parent.lines.append(f"{done}:")
        parent.block = done

    def close_branch(self, cond: str, then: _Scope, orelse: _Scope | None, unlikely: bool = False) -> None:
        """Join one or two closed scopes as the arms of a branch on `cond`."""
        parent = self.scopes[-1]
        done = self.label("join")
        arms = [then] if orelse is None else [then, orelse]
        firsts = [arm.lines[0][:-1] for arm in arms]
        other = done if orelse is None else firsts[1]
        weights = ", !prof !2" if unlikely else ""
        parent.lines.append(f"  br i1 {cond}, label %{firsts[0]}, label %{other}{weights}")
        for arm in arms:
            parent.lines.extend(arm.lines)
            parent.lines.append(f"  br label %{done}")
        parent.lines.append(f"{done}:")
        parent.block = done

    def open_arm(self) -> None:
        """Enter one arm of a branch; its text begins with its label."""
        label = self.label("arm")
        self.open(label, True)
        self.scopes[-1].lines.append(f"{label}:")

    def phi(self, type_: str, arms: Sequence[tuple[str, str]]) -> str:
        """The value that came out of the arms just joined, as (value, last block) pairs."""
        return self.here(f"phi {type_} " + ", ".join(f"[ {v}, %{block} ]" for v, block in arms))
