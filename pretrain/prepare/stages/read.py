"""Stages `read` and `heldout`: documents to clean sentences, scattered into run files by hash.

Documents are held out by a hash of their text, so that the choice depends on nothing else; of a few
documents that may choose none, or all. Then `EnsureSplits` decides. The document with the smallest hash is
held out, the one with the largest is not, for any share. Of a single document the last sentences are held
out: the share `heldout` of them, and at least one. Duplicates of a document share its hash, hence its split.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document

from pretrain.prepare import buckets as bk
from pretrain.prepare import work_folder as files
from pretrain.prepare.sentences import is_prose, sentences_of
from pretrain.prepare.sources.rows import RowFaults
from pretrain.prepare.sources.structured import structured
from pretrain.prepare.work_folder import PlannedStep


def pairs_of(paragraphs: list[list[str]]) -> list[tuple[str, str]]:
    """Return the first sentence of each paragraph with the others: a query whose answer is known.

    >>> pairs_of([["Summary of it.", "It does this.", "And that."], ["Alone."]])
    [('Summary of it.', 'It does this. And that.')]
    """
    return [(first, " ".join(others)) for first, *others in filter(None, paragraphs) if others]


class ReadSource(PlannedStep):
    """Read the documents of one task, as datatrove's Documents with `source` in their metadata."""

    stage = "read"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        task = self.plan.tasks[rank]
        counts: Counter[str] = Counter()
        faults = RowFaults(counts)
        for number, document in enumerate(structured(task, self.config.sources[task.source], faults)):
            if document.whole:
                counts["documents_read"] += 1
                yield Document(document.whole, f"{rank}/{number}", metadata={"source": task.source})
        files.DocumentCounts(counts).write(self.work, rank)
        if faults.named:
            files.UnreadRows(named=faults.named).write(self.work, rank)


class Scatter(PlannedStep):
    """Clean, split and filter documents, and scatter their sentences into run files by hash.

    Of units `sequence` and `document`: the documents, and one signature a sentence.
    """

    stage = "read"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        config, seed = self.config, self.config.seed
        counts: Counter[str] = Counter()
        hashes, pairs = files.HashRange(), files.ParagraphPairs([])
        decision = self.decision()
        texts = bk.RunWriter(self.work / "texts", f"{rank:05d}", self.plan.buckets, bk.TEXT_RECORD)
        signatures = bk.RunWriter(self.work / "signatures", f"{rank:05d}", self.plan.buckets, bk.SIGNATURE)
        for document in data:
            source = document.metadata["source"]
            counts["documents"] += 1
            counts["characters"] += len(document.text)
            kept = self._prose(sentences_of(document.text), counts)
            encoded = [sentence.encode("utf-8", "replace") for sentence in kept]
            if not encoded:
                continue
            # Of the clean text: documents that differ in white space alone are duplicates, and belong to one
            # split.
            key = bk.text_key(b"\n".join(encoded), seed)
            heldout = self.is_heldout(key, decision, hashes)
            counts["documents_heldout"] += heldout
            if heldout and config.unit == "sentence":
                kept_ones = frozenset(kept)
                split = map(sentences_of, re.split(r"\n\s*\n", document.text))
                pairs.root += pairs_of([[one for one in block if one in kept_ones] for block in split])
                if len(pairs.root) > 2 * files.MOST_PAIRS:
                    pairs.root = files.sample_of(pairs.root)
            parts = [(key, encoded, heldout)]
            if decision and decision.cut and decision.key == key and len(encoded) > 1:
                counts["documents_cut"] += 1
                at = -min(len(encoded) - 1, max(1, round(config.heldout * len(encoded))))
                # Two documents from here on, and so two keys.
                cut = ((encoded[:at], False), (encoded[at:], True))
                parts = [(bk.text_key(b"\n".join(part), seed), part, held) for part, held in cut]
            for part_key, part, held in parts:
                if config.unit == "sentence":
                    for text in part:
                        texts.add((bk.text_key(text, seed), len(text), source, held), text)
                    continue
                for index, text in enumerate(part):
                    signatures.add((bk.text_key(text, seed), part_key, index, held))
                joined = b"\n".join(part)
                texts.add((part_key, len(joined), source, held), joined)
        texts.flush()
        signatures.flush()
        hashes.write(self.work, rank)
        files.ParagraphPairs(files.sample_of(pairs.root)).write(self.work, rank)
        files.SentenceCounts(counts).write(self.work, rank)

    def _prose(self, sentences: list[str], counts: Counter[str]) -> list[str]:
        """Return the sentences of a document that are prose; of running text, all or none."""
        config = self.config
        prose = [s for s in sentences if is_prose(s, config.min_words, config.min_letters)]
        counts["sentences"] += len(sentences)
        if config.keeps_documents:
            if sum(map(len, prose)) >= config.min_prose * sum(map(len, sentences)):
                counts["sentences_not_prose_kept"] += len(sentences) - len(prose)
                return sentences
            counts["documents_not_prose"] += 1
            prose = []
        counts["sentences_not_prose"] += len(sentences) - len(prose)
        return prose

    def decision(self) -> files.Decision | None:
        """Return what the stage `heldout` has decided, when it runs this task again."""
        return files.Decision.read(self.work) if files.Decision.exists(self.work) else None

    def is_heldout(self, key: int, decision: files.Decision | None, hashes: files.HashRange) -> bool:
        """Return whether the document of a key is held out; its hash is noted in `hashes`."""
        number = int(bk.mixed(np.array([key], np.uint64), bk.HELDOUT_SALT)[0])
        hashes.add(number, key)
        if decision and decision.key == key:
            return decision.heldout
        return bk.is_below(number, self.config.heldout)


class EnsureSplits(PlannedStep):
    """When the hashes leave a split empty, decide by the rule, and run the reading tasks concerned again."""

    stage = "heldout"

    def __init__(self, work: Path, reading: list[Any]):
        super().__init__(work)
        self.reading = reading

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        ranges = files.HashRange.read_all(self.work)
        decision = _decide(list(ranges.values()), self.config.heldout)
        if decision is None:
            return
        decision.write(self.work)
        for task, hashes in ranges.items():
            if any(pair and pair[1] == decision.key for pair in (hashes.smallest, hashes.largest)):
                stream: Any = None
                for step in self.reading:  # once more
                    stream = step.run(stream, task, len(ranges))


def _decide(ranges: list[files.HashRange], share: float) -> files.Decision | None:
    """Return which document to decide on; None if the hashes fill both splits, or there is no text at all."""
    smallest = min((hashes.smallest for hashes in ranges if hashes.smallest), default=None)
    largest = max((hashes.largest for hashes in ranges if hashes.largest), default=None)
    if smallest is None or largest is None:
        return None
    if bk.is_below(smallest[0], share) and not bk.is_below(largest[0], share):
        return None
    if smallest == largest:
        return files.Decision(key=smallest[1], cut=True, heldout=False)
    if bk.is_below(smallest[0], share):
        return files.Decision(key=largest[1], cut=False, heldout=False)
    return files.Decision(key=smallest[1], cut=False, heldout=True)
