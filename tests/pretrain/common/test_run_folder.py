"""What a run's folder says: whether it is finished, and which weights an export holds."""

import json

import pytest

from pretrain.common.run_folder import describe_export, is_complete


@pytest.mark.parametrize(
    "summary,complete",
    [
        (None, False),
        ({"steps": 9}, False),
        ({"steps": 10}, True),
        ({"steps": 11}, True),
        ({"steps": 4, "stopped_early": False}, False),
        ({"steps": 4, "stopped_early": True}, True),
    ],
)
def test_a_run_is_complete_by_its_summary(tmp_path, summary, complete):
    if summary is not None:
        (tmp_path / "report").mkdir()
        (tmp_path / "report" / "summary.json").write_text(json.dumps(summary))
    assert is_complete(tmp_path, 10) is complete


def policy(step=500, best=500, by="stsb-dev", score=71.234, **more):
    progress = {"best_step": best, "best_score": score, "best_by": by}
    return {"step": step, "progress": progress, "recipe": {"train": {"steps": 1000}}} | more


@pytest.mark.parametrize(
    "of,said",
    [
        (None, ""),
        ({"step": 4}, ""),
        (policy() | {"recipe": None}, ""),
        (policy(), "step 500 of 1,000, best by stsb-dev 71.23"),
        (policy(by="heldout_mlm_loss", score=-2.5), "step 500 of 1,000, best by heldout_mlm_loss 2.5"),
        (policy(best=400), "step 500 of 1,000"),
        (policy(score=None), "step 500 of 1,000"),
        (
            policy(step=0, best=0, score=5.0),
            "step 0 of 1,000, best by stsb-dev 5: the start; training has not improved it",
        ),
        (policy(average={"alpha": 0.0}), "the start, kept by clearly adapt"),
        (policy(average={"alpha": 1.0}), "step 500 of 1,000, chosen by clearly adapt"),
        (
            policy(average={"alpha": 0.7}),
            "step 500 of 1,000, 0.7 of it and 0.3 of the start, chosen by clearly adapt",
        ),
    ],
)
def test_an_export_says_whose_weights_it_holds(of, said):
    assert describe_export(of) == said
