"""What one rank does for all, and what all tell each other, on threads as ranks."""

import pytest
import torch
from step.threaded_ranks import ThreadedRanks

from pretrain.common import ranks
from pretrain.common.errors import UserError


class OwnError(UserError):
    pass


def test_rank_zero_alone_acts_and_all_have_its_result(monkeypatch):
    acted = []

    def act(rank):
        return ranks.on_rank_zero(lambda: acted.append(rank) or {"made": rank})

    assert ThreadedRanks(3, monkeypatch).run(act) == [{"made": 0}] * 3 and acted == [0]
    assert ThreadedRanks(1, monkeypatch).run(act) == [{"made": 0}]


@pytest.mark.parametrize(
    "raised,kind,text",
    [
        (OwnError("no such file"), OwnError, "no such file"),
        (UserError("no such file"), UserError, "no such file"),
        (ValueError("of a library"), UserError, "of a library"),
        (ValueError(), UserError, "ValueError"),
    ],
)
def test_what_rank_zero_raises_all_raise_and_it_is_printed_once(raised, kind, text, monkeypatch):
    printed, marked = [], []
    monkeypatch.setattr(ranks, "print_before_sending", printed.append)
    monkeypatch.setattr(ranks, "mark_printed", marked.append)

    def fail():
        raise raised

    def act(rank):
        try:
            ranks.on_rank_zero(fail)
        except Exception as error:
            return error

    first, *others = ThreadedRanks(3, monkeypatch).run(act)
    assert first is raised and printed == [raised]
    assert [(type(error), str(error)) for error in others] == [(kind, text)] * 2
    assert set(map(id, marked)) == set(map(id, others))


def test_if_the_run_was_moved_that_is_the_reason(monkeypatch):
    monkeypatch.setattr(ranks, "moved", lambda: UserError("the folder was moved"))
    monkeypatch.setattr(ranks, "print_before_sending", lambda error: None)

    def act(rank):
        with pytest.raises(UserError, match="the folder was moved"):
            ranks.on_rank_zero(lambda: {}["no such key"])

    ThreadedRanks(2, monkeypatch).run(act)


def test_what_ranks_hold_comes_in_their_order(monkeypatch):
    for world in (1, 3):
        threads = ThreadedRanks(world, monkeypatch)
        for found in threads.run(lambda rank: ranks.gathered({"rank": rank})):
            assert found == [{"rank": rank} for rank in range(world)]
        given = [torch.arange(6.0).view(2, 3).t() + 10 * rank for rank in range(world)]  # not contiguous
        for found in threads.run(lambda rank: ranks.gather_equal(given[rank])):  # noqa: B023
            assert torch.equal(found, torch.stack(given))
        assert threads.run(lambda rank: ranks.is_alone()) == [world == 1] * world
