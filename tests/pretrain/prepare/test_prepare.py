"""Preparation: same bytes whoever did the work, however often it was killed; nothing lost, nothing leaked."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from prepare_helpers import WORDS, config, digest, make_corpus, texts_of

from augment.text.cleaning import without_cleaning
from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.config.data import DataConfig
from pretrain.data.shards import MANIFEST, ShardReader
from pretrain.data.tokenizer import tokenizer_hash
from pretrain.prepare.__main__ import main
from pretrain.prepare.run import find_or_prepare, prepare
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.work_folder import Decision, HashRange, WorkFile

ROOT = Path(__file__).resolve().parents[3]


def run(arguments: list[str]) -> int:
    """The command line's exit status."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["prepare", *arguments])
        main()
    return ended.value.code


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    return path, make_corpus(path)


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


def test_workers_do_not_change_a_byte(tmp_path, corpus, several_tasks):
    path, _ = corpus
    for workers in (1, 2):
        prepare(config(path, unit="sequence"), tmp_path / str(workers), workers=workers, progress=False)
    assert digest(tmp_path / "1") == digest(tmp_path / "2")
    assert len(digest(tmp_path / "1")) > 6


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


def test_a_decided_split_does_not_depend_on_workers_or_kills(tmp_path, several_tasks):
    """Twenty copies of one long document, in several reading tasks, are one document: its end is held out
    everywhere."""
    sentences = [f"The {WORDS[i % 10]} number {i} is here." for i in range(60)]
    (tmp_path / "text.txt").write_text((" ".join(sentences) + "\n\n") * 20)
    made = config(tmp_path / "text.txt", heldout=0.1, unit="sequence")
    for workers in (1, 2):
        prepare(made, tmp_path / str(workers), workers=workers, progress=False)
    killed = tmp_path / "killed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HashRange, "write", _fail_when_decided)
        with pytest.raises(RuntimeError, match="killed"):
            prepare(made, killed, workers=1, progress=False)
    prepare(made, killed, workers=1, progress=False)
    assert digest(tmp_path / "1") == digest(tmp_path / "2") == digest(killed)
    held = [s for text in texts_of(killed, "heldout") for s in sentences_of(text)]
    assert sorted(held) == sorted(sentences[-6:])


def _fail_when_decided(hashes: HashRange, work: Path, rank: int) -> None:
    if Decision.exists(work):
        raise RuntimeError("killed")
    WorkFile.write(hashes, work, rank)


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


def test_a_bucket_read_in_parts_holds_the_same_sentences(tmp_path, corpus):
    path, _ = corpus
    prepare(config(path), tmp_path / "whole", workers=1, progress=False)
    manifest = prepare(config(path, bucket_megabytes=0.005), tmp_path / "parts", workers=1, progress=False)
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


def _start(arguments: list[str]) -> subprocess.Popen:
    code = (
        "import pretrain.prepare.sources.planning as c, pretrain.prepare.run as p, pretrain.prepare.__main__ as "
        "cli, sys\n"
        "c.TASK_BYTES, p._SMALL_BUCKET = 30000, 50000\n"
        "cli.main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, start_new_session=True)


def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path, monkeypatch):
    """SIGKILL of the whole process group at three points of the work; workers that outlive it may still
    write."""
    corpus = tmp_path / "corpus.txt"
    make_corpus(corpus, documents=600, seed=5)
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", 30000)
    monkeypatch.setattr("pretrain.prepare.run._SMALL_BUCKET", 50000)
    prepare(DataConfig(sources=str(corpus), vocabulary=320), tmp_path / "whole", workers=1, progress=False)
    killed = tmp_path / "killed"
    arguments = ["--source", str(corpus), "--vocabulary", "320", "--progress", "false", "--workers", "2"]
    kills = 0
    for target in (2, 12, 14, 10**9):  # finished tasks at the kill: reading, at the tokenizer, at the shards
        process = _start([*arguments, "--out", str(killed)])
        while process.poll() is None and len(list(killed.glob(".work/logs/*/completions/*"))) < target:
            time.sleep(0.005)
        if process.poll() is not None:
            assert process.returncode == 0
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if (killed / MANIFEST).is_file():  # on a busy machine the kill may come too late
            break
        kills += 1
        with pytest.raises(UserError, match="did not finish"):
            ShardReader(killed)
    assert kills >= 2
    assert digest(killed) == digest(tmp_path / "whole")


@pytest.mark.parametrize("background", [False, True])
def test_a_worker_that_the_kernel_kills_is_noticed(tmp_path, background):
    corpus = tmp_path / "corpus.txt"
    make_corpus(corpus, documents=400, seed=5)
    code = (
        "import sys, os, signal; import pretrain.prepare.sources.planning as c, pretrain.prepare.__main__ as "
        "cli, pretrain.prepare.stages.read as s\n"
        "c.TASK_BYTES = 30000\n"
        "class Killed(s.ReadSource):\n"
        "    def run(self, data=None, rank=0, world_size=1):\n"
        "        for document in super().run(data, rank, world_size):\n"
        "            if rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "            yield document\n"
        "s.ReadSource = Killed\n"
        "if __name__ == '__main__': cli.main()\n"
    )
    (tmp_path / "run.py").write_text(code)
    arguments = ["--source", str(corpus), "--vocabulary", "320", "--progress", "false", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, str(tmp_path / "run.py"), *arguments, "--out", str(tmp_path / "out")],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
        # A shell script starts its background jobs with SIGINT ignored, and Python then has no
        # KeyboardInterrupt.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT,
        signal.SIG_IGN if background else signal.SIG_DFL),
    )  # fmt: skip
    assert done.returncode == 2 and "task read 00002 was killed" in done.stderr


def test_data_from_before_a_key_was_there_counts_as_prepared(tmp_path, corpus):
    first = prepare(config(corpus[0]), tmp_path / "out", workers=1, progress=False)
    for source in first["config"]["sources"]:
        source.pop("positive_key")
    (tmp_path / "out/manifest.json").write_text(json.dumps(first))
    assert prepare(config(corpus[0]), tmp_path / "out", workers=1, progress=False) == first


def test_done_is_done_and_another_config_is_refused(tmp_path, corpus):
    path, _ = corpus
    first = prepare(config(path), tmp_path / "out", workers=1, progress=False)
    assert prepare(config(path), tmp_path / "out", workers=1, progress=False) == first
    with pytest.raises(UserError, match="max_length is 64 there and 32 now"):
        prepare(config(path, max_length=32), tmp_path / "out", workers=1, progress=False)
    again = prepare(config(path, max_length=32), tmp_path / "out", workers=1, progress=False, overwrite=True)
    assert again["max_length"] == 32


@pytest.mark.parametrize("fault", ["no source", "taken", "own output"])
def test_overwriting_removes_nothing_before_it_can_begin(tmp_path, corpus, fault):
    """A source that is not there, a folder that is at work, an input inside it: what is finished stays."""
    out = tmp_path / "out"
    prepare(config(corpus[0]), out, workers=1, progress=False)
    before = digest(out)
    overwriting = {"workers": 1, "progress": False, "overwrite": True}
    if fault == "no source":
        with pytest.raises(UserError, match="no such file"):
            prepare(config(tmp_path / "gone.txt"), out, **overwriting)
    elif fault == "own output":
        with pytest.raises(UserError, match=r"lies in .* which --overwrite would remove"):
            prepare(config(corpus[0], tokenizer=str(out / "tokenizer")), out, **overwriting)
    else:
        with (
            folder_lock(out),
            pytest.raises(UserError, match=f"is being written by process {os.getpid()} on "),
        ):
            prepare(config(corpus[0], max_length=32), out, **overwriting)
    shutil.rmtree(out / ".work", ignore_errors=True)
    assert digest(out) == before


@pytest.mark.parametrize("function,calls", [("fsync", 0), ("fsync", 6), ("fsync", 4), ("replace", 5)])
def test_a_full_disk(tmp_path, corpus, monkeypatch, function, calls):
    """The disk fills up at some write or other: one clear error, nothing taken for whole, and later it goes
    on."""
    path, _ = corpus
    real, left = getattr(os, function), [calls]

    def full(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(f"os.{function}", full)
        with pytest.raises(UserError, match="No space left"):
            prepare(config(path), tmp_path / "out", workers=1, progress=False)
    assert left[0] < 0 and not (tmp_path / "out/manifest.json").exists()
    assert not list((tmp_path / "out").rglob("*.partial"))
    prepare(config(path), tmp_path / "out", workers=1, progress=False)
    prepare(config(path), tmp_path / "fresh", workers=1, progress=False)
    assert digest(tmp_path / "out") == digest(tmp_path / "fresh")


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--sorce", "x", "--out", "o"], "unknown flag --sorce; did you mean --source?"),
        (["--source", "nowhere/at/all.txt", "--out", "o"], "nowhere/at/all.txt: no such file"),
        (["--source", "embedded"], "--out is missing"),
        (
            ["--source", "embedded", "--out", "o", "--unit", "word"],
            "unit: Input should be 'sentence', 'sequence', 'document'",
        ),
        (["--source", "embedded", "--out", "o", "--executor", "cloud"], "executor"),
        (["embedded", "--out", "o"], "unexpected argument 'embedded'"),
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
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"--{name}" in text for name in DataConfig.model_fields if name != "sources")
    assert "--source list (default embedded)" in text and "--executor" in text and "--partition" in text
    assert "pretrain.config.data" not in text and "Source(" not in text
    assert "\n    python -m pretrain.prepare --source embedded --out data/embedded\n" in text


def test_flags_reach_the_config(tmp_path, corpus, capsys):
    path, _ = corpus
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"sources: [{{source: {path}, weight: 1}}]\nvocabulary: 384\nunit: sequence\n")
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
    assert "sequences" in capsys.readouterr().out
    recipe.write_text("max_lenght: 3\n")
    assert run(["--config", str(recipe), "--out", str(tmp_path / "out2")]) == 2
    assert "did you mean max_length?" in capsys.readouterr().err


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
