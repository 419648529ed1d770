"""Settings under which gradients are held against the float64 reference, and the batch of that test."""

import numpy as np

from augment.core.ragged import Ragged
from pretrain.data.batch import RankBatch, View
from pretrain.data.masking import Masked
from pretrain.data.worker import with_prompt

VOCABULARY, PAD, CLS, SEP, MASK, WIDTH = 96, 0, 1, 2, 3, 32
N = 16  # sequences of the global batch
LABELS, SEED = 4, 5

ALONE = {"mlm": {"weight": 0.0}}  # without the masked-language loss
CASES = {
    "mlm": {"objective": {"name": "mlm"}},
    "double_mlm": {"objective": {"name": "mlm", "mlm": {"copies": 2}}},
    "clear_mean": {},
    "clear_cls": {"model": {"pooling": "cls"}, "objective": {"contrastive": {"weight": 0.7}}},
    "clear_batch_norm": {"objective": {"contrastive": {"projection_batch_norm": True}}},
    "clear_views_without_dropout": {"objective": {"view_dropout": False}},
    "clear_no_head": {"objective": {"contrastive": {"projection_layers": 0}}},
    "clear_local": {"objective": {"scope": "local"}},
    "contrastive_only": {"objective": ALONE},
    # Gradients so small that float16 loses them unless each loss that passes through it is scaled.
    "faint_mlm": {"objective": {"name": "mlm", "mlm": {"weight": 1e-7}}},
    "faint_contrastive": {"objective": {"contrastive": {"weight": 1e-7}, **ALONE}},
    "not_yet": {"objective": {"start_step": 100}},
    "simcse": {"objective": {"name": "simcse", **ALONE}},
    "simcse_symmetric": {"objective": {"name": "simcse", "simcse": {"form": "symmetric", "head": "none"}}},
    "simcse_batch_norm": {"objective": {"name": "simcse", "simcse": {"head": "batch-norm"}, **ALONE}},
    "simcse_all": {"objective": {"name": "simcse", "simcse": {"form": "2n-2"}, **ALONE}},
    "simcse_supervised": {
        "objective": {
            "name": "simcse",
            "simcse": {"hard_negatives": True, "hard_negative_logit": 0.5},
            **ALONE,
        }
    },
    "sda": {"objective": {"name": "sda", **ALONE}},
    "sda_no_negatives": {"objective": {"name": "sda", "sda": {"negatives": False}, **ALONE}},
    "declutr": {"objective": {"name": "declutr"}},
    "simcse+retain": {
        "objective": {
            "name": "simcse+retain",
            "simcse": {"form": "symmetric", "head": "none"},
            "retain": {"weight": 3.0, "model": "another"},
            **ALONE,
        }
    },
    "esimcse": {"objective": {"name": "esimcse", **ALONE}},
    # the first steps of a batch that grows to twice as many, which the queue has room for
    "esimcse_growing": {
        "objective": {"name": "esimcse", **ALONE},
        "train": {"global_batch": 2 * N, "batch_start": N, "batch_warmup_steps": 10},
    },
    "muon": {"train": {"optimizer": "muon"}},  # ZeRO 0 only
    "esimcse_local": {"objective": {"name": "esimcse", "esimcse": {"queue": 0.0}, "scope": "local", **ALONE}},
    "vascl": {"objective": {"name": "vascl", "vascl": {"neighbours": 4, "radius": 2.0}, **ALONE}},
    "vascl_paper": {
        "objective": {
            "name": "vascl",
            "vascl": {"neighbours": 4, "radius": 2.0, "reading": "paper"},
            **ALONE,
        }
    },
    "vascl_local": {
        "objective": {
            "name": "vascl",
            "vascl": {"neighbours": 4, "radius": 2.0, "reading": "paper"},
            "scope": "local",
            **ALONE,
        }
    },
    "augcse": {"objective": {"name": "augcse", "augcse": {"discriminator_weight": 0.5}, **ALONE}},
    "augcse_local": {
        "objective": {"name": "augcse", "augcse": {"discriminator_weight": 0.5}, "scope": "local", **ALONE}
    },
    "augcse_paper": {
        "objective": {
            "name": "augcse",
            "augcse": {"discriminator_weight": 0.5, "reading": "paper", "alpha": 3.0},
            **ALONE,
        }
    },
    "augcse_order": {
        "objective": {
            "name": "augcse",
            "augcse": {"discriminator_weight": 0.5, "labels": "order", "positive": "augmented"},
            **ALONE,
        }
    },
    "augcse_bool": {
        "objective": {"name": "augcse", "augcse": {"discriminator_weight": 0.5, "labels": "bool"}, **ALONE}
    },
    "vadvcse": {
        "objective": {
            "name": "vadvcse",
            "vadvcse": {"adversarial_weight": 0.1, "sigma": 1e-2, "step_size": 1.0},
            **ALONE,
        }
    },
    "vadvcse_printed": {
        "objective": {
            "name": "vadvcse",
            "vadvcse": {
                "reading": "appendix-A",
                "adversarial_weight": 0.5,
                "sigma": 0.1,
                "norm": "l2",
                "radius": 0.3,
                "divergence": "kl",
            },
            **ALONE,
        }
    },
    "vadvcse_two_steps": {
        "objective": {
            "name": "vadvcse",
            "vadvcse": {
                "reading": "algorithm-1",
                "adversarial_weight": 10.0,
                "sigma": 0.1,
                "radius": 0.3,
                "divergence": "symmetric-kl",
                "steps": 2,
                "step_size": 0.6,
                "distribution": "vector",
            },
            **ALONE,
        }
    },
    "diffcse": {"objective": {"name": "diffcse", "diffcse": {"replaced_token_weight": 0.5}, **ALONE}},
    "diffcse_sample": {
        "objective": {"name": "diffcse", "diffcse": {"replaced_token_weight": 0.5, "reading": "paper"}}
    },
    "clear+vadvcse": {
        "objective": {
            "name": "clear+vadvcse",
            "vadvcse": {"weight": 0.3, "adversarial_weight": 1e-3, "sigma": 1e-2, "step_size": 1.0},
        }
    },
}

GUIDED = {"false_negatives": {"guide": "self", "margin": 0.05}}
RELATIVE = {"false_negatives": {"guide": "self", "margin": -0.02, "strategy": "relative"}}
WIDTHS = {"matryoshka": [32, 8, 20]}
NARROW = {"matryoshka": [20, 8]}  # the whole width is not among them
OPTIONS = {
    "clear_mean": GUIDED | WIDTHS,
    "clear_local": RELATIVE,
    "simcse": RELATIVE | WIDTHS,
    "simcse_symmetric": GUIDED,
    "simcse_batch_norm": NARROW,
    "simcse_all": RELATIVE | NARROW,
    "simcse_supervised": GUIDED | WIDTHS,
    "sda": GUIDED | WIDTHS,
    "declutr": RELATIVE | WIDTHS,
    "esimcse": GUIDED | WIDTHS,
    "vascl_paper": RELATIVE | WIDTHS,
    "augcse_paper": GUIDED | WIDTHS,
    "augcse_order": RELATIVE | NARROW,
    "vadvcse": GUIDED | WIDTHS,
    "diffcse": RELATIVE | WIDTHS,
    "clear+vadvcse": WIDTHS,
}
"""Case -> options of its contrastive losses, of which `CASE_options` is made."""
CASES |= {
    f"{case}_options": CASES[case] | {"objective": CASES[case].get("objective", {}) | options}
    for case, options in OPTIONS.items()
}
OTHER = {"false_negatives": {"guide": "another"}}
GUIDES = {
    "clear_mean": OTHER | WIDTHS,
    "clear_local": OTHER,
    "simcse_supervised": OTHER,
    "declutr": OTHER,
    "esimcse": OTHER | NARROW,
    "augcse_paper": OTHER,
}
"""Case -> options under which another encoder finds the false negatives, of which `CASE_guided` is made."""
CASES |= {
    f"{case}_guided": CASES[case] | {"objective": CASES[case].get("objective", {}) | options}
    for case, options in GUIDES.items()
}
POSITIVES = {
    "name": "simcse",
    "simcse": {"positives": 3, "hard_negatives": 2, "hard_negative_logit": 0.5},
    **ALONE,
}
HARD = {"simcse": {"hard_negatives": 2, "hard_negative_logit": 0.5, "in_batch": False}}
CASES |= {
    "simcse_positives": {"objective": POSITIVES},
    "simcse_positives_options": {"objective": POSITIVES | GUIDED | WIDTHS},
    "simcse_positives_local": {"objective": POSITIVES | {"simcse": {"positives": 2}, "scope": "local"}},
    "simcse_positives_answers": {"objective": POSITIVES, "batch": {"shared": True}},
    "simcse_hard": {"objective": POSITIVES | HARD},
    "simcse_hard_positives": {
        "objective": POSITIVES | {"simcse": HARD["simcse"] | {"positives": 2}} | RELATIVE
    },
}
"""Several positives a record, of which each lacks some, beside other records' texts or hard negatives."""
CASES |= {
    "scored": {"objective": {"name": "scored", **ALONE}, "batch": {"scored": True}},
    "scored_cosine_options": {
        "objective": {"name": "scored", "scored": {"loss": "cosine", "highest": 5.0}, **WIDTHS},
        "batch": {"scored": True},
    },
}
TAUGHT = {
    "mse": {"loss": "mse"},
    "cosine": {"loss": "cosine", "weight": 2.0},
    "margin": {"loss": "margin"},
    "kl": {"loss": "kl", "temperature": 0.1},
}
CASES |= {
    f"distill_{loss}": {"objective": {"name": "distill", "distill": {"model": "another", **more}, **ALONE}}
    for loss, more in TAUGHT.items()
}
CASES["simcse+distill"] = {
    "objective": {
        "name": "simcse+distill",
        "simcse": {"head": "none"},
        "distill": {"model": "another", **TAUGHT["kl"]},
        **WIDTHS,
    }
}
CASES["simcse_kept_options"] = {
    "objective": {"name": "simcse", "simcse": {"keep_head": True, "hard_negatives": True}, **ALONE}
    | RELATIVE
    | WIDTHS
}

THREE = {"name": "simcse", "simcse": {"hard_negatives": 3, "hard_negative_logit": 0.5}, **ALONE}
CASES |= {
    "simcse_negatives": {"objective": THREE},
    "simcse_negatives_options": {"objective": THREE | GUIDED | WIDTHS},
    "simcse_negatives_local": {"objective": THREE | {"scope": "local"}},
}
"""Three hard negatives a record, some of which each lacks."""

WORDS = {"model": {"pooling": "words"}}
CASES |= {
    "clear_weights": {"model": {"token_weights": "sif"}},
    "simcse_words": WORDS | CASES["simcse_symmetric"],
    "clear_words": WORDS,
    "vadvcse_words": WORDS | CASES["vadvcse"],
}
"""Tokens that are weighted, and word embeddings alone, in which a special token weighs nothing."""

PROMPTS = {"anchor": [7, 8, 9], "positive": [11], "negative": [11], "augmented": [7, 8, 12]}
"""Role -> tokens of its prompt."""
PROMPTED = ("clear_mean", "simcse_supervised", "declutr", "esimcse", "vascl", "augcse", "vadvcse", "diffcse")
"""Cases of which `CASE_prompts` and `CASE_prompts_outside` are made, prompts in the mean and out of it."""
CASES |= {f"{case}_prompts": CASES[case] | {"batch": {"prompts": PROMPTS}} for case in PROMPTED}
CASES |= {
    f"{case}_prompts_outside": CASES[case] | {"batch": {"prompts": PROMPTS, "pooled": False}}
    for case in PROMPTED
}
TRIPLES = ("simcse_supervised", "simcse_supervised_options", "simcse_supervised_guided", "sda")
"""Cases of which `CASE_mixture` is made: a step of `data.sets` whose set has neither positives nor negatives,
so that the text itself fills their slots."""
CASES |= {f"{case}_mixture": CASES[case] | {"batch": {"columns": False}} for case in TRIPLES}
ANSWERED = (
    "clear_mean", "clear_local", "simcse_symmetric", "simcse_supervised", "simcse_negatives", "sda",
    "esimcse", "vascl", "augcse",
)  # fmt: skip
"""Cases of which `CASE_answers` is made: records that share texts, directly and by others."""
CASES |= {f"{case}_answers": CASES[case] | {"batch": {"shared": True}} for case in ANSWERED}


def answers(role: str) -> np.ndarray:
    """Identities of a view of records that share texts: a question with three answers, on both ranks; one of
    them is another's answer too, and the question of a third; and negatives that are right answers."""
    anchors, positives, negatives = np.arange(N), 100 + np.arange(N), 200 + np.arange(N)
    anchors[[3, 12]], positives[9], anchors[14], positives[5] = 0, positives[12], positives[9], positives[6]
    # its own question's answer, that of a question that others link, and one that is right elsewhere
    negatives[3], negatives[7], negatives[8] = positives[0], anchors[14], positives[11]
    return {"anchor": anchors, "negative": negatives}.get(role.rstrip("0123456789"), positives)


def make_batch(
    seed: int,
    copies: int,
    roles: tuple[str, ...],
    uneven: bool = False,
    prompts: dict[str, list[int]] | None = None,
    pooled: bool = True,
    columns: bool = True,
    shared: bool = False,
    scored: bool = False,
) -> dict:
    """A global batch: every part as lists of token lists, views, identities and present by role.

    Two ranks' shares are uneven: sequences of the second half are longer, so it needs more micro-batches;
    three times as long on average where they are to be `uneven`. Maskings are uneven too: each hides more
    tokens than the one before. `prompts` come behind the first token of their role's views, and into their
    means if they are `pooled`. Without `columns` all views are the originals, and no negative is there. With
    `shared` texts identities are those of `answers`. Labels are the bits of scores where it is `scored`.
    """
    rng = np.random.default_rng(seed)

    def length(row, stop, more):
        second = row >= N // 2
        return rng.integers(1, stop if second or not uneven else 4) + (more if second else 0)

    def sequence(tokens):
        return [CLS, *rng.integers(5, VOCABULARY, tokens).tolist(), SEP]

    originals = [sequence(length(row, 14, 6)) for row in range(N)]
    masked = []
    for copy in range(copies):
        rows, positions = [], []
        for row in originals:
            chosen = sorted(
                rng.choice(
                    np.arange(1, len(row) - 1), max(1, len(row) // (6 - 3 * copy)), replace=False
                ).tolist()
            )
            rows.append([MASK if i in chosen else token for i, token in enumerate(row)])
            positions.append(chosen)
        masked.append((rows, positions))
    same = np.arange(N)
    same[[3, 9, 14]] = [0, 0, 5]  # duplicates, on both ranks
    views = {role: [sequence(length(row, 9, 5)) for row in range(N)] for role in roles}
    identities = {
        role: same + 100 * (number > 1) * (number if role.startswith("positive") else 1)
        for number, role in enumerate(roles)
    }
    present = {
        role: np.ones(N, bool) if number < 2 else rng.random(N) < 0.7 for number, role in enumerate(roles)
    }
    if shared:
        identities = {role: answers(role) for role in roles}
    if not columns:
        views, identities = dict.fromkeys(roles, originals), dict.fromkeys(roles, np.arange(N))
        present = {role: np.full(N, not role.startswith("negative")) for role in roles}
    labels = rng.integers(0, LABELS, N)
    if scored:
        labels = rng.integers(0, 6, N).astype(np.float32).view(np.int32).astype(np.int64)
    return {
        "originals": originals,
        "masked": masked,
        "unprompted": views,
        "views": {
            role: [[row[0], *(prompts or {}).get(role, []), *row[1:]] for row in rows]
            for role, rows in views.items()
        },
        "prompts": {role: np.array(prompt, np.int32) for role, prompt in (prompts or {}).items()},
        "outside": {} if pooled else prompts,
        "identities": identities,
        "present": present,
        "labels": labels,
    }


def share(whole: dict, rank: int, world: int, step: int) -> RankBatch:
    """This rank's consecutive share of the batch, in the system's own types."""
    size = len(whole["originals"])
    part = slice(rank * size // world, (rank + 1) * size // world)
    masked = []
    for rows, positions in whole["masked"]:
        batch = Ragged.from_sequences(rows[part])
        where = [batch.offsets[i] + p for i, chosen in enumerate(positions[part]) for p in chosen]
        labels = [whole["originals"][part][i][p] for i, chosen in enumerate(positions[part]) for p in chosen]
        masked.append(Masked(batch, np.array(where, np.int64), np.array(labels, np.int32)))
    return RankBatch(
        step=step,
        epoch=0,
        sequence_ids=np.arange(size, dtype=np.uint64)[part],
        original=Ragged.from_sequences(whole["originals"][part]),
        masked=masked,
        views={
            role: View(
                with_prompt(Ragged.from_sequences(rows[part]), whole["prompts"].get(role)),
                whole["identities"][role][part],
                whole["present"][role][part],
            )
            for role, rows in whole["unprompted"].items()
        },
        labels=whole["labels"][part],
        substitutions=[],
    )
