"""Augmentations of text on one core: each rule from a stored parse, and AugCSE's rules over a corpus beside
the published way.

    python tests/benchmarks/bench_text_augmentations.py --parser en_core_web_sm

1. Each rule as a loader worker runs it: the parse decoded, the rule, the new text's tokens
(`Pipeline.__call__` on the
   annotation of a chunk). Every rule in a process of its own, forked before any rule has run. Cold: its first
   sentences, what it loads and looks up among them. Warm: sentences that it has not seen, after a pass over
   other sentences, by an encoder that has met the words of 60 thousand others, as a worker's has after some
   seconds; median of blocks. Text alone: the same blocks once more, the parse decoded and the rule without
   tokens, by a rule that has met their words.

2. The ten rules of augcse-12-2, each on every sentence. Ours, in one process, what
   `clearly prepare --annotate` and `clearly cache` do, less the files: tokens, one parse in batches
   (`parse_texts`), packed, and from there all ten as in 1. The published way: `nlp(text)` for every
   sentence and augmentation, then our rule on a parse that is there already. It is not
   charged for rebuilding text, tokens, named entities (the same
   pipeline, without what rules do not read) or the slower rules. "As published" has no call in the three that
   call no spaCy in NL-Augmenter. In turn, on the same sentences.

Sentences are Wikipedia's (CLEAR_DATA, text/wiki_sentences_200k.txt.gz), tokens those of a byte-level BPE of
16 thousand trained on them. CPU time of the process.
"""

import argparse
import gc
import gzip
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # as in a loader worker
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pretrain.common.environment  # noqa: F401  (the allocator's settings of a training process and its workers, for both sides)

# isort: split
import numpy as np
from bench_helpers import processor
from rich.console import Console
from rich.table import Table

from augment.core.compiled import native
from augment.core.errors import AugmentationError
from augment.core.keys import derive, sequence_keys
from augment.core.ragged import Ragged, offsets_of
from augment.core.vocabulary import Vocabulary, encode
from augment.spec.build import build
from augment.spec.grammar import alternatives, parse
from augment.spec.pipeline import Pipeline
from augment.text.draws import draws_for
from augment.text.encoder import TextEncoder
from augment.text.parsed import ParsedSentence
from augment.text.parsing import find_parser, load_parser, parse_texts
from finetune.geometry.augmentations import every_specification
from pretrain.benchmarks.files import find
from pretrain.data.annotation import Annotation, Sentences, pack
from pretrain.data.tokenizer import train_tokenizer
from pretrain.prepare import annotate as annotating

GOAL, GOAL_RATIO = 20_000, 10
BLOCKS = 4  # measured: one cold, the others warm
MET = 60_000  # sentences whose words a warm encoder has met
WARM_UP = 24  # times as many sentences as a block has, between the two
MAX_LENGTH = 128
SET = "augcse-12-2"
WITHOUT_SPACY = ("contractions", "discourse-markers", "random-swap")  # as NL-Augmenter and nlpaug have them


@dataclass(frozen=True)
class Block:
    """Sentences with tokens and keys, and their stored parse."""

    texts: list[str]
    tokens: Ragged
    keys: np.ndarray
    sentences: Sequence[ParsedSentence]


def annotate(texts: list[str], parser: str, folder: Path) -> Sentences:
    """Return the parses of N texts, kept in `folder` by their hash."""
    described = annotating.describe_parser(parser)
    ones = np.ones(len(texts), dtype=np.int64)
    rows = Ragged(ones.astype(np.int32), offsets_of(ones))
    members = annotating.annotate(texts, rows, described, 1 << 31, Counter())
    annotations = {0: Annotation(members, described["language"])}
    return Sentences(annotations, np.zeros(len(texts), np.int64), np.arange(len(texts)))


class Corpus:
    """The sentences of both parts. tokenizer: trained on them."""

    def __init__(self, texts: list[str], others: list[str], parser: str):
        self.texts, self.parser = texts, parser
        self.tokenizer = train_tokenizer(iter(texts), "bpe", 16384)
        self.vocabulary = Vocabulary.from_tokenizer(self.tokenizer)
        self.warm_encoder = self.encoder()
        self.warm_encoder(others)

    def encoder(self) -> TextEncoder:
        """One that has met no words yet."""
        return TextEncoder(
            self.tokenizer.backend_tokenizer, self.vocabulary.cls_id, self.vocabulary.sep_id, MAX_LENGTH
        )

    def pipeline(self, specification: str, encoder: TextEncoder | None = None) -> Pipeline:
        return build(specification, self.vocabulary, encoder=encoder or self.encoder())

    def block(self, start: int, stop: int, folder: Path) -> Block:
        texts = self.texts[start:stop]
        keys = sequence_keys(0, 0, np.arange(start, stop, dtype=np.uint64), 1, "augment")
        return Block(
            texts, encode(texts, self.tokenizer, self.vocabulary), keys, annotate(texts, self.parser, folder)
        )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--parser", default="", help="a spaCy pipeline; without it $CLEAR_PARSER, else one that is installed"
    )
    options.add_argument("--block", type=int, default=1000, help="sentences of a block in part 1")
    options.add_argument(
        "--corpus", type=int, default=1280, help="sentences of part 2, a fifth of them to warm up"
    )
    given = options.parse_args()
    parser = find_parser(given.parser)
    console = Console(width=120, highlight=False)
    with gzip.open(find(None, "text", "wiki_sentences_200k.txt.gz"), "rt", encoding="utf-8") as file:
        texts = [
            line.strip() for _, line in zip(range(max((BLOCKS + WARM_UP) * given.block, given.corpus)), file)
        ]
        others = [line.strip() for _, line in zip(range(MET), file)]
    corpus = Corpus(texts, others, parser)
    console.print(machine(parser))
    words = statistics.mean(len(text.split()) for text in texts)
    with tempfile.TemporaryDirectory() as folder:
        ends = [0, given.block, *((1 + WARM_UP + k) * given.block for k in range(BLOCKS))]
        blocks = [corpus.block(*span, Path(folder)) for span in pairwise(ends)]
    table = Table(
        title=f"sentences/s from a stored parse, one core; {words:.0f} words a sentence, "
        f"{given.block} a block"
    )
    for column in (
        "augmentation",
        "warm",
        "of the blocks",
        f"goal {GOAL:,}",
        "text alone",
        "cold",
        "changed",
    ):
        table.add_column(column, justify="left" if column == "augmentation" else "right")
    missing = []
    for specification in every_specification():
        if parse(specification).augmentations[0].is_text:
            figures = in_a_fork(lambda name=specification: each_rule(corpus, name, blocks))
            if isinstance(figures, str):
                missing.append(f"without {specification}: {figures}")
            else:
                table.add_row(specification, *figures)
    console.print(table)
    for note in missing:
        console.print(note)
    console.print(whole_set(corpus, texts[: given.corpus]))


def machine(parser: str) -> str:
    versions = ", ".join(f"{package} {version(package)}" for package in ("spacy", "numpy", "tokenizers"))
    meta = load_parser(parser).meta
    compiled = "the compiled part used" if native is not None else "without the compiled part"
    software = f"Python {platform.python_version()}, {versions}; {meta['name']} {meta['version']}; {compiled}"
    return f"{processor()}; {software}"


# -- 1: each rule ------------------------------------------------------


def each_rule(corpus: Corpus, specification: str, blocks: list[Block]) -> list[str] | str:
    """The cells of a row, or why there is none."""
    try:
        pipeline = corpus.pipeline(specification)
    except AugmentationError as error:
        return str(error)
    first, warm_up, *others = blocks
    cold = rate(pipeline, first)
    pipeline = corpus.pipeline(specification, corpus.warm_encoder)
    rate(pipeline, warm_up)
    warm = [rate(pipeline, block) for block in others]
    counts: list[int] = []
    passes = [
        lambda block=block: counts.append(len(pipeline.texts(block.keys, block.sentences)))
        for block in others
    ]
    alone = [len(block.texts) / cpu(once) for block, once in zip(others, passes)]
    changed = sum(counts) / sum(len(block.texts) for block in others)
    middle = statistics.median(warm)
    met = "met" if middle >= GOAL else f"{middle / GOAL:.2f} x"
    span = f"{min(warm):,.0f} .. {max(warm):,.0f}"
    return [f"{middle:,.0f}", span, met, f"{statistics.median(alone):,.0f}", f"{cold:,.0f}", f"{changed:.1%}"]


def rate(pipeline: Pipeline, block: Block) -> float:
    """Sentences per second of CPU time, one pass."""
    seconds = cpu(lambda: pipeline(block.tokens, block.keys, block.sentences))
    return len(block.texts) / seconds


def in_a_fork(function: Callable[[], Any]) -> Any:
    """What a function returns in a forked copy of this process, which keeps its objects from collections, as
    a worker does."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run() -> None:
        gc.freeze()
        theirs.send(function())

    process = context.Process(target=run)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


# -- 2: a set over a corpus --------------------------------------------


def whole_set(corpus: Corpus, texts: list[str]) -> Table:
    names = alternatives(SET)
    pipelines = [corpus.pipeline(name) for name in names]
    size = len(texts) // (BLOCKS + 1)
    warm_up, *parts = [texts[start : start + size] for start in range(0, (BLOCKS + 1) * size, size)]
    one_pass(corpus, pipelines, warm_up)
    published(corpus, pipelines, warm_up[: size // 8])
    seconds: list[list[float]] = []
    for number, part in enumerate(parts):
        before = [cpu(lambda part=part: one_pass(corpus, pipelines, part))] if number % 2 else []
        theirs = published(corpus, pipelines, part)
        seconds.append([*(before or [cpu(lambda part=part: one_pass(corpus, pipelines, part))]), *theirs])
    table = Table(
        title=f"the {len(names)} rules of {SET} on {BLOCKS * size:,} sentences, parse included, one core"
    )
    for column in ("", "sentences/s", "ms a sentence", f"ratio (goal {GOAL_RATIO}x)", "of the blocks"):
        table.add_column(column, justify="right" if column else "left")
    columns = list(zip(*seconds))
    titles = (
        "ours, one pass",
        "published: a spaCy call a sentence and augmentation",
        "published: calls as in NL-Augmenter",
    )
    for title, column in zip(titles, columns):
        middle = statistics.median(column)
        ratios = [theirs / ours for theirs, ours in zip(column, columns[0])]
        spread = f"{min(ratios):.1f} .. {max(ratios):.1f}"
        table.add_row(
            title,
            f"{size / middle:,.1f}",
            f"{1000 * middle / size:.2f}",
            f"{statistics.median(ratios):.1f}x",
            spread,
        )
    return table


def one_pass(corpus: Corpus, pipelines: list[Pipeline], texts: list[str]) -> None:
    """Tokens, parse, packed annotation, all augmentations and their tokens."""
    tokens = encode(texts, corpus.tokenizer, corpus.vocabulary)
    language = load_parser(corpus.parser).lang
    annotation = Annotation(pack(list(parse_texts(texts, corpus.parser))), language)
    keys = sequence_keys(0, 0, np.arange(len(texts), dtype=np.uint64), 1, "augment")
    for pipeline in pipelines:
        pipeline(tokens, keys, annotation)


def published(corpus: Corpus, pipelines: list[Pipeline], texts: list[str]) -> list[float]:
    """CPU seconds of every augmentation by itself: with a spaCy call for all, and for those that published
    code makes one."""
    nlp = load_parser(corpus.parser)
    parses = list(parse_texts(texts, corpus.parser))
    keys = derive(sequence_keys(0, 0, np.arange(len(texts), dtype=np.uint64), 1, "augment"), 0)

    def run(pipeline: Pipeline, calls_spacy: bool) -> None:
        (step,) = pipeline.stages[0]
        for text, sentence, draws in zip(texts, parses, draws_for(keys, step.name)):
            if calls_spacy:
                nlp(text)
            step.function(sentence, draws)

    called = {pipeline.name: cpu(lambda p=pipeline: run(p, True)) for pipeline in pipelines}
    alone = {
        pipeline.name: cpu(lambda p=pipeline: run(p, False))
        for pipeline in pipelines
        if pipeline.name in WITHOUT_SPACY
    }
    return [sum(called.values()), sum({**called, **alone}.values())]


def cpu(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


if __name__ == "__main__":
    main()
