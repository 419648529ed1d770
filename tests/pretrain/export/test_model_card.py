"""What a model card says of a run's start and of its scores."""

import pytest

from pretrain.export.model_card import SCORES, _card_data, _scores


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
