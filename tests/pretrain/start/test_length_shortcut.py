"""What lengths alone give away: the printed loss is one that a matcher reaches, and the recipes leave it
nothing to find."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from loader_helpers import CLS, SEP, SIZE, VOCABULARY, write_folder

from augment.core.ragged import Ragged
from pretrain.config.recipe import load_config
from pretrain.config.run import Config
from pretrain.data.shards import ShardReader
from pretrain.objectives import view_specs
from pretrain.start.data import Data
from pretrain.start.views import LengthShortcut, matcher_loss, measure_lengths

CONFIGS = Path(__file__).parents[3] / "configs"


def infonce(scores: np.ndarray) -> float:
    """Mean cross-entropy of the diagonal of a whole matrix of scores, in plain numpy."""
    top = scores.max(1, keepdims=True)
    return float(np.mean(np.log(np.exp(scores - top).sum(1)) + top[:, 0] - np.diagonal(scores)))


def test_lengths_that_know_nothing_of_each_other_leave_chance():
    random = np.random.default_rng(0)
    first, second = random.integers(5, 500, (2, 8192))
    assert matcher_loss(first, second, 512) == pytest.approx(math.log(512), abs=0.01)
    assert matcher_loss(np.full(4000, 7), random.integers(5, 500, 4000), 512) == pytest.approx(
        math.log(512), abs=0.01
    )


def test_equal_lengths_leave_the_choice_among_sequences_of_that_length():
    """16 lengths, evenly: a 16th of the candidates is as long, so the loss is ln(N / 16)."""
    first = np.random.default_rng(0).integers(10, 26, 8192)
    assert matcher_loss(first, first, 8192) == pytest.approx(math.log(8192 / 16), abs=0.05)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.4])
def test_it_is_about_what_the_best_matcher_of_gaussian_lengths_reaches(noise):
    """Log-normal lengths: the best score is known in closed form, and is computed over all pairs here."""
    random = np.random.default_rng(1)
    count = 1024
    size = random.normal(0, 0.5, 8192)
    views = [size + random.normal(0, noise, 8192) for _ in range(2)]
    x, y = ((view - view.mean()) / view.std() for view in views)
    rho = 0.25 / (0.25 + noise**2)
    best = np.mean([infonce(y[part] * (rho * x[part,
    None]) / (1 - rho**2) - (rho * y[part]) ** 2 / (2 * (1 - rho**2)))
                    for part in np.split(np.arange(8192), 8192 // count)])  # fmt: skip
    lengths = [np.rint(200 * np.exp(view)).astype(int) for view in views]
    assert best - 0.05 < matcher_loss(*lengths, count) < best + 0.35


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> ShardReader:
    """Sequences as packing leaves them: full up to 512 tokens but for the sentence that did not fit, 168 to
    512 of them."""
    random = np.random.default_rng(2)
    lengths = np.clip(510 - random.geometric(1 / 25, 3000), 166, 510)
    sequences = Ragged.from_sequences([[CLS, *random.integers(5, SIZE, length), SEP] for length in lengths])
    folder = tmp_path_factory.mktemp("packed")
    write_folder(folder, {"train": sequences}, SIZE, 512, unit="sequence")
    return ShardReader(folder)


def data_of(config: Config, reader: ShardReader, views: list) -> Data:
    return Data(config, views, reader, reader, None, VOCABULARY, None, {})


def shortcut(config: Config, reader: ShardReader) -> LengthShortcut:
    return measure_lengths(data_of(config, reader, view_specs(config)), 512)


def test_the_base_recipe_leaves_lengths_nothing_and_the_papers_is_a_flag_away(packed):
    recipe = CONFIGS / "clear_base.yaml"
    ours = shortcut(load_config(recipe, {}), packed)
    assert (ours.sequences, ours.candidates) == (2560, 8192)
    assert ours.correlation < 0.3 and ours.loss > math.log(8192) - 0.05
    paper = load_config(recipe, {"augment.excerpt": "none"})
    found = shortcut(paper, packed)
    assert found.correlation > 0.98 and found.loss < math.log(8192) - 2
    assert found.loss_among(8192) == found.loss
    assert found.loss_among(2 * 8192 - 1) == pytest.approx(found.loss + math.log(2), abs=0.01)
    assert str(found).startswith("the lengths of two views correlate at 0.9")
    assert str(found).endswith("(chance: 9.01; 2,560 sequences)")


@pytest.mark.parametrize("recipe", ["clear_base.yaml", "clear_micro.yaml"])
def test_the_papers_augmentations_keep_the_excerpt_which_is_a_flag_of_its_own(recipe):
    ours = load_config(CONFIGS / recipe, {})
    excerpt = ours.augment.excerpt
    assert re.match(r"(crop:rate=1:min_rate|span:min_length)=", excerpt)
    same = load_config(CONFIGS / recipe, {"aug": "del-span,reorder"})
    assert same == ours and same.augment.of_role("positive") == f"{excerpt},del-span,reorder"
    paper = load_config(CONFIGS / recipe, {"augment.excerpt": "none"})
    assert [paper.augment.of_role(role) for role in ("anchor", "positive")] == ["del-span,reorder"] * 2
    assert paper.model_copy(update={"augment": ours.augment}) == ours


def test_views_of_their_own_are_compared_and_one_view_is_not(packed):
    config = load_config(None, {"augment.anchor": "none", "augment.positive": "crop:rate=0.5"})
    assert shortcut(config, packed).correlation > 0.99
    assert measure_lengths(data_of(config, packed, view_specs(config)[:1]), 512) is None
