"""A setting whose noise drowns what the vectors say is told before the first step."""

import numpy as np
import pytest
from run_helpers import command, outputs_of, start, write_corpus

from pretrain.common.errors import UserError
from pretrain.config.recipe import validate_config
from pretrain.start.data import require_signal
from pretrain.step.heldout import signal_to_noise


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
def test_the_ratio_is_that_of_the_variances_whatever_the_scale(noise):
    random, shape = np.random.default_rng(1), (4000, 24)
    of_sequence = 2 * random.standard_normal(shape)
    views = [7 + of_sequence + noise * random.standard_normal(shape) for _ in range(2)]
    assert signal_to_noise(*views) == pytest.approx(4 / noise**2, rel=0.05, abs=0.01)
    assert signal_to_noise(*(3 * view for view in views)) == pytest.approx(signal_to_noise(*views))


def test_noise_alone_has_no_signal_and_equal_views_no_noise():
    random = np.random.default_rng(2)
    first, second = random.standard_normal((2, 4000, 24))
    assert signal_to_noise(first, second) < 0.02
    assert signal_to_noise(first, first) > 1e9
    assert signal_to_noise(np.ones((9, 3)), np.ones((9, 3))) == 0


class Roles:
    needs_views = staticmethod(lambda step: True)


class Later:
    needs_views = staticmethod(lambda step: step >= 500)


class Masked:
    needs_views = staticmethod(lambda step: False)


@pytest.mark.parametrize(
    "model,objective,remedies",
    [
        ({"pooling": "cls"}, {}, ("--model.pooling mean", "--objective.view_dropout false", "--aug")),
        ({"pooling": "cls"}, {"view_dropout": False}, ("--model.pooling mean", "--aug")),
        ({"pooling": "mean", "dropout": 0.0, "attention_dropout": 0.0}, {}, ("--aug",)),
    ],
)
def test_the_remedies_are_those_that_are_left(model, objective, remedies):
    config, said = validate_config({"model": model, "objective": objective}, "test"), []
    require_signal(config, Roles, 0.005, said.append)
    assert len(said) == 1 and "0.005" in said[0]
    every = ("--model.pooling mean", "--objective.view_dropout false", "--aug")
    assert tuple(remedy for remedy in every if remedy in said[0]) == remedies
    require_signal(config, Roles, 0.3, said.append)
    assert len(said) == 1
    require_signal(config, Later, 0.005, said.append)  # its sentence loss begins later
    assert said[1:] == said[:1]
    config.train.faults.dead_loss = "stop"
    require_signal(config, Masked, 0.005, said.append)
    with pytest.raises(UserError, match="will not learn"):
        require_signal(config, Roles, 0.005, said.append)


@pytest.mark.full
def test_a_drowned_run_stops_before_its_first_step_and_its_remedy_trains(tiny_data, tmp_path):
    flags = {"model__pooling": "cls", "model__layers": 4, "train__faults__dead_loss": "stop"}
    flags |= {"train__micro_batch_tokens": 4096, "evaluate__partners": 64}
    dead = start(command(tiny_data, tmp_path / "dead", **flags))
    output = "".join(outputs_of(dead, 240))
    assert dead[0].returncode == 2 and "this setting will not learn the sentence loss" in output
    assert "Traceback" not in output
    alive = start(command(tiny_data, tmp_path / "alive", **flags, objective__view_dropout=False))
    output = "".join(outputs_of(alive, 240))
    assert alive[0].returncode == 0, output


@pytest.mark.full
def test_one_held_out_sequence_has_no_signal(tmp_path):
    """A variance between sequences is of two at least: no warning is founded on one."""
    corpus = write_corpus(tmp_path / "corpus.txt", documents=40)
    data = {"sources": corpus, "unit": "document", "heldout": 0.001}
    given = {f"data__prepare__{key}": value for key, value in data.items()} | {"train__steps": 1}
    one = start(command(tmp_path / "data", tmp_path / "run", train__warmup_steps=0, **given))
    output = "".join(outputs_of(one, 240))
    assert one[0].returncode == 0 and "partner_among 1" in output, output
    assert "will not learn" not in output and "Warning" not in output and "view_signal" not in output
