"""Parts of reading data at their edges: manifests, shards, copies from afar, caches, workers, tokenizers."""

import errno
import hashlib
import itertools
import json
import os
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import requests
from loader_helpers import SIZE, VOCABULARY, make_loader, some_sequences, write_folder

from pretrain.common.errors import UserError
from pretrain.config.run import Config
from pretrain.data import processes, remote
from pretrain.data.batch import NEGATIVE, BatchSpec, ViewSpec, column_of, number_of_labels
from pretrain.data.chunk_cache import ChunkCache
from pretrain.data.damage import describe_record, describe_substitution, known_damaged
from pretrain.data.lanes import Lanes
from pretrain.data.loader import LoaderSettings, Position, _split_lanes, require_negatives
from pretrain.data.manifest import outdated, preparation_of, read_manifest
from pretrain.data.masking import Masking
from pretrain.data.processes import WorkerProcesses
from pretrain.data.shard_writer import chunk_bounds, naming_full_disk, token_dtype
from pretrain.data.shards import DamagedShard, MixedShardReader, ShardReader
from pretrain.data.worker import build_for, labels_of, synonyms_for


@pytest.fixture
def data(tmp_path):
    sequences = {"train": some_sequences(200), "heldout": some_sequences(20, seed=1)}
    write_folder(tmp_path / "data", sequences, SIZE, 40, chunk_tokens=400, chunks_per_shard=1)
    return tmp_path / "data"


# -- manifests -------------------------------------------------------------


def test_what_a_manifest_may_not_say_is_named(data):
    good = json.loads((data / "manifest.json").read_text())

    def fault(change) -> str:
        manifest = json.loads(json.dumps(good))
        change(manifest)
        (data / "manifest.json").write_text(json.dumps(manifest))
        try:
            read_manifest(data)
        except UserError as error:
            return str(error)
        return ""

    shard = good["splits"]["train"]["shards"][0]
    assert fault(lambda m: None) == "" == fault(lambda m: m.update(more=1, labels=2**31 - 1))
    assert "labels" in fault(lambda m: m.update(labels=2**31)) and "labels" in fault(
        lambda m: m.update(labels=-1)
    )
    for columns in ([], ["positive", "text"], ["text", "text"]):
        assert "'text' first, and no name twice" in fault(lambda m, c=columns: m.update(columns=c))
    assert fault(lambda m: m.update(columns=["text", "positive"])) == ""
    for name in ("sequences", "tokens", "chunks"):
        told = good["splits"]["train"][name]
        said = fault(lambda m, n=name, t=told: m["splits"]["train"].update({n: t + 1}))
        assert f"{name} is {told + 1:,}, and the chunks listed have {told:,}" in said
    size = shard["chunks"][0][0] + shard["chunks"][0][1]
    assert fault(lambda m: m["splits"]["train"]["shards"][0].update(bytes=size)) == ""
    said = fault(lambda m: m["splits"]["train"]["shards"][0].update(bytes=size - 1))
    assert f"shard-00000.tar: chunk 0 ends at byte {size:,} of {size - 1:,}" in said
    assert "max_length" in fault(lambda m: m.update(max_length=0)) and "unit" in fault(
        lambda m: m.update(unit="x")
    )
    assert "(got 'many')" in fault(lambda m: m.update(max_length="many"))
    for key, of in (("max_length", lambda m: m), ("bytes", lambda m: m["splits"]["train"]["shards"][0])):
        assert fault(lambda m, k=key, o=of: o(m).update({k: 2**62 - 1})) == ""
        for outside in (2**62, -1):
            assert key in fault(lambda m, k=key, o=of, n=outside: o(m).update({k: n}))
    keys = ("unit", "max_length", "vocabulary_size", "token_dtype", "tokenizer", "tokenizer_hash", "splits")
    for count in (5, 6, 7):
        said = fault(lambda m, n=count: [m.pop(key) for key in keys[:n]])
        assert said.count(": Field required") == 5 and (f"; and {count - 5} more" in said) == (count > 5)
        assert "got" not in said
    for scores, fine in (([0.0, 1.0], True), ([0.0], False), ([0.0, 1.0, 2.0], False)):
        assert (fault(lambda m, s=scores: m.update(scores=s)) == "") is fine
    (data / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"it has no manifest\.json\. Prepare it: clearly prepare --out"):
        read_manifest(data)
    (data / ".work").mkdir()
    with pytest.raises(UserError, match="its preparation did not finish; run it again"):
        read_manifest(data)


def test_data_of_an_earlier_version_are_told(tmp_path):
    given = [({}, None), ({"config": {"a": 1}}, 1), ({"cache": {"a": 1}}, 1), ({"preparation": 3}, 3)]
    assert [preparation_of(manifest) for manifest, _ in given] == [version for _, version in given]
    assert outdated("d", {}) is None and outdated("d", {"preparation": 9}) is None
    said = outdated("d", {"preparation": 6})
    assert "d was prepared by an earlier version (6, this is 9)" in said and "--overwrite" in said
    assert "clearly cache" in outdated("d", {"cache": {"a": 1}})


# -- shards ------------------------------------------------------------------


def test_some_files_are_open_at_a_time_and_none_after_an_end(data, tmp_path):
    reader = ShardReader(data)
    write_folder(
        tmp_path / "many", {"train": some_sequences(300)}, SIZE, 40, chunk_tokens=64, chunks_per_shard=1
    )
    many = ShardReader(tmp_path / "many")
    assert many.num_chunks > 70
    for chunk in range(70):
        many.read(chunk)
        assert len(many._open) == min(chunk + 1, 64)
    first = many._open.copy()
    many.read(69)
    assert many._open == first and 0 not in first
    many.close()
    assert many._open == {} and many.read(3).stored == ShardReader(tmp_path / "many").read(3).stored
    path = data / "train" / "shard-00002.tar"
    path.unlink()
    path.mkdir()
    with pytest.raises(DamagedShard, match=r"shard-00002\.tar, chunk 2: cannot be read \(Is a directory\)"):
        reader.read(2)
    mixed = MixedShardReader([many, reader], [1, 3])
    assert mixed.shares == [0.25, 0.75] and mixed.num_chunks == many.num_chunks + reader.num_chunks
    mixed.close()
    assert many._open == reader._open == {}


@pytest.mark.parametrize("size", [1, 7, 64, 100])
def test_a_chunk_ends_with_the_sequence_that_fills_it(size):
    lengths = np.random.default_rng(size).integers(1, 30, 60)
    bounds, total = [0], 0
    for number, length in enumerate(lengths):
        if number and (total + length - 1) // size != (total - 1) // size:
            bounds.append(number)
        total += length
    assert chunk_bounds(lengths, size).tolist() == [*bounds, 60]
    assert [token_dtype(n) for n in (1, 65536, 65537)] == ["uint16", "uint16", "int32"]


@pytest.mark.parametrize(
    ("number", "of_disk"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False)]
)
def test_a_full_disk_is_told_from_other_errors(number, of_disk, tmp_path):
    kind, said = (UserError, "it continues") if of_disk else (OSError, "x")
    with pytest.raises(kind, match=said), naming_full_disk(tmp_path):
        raise OSError(number, "x")


# -- from afar -----------------------------------------------------------------


def test_a_file_is_tried_seven_times_with_longer_and_longer_waits(monkeypatch):
    waits, limits, answers = [], [], []
    monkeypatch.setattr(remote.time, "sleep", waits.append)
    monkeypatch.setattr(remote.random, "uniform", lambda low, high: (low + high) / 2)
    monkeypatch.setattr(remote, "within", lambda seconds, act, said: limits.append(seconds) or act())
    monkeypatch.setattr(remote, "_read_once", lambda place, most: answers.append(most) or b"[")
    with pytest.raises(UserError, match=r"here cannot be read: what comes is damaged \(7 tries\)"):
        remote._read("here")
    assert waits == [0.5, 1, 2, 4, 8, 16] and limits == [120.0] * 7 and answers == [1 << 30] * 7
    monkeypatch.setattr(remote, "TRIES", 10)
    waits.clear()
    shard = {"bytes": 3_000_000, "sha256": hashlib.sha256(b"good").hexdigest()}
    with pytest.raises(UserError, match="10 tries"):
        remote._read("here", shard)
    assert waits[5:] == [16, 30, 30, 30] and limits[-1] == 150.0 and answers[-1] == 3_000_000
    monkeypatch.setattr(remote, "_read_once", lambda place, most: b"good")
    waits.clear()
    assert remote._read("here", shard) == b"good" and waits == []
    monkeypatch.setattr(remote, "_read_once", lambda place, most: b'{"a": 1}')
    assert remote._read("here") == b'{"a": 1}'

    def fail(place, most):
        raise OSError("no\n  route " + "x" * 500)

    monkeypatch.setattr(remote, "_read_once", fail)
    with pytest.raises(UserError) as refused:
        remote._read("here")
    assert "no route xxx" in str(refused.value) and len(str(refused.value)) < 500


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 405, 410, 429, 500, 503])
def test_which_answers_are_final_and_how_much_is_read(status, monkeypatch):
    class Answer:
        status_code, reason = status, "Because"

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def raise_for_status(self):
            if status >= 400:
                raise requests.HTTPError("later")

        def iter_content(self, size):
            yield from (b"x" * 10, b"y" * 10)

    asked = []
    monkeypatch.setattr(requests, "get", lambda place, **how: asked.append(how) or Answer())
    if status == 200:
        assert remote._read_once("https://a/b", 20) == b"x" * 10 + b"y" * 10
        assert asked == [{"timeout": (10.0, 30.0), "stream": True}]
        with pytest.raises(remote.Unreachable, match="sends more than 19 bytes"):
            remote._read_once("http://a/b", 19)
    elif status in (400, 401, 403, 404, 405, 410):
        with pytest.raises(remote.Unreachable, match=f"answers {status} Because"):
            remote._read_once("http://a/b", 20)
    else:
        with pytest.raises(OSError, match="later"):
            remote._read_once("http://a/b", 20)


def test_what_is_there_is_not_copied_again(data, tmp_path, monkeypatch):
    read, real = [], remote._read
    monkeypatch.setattr(remote, "_read", lambda place, shard=None: read.append(place) or real(place, shard))
    (data / "tokenizer").mkdir()
    (data / "tokenizer" / "tokenizer.json").write_text("{}")
    url, copy = f"file://{data}", tmp_path / "copy"
    remote.copy_prepared(f"{url}/", copy)
    assert read[0] == f"{url}/manifest.json" and len(read) > 10
    assert not (copy / "tokenizer" / "tokenizer_config.json").exists()
    assert (copy / "tokenizer" / "tokenizer.json").read_text() == "{}"
    read.clear()
    remote.copy_prepared(url, copy)
    assert read == [f"{url}/manifest.json"]
    shard = copy / "train" / "shard-00001.tar"
    shard.write_bytes(shard.read_bytes()[:-1])
    (copy / "manifest.json").unlink()
    read.clear()
    remote.copy_prepared(url, copy)
    assert [place for place in read if place.endswith(".tar")] == [f"{url}/train/shard-00001.tar"]
    assert (copy / "manifest.json").read_bytes() == (data / "manifest.json").read_bytes()


# -- a cache of chunks, and damage -----------------------------------------------


def test_the_chunk_that_was_used_longest_ago_goes_first(data):
    reader = ShardReader(data)
    cache = ChunkCache(reader, 2, SIZE)

    def there():
        return {chunk for chunk in range(reader.num_chunks) if chunk in cache}

    for chunk, left in ((0, {0}), (1, {0, 1}), (0, {0, 1}), (2, {0, 2}), (3, {2, 3})):
        cache.load(chunk, {chunk})
        assert there() == left and cache.slots == 2
    cache.load(4, {2, 4})
    assert there() == {2, 4}
    cache.load(5, {2, 4, 5})  # all are needed: it grows
    assert there() == {2, 4, 5} and cache.slots == 3
    for chunk in (2, 4, 5):
        content, count = reader.read(chunk), int(reader.chunk_sizes[chunk])
        places = cache.places(np.full(count, chunk), np.arange(count))
        assert cache.gather(places) == content.stored
        assert np.array_equal(cache.numbers(places), content.sequence_ids)
    big = ChunkCache(reader, 8, SIZE)
    for chunk in range(9):
        big.load(chunk, set(range(9)))
    assert big.slots == 10 and ChunkCache(reader, 999, SIZE).slots == reader.num_chunks
    top = max(int(reader.read(chunk).stored.ids.max()) for chunk in range(reader.num_chunks))
    every = ChunkCache(reader, 1, top + 1)
    with pytest.raises(UserError, match=f"holds token {top}: use the tokenizer"):
        few = ChunkCache(reader, 1, top)
        for chunk in range(reader.num_chunks):
            every.load(chunk, {chunk})
            few.load(chunk, {chunk})


def test_records_of_damage_are_described(data):
    rows = [
        {"chunk": n, "reason": f"r{n}", "passed": [n + 100], "lane": 1, "replacement": 9, "step": 3}
        for n in range(11)
    ]
    known = known_damaged(rows)
    assert known[3] == "r3" and "recorded as damaged earlier" in known[103] and len(known) == 22
    assert (
        known_damaged([{"chunk": 5, "reason": "own"}, {"chunk": 6, "reason": "x", "passed": [5]}])[5] == "own"
    )
    said = describe_substitution(rows[2])
    assert "chunk 2 is damaged (r2): lane 1 reads chunk 9 in its place from step 4 on" in said
    reader = SimpleNamespace(folder=data, split="train")
    assert describe_record(reader, []) is None
    assert "and 2 more. A new run" in describe_record(reader, rows)
    said = describe_record(reader, rows[:10], "left out")
    listed = ", ".join(map(str, [*range(10), *range(100, 110)]))
    assert (
        f"20 damaged chunk(s) of {data}/train" in said
        and f"left out, also if they have been repaired: {listed}. A" in said
    )


# -- the loader ------------------------------------------------------------------


@pytest.mark.parametrize("workers", range(7))
@pytest.mark.parametrize(("start", "stop"), [(0, 1), (3, 8), (2, 14)])
def test_lanes_are_split_evenly_among_a_divisor_of_the_workers(workers, start, stop):
    groups = _split_lanes(start, stop, workers)
    count = max(n for n in range(1, max(workers, 1) + 1) if max(workers, 1) % n == 0 and n <= stop - start)
    assert len(groups) == count and groups[0][0] == start and groups[-1][1] == stop
    assert all(a[1] == b[0] for a, b in itertools.pairwise(groups))
    assert {b - a for a, b in groups} <= {(stop - start) // count, -(-(stop - start) // count)}


def test_settings_of_the_loader_are_those_of_the_run():
    tree = {"train": {"seed": 7, "global_batch": 48, "batch_warmup_steps": 5, "batch_start": 16},
            "data": {"lanes": 8, "workers": 3, "no_duplicates": True}}  # fmt: skip
    found = LoaderSettings.of(Config.model_validate(tree))
    assert found == LoaderSettings(7, 48, 8, 3, "refuse", 16, 5, True)
    assert LoaderSettings.of(Config(data={"damaged": "skip"})).damaged == "skip"
    assert Position(3, 9, jumps=[(0, 3), (5, 6), (8, 20)]).spans == [(3, 5), (6, 8)]
    assert Position(3, 9, jumps=[(2, 10)]).spans == [] and Position(3, 3).spans == []


def test_blocks_have_some_thousand_sequences_and_not_too_many_tokens(data, monkeypatch):
    monkeypatch.setattr("pretrain.data.loader.BLOCK_SEQUENCES", 4096)

    def steps(workers=0, **more):
        return make_loader(data, workers=workers, **more).block_steps

    assert (
        steps() == -(-4096 // 48)
        and steps(workers=2) == -(-4096 // 24)
        and steps(global_batch=8, lanes=8) == 512
    )
    reader = ShardReader(data)
    length = reader.num_tokens / reader.num_sequences
    monkeypatch.setattr("pretrain.data.loader.BLOCK_TOKENS", int(3.5 * 48 * length))
    assert steps() == 3
    monkeypatch.setattr("pretrain.data.loader.BLOCK_TOKENS", 1)
    assert steps() == 1


def test_views_that_do_not_go_with_the_data_are_refused(data):
    reader = ShardReader(data)
    for view in (ViewSpec("negative", "none"), ViewSpec("negative2", "none")):
        with pytest.raises(UserError, match="has no column 'negative'"):
            require_negatives(reader, [ViewSpec("anchor", "none"), view])
    require_negatives(reader, [ViewSpec("anchor", "none"), ViewSpec("negative", "del-word")])
    require_negatives(SimpleNamespace(columns=("text", NEGATIVE), folder="d"), [ViewSpec("negative", "none")])
    two = [ViewSpec(role, "crop|none", labelled=True) for role in ("a", "b")]
    with pytest.raises(UserError, match="the views a, b are all labelled: leave one"):
        make_loader(data, views=two)
    make_loader(data, views=two[:1], max_length=40)
    with pytest.raises(
        UserError, match=r"has 40 tokens per sequence: raise model\.max_positions.*max_length 39"
    ):
        make_loader(data, views=two[:1], max_length=39)
    assert [column_of(name) for name in ("positive12", "a2b", "text")] == ["positive", "a2b", "text"]
    assert number_of_labels(two[0], SimpleNamespace(labels=0)) == 2
    assert number_of_labels(two[0], SimpleNamespace(labels=7)) == 7
    prompts = {"positive": np.array([1]), "negative2": np.array([2])}
    spec = BatchSpec([], Masking(), VOCABULARY, prompts=prompts)
    assert (
        spec.prompt("positive3") is prompts["positive"] and spec.prompt("negative2") is prompts["negative2"]
    )
    assert spec.prompt("negative") is None and spec.prompt("anchor") is None


def test_labels_are_the_numbers_of_what_was_taken_or_none():
    view = ViewSpec("augmented", "crop|reorder|crop|none", labelled=True)
    taken, changed = np.array([0, 1, 2, 3, 1]), np.array([True, True, True, True, False])
    assert labels_of(view, taken, changed).tolist() == [0, 1, 0, 2, 2]
    assert synonyms_for(["crop", "none"], "/no/such/table", None, VOCABULARY) is None
    for annotation, said in ((None, "with --annotate MODEL"), ({"texts": "cut"}, "has cut texts")):
        with pytest.raises(UserError, match=said):
            build_for(SimpleNamespace(annotation=annotation, folder="d"), "pi", VOCABULARY, None)


def test_a_corpus_whose_chunks_are_all_damaged_is_given_up(data):
    loader = make_loader(data, damaged="skip")
    for path in (data / "train").iterdir():
        path.unlink()
    with pytest.raises(UserError, match=r"chunk \d+ is damaged, and 100 others: restore them"):
        next(iter(loader))
    assert isinstance(loader.lanes, Lanes)


# -- workers ---------------------------------------------------------------------


class CannotTravel(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def test_an_error_of_a_worker_arrives_as_it_was_or_as_its_text():
    for error, kind in (
        (UserError("no"), UserError),
        (KeyError("x"), KeyError),
        (CannotTravel(1, 2), RuntimeError),
    ):
        try:
            raise error
        except Exception as raised:
            failure = pickle.loads(pickle.dumps(processes._Failure(raised)))
        assert type(failure.error) is kind and "Traceback" in failure.trace
    assert str(failure.error) == "CannotTravel: 1"


class Maker:
    def __init__(self, error=None):
        self.error = error

    def make(self, *item):
        if item[0] == 2 and self.error == "exit":
            os._exit(7)
        if item[0] == 2 and self.error:
            raise self.error
        return item


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_blocks_come_in_order_from_workers_in_turn(workers):
    made = WorkerProcesses(Maker(), [(n, n + 1, 0, 1) for n in range(7)], workers)
    assert iter(made) is made and [next(made)[0] for _ in range(7)] == list(range(7))
    with pytest.raises(EOFError):  # an end that was not asked for
        next(made)
    made.close()


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (UserError("no such"), UserError, "^no such$"),
        (KeyError("bug"), KeyError, "bug"),
        ("exit", UserError, r"loader worker \d+ ended with status 7.*--data\.workers 1 \(now 2\)"),
    ],
)
def test_an_error_of_a_worker_ends_the_blocks_there(error, kind, said):
    made = WorkerProcesses(Maker(error), [(n, n + 1, 0, 1) for n in range(7)], 2)
    with pytest.raises(kind, match=said) as raised:
        for number in range(7):
            assert next(made)[0] == number < 2
    notes = getattr(raised.value, "__notes__", [])
    assert bool(notes) == (kind is KeyError) and all(
        "In a loader worker:\nTraceback" in note for note in notes
    )
    made.close()
