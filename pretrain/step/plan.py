"""What a step runs, and what all ranks agree on before it: its passes, micro-batches and negatives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from pretrain.common.ranks import gather_equal
from pretrain.data.batch import NEGATIVE, RankBatch, column_of
from pretrain.data.lanes import lanes_of_rank
from pretrain.data.ledger import COLUMNS, sum_words
from pretrain.data.masking import Masked
from pretrain.data.microbatches import MicroBatch, count_micro_batches, cut_and_pack
from pretrain.losses.exclusions import Meanings
from pretrain.objectives import WholeObjective

# names of passes; others are those of a masking or a sequence loss
VIEWS, MOMENTUM, GUIDE = "views", "momentum", "guide"
_VIEWS, _MASKED, _SEQUENCE = 0, 1, 16  # what tells apart torch's random states in the passes


@dataclass(frozen=True, eq=False)
class EncoderPass:
    """Sequences of this rank that one encoder reads, in micro-batches of at most `budget` tokens.

    lengths_of: the names of their lengths in `StepPlan.sequences`, of each role one.
    keys, seeds: as `cut_and_pack` takes them.
    """

    sequences: Ragged | Masked
    budget: int
    lengths_of: tuple[str, ...]
    seeds: tuple[int, ...] | None = None
    keys: np.ndarray | None = None

    @property
    def smallest_count(self) -> int:
        """The fewest micro-batches that it fits in."""
        return count_micro_batches(self.sequences.lengths, self.budget)

    def micro_batches(self, count: int) -> list[MicroBatch]:
        """Return the pass in `count` micro-batches, on the CPU (see `send_all`)."""
        return cut_and_pack(self.sequences, count, torch.device("cpu"), self.keys, self.seeds)


def masking(copy: int) -> str:
    """Return the name of the pass over a masking."""
    return f"masking {copy}"


def sequence_loss(term: str, role: str) -> str:
    """Return the name of the pass of a term's sequence loss over a view."""
    return f"{term} {role}"


def passes_of(
    batch: RankBatch, objective: WholeObjective, budget: int, seed: int, rank: int
) -> dict[str, EncoderPass]:
    """Return the passes of a step by name: the same names on every rank.

    The keys of a pass say run, step, sequence and view: dropout by them is that of any split into
    micro-batches and ranks. Losses whose weight is 0 at this step have no pass. A sequence loss keeps two
    graphs if others keep one, so its micro-batches have half the budget.
    """
    step, ids = batch.step, batch.sequence_ids
    tokens = {role: view.tokens for role, view in batch.views.items()}
    passes = {}
    if objective.needs_views(step):
        views = Ragged.concatenate([tokens[role] for role in objective.roles])
        numbers = range(len(objective.roles))
        keys = np.concatenate([sequence_keys(seed, step, ids, number, "view") for number in numbers])
        lengths = tuple(f"length {role}" for role in objective.roles)
        passes[VIEWS] = EncoderPass(views, budget, lengths, (seed, step, rank, _VIEWS), keys)
        if objective.momentum_role:
            role = objective.momentum_role
            passes[MOMENTUM] = EncoderPass(tokens[role], budget, (f"length {role}",))
        if roles := objective.guided_roles:
            views = Ragged.concatenate([tokens[role] for role in roles])
            passes[GUIDE] = EncoderPass(views, budget, tuple(f"length {role}" for role in roles))
    if objective.weights(step).get("mlm", 0) > 0:
        for copy, masked in enumerate(batch.masked):
            keys, seeds = sequence_keys(seed, step, ids, copy, "masking"), (seed, step, rank, _MASKED + copy)
            passes[masking(copy)] = EncoderPass(masked, budget, ("length",), seeds, keys)
    for number, (term, role) in enumerate(objective.sequence_passes(step)):
        keys = sequence_keys(seed, step, ids, number, "sequence-loss")
        seeds, half = (seed, step, rank, _SEQUENCE + number), max(1, budget // 2)
        passes[sequence_loss(term, role)] = EncoderPass(tokens[role], half, (f"length {role}",), seeds, keys)
    return passes


@dataclass(frozen=True, eq=False)
class StepPlan:
    """The numbers of a step: those of one rank or, merged, of all ranks together.

    micro_batches: pass -> how many; merged the largest, because collectives demand equal counts.
    tokens: pass -> tokens that go forward and backward; merged the sum.
    masked_tokens: tokens to predict, of each masking; merged the sums.
    request: to stop (`pretrain.common.shutdown`); merged the largest.
    substitutions: how many damaged chunks were replaced; merged the sum.
    drawn: how many sequences this rank draws; merged, how many each rank does.
    sequences: name -> int64[n], a number for each sequence: "length", "label", "length ROLE",
        "identity ROLE", "present ROLE"; merged int64[N], rank by rank, which is lane by lane.
    sums: of the words of the sequences (`pretrain.data.ledger`); merged the sums modulo 2^64.

    >>> one = StepPlan({"views": 2}, {"views": 90}, [7], 1, 0, [2], {"length": torch.tensor([40, 50])})
    >>> two = StepPlan({"views": 3}, {"views": 99}, [8], 1, 0, [1], {"length": torch.tensor([49])})
    >>> whole = one.merge(torch.stack([one.to_tensor(2), two.to_tensor(2)]))
    >>> whole.micro_batches, whole.tokens, whole.masked_tokens, whole.request
    ({'views': 3}, {'views': 189}, [15], 1)
    >>> whole.drawn, whole.sequences["length"].tolist()
    ([2, 1], [40, 50, 49])
    """

    micro_batches: dict[str, int]
    tokens: dict[str, int]
    masked_tokens: list[int]
    request: int
    substitutions: int
    drawn: list[int]
    sequences: dict[str, Tensor]
    sums: tuple[int, ...] = (0,) * COLUMNS

    @staticmethod
    def of_rank(
        batch: RankBatch, objective: WholeObjective, passes: dict[str, EncoderPass], request: int
    ) -> "StepPlan":
        """Return this rank's own numbers."""
        lengths = {name: part.sequences.lengths for name, part in passes.items()}
        sequences = {"length": batch.original.lengths}
        for role in objective.roles:
            sequences[f"length {role}"] = batch.views[role].tokens.lengths
            sequences[f"identity {role}"] = batch.views[role].identities
            sequences[f"present {role}"] = batch.views[role].present
        if batch.labels is not None:
            sequences["label"] = batch.labels
        return StepPlan(
            micro_batches={name: part.smallest_count for name, part in passes.items()},
            tokens={name: int(of.sum()) for name, of in lengths.items() if name not in (MOMENTUM, GUIDE)},
            masked_tokens=[len(masked.positions) for masked in batch.masked],
            request=request,
            substitutions=len(batch.substitutions),
            drawn=[len(batch)],
            sequences={name: torch.from_numpy(of.astype(np.int64)) for name, of in sequences.items()},
            sums=sum_words(batch.words),
        )

    def agree(self, lanes: int, rank: int, ranks: int, group: dist.ProcessGroup | None) -> "StepPlan":
        """Merge the plans of all ranks, each of which draws as many sequences from each lane. Collective."""
        if ranks == 1:
            return self
        first, stop = lanes_of_rank(lanes, rank, ranks)
        most = self.drawn[0] // (stop - first) * math.ceil(lanes / ranks)
        return self.merge(gather_equal(self.to_tensor(most), group))

    def to_tensor(self, max_rows: int) -> Tensor:
        """Return all numbers as one int64[K], for one all-gather; `merge` takes it apart.

        max_rows: sequences of the rank that draws most, which makes K the same on all.
        """
        filler = (0, max_rows - self.drawn[0])
        padded = [torch.nn.functional.pad(of, filler) for of in self.sequences.values()]
        return torch.cat([torch.tensor([n for of in self._counts().values() for n in of]), *padded])

    def _counts(self) -> dict[str, Sequence[int]]:
        """Return the numbers that are not of single sequences, by field, in the order of the tensor."""
        return {
            "micro_batches": list(self.micro_batches.values()),
            "tokens": list(self.tokens.values()),
            "masked_tokens": self.masked_tokens,
            "request": [self.request],
            "substitutions": [self.substitutions],
            "sums": self.sums,
            "drawn": self.drawn,
        }

    def merge(self, every: Tensor) -> "StepPlan":
        """Merge all ranks' tensors, int64[W, K], on the CPU."""
        widths = {field: len(of) for field, of in self._counts().items()}
        *parts, padded = every.split([*widths.values(), every.shape[1] - sum(widths.values())], dim=1)
        counts = dict(zip(widths, parts))
        most = {field: of.amax(0).tolist() for field, of in counts.items() if of.numel()}
        total = {field: of.sum(0).tolist() for field, of in counts.items()}
        drawn = counts["drawn"][:, 0]
        padded = padded.unflatten(1, (len(self.sequences), -1)).transpose(0, 1)
        columns = padded[:, torch.arange(padded.shape[2]) < drawn[:, None]]
        return StepPlan(
            micro_batches=dict(zip(self.micro_batches, most.get("micro_batches", []))),
            tokens=dict(zip(self.tokens, total["tokens"])),
            masked_tokens=total["masked_tokens"],
            request=most["request"][0],
            substitutions=total["substitutions"][0],
            drawn=drawn.tolist(),
            sequences=dict(zip(self.sequences, columns)),
            sums=tuple(total["sums"]),
        )


def initial_owners(counts: Sequence[int], roles: int = 1) -> np.ndarray:
    """Return which rank draws each sequence: int64[roles * N].

    Of the views [roles, N] of a global batch, numbered row by row, rank r draws the next counts[r] columns.

    >>> initial_owners([3, 2], roles=2)
    array([0, 0, 0, 1, 1, 0, 0, 0, 1, 1])
    """
    return np.tile(np.repeat(np.arange(len(counts)), counts), roles)


def count_negatives(plan: StepPlan, objective: WholeObjective) -> float | None:
    """Return how many candidates an anchor is compared with, in the mean; None: no term compares.

    plan: merged, of all ranks, on the CPU.
    """
    sequences, ranks = plan.sequences, len(plan.drawn)
    pool = objective.pool(sum(plan.drawn), ranks)
    if not objective.negatives(pool):
        return None
    may_lack = {role for term in objective.terms.values() for role in term.given_roles}
    given = [role for role in objective.roles if role in may_lack]
    there = [sequences[f"present {role}"].double() for role in given]
    present = torch.stack(there).mean().item() if given else 1.0
    if not objective.mask_duplicates:
        return objective.negatives(pool, present)
    texts = [sequences[f"identity {role}"] for role in objective.roles if column_of(role) != NEGATIVE]
    meanings = Meanings.of(torch.stack(texts))
    groups = torch.zeros_like(meanings.records)
    if objective.is_local:
        groups = torch.from_numpy(initial_owners(plan.drawn))
    keys = meanings.records * ranks + groups  # a meaning, if anchors see no other rank's
    members = keys.bincount(minlength=ranks * len(meanings.texts)).double()
    equal = 0.0
    for role, of_role in zip(given, there):
        meaning = meanings.look_up(sequences[f"identity {role}"])
        anchors = members[meaning.clamp(min=0) * ranks + groups].masked_fill_(meaning < 0, 0.0)
        equal += (anchors * of_role).mean().item() / len(given)
    return objective.negatives(pool, present, members[keys].mean().item() - 1, equal)
