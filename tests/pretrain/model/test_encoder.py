"""The packed encoder against the library's padded models, and how an encoder is made."""

import copy
from contextlib import nullcontext

import pytest
import torch
from encoder_helpers import MAX_POSITIONS, SIZES, make_encoder, make_tokenizer, random_ids
from flash_reference import flash_on_cpu
from transformers import AutoModelForMaskedLM
from transformers.models.modernbert import modeling_modernbert

from pretrain.common.errors import UserError
from pretrain.model.encoder import SentenceEncoder, build_encoder
from pretrain.model.pooling import SECOND_STATE

LENGTHS = torch.tensor([5, 1, 2, MAX_POSITIONS, 7, 7, 1, 19, MAX_POSITIONS, 5])
FAMILIES = ["bert", "roberta", "modernbert", "xlm-roberta", "camembert", "distilbert", "electra"]


@pytest.fixture(autouse=True)
def rotation_in_full_precision(monkeypatch):
    """The library's rotation rounds queries and keys to float32, of a float64 model as well."""

    def rotated(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return tuple(x * cos + modeling_modernbert.rotate_half(x) * sin for x in (q, k))

    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", rotated)


def padded_twin(encoder: SentenceEncoder) -> torch.nn.Module:
    # ModernBERT's eager attention gives NaN for padding beyond its window; its sdpa attention does not.
    attention = "sdpa" if encoder.lm.config.model_type == "modernbert" else "eager"
    twin = AutoModelForMaskedLM.from_config(copy.deepcopy(encoder.lm.config), attn_implementation=attention)
    twin.load_state_dict(encoder.lm.state_dict())
    return twin.to(encoder.lm.dtype)


def pad(ids: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.long)  # [PAD] is 0
    for row, sequence in zip(rows, ids.split(lengths.tolist())):
        row[: len(sequence)] = sequence
    return rows, (torch.arange(rows.shape[1]) < lengths[:, None])


@pytest.mark.parametrize("order", ["mixed", "sorted"])
@pytest.mark.parametrize("family", FAMILIES)
def test_forward_and_gradients_equal_the_padded_model(family, order):
    encoder = make_encoder(family).double()
    twin = padded_twin(encoder)
    lengths = LENGTHS if order == "mixed" else LENGTHS.sort().values
    ids = random_ids(lengths)
    rows, mask = pad(ids, lengths)

    hidden = encoder.states(ids, lengths, None).last
    expected = twin(rows, attention_mask=mask.long(), output_hidden_states=True)
    torch.testing.assert_close(hidden, expected.hidden_states[-1][mask], rtol=0, atol=1e-10)

    logits = encoder.mlm_logits(hidden)
    torch.testing.assert_close(logits, expected.logits[mask], rtol=0, atol=1e-10)

    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    ((hidden * weights).sum() + logits.square().sum()).backward()
    (((expected.hidden_states[-1][mask]) * weights).sum() + expected.logits[mask].square().sum()).backward()
    for (name, parameter), other in zip(encoder.lm.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("pooling", list(SECOND_STATE))
def test_poolings_equal_their_definition(family, pooling):
    encoder = make_encoder(family, pooling).double()
    ids = random_ids(LENGTHS)
    rows, mask = pad(ids, LENGTHS)
    states = (
        padded_twin(encoder)
        .base_model(rows, attention_mask=mask.long(), output_hidden_states=True)
        .hidden_states
    )
    first, last = {
        "cls": (-1, -1),
        "mean": (-1, -1),
        "first-last": (1, -1),
        "embedding-last": (0, -1),
        "last-two": (-2, -1),
    }[pooling]
    expected = torch.stack(
        [
            ((states[first][i] + states[last][i]) / 2)[: 1 if pooling == "cls" else n].mean(0)
            for i, n in enumerate(LENGTHS.tolist())
        ]
    )
    vectors = encoder.embed(ids, LENGTHS)
    torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-10)
    weights = torch.randn(vectors.shape, dtype=torch.float64)
    parameter = encoder.lm.get_input_embeddings().weight
    (ours,) = torch.autograd.grad((vectors * weights).sum(), parameter)
    twin = padded_twin(encoder)
    states = twin.base_model(rows, attention_mask=mask.long(), output_hidden_states=True).hidden_states
    pooled = torch.stack(
        [
            ((states[first][i] + states[last][i]) / 2)[: 1 if pooling == "cls" else n].mean(0)
            for i, n in enumerate(LENGTHS.tolist())
        ]
    )
    (theirs,) = torch.autograd.grad((pooled * weights).sum(), twin.get_input_embeddings().weight)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_states_of_any_layer_are_the_librarys(family):
    """Of ModernBERT's last one, too, behind the final norm, counted from the front or the back."""
    encoder = make_encoder(family).double()
    ids = random_ids(LENGTHS)
    rows, mask = pad(ids, LENGTHS)
    twin = padded_twin(encoder).base_model
    layers = twin(rows, attention_mask=mask.long(), output_hidden_states=True).hidden_states
    for number in range(-len(layers), len(layers)):
        found = encoder.states(ids, LENGTHS, number).second
        torch.testing.assert_close(found, layers[number][mask], rtol=0, atol=1e-10, msg=str(number))


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_sequence_does_not_depend_on_its_batch(family):
    encoder = make_encoder(family).double()
    ids = random_ids(LENGTHS)
    together = encoder.embed(ids, LENGTHS)
    alone = torch.cat([encoder.embed(s, torch.tensor([len(s)])) for s in ids.split(LENGTHS.tolist())])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_batch_reaches_every_parameter_with_a_zero_gradient(family):
    encoder = make_encoder(family)
    none = torch.zeros(0, dtype=torch.long)
    hidden = encoder.states(none, none, None).last
    vectors = encoder.embed(none, none)
    assert hidden.shape == vectors.shape == (0, 32)
    (vectors.sum() + encoder.mlm_logits(hidden).sum()).backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None and not parameter.grad.any(), name


def test_attention_dropout_acts_in_training_only_and_replays_with_the_seed():
    encoder = make_encoder("bert", attention_dropout=0.5)
    ids = random_ids(LENGTHS)

    def run(seed):
        torch.manual_seed(seed)
        return encoder.embed(ids, LENGTHS)

    encoder.train()
    assert torch.equal(run(1), run(1))
    assert not torch.allclose(run(1), run(2), atol=1e-4)
    encoder.eval()
    assert torch.equal(run(1), run(2))


def test_bfloat16_autocast_stays_near_float32_and_pools_in_float32():
    encoder = make_encoder("bert", "first-last").eval()
    ids = random_ids(LENGTHS)
    exact = encoder.embed(ids, LENGTHS)
    with torch.autocast("cpu", torch.bfloat16):
        vectors = encoder.embed(ids, LENGTHS)
    assert vectors.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(vectors, exact).min() > 0.999
    vectors.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in encoder.parameters() if p.grad is not None)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_that_are_computed_again_give_the_same_gradients_and_keep_less(family):
    """Bitwise, with dropout, also through flash kernels, whose dropout is the generator's."""
    encoder = make_encoder(family, dropout=0.2, attention_dropout=0.3).train()
    ids = random_ids(LENGTHS)

    def run():
        torch.manual_seed(3)
        kept = {}

        def note(tensor):
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = encoder.embed(ids, LENGTHS).square().sum()
        loss.backward()
        gradients = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
        encoder.zero_grad(set_to_none=True)
        return gradients, sum(tensor.untyped_storage().nbytes() for tensor in kept.values())

    for attention_by in (nullcontext, flash_on_cpu):
        with attention_by():
            encoder.lm.gradient_checkpointing_disable()
            expected, most = run()
            encoder.recompute_layers()
            found, kept = run()
        assert kept < most / 2
        assert found.keys() == expected.keys()
        for name, gradient in found.items():
            assert torch.equal(gradient, expected[name]), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_on_a_gpu_half_precision_and_float32_agree(family):
    encoder = make_encoder(family).cuda()
    ids = random_ids(LENGTHS).cuda()
    exact = encoder.embed(ids, LENGTHS)
    with torch.autocast("cuda", torch.bfloat16):
        vectors = encoder.embed(ids, LENGTHS)
    assert torch.nn.functional.cosine_similarity(vectors, exact).min() > 0.99
    vectors.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_attention_dropout_is_never_dropped():
    encoder = make_encoder("bert", attention_dropout=0.5).cuda().train()
    ids = random_ids(LENGTHS).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        assert not torch.allclose(encoder.embed(ids, LENGTHS), encoder.embed(ids, LENGTHS), atol=1e-3)


# ---- limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_max_positions_are_usable_and_one_more_is_an_error(family):
    encoder = make_encoder(family)
    assert encoder.max_positions == MAX_POSITIONS
    longest = torch.tensor([MAX_POSITIONS])
    assert encoder.embed(random_ids(longest), longest).isfinite().all()
    with pytest.raises(UserError, match=f"41 tokens.*{MAX_POSITIONS} positions"):
        encoder.embed(random_ids(longest + 1), longest + 1)


def test_an_empty_sequence_is_an_error():
    with pytest.raises(UserError, match=r"sequence 1 .* empty"):
        make_encoder("bert").embed(torch.tensor([5, 6]), torch.tensor([1, 0, 1]))


def test_an_unknown_type_lists_the_known():
    with pytest.raises(UserError, match=r"'t5' is not supported.*modernbert"):
        build_encoder({"type": "t5"} | SIZES, make_tokenizer())


def test_unknown_pooling_lists_the_known():
    with pytest.raises(UserError, match="embedding-last"):
        build_encoder({"type": "bert"} | SIZES, make_tokenizer(), "max")


def test_architecture_reaches_the_config():
    config = make_encoder("modernbert", dropout=0.25, attention_dropout=0.125, norm_eps=1e-3).lm.config
    assert (config.mlp_dropout, config.embedding_dropout, config.attention_dropout) == (0.25, 0.25, 0.125)
    assert (config.norm_eps, config.local_attention, config.num_hidden_layers) == (1e-3, 8, 3)
    assert make_encoder("roberta").lm.config.max_position_embeddings == MAX_POSITIONS + 1  # [PAD] is 0 here
