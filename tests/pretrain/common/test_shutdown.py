"""Signals that ask a run to stop: real ones, in every order."""

import itertools
import os
import signal

import pytest

from pretrain.common.shutdown import INTERRUPT, NONE, REQUEUE, SIGNALS, STOP, STOP_FILE, TERMINATE, Shutdown


@pytest.fixture(autouse=True)
def handlers_as_they_were():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "order", list(itertools.permutations(SIGNALS)), ids=lambda order: "-".join(s.name for s in order)
)
def test_of_several_signals_the_weightiest_counts_whatever_came_last(tmp_path, order):
    shutdown = Shutdown(tmp_path, watch_file=True)
    assert shutdown.requested() == NONE
    for count, number in enumerate(order, 1):
        os.kill(os.getpid(), number)
        assert shutdown.requested() == max(SIGNALS[sent] for sent in order[:count])
    assert shutdown.requested() == REQUEUE > TERMINATE > INTERRUPT
    (tmp_path / STOP_FILE).touch()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert shutdown.requested() == STOP  # who asks for a stop does not want a requeue
    os.kill(os.getpid(), signal.SIGTERM)
    assert shutdown.requested() == STOP
    shutdown.clear_stop_file()
    assert not (tmp_path / STOP_FILE).exists()
