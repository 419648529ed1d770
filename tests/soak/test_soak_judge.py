"""The judge of the soak, on series whose truth is known."""

import numpy as np
import pytest
from soak_judge import judge_counts, judge_memory, judge_peaks

SECONDS = np.arange(0, 3000, 5.0)
BOUND = 2.5


def noisy(seed: int, spread: float = 3.0) -> np.ndarray:
    """500 MB and noise as a process has it: of its own at each sample, with peaks now and then, and slow."""
    random = np.random.default_rng(seed)
    slow = np.convolve(random.normal(0, spread, len(SECONDS) + 11), np.ones(12) / 12, "valid")
    peaks = random.random(len(SECONDS)) < 0.1
    return 500 + random.normal(0, spread, len(SECONDS)) + slow + 40 * peaks


@pytest.mark.parametrize("seed", range(20))
def test_five_megabytes_an_hour_are_found_and_noise_is_not(seed):
    still = noisy(seed)
    assert judge_memory("still", SECONDS, still, BOUND).sound
    assert not judge_memory("leak", SECONDS, still + 5 * SECONDS / 3600, BOUND).sound
    assert judge_memory("falling", SECONDS, still - 50 * SECONDS / 3600, BOUND).sound


@pytest.mark.parametrize("at", [60, 200, 300, 500])
@pytest.mark.parametrize("size", [0.5, 3.0, 30.0, 300.0])
def test_a_step_is_no_leak_wherever_it_is_and_hides_none(at, size):
    stepped = noisy(at, 0.3) + size * (np.arange(len(SECONDS)) >= at)
    assert judge_memory("step", SECONDS, stepped, BOUND).sound
    assert not judge_memory("both", SECONDS, stepped + 5 * SECONDS / 3600, BOUND).sound
    twice = stepped + size * (np.arange(len(SECONDS)) >= 420)
    assert judge_memory("two steps", SECONDS, twice, BOUND).sound


@pytest.mark.parametrize("size", [1.0, 10.0, 100.0])
def test_a_leak_at_each_evaluation_is_found(size):
    stairs = size * (SECONDS // 300)
    assert not judge_memory("stairs", SECONDS, noisy(1, 0.3) + stairs, BOUND).sound
    assert not judge_memory("stairs without noise", SECONDS, 500 + stairs, BOUND).sound


def test_too_few_samples_are_no_proof():
    assert not judge_memory("short", SECONDS[:10], np.full(10, 500.0), BOUND).sound


def test_counts_are_compared_at_their_quietest_and_exactly():
    random = np.random.default_rng(0)
    still = 25 + 3 * (random.random(600) < 0.3)
    assert judge_counts("still", still).sound
    assert judge_counts("fewer", still - (np.arange(600) > 300)).sound
    assert not judge_counts("one more", still + (np.arange(600) > 300)).sound
    assert not judge_counts("one in the middle", [5] * 10 + [6] * 10 + [5] * 10).sound
    assert not judge_counts("each evaluation", still + np.arange(600) // 40).sound
    assert not judge_counts("nothing", []).sound


def test_peaks_of_starts():
    assert judge_peaks("even", [500, 503, 498, 505, 501, 500], 0.03).sound
    assert judge_peaks("lower", [500, 403, 398, 405, 401, 400], 0.03).sound
    assert not judge_peaks("one above", [500, 500, 530, 500, 500], 0.03).sound
    assert judge_peaks("two levels, few", [500, 482, 482, 482, 500, 500, 500], 0.03).sound
    assert not judge_peaks("rising", [500, *np.linspace(470, 512, 19)], 0.03).sound
