"""Parses of texts in which a parser has attached words to white space: the parse of the words alone, in
finite time."""

import random

import pytest

from augment.sda.entries import dn, mv, neg, pi
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.parsing import parse_texts

spacy = pytest.importorskip("spacy")
from spacy.language import Language  # noqa: E402


class Attached:
    """A parser that attaches the tokens of the n-th text it is given to the n-th list of heads."""

    def __init__(self, heads: list[list[int]]):
        self.heads = iter(heads)

    def __call__(self, doc):
        for token, head in zip(doc, next(self.heads), strict=True):
            token.tag_, token.pos_ = (
                ("_SP", "SPACE") if token.is_space else (".", "PUNCT") if token.is_punct else ("NN", "NOUN")
            )
            token.dep_ = "ROOT" if head == token.i else "dep"
            token.head = doc[head]
        return doc


@Language.factory("attached_in_order", assigns=["token.tag", "token.dep"])
def attached_in_order(nlp, name, heads: list[list[int]]):
    return Attached(heads)


def parses(folder, texts: list[str], heads: list[list[int]]) -> list[ParsedSentence]:
    """Texts with the heads of spaCy's tokens, white space among them, to the parses that rules get."""
    nlp = spacy.blank("en")
    nlp.add_pipe("attached_in_order", config={"heads": heads})
    nlp.to_disk(folder)
    return list(parse_texts(texts, str(folder)))


@pytest.mark.parametrize(
    ("text", "heads", "expected"),
    [  # spaCy's tokens: a run of blanks behind the first one, a tab and a line feed are each a token
        ("He  runs", [1, 1, 1], (0, 0)),  # white space is the root: its first word is
        ('"  Yes  no', [1, 1, 1, 2, 1], (1, 1, 1)),  # and no quotation mark
        ("!  !", [1, 1, 1], (0, 0)),  # where there is nothing else, a mark
        ("\tHe runs", [0, 2, 0], (1, 1)),
        ("He  runs  away", [2, 0, 2, 1, 3], (1, 1, 0)),  # white space on white space on a word
        ("He  runs  away", [1, 3, 1, 3, 3], (0, 0, 0)),
        # two sentences, the second one's root white space
        ("He  ran.  He", [2, 2, 2, 2, 4, 4], (1, 1, 1, 3)),
        ("  ", [0], ()),
    ],
)
def test_words_that_hang_on_white_space(tmp_path, text, heads, expected):
    (sentence,) = parses(tmp_path, [text], [heads])
    assert sentence.words == text.split() or "." in text
    assert sentence.heads == expected
    assert all((sentence.deps[i] == "ROOT") == (head == i) for i, head in enumerate(sentence.heads))


def test_white_space_in_any_place_of_any_parse(tmp_path):
    """Every head of the parse is a word, every word has a root above it, and every rule comes to an end."""
    chance, tokenizer = random.Random(0), spacy.blank("en")
    texts, trees = [], []
    for _ in range(60):
        blanks = [chance.choice(["", "", " ", "\t", "\n\n", "\u00a0 "]) for _ in range(5)]
        text = blanks[0] + "".join(
            f"{word} {blank}" for word, blank in zip(("He", "runs", "and", "falls"), blanks[1:])
        )
        order = list(range(len(tokenizer(text))))
        chance.shuffle(order)  # each on one that comes before it here, or a root
        heads = [0] * len(order)
        for place, token in enumerate(order):
            heads[token] = order[chance.randrange(place)] if place and chance.random() < 0.9 else token
        texts.append(text)
        trees.append(heads)
    for sentence in parses(tmp_path, texts, trees):
        assert sentence.words == sentence.text.split()
        for word in range(len(sentence)):
            steps = 0
            while sentence.heads[word] != word:
                word, steps = sentence.heads[word], steps + 1
                assert steps <= len(sentence), sentence
        for rule in (pi, mv, dn, neg):
            rule(sentence, Draws(0))
