"""Where a number first was not finite: a step's batch is computed once more, with an eye on every module."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pretrain.common.ranks import gathered
from pretrain.data.batch import RankBatch
from pretrain.step.update import Update
from pretrain.step.whole_batch import WholeBatch

SHOWN = 3
"""Texts in a report, of each rank."""


@dataclass
class Finding:
    """What is known of a batch whose loss or gradient was not finite.

    sequences: numbers in their split, of the global batch, lane by lane. broken: those of them whose vectors
    were not finite, where not all were. texts: (sequence, text) of some, of broken ones first.
    forward, backward: `rank 1: MODULE`, where it began in the forward pass, and `rank 1: PARAMETER` whose
    gradient was the first; empty where there was none. again: whether it was computed again.
    """

    sequences: list[int]
    broken: list[int] = field(default_factory=list)
    texts: list[tuple[int, str]] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    backward: list[str] = field(default_factory=list)
    again: bool = True

    def lines(self) -> list[str]:
        """Return it as lines of a report."""
        lines = []
        if self.again and not self.forward and not self.backward:
            lines.append("computed again, its numbers were finite: suspect a device")
        lines += [f"forward: first not finite on {where}" for where in self.forward]
        lines += [f"backward: first gradient that is not finite on {where}" for where in self.backward]
        if self.broken:
            lines.append(f"sequences whose vectors are not finite: {', '.join(map(str, self.broken))}")
        lines += [f"sequence {number}: {text}" for number, text in self.texts]
        return lines


def diagnose(
    whole: WholeBatch,
    update: Update,
    batch: RankBatch,
    ids: list[int],
    decode: Callable[[Sequence[int]], str],
    again: bool = True,
) -> Finding:
    """Compute a step once more and say where it went wrong. Collective; the model is not to be used after.

    Args:
        batch: this rank's share. ids: the sequences of the global batch, lane by lane.
        decode: token ids -> text.
        again: False: nothing was not finite; only the batch is described.
    """
    first = _First()
    broken: list[int] = []
    shown = list(range(len(batch)))
    if again:
        with first.watching(whole.engine.module):
            result = whole.compute(batch)
        if result.views is not None:
            broken = (~result.views.isfinite().all(-1).all(0)).nonzero().flatten().tolist()
        update.apply(result.losses["total"])  # clears the gradients
        start = sum(gathered(len(batch))[: whole.rank])  # ranks may differ in their number of lanes
        shown = [place - start for place in broken if 0 <= place - start < len(batch)] or shown
    texts = [(int(batch.sequence_ids[i]), decode(batch.original[i].tolist())) for i in shown[:SHOWN]]
    ranks = gathered((first.module, first.parameter, texts))
    of_broken = [] if len(broken) == len(ids) else [ids[place] for place in broken]
    told = [text for *_, of_rank in ranks for text in of_rank if not of_broken or text[0] in of_broken]
    return Finding(ids, of_broken, told, _first_of(ranks, 0), _first_of(ranks, 1), again)


class _First:
    """The first module and the first parameter of this rank where something was not finite.

    Each with a number: 1 where what was not finite was given to it, so that another rank has made it.
    """

    module: tuple[int, str] | None = None
    parameter: tuple[int, str] | None = None

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Look at every output and every gradient inside; each look waits for the device."""
        hooks = [
            module.register_forward_hook(functools.partial(self._look, name))
            for name, module in model.named_modules()
        ]
        hooks += [
            p.register_hook(functools.partial(self._look_at_gradient, name))
            for name, p in model.named_parameters()
            if p.requires_grad
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _look(self, name: str, module: nn.Module, inputs: tuple, output: Any) -> None:
        if self.module is None and not _finite(output):
            given = not _finite(inputs) if name else not _finite(getattr(inputs[0], "views", ()))
            what = f"{name} ({type(module).__name__})" if name else f"the losses ({type(inputs[0]).__name__})"
            self.module = int(given), what

    def _look_at_gradient(self, name: str, gradient: Tensor) -> None:
        if self.parameter is None and not _finite(gradient):
            self.parameter = 0, name


def _finite(values: Any) -> bool:
    return all(
        bool(torch.isfinite(value.detach()).all())
        for value in tree_leaves(values)
        if isinstance(value, Tensor) and value.is_floating_point()
    )


def _first_of(ranks: list[tuple], number: int) -> list[str]:
    """Return what ranks have seen: of those to whom nothing broken was given, where there are such."""
    seen = [(rank, of_rank[number]) for rank, of_rank in enumerate(ranks) if of_rank[number] is not None]
    least = min((given for _, (given, _) in seen), default=0)
    return [f"rank {rank}: {what}" for rank, (given, what) in seen if given == least]
