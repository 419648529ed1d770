"""The geometry command on a small data folder."""

import csv
import json

import numpy as np
import pytest
import torch
from commands import call
from model_folders import write_function
from real_data import DATA, needs_data
from word_sentences import WORDS, sentences

from augment.core.errors import AugmentationError
from augment.text.parsed import ParsedSentence
from finetune.encoders.models import open_model
from finetune.geometry import __main__ as geometry
from finetune.geometry import augmentations as measures
from finetune.geometry import run
from finetune.results import read
from pretrain.common.errors import UserError


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """STS-B, one clustering set and NLI triplets, in their own formats, a few rows each."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(5)
    benchmark = root / "SentEval" / "STS" / "STSBenchmark"
    benchmark.mkdir(parents=True)
    texts = sentences(160, seed=2)
    for split, start in (("dev", 0), ("test", 80)):
        pairs = zip(texts[start : start + 80 : 2], texts[start + 1 : start + 80 : 2], strict=True)
        rows = [f"g\tf\t2012\t{n}\t{rng.uniform(0, 5):.3f}\t{a}\t{b}\n" for n, (a, b) in enumerate(pairs)]
        (benchmark / f"sts-{split}.csv").write_text("".join(rows))
    for name, header, rows in (
        ("clustering/stackoverflow.csv", ["text", "label"], [[t, n % 4] for n, t in enumerate(texts[:50])]),
        (
            "NLI/nli_triplets_from_snli.csv",
            ["sent0", "sent1", "hard_neg"],
            [texts[n : n + 3] for n in range(0, 60, 3)],
        ),
    ):
        (root / name).parent.mkdir(exist_ok=True)
        with open(root / name, "w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    return root


@pytest.mark.full
def test_the_command_writes_numbers_and_figures(folder, data, tmp_path):
    aug = "reorder;del-span,reorder"
    call(geometry.geometry, folder, pooling="mean", eval_data=data, out=tmp_path, sentences=40, aug=aug)
    evaluation = read(tmp_path / "geometry-mean.json")
    tasks = "alignment uniformity isotropy neighbourhood/stackoverflow nli augmentation/reorder "
    assert list(evaluation.tasks) == [*tasks.split(), "augmentation/del-span,reorder"]
    assert evaluation.complete
    model = open_model(folder, "mean")
    rows = [
        line.split("\t")
        for split in ("test", "dev")
        for line in (data / "SentEval/STS/STSBenchmark" / f"sts-{split}.csv").read_text().splitlines()
    ]
    close = [row for row in rows if float(row[4]) > 4]
    sides = (measures.unit(model.encode([row[side] for row in close])) for side in (5, 6))
    expected = np.square(np.subtract(*sides)).sum(1).mean()
    assert evaluation.tasks["alignment"].value == pytest.approx(expected)
    assert evaluation.tasks["alignment"].details["pairs"] == len(close)
    sentences = list(dict.fromkeys(row[side] for row in rows for side in (5, 6)))
    points = torch.nn.functional.normalize(torch.from_numpy(model.encode(sentences)).double(), dim=1)
    expected = torch.pdist(points).pow(2).mul(-2).exp().mean().log().item()  # Wang and Isola's code
    assert evaluation.tasks["uniformity"].value == pytest.approx(expected)
    names = {path.name for path in (tmp_path / "geometry-mean").iterdir()}
    assert {"nli_distances.png", "alignment_uniformity.png"} <= names
    assert "neighbourhood_stackoverflow.png" in names


def test_augmentations_of_text_are_measured_from_a_parse(folder, data, tmp_path, monkeypatch):
    texts = [
        f"the {one} eats {number} old apple{'s' if number > 1 else ''}"
        for one in WORDS[:4]
        for number in (1, 2, 3)
    ]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    asked = []

    def parse(sentences, parser):
        asked.append((list(sentences), parser))
        return (unparsed(text) for text in sentences)

    monkeypatch.setattr(run, "parse_texts", parse)
    flags = {
        "eval_data": data,
        "out": tmp_path,
        "text_file": tmp_path / "texts.txt",
        "measure": "augmentation",
    }
    words = {"aug": "number-words; reorder", "parser": "mine"}
    call(geometry.geometry, folder, pooling="mean", **flags, **words)
    assert asked == [(texts, "mine")]
    tasks = read(tmp_path / "geometry-mean.json").tasks
    model = open_model(folder, "mean")
    pairs = [(text, text.replace("1", "one").replace("2", "two").replace("3", "three")) for text in texts]
    before, after = (model.encode(side) for side in zip(*pairs))
    found = tasks["augmentation/number-words"].scores
    assert found["changed"] == 100
    assert found["cosine"] == pytest.approx(
        float(1 - measures.pair_distances(before, after).mean()), abs=1e-6
    )
    assert "augmentation/reorder" in tasks
    # of tokens: nothing is parsed
    call(geometry.geometry, folder, pooling="mean", **flags, aug="reorder")
    assert len(asked) == 1


def test_synonyms_are_of_the_named_file(folder, data, tmp_path):
    first, second = WORDS[:2]
    (tmp_path / "mine.json").write_text(json.dumps({first: [second]}))
    (tmp_path / "texts.txt").write_text("".join(f"{first} {n}\n" for n in range(20)))
    flags = {"text_file": tmp_path / "texts.txt", "synonyms": tmp_path / "mine.json", "out": tmp_path}
    call(
        geometry.geometry, folder, pooling="mean", eval_data=data, measure="augmentation", aug="subs", **flags
    )
    assert read(tmp_path / "geometry-mean.json").tasks["augmentation/subs"].scores["changed"] > 0


def unparsed(text):
    """Words between blanks, all of one kind."""
    starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == " ")]
    words = text.split(" ")
    ends = tuple(start + len(word) for start, word in zip(starts, words))
    same = [("X",) * len(words) for _ in range(2)]
    heads = (0,) * len(words)
    return ParsedSentence(
        text, tuple(starts), ends, *same, tuple(words), heads, ("ROOT", *("dep",) * (len(words) - 1))
    )


def test_what_is_missing_is_said_and_an_error_where_it_was_named(data, tmp_path, capsys):
    (tmp_path / "data" / "NLI").mkdir(parents=True)
    (tmp_path / "data" / "NLI" / "nli_triplets_from_snli.csv").write_text(
        (data / "NLI" / "nli_triplets_from_snli.csv").read_text()
    )
    with pytest.raises(UserError, match=r"clustering/stackoverflow\.csv is not there"):
        call(geometry.geometry, "missing", eval_data=str(tmp_path / "data"), measure="neighbourhood")
    model = write_function(tmp_path / "letters_model.py", "[len(t), t.count('a')]")
    call(geometry.geometry, model, eval_data=tmp_path / "data", out=tmp_path / "out")
    evaluation = read(tmp_path / "out" / "geometry-function.json")
    assert list(evaluation.tasks) == ["nli"]
    assert sum(note.startswith("without ") for note in evaluation.notes) == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"measure": "nlii"}, "did you mean 'nli'"),
        ({"sentences": "many"}, "valid integer"),
        ({"text_file": "nowhere.txt", "measure": "augmentation"}, "no such file"),
        ({"measure": "augmentation", "aug": "del-word;yodaa"}, "did you mean 'yoda'"),
    ],
)
def test_bad_flags_are_one_message(flags, message, data):
    with pytest.raises((UserError, AugmentationError), match=message):
        call(geometry.geometry, "missing", eval_data=str(data), **flags)


def test_damaged_files_are_one_message(tmp_path):
    (tmp_path / "NLI").mkdir()
    (tmp_path / "NLI" / "nli_triplets_from_snli.csv").write_text("sent0,sent1\na,b\n")
    with pytest.raises(UserError, match="must name sent0, sent1 and hard_neg"):
        call(geometry.geometry, "missing", eval_data=str(tmp_path), measure="nli")
    (tmp_path / "NLI" / "nli_triplets_from_snli.csv").write_text("sent0,sent1,hard_neg\na,b,\n")
    with pytest.raises(UserError, match="row 1 lacks a sentence"):
        call(geometry.geometry, "missing", eval_data=str(tmp_path), measure="nli")


@needs_data("SentEval/STS/STSBenchmark", "NLI", "clustering")
def test_real_files_are_read():
    wanted = ["sts", "nli", "neighbourhood"]
    inputs, missing = run.read_inputs(run.GeometryOptions(eval_data=str(DATA)), wanted, True)
    assert not missing
    if "sts" in inputs:
        assert [len(part) for part in inputs["sts"]] == [1379, 1500]
    if "neighbourhood" in inputs:
        found = inputs["neighbourhood"]["stackoverflow"]
        assert (len(found.texts), found.classes) == (20000, 20)
