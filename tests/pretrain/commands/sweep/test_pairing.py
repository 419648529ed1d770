"""Rows of a sweep are paired: runs of one seed read the same batches and draw the same."""

import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml
from run_helpers import TINY
from sweep_helpers import ROOT, entries_of

from pretrain.data.batch import BatchSpec
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.objectives import build_objective
from pretrain.start.data import open_data
from pretrain.start.encoder import starting_encoder
from pretrain.step.plan import VIEWS, masking, passes_of

ROWS = {
    "simcse": {},
    "clear": {},
    "vascl": {"objective.vascl.neighbours": 4},
    "vadvcse": {},
    "esimcse": {},
    "sda": {"augment.negative": "reorder"},
    "augcse": {"augment.augmented": "del-word|reorder"},
    "simcse+vadvcse": {"objective.vadvcse.weight": 0},
}


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def started(config):
    """Return three steps' batches as a run draws them, the passes of each, the encoder's weights."""
    data = open_data(config)
    torch.manual_seed(config.train.seed)
    encoder = starting_encoder(config, data.tokenizer)
    weights = {name: value.clone() for name, value in encoder.state_dict().items()}
    objective = build_objective(config, encoder, data.tokenizer, data.labels)
    spec = BatchSpec(data.views, Masking.of(config.objective), data.vocabulary, data.synonyms, 64)
    batches = list(Loader(data.train, spec, LoaderSettings.of(config), Position(0, 3)))
    passes = [passes_of(batch, objective, 512, config.train.seed, 0) for batch in batches]
    return batches, passes, weights, objective


def test_runs_of_one_seed_read_and_draw_the_same_whatever_the_objective(tiny_data, tmp_path, alone):
    settings = {key: yaml.safe_load(str(value)) for key, value in TINY.items()} | {
        "data.folder": str(tiny_data),
        "data.workers": 0,
        "augment.spec": "del-span,reorder",
        "objective.mlm.weight": 0.1,
    }
    rows = {name: {"set": {"objective.name": name, **more}} for name, more in ROWS.items()}
    recipe = str(ROOT / "configs" / "clear_micro.yaml")
    entries = entries_of(tmp_path, recipe=recipe, set=settings, rows=rows)
    runs = {entry.name: started(entry.config(7)) for entry in entries}
    other_seed, *_ = started(entries[0].config(8))
    assert not np.array_equal(other_seed[0].sequence_ids, runs["simcse"][0][0].sequence_ids)
    for (one, first), (other, second) in itertools.pairwise(runs.items()):
        assert len(first[0]) == len(second[0]) == 3
        for mine, others in zip(first[0], second[0]):
            assert np.array_equal(mine.sequence_ids, others.sequence_ids), (one, other)
            assert mine.original == others.original
            for role in ("anchor", "positive"):
                assert mine.views[role].tokens == others.views[role].tokens, (one, other, role)
            assert mine.masked[0].batch == others.masked[0].batch
        size = 2 * len(first[0][0])  # anchors and positives; what else a row embeds comes behind them
        assert first[3].roles[:2] == second[3].roles[:2] == ("anchor", "positive")
        for mine, others in zip(first[1], second[1]):
            assert np.array_equal(mine[VIEWS].keys[:size], others[VIEWS].keys[:size])
            assert np.array_equal(mine[masking(0)].keys, others[masking(0)].keys)
        assert all(torch.equal(value, second[2][name]) for name, value in first[2].items())
