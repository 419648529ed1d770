"""Stage `tokenizer`: train one on a sample that a hash fixes, or adopt one that exists."""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from pretrain.common.errors import UserError
from pretrain.data.tokenizer import (
    MOST_ACCENTED,
    accented_share,
    adopt_tokenizer,
    folds,
    save_tokenizer,
    train_tokenizer,
)
from pretrain.prepare import buckets as bk
from pretrain.prepare.annotate import check_corpus
from pretrain.prepare.work_folder import PlannedStep, TokenizerSize


class MakeTokenizer(PlannedStep):
    """Train a tokenizer on a sample of the training text, or adopt an existing one."""

    stage = "tokenizer"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        if self.config.annotate is not None:  # its script is checked before anything is parsed
            # the columns and the label of a record are lines
            check_corpus([line for text in self._some_texts() for line in text.split("\n")], self.annotation)
        config = self.config
        accented: float | None = None
        if config.tokenizer:
            tokenizer = adopt_tokenizer(config.tokenizer, config.max_length)
        else:
            # One task, alone on the machine: let the trainer use its threads. It counts words, whose order
            # does not matter.
            os.environ["TOKENIZERS_PARALLELISM"] = "true"
            texts = list(self.sample())
            lowercase = config.lowercase
            if lowercase == "auto":
                accented = accented_share(texts)
                lowercase = accented < MOST_ACCENTED
            kind, size = config.tokenizer_type, config.vocabulary
            tokenizer = train_tokenizer(texts, kind, size, lowercase, config.max_length)
        save_tokenizer(tokenizer, self.work / "tokenizer")
        if accented is None and folds(self.work / "tokenizer")[1]:
            accented = accented_share(self._some_texts())
        TokenizerSize(vocabulary_size=len(tokenizer), accented_letters=accented).write(self.work)

    def _some_texts(self) -> list[str]:
        """Return some 1,000 texts, at random: drawn by hash."""
        texts = next(self.texts_of("texts", 0))
        return texts.decode(np.arange(0, len(texts.records), max(1, len(texts.records) // 1000)))

    def sample(self) -> Iterator[str]:
        """Yield training texts up to about `tokenizer_megabytes`, chosen by hash, in the runs' order."""
        runs = bk.open_runs(self.work / "texts", self.plan.buckets, bk.TEXT_RECORD)
        weights = np.array([source.weight for source in self.config.sources])
        total = 0.0  # text that an epoch shows; 16 bytes are read per record, not the text
        for run in runs:
            records = run.records(0, until=self.plan.buckets)
            total += float((records["bytes"] * weights[records["source"]]).sum())
        if not total:
            raise UserError(f"No text is left of {self.plan.described}: check layout, text_key and min_words")
        share = self.config.tokenizer_megabytes * 1e6 / total
        for run in runs:
            for bucket in range(self.plan.buckets):
                texts = bk.load_texts([run], bucket)
                coin = bk.fraction(texts.records["key"], bk.SAMPLE_SALT)
                chosen = (coin < share * weights[texts.records["source"]]) & (texts.records["heldout"] == 0)
                yield from texts.decode(np.flatnonzero(chosen))
