"""Every fault at every operation of what the judge writes: the test, and averaged weights."""

import json
import shutil
from pathlib import Path

from model_folders import make_tokenizer, save_bert, save_run
from safetensors.torch import load_file
from write_faults import Subject, require_all

from finetune.judge.averaging import average
from finetune.judge.heldout import HALVES, make_test
from finetune.nanobeir import FOLDER, read
from pretrain.config.data import data_config
from pretrain.export.sums import WEIGHTS, changed_files


def test_a_test_of_a_text(tmp_path):
    rows = [{"title": f"title {n}", "text": f"this is text {n} of {n * n} in all"} for n in range(150)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = data_config({"sources": str(tmp_path / "mine.jsonl")}).sources

    def find(folder: Path) -> str:
        if not (folder / "judge").exists():
            return "old"
        counts = json.loads((folder / "judge" / "about.json").read_text())["counts"]
        trained = (folder / "judge" / "train-0.jsonl").read_text().splitlines()
        assert len(trained) == counts["training"] > 50
        sets = [read(folder / "judge" / FOLDER / half) for half in HALVES]
        assert sum(len(one.queries) for one in sets) == counts["queries"]
        return "new"

    subject = Subject(act=lambda folder: make_test(sources, folder / "judge", 0, True), find=find)
    require_all(subject, tmp_path / "cases", least=12, every=5)


def test_averaged_weights_in_place_of_what_was_trained(tmp_path):
    tokenizer = make_tokenizer()
    start = save_bert(tmp_path / "start", tokenizer, num_hidden_layers=1)
    trained = save_run(save_bert(tmp_path / "bert", tokenizer, num_hidden_layers=1), tmp_path / "run", "mean")
    before = load_file(trained / "export" / WEIGHTS)

    def make(folder: Path) -> None:
        shutil.copytree(trained / "export", folder / "best")

    def find(folder: Path) -> str:
        found = load_file(folder / "best" / WEIGHTS)
        policy = json.loads((folder / "best" / "clear.json").read_text())
        assert found.keys() == before.keys() and not changed_files(folder / "best")
        return "new" if "average" in policy else "old"

    subject = Subject(
        lambda folder: average(str(start), trained / "export", 0.5, folder / "best"), find, make
    )
    assert require_all(subject, tmp_path / "cases", least=12, every=9).found == {"old", "new"}
