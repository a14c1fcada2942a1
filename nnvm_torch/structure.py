"""Where a module holds its parameters and buffers, looked up by one native call.

The call goes through the module's dictionaries with Python's own `PyDict_GetItemWithError`: every way of changing them
is seen, as nothing is remembered but which submodules there were.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.nn.modules import module as _module

from nnvm.runtime.loaded_code import load_ir
from nnvm.runtime.native_function import NativeFunction, context_of, python_api

__all__ = ["Place", "hidden_work", "state_of", "training_of"]

#: A dictionary (`_parameters`, `_buffers` or `_modules` of a module) and a name in it.
Place = tuple[dict[str, Any], str]

#: Context: [number of links, their triples, number of places, their pairs, None, number of dictionaries, their pairs].
#: A triple is a dictionary, a name and what it is to be; the last pairs are a dictionary and its size.
_IR = """
declare ptr @PyByteArray_AsString(ptr)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare i64 @PyDict_Size(ptr)
declare void @PyErr_Clear()
declare ptr @PyList_New(i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)

define ptr @nnvm_state(ptr %self, ptr %args, i64 %given) nounwind {
entry:
  %context = call ptr @PyByteArray_AsString(ptr %self)
  %links.count = load i64, ptr %context, align 8
  %links.at = getelementptr i64, ptr %context, i64 1
  %links = load ptr, ptr %links.at, align 8
  %places.count.at = getelementptr i64, ptr %context, i64 2
  %places.count = load i64, ptr %places.count.at, align 8
  %places.at = getelementptr i64, ptr %context, i64 3
  %places = load ptr, ptr %places.at, align 8
  %none.at = getelementptr i64, ptr %context, i64 4
  %none = load ptr, ptr %none.at, align 8
  %sizes.count.at = getelementptr i64, ptr %context, i64 5
  %sizes.count = load i64, ptr %sizes.count.at, align 8
  %sizes.at = getelementptr i64, ptr %context, i64 6
  %sizes = load ptr, ptr %sizes.at, align 8
  br label %size.loop

size.loop:
  %s = phi i64 [ 0, %entry ], [ %s.next, %size.step ]
  %s.more = icmp slt i64 %s, %sizes.count
  br i1 %s.more, label %size.step, label %link.loop
size.step:
  %pair = getelementptr { ptr, i64 }, ptr %sizes, i64 %s
  %pair.where = load ptr, ptr %pair, align 8
  %pair.wanted.at = getelementptr i8, ptr %pair, i64 8
  %pair.wanted = load i64, ptr %pair.wanted.at, align 8
  %pair.now = call i64 @PyDict_Size(ptr %pair.where)
  %s.next = add i64 %s, 1
  %pair.same = icmp eq i64 %pair.now, %pair.wanted
  br i1 %pair.same, label %size.loop, label %changed

link.loop:
  %i = phi i64 [ 0, %size.loop ], [ %i.next, %link.step ]
  %i.more = icmp slt i64 %i, %links.count
  br i1 %i.more, label %link.step, label %make
link.step:
  %link = getelementptr { ptr, ptr, ptr }, ptr %links, i64 %i
  %link.where = load ptr, ptr %link, align 8
  %link.name.at = getelementptr i8, ptr %link, i64 8
  %link.name = load ptr, ptr %link.name.at, align 8
  %link.wanted.at = getelementptr i8, ptr %link, i64 16
  %link.wanted = load ptr, ptr %link.wanted.at, align 8
  %link.now = call ptr @PyDict_GetItemWithError(ptr %link.where, ptr %link.name)
  %i.next = add i64 %i, 1
  %link.same = icmp eq ptr %link.now, %link.wanted
  br i1 %link.same, label %link.loop, label %changed

make:
  %list = call ptr @PyList_New(i64 %places.count)
  %made = icmp ne ptr %list, null
  br i1 %made, label %place.loop, label %failed
place.loop:
  %k = phi i64 [ 0, %make ], [ %k.next, %place.keep ]
  %k.more = icmp slt i64 %k, %places.count
  br i1 %k.more, label %place.step, label %done
place.step:
  %place = getelementptr { ptr, ptr }, ptr %places, i64 %k
  %place.where = load ptr, ptr %place, align 8
  %place.name.at = getelementptr i8, ptr %place, i64 8
  %place.name = load ptr, ptr %place.name.at, align 8
  %tensor = call ptr @PyDict_GetItemWithError(ptr %place.where, ptr %place.name)
  %missing = icmp eq ptr %tensor, null
  %empty = icmp eq ptr %tensor, %none
  %lacks = or i1 %missing, %empty
  br i1 %lacks, label %drop, label %place.keep
place.keep:
  call void @Py_IncRef(ptr %tensor)
  %set = call i32 @PyList_SetItem(ptr %list, i64 %k, ptr %tensor)
  %k.next = add i64 %k, 1
  br label %place.loop
done:
  ret ptr %list

drop:
  call void @Py_DecRef(ptr %list)
  br label %changed
changed:
  call void @PyErr_Clear()
  call void @Py_IncRef(ptr %none)
  ret ptr %none
failed:
  ret ptr null
}
"""
_API = ("PyByteArray_AsString", "PyDict_GetItemWithError", "PyDict_Size", "PyErr_Clear", "PyList_New", "PyList_SetItem",
        "Py_IncRef", "Py_DecRef")  # fmt: skip


@lru_cache(maxsize=1)
def _code() -> NativeFunction:
    return NativeFunction(load_ir(_IR, ["nnvm_state"], python_api(*_API)), "nnvm_state")


def state_of(module: torch.nn.Module, places: Sequence[Place]) -> Callable[[], list[torch.Tensor] | None]:
    """A function that gives what is at `places` now; None where something is missing there, or where a submodule of
    `module` or of its submodules is no longer the one that it is now, or where there are more or fewer of them, of
    parameters, of buffers or of hooks."""
    modules = list(module.modules())
    links: list[tuple[dict[Any, Any], Any, Any]] = [
        (m._modules, name, child) for m in modules for name, child in m._modules.items()
    ]
    held = [where for m in modules for where in (m._parameters, m._buffers)]
    links += [(where, name, None) for where in held for name, t in where.items() if t is None]
    hooks: list[dict[Any, Any]] = [where for m in modules for where in _hooks(m)]
    links += [(where, key, hook) for where in hooks for key, hook in where.items()]
    return _look(links, places, [*(m._modules for m in modules), *held, *hooks, *_GLOBAL_HOOKS])


def hidden_work(module: torch.nn.Module) -> str | None:
    """What a trace of `module` as it is now would not see or could not follow; None where there is nothing."""
    if any(_GLOBAL_HOOKS):
        return "hooks are registered for all modules"
    for m in module.modules():
        if torch.is_grad_enabled() and (m._backward_hooks or m._backward_pre_hooks):
            return f"a {type(m).__name__} has backward hooks"
        if any(p is not None and not isinstance(p, torch.nn.Parameter) for p in m._parameters.values()):
            return f"a parameter of a {type(m).__name__} is a plain tensor"
        if any(isinstance(v, torch.ScriptObject) for v in m.__dict__.values()):
            return f"a {type(m).__name__} holds an object of TorchScript, as quantised modules hold their weights"
    return None


def _hooks(m: torch.nn.Module) -> tuple[dict[Any, Any], ...]:
    return m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks


_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (
    _module._global_forward_hooks, _module._global_forward_pre_hooks,
    _module._global_backward_hooks, _module._global_backward_pre_hooks,
)  # fmt: skip


def training_of(module: torch.nn.Module) -> tuple[tuple[bool, ...], Callable[[], list[torch.Tensor] | None]]:
    """Whether `module` and each of its submodules is in training, and a function that gives None when one of those
    that there are now no longer is as it was."""
    modules = list(module.modules())
    own = [m.__dict__ for m in modules if "training" in m.__dict__]
    return tuple([m.training for m in modules]), _look([(where, "training", where["training"]) for where in own])


def _look(links: Sequence[tuple[dict[Any, Any], Any, Any]], places: Sequence[Place] = (),
          whole: Sequence[dict[Any, Any]] = ()) -> Callable[[], list[torch.Tensor] | None]:  # fmt: skip
    """A function that gives what is at `places` now; None where something is missing there, where a dictionary no
    longer holds under a name what `links` say, or where one of `whole` has another size."""
    triples = [id(x) for link in links for x in link]
    pairs = [id(x) for place in places for x in place]
    sizes = [n for where in whole for n in (id(where), len(where))]
    arrays = [(ctypes.c_int64 * max(1, len(words)))(*words) for words in (triples, pairs, sizes)]
    at = list(map(ctypes.addressof, arrays))
    words = (len(links), at[0], len(places), at[1], id(None), len(whole), at[2])
    return _code().bound(context_of(words), (list(links), list(places), list(whole), arrays))
