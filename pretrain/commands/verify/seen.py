"""Find which steps of a run have read a document.

Prepared data keeps no names of documents, only the tokens of their sentences. So a document is found by its
text, split into sentences and tokenised as `clearly prepare` does it, wherever a sequence holds the tokens of
one of its sentences.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from augment.core.ragged import Ragged
from pretrain.commands.verify.replay import Replay
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.wrapping import margin, unwrap, words_of

MASKED = "masked"
"""What the answer calls masked language modelling, beside the roles of views."""
_SHOWN = 20


class Match(NamedTuple):
    """A sentence of the document in a sequence of the data.

    sentence: its number in the document, from 0. sequence: its number in the split. column: of the record.
    roles: what the objective makes of that column of that record.
    """

    sentence: int
    sequence: int
    column: str
    roles: tuple[str, ...]


class Reading(NamedTuple):
    """A step, counted from 1, that has read a sequence some times."""

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
    matches = []
    for number in range(replay.reader.num_chunks):
        content = replay.read(number)
        if content is None:
            continue
        filled = content.stored.lengths.reshape(-1, len(content.columns)) > 0
        for sentence, row in phrases.find(content.stored):
            record, place = divmod(row, len(content.columns))
            roles = roles_of(replay, content.columns, filled[record], content.columns[place])
            sequence = int(content.sequence_ids[record])
            matches.append(Match(sentence, sequence, content.columns[place], roles))
    return list(dict.fromkeys(matches))


def roles_of(replay: Replay, columns: tuple[str, ...], filled: np.ndarray, column: str) -> tuple[str, ...]:
    """Return what is made of a column of a record; a view of a column that is empty is made of the text."""
    there = {name for name, has in zip(columns, filled) if has}
    roles = [MASKED] if column == columns[0] and replay.config.objective.masked_copies else []
    sources = {view.role: view.column if view.column in there else columns[0] for view in replay.views}
    return (*roles, *(role for role, source in sources.items() if source == column))


def find_readings(replay: Replay, sequences: set[int], first: int, stop: int) -> list[Reading]:
    """Find the steps from `first` to `stop` - 1, counted from 0, that have read one of the sequences."""
    wanted = np.zeros(replay.reader.num_sequences, dtype=bool)
    wanted[list(sequences)] = True
    readings = []
    for steps, chunk, index in replay.draws(first, stop):
        drawn = replay.first_of_chunk.take(chunk) + index
        rows, places = np.nonzero(wanted.take(drawn))
        counts = Counter(zip(rows.tolist(), drawn[rows, places].tolist()))
        epochs = replay.lanes.epochs_of(steps)
        readings += [
            Reading(int(steps[row]) + 1, int(epochs[row]), sequence, times)
            for (row, sequence), times in sorted(counts.items())
        ]
    return readings


def answer(run: Path, replay: Replay, document: str, first: int, last: int, out: Path | None) -> None:
    """Print which steps from `first` to `last` have read a document; write each into `out`.

    Args:
        document: a text, a file of one, or id:N,N.

    Raises:
        UserError: there is no such sequence, or the document has no sentence.
    """
    sentences, matches = _look_up(replay, document)
    by_sequence: dict[int, list[Reading]] = {match.sequence: [] for match in matches}
    for reading in find_readings(replay, set(by_sequence), first - 1, last):
        by_sequence[reading.sequence].append(reading)
    if not document.startswith("id:"):
        matched = {match.sentence for match in matches}
        print(f"{len(matched)} of {len(sentences)} sentences are in the data of {run}")
        for number in [number for number in range(len(sentences)) if number not in matched][:_SHOWN]:
            print(f"  not found: {sentences[number][:100]}")
    for match in matches[:_SHOWN]:
        own = by_sequence[match.sequence]
        steps = ", ".join(str(reading.step) for reading in own[:8]) + (" ..." if len(own) > 8 else "")
        print(
            f"  sequence {match.sequence} ({match.column}; {', '.join(match.roles) or 'in no view'}): read "
            f"{sum(reading.times for reading in own)} times, at steps {steps or 'none'}: "
            f"{sentences[match.sentence][:60]}"
        )
    if len(matches) > _SHOWN:
        print(f"  and {len(matches) - _SHOWN} more; --out FILE.tsv lists all")
    for reason in list(replay.unread.values())[:5]:
        print(f"  cannot be read now, so not looked through: {reason}")
    readings = [reading for of_sequence in by_sequence.values() for reading in of_sequence]
    steps_of_all = sorted({reading.step for reading in readings})
    result = "not read" if matches else "not read, and not in the data"
    if steps_of_all:
        times = sum(reading.times for reading in readings)
        result = f"read at {len(steps_of_all)} of them, {times} times in all"
        result += f", first at step {steps_of_all[0]}, last at step {steps_of_all[-1]}"
    print(f"steps {first} to {last} of {run}: {result}")
    if out is not None:
        lines = ["sentence\tsequence\tcolumn\troles\tstep\tepoch\ttimes\ttext"]
        for match in matches:
            cells = match.sentence, match.sequence, match.column, ",".join(match.roles)
            for reading in by_sequence[match.sequence]:
                of_step = reading.step, reading.epoch, reading.times, sentences[match.sentence]
                lines.append("\t".join(map(str, (*cells, *of_step))))
        make_folder(out.parent)
        replace_durably(out, ("\n".join(lines) + "\n").encode())


def _look_up(replay: Replay, document: str) -> tuple[list[str], list[Match]]:
    """Return the document's sentences, and where in the data they are."""
    if document.startswith("id:"):
        numbers = document.removeprefix("id:").split(",")
        total = replay.reader.num_sequences
        if not all(number.strip().isdecimal() and int(number) < total for number in numbers):
            raise UserError(f"--seen {document}: numbers of sequences are 0 to {total - 1}, as id:12,13")
        masked = (MASKED,) if replay.config.objective.masked_copies else ()
        roles = (*masked, *(view.role for view in replay.views))
        matches = [Match(place, int(number), "record", roles) for place, number in enumerate(numbers)]
        return [f"id:{number}" for number in numbers], matches
    text = document
    try:
        if Path(document).is_file():
            text = Path(document).read_text("utf-8")
    except OSError:  # a long text is no path
        pass
    except ValueError as error:
        raise UserError(f"--seen {document[:80]}: not a file of UTF-8 text ({error})") from None
    sources = [s for part in replay.reader.parts for s in part.manifest.get("config", {}).get("sources", [])]
    texts = [text]  # and as lines were joined
    if width := margin(text):
        texts.append(unwrap(text, width, words_of(text)))
    if any(source.get("unwrap") is True for source in sources):
        texts.append(unwrap(text, 0))
    sentences = list(dict.fromkeys(sentence for text in texts for sentence in sentences_of(text)))
    if not sentences:
        raise UserError("--seen: the document has no sentence")
    tokenizer = load_tokenizer(replay.reader.tokenizer_path)
    return sentences, find_matches(replay, Phrases(tokenizer, sentences, replay.reader.max_length - 2))
