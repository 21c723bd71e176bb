"""A scheme of one's own, samplers in place of q, and losses whose bias is that of a scheme."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from oracles import naive
from oracles.loss_cases import NAMES

import samplesoft
from samplesoft import schemes
from samplesoft.losses import LOSSES, make_loss
from samplesoft.samplers import MixtureSampler, SoftmaxSampler, UniformSampler
from samplesoft.samplers.base import Draw

LOGITS, Q = np.array([0.4, -1.1, 2.0, 0.3]), np.array([0.4, 0.1, 0.2, 0.3])
RNG = np.random.default_rng(0)
H, W = RNG.normal(size=(3, 2)), RNG.normal(size=(5, 2))


@pytest.mark.parametrize("m", [1, 3, 50])
def test_a_scheme_of_ones_own_is_its_facts(m, monkeypatch):
    # draws of the label have no weight, as in `masked`; no code knows of the name
    toy = schemes.Scheme("toy", "e_t + sum of e_j / (m q_j), j != t", base="plain", hits="masked")
    monkeypatch.setitem(schemes.SCHEMES, "toy", toy)
    exact = samplesoft.exact_bias(LOGITS, 2, Q, m, scheme="toy")
    _, bias, loss_bias = naive.laplace_mpmath(LOGITS, 2, Q, m, "masked", dps=20)
    np.testing.assert_allclose(exact.bias, bias.astype(float), rtol=1e-10)
    assert exact.loss_bias == pytest.approx(float(loss_bias), rel=1e-10)
    got = samplesoft.monte_carlo_bias(LOGITS, 2, Q, m, num_trials=20_000, scheme="toy", rng=0)
    assert np.abs((got.bias - exact.bias) / got.stderr).max() < 4.5
    report = samplesoft.verify(LOGITS, 2, {"q": Q}, (m,), scheme="toy", rng=0)
    assert report.scheme == "toy"
    assert report.rows[0].finite_hold  # as those of any scheme of such a sum
    assert report.rows[0].printed_max is None


FUNCTIONS = {
    "exact_bias": lambda q, h: samplesoft.exact_bias(H @ W.T, [0, 1, 4], q, 7, h=h).bias,
    "monte_carlo_bias": lambda q, h: (
        samplesoft.monte_carlo_bias(H @ W.T, [0, 1, 4], q, 7, num_trials=9, h=h, rng=0).bias
    ),
    "exact_gradient_moments": lambda q, h: (
        samplesoft.exact_gradient_moments(H @ W.T, [0, 1, 4], q, 7, W, h=h).mse
    ),
    "asymptotic_bias": lambda q, h: samplesoft.asymptotic_bias(H @ W.T, [0, 1, 4], q, h=h),
    "finite_sample_bounds": lambda q, h: (
        samplesoft.finite_sample_bounds(H @ W.T, [0, 1, 4], q, 7, h=h).upper
    ),
    "num_sampled_for": lambda q, h: (
        samplesoft.num_sampled_for(H @ W.T, [0, 1, 4], q, 0.01, h=h).exact
    ),
    "theorem1_bounds": lambda q, h: (
        samplesoft.bias.theorems.theorem1_bounds(H @ W.T, [0, 1, 4], q, 7, W, h=h).upper
    ),
    "theorem1_corrected": lambda q, h: (
        samplesoft.bias.theorems.theorem1_corrected(H @ W.T, [0, 1, 4], q, 7, W, h=h).upper
    ),
}


class Own:
    """Anything with probs(h)."""

    def probs(self, h):
        return np.full((len(h), 5), 0.2)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_sampler_stands_for_its_probabilities(function):
    sampler = SoftmaxSampler(W, tau=0.3)
    # the sampler leaves the label out itself, where the rounding differs
    np.testing.assert_allclose(function(sampler, H), function(sampler.probs(H), None), rtol=1e-9)
    uniform = function(np.full(5, 0.2), None)
    for q, h in [(UniformSampler(5), None), (UniformSampler(5), H), (Own(), H)]:
        np.testing.assert_allclose(function(q, h), uniform, rtol=1e-9, atol=1e-15)
    with pytest.raises(TypeError, match="`h` must hold context vectors of shape .B, 2. where `q`"):
        function(sampler, None)
    with pytest.raises(ValueError, match="`h` must be None where `q` holds probabilities"):
        function(np.full(5, 0.2), H)
    with pytest.raises(ValueError, match="does not match `logits`"):
        function(sampler, H[:2])
    with pytest.raises(ValueError, match="must draw with replacement, got a UniformSampler"):
        function(UniformSampler(5, replace=False), None)
    with pytest.raises(ValueError, match="`q` must cover all 5 classes"):
        function(UniformSampler(4), None)


def test_a_sampler_for_one_example():
    sampler = SoftmaxSampler(W, tau=0.3)
    one = samplesoft.exact_bias(W @ H[0], 1, sampler, 4, h=H[0])
    assert one.bias.shape == (5,)
    of_array = samplesoft.exact_bias(W @ H[0], 1, sampler.probs(H[0])[0], 4)
    np.testing.assert_allclose(one.bias, of_array.bias, rtol=1e-9)
    shared = samplesoft.exact_bias(np.stack([W @ H[0]] * 2), [1, 1], sampler, 4, h=H[0])
    np.testing.assert_allclose(shared.bias, [one.bias] * 2, rtol=1e-12)


def test_a_sampler_has_no_inclusion_probabilities():
    with pytest.raises(ValueError, match="`q` must hold inclusion probabilities for scheme 'poiss"):
        samplesoft.exact_bias(LOGITS, 0, UniformSampler(4), 3, scheme="poisson")


def drawn_bias(sampler, label, m, trials=40_000):
    """Bias of S = e_t + sum e_j / (m q_j) and its standard error from the sampler's own draws."""
    contexts, labels = np.repeat(H[:1], trials, axis=0), np.full(trials, label)
    draw = sampler.sample(contexts, m, exclude=labels, rng=3)
    e = np.exp(W @ H[0])
    mass = e[draw.ids] / (m * np.exp(draw.log_q))
    p = np.zeros((trials, 5))
    np.add.at(p, (np.arange(trials)[:, None], draw.ids), mass)
    p[:, label] = e[label]
    p /= p.sum(axis=1, keepdims=True)
    return p.mean(axis=0) - e / e.sum(), p.std(axis=0) / np.sqrt(trials)


def test_a_mixture_is_what_it_draws():
    # excluding the label it mixes two conditional laws, which is not the mixture conditioned
    sampler = MixtureSampler(SoftmaxSampler(W, tau=30.0), UniformSampler(5), 0.8)
    label, m = int(np.argmax(W @ H[0])), 3
    exact = samplesoft.exact_bias(W @ H[0], label, sampler, m, h=H[0])
    q = sampler.probs(H[0], exclude=label)[0]
    np.testing.assert_array_equal(exact.bias, samplesoft.exact_bias(W @ H[0], label, q, m).bias)
    bias, stderr = drawn_bias(sampler, label, m)
    assert np.abs((exact.bias - bias) / stderr).max() < 4.5
    conditioned = samplesoft.exact_bias(W @ H[0], label, sampler.probs(H[0])[0], m)
    assert np.abs((conditioned.bias - bias) / stderr).max() > 10.0  # the wrong twin
    got = samplesoft.monte_carlo_bias(W @ H[0], label, sampler, m, num_trials=20_000, h=H[0], rng=0)
    assert np.abs((got.bias - exact.bias) / got.stderr).max() < 4.5
    # `reject` draws from all classes and drops the label
    rejected = samplesoft.exact_bias(W @ H[0], label, sampler, m, h=H[0], scheme="reject")
    plain = samplesoft.exact_bias(W @ H[0], label, sampler.probs(H[0])[0], m, scheme="reject")
    np.testing.assert_array_equal(rejected.bias, plain.bias)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_function_is_about_what_a_mixture_draws(function):
    sampler = MixtureSampler(SoftmaxSampler(W, tau=3.0), UniformSampler(5), 0.8)
    q = sampler.probs(H, exclude=[0, 1, 4])
    np.testing.assert_array_equal(function(sampler, H), function(q, None))


def test_verify_takes_samplers():
    sampler = MixtureSampler(SoftmaxSampler(W, tau=3.0), UniformSampler(5), 0.8)
    options = {"h": H, "class_embeddings": W, "tau": 1.0, "rng": 0, "num_trials": 500}
    of = [
        samplesoft.verify(H @ W.T, [0, 1, 4], {"s": q}, (3,), **options).to_dict()
        for q in (sampler, sampler.probs(H, exclude=[0, 1, 4]))
    ]
    assert of[0] == of[1]
    for scheme in ("masked", "poisson"):  # the label is not left out of the draws
        of = [
            samplesoft.verify(H @ W.T, [0, 1, 4], {"s": q}, (3,), scheme=scheme, **options)
            for q in (sampler, sampler.probs(H))
        ]
        assert of[0].to_dict() == of[1].to_dict()


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_has_the_bias_of_its_scheme(name):
    loss = make_loss(name)
    if getattr(loss, "bias_scheme", None) is None:
        assert LOSSES[name].why_no_bias
        return
    label, m = 2, 3
    q = np.where(np.arange(4) == label, 0.0, Q) if loss.excludes_label else Q
    q = q / q.sum()
    ids = np.array(list(product(np.flatnonzero(q), repeat=m)))  # all there are
    chances = q[ids].prod(axis=1)
    scores = np.abs(LOGITS) if loss.absolute else LOGITS
    value, _ = loss.forward(
        np.ones((1, 1)).repeat(len(ids), 0),
        LOGITS[:, None],
        np.full(len(ids), label),
        Draw(ids, np.log(q[ids])),
        label_log_count=np.full(len(ids), np.log(m * Q[label])) if loss.needs_label_count else None,
        weights=chances,
    )
    full = np.log(np.exp(scores).sum()) - scores[label]
    exact = samplesoft.exact_bias(scores, label, Q, m, scheme=loss.bias_scheme)
    assert value - full == pytest.approx(exact.loss_bias, abs=1e-12)


@pytest.mark.parametrize(
    ("q", "message"),
    [
        (UniformSampler, r"got the class UniformSampler; make one, as in UniformSampler\("),
        (SimpleNamespace(probs=Q), "got a SimpleNamespace whose probs is of type ndarray; pass"),
    ],
)
def test_what_only_looks_like_a_sampler_is_named(q, message):
    with pytest.raises(TypeError, match=f"`q` must hold probabilities or be a sampler, {message}"):
        samplesoft.exact_bias(LOGITS, 2, q, 5)
    with pytest.raises(TypeError, match=message):
        samplesoft.verify(LOGITS, 2, {"mine": q}, (5,), rng=0)
