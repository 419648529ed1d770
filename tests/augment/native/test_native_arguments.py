"""Wrong arguments make compiled code raise an error, and never end the process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from native_sentences import METHODS

ROOT = Path(__file__).parents[3]
WRONG = [
    "native.Draws()", "native.Draws(None)", "native.Draws('x')", "native.Draws([1])", "native.Draws(1, 2)",
    "native.Draws(float('nan'))", "draws.bits(1)", "draws.uniform(1)", "native.Draws.bits(5)",
    "draws.below()", "draws.below('3')", "draws.below(2.5)", "draws.below(None)",
    "draws.chance()", "draws.chance('x')", "draws.chance(None)",
    "draws.choice()", "draws.choice(5)", "draws.choice(None)", "draws.choice({1})", "draws.choice({1: 2})",
    "draws.sample([1])", "draws.sample(5, 1)", "draws.sample(None, 1)", "draws.sample([1], 'x')",
    "draws.sample([1], 1.5)",
    "native.Draws.sample([1], 1)",
    "native.Pieces()", "native.Pieces('x', 0, 1, 5, 9)", "native.Pieces(True, None, 1, 5, 9)",
    "native.Pieces(True, 0, 1, 2.5, 9)", "native.Pieces(True, 0, 1, 5, 2**70)",
    "pieces.rows()", "pieces.rows(('a',))", "pieces.rows(['a'], [])",
    "pieces.rows([5])", "pieces.rows([None])", "pieces.rows([b'a'])",
    "pieces.rows(['a\\ud800'])", "pieces.rows('a')",
    "pieces.learn()", "pieces.learn(True, ['a'])", "pieces.learn(True, ['a'], [])", "pieces.learn(True, "
                                                                                    "[], [None])",
    "pieces.learn(True, ('a',), (None,))", "pieces.learn(True, ['a'], ['b'])", "pieces.learn(True, "
                                                                               "['a'], [5])",
    "pieces.learn(True, [1], [None])", "pieces.learn(False, [None], [b'1234'])", "native.Pieces.learn(5, "
                                                                                 "True, [], [])",
    *(f"sentence.{name}({value})" for name in METHODS for value in ("", "0, 1")),
    *(f"sentence.{name}({value})" for name in METHODS if name != "verb" for value in ("'0'", "0.0", "None")),
    "sentence.with_relation()", "sentence.with_relation(None)", "sentence.with_relation(5)",
    "sentence.with_relation(frozenset(), 1)",
    *(f"ParsedSentence.{name}({value}, 0)" for name in METHODS for value in ("5", "object()")),
    "ParsedSentence.words.__get__(5)", "ParsedSentence.with_relation('x', frozenset())",
    "native.Columns()", "native.Columns(*[*stored.values()][:9])", "native.Columns(*stored.values(), 1)",
    "columns_of(texts='x')", "columns_of(texts=None)", "columns_of(columns=values[:, ::2])",
    "columns_of(tags=[])", "columns_of(lemmas=None)", "columns_of(language=None)",
    "columns_of(bounds=longs())", "columns_of(text_ends=longs(0))",
    "columns_of(bounds=longs(0, 3)).sentence(0)", "columns_of(bounds=longs(-1, 1)).sentence(0)",
    "columns_of(bounds=longs(1, 0)).sentence(0)", "columns_of(text_ends=longs(0, 4)).sentence(0)",
    "columns_of(text_ends=longs(-1, 2)).sentence(0)", "columns_of(text_ends=longs(2, 1)).sentence(0)",
    "columns_of(texts=bytes([255, 255, 255])).sentence(0)", "columns_of(tags=()).sentence(0)",
    "columns_of(relations=()).sentence(0)", "columns_of(columns=values + 1, lemmas=()).sentence(0)",
    "columns.sentence()", "columns.sentence('0')", "columns.sentence(0.0)", "columns.sentence(1)",
    "columns.sentence(-1)",
    "columns.sentence(2**70)", "native.Columns.sentence(5, 0)",
    "pieces.spell_pairs()", "pieces.spell_pairs({}, [], False, '', [], 'x')",
    "pieces.spell_pairs({'a': 0}, [], False, '', [], 9)",
    "pieces.spell_pairs({b'a': 'x'}, [], False, '', [], 9)", "pieces.spell_pairs({}, [5], False, '', [], 9)",
    "pieces.spell_pairs({}, [(1, 2)], False, '', [], 9)", "pieces.spell_pairs({}, [('a', 'b', 'c')], False, "
                                                          "'', [], 9)",
    "pieces.spell_pairs({}, [], False, b'', [], 9)", "pieces.spell_pairs({}, [], False, '', [5], 9)",
    "pieces.spell_longest()", "pieces.spell_longest({}, '##', 'x', 9, True, [], 9)",
    "pieces.spell_longest({}, 5, 0, 9, True, [], 9)",
    "pieces.spell_longest({}, '##', 0, 9, True, [None], 9)",
    "native.look_alike()", "native.look_alike('a', {}, 1, None, [])", "native.look_alike('a', {'a': 5}, 1, "
                                                                      "draws, [])",
    "native.look_alike('a', {}, 1, draws, [5])", "native.look_alike(b'a', {}, 1, draws, [])",
    "native.look_alike('a', [], 1, draws, [])",
    "native.word_spans()", "native.word_spans(5)", "native.word_spans(b'a')", "native.cut()",
    "native.cut(b'a', [])",
    "native.cut('ab', [5])", "native.cut('ab', [(0,)])", "native.cut('ab', "
                                                                                        "[(0, 3)])",
    "native.cut('ab', [(1, 0)])", "native.cut('ab', [(-1, 1)])", "native.cut('ab', [(0, 2), (1, 2)])",
    "native.repeats()", "native.repeats(5)", "native.repeats(None)", "native.repeats(b'a a')",
    "native.repeats('a', 'a')",
    "native.set_relations()", "native.set_relations([], {}, frozenset())",
    "native.set_relations({}, None, frozenset())", "native.set_relations({}, {}, set())",
    "native.Sentence(5)", "columns_of(made=5)", "columns_of(made=object)", "columns_of(made=Half)",
]  # fmt: skip
# What the compiled code may refuse or read, as it stands: sentences whose columns are no tuples, no words or
# too short; types that are no sentences; relations that are in no set.
ODD = [
    "pieces.spell_pairs({}, [(-1, 2**31 - 1, 7)], True, 'é', ['', 'a'], -5) or pieces.rows(['a b'])",
    "pieces.spell_longest({b'': 0}, '', -1, -1, True, [], 9) or pieces.rows(['a b'])",
    "pieces.spell_longest({}, '##', 3, 9, False, [], 9) or pieces.rows(['a-b', 'é'])",
    "native.look_alike('ab', {'a': ''}, 2**21, draws, [])", "native.look_alike('ab', {'a': 'x'}, 0, draws, "
                                                            "[(5, -5)])",
    *(f"made(heads=[0, 0]).{name}(1)" for name in METHODS), "made(heads=[0, 0]).words",
    "made(heads=None).word(0)",
    "made(starts=[0, 2], ends=[1, 3]).word(1)", "made(starts=[0, 2], ends=[1, 3]).words",
    "made(starts=None).word(0)",
    "made(starts=()).word(1)", "made(starts=('a', 'b')).word(0)", "made(starts=(-9, 2**70)).words",
    "made(ends=(9, 9)).words",
    "made(text=None).word(0)", "made(text=b'a b').word(0)", "made(text=5).words",
    *(f"made(deps=['ROOT', 'cop']).{name}(0)" for name in METHODS), "made(deps=['a', "
                                                                    "'b']).with_relation(frozenset('a'))",
    *(f"made(deps=(None, 5)).{name}(0)" for name in METHODS), "made(deps=(None, "
                                                              "5)).with_relation(frozenset('a'))",
    *(f"made(deps=([], {{}})).{name}(0)" for name in METHODS), "made(deps=()).relation(1)",
    "made(deps=()).subject(0)",
    "made(heads=('a', None)).children(0)", "made(heads=(0.0, 0.0)).verb(1)", "made(heads=(-1, "
                                                                             "-1)).subtree(0)",
    "made(heads=(0, 9), deps=('ROOT', 'cop')).verb(0)", "made(heads=(0, []), deps=('ROOT', 'cop')).verb(0)",
    "sentence.with_relation(['root'])", "sentence.with_relation(('root',))",
    "sentence.with_relation({'root': 1})",
    "sentence.with_relation('root')",
    *(f"object.__new__(ParsedSentence).{name}(0)" for name in METHODS),
    "object.__new__(ParsedSentence).words",
    "object.__new__(ParsedSentence).with_relation(frozenset())",
    *(f"native.Sentence().{name}(0)" for name in METHODS), "native.Sentence().words",
    "native.Pieces(True, 0, 1, 5, -1).rows(['a', 'b'])",
    "pieces.learn(True, ['a'], [b'123'])",
    "columns_of(columns=b'123').sentence(0)", "columns_of(columns=values + 9).sentence(0)",
    "draws.below(2**63)", "draws.sample([1, 2, 3], -1)", "native.cut('ab', ((0, 1),))",
]  # fmt: skip
ATTEMPTS = """
import json, os, signal, sys
import numpy as np
from augment.core.compiled import native
from augment.text.parsed import ParsedSentence

class Half:
    __slots__ = ("starts", "text")

def made(**columns):
    whole = dict(text="a b", starts=(0, 2), ends=(1, 3), tags=("", ""), pos=("", ""), lemmas=("a", "b"))
    whole["heads"] = (0, 0)
    return ParsedSentence(**{**whole, "deps": ("ROOT", "cop"), **columns})

longs = lambda *numbers: np.array(numbers, dtype=np.int64)
draws, sentence = native.Draws(1), made()
pieces = native.Pieces(True, 0, 1, 5, 9)
values = np.zeros((6, 2), dtype=np.uint16)
stored = dict(
    made=ParsedSentence, texts=b"a b", text_ends=longs(0, 3), bounds=longs(0, 2), columns=values,
    tags=("NN",), parts_of_speech=("NOUN",), relations=("root",), lemmas=("", "be"), language="en",
)
columns_of = lambda **changed: native.Columns(*{**stored, **changed}.values())
columns = columns_of()
found = {}
for attempt in json.loads(sys.argv[1]):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            eval(attempt)
            said = "returned"
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode(errors="replace")[:999])
        del said
        os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    said = os.read(reading, 999).decode()
    os.close(reading)
    found[attempt] = f"ended by signal {status & 127}" if status else said
print(json.dumps(found))
"""
RAISED = (
    "TypeError",
    "ValueError",
    "IndexError",
    "OverflowError",
    "AttributeError",
    "BufferError",
    "Unicode",
)


@pytest.fixture(scope="module")
def attempts():
    """Return the outcome of each attempt, made in a separate process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ATTEMPTS, json.dumps(WRONG + ODD)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("attempt", WRONG)
def test_wrong_arguments_raise(attempt, attempts):
    assert attempts[attempt].startswith(RAISED), attempts[attempt]


@pytest.mark.parametrize("attempt", ODD)
def test_odd_arguments_do_no_harm(attempt, attempts):
    assert attempts[attempt].startswith((*RAISED, "returned")), attempts[attempt]
