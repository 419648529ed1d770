"""What needs the negation of a sentence, by the words alone."""

import pytest

from augment.text.negation import needs_negation


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("I do *not* go", False),
        ("I do *not* only go", True),
        ("it is *not* at all", True),
        ("at all it is *not*", False),
        ("it has *not* come yet", True),
        ("yet it has *not* come", False),
        ("I can *not* help but go", True),
        ("I can *not* help going", True),
        ("I can *not* help him", False),
        ("I can *not* help", False),
        # "whether it did or did not", "whether it is or is not": what is said twice, at most four words on
        ("it rains or does *not*", True),
        ("it can or can *not*", True),
        ("it is cold or is *not*", True),
        ("it can all run or can *not*", False),
        ("it can and can *not*", False),
        ("it runs or can *not*", False),
        ("can *not* or", False),
        ("or can *not*", False),
        ("or does *not*", True),
    ],
)
def test_what_needs_a_negation(text, needs):
    words = text.split()
    (place,) = (place for place, word in enumerate(words) if word[0] == "*")
    words[place] = words[place].strip("*")
    assert needs_negation(words, place) is needs
