"""Measure augmentations of the same sentences, keep what was measured, and write it as tables."""

import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from augment.core.errors import AugmentationError
from augment.core.ragged import Ragged, offsets_of
from augment.spec.catalogue import CATALOGUE
from augment.spec.grammar import parse
from augment.spec.resources import resource_hash, resources, rules_digest
from finetune.augmentation_quality.measures import Cosines, MaskedLosses, changed_rows, jaccard
from finetune.geometry.augmentations import AugmentedSentences, Rewriting
from finetune.results import folder_name
from pretrain.common.files import replace_durably, to_json
from pretrain.data.annotate import Annotator, describe_parser
from pretrain.data.annotation import Annotation, Sentences
from pretrain.telemetry.metrics_file import without_nan

FORMAT = 2  # of what is kept
SAMPLES = 5
SAMPLE_CHARACTERS = 120  # of a sample, where there are enough so short: they are for reading
PARSED_AT_ONCE = 1000
MASKED_WORK = 3
"""What a sentence costs under masks, about, where encoding it costs 1: for the estimate of the time left."""


class Quality:
    """Everything that augmentations of the same N sentences have in common.

    order: int64[N], the order drawn once, in which samples and masked sentences come first. masked: how many
    are measured under masks. folder: what is kept.
    """

    def __init__(self, sentences: AugmentedSentences, parser: str, masked: int, folder: Path, identity: str):
        self.sentences, self.masked, self.folder = sentences, masked, folder
        self.order = np.random.default_rng(sentences.seed).permutation(len(sentences.sentences))
        settings = [FORMAT, identity, str(sentences.precision), sentences.seed, masked]
        settings += [describe_parser(parser), sentences.sentences]
        self._settings = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16).digest()
        self.cosines = Cosines(sentences)
        self._losses: MaskedLosses | None = None

    def rewrite(self, specification: str) -> Rewriting:
        """Rewrite the sentences, as `AugmentedSentences.rewrite`.

        What an augmentation with a model wrote is kept, by its specification, the rules and what it reads.
        """
        entries = [step.entry for step in parse(specification).augmentations]
        if not any(need.startswith("model:") for entry in entries for need in entry.needs):
            return self.sentences.rewrite(specification)
        read = {name: resource_hash(where) or where for name, where in resources([specification]).items()}
        path = self._path("text", specification, json.dumps([specification, read, rules_digest()]).encode())
        if not path.is_file():
            written = self.sentences.rewrite(specification)
            replace_durably(path, to_json(written.texts))
        texts = {int(n): text for n, text in json.loads(path.read_text()).items()}
        return self.sentences.rewritten(str(parse(specification)), texts)

    def kept(self, rewriting: Rewriting) -> Path:
        """Return the file of an augmentation's figures, named by all that it wrote and the settings."""
        content = (
            json.dumps([rewriting.name, list(rewriting.texts.items())]).encode()
            + rewriting.rows.ids.tobytes()
        )
        return self._path("figures", rewriting.name, content)

    def work(self, rewriting: Rewriting) -> float:
        """Return about what `measure` costs, in sentences encoded."""
        changed = int(rewriting.changed.sum())
        return changed + MASKED_WORK * (changed * self.masked // len(self.order))

    def measure(self, rewriting: Rewriting) -> dict[str, Any]:
        """Measure one augmentation: percentages, and means over the sentences that it changes.

        NaN where it changes none.
        """
        which = changed_rows(self.sentences, rewriting)
        figures: dict[str, Any] = {"rate": 100 * len(which) / len(self.order), "changed": len(which)}
        figures |= {
            "not_applicable": int((~rewriting.changed).sum()),
            "same": int(rewriting.changed.sum()) - len(which),
        }
        if not len(which):
            return figures
        overlaps = [jaccard(self._original(rewriting, n), self._plain(rewriting, n)) for n in which.tolist()]
        figures["jaccard"] = float(np.mean(overlaps))
        figures |= _mean("cosine", self.cosines(rewriting, which))
        if self.sentences.has_mlm_head and self.masked:
            if self._losses is None:
                self._losses = MaskedLosses(self.sentences, np.sort(self.order[: self.masked]))
            for name, changes in zip(("loss_all", "loss_kept"), self._losses.changes(rewriting, which)):
                figures |= _mean(name, changes)
        return figures

    def samples(self, rewriting: Rewriting) -> list[list[str]]:
        """Return [before, after] of the first sentences that it changes, short ones first of all."""
        changed = self.order[np.isin(self.order, changed_rows(self.sentences, rewriting))].tolist()
        changed.sort(key=lambda n: len(self.sentences.sentences[n]) > SAMPLE_CHARACTERS)  # stable
        return [self._shown(rewriting, n) for n in changed[:SAMPLES]]

    def _path(self, kind: str, name: str, content: bytes) -> Path:
        digest = hashlib.blake2b(self._settings + content, digest_size=8).hexdigest()
        return self.folder / f"{folder_name(name)[:60]}-{digest}.{kind}.json"

    def _shown(self, rewriting: Rewriting, n: int) -> list[str]:
        before = (
            self.sentences.sentences[n]
            if n in rewriting.texts
            else self.sentences.text(self.sentences.originals[n])
        )
        return [before, self.sentences.text_of(rewriting, n)]

    def _original(self, rewriting: Rewriting, n: int) -> str:
        """Return what an augmentation started from: the text, or the tokens decoded."""
        return (
            self.sentences.sentences[n]
            if n in rewriting.texts
            else self._decoded(self.sentences.originals[n])
        )

    def _plain(self, rewriting: Rewriting, n: int) -> str:
        """Return what it wrote, without [DEL] and [MASK]."""
        return rewriting.texts[n] if n in rewriting.texts else self._decoded(rewriting.rows[n])

    def _decoded(self, row: np.ndarray) -> str:
        ordinary = row[~self.sentences.vocabulary.special[row]]
        return self.sentences.tokenizer.decode(ordinary.tolist()).strip()


def every_specification() -> list[str]:
    """Return every augmentation without a model of its own, at its defaults and in each variant."""
    found = []
    for entry in CATALOGUE.values():
        if any(need.startswith("model:") for need in entry.needs):
            continue
        variants = [
            f":variant={choice}" for p in entry.parameters if p.name == "variant" for choice in p.choices
        ]
        found += [str(parse(entry.name + variant)) for variant in variants or [""]]
    return found


def annotate(texts: Sequence[str], parser: str, folder: Path) -> Sentences:
    """Return the parses of N texts, kept in `folder` by their hash: made once, a thousand at a time.

    Raises:
        UserError: the parser is not there, or has no tagger or no dependency parser.
    """
    described = describe_parser(parser)
    annotator = Annotator(described, 1 << 31, folder)
    annotations, began = {}, time.perf_counter()
    counts: Counter[str] = Counter()
    for number, start in enumerate(range(0, len(texts), PARSED_AT_ONCE)):
        part = texts[start : start + PARSED_AT_ONCE]
        ones = np.ones(len(part), dtype=np.int64)
        members = annotator.members(part, Ragged(ones.astype(np.int32), offsets_of(ones)), counts)
        annotations[number] = Annotation(members, described["language"])
        _say("parsed", min(start + PARSED_AT_ONCE, len(texts)), len(texts), began)
    return Sentences(annotations, *np.divmod(np.arange(len(texts)), PARSED_AT_ONCE))


def measure_all(
    quality: Quality, specifications: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return (figures by specification, notes on augmentations that cannot be had here).

    All sentences are written first, which takes a second for each rule; then what has no figures is measured.
    """
    written, notes, began = {}, [], time.perf_counter()
    for number, specification in enumerate(specifications, 1):
        try:
            written[specification] = quality.rewrite(specification)
        except AugmentationError as error:
            notes.append(f"without {specification}: {error}")
        _say("written", number, len(specifications), began, specification)
    missing = [name for name in written if not quality.kept(written[name]).is_file()]
    total, done, began = sum(quality.work(written[name]) for name in missing), 0.0, time.perf_counter()
    for name in missing:
        replace_durably(quality.kept(written[name]), to_json(without_nan(quality.measure(written[name]))))
        done += quality.work(written[name])
        _say("measured", done, total, began, name)
    figures = {name: json.loads(quality.kept(rewriting).read_text()) for name, rewriting in written.items()}
    return {name: row | {"samples": quality.samples(written[name])} for name, row in figures.items()}, notes


def table(figures: dict[str, dict[str, Any]], has_losses: bool) -> str:
    """Return the figures as a Markdown table, a row an augmentation."""
    heads = ["augmentation", "meaning", "changed", "cosine"]
    heads += ["loss, kept words", "loss, all words"] * has_losses + ["Jaccard"]
    lines = ["| " + " | ".join(heads) + " |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for name, row in figures.items():
        cells = [f"`{name}`".replace("|", "\\|"), _meaning(name), f"{row['rate']:.1f}%"]
        if row["changed"]:
            cells.append(_cell(row["cosine"], ".3f"))
            cells += [_cell(row.get("loss_kept"), "+.2f"), _cell(row.get("loss_all"), "+.2f")] * has_losses
            cells.append(_cell(row["jaccard"], ".2f"))
        lines.append("| " + " | ".join(cells + [""] * (len(heads) - len(cells))) + " |")
    return "\n".join(lines) + "\n"


def samples(figures: dict[str, dict[str, Any]]) -> str:
    """Return some sentences that each augmentation changes, before and after, as Markdown."""
    parts = []
    for name, row in figures.items():
        pairs = "\n\n".join(f"- {before}\n+ {after}" for before, after in row["samples"])
        parts.append(
            f"## `{name}`\n\n{_meaning(name)}; {row['rate']:.1f}% changed\n\n```diff\n{pairs}\n```\n"
        )
    return "\n".join(parts)


def _meaning(specification: str) -> str:
    """Return the meaning labels of an augmentation's steps."""
    return ", ".join(dict.fromkeys(step.entry.meaning for step in parse(specification).augmentations))


def _mean(name: str, values: np.ndarray) -> dict[str, float]:
    """Return the mean and its standard error; NaN without any value."""
    if not len(values):
        return {name: float("nan"), f"{name}_error": float("nan")}
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return {name: float(values.mean()), f"{name}_error": error}


def _cell(value: float | None, how: str) -> str:
    return "" if value is None else f"{value:{how}}"


def _say(what: str, done: float, total: float, began: float, name: str = "") -> None:
    gone = time.perf_counter() - began
    left = gone * (total / done - 1) if done else 0.0
    print(
        f"{what} {done / max(total, 1):4.0%}  {gone:5.0f} s, about {left:.0f} s left  {name}",
        file=sys.stderr,
        flush=True,
    )
