"""metrics.jsonl: what a resume leaves of it, with every fault at every operation, and a disk that is full."""

import errno
import io
import os
from pathlib import Path

import pytest
from write_faults import Subject, require_all

from pretrain.common.errors import UserError
from pretrain.telemetry.metrics_file import NO_LINES, chained, copy_metrics, read_metrics, to_line
from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.trackers import Tracking

ROWS = "".join(to_line({"step": step, "loss": 0.1 * step}) for step in range(1, 7))


def steps(folder: Path) -> list[tuple[int, bool]]:
    """Return the step of each row, and whether it is of the run before."""
    return [(row["step"], "warning" not in row) for row in read_metrics(folder / "run" / "metrics.jsonl")]


def make(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run" / "metrics.jsonl").write_text(ROWS)


def resume(folder: Path) -> None:
    """Continue from a checkpoint of step 3 to one of step 5, before which the rows must be on the disk."""
    with Telemetry(
        folder / "run", 10, stream=io.StringIO(), start_step=3, tracking=Tracking(())
    ) as telemetry:
        for step in (4, 5):
            telemetry.advance(step, 1)
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


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path):
    """By its step where it is of an older version, whose lines have no links, else by its place."""
    path = tmp_path / "metrics.jsonl"
    assert copy_metrics(path, path, 3) == (NO_LINES, True) and list(read_metrics(path)) == []
    rows = [{"step": step, "loss": 0.1 + step} for step in (1, 2, 3, 3, 5)]
    places = [NO_LINES]
    for linked in (False, True):
        path.write_bytes(b"")
        with path.open("ab") as file:
            for row in rows:
                line, place = chained(row, places[-1])
                places.append(place)
                file.write(line if linked else to_line(row).encode())
            file.write(b'{"step": 6, "lo')  # killed while writing
        assert list(read_metrics(path)) == rows
        whole = path.read_bytes()
        assert copy_metrics(path, path, 3) == (
            {"lines": 4, "link": places[-2 if linked else 0]["link"]},
            True,
        )
        assert list(read_metrics(path)) == rows[:4]
        path.write_bytes(whole)
        assert copy_metrics(path, path, 3, places[-3]) == (places[-3], linked)
        assert list(read_metrics(path)) == rows[: 3 if linked else 4]
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:3], lines[2]]))  # one that was written twice
        assert copy_metrics(path, path, 3, places[3])[1] == linked
        assert not linked or list(read_metrics(path)) == rows[:3]
        places = [NO_LINES]
    assert copy_metrics(path, path, 0) == (NO_LINES, True) and path.read_text() == ""


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.out.*"])
def test_rows_wait_while_the_disk_is_full_and_come_in_order(tmp_path, monkeypatch, name):
    """The disk takes half of a row, and nothing of those behind it; no checkpoint goes over the gap."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    stream, full, write = io.StringIO(), False, os.write

    def limited(descriptor, data):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if full and path.match(name):
            if len(data) > 100:
                return write(descriptor, data[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", limited)
    with Telemetry(tmp_path, 30, stream=stream) as telemetry:
        for step in range(1, 31):
            full = 7 <= step <= 10
            telemetry.advance(step, 1)
            telemetry.log(step, {"loss": {"total": float(step)}})
            if step == 9:
                with pytest.raises(
                    UserError, match=f"no checkpoint.*step 9: 3 records.*{name[:6]}.*No space"
                ):
                    telemetry.sync()
        place = telemetry.sync()
    rows = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert [row["step"] for row in rows] == list(range(1, 31))
    assert place["lines"] == 30 and place["link"] in (tmp_path / "metrics.jsonl").read_text().splitlines()[-1]
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    scalars = board.Scalars("loss/total")
    assert [(one.step, one.value) for one in scalars] == [(step, step) for step in range(1, 31)]
    said = stream.getvalue()
    assert said.count("No space left on device") == 1 and said.count("none was lost") == 1
