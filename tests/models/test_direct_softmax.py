"""A softmax on sparse inputs themselves: derivatives, what a step touches, and the penalty."""

import numpy as np
import pytest
from scipy import sparse

from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.models import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.models.softmax_layer import SoftmaxLayer
from samplesoft.optimizers import make_optimizer
from samplesoft.samplers import SoftmaxSampler, UniformSampler, make_sampler
from samplesoft.samplers.registry import SamplerInputs

DRAWN = {"sampler": "uniform", "num_sampled": 3}
NONE = {"sampler": None, "num_sampled": None}
DIRECT = ["full", "full-logistic", "sampled", "sampled-masked", "jackknife", "nce"]
DIRECT += ["multilevel", "multilevel-masked"]


def settings(loss="full", **options):
    draws = DRAWN if LOSSES[loss].draws else NONE
    given = {"loss": loss, "embedding_dim": None, "alpha": 0.0, **draws, **options}
    return LinearSoftmaxSettings(**given)


def model(loss="full", num_classes=6, dtype=np.float64, **options):
    """Return a model with random parameters."""
    made = LinearSoftmax(7, num_classes, settings(loss, **options), dtype=dtype, rng=0)
    flat = made.parameters["softmax.weights"].reshape(-1)
    flat[:] = np.random.default_rng(5).normal(size=len(flat))
    return made


def inputs(dense=False, num=5, dtype=np.float64):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(num, 7)) * (rng.random((num, 7)) < 0.4)
    x[0] = 0.0
    return x.astype(dtype) if dense else sparse.csr_array(x.astype(dtype))


LABELS = np.array([3, 0, 1, 1, 2])


def several():
    matrix = np.eye(6)[LABELS]
    matrix[0, :2] = 1.0
    return sparse.csr_array(matrix)


def as_dense(gradient, made):
    """Return a gradient of the class vectors (n, v + 1)."""
    weights = np.zeros(made.softmax.parameters["weights"].shape)
    weights[gradient.ids] = gradient.rows
    return weights.reshape(made.class_vectors().shape[::-1]).T


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", DIRECT)
def test_gradients_are_derivatives(name, dense):
    made, x, weights = model(name, tau=1.5), inputs(dense), np.array([1.0, 2.0, 0.5, 1.0, 0.0])
    many = [LABELS, several()] if LOSSES[name].several_labels else [LABELS]
    vectors = made.class_vectors()
    for labels in many:
        _, gradients = made.step(x, labels, weights=weights, rng=3)
        got = as_dense(gradients["softmax.weights"], made)
        for place in np.ndindex(vectors.shape):
            before, ends = vectors[place], []
            for sign in (1, -1):
                vectors[place] = before + sign * 1e-6
                ends.append(made.step(x, labels, weights=weights, rng=3)[0])
            vectors[place] = before
            assert got[place] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=2e-8), place


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("name", ["sampled-masked", "sampled-reject", "nce", "multilevel-masked"])
def test_a_step_is_that_of_a_layer_of_all_numbers(name, shared):
    made, x = model(name, num_classes=40, shared=shared), inputs()
    rows = made.class_vectors()
    offset = {"offset": -np.log(40)} if name == "nce" else {}
    layer = SoftmaxLayer(
        rows,
        make_loss(name, reduction="sum", mask_other_labels=True, **offset),
        UniformSampler(40),
        3,
        shared=shared,
    )
    value, cache = layer.forward(made.embed(x), LABELS, rng=11)
    wanted = layer.backward(cache)[1]["class_embeddings"]
    found, saved = made.softmax.forward(x, LABELS, rng=11)
    got = made.softmax.backward(saved)[1]["weights"]
    assert found == pytest.approx(value, rel=1e-12)
    every = np.zeros_like(rows)
    every[wanted.ids] = wanted.rows
    np.testing.assert_allclose(as_dense(got, made), every, rtol=1e-10, atol=1e-13)


def test_a_step_touches_features_that_occur_and_classes_that_are_drawn():
    made, optimizer = model("sampled-masked", 500), make_optimizer("adagrad", 0.1)
    before, x = made.class_vectors().copy(), inputs()
    _, gradients = made.step(x, LABELS, rng=0)
    optimizer.step(made.parameters, gradients)
    made.after_step(gradients)
    moved = made.class_vectors() != before
    classes = np.flatnonzero(moved.any(axis=1))
    assert set(LABELS) <= set(classes) and 4 < len(classes) <= 4 + 3
    assert set(np.flatnonzero(moved.any(axis=0))) == {*x.indices.tolist(), 7}


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "sparse"])
def test_scores_and_lists(dense, monkeypatch):
    made, x = model(tau=1.5, dtype=np.float32), inputs(dense, 9, np.float32)
    monkeypatch.setattr(made, "_chunk_rows", 4)
    rows = made.class_vectors().astype(float)
    plain = x if dense else x.toarray()
    wanted = 1.5 * (plain @ rows[:, :-1].T + rows[:, -1])
    found = np.concatenate([scores for _, scores in made.scores(x)])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    ids, best = made.top_k(x, 2)
    np.testing.assert_array_equal(ids, np.argsort(-wanted, axis=1)[:, :2])
    np.testing.assert_allclose(best, -np.sort(-wanted, axis=1)[:, :2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(made.embed(x), np.column_stack([plain, np.ones(9)]))


def penalties(made, plain, num_steps=1500):
    """Return the mean over steps of the gradient of the penalty alone, by `made` and by `plain`."""
    rng, total = np.random.default_rng(2), np.zeros(made.class_vectors().shape)
    common = rng.random((1, 7)) * 0.9 + 0.1  # how often each feature occurs
    for step in range(num_steps):
        x = sparse.csr_array((rng.random((2, 7)) < common).astype(float))
        labels = rng.integers(0, 2, 2)
        with_it = made.step(x, labels, rng=step)[1]["softmax.weights"]
        without = plain.step(x, labels, rng=step)[1]["softmax.weights"]
        np.testing.assert_array_equal(with_it.ids, without.ids)
        total += as_dense(with_it, made) - as_dense(without, made)
    return total / num_steps


@pytest.mark.thorough
def test_the_penalty_has_the_right_mean_though_numbers_are_seldom_touched():
    made, plain = (model("sampled-masked", alpha=alpha) for alpha in (0.01, 0.0))
    found, wanted = penalties(made, plain), 0.01 * made.class_vectors()
    np.testing.assert_allclose(found[:, :-1], wanted[:, :-1], rtol=0.25)
    assert np.abs(found[:, :-1] / wanted[:, :-1] - 1.0).mean() < 0.05
    assert not found[:, -1].any()


def test_a_penalty_that_does_not_count_is_wrong(monkeypatch):
    made, plain = (model("sampled-masked", alpha=alpha) for alpha in (0.01, 0.0))
    monkeypatch.setattr(
        made.softmax,
        "_penalty_factors",
        lambda features, classes: (np.where(features == 7, 0.0, 0.01), np.ones(len(classes))),
    )
    found, wanted = penalties(made, plain, 500), 0.01 * made.class_vectors()
    assert np.abs(found[:, :-1] / wanted[:, :-1] - 1.0).mean() > 0.25


def test_the_penalty_of_a_full_loss_on_all_features_is_exact():
    made, plain = (model("full-logistic", alpha=alpha) for alpha in (0.5, 0.0))
    x = np.random.default_rng(0).normal(size=(5, 7))
    for _ in range(3):
        with_it, without = (one.step(x, LABELS)[1]["softmax.weights"] for one in (made, plain))
        found = as_dense(with_it, made) - as_dense(without, plain)
    wanted = 0.5 * made.class_vectors()
    wanted[:, -1] = 0.0
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


def test_state_goes_on_to_the_same_bits():
    first = model("sampled-masked", alpha=0.1)
    for step in range(3):
        first.step(inputs(), LABELS, rng=step)
    second = model("sampled-masked", alpha=0.1)
    second.load_state(first.state())
    one, other = (made.step(inputs(), LABELS, rng=9)[1] for made in (first, second))
    for name in one:
        np.testing.assert_array_equal(one[name].rows, other[name].rows)
    with pytest.raises(ValueError, match="`state` must have 'of_class' of shape"):
        model("sampled-masked", num_classes=9, alpha=0.1).load_state(first.state())
    assert model("sampled-masked").state() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalize": True}, "`normalize` must be False with embedding_dim=None"),
        ({"loss": "sampled-masked", "sampler": "clusters"}, "`sampler` must not look at inputs"),
        ({"alpha": -1.0}, "`alpha` must be"),
    ],
)
def test_settings_that_do_not_go_together(options, message):
    with pytest.raises(ValueError, match=message):
        settings(**options)


def test_a_sampler_of_ones_own_must_not_look_at_inputs():
    def follows(inputs):
        return SoftmaxSampler(np.eye(6, 8))

    with pytest.raises(ValueError, match="`sampler` must not look at inputs, got a SoftmaxSampler"):
        LinearSoftmax(7, 6, settings("sampled-masked", sampler=follows, num_sampled=2))
    by_counts = make_sampler("unigram", SamplerInputs(counts=np.arange(1.0, 7.0)))
    made = LinearSoftmax(7, 6, settings("sampled-masked", sampler=by_counts, num_sampled=2))
    assert made.softmax.shared


def test_a_model_that_does_not_fit():
    with pytest.raises(MemoryError, match="take an `embedding_dim`"):
        LinearSoftmax(10**7, 10**7, settings())
