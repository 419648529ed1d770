"""Every fault at every operation of an export: a new one, over another one, and of best/."""

import resource
import signal
from pathlib import Path

import pytest
from export_helpers import make_run
from run_helpers import fork, status_of
from write_faults import State, Subject, require_all, state_of

from pretrain.common.errors import UserError
from pretrain.export.folder import export


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with checkpoints of two steps, and a best/ of the second."""
    folder = tmp_path_factory.mktemp("run")
    make_run(folder, layers=1, steps=(3, 7))
    export(folder, folder / "best", 7)
    return folder


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory) -> dict[int | str, State]:
    """Step, or "best" -> an undisturbed export of it."""
    folder = tmp_path_factory.mktemp("whole")
    return {step: state_of(export(run, folder / str(step) / "export", step)) for step in (3, 7, "best")}


def require_whole(
    run: Path, whole: dict[int | str, State], step: int | str, again: bool, folder: Path, every: int
):
    def find(place: Path) -> str:
        if not again and not (place / "export").exists():
            return "old"
        found = state_of(place / "export")
        assert found in (whole[3], whole[step]), "not whole"
        return "old" if found == whole[3] else "new"

    subject = Subject(
        act=lambda place: export(run, place / "export", step),
        find=find,
        make=lambda place: export(run, place / "export", 3) if again else None,
        errors=(UserError,),
    )
    cases = require_all(subject, folder, least=40, every=every)
    assert cases.found == {"old", "new"}


CASES = pytest.mark.parametrize(
    ("step", "again"), [(7, False), (7, True), ("best", True)], ids=["new", "over another", "of best"]
)


@pytest.mark.full
@CASES
def test_an_export(run, whole, tmp_path, step, again):
    require_whole(run, whole, step, again, tmp_path, every=15)


@pytest.mark.slow
@CASES
def test_an_export_and_each_next_attempt(run, whole, tmp_path, step, again):
    require_whole(run, whole, step, again, tmp_path, every=1)


def test_a_library_that_cannot_write_is_one_error(run, tmp_path):
    """Of the operating system itself, in a child so that the limit stays there: weights do not fit."""

    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        with pytest.raises(UserError, match=r"cannot write .*export"):
            export(run, tmp_path / "export", 7)

    assert status_of(fork(write)) == 0
    assert not [path for path in tmp_path.iterdir() if ".lock" not in path.name]
