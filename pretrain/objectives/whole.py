"""All that a run learns: a weighted sum of masked language modelling and sentence-level objectives."""

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from pretrain.common.errors import UserError
from pretrain.config.run import Config
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import ProjectionHead, is_simcse_head
from pretrain.model.modules import evaluation_mode
from pretrain.objectives.base import BatchContext, MomentumEncoder, Objective, Views


class WholeObjective(nn.Module):
    """The sum of the `terms`' losses and the masked-language loss (Devlin et al. 2019).

    With `mlm.copies: 2` the latter is CLEAR's Double MLM.

    roles: the views of all terms, each embedded once, whoever reads it. masked_copies: maskings of each
    sequence. guided_roles: the views that the frozen encoder beside the trained one embeds, too. is_local:
    whether anchors see only the sequences of their own rank. mask_duplicates: whether texts of one meaning
    are no negatives of each other (`losses.exclusions`).
    """

    def __init__(self, config: Config, terms: dict[str, Objective], guide: SentenceEncoder | None = None):
        super().__init__()
        assert (guide is None) == (config.objective.guide is None)
        # In a list: frozen, so neither partitioned nor saved; it is read from its folder at every start.
        self._guide = [guide]
        holder = nn.ModuleDict()
        holder._modules.update(terms)  # its own way refuses names of its methods, such as `clear`
        self.terms = cast(Mapping[str, Objective], holder)
        for term in terms.values():
            term.false_negatives, term.widths = config.objective.false_negatives, config.objective.widths
            term.scope = config.objective.scope
        self.is_local = bool(terms) and config.objective.scope == "local"
        self.mask_duplicates = config.objective.mask_duplicates
        self._rise = config.objective.rise
        self.masked_copies = config.objective.masked_copies
        self.mlm_weight = config.objective.mlm.weight
        self.view_dropout = config.objective.view_dropout
        self.steps = config.train.steps
        self.roles = tuple(dict.fromkeys(role for term in terms.values() for role in term.roles))
        compared = dict.fromkeys(role for term in terms.values() for role in term.compared)
        self.guided_roles = () if guide is None else tuple(compared)
        self.sequence_terms = {name: term for name, term in terms.items() if term.sequence_roles}
        last = config.train.steps - 1  # weights only rise: what is 0 then is 0 always, and demands nothing
        rises = config.objective.rise(last) > 0
        counted = (term for term in terms.values() if rises and any(term.weights(last).values()))
        smallest = max((term.smallest_batch for term in counted), default=2)
        first = config.batch_sizes.start
        if first < smallest:
            key = "train.batch_start" if config.train.batch_warmup_steps else "train.global_batch"
            name = config.objective.name
            raise UserError(f"{key}={first} is too small for objective {name}, which needs {smallest}")
        self.smallest_batch = smallest
        keeping = {name: term.kept_head for name, term in terms.items() if term.kept_head is not None}
        if len(keeping) > 1:
            names, simcse = " and ".join(keeping), "of simcse: objective.simcse.keep_head=false"
            raise UserError(f"{names} each keep a head: let one keep it (kept_head; {simcse})")
        for name, head in keeping.items():
            if not is_simcse_head(head):
                mend = "make it by pretrain.model.heads.simcse_head(d)"
                raise UserError(f"exports cannot hold the head of {name}: {mend}")

    def weights(self, step: int) -> dict[str, float]:
        """Weight of every named loss at this step."""
        result = {"mlm": self.mlm_weight} if self.masked_copies else {}
        rise = self._rise(step)
        for term in self.terms.values():
            result |= {name: weight * rise for name, weight in term.weights(step).items()}
        return result

    @property
    def kept_head(self) -> ProjectionHead | None:
        """The head that sentence vectors in use go through (`Objective.kept_head`), if any term keeps one."""
        return next((term.kept_head for term in self.terms.values() if term.kept_head is not None), None)

    @property
    def kept_head_name(self) -> str | None:
        """Name of `kept_head` among this module's, by which an export finds its weights in a checkpoint."""
        head = self.kept_head
        return None if head is None else next(name for name, module in self.named_modules() if module is head)

    def needs_views(self, step: int) -> bool:
        return any(weight > 0 for name, weight in self.weights(step).items() if name != "mlm")

    def active_sequence_terms(self, step: int) -> dict[str, Objective]:
        """Return the terms whose loss is computed sequence by sequence, if its weight is not 0."""
        weights = self.weights(step)
        return {name: term for name, term in self.sequence_terms.items() if weights[term.sequence_term] > 0}

    def sequence_passes(self, step: int) -> list[tuple[str, str]]:
        """Return (term, role) of every view that an active sequence loss reads."""
        active = self.active_sequence_terms(step)
        return [(name, role) for name, term in active.items() for role in term.sequence_roles]

    def pool(self, global_batch: int, world: int) -> int:
        """Return how many sequences an anchor is compared with on `world` ranks, itself among them."""
        return global_batch // (world if self.is_local else 1)

    def negatives(self, batch: int, present: float = 1.0, same: float = 0.0, equal: float = 0.0) -> float:
        """Return the most negatives that any term has for an anchor, in the mean; 0 if none has any.

        present: share of the views of role "negative" that are there (`BatchContext.present`). same: other
        records of the anchor's meaning (`losses.exclusions`). equal: records whose negative is a text of it.
        """

        def count(term: Objective) -> float:
            given = term.given_negatives
            more = given(2) - given(1)  # of a further record: its given negatives, and its own texts
            own = term.negatives(2) - term.negatives(1) - more
            return term.negatives(batch) - (1 - present) * given(batch) - same * own - equal * more

        return max(map(count, self.terms.values()), default=0)

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        """Return every term's losses by name.

        Raises UserError for a loss that its term, which may be the user's own, has no weight for.
        """
        losses: dict[str, Tensor] = {}
        for name, term in self.terms.items():
            of_term = term.relate({role: views[role] for role in term.roles}, context)
            weights = term.weights(context.step)
            if unknown := sorted(of_term.keys() - weights.keys()):
                raise UserError(f"objective {name}: weights lacks {unknown[0]!r}, which relate returns")
            losses |= of_term
        return losses

    @torch.no_grad()
    def conditions(self, views: Views, context: BatchContext) -> dict[str, dict[str, Tensor]]:
        """Return what each term's sequence loss is conditioned on: term -> role -> [N, c]."""
        return {
            name: term.conditions({role: views[role] for role in term.roles}, context)
            for name, term in self.active_sequence_terms(context.step).items()
        }

    @property
    def guide(self) -> SentenceEncoder | None:
        """The frozen encoder beside the trained one: it says which negatives are false, or is the start."""
        return self._guide[0]

    @property
    def momentum_role(self) -> str | None:
        """The role that the momentum encoder, if there is one, embeds."""
        return next((term.momentum_role for term in self.terms.values() if term.momentum_role), None)

    def follow(self) -> None:
        """Let every momentum encoder take a step."""
        for module in self.modules():
            if isinstance(module, MomentumEncoder):
                module.follow()

    def remember(self, vectors: Tensor, identities: Tensor) -> None:
        """Hand the momentum encoder's vectors of the batch, float32[N, d], to the terms that keep them."""
        for term in self.terms.values():
            if term.momentum_role:
                term.remember(vectors, identities)

    def untrained_heads_touch(self, hidden_size: int, device: torch.device) -> Tensor:
        """Return a zero that depends on every head's parameters, for steps without sentence-level losses.

        ZeRO's partitioned reductions want a gradient of every parameter, on every rank and at every step.
        """
        count = self.smallest_batch
        noise = torch.linspace(-1, 1, count * hidden_size, device=device).view(count, hidden_size)
        numbers = torch.arange(count, device=device)
        views = {role: noise.roll(i, 1) for i, role in enumerate(self.roles)}
        context = BatchContext(
            step=0,
            progress=0.0,
            groups=torch.zeros_like(numbers),
            identities=None,
            seed=0,
            present={role: torch.ones_like(numbers, dtype=torch.bool) for role in self.roles},
            labels=torch.zeros_like(numbers),
            guided=views,
        )
        with evaluation_mode(self):  # batch norm must not count these vectors
            losses = self.relate(views, context)
        return sum(
            (loss * 0.0 for loss in losses.values()),
            sum(term.touch_unused_heads(device) for term in self.terms.values()),
        )
