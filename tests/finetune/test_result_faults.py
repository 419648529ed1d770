"""Every fault at every operation of what evaluations write: results, vectors, states, chunks."""

import json
import re
from pathlib import Path

import numpy as np
import torch
from model_folders import make_tokenizer
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from write_faults import Subject, require_all

from finetune import derived
from finetune.answers import Answers
from finetune.encoders import kept_vectors
from finetune.encoders.kept_vectors import KeptVectors
from finetune.results import Evaluation, read, write
from finetune.tuning.finetuning import read_tensors, write_tensors
from pretrain.commands.sweep import table
from pretrain.common.errors import UserError


def evaluation(task: str) -> Evaluation:
    result = Evaluation("sts", "a model", "cls", None, "cosine", source="weights")
    kept = Answers.of([0, 1, 1], np.array([0, 1, 0]), "accuracy", task)
    result.add(task, "spearman", {"spearman": 0.5}, answers=kept)
    return result


def test_results(tmp_path):
    """Tasks of an earlier file stay beside the new ones, each with its answers."""

    def find(folder: Path) -> str:
        tasks = read(folder / "report" / "sts-cls.json").tasks
        assert [*tasks] in (["first"], ["first", "second"])
        for name, task in tasks.items():
            assert task.answers.data == name
        return "new" if "second" in tasks else "old"

    subject = Subject(
        act=lambda folder: write(evaluation("second"), folder / "report"),
        find=find,
        make=lambda folder: write(evaluation("first"), folder / "report"),
        errors=(UserError,),
    )
    assert require_all(subject, tmp_path, least=4).found == {"old", "new"}


def test_the_state_of_a_fine_tuning(tmp_path):
    states = {"old": torch.zeros(300), "new": torch.ones(300)}

    def find(folder: Path) -> str:
        found = read_tensors(folder / "state.pt")["weight"]
        return next(name for name, state in states.items() if found.equal(state))

    subject = Subject(
        act=lambda folder: write_tensors(folder / "state.pt", {"weight": states["new"]}),
        find=find,
        make=lambda folder: write_tensors(folder / "state.pt", {"weight": states["old"]}),
    )
    require_all(subject, tmp_path, least=4)


def test_kept_vectors(tmp_path, monkeypatch):
    """What is kept is what was encoded; a disk that is full costs the file, and not the evaluation."""
    monkeypatch.setattr(kept_vectors, "PARTIAL_SECONDS", -1.0)  # a killed process is gone for long

    def vectors(folder: Path, texts: list[str]) -> list[str]:
        encoded: list[str] = []

        def encode(wanted, poolings):
            encoded.extend(wanted)
            return {name: np.array([[len(text)] * 4 for text in wanted], np.float32) for name in poolings}

        found = KeptVectors(folder / "vectors", {}).vectors(texts, ["cls"], encode)["cls"]
        assert found.tolist() == [[len(text)] * 4 for text in texts]
        return encoded

    def act(folder: Path) -> None:
        vectors(folder, ["one", "three"])
        kept_vectors.remove_oldest(folder / "vectors", 1 << 20)

    def find(folder: Path) -> str:
        kept = [kept_vectors.read_file(path) for path in (folder / "vectors").glob("*/*.vectors")]
        return "new" if any(one is not None and len(one[0]) == 2 for one in kept) else "old"

    subject = Subject(act, find, same=lambda path: re.sub(r"\w{32}\.vectors", "X.vectors", path))
    require_all(subject, tmp_path, least=8)


def test_what_is_derived_from_a_model(tmp_path):
    """A folder that sentence-transformers writes by itself."""
    tokenizer = make_tokenizer(["a man rides the horse"])
    tables = {which: np.full((len(tokenizer), 2), n, np.float32) for n, which in enumerate(("old", "new"))}

    def write_table(folder: Path, which: str) -> None:
        words = StaticEmbedding(tokenizer, tables[which])
        derived.save(SentenceTransformer(modules=[words], device="cpu"), folder / "model")

    def find(folder: Path) -> str:
        assert (folder / "model" / "modules.json").is_file()
        (weights,) = (folder / "model").rglob("model.safetensors")
        (table,) = load_file(weights).values()
        return next(
            which for which, expected in tables.items() if table.numpy().tolist() == expected.tolist()
        )

    subject = Subject(
        act=lambda folder: write_table(folder, "new"),
        find=find,
        make=lambda folder: write_table(folder, "old"),
        errors=(UserError,),
    )
    assert require_all(subject, tmp_path / "cases", least=12, every=9).found == {"old", "new"}


def test_the_table_of_a_sweep(tmp_path, monkeypatch):
    """The figures come last: where they are new, the table is."""
    monkeypatch.setattr(table, "tabulate", lambda content: content["which"] * 200)

    def find(folder: Path) -> str:
        text = (folder / "table.md").read_text()
        assert text in ("old" * 200, "new" * 200)
        figures = json.loads((folder / "results.json").read_bytes())["which"]
        assert figures == "old" or text == "new" * 200
        return figures

    subject = Subject(
        act=lambda folder: table.write({"which": "new"}, folder),
        find=find,
        make=lambda folder: table.write({"which": "old"}, folder),
    )
    require_all(subject, tmp_path, least=8)
