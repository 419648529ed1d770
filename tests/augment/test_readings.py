"""What readers said of the augmentations' outputs: it is of the rules as they are, and keeps what is
promised."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from readings import (
    BLOCK,
    CHINESE,
    DIGESTS,
    FEWER,
    GROUPS,
    ON_RECORD,
    PER_RULE,
    TREEBANKS,
    apply,
    digests,
    load,
    most_wrong,
    sentences_on_record,
    sentences_to_read,
    shares_changed,
    table,
    tables,
)
from real_data import needs_data

from augment.spec.catalogue import CATALOGUE

DOCS = Path(__file__).resolve().parents[2] / "docs" / "augmentations.md"


@pytest.mark.parametrize("group", GROUPS)
def test_fifty_outputs_of_every_rule_have_been_read(group):
    readings = load(group)
    assert {reading.verdict for reading in readings} <= {"right", "wrong"}
    assert all(reading.why for reading in readings if reading.verdict == "wrong")
    counts = Counter(reading.rule for reading in readings)
    assert {rule: counts[rule] for rule in GROUPS[group]} == {
        rule: FEWER.get(rule, PER_RULE) for rule in GROUPS[group]
    }
    assert len({(reading.rule, reading.sentence_id) for reading in readings}) == len(readings)


@pytest.mark.parametrize("group", GROUPS)
def test_no_rule_is_wrong_more_often_than_promised(group):
    for rule in GROUPS[group]:
        verdicts = [reading.verdict for reading in load(group) if reading.rule == rule]
        assert verdicts.count("wrong") <= most_wrong(group, rule), rule


def test_the_documentation_has_the_shares():
    assert table() in DOCS.read_text()


@needs_data(*TREEBANKS)
def test_the_documentation_has_the_shares_that_wordnets_rules_change(whole_wordnet):
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in DOCS.read_text().splitlines()]
    documented = {row[0].strip("`"): row[3:] for row in rows if len(row) == 5 and row[1].endswith("%")}
    assert documented == shares_changed()


@needs_data(*TREEBANKS, *CHINESE)
@pytest.mark.parametrize("group", GROUPS)
def test_what_was_read_is_what_the_rules_write(group, request):
    """A changed rule shows here: `python tests/augment/readings.py update`, then read what is unread."""
    if any("wordnet" in entry.needs for entry in CATALOGUE.values() if entry.name in GROUPS[group]):
        request.getfixturevalue("whole_wordnet")
    parts, changed = sentences_to_read(group), []
    sentences = {name: sentence for part in parts for name, sentence in part.items()}
    readings = load(group)
    for rule in GROUPS[group]:
        mine = [reading for reading in readings if reading.rule == rule]
        outputs = apply(rule, {reading.sentence_id: sentences[reading.sentence_id] for reading in mine})
        changed += [
            (rule, reading.sentence, outputs.get(reading.sentence_id))
            for reading in mine
            if outputs.get(reading.sentence_id) != reading.output
        ]
    assert not changed, f"{len(changed)} outputs are no longer those that were read, such as {changed[:3]}"


NEEDED = {source: needs_data(*TREEBANKS, *CHINESE) if "tree" in source else () for source in ON_RECORD}


@pytest.mark.parametrize("source", [pytest.param(source, marks=NEEDED[source]) for source in ON_RECORD])
def test_every_output_is_as_recorded(source):
    """`python tests/augment/readings.py record` after a rule changed on purpose."""
    sentences = sentences_on_record(source)
    recorded, found = json.loads(DIGESTS.read_text())[source], digests(sentences, source[-2:])
    assert found.keys() == recorded.keys()
    texts = [sentence.text for sentence in sentences.values()]
    for spec in found:
        for block in range(-(-len(texts) // BLOCK)):
            digits, first = slice(4 * block, 4 * block + 4), block * BLOCK
            assert found[spec][digits] == recorded[spec][digits], (spec, source, texts[first : first + BLOCK])


def test_the_words_and_numbers_that_the_rules_go_by_are_as_recorded():
    """`python tests/augment/readings.py record` after one changed on purpose."""
    recorded, found = set(json.loads(DIGESTS.read_text())["tables"]), tables()
    assert not [name for digest, name in found.items() if digest not in recorded]
    assert len(recorded) == len(found) > 150
