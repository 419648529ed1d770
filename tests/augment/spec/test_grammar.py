"""Specifications parse, refuse what is wrong, and become pipelines."""

import dataclasses
import inspect
import pickle

import augment_reference as reference
import numpy as np
import pytest

from augment.core.entry import FIELDS
from augment.core.errors import AugmentationError
from augment.core.keys import derive, sequence_keys
from augment.core.ragged import Ragged
from augment.spec import pipeline as pipelines
from augment.spec.build import build
from augment.spec.catalogue import CATALOGUE
from augment.spec.grammar import alternatives, needs_synonyms, parse
from augment.spec.sets import SETS, WITHOUT_MODELS
from augment.text.word_forms import word_table
from augment.tokens import rules

VOCABULARY = reference.vocabulary()


def a_batch(seed: int = 0, count: int = 300) -> tuple[Ragged, np.ndarray]:
    rng = np.random.default_rng(seed)
    batch = reference.random_batch(rng, reference.random_lengths(rng, count))
    return batch, sequence_keys(seed, 0, np.arange(len(batch), dtype=np.uint64), 0, "augment")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("none", "none"),
        ("none,none", "none"),
        ("del-span,reorder", "del-span,reorder"),
        (" del-word : rate = 0.50 ", "del-word:rate=0.5"),
        ("del-word:rate=0.7", "del-word"),
        ("del-span:rate=.1:spans=3|none,subs|repeat", "del-span:spans=3:rate=0.1|none,subs|repeat"),
        ("none,crop:rate=1", "crop:rate=1.0"),
        ("del-span,del-span", "del-span,del-span"),
    ],
)
def test_canonical_text(text, canonical):
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("del-spam", "did you mean 'del-span'"),
        ("del_word", "did you mean 'del-word'"),
        ("crop,Reorder", "'Reorder'.*character 6.*did you mean 'reorder'"),
        ("zzzz", "there is no augmentation 'zzzz'.*--list shows all"),
        ("del-span,,reorder", "missing at character 10"),
        ("", "missing at character 1"),
        ("crop|", "missing at character 6"),
        ("del-span:rat=0.1", "no parameter 'rat'; did you mean 'rate'"),
        ("del-span:0.1", "write del-span:key=value"),
        ("del-span:rate=", "write del-span:key=value"),
        ("del-span:rate=x", "not a number"),
        ("del-span:spans=2.5", "not a whole number"),
        ("del-span:rate=0.1:rate=0.2", "sets rate twice"),
        ("del-word:rate=1.5", "outside 0..1"),
        ("del-word:rate=nan", "outside 0..1"),
        ("del-span:spans=5:rate=0.2", "must be below 1"),
        ("reorder:rate=0.2", "do not fit"),
        ("none:rate=1", "takes no parameters"),
        ("span:min_length=64:max_length=32", "min_length=64 is above max_length=32"),
        (("subs", "reorder"), "is a text such as"),
    ],
)
def test_refusals_say_what_and_where(text, message):
    with pytest.raises(AugmentationError, match=message):
        parse(text)


def test_stages_run_left_to_right_with_their_own_keys():
    batch, keys = a_batch()
    result = build("del-span,reorder:pairs=2", VOCABULARY)(batch, keys)
    expected = rules.del_span(batch, derive(keys, 0), VOCABULARY)
    expected = rules.reorder(expected, derive(keys, 1), VOCABULARY, pairs=2)
    assert result == expected
    twice = build("crop,crop", VOCABULARY)(batch, keys)
    assert twice == rules.crop(rules.crop(batch, derive(keys, 0), VOCABULARY), derive(keys, 1), VOCABULARY)


def test_alternatives_are_drawn_per_sequence():
    batch, keys = a_batch(count=4000)
    pipeline = build("del-word|none|repeat", VOCABULARY)
    result = pipeline(batch, keys)
    branches = [
        rules.del_word(batch, derive(keys, 0), VOCABULARY),
        batch,
        rules.repeat(batch, derive(keys, 0), VOCABULARY),
    ]
    counts = np.zeros(3)
    for index in range(len(batch)):
        hits = [np.array_equal(result[index], branch[index]) for branch in branches]
        assert any(hits)
        if sum(hits) == 1:
            counts[hits.index(True)] += 1
    assert np.abs(counts / counts.sum() - 1 / 3).max() < 0.05


def test_choices_are_those_that_were_made():
    batch, keys = a_batch(count=1000)
    pipeline = build("reorder,del-word|none|repeat", VOCABULARY)
    first = rules.reorder(batch, derive(keys, 0), VOCABULARY)
    branches = [
        rules.del_word(first, derive(keys, 1), VOCABULARY),
        first,
        rules.repeat(first, derive(keys, 1), VOCABULARY),
    ]
    result, choices = pipeline(batch, keys), pipeline.choices(keys, 1)
    assert set(choices.tolist()) == {0, 1, 2} and not pipeline.choices(keys).any()
    for index, choice in enumerate(choices.tolist()):
        assert np.array_equal(result[index], branches[choice][index])


def test_alternatives_of_one_stage():
    assert alternatives("del-word:rate=0.7|none|crop:rate=0.5") == ["del-word", "none", "crop:rate=0.5"]
    assert alternatives("none,crop") == ["crop"]
    for spec, words in (("crop,reorder", "several stages"), ("none|none", "changes nothing")):
        with pytest.raises(AugmentationError, match=words):
            alternatives(spec)


@pytest.mark.parametrize("spec", ["del-span,reorder", "del-word|crop|none,repeat", "crop:rate=0.5,del-word"])
def test_a_sequence_does_not_know_its_batch_nor_the_blocks(spec, monkeypatch):
    batch, keys = a_batch(3)
    pipeline = build(spec, VOCABULARY)
    whole = pipeline(batch, keys)
    order = np.random.default_rng(0).permutation(len(batch))
    assert pipeline(batch.take(order), keys[order]) == whole.take(order)
    one_by_one = [pipeline(batch.slice(i, i + 1), keys[i : i + 1]) for i in range(len(batch))]
    assert Ragged.concatenate(one_by_one) == whole
    monkeypatch.setattr(pipelines, "BLOCK_TOKENS", 257)
    assert pipeline(batch, keys) == whole
    assert pickle.loads(pickle.dumps(pipeline))(batch, keys) == whole


def test_identity_gives_the_batch_itself():
    batch, keys = a_batch()
    pipeline = build("none", VOCABULARY)
    assert pipeline.is_identity and pipeline.name == "none"
    assert pipeline(batch, keys) is batch
    assert not build("none|crop", VOCABULARY).is_identity
    assert len(build("del-span", VOCABULARY)(Ragged.empty(), keys[:0])) == 0
    for name in ("crop", "none"):
        for wrong in (keys[:-1], np.append(keys, keys[:1])):
            with pytest.raises(ValueError, match="one key per sequence"):
                build(name, VOCABULARY)(batch, wrong)


def test_what_a_pipeline_lacks_is_said_when_it_is_built():
    assert needs_synonyms("none|subs") and not needs_synonyms("del-span,reorder")
    with pytest.raises(AugmentationError, match="--synonyms"):
        build("crop,subs", VOCABULARY)
    without = dataclasses.replace(VOCABULARY, del_id=-1)
    with pytest.raises(AugmentationError, match=r"\[DEL\]"):
        build("reorder,del-span", without)
    assert build("reorder", without).name == "reorder"
    with pytest.raises(AugmentationError, match="punctuation marks"):
        build("punctuation", dataclasses.replace(VOCABULARY, punctuation=np.zeros(0, np.int32)))


def test_catalogue_is_complete():
    assert FIELDS.keys() <= CATALOGUE.keys(), "a function without a row in augmentations.tsv"
    entries = list(CATALOGUE.values())
    assert {"del-word", "del-span", "reorder", "subs", "repeat", "crop"} <= {entry.name for entry in entries}
    for entry in entries:
        assert (
            entry.kind in ("token", "text") and entry.paper and entry.description and entry.function.__doc__
        )
        assert parse(entry.example).augmentations[0].name == entry.name
        assert all(parameter.meaning for parameter in entry.parameters)


def test_the_table_has_the_defaults_of_the_functions():
    named = {name for names, *_ in word_table("parameters.tsv") for name in names.split()}
    assert named <= CATALOGUE.keys()
    for entry in CATALOGUE.values():
        taken = inspect.signature(entry.function).parameters
        if entry.function.__name__.replace("_", "-") == entry.name:  # another name has its own defaults
            own = {one.name: one.default for one in entry.parameters if not one.variable}
            assert own == {name: taken[name].default if name in taken else own[name] for name in own}


def test_sets_stand_for_their_members():
    assert parse("pi|augcse-4-1,del-word") == parse("pi|tense|random-swap|contractions,del-word")
    with pytest.raises(AugmentationError, match="did you mean 'augcse-4-1'"):
        parse("augcse-4-l")
    for size in (4, 8, 12, 16):
        whole, without = f"augcse-{size}", WITHOUT_MODELS[f"augcse-{size}"]
        members = [step.name for step in parse(whole).augmentations]
        models = [
            name for name in members if any(need.startswith("model:") for need in CATALOGUE[name].needs)
        ]
        assert len({*members}) == size and without == f"augcse-{size}-{len(models)}"
        assert [step.name for step in parse(without).augmentations] == [
            name for name in members if name not in models
        ]
    assert len(SETS) == 8
    for small, large in (("augcse-4", "augcse-8"), ("augcse-8", "augcse-12"), ("augcse-12", "augcse-16")):
        assert {*SETS[small].split("|")} < {*SETS[large].split("|")}
