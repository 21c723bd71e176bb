"""A sampler and a feature map of one's own: a file, a line and an oracle each, then known by name.

The README's section on extending shows the same.
"""

import numpy as np
import pytest
from mpmath import mpf
from oracles import naive_samplers
from oracles.naive_draws import inner, normalised
from samplers import test_registry, test_samplers

from samplesoft import exact_bias, verify
from samplesoft.feature_maps import FEATURE_MAPS, FeatureMap, FeatureMapSpec, make_feature_map
from samplesoft.losses import SampledSoftmaxLoss
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import (
    SAMPLERS,
    DenseSampler,
    KernelSampler,
    KernelTree,
    SamplerInputs,
    SamplerSpec,
    dense_proposals,
    make_sampler,
)

W = np.array([[1.0, 0.0], [0.6, 0.8], [-0.8, 0.6], [0.0, -1.0]])
H = np.array([[0.8, 0.6], [0.6, 0.8]])


# the sampler: one file


class ReluSampler(DenseSampler):
    """Draw class i in proportion to max(h . c_i, 0) + 0.1."""

    def weights(self, h):
        return np.maximum(h @ self.class_embeddings.T, 0.0) + 0.1


# one line


@pytest.fixture
def relu(monkeypatch):
    spec = SamplerSpec(
        lambda inputs: ReluSampler(inputs.class_embeddings),
        "max(h . c, 0) + 0.1",
        reads=("class_embeddings",),
    )
    monkeypatch.setitem(SAMPLERS, "relu", spec)
    return "relu"


# and its oracle, with which tests/samplers runs all that it asks of any sampler


def relu_oracle(sampler, h, inputs, excluded):
    weights = [max(inner(h, c), 0) + mpf(0.1) for c in inputs.class_embeddings]
    return normalised(weights, excluded)


@pytest.mark.parametrize(
    "test",
    [
        lambda name: test_samplers.test_probabilities_are_those_of_the_oracle(name, 37),
        lambda name: test_samplers.test_the_three_views_of_q_agree(name, 37, np.float32),
        test_samplers.test_draws_follow_q,
        test_samplers.test_draws_without_the_label_follow_q_given_that,
        test_samplers.test_a_shared_set_comes_from_the_mean,
        lambda name: test_samplers.test_an_updated_sampler_is_like_a_new_one(name, np.float64),
        test_registry.test_it_reads_what_it_declares_and_no_more,
        test_registry.test_it_looks_at_contexts_and_follows_updates_if_it_says_so,
    ],
)
def test_the_suites_of_all_samplers_pass_with_it(relu, monkeypatch, test):
    monkeypatch.setitem(naive_samplers.ORACLES, relu, relu_oracle)
    test(relu)


def test_a_wrong_oracle_fails_the_suite(relu, monkeypatch):
    monkeypatch.setitem(naive_samplers.ORACLES, relu, naive_samplers.ORACLES["softmax"])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_samplers.test_probabilities_are_those_of_the_oracle(relu, 37)


def test_its_bias_is_computed_and_verified_by_its_name(relu):
    logits, labels = 2.0 * H @ W.T, [1, 2]
    proposals = dense_proposals([relu, "softmax"], SamplerInputs(W, h=H, logits=logits))
    one, none = (exact_bias(logits, labels, q, 10) for q in proposals.values())
    assert np.abs(one.bias).sum() > 1e-3
    assert np.abs(none.bias).sum() < 1e-12
    assert verify(logits, labels, proposals, 10, num_trials=300, rng=0).ok


def test_it_follows_a_layer(relu):
    layer = SoftmaxLayer(W, SampledSoftmaxLoss(), make_sampler(relu, SamplerInputs(W)), 5)
    before = layer.sampler.probs(H)
    layer.parameters["class_embeddings"][:] = W[::-1]
    layer.update()
    fresh = make_sampler(relu, SamplerInputs(W[::-1]))
    np.testing.assert_array_equal(layer.sampler.probs(H), fresh.probs(H))
    assert not np.array_equal(before, fresh.probs(H))


# the feature map: one file


class LinearFeatures(FeatureMap):
    """The vector itself and a 1: the kernel 1 + x . y, exactly."""

    def __init__(self, dim):
        super().__init__(dim, feature_dim=dim + 1, floor=1e-3)

    def _write(self, X, out):
        out[:, 0] = 1.0
        out[:, 1:] = X

    def _kernel(self, X, Y):
        return 1.0 + X @ Y.T


# one line


@pytest.fixture
def linear(monkeypatch):
    def make(dim, num_features, sharpness=1.0, *, rng=None):
        return LinearFeatures(dim)

    spec = FeatureMapSpec(make, "1 + x . y", "the vector itself and a 1", random=False)
    monkeypatch.setitem(FEATURE_MAPS, "linear", spec)
    return "linear"


def test_a_feature_map_of_ones_own_is_made_by_its_name(linear):
    phi = make_feature_map(linear, 2)
    wanted = [[float(1 + inner(x, y)) for y in W] for x in H]
    np.testing.assert_allclose(phi.transform(H) @ phi.transform(W).T, wanted, rtol=1e-14)
    np.testing.assert_allclose(phi.kernel(H, W), wanted, rtol=1e-14)
    sampler = KernelSampler(W, phi, leaf="kernel", leaf_size=1)
    clipped = np.maximum(wanted, 1e-3)
    q = clipped / clipped.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(sampler.probs(H), q, rtol=1e-12)


def test_a_function_serves_as_a_map():
    def features(rows):
        return np.concatenate([np.ones((len(rows), 1)), rows], axis=1)

    sampler = KernelSampler(W, features, leaf="kernel", leaf_size=1)
    tree, of_map = (KernelTree(W, f, leaf_size=1) for f in (features, LinearFeatures(2)))
    wanted = 1.0 + H @ W.T
    np.testing.assert_allclose(sampler.probs(H), wanted / wanted.sum(axis=1, keepdims=True))
    np.testing.assert_array_equal(tree.probs(H), sampler.probs(H))
    np.testing.assert_array_equal(of_map.probs(H), sampler.probs(H))
    assert sampler.tau is None and KernelSampler(W, features).tau == 1.0
    with pytest.raises(ValueError, match=r"`transform` must give real features of shape \(\d, 2"):
        KernelSampler(W, lambda rows: rows[:1])
