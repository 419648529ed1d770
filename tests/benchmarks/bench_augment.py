"""Tokens per second of every augmentation on one core, beside nlpaug's nearest.

    python tests/benchmarks/bench_augment.py

Sentences are Wikipedia's where CLEAR_DATA names the data (text/wiki_sentences_200k.txt.gz), else made-up
words of Wikipedia's sentence lengths; sequences of 512 are the same sentences packed. Tokens are counted
before augmentation, the same for both sides (nlpaug gets the sentences as strings and is not charged for
tokenisation). CPU time of the process, median of several runs.
"""

import gzip
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (the allocator's settings of a training process and its workers, for both sides)

# isort: split
import numpy as np
from bench_helpers import processor
from rich.console import Console
from rich.table import Table

from augment.core.errors import AugmentationError
from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged, offsets_of
from augment.core.vocabulary import Vocabulary, encode
from augment.spec.build import build
from augment.spec.catalogue import CATALOGUE
from augment.tokens.synonyms import SynonymTable, find_synonyms, read_synonyms
from pretrain.data.tokenizer import tokenizer_of

SENTENCES = 20_000
PEER_SENTENCES = 300
LENGTH = 512


def main() -> None:
    console = Console(width=130)
    sentences, origin = load_sentences()
    tokenizer = tokenizer_of(sentences[:5000])
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    short = encode(sentences, tokenizer, vocabulary)
    long = pack(short, vocabulary)
    synonyms = load_synonyms(tokenizer, vocabulary)
    peers = nlpaug_peers(synonyms)
    peer_tokens = short.slice(0, PEER_SENTENCES).num_tokens

    table = Table(title=f"source tokens/s, one core, {origin}")
    for column in (
        "augmentation",
        f"{short.lengths.mean():.0f} tokens",
        f"{LENGTH} tokens",
        "nlpaug",
        "ratio",
        "nlpaug's nearest",
    ):
        table.add_column(
            column, justify="left" if column in ("augmentation", "nlpaug's nearest") else "right"
        )
    for entry in CATALOGUE.values():
        if entry.kind != "token" or ("synonyms" in entry.needs and synonyms is None):
            continue
        pipeline = build(entry.name, vocabulary, synonyms)
        rates = [
            measure(lambda batch=batch, run=pipeline: run(batch, keys_for(batch, 0)), batch.num_tokens)
            for batch in (short, long)
        ]
        name, peer = peers.get(entry.name, ("none", None))
        peer_rate = (
            None
            if peer is None
            else measure(lambda run=peer: [run(s) for s in sentences[:PEER_SENTENCES]], peer_tokens, 3)
        )
        table.add_row(entry.name, *map(million, rates), *compare(rates[0], peer_rate), name)
    pipeline = build("del-span,reorder", vocabulary)
    rates = [
        measure(
            lambda batch=batch: [pipeline(batch, keys_for(batch, view)) for view in (0, 1)], batch.num_tokens
        )
        for batch in (short, long)
    ]
    table.add_row("two views of del-span,reorder", *map(million, rates), "", "", "")
    console.print(table)
    console.print(machine())


def measure(run: Callable[[], object], tokens: int, repeats: int = 7) -> float:
    """Tokens per second of CPU time: the median of `repeats` runs after one that warms up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return tokens / statistics.median(times)


def keys_for(batch: Ragged, view: int) -> np.ndarray:
    return sequence_keys(0, 0, np.arange(len(batch), dtype=np.uint64), view, "augment")


def load_sentences() -> tuple[list[str], str]:
    data = os.environ.get("CLEAR_DATA")
    path = Path(data, "text", "wiki_sentences_200k.txt.gz") if data else None
    if path is not None and path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [
                line.strip() for _, line in zip(range(SENTENCES), file, strict=False)
            ], "Wikipedia sentences"
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("etaoinshrdlu"), rng.integers(1, 10))) for _ in range(20_000)]
    ranks = np.minimum(rng.zipf(1.3, (SENTENCES, 60)) - 1, len(words) - 1)
    lengths = np.clip(rng.gamma(4, 6, SENTENCES).astype(int), 3, 60)
    made_up = [
        " ".join(words[r] for r in row[:length]) + "." for row, length in zip(ranks, lengths, strict=True)
    ]
    return made_up, "made-up sentences (CLEAR_DATA is not set)"


def pack(batch: Ragged, vocabulary: Vocabulary) -> Ragged:
    """The content of all sequences end to end, cut into sequences of LENGTH."""
    content = batch.ids[(batch.ids != vocabulary.cls_id) & (batch.ids != vocabulary.sep_id)]
    count = len(content) // (LENGTH - 2)
    rows = np.empty((count, LENGTH), dtype=np.int32)
    rows[:, 0], rows[:, -1] = vocabulary.cls_id, vocabulary.sep_id
    rows[:, 1:-1] = content[: count * (LENGTH - 2)].reshape(count, -1)
    return Ragged(rows.reshape(-1), offsets_of(np.full(count, LENGTH, dtype=np.int64)))


def load_synonyms(tokenizer: object, vocabulary: Vocabulary) -> SynonymTable | None:
    try:
        return SynonymTable.load(find_synonyms(), tokenizer, vocabulary)
    except AugmentationError as error:
        print(f"subs is left out: {error}")
        return None


def nlpaug_peers(synonyms: SynonymTable | None) -> dict[str, tuple[str, Callable[[str], object]]]:
    """nlpaug's nearest, at the same rates. Its SynonymAug must download a tagger; ReservedAug takes our
    table."""
    try:
        import nlpaug.augmenter.word as naw
    except ImportError:
        print("nlpaug is not installed (pip install nlpaug): our side alone")
        return {}
    settings = {
        "del-word": {"action": "delete", "aug_p": 0.7},
        "del-span": {"action": "crop", "aug_p": 0.25},
        "reorder": {"action": "swap", "aug_p": 0.5},
        "crop": {"action": "crop", "aug_p": 0.1},
    }
    peers = {}
    for name, options in settings.items():
        title = f"RandomWordAug({options['action']}, aug_p={options['aug_p']})"
        peers[name] = (title, tolerant(naw.RandomWordAug(aug_min=1, aug_max=None, **options).augment))
    if synonyms is not None:
        groups = [[word, *others] for word, others in read_synonyms(synonyms.source).items()]
        reserved = naw.ReservedAug(reserved_tokens=groups, aug_p=0.3, aug_max=None)
        peers["subs"] = ("ReservedAug(the same table, aug_p=0.3)", reserved.augment)
    return peers


def tolerant(augment: Callable[[str], object]) -> Callable[[str], object]:
    """nlpaug 1.1.11's crop raises ValueError on some sentences, at random; the sentence counts as done."""

    def run(sentence: str) -> object:
        try:
            return augment(sentence)
        except ValueError:
            return None

    return run


def compare(ours: float, peer: float | None) -> tuple[str, str]:
    return ("", "") if peer is None else (million(peer), f"{ours / peer:,.0f}x")


def million(rate: float) -> str:
    return f"{rate / 1e6:,.3g} M"


def machine() -> str:
    from importlib.metadata import PackageNotFoundError, version

    versions = []
    for package in ("numpy", "tokenizers", "nlpaug"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package} not installed")
    return f"{processor()}; Python {platform.python_version()}, {', '.join(versions)}"


if __name__ == "__main__":
    main()
