"""Samplers of one's own: weights of all classes in, draws and everything else out."""

import numpy as np
import pytest
from oracles.naive_samplers import chi_square, conditional

from samplesoft.losses import SampledSoftmaxLoss
from samplesoft.models import SoftmaxLayer
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers import DenseSampler, UniformSampler
from samplesoft.samplers import dense as module
from samplesoft.samplers.base import as_sampler

WEIGHTS = [3.0, 0.0, 1.0, 4.0, 0.5]


class Fixed(DenseSampler):
    def __init__(self, weights):
        super().__init__(num_classes=np.shape(weights)[-1])
        self.given = weights

    def weights(self, h):
        return self.given


class Cosine(DenseSampler):
    def weights(self, h):
        assert h.dtype == self.class_embeddings.dtype
        return 2.0 + h @ self.class_embeddings.T


def floats(probs):
    return [float(p) for p in probs]


@pytest.mark.parametrize("exclude", [None, 0, 1, 3])
def test_probabilities_are_the_weights_of_what_can_be_drawn(exclude):
    sampler, wanted = Fixed(WEIGHTS), floats(conditional(WEIGHTS, exclude))
    np.testing.assert_allclose(sampler.probs(None, exclude=exclude)[0], wanted, rtol=1e-15)
    with np.errstate(divide="ignore"):
        log_q = sampler.log_prob(None, np.arange(5), exclude=exclude)
        np.testing.assert_allclose(log_q[0], np.log(wanted), rtol=1e-15)
    draw = sampler.sample(None, 40_000, exclude=exclude, rng=0)
    counts = np.bincount(draw.ids[0], minlength=5)
    assert chi_square(counts, wanted) > 1e-4
    assert chi_square(counts, floats(conditional(np.sqrt(WEIGHTS), exclude))) < 1e-9
    np.testing.assert_array_equal(draw.log_q[0], log_q[0, draw.ids[0]])


@pytest.mark.parametrize("unit", [1e-300, 1.0, 1e300])
def test_weights_in_any_unit(unit):
    wanted = floats(conditional(WEIGHTS))
    np.testing.assert_allclose(Fixed(unit * np.array(WEIGHTS)).probs(None)[0], wanted, rtol=1e-15)


@pytest.mark.parametrize("u", [0.0, 0.375, 1.0 - 2.0**-53])
def test_no_uniform_draws_a_class_without_weight(monkeypatch, u):
    monkeypatch.setattr(module, "uniform_block", lambda key, batch, m: np.full((batch, m), u))
    for weights in ([0.0, 3.0, 0.0, 5.0, 0.0], [0.0, 0.1, 0.2, 0.3, 0.0]):
        drawn = Fixed(weights).sample(None, 2).ids
        assert np.isin(drawn, np.flatnonzero(weights)).all()


def test_weights_follow_contexts_and_updates():
    vectors, h = np.eye(3), np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0]])
    sampler = Cosine(vectors)
    vectors[:] = 0.0  # it has a copy
    np.testing.assert_allclose(sampler.probs(h), [[3 / 7, 2 / 7, 2 / 7], [0.4, 0.4, 0.2]])
    sampler.update([2, 0, 2], [[0.0, 0.0, 1.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    np.testing.assert_allclose(sampler.probs(h), [[0.2, 0.4, 0.4], [0.5, 0.5, 0.0]])
    with pytest.raises(ValueError, match="`class_embeddings` must have 3 columns"):
        sampler.update([0], [[1.0]])
    shared = sampler.sample(h, 30_000, shared=True, rng=1)
    mean = np.array([0.35, 0.45, 0.2])
    assert chi_square(np.bincount(shared.ids[0], minlength=3), mean) > 1e-4
    np.testing.assert_allclose(shared.log_q, np.log(mean)[shared.ids], rtol=1e-12)


def test_parts_of_the_batch_do_not_matter(monkeypatch):
    vectors = np.random.default_rng(0).normal(size=(50, 4)) / 9.0
    sampler, h = Cosine(vectors), np.random.default_rng(1).normal(size=(30, 4)) / 9.0
    whole = sampler.sample(h, 9, rng=3)
    monkeypatch.setattr(module, "_MAX_CHUNK_WEIGHTS", 350)
    parts = sampler.sample(h, 9, rng=3)
    np.testing.assert_array_equal(parts.ids, whole.ids)
    np.testing.assert_allclose(parts.log_q, whole.log_q, rtol=1e-14)
    np.testing.assert_allclose(sampler.log_prob(h, whole.ids), whole.log_q, rtol=1e-14)
    assert len(np.unique(whole.ids, axis=0)) > 20


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([[1.0, 2.0], [1.0, 2.0]], r"real numbers of shape \(1, 2\) or \(2,\) for 1 contexts"),
        ([1.0, np.nan], "finite numbers that are at least 0, got nan"),
        ([1.0, np.inf], "finite numbers that are at least 0, got 1.0 to inf"),
        ([1.0, -0.5], r"at least 0, got -0.5 to 1.0; correct Fixed.weights"),
        ([0.0, 0.0], "leave each context a class to draw, got only 0 for context 0"),
        ([1j, 1.0], "got complex128"),
    ],
)
def test_malformed_weights_are_named(weights, message):
    sampler = Fixed(weights)
    for call in (lambda: sampler.probs(None), lambda: sampler.sample(None, 2)):
        with pytest.raises(ValueError, match=message):
            call()


def test_the_only_class_with_a_weight_cannot_be_excluded():
    with pytest.raises(ValueError, match="only 0 for context 1 beside its excluded class"):
        Fixed([0.0, 2.0]).sample(None, 1, exclude=[0, 1])


def test_weights_of_nothing_but_0_are_not_put_down_to_exclude():
    with pytest.raises(ValueError, match="only 0 for context 0; give a class a weight"):
        Fixed([0.0, 0.0]).sample(None, 1)
    with pytest.raises(ValueError, match="only 0 for context 1; give a class a weight"):
        Fixed([[1.0, 1.0], [0.0, 0.0]]).sample(None, 1, exclude=[0, 1])


def test_either_vectors_or_a_number_of_classes():
    for given, got in (({}, "neither"), ({"class_embeddings": [[1.0]], "num_classes": 1}, "both")):
        with pytest.raises(ValueError, match=f"must be given, got {got}"):
            Cosine(**given)
    with pytest.raises(ValueError, match="`tau` must be finite and greater than 0"):
        Cosine([[1.0]], tau=0.0)
    assert Cosine([[1.0]], tau=3.0).tau == 3.0


def test_what_is_a_sampler():
    for sampler in (UniformSampler(3), Fixed(WEIGHTS)):
        assert as_sampler("q", sampler) is sampler
    with pytest.raises(TypeError, match="`q` must be a Sampler, got list; .*DenseSampler"):
        as_sampler("q", [0.5, 0.5])

    class Half:
        num_classes, dim, tau, device = 2, None, None, "cpu"

        def probs(self, h, *, exclude=None):
            return np.full((1, 2), 0.5)

    with pytest.raises(TypeError, match="got Half without sample, log_prob, .*, load_state;"):
        as_sampler("q", Half())


class Delegate:
    """A sampler that shares no class with the library."""

    def __init__(self, sampler):
        self._sampler = sampler

    def __getattr__(self, name):
        return getattr(self._sampler, name)


@pytest.mark.parametrize("shared", [False, True])
def test_a_layer_takes_what_has_the_methods_of_a_sampler(shared):
    rows, scheme = np.eye(4)[:, :3], "candidate_masked"  # which asks for expected counts too
    losses = [
        SoftmaxLayer(rows, SampledSoftmaxLoss(scheme=scheme), sampler, 3, shared=shared).forward(
            rows[:3], [0, 1, 2], rng=0
        )[0]
        for sampler in (Cosine(rows), Delegate(Cosine(rows)), UniformSampler(4))
    ]
    assert losses[0] == losses[1] != losses[2]


def test_it_trains_a_layer():
    rows = np.eye(4)[:, :3] + 0.1
    layer = SoftmaxLayer(rows, SampledSoftmaxLoss(), Cosine(rows), 5)
    before = layer.evaluate(rows[:2], [0, 1]).loss
    _, cache = layer.forward(rows[:2], [0, 1], rng=0)
    _, gradients = layer.backward(cache)
    make_optimizer("sgd", 1.0).step(layer.parameters, gradients)
    layer.update(gradients["class_embeddings"].ids)
    changed = layer.parameters["class_embeddings"]
    assert not np.array_equal(changed, rows)
    np.testing.assert_array_equal(layer.sampler.class_embeddings, changed)
    assert layer.evaluate(rows[:2], [0, 1]).loss < before
