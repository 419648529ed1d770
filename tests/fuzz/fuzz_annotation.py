"""Fuzz target: the decoder of texts with their parses, `pretrain.data.annotation`."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_target import Target, refused, to_json
from mutations import NUMBERS, mutated_bytes, mutated_tree
from random_parses import random_parse

from augment.text.parsed import ParsedSentence, without_parse
from pretrain.data.annotation import Annotation, pack

_TYPES = {"u16": "<u2", "u32": "<u4", "u8": "u1"}


class Annotations(Target):
    """A case is {member's name: content, byte n as character n}."""

    name = "annotation"
    about = "members of an annotated chunk; what is accepted decodes to parses, and packs to the same"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        some = [random_parse(number, "zh" if number % 9 == 0 else "en") for number in range(300)]
        self._sentences = [
            *some,
            without_parse("a \U0001f600 b"),
            without_parse(""),
            without_parse("北京 ok"),
        ]

    def generate(self, chance: random.Random) -> bytes:
        sentences = chance.sample(self._sentences, chance.choice((0, 1, 2, 3, 5)))
        members = pack(sentences)
        for _ in range(chance.choice((0, 1, 1, 1, 2))):
            name = chance.choice(list(members))
            members[name] = self._damaged(chance, name, members[name])
        if chance.random() < 0.03:
            del members[chance.choice(list(members))]
        return to_json({name: data.decode("latin-1") for name, data in members.items()})

    def _damaged(self, chance: random.Random, name: str, data: bytes) -> bytes:
        if name == "tables.json" and data[:1] == b"{" and data[-1:] == b"}" and chance.random() < 0.8:
            try:
                return to_json(mutated_tree(chance, json.loads(data)))
            except ValueError:  # damaged before
                return data
        if name in ("texts.utf8", "tables.json") or chance.random() < 0.2:
            return mutated_bytes(chance, data)
        kind = _TYPES[name.rpartition(".")[2]]
        if len(data) % np.dtype(kind).itemsize:
            return data
        numbers = np.frombuffer(data, kind).astype(np.int64)
        if len(numbers):
            place, draw = chance.randrange(len(numbers)), chance.random()
            if draw < 0.5:
                numbers[place] += chance.choice((-1, 1, 2, -2))
            elif draw < 0.8:
                numbers[place] = chance.randrange(20)
            else:
                numbers[place] = chance.choice(NUMBERS) % (1 << 8 * np.dtype(kind).itemsize)
        if chance.random() < 0.1:
            numbers = np.append(numbers, chance.randrange(9)) if chance.random() < 0.5 else numbers[:-1]
        return numbers.astype(kind).tobytes()

    def check(self, case: bytes) -> str:
        members = {name: text.encode("latin-1") for name, text in json.loads(case).items()}
        try:
            annotation = Annotation(members, "en")
        except (KeyError, ValueError) as error:
            return "refused" if isinstance(error, KeyError) else refused(error)
        sentences = [_checked(annotation[row]) for row in range(len(annotation))]
        again: Any = Annotation(pack(sentences), "en")
        assert sentences == [again[row] for row in range(len(again))], "other sentences once they are packed"
        return "accepted"


def _checked(sentence: ParsedSentence) -> ParsedSentence:
    """Check what rules rely on: words lie in the text, in order; heads lead to a root; texts are Unicode."""
    sentence.text.encode()
    position = 0
    for start, end in zip(sentence.starts, sentence.ends, strict=True):
        assert position <= start < end <= len(sentence.text)
        position = end
    size = len(sentence)
    for texts in (sentence.tags, sentence.pos, sentence.lemmas, sentence.deps):
        assert len(texts) == size
        "".join(texts).encode()
    for word in range(size):
        steps = 0
        while sentence.heads[word] != word:
            word, steps = sentence.heads[word], steps + 1
            assert steps <= size, "a cycle"
    return sentence
