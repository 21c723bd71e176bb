"""A vector added to all others moves no cell, group or center: distances stay as they are."""

import numpy as np
import pytest

from samplesoft.samplers import ClusterSampler, LazyGumbel, SoftmaxSampler
from samplesoft.samplers.k_means import k_means

# far enough that squares keep no digit of a distance about 1
SHIFTS = {np.float32: 2.0**14, np.float64: 2.0**36}
CASES = list(SHIFTS.items())


def groups(n, num, dim=4, seed=0):
    """Return n vectors in tight groups, and the group of each; sums with a shift are exact."""
    rng = np.random.default_rng(seed)
    group = rng.integers(num, size=n)
    rows = rng.normal(size=(num, dim))[group] + 0.05 * rng.normal(size=(n, dim))
    return np.round(rows * 256.0) / 256.0, group


@pytest.mark.parametrize(("dtype", "shift"), CASES)
@pytest.mark.parametrize("where", [slice(None), slice(1), slice(2)])
def test_cells_are_those_of_vectors_near_zero(dtype, shift, where):
    rows, _ = groups(1500, 40)
    far = rows.copy()
    far[:, where] += shift
    near = ClusterSampler(rows.astype(dtype), rng=1)
    sampler = ClusterSampler(far.astype(dtype), rng=1)
    for level, wanted in zip(sampler.cells(), near.cells(), strict=True):
        assert [cell.tolist() for cell in level] == [cell.tolist() for cell in wanted]
    np.testing.assert_allclose(sampler._variance_in_leaves(), near._variance_in_leaves(), rtol=1e-2)
    # stale cells are told from new ones
    moved = np.arange(700)
    for each, vectors in ((near, rows), (sampler, far)):
        each.update(moved, vectors[(moved + 800) % 1500].astype(dtype))
    assert near.staleness > 2.0
    np.testing.assert_allclose(sampler.staleness, near.staleness, rtol=1e-2)


@pytest.mark.parametrize(("dtype", "shift"), CASES)
def test_centers_between_two_far_groups_are_as_good_as_near_ones(dtype, shift):
    rows, _ = groups(4000, 8)
    side = np.where(np.arange(4000) < 2000, 1.0, -1.0)[:, None]

    def spread(labels):
        parts = [rows[(labels == i) & (side[:, 0] == s)] for i in range(64) for s in (-1.0, 1.0)]
        return sum(((part - part.mean(axis=0)) ** 2).sum() for part in parts if len(part))

    far = k_means((rows + side * shift).astype(dtype), 64, np.uint64(0))
    assert spread(far) < 1.5 * spread(k_means((rows + 16.0 * side).astype(dtype), 64, np.uint64(0)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_contexts_that_share_draws_are_grouped_by_how_they_differ(dtype):
    # a coordinate in which classes have 0 changes no logit
    shift = SHIFTS[dtype]
    h, _ = groups(1280, 32, seed=1)
    h, rows = 8.0 * h, groups(50, 50, seed=2)[0]
    aside = np.zeros((50, 1))
    sampler = SoftmaxSampler(np.hstack([rows, aside]).astype(dtype))
    contexts = np.hstack([h, np.full((1280, 1), shift)]).astype(dtype)
    found = sampler.probs(contexts, shared=True)[0]
    assert 0.5 * np.abs(found - sampler.probs(contexts).mean(axis=0)).sum() < 0.02


@pytest.mark.parametrize(("dtype", "shift"), CASES)
def test_lazy_draws_reach_no_farther(dtype, shift):
    rows, _ = groups(1000, 20)
    near, far = (LazyGumbel((rows + s).astype(dtype), num_clusters=40) for s in (0.0, shift))
    assert far._cells.radii.mean() < 1.5 * near._cells.radii.mean()
