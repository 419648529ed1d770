"""The evaluation during training: held-out sequences, and STS-B dev where its data is."""

import math
import sys
from pathlib import Path

from pretrain.benchmarks.sts_tasks import StsEvaluator
from pretrain.common.errors import CollapsedEncoder, UserError
from pretrain.common.ranks import gathered, host_group, is_rank_zero
from pretrain.config.run import Config
from pretrain.data.tokenizer import prompt_tokens
from pretrain.model.modules import evaluation_mode
from pretrain.start.data import Data
from pretrain.step.heldout import Heldout, text_embedder
from pretrain.step.progress import Progress


class Evaluation:
    """Evaluate an engine's model on all ranks together.

    Attributes:
        heldout: the held-out sequences, masked and augmented once.
        random: names of scores that are random at the start, although the run starts from a model.
        scores: the last ones.
    """

    def __init__(self, config: Config, data: Data, engine, progress: Progress) -> None:
        """
        Args:
            engine: DeepSpeed engine around a `SentenceModel`.
            progress: of the run, which records the held-out chunks that are left out.
        """
        self.engine, self.sts = engine, StsEvaluator(config.evaluate.sts)
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
        self.embed = text_embedder(engine, data.tokenizer, use.max_length or longest, budget, use.prompt)

    def __call__(self) -> dict[str, float]:
        """Return name -> score, the same on every rank. Collective."""
        scores = self.heldout.evaluate(self.engine)
        if self.with_sts:
            with evaluation_mode(self.engine.module):
                scores["stsb-dev"] = self._stsb_dev()
        self.scores = scores
        return scores

    def _stsb_dev(self) -> float:
        """Return Spearman x 100; NaN, which is never the best, where the encoder has collapsed."""
        try:
            return self.sts.evaluate(self.embed, ["STS-B-dev"])["STS-B-dev"]["spearman_all"]
        except CollapsedEncoder as error:
            if is_rank_zero():
                print(f"WARNING: stsb-dev: {error}", file=sys.stderr, flush=True)
            return math.nan


def require_sts(folder: str | Path | None) -> None:
    """Refuse a named folder of benchmarks without STS data, before data is prepared."""
    if folder is not None and not has_sts(StsEvaluator(folder)):
        raise UserError(f"--eval-data {folder} has no SentEval/STS/STSBenchmark; leave it out")


def has_sts(sts: StsEvaluator) -> bool:
    """Return whether the data of STS-B dev is there."""
    return "STS-B-dev" in sts.available()
