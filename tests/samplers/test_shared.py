"""One set for a large batch: contexts that stand for groups, and the bias of what they draw."""

import numpy as np
import pytest

from samplesoft import exact_bias
from samplesoft.samplers import ClusterSampler, RFSoftmaxSampler, SoftmaxSampler, UniformSampler


def rows(num, dim=6, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=(num, dim)).astype(dtype)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def sampler(dtype=np.float64):
    return SoftmaxSampler(rows(20, dtype=dtype))


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_a_small_batch_is_taken_as_it_is(batch):
    h = rows(batch)
    pooled, shares = sampler()._representatives(h)
    np.testing.assert_array_equal(pooled, h)
    np.testing.assert_allclose(shares, 1.0 / batch)


@pytest.mark.parametrize(("batch", "most"), [(33, 32), (500, 32), (2000, 100)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_large_batch_costs_few_contexts(batch, most, dtype):
    pooled, shares = sampler(dtype)._representatives(rows(batch, dtype=dtype))
    assert 1 < len(pooled) == len(shares) <= most
    assert pooled.dtype == dtype
    assert shares.sum() == pytest.approx(1.0)
    assert shares.min() >= 1.0 / batch


def test_unit_vectors_stay_of_norm_1():
    pooled, _ = sampler()._representatives(unit(rows(300)))
    np.testing.assert_allclose(np.linalg.norm(pooled, axis=1), 1.0, rtol=1e-12)


def test_well_separated_groups_are_found():
    centers = 50.0 * unit(rows(8, seed=3))
    h = np.repeat(centers, 20, axis=0) + 1e-6 * rows(160, seed=4)
    pooled, _ = sampler()._representatives(h)
    nearest = np.linalg.norm(pooled[:, None] - centers, axis=2).min(axis=1)
    assert nearest.max() < 1e-4


@pytest.mark.parametrize("scale", [0.0, 1e-150, 1e150])
def test_any_size_of_contexts(scale):
    pooled, shares = sampler()._representatives(scale * rows(100))
    assert np.isfinite(pooled).all()
    assert shares.sum() == pytest.approx(1.0)
    assert (np.linalg.norm(pooled, axis=1) > 0.0).all() == (scale > 0.0)


def test_contexts_that_cancel_leave_one_of_them():
    h = np.concatenate([np.full((30, 2), 1.0), np.full((30, 2), -1.0)]) * [[1e-9, 1.0]]
    pooled, _ = sampler()._representatives(h)
    assert np.isin(np.abs(pooled[:, 1]).round(9), 1.0).all()


def test_contexts_do_not_matter_to_a_sampler_without_vectors():
    q = UniformSampler(7).probs(rows(100), shared=True)
    np.testing.assert_allclose(q, np.full((1, 7), 1 / 7), rtol=1e-15)


@pytest.mark.parametrize("make", [SoftmaxSampler, ClusterSampler, RFSoftmaxSampler])
def test_the_bias_is_that_of_the_distribution_drawn_from(make):
    c, h = unit(rows(60, seed=1)), unit(rows(90, seed=2))
    sampler = make(c, tau=4.0, **({} if make is SoftmaxSampler else {"rng": 0}))
    logits, labels, m = 4.0 * h[:2] @ c.T, np.array([3, 8]), 4
    q = sampler.probs(h, shared=True)
    exact = exact_bias(logits, labels, q[0], m, scheme="masked").expected_probs
    draws = sampler.sample(h, 60_000 * m, shared=True, rng=5)
    ids = draws.ids.reshape(-1, m)
    for b, label in enumerate(labels):
        weights = np.exp(logits[b][ids] - draws.log_q.reshape(-1, m)) / m * (ids != label)
        total = weights.sum(axis=1) + np.exp(logits[b, label])
        shares = weights / total[:, None]
        found = np.bincount(ids.ravel(), shares.ravel(), minlength=60) / len(ids)
        error = np.sqrt(np.bincount(ids.ravel(), shares.ravel() ** 2, minlength=60)) / len(ids)
        others = np.arange(60) != label
        assert (np.abs(found - exact[b])[others] <= 5.0 * error[others]).all()
