"""Vectors that are all zero where vectors are divided by their norms: logits and gradients of 0."""

import numpy as np
import pytest
from oracles.loss_cases import dense, make_case
from scipy import sparse

import samplesoft
from samplesoft._temperature import have_unit_norm
from samplesoft.distributed import ShardedSoftmaxLayer
from samplesoft.kernels.rows import unit_gradient
from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.losses.vectors import unit_rows
from samplesoft.metrics import evaluate, top_k_classes
from samplesoft.models import SoftmaxLayer
from samplesoft.models.linear_softmax import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.optimizers import make_optimizer
from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.samplers import SAMPLERS, LSHSampler, SamplerInputs, make_sampler
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.training.fused import take_steps, why_step_by_step

N, D, B, ZERO = 40, 4, 12, 3
TAU = 7.0
COSINES = [
    name for name, spec in LOSSES.items() if not spec.on_tree and "normalize" not in spec.fixed
]
FOLLOWING = [name for name, spec in SAMPLERS.items() if spec.follows_vectors]


def vectors(seed, num, zeros=(ZERO,), dtype=np.float64):
    """Return rows of different lengths, some of them 0."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((num, D)) * rng.uniform(0.1, 5.0, (num, 1))
    rows[list(zeros)] = 0.0
    return rows.astype(dtype)


def unit(rows):
    """Return rows divided by their norms, by the formula; those of 0 as they are."""
    norms = np.sqrt(np.sum(rows.astype(np.float64) ** 2, axis=1, keepdims=True))
    return rows / np.where(norms > 0.0, norms, 1.0)


H, W, LABELS = vectors(1, B), vectors(2, N), np.arange(B) % 5
UNIT_H, UNIT_W = unit(H), unit(W)
SCORES = TAU * UNIT_H @ UNIT_W.T


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", COSINES)
def test_a_loss_takes_them_as_logits_of_0_without_a_gradient(name, dtype):
    loss = make_loss(name, tau=TAU, normalize=True)
    case = make_case(loss, batch=4, n=7, full=True, seed=3)
    case.h[1], case.class_embeddings[case.labels[0]] = 0.0, 0.0
    if case.ids is not None:  # a class that is drawn too
        case.class_embeddings[case.ids[-1, 1]] = 0.0
    case = case.astype(dtype)
    value, cache = case.forward(loss)
    gradients = loss.backward(cache)
    zeros = np.flatnonzero(~case.class_embeddings.any(axis=1))
    plain = make_loss(name, tau=TAU)  # of vectors that have been divided
    again = case.astype(dtype)
    again.h, again.class_embeddings = unit(case.h), unit(case.class_embeddings)
    if dtype == np.float64:
        wanted, other = again.forward(plain)
        assert value == pytest.approx(wanted, rel=1e-12)
        of_plain = plain.backward(other)
        np.testing.assert_allclose(gradients.db.rows, of_plain.db.rows, atol=1e-12)
    assert np.isfinite(value) and np.isfinite(gradients.dh).all()
    dW = dense(gradients.dW, len(case.class_embeddings))
    assert np.isfinite(dW).all() and not dW[zeros].any() and not gradients.dh[1].any()
    assert dW.any() and gradients.dh.any()


def test_the_gradient_of_a_row_of_zeros_is_0_and_that_of_others_as_it_was():
    rows = vectors(4, 6)
    units, norms = unit_rows("rows", rows.copy())
    np.testing.assert_allclose(units, unit(rows), rtol=1e-15)
    assert norms[ZERO] == 0.0 and not units[ZERO].any()
    d = np.random.default_rng(5).standard_normal(rows.shape)
    found, wanted = d.copy(), np.zeros_like(d)
    unit_gradient(found, units, norms)
    for r in range(len(rows)):
        if r != ZERO:
            u = units[r]
            wanted[r] = (np.eye(D) - np.outer(u, u)) @ d[r] / norms[r]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("row", [[np.inf, 1.0], [np.nan, 1.0]])
def test_rows_that_are_not_finite_are_refused_still(row):
    with pytest.raises(ValueError, match="`h` must have rows of a finite norm .* for row 1"):
        unit_rows("h", np.array([[1.0, 0.0], row]))


@pytest.mark.parametrize("contexts", [slice(None), slice(ZERO, ZERO + 1), slice(0, 5)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_they_are_scored_and_evaluated(contexts, dtype):
    h, rows = H[contexts].astype(dtype), W.astype(dtype)
    ids, scores = top_k_classes(h, rows, N, tau=TAU, normalize=True)
    rtol = 1e-12 if dtype == np.float64 else 1e-5
    found = np.take_along_axis(SCORES[contexts], ids, axis=1)
    np.testing.assert_allclose(scores, found, rtol=rtol, atol=rtol)
    assert (scores[ids == ZERO] == 0.0).all()
    result = evaluate(h, rows, LABELS[contexts], tau=TAU, normalize=True)
    all_scores = SCORES[contexts]
    own = all_scores[np.arange(len(h)), LABELS[contexts]]
    wanted = np.mean(np.log(np.exp(all_scores).sum(axis=1)) - own)
    assert result.loss == pytest.approx(wanted, rel=10 * rtol)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", FOLLOWING)
def test_a_sampler_takes_them(name, shared):
    counts = np.arange(1.0, N + 1)
    sampler = make_sampler(
        name, SamplerInputs(UNIT_W, counts, tau=TAU, num_features=64, rng=0, logits=None)
    )
    q = sampler.probs(UNIT_H, shared=shared)
    np.testing.assert_allclose(q.sum(axis=1), 1.0, rtol=1e-9)
    assert (q >= 0.0).all()
    draw = sampler.sample(UNIT_H, 30, shared=shared, rng=1)
    found = np.take_along_axis(q, draw.ids, axis=1)
    np.testing.assert_allclose(np.exp(draw.log_q), found, rtol=1e-6)
    moved = unit(vectors(6, 2, zeros=[0]))
    sampler.update(np.array([1, 2]), moved)  # one becomes 0, and the other was none
    np.testing.assert_allclose(sampler.probs(UNIT_H).sum(axis=1), 1.0, rtol=1e-9)


@pytest.mark.parametrize("name", ["uniform", "unigram", *FOLLOWING])
def test_a_layer_trains_on_them_and_is_evaluated(name):
    given = SamplerInputs(UNIT_W, np.arange(1.0, N + 1), tau=TAU, num_features=64, rng=0)
    scheme = "masked" if LOSSES["sampled"].excludes_label else None
    loss = make_loss("sampled", tau=TAU, normalize=True, scheme=scheme)
    layer = SoftmaxLayer(W.copy(), loss, make_sampler(name, given), 10, shared=False)
    optimizer = make_optimizer("adagrad", 0.1)
    for seed in range(3):
        value, cache = layer.forward(H, LABELS, rng=seed)
        dh, gradients = layer.backward(cache)
        assert np.isfinite(value) and np.isfinite(dh).all() and not dh[ZERO].any()
        optimizer.step(layer.parameters, gradients)
        layer.update(gradients["class_embeddings"].ids)
    layer.refresh()
    assert not layer.class_embeddings[ZERO].any() and np.isfinite(layer.class_embeddings).all()
    assert np.isfinite(layer.evaluate(H, LABELS, k=(1, 3)).loss)


def make_linear(loss="sampled-masked"):
    settings = LinearSoftmaxSettings(
        loss=loss, sampler="uniform", num_sampled=6, embedding_dim=D, tau=TAU, normalize=True
    )
    model = LinearSoftmax(5, N, settings, dtype=np.float64, rng=0)
    model.parameters["softmax.class_embeddings"][[ZERO, 4]] = 0.0
    model.parameters["embedding.intercept"][:] = 0.0
    model.parameters["embedding.weights"][1] = 0.0  # inputs of this feature alone are 0
    return model


INPUTS = sparse.csr_array(np.eye(5)[[0, 1, 2, 3, 1]])


def test_a_linear_model_embeds_scores_and_trains_on_them():
    model, labels = make_linear(), np.array([0, 4, 2, ZERO, 4])
    h = model.embed(INPUTS)
    assert not h[[1, 4]].any() and not model.class_vectors()[[ZERO, 4]].any()
    ids, scores = model.top_k(INPUTS, N)
    assert not scores[[1, 4]].any() and (scores[ids == ZERO] == 0.0).all()
    for _, every in model.scores(INPUTS):
        assert (every[:, ZERO] == 0.0).all() and not every[1].any()
    optimizer = make_optimizer("sgd", 0.1)
    assert why_step_by_step(model, optimizer) is None
    losses = take_steps(model, optimizer, INPUTS, labels, np.ones(5), 5, (5, 0))
    assert np.isfinite(losses).all()
    # such vectors have no gradient: none goes to the inputs, and classes stay
    assert not model.class_vectors()[[ZERO, 4]].any()
    assert not model.parameters["embedding.weights"][1].any()
    step = make_linear()
    value, gradients = step.step(INPUTS, labels, rng=0)
    assert np.isfinite(value)
    for gradient in gradients.values():
        assert np.isfinite(getattr(gradient, "rows", gradient)).all()


def test_a_recommender_compares_items_and_users_without_a_vector():
    taken = sparse.csr_array(np.kron(np.eye(2), np.ones((4, 3))))
    model = SampledSoftmaxRecommender(
        2, num_sampled=3, max_iter=1, early_stopping=False, propagation=0.1, random_state=0
    ).fit(taken)
    model.item_factors[1] = 0.0
    ids, cosines = model.similar_items([0, 1], N=6)
    wanted = unit(model.item_factors)[[0, 1]] @ unit(model.item_factors).T
    np.testing.assert_allclose(cosines, np.take_along_axis(wanted, ids, 1), atol=1e-6)
    assert not cosines[1].any()
    for array in model._embedding.parameters.values():
        array[:] = 0.0
    assert not model.partial_fit_users([1], taken[[1]]).user_factors[1].any()
    assert not model.similar_users(1, N=3)[1].any()
    assert not model.recommend(1, taken[[1]], N=3)[1].any()


def test_a_classifier_predicts_for_an_empty_document():
    model = SampledSoftmaxClassifier(loss="full", embedding_dim=3, normalize=True, random_state=0)
    model.fit(sparse.csr_array(np.eye(4)), ["a", "b", "c", "d"])
    model.model_.parameters["embedding.intercept"][:] = 0.0
    empty = sparse.csr_array((1, 4))
    assert not model.decision_function(empty).any()
    np.testing.assert_allclose(model.predict_proba(empty), 0.25, rtol=1e-12)
    assert model.predict_topk(empty, 2)[0].tolist() == [["a", "b"]]


@pytest.mark.parametrize("shared", [False, True])
def test_shards_are_as_one_layer(shared):
    scheme = "masked"
    loss = make_loss("sampled", tau=TAU, normalize=True, scheme=scheme)
    whole = SoftmaxLayer(W.copy(), make_loss("full", tau=TAU, normalize=True))
    layer = ShardedSoftmaxLayer(
        W.copy(),
        loss,
        "rff",
        8,
        optimizer=make_optimizer("adagrad", 0.1),
        workers=2,
        num_features=64,
        shared=shared,
        rng=0,
    )
    many = vectors(8, 50, zeros=range(25))  # so many that those alike are pooled
    for h in (H, many):
        labels = np.arange(len(h)) % 5
        assert layer.evaluate(h, labels, k=(1, 3)).loss == pytest.approx(
            whole.evaluate(h, labels).loss, rel=1e-12
        )
        value, cache = layer.forward(h, labels, rng=0)
        dh, _ = layer.backward(cache)
        assert np.isfinite(value) and np.isfinite(dh).all() and not dh[ZERO].any()
    layer.update()
    assert not layer.predict_topk(H, 2)[1][ZERO].any()


def test_zeros_beside_unit_vectors_do_not_change_the_temperature():
    assert have_unit_norm(UNIT_W, UNIT_H) and not have_unit_norm(W, UNIT_H)
    assert not have_unit_norm(np.zeros((2, 3)), np.zeros((4, 3)))
    report = samplesoft.tune(
        UNIT_W, UNIT_H, LABELS, samplers=["uniform", "rff"], num_sampled=[5], num_features=32
    )
    same = samplesoft.tune(UNIT_W, UNIT_H, LABELS, tau=10.0, samplers=["uniform"], num_sampled=[5])
    first = {s.sampler: s.bias for s in report.settings if not s.shared}
    again = {s.sampler: s.bias for s in same.settings if not s.shared}
    assert first["uniform"] == again["uniform"] and np.isfinite(first["rff"])


def test_two_of_them_always_collide_in_hash_tables():
    rows = np.vstack([np.zeros(D), UNIT_W[4]])
    found = np.zeros((2, 2))
    for seed in range(400):
        sampler = LSHSampler(rows, num_tables=1, num_bits=1, uniform_share=0.2, rng=seed)
        found += sampler.probs(rows) > 0.1 + 1e-9  # uniform draws alone have 0.2 / 2
    stated = np.exp(sampler.collision_log_prob(rows, rows))
    np.testing.assert_allclose(stated, 1.0 - (1.0 - found / 400) * 0.9, atol=0.07)
    assert stated[0, 0] == 1.0
