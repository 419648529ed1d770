"""Held-out losses and finds, on threads as ranks, against one sequence at a time."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exactness_worker import CLS, MASK, PAD, SEP, VOCABULARY, build
from loader_helpers import write_folder
from threaded_ranks import PlainEngine, ThreadedRanks

from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from pretrain.common.errors import UserError
from pretrain.config.recipe import validate_config
from pretrain.data.microbatches import pack
from pretrain.data.shards import DamagedShard, ShardReader
from pretrain.step import heldout
from pretrain.step.heldout import Heldout, embed_texts, find_partners, read_sound, signal_to_noise
from pretrain.step.model import Request, SentenceModel

SPECIAL = np.isin(np.arange(VOCABULARY), [PAD, CLS, SEP, MASK])
WORDS = Vocabulary(
    VOCABULARY, PAD, CLS, SEP, MASK, MASK, SPECIAL, ~SPECIAL, np.where(SPECIAL, 0, 1).astype(np.uint8)
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory) -> ShardReader:
    """300 held-out sequences of 3 to 22 tokens, of which some are equal."""
    random = np.random.default_rng(0)
    rows = [
        [CLS, *random.integers(5, VOCABULARY, length).tolist(), SEP] for length in random.integers(1, 21, 300)
    ]
    rows[7] = rows[3]
    folder = tmp_path_factory.mktemp("data")
    write_folder(folder, {"heldout": Ragged.from_sequences(rows)}, VOCABULARY, 40, chunk_tokens=300)
    return ShardReader(folder, "heldout")


def held(reader, max_length=40, prompts=None, augmented="none", rate=0.3, **evaluate):
    evaluate = {"heldout_sequences": 30, "partners": 20} | evaluate
    tree = {"augment": {"spec": augmented}, "evaluate": evaluate, "train": {"micro_batch_tokens": 90}}
    tree["objective"] = {"name": "clear", "mlm": {"rate": rate, "mask": 1.0, "random": 0.0}}
    return Heldout(reader, WORDS, validate_config(tree, "test"), None, max_length, prompts=prompts)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("partners,sequences", [(20, 30), (100, 9)])
def test_evaluation_is_that_of_each_sequence_alone(world, partners, sequences, reader, monkeypatch):
    monkeypatch.setattr(heldout, "SIGNAL_SAMPLE", 25)
    one = held(reader, partners=partners, heldout_sequences=sequences, augmented="del-word:rate=0.3")
    built = [build("clear_mean", 0, "fp32", 0.2)[1] for _ in range(world)]
    encoder = built[0].encoder.eval()
    with torch.no_grad():
        vectors = []
        for view in one.views:
            alone = [encoder.embed(torch.tensor(s.tolist()), torch.tensor([len(s)])) for s in view]
            vectors.append(torch.cat(alone).numpy())
        total = 0.0
        for number in range(sequences):
            part = one.masked.slice(number, number + 1)
            ids, length = torch.from_numpy(part.batch.ids).long(), torch.tensor([part.batch.num_tokens])
            last = encoder.states(ids, length, None).last[torch.from_numpy(part.positions)]
            scores = encoder.lm.cls(last)
            labels = torch.from_numpy(part.labels).long()
            total += float(torch.nn.functional.cross_entropy(scores, labels, reduction="sum"))
    engines = [PlainEngine(model) for model in built]
    results = ThreadedRanks(world, monkeypatch).run(lambda rank: one.evaluate(engines[rank]))
    for result in results:
        assert result == results[0]
        assert result["heldout_mlm_loss"] == pytest.approx(total / len(one.masked.positions), rel=1e-5)
        found, loss = find_partners(*vectors, one.texts)
        assert (result["partner_found"], result["partner_among"]) == (found, float(partners))
        assert 0 < found < 1 and result["partner_loss"] == pytest.approx(loss, rel=1e-4)
        assert result["view_signal"] > 0
    assert all(engine.module.training for engine in engines)


def test_the_signal_is_of_views_with_their_dropout_alone(reader, monkeypatch):
    """The same whatever micro-batches and ranks there are; without dropout equal views have no noise."""
    one = held(reader, partners=12)
    one.views[1] = one.views[0]

    def signal(world, dropout, budget):
        one.budget = budget
        engines = [PlainEngine(build("clear_mean", 0, "fp32", dropout)[1]) for _ in range(world)]
        with monkeypatch.context() as patch:
            return ThreadedRanks(world, patch).run(lambda rank: one.evaluate(engines[rank])["view_signal"])

    (alone,) = signal(1, 0.3, 10**6)
    assert 0 < alone < 100 and signal(2, 0.3, 40) == pytest.approx([alone] * 2, rel=1e-3)
    assert signal(1, 0.0, 10**6)[0] > 1e6


def test_one_sequence_has_no_variance(reader, tmp_path, monkeypatch):
    engine = PlainEngine(build("clear_mean", 0, "fp32", 0.2)[1])
    for partners in (1, 2):
        rows = Ragged.from_sequences(reader_rows(reader, partners))
        write_folder(tmp_path / str(partners), {"heldout": rows}, VOCABULARY, 40)
        one = held(ShardReader(tmp_path / str(partners), "heldout"))
        (result,) = ThreadedRanks(1, monkeypatch).run(lambda rank: one.evaluate(engine))  # noqa: B023
        assert ("view_signal" in result) == (partners == 2) and result["partner_among"] == partners


def test_what_is_evaluated_follows_from_the_data_and_the_settings(reader):
    one, again = held(reader), held(reader, partners=10, heldout_sequences=5)
    assert (one.partners, one.count, len(one.masked.batch), one.left_out) == (20, 30, 30, [])
    originals = reader_rows(reader, 30)
    for number, masked in enumerate(one.masked.batch):
        chosen = masked == MASK
        assert np.array_equal(masked[~chosen], originals[number][~chosen])
    assert np.array_equal(one.masked.labels, np.concatenate(originals)[one.masked.positions])
    assert 0.2 < len(one.masked.positions) / one.masked.batch.num_tokens < 0.4
    # the same sequences, masks and views, however many are evaluated
    assert again.masked.batch == one.masked.batch.slice(0, 5)
    for mine, other in zip(again.views, one.views):
        assert mine == other.slice(0, 10)
    assert all(np.array_equal(a, b[:10]) for a, b in zip(again.view_keys, one.view_keys))
    assert len(np.unique(np.concatenate(one.view_keys))) == 2 * 20
    # told apart by dropout alone, the second view is cut; the first is the text
    assert one.views[0] == Ragged.from_sequences(originals[:20]) and one.views[1] != one.views[0]
    assert one.views[1].num_tokens < one.views[0].num_tokens
    assert one.texts[3] == one.texts[7] and len(np.unique(one.texts)) == 19


def reader_rows(reader, count):
    rows = [row for chunk in range(reader.num_chunks) for row in reader.read(chunk).sequences]
    return rows[:count]


def test_views_are_augmented_apart_prompted_and_cut(reader):
    both = held(reader, augmented="del-word:rate=0.5").views
    originals = reader_rows(reader, 20)
    assert both[0] != both[1] and all(len(a) <= len(o) for a, o in zip(both[0], originals))
    assert both[0].num_tokens < sum(map(len, originals))
    prompts = {"positive": np.array([6, 7], np.int32)}
    plain, prompted = held(reader).views, held(reader, prompts=prompts).views
    assert prompted[0] == plain[0]
    for with_it, without in zip(prompted[1], plain[1]):
        assert with_it.tolist() == [CLS, 6, 7, *without[1:].tolist()]
    cut = held(reader, max_length=6).views
    assert [len(row) for row in cut[0]] == [min(6, len(row)) for row in originals]


def test_without_held_out_sequences_it_says_what_to_do(tmp_path):
    write_folder(tmp_path, {"heldout": Ragged.from_sequences([])}, VOCABULARY, 40)
    with pytest.raises(UserError, match=r"has no held-out sequences: prepare it with data.prepare.heldout"):
        held(ShardReader(tmp_path, "heldout"))


def test_texts_are_embedded_behind_their_prompt_and_cut(monkeypatch):
    """A word is a token here."""

    def tokenizer(texts, truncation, max_length, **others):
        assert truncation and not others.pop("padding")
        assert others == {"return_attention_mask": False, "return_token_type_ids": False}
        return {"input_ids": [[CLS, *map(int, text.split()), SEP][:max_length] for text in texts]}

    model = build("clear_mean", 0, "fp32", 0.0)[1].eval()
    with torch.no_grad():
        expected = [
            model(Request(SentenceModel.embed, row_of(tokens)))
            for tokens in ([CLS, 9, 8, 11, SEP], [CLS, 9, 8, 12, 13, 14])
        ]
    ranks = ThreadedRanks(2, monkeypatch)
    engine = PlainEngine(model)
    engine.module.eval()
    texts = ["11", "12 13 14 15"]
    for found in ranks.run(lambda rank: embed_texts(engine, tokenizer, 6, 100, "9 8 ", texts)):
        np.testing.assert_allclose(found, torch.cat(expected).numpy(), rtol=1e-5, atol=1e-6)


def row_of(tokens):
    return pack(Ragged.from_sequences([tokens]), np.array([0]), torch.device("cpu"))


def test_signal_to_noise_is_a_ratio_of_variances():
    """Of vectors with a known variance between sequences and of the noise; neither level nor scale counts."""
    random = np.random.default_rng(0)
    means = random.normal(size=(4000, 8)) * 3
    first, second = (means + random.normal(size=means.shape) for _ in range(2))
    assert signal_to_noise(first, second) == pytest.approx(9, rel=0.05)
    assert signal_to_noise(7 + 5 * first, 7 + 5 * second) == pytest.approx(signal_to_noise(first, second))
    noise = [random.normal(size=means.shape) for _ in range(2)]
    assert signal_to_noise(*noise) < 0.05 and signal_to_noise(np.ones((3, 2)), np.ones((3, 2))) == 0.0
    three = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 8.0]]), np.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    within = np.mean([np.sum((a - b) ** 2) / 2 for a, b in zip(*three)])
    between = np.var((three[0] + three[1]) / 2, axis=0, ddof=1).sum() - within / 2
    assert signal_to_noise(*three) == pytest.approx(between / within)


class Readers:
    """Held-out chunks of two records each, of which some ranks cannot read some."""

    folder, num_chunks, annotation = "data/set", 5, None

    def __init__(self, broken=(), annotated=False):
        self.broken, self.read_chunks = broken, []
        self.annotation = {"texts": "whole"} if annotated else None

    def read(self, index):
        self.read_chunks.append(index)
        if index in self.broken:
            raise damaged_shard(index)
        columns = ("text", "positive") if self.annotation else ("text",)
        rows = Ragged.from_sequences([[CLS, 10 * index + n, SEP] for n in range(2)])
        return SimpleNamespace(
            sequences=rows,
            stored=range(2 * len(columns)),
            columns=columns,
            sequence_ids=np.arange(2 * index, 2 * index + 2, dtype=np.uint64),
            annotation=[f"{index} {row}" for row in range(4)] if self.annotation else None,
        )


def damaged_shard(index):
    error = DamagedShard.__new__(DamagedShard)
    Exception.__init__(error, f"chunk {index}")
    error.reason = f"chunk {index}"
    return error


@pytest.mark.parametrize(
    "broken,recorded,wanted,kept",
    [
        (((), (), ()), {}, 100, [0, 1, 2, 3, 4]),
        (((), (), ()), {}, 3, [0, 1]),
        (((), (), ()), {}, 4, [0, 1]),
        (((1,), (), ()), {}, 4, [0, 2]),
        (((1,), (2,), (3,)), {}, 100, [0, 4]),
        (((0,), (1,), (0, 2)), {}, 2, [3]),
        (((1,), (), ()), {0: "before"}, 100, [2, 3, 4]),
    ],
)
def test_what_one_rank_cannot_read_all_leave_out(broken, recorded, wanted, kept, monkeypatch):
    readers = [Readers(own) for own in broken]
    ranks = ThreadedRanks(3, monkeypatch)
    found = ranks.run(lambda rank: read_sound(readers[rank], wanted, True, recorded))
    of_kept = [2 * index + n for index in kept for n in range(2)][:wanted]
    for sequences, ids, sentences, damaged in found:
        assert ids.tolist() == of_kept and sentences is None
        assert [row[1] for row in sequences] == [10 * (one // 2) + one % 2 for one in of_kept]
        assert damaged.keys() == {one for own in broken for one in own} & damaged.keys() | recorded.keys()
        assert damaged == found[0][3] and not set(damaged) & set(kept)
    assert not any(index in recorded for reader in readers for index in reader.read_chunks)
    with pytest.raises(UserError, match="every held-out chunk of data/set is damaged"):
        ThreadedRanks(1, monkeypatch).run(lambda rank: read_sound(Readers(range(5)), wanted, True, {}))


def test_the_parses_of_records_are_of_their_first_column(monkeypatch):
    readers = Readers((1,), annotated=True)
    (found,) = ThreadedRanks(1, monkeypatch).run(lambda rank: read_sound(readers, 6, True, {}))
    sentences = found[2]
    assert [sentences[number] for number in range(6)] == ["0 0", "0 2", "2 0", "2 2", "3 0", "3 2"]
    with pytest.raises(DamagedShard):
        ThreadedRanks(1, monkeypatch).run(lambda rank: read_sound(readers, 6, False, {}))
