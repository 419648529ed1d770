"""A run beside a frozen encoder: what it says, saves, records and keeps of vectors, and how it resumes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from run_helpers import command, curve, finish, records, start
from safetensors.torch import load_file, save_file
from test_bad_input import refused

from augment.spec.resources import resource_hash
from pretrain.checkpoint import store
from pretrain.checkpoint.store import read_tensors
from pretrain.data.tokenizer import load_tokenizer
from pretrain.model.encoder import build_encoder


def guide_for(data: Path, folder: Path) -> Path:
    """A model folder of a small encoder with random weights, and the tokenizer of the data."""
    torch.manual_seed(5)
    tokenizer = load_tokenizer(data)
    sizes = {"type": "bert", "layers": 1, "hidden_size": 16, "heads": 2, "max_positions": 64}
    build_encoder(sizes, tokenizer).lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.full
def test_it_resumes_with_the_same_guide_wherever_that_lies_and_with_no_other(tiny_data, tmp_path):
    run, guide = tmp_path / "run", guide_for(tiny_data, tmp_path / "guide")
    flags = {"train__steps": 4, "evaluate__every": 0, "checkpoint__every": 2, "checkpoint__keep": 9}

    def words(guide: Path, **more: str) -> list[str]:
        return command(tiny_data, run, **flags, objective__false_negatives__guide=guide, **more)

    output = finish(start(words(guide), ranks=2))
    assert f"the frozen encoder {guide}: bert, " in output
    shares = [row["contrastive_masked_share"] for row in records(run) if "contrastive_masked_share" in row]
    assert len(shares) == 4 and all(0 < share < 1 for share in shares)
    checkpoint, first = run / "checkpoints" / "step-00000002", resource_hash(guide)
    assert store.read_state(checkpoint)["inputs"]["guide"] == {"sha256": first, "where": str(guide)}
    assert not any(min(tensor.shape, default=0) == 16 for _, tensor in read_tensors(checkpoint, "parameters"))

    whole = curve(run)
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    elsewhere = guide.rename(tmp_path / "elsewhere")
    finish(start(words(elsewhere, checkpoint__resume="auto"), ranks=2))
    assert curve(run) == whole

    shutil.rmtree(run / "checkpoints" / "step-00000004")
    weights = load_file(elsewhere / "model.safetensors")
    weights["bert.embeddings.word_embeddings.weight"].mul_(2)
    save_file(weights, elsewhere / "model.safetensors", {"format": "pt"})
    said = (f"guide was {first[:12]} ({guide})", "--checkpoint.accept 'guide'")
    refused(words(elsewhere, checkpoint__resume="auto"), *said)
    refused(words("self", checkpoint__resume="auto"), "objective.false_negatives.guide=")


@pytest.mark.full
def test_vectors_that_are_kept_teach_the_same_and_the_next_run_embeds_nothing(tiny_data, tmp_path):
    data = shutil.copytree(tiny_data, tmp_path / "data")
    guide = guide_for(data, tmp_path / "guide")
    flags = {
        **{"objective__name": "simcse+distill", "objective__distill__model": guide, "augment__spec": "none"},
        **{"objective__distill__loss": "kl", "objective__mlm__weight": 0, "augment__excerpt": "none"},
        **{"train__steps": 10, "evaluate__every": 0, "data__lanes": 3, "train__global_batch": 192},
        "model__dropout": 0.1,
    }  # more than an epoch, and lanes that two ranks share unequally

    def losses(name: str, ranks: int, **more: str) -> tuple[list[float], str]:
        said = finish(start(command(data, tmp_path / name, **flags, **more), ranks=ranks))
        rows = [row["loss"]["distill"] for row in records(tmp_path / name) if "loss" in row]
        assert len(rows) == 10
        return rows, said

    anew, _ = losses("anew", 2)
    kept, said = losses("kept", 2, objective__keep_vectors="float32")
    (path,) = tmp_path.glob("data.vectors-*")
    assert f"vectors    of {guide} are kept in {path}, as float32" in said
    np.testing.assert_allclose(kept, anew, rtol=1e-6)
    written = path.stat().st_mtime_ns
    again, _ = losses("again", 1, objective__keep_vectors="float32")
    np.testing.assert_allclose(again, anew, rtol=1e-6)
    assert path.stat().st_mtime_ns == written and not np.array_equal(anew, anew[:1] * 10)
    half, _ = losses("half", 2, objective__keep_vectors="float16")
    np.testing.assert_allclose(half, anew, rtol=1e-3)
    _, said = losses("cropped", 1, objective__keep_vectors="float32", augment__positive="crop")
    assert "vectors    not kept: crop makes another text of view positive at every step" in said
