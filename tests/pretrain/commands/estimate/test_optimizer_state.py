"""A plan's bytes of an optimizer are those of the real optimizer, after a step of it."""

import copy

import pytest
import torch
from encoder_helpers import make_encoder, make_tokenizer
from exactness_worker import FakeTokenizer

from pretrain.config.recipe import validate_config
from pretrain.model.encoder import build_encoder
from pretrain.objectives import build_objective
from pretrain.start.estimate import (
    BatchSize,
    Layout,
    architecture,
    checkpoint_bytes,
    measure_model,
    memory,
)
from pretrain.step.model import SentenceModel
from pretrain.step.optimizer import build_optimizer

BATCH = BatchSize(16, 64, 0.0, 0.0, 2, 0.0)
DIFFCSE = {"name": "diffcse"}


def config_of(optimizer: str, objective: dict):
    return validate_config(
        {
            "train": {"zero": 0, "optimizer": optimizer, "precision": "fp32"},
            "model": {"layers": 3, "hidden_size": 32, "heads": 2, "max_positions": 64},
            "objective": objective,
        },
        "test",
    )


def stepped(config) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer after a step."""
    encoder = build_encoder(architecture(config), FakeTokenizer(), "mean")
    config = config.model_copy(deep=True)
    discriminates = config.objective.name == "diffcse"
    config.objective.diffcse.replaced_token_weight = 0.0  # no generator, whose weights would have to be read
    model = SentenceModel(encoder, build_objective(config, encoder, FakeTokenizer()), "fp32")
    if discriminates:
        model.discriminator = copy.deepcopy(encoder.lm.base_model)
    optimizer = build_optimizer(model, config.train, torch.device("cpu"))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("objective", [{"name": "clear"}, DIFFCSE], ids=["clear", "diffcse"])
@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_the_state_of_the_real_optimizer_is_planned(optimizer, objective):
    config = config_of(optimizer, objective)
    size = measure_model(config, FakeTokenizer(), 8, "fp32")
    model, real = stepped(config)
    held = [t for state in real.state.values() for name, t in state.items() if name != "step"]
    found = sum(t.untyped_storage().nbytes() for t in held)
    assert memory(size, BATCH, Layout(2, 0, 96))["optimizer"] == found
    weights = sum(4 * p.numel() for p in model.parameters())
    assert checkpoint_bytes(size) == weights + found
    assert (found < 8 * size.trained) == (optimizer == "muon")


@pytest.mark.parametrize("zero", [0, 3])
def test_a_guide_is_held_whole_and_not_saved(tmp_path, zero):
    guide = make_encoder("bert", hidden_size=16)
    guide.lm.save_pretrained(tmp_path)
    (tokenizer := make_tokenizer()).save_pretrained(tmp_path)
    of_guide = {"name": "clear", "false_negatives": {"guide": str(tmp_path)}}
    with_guide, without = (
        measure_model(config_of("adamw", objective), tokenizer, 8, "fp32")
        for objective in (of_guide, {"name": "clear"})
    )
    layout = Layout(2, zero, 96)
    held = memory(with_guide, BATCH, layout)["weights"] - memory(without, BATCH, layout)["weights"]
    assert held == pytest.approx(sum(4 * p.numel() for p in guide.parameters()))
    assert checkpoint_bytes(with_guide) == checkpoint_bytes(without)
