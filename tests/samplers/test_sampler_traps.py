"""Mistakes that were found in samplers and corrected: each test failed before."""

import copy

import numpy as np
import pytest

from samplesoft.samplers import (
    KernelSampler,
    LearnedUnigramSampler,
    MixtureSampler,
    PositiveSampler,
    QuadraticSampler,
    SoftmaxSampler,
    TwoPassSampler,
    UniformSampler,
    UnigramSampler,
)
from samplesoft.samplers.tree import kernel_tree as tree


def test_draws_with_the_seed_of_the_candidates_do_not_follow_them():
    lower = total = 0
    for seed in range(2000):
        sampler = TwoPassSampler(
            UniformSampler(1000), np.zeros((1000, 1)), num_candidates=2, rng=seed
        )
        if len(sampler.candidate_ids) == 2 and sampler.candidate_ids.max() < 500:
            total += 1
            lower += sampler.sample([0.0], 1, rng=seed).ids[0, 0] == sampler.candidate_ids[0]
    assert total > 400
    assert abs(lower - total / 2) < 5 * np.sqrt(total / 4)


@pytest.mark.parametrize("make", [PositiveSampler, QuadraticSampler])
def test_a_mixture_takes_an_update_whole_or_not_at_all(make):
    vectors = np.ones((40, 2))
    options = {"num_features": 8, "rng": 0} if make is PositiveSampler else {}
    sampler = MixtureSampler(SoftmaxSampler(vectors), make(vectors, **options))
    before = sampler.probs([1.0, 0.5])
    with pytest.raises(ValueError):
        sampler.update([0], [[1e160, 1e160]])
    np.testing.assert_array_equal(sampler.probs([1.0, 0.5]), before)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_softmax_sums_to_one_at_large_logits(sign):
    rng = np.random.default_rng(10)
    vectors = sign * (1.0 + 1e-4 * rng.uniform(-1.0, 1.0, (2000, 1)))
    h = rng.uniform(8192.0, 1e4, (40, 1))
    sums = SoftmaxSampler(vectors).probs(h).sum(axis=1)
    np.testing.assert_allclose(sums, 1.0, rtol=0, atol=1e-13)


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_counts_in_any_unit(unit):
    initial = np.array([1.0, 3.0]) * unit
    np.testing.assert_allclose(
        LearnedUnigramSampler(2, initial=initial).probs(None), [[0.25, 0.75]], rtol=1e-12
    )


def test_counts_far_apart_keep_their_weights():
    log_q = UnigramSampler([1e-200, 1e200], power=0.5).log_prob(None, [0, 1])
    np.testing.assert_allclose(log_q, [[-200.0 * np.log(10.0), 0.0]], rtol=1e-12)


def test_a_uniform_of_zero_does_not_draw_what_has_no_weight(monkeypatch):
    monkeypatch.setattr(tree, "uniform_block", lambda key, batch, num: np.zeros((batch, num)))
    sampler = tree.KernelTree([[-1e4], [0.0]], leaf="softmax", leaf_size=2)
    draw = sampler.sample([1.0], 3)
    assert draw.ids.tolist() == [[1, 1, 1]]


def test_no_classes_asked_for():
    none = np.empty((3, 0), np.int64)
    for sampler in (SoftmaxSampler(np.eye(3)), tree.KernelTree(np.eye(3))):
        assert sampler.log_prob(np.eye(3), none).shape == (3, 0)


def test_what_is_no_feature_map_is_named():
    with pytest.raises(
        TypeError, match="`feature_map` must be a FeatureMap or a function .* got ndarray"
    ):
        KernelSampler(np.eye(3), np.eye(3))
    with pytest.raises(TypeError, match="`transform` must be callable, got list"):
        tree.KernelTree(np.eye(3), [1])


def test_whole_counts_stay_exact_after_any_observations():
    rng = np.random.default_rng(0)
    sampler = LearnedUnigramSampler(50, initial=np.append(np.ones(49), 11.0))
    for _ in range(300):
        sampler.observe(rng.integers(0, 50, 7))
    sums = sampler._tree._sums
    assert sums.nodes[0, 0] * sampler._count_unit == sums.total[0] * sampler._count_unit
    assert sums.total[0] * sampler._count_unit == sampler.counts.sum() == 49 + 11 + 2100


def test_a_copy_of_a_sampler_draws_as_it_is_set_to():
    sampler = UniformSampler(3)
    sampler.sample(None, 9)
    distinct = copy.copy(sampler)
    distinct.replace = False
    assert sorted(distinct.sample(None, 3, rng=0).ids[0]) == [0, 1, 2]


@pytest.mark.parametrize("empty", [[], np.empty((0, 2))])
@pytest.mark.parametrize("make", [lambda: UniformSampler(4), lambda: SoftmaxSampler(np.eye(2))])
def test_a_batch_without_contexts_is_refused(make, empty):
    with pytest.raises(ValueError, match=r"`h` must .* got .*shape \(0,"):
        make().sample(empty, 3)
