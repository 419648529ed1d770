"""Sentence boundaries of UD English-EWT and the speed of finding them, beside spaCy's rule-based
`sentencizer`.

    CLEAR_DATA=DIR python tests/benchmarks/bench_sentences.py [--split test]

Both get the same raw text of each document. Speed is of CPU time, the better of three runs over 4 MB of
Wikipedia.
"""

import argparse
import gzip
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pretrain"))

import spacy
from gold_sentences import read_treebank, score
from rich.console import Console
from rich.table import Table

from pretrain.prepare.sentences import sentences_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--split", default="test", choices=("train", "dev", "test"))
    chosen = parser.parse_args()
    data = Path(os.environ["CLEAR_DATA"])
    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    pipeline.max_length = 10**9
    splitters = {
        "pretrain.prepare.sentences": sentences_of,
        "spaCy sentencizer": lambda text: [s.text for s in pipeline(text).sents],
    }

    table = Table(
        title=f"UD English-EWT, {chosen.split}: boundaries inside documents (spaCy {spacy.__version__})"
    )
    for column in ("text", "paragraphs are parted by", *(f"{name}: P / R / F1" for name in splitters)):
        table.add_column(column)
    for form, tokenised, lowered, between in (
        ("as written", False, False, "\n"),
        ("as written", False, False, " "),
        ("lower-cased", False, True, " "),
        ("tokenised", True, False, " "),
        ("tokenised and lower-cased", True, True, " "),
    ):
        documents = read_treebank(
            data / f"UD/English-EWT/en_ewt-ud-{chosen.split}.conllu.gz", tokenised, lowered
        )
        scores = [
            " / ".join(f"{value:.3f}" for value in score(documents, split, between))
            for split in splitters.values()
        ]
        table.add_row(form, "line breaks" if between == "\n" else "blanks", *scores)
    console = Console(width=130)
    console.print(table)

    with gzip.open(data / "text" / "enwiki.txt.gz", "rt", encoding="utf-8") as stream:
        text = stream.read(4_000_000)
    megabytes = len(text.encode()) / 1e6
    for name, split in splitters.items():
        fastest = min(_seconds(split, text) for _ in range(3))
        console.print(f"{name}: {megabytes / fastest:.1f} MB/s on {megabytes:.1f} MB of Wikipedia")


def _seconds(split, text: str) -> float:
    start = time.process_time()
    for paragraph in text.split("\n"):
        split(paragraph)
    return time.process_time() - start


if __name__ == "__main__":
    main()
