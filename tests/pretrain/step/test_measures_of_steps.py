"""What a step measures besides its losses: checks of mechanisms, where a row ends alone."""

import pytest
from exactness_cases import CASES, SEED, N, make_batch, share
from exactness_worker import build
from threaded_ranks import PlainEngine, ThreadedRanks

from pretrain.step.whole_batch import WholeBatch

ALWAYS = {"discriminator_accuracy", "discriminator_majority_share", "vascl_rows_short_of_neighbours"}
SHARE, COSINE = "_gradient_share", "_gradient_cosine"
CHECKS = {
    "clear_mean": {f"contrastive{SHARE}"},
    "not_yet": set(),
    "mlm": set(),
    "simcse_options": {f"simcse{SHARE}", "simcse_masked_share"},
    "sda": {f"sda{SHARE}", "sda_negation_nearer_than_positive", "sda_negation_share_of_loss"},
    "esimcse": {f"esimcse{SHARE}", "esimcse_queue_share_of_loss"},
    "vascl": {
        *(f"vascl{SHARE}", f"vascl_neighbourhood{SHARE}", f"vascl_neighbourhood{COSINE}"),
        *("vascl_neighbourhood_rise", "vascl_neighbourhood_rise_of_random", "vascl_rows_short_of_neighbours"),
    },
    "augcse": {
        *(f"augcse{SHARE}", f"augcse_discriminator{SHARE}", f"augcse_discriminator{COSINE}"),
        *("discriminator_accuracy", "discriminator_majority_share"),
    },
    "vadvcse": {
        *(f"vadvcse{SHARE}", f"vadvcse_adversarial{SHARE}"),
        *("vadvcse_adversarial_over_random", "vadvcse_cosine_with_start"),
    },
    "diffcse": {
        *(f"diffcse{SHARE}", f"diffcse_replaced_token{SHARE}", f"diffcse_replaced_token{COSINE}"),
        *("diffcse_replaced_token_accuracy", "diffcse_always_original_accuracy"),
    },
}


@pytest.mark.parametrize("case", CHECKS)
def test_checks_are_made_where_a_row_ends_alone(case, monkeypatch):
    _, model = build(case, 0, "fp32", 0.0)
    batch = share(make_batch(5, model.objective.masked_copies, model.objective.roles), 0, 1, 0)

    def compute(rank):
        steps = WholeBatch(PlainEngine(model), SEED, 200, lanes=N)
        without = set(steps.compute(batch).measures)
        model.zero_grad(set_to_none=True)
        return without, set(steps.compute(batch, collects_diagnostics=True).measures)

    ((without, collected),) = ThreadedRanks(1, monkeypatch).run(compute)
    assert case in CASES and without == collected & ALWAYS
    widths = {name for name in collected if "_at_" in name}
    assert collected - widths == CHECKS[case] and bool(widths) == case.endswith("options")
