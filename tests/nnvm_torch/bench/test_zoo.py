"""The zoo's networks are the published ones."""

import pytest
import torch

from nnvm_torch.bench.zoo import ZOO, sequence

#: Small enough to run through torchvision's own as well.
TORCHVISION = ("resnet18", "mobilenet_v2", "mobilenet_v3_large", "efficientnet_b0", "squeezenet1_1", "densenet121")


@pytest.mark.parametrize("name", ZOO)
def test_parameter_count(name):
    with torch.device("meta"):
        network = ZOO[name].build()
    assert sum(parameter.numel() for parameter in network.parameters()) == ZOO[name].parameters


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("batch", [1, 3])
def test_it_takes_its_inputs(name, batch):
    with torch.device("meta"), torch.no_grad():
        answer = ZOO[name].build().eval()(*(x.to("meta") for x in ZOO[name].inputs(batch)))
    answers = answer if isinstance(answer, tuple) else (answer,)
    assert all(x.shape[0] == batch for x in answers)


@pytest.mark.parametrize("name", TORCHVISION)
@torch.no_grad()
def test_same_as_torchvision(name):
    models = pytest.importorskip("torchvision.models", exc_type=ImportError)
    ours, theirs = ZOO[name].build().eval(), models.get_model(name).eval()
    state = ours.state_dict()
    assert [x.shape for x in state.values()] == [x.shape for x in theirs.state_dict().values()]
    theirs.load_state_dict(dict(zip(theirs.state_dict(), state.values(), strict=True)))
    x = torch.randn(1, 3, 96, 96)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=0)


@torch.no_grad()
def test_bert_same_as_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192, vocab_size=30522
    )
    theirs = transformers.BertModel(config).eval()
    ours = sequence.Bert(width=48, depth=2, heads=4).eval()
    state = list(theirs.state_dict().values())
    ours.load_state_dict(dict(zip(ours.state_dict(), state, strict=True)))
    tokens, mask = torch.randint(0, 30522, (2, 10)), torch.ones(2, 10, dtype=torch.int64)
    mask[1, 6:] = 0
    expected = theirs(input_ids=tokens, attention_mask=mask)
    hidden, pooled = ours(tokens, mask)
    torch.testing.assert_close(hidden, expected.last_hidden_state, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pooled, expected.pooler_output, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_gpt2_same_as_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=48, n_layer=2, n_head=4, vocab_size=100, n_positions=32)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    ours = sequence.Gpt2(width=48, depth=2, heads=4, vocabulary=100, context=32).eval()
    for parameter in theirs.parameters():
        parameter.normal_(0, 0.2)
    state = [x.T if "c_" in name and x.dim() == 2 else x for name, x in theirs.transformer.state_dict().items()]
    ours.load_state_dict(dict(zip(ours.state_dict(), state, strict=True)))
    tokens = torch.randint(0, 100, (2, 9))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits[:, -1], rtol=1e-4, atol=1e-4)
