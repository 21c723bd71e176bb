"""The classifier without a bottleneck: `embedding_dim` of None."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from samplesoft.sklearn import SampledSoftmaxClassifier


def words(num=300, width=60, classes=12, seed=0):
    """Return rows of norm 1 of few features, with one label each and with several."""
    rng = np.random.default_rng(seed)
    x = (rng.random((num, width)) < 0.15).astype(float) + 0.01
    scores = x @ rng.normal(size=(width, classes)) * 2.0 + rng.normal(size=(num, classes))
    x[x < 0.5] = 0.0
    x[:, 0] = 1.0
    x /= np.linalg.norm(x, axis=1)[:, None]
    many = (scores > np.quantile(scores, 0.8)).astype(int)
    many[np.arange(num), scores.argmax(axis=1)] = 1
    return sparse.csr_array(x), scores.argmax(axis=1), many


def make(**options):
    given = {"embedding_dim": None, "random_state": 0, "calibrate": False}
    return SampledSoftmaxClassifier(**given | options)


def test_one_versus_all_comes_to_scikit_learns():
    X, _, many = words()
    alpha = 1e-3
    peer = OneVsRestClassifier(LogisticRegression(C=1.0 / (alpha * X.shape[0]), max_iter=500))
    wanted = peer.fit(X, many).decision_function(X)
    clf = make(loss="full-logistic", alpha=alpha, max_iter=60, batch_size=16).fit(X, many)
    found = clf.decision_function(X)
    assert np.corrcoef(wanted.ravel(), found.ravel())[0, 1] > 0.998
    assert np.abs(found - wanted).mean() < 0.05 * np.abs(wanted).mean()
    np.testing.assert_allclose(clf.predict_proba(X), expit(found), rtol=1e-5)
    np.testing.assert_array_equal(clf.predict(X), (found >= 0.0).astype(int))


def test_a_penalty_of_another_size_comes_to_something_else():
    X, _, many = words()
    peer = OneVsRestClassifier(LogisticRegression(C=1.0 / (1e-3 * X.shape[0]), max_iter=500))
    wanted = peer.fit(X, many).decision_function(X)
    clf = make(loss="full-logistic", alpha=3e-3, max_iter=20, batch_size=16).fit(X, many)
    assert np.abs(clf.decision_function(X) - wanted).mean() > 0.2 * np.abs(wanted).mean()


def test_one_label_has_shares_of_one():
    X, y, _ = words()
    clf = make(loss="full-logistic", max_iter=5).fit(X, y)
    odds = expit(clf.decision_function(X))
    proba = clf.predict_proba(X)
    np.testing.assert_allclose(proba, odds / odds.sum(axis=1, keepdims=True), rtol=1e-5)
    assert clf.score(X, y) > 0.6


@pytest.mark.parametrize("loss", ["full-logistic", "sampled-masked", "nce"])
@pytest.mark.parametrize("alpha", [0.0, 1e-4])
def test_it_goes_on_to_the_same_bits_when_it_is_loaded(loss, alpha, tmp_path):
    X, y, _ = words()
    clf = make(loss=loss, alpha=alpha, num_sampled=4, max_iter=2).fit(X, y)
    clf.save(tmp_path / "model.npz")
    again = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.predict_topk(X, 3)[1], clf.predict_topk(X, 3)[1])
    for one in (clf, again):
        one.partial_fit(X[:50], y[:50])
    np.testing.assert_array_equal(clf.decision_function(X), again.decision_function(X))
    assert again.embedding_dim is None and again.alpha == alpha


def test_sampled_draws_learn_what_the_full_softmax_does():
    X, y, _ = words(num=1500)
    full = make(loss="full", max_iter=10).fit(X, y).score(X, y)
    few = make(loss="sampled-masked", num_sampled=4, max_iter=10).fit(X, y).score(X, y)
    assert full > 0.75 and few > full - 0.05


def test_dropout_and_early_stopping():
    X, _, many = words()
    clf = make(loss="full-logistic", dropout=0.3, early_stopping=True, max_iter=30).fit(X, many)
    assert len(clf.validation_scores_) == clf.n_iter_ <= 30
    assert clf.predict_topk(X, 2)[0].shape == (300, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", ["full", "full-logistic"])
def test_scores_beyond_the_type_are_refused(loss, dtype):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 5)).astype(dtype)
    clf = make(loss=loss, max_iter=5).fit(X, np.argmax(X[:, :3], axis=1))
    far = X[:4].copy()
    far[2] = np.sign(clf.model_.class_vectors()[1, :5]) * (np.finfo(dtype).max / 4)
    for ask in (clf.predict_proba, clf.decision_function):
        with np.errstate(all="ignore"), pytest.raises(ValueError, match="scores of row 2 of `X`"):
            ask(far)


@pytest.mark.parametrize("dense", [True, False], ids=["dense", "sparse"])
def test_steps_follow_the_norm_of_the_rows(dense, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 5)) * (rng.random((90, 5)) < 0.7)
    X[3] = 0.0
    norm = np.linalg.norm(np.delete(X, 3, axis=0), axis=1)
    norm = norm[norm > 0.0].mean()
    y, X = np.argmax(X, axis=1), X if dense else sparse.csr_array(X)
    clf, same = make(max_iter=2).fit(X, y), make(max_iter=2, learning_rate=2.0 / norm).fit(X, y)
    np.testing.assert_allclose(clf.decision_function(X), same.decision_function(X), rtol=1e-9)
    clf.save(tmp_path / "model.npz")
    loaded = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    for one in (clf, loaded):
        one.partial_fit(X[:9] * 100.0, y[:9])  # which goes on as it began
    np.testing.assert_array_equal(clf.decision_function(X), loaded.decision_function(X))
    same.partial_fit(X[:9] * 100.0, y[:9])
    np.testing.assert_allclose(clf.decision_function(X), same.decision_function(X), rtol=1e-9)
    for scale in (10.0, 1e4):
        far = make(max_iter=2, alpha=0.0).fit(X * scale, y)
        assert far.learning_rate is None and far.score(X * scale, y) > 0.6
    assert make(max_iter=1).fit(X * 0.0, y).predict(X * 0.0).shape == y.shape


def test_what_does_not_go_together_is_refused_before_the_work():
    X, y = np.eye(200), np.arange(200)
    for options, message in (
        (
            {"sampler": "rff"},
            r"`sampler` must not look at inputs .* got 'rff'; take one of uniform",
        ),
        ({"sampler": "auto"}, "`sampler` and `num_sampled` must not be 'auto' with embedding_dim="),
        ({"normalize": True}, "`normalize` must be False with embedding_dim=None, got True"),
        (
            {"loss": "full-logistic", "embedding_dim": 4, "normalize": True},
            "cannot fall to the -log n",
        ),
        ({"alpha": -1.0}, "`alpha` must"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**options).fit(X, y)


def test_one_versus_all_with_an_embedding_does_not_normalise():
    X, y, _ = words()
    clf = make(embedding_dim=8, loss="full-logistic").fit(X, y)
    assert not clf.model_.settings.normalize and clf.model_.settings.tau == 1.0
