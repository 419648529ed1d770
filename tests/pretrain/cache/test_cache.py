"""Augmentations made once: what a second, direct application of the rules gives, whoever makes them and
however often killed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from loader_helpers import make_loader
from real_data import PARSER, parser_folder
from run_helpers import ROOT, command, curve, finish, start
from tokenizers import Tokenizer
from transformers import BertConfig, BertForMaskedLM

from augment.core.entry import Entry
from augment.core.errors import AugmentationError
from augment.core.identity import normalise
from augment.core.keys import derive, sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from augment.neural.masked import VARIABLE as MASKED_LM
from augment.spec.build import build
from augment.spec.catalogue import CATALOGUE
from augment.spec.grammar import alternatives
from augment.spec.resources import resource_hash
from augment.spec.sets import SETS
from augment.text.draws import Draws
from augment.text.encoder import TextEncoder
from augment.text.parsed import without_parse
from pretrain.cache import __main__ as cache_command
from pretrain.cache import augmenting, stages
from pretrain.cache import run as cache_run
from pretrain.cache.run import cache
from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.config.data import DataConfig
from pretrain.data import idle_augmentations
from pretrain.data.annotation import Annotation, pack
from pretrain.data.batch import ViewSpec, number_of_labels
from pretrain.data.pipelines import build_for
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare.run import prepare

TOKENS = "del-word:rate=0.5|crop:rate=1.0|reorder"  # the second changes nothing
SENTENCES = [
    f"{who} {does} {what} today."
    for who in ["Anna", "The old dog", "A café in Zürich", "Nobody", "My sister"]
    for does in ["has seen", "likes", "didn't find", "is", "will have"]
    for what in ["the blue house", "no money", "“a quiet life”", "what she said", "old friends"]
]


def make(data: Path, out: Path, columns: dict[str, str], **settings) -> dict:
    return cache(data, out, columns, **{"seed": 3, "workers": 1, "progress": False, **settings})


def digest(folder: Path) -> dict[str, str]:
    """sha256 of every file; the manifest without what it says of the run."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.name == "manifest.json":
            content = json.dumps(
                {key: value for key, value in json.loads(content).items() if key != "run"}
            ).encode()
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def records_of(folder: Path, split: str = "train") -> tuple[dict[str, list[list[int]]], np.ndarray]:
    """(columns of a cache, labels) in the order of records."""
    reader = ShardReader(folder, split)
    chunks = [reader.read(number) for number in range(reader.num_chunks)]
    columns = {}
    for name in reader.columns:
        stored = Ragged.concatenate([chunk.column(name) for chunk in chunks])
        columns[name] = [stored[row].tolist() for row in range(len(stored))]
    return columns, np.concatenate([chunk.labels for chunk in chunks]) if reader.labels else np.empty(0)


@pytest.fixture(scope="module")
def annotated(tmp_path_factory) -> Path:
    parser = parser_folder()
    folder = tmp_path_factory.mktemp("cached")
    (folder / "corpus.txt").write_text("\n".join(SENTENCES) + "\n")
    config = DataConfig(sources=[str(folder / "corpus.txt")], vocabulary=400, heldout=0.1, chunk_tokens=500,
    max_length=24,
                        annotate=parser)  # fmt: skip
    prepare(config, folder / "data", workers=1, progress=False)
    return folder / "data"


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


@pytest.fixture(scope="module")
def masked_lm(annotated, tmp_path_factory) -> str:
    """A small random masked language model with the data's tokenizer."""
    folder, tokenizer = tmp_path_factory.mktemp("lm"), load_tokenizer(ShardReader(annotated).tokenizer_path)
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                        intermediate_size=32, initializer_range=0.3, max_position_embeddings=66)  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_models_named_by_the_environment_are_part_of_what_is_made(
    annotated, masked_lm, tmp_path, monkeypatch
):
    columns = {"augmented": "contextual:rate=0.3|random-swap"}
    monkeypatch.delenv(MASKED_LM, raising=False)
    with pytest.raises(AugmentationError, match=f"contextual needs a masked language model.*{MASKED_LM}"):
        make(annotated, tmp_path / "cache", columns)
    monkeypatch.setenv(MASKED_LM, masked_lm)
    manifest = make(annotated, tmp_path / "cache", columns)
    assert manifest["cache"]["resources"] == {"contextual.model": resource_hash(masked_lm)}
    assert manifest["cache"]["rates"]["augmented"]["contextual:rate=0.3"]["rate"] > 0.8
    moved = tmp_path / "moved"
    shutil.copytree(masked_lm, moved)
    monkeypatch.setenv(MASKED_LM, str(moved))
    assert make(annotated, tmp_path / "cache", columns) == manifest  # the same model elsewhere
    content = bytearray((moved / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (moved / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"holds something else: .*\(contextual.model\)"):
        make(annotated, tmp_path / "cache", columns)


def test_a_model_that_loading_fetches_is_hashed_after_that(annotated, masked_lm, tmp_path, monkeypatch):
    monkeypatch.setenv(MASKED_LM, masked_lm)
    open_pipelines, opened = stages.open_pipelines, []

    def fetch(*arguments):
        opened.append(arguments)
        return open_pipelines(*arguments)

    monkeypatch.setattr(stages, "open_pipelines", fetch)
    monkeypatch.setattr(cache_run, "resource_hash", lambda where: resource_hash(where) if opened else None)
    manifest = make(annotated, tmp_path / "cache", {"augmented": "contextual:rate=0.3|random-swap"})
    assert manifest["cache"]["resources"] == {"contextual.model": resource_hash(masked_lm)}


@pytest.mark.slow
def test_a_model_gives_the_same_bytes_with_any_number_of_workers(annotated, masked_lm, tmp_path, monkeypatch):
    monkeypatch.setenv(MASKED_LM, masked_lm)
    for workers in (1, 2):
        make(
            annotated,
            tmp_path / str(workers),
            {"augmented": "contextual:rate=0.3|random-swap"},
            copies=3,
            workers=workers,
        )
    assert digest(tmp_path / "1") == digest(tmp_path / "2")


def test_forked_loader_workers_run_a_model_that_was_loaded_before(annotated, masked_lm, monkeypatch):
    monkeypatch.setenv(MASKED_LM, masked_lm)
    reader = ShardReader(annotated)
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(reader.tokenizer_path))
    views = [ViewSpec("anchor", "none"), ViewSpec("positive", "contextual:rate=0.3|random-swap")]
    found = []
    for workers in (0, 2):  # blocks of other sentences: each becomes the same
        loader = make_loader(
            annotated,
            vocabulary,
            global_batch=16,
            lanes=4,
            views=views,
            copies=0,
            workers=workers,
            stop_step=4,
        )
        found.append([batch.views["positive"].tokens for batch in loader])
        original = [batch.original for batch in loader]
    assert found[0] == found[1]
    assert sum(first != second for first, second in zip(original, found[0])) == 4


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub("[’‘]", "'", re.sub("[“”]", '"', text))).strip()


def test_what_differs_in_quotes_and_blanks_only_is_no_augmentation(tiny_data, monkeypatch):
    rewritten = {
        "He said “no”.": 'He said "no".',
        "He left.": "He  left.",
        "Nothing.": None,
        "He went.": "They left.",
    }
    entry = Entry(
        "requote",
        "text",
        "a test",
        (),
        "Writes quotes anew.",
        "requote",
        lambda s, _: rewritten[s.text],
        "preserving",
    )
    monkeypatch.setitem(CATALOGUE, "requote", entry)
    tokenizer = load_tokenizer(ShardReader(tiny_data).tokenizer_path)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    encoder = TextEncoder(tokenizer.backend_tokenizer, vocabulary.cls_id, vocabulary.sep_id, 24)
    sentences = Annotation(pack([without_parse(text) for text in rewritten]), "en")
    keys = np.arange(4, dtype=np.uint64)
    found = augmenting.augment(
        build("requote", vocabulary, None, encoder), encoder(list(rewritten)), keys, sentences, 24
    )
    assert [augmenting.OUTCOMES[number] for number in found.outcome] == [
        "same",
        "same",
        "not_applicable",
        "changed",
    ]
    assert found.rows.tolist() == [3] and found.tokens == encoder(["They left."])
    assert found.labels(ViewSpec("augmented", "requote", labelled=True)).tolist() == [1, 1, 1, 0]


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


def test_the_same_bytes_with_any_number_of_workers_and_after_a_break(tiny_data, tmp_path, monkeypatch):
    columns = {"augmented": TOKENS}
    make(tiny_data, tmp_path / "one", columns, copies=3)
    make(tiny_data, tmp_path / "two", columns, copies=3, workers=2)
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    run, began = stages.AugmentShard.run, []

    def broken(self, data=None, rank=0, world_size=1):
        began.append(rank)
        if len(began) == 3:
            raise KeyboardInterrupt
        run(self, data, rank, world_size)

    monkeypatch.setattr(stages.AugmentShard, "run", broken)
    with pytest.raises(KeyboardInterrupt):
        make(tiny_data, tmp_path / "broken", columns, copies=3)
    assert not (tmp_path / "broken" / "manifest.json").exists()
    with pytest.raises(UserError, match="holds something else: seed is 3 there and 4 now"):
        make(tiny_data, tmp_path / "broken", columns, copies=3, seed=4)
    make(tiny_data, tmp_path / "broken", columns, copies=3)
    assert began[:3] == [0, 1, 2] and began[3:] == [2, 3]
    assert digest(tmp_path / "broken") == digest(tmp_path / "one")
    again = make(tiny_data, tmp_path / "broken", columns, copies=3)
    assert (
        len(began) == 5 and again["splits"]["train"]["sequences"] == 3 * ShardReader(tiny_data).num_sequences
    )


def test_a_cache_of_other_rules_is_named_and_a_cache_draws_each_column_for_itself(
    tiny_data, tmp_path, monkeypatch
):
    columns = {"negative": "del-word:rate=0.5", "augmented": "del-word:rate=0.5"}
    manifest = make(tiny_data, tmp_path / "cache", columns)
    assert re.fullmatch("[0-9a-f]{12}", manifest["cache"]["rules"])
    found, _ = records_of(tmp_path / "cache")
    assert (
        sum(one == other for one, other in zip(found["negative"], found["augmented"]))
        < len(found["text"]) / 4
    )
    monkeypatch.setattr(cache_run, "rules_digest", lambda: "other")
    with pytest.raises(
        UserError,
        match=r"cache holds something else: the digest of .* code and word lists.*remove that folder",
    ):
        make(tiny_data, tmp_path / "cache", columns)


def test_a_process_killed_alone_leaves_a_folder_that_can_be_finished(tiny_data, tmp_path):
    code = (
        "import os, signal, sys; from pretrain.cache import run as cache, stages as s; run = s.AugmentShard.run\n"
        "def killed(self, data=None, rank=0, world_size=1):\n"
        "    run(self, data, rank, world_size)\n"
        "    if rank: os.kill(os.getpid(), signal.SIGKILL)\n"
        "s.AugmentShard.run = killed\n"
        "cache.cache(sys.argv[1], sys.argv[2], {'augmented': sys.argv[3]}, 3, 3, progress=False, workers=1)\n"
    )
    words = [sys.executable, "-c", code, str(tiny_data), str(tmp_path / "killed"), TOKENS]
    process = subprocess.Popen(
        words, cwd=ROOT, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    try:
        assert process.wait(timeout=120) == -signal.SIGKILL
        make(tiny_data, tmp_path / "killed", {"augmented": TOKENS}, copies=3)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # datatrove's manager outlives it
    make(tiny_data, tmp_path / "whole", {"augmented": TOKENS}, copies=3)
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")


def test_two_at_once_are_refused(tiny_data, tmp_path):
    (tmp_path / "cache").mkdir()
    with (
        folder_lock(tmp_path / "cache"),
        pytest.raises(UserError, match=f"is being written by process {os.getpid()} on "),
    ):
        make(tiny_data, tmp_path / "cache", {"augmented": TOKENS})


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


def test_records_that_nothing_changed_stay_unless_they_are_to_be_dropped(tiny_data, tmp_path):
    spec = "crop:rate=1.0|repeat"  # the first one changes nothing
    whole = make(tiny_data, tmp_path / "whole", {"augmented": spec})
    some = make(tiny_data, tmp_path / "some", {"augmented": spec}, unchanged="drop")
    columns, labels = records_of(tmp_path / "whole")
    changed = [row for row, label in enumerate(labels) if label != whole["labels"] - 1]
    dropped, kept_labels = records_of(tmp_path / "some")
    assert 0 < len(changed) < len(labels)
    assert dropped == {name: [column[row] for row in changed] for name, column in columns.items()}
    assert kept_labels.tolist() == labels[changed].tolist()
    assert some["splits"]["train"]["sequences"] == len(changed)
    with pytest.raises(UserError, match="unchanged is 'keep' there and 'drop' now"):
        make(tiny_data, tmp_path / "whole", {"augmented": spec}, unchanged="drop")
    with pytest.raises(UserError, match="leaves nothing"):
        make(tiny_data, tmp_path / "none", {"augmented": "crop:rate=1.0|crop:rate=0.9999"}, unchanged="drop")


def test_what_never_applies_is_said(annotated, tmp_path):
    manifest = make(annotated, tmp_path / "cache", {"augmented": "sentence-reordering|random-swap"})
    (line,) = idle_augmentations.of_cache(manifest)
    drawn = manifest["cache"]["rates"]["augmented"]["sentence-reordering"]["drawn"]
    assert "sentence-reordering (augmented)" in line and f"none of {drawn:,} sentences: 1 of 2 draws" in line
    assert line in cache_command.summary(manifest, tmp_path / "cache")
    reader = ShardReader(annotated)
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(reader.tokenizer_path))
    pipelines = [
        (spec, build_for(reader, spec, vocabulary, None))
        for spec in ("sentence-reordering|neg", "neg", "pi|mv")
    ]
    sentences = [
        sentence for number in range(reader.num_chunks) for sentence in reader.read(number).annotation
    ]
    (line,) = idle_augmentations.of_sentences(pipelines, sentences)
    assert "sentence-reordering (sentence-reordering|neg) changed none" in line


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
    with pytest.raises(UserError, match="holds something else: columns"):
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
