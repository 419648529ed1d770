"""Every fault at every operation that a resume does on metrics.jsonl."""

import io
from pathlib import Path

from write_faults import Subject, require_all

from pretrain.common.errors import UserError
from pretrain.telemetry.metrics_file import copy_metrics, read_metrics, to_line
from pretrain.telemetry.run import Telemetry

ROWS = "".join(to_line({"step": step, "loss": 0.1 * step}) for step in range(1, 7))


def steps(folder: Path) -> list[tuple[int, bool]]:
    """Return the step of each row, and whether it is of the run before."""
    return [(row["step"], "warning" not in row) for row in read_metrics(folder / "run" / "metrics.jsonl")]


def make(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "metrics.jsonl").write_text(ROWS)


def resume(folder: Path) -> None:
    """Continue from a checkpoint of step 3 to one of step 5, before which the rows must be on the disk."""
    with Telemetry(folder / "run", 10, stream=io.StringIO(), start_step=3, track=()) as telemetry:
        for step in (4, 5):
            telemetry.advance(step, {"total": 1.0}, 0.1, 1)
            telemetry.warn("a row of this start")
        telemetry.sync()


def rows(folder: Path) -> str:
    """Rows up to the checkpoint are always there; those of this start follow them, and none twice."""
    found = steps(folder)
    assert found[:3] == [(1, True), (2, True), (3, True)]
    rest = found[3:]
    assert rest == [(4, True), (5, True), (6, True)] or rest in ([], [(4, False)], [(5, False)], NEW)
    return "new" if rest == NEW else "old"


NEW = [(4, False), (5, False)]


def test_metrics_are_cut_back_and_go_on(tmp_path):
    cases = require_all(Subject(resume, rows, make, errors=(UserError,)), tmp_path, least=8)
    assert cases.found == {"old", "new"}


def test_a_branch_takes_the_rows_of_its_trunk(tmp_path):
    """As one file at once: one that a kill has cut would not be completed by the next start."""
    make(tmp_path)
    source = tmp_path / "run" / "metrics.jsonl"

    def find(folder: Path) -> str:
        copied = folder / "metrics.jsonl"
        assert not copied.exists() or [row["step"] for row in read_metrics(copied)] == [1, 2, 3]
        return "new" if copied.exists() else "old"

    subject = Subject(lambda folder: copy_metrics(source, folder / "metrics.jsonl", 3), find)
    require_all(subject, tmp_path / "cases", least=5)
