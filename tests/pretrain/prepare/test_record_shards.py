"""Check that records stay together on the way into the shards."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from prepare_helpers import digest
from test_corpora import write
from test_prepare import run as run_command
from test_records import GOOD, as_csv, as_jsonl, plain, some_triples

from augment.core.vocabulary import Vocabulary
from pretrain.common.errors import UserError
from pretrain.config.data import DataConfig
from pretrain.config.recipe import validate_config
from pretrain.data.batch import BatchSpec
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.objectives import BatchContext, view_specs
from pretrain.prepare.run import prepare
from pretrain.prepare.sources.records import COLUMNS
from pretrain.prepare.stages.records import BuildRecords
from pretrain.prepare.work_folder import SentenceCounts
from pretrain.start.data import open_train


def config(*places: object, **settings) -> DataConfig:
    settings = {"vocabulary": 320, "heldout": 0.15, "chunk_tokens": 400, **settings}
    return DataConfig(sources=[str(place) for place in places], unit="record", **settings)


def shard_records(folder: Path, split: str) -> list[tuple]:
    """(text, positive, negative, augmented, label) as decoded; what a record lacks is ""."""
    reader, tokenizer = ShardReader(folder, split), load_tokenizer(folder)
    found = []
    for number in range(reader.num_chunks):
        chunk = reader.read(number)
        texts = {name: [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in chunk.column(name)]
                 for name in reader.columns}  # fmt: skip
        for row in range(len(chunk.sequence_ids)):
            columns = (texts[name][row] if name in texts else "" for name in COLUMNS)
            found.append((*columns, None if chunk.labels is None else int(chunk.labels[row])))
    return found


@pytest.fixture(scope="module")
def triples(tmp_path_factory) -> tuple[Path, list[dict]]:
    rows = some_triples()
    return write(tmp_path_factory.mktemp("triples") / "triples.jsonl", as_jsonl(rows)), rows


def test_shards_hold_every_record_once(tmp_path, triples, several_tasks):
    path, rows = triples
    manifest = prepare(config(path, max_length=96), tmp_path / "out", workers=1, progress=False)
    assert manifest["buckets"] > 2 and (manifest["columns"], manifest["labels"]) == (list(COLUMNS[:3]), 3)
    train, heldout = (shard_records(tmp_path / "out", split) for split in ("train", "heldout"))
    assert sorted(train + heldout) == sorted(set(plain(rows)))
    # No text of training is held out too, whatever its partners are.
    assert heldout and not {record[0] for record in train} & {record[0] for record in heldout}
    counts = manifest["counts"]
    assert counts["records"] == len(rows) and counts["records_duplicate"] == len(rows) - len(set(plain(rows)))
    assert counts["records_with_negative"] == sum(row["negative"] is not None for row in rows)
    assert manifest["splits"]["train"]["sequences"] == len(train)
    assert counts["texts_truncated"] == 0


@pytest.mark.full
def test_workers_do_not_change_a_byte(tmp_path, triples, several_tasks):
    for workers in (1, 2):
        prepare(config(triples[0]), tmp_path / str(workers), workers=workers, progress=False)
    assert digest(tmp_path / "1") == digest(tmp_path / "2") and len(digest(tmp_path / "1")) > 6


@pytest.mark.full
@pytest.mark.parametrize("step,method", [(SentenceCounts, "write"), (BuildRecords, "_encode_records")])
def test_interrupted_it_ends_with_the_same_bytes(tmp_path, triples, several_tasks, step, method):
    calls, real = [], getattr(step, method)

    def failing(self, *arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise RuntimeError("killed")
        return real(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, method, failing)
        with pytest.raises(RuntimeError, match="killed"):
            prepare(config(triples[0]), tmp_path / "killed", workers=1, progress=False)
    with pytest.raises(UserError, match="did not finish"):
        ShardReader(tmp_path / "killed")
    for name in ("killed", "whole"):
        prepare(config(triples[0]), tmp_path / name, workers=1, progress=False)
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")


def test_columns_are_those_that_any_record_has(tmp_path, several_tasks):
    rows = some_triples(100)
    texts = write(tmp_path / "texts.txt", "".join(f"{row['text']}\n" for row in rows))
    manifest = prepare(config(texts, heldout=0), tmp_path / "texts", workers=1, progress=False)
    assert (
        manifest["columns"] == ["text"]
        and "labels" not in manifest
        and ShardReader(tmp_path / "texts").columns == ("text",)
    )
    assert sorted(record[0] for record in shard_records(tmp_path / "texts", "train")) == sorted(
        {row["text"] for row in rows}
    )
    negatives = write(tmp_path / "negatives.csv", as_csv(rows, ("text", "negative")))
    manifest = prepare(
        config(texts, negatives, heldout=0, max_length=96), tmp_path / "both", workers=1, progress=False
    )
    assert manifest["columns"] == ["text", "negative"]
    wanted = {(row["text"], "", row["negative"] or "", "", None) for row in rows}
    wanted |= {(row["text"], "", "", "", None) for row in rows}
    assert sorted(shard_records(tmp_path / "both", "train")) == sorted(wanted)


def test_an_augmented_text_is_a_column_of_its_own(tmp_path):
    """AugCSE's cached pairs."""
    rows = [{"text": f"The text number {i}.", "augmented": f"Number {i}.", "label": i % 4} for i in range(50)]
    manifest = prepare(
        config(write(tmp_path / "a.csv", as_csv(rows)), heldout=0),
        tmp_path / "out",
        workers=1,
        progress=False,
    )
    assert (manifest["columns"], manifest["labels"]) == (["text", "augmented"], 4)
    assert sorted(shard_records(tmp_path / "out", "train")) == plain(rows)


def test_labels_in_one_file_and_none_in_another(tmp_path, triples):
    other = write(tmp_path / "other.csv", as_csv(some_triples(5), ("text", "positive")))
    with pytest.raises(UserError, match=r"triples\.jsonl, line 1 has a label, .*other\.csv, line 2 has none"):
        prepare(config(triples[0], other), tmp_path / "out", workers=1, progress=False)


@pytest.mark.parametrize("policy", ["auto", "drop"])
def test_long_texts_are_cut_or_their_records_dropped(tmp_path, policy):
    long = "A very long text " + " ".join(f"word{i}" for i in range(60)) + "."
    rows = [
        {"text": f"A short text number {i}.", "positive": long if i < 3 else "A short one."}
        for i in range(50)
    ]
    path = write(tmp_path / "a.jsonl", as_jsonl(rows))
    made = config(path, max_length=32, heldout=0, long_sentences=policy)
    counts = prepare(made, tmp_path / "out", workers=1, progress=False)["counts"]
    found = shard_records(tmp_path / "out", "train")
    if policy == "drop":
        assert counts["records_dropped_too_long"] == 3 and len(found) == 47
    else:
        assert counts["texts_truncated"] == 3 and counts["tokens_truncated"] > 30 and len(found) == 50
        assert sum(long.startswith(record[1]) for record in found) == 3
        assert max(ShardReader(tmp_path / "out").read(0).stored.lengths) == 32


def test_weights_and_duplicates(tmp_path):
    for name in "ab":
        write(
            tmp_path / f"{name}.jsonl",
            as_jsonl([{"text": f"{name} {i}", "positive": "the same"} for i in range(200)] * 2),
        )
    places = (f"{tmp_path}/a.jsonl@2.5", f"{tmp_path}/b.jsonl@0.25")
    prepare(config(*places, heldout=0), tmp_path / "out", workers=1, progress=False)
    found = Counter(shard_records(tmp_path / "out", "train"))
    assert {count for record, count in found.items() if record[0][0] == "a"} == {2, 3}
    assert {count for record, count in found.items() if record[0][0] == "b"} == {1} and 200 < len(found) < 300
    prepare(
        config(tmp_path / "a.jsonl", heldout=0, dedup="none"), tmp_path / "all", workers=1, progress=False
    )
    assert set(Counter(shard_records(tmp_path / "all", "train")).values()) == {2}


def test_an_own_tokenizer_and_its_sample(tmp_path):
    """Trained on all columns of training records, and on nothing else: no separator, no label."""
    rows = [{"text": "aaaa aaaa", "positive": "bbbb bbbb", "negative": "cccc cccc", "label": 7}] + [
        {"text": f"aaaa {i}", "positive": "bbbb", "negative": "cccc", "label": 3} for i in range(40)
    ]
    path = write(tmp_path / "a.jsonl", as_jsonl(rows))
    trained = config(path, heldout=0, tokenizer_type="wordpiece")
    prepare(trained, tmp_path / "out", workers=1, progress=False)
    vocabulary = load_tokenizer(tmp_path / "out").get_vocab()
    assert {"aaaa", "bbbb", "cccc"} <= set(vocabulary) and "\n" not in "".join(vocabulary)
    given = config(path, heldout=0, tokenizer=str(tmp_path / "out/tokenizer"), seed=1)
    manifest = prepare(given, tmp_path / "again", workers=1, progress=False)
    assert (
        manifest["tokenizer_hash"] == ShardReader(tmp_path / "out").tokenizer_hash and manifest["labels"] == 8
    )


def test_settings_that_do_not_fit_records():
    for setting in ({"long_sentences": "split"}, {"dedup": "minhash"}):
        with pytest.raises(ValueError, match="is not for unit record"):
            config("a.jsonl", **setting)
    with pytest.raises(ValueError, match="layout: passages is not for unit record"):
        DataConfig(sources=[{"source": "a.txt", "layout": "passages"}], unit="record")


def test_the_command(tmp_path, triples, capsys):
    arguments = [
        "--source",
        str(triples[0]),
        "--unit",
        "record",
        "--vocabulary",
        "320",
        "--progress",
        "false",
    ]
    assert run_command([*arguments, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "columns: text, positive, negative; 3 labels" in shown and " records " in shown
    write(tmp_path / "a.jsonl", GOOD + "{}\n")
    assert (
        run_command(["--source", f"{tmp_path}/a.jsonl", "--unit", "record", "--out", str(tmp_path / "bad")])
        == 2
    )
    error = capsys.readouterr().err
    assert "a.jsonl, line 2: there is no column 'text'" in error and "Traceback" not in error
    assert not (tmp_path / "bad" / "manifest.json").exists()


def test_several_negatives_are_columns_of_which_simcse_takes_all(tmp_path):
    """Older data lacks these columns: its shards are as they were."""
    rows = [
        {"query": f"question {i}", "pos": [f"answer {i}"], "neg": [f"wrong {n} of {i}" for n in range(i % 4)]}
        for i in range(60)
    ]
    path = write(tmp_path / "mined.jsonl", as_jsonl(rows))
    manifest = prepare(config(path, heldout=0), tmp_path / "out", workers=1, progress=False)
    assert manifest["columns"] == ["text", "positive", "negative", "negative2", "negative3"]
    assert manifest["counts"]["records_with_negative3"] == 15
    chunks = map((reader := ShardReader(tmp_path / "out")).read, range(reader.num_chunks))
    filled = np.concatenate([chunk.stored.lengths.reshape(-1, 5) > 0 for chunk in chunks])
    assert sorted(filled[:, 2:].sum(1).tolist()) == sorted(i % 4 for i in range(60))
    wanted = {"name": "simcse", "simcse": {"hard_negatives": True}}
    tree = {"data": {"folder": str(tmp_path / "out")}, "objective": wanted}
    settings = validate_config(tree, "test")
    reader = open_train(settings)
    views = view_specs(settings)
    assert [view.role for view in views] == ["anchor", *manifest["columns"][1:]]
    spec = BatchSpec(
        views, Masking(copies=0), Vocabulary.from_tokenizer(load_tokenizer(reader.tokenizer_path))
    )
    batch = next(iter(Loader(reader, spec, LoaderSettings(0, 32, 1), Position(0, 1))))
    for number, role in enumerate(manifest["columns"][2:], 1):
        present = batch.views[role].present
        assert np.array_equal(present, filled[batch.sequence_ids.astype(int), number + 1])
    wanted["simcse"]["hard_negatives"] = 4
    with pytest.raises(UserError, match=r"hard_negatives is 4, and .* has 3"):
        open_train(validate_config(tree, "test"))


def test_scores_reach_the_objective_as_they_were_written(tmp_path):
    rows = [{"sentence1": f"text {i}", "sentence2": f"other {i}", "score": i / 7 - 2} for i in range(60)]
    path = write(tmp_path / "judged.jsonl", as_jsonl(rows))
    manifest = prepare(config(path, heldout=0), tmp_path / "out", workers=1, progress=False)
    assert list(manifest["scores"]) == [-2.0, 59 / 7 - 2] and "labels" not in manifest
    tree = {"data": {"folder": str(tmp_path / "out")}, "objective": {"name": "scored"}}
    settings = validate_config(tree, "test")
    reader = open_train(settings)
    tokenizer = load_tokenizer(reader.tokenizer_path)
    spec = BatchSpec(view_specs(settings), Masking(copies=0), Vocabulary.from_tokenizer(tokenizer))
    batch = next(iter(Loader(reader, spec, LoaderSettings(0, 32, 1), Position(0, 1))))
    context = BatchContext(0, 0.0, None, None, {}, torch.from_numpy(batch.labels), 0)
    for text, score in zip(batch.original, context.scores.tolist()):
        number = int(tokenizer.decode(text, skip_special_tokens=True).split()[-1])
        assert score == np.float32(rows[number]["score"])
    tree["objective"]["scored"] = {"loss": "cosine"}
    with pytest.raises(UserError, match=r"has scores up to 6\.42857: set objective.scored.highest"):
        open_train(validate_config(tree, "test"))
    tree["objective"] = {"name": "simcse"}
    with pytest.raises(UserError, match=r"has scores, and simcse takes every pair"):
        open_train(validate_config(tree, "test"))
    path = write(tmp_path / "a.jsonl", as_jsonl([{**row, "score": None} for row in rows]))
    assert "scores" not in prepare(config(path, heldout=0), tmp_path / "plain", workers=1, progress=False)
    tree = {"data": {"folder": str(tmp_path / "plain")}, "objective": {"name": "scored"}}
    with pytest.raises(UserError, match="has no scores to learn"):
        open_train(validate_config(tree, "test"))


def test_several_positives_are_columns_of_which_simcse_takes_all(tmp_path):
    rows = [
        {
            "query": f"question {i}",
            "pos": [f"answer {n} of {i}" for n in range(1 + i % 3)],
            "neg": [f"wrong {i}"],
        }
        for i in range(60)
    ]
    path = write(tmp_path / "a.jsonl", as_jsonl(rows))
    apart = prepare(config(path, heldout=0), tmp_path / "apart", workers=1, progress=False)
    assert apart["splits"]["train"]["sequences"] == 120 and "positive2" not in apart["columns"]
    made = config(path, heldout=0, positives="together")
    manifest = prepare(made, tmp_path / "out", workers=1, progress=False)
    assert manifest["columns"] == ["text", "positive", "negative", "positive2", "positive3"]
    assert manifest["splits"]["train"]["sequences"] == 60
    wanted = {"name": "simcse", "simcse": {"positives": True, "hard_negatives": True}}
    plain_views = {"spec": "none", "excerpt": "none"}
    tree = {"data": {"folder": str(tmp_path / "out")}, "objective": wanted, "augment": plain_views}
    settings = validate_config(tree, "test")
    reader = open_train(settings)
    views = view_specs(settings)
    assert [view.role for view in views] == ["anchor", "positive", "positive2", "positive3", "negative"]
    tokenizer = load_tokenizer(reader.tokenizer_path)
    spec = BatchSpec(views, Masking(copies=0), Vocabulary.from_tokenizer(tokenizer))
    batch = next(iter(Loader(reader, spec, LoaderSettings(0, 32, 1), Position(0, 1))))
    for row, text in enumerate(batch.original):
        number = int(tokenizer.decode(text, skip_special_tokens=True).split()[-1])
        for n, role in enumerate(["positive", "positive2", "positive3"]):
            view = batch.views[role]
            found = tokenizer.decode(view.tokens[row], skip_special_tokens=True).strip()
            assert found == (f"answer {n} of {number}" if n <= number % 3 else f"question {number}")
            assert view.present[row] == (n <= number % 3)
    for key in ("positives", "hard_negatives"):
        wanted["simcse"] = {key: 4}
        with pytest.raises(UserError, match=rf"{key} is 4, and .* has {3 if key == 'positives' else 1}"):
            open_train(validate_config(tree, "test"))
    tree["data"]["folder"] = str(tmp_path / "apart")
    wanted["simcse"] = {"positives": 2}
    with pytest.raises(UserError, match=r"positives is 2, and .* has 1"):
        open_train(validate_config(tree, "test"))


@pytest.mark.parametrize(
    "objective, message",
    [
        ({"simcse": {"positives": 2, "form": "2n-2"}}, "positives needs objective.simcse.form=one-direction"),
        ({"simcse": {"positives": True}, "mask_duplicates": False}, "contrast a record's positives"),
        ({"simcse": {"in_batch": False}}, "leaves no negatives: set hard_negatives"),
        ({"name": "scored", "scope": "local"}, "compares pairs of all ranks"),
        ({"name": "scored+retain", "false_negatives": {"guide": "self"}}, "has no negatives"),
    ],
)
def test_settings_of_records_that_contradict_each_other_are_refused(objective, message):
    with pytest.raises(UserError, match=message):
        validate_config({"objective": {"name": "simcse"} | objective}, "test")
