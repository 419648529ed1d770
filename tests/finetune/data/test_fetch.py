"""Fetching data sets from folders in the formats of the hub."""

import csv
import json
import socket
import time

import datasets
import pytest
from commands import call
from huggingface_hub import constants
from real_data import DATA

from finetune import data as data_command
from finetune.cola_probe import read as read_cola
from finetune.data import choose, fetch_set, state_of
from finetune.nli_distance import load as load_nli
from finetune.zh_sts import read as read_chinese
from pretrain.benchmarks.files import lines
from pretrain.common.errors import UserError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    datasets.disable_progress_bars()


def parquet(folder, split, rows, features=None):
    (folder / "data").mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(rows, features=features).to_parquet(
        folder / "data" / f"{split}-00000-of-00001.parquet"
    )


def classes(columns, **labels):
    features = {column: datasets.Value("string") for column in columns}
    return datasets.Features(
        features | {column: datasets.ClassLabel(names=names) for column, names in labels.items()}
    )


def test_anli_from_parquet(tmp_path):
    source = tmp_path / "anli"
    features = classes(
        ("uid", "premise", "hypothesis", "reason"), label=["entailment", "neutral", "contradiction"]
    )
    rows = [
        {"uid": f"u{n}", "premise": "p “q”", "hypothesis": f"h\t{n}", "label": n % 3, "reason": ""}
        for n in range(6)
    ]
    for split in ("train_r1", "dev_r1", "test_r1"):
        parquet(source, split, rows, features)
    said = fetch_set("ANLI/R1", tmp_path / "out", str(source))
    assert len(said) == 3 and "6 rows" in said[0]
    written = [json.loads(line) for line in lines(tmp_path / "out" / "ANLI" / "R1" / "train.jsonl")]
    assert written[1] == {"uid": "u1", "context": "p “q”", "hypothesis": "h\t1", "label": "n"}
    assert load_nli("ANLI", tmp_path / "out").contradicts.sum() == 4
    assert state_of(choose("ANLI/R1")[0], tmp_path / "out") == ("complete", [])


def test_label_numbers_are_read_in_the_sets_own_order(tmp_path):
    """A copy may number its labels in another order than the set that the hub has."""
    source, columns = tmp_path / "anli", ("uid", "premise", "hypothesis", "reason")
    features = classes(columns, label=["contradiction", "entailment", "neutral"])
    for split in ("train_r1", "dev_r1", "test_r1"):
        parquet(source, split, [dict.fromkeys(columns, "a") | {"label": n} for n in range(3)], features)
    fetch_set("ANLI/R1", tmp_path / "out", str(source))
    written = [json.loads(line)["label"] for line in lines(tmp_path / "out" / "ANLI" / "R1" / "train.jsonl")]
    assert written == ["c", "e", "n"]


def test_glue_from_a_folder_with_configurations(tmp_path):
    source = tmp_path / "glue"
    (source / "cola").mkdir(parents=True)
    for split, labels in (("train", (0, 1)), ("validation", (0, 1)), ("test", (-1, -1))):
        rows = [
            {"sentence": f'He said "no" {n}.', "label": label, "idx": n} for n, label in enumerate(labels)
        ]
        (source / "cola" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (source / "rte").mkdir()
    (source / "rte" / "train.jsonl").write_text("{}\n")
    files = "".join(
        f"  - {{split: {split}, path: cola/{split}.jsonl}}\n" for split in ("train", "validation", "test")
    )
    (source / "README.md").write_text(
        "---\nconfigs:\n- config_name: rte\n  data_files:\n  - {split: train, path: rte/train.jsonl}\n- "
        "config_name: cola\n"
        f"  data_files:\n{files}---\n"
    )
    fetch_set("GLUE/CoLA", tmp_path / "out", str(source))
    rows = read_cola("train", tmp_path / "out")
    assert rows.first == ['He said "no" 0.', 'He said "no" 1.'] and rows.targets.tolist() == [0, 1]
    assert next(lines(tmp_path / "out" / "GLUE" / "CoLA" / "test.tsv")) == "index\tsentence"


@pytest.mark.parametrize(
    "name,columns,first,header",
    [
        ("RTE", "sentence1 sentence2", "0\ta b\tc\tnot_entailment", "index\tsentence1\tsentence2\tlabel"),
        ("QNLI", "question sentence", "0\ta b\tc\tnot_entailment", "index\tquestion\tsentence\tlabel"),
        ("MRPC", "sentence1 sentence2", "0\ta b\tc\t1", "index\t#1 String\t#2 String\tQuality"),
        ("QQP", "question1 question2", "0\ta b\tc\t1", "index\tquestion1\tquestion2\tis_duplicate"),
    ],
)
def test_glue_files_have_the_official_columns(tmp_path, name, columns, first, header):
    columns, name = columns.split(), f"GLUE/{name}"
    rows = [{columns[0]: "a\tb", columns[1]: "c", "label": 1, "idx": 0}]
    for split in ("train", "validation", "test"):
        used = rows if split != "test" else [rows[0] | {"label": -1}]
        parquet(tmp_path / "hub", split, used)
    fetch_set(name, tmp_path, str(tmp_path / "hub"))
    assert list(lines(tmp_path / name / "train.tsv")) == [header, first]
    if (DATA / name / "train.tsv").is_file():
        assert set(header.split("\t")[1:]) <= set(next(lines(DATA / name / "train.tsv")).split("\t"))


def test_mnli_and_its_dev_set(tmp_path):
    source = tmp_path / "hub"
    names = ["entailment", "neutral", "contradiction"]
    for split in ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"):
        parquet(source, split, [{"premise": "p", "hypothesis": "h", "label": 2, "idx": 0}])
    fetch_set("GLUE/MNLI", tmp_path, str(source))
    for part, width in (("train", 4), ("dev_matched", 4), ("test_mismatched", 3)):
        header, row = list(lines(tmp_path / "GLUE" / "MNLI" / f"{part}.tsv"))
        assert len(header.split("\t")) == len(row.split("\t")) == width
        assert row.split("\t")[1:3] == ["p", "h"] and (width == 3 or row.split("\t")[-1] == names[2])
    fetch_set("NLI/MNLI-dev", tmp_path, str(source))
    row = json.loads(next(lines(tmp_path / "NLI" / "mnli_dev.jsonl")))
    assert row == {"premise": "p", "hypothesis": "h", "label": "contradiction"}


def test_other_formats(tmp_path):
    source = tmp_path / "bank"
    source.mkdir()
    for split in ("train", "test"):
        (source / f"{split}.jsonl").write_text(
            json.dumps({"text": 'a, "b"', "label": 3, "label_text": "card"}) + "\n"
        )
    fetch_set("intents/BANKING77", tmp_path, str(source))
    with open(tmp_path / "intents" / "BANKING77" / "test.csv", newline="") as file:
        assert list(csv.reader(file)) == [["text", "category"], ['a, "b"', "card"]]
    for split in ("train", "validation", "test"):
        rows = [{"sentence1": "一", "sentence2": "二", "score": score} for score in (3.0, 3.0, 1.0)]
        parquet(tmp_path / "zh_hub", split, rows)
    fetch_set("zh/STS-B", tmp_path, str(tmp_path / "zh_hub"))
    assert read_chinese(tmp_path / "zh" / "STS-B" / "cnsd-sts-test.txt").gold.tolist() == [3, 3, 1]
    simcse = tmp_path / "simcse"
    simcse.mkdir()
    (simcse / "train.csv").write_text('sent0,sent1,hard_neg\n"a, b",c,d\n')
    fetch_set("NLI/SimCSE", tmp_path, str(simcse))
    assert load_nli("triplets", tmp_path).premises == ["a, b"]


def test_files_that_are_there_stay_unless_replaced(tmp_path, capsys, monkeypatch):
    source = tmp_path / "hub"
    monkeypatch.setenv("HOME", str(tmp_path))
    for split in ("train", "validation", "test"):
        parquet(source, split, [{"sentence1": "new", "sentence2": "二", "score": 3.0}])
    path = tmp_path / "zh" / "STS-B" / "cnsd-sts-dev.txt"
    path.parent.mkdir(parents=True)
    path.write_text("old")
    assert call(data_command.fetch, "zh/sts-b", str(tmp_path), source=str(source)) == 0
    printed = capsys.readouterr()
    assert path.read_text() == "old" and "is there already; --replace" in printed.err
    assert "zh/STS-B  " in printed.out
    call(data_command.fetch, "zh/sts-b", str(tmp_path), source="~/hub", replace=True)
    assert path.read_text().startswith("dev-0000||new")


def test_without_network_the_message_says_what_to_do(tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise ConnectionError("Couldn't reach the Hub\nand much more")

    monkeypatch.setattr(datasets, "load_dataset", no_network)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # what the cache holds, without asking the hub
    with pytest.raises(
        UserError, match=r"'train' of nyu-mll/glue: Couldn't reach the Hub\. Without network, give --source"
    ):
        fetch_set("GLUE/RTE", tmp_path)


@pytest.mark.parametrize("answer", ["refused", "none"])
def test_a_hub_that_does_not_answer_is_said_soon(tmp_path, monkeypatch, answer):
    monkeypatch.setattr("augment.core.pretrained.SECONDS", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *_, **__: pytest.fail("its libraries would try on and on")
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        if answer == "refused":
            server.close()
        begun = time.monotonic()
        with pytest.raises(
            UserError, match=r"nyu-mll/glue: http://127\.0\.0\.1:\d+ does not answer.*give --source"
        ):
            fetch_set("GLUE/RTE", tmp_path)
    assert time.monotonic() - begun < 25


def test_fetch_mistakes_are_one_message(tmp_path):
    with pytest.raises(UserError, match="SentEval/STS-B is not on the hub in a form that can be written"):
        fetch_set("SentEval/STS-B", tmp_path)  # raw there, tokens here
    with pytest.raises(UserError, match="not on the hub in a form"):
        fetch_set("clustering/tweet", tmp_path)
    with pytest.raises(UserError, match="there is no such folder"):
        fetch_set("GLUE/RTE", tmp_path, "./nowhere")
    source = tmp_path / "hub"
    parquet(source, "train", [{"sentence1": "a", "text": "b", "label": 0, "idx": 0}])
    with pytest.raises(UserError, match="no column 'sentence2'; it has sentence1, text"):
        fetch_set("GLUE/RTE", tmp_path, str(source))
    parquet(source, "train", [{"sentence1": "a", "sentence2": "b", "label": 7, "idx": 0}])
    with pytest.raises(UserError, match="a label is 7; there are words for 0 to 1"):
        fetch_set("GLUE/RTE", tmp_path, str(source))
    parquet(source, "train", [{"sentence1": "a", "sentence2": "b", "label": 0, "idx": 0}])
    with pytest.raises(UserError, match="cannot load the split 'validation'"):
        fetch_set("GLUE/RTE", tmp_path, str(source))
    assert (tmp_path / "GLUE" / "RTE" / "train.tsv").is_file()  # what could be had is there
    with pytest.raises(UserError, match="fetch them one by one"):
        call(data_command.fetch, "GLUE", str(tmp_path))
