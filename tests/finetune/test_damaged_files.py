"""Files in folders of runs and results that were cut: one error with the file, or, of a cache, made again."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from model_folders import save_bert, save_run

from augment.core.errors import CannotLoad
from finetune.answers import Answers, read_answers
from finetune.figures.__main__ import draw
from finetune.judge import choice
from finetune.judge.averaging import average
from finetune.judge.choice import read_report
from finetune.judge.heldout import HALVES, make_test
from finetune.judge.scores import BM25, START
from finetune.tuning.finetuning import read_result
from pretrain.benchmarks.sts_tasks import PairScores
from pretrain.commands.convert import convert
from pretrain.commands.record.board import records
from pretrain.commands.record.training import read_json
from pretrain.commands.sweep.evaluations import _tasks
from pretrain.common.errors import UserError
from pretrain.common.run_folder import read_json_file, read_summary
from pretrain.data.tokenizer import tokenizer_hash
from pretrain.export.sums import WEIGHTS


def report_of(folder):
    for part in ("export", "best"):
        (folder / part).mkdir(exist_ok=True)
        (folder / part / WEIGHTS).write_bytes(b"")
    read_report(folder / "judge.json", folder / "export", folder / "best")


def converted(folder):
    torch.save({"weight": torch.ones(2)}, folder / "pytorch_model-1.bin")
    (folder / "model-1.safetensors").unlink(missing_ok=True)
    convert(folder)


@pytest.mark.parametrize(
    "name,read,remedy",
    [
        ("judge.json", report_of, "judges again"),
        ("judge/about.json", lambda folder: make_test([], folder / "judge", 0, False), "makes the same test"),
        ("report/summary.json", read_summary, "--resume auto writes it again"),
        ("results.json", draw, "clearly sweep"),
        ("sts-mean.json", lambda folder: _tasks(folder / "sts-mean.json"), "evaluate anew"),
        ("mine/record.json", records, "from a copy"),
        ("start.json", lambda folder: read_json(folder / "start.json"), "from a copy"),
        ("tokenizer.json", tokenizer_hash, "from a copy"),
        ("RTE-seed1.json", lambda folder: read_result(folder / "RTE-seed1.json"), "compute the run again"),
        ("pytorch_model.bin.index.json", converted, "copy it again"),
    ],
)
def test_a_cut_file_is_one_error_that_names_it(tmp_path, name, read, remedy):
    (file := tmp_path / name).parent.mkdir(exist_ok=True)
    for content in (b'{"figures": [1,', b"", b"\0" * 64, b'{"a": "\xff"}', b"[" * 100_000):
        file.write_bytes(content)
        with pytest.raises(UserError, match=remedy) as error:
            read(tmp_path)
        assert str(error.value).startswith(f"{file} is damaged (")


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path):
    """Nobody should remove what a server does not give at the moment."""
    with pytest.raises(UserError, match=r" cannot be read: Is a directory$"):
        read_json_file(tmp_path, "remove it")


def cut(content: bytes) -> list[bytes]:
    """Return what may be left of an npz: others' bytes, a part, and a member that is overwritten."""
    start = content.index(b".npy") + 24  # behind the header of the member
    overwritten = content[:start] + b"\xff" * 9 + content[start + 9 :]
    return [b"", b"garbage" * 9, b"PK" * 99, content[: len(content) // 2], overwritten]


@pytest.mark.parametrize("number", range(5))
def test_damaged_answers_are_asked_for_again(tmp_path, number):
    answers = Answers.of([1, 0, 1], np.array([1, 1, 1]), "accuracy", "examples")
    path, about = tmp_path / "answers.npz", answers.about()
    PairScores({"x/given": answers.predicted, "x/gold": answers.gold}).write(path)
    assert read_answers(path, "x", about).about() == about
    path.write_bytes(cut(path.read_bytes())[number])
    assert read_answers(path, "x", about).endswith("; evaluate x again")


@pytest.mark.parametrize("number", range(5))
def test_damaged_scores_of_a_judge_are_made_again(tmp_path, number, monkeypatch, capsys):
    halves = {half: np.arange(8.0).reshape(2, 4) for half in HALVES}
    made = []
    stand = SimpleNamespace(
        of_words=lambda: made.append("words") or halves, of_model=lambda _: made.append("start") or halves
    )
    monkeypatch.setattr(choice.Halves, "of", lambda folder: stand)
    monkeypatch.setattr(choice.bm25, "available", lambda: True)

    def begin():
        made.clear()
        judge = choice.Judge(None, tmp_path, lambda: None, None, "digest")
        judge.begin()
        assert {row: set(of) for row, of in judge.scores.items()} == {BM25: set(HALVES), START: set(HALVES)}
        return sorted(made)

    assert begin() == ["start", "words"] and begin() == [] and "damaged" not in capsys.readouterr().err
    path = tmp_path / "scores.npz"
    path.write_bytes(cut(path.read_bytes())[number])
    assert begin() == ["start", "words"] and begin() == []
    assert f"note: {path} is damaged (" in capsys.readouterr().err


def test_damaged_weights_are_not_averaged(tmp_path):
    start = save_bert(tmp_path / "bert")
    adapted = save_run(start, tmp_path / "run", "mean") / "export"
    (adapted / WEIGHTS).write_bytes((adapted / WEIGHTS).read_bytes()[:99])
    with pytest.raises(CannotLoad, match=re.escape(f"{adapted / WEIGHTS} is damaged")):
        average(str(start), adapted, 0.5, tmp_path / "out")
