"""The general test that the package brings: what it holds, and that better encoders are better at it."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from sts_layout import write_layout

from finetune.encoders.models import EmbeddingModel, open_model
from finetune.judge import choice
from finetune.judge.choice import DOCSTRINGS, STS, Judge, general_test
from pretrain.common.errors import CollapsedEncoder

PUBLIC = os.environ.get("CLEAR_PUBLIC_MODEL")


def test_grades_are_even_and_no_sentence_gives_one_away():
    path, test = Path(choice.__file__).with_name("docstrings.tsv"), general_test("")
    assert test.name == DOCSTRINGS and test.kind == "similarity" and path.stat().st_size < 200_000
    counts = Counter(test.gold.tolist())
    assert set(counts) == {0, 1, 2, 3} and len(set(counts.values())) == 1
    pairs = list(zip(test.first, test.second, test.gold))
    # a first sentence stands once in each grade, and its own second one in the highest
    own = {first: second for first, second, grade in pairs if grade == 3}
    assert len(own) == len(set(own.values())) == counts[3] and not set(own) & set(own.values())
    assert all(second in own.values() for second in test.second)
    assert all((own[first] == second) == (grade == 3) for first, second, grade in pairs)


def test_sts_is_taken_where_it_is(tmp_path):
    test = general_test(str(write_layout(tmp_path / "benchmarks")))
    assert test.name == STS and len(test.first) == len(test.gold) > 2
    assert general_test(str(tmp_path)).name == DOCSTRINGS  # a folder without it


def scored(model: EmbeddingModel) -> float:
    judge = object.__new__(Judge)
    judge.general = general_test("")
    return judge._similarity_of(model).tasks[DOCSTRINGS].value


def test_words_in_common_say_something_and_chance_nothing():
    words = sorted({word for text in general_test("").first for word in text.lower().split()})
    place = {word: number for number, word in enumerate(words)}
    draw = np.random.default_rng(0)
    idf = draw.normal(size=(len(words), 256))

    def bag(texts: list[str]) -> np.ndarray:
        return np.array(
            [sum((idf[place[w]] for w in t.lower().split() if w in place), np.full(256, 1e-6)) for t in texts]
        )

    assert abs(scored(open_model(lambda texts: draw.normal(size=(len(texts), 64))))) < 10
    assert 15 < scored(open_model(bag)) < 60
    with pytest.raises(CollapsedEncoder):
        scored(open_model(lambda texts: np.ones((len(texts), 4))))


@pytest.mark.full
@pytest.mark.skipif(not PUBLIC, reason="CLEAR_PUBLIC_MODEL names no all-MiniLM-L6-v2")
def test_noise_in_the_weights_of_a_good_encoder_is_seen():
    found = []
    for noise in (0.0, 0.45, 0.9):
        model, draw = open_model(PUBLIC, quiet=True), torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weights in (one for one in model.runs.encoder.parameters() if one.ndim > 1):
                weights.add_(torch.randn(weights.shape, generator=draw) * weights.std() * noise)
        found.append(scored(model))
    assert found[0] > found[1] + 2 and found[1] > found[2] + 2
