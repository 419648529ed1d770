"""Gold sentence boundaries of Universal Dependencies treebanks, and the score of a splitter against them."""

import gzip
from collections.abc import Callable
from pathlib import Path

Document = list[tuple[bool, str]]
"""Its sentences, each with whether it begins a paragraph; white space behind it is part of the text."""


def read_treebank(path: Path, tokenised: bool = False, lowered: bool = False) -> list[Document]:
    """Return the documents of a CoNLL-U file, as they were written, or with a blank between tokens."""
    documents: list[Document] = []
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        blocks = stream.read().strip().split("\n\n")
    for block in blocks:
        lines = block.split("\n")
        text, inside = "", 0  # the last word of a multi-word token that was read as one
        for line in lines:
            if line.startswith("#"):
                continue
            number, form, *_, misc = line.split("\t")
            if "-" in number:
                if tokenised:
                    continue
                inside = int(number.split("-")[1])
            elif "." in number or int(number) <= inside:
                continue
            text += form + (" " if tokenised or "SpaceAfter=No" not in misc else "")
        if not documents or any(line.startswith("# newdoc") for line in lines):
            documents.append([])
        begins = any(line.startswith("# newpar") for line in lines)
        documents[-1].append((begins, text.lower() if lowered else text))
    return documents


def score(
    documents: list[Document], split: Callable[[str], list[str]], between: str
) -> tuple[float, float, float]:
    """Return precision, recall and F1 of the boundaries inside documents.

    A boundary is a number of characters that are not blank. The end of a document is none: it is given.

    Args:
        split: Of a document's text, its sentences.
        between: What parts paragraphs: a line break, or a blank, which leaves all to the splitter.
    """
    right = found = wanted = 0
    for document in documents:
        text, length, gold = "", 0, set()
        for begins, sentence in document:
            text = text.rstrip(" ") + between + sentence if begins and text else text + sentence
            length += len("".join(sentence.split()))
            gold.add(length)
        ours, read = set(), 0
        for sentence in split(text):
            read += len("".join(sentence.split()))
            ours.add(read)
        assert read == length, "the splitter lost or made characters"
        ours, gold = ours - {length}, gold - {length}
        right, found, wanted = right + len(ours & gold), found + len(ours), wanted + len(gold)
    precision, recall = right / max(1, found), right / max(1, wanted)
    return precision, recall, 2 * precision * recall / max(1e-9, precision + recall)
