"""Own layers: dropout against the library's layers under the same masks, precision, copies of weights."""

import copy
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from encoder_helpers import MAX_POSITIONS, make_encoder, random_ids
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForMaskedLM
from transformers.models.modernbert import modeling_modernbert

from augment.core.keys import derive
from pretrain.model.kernels import dropout as hashing
from pretrain.model.kernels.dropout import Dropout, site_of
from pretrain.model.layer import layers_of
from pretrain.model.rows import PackedRow

LENGTHS = torch.tensor([5, 1, 2, MAX_POSITIONS, 7, 7, 19, 5])
KEYS = np.arange(100, 108, dtype=np.uint64)
DROPOUT = {"dropout": 0.2, "attention_dropout": 0.3}
AttentionInterface.register("hashed", None)  # `library_twin` says which
AttentionMaskInterface.register("hashed", lambda *_, **__: None)


def rotated_in_full_precision(q, k, cos, sin, unsqueeze_dim=1):
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return tuple(x * cos + modeling_modernbert.rotate_half(x) * sin for x in (q, k))


def library_model(encoder, attention):
    """The same weights in the library's own layers."""
    twin = AutoModelForMaskedLM.from_config(copy.deepcopy(encoder.lm.config), attn_implementation=attention)
    twin.load_state_dict(encoder.lm.state_dict())
    return twin.to(encoder.lm.dtype)


def by_library(twin, ids, lengths):
    """The library's states of each sequence, one after the other, in evaluation."""
    twin.eval()
    return torch.cat(
        [twin.base_model(sequence[None]).last_hidden_state[0] for sequence in ids.split(lengths.tolist())]
    )


def library_twin(encoder, keys, monkeypatch):
    """The same model by the library's code, whose dropouts keep what the hash says."""
    twin = library_model(encoder, "hashed").train()

    def hook(rate, place, number):
        dropout = Dropout(rate, keys, site_of(number, place))
        return lambda module, inputs, output: hashing.apply(inputs[0][0], dropout).unsqueeze(0)

    base, kind = twin.base_model, twin.config.model_type
    name = "drop" if kind == "modernbert" else "dropout"
    getattr(base.embeddings, name).register_forward_hook(hook(0.2, hashing.EMBEDDING, 0))
    for number, part in enumerate(layers_of(twin)):
        if kind == "modernbert":
            part.attn.out_drop.register_forward_hook(hook(0.3, hashing.ATTENTION, number))
            part.mlp.drop.register_forward_hook(hook(0.2, hashing.MLP, number))
        else:
            if kind != "distilbert":
                part.attention.output.dropout.register_forward_hook(hook(0.2, hashing.ATTENTION, number))
            last = part.ffn if kind == "distilbert" else part.output
            last.dropout.register_forward_hook(hook(0.2, hashing.MLP, number))
        inner = part.attn if kind == "modernbert" else part.attention
        (inner if kind in ("modernbert", "distilbert") else inner.self).number = number

    def attend(module, query, key, value, mask, scaling=None, sliding_window=None, packed_layout=None, **_):
        query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # [T, heads, D]
        dropout = Dropout(0.3, keys, site_of(module.number, hashing.PROBABILITIES))
        outputs, start = [], 0
        for length in [n for count, n in packed_layout.groups for _ in range(count)]:
            part = slice(start, start + length)
            scores = torch.einsum("ihd,jhd->hij", query[part], key[part]) * scaling
            if sliding_window is not None:
                place = torch.arange(length)
                far = (place[:, None] - place).abs() >= sliding_window
                scores = scores.masked_fill(far, -torch.inf)
            kept = hashing.kept_probabilities(keys[None, part], dropout, query.shape[1])[0]
            outputs.append(torch.einsum("hij,jhd->ihd", scores.softmax(-1) * kept / 0.7, value[part]))
            start += length
        outputs.append(torch.zeros_like(query[start:]))
        return torch.cat(outputs).unsqueeze(0), None

    monkeypatch.setattr(modeling_modernbert, "apply_rotary_pos_emb", rotated_in_full_precision)
    AttentionInterface.register("hashed", attend)
    return twin


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "electra", "distilbert"])
def test_dropout_is_the_librarys_under_the_same_masks(family, monkeypatch):
    encoder = make_encoder(family, **DROPOUT).double().train()
    lengths = LENGTHS.sort().values
    ids = random_ids(lengths)
    sequence_keys = torch.from_numpy(derive(KEYS, "dropout").view(np.int64))
    keys = torch.nn.functional.pad(hashing.token_keys(sequence_keys, lengths), (0, 1024))
    ours = encoder.states(ids, lengths, 1, keys=KEYS)
    twin = library_twin(encoder, keys[: attention_rows(len(ids))], monkeypatch)
    row = PackedRow.build(ids, lengths, torch.device("cpu"), 0, encoder._first_position)
    output = twin.base_model(
        input_ids=row.ids[None], position_ids=row.positions[None], packed_layout=row.layout,
        output_hidden_states=True,
    )  # fmt: skip
    theirs = SimpleNamespace(
        last=row.in_input_order(output.last_hidden_state[0]),
        second=row.in_input_order(output.hidden_states[1][0]),
    )
    torch.testing.assert_close(ours.last, theirs.last, rtol=0, atol=1e-10)
    torch.testing.assert_close(ours.second, theirs.second, rtol=0, atol=1e-10)
    weights = torch.randn(ours.last.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for states in (ours, theirs):
        (states.last * weights).sum().backward()
    for (name, parameter), other in zip(encoder.lm.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-10, atol=1e-10, msg=name)


def attention_rows(tokens):
    from pretrain.common.memory import rounded_rows

    return rounded_rows(tokens)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_dropout_of_a_sequence_does_not_depend_on_its_batch(family):
    encoder = make_encoder(family, **DROPOUT).double().train()
    ids = random_ids(LENGTHS)
    together = encoder.embed(ids, LENGTHS, keys=KEYS)
    alone = torch.cat(
        [
            encoder.embed(sequence, torch.tensor([len(sequence)]), keys=KEYS[number : number + 1])
            for number, sequence in enumerate(ids.split(LENGTHS.tolist()))
        ]
    )
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    assert not torch.allclose(together, encoder.embed(ids, LENGTHS, keys=KEYS + np.uint64(1)), atol=1e-3)
    encoder.eval()
    clean = encoder.embed(ids, LENGTHS)
    assert torch.equal(clean, encoder.embed(ids, LENGTHS, keys=KEYS))
    assert not torch.allclose(together, clean, atol=1e-3)


def test_without_keys_torchs_generator_decides():
    encoder = make_encoder("bert", **DROPOUT).train()
    ids = random_ids(LENGTHS)

    def run(seed):
        torch.manual_seed(seed)
        return encoder.embed(ids, LENGTHS)

    assert torch.equal(run(1), run(1))
    assert not torch.allclose(run(1), run(2), atol=1e-3)


# ---- precision --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bert", "modernbert", "distilbert", "electra"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_float32(family, dtype):
    ids = random_ids(LENGTHS)
    encoder = make_encoder(family, "first-last").train()
    encoder.embed(ids, LENGTHS).square().sum().backward()
    exact = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
    encoder.zero_grad()
    with torch.autocast("cpu", dtype):
        states = encoder.states(ids, LENGTHS, 1)
        vectors = encoder.vectors(states, "first-last")
    assert vectors.dtype == states.last.dtype == states.second.dtype == torch.float32
    vectors.square().sum().backward()
    difference = norm = 0.0
    for name, parameter in encoder.named_parameters():
        if name in exact:
            assert parameter.grad.dtype == torch.float32
            difference += float((parameter.grad - exact[name]).square().sum())
            norm += float(exact[name].square().sum())
    assert (difference / norm) ** 0.5 < (0.02 if dtype == torch.bfloat16 else 0.003)


def test_a_half_precision_model_runs_without_autocast():
    encoder = make_encoder("bert", **DROPOUT).to(torch.bfloat16).train()
    vectors = encoder.embed(random_ids(LENGTHS), LENGTHS)
    vectors.square().sum().backward()
    assert all(p.grad.dtype == torch.bfloat16 for p in encoder.parameters() if p.grad is not None)


@pytest.mark.parametrize("family", ["bert", "distilbert", "electra"])
def test_states_that_vectors_are_made_of_are_float32_at_least(family):
    """Whatever the type of the model is, and not rounded to that on the way."""
    ids, encoder = random_ids(LENGTHS), make_encoder(family).eval()
    for dtype, wide in (
        (torch.float64, torch.float64), (torch.bfloat16, torch.float32), (torch.float16, torch.float32),
    ):  # fmt: skip
        states = encoder.to(dtype).states(ids, LENGTHS, 1)
        assert states.last.dtype == wide
        assert (states.last.to(dtype).to(wide) == states.last).all() == (wide == dtype)


# ---- working copies of weights ----------------------------------------------------------------------


def test_working_copies_are_made_once_while_weights_stay_and_again_after():
    encoder = make_encoder("bert").train()
    ids = random_ids(LENGTHS)

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            return encoder.embed(ids, LENGTHS)

    once = run()
    once.sum().backward()
    single = {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}
    encoder.zero_grad()
    with encoder.weights_unchanged():
        for _ in range(2):
            assert torch.equal(run(), once)
            run().sum().backward()
        held = dict(encoder.copies._copies)
        assert held and torch.equal(run(), once)
        assert list(map(id, encoder.copies._copies.values())) == list(map(id, held.values()))
    for name, gradient in single.items():  # accumulated in float32
        torch.testing.assert_close(encoder.get_parameter(name).grad, 2 * gradient, rtol=1e-6, atol=1e-6)
    assert encoder.copies is None
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.data.mul_(1.5)  # as DeepSpeed updates: no version tells of it
    with encoder.weights_unchanged():
        assert not torch.allclose(run(), once, atol=1e-3)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "electra", "distilbert"])
@pytest.mark.parametrize("half", [True, False])
def test_gradients_that_are_added_together_are_those_that_autograd_adds(family, half):
    """Twice, so that they are put where there are none, and added; a frozen parameter has none."""
    encoder, ids = make_encoder(family).train(), random_ids(LENGTHS)
    frozen = next(layers_of(encoder.lm)[0].parameters()).requires_grad_(False)
    added, found = [], []
    for parameter in layers_of(encoder.lm).parameters():
        if parameter.requires_grad:
            parameter.register_hook(added.append)
    for leaf in (False, True):
        encoder.zero_grad()
        for _ in range(2):  # two steps
            with encoder.weights_unchanged(leaf=leaf), torch.autocast("cpu", torch.bfloat16, enabled=half):
                for _ in range(2):
                    encoder.embed(ids, LENGTHS).square().sum().backward()
                    encoder.copies.add_gradients(None)
        found.append({name: p.grad for name, p in encoder.named_parameters() if p.grad is not None})
        assert bool(added) != leaf
        added.clear()
    assert found[0].keys() == found[1].keys() and frozen.grad is None
    assert all(torch.equal(gradient, found[1][name]) for name, gradient in found[0].items())


def test_all_copies_that_a_pass_reads_are_made_together_from_the_second_time_on(monkeypatch):
    """At the first time each alone, and not as a list: so it is in a CUDA graph."""
    encoder, ids, made, copy = make_encoder("bert").train(), random_ids(LENGTHS), [], torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda into, of: made.append(len(into)) or copy(into, of))
    vectors = []
    for counts in ([], [27]):  # parameters, of three layers
        with encoder.weights_unchanged(leaf=True), torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            vectors.append(encoder.embed(ids, LENGTHS, keys=KEYS))
        assert made == counts
    assert torch.equal(*vectors)


def test_two_passes_of_one_loss_are_added_in_full_precision():
    encoder, ids, found = make_encoder("bert").train(), random_ids(LENGTHS), []
    for parts in (1, 2):
        encoder.zero_grad()
        with encoder.weights_unchanged(), torch.autocast("cpu", torch.bfloat16):
            losses = [encoder.embed(ids, LENGTHS, keys=KEYS + n).square().sum() for n in range(2)]
        for loss in losses if parts == 2 else [sum(losses)]:
            loss.backward()
        found.append([p.grad for p in layers_of(encoder.lm).parameters()])
    assert all(torch.equal(*both) for both in zip(*found, strict=True))


def test_a_half_precision_model_reads_the_same_from_working_copies():
    encoder = make_encoder("bert").to(torch.bfloat16).train()
    ids, found = random_ids(LENGTHS), []
    for kept in (False, True):
        encoder.zero_grad()
        with encoder.weights_unchanged() if kept else nullcontext():
            encoder.embed(ids, LENGTHS).square().sum().backward()
        found.append([p.grad for p in encoder.parameters() if p.grad is not None])
    assert all(torch.equal(*both) for both in zip(*found, strict=True))


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_other_activations_than_the_exact_gelu(family):
    name = "hidden_activation" if family == "modernbert" else "hidden_act"
    own, ids = make_encoder(family, **{name: "silu"}).double(), random_ids(LENGTHS)
    expected = by_library(library_model(own, "eager"), ids, LENGTHS)
    torch.testing.assert_close(own.states(ids, LENGTHS, None).last, expected, rtol=0, atol=1e-6)
    gelu = make_encoder(family).double().embed(ids, LENGTHS)
    assert not torch.allclose(gelu, own.embed(ids, LENGTHS), atol=1e-5)


def test_biases_of_modernbert_are_used():
    biased = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
    ids, encoder = random_ids(LENGTHS), make_encoder("modernbert", **biased).double()
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if name.endswith("bias"):
                parameter.fill_(0.1)
    expected = by_library(library_model(encoder, "sdpa"), ids, LENGTHS)
    torch.testing.assert_close(encoder.states(ids, LENGTHS, None).last, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "electra", "distilbert"])
def test_names_and_order_of_parameters_are_the_librarys(family):
    own = make_encoder(family)
    library = library_model(own, "eager")
    assert list(own.lm.state_dict()) == list(library.state_dict())
    assert [n for n, _ in own.lm.named_parameters()] == [n for n, _ in library.named_parameters()]
    ids = random_ids(LENGTHS)
    again = copy.deepcopy(own)
    assert torch.equal(again.embed(ids, LENGTHS), own.embed(ids, LENGTHS))
