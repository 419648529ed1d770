"""Data and signal handlers for the tests of GLUE."""

import signal

import pytest
from glue_files import write_glue

from pretrain.common.shutdown import SIGNALS


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_glue(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def same_signal_handlers():
    """The command takes over signals, as a process of its own may."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
