"""Give a tokenizer the frequent words of a text as tokens of their own.

A word that the tokenizer takes apart costs a token for each piece, and its meaning is spread over them. New
words come behind all tokens that there are, whose ids stay; text in which no new token occurs has the same
tokens as before. A new token's embedding begins as the mean of those of its pieces
(`pretrain.model.new_rows`).

How a word becomes a token depends on the tokenizer:

    WordPiece   an entry: the longest entry that fits is taken
    BPE         merges behind all others, which join the word's pieces from the left. What they make on the
                way are tokens too: "Ġosteo" of "Ġosteo porosis"
    Unigram     an entry slightly more probable than its pieces together
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from pretrain.common.errors import UserError
from pretrain.data.tokenizer import encode, with_backend

SEEN = 10
"""How often a text must have a word: an embedding that is rarely trained stays the mean that it began as."""
_WORD = re.compile(
    r"(?<!\S)[^\W\d_]{2,}"
)  # behind a blank: elsewhere a piece has no mark of a word's beginning
_BEFORE = "a"  # a word that stands before, so that the next has its mark
_MORE_PROBABLE = 1e-3  # nats

Pieces = tuple[str, ...]


def add_words(tokenizer: Any, texts: Iterable[str], most: int) -> tuple[Any, list[str]]:
    """Return a transformers fast tokenizer with new tokens for the words that save most, and those tokens.

    Words are ranked by the tokens that they save: their number in the texts times the pieces less one.

    Args:
        tokenizer: it cleans (`pretrain.data.tokenizer.cleaning_tokenizer`).
        texts: clean ones.
        most: how many words; with BPE there are more tokens than words.

    Raises:
        UserError: the tokenizer is none of WordPiece, BPE and Unigram.
    """
    from tokenizers import Tokenizer

    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    model = settings["model"]
    if model["type"] not in _ADDING:
        raise UserError(
            f"new words cannot be added to a tokenizer of type {model['type']}; types that can: "
            f"{', '.join(_ADDING)}"
        )
    counts = _taken_apart(tokenizer.backend_tokenizer, texts)
    ranked = sorted(counts, key=lambda pieces: (-counts[pieces] * (len(pieces) - 1), pieces))
    _enter_added_tokens(model, settings["added_tokens"])
    added = _ADDING[model["type"]](model, ranked, most)
    extended = with_backend(tokenizer, Tokenizer.from_str(json.dumps(settings, ensure_ascii=False)))
    return extended, added


def joined(pieces: Sequence[str]) -> str:
    """Return the token that a word's pieces become.

    >>> joined(["Ġosteo", "por", "osis"]), joined(["osteo", "##por", "##osis"])
    ('Ġosteoporosis', 'osteoporosis')
    """
    return pieces[0] + "".join(piece.removeprefix("##") for piece in pieces[1:])


def _taken_apart(backend: Any, texts: Iterable[str]) -> Counter[Pieces]:
    """Count the frequent words of texts that have several pieces, by their pieces.

    Left out are words with an unknown piece or a byte, and such as the tokenizer splits before it looks into
    its vocabulary (Chinese ones in BERT's).
    """
    words: Counter[str] = Counter()
    for text in texts:
        words.update(_WORD.findall(text))
    listed = sorted(words)
    before = backend.encode(_BEFORE, add_special_tokens=False).tokens
    encoded = encode(backend, [f"{_BEFORE} {word}" for word in listed])
    counts: Counter[Pieces] = Counter()
    for number, word in enumerate(listed):
        tokens = list(map(backend.id_to_token, encoded[number].tolist()))
        pieces = tuple(tokens[len(before) :])
        if len(pieces) < 2 or tokens[: len(before)] != before:
            continue
        if tuple(token.value for token in backend.model.tokenize(joined(pieces))) == pieces:
            counts[pieces] += words[word]
    return Counter({pieces: count for pieces, count in counts.items() if count >= SEEN})


def _enter_added_tokens(model: dict[str, Any], added: list[dict[str, Any]]) -> None:
    """Give [DEL] and the like their ids in the vocabulary too; otherwise ids behind them would be taken."""
    vocabulary = model["vocab"]
    for token in sorted(added, key=lambda token: token["id"]):
        if isinstance(vocabulary, dict):
            vocabulary.setdefault(token["content"], token["id"])
        elif token["id"] == len(vocabulary):
            vocabulary.append([token["content"], 0.0])


def _add_entries(model: dict[str, Any], ranked: list[Pieces], most: int) -> list[str]:
    """Add words to WordPiece's vocabulary."""
    vocabulary = model["vocab"]
    added = [joined(pieces) for pieces in ranked[:most]]
    for number, word in enumerate(added, max(vocabulary.values()) + 1):
        vocabulary[word] = number
    return added


def _add_scores(model: dict[str, Any], ranked: list[Pieces], most: int) -> list[str]:
    """Add words to Unigram's list of tokens and logarithms of probabilities."""
    scores = dict(model["vocab"])
    for pieces in ranked[:most]:
        model["vocab"].append([joined(pieces), sum(scores[piece] for piece in pieces) + _MORE_PROBABLE])
    return [joined(pieces) for pieces in ranked[:most]]


def _add_merges(model: dict[str, Any], ranked: list[Pieces], most: int) -> list[str]:
    """Add merges to BPE's, which apply after all others, until so many words are whole.

    A word is left out where a token on the way is one already, to which another way leads: older merges could
    go on from there.
    """
    vocabulary = model["vocab"]
    old = frozenset(vocabulary)
    ranks: dict[tuple[str, str], int] = {}
    added: dict[str, None] = {}
    words = 0
    for pieces in ranked:
        if words == most:
            break
        if not old.isdisjoint([*accumulate(pieces)][1:]):
            continue
        words += 1
        while len(pieces := merged(pieces, ranks)) > 1:
            ranks[pieces[0], pieces[1]] = len(ranks)
            added[pieces[0] + pieces[1]] = None
    for number, token in enumerate(added, max(vocabulary.values()) + 1):
        vocabulary[token] = number
    texts = bool(model["merges"]) and isinstance(model["merges"][0], str)  # the form of older files
    model["merges"] += [" ".join(pair) if texts else list(pair) for pair in ranks]
    return list(added)


def merged(pieces: Pieces, ranks: dict[tuple[str, str], int]) -> Pieces:
    """Return pieces after merges of neighbours, the lowest rank first, as BPE does it.

    >>> merged(("a", "b", "c", "d"), {("c", "d"): 0, ("b", "cd"): 1, ("a", "b"): 2})
    ('a', 'bcd')
    """
    while found := [(ranks[pair], place) for place, pair in enumerate(pairwise(pieces)) if pair in ranks]:
        _, place = min(found)
        pieces = (*pieces[:place], pieces[place] + pieces[place + 1], *pieces[place + 2 :])
    return pieces


_ADDING = {"WordPiece": _add_entries, "BPE": _add_merges, "Unigram": _add_scores}
