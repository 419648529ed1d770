"""Prepared data on a server that stalls, drops, cuts, corrupts and says 503, read through a small cache."""

import base64
import os
import pickle
import shutil
import threading
import time

import fsspec
import numpy as np
import pytest
from forked_python import run_python
from range_server import FAULTS, RangeServer
from run_helpers import command, curve, environment, finish, fork, start, status_of

from augment.core import waiting
from pretrain import api
from pretrain.common.credentials import require_no_credentials, without_credentials
from pretrain.common.errors import UserError
from pretrain.data.remote import mirror as remote
from pretrain.data.remote.mirror import (
    Place,
    RemoteChunks,
    Retries,
    Transport,
    Unreachable,
    chunks_of,
    mirror,
)
from pretrain.data.shards import DamagedShard, ShardReader
from pretrain.export.push import Upload

QUICK = Retries(tries=4, first=0.001, longest=0.01)
ENOUGH = 10**9


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(remote, "STALL_SECONDS", 0.3)


def contents(reader):
    return [
        (chunk.stored, chunk.sequence_ids.tolist()) for chunk in map(reader.read, range(reader.num_chunks))
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_passes_is_tried_again(tiny_data, tmp_path, fault):
    with RangeServer(tiny_data) as server:
        mirror(server.url, tmp_path / "m", ENOUGH, QUICK)
        reader, local = ShardReader(tmp_path / "m"), ShardReader(tiny_data)
        shard = reader.manifest["splits"]["train"]["shards"][0]["file"]
        server.faults[shard] = [fault, fault]
        reader._remote.transport.retries = QUICK
        assert contents(reader) == contents(local)
        assert server.met[fault] == 2 and server.requests[shard] == local.num_chunks + 2


@pytest.mark.parametrize(
    "fault, why", [("503", "503"), ("stall", "timed out"), ("corrupt", "sha256"), ("cut", "bytes came")]
)
def test_what_does_not_pass_is_a_damaged_chunk_that_names_the_place(tiny_data, tmp_path, fault, why):
    with RangeServer(tiny_data) as server:
        mirror(server.url, tmp_path / "m", ENOUGH, QUICK)
        reader = ShardReader(tmp_path / "m")
        reader._remote.transport.retries = QUICK
        shard = reader.manifest["splits"]["train"]["shards"][0]["file"]
        server.faults[shard] = [fault] * 4
        with pytest.raises(DamagedShard, match=rf"{server.url}/{shard}.*{why}.*4 tries"):
            reader.read(0)
        assert contents(reader) == contents(ShardReader(tiny_data))  # now that it is well again


@pytest.mark.parametrize(
    "ranges, path, why", [(True, "nowhere.tar", "404"), (False, "manifest.json", "no ranges of bytes")]
)
def test_what_another_try_cannot_change_is_not_tried_again(tiny_data, ranges, path, why):
    with RangeServer(tiny_data, ranges=ranges) as server:
        with pytest.raises(Unreachable, match=why):
            Transport(server.url, QUICK).read(path, 0, 10)
        assert server.requests[path] == 1


def test_nobody_answers(tmp_path):
    with pytest.raises(
        UserError,
        match=r"data.remote: http://127.0.0.1:9/d/manifest.json: it cannot be read: .*refused.*4 tries",
    ):
        mirror("http://127.0.0.1:9/d/", tmp_path / "m", ENOUGH, QUICK)
    assert not (tmp_path / "m").exists()


@pytest.mark.full
@pytest.mark.parametrize(
    "fault, why",
    [("drip", "more than 1 s"), ("drip-headers", "more than 1 s"), ("endless", "sends more than 2,000,000")],
)
def test_a_server_that_drips_or_never_ends_is_given_up_and_named(
    tiny_data, tmp_path, monkeypatch, capsys, fault, why
):
    """A byte arrives before each time-out of the socket."""
    monkeypatch.setattr(remote, "_LARGEST", 2_000_000)
    monkeypatch.setattr(waiting, "SLOW_SECONDS", 0.5)
    began = time.monotonic()
    with RangeServer(tiny_data) as server:
        server.faults["manifest.json"] = [fault] * 2
        place = f"{server.url}/manifest.json"
        with pytest.raises(UserError, match=rf"data.remote: {place}: .*{why}"):
            mirror(server.url, tmp_path / "m", ENOUGH, Retries(tries=2, first=0.001, deadline=1))
        assert fault == "endless" or f"waiting for {place}" in capsys.readouterr().err
        server.faults["manifest.json"] = [fault]
        with pytest.raises(Unreachable, match=f"{place}: .*more than (1 s|10 bytes)"):
            Transport(server.url, Retries(tries=1, deadline=1)).read("manifest.json", 0, 10)
    assert time.monotonic() - began < 30


def test_waits_grow_and_differ():
    waits = [[Retries().wait(failures) for _ in range(50)] for failures in range(1, 12)]
    assert all(0.25 * 2**i <= wait <= 45 for i, row in enumerate(waits[:6]) for wait in row)
    assert len(set(waits[0])) == 50 and max(waits[-1]) <= 45


def test_a_mirror_of_other_data_is_refused_and_of_the_same_goes_on(tiny_data, tmp_path):
    other = shutil.copytree(tiny_data, tmp_path / "other")
    text = (other / "manifest.json").read_text()
    (other / "manifest.json").write_text(text + " ")
    with RangeServer(tiny_data) as server, RangeServer(other) as second:
        for _ in range(2):
            mirror(server.url, tmp_path / "m", ENOUGH, QUICK)
        with pytest.raises(UserError, match=r"is not what .* mirrors"):
            mirror(second.url, tmp_path / "m", ENOUGH, QUICK)
        with pytest.raises(UserError, match="prepared data of its own"):
            mirror(server.url, other, ENOUGH, QUICK)
    (tmp_path / "m" / "remote.json").write_text("{")
    with pytest.raises(UserError, match=r"remote.json is damaged.*--data.remote URL again"):
        chunks_of(tmp_path / "m")


def test_a_kept_chunk_that_is_damaged_is_fetched_again(tiny_data, tmp_path):
    with RangeServer(tiny_data) as server:
        mirror(server.url, tmp_path / "m", ENOUGH, QUICK)
        reader = ShardReader(tmp_path / "m")
        expected = contents(reader)
        asked = sum(server.requests.values())
        assert contents(reader) == expected and sum(server.requests.values()) == asked
        (kept, *_) = sorted((tmp_path / "m" / "chunks").glob("??/*"))
        kept.write_bytes(b"x" + kept.read_bytes()[1:])
        assert contents(reader) == expected and sum(server.requests.values()) == asked + 1


class Counted(Transport):
    """Makes bytes up: those of number `start`."""

    def __init__(self):
        super().__init__("memory://x")
        self.asked = []

    def read(self, file, start=0, size=None, sha256=None):
        self.asked.append(start)
        return made(start)


def made(number):
    return np.random.default_rng(number).bytes(1000)


def place(number):
    import hashlib

    return Place("f", number, 1000, hashlib.sha256(made(number)).hexdigest())


def kept_bytes(folder):
    return sum(path.stat().st_size for path in folder.glob("chunks/??/*"))


@pytest.mark.full
def test_the_cache_is_bounded_and_keeps_what_was_used_last(tmp_path):
    source = Counted()
    chunks = RemoteChunks(tmp_path, source, limit=20_000)
    for number in range(200):
        assert chunks.read(place(number)) == made(number)
        assert chunks.read(place(0)) == made(0)  # always in use
        assert kept_bytes(tmp_path) <= 21_000
    assert source.asked.count(0) == 1 and len(source.asked) == 200
    nothing = RemoteChunks(tmp_path / "none", source, limit=0)
    assert nothing.read(place(3)) == made(3) and kept_bytes(tmp_path / "none") == 0


def test_threads_and_processes_share_a_cache(tmp_path):
    source = Counted()
    chunks = pickle.loads(pickle.dumps(RemoteChunks(tmp_path, source, limit=30_000)))
    wrong = []

    def work(seed):
        for number in np.random.default_rng(seed).integers(0, 60, 150).tolist():
            if chunks.read(place(number)) != made(number):
                wrong.append(number)

    children = [fork(lambda seed=seed: work(seed) or len(wrong)) for seed in range(2)]
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and list(map(status_of, children)) == [0, 0]
    assert kept_bytes(tmp_path) <= 30_000 + 6 * 1_500 + 6_000


def test_a_full_disk_keeps_nothing_and_reads_on(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "pathlib.Path.write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
    )
    chunks = RemoteChunks(tmp_path, Counted(), limit=ENOUGH)
    assert [chunks.read(place(7)) for _ in range(2)] == [made(7)] * 2


def test_other_stores_go_through_fsspec(tiny_data, tmp_path):
    store = fsspec.filesystem("memory")
    store.put(str(tiny_data), "/bucket/data", recursive=True)
    transport_ = Transport("memory://bucket/data", QUICK)
    manifest = (tiny_data / "manifest.json").read_bytes()
    assert transport_.read("manifest.json") == manifest
    assert transport_.read("manifest.json", 5, 20) == manifest[5:25]
    with pytest.raises(Unreachable, match="no such file"):
        transport_.read("nothing")
    with pytest.raises(UserError, match=r"s5://b/x cannot be read: .*s5"):
        Transport("s5://b/x", QUICK).read("manifest.json")


PASSWORD = "Sw0rdf1sh"


def holders(folder):
    """The files of a folder that hold the password."""
    secrets = [PASSWORD.encode(), base64.b64encode(f"jane:{PASSWORD}".encode())]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(secret in path.read_bytes() for secret in secrets)]


@pytest.mark.full
def test_a_password_in_an_address_is_refused_wherever_it_is_given(tiny_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = f"http://jane:{PASSWORD}@127.0.0.1:9/d"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"data: {{remote: '{url}'}}\n")
    for words in (
        command(tmp_path / "m", tmp_path / "run", data__remote=url),
        ["-m", "pretrain.main", "--config", "recipe.yaml"],
        ["-m", "pretrain.prepare", "--source", url, "--out", "data"],
        ["-m", "pretrain.prepare", "--source", f'[{{source: "{url}"}}]', "--out", "data"],
        ["-m", "pretrain.commands.plan", "--data.prepare.sources", f'[{{source: "{url}"}}]'],
        ["-m", "finetune.sts", url],
    ):
        said = run_python(words, environment())
        assert said.returncode == 2 and "a URL with a password or a key" in said.stderr, said
        assert PASSWORD not in said.stdout + said.stderr
    said = run_python(["-m", "pretrain.commands.plan", "--train.steps", f"of {url}"], environment())
    assert "http://***@127.0.0.1" in said.stderr and PASSWORD not in said.stdout + said.stderr
    with pytest.raises(UserError, match="a URL with a password"):
        api.train(data=tiny_data, run="run", **{"data.remote": url})
    with pytest.raises(UserError, match="a URL with a password"):
        api.prepare(url, out="data")
    assert holders(tmp_path) == [str(recipe)] and os.listdir(tmp_path) == ["recipe.yaml"]


def test_which_addresses_hold_a_secret():
    for url in (
        "https://S3CRET@h/d",
        "s3://KEY:S3CRET/x+@b/d",
        "x::sftp://a:S3CRET@h",
        "s3://b/d?sig=S3CRET",
    ):
        assert "S3CRET" not in without_credentials(f"at {url} it ends")
        with pytest.raises(UserError, match="--x: a URL with a password or a key"):
            require_no_credentials(url, "--x")
    for url in ("http://h:80/d@1", "abfs://container@account.dfs/d", "sftp://me@h/d", "http://[::1]:80/d"):
        require_no_credentials(f"{url} and jane@example.org", "--x")


@pytest.mark.full
def test_a_run_on_a_bad_server_is_the_run_on_local_data_bitwise(tiny_data, tmp_path):
    """The password is in ~/.netrc, and nowhere else."""
    finish(start(command(tiny_data, tmp_path / "local")))
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login jane password {PASSWORD}\n")
    with RangeServer(tiny_data, share=0.4, kinds=("503", "drop", "cut", "corrupt")) as server:
        server.login = f"jane:{PASSWORD}"
        server.faults["manifest.json"] = ["503", "drop"]
        flags = {"data__remote": server.url, "data__remote_cache": 0.0001}
        words = command(tmp_path / "m", tmp_path / "remote", **flags)
        said = finish(start(words, NETRC=str(netrc)))
        server.login = "jane:other"
        refused = finish(start([*words, "--resume", "auto"], NETRC=str(netrc)), expect=2)
        assert sum(server.met[fault] for fault in FAULTS) > 5
    assert curve(tmp_path / "remote") == curve(tmp_path / "local")
    assert holders(tmp_path) == [str(netrc)] and "the server answers 401" in refused
    assert PASSWORD not in said + refused
    upload = Upload(tmp_path / "remote" / "export", "jane/encoder", tmp_path / "remote" / "report")
    sent = [part if isinstance(part, bytes) else part.read_bytes() for part in upload.files.values()]
    assert len(sent) > 5 and not any(PASSWORD.encode() in part for part in sent)
