"""Draws by hashes, as they have always been: others would change what a resumed run reads."""

import hashlib

import numpy as np
import torch
from loader_helpers import VOCABULARY, some_sequences

from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from pretrain.data.lanes import DistinctLanes, Lanes, MixedLanes
from pretrain.data.ledger import batch_words, label_words, masking_words, sequence_words, view_words
from pretrain.data.masking import mask_tokens
from pretrain.data.microbatches import cut_and_pack, send_all

SIZES = np.array([37, 41, 1, 58, 29, 44, 40, 3, 52, 33])


def digest(*arrays: np.ndarray) -> str:
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.ascontiguousarray(array).astype("<i8").tobytes())
    return whole.hexdigest()[:16]


def test_replacements_and_the_order_of_sets_are_frozen():
    lanes = Lanes(SIZES, 42, 24, 8)
    assert digest(*(lanes.replacements(epoch, 3, 40) for epoch in range(3))) == "4112354ce20edf58"
    mixed = MixedLanes([SIZES, SIZES[:7], SIZES[3:]], [0.5, 0.3, 0.2], 42, 24, 8)
    assert digest(mixed.set_of(np.arange(500))) == "55cde169a80282b9"
    assert digest(*mixed.draw_steps(0, 60, 2, 7)) == "10397c833da08c21"


def test_batches_without_repeats_are_frozen():
    """One text in three repeats; lanes look 16 times their share ahead, at one text that fills a half."""
    for name, share in (("f2bc09af077cf15b", 3), ("f382ee1548dd61d1", 2)):
        texts = np.arange(338)[None].copy()
        texts[:, ::share] = 7 if share == 2 else texts[:, ::share] % 50
        lanes = DistinctLanes(texts, SIZES, 42, 24, 8, 8, 5)
        assert digest(*lanes.draw_steps(0, 45, 0, 8)) == name


def test_masks_are_frozen():
    batch = some_sequences(200)
    keys = sequence_keys(5, 1, np.arange(200, dtype=np.uint64), 0, "mask")
    masked = mask_tokens(batch, keys, VOCABULARY, rate=0.3, mask=0.6, random=0.3)
    assert digest(masked.batch.ids, masked.positions, masked.labels) == "f0c71a69110198db"


def test_words_of_the_ledger_are_frozen():
    batch, ids = some_sequences(50), np.arange(50, dtype=np.uint64) * np.uint64(977)
    keys = sequence_keys(5, 1, ids, 0, "mask")
    masked = mask_tokens(batch, keys, VOCABULARY)
    identities, present = np.arange(50), np.arange(50) % 3 > 0
    parts = [masking_words(ids, copy, masked.batch, masked.positions) for copy in (0, 1)]
    parts += [view_words(ids, "anchor", batch, identities, present), label_words(ids, identities % 5)]
    assert digest(batch_words(sequence_words(ids, identities), parts).view(np.int64)) == "cc9ae19bb5ac2b1a"


def test_random_states_of_micro_batches_are_frozen_and_all_go_to_the_device():
    batch, device = some_sequences(40), torch.device("cpu")
    rows = cut_and_pack(batch, 4, device, np.arange(40, dtype=np.uint64), (3, 17, 1, 2))
    assert digest(np.array([row.seed for row in rows])) == "ff7b62654e501c71"
    assert [row.seed for row in cut_and_pack(batch, 4, device)] == [None] * 4
    for row in rows:
        assert torch.equal(torch.from_numpy(row.keys.astype(np.int64)), row.rows)
        assert row.ids.dtype == row.lengths.dtype == row.rows.dtype == torch.int64
        assert torch.equal(row.ids, torch.from_numpy(batch.take(row.rows.numpy()).ids).long())
    masked = mask_tokens(batch, np.arange(40, dtype=np.uint64), VOCABULARY)
    passes = {"mlm": cut_and_pack(masked, 3, device), "none": cut_and_pack(Ragged.empty(), 2, device)}
    sent, more = send_all(passes, {"x": torch.ones(2), "y": torch.zeros(1)}, device)
    assert list(sent) == ["mlm", "none"] and more["x"].tolist() == [1, 1] and more["y"].tolist() == [0]
    for row, other in zip(sent["mlm"], passes["mlm"], strict=True):
        for name in ("ids", "lengths", "rows", "positions", "labels"):
            assert torch.equal(getattr(row, name), getattr(other, name)), name
        assert torch.equal(row.ids, torch.from_numpy(masked.take(row.rows.numpy()).batch.ids).long())
    assert [len(row.ids) for row in sent["none"]] == [0, 0] and sent["none"][0].positions is None
