"""Test sets of one's own during training, and early stopping by `train.patience`."""

import json
import math
import shutil

import numpy as np
import pytest
from commands import call
from run_helpers import ADJECTIVES, NOUNS, VERBS, command, curve, finish, records, start
from sts_layout import write_layout

from finetune.own_sets import main as own_sets_command
from finetune.results import read
from pretrain.benchmarks.sts_tasks import StsEvaluator
from pretrain.common.errors import CollapsedEncoder, UserError
from pretrain.common.run_folder import read_summary
from pretrain.config.recipe import load_config
from pretrain.export.folder import read_policy
from pretrain.start.evaluation import RunEvaluation, sets_of
from pretrain.step.progress import Progress


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A folder with a file of each kind, of the words of the corpus."""
    folder = tmp_path_factory.mktemp("sets")
    nouns, verbs, things = NOUNS.split(), VERBS.split(), ADJECTIVES.split()
    texts = [f"The {things[n % 9]} {nouns[n % 8]} {verbs[n % 7]} a {nouns[n % 13]}." for n in range(60)]
    rows = {
        "pairs": [{"text1": texts[n], "text2": texts[n * 7 % 60], "score": n % 5} for n in range(40)],
        "topics": [{"text": text, "label": n % 4} for n, text in enumerate(texts)],
        "faq": [{"query": f"{nouns[n % 8]} {verbs[n % 7]}", "document": texts[n]} for n in range(30)],
    }
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return folder


def listed(folder):
    return ",".join(str(folder / f"{name}.jsonl") for name in ("pairs", "topics", "faq"))


TASKS = {"pairs": "spearman", "topics": "accuracy", "topics/clusters": "v_measure", "faq": "ndcg@10"}


@pytest.mark.full
def test_sets_are_scored_in_training_as_by_the_command_and_on_two_ranks(tiny_data, sets, tmp_path, capsys):
    run, other = tmp_path / "run", tmp_path / "other"
    flags = {"evaluate__sets": listed(sets), "evaluate__best_by": "faq", "train__steps": 8}
    said = finish(start(command(tiny_data, run, **flags)))
    assert "set        faq: " in said and "documents (query, document)" in said
    evaluations = {row["step"]: row["evaluation"] for row in records(run) if "evaluation" in row}
    assert list(evaluations) == [0, 4, 8] and set(TASKS) <= set(evaluations[8])
    summary = read_summary(run)
    best = max(evaluations, key=lambda step: (evaluations[step]["faq"], -step))
    assert (summary["best_by"], summary["best_step"]) == ("faq", best) and not summary["stopped_early"]
    assert all(f"{task} ({metric} x 100)" in said for task, metric in TASKS.items())
    assert summary["trained"]["topics/clusters"] == evaluations[8]["topics/clusters"]
    call(own_sets_command, run / "export", set=listed(sets), out=tmp_path / "out")
    (path,) = (tmp_path / "out").glob("own_sets-*.json")
    alone = read(path).tasks
    for task, metric in TASKS.items():
        assert alone[task].metric == metric
        assert evaluations[8][task] == pytest.approx(alone[task].value, abs=1e-2), task
    flags |= {"evaluate__sets": f"{{faq: {sets / 'faq.jsonl'}}}", "train__steps": 2, "evaluate__every": 2}
    finish(start(command(tiny_data, other, **flags, train__warmup_steps=1), ranks=2))
    first = next(row["evaluation"] for row in records(other) if "evaluation" in row)
    assert first["faq"] == pytest.approx(evaluations[0]["faq"], abs=1e-2) and "pairs" not in first


WORSE = {
    "train__lr": 3.0,
    "train__steps": 20,
    "train__warmup_steps": 0,
    "evaluate__every": 2,
    "train__patience": 2,
    "checkpoint__every": 3,
    "checkpoint__keep": 9,
}


@pytest.mark.full
def test_patience_ends_a_run_and_a_resume_keeps_the_count_bitwise(tiny_data, tmp_path):
    run, again = tmp_path / "run", tmp_path / "again"
    said = finish(start(command(tiny_data, run, **WORSE)))
    assert "stopped early (train.patience), after step 4 of 20" in said
    assert ": the last 2 evaluations were no better by held-out MLM" in said
    summary = read_summary(run)
    assert (summary["steps"], summary["best_step"], summary["stopped_early"]) == (4, 0, True)
    assert read_policy(run / "export")["step"] == 4 and read_policy(run / "best")["step"] == 0
    assert [row["step"] for row in records(run) if "evaluation" in row] == [0, 2, 4]

    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints" / "step-00000004")  # as killed after step 3, with a count of 1
    shutil.rmtree(again / "export")
    finish(start(command(tiny_data, again, **WORSE, checkpoint__resume="auto")))
    assert curve(again) == curve(run)
    exported = [(one / "export" / "model.safetensors").read_bytes() for one in (run, again)]
    assert exported[0] == exported[1] and read_summary(again)["stopped_early"]

    finish(start(command(tiny_data, again, **WORSE, checkpoint__resume="auto")))  # it is complete
    assert curve(again) == curve(run)
    more = WORSE | {"train__patience": 3, "checkpoint__resume": "auto"}
    said = finish(start(command(tiny_data, again, **more), ranks=2))
    assert "changed    train.patience: 2 until step 4, 3 from now on" in said
    assert read_summary(again)["steps"] == 6 and "the last 3 evaluations were no better" in said
    # a branch counts its own evaluations
    branch = tmp_path / "branch"
    words = WORSE | {"checkpoint__resume": str(run / "checkpoints" / "step-00000004"), "train__steps": 8}
    finish(start(command(tiny_data, branch, **words)))
    assert read_summary(branch)["steps"] == 8


def test_evaluations_since_the_best_are_counted():
    progress, counts = Progress(), []
    for score in (3.0, 4.0, math.nan, 2.0, 2.0, 2.5):
        progress.note_scores({"heldout_mlm_loss": score})
        counts.append(progress.unimproved)
    assert counts == [0, 1, 2, 0, 1, 2]
    progress.note_scores({"stsb-dev": 1.0})  # another criterion begins anew
    assert progress.unimproved == 0


def test_sets_in_a_recipe(sets, tmp_path, monkeypatch):
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    place = str(sets / "faq.jsonl")
    for given in (place, [place], {"faq": place}, f"[{place}]", f"faq={place}"):
        assert load_config(None, {"evaluate.sets": given}).evaluate.sets == {"faq": place}
    assert load_config(None, {"evaluate.sets.mine": place}).evaluate.sets == {"mine": place}
    config = load_config(None, {"evaluate.sets": listed(sets), "evaluate.best_by": "topics/clusters"})
    assert [one.name for one in sets_of(config.evaluate)] == ["pairs", "topics", "faq"]
    for overrides, message in (
        ({"evaluate.sets": f"{place},b/faq.csv"}, "would both be called faq: write"),
        (
            {"train.patience": 2, "evaluate.every": 0},
            "train.patience=2 counts evaluations: set evaluate.every",
        ),
        ({"train.patience": 0}, "train.patience: .* greater than or equal to 1"),
    ):
        with pytest.raises(UserError, match=message):
            load_config(None, overrides)
    for overrides, message in (
        ({"evaluate.best_by": "fak", "evaluate.sets": place}, "best_by 'fak'; did you mean 'faq'"),
        ({"evaluate.best_by": "faq/clusters", "evaluate.sets": place}, "unknown score evaluate.best_by"),
        ({"evaluate.sets": f"stsb-dev={place}"}, "every run has a score stsb-dev; give the set another name"),
        ({"evaluate.sets": str(tmp_path / "no.tsv")}, "no such file"),
    ):
        with pytest.raises(UserError, match=message):
            sets_of(load_config(None, overrides).evaluate)


def test_a_collapsed_encoder_has_no_score(sets, capsys, monkeypatch):
    monkeypatch.delenv("CLEAR_DATA", raising=False)

    def collapsed(texts):
        raise CollapsedEncoder("all the same vector")

    config = load_config(None, {"evaluate.sets": listed(sets)})
    evaluation = object.__new__(RunEvaluation)
    evaluation.embed = evaluation.embed_query = evaluation.embed_document = collapsed
    scores = {}
    for one in sets_of(config.evaluate):
        scores |= evaluation._of_set(one)
    assert set(scores) == set(TASKS) and all(map(math.isnan, scores.values()))
    assert "WARNING: faq: all the same vector" in capsys.readouterr().err


def test_stsb_dev_is_to_the_last_bit_that_of_the_evaluation(tmp_path):
    def embed(texts):
        seeds = [list(text.encode()) or [0] for text in texts]
        return np.stack([np.random.default_rng(seed).normal(size=16) for seed in seeds]).astype(np.float32)

    (dev,) = sets_of(load_config(None, {"eval_data": str(write_layout(tmp_path))}).evaluate)
    evaluation = object.__new__(RunEvaluation)
    evaluation.embed = evaluation.embed_query = evaluation.embed_document = embed
    expected = StsEvaluator(tmp_path).evaluate(embed, ["STS-B-dev"])["STS-B-dev"]["spearman_all"]
    assert evaluation._of_set(dev) == {"stsb-dev": expected}
