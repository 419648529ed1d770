"""Objectives with a small encoder, for tests of their losses."""

import torch
from encoder_helpers import scale_matrices
from exactness_worker import WIDTH, FakeTokenizer

from pretrain.config.recipe import validate_config
from pretrain.model.encoder import build_encoder
from pretrain.objectives import build_objective

SIZES = {"type": "bert", "layers": 2, "hidden_size": WIDTH, "heads": 4, "max_positions": 32}


def term_and_encoder(name: str, **settings):
    """An objective with these settings, and a small encoder with weights of ordinary size."""
    torch.manual_seed(0)
    encoder = build_encoder(SIZES | {"dropout": 0.0, "attention_dropout": 0.0}, FakeTokenizer(), "mean")
    scale_matrices(encoder)
    tree = {"objective": {"name": name, name: settings}, "train": {"global_batch": 32}, "data": {"lanes": 1}}
    config = validate_config(tree, "test")
    return build_objective(config, encoder, FakeTokenizer(), 4).terms[name].double(), encoder.double()
