"""SentEval's supervised tasks: files in its own format, and the command."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from answer_checks import require_answers
from commands import call
from forked_python import run_python
from real_data import DATA, needs_data
from sts_layout import bag_of_words, write_layout

from finetune.encoders.models import open_model
from finetune.results import Evaluation, read
from finetune.senteval.__main__ import main
from finetune.senteval.classifier import ClassifierSettings, PairFeatures
from finetune.senteval.evaluate import (
    DEV_TASKS,
    HEADLINES,
    PRINTED,
    add_averages,
    choose_tasks,
    evaluate,
    read_tasks,
)
from finetune.senteval.protocol import SETTINGS, Accuracy, split
from finetune.senteval.tasks import PROBING, TASKS, TRANSFER, files, load
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS, StsEvaluator
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
    found = load("SNLI", folder).splits
    parts = [found[name] for name in ("train", "dev", "test")]
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
    task, loaded = TASKS[name], load(name, folder)
    for number, part in enumerate(loaded.splits.values()):
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

    found = read_tasks(["MR", "SST2", "SICK-E", "SICK-R-supervised"], str(folder))
    evaluate(open_model(embed), found, setting="dev")
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize(
    ("file", "text", "task", "match"),
    [
        ("TREC/TREC_10.label", "NOPE:x what ?", "TREC", "line 1: expected CLASS"),
        ("SST/binary/sentiment-dev", "fine\t1\nno label", "SST2", "line 2"),
        ("MRPC/msr_paraphrase_test.txt", "h\th\th\th\th\nyes\t1\t2\ta\tb", "MRPC", "line 2"),
        ("SICK/SICK_trial.txt", "h\n1\ta\tb\tx\tNEUTRAL", "SICK-R-supervised", "line 2"),
        ("SNLI/labels.dev", "entailment", "SNLI", "lines; they must have as many"),
        ("SNLI/labels.dev", "\n".join(["maybe"] * 30), "SNLI", "the label 'maybe' is none of entailment, "),
        ("probing/past_present.txt", "tr\tPAST", "Tense", "line 1: expected tr, va or te"),
        ("probing/past_present.txt", "tr\tPAST\ta\nx\tPAST\ta", "Tense", "line 2: expected tr, va or te"),
        ("probing/past_present.txt", "tr\tPAST\ta\nva\tPAST\tb", "Tense", "no line of tr, va or te"),
        ("probing/past_present.txt", "tr\tPAST\ta\nva\tPRES\tb\nte\tPAST\tc", "Tense", "'PRES' is not among"),
    ],
)
def test_damaged_files_are_named(folder, tmp_path, file, text, task, match):
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


def test_protocols_are_those_of_their_papers():
    similar, transfer = ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"], list(TRANSFER)
    supervised = ["SICK-R-supervised", "STS-B-supervised"]
    assert transfer == ["MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"]
    assert {protocol: list(tasks) for protocol, tasks in PRINTED.items()} == {
        "simcse": [*similar, *transfer],
        "senteval": [*similar, *supervised, *transfer, "SST5", "SICK-E"],
        "clear": [*similar[:5], *supervised, *transfer],
    }
    assert HEADLINES == {"simcse": "spearman_all", "senteval": "pearson_mean", "clear": "pearson_mean"}
    assert list(DEV_TASKS) == ["STS-B-dev", "SICK-R-dev", *transfer]
    schemes = {name: task.scheme for name, task in TASKS.items()}
    by_folds = dict.fromkeys(transfer[:4], "nested") | {"TREC": "cross_validated", "MRPC": "cross_validated"}
    others = {"SNLI": "snli"} | dict.fromkeys(supervised, "relatedness")
    assert schemes == dict.fromkeys(TASKS, "split") | by_folds | others
    assert len(PROBING) == 10 and set(PROBING) < set(TASKS)


@pytest.mark.parametrize("protocol", HEADLINES)
def test_similarity_has_the_figure_of_the_protocol(protocol, tmp_path):
    data = write_layout(tmp_path)
    model = open_model(bag_of_words)
    result = evaluate(model, read_tasks([*SEVEN_TASKS, "STS-B-dev"], str(data)), protocol, remarks=["so"])
    expected = StsEvaluator(data).evaluate(bag_of_words)
    for task in (*SEVEN_TASKS, "STS-B-dev"):
        one, whole = result.tasks[task], expected[task]
        assert (one.metric, one.value) == (HEADLINES[protocol], whole[HEADLINES[protocol]])
        assert one.details == {"subsets": whole["subsets"], "pairs": whole["pairs"]}
        assert one.scores == {key: whole[key] for key in whole if "_" in key}
    mean = np.mean([round(result.tasks[task].value, 2) for task in SEVEN_TASKS])
    assert result.tasks["average of 7 STS"].value == pytest.approx(mean, abs=1e-9)
    assert "STS-B has 30 pairs here, 1,379 as published" in result.notes and result.notes[-1] == "so"
    assert result.protocol == f"{protocol}, test setting, seed 1111" and result.evaluation == "senteval"


@pytest.mark.parametrize("setting", ["test", "dev"])
def test_features_sizes_and_settings_of_every_scheme(folder, tmp_path, monkeypatch, setting):
    """What the fits are given: u of sentences, [|u - v|, u * v] of pairs, in the order of the splits."""
    (tmp_path / "encoder.py").write_text(ENCODER)
    model, seen = open_model(f"{tmp_path}/encoder.py:embed"), []

    def stand_in(tested):
        def fit(features, labels, *given, **named):
            seen.append((features, labels, given, named))
            answers = labels[-tested(labels, *given) :] != 1
            return Accuracy(70.0, 60.0, [1e-3], answers.astype(np.int64))

        return fit

    place = "finetune.senteval.evaluate"
    monkeypatch.setattr(f"{place}.nested", stand_in(lambda labels, *_: len(labels)))
    monkeypatch.setattr(f"{place}.cross_validated", stand_in(lambda labels, size, *_: len(labels) - size))
    monkeypatch.setattr(f"{place}.split", stand_in(lambda labels, sizes, *_: sizes[-1]))
    figures = {"pearson": 1.0, "spearman": 2.0, "dev_pearson": 3.0, "dev_spearman": 4.0}
    fit = lambda *given: seen.append((*given[:2], given[2:], {})) or (figures, np.ones(30))  # noqa: E731
    monkeypatch.setattr(f"{place}.relatedness", fit)
    names = ["MR", "TREC", "MRPC", "SST5", "SICK-E", "SNLI", "Length", "SICK-R-supervised"]
    protocol = {"test": "simcse", "dev": "clear"}[setting]
    result = evaluate(model, read_tasks(names, str(folder)), protocol, setting, seed=7)
    assert result.evaluation == {"test": "senteval", "dev": "senteval-dev"}[setting]
    classes = {"MR": 2, "TREC": 6, "MRPC": 2, "SST5": 5, "SICK-E": 3, "SNLI": 3, "Length": 2}
    folds = {"test": 10, "dev": 5}[setting]
    for name, (features, labels, given, named) in zip(names, seen, strict=True):
        parts = list(load(name, folder).splits.values())
        sides = ["first"] if parts[0].second is None else ["first", "second"]
        first, *second = (
            model.encode([text for part in parts for text in getattr(part, side)]) for side in sides
        )
        if second and name != "SNLI":
            first = np.concatenate([np.abs(first - second[0]), first * second[0]], 1)
        if name != "SNLI":
            np.testing.assert_array_equal(features.cpu().numpy(), first)
        assert labels.tolist() == [label for part in parts for label in part.labels.tolist()]
        sizes = tuple(map(len, parts))
        task = result.tasks[name]
        if name == "SICK-R-supervised":
            stops_by = {"test": "spearman", "dev": "pearson"}[setting]
            assert given == (sizes, 7, stops_by)
            metric = stops_by if setting == "test" else f"dev_{stops_by}"
            assert (task.metric, task.value, task.scores) == (metric, figures[metric], figures)
            continue
        *counts, how = given
        expected = {"MR": [], "TREC": [sizes[0]], "MRPC": [sizes[0]]}.get(name, [sizes])
        assert counts == [*expected, classes[name]] and how.folds == folds and how.classifier.seed == 7
        wanted = SETTINGS[setting].with_classifier(seed=7)
        if name == "SNLI":
            wanted = wanted.with_classifier(max_epoch=15, epoch_size=1)
            assert named == {"grid": (1e-9,)}
        assert how == wanted and (name == "SNLI" or not named)
        scores = {"accuracy": 60.0, "dev_accuracy": 70.0}
        if name == "MRPC":  # all answers are wrong: 0 is answered to 1, and 1 to 0
            scores["f1"] = 0.0
        assert task.scores == scores and task.details == {"l2": [1e-3]}
        metric = "accuracy" if setting == "test" else "dev_accuracy"
        assert (task.metric, task.value) == (metric, scores[metric])
        assert (task.answers is None) == (setting == "dev")


def test_groups_of_tasks_and_what_is_not_there(folder, tmp_path):
    def choose(*words, protocol="simcse", setting="test"):
        return choose_tasks(words, protocol, setting, str(folder))

    assert choose("MR", "transfer", "MR")[0] == ["MR", *(task for task in TRANSFER if task != "MR")]
    assert choose("probing") == (list(PROBING), [])
    assert choose("all")[0][:2] == ["STS-B", "SICK-R"] and set(choose("all")[0]) > set(TASKS)
    assert choose("sts")[0] == ["STS-B", "SICK-R"]
    found, remarks = choose(setting="dev")
    assert found == list(DEV_TASKS) and not remarks
    found, remarks = choose(protocol="clear")
    assert found == ["SICK-R-supervised", "STS-B-supervised", *TRANSFER]
    assert remarks == [f"STS1{n} left out: its data is not there" for n in range(2, 7)]


def test_the_command_in_this_process(folder, tmp_path, capsys):
    (tmp_path / "encoder.py").write_text(ENCODER)
    out, model = tmp_path / "out", f"{tmp_path}/encoder.py:embed"
    flags = {"setting": "dev", "eval_data": folder, "out": out}
    assert call(main, model, tasks="MRPC", **flags) == 0
    found = read(out / "senteval-dev-function.json")
    assert list(found.tasks) == ["MRPC"] and found.protocol == "simcse, dev setting, seed 1111"
    assert "f1" in found.tasks["MRPC"].scores and "note:" not in capsys.readouterr().err
    (only := tmp_path / "few" / "SentEval").mkdir(parents=True)
    shutil.copytree(folder / "SentEval" / "MRPC", only / "MRPC")
    assert call(main, model, tasks="transfer", **flags | {"eval_data": only.parent, "seed": 3}) == 0
    assert "note: TREC left out: its data is not there" in capsys.readouterr().err
    (found,) = (read(path) for path in out.glob("senteval-dev-function-*.json"))
    assert found.protocol == "simcse, dev setting, seed 3"
    assert "MR left out: its data is not there" in found.notes
