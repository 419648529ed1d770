"""What a preparation says while it runs, and in errors about what to set."""

import json
from time import monotonic
from types import SimpleNamespace

import pytest

from pretrain.common.errors import UserError
from pretrain.common.typed_values import parse_value
from pretrain.config.data import DataConfig, Source, data_config
from pretrain.prepare.jobs import Job, show_progress
from pretrain.prepare.run import prepare


def test_a_log_file_gets_lines_of_progress(monkeypatch, capsys):
    monkeypatch.setattr("pretrain.prepare.jobs._LINE_SECONDS", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks and CI do
    stages = [Job("read", "read, clean, split", [60, 40], []), Job("build", "write shards", [1], [])]
    with show_progress(stages) as advance:
        monkeypatch.setattr("pretrain.prepare.jobs.time", SimpleNamespace(monotonic=lambda: monotonic() + 60))
        advance(stages[0], 60, False)
        printed = capsys.readouterr().err
    assert "read, clean, split: 60%, 0:01:00, 0:00:40 left\n" in printed
    assert "write shards:" not in printed and "\x1b" not in printed


def test_what_was_done_before_does_not_shorten_the_time_left(monkeypatch, capsys):
    monkeypatch.setattr("pretrain.prepare.jobs._LINE_SECONDS", 1.0)
    stage = Job("read", "read, clean, split", [90, 1, 9], [])
    with show_progress([stage]) as advance:
        advance(stage, 90, True)
        monkeypatch.setattr("pretrain.prepare.jobs.time", SimpleNamespace(monotonic=lambda: monotonic() + 60))
        advance(stage, 1, False)
        assert "read, clean, split: 91%, 0:01:00, 0:09:00 left\n" in capsys.readouterr().err


@pytest.mark.parametrize("unit", ["sentence", "record"])
def test_a_missing_text_key_is_answered_by_the_flag_that_sets_it(tmp_path, unit):
    """And the flag works: it holds a source that the data keys take."""
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps({"id": "1", "message": f"A sentence of prose, number {n}."}) for n in range(40)]
    rows.write_text("\n".join(lines))
    ignoring = Source(source=str(rows), other_fields="ignore")
    where = {"workers": 1, "progress": False}
    with pytest.raises(UserError, match=r"id, message.*Set its text_key: --source") as refused:
        prepare(DataConfig(sources=[ignoring], unit=unit), tmp_path / "out", **where)
    value = str(refused.value).split("--source '")[1].split("'")[0].replace("FIELD", "message")
    sources = data_config({"sources": parse_value(value, list[Source], "--source")}).sources
    assert sources == [Source(source=str(rows), text_key="message")]

    named = ignoring.model_copy(update={"text_key": "message"})
    prepare(DataConfig(sources=[named], unit=unit), tmp_path / "out", **where)
    with pytest.raises(UserError, match=r"sources\[1\]\.text_key is 'message' there and 'text' now\. Choose"):
        prepare(DataConfig(sources=[ignoring], unit=unit), tmp_path / "out", **where)


def test_a_glob_of_files_with_other_fields_is_answered_by_a_source_for_each_kind(tmp_path):
    for key in ("message", "body"):
        lines = [json.dumps({key: f"A sentence of prose on {key}, number {n}."}) for n in range(40)]
        (tmp_path / f"{key}.jsonl").write_text("\n".join(lines))
    source = Source(source=f"{tmp_path}/*.jsonl", text_key="message")
    with pytest.raises(
        UserError, match=r"body\.jsonl, line 1: no field 'message'.*a source of its own in that list"
    ):
        prepare(DataConfig(sources=[source]), tmp_path / "out", workers=1, progress=False)
