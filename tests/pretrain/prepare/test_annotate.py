"""Text and parse beside the tokens: the same sentence comes back, and workers run rules on it."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from annotation_helpers import SENTENCES, annotated_config, annotated_loader
from loader_helpers import assert_same

from augment.core.keys import derive, sequence_keys
from augment.core.ragged import Ragged
from augment.sda.entries import neg, pi
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.parsing import parse_texts
from pretrain.common.errors import UserError
from pretrain.data.annotation import MOST_CHARACTERS, Annotation, pack
from pretrain.data.batch import ViewSpec
from pretrain.data.shard_writer import ShardWriter, split_summary, write_manifest
from pretrain.data.shards import DamagedShard, ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare import annotate
from pretrain.prepare.run import prepare


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


@pytest.mark.parametrize("relations,fits", [(255, True), (256, True), (257, False)])
def test_a_relation_is_a_byte(relations, fits):
    names = tuple(f"r{number}" for number in range(relations))
    words = " ".join("a" * relations)
    places = tuple(range(0, 2 * relations, 2))
    ends, same = tuple(place + 1 for place in places), ("a",) * relations
    sentence = ParsedSentence(words, places, ends, same, same, same, (0,) * relations, names, "xx")
    if fits:
        assert Annotation(pack([sentence]), "xx")[0] == sentence
    else:
        with pytest.raises(ValueError, match="257 relations, 1 tags or 0 lemmas are too many"):
            pack([sentence])


@pytest.mark.parametrize("field", ["lemmas", "pos"])
@pytest.mark.parametrize("count,fits", [(65535, True), (65536, False)])
def test_a_lemma_and_a_pair_of_tags_are_two_bytes(field, count, fits):
    places, same, none = tuple(range(0, 512, 2)), ("a",) * 256, (0,) * 256
    ends, names = tuple(place + 1 for place in places), [f"b{number}" for number in range(count)]
    sentences = []
    for start in range(0, count, 256):
        own = tuple(names[start : start + 256])
        n = len(own)
        columns = {"tags": same[:n], "pos": same[:n], "lemmas": same[:n]} | {field: own}
        rest = {"heads": none[:n], "deps": same[:n], "language": "xx"}
        text = " ".join(same[:n])
        sentences.append(ParsedSentence(text=text, starts=places[:n], ends=ends[:n], **columns, **rest))
    if not fits:
        with pytest.raises(ValueError, match=r"65536 (tags|lemmas) are too many|65536 tags or"):
            pack(sentences)
        return
    read = Annotation(pack(sentences), "xx")
    assert all(read[row] == sentences[row] for row in (0, 1, len(sentences) - 1))


def test_a_parser_of_another_language_is_one_error(tmp_path, parser):
    (tmp_path / "corpus.txt").write_text("今天天气很好，我们去公园吧。\n" * 5 + "他昨天没有来上课。\n" * 5)
    with pytest.raises(
        UserError, match=r"--annotate .* is for 'en', and 100% .* give a parser for the language of the text"
    ):
        prepare(
            annotated_config(tmp_path / "corpus.txt", parser, dedup="none"),
            tmp_path / "data",
            workers=1,
            progress=False,
        )


def test_a_few_foreign_texts_stop_no_preparation_though_they_fill_a_chunk(tmp_path, parser):
    foreign = [f"Сегодня мы видели {what} в старом доме." for what in ("кошку", "собаку", "книгу", "поезд")]
    (tmp_path / "corpus.txt").write_text("\n".join([*SENTENCES[:9], *foreign]) + "\n")
    settings = annotated_config(tmp_path / "corpus.txt", parser, heldout=1e-6, seed=3)
    prepare(settings, tmp_path / "data", workers=1, progress=False)
    chunk = ShardReader(tmp_path / "data", "heldout").read(0)
    assert len(chunk.stored) == 1 and chunk.annotation.text(0) in foreign, (
        "another seed holds a foreign one out"
    )


def test_every_sequence_has_its_text_and_its_parse(annotated_data, parser):
    tokenizer = load_tokenizer(ShardReader(annotated_data).tokenizer_path)
    for split in ("train", "heldout"):
        reader = ShardReader(annotated_data, split)
        assert reader.annotation["language"] == "en" and reader.annotation["parser"] == parser
        for chunk in map(reader.read, range(reader.num_chunks)):
            texts = [chunk.annotation.text(row) for row in range(len(chunk.stored))]
            assert [row.tolist() for row in (chunk.stored[i] for i in range(len(texts)))] == tokenizer(texts)[
                "input_ids"
            ]
            assert list(parse_texts(texts, parser)) == [chunk.annotation[row] for row in range(len(texts))]
    read = ShardReader(annotated_data)
    stored = {
        read.read(c).annotation.text(i)
        for c in range(read.num_chunks)
        for i in range(len(read.read(c).stored))
    }
    assert len(stored) > 200 and stored <= set(SENTENCES)
    manifest = json.loads((annotated_data / "manifest.json").read_text())
    assert manifest["annotation"]["words"] > 1500 and manifest["annotation"]["bytes"] > 0
    assert not (annotated_data / ".work").exists()


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
    settings = annotated_config(tmp_path / "pairs.jsonl", parser, unit="record", heldout=0.1)
    prepare(settings, tmp_path / "data", workers=1, progress=False)
    chunk = ShardReader(tmp_path / "data").read(0)
    texts = [chunk.annotation.text(row) for row in range(len(chunk.stored))]
    wanted = {(r["text"], r["positive"], r.get("negative", "")) for r in records}
    assert {tuple(texts[row : row + 3]) for row in range(0, len(texts), 3)} <= wanted
    views = [ViewSpec("anchor", "none"), ViewSpec("positive", "pi"), ViewSpec("negative", "neg")]
    batch = next(iter(annotated_loader(tmp_path / "data", views, batch=16, steps=1)))
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


def test_a_text_too_long_to_parse_is_parsed_as_far_as_a_word_goes(parser):
    described = annotate.describe_parser(parser)
    counts: Counter[str] = Counter()
    longest = annotate.longest_text(10)
    texts = ["A dog ran.", "x" * (longest + 1), "", "It rains. " * longest, "it " * 213 + "i", "It rains."]
    assert len(texts[4]) == longest == 640
    sequences = Ragged.from_sequences([[1, 9, 3] if text else [] for text in texts])
    annotation = Annotation(annotate.annotate(texts, sequences, described, 10, counts), "en")
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


def test_batches_are_the_same_whoever_makes_them(annotated_data):
    positive, negative = (
        ViewSpec("positive", "pi|mv|dn", labelled=True),
        ViewSpec("negative", "neg,del-word:rate=0.2"),
    )
    views = [ViewSpec("anchor", "none"), positive, negative]
    alone, helped = (list(annotated_loader(annotated_data, views, workers)) for workers in (0, 3))
    assert len(alone) == len(helped) == 6
    for one, other in zip(alone, helped):
        assert_same(one, other)
        assert set(one.labels.tolist()) <= {0, 1, 2, 3}
        assert one.views["anchor"].tokens == one.original
        for row in np.flatnonzero(one.labels == 3):  # nothing applied: the tokens as they are
            assert one.views["positive"].tokens[row].tolist() == one.original[row].tolist()


def test_a_view_is_what_the_rule_makes_of_the_stored_parse(annotated_data):
    reader = ShardReader(annotated_data)
    tokenizer = load_tokenizer(reader.tokenizer_path)
    by_number = {}
    for chunk in map(reader.read, range(reader.num_chunks)):
        for row, number in enumerate(chunk.sequence_ids.tolist()):
            by_number[number] = chunk.annotation[row]
    batch = next(
        iter(annotated_loader(annotated_data, [ViewSpec("positive", "pi"), ViewSpec("negative", "neg")]))
    )
    rules = (("positive", "pi", pi), ("negative", "neg", neg))
    for view, (role, name, rule) in enumerate(rules):
        keys = derive(sequence_keys(5, batch.epoch, batch.sequence_ids, view, "augment"), 0, name)
        for row, number in enumerate(batch.sequence_ids.tolist()):
            new = rule(by_number[number], Draws(int(keys[row])))
            expected = batch.original[row].tolist() if new is None else tokenizer(new)["input_ids"]
            got = batch.views[role].tokens[row].tolist()
            assert got == (expected if len(expected) <= 24 else [*expected[:23], expected[-1]])


def test_a_damaged_annotation_is_named(annotated_data, tmp_path):
    reader = ShardReader(annotated_data)
    chunk = reader.read(0)
    members = pack([chunk.annotation[row] for row in range(len(chunk.stored) - 1)])
    with ShardWriter(tmp_path / "train" / "shard-00000.tar", "uint16") as shard:
        shard.write(chunk.stored, annotation=members)
    write_manifest(tmp_path, {**reader.manifest, "splits": {"train": split_summary([shard.record])}})
    with pytest.raises(DamagedShard, match="texts instead of"):
        ShardReader(tmp_path).read(0)


def test_data_without_text_says_how_to_prepare(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES) + "\n")
    prepare(annotated_config(tmp_path / "corpus.txt", None), tmp_path / "data", workers=1, progress=False)
    assert (
        ShardReader(tmp_path / "data").annotation is None
        and ShardReader(tmp_path / "data").read(0).annotation is None
    )
    with pytest.raises(UserError, match=r"'pi\|mv' works on text.*--annotate MODEL"):
        annotated_loader(tmp_path / "data", [ViewSpec("positive", "pi|mv")])


@pytest.mark.parametrize(
    "settings", [{"unit": "sequence"}, {"unit": "document"}, {"long_sentences": "split"}]
)
def test_a_sequence_must_be_one_text(settings):
    with pytest.raises(ValueError, match="annotate is not for"):
        annotated_config(Path("x.txt"), "en_core_web_sm", **settings)


def test_a_missing_parser_is_found_out_before_any_work(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES) + "\n")
    with pytest.raises(UserError, match="--annotate nowhere: the parser 'nowhere' cannot be loaded"):
        prepare(
            annotated_config(tmp_path / "corpus.txt", "nowhere"), tmp_path / "data", workers=1, progress=False
        )
    assert not (tmp_path / "data" / "manifest.json").exists()
