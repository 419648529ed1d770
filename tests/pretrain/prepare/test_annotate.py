"""Text and parse beside the tokens: the same sentence comes back, and workers run rules on it."""

from __future__ import annotations

import json
import shutil
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from loader_helpers import assert_same, make_loader

from augment.core.keys import derive, sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from augment.sda.entries import neg, pi
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.parsing import parse_texts
from pretrain.common.errors import UserError
from pretrain.config.data import DataConfig
from pretrain.data import annotate
from pretrain.data.annotation import MOST_CHARACTERS, Annotation, pack
from pretrain.data.batch import ViewSpec
from pretrain.data.loader import Loader
from pretrain.data.shards import DamagedShard, ShardReader, ShardWriter, split_summary, write_manifest
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare.run import prepare

NAMES = ["Anna", "the old dog", "a café in Zürich", "nobody", "the river", "my sister", "one of them"]
VERBS = ["has seen", "likes", "didn't find", "must not sell", "is", "carried", "will have"]
OBJECTS = [
    "the blue house",
    "no money",
    "“a quiet life”",
    "https://x.org/a?b=c",
    "what she said",
    "old friends",
]
SENTENCES = [f"{n[0].upper()}{n[1:]} {v} {o} today." for n in NAMES for v in VERBS for o in OBJECTS]


@pytest.fixture(scope="session")
def parser(tmp_path_factory) -> str:
    """A spaCy pipeline with a tagger and a dependency parser that has learned three sentences: quick, and
    mostly wrong."""
    import spacy
    from spacy.training import Example

    taught = [
        ("Anna likes old friends.", "NNP VBZ JJ NNS .", [1, 1, 3, 1, 1], "nsubj ROOT amod obj punct"),
        ("The river is blue today.", "DT NN VBZ JJ NN .", [1, 3, 3, 3, 3, 3], "det nsubj cop ROOT obl punct"),
        (
            "Nobody has seen the house.",
            "NN VBZ VBN DT NN .",
            [2, 2, 2, 4, 2, 2],
            "nsubj aux ROOT det obj punct",
        ),
    ]
    pipeline = spacy.blank("en")
    pipeline.add_pipe("tagger")
    pipeline.add_pipe("parser", config={"min_action_freq": 1})
    examples = [
        Example.from_dict(
            pipeline.make_doc(text), {"tags": tags.split(), "heads": heads, "deps": deps.split()}
        )
        for text, tags, heads, deps in taught
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = pipeline.initialize(lambda: examples)
        for _ in range(15):
            pipeline.update(examples, sgd=optimizer)
    folder = tmp_path_factory.mktemp("parser") / "tiny"
    pipeline.to_disk(folder)
    return str(folder)


def config(place: Path, parser: str, **settings) -> DataConfig:
    settings = {
        "vocabulary": 400,
        "heldout": 0.1,
        "chunk_tokens": 800,
        "max_length": 24,
        "annotate": parser,
        **settings,
    }
    return DataConfig(sources=[str(place)], **settings)


@pytest.fixture(scope="session")
def data(tmp_path_factory, parser) -> Path:
    folder = tmp_path_factory.mktemp("annotated")
    (folder / "corpus.txt").write_text("\n".join(SENTENCES) + "\n")
    prepare(config(folder / "corpus.txt", parser), folder / "data", workers=1, progress=False)
    return folder / "data"


def a_loader(data: Path, views: list[ViewSpec], workers: int = 0, batch: int = 32, steps: int = 6) -> Loader:
    vocabulary = Vocabulary.from_tokenizer(load_tokenizer(ShardReader(data).tokenizer_path))
    return make_loader(
        data, vocabulary, seed=5, global_batch=batch, lanes=4, views=views, workers=workers, stop_step=steps,
        max_length=24,
    )  # fmt: skip


def test_a_chunk_gives_back_what_was_put_in():
    sentences = [
        ParsedSentence("Ä 😀b!", (0, 2, 4), (1, 4, 5), ("NN", "X", "."), ("NOUN", "X", "PUNCT"), ("ä", "b",
        "!"), (1, 1, 1),
                       ("nsubj", "ROOT", "punct"), "xx"),
        ParsedSentence("", (), (), (), (), (), (), (), "xx"),
        ParsedSentence("Went went", (0, 5), (4, 9), ("VBD", "VBD"), ("VERB", "VERB"), ("go", "went"), (0, 0),
                       ("ROOT", "conj"), "xx"),
    ]  # fmt: skip
    annotation = Annotation(pack(sentences), "xx")
    assert len(annotation) == 3 and [annotation[row] for row in range(3)] == sentences
    assert annotation.text(0) == "Ä 😀b!"
    members = pack(sentences)
    with pytest.raises(ValueError, match="do not belong together"):
        Annotation({**members, "word_heads.u16": members["word_heads.u16"][:-2]}, "xx")
    empty = Annotation(pack([]), "xx")
    assert len(empty) == 0


def test_a_parser_of_another_language_is_one_error(tmp_path, parser):
    (tmp_path / "corpus.txt").write_text("今天天气很好，我们去公园吧。\n" * 5 + "他昨天没有来上课。\n" * 5)
    with pytest.raises(
        UserError, match=r"--annotate .* is for 'en', and 100% .* give a parser for the language of the text"
    ):
        prepare(
            config(tmp_path / "corpus.txt", parser, dedup="none"),
            tmp_path / "data",
            workers=1,
            progress=False,
        )


def test_a_few_foreign_texts_stop_no_preparation_though_they_fill_a_chunk(tmp_path, parser):
    foreign = [f"Сегодня мы видели {what} в старом доме." for what in ("кошку", "собаку", "книгу", "поезд")]
    (tmp_path / "corpus.txt").write_text("\n".join([*SENTENCES[:9], *foreign]) + "\n")
    settings = config(tmp_path / "corpus.txt", parser, heldout=1e-6, seed=3)
    prepare(settings, tmp_path / "data", workers=1, progress=False)
    chunk = ShardReader(tmp_path / "data", "heldout").read(0)
    assert len(chunk.stored) == 1 and chunk.annotation.text(0) in foreign, (
        "another seed holds a foreign one out"
    )


def test_every_sequence_has_its_text_and_its_parse(data, parser):
    tokenizer = load_tokenizer(ShardReader(data).tokenizer_path)
    for split in ("train", "heldout"):
        reader = ShardReader(data, split)
        assert reader.annotation["language"] == "en" and reader.annotation["parser"] == parser
        for chunk in map(reader.read, range(reader.num_chunks)):
            texts = [chunk.annotation.text(row) for row in range(len(chunk.stored))]
            assert [row.tolist() for row in (chunk.stored[i] for i in range(len(texts)))] == tokenizer(texts)[
                "input_ids"
            ]
            assert list(parse_texts(texts, parser)) == [chunk.annotation[row] for row in range(len(texts))]
    read = ShardReader(data)
    stored = {
        read.read(c).annotation.text(i)
        for c in range(read.num_chunks)
        for i in range(len(read.read(c).stored))
    }
    assert len(stored) > 200 and stored <= set(SENTENCES)
    manifest = json.loads((data / "manifest.json").read_text())
    assert manifest["annotation"]["words"] > 1500 and manifest["annotation"]["bytes"] > 0
    assert not (data / ".work").exists()


@pytest.mark.slow
def test_several_processes_parse_in_order(parser):
    assert list(parse_texts(SENTENCES, parser, batch_size=7, processes=2)) == list(
        parse_texts(SENTENCES, parser)
    )


LONG = [f"{sentence[:-1]} and then it rained on {name} and nobody {verb} it, so {name} left."
        for sentence, name, verb in zip(SENTENCES[:80], NAMES * 12, VERBS * 12)]  # fmt: skip


@pytest.fixture(scope="module")
def long_data(tmp_path_factory, parser) -> Path:
    """Sentences whose tokens are cut to a fraction of them."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "long.txt").write_text("\n".join(LONG))
    prepare(config(folder / "long.txt", parser, max_length=12), folder / "data", workers=1, progress=False)
    return folder / "data"


def cut(ids: list[int], length: int = 12) -> list[int]:
    return ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]


def test_texts_and_parses_are_whole_where_tokens_are_cut(long_data, parser):
    reader = ShardReader(long_data)
    chunk = reader.read(0)
    tokenizer = load_tokenizer(reader.tokenizer_path)
    texts = [chunk.annotation.text(row) for row in range(len(chunk.stored))]
    assert set(texts) <= set(LONG) and (chunk.stored.lengths == 12).all()
    assert [row.tolist() for row in (chunk.stored[i] for i in range(len(texts)))] == list(
        map(cut, tokenizer(texts)["input_ids"])
    )
    assert list(parse_texts(texts, parser)) == [chunk.annotation[row] for row in range(len(texts))]


@pytest.mark.parametrize(("name", "rule"), [("pi", pi), ("neg", neg)])
def test_texts_are_augmented_first_and_cut_then(long_data, parser, name, rule):
    """A view is what the rule makes of the whole sentence, parsed by itself, its tokens cut; unchanged where
    only the rest is."""
    reader = ShardReader(long_data)
    tokenizer = load_tokenizer(reader.tokenizer_path)
    text_of = {}
    for chunk in map(reader.read, range(reader.num_chunks)):
        text_of.update(
            {number: chunk.annotation.text(row) for row, number in enumerate(chunk.sequence_ids.tolist())}
        )
    role = {"pi": "positive", "neg": "negative"}[name]
    changed = 0
    for batch in a_loader(long_data, [ViewSpec(role, name)], batch=16, steps=8):
        keys = derive(sequence_keys(5, batch.epoch, batch.sequence_ids, 0, "augment"), 0, name)
        sentences = parse_texts([text_of[number] for number in batch.sequence_ids.tolist()], parser)
        for row, sentence in enumerate(sentences):
            new = rule(sentence, Draws(int(keys[row])))
            expected = cut(tokenizer(sentence.text if new is None else new)["input_ids"])
            assert batch.views[role].tokens[row].tolist() == expected
            differs = expected != batch.original[row].tolist()
            changed += differs
            if role == "negative":
                assert batch.views[role].present[row] == differs
    assert changed > 10


def test_data_whose_texts_were_cut_is_refused_for_augmentations_of_text_alone(long_data, tmp_path):
    shutil.copytree(long_data, tmp_path / "data")
    manifest = json.loads((tmp_path / "data/manifest.json").read_text())
    assert manifest["annotation"].pop("texts") == "whole"
    write_manifest(tmp_path / "data", manifest)
    next(iter(a_loader(tmp_path / "data", [ViewSpec("positive", "reorder")], batch=16, steps=1)))
    with pytest.raises(
        UserError, match=r"'pi' works on whole texts, .* cut them to 12 tokens .*: prepare the data again"
    ):
        a_loader(tmp_path / "data", [ViewSpec("positive", "pi")], batch=16)


def test_records_have_a_text_for_every_column(tmp_path, parser):
    records = [
        {
            "text": text,
            "positive": SENTENCES[-number - 1],
            **({"negative": "It rains."} if number % 3 else {}),
        }
        for number, text in enumerate(SENTENCES[:60])
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, records)))
    settings = config(tmp_path / "pairs.jsonl", parser, unit="record", heldout=0.1)
    prepare(settings, tmp_path / "data", workers=1, progress=False)
    chunk = ShardReader(tmp_path / "data").read(0)
    texts = [chunk.annotation.text(row) for row in range(len(chunk.stored))]
    wanted = {(r["text"], r["positive"], r.get("negative", "")) for r in records}
    assert {tuple(texts[row : row + 3]) for row in range(0, len(texts), 3)} <= wanted
    views = [ViewSpec("anchor", "none"), ViewSpec("positive", "pi"), ViewSpec("negative", "neg")]
    batch = next(iter(a_loader(tmp_path / "data", views, batch=16, steps=1)))
    tokenizer = load_tokenizer(tmp_path / "data" / "tokenizer")
    records_of = {tuple(tokenizer(text)["input_ids"]): record for text, *record in wanted}
    for row in range(16):
        text, positive, negative = (
            tokenizer.decode(tokens[row][1:-1]).strip()
            for tokens in (batch.original, batch.views["positive"].tokens, batch.views["negative"].tokens)
        )
        record = records_of[tuple(batch.original[row].tolist())]
        assert batch.views["negative"].present[row] == bool(record[1])
        # of its own column, or of the text where there is none
        assert set(positive.split()) & set(record[0].split()) and set(negative.split()) & set(
            (record[1] or text).split()
        )


def test_an_interrupted_shard_does_not_parse_again(tmp_path, parser, monkeypatch):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES) + "\n")
    settings = config(tmp_path / "corpus.txt", parser)
    parsed = Counter()

    def counting(texts, model, **options):
        texts = list(texts)
        parsed.update(texts)
        return parse_texts(texts, model, **options)

    monkeypatch.setattr(annotate, "parse_texts", counting)
    members, calls = annotate.Annotator.members, []

    def failing(self, *arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return members(self, *arguments)

    monkeypatch.setattr(annotate.Annotator, "members", failing)
    with pytest.raises(BaseException):  # noqa: B017 - however the executor passes it on
        prepare(settings, tmp_path / "data", workers=1, progress=False)
    before = sum(parsed.values())
    manifest = prepare(settings, tmp_path / "data", workers=1, progress=False)
    assert before > 0 and max(parsed.values()) == 1
    assert sum(parsed.values()) == sum(part["sequences"] for part in manifest["splits"].values())


def test_a_text_too_long_to_parse_is_parsed_as_far_as_a_word_goes(tmp_path, parser):
    annotator = annotate.Annotator(annotate.describe_parser(parser), 10, tmp_path / "parses")
    counts: Counter[str] = Counter()
    longest = annotate.longest_text(10)
    texts = ["A dog ran.", "x" * (longest + 1), "", "It rains. " * longest, "it " * 213 + "i", "It rains."]
    assert len(texts[4]) == longest == 640
    sequences = Ragged.from_sequences([[1, 9, 3] if text else [] for text in texts])
    annotation = Annotation(annotator.members(texts, sequences, counts), "en")
    rains = ("It rains. " * 64)[:-1]
    assert [annotation.text(row) for row in range(6)] == [
        texts[0],
        "x" * longest,
        "",
        rains,
        texts[4],
        texts[5],
    ]
    assert [len(annotation[row]) for row in range(6)] == [4, 1, 0, 3 * 64, 214, 3]
    assert counts["texts_too_long_to_parse_whole"] == 2
    assert annotate.longest_text(1 << 20) == MOST_CHARACTERS


def test_batches_are_the_same_whoever_makes_them(data):
    positive, negative = (
        ViewSpec("positive", "pi|mv|dn", labelled=True),
        ViewSpec("negative", "neg,del-word:rate=0.2"),
    )
    views = [ViewSpec("anchor", "none"), positive, negative]
    alone, helped = (list(a_loader(data, views, workers)) for workers in (0, 3))
    assert len(alone) == len(helped) == 6
    for one, other in zip(alone, helped):
        assert_same(one, other)
        assert set(one.labels.tolist()) <= {0, 1, 2, 3}
        assert one.views["anchor"].tokens == one.original
        for row in np.flatnonzero(one.labels == 3):  # nothing applied: the tokens as they are
            assert one.views["positive"].tokens[row].tolist() == one.original[row].tolist()


def test_a_view_is_what_the_rule_makes_of_the_stored_parse(data):
    reader = ShardReader(data)
    tokenizer = load_tokenizer(reader.tokenizer_path)
    by_number = {}
    for chunk in map(reader.read, range(reader.num_chunks)):
        for row, number in enumerate(chunk.sequence_ids.tolist()):
            by_number[number] = chunk.annotation[row]
    batch = next(iter(a_loader(data, [ViewSpec("positive", "pi"), ViewSpec("negative", "neg")])))
    rules = (("positive", "pi", pi), ("negative", "neg", neg))
    for view, (role, name, rule) in enumerate(rules):
        keys = derive(sequence_keys(5, batch.epoch, batch.sequence_ids, view, "augment"), 0, name)
        for row, number in enumerate(batch.sequence_ids.tolist()):
            new = rule(by_number[number], Draws(int(keys[row])))
            expected = batch.original[row].tolist() if new is None else tokenizer(new)["input_ids"]
            got = batch.views[role].tokens[row].tolist()
            assert got == (expected if len(expected) <= 24 else [*expected[:23], expected[-1]])


def test_a_damaged_annotation_is_named(data, tmp_path):
    reader = ShardReader(data)
    chunk = reader.read(0)
    members = pack([chunk.annotation[row] for row in range(len(chunk.stored) - 1)])
    with ShardWriter(tmp_path / "train" / "shard-00000.tar", "uint16") as shard:
        shard.write(chunk.stored, annotation=members)
    write_manifest(tmp_path, {**reader.manifest, "splits": {"train": split_summary([shard.record])}})
    with pytest.raises(DamagedShard, match="texts where the manifest says"):
        ShardReader(tmp_path).read(0)


def test_data_without_text_says_how_to_prepare(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES) + "\n")
    prepare(config(tmp_path / "corpus.txt", None), tmp_path / "data", workers=1, progress=False)
    assert (
        ShardReader(tmp_path / "data").annotation is None
        and ShardReader(tmp_path / "data").read(0).annotation is None
    )
    with pytest.raises(UserError, match=r"'pi\|mv' works on text.*--annotate MODEL"):
        a_loader(tmp_path / "data", [ViewSpec("positive", "pi|mv")])


@pytest.mark.parametrize(
    "settings", [{"unit": "sequence"}, {"unit": "document"}, {"long_sentences": "split"}]
)
def test_a_sequence_must_be_one_text(settings):
    with pytest.raises(ValueError, match="annotate is not for"):
        config(Path("x.txt"), "en_core_web_sm", **settings)


def test_a_missing_parser_is_found_out_before_any_work(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES) + "\n")
    with pytest.raises(UserError, match="--annotate nowhere: the parser 'nowhere' cannot be loaded"):
        prepare(config(tmp_path / "corpus.txt", "nowhere"), tmp_path / "data", workers=1, progress=False)
    assert not (tmp_path / "data" / "manifest.json").exists()
