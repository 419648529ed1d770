"""Augmentations made once: what a second, direct application of the rules gives, whoever makes them and
however often killed."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from cache_helpers import TOKENS, make, records_of
from loader_helpers import make_loader
from real_data import PARSER
from run_helpers import command, curve, finish, start
from tokenizers import Tokenizer

from augment.core.entry import Entry
from augment.core.errors import AugmentationError
from augment.core.identity import normalise
from augment.core.keys import derive, sequence_keys
from augment.core.vocabulary import Vocabulary
from augment.spec.build import build
from augment.spec.catalogue import CATALOGUE
from augment.spec.grammar import alternatives
from augment.spec.sets import SETS
from augment.text.draws import Draws
from augment.text.encoder import TextEncoder
from augment.text.parsed import without_parse
from pretrain.common.errors import UserError
from pretrain.data.annotation import Annotation, pack
from pretrain.data.batch import ViewSpec, number_of_labels
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.data.worker import labels_of
from pretrain.prepare.cache import run as cache_run


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub("[’‘]", "'", re.sub("[“”]", '"', text))).strip()


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("He  said: “Go!”\n", 'He said: "Go!"', True),
        ("It’s ``fine''", 'It\'s "fine"', True),
        ("It’s fine", "It's fine", True),
        ("«Go»", "''Go''", True),
        ("He said go", 'He said "go"', False),
        ("It rains.", "It rains!", False),
        ("blackbird", "black bird", False),
    ],
)
def test_white_space_and_the_kind_of_quotes_are_no_change(first, second, equal):
    assert (normalise(first) == normalise(second)) is equal


@pytest.mark.full
def test_tokens_and_labels_are_those_of_a_second_direct_application(tiny_data, tmp_path):
    manifest = make(tiny_data, tmp_path / "cache", {"augmented": TOKENS}, copies=2)
    assert manifest["label_names"] == [*alternatives(TOKENS), "none"] and manifest["labels"] == 4
    counts = Counter()
    for split, copies in (("train", 2), ("heldout", 1)):
        reader = ShardReader(tiny_data, split)
        vocabulary = Vocabulary.from_tokenizer(load_tokenizer(reader.tokenizer_path))
        pipelines = [build(name, vocabulary) for name in TOKENS.split("|")]
        columns, labels = records_of(tmp_path / "cache", split)
        assert len(labels) == copies * reader.num_sequences
        chunks = [reader.read(number) for number in range(reader.num_chunks)]
        place = 0
        for copy in range(copies):
            for chunk in chunks:
                for row, number in enumerate(chunk.sequence_ids):
                    key = sequence_keys(3, copy, np.array([number]), 2, "augment")
                    choice = int(build(TOKENS, vocabulary).choices(key)[0])
                    source = chunk.sequences.slice(row, row + 1)
                    view = pipelines[choice](source, key)
                    same = view == source
                    assert columns["text"][place] == source.ids.tolist()
                    assert labels[place] == (3 if same else choice)
                    assert columns["augmented"][place] == ([] if same else view.ids.tolist())
                    counts[TOKENS.split("|")[choice], same] += 1
                    place += 1
    for name, found in manifest["cache"]["rates"]["augmented"].items():
        assert (found["not_applicable"], found["changed"]) == (counts[name, True], counts[name, False])
        assert found["drawn"] == sum(found[outcome] for outcome in ("not_applicable", "same", "changed"))
        assert found["rate"] == pytest.approx(found["changed"] / found["drawn"], abs=1e-6)


def test_rules_of_text_give_the_same_from_the_stored_parse(annotated, tmp_path):
    names = SETS["augcse-12-2"].split("|")
    manifest = make(annotated, tmp_path / "cache", {"augmented": "augcse-12-2"})
    reader = ShardReader(annotated)
    encoder = Tokenizer.from_file(str(reader.tokenizer_path / "tokenizer.json"))
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(reader.tokenizer_path))
    columns, labels = records_of(tmp_path / "cache")
    place, chosen = 0, build("|".join(["crop"] + [f"crop:rate=0.{i}" for i in range(1, 10)]), vocabulary)
    assert manifest["label_names"] == [*names, "none"] and len(names) == 10
    for number in range(reader.num_chunks):
        chunk = reader.read(number)
        for row, sequence in enumerate(chunk.sequence_ids):
            key = sequence_keys(3, 0, np.array([sequence]), 2, "augment")
            choice = int(chosen.choices(key)[0])  # of any ten alternatives
            name, sentence = names[choice], chunk.annotation[row]
            entry = CATALOGUE[name]
            defaults = {parameter.name: parameter.default for parameter in entry.parameters}
            new = entry.function(sentence, Draws(int(derive(key, 0, name)[0])), **defaults)
            if new is None or plain(new) == plain(sentence.text):
                assert labels[place] == 10 and columns["augmented"][place] == []
            else:
                ids = encoder.encode(new, add_special_tokens=False).ids[:22]
                assert labels[place] == choice
                assert columns["augmented"][place] == [vocabulary.cls_id, *ids, vocabulary.sep_id]
            place += 1
    assert place == len(labels) and len(set(labels.tolist())) > 5


def test_what_differs_in_quotes_and_blanks_only_is_no_augmentation(tiny_data, monkeypatch):
    rewritten = {
        "He said “no”.": 'He said "no".',
        "He left.": "He  left.",
        "Nothing.": None,
        "He went.": "They left.",
    }
    entry = Entry(
        name="requote",
        paper="a test",
        description="Writes quotes anew.",
        function=lambda s, _: rewritten[s.text],
        meaning="preserving",
    )
    monkeypatch.setitem(CATALOGUE, "requote", entry)
    tokenizer = load_tokenizer(ShardReader(tiny_data).tokenizer_path)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    encoder = TextEncoder(tokenizer.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, 24)
    sentences = Annotation(pack([without_parse(text) for text in rewritten]), "en")
    keys = np.arange(4, dtype=np.uint64)
    found = cache_run.augment(
        build("requote", vocabulary, None, encoder), encoder(list(rewritten)), keys, sentences, 24
    )
    assert [cache_run.OUTCOMES[number] for number in found.outcome] == [
        "same",
        "same",
        "not_applicable",
        "changed",
    ]
    assert found.rows.tolist() == [3] and found.tokens == encoder(["They left."])
    view, changed = ViewSpec("augmented", "requote", labelled=True), found.outcome == cache_run.CHANGED
    assert labels_of(view, found.taken, changed).tolist() == [1, 1, 1, 0]


def test_a_cache_holds_what_a_run_sees_on_line_in_its_first_epoch(tiny_data, tmp_path):
    make(tiny_data, tmp_path / "cache", {"augmented": TOKENS})
    views = [ViewSpec("anchor", "none"), ViewSpec("positive", "none")]
    on_line = loaded(tiny_data, [*views, ViewSpec("augmented", TOKENS, labelled=True)])
    cached = loaded(tmp_path / "cache", [*views, ViewSpec("augmented", "none", labelled=True)])
    seen = {number: (label, view) for number, label, view in on_line}
    for number, label, view in cached:
        if number in seen:
            assert seen[number] == (label, view)
    assert len(seen) > 60 and len({number for number, *_ in cached} & set(seen)) > 30


def loaded(folder: Path, views: list[ViewSpec]) -> list[tuple[int, int, list[int]]]:
    """(sentence, label, augmented view) of the first batches of a run."""
    reader = ShardReader(folder)
    assert number_of_labels(views[-1], reader) == 4
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(reader.tokenizer_path))
    loader = make_loader(
        folder, vocabulary, global_batch=16, lanes=4, views=views, copies=0, stop_step=6, max_length=48
    )
    return [
        (int(number), int(label), batch.views[views[-1].role].tokens[row].tolist())
        for batch in loader
        for row, (number, label) in enumerate(zip(batch.sequence_ids, batch.labels))
    ]


def test_copies_have_draws_of_their_own_and_the_first_is_the_fixed_one(tiny_data, tmp_path):
    fixed, labels = records_of(
        make(tiny_data, tmp_path / "fixed", {"augmented": TOKENS}) and tmp_path / "fixed"
    )
    copies, all_labels = records_of(
        make(tiny_data, tmp_path / "three", {"augmented": TOKENS}, copies=3) and tmp_path / "three"
    )
    size = len(labels)
    assert copies["augmented"][:size] == fixed["augmented"] and np.array_equal(all_labels[:size], labels)
    assert copies["text"] == 3 * fixed["text"]
    agree = np.mean(all_labels[size : 2 * size] == labels)
    assert agree < 0.6  # by chance 1/3; labels of what did not change agree more


def test_records_of_sda_lack_what_no_rule_could_make(annotated, tmp_path):
    manifest = make(annotated, tmp_path / "cache", {"positive": "pi|mv|dn", "negative": "neg"})
    assert manifest["columns"] == ["text", "positive", "negative"] and "labels" not in manifest
    columns, _ = records_of(tmp_path / "cache")
    negatives = sum(map(bool, columns["negative"])) + sum(
        map(bool, records_of(tmp_path / "cache", "heldout")[0]["negative"])
    )
    assert negatives == manifest["cache"]["rates"]["negative"]["neg"]["changed"] > 0
    assert set(manifest["cache"]["rates"]["positive"]) == {"pi", "mv", "dn"}
    assert manifest["cache"]["parser"]["parser"] == PARSER


@pytest.mark.parametrize(
    ("columns", "error", "said"),
    [
        ({}, UserError, "nothing to make"),
        ({"augmented": "none"}, UserError, "changes nothing"),
        ({"augmented": "crop,reorder"}, AugmentationError, "several stages"),
        ({"augmented": "crop|teleport"}, AugmentationError, "there is no augmentation 'teleport'"),
        ({"augmented": "tense|yoda"}, UserError, "--annotate MODEL"),
    ],
)
def test_what_cannot_be_made_is_one_error(tiny_data, tmp_path, columns, error, said):
    with pytest.raises(error, match=re.escape(said)):
        make(tiny_data, tmp_path / "cache", columns)
    assert not (tmp_path / "cache").exists()


def test_a_cache_of_a_cache_is_refused(tiny_data, tmp_path):
    make(tiny_data, tmp_path / "cache", {"augmented": TOKENS})
    with pytest.raises(UserError, match="text, augmented, labels"):
        make(tmp_path / "cache", tmp_path / "more", {"augmented": TOKENS})
    with pytest.raises(UserError, match=": columns is"):
        make(tiny_data, tmp_path / "cache", {"augmented": "crop|repeat"})


@pytest.mark.slow
def test_augcse_trains_on_the_labels_of_a_cache(annotated, tmp_path):
    make(annotated, tmp_path / "cache", {"augmented": "augcse-12-2"})
    flags = {
        "objective__name": "augcse",
        "aug": "none",
        "augment__augmented": "none",
        "objective__mlm__weight": 0.0,
    }
    finish(
        start(command(tmp_path / "cache", tmp_path / "run", train__steps=4, train__warmup_steps=1, **flags))
    )
    rows = curve(tmp_path / "run")
    assert 4 in rows and any("discriminator" in json.dumps(row) for row in rows.values())
    assert (
        number_of_labels(ViewSpec("augmented", "none", labelled=True), ShardReader(tmp_path / "cache")) == 11
    )
