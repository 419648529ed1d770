"""Vectors of a frozen encoder that are kept on disk: each text is embedded once (runs: test_guided_runs)."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exactness_worker import WIDTH, FakeTokenizer

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.config.recipe import validate_config
from pretrain.data.batch import BatchSpec, ViewSpec
from pretrain.model.encoder import build_encoder
from pretrain.step.frozen_vectors import FrozenVectors, keep_vectors

SIZES = {"type": "bert", "layers": 1, "hidden_size": WIDTH, "heads": 4, "max_positions": 32}

TEXTS = Ragged.from_sequences([[1, 5, 2], [1, 6, 7, 2], [1, 8, 2], [1, 5, 2], [1, 6, 7, 2], [1, 8, 2]])
"""Two views of the same three texts."""
IDS = np.array([4, 0, 2], np.uint64)


class Encoder:
    """Sums of tokens' powers; asked: how many sequences of each call."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, sequences: Ragged) -> np.ndarray:
        self.asked.append(len(sequences))
        each = [sequences[row].astype(np.float64) for row in range(len(sequences))]
        return np.array([[ids.sum() / 3, (ids**2).sum() / 7] for ids in each], np.float32)


def opened(folder: Path, dtype: str = "float32") -> FrozenVectors:
    return FrozenVectors(folder / "vectors", [0, 0], 5, 2, dtype)


@pytest.mark.parametrize("dtype, close", [("float32", 0), ("float16", 1e-3)])
def test_each_text_is_embedded_once_whoever_asks(tmp_path, dtype, close):
    encoder = Encoder()
    right = encoder(TEXTS)
    first = opened(tmp_path, dtype).of(IDS, TEXTS, encoder)
    assert first.dtype == np.float32 and np.allclose(first, right, rtol=close, atol=0)
    assert np.array_equal(opened(tmp_path, dtype).of(IDS, TEXTS, encoder), first)
    assert encoder.asked == [6, 3]
    alone = FrozenVectors(tmp_path / "vectors", [0, 1], 5, 2, dtype)  # another view of its own column
    assert np.array_equal(alone.of(IDS, TEXTS, encoder), first) and encoder.asked == [6, 3, 3]


def test_what_is_damaged_or_of_other_tokens_is_embedded_again(tmp_path):
    encoder, kept = Encoder(), opened(tmp_path)
    right = kept.of(IDS, TEXTS, encoder)
    content = bytearray(kept.path.read_bytes())
    content[2 * 16 + 11] ^= 1  # the vector of text 2
    kept.path.write_bytes(content)
    assert np.array_equal(kept.of(IDS, TEXTS, encoder), right) and encoder.asked == [3, 1]
    others = Ragged.from_sequences(
        [[1, 9, 2], *([1, 6, 7, 2], [1, 8, 2]), [1, 9, 2], *([1, 6, 7, 2], [1, 8, 2])]
    )
    assert np.array_equal(kept.of(IDS, others, encoder), Encoder()(others)) and encoder.asked == [3, 1, 1]


def test_a_full_disk_is_said_once_and_ends_no_run(tmp_path, monkeypatch, capsys):
    encoder, kept = Encoder(), opened(tmp_path)

    def full(*others: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(2):
        assert np.array_equal(kept.of(IDS, TEXTS, encoder), Encoder()(TEXTS))
    assert capsys.readouterr().err == f"warning: {kept.path} keeps no more vectors: No space left on device\n"
    assert encoder.asked == [3, 3]


def test_what_cannot_be_kept_is_refused(tmp_path):
    (tmp_path / "vectors").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*: Is a directory; objective\.keep_vectors=none"):
        opened(tmp_path)
    with pytest.raises(UserError, match=r"objective\.keep_vectors: no frozen encoder is named"):
        validate_config({"objective": {"name": "simcse", "keep_vectors": "float16"}}, "test")


def test_vectors_are_of_their_model_data_and_views(tmp_path):
    """Another file for whatever changes a vector, the same one for what does not."""
    torch.manual_seed(0)
    guide = build_encoder(SIZES, FakeTokenizer(), "mean")
    said = []

    def kept(roles=("anchor", "positive"), augmentation="none", prompts=(), guide=guide, columns=(), **more):
        config = SimpleNamespace(
            objective=SimpleNamespace(keep_vectors=more.get("kind", "float16"), guide="G"),
            train=SimpleNamespace(precision=more.get("precision", "fp32")),
        )
        objective = SimpleNamespace(guide=guide, guided_roles=roles)
        data = SimpleNamespace(
            columns=("text", *columns),
            content_hash=more.get("content", "x"),
            folder=tmp_path / "data",
            num_sequences=5,
        )
        views = [ViewSpec(role, augmentation) for role in ("anchor", "positive", "positive2", "negative")]
        spec = BatchSpec(views, None, None, prompts={role: np.array([7], np.int32) for role in prompts})
        return keep_vectors(config, objective, data, spec, said.append)

    assert kept(guide=None) is kept(kind="none") is None and not said
    assert kept(augmentation="del-word") is None
    assert said == ["vectors    not kept: del-word makes another text of view anchor at every step"]
    one = kept()
    assert said[1] == f"vectors    of G are kept in {one.path}, as float16"
    assert one.path.parent == tmp_path and one.path.name.startswith("data.vectors-")
    assert (
        one.columns.tolist() == [0, 0] and one.texts == 5 and one.path.stat().st_size == 5 * (8 + 2 * WIDTH)
    )
    assert kept().path == one.path == kept(roles=("anchor",)).path
    with torch.no_grad():
        guide.lm.get_output_embeddings().bias.add_(1.0)  # makes no vector
    assert kept().path == one.path
    others = [
        kept(kind="float32"),
        kept(precision="bf16"),
        kept(content="y"),
        kept(columns=("positive",)),
        kept(prompts=("anchor", "positive")),
        kept(prompts=("positive",)),
        kept(guide=build_encoder(SIZES, FakeTokenizer(), "cls")),
        kept(guide=build_encoder(SIZES, FakeTokenizer(), "mean")),
    ]
    with torch.no_grad():
        next(guide.lm.base_model.parameters())[0, 0] += 1.0
    others.append(kept())
    guide.token_weights = torch.ones(9)
    others.append(kept())
    assert len({other.path for other in [one, *others]}) == 11
    assert kept(columns=("positive",)).columns.tolist() == [0, 1]
    assert kept(prompts=("positive",)).columns.tolist() == [0, 1]
    of_roles = ("anchor", "positive", "positive2", "negative")
    assert kept(roles=of_roles, columns=("positive", "negative")).columns.tolist() == [0, 1, 1, 2]
    assert kept(roles=of_roles, columns=("positive", "positive2")).columns.tolist() == [0, 1, 2, 0]
    guide.head = torch.nn.Sequential(torch.nn.Linear(WIDTH, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    headed = kept()
    assert headed.path.stat().st_size == 5 * (8 + 2 * 3)
    with torch.no_grad():
        guide.head[0].bias.add_(1.0)
    assert kept().path != headed.path
