"""Lines that say what was prepared: every number in them."""

import pytest

from pretrain.prepare import __main__ as prepare
from pretrain.prepare.cache.__main__ import summary as cache_summary
from pretrain.prepare.jobs import run_figures

RUN = {"seconds": 12, "workers": 3, "peak_task_bytes": 250_600_000}
SPLITS = {
    "train": {"sequences": 12345, "tokens": 678901, "shards": [1, 2, 3]},
    "heldout": {"sequences": 99, "tokens": 1099, "shards": [1]},
}


def said(monkeypatch, tmp_path, accents=False, **more):
    monkeypatch.setattr(prepare, "folds", lambda path: (path == tmp_path / "tok", accents))
    manifest = {"unit": "sentence", "max_length": 64, "vocabulary_size": 8000, "tokenizer": "tok"}
    return prepare.summary(manifest | {"splits": SPLITS} | more, tmp_path).splitlines()


def test_sizes_of_what_was_prepared(monkeypatch, tmp_path):
    first, *lines = said(monkeypatch, tmp_path)
    assert first == f"{tmp_path}: unit sentence, up to 64 tokens, vocabulary 8000, lower case"
    assert lines == [
        "  train          12,345 sequences        678,901 tokens in 3 shards",
        "  heldout            99 sequences          1,099 tokens in 1 shards",
    ]
    first, *_ = said(monkeypatch, tmp_path, accents=True)
    assert first.endswith(", lower case without accents")


@pytest.mark.parametrize(
    "more,line",
    [
        ({}, "  columns: text, positive"),
        ({"labels": 3}, "  columns: text, positive; 3 labels"),
        ({"labels": 3, "scores": [0.5, 5.0]}, "  columns: text, positive; scores from 0.5 to 5"),
    ],
)
def test_records_have_columns_labels_and_scores(monkeypatch, tmp_path, more, line):
    lines = said(monkeypatch, tmp_path, columns=["text", "positive"], **more)
    assert lines[1] == line and " 12,345 records   " in lines[2]


def test_annotations_counts_pairs_and_faults(monkeypatch, tmp_path):
    annotation = {"parser": "en_ud", "language": "en", "words": 5000, "bytes": 1_360_000}
    more = {
        "annotation": annotation,
        "counts": {"documents_kept": 70, "documents_empty": 0, "sentences": 12},
        "pairs": {"title": [["a" * 60, "b" * 100], ["c", "d"]]},
        "faults": ["file.txt: no text"],
        "run": RUN,
    }
    lines = said(monkeypatch, tmp_path, **more)[3:]
    assert lines[0] == "  annotated by en_ud (en): 5,000 words, 2.0 bytes per token"
    assert lines[1:3] == [f"  {'documents kept':32s} {'70':>12}", f"  {'sentences':32s} {'12':>12}"]
    assert lines[3].startswith("  title      aaaa") and len(lines[3]) <= 13 + 50 + 4 + 90
    assert lines[4:] == [
        "  title      c -> d",
        "  not read: file.txt: no text",
        "  12 s with 3 workers, largest task 251 MB",
    ]


LOSE = "WARNING: 12.5% of the letters lose an accent or a part in this tokenizer; to keep it: "
KEEP = "capitals and accents are kept: 12.5% of the letters have one; --lowercase true drops both"


@pytest.mark.parametrize(
    "accents,given,line",
    [
        (True, None, f"{LOSE}--lowercase false"),
        (True, "bert", f"{LOSE}name a cased --tokenizer"),
        (False, None, KEEP),
    ],
)
def test_accents_are_worth_a_line_from_a_share_on(monkeypatch, tmp_path, accents, given, line):
    more = {"config": {"tokenizer": given}}
    assert said(monkeypatch, tmp_path, accents, accented_letters=0.125, **more)[3:] == [f"  {line}"]
    least = prepare.MOST_ACCENTED
    assert len(said(monkeypatch, tmp_path, accents, accented_letters=least, **more)) == 4
    assert len(said(monkeypatch, tmp_path, accents, accented_letters=0.99 * least, **more)) == 3


def test_rates_of_what_a_cache_has_drawn(tmp_path):
    outcomes = {"drawn": 2000, "rate": 0.25, "not_applicable": 500}
    never = {"drawn": 0, "rate": 0.0, "not_applicable": 0}
    manifest = {"columns": ["text", "positive"], "labels": 2, "splits": SPLITS, "run": RUN}
    manifest["cache"] = {"rates": {"positive": {"del-word": outcomes, "mv": never}}}
    first, *lines = cache_summary(manifest, tmp_path).splitlines()
    assert first == f"{tmp_path}: columns text, positive; 2 labels"
    assert lines[0] == "  train          12,345 records        678,901 tokens in 3 shards"
    assert lines[2].split() == ["column", "augmentation", "drawn", "changed", "not", "applicable"]
    assert lines[3].split() == ["positive", "del-word", "2,000", "25.00%", "25.00%"]
    assert lines[4].split() == ["positive", "mv", "0", "0.00%", "0.00%"]
    assert lines[5:] == run_figures({"run": RUN}) and run_figures({}) == []
