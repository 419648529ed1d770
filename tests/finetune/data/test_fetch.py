"""Fetching data sets from folders in the formats of the hub."""

import csv
import json
import socket
import time
from pathlib import Path

import datasets
import pytest
from commands import call
from huggingface_hub import constants
from real_data import DATA, needs_data

from finetune.cola_probe import read as read_cola
from finetune.data import __main__ as data_command
from finetune.data.catalogue import check, choose
from finetune.data.fetch import fetch
from finetune.nli_distance import load as load_nli
from finetune.senteval.preprocessing import treebank
from finetune.senteval.tasks import load as load_senteval
from finetune.zh_sts import read as read_chinese
from pretrain.benchmarks.files import csv_columns, lines
from pretrain.common.errors import UserError

TRIPLET = ("sent0", "sent1", "hard_neg")


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
    said = fetch("ANLI/R1", tmp_path / "out", str(source))
    assert len(said) == 3 and "6 rows" in said[0]
    written = [json.loads(line) for line in lines(tmp_path / "out" / "ANLI" / "R1" / "train.jsonl")]
    assert written[1] == {"uid": "u1", "context": "p “q”", "hypothesis": "h\t1", "label": "n"}
    assert load_nli("ANLI", tmp_path / "out").contradicts.sum() == 4
    found = check(choose("ANLI/R1")[0], tmp_path / "out")
    assert found.state == "incomplete" and "train: 6 rows, 16,946 as published" in found.details


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
    fetch("GLUE/CoLA", tmp_path / "out", str(source))
    rows = read_cola("train", tmp_path / "out")
    assert rows.first == ['He said "no" 0.', 'He said "no" 1.'] and rows.targets.tolist() == [0, 1]
    assert next(lines(tmp_path / "out" / "GLUE" / "CoLA" / "test.tsv")) == "index\tsentence"


QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
MRPC = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


@pytest.mark.parametrize(
    "name,columns,first,header",
    [
        ("RTE", "sentence1 sentence2", "0\ta b\tc\tnot_entailment", "index\tsentence1\tsentence2\tlabel"),
        ("QNLI", "question sentence", "0\ta b\tc\tnot_entailment", "index\tquestion\tsentence\tlabel"),
        ("MRPC", "sentence1 sentence2", "1\tn/a\tn/a\ta b\tc", MRPC),
        ("QQP", "question1 question2", "0\tn/a\tn/a\ta b\tc\t1", QQP),
    ],
)
def test_glue_files_have_the_official_columns(tmp_path, name, columns, first, header):
    columns, name = columns.split(), f"GLUE/{name}"
    rows = [{columns[0]: "a\tb", columns[1]: "c", "label": 1, "idx": 0}]
    for split in ("train", "validation", "test"):
        used = rows if split != "test" else [rows[0] | {"label": -1}]
        parquet(tmp_path / "hub", split, used)
    fetch(name, tmp_path, str(tmp_path / "hub"))
    assert list(lines(tmp_path / name / "train.tsv")) == [header, first]
    if (DATA / name / "train.tsv").is_file():
        assert next(lines(DATA / name / "train.tsv")) == header


def test_mnli_and_its_dev_set(tmp_path):
    source = tmp_path / "hub"
    names = ["entailment", "neutral", "contradiction"]
    for split in ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"):
        parquet(source, split, [{"premise": "p", "hypothesis": "h", "label": 2, "idx": 0}])
    fetch("GLUE/MNLI", tmp_path, str(source))
    for part, width in (("train", 12), ("dev_matched", 16), ("test_mismatched", 10)):
        header, row = list(lines(tmp_path / "GLUE" / "MNLI" / f"{part}.tsv"))
        assert len(header.split("\t")) == len(row.split("\t")) == width
        assert row.split("\t")[8:10] == ["p", "h"] and (width == 10 or row.split("\t")[-1] == names[2])
    fetch("NLI/MNLI-dev", tmp_path, str(source))
    row = json.loads(next(lines(tmp_path / "NLI" / "mnli_dev.jsonl")))
    assert row == {"premise": "p", "hypothesis": "h", "label": "contradiction"}


def test_snli_drops_pairs_without_agreement(tmp_path):
    rows = [{"premise": "p", "hypothesis": f"h{n}", "label": label} for n, label in enumerate((0, -1, 2))]
    for split in ("train", "validation", "test"):
        parquet(tmp_path / "hub", split, rows)
    fetch("SentEval/SNLI", tmp_path, str(tmp_path / "hub"))
    folder = tmp_path / "SentEval" / "SNLI"
    assert list(lines(folder / "labels.dev")) == ["entailment", "contradiction"]
    assert list(lines(folder / "s2.dev")) == ["h0 ", "h2 "]
    assert load_nli("SNLI", tmp_path).entailed == ["h0 "]


def test_snli_is_written_byte_for_byte_as_senteval_has_it(tmp_path):
    """Expected bytes: SentEval's tokenizer.sed on the same lines (GNU sed; the C and UTF-8 locales agree)."""
    pairs = [('Two girls, aged 5, don\'t go to a "café".', 'A "d\'ye cannot" (sign)...')]
    pairs += [("It's the kids' $5.", "Stop-- now! é")]
    expected = {
        "s1": "Two girls , aged 5 , do n't go to a `` caf\u00e9 '' . \nIt 's the kids ' $ 5 . \n",
        "s2": "A `` d' ye can not '' ( sign ) ... \nStop -- now ! \u00e9 \n",
    }
    for split in ("train", "validation", "test"):
        parquet(tmp_path / "hub", split, [{"premise": a, "hypothesis": b, "label": 2} for a, b in pairs])
    fetch("SentEval/SNLI", tmp_path, str(tmp_path / "hub"))
    for kind, text in expected.items():
        content = (tmp_path / "SentEval" / "SNLI" / f"{kind}.train").read_bytes()
        assert content == text.encode()
    read = load_senteval("SNLI", tmp_path).splits["train"]
    # SentEval's loadFile
    official = [" ".join(line.split()) for line in content.decode("latin-1").splitlines()]
    assert sorted(read.second) == sorted(official) and "Stop -- now ! Ã©" in official


@needs_data("NLI/nli_triplets_from_snli.csv", "SentEval/SNLI")
def test_raw_sentences_become_those_of_the_published_files():
    """SNLI's dev and test sentences, raw in the triplets; 350 of them are not in SentEval's dev and test
    under any spelling."""
    raw = {
        cell for row in csv_columns(Path(DATA, "NLI", "nli_triplets_from_snli.csv"), *TRIPLET) for cell in row
    }
    files = [
        Path(DATA, "SentEval", "SNLI", f"{kind}.{part}") for kind in ("s1", "s2") for part in ("dev", "test")
    ]
    published = {line for file in files for line in lines(file)}
    found = sum(treebank(sentence) in published for sentence in raw)
    assert found >= 17_000 and len(raw) - found < 400


def test_other_formats(tmp_path):
    source = tmp_path / "bank"
    source.mkdir()
    for split in ("train", "test"):
        (source / f"{split}.jsonl").write_text(
            json.dumps({"text": 'a, "b"', "label": 3, "label_text": "card"}) + "\n"
        )
    fetch("intents/BANKING77", tmp_path, str(source))
    with open(tmp_path / "intents" / "BANKING77" / "test.csv", newline="") as file:
        assert list(csv.reader(file)) == [["text", "category"], ['a, "b"', "card"]]
    for split in ("train", "validation", "test"):
        parquet(tmp_path / "zh_hub", split, [{"sentence1": "一", "sentence2": "二", "score": 3.0}] * 2)
    fetch("zh/STS-B", tmp_path, str(tmp_path / "zh_hub"))
    assert read_chinese(tmp_path / "zh" / "STS-B" / "cnsd-sts-test.txt").gold.tolist() == [3, 3]
    simcse = tmp_path / "simcse"
    simcse.mkdir()
    (simcse / "train.csv").write_text('sent0,sent1,hard_neg\n"a, b",c,d\n')
    fetch("NLI/SimCSE", tmp_path, str(simcse))
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
        fetch("GLUE/RTE", tmp_path)


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
            fetch("GLUE/RTE", tmp_path)
    assert time.monotonic() - begun < 25


def test_fetch_mistakes_are_one_message(tmp_path):
    with pytest.raises(UserError, match="SentEval/STS-B is not on the hub in a form that can be written"):
        fetch("SentEval/STS-B", tmp_path)  # raw there, tokens here
    with pytest.raises(UserError, match="not on the hub in a form"):
        fetch("clustering/tweet", tmp_path)
    with pytest.raises(UserError, match="there is no such folder"):
        fetch("GLUE/RTE", tmp_path, "./nowhere")
    source = tmp_path / "hub"
    parquet(source, "train", [{"sentence1": "a", "text": "b", "label": 0, "idx": 0}])
    with pytest.raises(UserError, match="no column 'sentence2'; it has sentence1, text"):
        fetch("GLUE/RTE", tmp_path, str(source))
    parquet(source, "train", [{"sentence1": "a", "sentence2": "b", "label": 7, "idx": 0}])
    with pytest.raises(UserError, match="a label is 7; there are words for 0 to 1"):
        fetch("GLUE/RTE", tmp_path, str(source))
    parquet(source, "train", [{"sentence1": "a", "sentence2": "b", "label": 0, "idx": 0}])
    with pytest.raises(UserError, match="cannot load the split 'validation'"):
        fetch("GLUE/RTE", tmp_path, str(source))
    assert (tmp_path / "GLUE" / "RTE" / "train.tsv").is_file()  # what could be had is there
    with pytest.raises(UserError, match="fetch them one by one"):
        call(data_command.fetch, "GLUE", str(tmp_path))
