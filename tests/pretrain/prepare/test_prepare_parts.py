"""Parts of a preparation by themselves: buckets, choices, stages, plans and what is said of them."""

import json
import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xxhash
from run_helpers import wait_for

from pretrain.common import files
from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.config.data import DataConfig
from pretrain.data.manifest import MANIFEST
from pretrain.prepare import buckets as bk
from pretrain.prepare import jobs, run, work_folder
from pretrain.prepare.annotate import _head, longest_text
from pretrain.prepare.buckets import TEXT_RECORD, RunFile, RunWriter, load_texts, open_runs
from pretrain.prepare.jobs import Job, make_once, run_jobs
from pretrain.prepare.sources.readers import ReadTask
from pretrain.prepare.stages.build import choose
from pretrain.prepare.stages.merge import Merge
from pretrain.prepare.stages.read import _decide
from pretrain.prepare.work_folder import (
    BuiltShards,
    Decision,
    DocumentCounts,
    HashRange,
    PlannedStep,
    PreparationPlan,
    ResolveCounts,
    SentenceCounts,
    ShownPairs,
    sample_of,
)

SALTS = (bk.HELDOUT_SALT, bk.WEIGHT_SALT, bk.SAMPLE_SALT, bk.SEQUENCE_SALT, bk.ORDER_SALT)


def mixed_by_hand(key: int, salt: int) -> int:
    """Apply SplitMix64's finalizer to the key plus the constant of the salt."""
    word = (key + salt * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
    return word ^ (word >> 31)


def test_draws_are_hashes_of_the_key_and_their_salt():
    keys = np.array([0, 1, 77, 2**63, 2**64 - 1], np.uint64)
    assert len(set(SALTS)) == 5 and SALTS == (2, 3, 4, 5, 16)
    for salt in SALTS:
        by_hand = [mixed_by_hand(int(key), salt) for key in keys]
        assert bk.mixed(keys, salt).tolist() == by_hand
        assert bk.fraction(keys, salt).tolist() == [number / 2**64 for number in by_hand]
        for number in by_hand:
            assert bk.is_below(number, number / 2**64 + 1e-9) and not bk.is_below(number, number / 2**64)
    assert bk.text_key(b"abc", 5) == xxhash.xxh3_64_intdigest(b"abc", 5) != bk.text_key(b"abc", 6)
    for count in (1, 3, 1000):
        by_hand = [(int(key) >> 32) * count >> 32 for key in keys]
        assert bk.bucket_of(keys, count).tolist() == by_hand and by_hand[-1] == count - 1


def records_of(count: int, seed: int = 0) -> list[tuple[tuple, bytes]]:
    rng = np.random.default_rng(seed)
    texts = [f"text {n} {'é' * int(rng.integers(9))}".encode() for n in range(count)]
    return [((int(rng.integers(2**63)) * 2, len(text), n % 3, n % 2), text) for n, text in enumerate(texts)]


def test_runs_hold_their_records_by_bucket_in_the_order_in_which_they_came(tmp_path):
    made = records_of(50)
    size = sum(len(text) + 96 for _, text in made[:20])
    writer = RunWriter(tmp_path, "00003", 7, TEXT_RECORD, limit=size)  # reached exactly by twenty
    for number, (record, text) in enumerate(made):
        assert len(list(tmp_path.glob("*.run"))) == (number >= 20)
        writer.add(record, text)
        if number == 20:
            assert [path.name for path in tmp_path.iterdir()] == ["00003-0000.run"]
            writer.limit = 10**9
    writer.flush()
    writer.flush()  # nothing more
    first, second = runs = open_runs(tmp_path, 7, TEXT_RECORD)
    assert [run.path.name for run in runs] == ["00003-0000.run", "00003-0001.run"]
    assert isinstance(first, RunFile) and len(first.records(0, until=7)) == 20
    assert len(second.records(0, until=7)) == 30
    for bucket in range(7):
        wanted = [(r, t) for r, t in made if (r[0] >> 32) * 7 >> 32 == bucket]
        texts = load_texts(runs, bucket)
        assert [tuple(row) for row in texts.records.tolist()] == [record for record, _ in wanted]
        assert [text.encode() for text in texts.decode(range(len(wanted)))] == [text for _, text in wanted]
        assert sum(run.text_bytes(bucket) for run in runs) == sum(len(text) for _, text in wanted)
        parts = [load_texts(runs, bucket, part, 3) for part in range(3)]
        for part, found in enumerate(parts):
            mine = [(r, t) for r, t in wanted if mixed_by_hand(r[0], 1) % 3 == part]
            assert [tuple(row) for row in found.records.tolist()] == [record for record, _ in mine]
            assert found.decode(range(len(mine))) == [text.decode() for _, text in mine]
    empty = load_texts([], 0)
    assert len(empty.records) == len(empty.blob) == len(empty.starts) == 0


def test_a_bucket_is_read_in_as_few_parts_as_its_bound_allows_and_an_empty_one_in_one(tmp_path, monkeypatch):
    work = tmp_path / ".work"
    made = records_of(40)
    writer = RunWriter(work / "texts", "00000", 1, TEXT_RECORD)
    for record, text in made:
        writer.add(record, text)
    writer.flush()
    plan(tmp_path, buckets=1).write(work)
    whole = sum(len(text) for _, text in made)
    for most, parts in ((whole, 1), (whole - 1, 2), (-(-whole // 2), 2), (whole // 3, 4 if whole % 3 else 3)):
        monkeypatch.setattr(work_folder, "BUCKET_BYTES", most)
        found = list(PlannedStep(work).texts_of("texts", 0))
        assert len(found) == parts and sum(len(one.records) for one in found) == 40
    (empty,) = PlannedStep(work).texts_of("nothing", 0)
    assert len(empty.records) == 0


def plan(out, buckets: int = 4, tasks: int = 2, **settings) -> PreparationPlan:
    config = DataConfig(sources=["a.txt", "b.txt@2.5", "c.txt@0.5"], **settings)
    reading = [ReadTask(n % 3, "text", "a.txt", n, tasks, size=100 + n) for n in range(tasks)]
    annotation = {"parser": "p"} if config.annotate else None
    return PreparationPlan(
        config=config, tasks=reading, buckets=buckets, described="a", annotation=annotation
    )


@pytest.mark.parametrize("dedup", ["exact", "none"])
@pytest.mark.parametrize("unit", ["sentence", "document"])
def test_duplicates_go_and_the_rest_is_shown_by_weight(dedup, unit):
    """By brute force: key by key, a held-out copy first; the number of a duplicate is part of its draw."""
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 2**63, 60).astype(np.uint64)
    rows = [(keys[rng.integers(60)], 5, rng.integers(3), rng.random() < 0.2) for _ in range(200)]
    records = np.array(rows, TEXT_RECORD)
    config, counts = plan(None, dedup=dedup, unit=unit).config, Counter()
    chosen = choose(records, config, counts)
    weights, expected, dropped, left_out, repeated = [1.0, 2.5, 0.5], [], 0, 0, 0
    for key in sorted(set(records["key"].tolist())):
        same = [n for n in range(200) if records["key"][n] == key]
        same.sort(key=lambda n: (1 - int(records["heldout"][n]), n))
        for place, row in enumerate(same):
            if place and (dedup == "exact" or records["heldout"][same[0]]):
                dropped += 1
                continue
            weight = weights[records["source"][row]]
            coin = mixed_by_hand((key + place) % 2**64, bk.WEIGHT_SALT) / 2**64
            copies = int(weight) + (coin < weight % 1)
            copies = min(copies, 1) if records["heldout"][row] else copies
            left_out += not copies
            repeated += max(0, copies - 1)
            if copies:
                expected.append((row, copies, place))
    assert list(zip(chosen.rows.tolist(), chosen.copies.tolist(), chosen.place.tolist())) == expected
    name = f"{unit}s" if unit == "sentence" else "documents"
    assert counts == {
        f"{name}_duplicate": dropped,
        f"{name}_left_out_by_weight": left_out,
        f"{name}_repeated_by_weight": repeated,
    }
    shown = dict(chosen.shuffled())
    for number, split in enumerate(("train", "heldout")):
        found = Counter(chosen.rows[shown[split]].tolist())
        assert found == {row: copies for row, copies, _ in expected if records["heldout"][row] == number}
    train = shown["train"].tolist()
    assert train != sorted(train) and len(train) > 50
    orders = set()
    for number, index in enumerate(train):
        row, copy = int(chosen.rows[index]), train[:number].count(index)
        first = mixed_by_hand(int(records["key"][row]), bk.ORDER_SALT)
        orders.add(mixed_by_hand((first + copy + (int(chosen.place[index]) << 20)) % 2**64, 0))
    assert len(orders) == len(train)  # each copy has a place of its own


def test_what_is_parsed_of_a_long_text_ends_before_a_word():
    assert [_head("ab cd ef", n) for n in (8, 7, 6, 5, 4, 3, 2, 1)] == [
        "ab cd ef", "ab cd", "ab cd", "ab cd", "ab", "ab", "ab", "a",
    ]  # fmt: skip
    assert _head("abcdef", 3) == "abc" and _head(" abcdef", 3) == " ab"
    assert [longest_text(n) for n in (8, 1023, 1024, 5000)] == [512, 65472, 65535, 65535]


@pytest.mark.parametrize(
    ("ranges", "decision"),
    [
        ([], None),
        ([(None, None)], None),
        ([((1, 11), (9, 19))], None),  # below and above the share of one half
        ([((1, 11), (2, 12)), ((3, 13), (4, 14))], (14, False, False)),
        ([((6, 16), (7, 17)), (None, None), ((5, 15), (9, 19))], (15, False, True)),
        ([((1, 11), (1, 11))], (11, True, False)),
        ([((7, 17), (7, 17))], (17, True, False)),
        ([((1, 11), (1, 11)), ((2, 12), (2, 12))], (12, False, False)),
    ],
)
def test_a_split_without_text_gets_a_document_or_sentences_of_one(ranges, decision):
    def scaled(pair):
        return pair and (pair[0] * 2**64 // 10, pair[1])

    given = [HashRange(smallest=scaled(low), largest=scaled(high)) for low, high in ranges]
    found = _decide(given, 0.5)
    wanted = decision and Decision(key=decision[0], cut=decision[1], heldout=decision[2])
    assert found == wanted


def test_ranges_and_samples_are_those_of_all_they_are_given(tmp_path):
    found = HashRange()
    for number, key in ((5, 1), (3, 9), (3, 4), (8, 2), (8, 7)):
        found.add(number, key)
    assert (found.smallest, found.largest) == ((3, 4), (8, 7))
    pairs = [(f"a{n}", f"b{n % 7}") for n in range(40)]
    hashes = {pair: xxhash.xxh3_64_intdigest("\n".join(pair).encode(), 0) for pair in pairs}
    assert sample_of(pairs, 9) == sorted(pairs, key=hashes.get)[:9] and len(sample_of(pairs)) == 40
    for rank, some in enumerate((pairs[:20], pairs[20:])):
        ShownPairs({"title": some[:9], f"kind{rank}": some[:2]}).write(tmp_path, rank)
    few = ShownPairs.few(tmp_path)
    assert few["title"] == sample_of([*pairs[:9], *pairs[20:29]], 5) and len(few["kind1"]) == 2


# -- plans and stages --------------------------------------------------------


SIZES = {"read": [100, 101], "tokenizer": [2], "build": [50] * 4}


@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        ({}, ["read", "heldout", "tokenizer", "build", "merge"]),
        ({"heldout": 0}, ["read", "tokenizer", "build", "merge"]),
        ({"unit": "record"}, ["read", "heldout", "columns", "tokenizer", "build", "merge"]),
        ({"unit": "sequence"}, ["read", "heldout", "drop", "tokenizer", "build", "shuffle", "merge"]),
        ({"unit": "document", "heldout": 0}, ["read", "tokenizer", "build", "shuffle", "merge"]),
        (
            {"dedup": "minhash"},
            ["signatures", "pairs", "clusters", "read", "heldout", "tokenizer", "build", "merge"],
        ),
        ({"annotate": "p"}, ["read", "heldout", "tokenizer", "build", "merge"]),
    ],
)
def test_a_preparation_has_the_stages_that_its_unit_needs(settings, stages, tmp_path):
    made = run._jobs(plan(tmp_path, **settings), tmp_path / ".work")
    assert [job.name for job in made] == stages
    sizes = {job.name: job.sizes for job in made}
    assert sizes["read"] == [100, 101] and sizes["tokenizer"] == [2] and sizes["merge"] == [1]
    assert sizes["build"] == ([100] * 4 if "annotate" in settings else [50] * 4)
    assert sizes.get("shuffle", [50] * 4) == [50] * 4 and sizes.get("drop", [1] * 4) == [1] * 4
    assert (sizes.get("signatures", [1, 1]), sizes.get("pairs", [1] * 14)) == ([1, 1], [1] * 14)
    kinds = {job.name: [type(step).__name__ for step in job.steps] for job in made}
    reading = ["ScatterRecords"] if settings.get("unit") == "record" else ["ReadSource", "Scatter"]
    if "dedup" in settings:
        reading.insert(1, "MinhashDedupFilter")
    assert kinds["read"] == reading
    titles = {job.name: job.title for job in made}
    assert titles["build"].startswith(
        "parse" if "annotate" in settings else "pack" if "shuffle" in kinds else "write"
    )


@pytest.mark.parametrize(
    ("size", "buckets"),
    [
        (0, 1),
        (4 << 20, 1),
        ((4 << 20) + 1, 2),
        (16 * (4 << 20), 16),
        (16 * 64_000_000, 16),
        (17 * 64_000_000, 17),
        (10**12, 1024),
    ],
)
def test_buckets_are_for_sixteen_tasks_and_bounded(size, buckets, tmp_path):
    (tmp_path / "a").touch()
    task = ReadTask(0, "text", str(tmp_path / "a"), 0, 1, size=size)
    made = run._plan(DataConfig(sources=["a", "b@2"]), [task], tmp_path)
    assert made.buckets == buckets and made.described == "a, b" and made.preparation == run.PREPARATION
    content = json.loads((tmp_path / "plan.json").read_text())
    del content["preparation"]  # as before there were versions
    assert PreparationPlan.model_validate(content).preparation == 1
    assert PreparationPlan.read(tmp_path) == made and run._plan(made.config, [task], tmp_path) == made


def test_another_config_is_named_by_its_first_key(tmp_path):
    before = DataConfig(sources=["a.txt", "b.txt"]).model_dump(mode="json")
    now = DataConfig(sources=["a.txt@2", "b.txt"], max_length=32).model_dump(mode="json")
    with pytest.raises(
        UserError, match=r"sources\[1\]\.weight is 1\.0 there and 2\.0 now \(1 more keys differ\)"
    ):
        run._refuse_other_config(tmp_path, before, now, "holds data")
    with pytest.raises(UserError, match="max_length is None there and 64 now"):
        run._refuse_other_config(tmp_path, {"max_len": 3}, {"max_length": 64}, "holds data")
    old = {key: value for key, value in before.items() if key not in ("min_prose", "annotate")}
    run._refuse_other_config(tmp_path, old, before, "holds data")


class Step:
    """A step of a stage that notes what it was given."""

    def __init__(self, done: list, gives=None):
        self.done, self.gives = done, gives

    def __deepcopy__(self, memo):
        return self

    def run(self, stream, rank, tasks):
        self.done.append((stream if self.gives is None else None, rank, tasks))
        return self.gives


def test_tasks_that_are_finished_are_not_done_again(tmp_path):
    done = []
    stages = [
        Job("one", "first", [5, 6, 7], [Step([], "from before"), Step(done)]),
        Job("two", "2nd", [1], [Step(done)]),
    ]
    (tmp_path / "logs" / "one" / "completions").mkdir(parents=True)
    (tmp_path / "logs" / "one" / "completions" / "00001").touch()
    assert run_jobs(stages, tmp_path, 1, progress=False) > 10**7
    assert done == [("from before", 0, 3), ("from before", 2, 3), (None, 0, 1)]
    marks = sorted(path.name for path in (tmp_path / "logs" / "one" / "completions").iterdir())
    assert marks == ["00000", "00001", "00002"]
    shown = []
    finished = tmp_path / "logs" / "one" / "completions"
    jobs._run_job(stages[0], finished, 1, lambda job, size, earlier: shown.append((size, earlier)))
    assert shown == [(18, True)] and len(done) == 3
    shown.clear()
    jobs._run_job(stages[0], tmp_path / "anew", 1, lambda job, size, earlier: shown.append((size, earlier)))
    assert shown == [(5, False), (6, False), (7, False)]


@dataclass
class KillsAWorker:
    """Kills the first or the last worker, at its work or after it; the other's task takes a minute."""

    notes: Path
    last: bool
    idle: bool

    def run(self, stream, rank, tasks):
        files.replace(self.notes / str(rank), str(os.getpid()).encode())
        wait_for(lambda: len(list(self.notes.glob("?"))) == tasks, [])
        victim = sorted(int(note.read_text()) for note in self.notes.glob("?"))[-self.last]
        if (os.getpid() == victim) != self.idle:
            time.sleep(0.5)
            os.kill(victim, signal.SIGKILL)
        if os.getpid() != victim:
            time.sleep(60)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("idle", [False, True])
def test_a_killed_worker_ends_the_others_at_once(tmp_path, last, idle):
    (notes := tmp_path / "notes").mkdir()
    stage = Job("one", "first", [1, 1], [KillsAWorker(notes, last, idle)])
    began = time.monotonic()
    with pytest.raises(UserError, match="stage one was killed"):
        run_jobs([stage], tmp_path, 2, progress=False)
    assert time.monotonic() - began < 45


def test_tasks_run_from_another_thread_too(tmp_path):
    stage = Job("one", "first", [1, 1], [Step([])])
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run_jobs, [stage], tmp_path, 2, progress=False).result() > 10**7
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()


def test_a_folder_is_made_once_and_says_how(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "read_manifest", lambda out: json.loads((out / MANIFEST).read_text()))
    out, made = tmp_path / "out", []

    class Finish(Step):
        def run(self, stream, rank, tasks):
            made.append(rank)
            (out / MANIFEST).write_text("{}")

    def find():
        return json.loads((out / MANIFEST).read_text()) if (out / MANIFEST).is_file() else None

    def make(workers=1):
        return make_once(out, workers, find, lambda work: [Job("only", "t", [1], [Finish([])])], False)

    about = make()["run"]
    assert about["workers"] == 1 and about["resumed"] is False and about["seconds"] >= 0
    assert about["peak_task_bytes"] > 10**7 and about["finished"].endswith("Z")
    assert not (out / ".work").exists() and made == [0] and find()["run"] == about
    (out / ".work").mkdir()
    with folder_lock(out):
        assert make() == find() and (out / ".work").is_dir()  # its owner tidies up
    assert make() == find() and not (out / ".work").exists() and made == [0]
    (out / MANIFEST).unlink()
    (out / ".work").mkdir()
    assert make(None)["run"]["resumed"] is True and made == [0, 0]


@pytest.mark.parametrize("ended", [None, "logs/read/completions/00000", "counts/read/00000.json"])
@pytest.mark.parametrize("is_new", [True, False])
def test_what_is_refused_before_a_task_has_ended_leaves_nothing(ended, is_new, tmp_path):
    out = tmp_path / "out"
    if not is_new:
        out.mkdir()

    def refuse(work):
        if ended:
            (work / ended).parent.mkdir(parents=True)
            (work / ended).touch()
        raise UserError("no such text")

    with pytest.raises(UserError, match="no such text"):
        make_once(out, 1, lambda: None, refuse, False)
    assert (out / ".work").is_dir() == bool(ended) and out.is_dir() == (bool(ended) or not is_new)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--out .*file/x cannot be made: .* Choose another folder"):
        make_once(tmp_path / "file" / "x", 1, lambda: None, refuse, False)


def test_a_split_that_came_out_empty_is_refused(tmp_path):
    work = tmp_path / ".work"
    plan(tmp_path).write(work)
    shard = {"file": "f", "chunks": [[0, 9, 3, 12, "h"], [9, 9, 4, 20, "h"]]}
    BuiltShards(counts={}, shards={"heldout": shard}).write(work, 1)
    with pytest.raises(UserError, match="No training sequence came out of a; check min_words"):
        Merge(work)._summaries()
    BuiltShards(counts={}, shards={"train": shard}).write(work, 1)
    with pytest.raises(UserError, match="No held-out sequence in a: more text, or --heldout 0"):
        Merge(work)._summaries()
    BuiltShards(counts={}, shards={"train": shard | {"file": "e"}}).write(work, 0)
    plan(tmp_path, heldout=0).write(work)
    found = Merge(work)._summaries()
    assert found["heldout"] == {"sequences": 0, "tokens": 0, "chunks": 0, "shards": []}
    train = found["train"]
    assert (train["sequences"], train["tokens"], train["chunks"]) == (14, 64, 4)
    assert [one["file"] for one in train["shards"]] == ["e", "f"]


def test_counts_of_all_tasks_are_added_up_and_what_deduplication_took_is_told(tmp_path):
    work = tmp_path / ".work"
    for rank in (0, 1):
        DocumentCounts({"documents_read": 10 + rank, "faults": 1}).write(work, rank)
        SentenceCounts({"documents": 7, "sentences": 30}).write(work, rank)
        ResolveCounts({"heldout_sentences_in_train": 2}).write(work, rank)
        BuiltShards(counts={"sentences_duplicate": 4}, shards={}).write(work, rank)
    added = {"faults": 2, "documents": 14, "sentences": 60, "heldout_sentences_in_train": 4}
    plan(tmp_path).write(work)
    assert Merge(work)._counts() == added | {"sentences_duplicate": 8, "documents_near_duplicate": 7}
    plan(tmp_path, unit="record").write(work)
    assert Merge(work)._counts() == added | {"sentences_duplicate": 8, "documents_read": 21}


def test_a_killed_process_is_told_from_an_end(capsys):
    from pretrain.prepare.__main__ import _terminate

    with pytest.raises(SystemExit) as ended:
        _terminate(15, None)
    assert ended.value.code == 143 and "run the same command again" in capsys.readouterr().err


def test_the_data_keys_of_recipes_of_both_kinds(tmp_path):
    from pretrain.prepare.__main__ import _recipe, source_keys

    for text, found in (
        ("unit: record\n", {"unit": "record"}),
        ("data: {prepare: {unit: record}, lanes: 4}\n", {"unit": "record"}),
        ("data: {lanes: 4}\n", {}),
        ("data: {prepare: null}\n", {}),
    ):
        (tmp_path / "r.yaml").write_text(text)
        assert _recipe(tmp_path / "r.yaml") == found
    said = source_keys()
    assert "text_key" in said and "wikipedia  hub:wikimedia/wikipedia, 20231101.en" in said
