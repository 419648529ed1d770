"""Every fault at every operation of what commands beside training write into the folders they are given."""

import json
from pathlib import Path

import torch
import yaml
from commands import call
from model_folders import write_function
from safetensors.torch import load_file
from write_faults import Subject, require_all

from pretrain.commands.convert import convert
from pretrain.commands.mine import SUMMARY, TRIPLES, main


def test_mined_triples(tmp_path):
    """Their summary comes last."""
    model = write_function(tmp_path / "model.py", "[len(t), t.count('e'), 1]")
    pairs = tmp_path / "pairs.jsonl"
    texts = ["a dog", "the eel sees", "trees", "a cat sat there", "eleven geese"]
    pairs.write_text("".join(json.dumps({"text": t, "positive": f"{t} now"}) + "\n" for t in texts))

    def mine(folder: Path, negatives: int) -> None:
        call(main, model, pairs=pairs, out=folder / "out", num_negatives=negatives)

    def find(folder: Path) -> str:
        about = yaml.safe_load((folder / "out" / SUMMARY).read_text())
        rows = [json.loads(line) for line in (folder / "out" / TRIPLES).read_text().splitlines()]
        assert {row["text"] for row in rows} == set(texts)
        asked = about["options"]["num_negatives"]
        assert asked == 1 or len(rows) == about["counts"]["triples"] > len(texts)
        return {1: "old", 2: "new"}[asked]

    subject = Subject(lambda folder: mine(folder, 2), find, lambda folder: mine(folder, 1))
    assert require_all(subject, tmp_path / "cases", least=10, every=2).found == {"old", "new"}


def test_converted_weights(tmp_path):
    """Written by a library, into a hidden file: of its own operations the system is asked for none."""
    weights = {"a": torch.arange(6.0), "b": torch.ones(2, 2)}

    def make(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        torch.save(weights, folder / "pytorch_model.bin")

    def find(folder: Path) -> str:
        path = folder / "model.safetensors"
        if not path.exists():
            return "old"
        assert all(tensor.equal(weights[name]) for name, tensor in load_file(path).items())
        return "new"

    cases = require_all(Subject(convert, find, make), tmp_path, least=4)
    assert cases.found == {"old", "new"}
