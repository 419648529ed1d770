"""Exact whole-batch losses under micro-batches, ranks and ZeRO: the two-level gradient.

A sentence-level loss needs the vectors of the whole global batch at once; the encoder only ever holds one
micro-batch. The gradient of L(z_1 ... z_N), z = f(x; w), is the sum over i of dL/dz_i · dz_i/dw, so a step
takes three passes:

1. embed: the encoder runs over every micro-batch of views without gradients; only the vectors are kept.
2. relate: vectors are gathered over ranks; the objective's loss of the whole batch gives dL/dz, and the
gradients of its heads.
   Losses of one sequence at a time that are conditioned on something of the whole batch, c = g(z), come
   before it: each micro-batch gives its rows of dL/dc, which are gathered, and relate pulls them through g
   into dL/dz with the rest.
3. backpropagate: every micro-batch runs again, with the same dropout, and dL/dz is pulled through the
encoder. Masked
   language modelling needs no other sequence, so it runs here alone, normalised by the masked tokens of the
   whole global batch.

With one micro-batch of views a rank, pass 1 keeps its graph and pass 3 does not run again. (The idea of 1 to
3 is GradCache's, Gao et al. 2021; here it holds for ZeRO 0 to 3.)

Scales: the engine averages gradients over W ranks. A rank back-propagates its own rows of dL/dz times W;
heads saw the whole batch on every rank, so their mean over ranks is already the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from pretrain.data.batch import RankBatch
from pretrain.data.microbatches import count_micro_batches, cut, pack, select_positions
from pretrain.model.precision import LossScale
from pretrain.objectives import BatchContext
from pretrain.telemetry.stopwatch import Stopwatch

# How K backward passes become one exact update, by ZeRO stage (DeepSpeed 0.19.8, 2 ranks, float32 gradients):
# plain K x backward + step is wrong, silently, at stages 1 and 2 (only the last micro-batch is kept).
# "boundary": gradients are kept locally and reduced by the backward that is declared the last. Stage 0.
# "coalesce": engine.coalesce_grad_reduction() reduces once, after the last. Stages 1 to 3; not offered at 0.
REDUCTION = {0: "boundary", 1: "coalesce", 2: "coalesce", 3: "coalesce"}


@dataclass
class StepResult:
    """What one step computed, the same on every rank.

    losses: name -> unweighted loss of the global batch, and "total", the weighted sum.
    measures: what the objective had to say beside (a discriminator's accuracy).
    views: float32[views, N, d], the global batch's sentence vectors, or None where the step needed none.
    masked_tokens, tokens: over the global batch; tokens counts each forward-and-backward token once.
    micro_batches: (views, masked), a rank.
    leave: the largest wish to leave over ranks.
    lengths: int64[N], tokens of each original sequence of the global batch.
    substitutions: of all ranks (`RankBatch.substitutions`).
    """

    losses: dict[str, float]
    measures: dict[str, float]
    views: Tensor | None
    tokens: int
    masked_tokens: int
    micro_batches: tuple[int, int]
    leave: int
    lengths: Tensor
    substitutions: list[dict]


@dataclass
class _Plan:
    """What all ranks agreed on: micro-batches of views, of each masking, of the momentum encoder's view and
    of each sequence-level pass, and the global batch's counts, lengths, and what its context says
    (`BatchContext`).
    """

    views: int
    masked: int
    followed: int
    sequence: dict[tuple[str, str], int]
    sequence_counts: dict[str, tuple[int, int]]
    tokens: int
    leave: int
    substitutions: list[dict]
    masked_counts: np.ndarray
    lengths: Tensor
    identities: dict[str, Tensor]
    present: dict[str, Tensor]
    labels: Tensor | None


def micro_seed(seed: int, step: int, rank: int, stage: int, index: int) -> int:
    """Seed of the random state in which a micro-batch runs; replaying it replays dropout exactly.

    Derived, not stored, so that neither a second pass nor a resumed run has any random state to restore.
    """
    return int(np.random.SeedSequence([seed, step, rank, stage, index]).generate_state(1, np.uint64)[0] >> 1)


class WholeBatch:
    """Computes a step's gradients on a DeepSpeed engine (`engine.step()` is the caller's)."""

    VIEWS, MASKED, SEQUENCE = 0, 1, 16

    def __init__(
        self,
        engine,
        seed: int,
        budget: int,
        loss_scale: LossScale | None = None,
        clock: Stopwatch | None = None,
        mask_duplicates: bool = True,
    ):
        """
        Args:
            engine: DeepSpeed engine around a `SentenceModel`, with gradient_accumulation_steps = 1.
            seed: seed of the run, for dropout.
            budget: most tokens in a micro-batch.
            loss_scale: scaling of what goes backward through float16.
            clock: where to book the time of encode, loss and backward.
            mask_duplicates: equal texts are no negatives of each other.
        """
        self.engine, self.seed, self.budget = engine, seed, budget
        self.loss_scale = loss_scale
        self.clock = clock or Stopwatch()
        self.mask_duplicates = mask_duplicates
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = engine.device
        self.reduction = REDUCTION[int(engine.zero_optimization_stage())]

    @property
    def objective(self):
        return self.engine.module.objective

    def compute(self, batch: RankBatch, leave: int = 0) -> StepResult:
        """Accumulate the gradient of the objective on the global batch of which `batch` is this rank's share.

        `leave` is this rank's wish to stop, as a number; the result carries the largest over ranks (it rides
        on the reduction of the plan, which is there anyway).
        """
        step = batch.step
        weights = self.objective.weights(step)
        views = Ragged.empty()
        if self.objective.needs_views(step):
            views = Ragged.concatenate([batch.views[role].tokens for role in self.objective.roles])
        plan = self._agree(views, batch, bool(batch.masked) and weights.get("mlm", 0) > 0, leave)

        losses: dict[str, float] = {}
        measures: dict[str, float] = {}
        gathered = None
        with self._reduced_once():
            if plan.views:
                gathered, losses, measures = self._sentence_level(batch, views, plan, weights)
            elif self.objective.roles:
                self._backward(self.engine("idle", self.device), final=not plan.masked)
            if plan.masked:
                losses["mlm"] = self._token_level(
                    batch, plan.masked, step, weights["mlm"], plan.masked_counts
                )
        losses["total"] = sum(weights[name] * value for name, value in losses.items())
        return StepResult(
            losses,
            measures,
            gathered,
            plan.tokens,
            int(plan.masked_counts.sum()),
            (plan.views, plan.masked),
            plan.leave,
            plan.lengths,
            plan.substitutions,
        )

    # ---- the plan: how many micro-batches, how many masked tokens
    # -------------------------------------------------------

    def _agree(self, views: Ragged, batch: RankBatch, masks: bool, leave: int) -> _Plan:
        """One all-gather of whole numbers a step: micro-batch counts (the largest rank decides), lengths,
        identities, leave."""
        masked = [m.batch for m in batch.masked] if masks else []
        roles, count = self.objective.roles, len(batch.original)
        passes = [
            (name, role)
            for name, term in self.objective.active_sequence_terms(batch.step).items()
            for role in term.sequence_roles
        ]
        read = [batch.views[role].tokens for _, role in passes]
        heads = [
            count_micro_batches(views.lengths, self.budget),
            count_micro_batches(masked[0].lengths, self.budget) if masked else 0,
            views.num_tokens + sum(m.num_tokens for m in masked) + sum(view.num_tokens for view in read),
            leave,
            count_micro_batches(self._followed(batch).lengths, self.budget)
            if self.objective.momentum_role and len(views)
            else 0,
            len(batch.substitutions),
            *(len(m.positions) for m in batch.masked),
            *(count_micro_batches(view.lengths, self._sequence_budget) for view in read),
            *(view.num_tokens for view in read),
        ]
        labels = [] if batch.labels is None else [batch.labels]
        asked = [batch.views[role] for role in roles]
        same, there = [view.identities for view in asked], [view.present for view in asked]
        mine = np.concatenate([heads, batch.original.lengths, *same, *there, *labels])
        every = self._gather(torch.from_numpy(mine.astype(np.int64)))
        numbers = every[:, : len(heads)].cpu().numpy()
        # [what, N], rank-major = lane-major
        rows = every[:, len(heads) :].unflatten(1, (-1, count)).transpose(0, 1).flatten(1)
        copies, views_there = len(batch.masked), len(roles)
        of_passes = numbers[:, 6 + copies :].reshape(self.world, 2, len(passes))
        tokens: dict[str, tuple[int, int]] = {}
        for index, (name, _) in enumerate(passes):
            before = tokens.get(name, (0, 0))
            tokens[name] = (before[0] + count * self.world, before[1] + int(of_passes[:, 1, index].sum()))
        return _Plan(
            views=int(numbers[:, 0].max()),
            masked=int(numbers[:, 1].max()),
            sequence={key: int(of_passes[:, 0, i].max()) for i, key in enumerate(passes)},
            sequence_counts=tokens,
            tokens=int(numbers[:, 2].sum()),
            leave=int(numbers[:, 3].max()),
            followed=int(numbers[:, 4].max()),
            substitutions=self._substitutions(batch) if numbers[:, 5].any() else [],
            masked_counts=numbers[:, 6 : 6 + copies].sum(0),
            lengths=rows[0].cpu(),
            identities=dict(zip(roles, rows[1 : 1 + views_there])),
            present=dict(zip(roles, rows[1 + views_there : 1 + 2 * views_there].bool())),
            labels=None if batch.labels is None else rows[-1],
        )

    def _substitutions(self, batch: RankBatch) -> list[dict]:
        """All ranks' substitutions of a step: each reads the lanes that it serves, and all must warn and
        record the same."""
        every: list = [None] * self.world
        dist.all_gather_object(every, batch.substitutions)
        return [row for rows in every for row in rows]

    @property
    def _sequence_budget(self) -> int:
        """Most tokens in a micro-batch of a sequence-level loss, which keeps two graphs where others keep
        one."""
        return max(1, self.budget // 2)

    def _gather(self, mine: Tensor) -> Tensor:
        """All ranks' tensors of the same shape, stacked in order of rank: [W, ...]."""
        mine = mine.to(self.device).contiguous()
        every = torch.empty((self.world, *mine.shape), dtype=mine.dtype, device=self.device)
        dist.all_gather_into_tensor(every.view(-1), mine.view(-1))
        return every

    # ---- sentence level: embed, relate, backpropagate
    # -------------------------------------------------------------------

    def _sentence_level(
        self, batch: RankBatch, views: Ragged, plan: _Plan, weights: dict[str, float]
    ) -> tuple[Tensor, dict[str, float], dict[str, float]]:
        step, count = batch.step, len(batch.original)
        rows = cut(views.lengths, plan.views)
        single = len(rows) == 1
        with self.clock("encode"), nullcontext() if single else torch.no_grad():
            parts = [self._embed(views, part, step, index) for index, part in enumerate(rows)]
            vectors = parts[0].new_zeros((len(views), parts[0].shape[1]))
            for part, piece in zip(rows, parts):
                vectors[torch.from_numpy(part).to(self.device)] = piece.detach()
        with self.clock("loss"):
            gathered = self._gather(vectors.unflatten(0, (-1, count)))  # [W, views, n, d]
            whole = gathered.transpose(0, 1).flatten(1, 2)  # [views, N, d], rank-major = lane-major
            context = BatchContext(
                step=step,
                progress=step / self.objective.steps,
                seed=self.seed,
                present=plan.present,
                labels=plan.labels,
                groups=torch.arange(self.world, device=self.device).repeat_interleave(count),
                identities=plan.identities if self.mask_duplicates else None,
            )
        follower = self._follow(batch, plan.followed) if plan.followed else None
        losses = self._sequence_level(batch, whole, plan, weights, context) if plan.sequence else {}
        with self.clock("loss"):
            whole.requires_grad_()
            terms = self.engine("relate", whole, context)
            total = sum(weights[name] * term for name, term in terms.items()) + sum(context.surrogates)
            self._backward(total, final=False)
            mine = whole.grad.unflatten(1, (self.world, count))[:, self.rank].flatten(0, 1) * self.world
            if follower is not None:
                self.objective.remember(follower, plan.identities[self.objective.momentum_role])
        for index, part in enumerate(rows):
            with self.clock("encode"):
                piece = parts[index] if single else self._embed(views, part, step, index)
            with self.clock("backward"):
                surrogate = (piece * mine[torch.from_numpy(part).to(self.device)]).sum()
                self._backward_scaled(surrogate, final=index == len(rows) - 1 and not plan.masked)
            parts[index] = None  # one graph alive at a time
        losses |= {name: term.item() for name, term in terms.items()}
        return whole.detach(), losses, context.measures

    def _followed(self, batch: RankBatch) -> Ragged:
        """The view that the momentum encoder embeds."""
        return batch.views[self.objective.momentum_role].tokens

    def _follow(self, batch: RankBatch, micro_batches: int) -> Tensor:
        """The momentum encoder, one step on, and its vectors of the global batch: float32[N, d]."""
        if batch.step:
            self.objective.follow()
        view = self._followed(batch)
        with self.clock("encode"):
            vectors = torch.zeros(len(view), self.engine.module.encoder.hidden_size, device=self.device)
            for part in cut(view.lengths, micro_batches):
                ids, lengths = pack(view, part, self.device)
                vectors[torch.from_numpy(part).to(self.device)] = self.engine("momentum", ids, lengths)
        return self._gather(vectors).flatten(0, 1)

    # ---- losses of one sequence at a time, conditioned on the whole batch
    # -----------------------------------------------

    def _sequence_level(
        self, batch: RankBatch, whole: Tensor, plan: _Plan, weights: dict[str, float], context: BatchContext
    ) -> dict[str, float]:
        """Back-propagates the terms' sequence losses; leaves their gradients by what they were conditioned on
        in `context`."""
        with self.clock("loss"):
            conditions = self.engine("condition", whole, context)
        losses: dict[str, float] = {}
        for number, ((name, role), micro_batches) in enumerate(plan.sequence.items()):
            term = self.objective.terms[name]
            scale = term.sequence_scale(*plan.sequence_counts[name])
            view = batch.views[role].tokens
            condition = conditions[name].get(role)
            if condition is not None:
                condition = condition.unflatten(0, (self.world, -1))[self.rank].clone()
                gradient = torch.zeros_like(condition)
            total = torch.zeros((), dtype=torch.float64, device=self.device)
            keys = sequence_keys(self.seed, batch.step, batch.sequence_ids, number, "sequence-loss")
            for index, part in enumerate(cut(view.lengths, micro_batches)):
                ids, lengths = pack(view, part, self.device)
                place = torch.from_numpy(part).to(self.device)
                own = None if condition is None else condition[place].requires_grad_()
                seed = micro_seed(self.seed, batch.step, self.rank, self.SEQUENCE + number, index)
                torch.manual_seed(seed)
                with self.clock("encode"):
                    loss = self.engine("sequence", name, role, ids, lengths, own, keys[part], seed)
                total += loss.detach()
                with self.clock("backward"):
                    self._backward_scaled(
                        loss * (scale * weights[term.sequence_term] * self.world), final=False
                    )
                if own is not None and own.grad is not None:
                    gradient[place] = own.grad / (
                        self.world * (1.0 if self.loss_scale is None else self.loss_scale.value)
                    )
            dist.all_reduce(total)
            losses[term.sequence_term] = losses.get(term.sequence_term, 0.0) + float(total) * scale
            if condition is not None:
                context.condition_gradients[role] = self._gather(gradient).flatten(0, 1)
        return losses

    def _embed(self, views: Ragged, part: np.ndarray, step: int, index: int) -> Tensor:
        ids, lengths = pack(views, part, self.device)
        torch.manual_seed(micro_seed(self.seed, step, self.rank, self.VIEWS, index))
        return self.engine("embed", ids, lengths)

    # ---- token level
    # ----------------------------------------------------------------------------------------------------

    def _token_level(
        self, batch: RankBatch, micro_batches: int, step: int, weight: float, counts: np.ndarray
    ) -> float:
        """Sum over maskings of the mean cross-entropy over the masked tokens of the whole global batch.

        A mean of the micro-batches' means would weigh tokens unequally: each adds its sum, scaled by the
        global count.
        """
        sums = torch.zeros(len(counts), dtype=torch.float64, device=self.device)
        for copy, masked in enumerate(batch.masked):
            scale = weight * self.world / max(int(counts[copy]), 1)
            for index, part in enumerate(rows := cut(masked.batch.lengths, micro_batches)):
                ids, lengths = pack(masked.batch, part, self.device)
                positions, labels = select_positions(masked.batch, part, masked.positions, masked.labels)
                torch.manual_seed(micro_seed(self.seed, step, self.rank, self.MASKED + copy, index))
                with self.clock("encode"):
                    total = self.engine(
                        "mlm", ids, lengths, positions.to(self.device), labels.to(self.device)
                    )
                sums[copy] += total.detach()
                with self.clock("backward"):
                    self._backward_scaled(
                        total * scale, final=index == len(rows) - 1 and copy == len(counts) - 1
                    )
        dist.all_reduce(sums)
        return float((sums.cpu() / torch.from_numpy(np.maximum(counts, 1))).sum())

    # ---- parts
    # --------------------------------------------------------------------------------------------------------

    def _backward(self, loss: Tensor, final: bool) -> None:
        if self.reduction == "boundary":
            self.engine.set_gradient_accumulation_boundary(final)
        self.engine.backward(loss, scale_wrt_gas=False)

    def _backward_scaled(self, loss: Tensor, final: bool) -> None:
        """`_backward` of a loss that passed through the encoder's precision."""
        with nullcontext(1.0) if self.loss_scale is None else self.loss_scale.applied() as factor:
            self._backward(loss * factor, final)

    @contextmanager
    def _reduced_once(self) -> Iterator[None]:
        with self.engine.coalesce_grad_reduction() if self.reduction == "coalesce" else nullcontext():
            yield
