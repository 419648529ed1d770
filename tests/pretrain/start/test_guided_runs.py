"""A run whose false negatives another encoder finds: what it says, saves and records, and how it resumes."""

import shutil
from pathlib import Path

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
