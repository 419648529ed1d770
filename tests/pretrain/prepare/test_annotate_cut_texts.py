"""Text and parse are of the whole sentence where its tokens are cut."""

import json
import shutil
from pathlib import Path

import pytest
from annotation_helpers import NAMES, SENTENCES, VERBS, annotated_config, annotated_loader

from augment.core.keys import derive, sequence_keys
from augment.sda.entries import neg, pi
from augment.text.draws import Draws
from augment.text.parsing import parse_texts
from pretrain.common.errors import UserError
from pretrain.data.batch import ViewSpec
from pretrain.data.shard_writer import write_manifest
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare.run import prepare

LONG = [f"{sentence[:-1]} and then it rained on {name} and nobody {verb} it, so {name} left."
        for sentence, name, verb in zip(SENTENCES[:80], NAMES * 12, VERBS * 12)]  # fmt: skip


@pytest.fixture(scope="module")
def long_data(tmp_path_factory, parser) -> Path:
    """Sentences whose tokens are cut to a fraction of them."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "long.txt").write_text("\n".join(LONG))
    prepare(
        annotated_config(folder / "long.txt", parser, max_length=12),
        folder / "data",
        workers=1,
        progress=False,
    )
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
    for batch in annotated_loader(long_data, [ViewSpec(role, name)], batch=16, steps=8):
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
    next(iter(annotated_loader(tmp_path / "data", [ViewSpec("positive", "reorder")], batch=16, steps=1)))
    with pytest.raises(UserError, match=r"has cut texts, 'pi' needs whole ones: prepare it"):
        annotated_loader(tmp_path / "data", [ViewSpec("positive", "pi")], batch=16)
