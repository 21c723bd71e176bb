"""Counts in any unit: near the ends of float64 draws are by their ratios, without a warning."""

import warnings

import numpy as np
import pytest

from samplesoft.losses import huffman_tree, two_level_tree
from samplesoft.models import AdaptiveSoftmax
from samplesoft.samplers import (
    SAMPLERS,
    LearnedUnigramSampler,
    LogUniformSampler,
    SamplerInputs,
    StreamingUnigramSampler,
    UnigramSampler,
    WeightedSampler,
    dense_proposals,
    make_certain_sampler,
    make_sampler,
)
from samplesoft.sklearn import SampledSoftmaxClassifier

LARGEST, LEAST = np.finfo(np.float64).max, 5e-324
COUNTS = {
    "large": [1e308] * 4,
    "largest": [LARGEST] * 4,
    "all sizes": [1e308, 1e308, 1e-308, 1e-308],
    "ends": [LARGEST, LEAST, 1.0, LARGEST],
    "least": [LEAST] * 4,
}
WITH_ZEROS = {
    "least and none": [LEAST, 0.0, LEAST, 0.0],
    "large and none": [0.0, 1e308, LARGEST, 0],
}
VECTORS = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0], [-0.8, 0.6]])


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def shares(counts):
    scaled = np.array(counts) / max(counts)
    return scaled / scaled.sum()


@pytest.mark.parametrize("counts", [*COUNTS.values(), *WITH_ZEROS.values()])
@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_samplers_by_name(name, counts):
    inputs = SamplerInputs(VECTORS, counts, num_features=16, h=VECTORS, rng=0)
    sampler = make_sampler(name, inputs)
    for q in (sampler.probs(VECTORS), dense_proposals([name], inputs)[name]):
        assert np.isfinite(q).all()
        np.testing.assert_allclose(q.sum(axis=-1), 1.0, rtol=1e-9)
    assert np.isfinite(sampler.sample(VECTORS, 9, rng=0).log_q).all()
    sampler.observe([0, 1, 1])
    np.testing.assert_allclose(sampler.probs(VECTORS).sum(axis=-1), 1.0, rtol=1e-9)
    certain = make_certain_sampler(name, inputs, 1)
    assert np.isfinite(certain.sample(VECTORS, 3, rng=0).log_inclusion).all()


@pytest.mark.parametrize("counts", COUNTS.values())
def test_samplers_of_counts(counts):
    for sampler in (
        WeightedSampler(counts),
        UnigramSampler(counts, power=1.0),
        LearnedUnigramSampler(4, initial=counts),
        StreamingUnigramSampler(4, initial=counts),
    ):
        np.testing.assert_allclose(sampler.probs(None)[0], shares(counts), atol=1e-12)
    assert np.isfinite(LogUniformSampler(4, counts=counts).probs(None)).all()
    for replace in (True, False):
        found = WeightedSampler(counts, replace=replace).inclusion_probs(1)
        np.testing.assert_allclose(found, shares(counts), atol=1e-9)


@pytest.mark.parametrize("counts", COUNTS.values())
@pytest.mark.parametrize("kind", [LearnedUnigramSampler, StreamingUnigramSampler])
@pytest.mark.parametrize("power", [0.75, 1.0, 2.0])
def test_samplers_that_observe_go_on_and_come_back(kind, counts, power):
    sampler, twin = (kind(4, initial=counts, power=power) for _ in range(2))
    for labels in ([0, 1, 1], [3], [2, 2, 2, 1]):
        sampler.observe(labels)
        q = sampler.probs(None)[0]
        assert np.isfinite(q).all() and q.sum() == pytest.approx(1.0)
        assert np.isfinite(sampler.counts).all() and (sampler.counts > 0.0).all()
        twin.load_state(sampler.state())
        np.testing.assert_array_equal(twin.probs(None), sampler.probs(None))


def test_a_stream_of_large_counts_is_one_of_the_same_ratios():
    labels = np.random.default_rng(0).integers(0, 4, 300)
    large = StreamingUnigramSampler(4, initial=np.array([1.0, 2.0, 3.0, 4.0]) * 2.0**1021)
    plain = StreamingUnigramSampler(4, initial=[1.0, 2.0, 3.0, 4.0])
    for sampler in (large, plain):
        sampler.observe(labels)
    np.testing.assert_array_equal(large.probs(None), plain.probs(None))


@pytest.mark.parametrize("counts", [*COUNTS.values(), *WITH_ZEROS.values()])
def test_trees_and_heads_of_counts(counts):
    for make in (huffman_tree, two_level_tree):
        make(counts)
    assert 1 <= AdaptiveSoftmax(8, counts).cutoffs[0] <= 4


@pytest.mark.parametrize("sampler", ["unigram", "streaming-unigram", "log-uniform"])
@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_weights_of_examples_that_are_too_large_are_refused_by_their_name(
    sampler, class_weight, method
):
    X, y = np.tile(VECTORS, (10, 1)), np.arange(40) % 4
    given = {"sample_weight": np.full(40, 1e308)}
    if method == "partial_fit":
        class_weight = None
        given["classes"] = np.arange(4)
    options = {"num_sampled": 2, "max_iter": 1, "class_weight": class_weight, "random_state": 0}
    model = SampledSoftmaxClassifier(sampler=sampler, **options)
    with pytest.raises(ValueError, match=r"^`sample_weight` .* divide all by one number"):
        getattr(model, method)(X, y, **given)
