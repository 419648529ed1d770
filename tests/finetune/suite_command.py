"""The command that runs suites, called in this process."""

import io
from contextlib import redirect_stderr, redirect_stdout

from commands import call
from forked_python import forked_children

from finetune.evaluate.__main__ import main


def evaluate(*words, code=0, into=None):
    """Run the command in this process, its units in forks; return what it printed.

    into: gets that, too, where an error follows.
    """
    said = into or io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), forked_children():
        assert call(main, *words) == code, said.getvalue()
    return said.getvalue()
