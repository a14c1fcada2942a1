"""Prepared weights: what a compiled graph computes from its parameters, once for each version of them.

At each call the parameters are compared with what was prepared (`nnvm_torch.watch`): the same tensors, at the same
addresses, with the same version counters, and a few of their elements unchanged. Only what depends on a parameter that
changed is prepared again. Prepared tensors are shared between the compilations of one module.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nnvm.graph import Graph, NodeEntry, topological
from nnvm.graph.structural import structural_key
from nnvm.runtime.executor import Executor
from nnvm.runtime.fork_lock import fork_safe
from nnvm.runtime.memory import aligned
from nnvm.runtime.plan import Plan
from nnvm_torch.mapped_weights import move_to_file
from nnvm_torch.tensors import PooledMemory, TorchMemory, span, torch_dtype
from nnvm_torch.watch import Counter, Probe, Same, never, version_of, watch, watch_identity

__all__ = ["Prepared", "Weights", "WeightsOfAnotherKind", "drop_prepared", "look_again", "looks", "prepared_bytes",
           "refresh_all"]  # fmt: skip

#: Sets of parameters (one for each module that runs the same graph) that a compiled graph keeps prepared.
MAX_STATES = 256


class WeightsOfAnotherKind(RuntimeError):
    """Parameters have another dtype or shape than those that the graph was compiled for."""


@dataclass(frozen=True)
class Stamp:
    """What tells one version of a parameter from another."""

    pointer: int
    version: int

    @staticmethod
    def of(t: torch.Tensor) -> Stamp:
        return Stamp(t.data_ptr(), version_of(t))


@dataclass(eq=False)
class Prepared:
    """One prepared tensor and what it was made of."""

    tensor: torch.Tensor
    sources: tuple[weakref.ref[torch.Tensor], ...]
    stamps: tuple[Stamp, ...]
    probe: Probe

    def is_of(self, params: Sequence[torch.Tensor]) -> bool:
        """Was it made of these parameters as they are now?"""
        same = all(r() is p for r, p in zip(self.sources, params))
        return same and self.stamps == tuple(map(Stamp.of, params)) and not self.probe.changed()


# Prepared tensors in use, by what computes them and the identities of the parameters.
_shared: weakref.WeakValueDictionary[tuple[str, tuple[int, ...]], Prepared] = weakref.WeakValueDictionary()
_lock = fork_safe(threading.RLock())


def prepared_bytes() -> int:
    """Bytes of all prepared tensors that are alive."""
    with _lock:
        return sum(p.tensor.untyped_storage().nbytes() for p in list(_shared.values()))


_epoch = Counter()
_looks = Counter()


def refresh_all() -> None:
    """Makes every compiled graph prepare its weights anew at its next call."""
    with _lock:
        _epoch.increase()
        _shared.clear()
    look_again()


def look_again() -> None:
    """Makes the next call of whatever was compiled with `freeze` look at its weights."""
    with _lock:
        _looks.increase()


def looks() -> int:
    """How often `look_again` was called."""
    return _looks.value


def drop_prepared() -> None:
    """Forgets what is shared; tensors in use stay."""
    with _lock:
        _shared.clear()


class State:
    """The prepared form of one set of parameters, and the executor bound to it.

    The parameters are known by identity and not kept alive: `forget` is called when one of them dies.

    Attributes:
        current: of a call's arguments: are the parameters those of this state, as they were when it was prepared?
        same: the question that calls ask: `current`, or less than that of frozen parameters.
        run: `Executor.function` of the executor; None where it has none.
    """

    def __init__(self, executor: Executor, params: Sequence[torch.Tensor], forget: Callable[[State], None]) -> None:
        self.executor = executor
        self.ids = list(map(id, params))
        self.alive = True
        self.prepared: list[Prepared] = []
        self.current: Same = never
        self.same: Same = never
        self.run: Callable[[Sequence[Any]], list[Any]] | None = None
        me = weakref.ref(self)

        def died(_: object) -> None:
            if (state := me()) is not None:
                state.alive = False
                state.current = state.same = never
                forget(state)

        self.sources = [weakref.ref(p, died) for p in params]


class Weights:
    """The parameters of one compiled graph.

    Args:
        make: gives a new Executor of the main graph.
        names: of the parameters.
        places: of each parameter, its position among a call's arguments, or the tensor itself.
        given: of the other inputs; None where some are no arguments.
        main: the main graph; its inputs of kind ``prepared`` are the outputs of `prepare` in order.
        prepare: the plan that computes them, and its constants.
        keep_original: False: parameters that only `prepare` reads move to a mapped file.
        freeze: the same parameters are as they were, until `look_again`.
        memory: where `prepare` works.
    """

    def __init__(
        self, make: Callable[[], Executor], names: Sequence[str], places: Sequence[int | torch.Tensor],
        given: Sequence[int] | None, main: Graph, prepare: Plan | None, constants: Sequence[Any],
        keep_original: bool = True, memory: TorchMemory | None = None, freeze: bool = False,
    ) -> None:  # fmt: skip
        self.freeze, self.given = freeze, given
        self.memory = memory if memory is not None else TorchMemory()
        self.make = make
        self.names, self.places = list(names), list(places)
        self.positions = [p if isinstance(p, int) else -1 for p in places]
        self.position = {v.name: i for i, v in enumerate(main.inputs)}
        self.prepared_at = [i for i, v in enumerate(main.inputs) if v.attrs["kind"] == "prepared"]
        self.prepare, self.constants = prepare, constants
        self.states: OrderedDict[tuple[int, ...], State] = OrderedDict()
        self.latest: State | None = None
        self.lock = _lock  # one for all, so that a fork has one to wait for
        kinds = {v.name: v[0].type for v in main.inputs}
        self.kinds = [(torch_dtype(kinds[n].dtype), kinds[n].shape) for n in self.names]
        read = {e.node for n in main.nodes for e in n.inputs} | {e.node for e in main.outputs}
        direct = {v.name for v in main.inputs if v in read}
        self.read = {i for i, n in enumerate(self.names) if n in direct}
        self.movable = [i for i in range(len(self.names)) if i not in self.read] if not keep_original else []
        depends = main.attrs.get("prepare_depends", ())
        self.parts = [self._part(e, d) for e, d in zip(prepare.graph.outputs, depends)] if prepare is not None else []

    def _part(self, entry: NodeEntry, depends: frozenset[str]) -> tuple[str, tuple[int, ...]]:
        """(key of the computation, parameters it depends on) of one prepared tensor. Kernels that give several values
        read more than one of these depends on."""
        assert self.prepare is not None
        read = [n for n in topological([entry]) if n.is_variable]
        index = {name: i for i, name in enumerate(self.names)}
        return structural_key(Graph((entry,), tuple(read))), tuple(index[v.name] for v in read if v.name in depends)

    def state(self, args: Sequence[Any]) -> State:
        """The state of the parameters among a call's arguments, prepared from what they are now."""
        state = self.latest
        return state if state is not None and state.same(*args) else self.updated(args)

    def updated(self, args: Sequence[Any]) -> State:
        """`state`, where the latest one does not hold."""
        params: list[torch.Tensor] = [args[p] if isinstance(p, int) else p for p in self.places]
        with self.lock:
            key = tuple(map(id, params))
            state = self.states.get(key)
            if state is None or not state.alive:
                me = weakref.ref(self)
                state = State(self.make(), params, lambda dead: _forget(me(), dead))
                self.states[key] = state
                while len(self.states) > MAX_STATES:
                    self.states.popitem(last=False)
            looked = _looks.value
            if not state.current(*args):
                self._check(params)
                epoch = _epoch.value
                current = watch(params, self.positions, _epoch, epoch)
                self._prepare(state, params)
                if self.movable and move_to_file([params[i] for i in self.movable]):
                    self._moved(state, params)
                    current = watch(params, self.positions, _epoch, epoch)
                state.current = current  # last: from here on other threads take the state for current
            frozen = self.freeze and state.alive
            state.same = watch_identity(params, self.positions, _looks, looked) if frozen else state.current
            self.latest = state
            return state

    def _check(self, params: Sequence[torch.Tensor]) -> None:
        for name, p, (dtype, shape) in zip(self.names, params, self.kinds):
            same = len(p.shape) == len(shape) and all(n == d for n, d in zip(p.shape, shape) if isinstance(d, int))
            if p.dtype != dtype or not same:
                raise WeightsOfAnotherKind(f"{name} is {p.dtype}{list(p.shape)}, compiled for {dtype}{list(shape)}")
            if p.numel() and p.untyped_storage().nbytes() < (p.storage_offset() + span(p)) * p.element_size():
                raise RuntimeError(f"{name} has no memory for its {p.numel()} elements: its storage was resized")

    def _moved(self, state: State, params: Sequence[torch.Tensor]) -> None:
        """The same values lie elsewhere: what was prepared from them holds on."""
        for prepared, (_, used) in zip(state.prepared, self.parts):
            sources = [params[u] for u in used]
            prepared.stamps, prepared.probe = tuple(map(Stamp.of, sources)), Probe(sources)
        self._bind(state, self._own(params))

    def _bind(self, state: State, values: Mapping[int, torch.Tensor]) -> None:
        state.executor.bind(values)
        state.run = state.executor.function(self.given) if self.given is not None else None

    def _own(self, params: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """What native code reads of the parameters themselves. Nobody looks whether frozen ones still have their
        memory, so that these are copies."""
        if not self.freeze:
            return {self.position[n]: p.detach() for n, p in zip(self.names, params)}
        return {self.position[n]: p.detach().clone() if i in self.read else p.detach()
                for i, (n, p) in enumerate(zip(self.names, params))}  # fmt: skip

    def _prepare(self, state: State, params: Sequence[torch.Tensor]) -> None:
        """Binds the executor to its parameters and to what is computed from them."""
        values = self._own(params)
        with _lock:
            parts = {i: self._found(i, params) for i in range(len(self.parts))}
            made = self._compute([i for i, p in parts.items() if p is None], params)
        state.prepared = [p or made[i] for i, p in parts.items()]
        for position, prepared in zip(self.prepared_at, state.prepared):
            values[position] = prepared.tensor
        self._bind(state, values)

    def _found(self, i: int, params: Sequence[torch.Tensor]) -> Prepared | None:
        key, used = self.parts[i]
        sources = [params[u] for u in used]
        found = _shared.get((key, tuple(map(id, sources))))
        return found if found is not None and found.is_of(sources) else None

    def _compute(self, missing: Sequence[int], params: Sequence[torch.Tensor]) -> dict[int, Prepared]:
        plan = self.prepare
        if plan is None or not missing:
            return {}
        needed = set(topological([plan.graph.outputs[i] for i in missing]))
        part = replace(plan, steps=tuple(s for s in plan.steps if s.node in needed))
        index = {name: i for i, name in enumerate(self.names)}
        made: dict[int, Prepared] = {}
        for i in missing:
            sources = [params[u] for u in self.parts[i][1]]
            empty = torch.empty(0)
            made[i] = Prepared(empty, tuple(map(weakref.ref, sources)), tuple(map(Stamp.of, sources)), Probe(sources))
        inputs = [params[index[v.name]].detach().contiguous() for v in plan.graph.inputs]
        memory = self.memory
        if memory.device.type == "cpu":
            sizes = (plan.graph.outputs[i].type.nbytes for i in missing)
            memory = PooledMemory(sum(aligned(n) for n in sizes if isinstance(n, int)))
        outputs = Executor(part, memory, self.constants).run(inputs)
        for i, prepared in made.items():
            prepared.tensor = outputs[i]
            key, used = self.parts[i]
            _shared[key, tuple(id(params[u]) for u in used)] = prepared
        return made


def _forget(weights: Weights | None, dead: State) -> None:
    """Drops the state of parameters that are gone, and what was prepared from them."""
    if weights is None:
        return
    weights.states.pop(tuple(dead.ids), None)
    if weights.latest is dead:
        weights.latest = None
