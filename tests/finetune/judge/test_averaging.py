"""Weights between two encoders: as the formula says, and whole at both ends."""

import json

import numpy as np
import pytest
import torch
from model_folders import make_tokenizer, save_bert, save_guest, save_run
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import Normalize
from transformers import AutoModel, BertModel

from finetune.encoders.models import open_model
from finetune.judge.averaging import average, keep_start
from pretrain.commands.export import main
from pretrain.common.errors import UserError
from pretrain.export.sums import WEIGHTS, changed_files

TEXTS = ["a man plays a guitar", "dogs bark at night"]


@pytest.fixture
def ends(tmp_path):
    """A start without a head, and an export of it with other weights, a head and a token more."""
    tokenizer = make_tokenizer()
    start = tmp_path / "start"
    BertModel.from_pretrained(save_bert(tmp_path / "bert", tokenizer)).half().save_pretrained(start)
    tokenizer.save_pretrained(start)
    tokenizer.add_tokens(["[DEL]"])
    adapted = save_run(save_bert(tmp_path / "other", tokenizer), tmp_path / "run", "mean") / "export"
    weights = load_file(adapted / WEIGHTS)
    draw = torch.Generator().manual_seed(3)
    moved = {n: w + 0.1 * torch.randn(w.shape, generator=draw) for n, w in weights.items()}
    save_file(moved, adapted / WEIGHTS, {"format": "pt"})
    return start, adapted


@pytest.mark.parametrize("alpha", [0.0, 0.25, 1.0])
def test_weights_are_between_the_two(ends, tmp_path, alpha):
    start, adapted = ends
    found = load_file(average(str(start), adapted, alpha, tmp_path / "out") / WEIGHTS)
    before, after = AutoModel.from_pretrained(start).state_dict(), load_file(adapted / WEIGHTS)
    averaged = 0
    for name, weights in after.items():
        own = before.get(name.removeprefix("bert."))
        expected = weights.double()
        if own is not None:
            rows = len(own)
            expected[:rows] = (1 - alpha) * own.double() + alpha * expected[:rows]
            averaged += 1
        torch.testing.assert_close(found[name].double(), expected, atol=1e-6, rtol=1e-6)
    assert averaged > 30 and found.keys() == after.keys() and changed_files(tmp_path / "out") == []


def test_the_whole_of_what_was_trained_is_its_file(ends, tmp_path):
    """Evaluations and the model card know weights by the sum of their file."""
    start, adapted = ends
    weights = load_file(adapted / WEIGHTS)
    weights["bert.embeddings.LayerNorm.bias"].fill_(-0.0)
    save_file(weights, adapted / WEIGHTS, {"format": "pt"})
    whole = average(str(start), adapted, 1.0, tmp_path / "out") / WEIGHTS
    assert whole.read_bytes() == (adapted / WEIGHTS).read_bytes()


def test_the_ends_give_the_vectors_of_start_and_adapted(ends, tmp_path):
    start, adapted = ends
    for alpha, other in ((0.0, open_model(start, "mean")), (1.0, open_model(adapted))):
        model = open_model(average(str(start), adapted, alpha, tmp_path / f"{alpha}"))
        np.testing.assert_allclose(model.encode(TEXTS), other.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "guest", "ours"])
def test_a_start_that_is_kept_gives_its_own_vectors_and_says_that_it_is_the_start(ends, tmp_path, kind):
    start, adapted = ends
    (adapted / "README.md").write_text("---\n---\n\n# Model Card\n\nA sentence encoder, trained.\n")
    if kind == "guest":
        prompts = {"prompts": {"query": "find "}, "default_prompt_name": "query"}
        start = save_guest(save_bert(tmp_path / "own"), tmp_path / "guest", "cls", Normalize(), **prompts)
    if kind == "ours":
        start = save_run(save_bert(tmp_path / "own"), tmp_path / "before", "cls") / "export"
    best = keep_start(str(start), adapted, tmp_path / "best")
    expected = open_model(start, "mean" if kind == "plain" else "").encode(TEXTS)
    np.testing.assert_allclose(open_model(best).encode(TEXTS), expected, atol=1e-5)
    assert (best / WEIGHTS).stat().st_mode == (best / "config.json").stat().st_mode
    if kind == "guest":
        assert not (best / "clear.json").exists()
        assert (best / "README.md").read_text() == (start / "README.md").read_text()
        for source, flags in ((best, {"push": "a/b", "dry_run": True}), (tmp_path, {"step": "best"})):
            with pytest.raises(UserError, match=r"best is a .* What was trained is in RUN/export"):
                main(str(source), **flags)
        return
    said = json.loads((best / "clear.json").read_text())
    assert said["average"] == {"start": start.name, "alpha": 0.0} and said["step"] == 0
    assert kind == "ours" or "The weights are the start;" in (best / "README.md").read_text()
    assert changed_files(best) == []


def test_an_average_says_its_share_and_everybody_may_read_it(ends, tmp_path):
    start, adapted = ends
    (adapted / "README.md").write_text("---\n---\n\n# Model Card\n")
    out = average(str(start), adapted, 0.25, tmp_path / "out")
    assert "0.75 of the start and 0.25 of what was trained" in (out / "README.md").read_text()
    assert (out / WEIGHTS).stat().st_mode == (out / "config.json").stat().st_mode
