"""Fuzz target: every rule of text that needs no model, over any parse and any Unicode."""

import json
import random
from pathlib import Path
from typing import Any

from fuzz_target import Target, to_json
from mutations import ODD_TEXTS, odd_text
from random_parses import CHINESE_RELATIONS, CHINESE_WORDS, RELATIONS, WORDS, random_parse

from augment.core.errors import AugmentationError
from augment.spec.build import build_texts
from augment.spec.catalogue import CATALOGUE
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence, without_parse

_SDA = ("pi", "mv", "dn", "neg")
_ENGLISH = [entry.name for entry in CATALOGUE.values() if entry.kind == "text" and entry.load is None]
_ENGLISH += [f"tense:to={to}" for to in ("past", "present", "future")]
_CHINESE = list(_SDA)
_MOST_GROWTH = 60  # characters out for one in; a number of three digits becomes 30 letters
_UNICODE = [text for text in ODD_TEXTS if text and not any(0xD800 <= ord(c) < 0xE000 for c in text)]
_SPACES = (" ", "\n", "\t", "\xa0", "\u3000", "  ", "\r\n", "\x85", "\u2028")


class Rules(Target):
    """A case is JSON: a rule, the key of its draws, and the fields of a sentence."""

    name = "rules"
    about = "all rules of text without a model; a new text or none, the same again, with no half of a pair"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._steps: dict[str, Any] = {}
        for spec in (*_ENGLISH, *_CHINESE):
            try:
                ((step,),) = build_texts(spec).stages
            except AugmentationError:  # lacks WordNet, or a list of words
                continue
            self._steps[spec] = step.function
        self._rules = {
            "en": [name for name in _ENGLISH if name in self._steps],
            "zh": [name for name in _CHINESE if name in self._steps],
        }

    def generate(self, chance: random.Random) -> bytes:
        language = "zh" if chance.random() < 0.15 else "en"
        sentence = random_parse(chance.randrange(1 << 30), language)
        rule, key = chance.choice(self._rules[language]), chance.randrange(1 << 32)
        if chance.random() < 0.1:
            pieces = (
                chance.choice((odd_text(chance), *_spread(sentence.words)))
                for _ in range(chance.randrange(12))
            )
            sentence = without_parse(_unicode(chance.choice(("", " ")).join(pieces)), language)
        fields = _fields(sentence)
        if len(sentence) and chance.random() < 0.8:
            self._damage(chance, fields)
        return to_json([rule, key, language, fields])

    def _damage(self, chance: random.Random, fields: dict[str, Any]) -> None:
        """Change words, spaces between them, tags, relations and heads."""
        count, english = len(fields["heads"]), fields["language"] == "en"
        for _ in range(chance.choice((1, 1, 2, 4))):
            i, kind = chance.randrange(count), chance.randrange(8)
            if kind <= 1:
                word = _unicode(odd_text(chance)) or "\u200b"
                _replace_word(fields, i, word)
            elif kind == 2:
                _replace_word(fields, i, chance.choice(_SPACES))
            elif kind == 3:
                fields["tags"][i] = chance.choice((*(WORDS if english else CHINESE_WORDS), "_SP", "", "XX"))
            elif kind == 4:
                labels = RELATIONS if english else CHINESE_RELATIONS
                fields["deps"][i] = chance.choice((*labels, "root", "ROOT", "", "dep", "nsubj:pass:x"))
            elif kind == 5:
                fields["heads"][i] = chance.randrange(count)
            elif kind == 6:
                fields["heads"] = [chance.randrange(count) for _ in range(count)]
            else:
                fields["lemmas"][i] = chance.choice(("", _unicode(odd_text(chance)), "be", "have", "not"))

    def check(self, case: bytes) -> str:
        rule, key, language, fields = json.loads(case)
        sentence = ParsedSentence(
            fields["text"],
            *(tuple(fields[name]) for name in ("starts", "ends", "tags", "pos", "lemmas", "heads", "deps")),
            language,
        )
        step = self._steps.get(rule)
        if step is None or not _is_parse(sentence):
            return "not tried"  # lacks what the rule needs, or was cut to no parse while it was shortened
        new = step(sentence, Draws(key))
        assert new is None or isinstance(new, str)
        assert new != sentence.text, "the text itself"
        if new is None:
            return "left out"
        new.encode()
        assert len(new) <= _MOST_GROWTH * len(sentence.text) + 200, (
            f"{len(new)} characters of {len(sentence.text)}"
        )
        return "changed"


def _fields(sentence: ParsedSentence) -> dict[str, Any]:
    lists = ("starts", "ends", "tags", "pos", "lemmas", "heads", "deps")
    return {"text": sentence.text, "language": sentence.language} | {
        name: list(getattr(sentence, name)) for name in lists
    }


def _replace_word(fields: dict[str, Any], i: int, word: str) -> None:
    start, end = fields["starts"][i], fields["ends"][i]
    fields["text"] = fields["text"][:start] + word + fields["text"][end:]
    longer = len(word) - (end - start)
    fields["ends"][i] += longer
    for j in range(len(fields["starts"])):
        if fields["starts"][j] >= end and j != i:
            fields["starts"][j] += longer
            fields["ends"][j] += longer


def _is_parse(sentence: ParsedSentence) -> bool:
    """Return whether words lie in the text, in order, and each depends on one; circles are allowed."""
    edges = [edge for word in zip(sentence.starts, sentence.ends) for edge in word]
    columns = (sentence.starts, sentence.ends, sentence.tags, sentence.pos, sentence.lemmas, sentence.deps)
    return (
        all(len(column) == len(sentence.heads) for column in columns)
        and [0, *edges, len(sentence.text)] == sorted([0, *edges, len(sentence.text)])
        and all(start < end for start, end in zip(sentence.starts, sentence.ends))
        and all(0 <= head < len(sentence.heads) for head in sentence.heads)
    )


def _unicode(text: str) -> str:
    return "".join(c for c in text if not 0xD800 <= ord(c) < 0xE000)


def _spread(words: list[str]) -> tuple[str, ...]:
    return (*words, *words, *_UNICODE)
