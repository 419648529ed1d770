"""Prepared data on a server that stalls, drops, cuts, corrupts and says 503, copied into a folder."""

import base64
import io
import os
import shutil
import time

import fsspec
import pytest
from forked_python import run_python
from range_server import FAULTS, RangeServer
from run_helpers import command, curve, environment, finish, start

from augment.core import waiting
from pretrain import api
from pretrain.common.credentials import require_no_credentials, without_credentials
from pretrain.common.errors import UserError
from pretrain.data import remote
from pretrain.data.remote import copy_prepared
from pretrain.data.shards import ShardReader
from pretrain.export.push import Upload


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(remote, "TIMEOUTS", (10, 0.3))
    monkeypatch.setattr(remote, "TRIES", 4)
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.001)


def contents(folder):
    reader = ShardReader(folder)
    return [
        (chunk.stored, chunk.sequence_ids.tolist()) for chunk in map(reader.read, range(reader.num_chunks))
    ]


def first_shard(folder) -> str:
    return ShardReader(folder).manifest["splits"]["train"]["shards"][0]["file"]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_passes_is_tried_again(tiny_data, tmp_path, fault):
    shard = first_shard(tiny_data)
    with RangeServer(tiny_data) as server:
        server.faults[shard] = [fault, fault]
        copy_prepared(server.url, tmp_path / "m")
        assert contents(tmp_path / "m") == contents(tiny_data)
        assert server.met[fault] == 2 and server.requests[shard] == 3
        copy_prepared(server.url, tmp_path / "m")  # it is there
        assert server.requests[shard] == 3


@pytest.mark.parametrize(
    "fault, why", [("503", "503"), ("stall", "timed out"), ("corrupt", "damaged"), ("cut", "damaged")]
)
def test_what_does_not_pass_is_named_and_the_next_start_goes_on(tiny_data, tmp_path, fault, why):
    shard = first_shard(tiny_data)
    with RangeServer(tiny_data) as server:
        server.faults[shard] = [fault] * 4
        with pytest.raises(UserError, match=rf"data.remote: {server.url}/{shard}.*{why}.*4 tries"):
            copy_prepared(server.url, tmp_path / "m")
        assert not (tmp_path / "m" / "manifest.json").exists()
        copy_prepared(server.url, tmp_path / "m")
        assert contents(tmp_path / "m") == contents(tiny_data)


def test_what_another_try_cannot_change_is_not_tried_again(tiny_data, tmp_path):
    shard = first_shard(tiny_data)
    data = shutil.copytree(tiny_data, tmp_path / "data")
    (data / shard).unlink()
    with RangeServer(data) as server:
        with pytest.raises(UserError, match="404"):
            copy_prepared(server.url, tmp_path / "m")
        assert server.requests[shard] == 1


def test_nobody_answers(tmp_path):
    with pytest.raises(
        UserError, match=r"data.remote: http://127.0.0.1:9/d/manifest.json cannot be read: .*refused.*4 tries"
    ):
        copy_prepared("http://127.0.0.1:9/d/", tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_folder_of_other_data_is_refused(tiny_data, tmp_path):
    other = shutil.copytree(tiny_data, tmp_path / "other")
    (other / "manifest.json").write_text((other / "manifest.json").read_text() + " ")
    with RangeServer(tiny_data) as server, pytest.raises(UserError, match="holds other prepared data than"):
        copy_prepared(server.url, other)


def test_other_stores_go_through_fsspec(tiny_data, tmp_path):
    store = fsspec.filesystem("memory")
    store.put(str(tiny_data), "/bucket/data", recursive=True)
    copy_prepared("memory://bucket/data", tmp_path / "m")
    assert contents(tmp_path / "m") == contents(tiny_data)
    with pytest.raises(UserError, match=r"s5://b/x/manifest.json cannot be read: .*s5"):
        copy_prepared("s5://b/x", tmp_path / "n")


def test_of_a_store_without_an_end_no_more_is_read_than_a_file_may_have(monkeypatch):
    asked = []

    class Endless(io.RawIOBase):
        def read(self, size=-1):
            asked.append(size)
            return b"x" * (1000 if size < 0 else size)

    monkeypatch.setattr(fsspec, "open", lambda place, mode: Endless())
    with pytest.raises(remote.Unreachable, match="m://b/x: the server sends more than 19 bytes"):
        remote._read_once("m://b/x", 19)
    assert 0 < sum(asked) <= 20 and min(asked) > 0


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
        words = command(tmp_path / "m", tmp_path / "remote", data__remote=server.url)
        said = finish(start(words, NETRC=str(netrc)))
        server.login = "jane:other"
        refused = finish(start([*words, "--resume", "auto"], NETRC=str(netrc)), expect=2)
        assert sum(server.met[fault] for fault in FAULTS) > 2
    assert curve(tmp_path / "remote") == curve(tmp_path / "local")
    assert holders(tmp_path) == [str(netrc)] and "the server answers 401" in refused
    assert PASSWORD not in said + refused
    upload = Upload(tmp_path / "remote" / "export", "jane/encoder", tmp_path / "remote" / "report")
    sent = [part if isinstance(part, bytes) else part.read_bytes() for part in upload.files.values()]
    assert len(sent) > 5 and not any(PASSWORD.encode() in part for part in sent)


@pytest.mark.full
@pytest.mark.parametrize(
    "fault, why",
    [("drip", "more than 1"), ("drip-headers", "more than 1"), ("endless", "sends more than")],
)
def test_a_server_that_drips_or_never_ends_is_given_up_and_named(
    tiny_data, tmp_path, monkeypatch, capsys, fault, why
):
    """A byte arrives before each time-out of the socket."""
    deadline = 60.0 if fault == "endless" else 1.0  # on a busy machine the largest takes its time
    for name, value in {"LARGEST": 2_000_000, "DEADLINE": deadline, "SLOWEST": 1e9, "TRIES": 2}.items():
        monkeypatch.setattr(remote, name, value)
    monkeypatch.setattr(waiting, "SLOW_SECONDS", 0.5)
    began, shard = time.monotonic(), first_shard(tiny_data)
    for file in ("manifest.json", shard):
        with RangeServer(tiny_data) as server:
            server.faults[file] = [fault] * 2
            place = f"{server.url}/{file}"
            with pytest.raises(UserError, match=rf"data.remote: {place}.*{why}"):
                copy_prepared(server.url, tmp_path / file.replace("/", "-"))
            assert fault == "endless" or f"waiting for {place}" in capsys.readouterr().err
    assert time.monotonic() - began < 60
