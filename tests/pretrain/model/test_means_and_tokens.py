"""Which tokens a mean is over and with what weight, working copies in nested passes, tokenizers that fit."""

import numpy as np
import pytest
import torch
from encoder_helpers import make_encoder, make_tokenizer, random_ids

from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.model import encoder as encoder_module
from pretrain.model.architectures import FAMILIES, architecture_of, config_from, family_of, set_dropout
from pretrain.model.encoder import check_tokenizer, load_encoder, own_tokenizer
from pretrain.model.pooling import PackedStates, check_pooling, pool, segment_mean, sif_weights
from pretrain.objectives import Objective
from pretrain.objectives.whole import WholeObjective


def test_sif_weights_are_the_papers():
    weights = sif_weights(np.array([0, 1, 3, 6]))
    assert weights == pytest.approx([1, 1e-3 / (1e-3 + 0.1), 1e-3 / (1e-3 + 0.3), 1e-3 / (1e-3 + 0.6)])


@pytest.mark.parametrize("pooled", [None, "bool", "weights", "zeros"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "first-last", "embedding-last", "last-two"])
def test_vectors_are_weighted_means_of_each_sequences_tokens(pooling, pooled):
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([3, 1, 4])
    last, second = (torch.randn(8, 5, generator=generator) for _ in range(2))
    weights = {
        None: None,
        "bool": torch.tensor([1, 0, 1, 1, 1, 0, 0, 1]).bool(),
        "weights": torch.rand(8, generator=generator),
        "zeros": torch.tensor([0.5, 0, 1, 0, 1, 0, 0, 2]),
    }[pooled]
    needs = pooling not in ("cls", "mean")
    found = pool(PackedStates(last, second if needs else None, lengths, weights), pooling)
    own = torch.ones(8) if weights is None else weights.float()
    for number, (start, stop) in enumerate(((0, 3), (3, 4), (4, 8))):
        if pooling == "cls":
            expected = last[start]
        else:
            states = (last[start:stop] + second[start:stop]) / 2 if needs else last[start:stop]
            share = own[start:stop, None]
            expected = (states * share).sum(0) / max(share.sum(), 1e-12)
        torch.testing.assert_close(found[number], expected)


def test_means_of_segments_are_of_their_rows_and_of_none_nan():
    values = torch.arange(8.0).view(4, 2)
    found = segment_mean(values, torch.tensor([1, 0, 3]))
    assert found[[0, 2]].tolist() == [[0, 1], [4, 5]] and found[1].isnan().all()
    assert pool(PackedStates(values, None, torch.tensor([2, 2, 0])), "cls")[:2].tolist() == [[0, 1], [4, 5]]
    assert pool(PackedStates(values.half(), None, torch.tensor([4])), "mean").dtype == torch.float32
    assert pool(PackedStates(values.double(), None, torch.tensor([4])), "mean").dtype == torch.float64
    for name in ("cls", "words", "last-two"):
        assert check_pooling(name) == name
    with pytest.raises(UserError, match="unknown pooling 'max'; choose one of cls, mean"):
        check_pooling("max")


def test_a_prompt_is_left_out_where_a_token_follows_it():
    encoder = make_encoder("bert")
    encoder.leave_out([np.array([7, 8], np.int32), np.array([], np.int32), np.array([9], np.int32)])
    sequences = [
        [1, 7, 8, 20, 2],
        [1, 7, 8],
        [1, 7, 8, 2],
        [1, 7, 9, 8],
        [1, 9, 30],
        [1, 9],
        [1],
        [7, 8, 1, 1],
    ]
    expected = [[0, 0, 0, 1, 1], [1, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1], [0, 0, 1], [1, 1], [1], [1, 1, 1, 1]]
    # a prompt begins at the second token: that of the last sequence, 8, begins none
    ids = torch.tensor([token for one in sequences for token in one])
    lengths = torch.tensor([len(one) for one in sequences])
    found = encoder.pack(ids, lengths).pooled
    assert found.tolist() == [bool(kept) for one in expected for kept in one]
    encoder.token_weights = torch.arange(float(encoder.vocab_size))
    weighed = encoder.pack(ids, lengths).pooled
    assert weighed.tolist() == [float(t * k) for one, of in zip(sequences, expected) for t, k in zip(one, of)]


def test_rows_added_since_weigh_one():
    encoder = make_encoder("bert")
    encoder.weigh_tokens(torch.full((60,), 0.25))
    assert encoder.token_weights.tolist() == [0.25] * 60 + [1.0] * (encoder.vocab_size - 60)
    encoder.weigh_tokens(None)
    assert len(encoder.token_weights) == encoder.vocab_size
    ids, lengths = random_ids(torch.tensor([4, 6])), torch.tensor([4, 6])
    weights = encoder.token_weights[ids][:, None]
    states = encoder.eval().states(ids, lengths, None).last
    with torch.no_grad():
        expected = [(states[a:b] * weights[a:b]).sum(0) / weights[a:b].sum() for a, b in ((0, 4), (4, 10))]
        torch.testing.assert_close(encoder.embed(ids, lengths), torch.stack(expected))


def test_words_are_a_mean_without_special_tokens_and_without_layers():
    encoder = make_encoder("bert", pooling="words").eval()
    encoder.token_weights[:] = 1
    encoder.token_weights[[1, 2]] = 0
    ids, lengths = torch.tensor([1, 30, 31, 2, 1, 40, 2, 1, 2]), torch.tensor([4, 3, 2])
    table = encoder.lm.get_input_embeddings().weight
    found = encoder.embed(ids, lengths)
    torch.testing.assert_close(found, torch.stack([(table[30] + table[31]) / 2, table[40], 0 * table[0]]))
    layer = next(module for module in encoder.lm.base_model.encoder.layer)
    layer.register_forward_hook(lambda *_: pytest.fail("a layer ran"))
    encoder.embed(ids, lengths)


def test_a_head_and_a_norm_are_of_the_own_pooling_alone():
    encoder = make_encoder("bert", pooling="mean").eval()
    encoder.head, encoder.normalize = torch.nn.Linear(32, 3), True
    ids, lengths = random_ids(torch.tensor([4, 6])), torch.tensor([4, 6])
    with torch.no_grad():
        encoder.normalize = False
        plain = encoder.embed(ids, lengths)
        encoder.normalize = True
        torch.testing.assert_close(encoder.embed(ids, lengths), plain / plain.norm(dim=1, keepdim=True))
        assert encoder.embed(ids, lengths, "cls").shape == (2, 32)


def test_passes_inside_share_copies_unless_they_want_their_own():
    encoder = make_encoder("bert")
    assert encoder.copies is None and not encoder._leaf
    with encoder.weights_unchanged():
        outer = encoder.copies
        with encoder.weights_unchanged(leaf=True):
            assert encoder.copies is outer and encoder._leaf
        assert not encoder._leaf
        with encoder.weights_unchanged(anew=True):
            assert encoder.copies is not outer
        assert encoder.copies is outer
        with pytest.raises(KeyError), encoder.weights_unchanged(anew=True, leaf=True):
            raise KeyError
        assert encoder.copies is outer and not encoder._leaf
    assert encoder.copies is None


def test_keys_are_drawn_where_there_is_dropout_alone():
    encoder, ids, lengths = make_encoder("bert"), torch.tensor([5, 6, 7]), torch.tensor([2, 1])
    keys = np.array([3, 4], np.uint64)
    assert encoder.train().pack(ids, lengths, keys=keys).keys is not None
    assert encoder.pack(ids, lengths).keys is not None
    assert encoder.pack(ids, lengths, keys=keys, dropout=False).keys is None
    assert encoder.eval().pack(ids, lengths, keys=keys).keys is None


# -- tokenizers


def test_a_checkpoint_without_a_tokenizer_has_as_many_rows_as_tokens(tmp_path):
    tokenizer = make_tokenizer("[DEL]")
    assert own_tokenizer(tmp_path) is None
    check_tokenizer(tokenizer.vocab_size, tokenizer, tmp_path)  # added ones do not count
    with pytest.raises(
        UserError, match=f"it has {tokenizer.vocab_size} tokens .*the guide {tokenizer.vocab_size - 1};"
    ):
        check_tokenizer(tokenizer.vocab_size - 1, tokenizer, tmp_path, "guide")


def test_a_token_of_another_id_is_named_and_those_without_a_row_do_not_count(tmp_path, monkeypatch):
    class Tokens:
        def __init__(self, *words):
            self.words = {word: number for number, word in enumerate(words)}

        def get_vocab(self):
            return self.words

    monkeypatch.setattr(encoder_module, "own_tokenizer", lambda source: Tokens("a", "b", "c", "d"))
    check_tokenizer(4, Tokens("a", "b", "c", "d", "more"), tmp_path)
    check_tokenizer(3, Tokens("a", "b", "c"), tmp_path)
    for other, said in (
        (Tokens("a", "c", "b", "d"), "'b' has id 2"),
        (Tokens("a", "b", "c"), "'d' has id None"),
    ):
        with pytest.raises(UserError, match=said) as error:
            check_tokenizer(4, other, tmp_path, "generator")
        assert "and train an encoder that has it" in str(error.value)
    with pytest.raises(UserError) as error:
        check_tokenizer(4, Tokens("b"), tmp_path)
    assert "'a' has id None in the tokenizer and 0 in" in str(error.value) and "train an" not in str(
        error.value
    )


def test_only_an_encoder_grows(tmp_path):
    encoder, tokenizer = make_encoder("bert"), make_tokenizer("[NEW]")
    encoder.lm.save_pretrained(tmp_path)
    grown = load_encoder(tmp_path, tokenizer)
    assert grown.vocab_size == encoder.vocab_size + 1 and not grown.random_head
    table = grown.lm.get_input_embeddings().weight
    torch.testing.assert_close(table[-1], table[:-1].mean(0))
    assert load_encoder(tmp_path, tokenizer, role="guide").vocab_size == encoder.vocab_size


# -- sums of objectives


class Small(Objective):
    smallest_batch = 5

    def __init__(self, weight=1.0, sequence=()):
        super().__init__()
        self.settings, self.full_weights = object(), {"small": weight}
        self.sequence_roles, self.sequence_term = sequence, "small"

    def relate(self, views, context):
        return {"small": views["anchor"].sum()}


def summed(terms, **flags):
    given = {"train.steps": "10", "train.warmup_steps": "1", "data.lanes": "1", "objective.mlm.weight": "0.5"}
    return WholeObjective(load_config(None, given | flags), terms)


def test_a_batch_too_small_for_a_loss_that_counts_is_refused():
    for batch, weight, refused in (("4", 1.0, True), ("5", 1.0, False), ("4", 0.0, False)):
        if refused:
            with pytest.raises(
                UserError, match=r"train\.global_batch=4 is too small for objective \S+, which needs 5"
            ):
                summed({"a": Small(weight)}, **{"train.global_batch": batch})
        else:
            assert summed({"a": Small(weight)}, **{"train.global_batch": batch}).smallest_batch == (
                5 if weight else 2
            )
    growing = {"train.global_batch": "8", "train.batch_warmup_steps": "4", "train.batch_start": "4"}
    with pytest.raises(UserError, match=r"train\.batch_start=4 is too small"):
        summed({"a": Small()}, **growing)
    late = {"train.global_batch": "5", "objective.start_step": "9"}
    assert summed({"a": Small()}, **late).needs_views(9)


def test_losses_rise_together_and_masked_ones_are_there_from_the_start():
    whole = summed({"a": Small(2.0, ("anchor",))}, **{"objective.start_step": "3", "train.global_batch": "8"})
    assert whole.weights(2) == {"mlm": 0.5, "small": 0.0} and whole.weights(3) == {"mlm": 0.5, "small": 2.0}
    assert not whole.needs_views(2) and whole.needs_views(3)
    assert whole.sequence_passes(2) == [] and whole.sequence_passes(3) == [("a", "anchor")]
    without = summed({"a": Small()}, **{"objective.mlm.weight": "0", "train.global_batch": "8"})
    assert "mlm" not in without.weights(0) and without.masked_copies == 0
    assert (without.pool(24, 3), without.guide, without.kept_head, without.kept_head_name) == (
        24,
        None,
        None,
        None,
    )
    local = summed({"a": Small()}, **{"objective.scope": "local", "train.global_batch": "24"})
    assert (
        local.pool(24, 3) == 8 and local.is_local and not summed({}, **{"objective.scope": "local"}).is_local
    )


NAMES = {  # of the library's own configurations, as its models read them
    "bert": ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    "distilbert": ("n_layers", "dim", "n_heads", "hidden_dim"),
}
DROPOUTS = {
    "bert": ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    "distilbert": ("dropout", "attention_dropout"),
    "modernbert": ("mlp_dropout", "attention_dropout"),
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_sizes_are_those_that_the_librarys_model_has(kind):
    sizes = {"layers": 3, "hidden_size": 24, "heads": 3, "intermediate_size": 40, "max_positions": 19}
    config = config_from({"type": kind, **sizes, "dropout": 0.3, "attention_dropout": 0.2}, make_tokenizer())
    names = NAMES.get(kind, NAMES["bert"])
    assert tuple(getattr(config, name) for name in names) == (3, 24, 3, 40)
    dropouts = DROPOUTS.get(kind, DROPOUTS["bert"])
    assert tuple(getattr(config, name) for name in dropouts) == (0.3, 0.2)
    assert kind != "modernbert" or config.embedding_dropout == 0.3
    behind = config.pad_token_id + 1 if kind in ("roberta", "xlm-roberta", "camembert") else 0
    assert config.max_position_embeddings == 19 + behind and config.vocab_size == 65
    assert architecture_of(config) == {
        "type": kind,
        **sizes,
        "dropout": 0.3,
        "attention_dropout": 0.2,
        "initializer_range": config.initializer_range,
    }
    ids = {"pad": 0, "bos": 1, "eos": 2} | ({"cls": 1, "sep": 2} if kind == "modernbert" else {})
    assert {name: getattr(config, f"{name}_token_id") for name in ids} == ids
    config.classifier_dropout = 0.1
    set_dropout(config, 0.4, None)
    assert (
        tuple(getattr(config, name) for name in dropouts) == (0.4, 0.2) and config.classifier_dropout == 0.4
    )
    set_dropout(config, None, 0.0)
    assert tuple(getattr(config, name) for name in dropouts) == (0.4, 0.0)


def test_families_are_those_of_the_documentation():
    known = {"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "modernbert"}
    assert set(FAMILIES) == known
    with pytest.raises(UserError, match="model type 't5' is not supported; choose one of bert"):
        family_of("t5")
