"""Loads and stores: contiguous, reversed, strided, scattered; masked or not.

AVX2 gathers are slower than the loads they stand for, so lanes at constant distances are loaded as whole vectors and
shuffled, or one by one at constant displacements. Real gathers are left for indices that are data.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

from nnvm.codegen.llvm import linear
from nnvm.codegen.llvm.builder import Builder
from nnvm.codegen.llvm.index import IndexEmitter, Lanes, Slot, splat
from nnvm.codegen.llvm.linear import Lin
from nnvm.codegen.llvm.lltype import lanes_literal, literal, mask_type, memory_type, register_type, suffix
from nnvm.dtype import U8, DType
from nnvm.te.expr import Broadcast, Buffer, Load
from nnvm.tir.stmt import Store

__all__ = ["MemoryEmitter"]

#: Vectors that one strided access may load before lanes are loaded one by one.
_MAX_SPAN_VECTORS = 4


class MemoryEmitter(IndexEmitter):
    """Accesses of one function. `mask` is the condition (of vector selects) that the current expression is under."""

    def __init__(self, b: Builder) -> None:
        super().__init__(b)
        self.mask: str | None = None
        self.mask_lanes = 1

    def slot(self, buffer: Buffer) -> Slot:
        found = self.buffers.get(buffer)
        if found is None:
            raise KeyError(f"buffer {buffer.name} is not a parameter and not allocated here")
        return found

    # -- loads

    def load(self, e: Load) -> str:
        slot, lanes = self.slot(e.buffer), e.lanes
        if isinstance(e.mask, Broadcast) and lanes > 1:
            return self._load_if(self.value(e.mask.a), e)
        mask = None if e.mask is None else self._mask_for(self.value(e.mask), e.mask.lanes, lanes)
        if self.mask is not None and not self.in_bounds(e.buffer, e.indices):
            outer = self._mask_for(self.mask, self.mask_lanes, lanes)
            mask = outer if mask is None or mask == outer else self.b.binary("and", mask_type(lanes), mask, outer)
        if mask is not None and _all(mask, True):
            mask = None
        if mask is not None and _all(mask, False):
            return literal(0, e.dtype, lanes)
        where = self.offset(e.buffer, e.indices)
        if lanes == 1:
            assert isinstance(where, Lanes)
            return self._load_scalar_if(slot, where.base, e.dtype, mask)
        raw = self._load_lanes(slot, where, e.dtype, lanes, mask)
        return self._from_memory(raw, e.dtype, lanes)

    def _load_if(self, cond: str, e: Load) -> str:
        """Lanes that are all read or none: a branch."""
        if cond in ("true", "false"):
            return self.load(Load(e.buffer, e.indices)) if cond == "true" else literal(0, e.dtype, e.lanes)
        b = self.b
        self.offset(e.buffer, e.indices)  # indices are worked out before the branch, to be known after it
        b.open_arm()
        value = self.load(Load(e.buffer, e.indices))
        arm, before = b.close(), b.block
        b.close_branch(cond, arm, None)
        return b.phi(register_type(e.dtype, e.lanes), [(value, arm.block), (literal(0, e.dtype, e.lanes), before)])

    def _mask_for(self, mask: str, from_: int, to: int) -> str:
        """A mask of `from_` lanes for an access of `to` lanes: of another length, where any lane holds."""
        if from_ == to:
            return mask
        if from_ > 1:
            if _all(mask, True) or _all(mask, False):
                mask = "true" if _all(mask, True) else "false"
            else:
                type_ = mask_type(from_)
                mask = self.b.call("i1", f"llvm.vector.reduce.or.{suffix(type_)}", [(type_, mask)])
        return mask if to == 1 else splat(self.b, mask, "i1", to)

    def _read(self, slot: Slot, text: str, operands: tuple[str, ...]) -> str:
        """Value of a load: known again as long as nothing was stored to the buffer in between."""
        b = self.b
        if slot.readonly:
            return b.pure(text, operands)
        if slot.local:
            return b.here(text)
        key = (text, slot.number, slot.version, b.epoch)
        known = b.cse.get(key)
        if known is None:
            known = b.here(text)
            b.remember(key, known)
        return known

    def _element(self, slot: Slot, base: Lin, t: DType) -> str:
        """One element, as it is in memory."""
        at = linear.pointer(self.b, slot.pointer, base, t.bytes)
        return self._read(slot, f"load {memory_type(t)}, ptr {at}, align {t.bytes}", (at,))

    def _load_scalar(self, slot: Slot, base: Lin, t: DType) -> str:
        return self._from_memory(self._element(slot, base, t), t, 1)

    def _load_scalar_if(self, slot: Slot, base: Lin, t: DType, mask: str | None) -> str:
        if mask is None:
            return self._load_scalar(slot, base, t)
        b = self.b
        b.open_arm()
        value = self._load_scalar(slot, base, t)
        arm, before = b.close(), b.block
        b.close_branch(mask, arm, None)
        return b.phi(register_type(t), [(value, arm.block), (literal(0, t), before)])

    def _from_memory(self, raw: str, t: DType, lanes: int) -> str:
        if not t.is_bool:
            return raw
        return self.b.binary("icmp ne", memory_type(t, lanes), raw, literal(0, U8, lanes))

    def _load_lanes(self, slot: Slot, where: Lanes | str, t: DType, lanes: int, mask: str | None) -> str:
        if isinstance(where, str):
            return self._gather(slot, self._pointers(slot, where, t, lanes), t, lanes, mask)
        offsets = where.offsets
        step = _step(offsets)
        if step == 0:
            value = splat(self.b, self._uniform(slot, where.base, t, lanes, mask), memory_type(t), lanes)
            if mask is None:
                return value
            zero = literal(0, U8 if t.is_bool else t, lanes)
            return self.b.select(mask_type(lanes), mask, memory_type(t, lanes), value, zero)
        if step in (1, -1):
            return self._contiguous(slot, where, step, t, lanes, mask)
        if mask is not None:
            return self._gather(slot, self._pointers(slot, self.vector(where), t, lanes), t, lanes, mask)
        if max(offsets) - min(offsets) < _MAX_SPAN_VECTORS * lanes and t.bytes > 1:
            return self._span(slot, where, t, lanes)
        return self._one_by_one(slot, where, t, lanes)

    def _uniform(self, slot: Slot, base: Lin, t: DType, lanes: int, mask: str | None) -> str:
        """One element, as it is in memory; under a mask only where some lane needs it."""
        b, type_ = self.b, memory_type(t)
        if mask is None:
            return self._element(slot, base, t)
        any_ = self._mask_for(mask, lanes, 1)
        b.open_arm()
        value = self._element(slot, base, t)
        arm, before = b.close(), b.block
        b.close_branch(any_, arm, None)
        zero = "0" if t.is_bool else literal(0, t)
        return b.phi(type_, [(value, arm.block), (zero, before)])

    def _contiguous(self, slot: Slot, where: Lanes, step: int, t: DType, lanes: int, mask: str | None) -> str:
        b, type_ = self.b, memory_type(t, lanes)
        first = Lin(where.base.terms, where.base.const + min(where.offsets))
        at = linear.pointer(b, slot.pointer, first, t.bytes)
        if mask is None:
            raw = self._read(slot, f"load {type_}, ptr {at}, align {t.bytes}", (at,))
        else:
            lanes_mask = mask if step == 1 else _reverse(b, mask_type(lanes), mask, lanes)
            name = f"llvm.masked.load.{suffix(type_)}.p0"
            b.declare.add(f"declare {type_} @{name}(ptr, i32, {mask_type(lanes)}, {type_})")
            text = (f"call {type_} @{name}(ptr {at}, i32 {t.bytes}, {mask_type(lanes)} {lanes_mask}, "
                    f"{type_} zeroinitializer)")  # fmt: skip
            raw = self._read(slot, text, (at, lanes_mask))
        return raw if step == 1 else _reverse(b, type_, raw, lanes)

    def _span(self, slot: Slot, where: Lanes, t: DType, lanes: int) -> str:
        """Whole vectors over the lanes' span, the last one ending at the last lane, shuffled together."""
        b, type_ = self.b, memory_type(t, lanes)
        low, high = min(where.offsets), max(where.offsets)
        if high - low < lanes:
            return self._one_by_one(slot, where, t, lanes)
        out, filled = "poison", [False] * lanes
        first = low
        while not all(filled):
            first = min(first, high - lanes + 1)
            inside = [not f and first <= o < first + lanes for o, f in zip(where.offsets, filled)]
            if any(inside):
                at = linear.pointer(b, slot.pointer, Lin(where.base.terms, where.base.const + first), t.bytes)
                part = self._read(slot, f"load {type_}, ptr {at}, align {t.bytes}", (at,))
                picks = tuple(lanes + o - first if now else lane
                              for lane, (o, now) in enumerate(zip(where.offsets, inside)))  # fmt: skip
                out = b.pure(f"shufflevector {type_} {out}, {type_} {part}, <{lanes} x i32> "
                             f"{lanes_literal('i32', picks)}", (out, part))  # fmt: skip
                filled = [f or now for f, now in zip(filled, inside)]
            first += lanes
        return out

    def _one_by_one(self, slot: Slot, where: Lanes, t: DType, lanes: int) -> str:
        b, scalar, out = self.b, memory_type(t), "poison"
        for lane, offset in enumerate(where.offsets):
            value = self._element(slot, Lin(where.base.terms, where.base.const + offset), t)
            text = f"insertelement {memory_type(t, lanes)} {out}, {scalar} {value}, i64 {lane}"
            out = b.pure(text, (out, value))
        return out

    def _pointers(self, slot: Slot, offsets: str, t: DType, lanes: int) -> str:
        text = f"getelementptr {memory_type(t)}, ptr {slot.pointer}, <{lanes} x i64> {offsets}"
        return self.b.pure(text, (slot.pointer, offsets))

    def _gather(self, slot: Slot, pointers: str, t: DType, lanes: int, mask: str | None) -> str:
        b, type_ = self.b, memory_type(t, lanes)
        name = f"llvm.masked.gather.{suffix(type_)}.v{lanes}p0"
        b.declare.add(f"declare {type_} @{name}(<{lanes} x ptr>, i32, {mask_type(lanes)}, {type_})")
        mask = mask or lanes_literal("i1", (1,) * lanes)
        text = (f"call {type_} @{name}(<{lanes} x ptr> {pointers}, i32 {t.bytes}, {mask_type(lanes)} {mask}, "
                f"{type_} zeroinitializer)")  # fmt: skip
        return self._read(slot, text, (pointers, mask))

    # -- stores

    def store(self, s: Store, value: str, mask: str | None) -> None:
        """Write `value`, of as many lanes as the indices or the value have, where `mask` (of that many) holds."""
        b, t = self.b, s.buffer.dtype
        lanes = max([s.value.lanes, *(i.lanes for i in s.indices)])
        slot = self.slot(s.buffer)
        slot.version += 1
        if mask is not None and _all(mask, True):
            mask = None
        if mask is not None and _all(mask, False):
            return
        if s.value.lanes != lanes:
            value = splat(b, value, register_type(t), lanes)
        if t.is_bool:
            value = b.convert("zext", register_type(t, lanes), value, memory_type(t, lanes))
        where = self.offset(s.buffer, s.indices)
        if lanes == 1:
            assert isinstance(where, Lanes)
            self._store_scalar(slot, where.base, t, value, mask)
        elif isinstance(where, str):
            self._scatter(self._pointers(slot, where, t, lanes), t, lanes, value, mask)
        else:
            self._store_lanes(slot, where, t, lanes, value, mask)

    def _store_scalar(self, slot: Slot, base: Lin, t: DType, value: str, mask: str | None) -> None:
        b = self.b
        at = linear.pointer(b, slot.pointer, base, t.bytes)
        text = f"store {memory_type(t)} {value}, ptr {at}, align {t.bytes}"
        if mask is None:
            b.effect(text)
            return
        b.open_arm()
        b.effect(text)
        b.close_branch(mask, b.close(), None)

    def _store_lanes(self, slot: Slot, where: Lanes, t: DType, lanes: int, value: str, mask: str | None) -> None:
        b, type_, offsets = self.b, memory_type(t, lanes), where.offsets
        step = _step(offsets)
        if step in (1, -1):
            first = Lin(where.base.terms, where.base.const + min(offsets))
            at = linear.pointer(b, slot.pointer, first, t.bytes)
            if step == -1:
                value = _reverse(b, type_, value, lanes)
                mask = None if mask is None else _reverse(b, mask_type(lanes), mask, lanes)
            if mask is None:
                b.effect(f"store {type_} {value}, ptr {at}, align {t.bytes}")
                return
            name = f"llvm.masked.store.{suffix(type_)}.p0"
            b.declare.add(f"declare void @{name}({type_}, ptr, i32, {mask_type(lanes)})")
            b.effect(f"call void @{name}({type_} {value}, ptr {at}, i32 {t.bytes}, {mask_type(lanes)} {mask})")
        elif mask is not None:
            self._scatter(self._pointers(slot, self.vector(where), t, lanes), t, lanes, value, mask)
        else:
            for lane, offset in enumerate(offsets):
                base = Lin(where.base.terms, where.base.const + offset)
                part = b.pure(f"extractelement {type_} {value}, i64 {lane}", (value,))
                self._store_scalar(slot, base, t, part, None)

    def _scatter(self, pointers: str, t: DType, lanes: int, value: str, mask: str | None) -> None:
        b, type_ = self.b, memory_type(t, lanes)
        name = f"llvm.masked.scatter.{suffix(type_)}.v{lanes}p0"
        b.declare.add(f"declare void @{name}({type_}, <{lanes} x ptr>, i32, {mask_type(lanes)})")
        mask = mask or lanes_literal("i1", (1,) * lanes)
        b.effect(f"call void @{name}({type_} {value}, <{lanes} x ptr> {pointers}, i32 {t.bytes}, "
                 f"{mask_type(lanes)} {mask})")  # fmt: skip


def _all(mask: str, on: bool) -> bool:
    """Whether a constant mask holds in all lanes, or in none."""
    if mask[0] == "%":
        return False
    if on:
        return mask == "true" or (mask[0] == "<" and "false" not in mask and "i1 0" not in mask)
    return mask in ("false", "zeroinitializer") or (mask[0] == "<" and "true" not in mask and "i1 1" not in mask)


@lru_cache(maxsize=4096)
def _step(offsets: tuple[int, ...]) -> int | None:
    """The distance between neighbouring lanes, where it is one."""
    step = offsets[1] - offsets[0]
    return step if all(q - p == step for p, q in itertools.pairwise(offsets)) else None


def _reverse(b: Builder, type_: str, value: str, lanes: int) -> str:
    order = lanes_literal("i32", tuple(range(lanes - 1, -1, -1)))
    return b.pure(f"shufflevector {type_} {value}, {type_} poison, <{lanes} x i32> {order}", (value,))
