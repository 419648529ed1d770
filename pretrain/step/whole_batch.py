"""Exact whole-batch losses under micro-batches, ranks and ZeRO: the two-level gradient.

A sentence-level loss needs the vectors of the whole global batch at once; the encoder only ever holds one
micro-batch. The gradient of L(z_1 ... z_N), z = f(x; w), is the sum over i of dL/dz_i · dz_i/dw, so a step
takes three passes:

1. embed: the encoder runs over every micro-batch of views without gradients; only the vectors are kept.
2. relate: vectors are gathered over ranks; the objective's loss of the whole batch gives dL/dz, and the
   gradients of its heads. Before it come losses of one sequence at a time that are conditioned on something
   of the whole batch, c = g(z): each micro-batch gives its rows of dL/dc, which are gathered, and relate
   pulls them through g into dL/dz with the rest.
3. backpropagate: every micro-batch runs again, with the same dropout, and dL/dz is pulled through the
   encoder. Masked language modelling needs no other sequence, so it runs here alone, normalised by the masked
   tokens of the whole global batch.

With one micro-batch of views per rank, pass 1 keeps its graph and pass 3 does not run again. (The idea of 1
to 3 is GradCache's, Gao et al. 2021; here it holds for ZeRO 0 to 3.)

Scales: the engine averages gradients over W ranks. A rank back-propagates its own rows of dL/dz times W;
heads saw the whole batch on every rank, so their mean over ranks is already the gradient.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from augment.core.ragged import Ragged
from pretrain.common.ranks import gather_equal, gathered
from pretrain.common.transfer import send
from pretrain.data.batch import RankBatch
from pretrain.data.microbatches import MicroBatch, count_micro_batches, cut_and_pack, send_all
from pretrain.losses.contrastive import shared_over
from pretrain.objectives import BatchContext, WholeObjective
from pretrain.objectives.base import Probe
from pretrain.step.frozen_vectors import FrozenVectors
from pretrain.step.graphs import Graphs
from pretrain.step.model import Request, SentenceModel
from pretrain.step.placement import Placement, place
from pretrain.step.plan import (
    GUIDE,
    MOMENTUM,
    VIEWS,
    StepPlan,
    count_negatives,
    initial_owners,
    masking,
    passes_of,
    sequence_loss,
)
from pretrain.step.precision import LossScale
from pretrain.step.reduction import Buckets, Coalesced
from pretrain.step.shares import SequenceLosses, measure_shares
from pretrain.telemetry.stopwatch import Stopwatch


@dataclass
class StepResult:
    """What one step computed, the same on every rank.

    losses: name -> unweighted loss of the global batch, and "total", the weighted sum: float64 scalars on the
        device, which the host has not waited for.
    measures: what the objective reports besides (a discriminator's accuracy): numbers or such scalars.
    views: float32[views, N, d], the global batch's sentence vectors, or None if the step needed none.
    tokens, masked_tokens: over the global batch; tokens counts each forward-and-backward token once.
    micro_batches: (views, masked), per rank.
    request: to stop, the largest over ranks (`pretrain.common.shutdown`).
    lengths: int64[N], tokens of each original sequence of the global batch; on the CPU.
    substitutions: of all ranks (`RankBatch.substitutions`).
    sums: by which the ledger knows the global batch (`ledger.extend_ledger`).
    negatives: how many an anchor was compared with, in the mean over the batch; None: no term has any.
    """

    losses: dict[str, Tensor]
    measures: dict[str, Tensor | float]
    views: Tensor | None
    tokens: int
    masked_tokens: int
    micro_batches: tuple[int, int]
    request: int
    lengths: Tensor
    substitutions: list[dict]
    sums: tuple[int, ...]
    negatives: float | None


@dataclass(frozen=True, eq=False)
class PlacedStep:
    """What a step computes: agreed on by all ranks, and on this rank's device.

    number: of the step. plan: merged, of all ranks, on the CPU.
    rows: pass -> the micro-batches that this rank runs. placements: pass -> which rank runs which sequences.
    sequences: `StepPlan.sequences`, and "owner", the rank that drew each; on the device.
    weights: of the losses, by name.
    draws: numbers and guided views of what this rank draws, whose vectors are kept; None: they are a pass.
    """

    number: int
    plan: StepPlan
    rows: dict[str, list[MicroBatch]]
    placements: dict[str, Placement]
    sequences: dict[str, Tensor]
    weights: dict[str, float]
    collects_diagnostics: bool
    draws: tuple[np.ndarray, Any] | None


class WholeBatch:
    """Computes a step's gradients on a DeepSpeed engine; applying them is left to `pretrain.step.update`."""

    def __init__(
        self,
        engine,
        seed: int,
        budget: int,
        loss_scale: LossScale | None = None,
        clock: Stopwatch | None = None,
        lanes: int | None = None,
        graphs: Graphs | None = None,
    ):
        """
        Args:
            engine: DeepSpeed engine around a `SentenceModel`, with gradient_accumulation_steps = 1.
            seed: seed of the run, for dropout.
            budget: most tokens in a micro-batch.
            loss_scale: scaling of what goes backward through float16.
            clock: where to book the time of encode, loss and backward.
            lanes: how many the ranks share (`pretrain.data.lanes`); None: a number that they divide.
            graphs: of the encoder's passes; None: every pass is launched operator by operator.
        """
        self.engine, self.seed, self.budget = engine, seed, budget
        self.loss_scale = loss_scale
        self.half = engine.module.precision != "fp32"
        self.weighing = loss_scale or (LossScale(engine.module, 1.0) if self.half else None)
        self.clock = clock or Stopwatch()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.lanes = lanes or self.world
        self.graphs = graphs or Graphs(engine, "off")
        self.guide_store: FrozenVectors | None = None  # the run's, if it keeps the frozen guide's vectors
        self.device = engine.device
        stage = int(engine.zero_optimization_stage())
        self.reduction: Buckets | Coalesced = Coalesced(engine) if stage > 1 else Buckets(engine)
        # Gradients of layers together behind a pass, past hooks of parameters. On a CPU, where launches cost
        # nothing, each is better added while in the cache (14% of the time of 256 tokens through BERT-base).
        self.adds = stage <= 1 and self.device.type != "cpu"
        self._model = engine if stage > 1 else engine.module
        # What the ranks agree on before a step is about numbers of the host. Over NCCL it would wait for all
        # that the device has to do.
        self.hosts = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")

    @property
    def objective(self) -> WholeObjective:
        return self.engine.module.objective

    def compute(self, batch: RankBatch, request: int = 0, collects_diagnostics: bool = False) -> StepResult:
        """Accumulate the gradient of the objective on the global batch of which `batch` is this rank's share.

        request: this rank's request to stop, as a number. The result has the largest over ranks, which the
            plan's all-gather finds at no further cost.
        collects_diagnostics: also measure each loss's share of the gradient, and the objectives' checks
            (`BatchContext.collects_diagnostics`). Changes no loss and no gradient.
        """
        step = self._placed(batch, request, collects_diagnostics)
        plan, rows = step.plan, step.rows
        negatives = count_negatives(plan, self.objective) if VIEWS in rows else None
        maskings = [rows[masking(copy)] for copy in range(len(batch.masked)) if masking(copy) in rows]

        losses: dict[str, Tensor] = {}
        measures: dict[str, Tensor | float] = {}
        vectors = None
        with self.engine.module.weights_unchanged(), self.reduction.of_step():
            if VIEWS in rows:
                vectors, losses, measures = self._sentence_level(step, last=not maskings)
            elif self.objective.roles:
                zero = self._run(SentenceModel.touch_unused_heads, self.device)
                if zero.requires_grad:  # without heads it depends on nothing
                    self.reduction.backward(zero, final=not maskings)
            if maskings:
                losses["mlm"] = self._token_level(maskings, plan.masked_tokens, step.weights["mlm"])
        # each rank reads its own lanes, and all must warn and record the same
        substitutions = gathered(batch.substitutions, self.hosts) if plan.substitutions else []
        losses = {name: value.double() for name, value in losses.items()}
        nothing = torch.zeros((), dtype=torch.float64, device=self.device)
        losses["total"] = sum((step.weights[name] * value for name, value in losses.items()), nothing)
        return StepResult(
            losses=losses,
            measures=measures,
            views=vectors,
            tokens=sum(plan.tokens.values()),
            masked_tokens=sum(plan.masked_tokens),
            micro_batches=(plan.micro_batches.get(VIEWS, 0), plan.micro_batches.get(masking(0), 0)),
            request=plan.request,
            lengths=plan.sequences["length"],
            substitutions=[row for of_rank in substitutions for row in of_rank],
            sums=plan.sums,
            negatives=negatives,
        )

    def _placed(self, batch: RankBatch, request: int, collects_diagnostics: bool) -> PlacedStep:
        """Agree with all ranks on the step's passes, and bring what this rank encodes to the device."""
        passes = passes_of(batch, self.objective, self.budget, self.seed, self.rank)
        guide = passes.pop(GUIDE, None) if self.guide_store is not None else None
        draws = None if guide is None else (batch.sequence_ids, guide.sequences)
        own = StepPlan.of_rank(batch, self.objective, passes, request)
        plan = own.agree(self.lanes, self.rank, self.world, self.hosts)
        passes, placements, plan = place(passes, plan, self.rank, self.world, self.hosts)
        owner = torch.from_numpy(initial_owners(plan.drawn))
        rows = {name: part.micro_batches(plan.micro_batches[name]) for name, part in passes.items()}
        rows, sequences = send_all(rows, plan.sequences | {"owner": owner}, self.device)
        weights = self.objective.weights(batch.step)
        return PlacedStep(batch.step, plan, rows, placements, sequences, weights, collects_diagnostics, draws)

    # ---- sentence level: embed, relate, backpropagate

    def _sentence_level(
        self, step: PlacedStep, last: bool
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor | float]]:
        """Run the three passes; return the vectors [views, N, d], losses and measures.

        last: no other pass of the step goes backward after these.
        """
        views, placed, objective = step.rows[VIEWS], step.placements[VIEWS], self.objective
        single = len(views) == 1
        with self.clock("encode"), nullcontext() if single else torch.no_grad():
            parts = [self._encode(self.graphs.embed, row, last) for row in views]
        with self.clock("loss"):
            whole = self._in_order(views, parts, placed)
            whole = whole.unflatten(0, (len(objective.roles), -1))  # [views, N, d], lane by lane
            context = self._context(step)
        if GUIDE in step.rows or step.draws is not None:
            context = replace(context, guided=self._guided(step))
        momentum = self._follow(step) if MOMENTUM in step.rows else None
        losses, of_sequences = self._sequence_level(step, whole, context)

        with self.clock("loss"), shared_over(self.world):
            whole.requires_grad_()
            terms = self._run(SentenceModel.relate, dict(zip(objective.roles, whole)), context)
            total = sum(step.weights[name] * term for name, term in terms.items()) + sum(context.surrogates)
            # Each rank computes this loss by itself. Where one alone finds it not finite, its gradients are
            # made so: they reach all ranks, which then leave the update out together. No host sync.
            total = total * torch.where(total.detach().isfinite(), 1.0, torch.nan)
            self.reduction.backward(total, final=False)
            own_gradient = placed.local_rows(whole.grad.flatten(0, 1)) * self.world
            if step.collects_diagnostics:
                shares = measure_shares(
                    self.engine.module, whole, context, list(terms), step.weights, of_sequences
                )
                context.measures.update(shares)
            if momentum is not None:
                objective.remember(momentum, step.sequences[f"identity {objective.momentum_role}"])

        for index, row in enumerate(views):
            final = last and index == len(views) - 1
            with self.clock("encode"):
                part = parts[index] if single else self._encode(self.graphs.embed, row, final)
            with self.clock("backward"):
                self._backward_scaled((part * own_gradient[row.rows]).sum(), final)
            parts[index] = part = None  # one graph alive at a time
        losses |= {name: term.detach() for name, term in terms.items()}
        return whole.detach(), losses, context.measures

    def _context(self, step: PlacedStep) -> BatchContext:
        roles, sequences = self.objective.roles, step.sequences
        identities = {role: step.plan.sequences[f"identity {role}"] for role in roles}
        return BatchContext(
            step=step.number,
            progress=step.number / self.objective.steps,
            seed=self.seed,
            present={role: sequences[f"present {role}"].bool() for role in roles},
            labels=sequences.get("label"),
            groups=sequences["owner"],
            identities=identities if self.objective.mask_duplicates else None,
            collects_diagnostics=step.collects_diagnostics,
        )

    def _follow(self, step: PlacedStep) -> Tensor:
        """Take a step of the momentum encoder; return its vectors of the global batch, float32[N, d]."""
        if step.number:
            self.objective.follow()
        rows = step.rows[MOMENTUM]
        with self.clock("encode"):
            parts = [self._run(SentenceModel.embed_by_momentum, row) for row in rows]
        return self._in_order(rows, parts, step.placements[MOMENTUM])

    def _guided(self, step: PlacedStep) -> dict[str, Tensor]:
        """Return the guide's vectors of the global batch: role -> float32[N, g]."""
        roles = self.objective.guided_roles
        with self.clock("encode"):
            if self.guide_store is None or step.draws is None:
                # not by the engine: it holds no parameter of the guide
                parts = [self.engine.module.embed_by_guide(row) for row in step.rows[GUIDE]]
                vectors = self._in_order(step.rows[GUIDE], parts, step.placements[GUIDE])
            else:
                drawn = initial_owners(step.plan.drawn, len(roles))
                placed = Placement(self.rank, self.world, len(roles), drawn, drawn, torch.empty(0))
                kept = self.guide_store.of(*step.draws, self._embed_by_guide)
                (own,) = send([torch.from_numpy(kept)], self.device)
                filler = (0, 0, 0, placed.max_rows_per_rank - len(own))
                vectors = placed.in_order(gather_equal(torch.nn.functional.pad(own, filler)))
        return dict(zip(roles, vectors.unflatten(0, (len(roles), -1))))

    def _embed_by_guide(self, sequences: Ragged) -> np.ndarray:
        """Return the guide's vectors of sequences of this rank: float32[n, g]."""
        rows = cut_and_pack(sequences, count_micro_batches(sequences.lengths, self.budget), self.device)
        vectors = torch.cat([self.engine.module.embed_by_guide(row) for row in rows])
        return vectors[torch.cat([row.rows for row in rows]).argsort()].cpu().numpy()

    # ---- losses of one sequence at a time, conditioned on the whole batch

    def _sequence_level(
        self, step: PlacedStep, whole: Tensor, context: BatchContext
    ) -> tuple[dict[str, Tensor], SequenceLosses]:
        """Back-propagate the terms' sequence losses; return them, and what is known of their gradients.

        Their gradients by what they were conditioned on, and their checks, are left in `context`.
        """
        passes = self.objective.sequence_passes(step.number)
        losses: dict[str, Tensor] = {}
        of_sequences = SequenceLosses()
        if not passes:
            return losses, of_sequences
        active = self.objective.active_sequence_terms(step.number)
        for term in active.values():
            term.probe = Probe() if context.collects_diagnostics else None
        with self.clock("loss"):
            views = dict(zip(self.objective.roles, whole))
            conditions = self._run(SentenceModel.conditions, views, context)
        applied = 1.0 if self.loss_scale is None else self.loss_scale.value
        for name, role in passes:
            term = self.objective.terms[name]
            tokens = sum(step.plan.tokens[sequence_loss(name, other)] for other in term.sequence_roles)
            scale = term.sequence_scale(whole.shape[1] * len(term.sequence_roles), tokens)
            placed, condition = step.placements[sequence_loss(name, role)], conditions[name].get(role)
            if condition is not None:
                gradient = condition.new_zeros((placed.max_rows_per_rank, *condition.shape[1:]))
                condition = placed.local_rows(condition)
            total = torch.zeros((), dtype=torch.float64, device=self.device)
            for row in step.rows[sequence_loss(name, role)]:
                own = None if condition is None else condition[row.rows].requires_grad_()
                with self.clock("encode"):
                    loss = self._run(SentenceModel.sequence_loss, name, role, row, own)
                total += loss.detach()
                with self.clock("backward"):
                    self._backward_scaled(
                        loss * (scale * step.weights[term.sequence_term] * self.world), False
                    )
                if own is not None and own.grad is not None:
                    gradient[row.rows] = own.grad / (self.world * applied)
            dist.all_reduce(total)
            losses[term.sequence_term] = losses.get(term.sequence_term, 0.0) + total * scale
            if condition is not None:
                context.condition_gradients[role] = placed.in_order(gather_equal(gradient))
        for name, term in active.items() if context.collects_diagnostics else ():
            of_sequences.conditioned = term.sequence_term if conditions[name] else of_sequences.conditioned
            context.measures.update(of_sequences.finish(term, self.world * applied))
        return losses, of_sequences

    # ---- token level

    def _token_level(self, maskings: list[list[MicroBatch]], counts: list[int], weight: float) -> Tensor:
        """Back-propagate the masked-language loss; return it.

        It is the sum over maskings of the mean cross-entropy over the masked tokens of the whole global
        batch. A mean of the micro-batches' means would weigh tokens unequally: each adds its sum, scaled by
        the global count. In half precision only a power of two goes through the logits' gradient, and the
        rest of the scale on to float32 gradients: most of what the logits have is -1, and would be rounded
        alike, by up to 0.4% of the loss's weight.
        """
        sums = torch.zeros(len(counts), dtype=torch.float64, device=self.device)
        for copy, rows in enumerate(maskings):
            scale = weight * self.world / max(counts[copy], 1)
            rest = math.frexp(scale)[0] if self.half else 1.0
            for index, row in enumerate(rows):
                last = index == len(rows) - 1 and copy == len(counts) - 1
                with self.clock("encode"):
                    total = self._encode(self.graphs.masked_loss, row, last)
                sums[copy] += total.detach()
                with self.clock("backward"):
                    self._backward_scaled(total * (scale / rest), last, rest)
        dist.all_reduce(sums)
        return torch.stack([total / max(count, 1) for total, count in zip(sums, counts)]).sum()

    # ---- ranks, and the engine

    def _run(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a method of the model gives, by the engine's forward where that gathers weights."""
        return self._model(Request(method, *arguments))

    def _encode(self, method: Callable[..., Tensor], row: MicroBatch, final: bool) -> Tensor:
        """Run a pass over a row; final: its backward is the step's last, which sends gradients."""
        leaf = self.adds and not (final and self.reduction.world > 1)
        with self.engine.module.weights_unchanged(leaf=leaf):
            return self._run(method, row)

    def _in_order(self, rows: list[MicroBatch], parts: list[Tensor], placed: Placement) -> Tensor:
        """Gather the vectors of this rank's rows with those of all ranks, in order: [S, d]."""
        vectors = parts[0].new_zeros((placed.max_rows_per_rank, parts[0].shape[1]))
        for row, part in zip(rows, parts):
            vectors[row.rows] = part.detach()
        return placed.in_order(gather_equal(vectors))

    def _backward_scaled(self, loss: Tensor, final: bool, weight: float = 1.0) -> None:
        """Go backward from a loss that passed through the encoder's precision; `weight` it in float32."""
        scale = None if self.loss_scale is None and weight == 1 else self.weighing
        with nullcontext(1.0) if scale is None else scale.applied(weight) as factor:
            self.reduction.backward(loss * factor, final)
            self.engine.module.add_gradients()
