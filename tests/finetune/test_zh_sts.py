"""Chinese STS-B against scipy on cosines written plainly; the file format and its mistakes."""

import json
import sys

import numpy as np
import pytest
from answer_checks import require_answers
from commands import call
from frozen_files import write_zh
from real_data import DATA, needs_data
from scipy import stats

from finetune import zh_sts
from finetune.encoders.models import open_model
from finetune.results import read as read_result
from finetune.results import table
from finetune.zh_sts import TASKS, read
from pretrain.benchmarks.files import DATA_SETS
from pretrain.benchmarks.own_sets import OwnSet
from pretrain.common.errors import UserError


def letters(sentences):
    """Order counts, so that only a sentence and itself are equal."""
    table = np.random.RandomState(1).randn(65536, 8)
    rows = [
        sum(table[ord(letter)] / (1 + place) for place, letter in enumerate(sentence))
        for sentence in sentences
    ]
    return np.array(rows, np.float32)


def test_equal_to_scipy(tmp_path):
    pairs = read(write_zh(tmp_path / "pairs.txt"))
    sides = zip(letters(pairs.first), letters(pairs.second))
    # as SentEval's
    cosine = np.array([np.dot(one, two) / (np.linalg.norm(one) * np.linalg.norm(two)) for one, two in sides])
    task = zh_sts.EVALUATION.evaluate(open_model(letters), {"STS-B-zh": pairs}).tasks["STS-B-zh"]
    assert task.value == pytest.approx(100 * stats.spearmanr(cosine, pairs.gold)[0], abs=1e-9)
    np.testing.assert_allclose(task.answers.predicted[0], cosine, atol=1e-6)
    assert task.scores["pearson"] == pytest.approx(100 * stats.pearsonr(cosine, pairs.gold)[0], abs=1e-9)


def test_equal_cosines_have_no_correlation_and_a_note_says_so():
    same = OwnSet("same", "similarity", [*"一二三"], [*"一二三"], np.arange(3.0))
    evaluation = zh_sts.EVALUATION.evaluate(
        open_model(lambda texts: np.eye(3)[: len(texts)]), {"STS-B-zh": same}
    )
    said = (
        "note: STS-B-zh has no spearman: all cosines (or predictions) of a set, or all its gold scores, are"
    )
    assert np.isnan(evaluation.tasks["STS-B-zh"].value) and said in table(evaluation)


def test_a_collapsed_encoder_is_an_error(tmp_path):
    pairs = read(write_zh(tmp_path / "pairs.txt"))
    with pytest.raises(UserError, match="sentences the same vector"):
        collapsed = open_model(lambda sentences: np.zeros((len(sentences), 3)))
        zh_sts.EVALUATION.evaluate(collapsed, {"STS-B-zh": pairs})
    few = OwnSet("few", "similarity", ["一", "二", "三"], ["四", "五", "六"], np.arange(3.0))
    with pytest.raises(UserError, match="all 6 sentences the same vector"):
        zh_sts.EVALUATION.evaluate(collapsed, {"STS-B-zh": few})


@pytest.mark.parametrize(
    "content,message",
    [
        ("1||一||二||3\n2||一||二\n", "line 2: expected number||sentence||sentence||score"),
        ("1||一||二||高\n", "line 1"),
        ("1||一||二||nan\n", "line 1"),
        ("1||一||二||3\n2||一||三||3\n3||一||四||3\n", "3 pairs of 1 different scores"),
        ("1||一||二||3\n", "1 pairs"),
        ("", "0 pairs"),
    ],
)
def test_damaged_files_are_one_message(tmp_path, content, message):
    path = tmp_path / "pairs.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as error:
        read(path)
    assert message in str(error.value) and str(path) in str(error.value)


def test_command(tmp_path, monkeypatch, capsys):
    for split in TASKS.values():
        write_zh(tmp_path / "zh" / "STS-B" / f"cnsd-sts-{split}.txt")
    monkeypatch.setitem(sys.modules, "words", type(sys)("words"))
    sys.modules["words"].embed = letters
    assert call(zh_sts.main, "words:embed", eval_data=str(tmp_path), out=str(tmp_path / "out")) == 0
    content = json.loads((tmp_path / "out" / "zh_sts-function.json").read_text())
    require_answers(read_result(tmp_path / "out" / "zh_sts-function.json"), list(content["tasks"]))
    assert list(content["tasks"]) == ["STS-B-zh", "STS-B-zh-dev"] and content["complete"] is False
    assert "40 pairs here, 1,361 as published" in content["notes"][0]
    assert "STS-B-zh: Spearman" in capsys.readouterr().err
    with pytest.raises(UserError, match="did you mean 'STS-B-zh-dev'"):
        call(zh_sts.main, "words:embed", tasks="STS-B-dev", eval_data=str(tmp_path))


@needs_data("zh/STS-B")
def test_real_files_have_the_published_sizes():
    for split in TASKS.values():
        pairs = read(DATA / "zh" / "STS-B" / f"cnsd-sts-{split}.txt")
        assert (
            len(pairs.gold) == DATA_SETS["zh/STS-B"].rows[split]
            and pairs.gold.min() >= 0
            and pairs.gold.max() <= 5
        )
