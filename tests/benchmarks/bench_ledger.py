"""Time what the ledger costs: hashing in the loader, sums and chain in the training process, and verifying.

python tests/benchmarks/bench_ledger.py data/mine configs/clear_micro.yaml
"""

import sys
import time
from collections.abc import Callable

import numpy as np

from augment.core.identity import sequence_identities
from augment.core.vocabulary import Vocabulary
from pretrain.commands.verify.replay import Replay
from pretrain.config.recipe import load_config
from pretrain.data.batch import BatchSpec, RankBatch
from pretrain.data.ledger import (
    batch_words,
    begin_ledger,
    extend_ledger,
    masking_words,
    sequence_words,
    sum_words,
    view_words,
)
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.data.tokenizer import load_tokenizer
from pretrain.objectives import view_specs

ROUNDS = 7


def best(action: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several calls."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return min(times)


def hashed(block: RankBatch) -> np.ndarray:
    """Hash a block as the loader does."""
    ids = block.sequence_ids
    parts = [masking_words(ids, copy, one.batch, one.positions) for copy, one in enumerate(block.masked)]
    parts += [
        view_words(ids, role, view.tokens, view.identities, view.present)
        for role, view in block.views.items()
    ]
    return batch_words(sequence_words(ids, sequence_identities(block.original)), parts)


def main(data: str, recipe: str) -> None:
    config = load_config(recipe, {"data": data})
    replay = Replay(config, [])
    tokenizer = load_tokenizer(replay.reader.tokenizer_path)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    spec = BatchSpec(view_specs(config), Masking.of(config.objective), vocabulary)
    loader = Loader(replay.reader, spec, LoaderSettings.of(config), Position(0, 1000))
    item = next(loader.items())
    loader.maker.make(*item)  # reads the chunks
    making = best(lambda: loader.maker.make(*item))
    block = loader.maker.make(*item)
    hashing = best(lambda: hashed(block))
    assert np.array_equal(hashed(block), block.words)
    tokens = block.original.num_tokens
    print(
        f"block of {len(block):,} sequences, {tokens:,} tokens: made in {making / tokens * 1e9:.0f} ns a "
        "token"
    )
    print(f"of that, hashing {hashing / tokens * 1e9:.0f} ns a token ({hashing / making:.1%})")
    words, links = block.words[: config.train.global_batch], begin_ledger(0)
    step = best(lambda: [extend_ledger(links, sum_words(words)) for _ in range(100)]) / 100
    print(f"sums and chain of a step of {len(words)} sequences: {step * 1e6:.0f} us")
    steps = replay.reader.num_sequences // config.train.global_batch
    first = best(lambda: list(Replay(config, []).sums(0, steps)))
    print(
        f"verify, sequences: {replay.reader.num_tokens:,} tokens, an epoch of {steps:,} steps, in "
        f"{first:.2f} s "
        f"({replay.reader.num_tokens / first / 1e6:.0f}M tokens per second)"
    )
    list(replay.sums(0, steps))
    again = best(lambda: list(replay.sums(0, steps)))
    print(f"a later epoch in {again:.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
