"""How ranks meet, within this process: who is missing, who serves, and what the groups wait for."""

import re
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from run_helpers import free_port

from pretrain.common import ranks, rendezvous
from pretrain.common.errors import UserError


def test_a_rank_waits_for_all_and_names_those_that_are_missing():
    store, past = dist.HashStore(), time.monotonic() - 1
    assert rendezvous._wait_for_all(store, 2, 4, past) == [0, 1, 3]
    assert rendezvous._wait_for_all(store, 0, 4, past) == [1, 3]
    assert rendezvous._wait_for_all(store, 3, 4, past) == [1]
    assert rendezvous._wait_for_all(store, 1, 4, past) == []
    assert rendezvous._wait_for_all(store, 1, 4, past) == []

    def gone(*_):
        raise dist.DistStoreError("the store is gone")

    assert rendezvous._wait_for_all(SimpleNamespace(set=gone), 2, 4, past) == [0]


def test_rank_0_serves_the_store_of_one_start(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    port, end = free_port(), time.monotonic() + 60
    first = rendezvous._connect(0, 2, "127.0.0.1", port, end)
    second = rendezvous._connect(1, 2, "127.0.0.1", port, end)
    first.set("key", "of this start")
    assert second.get("key") == b"of this start"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # the launcher's store is there already
    again = rendezvous._connect(0, 2, "127.0.0.1", port, end)
    assert not again.check(["key"]) and again.add("key", 1) == 1


@pytest.mark.parametrize("elastic", [False, True])
def test_who_does_not_serve_gives_up_in_time(elastic, monkeypatch):
    if elastic:
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    with pytest.raises(OSError):
        rendezvous._connect(0 if elastic else 1, 2, "127.0.0.1", free_port(), time.monotonic() - 1)


@pytest.fixture
def joined(monkeypatch):
    """`join` up to the process group: what it was formed with; `fails`: what a part of it raises."""
    given, fails = {}, {}
    variables = {"RANK": "3", "WORLD_SIZE": "20", "MASTER_ADDR": "node", "MASTER_PORT": "29500"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def may_fail(name, result):
        def call(*words, **flags):
            given[name] = (words, flags)
            if name in fails:
                raise fails[name]
            return result

        return call

    store = SimpleNamespace(set_timeout=may_fail("store", None))
    monkeypatch.setattr(rendezvous, "_connect", may_fail("connect", store))
    missing = []
    monkeypatch.setattr(rendezvous, "_wait_for_all", may_fail("wait", missing))
    monkeypatch.setattr(dist, "init_process_group", may_fail("group", None))
    monkeypatch.setattr(rendezvous, "_set_pg_timeout", may_fail("timeout", None))
    return SimpleNamespace(given=given, fails=fails, missing=missing, store=store)


def test_the_start_has_one_limit_and_collectives_another(joined):
    began = time.monotonic()
    rendezvous.join("gloo", 50.0, 1234.0)
    *who, end = joined.given["connect"][0]
    assert who == [3, 20, "node", 29500] and 50 <= end - began < 60
    assert joined.given["wait"][0] == (joined.store, 3, 20, end)
    about = {"store": joined.store, "rank": 3, "world_size": 20, "timeout": timedelta(seconds=50)}
    assert joined.given["group"] == (("gloo",), about)
    assert joined.given["store"][0] == (timedelta(seconds=1234),)
    assert joined.given["timeout"][0][0] == timedelta(seconds=1234)


@pytest.mark.parametrize(
    ("part", "error", "said"),
    [
        ("connect", dist.DistNetworkError("EADDRINUSE\nframe"), "node:29500 is in use"),
        ("connect", OSError("port already in use"), "node:29500 is in use"),
        (
            "connect",
            OSError("refused\nframe"),
            r"rank 0 does not answer at node:29500 within 5 s \(refused\)\. Look .* --train\.rendezvous_sec",
        ),
        ("group", RuntimeError("closed\nframe"), r"lost while they connected at node:29500 \(closed\)$"),
        ("group", dist.DistStoreError("closed\nframe"), r"rank was lost while .* \(closed\)$"),
    ],
)
def test_who_cannot_join_says_where_and_why(part, error, said, joined):
    joined.fails[part] = error
    with pytest.raises(UserError, match=f"^rank 3 of 20, on .*{said}"):
        rendezvous.join("gloo", 5.0, 1234.0)


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ([7], r"19 of 20 ranks have reached node:29500; missing: rank 7\. Look"),
        (range(4, 20), rf"4 of 20 ranks .* missing: ranks {', '.join(map(str, range(4, 20)))}\. Look"),
        (range(3, 20), rf"3 of 20 ranks .* missing: ranks {', '.join(map(str, range(3, 19)))} \.\.\.\. Look"),
    ],
)
def test_sixteen_missing_ranks_are_named(missing, said, joined):
    joined.missing += missing
    with pytest.raises(UserError, match=rf"after 5 s {said}"):
        rendezvous.join("gloo", 5.0, 1234.0)
    assert "group" not in joined.given


@pytest.mark.parametrize(
    ("text", "world", "port"),
    [("1", 2, 1), ("65535", 2, 65535), ("0", 1, 0)]
    + [(text, world, None) for text in ("65536", "-1", "", "x") for world in (1, 2)]
    + [("0", 2, None)],
)
def test_a_port_is_a_number_of_16_bits_and_0_is_for_one_rank(text, world, port, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", text)
    if port is not None:
        assert rendezvous._port(world) == port
        return
    with pytest.raises(UserError, match="MASTER_PORT is"):
        rendezvous._port(world)


def test_who_waits_says_so_until_it_has_what_it_waits_for(monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "_SECONDS_BETWEEN_LINES", 0.001)
    said = ""
    with rendezvous._print_while_waiting("rank 1 waits"):
        while "now\n" not in said:
            said += capsys.readouterr().err
            time.sleep(0.001)
    assert re.match(r"rank 1 waits, for \d+ s now\n", said)
    capsys.readouterr()
    time.sleep(0.01)
    assert capsys.readouterr().err == ""


def test_hosts_have_one_group_for_each_process_group(monkeypatch):
    """They connect within minutes, and then wait for days."""
    made, waits, barriers = [], [], []
    group = SimpleNamespace(WORLD="first")

    def new_group(**about):
        made.append(about)
        return f"hosts {len(made)}"

    fake = SimpleNamespace(group=group, new_group=new_group, barrier=barriers.append)
    monkeypatch.setattr(ranks, "dist", fake)
    monkeypatch.setattr(ranks, "_hosts", None)
    monkeypatch.setattr(ranks, "_set_pg_timeout", lambda *words: waits.append(words))
    assert [ranks.host_group(), ranks.host_group()] == ["hosts 1"] * 2
    assert ranks.new_host_group() == "hosts 2" and barriers == ["hosts 1"]
    assert ranks.host_group() == "hosts 1"
    group.WORLD = "second"
    assert ranks.host_group() == "hosts 3"
    assert made == [{"backend": "gloo", "timeout": timedelta(minutes=10)}] * 3
    assert waits == [(timedelta(hours=48), f"hosts {n}") for n in (1, 2, 3)]
