"""Compute token augmentations in plain Python, one token at a time: the vectorised ones must equal these."""

import hashlib
import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary

PAD, CLS, SEP, MASK, DEL, UNK = range(6)
SIZE = 1000
MASK64 = (1 << 64) - 1
MARKS = np.arange(10, 16, dtype=np.int32)


def vocabulary() -> Vocabulary:
    """Return 1,000 ids: six special, those ending in 7 continue words, 10 to 15 are punctuation marks."""
    special = np.zeros(SIZE, dtype=bool)
    special[:6] = True
    word_start = np.arange(SIZE) % 10 != 7
    kind = np.ones(SIZE, dtype=np.uint8)
    kind[:6] = 0
    return Vocabulary(SIZE, PAD, CLS, SEP, MASK, DEL, special, word_start, kind, False, MARKS)


def random_batch(rng: np.random.Generator, lengths: list[int], specials: float = 0.0) -> Ragged:
    """Return [CLS] content [SEP] of given content lengths; a share of the content is [SEP] or [DEL]."""
    rows = []
    for length in lengths:
        content = rng.integers(6, SIZE, length)
        content[rng.random(length) < specials] = SEP
        content[rng.random(length) < specials] = DEL
        rows.append([CLS, *content.tolist(), SEP])
    return Ragged.from_sequences(rows)


def random_lengths(rng: np.random.Generator, count: int) -> list[int]:
    """Return the edge lengths 0 to 12, some around 1/rate = 20, and long ones."""
    return [*range(13), 18, 19, 20, 21, 22, *rng.integers(0, 200, count).tolist(), 510]


# Random numbers


def mix(value: int) -> int:
    value ^= value >> 30
    value = value * 0xBF58476D1CE4E5B9 & MASK64
    value ^= value >> 27
    value = value * 0x94D049BB133111EB & MASK64
    return value ^ value >> 31


def derive(key: int, *path: int | str) -> int:
    for element in path:
        if isinstance(element, str):
            element = int.from_bytes(hashlib.blake2b(element.encode(), digest_size=8).digest(), "little")
        key = mix(((key ^ element & MASK64) + 0x9E3779B97F4A7C15) & MASK64)
    return key


def mix32(value: int) -> int:
    value ^= value >> 16
    value = value * 0x85EBCA6B & 0xFFFFFFFF
    value ^= value >> 13
    value = value * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16


def token_bits(key: int, position: int, stream: int = 0) -> int:
    state = derive(key, stream)
    value = mix32((position * 0x9E3779B9 + (state & 0xFFFFFFFF)) & 0xFFFFFFFF)
    return mix32(value ^ state >> 32)


def sequence_bits(key: int, count: int, stream: int = 0) -> list[int]:
    state = derive(key, stream)
    return [mix((state + (j + 1) * 0x9E3779B97F4A7C15) & MASK64) for j in range(count)]


# Augmentations: content between [CLS] and [SEP] in, content out


def collapse(tokens: list[int]) -> list[int]:
    result = []
    for token in tokens:
        if not (token == DEL and result and result[-1] == DEL):
            result.append(token)
    return result


def drawn(key: int, numbers: Iterable[int], count: int) -> set[int]:
    """Draw `count` of the numbers: [CLS] has number 0, and one of the 32 bits says "not eligible"."""
    return set(sorted(numbers, key=lambda number: (token_bits(key, number + 1) >> 1, number))[:count])


def del_word(content: list[int], key: int, rate: float = 0.7) -> list[int]:
    eligible = [place for place, token in enumerate(content) if token >= 6]
    count = min(round(rate * len(eligible)), max(len(eligible) - 1, 0))
    chosen = drawn(key, eligible, count)
    return collapse([DEL if place in chosen else token for place, token in enumerate(content)])


def spans(size: int, key: int, count: int, rate: float, room: int, multiple: int) -> list[tuple[int, int]]:
    """Return (start, length) of each span that the sequence has, rising."""
    length = size * rate
    used = count
    if length < 1:
        used = min(max(round(length * (count / multiple)), 1), count // multiple) * multiple
    used = min(used, room // multiple * multiple)
    if used == 0:
        return []
    length = min(max(length, 1.0), max(room / used, 1.0))
    bits = sequence_bits(key, count + 1)
    phase = (bits[0] >> 11) * 2.0**-53
    ends = [min(math.floor(phase + j * length), room) for j in range(used + 1)]
    free = size - ends[-1]
    draws = sorted(value >> 32 for value in bits[1 + count - used :])
    places = [math.floor(Fraction(draw, 1 << 32) * (free + 1)) for draw in draws]
    return [(places[j] + ends[j], ends[j + 1] - ends[j]) for j in range(used)]


def del_span(content: list[int], key: int, count: int = 5, rate: float = 0.05) -> list[int]:
    result = list(content)
    for start, length in reversed(spans(len(content), key, count, rate, max(len(content) - 1, 0), 1)):
        result[start : start + length] = [DEL]
    return collapse(result)


def reorder(content: list[int], key: int, pairs: int = 5, rate: float = 0.05) -> list[int]:
    count = 2 * pairs
    chosen = spans(len(content), key, count, rate, len(content), 2)
    absent = count - len(chosen)
    low = count.bit_length()
    numbers = sequence_bits(key, count, stream=1)
    order = sorted(range(absent, count), key=lambda j: (numbers[j] >> low, j))
    partner = {}
    for one, other in zip(order[::2], order[1::2], strict=True):
        partner[one - absent], partner[other - absent] = other - absent, one - absent
    result = []
    place = 0
    for index, (start, length) in enumerate(chosen):
        result += content[place:start]
        other_start, other_length = chosen[partner[index]]
        result += content[other_start : other_start + other_length]
        place = start + length
    return result + content[place:]


def repeat(content: list[int], key: int, rate: float = 0.32) -> list[int]:
    most = min(max(2, int(rate * len(content))), len(content))
    count = int((sequence_bits(key, 1, stream=1)[0] >> 11) * 2.0**-53 * (most + 1))
    chosen = drawn(key, range(len(content)), count)
    return [token for place, token in enumerate(content) for _ in range(2 if place in chosen else 1)]


def crop(content: list[int], key: int, rate: float = 0.9, min_rate: float = 1.0) -> list[int]:
    if min_rate < rate:
        rate = min_rate + (rate - min_rate) * ((sequence_bits(key, 1, stream=1)[0] >> 11) * 2.0**-53)
    kept = min(max(round(rate * len(content)), 1), len(content))
    start = int((sequence_bits(key, 1)[0] >> 11) * 2.0**-53 * (len(content) - kept + 1))
    return content[start : start + kept]


def span(
    content: list[int], key: int, min_length: int = 32, max_length: int = 512, alpha: int = 4, beta: int = 2
) -> list[int]:
    if len(content) < min_length:
        return content
    place, *draws = [(bits >> 11) * 2.0**-53 for bits in sequence_bits(key, alpha + beta, stream=1)]
    draw = sorted(draws)[alpha - 1]
    kept = int(draw * (min(max_length, len(content)) - min_length) + min_length)
    start = int(place * (len(content) - kept + 1))
    return content[start : start + kept]


def words(content: list[int]) -> list[list[int]]:
    """Return words: a special token alone; a token ending in 7 joins a word before it."""
    found: list[list[int]] = []
    for token in content:
        if token >= 6 and token % 10 == 7 and found and found[-1][0] >= 6:
            found[-1].append(token)
        else:
            found.append([token])
    return found


def draw_words(pieces: list[list[int]], key: int, count: int) -> set[int]:
    """Draw `count` words that are not special; word 0 is [CLS], so these are numbered from 1."""
    return drawn(key, [number for number, word in enumerate(pieces) if word[0] >= 6], count)


def delete(content: list[int], key: int, rate: float = 0.1) -> list[int]:
    pieces = words(content)
    count = sum(word[0] >= 6 for word in pieces)
    gone = draw_words(pieces, key, min(math.ceil(count * rate), max(count - 1, 0)))
    return [token for number, word in enumerate(pieces) if number not in gone for token in word]


def mask(content: list[int], key: int, rate: float = 0.15) -> list[int]:
    eligible = [place for place, token in enumerate(content) if token >= 6]
    count = min(max(round(rate * len(eligible)), 1 if rate else 0), len(eligible))
    chosen = drawn(key, eligible, count)
    return [MASK if place in chosen else token for place, token in enumerate(content)]


def punctuation(content: list[int], key: int, rate: float = 0.3) -> list[int]:
    pieces = words(content)
    count = sum(word[0] >= 6 for word in pieces)
    most = max(int(count * rate), 1)
    wanted = min(int((sequence_bits(key, 1, stream=1)[0] >> 11) * 2.0**-53 * most) + 1, count)
    chosen = draw_words(pieces, key, wanted)
    result = []
    for number, word in enumerate(pieces):
        if number in chosen:
            result.append(int(MARKS[token_bits(key, number + 1, stream=2) * len(MARKS) >> 32]))
        result += word
    return result
