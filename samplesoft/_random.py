"""Keyed random streams: a draw depends on its key and its counter, never on the thread."""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray

_WORD = 0xFFFFFFFF
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S11, _S27, _S30, _S31 = map(np.uint64, (11, 27, 30, 31))  # shifts


@njit
# SplitMix64 of Steele, Lea and Flood (2014) maps a counter to 64 mixed bits. Draws need no state,
# so threads and GPUs produce the same ones in any order.
def mix64(key: np.uint64, counter: np.uint64) -> np.uint64:
    """Return the `counter`-th 64-bit word of the SplitMix64 stream that starts at `key`."""
    z = key + counter * _GOLDEN
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@njit
def uniform(key: np.uint64, counter: np.uint64) -> float:
    """Return the `counter`-th uniform of stream `key`: a float64 in [0, 1) with 53 random bits."""
    # the upper 53 bits, the precision of a float64
    return float(mix64(key, counter) >> _S11) * (1.0 / 9007199254740992.0)


@njit
def uniform_block(key: np.uint64, batch: int, num: int) -> FloatArray:
    """Return uniforms (batch, num): row b holds the first draws of the stream keyed by (key, b)."""
    values = np.empty((batch, num))
    for b in range(batch):
        # one stream per row: adding rows does not change the others
        row_key = mix64(key, np.uint64(b))
        for k in range(num):
            values[b, k] = uniform(row_key, np.uint64(k))
    return values


@njit
def uniform_run(key: np.uint64, first: int, num: int) -> FloatArray:
    """Return entries `first` to ``first + num - 1`` of row_key 0 of a `uniform_block`."""
    values = np.empty(num)
    row_key = mix64(key, np.uint64(0))
    for k in range(num):
        values[k] = uniform(row_key, np.uint64(first + k))
    return values


@njit
def seed_key(low: int, high: int) -> int:
    """Return the first 64 bits of NumPy's ``SeedSequence(low + 2**32 * high)``.

    NumPy takes as long for them as for a hundred draws. Each word of the pool is hashed, then mixed
    with the others.
    """
    pool = [low, high, 0, 0]
    factor = 0x43B0D7E5
    for source in range(-1, 4):
        for k in range(4):
            if source != k:
                word = pool[k if source < 0 else source] ^ factor
                factor = factor * 0x931E8875 & _WORD
                word = word * factor & _WORD
                word ^= word >> 16
                if source >= 0:
                    word = (pool[k] * 0xCA01F9DD - word * 0x4973F715) & _WORD
                    word ^= word >> 16
                pool[k] = word
    low = (pool[0] ^ 0x8B51F9DD) * 0x464A0A99 & _WORD
    high = (pool[1] ^ 0x464A0A99) * 0x819D14A5 & _WORD
    return (low ^ low >> 16) | (high ^ high >> 16) << 32


class RowKey(int):
    """The key of a block that starts at row `row` of the block of a seed; usable as a seed."""

    def __new__(cls, seed: int, row: int) -> RowKey:
        """Advance the key by `row` counters of `mix64`."""
        return super().__new__(cls, (int(as_key(seed)) + row * int(_GOLDEN)) % (1 << 64))


def as_key(rng: int | np.random.Generator | None, name: str = "rng") -> np.uint64:
    """Return the 64-bit stream key of a public `rng` argument; errors call the argument `name`.

    The key is derived from an int seed, drawn from a generator, or fresh for None.
    """
    if type(rng) is int and 0 <= rng < 1 << 64:
        return np.uint64(seed_key(rng & _WORD, rng >> 32) & 0xFFFFFFFFFFFFFFFF)
    if isinstance(rng, RowKey):
        return np.uint64(rng)
    if isinstance(rng, np.random.Generator):
        return np.uint64(rng.integers(0, 2**64, dtype=np.uint64))
    if rng is None or (isinstance(rng, (int, np.integer)) and not isinstance(rng, bool)):
        if rng is not None and rng < 0:
            raise ValueError(f"`{name}` as a seed must be at least 0, got {rng}.")
        # SeedSequence maps close seeds to unrelated keys
        return np.uint64(np.random.SeedSequence(rng).generate_state(1, np.uint64)[0])
    raise TypeError(
        f"`{name}` must be an int seed, a numpy.random.Generator or None, "
        f"got {type(rng).__name__}; numpy.random.default_rng(seed) makes a generator."
    )
