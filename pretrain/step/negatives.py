"""How many negatives an anchor has in the global batch, counted while the plan is on the host."""

import torch

from pretrain.data.batch import NEGATIVE, column_of
from pretrain.losses.exclusions import Meanings
from pretrain.objectives import WholeObjective
from pretrain.step.plan import StepPlan, initial_owners


def count_negatives(plan: StepPlan, objective: WholeObjective, mask_duplicates: bool) -> float | None:
    """Return how many candidates an anchor is compared with, in the mean; None: no term compares.

    plan: merged, of all ranks, on the CPU.
    mask_duplicates: texts of one meaning are no negatives of each other (`losses.exclusions`).
    """
    sequences, ranks = plan.sequences, len(plan.drawn)
    pool = objective.pool(sum(plan.drawn), ranks)
    if not objective.negatives(pool):
        return None
    given = [role for role in objective.roles if column_of(role) == NEGATIVE]
    there = [sequences[f"present {role}"].double() for role in given]
    present = torch.stack(there).mean().item() if given else 1.0
    if not mask_duplicates:
        return objective.negatives(pool, present)
    texts = [sequences[f"identity {role}"] for role in objective.roles if role not in given]
    meanings = Meanings.of(torch.stack(texts))
    groups = (
        torch.from_numpy(initial_owners(plan.drawn))
        if objective.is_local
        else torch.zeros_like(meanings.records)
    )
    keys = meanings.records * ranks + groups  # a meaning, where anchors see no other rank's
    members = keys.bincount(minlength=ranks * len(meanings.texts)).double()
    equal = 0.0
    for role, of_role in zip(given, there):
        meaning = meanings.look_up(sequences[f"identity {role}"])
        anchors = members[meaning.clamp(min=0) * ranks + groups].masked_fill_(meaning < 0, 0.0)
        equal += (anchors * of_role).mean().item() / len(given)
    return objective.negatives(pool, present, members[keys].mean().item() - 1, equal)
