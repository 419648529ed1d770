"""Which steps `verify` compares, what it says of them, and which files count as sound: without a run."""

from types import SimpleNamespace

import pytest
from commands import call

from pretrain.commands.verify import files, stretches
from pretrain.commands.verify.__main__ import verify
from pretrain.commands.verify.files import Saved, check_chain, read_records
from pretrain.common.errors import UserError
from pretrain.config.recipe import as_yaml, load_config
from pretrain.data.ledger import KINDS, begin_ledger, extend_ledger
from pretrain.telemetry.metrics_file import NO_LINES, chained, to_line

SUMS = [(step, step + 1, -step, 7) for step in range(10)]


def ledgers(since: int = 0, wrong: int | None = None, kind: str = "views") -> dict[int, dict]:
    """Return step -> ledger of a run whose step `wrong`, from 0, had other sequences or views."""
    found, ledger = {}, begin_ledger(since)
    for step in range(since, 10):
        sums = list(SUMS[step])
        if step == wrong:
            sums[2 * KINDS.index(kind)] += 1
        found[step + 1] = ledger = extend_ledger(ledger, sums)
    return found


@pytest.fixture
def compared(tmp_path, monkeypatch, capsys):
    """Verify a run with rows at some steps and an export; return the status and what was said."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(as_yaml(load_config(None, {"folder": "r"}).model_dump(mode="json")))
    asked = []

    class Replay:
        def __init__(self, config, substitutions, jumped):
            asked.append((config.train.seed, substitutions, jumped))
            self.unread = {number: f"chunk {number}" for number in range(7)}

        def sums(self, begin, stop):
            asked.append((begin, stop))
            return ((step, SUMS[step]) for step in range(begin, stop))

        def sums_with_views(self, begin, stop, workers):
            asked.append(workers)
            return self.sums(begin, stop)

    monkeypatch.setattr("pretrain.commands.verify.replay.Replay", Replay)

    def compare(at=(1, 2, 4, 6, 8), progress=(), faults=(), since=0, wrong=None, kind="views", **flags):
        asked.clear()
        kept = ledgers(since, wrong, kind)
        rows = [{"step": step, "loss": 1.0, "ledger": kept[step]} for step in at]
        (run / "metrics.jsonl").write_text("".join(map(to_line, rows)))
        saved = [Saved("best", 8, {"ledger": kept[8]}, {}, {}),
                 Saved("step-10", 10, {"ledger": kept[10]} | dict(progress), {}, {})]  # fmt: skip
        monkeypatch.setattr(files, "check_files", lambda run: (list(faults), saved))
        status = (
            call(verify, run, keys=(), **flags) if not flags.keys() & {"from", "to"} else verify(run, **flags)
        )
        return status, capsys.readouterr().out

    return SimpleNamespace(run=run, asked=asked, compare=compare)


def test_every_step_is_compared_by_the_records_at_and_behind_it(compared):
    status, said = compared.compare(progress={"substitutions": ["s"], "jumped": [[3, 5]]})
    assert status == 0 and compared.asked == [(load_config(None, {}).train.seed, ["s"], [(3, 5)]), (0, 10)]
    assert "metrics.jsonl, config.yaml, tokenizer, best, step-10: every file as the run wrote it\n" in said
    assert "steps 1 to 10: every batch is as recorded in 5 rows of metrics.jsonl and best, step-10\n" in said


@pytest.mark.parametrize(
    ("span", "asked", "said"),
    [
        ({"from": "5"}, (4, 10), "steps 5 to 10: every batch is as recorded in 2 rows of metrics.jsonl and"),
        ({"from": "4"}, (2, 10), "steps 3 to 10: every batch is as recorded in 3 rows"),
        ({"from": "2", "to": "7"}, (1, 6), "steps 2 to 6: every batch is as recorded in 3 rows of metr"),
        ({"to": "99"}, (0, 10), "steps 1 to 10: every batch is as recorded in 5 rows"),
        ({"from": "1", "to": "1"}, (0, 1), "steps 1 to 1: every batch is as recorded in 1 rows"),
    ],
)  # fmt: skip
def test_the_record_before_the_first_step_is_believed(span, asked, said, compared):
    status, text = compared.compare(**span)
    assert status == 0 and compared.asked[1] == asked and said in text
    begin = asked[0]
    assert (f"given the record of step {begin}\n" in text) == (begin > 0)


def test_steps_without_a_record_are_refused_or_said(compared):
    with pytest.raises(UserError, match="--from 11 is after the last step, 10"):
        compared.compare(**{"from": "11"})
    with pytest.raises(UserError, match="no record of its batches between steps 9 and 9"):
        compared.compare(**{"from": "9", "to": "9"})
    for name, text in (("from", "0"), ("to", "-1"), ("to", "2.5")):
        with pytest.raises(UserError, match=f"--{name} {text}: a step, counted from 1"):
            compared.compare(**{name: text})
    status, said = compared.compare(at=(4, 6), since=3)
    assert (
        status == 0 and "steps 1 to 3 have no record: an older version" in said and "steps 4 to 10:" in said
    )
    status, said = compared.compare(at=(4, 6), since=3, **{"from": "6"})
    assert status == 0 and "an older version" not in said and "steps 5 to 10:" in said


def test_where_the_batches_are_others_is_said_with_what_may_explain_it(compared):
    status, said = compared.compare(wrong=4)  # of the views alone, which are not compared
    assert status == 0 and compared.asked[1:] == [(0, 10)]
    changes = [
        {"key": key, "step": 5, "from": "a", "to": "b"} for key in ("batches", "input shards", "train.lr")
    ]
    status, said = compared.compare(wrong=4, views=True, workers=3, progress={"changes": changes})
    assert status == 1 and compared.asked[1] == 3
    assert (
        "steps 5 to 6: the views are not as recorded (row of step 6); before it every batch, its mask" in said
    )
    assert said.count("cannot be read now: chunk") == 5 and "--from 7" in said
    assert "another batches from step 5 on: a, b" in said and "another input shards from" in said
    assert "train.lr" not in said
    status, said = compared.compare(wrong=7, kind="sequences", **{"from": "8"})
    assert status == 1 and "steps 7 to 8: the sequences are not as recorded (row, best of step 8)" in said
    assert "given the record of step 6" in said
    status, said = compared.compare(wrong=0, kind="sequences")
    assert "\nstep 1: the sequences are not as recorded (row of step 1)" in said


@pytest.mark.parametrize(("number", "shown"), [(1, 1), (20, 20), (21, 20), (25, 20)])
def test_twenty_files_are_named(number, shown, compared):
    status, said = compared.compare(faults=[f"file {n}" for n in range(number)])
    assert status == 1 and said.count("  file ") == shown
    assert ("more\n" in said) == (number > 20) and (f"and {number - 20} more" in said or number <= 20)
    assert "every batch is as recorded" in said and "every file" not in said


@pytest.mark.parametrize("good", [True, False])
def test_stretches_are_trained_again_where_that_is_asked_for(good, compared, monkeypatch):
    given = []
    monkeypatch.setattr(stretches, "replay", lambda *words: given.append(words[2:]) or good)
    assert compared.compare()[0] == 0 and given == []
    assert compared.compare(replay=2, replay_seed=0)[0] == (0 if good else 1)
    assert compared.compare(replay=1)[0] == (0 if good else 1)
    assert given[0] == (2, 0, {}) and given[1][0] == 1 and 0 <= given[1][1] < 10**9
    assert compared.compare(replay=1, wrong=3, kind="sequences")[0] == 1 and len(given) == 3


# -- files ---------------------------------------------------------------


def test_records_are_of_steps_with_a_loss_and_of_what_is_saved(tmp_path):
    rows = [
        {"step": 3, "loss": 1.0, "ledger": {"at": 3}},
        {"step": 2, "loss": 1.0, "ledger": {"at": 2}},
        {"step": 2, "ledger": {"no": "loss"}},
        {"step": 5, "loss": 1.0},
        {"step": None, "loss": 1.0, "ledger": {"no": "step"}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(map(to_line, rows)))
    saved = [Saved(name, step, {"ledger": {name: 1}}, {}, {}) for name, step in (("b", 2), ("start", 0))]
    records, last = read_records(tmp_path, [*saved, Saved("old", 4, {}, {}, {})])
    assert [(one.step, one.where) for one in records] == [(2, "row"), (2, "b"), (3, "row")] and last == 5
    with pytest.raises(UserError, match="records no hashes of its batches: an older version"):
        read_records(tmp_path / "none", [Saved("old", 4, {}, {}, {}), saved[1]])
    with pytest.raises(UserError, match="has no step yet"):
        read_records(tmp_path / "none", [])


def test_lines_without_a_link_and_places_that_moved_are_named():
    lines, places = [], [NO_LINES]
    for step in range(4):
        line, place = chained({"step": step}, places[-1])
        lines.append(line)
        places.append(place)
    old = [to_line({"step": -1}).encode(), b"[1]\n"]
    assert list(check_chain([*old, *lines], {})) == []  # of an older version
    assert list(check_chain([*lines, *old], {})) == [
        "line 5 of metrics.jsonl (step -1) has no link, or none that can be read",
        "line 6 of metrics.jsonl has no link, or none that can be read",
    ]
    said = "best records 2 lines of metrics.jsonl, and the last of them is line 3"
    assert list(check_chain([old[0], *lines], {"best": places[2]})) == [said]
    assert list(check_chain(lines, {"best": places[2], "export": places[4]})) == []


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """Make a run with a checkpoint and an export, of which a test may change single parts."""
    config = load_config(None, {"folder": "r"}).model_dump(mode="json")
    (tmp_path / "config.yaml").write_text(as_yaml(config))
    lines, places = b"", [NO_LINES]
    for step in range(1, 4):
        line, place = chained({"step": step}, places[-1])
        lines, places = lines + line, [*places, place]
    (tmp_path / "metrics.jsonl").write_bytes(lines)
    for name in ("step-2", "gone"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    made = SimpleNamespace(run=tmp_path, problems={"step-2": None, "gone": "is cut"}, places=places)
    made.state = {"step": 2, "progress": {"rows": places[2]}, "config": config, "tokenizer_hash": "h"}
    made.policy = {"step": 3, "progress": {"rows": places[3]}, "recipe": config}
    made.changed, made.hash = {"best": None, "export": []}, "h"
    names = [tmp_path / "checkpoints" / name for name in ("step-2", "gone", "removed")]
    monkeypatch.setattr(files, "candidates", lambda folder: names)
    monkeypatch.setattr(files, "problem_with", lambda path: made.problems.get(path.name, "is cut"))
    monkeypatch.setattr(files, "read_state", lambda path: made.state)
    monkeypatch.setattr(files, "changed_files", lambda path: made.changed[path.name])
    monkeypatch.setattr(files, "read_policy", lambda path: made.policy if path.name == "export" else None)
    monkeypatch.setattr(files, "tokenizer_hash", lambda path: made.hash)
    return made


def test_what_is_not_as_the_run_wrote_it_is_named_once(whole, capsys):
    faults, saved = files.check_files(whole.run)
    assert faults == ["gone is cut"] and [(one.name, one.step) for one in saved] == [
        ("step-2", 2),
        ("export", 3),
    ]
    assert (saved[0].state, saved[1].state) == (whole.state, {})
    whole.problems["gone"] = None
    assert files.check_files(whole.run)[0] == []
    whole.hash = "another"
    assert files.check_files(whole.run)[0] == ["tokenizer/tokenizer.json is not the run's"]
    whole.hash, whole.changed["export"] = "h", ["a", "b"]
    faults, saved = files.check_files(whole.run)
    assert faults == ["export/a is changed or gone", "export/b is changed or gone"] and len(saved) == 2
    whole.changed["export"] = []
    broken = whole.run / "checkpoints" / "step-2" / "parameters-0.safetensors"
    broken.write_bytes(b"x" * 99)
    (fault,) = files.check_files(whole.run)[0]
    assert fault.startswith("step-2/parameters-0.safetensors cannot be read: ")
    broken.rename(broken.with_name("exp_avg-0.safetensors"))  # of parameters alone
    assert files.check_files(whole.run)[0] == [] and capsys.readouterr().out == ""


def test_an_export_of_an_abandoned_end_is_no_damage(whole, capsys):
    whole.problems["gone"] = None
    whole.policy["progress"] = {"rows": {"lines": 5, "link": "ab" * 16}}
    assert files.check_files(whole.run)[0] == []
    assert "export is of an abandoned end" in capsys.readouterr().out
    whole.state["progress"] = {"rows": {"lines": 5, "link": "cd" * 16}}  # the rows themselves are others
    assert len(files.check_files(whole.run)[0]) == 3 and capsys.readouterr().out == ""  # both ways of two


def test_a_checkpoint_without_a_tokenizer_folder_says_so(whole, monkeypatch):
    def missing(path):
        raise UserError("holds no tokenizer.json")

    whole.problems["gone"] = None
    monkeypatch.setattr(files, "tokenizer_hash", missing)
    assert files.check_files(whole.run)[0] == ["tokenizer/tokenizer.json is not the run's"]
    whole.problems |= {"step-2": "is cut", "gone": "is cut"}  # nothing says which tokenizer it was
    assert files.check_files(whole.run)[0] == ["step-2 is cut", "gone is cut"]


def test_the_bar_of_a_stretch_counts_the_steps_behind_its_beginning(tmp_path, monkeypatch):
    seen = []

    class Bar:
        def __init__(self, *columns, **settings):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def add_task(self, text, total):
            seen.append(total)

        def update(self, task, completed):
            seen.append(completed)

    config = load_config(None, {"folder": "r"}).model_dump(mode="json")
    (recipe := tmp_path / "recipe.yaml").write_text(as_yaml(config))
    before, after = (Saved(f"step-{n}", n, {}, config, {"world_size": 1}) for n in (4, 9))
    monkeypatch.setattr(stretches, "Progress", Bar)
    monkeypatch.setattr(stretches, "read_all", lambda folder: {0: SimpleNamespace(step=7)})
    monkeypatch.setattr(stretches, "start_logged", lambda words, log, environment: log.write_text(""))
    monkeypatch.setattr(stretches, "wait_for_end", lambda process, look: look() or 0)
    stretch = stretches.Stretch(4, before, after)
    assert stretches.do_again(tmp_path, stretch, recipe, tmp_path / "again", {}) == "" and seen == [5, 3]
