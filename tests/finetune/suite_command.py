"""The command that runs suites, called in this process."""

import io
import signal
from contextlib import redirect_stderr, redirect_stdout

from commands import call

from finetune.evaluate.__main__ import main
from pretrain.common.shutdown import SIGNALS


def evaluate(*words, code=0, into=None):
    """Run the command in this process, its units in theirs; return what it printed.

    into: gets that, too, where an error follows.
    """
    said, handlers = into or io.StringIO(), {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with redirect_stdout(said), redirect_stderr(said):
            assert call(main, *words) == code, said.getvalue()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return said.getvalue()
