"""What a command that runs another one makes of the other's end."""

import pytest

from pretrain.common.errors import UserError
from pretrain.common.processes import run_to_end
from pretrain.common.shutdown import EXIT_BUDGET, EXIT_CODES, TERMINATE

STOPPED = EXIT_CODES[TERMINATE]
ENDS = {
    "done": ("pass", ""),
    "out of its budget of time": (f"sys.exit({EXIT_BUDGET})", ""),
    "killed": ("os.kill(os.getpid(), 9)", r"ending was killed by SIGKILL\. Say it again"),
    "stopped": (f"sys.exit({STOPPED})", r"ending was stopped by a signal\. Say it again"),
    "failed": ("sys.exit(3)", "ending failed with status 3"),
    "its own reason": (f"print('error: the disk is full'); sys.exit({STOPPED})", "^the disk is full$"),
}


@pytest.mark.parametrize("end", ENDS)
def test_only_what_did_not_come_to_its_end_is_an_error(end, tmp_path, monkeypatch):
    does, expected = ENDS[end]
    (tmp_path / "ending.py").write_text(f"import os, sys\nassert sys.argv[1:] == ['a', 'b']\n{does}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    if not expected:
        return run_to_end("ending", ["a", "b"], "Say it again")
    with pytest.raises(UserError, match=expected):
        run_to_end("ending", ["a", "b"], "Say it again")
