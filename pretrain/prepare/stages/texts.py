"""The stages of preparation, as datatrove pipeline steps. Every step finds the plan and its inputs in the
work folder.

    read      T tasks   documents -> clean sentences -> run files by hash        (T: fixed by the sources)
    heldout   1 task    makes sure that some text is held out, and some is not (`pretrain.prepare.stages.split`)
    resolve   K tasks   units `sequence` and `document` only: which held-out sentences train has too
    tokenizer 1 task    train on a sample fixed by hash, or adopt
    build     K tasks   one bucket: sort, drop duplicates, weigh, tokenise, pack, write shards   (K: by corpus size)
    shuffle   K tasks   those two only: `build` scatters its sequences by hash, and this writes the shards
    merge     1 task    counts and shard records -> manifest   (`pretrain.prepare.stages.merge`)

Stages of units `sequence` and `document` alone are in `pretrain.prepare.stages.documents`; records go the
same way, through steps of their own (`pretrain.prepare.stages.records`).

Nothing a step does depends on the executor or on how many tasks run at once; each output appears whole
under its final name, and a step run twice writes the same bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from loguru import logger

from augment.core.ragged import Ragged, segment_indices
from augment.text.cleaning import for_clean_text
from pretrain.common.errors import UserError
from pretrain.config.data import DataConfig
from pretrain.data.annotate import Annotator, check_corpus
from pretrain.data.shards import ShardWriter, chunk_bounds, token_dtype, write_atomically
from pretrain.data.tokenizer import adopt_tokenizer, encode, save_tokenizer, train_tokenizer
from pretrain.prepare import buckets as bk
from pretrain.prepare.packing import Packed, fit_sentences, full_sentences, one_per_document, one_per_sequence
from pretrain.prepare.progress import Heartbeat
from pretrain.prepare.prose import is_prose
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.sources.documents import Faults, documents
from pretrain.prepare.tasks import Task

SPLITS = ("train", "heldout")

if os.environ.get("CLEAR_PREPARE_QUIET"):  # set by a local run, whose terminal shows progress instead
    logger.disable("datatrove")


Annotate = Callable[[list[str], Ragged], dict[str, bytes]]


class Step(PipelineStep):
    """A pipeline step that knows its work folder and, in it, the plan."""

    type = "CLEAR"

    def __init__(self, work: Path):
        super().__init__()
        self.work = Path(work)

    @cached_property
    def plan(self) -> dict[str, Any]:
        return json.loads((self.work / "plan.json").read_text())

    @cached_property
    def config(self) -> DataConfig:
        return DataConfig(**self.plan["config"])

    @cached_property
    def columns(self) -> dict[str, Any]:
        """What `AgreeOnColumns` of `pretrain.prepare.stages.records` found: `columns`, and `labels` where
        there are any; empty for other units."""
        path = self.work / "counts" / "columns" / "00000.json"
        return json.loads(path.read_text()) if path.is_file() else {}

    @property
    def out(self) -> Path:
        return self.work.parent

    @property
    def buckets(self) -> int:
        return self.plan["buckets"]

    def parts_of(self, runs: list[bk.Run], bucket: int) -> int:
        """In how many parts a bucket is read, so that none holds more text than `bucket_megabytes`."""
        held = sum(run.text_bytes(bucket) for run in runs)
        return max(1, -(-held // int(self.config.bucket_megabytes * 1e6)))

    def save_counts(self, stage: str, rank: int, counts: dict) -> None:
        """Keep a task's counts, sorted, for the manifest."""
        folder = self.work / "counts" / stage
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{rank:05d}.json", json.dumps(counts, sort_keys=True).encode())

    def __getstate__(self) -> dict:
        return {
            key: value for key, value in self.__dict__.items() if key not in ("plan", "config", "columns")
        }


class ReadSource(Step):
    """Reader: the documents of one task, as datatrove Documents with `source` in their metadata."""

    name = "read a source"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        task = Task(**self.plan["tasks"][rank])
        source = self.config.sources[task.source]
        counts: Counter[str] = Counter()
        faults = Faults(counts)
        with Heartbeat(self.work, "read", rank) as heartbeat:
            for number, text in enumerate(documents(task, source, faults)):
                heartbeat.advance(len(text))
                if text:
                    counts["documents_read"] += 1
                    yield Document(text, f"{rank}/{number}", metadata={"source": task.source})
        self.save_counts("reader", rank, dict(counts))
        if faults.named:
            self.save_counts("faults", rank, {"named": faults.named})


class Scatter(Step):
    """Writer: clean, split and filter documents, and scatter their sentences (units `sequence` and
    `document`: the documents, and one signature a sentence) into run files by hash."""

    name = "clean, split, scatter"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        config, seed = self.config, self.config.seed
        counts: Counter[str] = Counter()
        hashes: list[tuple[int, int]] = []  # the smallest and the largest, each with its document's key
        decision = self._decision()
        texts = bk.RunWriter(self.work / "texts", f"{rank:05d}", self.buckets, bk.TEXT_RECORD)
        signatures = bk.RunWriter(self.work / "signatures", f"{rank:05d}", self.buckets, bk.SIGNATURE)
        unwrap = [source.unwrap for source in config.sources]
        for document in data:
            source = document.metadata["source"]
            counts["documents"] += 1
            counts["characters"] += len(document.text)
            kept = self._prose(sentences_of(document.text, unwrap[source]), counts)
            encoded = [sentence.encode("utf-8", "replace") for sentence in kept]
            if not encoded:
                continue
            # Of the clean text: documents that differ in white space alone are duplicates, and belong to one
            # split.
            key = bk.text_key(b"\n".join(encoded), seed)
            number, decided, heldout = self._fate(key, decision)
            counts["documents_heldout"] += heldout
            hashes = [min([*hashes[:1], (number, key)]), max([*hashes[1:], (number, key)])]
            parts = [(key, encoded, heldout)]
            if decided and decision["cut"] and len(encoded) > 1:
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
        self.save_counts("hashes", rank, dict(zip(("smallest", "largest"), hashes)))
        self.save_counts("read", rank, dict(counts))

    def _prose(self, sentences: list[str], counts: Counter[str]) -> list[str]:
        """The sentences of a document that stay: those that are prose, or, of running text, which has no
        holes, all or none."""
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

    def _fate(self, key: int, decision: dict[str, Any]) -> tuple[int, bool, bool]:
        """Of a document's key: (the hash that its split is drawn by, whether it is the one decided on,
        whether held out)."""
        number = int(bk.mixed(np.array([key], np.uint64), bk.HELDOUT_SALT)[0])
        decided = decision.get("key") == key
        return number, decided, decision["heldout"] if decided else bk.is_below(number, self.config.heldout)

    def _decision(self) -> dict[str, Any]:
        """What `pretrain.prepare.stages.split` has decided, when it runs this task again; else empty."""
        path = self.work / "decision.json"
        return json.loads(path.read_text()) if path.is_file() else {}


class MakeTokenizer(Step):
    """Train a tokenizer on a sample of the training text, or adopt an existing one."""

    name = "tokenizer"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        with Heartbeat(self.work, "tokenizer", 0) as self._heartbeat:
            self._check_script()
            self._make()

    def _check_script(self) -> None:
        """Refuse a corpus in another script than the parser's language, before anything is parsed."""
        if self.config.annotate is None:
            return
        runs = bk.open_runs(self.work / "texts", self.buckets, bk.TEXT_RECORD)
        texts = bk.load_texts(
            runs, 0, 0, self.parts_of(runs, 0)
        )  # a bucket is a random sample: drawn by hash
        chosen = texts.decode(np.arange(0, len(texts.records), max(1, len(texts.records) // 1000)))
        # the columns and the label of a record are lines
        check_corpus([line for text in chosen for line in text.split("\n")], self.plan["annotation"])

    def _make(self) -> None:
        config = self.config
        if config.tokenizer:
            tokenizer = adopt_tokenizer(config.tokenizer, config.max_length)
        else:
            vocabulary = config.vocabulary
            # One task, alone on the machine: let the trainer use its threads. Training counts words, order is
            # no matter.
            os.environ["TOKENIZERS_PARALLELISM"] = "true"
            tokenizer = train_tokenizer(
                self.sample(), config.tokenizer_type, vocabulary, config.lowercase, config.max_length,
                exact=config.exact_vocabulary,
            )  # fmt: skip
        save_tokenizer(tokenizer, self.work / "tokenizer")
        self.save_counts("tokenizer", 0, {"vocabulary_size": len(tokenizer)})

    def sample(self) -> Iterator[str]:
        """Training texts up to about `tokenizer_megabytes`, chosen by hash, in the order of the runs."""
        runs = bk.open_runs(self.work / "texts", self.buckets, bk.TEXT_RECORD)
        weights = np.array([source.weight for source in self.config.sources])
        total = 0.0  # text that an epoch shows; 16 bytes are read per record, not the text
        for run in runs:
            records = run.records(0, until=self.buckets)
            total += float((records["bytes"] * weights[records["source"]]).sum())
        if not total:
            raise UserError(
                f"No text is left after cleaning: {self.plan['described']} hold no sentence of "
                f"{self.config.min_words} words. "
                "Check the source, its layout and text_key, and min_words."
            )
        share = self.config.tokenizer_megabytes * 1e6 / total
        for run in runs:
            for bucket in range(self.buckets):
                texts = bk.load_texts([run], bucket)
                coin = bk.fraction(texts.records["key"], bk.SAMPLE_SALT)
                chosen = (coin < share * weights[texts.records["source"]]) & (texts.records["heldout"] == 0)
                yield from texts.decode(np.flatnonzero(chosen))
            self._heartbeat.advance(1)


class Pack(Step):
    """One bucket: order, de-duplicate, weigh, tokenise, pack. What becomes of the sequences, subclasses
    say."""

    def packed(self, bucket: int, heartbeat: Heartbeat, counts: Counter[str]) -> Iterator[tuple[str, Packed]]:
        """The sequences of a bucket, split by split, in as many parts as the bound on memory asks for."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # tasks run side by side: one core each
        from tokenizers import Tokenizer

        self._heartbeat = heartbeat
        self._tokenizer = Tokenizer.from_file(str(self.work / "tokenizer" / "tokenizer.json"))
        self._clean_tokenizer, _ = for_clean_text(self._tokenizer)
        for tokenizer in (self._tokenizer, self._clean_tokenizer):
            tokenizer.no_padding()
            tokenizer.no_truncation()
        added = [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]
        self._added = re.compile("|".join(map(re.escape, added)) or "(?!)")
        self._size, self._cls, self._sep = special_ids(self.work / "tokenizer", self._tokenizer)
        runs = bk.open_runs(self.work / "texts", self.buckets, bk.TEXT_RECORD)
        parts = self.parts_of(runs, bucket)
        for part in range(parts):
            yield from self._pack(bk.load_texts(runs, bucket, part, parts), bucket, counts)

    def _pack(self, texts: bk.Texts, bucket: int, counts: Counter[str]) -> Iterator[tuple[str, Packed]]:
        rows, copies, place = self._choose(texts.records, counts)
        if not len(rows):
            return
        encode_unit = self._encode_documents if self.config.keeps_documents else self._encode_sentences
        sentences, texts_of_sentences, row_of_text = encode_unit(texts, rows, bucket)
        longest, policy = self.config.max_length - 2, self.config.long_policy
        sentences, running, first = fit_sentences(sentences, texts_of_sentences, longest, policy, counts)
        owner = row_of_text[running]
        bounds = np.searchsorted(owner, np.arange(len(rows) + 1))  # sentences of each chosen record
        for split, chosen in self._shuffled(texts.records[rows], copies, place):
            sizes = np.diff(bounds)[chosen]
            if not sizes.sum():
                continue
            index = segment_indices(bounds[chosen], sizes)
            part = sentences.take(index)
            if not self.config.keeps_documents:
                packed = one_per_sequence(part, self._cls, self._sep)
                packed.texts = partial(_texts_of, texts, rows[owner[index]])
                yield split, packed
                continue
            copy = np.repeat(np.arange(len(chosen)), sizes)  # of a document: each is one of its own
            opens = np.ones(len(copy), bool)
            opens[1:] = (np.diff(copy) != 0) | (np.diff(running[index]) != 0)
            arguments = (part, np.cumsum(opens), first[index], self.config.max_length, self._cls, self._sep)
            if self.config.unit == "sequence":
                yield split, full_sentences(*arguments)
            else:
                yield split, one_per_document(*arguments, counts)

    def _shuffled(
        self, records: np.ndarray, copies: np.ndarray, place: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Which records make each split, copies included, in their final order: (split, int64[...] into
        `records`)."""
        repeated = np.repeat(np.arange(len(records)), copies)
        copy = segment_indices(np.zeros(len(records), np.int64), copies)
        keys = bk.mixed(records["key"][repeated], bk.ORDER_SALT)
        # The number of the copy (of the duplicate too, where those stay) takes each to another place.
        keys = bk.mixed(keys + (copy + (place[repeated] << 20)).astype(np.uint64), 0)
        order = np.argsort(keys, kind="stable")
        for split, heldout in zip(SPLITS, (0, 1)):
            yield split, repeated[order][records["heldout"][repeated[order]] == heldout]

    def _choose(self, records: np.ndarray, counts: Counter[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows that stay, sorted by key; how many copies of each; its number among its duplicates: int64[R]
        each."""
        order = np.lexsort((1 - records["heldout"].astype(np.int64), records["key"]))
        sorted_ = records[order]
        new = np.ones(len(order), bool)
        new[1:] = sorted_["key"][1:] != sorted_["key"][:-1]
        group = np.flatnonzero(new)
        number = np.cumsum(new) - 1
        place = np.arange(len(order)) - group[number] if len(order) else np.empty(0, np.int64)
        heldout = sorted_["heldout"][group][number] if len(order) else np.empty(0, np.uint16)
        keep = place == 0
        if self.config.dedup == "none":
            keep |= heldout == 0
        unit = "documents" if self.config.keeps_documents else f"{self.config.unit}s"
        counts[f"{unit}_duplicate"] += int((~keep).sum())
        weights = np.array([source.weight for source in self.config.sources])[sorted_["source"]]
        coin = bk.fraction(sorted_["key"] + place.astype(np.uint64), bk.WEIGHT_SALT)
        copies = np.floor(weights).astype(np.int64) + (coin < weights % 1)
        copies = np.where(sorted_["heldout"] == 1, np.minimum(copies, 1), copies)
        counts[f"{unit}_left_out_by_weight"] += int((keep & (copies == 0)).sum())
        counts[f"{unit}_repeated_by_weight"] += int((copies[keep] - 1).clip(0).sum())
        keep &= copies > 0
        return order[keep], copies[keep], place[keep]

    def _encode(self, strings: list[str]) -> Ragged:
        parts = []
        for start in range(0, len(strings), 8192):
            batch = strings[start : start + 8192]
            # All texts are clean: cleaning them again would take a quarter of the time. Only beside a special
            # token that stands in a text ("[MASK]") would it change something, since the parts between are
            # stripped there.
            plain = self._added.search("\n".join(batch)) is None
            parts.append(encode(self._clean_tokenizer if plain else self._tokenizer, batch))
            self._heartbeat.advance(sum(map(len, batch)))
        return Ragged.concatenate(parts)

    def _encode_sentences(
        self, texts: bk.Texts, rows: np.ndarray, bucket: int
    ) -> tuple[Ragged, np.ndarray, np.ndarray]:
        parts = []
        # decoded in slices: a Python string costs 50 bytes over its text
        for start in range(0, len(rows), 65536):
            parts.append(self._encode(texts.decode(rows[start : start + 65536])))
        return Ragged.concatenate(parts), np.arange(len(rows)), np.arange(len(rows))

    def _encode_documents(
        self, texts: bk.Texts, rows: np.ndarray, bucket: int
    ) -> tuple[Ragged, np.ndarray, np.ndarray]:
        """The S sentences of the documents `rows`, without those that `Resolve` listed, as T running texts: a
        document, or what of it stands between two sentences that were taken out.

        Returns: (tokens of the sentences; int64[S], running text of each; int64[T], place in `rows` of each
        running text).
        """
        dropped = self._dropped(bucket)
        parts: list[Ragged] = []
        running: list[int] = []
        row_of_text: list[int] = []
        for start in range(0, len(rows), 4096):
            strings: list[str] = []
            chosen = rows[start : start + 4096]
            for number, (key, text) in enumerate(
                zip(texts.records["key"][chosen].tolist(), texts.decode(chosen)), start
            ):
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
            parts.append(self._encode(strings))
        return Ragged.concatenate(parts), np.array(running, np.int64), np.array(row_of_text, np.int64)

    def _dropped(self, bucket: int) -> dict[int, set[int]]:
        low, high = (bk.first_key(b, self.buckets) for b in (bucket, bucket + 1))
        found: dict[int, set[int]] = {}
        for path in sorted((self.work / "drops").glob("*.drop")):
            count = path.stat().st_size // 12
            if not count:
                continue
            keys = np.memmap(path, "<u8", "r", shape=(count,))
            start = int(np.searchsorted(keys, np.uint64(low)))
            stop = count if high >> 64 else int(np.searchsorted(keys, np.uint64(high)))
            index = np.fromfile(path, "<u4", stop - start, offset=8 * count + 4 * start)
            for key, number in zip(keys[start:stop].tolist(), index.tolist()):
                found.setdefault(key, set()).add(number)
        return found


class Build(Pack):
    """One bucket into its shard of each split."""

    name = "write shards"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        counts: Counter[str] = Counter()
        with Heartbeat(self.work, "build", rank) as heartbeat, Shards(self, rank) as shards:
            for split, packed in self.packed(rank, heartbeat, counts):
                shards.write(split, self._size, packed, self._annotate(counts))
        self.save_counts("build", rank, {"counts": dict(counts), "shards": shards.records()})

    def _annotate(self, counts: Counter[str]) -> Annotate | None:
        if self.config.annotate is None:
            return None
        annotator = Annotator(self.plan["annotation"], self.config.max_length, self.work / "parses")

        def annotate(texts: list[str], sequences: Ragged) -> dict[str, bytes]:
            members = annotator.members(texts, sequences, counts)
            self._heartbeat.advance(sum(map(len, texts)))
            return members

        return annotate


class Shards(contextlib.ExitStack):
    """The shards that one task writes, one of each split for which there is something to write."""

    def __init__(self, step: Step, rank: int):
        super().__init__()
        self._step, self._rank = step, rank
        self._writers: dict[str, ShardWriter] = {}

    def write(
        self, split: str, vocabulary_size: int, packed: Packed, annotate: Annotate | None = None
    ) -> None:
        """Append sequences as chunks. annotate: the texts of a chunk's sequences, and these, to members of
        the shard."""
        if split not in self._writers:
            path = self._step.out / split / f"shard-{self._rank:05d}.tar"
            writer = ShardWriter(path, token_dtype(vocabulary_size), self._step.work / "partial")
            self._writers[split] = self.enter_context(writer)
        columns = packed.columns
        offsets = packed.sequences.offsets[::columns]
        for start, stop in pairwise(chunk_bounds(np.diff(offsets), self._step.config.chunk_tokens).tolist()):
            starts = []
            for values in (packed.sentence_starts, packed.document_starts):
                low, high = np.searchsorted(values, [offsets[start], offsets[stop]])
                starts.append(values[low:high] - offsets[start])
            sequences = packed.sequences.slice(start * columns, stop * columns)
            labels = None if packed.labels is None else packed.labels[start:stop]
            annotation = None if annotate is None else annotate(packed.texts(start, stop), sequences)
            self._writers[split].write(
                sequences, *starts, columns=columns, labels=labels, annotation=annotation
            )

    def records(self) -> dict[str, dict]:
        """The manifest's entry of each shard; of finished ones."""
        return {split: writer.record for split, writer in self._writers.items()}


def special_ids(folder: Path, tokenizer: Any) -> tuple[int, int, int]:
    """(vocabulary size, id of CLS, id of SEP); read from the files, transformers takes a second to import."""
    settings = json.loads((folder / "tokenizer_config.json").read_text())

    def token(role: str) -> int:
        value = settings[role]
        return tokenizer.token_to_id(value["content"] if isinstance(value, dict) else value)

    return tokenizer.get_vocab_size(with_added_tokens=True), token("cls_token"), token("sep_token")


def _texts_of(texts: bk.Texts, rows: np.ndarray, start: int, stop: int) -> list[str]:
    return texts.decode(rows[start:stop])
