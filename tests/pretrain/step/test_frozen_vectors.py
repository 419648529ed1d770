"""Vectors of a frozen encoder that are kept on disk: each text is embedded once (runs: test_guided_runs)."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.config.recipe import validate_config
from pretrain.step.frozen_vectors import FrozenVectors

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
