"""Stage `build`: the texts of a bucket to tokens, sequences and shards."""

import contextlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from augment.core.ragged import Ragged, segment_indices
from augment.text.cleaning import SpecialTokens, for_clean_text
from pretrain.config.data import DataConfig
from pretrain.data.manifest import SPLITS
from pretrain.data.shard_writer import ShardWriter, chunk_bounds, token_dtype
from pretrain.data.tokenizer import encode
from pretrain.prepare import buckets as bk
from pretrain.prepare.annotate import annotate
from pretrain.prepare.packing import Packed, fit_sentences, full_sentences, one_per_document, one_per_sequence
from pretrain.prepare.work_folder import BuiltShards, PlannedStep, TokenizerSize


@dataclass(frozen=True)
class ChosenTexts:
    """The R texts of a bucket that stay, sorted by key.

    rows: int64[R], into the bucket's texts. records: TEXT_RECORD[R]. copies: int64[R], how often an epoch
    shows each. place: int64[R], the number of each among its duplicates.
    """

    rows: np.ndarray
    records: np.ndarray
    copies: np.ndarray
    place: np.ndarray

    def shuffled(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each split with its texts, copies included, in their final order: int64[...] below R."""
        repeated = np.repeat(np.arange(len(self.records)), self.copies)
        copy = segment_indices(np.zeros(len(self.records), np.int64), self.copies)
        keys = bk.mixed(self.records["key"][repeated], bk.ORDER_SALT)
        # The number of the copy (of the duplicate too, if those stay) takes each to another place.
        keys = bk.mixed(keys + (copy + (self.place[repeated] << 20)).astype(np.uint64), 0)
        shuffled = repeated[np.argsort(keys, kind="stable")]
        for number, split in enumerate(SPLITS):
            yield split, shuffled[self.records["heldout"][shuffled] == number]


def choose(records: np.ndarray, config: DataConfig, counts: Counter[str]) -> ChosenTexts:
    """Drop the duplicates among a bucket's texts, of which held-out ones stay, and weigh the rest.

    records: TEXT_RECORD[n]. counts: what is dropped and repeated is added.
    """
    order = np.lexsort((1 - records["heldout"].astype(np.int64), records["key"]))
    records = records[order]
    first = np.ones(len(order), bool)
    first[1:] = records["key"][1:] != records["key"][:-1]
    group = np.flatnonzero(first)[np.cumsum(first) - 1]  # the first duplicate of each
    place = np.arange(len(order)) - group
    keep = first.copy()
    if config.dedup == "none":
        keep |= records["heldout"][group] == 0
    unit = "documents" if config.keeps_documents else f"{config.unit}s"
    counts[f"{unit}_duplicate"] += int((~keep).sum())
    weights = np.array([source.weight for source in config.sources])[records["source"]]
    coin = bk.fraction(records["key"] + place.astype(np.uint64), bk.WEIGHT_SALT)
    copies = np.floor(weights).astype(np.int64) + (coin < weights % 1)
    copies = np.where(records["heldout"] == 1, np.minimum(copies, 1), copies)
    counts[f"{unit}_left_out_by_weight"] += int((keep & (copies == 0)).sum())
    counts[f"{unit}_repeated_by_weight"] += int((copies[keep] - 1).clip(0).sum())
    keep &= copies > 0
    return ChosenTexts(order[keep], records[keep], copies[keep], place[keep])


_BATCH = 8192  # texts


class CorpusTokenizer:
    """The tokenizer of a work folder.

    cls_id, sep_id: its special tokens. spelled: how many special tokens were in texts, and were read as text.
    unknown: how many words it does not know.
    """

    def __init__(self, work: Path):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # tasks run side by side: one core each
        from tokenizers import Tokenizer

        folder = work / "tokenizer"
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._clean_tokenizer, _ = for_clean_text(self._tokenizer)
        for tokenizer in (self._tokenizer, self._clean_tokenizer):
            tokenizer.no_padding()
            tokenizer.no_truncation()
        added = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]
        self._added = re.compile("|".join(map(re.escape, added)) or "(?!)")
        self._special, self.spelled, self.unknown = SpecialTokens(self._tokenizer), 0, 0
        # from the file: transformers takes a second to import
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        self.cls_id, self.sep_id = (self._special_id(settings[f"{role}_token"]) for role in ("cls", "sep"))
        self._unknown_id = self._special_id(token) if (token := settings.get("unk_token")) else -1

    def _special_id(self, token: Any) -> int:
        number = self._tokenizer.token_to_id(token["content"] if isinstance(token, dict) else token)
        assert number is not None  # the tokenizer of a preparation has [CLS] and [SEP]
        return number

    def __call__(self, texts: list[str]) -> Ragged:
        """Return the tokens of clean texts, without special ones.

        To clean them again would take a quarter of the time. It would change something only beside an added
        token inside a text, since the parts between are stripped.
        """
        parts = []
        for start in range(0, len(texts), _BATCH):
            batch = texts[start : start + _BATCH]
            tokenizer, given = self._clean_tokenizer, batch
            if self._added.search("\n".join(batch)) is not None:
                tokenizer, given = self._tokenizer, self._special.taken_apart(batch)
                self.spelled += self._special.count(batch)
            parts.append(encode(tokenizer, given))
            self.unknown += int((parts[-1].ids == self._unknown_id).sum())
        return Ragged.concatenate(parts)


Annotate = Callable[[list[str], Ragged], dict[str, bytes]]
"""From the texts of a chunk's sequences, and these, to members of the shard."""


class Shards(contextlib.ExitStack):
    """The shards that one task writes: one of each split for which there is something to write."""

    def __init__(self, step: PlannedStep, rank: int):
        super().__init__()
        self._step, self._rank = step, rank
        self._dtype = token_dtype(TokenizerSize.read(step.work).vocabulary_size)
        self._writers: dict[str, ShardWriter] = {}

    def write(self, split: str, packed: Packed, annotate: Annotate | None = None) -> None:
        """Append sequences as chunks."""
        if split not in self._writers:
            path = self._step.out / split / f"shard-{self._rank:05d}.tar"
            writer = ShardWriter(path, self._dtype, self._step.work / "partial")
            self._writers[split] = self.enter_context(writer)
        columns = packed.columns
        offsets = packed.sequences.offsets[::columns]
        for start, stop in pairwise(chunk_bounds(np.diff(offsets), self._step.config.chunk_tokens).tolist()):
            first, end = offsets[start], offsets[stop]
            sequences = packed.sequences.slice(start * columns, stop * columns)
            labels = None if packed.labels is None else packed.labels[start:stop]
            annotation = None
            if annotate is not None:
                assert packed.texts is not None  # data that is annotated is packed with its texts
                annotation = annotate(packed.texts(start, stop), sequences)
            self._writers[split].write(
                sequences,
                _starts_within(packed.sentence_starts, first, end),
                _starts_within(packed.document_starts, first, end),
                columns=columns,
                labels=labels,
                annotation=annotation,
            )

    def records(self) -> dict[str, dict]:
        """Return the manifest's entry of each shard, once it is finished."""
        return {split: writer.record for split, writer in self._writers.items()}


def _starts_within(starts: np.ndarray, first: int, end: int) -> np.ndarray:
    """Return the starts in [first, end), counted from `first`; starts: int64, ascending."""
    low, high = np.searchsorted(starts, [first, end])
    return starts[low:high] - first


class Pack(PlannedStep):
    """Choose, encode and pack the texts of one bucket. Subclasses say what becomes of the sequences."""

    stage = "build"

    def packed(self, bucket: int, counts: Counter[str]) -> Iterator[tuple[str, Packed]]:
        """Yield the sequences of a bucket, split by split, in as many parts as the bound on memory asks."""
        encoder = CorpusTokenizer(self.work)
        for texts in self.texts_of("texts", bucket):
            yield from self._pack(texts, bucket, encoder, counts)
            del texts  # before the next part is read
        counts["special_tokens_read_as_text"] += encoder.spelled
        counts["tokens_unknown"] += encoder.unknown

    def _pack(
        self, texts: bk.Texts, bucket: int, encoder: CorpusTokenizer, counts: Counter[str]
    ) -> Iterator[tuple[str, Packed]]:
        config = self.config
        chosen = choose(texts.records, config, counts)
        if not len(chosen.rows):
            return
        if config.keeps_documents:
            encoded = self._encode_documents(texts, chosen.rows, bucket, encoder)
            sentences, texts_of_sentences, row_of_text = encoded
        else:  # decoded in slices: a Python string costs 50 bytes over its text
            slices = (chosen.rows[start : start + 65536] for start in range(0, len(chosen.rows), 65536))
            sentences = Ragged.concatenate([encoder(texts.decode(rows)) for rows in slices])
            texts_of_sentences = row_of_text = np.arange(len(chosen.rows))
        sentences, running, first = fit_sentences(
            sentences, texts_of_sentences, config.max_length - 2, config.long_policy, counts
        )
        owner = row_of_text[running]
        bounds = np.searchsorted(owner, np.arange(len(chosen.rows) + 1))  # sentences of each chosen text
        for split, shown in chosen.shuffled():
            sizes = np.diff(bounds)[shown]
            if not sizes.sum():
                continue
            index = segment_indices(bounds[shown], sizes)
            part = sentences.take(index)
            if not config.keeps_documents:
                packed = one_per_sequence(part, encoder.cls_id, encoder.sep_id)
                packed.texts = partial(_texts_of, texts, chosen.rows[owner[index]])
                yield split, packed
                continue
            copy = np.repeat(np.arange(len(shown)), sizes)  # of a document: each is one of its own
            documents = np.cumsum(np.append(True, (np.diff(copy) != 0) | (np.diff(running[index]) != 0)))
            arguments = (part, documents, first[index], config.max_length, encoder.cls_id, encoder.sep_id)
            if config.unit == "sequence":
                yield split, full_sentences(*arguments)
            else:
                yield split, one_per_document(*arguments, counts)

    def _encode_documents(
        self, texts: bk.Texts, rows: np.ndarray, bucket: int, encoder: CorpusTokenizer
    ) -> tuple[Ragged, np.ndarray, np.ndarray]:
        """Encode the S sentences of documents as T running texts, without those that `Resolve` listed.

        A running text is a document, or the part of it between two sentences that were taken out.

        Returns: (tokens of the sentences; int64[S], running text of each; int64[T], place in `rows` of each
        running text).
        """
        dropped = defaultdict[int, set[int]](set)
        for run in bk.open_runs(self.work / "dropped", self.plan.buckets, bk.DROPPED):
            for document, index in run.records(bucket).tolist():
                dropped[document].add(index)
        parts: list[Ragged] = []
        running: list[int] = []
        row_of_text: list[int] = []
        for start in range(0, len(rows), 4096):
            strings: list[str] = []
            chosen = rows[start : start + 4096]
            keys = texts.records["key"][chosen].tolist()
            for number, (key, text) in enumerate(zip(keys, texts.decode(chosen)), start):
                gone = dropped.get(key, ())
                before = None  # the sentence that was kept last
                for index, sentence in enumerate(text.split("\n")):
                    if index in gone:
                        continue
                    if before is None or index != before + 1:
                        row_of_text.append(number)
                    before = index
                    running.append(len(row_of_text) - 1)
                    strings.append(sentence)
            parts.append(encoder(strings))
        return Ragged.concatenate(parts), np.array(running, np.int64), np.array(row_of_text, np.int64)


class Build(Pack):
    """Write one bucket into its shard of each split."""

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        counts: Counter[str] = Counter()
        with Shards(self, rank) as shards:
            parse: Annotate | None = None
            if self.config.annotate is not None:
                longest = self.config.max_length
                parse = partial(annotate, parser=self.annotation, max_length=longest, counts=counts)
            for split, packed in self.packed(rank, counts):
                shards.write(split, packed, parse)
        BuiltShards(counts=counts, shards=shards.records()).write(self.work, rank)


def _texts_of(texts: bk.Texts, rows: np.ndarray, start: int, stop: int) -> list[str]:
    return texts.decode(rows[start:stop])
