"""Draw random numbers by hashing what each draw is for, without a generator and without state.

The draws of a sequence depend on (seed, epoch, sequence id, view, purpose) and on nothing else: not on the
rest of the batch, the worker that made it, or earlier draws. A few array operations draw for a whole batch; a
numpy Generator for each sequence would cost some 14 microseconds of set-up.

The 64-bit finaliser is SplitMix64's (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014, Stafford's variant 13). The draws per token use the 32-bit finaliser of MurmurHash3 (Appleby)
twice, because 32-bit multiplications are vectorised and move half the memory.
"""

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TOKEN_BLOCK = 1 << 15  # tokens hashed at a time: the temporaries stay in the second-level cache


def mix(values: np.ndarray) -> np.ndarray:
    """Apply SplitMix64's finaliser, a bijection with output bits that look independent: uint64[...]."""
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def derive(keys: np.ndarray, *path: int | str | np.ndarray) -> np.ndarray:
    """Derive independent child keys, uint64[N]; each element of `path` (name, number, array) mixes once."""
    keys = np.asarray(keys, dtype=np.uint64)
    for element in path:
        keys = mix((keys ^ _as_uint64(element)) + _GOLDEN)
    return keys


def sequence_keys(
    seed: int, epoch: int | np.ndarray, sequence_ids: np.ndarray, view: int, purpose: str
) -> np.ndarray:
    """Return a key for every id of `sequence_ids`, uint64[N]; epoch: one, or one per sequence."""
    root = derive(np.zeros(1, dtype=np.uint64), seed, purpose, view)
    ids = np.asarray(sequence_ids).astype(np.uint64, copy=False)
    keys = derive(np.broadcast_to(root, ids.shape), ids)
    return derive(keys, np.asarray(epoch).astype(np.uint64))


def uniform(keys: np.ndarray, lengths: np.ndarray, stream: int = 0) -> np.ndarray:
    """Draw from [0, 1) for every token by (its sequence's key, place, stream): float32[lengths.sum()]."""
    bits = token_bits(keys, lengths, stream)
    bits >>= np.uint32(8)
    # through int32: that conversion is vectorised, uint32's is not
    draws = bits.view(np.int32).astype(np.float32)
    draws *= np.float32(2.0**-24)
    return draws


def token_bits(keys: np.ndarray, lengths: np.ndarray, stream: int = 0) -> np.ndarray:
    """Draw 32 random bits for every token, by (its sequence's key, place, stream): uint32[lengths.sum()]."""
    if len(keys) != len(lengths):
        raise ValueError(f"{len(keys)} keys for {len(lengths)} sequences: one key per sequence is needed")
    state = derive(keys, stream)
    low = state.astype(np.uint32)
    high = (state >> np.uint64(32)).astype(np.uint32)
    ends = np.cumsum(lengths, dtype=np.int64)
    # position * step + low = token * step + (low - start * step), modulo 2**32: no array of positions
    step = np.uint32(0x9E3779B9)
    low -= (ends - lengths).astype(np.uint32) * step
    bits = np.repeat(low, lengths)
    keys_high = np.repeat(high, lengths)
    counter = np.arange(min(len(bits), _TOKEN_BLOCK), dtype=np.uint32) * step
    scratch = np.empty_like(counter)
    for start in range(0, len(bits), _TOKEN_BLOCK):
        block = bits[start : start + _TOKEN_BLOCK]
        shifted = scratch[: len(block)]
        block += counter[: len(block)]
        block += np.uint32(start * 0x9E3779B9 & 0xFFFFFFFF)
        _mix32(block, shifted)
        block ^= keys_high[start : start + _TOKEN_BLOCK]
        _mix32(block, shifted)
    return bits


def uniform_per_sequence(keys: np.ndarray, count: int, stream: int = 0) -> np.ndarray:
    """Draw from [0, 1) by (key, j, stream): float64[N, count]; a larger count keeps the first draws."""
    return (bits_per_sequence(keys, count, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def bits_per_sequence(keys: np.ndarray, count: int, stream: int = 0) -> np.ndarray:
    """Draw 64 random bits `count` times for every sequence, as `uniform_per_sequence`: uint64[N, count]."""
    counters = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return mix(derive(keys, stream)[:, None] + counters)


def _mix32(values: np.ndarray, scratch: np.ndarray) -> None:
    """Apply MurmurHash3's 32-bit finaliser in place; scratch: uint32, as long as values."""
    np.right_shift(values, np.uint32(16), out=scratch)
    values ^= scratch
    values *= np.uint32(0x85EBCA6B)
    np.right_shift(values, np.uint32(13), out=scratch)
    values ^= scratch
    values *= np.uint32(0xC2B2AE35)
    np.right_shift(values, np.uint32(16), out=scratch)
    values ^= scratch


def _as_uint64(element: int | str | np.ndarray) -> np.uint64 | np.ndarray:
    if isinstance(element, str):
        # Not hash(): Python salts that differently in every process.
        return np.uint64(int.from_bytes(hashlib.blake2b(element.encode(), digest_size=8).digest(), "little"))
    if isinstance(element, np.ndarray):
        return element.astype(np.uint64, copy=False)
    return np.uint64(int(element) & 0xFFFFFFFFFFFFFFFF)
