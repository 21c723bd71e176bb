import math

import numpy as np
import pytest

from samplesoft.proposals import PROPOSALS, Model, dense_proposals, proposal
from samplesoft.samplers import QuadraticSampler, RFSoftmaxSampler


def unit(rng, rows, dim):
    vectors = rng.standard_normal((rows, dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_model(n=37, batch=3, dim=8, tau=5.0, **settings):
    rng = np.random.default_rng(n)
    h, classes = unit(rng, batch, dim), unit(rng, n, dim)
    counts = rng.integers(0, 50, n)
    counts[0] = 60
    return Model(tau * h @ classes.T, h, classes, counts, tau=tau, **settings)


def test_the_proposals_of_the_papers_are_there():
    assert set(PROPOSALS) >= {"uniform", "log-uniform", "unigram", "softmax", "quadratic", "rff"}
    assert set(PROPOSALS) >= {"rff:orthogonal", "rff:structured", "rff+softmax-leaf", "positive"}


@pytest.mark.parametrize("n", [1, 2, 3, 37, 64, 1000])
@pytest.mark.parametrize("name", PROPOSALS)
def test_positive_and_sums_to_one(name, n):
    model = make_model(n)
    q = dense_proposals([name], model)[name]
    assert q.shape in [(n,), (3, n)]
    assert q.dtype == np.float64
    assert q.min() > 0.0
    np.testing.assert_allclose(q.sum(axis=-1), 1.0, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", PROPOSALS)
@pytest.mark.parametrize("spread", [0.0, 700.0, 2000.0])
def test_positive_for_extreme_logits_and_kernels(name, spread):
    model = make_model(nu=500.0, num_features=3)
    logits = np.linspace(-spread, spread, 37) * np.ones((3, 1))
    model = Model(logits, model.h, model.class_embeddings, model.counts, nu=500.0, num_features=3)
    q = PROPOSALS[name](model)
    assert q.min() > 0.0
    np.testing.assert_allclose(q.sum(axis=-1), 1.0, rtol=0, atol=1e-12)


def test_one_example_may_be_a_vector():
    assert PROPOSALS["softmax"](Model([0.0, math.log(3.0)])) == pytest.approx(
        np.array([[0.25, 0.75]])
    )


def test_log_uniform_is_the_published_formula():
    n = 10
    expected = [(math.log(k + 2) - math.log(k + 1)) / math.log(n + 1) for k in range(n)]
    np.testing.assert_allclose(PROPOSALS["log-uniform"](Model(np.zeros(n))), expected, rtol=1e-13)


@pytest.mark.parametrize("unit_of_counts", [1.0, 1e-6, 1e300])
def test_unigram_distorts_and_gives_unseen_classes_half_the_rarest(unit_of_counts):
    counts = np.array([16.0, 4.0, 0.0, 2.0]) * unit_of_counts
    q = PROPOSALS["unigram"](Model(np.zeros(4), counts=counts, power=0.5))
    weights = np.array([4.0, 2.0, 1.0, math.sqrt(2.0)])
    np.testing.assert_allclose(q, weights / weights.sum(), rtol=1e-12)


def test_quadratic_takes_the_logit_with_its_temperature():
    model = make_model(tau=3.0)
    o = 3.0 * model.h @ model.class_embeddings.T
    kernel = 100.0 * o**2 + 1.0
    expected = kernel / kernel.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(PROPOSALS["quadratic"](model), expected, rtol=1e-12)


def test_quadratic_is_that_of_its_sampler():
    model = make_model(tau=3.0)
    sampler = QuadraticSampler(model.class_embeddings, alpha=100.0 * 3.0**2, leaf="kernel")
    np.testing.assert_allclose(PROPOSALS["quadratic"](model), sampler.probs(model.h), rtol=1e-10)


def test_rff_is_the_sampler_of_the_paper():
    model = make_model(40, num_features=20, nu=3.0, seed=4)
    sampler = RFSoftmaxSampler(
        model.class_embeddings, nu=3.0, num_features=20, leaf="kernel", leaf_size=1, rng=4
    )
    np.testing.assert_allclose(PROPOSALS["rff"](model), sampler.probs(model.h), rtol=1e-12)


def test_many_features_tend_to_the_gaussian_kernel_and_at_nu_equal_tau_to_softmax():
    errors = []
    for num_features in (200, 20_000):
        model = make_model(nu=2.0, tau=2.0, num_features=num_features)
        gaussian = np.exp(2.0 * model.h @ model.class_embeddings.T)
        gaussian /= gaussian.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(gaussian, PROPOSALS["softmax"](model), rtol=1e-12)
        errors.append(np.abs(PROPOSALS["rff"](model) - gaussian).sum(axis=1).max())
    # A hundred times the features: a tenth of the error, up to the luck of one draw.
    assert errors[1] < 0.05
    assert errors[1] < errors[0] / 4


def test_seed_fixes_the_features():
    first, same, other = (PROPOSALS["rff"](make_model(seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, same)
    assert not np.allclose(first, other)


def test_a_newcomer_registers_by_decorator(monkeypatch):
    monkeypatch.setattr("samplesoft.proposals.PROPOSALS", dict(PROPOSALS))
    from samplesoft import proposals

    @proposal("first-come")
    def first_come(model):
        return 1.0 / np.arange(1.0, model.logits.shape[1] + 1.0)

    q = proposals.dense_proposals(["first-come"], Model(np.zeros(2)))["first-come"]
    np.testing.assert_allclose(q, [2 / 3, 1 / 3])


@pytest.mark.parametrize(
    "weights", [[1.0, -0.1], [1.0, np.nan], [1.0, np.inf], [0.0, 0.0], [[1.0, 1.0], [0.0, 0.0]]]
)
def test_bad_weights_name_the_proposal(weights, monkeypatch):
    monkeypatch.setattr("samplesoft.proposals.PROPOSALS", dict(PROPOSALS))
    wrong = proposal("wrong")(lambda model: np.array(weights))
    with pytest.raises(ValueError, match="proposal 'wrong' must give weights that are finite"):
        wrong(Model(np.zeros((2, 2))))


@pytest.mark.parametrize(
    ("name", "attribute"), [("unigram", "counts"), ("rff", "h"), ("rff", "class_embeddings")]
)
def test_missing_input_names_proposal_need_and_option(name, attribute):
    given = make_model()
    kept = {"h": given.h, "class_embeddings": given.class_embeddings, "counts": given.counts}
    model = Model(given.logits, **{**kept, attribute: None})
    with pytest.raises(ValueError, match=rf"'{name}' needs .*`{attribute}`.*--embeddings"):
        PROPOSALS[name](model)


@pytest.mark.parametrize("name", ["h", "class_embeddings"])
def test_rff_wants_unit_vectors(name):
    given = make_model()
    vectors = {"h": given.h, "class_embeddings": given.class_embeddings}
    vectors[name] = vectors[name] * 1.01
    with pytest.raises(ValueError, match=f"`{name}` must have norm 1, got 1.01 .* divide"):
        PROPOSALS["rff"](Model(given.logits, **vectors))


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
        ({"seed": -1}, "`seed` must be at least 0, got -1"),
    ],
)
def test_malformed_model(change, message):
    given = {"logits": np.zeros(4), "h": np.ones((1, 3)), "class_embeddings": np.ones((4, 3))}
    with pytest.raises(ValueError, match=message):
        Model(**{**given, **change})


def test_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match="one of uniform, .*got 'unifrom'"):
        dense_proposals(["unifrom"], make_model())
