"""Views that are one and the same under an encoder without dropout are refused at the start of a run."""

from pathlib import Path

import numpy as np
import pytest
from exactness_worker import FakeTokenizer
from loader_helpers import CLS, SEP, SIZE, VOCABULARY, write_folder
from run_helpers import command, outputs_of, start

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.config.recipe import validate_config
from pretrain.data.batch import BatchSpec
from pretrain.data.masking import Masking
from pretrain.data.shards import ShardReader
from pretrain.model.encoder import build_encoder
from pretrain.objectives import build_objective, view_specs
from pretrain.start.data import Data, require_different_views

SMALL = {"type": "bert", "layers": 1, "hidden_size": 32, "heads": 4, "max_positions": 64}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
ALONE = {"mlm": {"weight": 0.0}}


def prepared(folder: Path, columns: tuple[str, ...], there: float = 1.0) -> ShardReader:
    """Records of these columns; a share of those behind the first is empty."""
    random, rows = np.random.default_rng(0), []
    for number in range(200 * len(columns)):
        content = random.integers(5, SIZE, random.integers(4, 38))
        empty = number % len(columns) and random.random() >= there
        rows.append([] if empty else [CLS, *content, SEP])
    unit = "record" if len(columns) > 1 else "sentence"
    write_folder(folder, {"train": Ragged.from_sequences(rows)}, SIZE, 40, unit, columns=columns)
    return ShardReader(folder)


def examine(reader: ShardReader, objective: dict, augment: dict, prompts=None, **model: float) -> None:
    tree = {
        "model": SMALL | NO_DROPOUT | model,
        "objective": objective,
        "augment": {"spec": "none", "augmented": "del-word|reorder"} | augment,
        "data": {"folder": str(reader.folder)},
    }
    config = validate_config(tree, "test")
    encoder = build_encoder(config.model.architecture(), FakeTokenizer())
    built = build_objective(config, encoder, FakeTokenizer(), 3)
    views = view_specs(config)
    spec = BatchSpec(views, Masking(copies=0), VOCABULARY, max_length=64, prompts=prompts or {})
    data = Data(config, views, reader, reader, None, VOCABULARY, None, {})
    require_different_views(config, data, built, spec)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory) -> ShardReader:
    return prepared(tmp_path_factory.mktemp("sentences"), ("text",))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> ShardReader:
    return prepared(tmp_path_factory.mktemp("pairs"), ("text", "positive"), 0.2)


@pytest.fixture(scope="module")
def negatives(tmp_path_factory) -> ShardReader:
    return prepared(tmp_path_factory.mktemp("negatives"), ("text", "negative"))


@pytest.mark.parametrize(
    "name", ["clear", "simcse", "vascl", "vadvcse", "augcse", "esimcse", "declutr", "simcse+vadvcse"]
)
def test_views_of_equal_tokens_without_dropout_are_refused(sentences, name):
    with pytest.raises(UserError) as error:
        examine(sentences, {"name": name}, {})
    words = str(error.value)
    assert f"the objective {name.split('+')[0]} " in words
    for said in ("anchor none, positive none", "--aug", "--model.dropout 0.1"):
        assert said in words


def test_dropout_that_views_go_without_does_not_tell_them_apart(sentences):
    with pytest.raises(UserError, match=r"objective\.view_dropout"):
        examine(sentences, {"name": "clear", "view_dropout": False}, {}, dropout=0.1)


@pytest.mark.parametrize(
    "objective, augment, more",
    [
        ({"name": "clear"}, {}, {"dropout": 0.1}),
        ({"name": "clear"}, {}, {"attention_dropout": 0.1}),
        ({"name": "clear"}, {"spec": "del-span,reorder"}, {}),
        ({"name": "simcse"}, {"positive": "del-word"}, {}),
        ({"name": "declutr"}, {"spec": "span"}, {}),
        ({"name": "esimcse"}, {"positive": "repeat"}, {}),
        ({"name": "sda"}, {"positive": "del-word", "negative": "reorder"}, {}),
        ({"name": "augcse", "augcse": {"positive": "augmented"}}, {}, {}),
        ({"name": "mlm"}, {}, {}),
        ({"name": "clear", "contrastive": {"weight": 0.0}}, {}, {}),
        ({"name": "simcse", **ALONE}, {}, {"prompts": {"anchor": np.array([7, 8], np.int32)}}),
    ],
)
def test_views_that_differ_and_losses_without_views_are_not(sentences, objective, augment, more):
    examine(sentences, objective, augment, **more)


def test_labelled_pairs_and_hard_negatives_are_not(pairs, negatives):
    """One record in five has a positive; the others give their text."""
    examine(pairs, {"name": "simcse", **ALONE}, {})
    examine(negatives, {"name": "simcse", "simcse": {"hard_negatives": True}, **ALONE}, {})
    with pytest.raises(UserError, match="the same tokens"):
        examine(negatives, {"name": "simcse", **ALONE}, {})


def test_by_the_command_before_anything_is_trained(tiny_data, tmp_path):
    flags = {
        "aug": "none",
        "augment__excerpt": "none",
        "model__dropout": 0,
        "model__attention_dropout": 0,
        "objective": "simcse",
    }
    processes = start(command(tiny_data, tmp_path / "run", **flags), 2)
    output = "".join(outputs_of(processes, 240))  # whichever rank is first says it
    assert [process.returncode for process in processes] == [2, 2]
    assert output.count("error: the objective simcse compares views") == 1 and "Traceback" not in output
    assert not list((tmp_path / "run" / "checkpoints").iterdir())
