"""The evaluation during training: held-out sequences, STS-B dev if its data is there, and own test sets."""

import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pretrain.benchmarks.distinct import distinct
from pretrain.benchmarks.files import known_name
from pretrain.benchmarks.own_sets import OwnSet, read_own_set
from pretrain.benchmarks.sts_tasks import UNDEFINED, StsEvaluator
from pretrain.common.errors import CollapsedEncoder, UserError
from pretrain.common.ranks import on_rank_zero
from pretrain.common.run_folder import LOWER_IS_BETTER
from pretrain.config.run import Config, EvaluateConfig
from pretrain.data.tokenizer import prompt_tokens
from pretrain.model.modules import evaluation_mode
from pretrain.start.data import Data
from pretrain.step.heldout import Heldout, embed_texts
from pretrain.step.progress import Progress
from pretrain.telemetry.formats import LABELS

STSB_DEV, _STSB = "stsb-dev", "STS-B-dev"  # the score, and the task whose data it needs


class RunEvaluation:
    """Evaluate an engine's model on all ranks together.

    heldout: the held-out sequences, masked and augmented once. random: names of scores that are random at the
    start, although the run starts from a model. scores: the last ones.
    """

    def __init__(
        self, config: Config, data: Data, engine, progress: Progress, sets: Sequence[OwnSet] = ()
    ) -> None:
        """engine: around a `SentenceModel`. sets: `sets_of` the configuration, the same on every rank."""
        self.engine, self.sets = engine, sets
        encoder = engine.module.encoder
        longest = encoder.max_positions
        self.scores: dict[str, float] = {}
        self.random = ("heldout_mlm_loss",) if encoder.random_head else ()
        self.heldout = Heldout(
            data.heldout,
            data.vocabulary,
            data.config,
            data.synonyms,
            max_length=longest,
            left_out=progress.heldout_left_out,
            prompts=prompt_tokens(data.tokenizer, config.data.prompts),
        )
        use, budget = data.export_interface(longest), config.train.micro_batch
        embed = partial(embed_texts, engine, data.tokenizer, use.max_length or longest, budget)
        self.embed = partial(embed, use.prompt)
        self.embed_query = partial(embed, use.prompts.get("query", ""))
        self.embed_document = partial(embed, use.prompts.get("document", ""))

    def __call__(self) -> dict[str, float]:
        """Return name -> score, the same on every rank. Collective."""
        scores = self.heldout.evaluate(self.engine)
        with evaluation_mode(self.engine.module):
            for one in self.sets:
                scores |= self._of_set(one)
        self.scores = scores
        return scores

    def _of_set(self, one: OwnSet) -> dict[str, float]:
        """Return a set's figures: all ranks embed it, and rank 0 scores; NaN if there are none."""
        embeds = (self.embed, self.embed_query, self.embed_document)
        try:
            vectors = one.embed(*(partial(distinct, embed, name="embedding") for embed in embeds))
        except CollapsedEncoder as error:  # on every rank
            why, figures = str(error), dict.fromkeys(one.tasks, math.nan)
        else:
            why = UNDEFINED
            figures = on_rank_zero(
                lambda: {each.task: each.scores[each.metric] for each in one.score(*vectors)}
            )
        if any(map(math.isnan, figures.values())):
            on_rank_zero(lambda: print(f"WARNING: {one.name}: {why}", file=sys.stderr, flush=True))
        return figures


def sets_of(settings: EvaluateConfig) -> list[OwnSet]:
    """Read STS-B dev, if it is there, and `evaluate.sets`."""
    if taken := {*LABELS, "partner_among", "view_signal"} & settings.sets.keys():
        raise UserError(f"evaluate.sets: every run has a score {min(taken)}; give the set another name")
    sets = [read_own_set(name, place) for name, place in settings.sets.items()]
    known = (STSB_DEV, *LOWER_IS_BETTER, *(task for one in sets for task in one.tasks))
    known_name(settings.best_by or known[0], known, "score evaluate.best_by", plain=str)
    sts = StsEvaluator(settings.sts)
    pairs = sts.load(_STSB) if _STSB in sts.available() else []
    return [*(OwnSet(STSB_DEV, "similarity", one.first, one.second, one.gold) for one in pairs), *sets]


def require_sts(folder: str | Path | None) -> None:
    """Refuse a named folder of benchmarks without STS data, before data is prepared."""
    if folder is not None and _STSB not in StsEvaluator(folder).available():
        raise UserError(f"--eval-data {folder} has no SentEval/STS/STSBenchmark; leave it out")
