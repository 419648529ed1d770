"""Write a SentEval folder in which every STS task has a few pairs, and embed sentences as bags of words."""

import hashlib

import numpy as np
import pytest

from pretrain.benchmarks.sts_tasks import YEAR_SUBSETS

WORDS = ["a", "the", "man", "woman", "child", "dog", "eats", "guitar", '"no"', "5", "café", "—", "slowly"]


def bag_of_words(sentences):
    """A deterministic embedding with some meaning in it: hashed word counts, float32[N, 64]."""
    vectors = np.zeros((len(sentences), 64), dtype=np.float32)
    for row, sentence in enumerate(sentences):
        for word in sentence.split():
            vectors[row, int(hashlib.md5(word.encode()).hexdigest(), 16) % 64] += 1
    return vectors


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    return write_layout(tmp_path_factory.mktemp("data"))


def write_layout(data):
    """Give every task a few pairs, some of them without a score; return the folder."""
    rng = np.random.default_rng(7)

    def sentence():
        return " ".join(rng.choice(WORDS, rng.integers(2, 9)))

    for task, subsets in YEAR_SUBSETS.items():
        folder = data / "SentEval" / "STS" / f"{task}-en-test"
        folder.mkdir(parents=True)
        for size, name in enumerate(subsets, start=12):
            golds = ["" if i % 5 == 3 else f"{rng.uniform(0, 5):.2f}" for i in range(size)]
            rows = [f"{sentence()}\t {sentence()}  x" + "\tsource" * (task == "STS16") for _ in golds]
            (folder / f"STS.input.{name}.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
            (folder / f"STS.gs.{name}.txt").write_text("".join(gold + "\n" for gold in golds))
    benchmark = data / "SentEval" / "STS" / "STSBenchmark"
    benchmark.mkdir()
    for split in ("dev", "test"):
        rows = [f'g\tf\t2012\t{i}\t{rng.uniform(0, 5):.3f}\t"{sentence()}\t{sentence()}\n' for i in range(30)]
        (benchmark / f"sts-{split}.csv").write_text("".join(rows), encoding="utf-8")
    sick = data / "SentEval" / "SICK"
    sick.mkdir()
    for name in ("SICK_trial.txt", "SICK_test_annotated.txt", "SICK_train.txt"):
        rows = [f"{i}\t{sentence()}\t{sentence()}\t{rng.uniform(1, 5):.1f}\tNEUTRAL\r\n" for i in range(25)]
        header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
        (sick / name).write_text(header + "".join(rows), encoding="utf-8", newline="")
    return data
