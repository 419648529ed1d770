"""The tokens of a step's batch: of a sample of the prepared data, or assumed where there is none."""

from dataclasses import replace
from typing import Any

from augment.core.vocabulary import Vocabulary
from pretrain.config.run import Config
from pretrain.data.batch import BatchSpec, RankBatch
from pretrain.data.loader import Loader, LoaderSettings, Position, require_negatives
from pretrain.data.masking import Masking
from pretrain.data.pipelines import synonyms_for
from pretrain.data.shards import ShardReader
from pretrain.estimate.run_size import BatchSize
from pretrain.objectives import view_specs

SENTENCE = 24
"""Mean tokens of a sentence where neither --data nor --length says: of English Wikipedia, about."""
SAMPLE = 256
"""Sequences of the sample, about."""


def assumed_length(config: Config) -> int:
    """Return the mean tokens of a sequence of data that is not prepared yet."""
    prepare = config.data.prepare
    return min(SENTENCE, prepare.max_length) if prepare.unit == "sentence" else prepare.max_length


def assumed_batch(config: Config, length: int) -> BatchSize:
    """Return the batch whose texts all have `length` tokens, and whose views are as long as the text.

    Of a rate of masking that changes it is the highest.
    """
    tokens = float(config.train.global_batch * length)
    views, readers = _views(config), _readers(config)
    masked, mlm = tokens * config.objective.masked_copies, config.objective.mlm
    return BatchSize(
        sequences=config.train.global_batch,
        longest=min(config.model.max_positions, config.data.prepare.max_length),
        masked_tokens=masked,
        predicted=masked * max([mlm.rate, *mlm.later_rates.values()]),
        views=views,
        view_tokens=tokens * views,
        sequence_tokens=tokens * readers,
        momentum_tokens=tokens * _has_momentum(config),
    )


def sampled_batch(config: Config, reader: ShardReader, tokenizer: Any) -> BatchSize:
    """Return the batch as the run's own loader makes it, from a sample of its first step."""
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    lanes = config.data.lanes
    sample = config.model_copy(deep=True)
    sample.train.global_batch = min(config.train.global_batch, lanes * max(1, SAMPLE // lanes))
    views = view_specs(sample)
    require_negatives(reader, views)
    synonyms = synonyms_for(
        [view.augmentation for view in views], sample.augment.synonyms, tokenizer, vocabulary
    )
    longest = min(config.model.max_positions, reader.max_length)
    loader = Loader(
        reader,
        BatchSpec(views, Masking.of(sample.objective), vocabulary, synonyms, longest),
        replace(LoaderSettings.of(sample), workers=0, start_batch=None, growth_steps=0),
        Position(0, 1, 0, 1),
    )
    return _sizes(config, next(iter(loader)), config.train.global_batch / sample.train.global_batch, longest)


def _sizes(config: Config, batch: RankBatch, scale: float, longest: int) -> BatchSize:
    per_view = [view.tokens.num_tokens for view in batch.views.values()]
    readers, momentum = _readers(config), _has_momentum(config)
    mean = sum(per_view) / max(1, len(per_view))
    return BatchSize(
        sequences=config.train.global_batch,
        longest=longest,
        masked_tokens=scale * sum(masked.batch.num_tokens for masked in batch.masked),
        predicted=scale * sum(len(masked.positions) for masked in batch.masked),
        views=_views(config),
        view_tokens=scale * sum(per_view),
        sequence_tokens=scale * mean * readers,
        momentum_tokens=scale * mean * momentum,
    )


def _views(config: Config) -> int:
    return len(view_specs(config))


def _readers(config: Config) -> int:
    """Return how many views the losses of one sequence at a time read."""
    objective, parts = config.objective, config.objective.parts
    both = "diffcse" in parts and objective.diffcse.replaced_token_weight > 0
    one = "vadvcse" in parts and objective.vadvcse.resolved.adversarial_weight > 0
    return 2 * both + one


def _has_momentum(config: Config) -> bool:
    return "esimcse" in config.objective.parts and config.objective.esimcse.queue > 0
