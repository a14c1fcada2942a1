"""THE list of graph passes, in the order in which they run, with the reason for each place.

A pass that is named here but switched off (`PassContext.disabled`, `opt_level`) is left out; the ones marked with *
must run.
"""

from __future__ import annotations

from collections.abc import Collection

import nnvm.compiler.choose_library
import nnvm.graph.passes  # noqa: F401  registers them

__all__ = ["pipeline", "rewriting"]

_PIPELINE: tuple[str, ...] = (
    # what is not given of the shapes; nothing where all variables have their types
    "InferShape",
    # * every other pass reads types
    "InferType",
    # while the nodes are those that wishes speak of; its copies keep apart what runs on different devices
    "PlaceDevice",
    # first of the rewriting, as what it leaves (multiply, add on parameters) is what the folding passes look for
    "SimplifyInference",
    # before the merging: constants become comparable by value
    "FoldConstant",
    "EliminateCommon",
    # what changes nothing is in the way of every pattern below
    "EliminateIdentity",
    # before the views move: products with weights become dense layers, below which views can move
    "CanonicalizeMatmul",
    # on dense layers as they are now; before the views move, so that what takes the parts apart moves with them
    "CombineParallel",
    # before scales are folded and kernels fused: both want to see producer and consumer side by side
    "CanonicalizeReshape",
    # again: transposes that views had kept from products
    "CanonicalizeMatmul",
    # on canonical forms: fewer ways to write one thing
    "ReplaceOp",
    # after the merging: a scale that two convolutions share has two users and stays
    "FoldScaleAxis",
    # after the scales are in the weights, as the parts take their shares of them; before the layouts of the parts
    "Decompose",
    # after the scales are in the weights, as it packs these; before the cut, so that packed weights are prepared
    "AlterOpLayout",
    # on the final layouts, which decide what an algorithm may read; before the cut: its weights are prepared too
    "ChooseAlgorithm",
    # again: new constants and merged work of the three passes above
    "FoldConstant",
    "EliminateCommon",
    # again, as copies may have become needless; before the cut, so that copies of parameters are prepared
    "PlaceDevice",
    # * after all merging, as OwnOutputs; before the cut, so that copies of parameters are prepared
    "OwnInputs",
    # * after all rewriting, so that everything that depends on parameters only leaves the main graph; before fusion,
    # so that no group mixes the two parts
    "PrecomputePrune",
    # * after all merging, which would undo it; before fusion, so that a copy is one more output of a kernel
    "OwnOutputs",
    # once it is known what is returned; before fusion, which leaves what moves no data out of its groups
    "ElideCopies",
    # * kernels are made of groups
    "GraphFuse",
    # once it is known what a product is fused with; on a GPU only, and where somebody can tell which is faster
    "ChooseLibrary",
    # after fusion: only groups can have dead parts
    "EliminateDead",
    # * last, as it speaks of the nodes that run
    "PlanMemory",
    # * the prepare graph goes the same way
    "FinishPrepare",
)


#: The passes before it rewrite the graph; from it on the graph is laid out to run.
_FIRST_OF_LAYING_OUT = "PrecomputePrune"


def pipeline(added: Collection[str] = ()) -> tuple[str, ...]:
    """Names of the passes in order, for `apply_passes`; `added` ones that have no place here come after the
    rewriting."""
    return (*rewriting(added), *_PIPELINE[_PIPELINE.index(_FIRST_OF_LAYING_OUT) :])


def rewriting(added: Collection[str] = ()) -> tuple[str, ...]:
    """The part of the pipeline that gives a graph of plain ops, better than the one before."""
    own = sorted(name for name in added if name not in _PIPELINE)
    return (*_PIPELINE[: _PIPELINE.index(_FIRST_OF_LAYING_OUT)], *own)
