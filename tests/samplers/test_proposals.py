import math
from dataclasses import replace

import numpy as np
import pytest

from samplesoft.samplers import (
    SAMPLERS,
    QuadraticSampler,
    RFSoftmaxSampler,
    SamplerInputs,
    SamplerSpec,
    dense_proposals,
)


def unit(rng, rows, dim):
    vectors = rng.standard_normal((rows, dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_inputs(n=37, batch=3, dim=8, tau=5.0, **settings):
    rng = np.random.default_rng(n)
    h, classes = unit(rng, batch, dim), unit(rng, n, dim)
    counts = rng.integers(0, 50, n)
    counts[0] = 60
    given = {"logits": tau * h @ classes.T, "h": h, "tau": tau, "rng": 0, **settings}
    return SamplerInputs(classes, counts, **given)


def q_of(name, inputs):
    return dense_proposals([name], inputs)[name]


@pytest.mark.parametrize("name", SAMPLERS)
def test_positive_and_sums_to_one_for_extreme_logits_and_kernels_too(name):
    extreme = make_inputs(nu=500.0, num_features=3)
    logits = np.linspace(-2000.0, 2000.0, 37) * np.ones((3, 1))
    for inputs in (make_inputs(1), make_inputs(1000), replace(extreme, logits=logits)):
        q, n = q_of(name, inputs), len(inputs.class_embeddings)
        assert q.shape in [(n,), (3, n)]
        assert q.dtype == np.float64
        assert q.min() > 0.0
        np.testing.assert_allclose(q.sum(axis=-1), 1.0, rtol=0, atol=1e-12)


def test_one_example_may_be_a_vector():
    assert q_of("softmax", SamplerInputs(logits=[0.0, math.log(3.0)])) == pytest.approx(
        np.array([[0.25, 0.75]])
    )


def test_log_uniform_is_the_published_formula():
    n = 10
    expected = [(math.log(k + 2) - math.log(k + 1)) / math.log(n + 1) for k in range(n)]
    np.testing.assert_allclose(
        q_of("log-uniform", SamplerInputs(logits=np.zeros(n))), expected, rtol=1e-13
    )


@pytest.mark.parametrize("unit_of_counts", [1.0, 1e-6, 1e300])
def test_unigram_distorts_and_gives_unseen_classes_half_the_rarest(unit_of_counts):
    counts = np.array([16.0, 4.0, 0.0, 2.0]) * unit_of_counts
    q = q_of("unigram", SamplerInputs(logits=np.zeros(4), counts=counts, power=0.5))
    weights = np.array([4.0, 2.0, 1.0, math.sqrt(2.0)])
    np.testing.assert_allclose(q, weights / weights.sum(), rtol=1e-12)


def test_quadratic_takes_the_logit_with_its_temperature():
    inputs = make_inputs(tau=3.0)
    o = 3.0 * inputs.h @ inputs.class_embeddings.T
    kernel = 100.0 * o**2 + 1.0
    expected = kernel / kernel.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(q_of("quadratic", inputs), expected, rtol=1e-12)


def test_quadratic_is_that_of_its_sampler():
    inputs = make_inputs(tau=3.0)
    sampler = QuadraticSampler(inputs.class_embeddings, alpha=100.0 * 3.0**2, leaf="kernel")
    np.testing.assert_allclose(q_of("quadratic", inputs), sampler.probs(inputs.h), rtol=1e-10)


def test_rff_is_the_sampler_of_the_paper():
    inputs = make_inputs(40, num_features=20, nu=3.0, rng=4)
    sampler = RFSoftmaxSampler(
        inputs.class_embeddings, nu=3.0, num_features=20, leaf="kernel", leaf_size=1, rng=4
    )
    np.testing.assert_allclose(q_of("rff", inputs), sampler.probs(inputs.h), rtol=1e-12)


def test_many_features_tend_to_the_gaussian_kernel_and_at_nu_equal_tau_to_softmax():
    errors = []
    for num_features in (200, 20_000):
        inputs = make_inputs(nu=2.0, tau=2.0, num_features=num_features)
        gaussian = np.exp(2.0 * inputs.h @ inputs.class_embeddings.T)
        gaussian /= gaussian.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(gaussian, q_of("softmax", inputs), rtol=1e-12)
        errors.append(np.abs(q_of("rff", inputs) - gaussian).sum(axis=1).max())
    # A hundred times the features: a tenth of the error, up to the luck of one draw.
    assert errors[1] < 0.05
    assert errors[1] < errors[0] / 4


def test_seed_fixes_the_features():
    first, same, other = (q_of("rff", make_inputs(rng=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.allclose(first, other)


@pytest.mark.parametrize(
    "weights", [[1.0, -0.1], [1.0, np.nan], [1.0, np.inf], [0.0, 0.0], [[1.0, 1.0], [0.0, 0.0]]]
)
def test_bad_weights_name_the_sampler(weights, monkeypatch):
    make = SAMPLERS["uniform"].make
    wrong = SamplerSpec(make, "wrong", weights=lambda logits, inputs: np.array(weights))
    monkeypatch.setitem(SAMPLERS, "wrong", wrong)
    with pytest.raises(ValueError, match="sampler 'wrong' must give weights that are finite"):
        q_of("wrong", SamplerInputs(logits=np.zeros((2, 2))))


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_is_missing_is_named_with_the_sampler_that_needs_it(name):
    spec = SAMPLERS[name]
    for attribute in ("counts", "h", "class_embeddings"):
        needed = spec.needs_counts if attribute == "counts" else spec.follows_vectors
        inputs = replace(make_inputs(), **{attribute: None, "logits": None})
        if not needed:
            assert q_of(name, inputs).shape[-1] == 37
            continue
        with pytest.raises(ValueError, match=f"needs .* as `{attribute}`, got None") as error:
            q_of(name, inputs)
        assert f"sampler {name!r}" in str(error.value)


@pytest.mark.parametrize("name", SAMPLERS)
def test_vectors_in_float32_are_taken_in_float64(name):
    inputs = replace(make_inputs(), logits=None)
    vectors = {"h": inputs.h, "class_embeddings": inputs.class_embeddings}
    single = {field: value.astype(np.float32) for field, value in vectors.items()}
    double = {field: value.astype(np.float64) for field, value in single.items()}
    q, wanted = (q_of(name, replace(inputs, **given)) for given in (single, double))
    np.testing.assert_array_equal(q, wanted)


@pytest.mark.parametrize("name", ["softmax", "quadratic"])
def test_with_or_without_logits_it_is_the_same(name):
    inputs = make_inputs(tau=3.0)
    np.testing.assert_allclose(
        q_of(name, replace(inputs, logits=None)), q_of(name, inputs), rtol=1e-10
    )


@pytest.mark.parametrize("name", ["h", "class_embeddings"])
def test_rff_wants_unit_vectors(name):
    given = make_inputs()
    vectors = {name: 1.01 * getattr(given, name)}
    with pytest.raises(ValueError, match=f"`{name}` must have norm 1, got 1.01 .* divide"):
        q_of("rff", replace(given, **vectors))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": np.full(4, np.nan)}, "`logits` must be finite"),
        ({"h": np.ones((2, 3))}, r"`h` must have 1 rows .* got shape \(2, 3\)"),
        ({"class_embeddings": np.ones((5, 3))}, "`class_embeddings` must have 4 rows"),
        ({"class_embeddings": np.ones((4, 2))}, "same dimension"),
        ({"counts": np.ones(3)}, r"`counts` must have shape \(4,\)"),
        ({"counts": np.zeros(4)}, "`counts` must be at least 0 and not all 0"),
        ({"counts": [-1, 1, 1, 1]}, "`counts` must be at least 0"),
        ({"nu": 0.0}, "`nu` must be finite and greater than 0, got 0.0"),
        ({"tau": -1.0}, "`tau`"),
        ({"alpha": np.inf}, "`alpha`"),
        ({"power": 0}, "`power`"),
        ({"num_features": 0}, "`num_features` must be at least 1, got 0"),
    ],
)
def test_malformed_inputs(change, message):
    given = {"logits": np.zeros(4), "h": np.ones((1, 3)), "class_embeddings": np.ones((4, 3))}
    with pytest.raises(ValueError, match=message):
        SamplerInputs(**{**given, **change})


def test_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match="one of uniform, .*got 'unifrom'"):
        dense_proposals(["unifrom"], make_inputs())
