"""SentEval's supervised tasks: files in its own format, and the command."""

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from answer_checks import require_answers
from forked_python import run_python
from real_data import DATA, needs_data

from finetune.encoders.models import open_model
from finetune.results import Evaluation
from finetune.senteval.classifier import ClassifierSettings, PairFeatures
from finetune.senteval.evaluate import add_averages, choose_tasks, evaluate, read_tasks
from finetune.senteval.protocol import SETTINGS, split
from finetune.senteval.tasks import TASKS, TRANSFER, files, load
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS
from pretrain.common.errors import UserError

GOOD, BAD = ["good film", "a fine , fine day", "joy"], ["bad film", "what a sad and dull affair", "tears"]


def sentence(rng, label):
    words = [(GOOD, BAD)[1 - label][rng.randint(3)]] + [
        f"w{rng.randint(30)}" for _ in range(rng.randint(0, 6))
    ]
    return " ".join(words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Every supervised task of SentEval with a few examples, in its own files."""
    rng, root = np.random.RandomState(1), tmp_path_factory.mktemp("data")

    def put(name, rows, encoding="utf-8"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(rows) + "\n", encoding=encoding)

    for task in ("MR", "CR", "SUBJ", "MPQA"):
        for label, file in zip((1, 0), TASKS[task].data.files, strict=True):
            put(file, [sentence(rng, label) + ("  caf\xe9" if n == 0 else "") for n in range(30)], "latin-1")
    for file in TASKS["TREC"].data.files:
        put(
            file,
            [f"{('DESC', 'HUM')[n % 2]}:manner How {sentence(rng, n % 2)} ?" for n in range(40)],
            "latin-1",
        )
    for file in TASKS["MRPC"].data.files:
        put(
            file,
            ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
            + [f"{n % 2}\t1\t2\t{sentence(rng, 1)}\t{sentence(rng, n % 2)}" for n in range(40)],
        )
    for file in TASKS["SST2"].data.files:
        put(file, [f"{sentence(rng, n % 2)}\t{n % 2}" for n in range(30)])
    for file in TASKS["SST5"].data.files:
        put(file, [f"{n % 5} {sentence(rng, n % 2)}" for n in range(30)])
    judgments = ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")
    for file in TASKS["SICK-E"].data.files:
        put(
            file,
            ["pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"]
            + [
                f"{n}\t{sentence(rng, 1)}\t{sentence(rng, n % 2)}\t{1 + n % 5}.0\t{judgments[n % 3]}"
                for n in range(30)
            ],
        )
    for file in TASKS["STS-B-supervised"].data.files:
        put(
            file,
            [f'g\tf\t2012\t{n}\t{n % 6}.000\t"{sentence(rng, 1)}\t{sentence(rng, n % 2)}' for n in range(30)],
        )
    for part in ("train", "dev", "test"):
        put(f"SentEval/SNLI/s1.{part}", [sentence(rng, 1) for _ in range(30)])
        put(f"SentEval/SNLI/s2.{part}", [sentence(rng, n % 2) for n in range(30)])
        put(
            f"SentEval/SNLI/labels.{part}",
            [("entailment", "contradiction", "neutral")[n % 3] for n in range(30)],
        )
    for task in TASKS.values():
        if task.data.group == "probing":
            rows = [(("tr", "va", "te")[n % 3], n // 3 % 2) for n in range(60)]
            put(
                task.data.files[0],
                [f"{part}\t{('NN', 'NNS')[label]}\t{sentence(rng, label)}" for part, label in rows],
            )
    return root


ENCODER = """
import hashlib
import numpy as np
def embed(sentences):
    vectors = np.zeros((len(sentences), 16), np.float32)
    for row, sentence in enumerate(sentences):
        for word in sentence.split():
            vectors[row, int(hashlib.md5(word.encode()).hexdigest(), 16) % 16] += 1
    return vectors
"""


def test_snli_is_evaluated_by_infersents_features(folder, tmp_path, monkeypatch):
    (tmp_path / "encoder.py").write_text(ENCODER)
    model = open_model(f"{tmp_path}/encoder.py:embed")
    seen = []
    monkeypatch.setattr(
        "finetune.senteval.evaluate.split",
        lambda *given, **named: seen.append(given) or split(*given, **named),
    )
    tasks = ["MR", "SNLI", "MRPC", "SICK-R-supervised"]
    result = evaluate(model, read_tasks(tasks, str(folder)))
    require_answers(result, tasks, within=0.05)  # MR's is the mean of its folds, each rounded
    ((features, labels, sizes, *_),) = seen
    read = load("SNLI", folder).splits
    parts = [read[name] for name in ("train", "dev", "test")]
    u, v = (
        model.encode([text for part in parts for text in side(part)])
        for side in (lambda p: p.first, lambda p: p.second)
    )
    expected = np.concatenate([u, v, u * v, np.abs(u - v)], 1)
    np.testing.assert_array_equal(features[torch.arange(len(features))].cpu().numpy(), expected)
    assert sizes == (30, 30, 30) and labels.tolist() == [label for part in parts for label in part.labels]
    assert isinstance(features, PairFeatures)


def test_examples_come_in_the_order_that_the_folds_depend_on(folder):
    part = load("MR", folder).splits["all"]
    keys = [(len(text.split()), label) for text, label in zip(part.first, part.labels, strict=True)]
    assert keys == sorted(keys)
    assert any("caf\xe9" in text for text in part.first)
    part = load("MRPC", folder).splits["train"]
    keys = [
        (len(a.split()), len(b.split()), y)
        for a, b, y in zip(part.first, part.second, part.labels, strict=True)
    ]
    assert keys == sorted(keys) and len(part) == 40  # the header is no example
    part = load("SNLI", folder).splits["dev"]
    names = ["entailment", "neutral", "contradiction"]
    keys = [
        (len(b.split()), len(a.split()), names[y])
        for a, b, y in zip(part.first, part.second, part.labels, strict=True)
    ]
    assert keys == sorted(keys)


PAIRS = {
    "MRPC": (3, 4, 0),
    "SICK-E": (1, 2, 4),
    "SICK-R-supervised": (1, 2, 3),
    "STS-B-supervised": (5, 6, 4),
}
"""Columns of the first and second sentence and the label."""


@pytest.mark.parametrize("name", [*PAIRS, "SNLI"])
def test_every_pair_keeps_its_sides_and_label(name, folder):
    """Against the cells of the files, in any order."""
    task, read = TASKS[name], load(name, folder)
    for number, part in enumerate(read.splits.values()):
        if name == "SNLI":
            split = ("train", "dev", "test")[number]
            files = (folder / "SentEval" / "SNLI" / f"{kind}.{split}" for kind in ("s1", "s2", "labels"))
            rows = zip(*(file.read_text().splitlines() for file in files), strict=True)
        else:
            lines = (folder / task.data.files[number]).read_text().splitlines()
            cells = [line.split("\t") for line in lines if not line.startswith(("Quality", "pair_ID"))]
            rows = [tuple(row[column] for column in PAIRS[name]) for row in cells]
        labels = [label if not task.labels else task.labels[label] for label in part.labels.tolist()]
        found = zip(part.first, part.second, labels, strict=True)
        assert Counter(found) == Counter(
            (" ".join(a.split()), " ".join(b.split()), label if task.labels else float(label))
            for a, b, label in rows
        )


def test_labels_are_those_of_the_files(folder):
    for text, label in zip(
        load("SST2", folder).splits["dev"].first, load("SST2", folder).splits["dev"].labels, strict=True
    ):
        assert any(text.startswith(start) for start in (GOOD if label else BAD))
    assert set(load("TREC", folder).splits["train"].labels) == {1, 3}
    assert load("Length", folder).classes == 2
    assert load("SST5", folder).classes == 5
    assert load("STS-B-supervised", folder).splits["train"].first[0].startswith('"')  # quotes are text


def test_described_tasks_can_be_hashed():
    assert len(set(TASKS.values())) == len(TASKS) and TASKS["SST2"].labels == ("0", "1")


def test_every_task_runs(folder, tmp_path, capsys):
    (tmp_path / "encoder.py").write_text(ENCODER)
    model = open_model(f"{tmp_path}/encoder.py:embed")
    capsys.readouterr()
    result = evaluate(model, read_tasks(TASKS, str(folder)), setting="dev")
    assert list(result.tasks) == [*TASKS, "average of 7 transfer"]
    assert len(capsys.readouterr().err.splitlines()) == 1 + len(TASKS)
    assert not result.complete and any("as published" in note for note in result.notes)
    mean = np.mean([result.tasks[task].value for task in TRANSFER])
    assert result.tasks["average of 7 transfer"].value == pytest.approx(mean, abs=0.01)
    assert result.tasks["MR"].value > 80 and result.tasks["MR"].metric == "dev_accuracy"


def test_each_distinct_sentence_is_encoded_once(folder):
    seen = []

    def embed(sentences):
        seen.extend(sentences)
        return np.eye(3, dtype=np.float32)[np.arange(len(sentences)) % 3]

    read = read_tasks(["MR", "SST2", "SICK-E", "SICK-R-supervised"], str(folder))
    evaluate(open_model(embed), read, setting="dev")
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    ("file", "text", "task", "match"),
    [
        ("TREC/TREC_10.label", "NOPE:x what ?", "TREC", "line 1: expected CLASS"),
        ("SST/binary/sentiment-dev", "fine\t1\nno label", "SST2", "line 2"),
        ("MRPC/msr_paraphrase_test.txt", "h\th\th\th\th\nyes\t1\t2\ta\tb", "MRPC", "line 2"),
        ("SICK/SICK_trial.txt", "h\n1\ta\tb\tx\tNEUTRAL", "SICK-R-supervised", "line 2"),
        ("SNLI/labels.dev", "entailment", "SNLI", "lines; they must have as many"),
        ("probing/past_present.txt", "tr\tPAST\ta\nva\tPRES\tb\nte\tPAST\tc", "Tense", "'PRES' is not among"),
    ],
)
def test_damaged_files_are_named(folder, tmp_path, file, text, task, match):
    import shutil

    copy = tmp_path / "data"
    shutil.copytree(folder, copy)
    (copy / "SentEval" / file).write_text(text + "\n")
    with pytest.raises(UserError, match=match):
        load(task, copy)


def test_names_and_missing_files(folder, tmp_path):
    assert choose_tasks(("sst-2", "sick_e"), "simcse", "test", str(folder))[0] == ["SST2", "SICK-E"]
    with pytest.raises(UserError, match="did you mean 'TREC'"):
        choose_tasks(("TRECK",), "simcse", "test", str(folder))
    (tmp_path / "SentEval").mkdir()
    with pytest.raises(UserError, match=r"MR/rt-polarity\.pos is not there"):
        load("MR", tmp_path)
    chosen, remarks = choose_tasks((), "simcse", "test", str(folder))  # STS12 to STS16 are not in this folder
    assert chosen == ["STS-B", "SICK-R", *TRANSFER] and len(remarks) == 5
    with pytest.raises(UserError, match="no task is left"):
        choose_tasks(("probing",), "simcse", "test", str(tmp_path))


def test_the_settings_are_the_published_ones():
    test, dev = SETTINGS["test"], SETTINGS["dev"]
    assert (test.folds, test.classifier) == (10, ClassifierSettings("adam", 64, 5, 4, 200, 1111))
    assert (dev.folds, dev.classifier) == (5, ClassifierSettings("rmsprop", 128, 3, 2, 200, 1111))


@pytest.mark.full
def test_the_command(folder, tmp_path):
    (tmp_path / "encoder.py").write_text(ENCODER)
    flags = f"--tasks TREC,MRPC --setting dev --eval-data {folder} --out {tmp_path}/out"
    words = f"-m finetune.senteval {tmp_path}/encoder.py:embed {flags}".split()
    done = run_python(words, dict(os.environ), Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "out" / "senteval-dev-function.json").read_text())
    assert set(content["tasks"]) == {"TREC", "MRPC"} and "f1" in content["tasks"]["MRPC"]["scores"]
    assert "[2/2] MRPC" in done.stderr
    words += ["--protocl", "clear"]
    done = run_python(words, dict(os.environ), Path(__file__).parents[3])
    assert (
        done.returncode == 2 and "did you mean --protocol" in done.stderr and "Traceback" not in done.stderr
    )


@pytest.mark.full
@needs_data("SentEval")
@pytest.mark.parametrize("name", TASKS)
def test_the_real_files_have_the_published_sizes(name):
    if absent := [path for path in files(name, DATA) if not path.is_file()]:
        pytest.skip(f"CLEAR_DATA has no {Path(absent[0]).relative_to(DATA)}")
    splits = load(name, DATA).splits
    assert {part: len(splits[part]) for part in splits} == TASKS[name].data.rows


def test_averages_are_of_figures_as_papers_print_them():
    result = Evaluation("senteval", "m", "mean", None, "p", source="w")
    for task in (*SEVEN_TASKS, *TRANSFER):
        assert not any(name.startswith("average of 7 transfer") for name in result.tasks)
        result.add(task, "figure", {"figure": 70.004})
        add_averages(result)
    for name in ("average of 7 STS", "average of 7 transfer"):
        assert result.tasks[name].value == pytest.approx(70, abs=1e-9)
