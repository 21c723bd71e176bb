"""Keys of random streams."""

import numpy as np
import pytest

from samplesoft._random import stream_key


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1, 2**64, 3**90])
def test_a_seed_is_hashed_as_by_numpy(seed):
    (wanted,) = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    assert stream_key(seed) == wanted
    assert type(stream_key(seed)) is np.uint64


def test_many_seeds():
    for seed in np.random.default_rng(0).integers(0, 2**63, 200).tolist():
        assert stream_key(seed) == stream_key(np.int64(seed))
