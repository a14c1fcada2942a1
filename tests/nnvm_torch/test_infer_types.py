"""Networks of the zoo, in small, of whose inputs' types a part is forgotten: what inference finds is what was there."""

import numpy as np
import pytest
import torch
from small_zoo import small

from nnvm.graph.type_solver import partial, solve_types
from nnvm_torch.capture import capture


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "unet_small", "lstm_classifier", "minilm", "gpt2_prefill"])
@pytest.mark.filterwarnings("ignore:The tensor attributes self.cells:UserWarning")
def test_what_is_found_was_there(name):
    torch.manual_seed(0)
    graph = capture(*small(name)).imported.graph
    entries = [e for n in dict.fromkeys((*graph.inputs, *graph.nodes)) for e in n.outputs]
    rng = np.random.default_rng(5)
    for share in (0.0, 0.1, 0.3, 0.6):
        given = {}
        for v in graph.inputs:
            shape = tuple(None if rng.random() < share else d for d in v[0].type.shape)
            dtype = None if rng.random() < share else v[0].type.dtype
            given[v.name] = partial(None if rng.random() < share / 2 else shape, dtype)
        found = solve_types(graph, given)
        for e in entries:
            shape, dtype = found.shape(e), found.values[e].dtype
            if shape is not None:
                assert len(shape) == e.type.rank, e
                assert all(d in (None, t) for d, t in zip(shape, e.type.shape)), (e, shape)
            if share == 0:
                assert (shape, dtype) == (e.type.shape, e.type.dtype), e
