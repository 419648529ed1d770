"""Share hand-made sentences, the names of methods, and a call's outcome with the tests of compiled code."""

from parse_builder import parse as by_hand

from augment.text.parsed import without_parse

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


def outcome(function, *arguments):
    """Return what a call gives, or the kind of error that it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        return type(error)
