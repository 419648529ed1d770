"""What all tests share: an environment, one thread, a small WordNet, and a list at the end of what was
skipped, and what they need.

One thread for the tests themselves: some fork, and a forked child waits for ever on its parent's pool of
threads.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browser import browser  # noqa: F401 - a fixture
from small_wordnet import forget_words, write_small_wordnet

from augment.text import wordnet

torch.set_num_threads(1)
# A shell without job control starts what goes on behind a & with Ctrl-C ignored, and so all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, too
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

_OF_THE_MACHINE = (
    "CLEAR_DATA",
    "CLEAR_PARSER",
    "CLEAR_WORDNET",
    "CLEAR_PUBLIC_MODEL",
    "SLURM_CONF",
)
_OF_A_LAUNCHER = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
for _name in list(os.environ):  # a user's models, or a job that the tests run in, decide nothing
    if _name in _OF_A_LAUNCHER or (_name.startswith(("CLEAR_", "SLURM_")) and _name not in _OF_THE_MACHINE):
        del os.environ[_name]

_NAMED_WORDNET = os.environ.get(wordnet.VARIABLE)


@pytest.fixture(scope="session", autouse=True)
def small_wordnet(tmp_path_factory) -> Iterator[Path]:
    """The WordNet of all tests and of the commands that they start, whatever this machine has: the words of
    small_wordnet.py."""
    folder = write_small_wordnet(tmp_path_factory.mktemp("words") / "wordnet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(wordnet.VARIABLE, str(folder))
        yield folder


@pytest.fixture(scope="session")
def whole_wordnet_folder(tmp_path_factory) -> Path | None:
    """The folder of this machine's WordNet, unpacked once where it is a zip."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(wordnet.VARIABLE)
        if _NAMED_WORDNET:
            patch.setenv(wordnet.VARIABLE, _NAMED_WORDNET)
        found = next((path for path in wordnet.wordnet_candidates() if path.exists()), None)
    if found is None or found.is_dir():
        return found
    folder = tmp_path_factory.mktemp("whole")
    shutil.unpack_archive(found, folder)
    return next(folder.rglob("index.noun")).parent


@pytest.fixture
def whole_wordnet(whole_wordnet_folder, monkeypatch) -> Iterator[wordnet.WordNet]:
    """The WordNet of this machine, for the tests that want all of it."""
    if whole_wordnet_folder is None:
        pytest.skip(
            "CLEAR_WORDNET names no WordNet"
            if _NAMED_WORDNET
            else "no WordNet is installed or named by CLEAR_WORDNET"
        )
    monkeypatch.setenv(wordnet.VARIABLE, str(whole_wordnet_folder))
    forget_words()
    yield wordnet.wordnet()
    forget_words()


def pytest_terminal_summary(terminalreporter) -> None:
    """Print how many tests were skipped for each reason, so that a green run says what it did not test."""
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])
    )
    if skipped:
        terminalreporter.section("skipped, because something is missing")
        for reason, count in skipped.most_common():
            terminalreporter.line(f"{count:5d}  {reason}")
