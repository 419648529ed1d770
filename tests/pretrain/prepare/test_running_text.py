"""Units `sequence` and `document`: the running text of documents, whole and in order, whatever is filtered
and de-duplicated."""

import gzip
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from prepare_helpers import config, digest, make_corpus, texts_of
from real_data import DATA, needs_data

from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare.run import prepare
from pretrain.prepare.sentences import is_prose, sentences_of
from pretrain.prepare.work_folder import BuiltShards, ShuffledShards, WorkFile

SCRAPS = ["See also.", "1 2 3 4 5 6.", "Yes.", "References."]


def make_documents(path: Path, seed: int = 0) -> list[list[str]]:
    """Documents with scraps that are no prose in their middle, sentences that others have too, copies, and
    some all of scraps."""
    random_ = random.Random(seed)
    made = make_corpus(path, documents=90, seed=seed)
    for document in made:
        for _ in range(random_.randrange(3)):
            document.insert(random_.randrange(len(document)), random_.choice(SCRAPS))
    made += [random_.choices(SCRAPS, k=4) for _ in range(5)] + [list(document) for document in made[:8]]
    random_.shuffle(made)
    # The copies differ in white space: what is compared is clean text.
    path.write_text("\n\n".join(random_.choice([" ", "  ", "\n"]).join(document) for document in made) + "\n")
    return [document for document in made if any(is_prose(s, 4, 0.3) for s in document)]


def read(folder: Path, split: str = "train") -> tuple[list[str], list[list[str]]]:
    """(what stands between two separators, decoded; the sentences of each sequence)."""
    reader, tokenizer = ShardReader(folder, split), load_tokenizer(folder)
    running, sentences = [], []
    for number in range(reader.num_chunks):
        chunk = reader.read(number)
        ids, offsets = chunk.sequences.ids, chunk.sequences.offsets
        assert (ids[offsets[:-1]] == tokenizer.cls_token_id).all() and (
            ids[offsets[1:] - 1] == tokenizer.sep_token_id
        ).all()
        assert set(chunk.document_starts) <= set(chunk.sentence_starts)
        for low, high in pairwise(offsets.tolist()):
            special = [low, *(low + np.flatnonzero(ids[low:high] == tokenizer.sep_token_id)).tolist()]
            running += [tokenizer.decode(ids[a + 1 : b]).strip() for a, b in pairwise(special)]
            starts = chunk.sentence_starts[
                (chunk.sentence_starts > low) & (chunk.sentence_starts < high)
            ].tolist()
            sentences.append(
                [
                    tokenizer.decode(ids[a:b], skip_special_tokens=True).strip()
                    for a, b in pairwise([*starts, high])
                ]
            )
    return running, sentences


@pytest.mark.full
@pytest.mark.parametrize("dedup", ["exact", "none"])
def test_unit_sequence_keeps_every_sentence_of_a_document_in_its_place(tmp_path, several_tasks, dedup):
    made = make_documents(tmp_path / "text.txt")
    settings = {"unit": "sequence", "max_length": 64, "dedup": dedup}
    counts = prepare(config(tmp_path / "text.txt", **settings), tmp_path / "out", workers=1, progress=False)[
        "counts"
    ]
    texts = [f" {' '.join(document)} " for document in made]
    running, sequences = read(tmp_path / "out")
    assert all(any(f" {text} " in whole for whole in texts) for text in running)
    held, _ = read(tmp_path / "out", "heldout")
    assert held and all(any(f" {text} " in whole for whole in texts) for text in held)

    in_train = Counter(s for sequence in sequences for s in sequence)
    documents = [document for document in made if all(s in in_train for s in document)]
    if dedup == "exact":
        documents = list({tuple(document): None for document in documents})
    assert in_train == Counter(s for document in documents for s in document)
    # Of held-out documents stays what no training document has, each sentence once a document.
    heldout = {tuple(document): None for document in made if any(s not in in_train for s in document)}
    left = Counter(s for document in heldout for s in document if s not in in_train)
    assert Counter(s for text in held for s in sentences_of(text)) == left
    assert (
        counts["documents_not_prose"] == 5
        and counts["sentences_not_prose"] == 20
        and counts["sentences_not_prose_kept"] > 40
    )
    assert counts["heldout_sentences_in_train"] > 5
    assert (counts["documents_duplicate"] > 5) == (dedup == "exact")


@pytest.mark.full
@pytest.mark.parametrize("max_length", [48, 1000])
def test_unit_document_holds_documents_cut_behind(tmp_path, several_tasks, max_length):
    made = make_documents(tmp_path / "text.txt")
    settings = {"unit": "document", "max_length": max_length}
    counts = prepare(config(tmp_path / "text.txt", **settings), tmp_path / "out", workers=1, progress=False)[
        "counts"
    ]
    running, sequences = read(tmp_path / "out")
    assert len(running) == len(sequences)  # no separator inside
    whole = {" ".join(document) for document in made}
    if max_length == 48:
        assert counts["documents_truncated"] > 20 and all(
            any(w.startswith(text) for w in whole) for text in running
        )
    else:
        assert (
            counts["documents_truncated"] == 0
            and set(running) <= whole
            and len(running) == len(set(running)) > 50
        )
    held = read(tmp_path / "out", "heldout")[0]
    assert held and all(any(text in w for w in whole) for text in held)


@needs_data("text/enwiki.txt.gz")
def test_packed_wikipedia_is_the_running_text_of_its_articles(tmp_path):
    articles: list[str] = []
    with gzip.open(DATA / "text/enwiki.txt.gz", "rt") as stream:
        article = ""
        while sum(map(len, articles)) < 600_000:
            line = stream.readline()
            article += line
            if not line.strip():
                articles, article = [*articles, article], ""
    (tmp_path / "wiki.txt").write_text("\n".join(articles))
    settings = {
        "unit": "sequence",
        "max_length": 512,
        "vocabulary": 4096,
        "min_words": 3,
        "min_letters": 0.5,
        "heldout": 0.0,
    }
    prepare(config(tmp_path / "wiki.txt", **settings), tmp_path / "out", workers=1, progress=False)
    running, sequences = read(tmp_path / "out")
    documents = list(filter(None, map(sentences_of, articles)))
    texts = [" ".join(document) for document in documents]
    assert all(any(text in whole for whole in texts) for text in running)
    # Scraps of articles aside ("Additional references."), nothing is missing and nothing is there twice.
    found = Counter(s for sequence in sequences for s in sequence)
    kept = [document for document in documents if set(document) <= found.keys()]
    assert found == Counter(s for document in kept for s in document)
    assert sum(len(" ".join(document)) for document in kept) > 0.999 * sum(map(len, texts))


@pytest.mark.parametrize("share,kept", [(0.0, 3), (0.5, 2), (1.0, 1)])
def test_documents_are_kept_by_their_share_of_prose(tmp_path, share, kept):
    prose, scraps = "There is a river behind the old garden wall.", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16."
    documents = [
        f"Here all of it is plain prose. {prose}",
        f"It is half of it at least. {prose} {scraps}",
        f"{scraps} No.",
    ]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    made = config(tmp_path / "text.txt", unit="document", heldout=0.0, min_prose=share, max_length=400)
    counts = prepare(made, tmp_path / "out", workers=1, progress=False)["counts"]
    assert (
        len(texts_of(tmp_path / "out", "train")) == kept and counts.get("documents_not_prose", 0) == 3 - kept
    )


def test_a_held_out_document_is_parted_where_training_has_its_sentence(tmp_path):
    common = "They all met beside the old stone bridge that evening."
    documents = [[f"The man of {i} came by the river.", common, f"Then {i} of them left."] for i in range(20)]
    whole = {" ".join(document) for document in documents}
    (tmp_path / "text.txt").write_text("\n\n".join(sorted(whole)) + "\n")
    made = config(tmp_path / "text.txt", unit="sequence", heldout=0.4, max_length=400)
    prepare(made, tmp_path / "out", workers=1, progress=False)
    trained, held = (read(tmp_path / "out", split)[0] for split in ("train", "heldout"))
    assert set(trained) < whole and len(trained) == len(set(trained))
    others = [document for document in documents if " ".join(document) not in trained]
    assert sorted(held) == sorted(text for first, _, last in others for text in (first, last))


def test_copies_of_a_document_are_parted_and_sequences_are_full(tmp_path):
    """Three copies of one document follow each other as they are packed."""
    document = [f"The number {i} is here beside the {'old ' * (i % 7)}river." for i in range(60)]
    (tmp_path / "text.txt").write_text(" ".join(document) + "\n")
    made = config(f"{tmp_path}/text.txt@3", unit="sequence", heldout=0.0, max_length=48)
    prepare(made, tmp_path / "out", workers=1, progress=False)
    running, sequences = read(tmp_path / "out")
    assert all(text in " ".join(document) for text in running)
    assert Counter(s for sequence in sequences for s in sequence) == Counter(document * 3)
    reader = ShardReader(tmp_path / "out")
    chunks = [reader.read(number) for number in range(reader.num_chunks)]
    lengths = np.concatenate([chunk.sequences.lengths for chunk in chunks])
    assert lengths.max() <= 48 and lengths.mean() > 32
    assert sum(len(chunk.document_starts) for chunk in chunks) == 3 and len(running) >= len(sequences)


@pytest.mark.parametrize("policy", ["truncate", "drop"])
@pytest.mark.parametrize("unit", ["sequence", "document"])
def test_running_text_cannot_be_asked_to_have_holes(unit, policy):
    with pytest.raises(ValueError, match=f"long_sentences: {policy} would cut documents.*leave it at auto"):
        config("text.txt", unit=unit, long_sentences=policy)


@pytest.mark.full
@pytest.mark.parametrize("written", [BuiltShards, ShuffledShards])
def test_a_kill_between_packing_and_shuffling_changes_no_byte(tmp_path, several_tasks, monkeypatch, written):
    make_corpus(tmp_path / "text.txt")
    made = config(tmp_path / "text.txt", unit="sequence")
    prepare(made, tmp_path / "whole", workers=1, progress=False)

    def fail(file: WorkFile, work: Path, rank: int) -> None:
        if rank == 1:
            raise RuntimeError("killed")
        WorkFile.write(file, work, rank)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(written, "write", fail)
        prepare(made, tmp_path / "killed", workers=1, progress=False)
    prepare(made, tmp_path / "killed", workers=1, progress=False)
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")
