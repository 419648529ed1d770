"""The evaluation during training: held-out sequences, STS-B dev where its data is, and own test sets."""

import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pretrain.benchmarks.distinct import distinct
from pretrain.benchmarks.files import known_name
from pretrain.benchmarks.own_sets import OwnSet, read_own_sets
from pretrain.benchmarks.sts_scores import StsEvaluator
from pretrain.common.errors import CollapsedEncoder, UserError
from pretrain.common.ranks import gathered, host_group, is_rank_zero, on_rank_zero
from pretrain.common.run_folder import LOWER_IS_BETTER
from pretrain.config.run import Config, EvaluateConfig
from pretrain.data.tokenizer import prompt_tokens
from pretrain.model.modules import evaluation_mode
from pretrain.start.data import Data
from pretrain.step.heldout import Heldout, text_embedder
from pretrain.step.progress import Progress
from pretrain.telemetry.formats import LABELS


class Evaluation:
    """Evaluate an engine's model on all ranks together.

    Attributes:
        heldout: the held-out sequences, masked and augmented once.
        random: names of scores that are random at the start, although the run starts from a model.
        scores: the last ones.
    """

    def __init__(
        self, config: Config, data: Data, engine, progress: Progress, sets: Sequence[OwnSet] = ()
    ) -> None:
        """
        Args:
            engine: DeepSpeed engine around a `SentenceModel`.
            progress: of the run, which records the held-out chunks that are left out.
            sets: `own_sets`, the same on every rank.
        """
        self.engine, self.sts, self.sets = engine, StsEvaluator(config.evaluate.sts), sets
        encoder = engine.module.encoder
        longest = encoder.max_positions
        self.scores: dict[str, float] = {}
        self.random = ("heldout_mlm_loss",) if encoder.random_head else ()
        self.heldout = Heldout(
            data.heldout,
            data.vocabulary,
            data.config,
            data.synonyms,
            longest,
            progress.heldout_left_out,
            prompt_tokens(data.tokenizer, config.data.prompts),
        )
        self.with_sts = all(gathered(has_sts(self.sts), host_group()))  # ranks embed it together
        use, budget = data.export_interface(longest), config.train.micro_batch_tokens
        embedder = partial(text_embedder, engine, data.tokenizer, use.max_length or longest, budget)
        self.embed = embedder(use.prompt)
        self.embed_query, self.embed_document = (
            embedder(use.prompts.get(name, "")) for name in ("query", "document")
        )

    def __call__(self) -> dict[str, float]:
        """Return name -> score, the same on every rank. Collective."""
        scores = self.heldout.evaluate(self.engine)
        with evaluation_mode(self.engine.module):
            if self.with_sts:
                scores["stsb-dev"] = self._stsb_dev()
            for one in self.sets:
                scores |= self._own_set(one)
        self.scores = scores
        return scores

    def _stsb_dev(self) -> float:
        """Return Spearman x 100; NaN, which is never the best, where the encoder has collapsed."""
        try:
            return self.sts.evaluate(self.embed, ["STS-B-dev"])["STS-B-dev"]["spearman_all"]
        except CollapsedEncoder as error:
            return _no_score("stsb-dev", error)

    def _own_set(self, one: OwnSet) -> dict[str, float]:
        """Return the headline of each of a set's figures; all ranks embed it, and rank 0 scores."""
        embeds = (self.embed, self.embed_query, self.embed_document)
        try:
            vectors = one.embed(*(partial(distinct, embed, name="embedding") for embed in embeds))
        except CollapsedEncoder as error:
            return dict.fromkeys(one.tasks, _no_score(one.name, error))
        return on_rank_zero(lambda: {each.task: each.scores[each.metric] for each in one.score(*vectors)})


def _no_score(name: str, error: CollapsedEncoder) -> float:
    if is_rank_zero():
        print(f"WARNING: {name}: {error}", file=sys.stderr, flush=True)
    return math.nan


def own_sets(settings: EvaluateConfig) -> list[OwnSet]:
    """Read `evaluate.sets`; refuse a name that another score has, and a `best_by` that is no score."""
    if taken := [name for name in settings.sets if name in (*LABELS, "partner_among", "view_signal")]:
        raise UserError(f"evaluate.sets: every run has a score {taken[0]}; give the set another name")
    sets = read_own_sets(settings.sets)
    if settings.best_by is not None:
        known = ("stsb-dev", *LOWER_IS_BETTER, *(task for one in sets for task in one.tasks))
        known_name(settings.best_by, known, "score evaluate.best_by", plain=str)
    return sets


def require_sts(folder: str | Path | None) -> None:
    """Refuse a named folder of benchmarks without STS data, before data is prepared."""
    if folder is not None and not has_sts(StsEvaluator(folder)):
        raise UserError(f"--eval-data {folder} has no SentEval/STS/STSBenchmark; leave it out")


def has_sts(sts: StsEvaluator) -> bool:
    """Return whether the data of STS-B dev is there."""
    return "STS-B-dev" in sts.available()
