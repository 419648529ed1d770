"""Neighbours on disk, and the sequences that a lane gives to a step, share a document as seldom as any two,
in every unit."""

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from prepare_helpers import config

from pretrain.data.lanes import Lanes
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare.run import prepare

CORPORA = {
    "one bucket": (40, 30, 10**9),
    "many buckets": (40, 30, 4000),
    "few long documents": (6, 200, 4000),
}


def write_corpus(path: Path, documents: int, sentences: int, unit: str) -> None:
    """Every sentence names its document. Of records, a document's sentences are records of its own."""
    sentence = "Now document d{}e tells us the thing with number n{}e."
    made = [[sentence.format(d, d * sentences + s) for s in range(sentences)] for d in range(documents)]
    if unit == "record":
        path.write_text(
            "".join(json.dumps({"text": s, "positive": s[4:]}) + "\n" for document in made for s in document)
        )
    else:
        path.write_text("\n\n".join(" ".join(document) for document in made) + "\n")


def documents_of(folder: Path) -> list[set[str]]:
    """The documents that each stored sequence (of records: text) has text of, in the order on disk."""
    reader, tokenizer = ShardReader(folder), load_tokenizer(folder)
    found = []
    for number in range(reader.num_chunks):
        sequences = reader.read(number).sequences
        found += [set(re.findall(r"d(\d+)e", tokenizer.decode(sequences[i]))) for i in range(len(sequences))]
    return found


def shared_at_random(documents: list[set[str]]) -> float:
    """The share of all pairs that have a document in common."""
    rows = np.random.default_rng(0).integers(0, len(documents), (20000, 2))
    return float(np.mean([bool(documents[a] & documents[b]) for a, b in rows if a != b]))


@pytest.mark.full
@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("unit", ["sentence", "sequence", "record", "document"])
def test_neighbours_are_strangers(tmp_path, monkeypatch, unit, corpus):
    documents, sentences, bucket = CORPORA[corpus]
    path = tmp_path / ("corpus.jsonl" if unit == "record" else "corpus.txt")
    write_corpus(path, documents, sentences, unit)
    monkeypatch.setattr("pretrain.prepare.run._SMALL_BUCKET", bucket)
    settings = {
        "unit": unit,
        "heldout": 0.0,
        "max_length": 4096 if unit == "document" else 64,
        "chunk_tokens": 1024,
    }
    weight = 8 if unit == "document" else 1  # copies of a document are the only sequences that share one
    made = config(f"{path}@{weight}", **settings)
    buckets = prepare(made, tmp_path / "out", workers=1, progress=False)["buckets"]
    assert (buckets == 1) == (corpus == "one bucket")
    found = documents_of(tmp_path / "out")
    expected = shared_at_random(found)
    shared = np.mean([bool(a & b) for a, b in pairwise(found)])
    error = np.sqrt(expected * (1 - expected) / len(found))
    assert abs(shared - expected) < 4 * error + 0.01
    reader = ShardReader(tmp_path / "out")
    lanes = Lanes(reader.chunk_sizes, 1, 16, 2)
    first = np.concatenate([[0], np.cumsum(reader.chunk_sizes)])
    own = []
    for step in range(lanes.steps_per_epoch):
        for lane in range(2):
            chunk, index = lanes.draw_steps(step, step + 1, lane, lane + 1)
            group = [found[place] for place in first[chunk] + index]
            count = Counter(d for documents in group for d in documents)
            own += [max(count[d] for d in documents) - 1 for documents in group]
    assert np.mean(own) < 7 * expected * 1.2 + 0.3  # of the 7 others that a lane gives to the step
