"""Recognising sums of products: which operand is which, and what each axis of the output means to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnvm.dim import Dim, row_major
from nnvm.schedules.kernel import Strides
from nnvm.te.expr import Binary, Cast, Expr, Reduce, Var
from nnvm.te.tensor import IterVar, Read, Tensor, reads, topological
from nnvm.tir.affine import Affine, Space, affine, atom_affine
from nnvm.tir.lower_body import inline_reads

__all__ = ["Contraction", "Operand", "factors", "match", "operand"]


@dataclass(frozen=True, eq=False)
class Operand:
    """One factor of the product: what it reads, and at which address, in elements, for an element of the output."""

    tensor: Tensor
    address: Affine
    own: Affine  # the same for an element of the master

    def step(self, var: Var) -> Dim | None:
        """Elements between neighbours along an axis; 0: it does not depend on it; None: not a constant."""
        return _step(self.address, var)

    def depends(self, var: Var) -> bool:
        return self.step(var) != 0

    def block(self, var: Var) -> int | None:
        """Neighbours along an axis that lie side by side: the block of a packed axis; None where they do not."""
        if self.step(var) == 1:
            return 1 << 62
        for atom, coef in self.address.terms.items():
            if isinstance(atom, tuple) and atom[0] == "floormod" and coef == 1 and atom[1] == atom_affine(var):
                return atom[2].int
        return None


def _step(a: Affine, var: Var) -> Dim | None:
    inside = any(x is var for atom in a.terms if atom is not var for x in _inside(atom))
    return None if inside else a.terms.get(var, 0)


def _inside(atom: object) -> list[object]:
    if not isinstance(atom, tuple):
        return [atom]
    return [*atom[1].atoms(), *atom[2].atoms()]


@dataclass(frozen=True, eq=False)
class Contraction:
    """A group whose only reduction is a sum of products.

    Attributes:
        master: the tensor that sums.
        final: the output that everything leads to.
        outputs: all outputs, `final` included.
        at: the element of the master that an element of `final` is made from, in terms of the axes of `final`.
        x, w: the operands; `w` is the one that is contiguous along the vector axis, where there is one.
        vector: the vector axis of `final`, or None: then the last reduce axis is contiguous in both.
    """

    master: Tensor
    final: Tensor
    outputs: tuple[Tensor, ...]
    at: tuple[Affine, ...]
    x: Operand
    w: Operand
    vector: IterVar | None

    def role(self, axis: IterVar) -> str:
        """``row``, ``column``, ``batch`` or ``free`` (neither operand depends on it): an axis of `final`."""
        x, w = self.x.depends(axis.var), self.w.depends(axis.var)
        return "batch" if x and w else "row" if x else "column" if w else "free"

    def master_axis(self, axis: IterVar) -> int | None:
        """The position of the master's axis that an axis of `final` simply is."""
        same = atom_affine(axis.var)
        return next((d for d, value in enumerate(self.at) if value == same), None)

    def master_vector(self) -> int:
        """The position of the master's axis along which `w` is contiguous."""
        found = [d for d, a in enumerate(self.master.axes) if _step(self.w.own, a.var) == 1]
        return found[-1] if found else len(self.master.axes) - 1


def match(inputs: Sequence[Tensor], outputs: Sequence[Tensor], strides: Strides) -> Contraction | None:
    """The contraction that a group is, if it is one that this schedule knows."""
    order = topological(outputs)
    masters = [t for t in order if isinstance(t.body, Reduce)]
    if len(masters) != 1 or not outputs:
        return None
    master, final = masters[0], order[-1]
    body = master.body
    assert isinstance(body, Reduce)
    pair = factors(body)
    if body.op != "sum" or pair is None or not body.axes or final not in outputs:
        return None
    after = [t for t in order if master in topological([t])]
    if any(t not in topological([final]) for t in outputs):
        return None
    at = _element(master, final, after)
    if at is None:
        return None
    operands = [operand(r, master, at, strides) for r in pair]
    return _roles(master, final, tuple(outputs), tuple(at), operands, strides)


def factors(body: Reduce) -> tuple[Read, Read] | None:
    """The two reads that are multiplied, conversions aside."""
    product = body.source
    if not isinstance(product, Binary) or product.op != "mul" or not product.dtype.is_float:
        return None
    a, b = product.a, product.b
    while isinstance(a, Cast):
        a = a.a
    while isinstance(b, Cast):
        b = b.a
    return (a, b) if isinstance(a, Read) and isinstance(b, Read) else None


def _element(master: Tensor, final: Tensor, after: Sequence[Tensor]) -> list[Affine] | None:
    """The element of the master that an element of `final` is made from; None where it is not a single one."""
    space = Space()
    env = {a.var: atom_affine(a.var) for a in final.axes}
    for a in final.axes:
        space.bind(a.var, affine(0), affine(a.extent) - 1)
    if final is master:
        return list(env.values())
    between = {t: (tuple(a.var for a in t.axes), t.body) for t in after if t not in (master, final)}
    bodies: dict[Tensor, tuple[tuple[Var, ...], Expr]] = {}
    for t in topological([final]):
        if t in between:
            variables, element = between[t]
            assert element is not None
            bodies[t] = (variables, inline_reads(element, bodies))
    assert final.body is not None
    found = {
        tuple(space.from_expr(i, env, lambda e: e) for i in r.indices)
        for r in reads(inline_reads(final.body, bodies))
        if r.tensor is master
    }
    return list(found.pop()) if len(found) == 1 else None


def operand(read: Read, master: Tensor, at: Sequence[Affine], strides: Strides) -> Operand:
    """Where a factor lies, in terms of the output's axes and the reduce axes."""
    space = Space()
    env = {a.var: value for a, value in zip(master.axes, at)}
    for a in master.reduce_axes:
        space.bind(a.var, affine(0), affine(a.extent) - 1)
        env[a.var] = atom_affine(a.var)
    plain = {a.var: atom_affine(a.var) for a in (*master.axes, *master.reduce_axes)}
    total, own = affine(0), affine(0)
    for i, stride in zip(read.indices, strides.get(read.tensor) or row_major(read.tensor.shape)):
        total = total + space.from_expr(i, env, lambda e: e) * stride
        own = own + space.from_expr(i, plain, lambda e: e) * stride
    return Operand(read.tensor, total, own)


def _roles(
    master: Tensor,
    final: Tensor,
    outputs: tuple[Tensor, ...],
    at: tuple[Affine, ...],
    operands: list[Operand],
    strides: Strides,
) -> Contraction | None:
    """Which operand is which."""
    steps = strides.get(final) or row_major(final.shape)
    contiguous = [a for a, s in zip(final.axes, steps) if s == 1 and a.extent != 1]
    for axis in contiguous:
        for x, w in (operands, operands[::-1]):
            if w.block(axis.var) is not None and (not x.depends(axis.var) or x.block(axis.var) is not None):
                return Contraction(master, final, outputs, at, x, w, axis)
    k = master.reduce_axes[-1].var
    if all(o.step(k) == 1 for o in operands):
        return Contraction(master, final, outputs, at, operands[0], operands[1], None)
    return None
