"""What a model card says of a run's start and of its scores."""

import pytest

from pretrain.export.model_card import SCORES, _card_data, _objective, _scores


@pytest.mark.parametrize(("init", "named"), [("OWNER/NAME", True), ("/home/jane/gone", False), (None, False)])
def test_only_a_model_of_the_hub_is_named_as_the_base(init, named):
    objective = {"name": "clear", "mlm": {"weight": 1.0, "copies": 1}}
    card = str(_card_data({"model": {"init": init}, "objective": objective}))
    assert (f"base_model: {init}\n" in card) == named and "jane" not in card


def test_every_score_of_a_run_has_words():
    names = ("heldout_mlm_loss", "partner_found", "partner_among", "partner_loss", "stsb-dev", "view_signal")
    records = [{"step": step, "evaluation": dict.fromkeys(names, 1.0)} for step in (0, 10)]
    card = _scores(records, "untrained")
    assert set(SCORES) == set(names) and not any(name in card for name in names)


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ({"spec": "none"}, "(objective `simcse`)"),
        ({"spec": "del-word"}, "(objective `simcse`, augmentation `del-word`)"),
        ({"spec": "none", "positive": "crop"}, "(objective `simcse`, augmentation `none` and `crop`)"),
    ],
)
def test_an_augmentation_is_named_if_there_is_one(views, said):
    objective = {"name": "simcse", "mlm": {"weight": 0.0, "copies": 1}}
    recipe = {"model": {"init": "a/b"}, "objective": objective, "augment": views}
    data = {"columns": ["text", "positive"]}
    assert _objective(recipe, data) == f"from a/b by a contrastive loss between the texts of a pair {said}"
