"""Find which steps of a run have read a document.

Prepared data keeps no names of documents, only the tokens of their sentences. So a document is found by its
text, split into sentences and tokenised as `clearly prepare` does it, wherever a sequence holds the tokens of
one of its sentences.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.data.shards import Chunk
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.wrapping import margin, unwrap, words_of
from pretrain.verify.replay import Replay

MASKED = "masked"
"""What the answer calls masked language modelling, beside the roles of views."""
_SHOWN = 20
_FETCHED_AT_ONCE = 64  # chunks of remote data


@dataclass(frozen=True)
class Match:
    """A sentence of the document in a sequence of the data.

    sentence: its number in the document, from 0. sequence: its number in the split. column: of the record.
    roles: what the objective makes of that column of that record.
    """

    sentence: int
    sequence: int
    column: str
    roles: tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """A step that has read a sequence. step: counted from 1, as rows of metrics are; times: in that step."""

    step: int
    epoch: int
    sequence: int
    times: int


class Phrases:
    """Sentences as tokens, to be found inside sequences.

    Args:
        tokenizer: of the data.
        sentences: clean texts.
        longest: tokens of a sentence that fit into a sequence; a longer one is looked for in pieces, as
            `clearly prepare` cuts it.
    """

    def __init__(self, tokenizer: Any, sentences: list[str], longest: int) -> None:
        self._phrases: list[tuple[int, np.ndarray, int]] = []
        for number, sentence in enumerate(sentences):
            for tokens in self._ways(tokenizer, sentence):
                for start in range(0, len(tokens), longest):
                    piece = np.array(tokens[start : start + longest], np.int32)
                    # the largest id: tokenizers number frequent tokens first, so it is a rare one
                    self._phrases.append((number, piece, int(piece.argmax())))
        self._anchors = np.unique([piece[place] for _, piece, place in self._phrases])

    @staticmethod
    def _ways(tokenizer: Any, sentence: str) -> list[list[int]]:
        """Return the tokens of a sentence where it begins a text and, if they are others, behind a word."""

        def tokens(text: str) -> list[int]:
            return tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]

        alone, before, behind = tokens(sentence), tokens("a"), tokens(f"a {sentence}")
        ways = [alone]
        if behind[: len(before)] == before and behind[len(before) :] != alone:
            ways.append(behind[len(before) :])
        return [way for way in ways if way]

    def find(self, sequences: Ragged) -> Iterator[tuple[int, int]]:
        """Yield (sentence, sequence) for every place of `sequences` that holds a sentence's tokens."""
        ids, offsets = sequences.ids, sequences.offsets
        places = np.flatnonzero(np.isin(ids, self._anchors))
        for number, piece, anchor in self._phrases:
            starts = places[ids.take(places) == piece[anchor]] - anchor
            starts = starts[(starts >= 0) & (starts + len(piece) <= len(ids))]
            for place, token in enumerate(piece.tolist()):
                if not len(starts):
                    break
                starts = starts[ids.take(starts + place) == token]
            rows = np.searchsorted(offsets, starts, side="right") - 1
            inside = starts + len(piece) <= offsets.take(rows + 1)
            for row in np.unique(rows[inside]).tolist():
                yield number, row


def find_matches(replay: Replay, phrases: Phrases) -> list[Match]:
    """Find the sentences in all sequences of the data.

    A chunk that cannot be read goes into `replay.unread`.
    """
    found = []
    for number in range(replay.reader.num_chunks):
        if number % _FETCHED_AT_ONCE == 0:
            replay.reader.fetch(range(number, min(number + _FETCHED_AT_ONCE, replay.reader.num_chunks)))
        content = replay.read(number)
        if content is None:
            continue
        width = len(content.columns)
        for sentence, row in phrases.find(content.stored):
            record, column = divmod(row, width)
            found.append(_match(replay, content, sentence, record, content.columns[column]))
    return list(dict.fromkeys(found))


def _match(replay: Replay, content: Chunk, sentence: int, record: int, column: str) -> Match:
    """Describe a sentence in a column of a record; a view of a column that is empty is made of the text."""
    text, filled = content.columns[0], content.stored.lengths.reshape(-1, len(content.columns))[record] > 0
    has = {name: bool(there) for name, there in zip(content.columns, filled)}
    roles = [MASKED] if column == text and replay.config.objective.masked_copies else []
    roles += [view.role for view in replay.views if (view.column if has.get(view.column) else text) == column]
    return Match(sentence, int(content.sequence_ids[record]), column, tuple(roles))


def find_readings(replay: Replay, sequences: set[int], first: int, stop: int) -> list[Reading]:
    """Find the steps from `first` to `stop` - 1, counted from 0, that have read one of the sequences."""
    wanted = np.zeros(replay.reader.num_sequences, dtype=bool)
    wanted[list(sequences)] = True
    found = []
    for steps, chunk, index in replay.draws(first, stop):
        drawn = replay.first_of_chunk.take(chunk) + index
        rows, places = np.nonzero(wanted.take(drawn))
        counts = Counter(zip(rows.tolist(), drawn[rows, places].tolist()))
        epochs = np.asarray(replay.lanes.epoch_of(steps))
        found += [
            Reading(int(steps[row]) + 1, int(epochs[row]), sequence, times)
            for (row, sequence), times in sorted(counts.items())
        ]
    return found


def answer(run: Path, replay: Replay, document: str, first: int, last: int, out: Path | None) -> None:
    """Print which steps from `first` to `last` have read a document; write each into `out`.

    Args:
        document: a text, a file of one, or id:N,N.

    Raises:
        UserError: there is no such sequence, or the document has no sentence.
    """
    sentences, matches = _look_up(replay, document)
    readings = find_readings(replay, {match.sequence for match in matches}, first - 1, last)
    times = Counter[int]()
    for reading in readings:
        times[reading.sequence] += reading.times
    there = {match.sentence for match in matches}
    span = f"steps {first} to {last} of {run}"
    if not document.startswith("id:"):
        print(f"{len(there)} of {len(sentences)} sentences are in the data of {run}")
        for number in [number for number in range(len(sentences)) if number not in there][:_SHOWN]:
            print(f"  not found: {sentences[number][:100]}")
    for match in matches[:_SHOWN]:
        steps = [str(reading.step) for reading in readings if reading.sequence == match.sequence]
        at = f": {', '.join(steps[:8])}{' ...' if len(steps) > 8 else ''}" if steps else ""
        roles = f" as {', '.join(match.roles)}" if match.roles else ", in no view"
        read = f"read {_count(times[match.sequence], 'time')}{roles}, at {_count(len(steps), 'step')}{at}"
        text = sentences[match.sentence][:60]
        print(f"  sequence {match.sequence} ({match.column}): {read}: {text}")
    if len(matches) > _SHOWN:
        print(f"  and {len(matches) - _SHOWN} more; --out FILE.tsv lists all")
    for reason in list(replay.unread.values())[:5]:
        print(f"  cannot be read now, so not looked through: {reason}")
    steps_of_all = sorted({reading.step for reading in readings})
    if steps_of_all:
        print(
            f"{span}: read at {len(steps_of_all)} of them, {_count(times.total(), 'time')} in all, first at "
            f"step {steps_of_all[0]}, last at step {steps_of_all[-1]}"
        )
    else:
        print(f"{span}: not read" + ("" if matches else ", and not in the data"))
    if out is not None:
        _write(out, sentences, matches, readings)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _look_up(replay: Replay, document: str) -> tuple[list[str], list[Match]]:
    """Return the document's sentences, and where in the data they are."""
    if document.startswith("id:"):
        numbers = document.removeprefix("id:").split(",")
        total = replay.reader.num_sequences
        if not all(number.strip().isdecimal() and int(number) < total for number in numbers):
            raise UserError(f"--seen {document}: numbers of sequences are 0 to {total - 1}, as id:12,13")
        roles = tuple(view.role for view in replay.views)
        if replay.config.objective.masked_copies:
            roles = (MASKED, *roles)
        matches = [Match(place, int(number), "record", roles) for place, number in enumerate(numbers)]
        return [f"id:{number}" for number in numbers], matches
    text = document
    try:
        if Path(document).is_file():
            text = Path(document).read_text("utf-8")
    except (OSError, ValueError) as error:  # a long text is no path
        if not isinstance(error, OSError):
            raise UserError(f"--seen {document[:80]}: not a file of UTF-8 text ({error})") from None
    sources = [s for part in replay.reader.parts for s in part.manifest.get("config", {}).get("sources", [])]
    ways = [text]  # and as lines were joined
    if width := margin(text):
        ways.append(unwrap(text, width, words_of(text)))
    if any(source.get("unwrap") is True for source in sources):
        ways.append(unwrap(text, 0))
    sentences = list(dict.fromkeys(sentence for way in ways for sentence in sentences_of(way)))
    tokenizer = load_tokenizer(replay.reader.tokenizer_path)
    phrases = Phrases(tokenizer, sentences, replay.reader.max_length - 2)
    if not sentences:
        raise UserError("--seen: the document has no sentence")
    return sentences, find_matches(replay, phrases)


def _write(out: Path, sentences: list[str], matches: list[Match], readings: list[Reading]) -> None:
    """Write a row for every sentence, sequence and step."""
    steps: dict[int, list[Reading]] = {}
    for reading in readings:
        steps.setdefault(reading.sequence, []).append(reading)
    rows = [
        asdict(match) | asdict(reading) | {"roles": list(match.roles), "text": sentences[match.sentence]}
        for match in matches
        for reading in steps.get(match.sequence, [])
    ]
    make_folder(out.parent)
    if out.suffix == ".json":
        replace_durably(out, (json.dumps(rows, ensure_ascii=False, indent=1) + "\n").encode())
        return
    names = ["sentence", "sequence", "column", "roles", "step", "epoch", "times", "text"]
    lines = ["\t".join(names)]
    for row in rows:
        row["roles"] = ",".join(row["roles"])
        lines.append("\t".join(str(row[name]) for name in names))
    replace_durably(out, ("\n".join(lines) + "\n").encode())
