"""Preparation: same bytes whoever did the work, however often it was killed; nothing lost, nothing leaked."""

import json
import shutil
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from prepare_helpers import config, digest, make_corpus, texts_of

from augment.text.cleaning import without_cleaning
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.typed_values import type_name
from pretrain.config.data import DataConfig, Source, data_config
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import tokenizer_hash
from pretrain.prepare import run as preparation
from pretrain.prepare import work_folder
from pretrain.prepare.__main__ import data_flags, main, source_keys, summary
from pretrain.prepare.run import find_or_prepare, prepare
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.work_folder import MOST_PAIRS, ParagraphPairs, sample_of

ROOT = Path(__file__).resolve().parents[3]


def run(arguments: list[str]) -> int:
    """The command line's exit status."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["prepare", *arguments])
        cli.run(main, keys=data_flags, more_help=source_keys)
    return ended.value.code


def test_unit_sentence_holds_every_sentence_once(tmp_path, corpus, several_tasks):
    path, made = corpus
    manifest = prepare(config(path), tmp_path / "out", workers=1, progress=False)
    assert manifest["buckets"] > 2 and len(manifest["splits"]["train"]["shards"]) > 2
    train, heldout = texts_of(tmp_path / "out", "train"), texts_of(tmp_path / "out", "heldout")
    wanted = {sentence for document in made for sentence in document}
    assert Counter(train + heldout) == Counter(wanted)
    # Of a held-out document every sentence is held out, from wherever else it occurs.
    held = set(heldout)
    documents_held = [set(document) <= held for document in made]
    assert 0 < sum(documents_held) < len(made) / 2
    assert held == {s for document, is_held in zip(made, documents_held) if is_held for s in document}
    counts = manifest["counts"]
    assert counts["documents"] == len(made)
    assert counts["sentences"] == sum(map(len, made))
    assert counts["sentences_duplicate"] == counts["sentences"] - len(wanted)
    assert manifest["tokenizer_hash"] == tokenizer_hash(tmp_path / "out")
    assert not (tmp_path / "out/.work").exists()


def test_the_order_is_shuffled_over_the_corpus(tmp_path, several_tasks):
    path = tmp_path / "numbered.txt"
    path.write_text(
        "".join(f"This is the sentence with the number {number:06d} in it.\n" for number in range(3000))
    )
    prepare(config(path, heldout=0.0), tmp_path / "out", workers=1, progress=False)
    numbers = np.array(
        [int(text.split()[-3].replace(" ", "")) for text in texts_of(tmp_path / "out", "train")]
    )
    assert len(numbers) == 3000
    assert abs(np.corrcoef(np.arange(3000), numbers)[0, 1]) < 0.08
    # strangers: the median of |x - y| for random ones is 0.29 n
    assert np.median(np.abs(np.diff(numbers))) > 600


@pytest.mark.full
def test_workers_do_not_change_a_byte(tmp_path, corpus, several_tasks):
    path, _ = corpus
    for workers in (1, 2):
        made = prepare(
            config(path, unit="sequence"), tmp_path / str(workers), workers=workers, progress=False
        )
        assert made["run"]["peak_task_bytes"] > 10**7 and made["run"]["workers"] == workers
    assert digest(tmp_path / "1") == digest(tmp_path / "2")
    assert len(digest(tmp_path / "1")) > 6


@pytest.mark.full
@pytest.mark.parametrize("unit", ["sentence", "sequence", "document"])
def test_no_held_out_sentence_in_train_without_deduplication(tmp_path, corpus, unit):
    path, _ = corpus
    longest = 400 if unit == "document" else 64  # what is left of a cut sentence may be in both
    prepare(
        config(path, unit=unit, dedup="none", max_length=longest), tmp_path / "out", workers=1, progress=False
    )
    train = [s for text in texts_of(tmp_path / "out", "train") for s in sentences_of(text)]
    heldout = {s for text in texts_of(tmp_path / "out", "heldout") for s in sentences_of(text)}
    assert heldout and not heldout & set(train)
    assert len(set(train)) < len(train)


@pytest.mark.full
@pytest.mark.parametrize("unit", ["sentence", "sequence"])
@pytest.mark.parametrize(
    "documents,share", [(1, 0.01), (1, 0.2), (2, 0.01), (2, 0.499), (3, 0.01), (12, 1e-6)]
)
def test_however_small_the_corpus_both_splits_hold_text(tmp_path, several_tasks, documents, share, unit):
    for seed in range(3):  # of hashes: the choices differ
        made = make_corpus(tmp_path / "text.txt", documents, seed=seed, repeats=0.0)
        out = tmp_path / f"out{seed}"
        prepare(
            config(tmp_path / "text.txt", heldout=share, unit=unit, seed=seed), out, workers=1, progress=False
        )
        train, heldout = (
            [s for text in texts_of(out, split) for s in sentences_of(text)] for split in ("train", "heldout")
        )
        assert (
            train and heldout and sorted(train + heldout) == sorted(s for document in made for s in document)
        )
        if documents == 1:
            count = max(1, round(share * len(made[0])))
            assert sorted(heldout) == sorted(made[0][-count:])
        else:
            held = set(heldout)
            assert all(held.isdisjoint(document) or held.issuperset(document) for document in made)


def test_one_sentence_cannot_be_split(tmp_path):
    (tmp_path / "text.txt").write_text("Here is the only sentence of it all.")
    with pytest.raises(UserError, match=r"No held-out sequence.*--heldout 0"):
        prepare(config(tmp_path / "text.txt"), tmp_path / "out", workers=1, progress=False)
    manifest = prepare(
        config(tmp_path / "text.txt", heldout=0.0), tmp_path / "out2", workers=1, progress=False
    )
    assert manifest["splits"]["heldout"]["sequences"] == 0


def test_weights(tmp_path):
    for name in "ab":
        sentences = [f"In file {name} there is a line with number {i} on it." for i in range(400)]
        (tmp_path / f"{name}.txt").write_text("\n".join(sentences) + "\n")
    places = (f"{tmp_path}/a.txt@2.5", f"{tmp_path}/b.txt@0.25")
    manifest = prepare(config(*places, heldout=0.1), tmp_path / "out", workers=1, progress=False)
    texts = texts_of(tmp_path / "out", "train")
    # copies lie apart: by chance about 4 of 1,000 neighbours are equal
    assert sum(a == b for a, b in pairwise(texts)) < 20
    train = Counter(texts)
    of = {name: [count for text, count in train.items() if f"file {name} " in text] for name in "ab"}
    assert set(of["a"]) == {2, 3} and 2.4 < np.mean(of["a"]) < 2.6
    assert set(of["b"]) == {1} and 60 < len(of["b"]) < 120
    heldout = Counter(texts_of(tmp_path / "out", "heldout"))
    assert set(heldout.values()) == {1} and not set(heldout) & set(train)
    assert manifest["counts"]["sentences_left_out_by_weight"] > 250


def test_a_bucket_read_in_parts_holds_the_same_sentences(tmp_path, corpus, monkeypatch):
    path, _ = corpus
    prepare(config(path), tmp_path / "whole", workers=1, progress=False)
    monkeypatch.setattr(work_folder, "BUCKET_BYTES", 5000)
    manifest = prepare(config(path), tmp_path / "parts", workers=1, progress=False)
    assert manifest["buckets"] > 5
    for split in ("train", "heldout"):
        assert Counter(texts_of(tmp_path / "whole", split)) == Counter(texts_of(tmp_path / "parts", split))


@pytest.mark.parametrize("policy", ["truncate", "split", "drop"])
def test_long_sentences_are_counted(tmp_path, policy):
    long = "A very long sentence " + " ".join(f"word{i}" for i in range(60)) + "."
    (tmp_path / "text.txt").write_text(
        "\n".join([long, *(f"A short sentence number {i}." for i in range(50))])
    )
    settings = {"long_sentences": policy, "max_length": 32, "heldout": 0.0}
    manifest = prepare(config(tmp_path / "text.txt", **settings), tmp_path / "out", workers=1, progress=False)
    counts = manifest["counts"]
    key = {
        "truncate": "sentences_truncated",
        "split": "sentences_split",
        "drop": "sentences_dropped_too_long",
    }[policy]
    assert counts[key] == 1
    assert ShardReader(tmp_path / "out").num_sequences == {"truncate": 51, "drop": 50}.get(
        policy, 51 + 3
    ) or (policy == "split" and ShardReader(tmp_path / "out").num_sequences > 52)
    if policy != "split":
        assert counts["tokens_truncated" if policy == "truncate" else "tokens_dropped_too_long"] > 10


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--sorce", "x", "--out", "o"], "unknown flag --sorce; did you mean --source?"),
        (
            ["--text_key", "x", "--out", "o"],
            "--source (a key of a source: '[{source: PLACE, text_key: FIELD}]')",
        ),
        (["--source", "nowhere/at/all.txt", "--out", "o"], "nowhere/at/all.txt: no such file"),
        (["--source", "embedded"], "--out is missing"),
        (
            ["--source", "embedded", "--out", "o", "--unit", "word"],
            "unit: Input should be 'sentence', 'sequence', 'document'",
        ),
        (["--source", "embedded", "--out", "o", "--workers", "0"], "workers"),
        (["embedded", "--out", "o"], "unexpected word 'embedded'"),
        (["--config", "missing.yaml", "--out", "o"], "no recipe missing.yaml"),
    ],
)
def test_bad_flags(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o" / "manifest.json").exists()


def test_a_corpus_without_sentences(tmp_path):
    (tmp_path / "numbers.txt").write_text("1 2 3\n4 5 6\n")
    with pytest.raises(UserError, match=r"No text is left.*numbers\.txt"):
        prepare(config(tmp_path / "numbers.txt"), tmp_path / "out", workers=2, progress=False)


def test_help_names_every_key(capsys):
    assert run(["--help", "all"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in text for name in DataConfig.model_fields if name != "sources")
    for name, field in Source.model_fields.items():
        assert f"\n  {name} {type_name(field.annotation)} (" in text
    assert "--source list (default embedded)" in text and "--workers" in text
    assert "pretrain.config.data" not in text and "Source(" not in text
    assert "\n    clearly prepare --source embedded --out data/embedded\n" in text


def test_flags_reach_the_config(tmp_path, corpus, capsys):
    path, _ = corpus
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"sources: [{{source: {path}, weight: 1}}]\nvocabulary: 384\nunit: sequence\nlowercase: true\n"
    )
    assert (
        run(
            [
                "--config",
                str(recipe),
                "--max_length=40",
                "--out",
                str(tmp_path / "out"),
                "--progress",
                "false",
            ]
        )
        == 0
    )
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert (manifest["unit"], manifest["max_length"], manifest["config"]["vocabulary"]) == (
        "sequence",
        40,
        384,
    )
    said = capsys.readouterr().out
    assert "sequences" in said and "vocabulary 384, lower case without accents" in said
    recipe.write_text("max_lenght: 3\n")
    assert run(["--config", str(recipe), "--out", str(tmp_path / "out2")]) == 2
    assert "did you mean max_length?" in capsys.readouterr().err


def test_what_is_not_prepared_is_prepared_by_another_process(tmp_path, monkeypatch, capsys):
    """With the settings that were given, no others; what is there is taken as it is."""
    settings, ran = config("corpus.txt", max_length=77), []

    def run_module(module, words, what):
        ran.append((module, words[2:], what, data_config(json.loads(Path(words[1]).read_text()))))
        (tmp_path / "out" / "manifest.json").write_text("{}")

    monkeypatch.setattr(preparation, "run_module", run_module)
    monkeypatch.setattr(preparation, "read_manifest", lambda folder: ("read", folder))
    for _ in range(2):
        assert find_or_prepare(tmp_path / "out", settings) == ("read", tmp_path / "out")
    (found,) = ran
    assert found[:2] == ("pretrain.prepare", ["--out", str(tmp_path / "out")])
    assert found[2] == f"Preparing {tmp_path / 'out'}" and found[3] == settings
    assert found[3].model_fields_set == settings.model_fields_set
    assert found[3].sources[0].model_fields_set == settings.sources[0].model_fields_set
    assert "holds no prepared data yet; preparing it" in capsys.readouterr().err


@pytest.mark.full
def test_find_or_prepare(tmp_path, corpus):
    path, _ = corpus
    manifest = find_or_prepare(tmp_path / "out", config(path))
    # what is there is taken as it is
    assert manifest == find_or_prepare(tmp_path / "out", config("nowhere.txt"))
    with pytest.raises(UserError, match="failed"):
        find_or_prepare(tmp_path / "other", config(tmp_path / "nowhere.txt"))


def test_an_existing_tokenizer_is_used(tmp_path, corpus):
    path, _ = corpus
    prepare(config(path), tmp_path / "first", workers=1, progress=False)
    given = {"tokenizer": str(tmp_path / "first/tokenizer"), "seed": 1}
    prepare(config(path, **given), tmp_path / "second", workers=1, progress=False)
    assert tokenizer_hash(tmp_path / "first") == tokenizer_hash(tmp_path / "second")


def test_a_tokenizer_that_does_not_clean_gives_the_same_shards(tmp_path, corpus):
    path, _ = corpus
    first = prepare(config(path), tmp_path / "first", workers=1, progress=False)
    shutil.copytree(tmp_path / "first/tokenizer", tmp_path / "old")
    content = json.loads((tmp_path / "old/tokenizer.json").read_text())
    assert without_cleaning(content) != content
    (tmp_path / "old/tokenizer.json").write_text(json.dumps(without_cleaning(content)))
    second = prepare(
        config(path, tokenizer=str(tmp_path / "old")), tmp_path / "second", workers=1, progress=False
    )
    assert first["splits"] == second["splits"] and first["tokenizer_hash"] == second["tokenizer_hash"]


def test_the_summary_says_what_an_adopted_tokenizer_does_to_letters(tmp_path, corpus):
    path, _ = corpus
    prepare(config(path, lowercase=True), tmp_path / "first", workers=1, progress=False)
    shutil.copytree(tmp_path / "first/tokenizer", tmp_path / "accents")
    content = json.loads((tmp_path / "accents/tokenizer.json").read_text())
    content["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "accents/tokenizer.json").write_text(json.dumps(content))
    for place, said in {"first/tokenizer": "lower case without accents", "accents": "lower case"}.items():
        out, given = tmp_path / "from" / place, str(tmp_path / place)
        manifest = prepare(config(path, tokenizer=given, lowercase=False), out, workers=1, progress=False)
        assert summary(manifest, out).splitlines()[0].endswith(f"vocabulary 320, {said}")


def test_held_out_pairs_are_bounded_and_of_all_sources(tmp_path):
    pairs = [(f"{source} {number}", "Rest.") for source in "ab" for number in range(MOST_PAIRS)]
    for rank, part in enumerate((pairs[:12_000], pairs[12_000:])):
        ParagraphPairs(sample_of(part)).write(tmp_path, rank)
    kept = sample_of(ParagraphPairs.each(tmp_path))
    assert kept == sample_of(reversed(pairs)) and len(kept) == MOST_PAIRS
    assert 0.45 < sum(first[0] == "a" for first, _ in kept[:1000]) / 1000 < 0.55


def test_minhash_removes_near_duplicate_documents(tmp_path):
    base = make_corpus(tmp_path / "x.txt", documents=30, seed=7, repeats=0.0)
    altered = [
        [*document[:-1], document[-1].replace("old", "young")] for document in base if len(document) > 8
    ]
    text = "\n\n".join(" ".join(document) for document in base + altered)
    (tmp_path / "x.txt").write_text(text)
    manifest = prepare(
        config(tmp_path / "x.txt", dedup="minhash"), tmp_path / "out", workers=2, progress=False
    )
    assert manifest["counts"]["documents_near_duplicate"] == len(altered) > 3


GERMAN = [f"Die Brücke über die Spree Nummer {n} führt zur schönen [SEP] Mühle." for n in range(60)]
ENGLISH = [f"The bridge number {n} leads over the river to the [MASK] mill." for n in range(60)]


@pytest.mark.full
@pytest.mark.parametrize(("lines", "keeps"), [(GERMAN, True), (ENGLISH, False)])
def test_case_and_accents_follow_the_text_and_special_tokens_are_text(tmp_path, lines, keeps):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(lines))
    made = {}
    for lowercase in ("auto", True):
        settings = {"vocabulary": 512, "tokenizer_type": "wordpiece", "unit": "record", "heldout": 0.1}
        out = tmp_path / f"out {lowercase}"
        made[lowercase] = prepare(
            config(path, lowercase=lowercase, **settings), out, workers=1, progress=False
        )
        assert ("without accents" in summary(made[lowercase], out)) == (not keeps or lowercase is True)
        assert ("WARNING" in summary(made[lowercase], out)) == (keeps and lowercase is True)
        assert made[lowercase]["counts"]["special_tokens_read_as_text"] == 60
        assert all("[ sep ]" in text.lower() or "[ mask ]" in text for text in texts_of(out, "train"))
    assert (made["auto"]["splits"] == made[True]["splits"]) == (not keeps)


@pytest.mark.parametrize("part", ["tokenizer", "train", "heldout", ".work"])
@pytest.mark.parametrize("kind", ["text", "parquet", "hub", "embedded", "tokenizer"])
def test_what_overwriting_would_remove_is_not_read(tmp_path, part, kind):
    """Neither a source nor a tokenizer; names of corpora are no places, and what lies elsewhere is read."""
    out = tmp_path / "out"
    (out / part / "inner").mkdir(parents=True)
    for place, own in ((out / part / "inner", True), (out / part, True), (out, False), (tmp_path, False)):
        tasks = [] if kind == "tokenizer" else [SimpleNamespace(place=str(place), kind=kind)]
        settings = SimpleNamespace(tokenizer=str(place) if kind == "tokenizer" else None)
        if own and kind not in ("hub", "embedded"):
            with pytest.raises(UserError, match=r"which --overwrite would remove\. Choose another --out"):
                preparation._refuse_own_output(settings, tasks, out)
        else:
            preparation._refuse_own_output(settings, tasks, out)
