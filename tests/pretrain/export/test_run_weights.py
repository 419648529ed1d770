"""Which weights of a run count: best/ knows the start, goes by something that moves, and is what the run's
name stands for."""

import json
import math

import numpy as np
import pytest
from run_helpers import command, finish, records, start

from finetune.encoders.source import resolve
from pretrain.benchmarks.own_sets import OwnSet
from pretrain.common.errors import CollapsedEncoder
from pretrain.common.run_folder import describe_export
from pretrain.config.recipe import load_config
from pretrain.export.folder import read_policy
from pretrain.start.evaluation import RunEvaluation
from pretrain.step.heldout import find_partners
from pretrain.step.progress import Progress, selection_score


def test_without_sts_and_masked_language_the_score_moves_though_every_partner_is_found():
    rng = np.random.default_rng(0)
    first = rng.normal(size=(50, 64))
    near = [
        {"partner_found": found, "partner_loss": loss}
        for noise in (0.6, 0.3, 0.1)
        for found, loss in [find_partners(first, first + noise * rng.normal(size=first.shape))]
    ]
    assert [scores["partner_found"] for scores in near] == [1.0, 1.0, 1.0]
    progress = Progress()
    # each is better than the last
    assert [progress.note_scores(scores) for scores in near] == [True, True, True]
    assert progress.best_by == "partner_loss" and progress.best_score == -near[-1]["partner_loss"]


def test_the_loss_of_finding_partners_is_the_cross_entropy_of_softmax():
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 7, 5))
    cosine = (first / np.linalg.norm(first, axis=1, keepdims=True)) @ (
        second / np.linalg.norm(second, axis=1, keepdims=True)
    ).T
    chances = np.exp(cosine / 0.05) / np.exp(cosine / 0.05).sum(1, keepdims=True)
    assert find_partners(first, second)[1] == pytest.approx(-np.log(np.diagonal(chances)).mean())
    # a collapsed encoder: chance
    assert find_partners(np.ones((8, 3)), np.ones((8, 3)))[1] == pytest.approx(np.log(8))


def test_what_decides_is_sts_then_masked_language_then_partners():
    scores = {"stsb-dev": 70.0, "heldout_mlm_loss": 3.0, "partner_found": 1.0, "partner_loss": 0.1}
    assert selection_score(scores) == ("stsb-dev", 70.0)
    del scores["stsb-dev"]
    assert selection_score(scores) == ("heldout_mlm_loss", -3.0)
    del scores["heldout_mlm_loss"]
    assert selection_score(scores) == ("partner_loss", -0.1)


def test_a_run_from_random_weights_is_judged_by_what_it_learns():
    scores = {"stsb-dev": 58.2, "heldout_mlm_loss": 9.7, "partner_loss": 6.3}
    assert selection_score(scores, from_random=True) == ("heldout_mlm_loss", -9.7)
    del scores["heldout_mlm_loss"]
    assert selection_score(scores, from_random=True) == ("stsb-dev", 58.2)
    progress = Progress()
    progress.note_scores({"stsb-dev": 58.2, "heldout_mlm_loss": 9.7}, from_random=True)
    progress.step = 10
    assert progress.note_scores({"stsb-dev": 50.0, "heldout_mlm_loss": 4.6}, from_random=True)


@pytest.mark.parametrize("by", [None, "heldout_mlm_loss"])
def test_a_loss_whose_start_was_random_does_not_decide(by):
    """Any step is better by it."""
    scores, random = {"heldout_mlm_loss": 10.7, "partner_loss": 1.5}, ("heldout_mlm_loss",)
    assert selection_score(scores, by=by, random=random) == ("partner_loss", -1.5)
    progress = Progress()
    progress.note_scores(scores, by=by, random=random)
    assert not progress.note_scores({"heldout_mlm_loss": 6.0, "partner_loss": 1.6}, by=by, random=random)


def test_the_start_is_best_until_something_is_better():
    progress = Progress()
    assert progress.note_scores({"stsb-dev": 70.0}) and progress.best_step == 0
    progress.step = 10
    assert not progress.note_scores({"stsb-dev": 69.0}) and progress.best_step == 0
    progress.step = 20
    assert progress.note_scores({"stsb-dev": 71.0}) and progress.best_step == 20
    assert not progress.note_scores({"stsb-dev": math.nan})  # a collapsed encoder


def test_a_collapsed_encoder_is_said_and_training_goes_on(capsys):
    def collapsed(texts):
        raise CollapsedEncoder("all the same vector")

    evaluation = object.__new__(RunEvaluation)
    evaluation.embed = evaluation.embed_query = evaluation.embed_document = collapsed
    pairs = OwnSet("stsb-dev", "similarity", ["a", "b"], ["c", "d"], np.arange(2.0))
    assert math.isnan(evaluation._of_set(pairs)["stsb-dev"])
    assert "WARNING: stsb-dev: all the same vector" in capsys.readouterr().err

    evaluation.embed = lambda texts: np.eye(len(texts))
    same = OwnSet("stsb-dev", "similarity", ["a", "b"], ["a", "b"], np.arange(2.0))
    assert math.isnan(evaluation._of_set(same)["stsb-dev"])
    assert "WARNING: stsb-dev: all cosines (or predictions) of a set, or" in capsys.readouterr().err


def test_a_collapsed_start_is_the_best_until_there_is_a_score():
    progress = Progress()
    assert progress.note_scores({"stsb-dev": math.nan})
    progress.step = 10
    assert not progress.note_scores({"stsb-dev": math.nan}) and progress.best_step == 0
    assert progress.note_scores({"stsb-dev": -3.0}) and progress.best_step == 10


@pytest.mark.full
@pytest.mark.parametrize("zero", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_that_only_gets_worse_says_that_its_start_was_best(tiny_data, tmp_path, zero, capsys):
    run = tmp_path / "a run"
    worse = {
        "train__lr": 3.0,
        "train__steps": 6,
        "train__warmup_steps": 0,
        "train__zero": zero,
        "evaluate__every": 3,
    }
    output = finish(start(command(tiny_data, run, **worse), ranks=1 if zero == 1 else 2))
    losses = {r["step"]: r["evaluation"]["heldout_mlm_loss"] for r in records(run) if "evaluation" in r}
    assert min(losses, key=losses.get) == 0, "the learning rate was to ruin the model"
    assert (
        "the start was the best by held-out MLM loss" in output and "training has not improved it" in output
    )
    assert read_policy(run / "best")["step"] == 0 and read_policy(run / "export")["step"] == 6
    assert not (run / ".start").exists() and not (run / "checkpoints" / "step-00000000").exists()
    summary = json.loads((run / "report" / "summary.json").read_text())
    assert (summary["best_step"], summary["best"]["heldout_mlm_loss"]) == (0, losses[0])
    # Evaluations, post-training and the summary's own suggestion mean the same weights, and say so.
    assert (
        f"evaluations of {run} use its best/, step 0 (lowest held-out MLM loss" in output
        and f"clearly sts '{run}'" in output
    )
    source = resolve(run)
    assert (source.location, source.run) == (str(run / "best"), run)
    assert (
        f"{run}: weights from {run / 'best'} (step 0 of 6, best by heldout_mlm_loss"
        in capsys.readouterr().err
    )
    assert load_config(None, {"init": str(run)}).model.init == str(run / "best")
    assert describe_export(read_policy(run / "export")) == "step 6 of 6"


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.0, "the start, kept by clearly adapt"),
        (0.25, "step 5 of 5, 0.25 of it and 0.75 of the start, chosen by clearly adapt"),
        (1.0, "step 5 of 5, chosen by clearly adapt"),
    ],
)
def test_weights_that_adapt_has_chosen_are_named_so(share, said):
    policy = {"step": 5, "progress": {}, "recipe": {"train": {"steps": 5}}, "average": {"alpha": share}}
    assert describe_export(policy) == said
