"""Random streams without state: a value depends only on the key of its stream and on its index.

So threads and GPUs can compute values in any order, and the values are the same.
"""

from __future__ import annotations

import numpy as np

from samplesoft._jit import njit
from samplesoft._validation import FloatArray

_LOW_32_BITS = 0xFFFFFFFF  # mask of the lower 32 bits
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio
# multipliers of SplitMix64
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# shifts by 11 to 31 bits
_S11 = np.uint64(11)
_S27 = np.uint64(27)
_S30 = np.uint64(30)
_S31 = np.uint64(31)


# SplitMix64 of Steele, Lea and Flood (2014): multiply a counter, and mix the bits of the product.
@njit
def mix64(key: np.uint64, counter: np.uint64) -> np.uint64:
    """Return the `counter`-th 64-bit word of the SplitMix64 stream that starts at `key`."""
    z = key + counter * _GOLDEN
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@njit
def uniform(key: np.uint64, counter: np.uint64) -> float:
    """Return the `counter`-th uniform value of stream `key`, with 53 random bits, in [0, 1)."""
    # keep the upper 53 bits, the precision of a float64
    return float(mix64(key, counter) >> _S11) * (1.0 / 9007199254740992.0)


@njit
def uniform_block(key: np.uint64, batch: int, num_columns: int) -> FloatArray:
    """Return uniform values in [0, 1), shape (batch, num_columns).

    Row b holds the first `num_columns` values of the stream with the key ``mix64(key, b)``.
    """
    values = np.empty((batch, num_columns))
    for b in range(batch):
        # each row has a separate stream, so that a larger batch does not change the other rows
        row_key = mix64(key, np.uint64(b))
        for k in range(num_columns):
            values[b, k] = uniform(row_key, np.uint64(k))
    return values


@njit
def uniform_slice(key: np.uint64, start: int, size: int) -> FloatArray:
    """Return columns [start, start + size) of row 0 of a `uniform_block` with this key."""
    values = np.empty(size)
    row_key = mix64(key, np.uint64(0))
    for k in range(size):
        values[k] = uniform(row_key, np.uint64(start + k))
    return values


@njit
def seed_key(low: int, high: int) -> int:
    """Return the first 64 bits of NumPy's ``SeedSequence(low + 2**32 * high)``.

    `low` and `high` are integers of 32 bits, and with two zeros they are the four words of a pool.
    The algorithm hashes each word, and then mixes it with the other three. NumPy's own function
    takes as long as a hundred draws.
    """
    pool = [low, high, 0, 0]
    factor = 0x43B0D7E5
    for source in range(-1, 4):
        for k in range(4):
            if source != k:
                word = pool[k if source < 0 else source] ^ factor
                factor = factor * 0x931E8875 & _LOW_32_BITS
                word = word * factor & _LOW_32_BITS
                word ^= word >> 16
                if source >= 0:
                    word = (pool[k] * 0xCA01F9DD - word * 0x4973F715) & _LOW_32_BITS
                    word ^= word >> 16
                pool[k] = word

    low = (pool[0] ^ 0x8B51F9DD) * 0x464A0A99 & _LOW_32_BITS
    high = (pool[1] ^ 0x464A0A99) * 0x819D14A5 & _LOW_32_BITS
    return (low ^ low >> 16) | (high ^ high >> 16) << 32


class OffsetSeed(int):
    """The seed of a chunk of a batch, which starts at row `row` of the batch.

    Its `uniform_block` has the rows from `row` on of the block of the batch's seed. So a batch that
    is processed in chunks gets the same random values as without chunks. The int is the key of the
    stream.
    """

    def __new__(cls, seed: int, row: int) -> OffsetSeed:
        """Return the seed for the rows from `row` on: the key of `seed`, `row` counters further."""
        return super().__new__(cls, (int(stream_key(seed)) + row * int(_GOLDEN)) % (1 << 64))


def stream_key(rng: int | np.random.Generator | None, name: str = "rng") -> np.uint64:
    """Return the 64-bit key of the random stream that a public argument `rng` selects.

    The key is derived from an int seed, drawn from a NumPy generator, or made from the system's
    entropy if `rng` is None. Errors call the argument `name`.
    """
    if type(rng) is int and 0 <= rng < 1 << 64:
        return np.uint64(seed_key(rng & _LOW_32_BITS, rng >> 32) & 0xFFFFFFFFFFFFFFFF)
    if isinstance(rng, OffsetSeed):
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
