"""Weights between two encoders: as the formula says, and whole at both ends."""

import numpy as np
import pytest
import torch
from model_folders import make_tokenizer, save_bert, save_run
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertModel

from finetune.encoders.models import open_model
from finetune.judge.averaging import average
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


def test_the_ends_give_the_vectors_of_start_and_adapted(ends, tmp_path):
    start, adapted = ends
    for alpha, other in ((0.0, open_model(start, "mean")), (1.0, open_model(adapted))):
        model = open_model(average(str(start), adapted, alpha, tmp_path / f"{alpha}"))
        np.testing.assert_allclose(model.encode(TEXTS), other.encode(TEXTS), atol=1e-5)
