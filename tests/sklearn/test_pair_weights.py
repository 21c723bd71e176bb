"""Pair weights of the classifier: when it has them, and that all its methods use them."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from scipy.special import softmax
from sklearn.base import clone

from samplesoft._jit import num_threads, set_num_threads
from samplesoft.sklearn import SampledSoftmaxClassifier, learner
from samplesoft.training import read_linear_softmax


def words(num=1200, num_words=60, num_classes=30, several=False, seed=0):
    """Rows of about six words; each word makes some labels more probable, and others less."""
    W = np.random.default_rng(9).normal(size=(num_words, num_classes))
    rng = np.random.default_rng(seed)
    X = (rng.random((num, num_words)) < 6.0 / num_words).astype(np.float32)
    scores = 3.0 * X @ W + rng.gumbel(size=(num, num_classes))
    X = sparse.csr_array(X)
    if several:
        Y = np.zeros((num, num_classes), int)
        np.put_along_axis(Y, np.argsort(-scores, axis=1)[:, :3], 1, axis=1)
        return X, sparse.csr_array(Y)
    return X, np.array([f"label {j:02d}" for j in scores.argmax(axis=1)])


def make(**options):
    return SampledSoftmaxClassifier(**{"embedding_dim": 4, "random_state": 0, **options})


@pytest.fixture(scope="module", params=[False, True], ids=["one label", "several"])
def fitted(request):
    X, y = words(several=request.param)
    return make().fit(X, y), X, y


def scores_of(clf, X):
    return np.concatenate([scores for _, scores in clf.model_.scores(X)])


def test_they_improve_the_precision(fitted):
    clf, _, y = fitted
    X_test, y_test = words(2000, several=sparse.issparse(y), seed=1)
    assert clf.model_.pair_weights is not None
    without = make(pair_weights=False).fit(*fitted[1:])
    assert without.model_.pair_weights is None
    found = []
    for one in (clf, without):
        best = one.predict_topk(X_test, 1)[0][:, 0]
        if sparse.issparse(y):
            found.append(y_test[np.arange(len(best)), best].mean())
        else:
            found.append(np.mean(best == y_test))
    assert found[0] > found[1] + 0.02


def test_all_methods_use_them(fitted):
    clf, X, y = fitted
    scores = clf.decision_function(X)
    np.testing.assert_array_equal(scores, scores_of(clf, X))
    vectors, contexts = clf.model_.class_vectors(), clf.embed(X)
    pairs = np.zeros(scores.shape, np.float32)
    clf.model_.pair_weights.add_to(pairs, X)
    wanted = clf.model_.settings.tau * contexts @ vectors.T + pairs
    np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-4)

    order = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    labels, best = clf.predict_topk(X, 5)
    np.testing.assert_array_equal(labels, clf.classes_[order])
    np.testing.assert_array_equal(best, np.take_along_axis(scores, order, axis=1))

    p = softmax(scores / clf.calibration_.temperature, axis=1)
    if not sparse.issparse(y):
        np.testing.assert_allclose(clf.predict_proba(X), p, rtol=1e-5)
        np.testing.assert_array_equal(clf.predict(X), labels[:, 0])
        assert clf.score(X, y) == np.mean(labels[:, 0] == y)
    else:
        p = 1.0 - (1.0 - p) ** clf.calibration_.labels_each
        np.testing.assert_allclose(clf.predict_proba(X), p, rtol=1e-5, atol=1e-12)
        np.testing.assert_array_equal(clf.predict(X).toarray(), clf.predict_proba(X) >= 0.5)
    np.testing.assert_allclose(clf.decision_function(X.toarray()), scores, rtol=1e-5, atol=1e-5)


def test_copies_and_files_have_them(fitted, tmp_path):
    clf, X, _ = fitted
    path = tmp_path / "model.npz"
    clf.save(path)
    for other in (SampledSoftmaxClassifier.load(path), pickle.loads(pickle.dumps(clf))):
        np.testing.assert_array_equal(other.decision_function(X), clf.decision_function(X))
        np.testing.assert_array_equal(other.predict_proba(X), clf.predict_proba(X))
    np.testing.assert_array_equal(
        read_linear_softmax(path).top_k(X, 3)[1], clf.predict_topk(X, 3)[1]
    )
    assert not hasattr(clone(clf), "model_") and clone(clf).get_params()["pair_weights"] is True


def test_a_seed_gives_the_same_bits_with_any_number_of_threads(fitted):
    clf, X, y = fitted
    before = num_threads()
    set_num_threads(1)
    other = make().fit(X, y)
    set_num_threads(before)
    for name, array in clf.model_.pair_weights.arrays().items():
        np.testing.assert_array_equal(other.model_.pair_weights.arrays()[name], array)


def test_partial_fit_and_warm_start_leave_them_as_they_are():
    X, y = words()
    alone = make().partial_fit(X, y, np.unique(y))
    assert alone.model_.pair_weights is None
    clf = make(warm_start=True).fit(X, y)
    pairs, scores = clf.model_.pair_weights, clf.decision_function(X)
    assert clf.partial_fit(X, y).model_.pair_weights is pairs
    assert clf.fit(X, y).model_.pair_weights is pairs
    assert (clf.decision_function(X) != scores).any()


@pytest.mark.parametrize(
    "options",
    [
        {"max_iter": 3},
        {"calibrate": False},
        {"early_stopping": True},
        {"embedding_dim": None},
        {"loss": "negative-sampling"},
        {"pair_weights": False},
    ],
)
def test_a_fit_without_a_trial_run_has_none(options):
    assert make(**options).fit(*words(400)).model_.pair_weights is None


def test_dense_inputs_have_none():
    X, y = words(400)
    dense = make().fit(X.toarray(), y)
    assert dense.model_.pair_weights is None
    without = make(pair_weights=False).fit(X, y)
    np.testing.assert_allclose(
        dense.decision_function(X), without.decision_function(X), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("name", ["_MAX_PAIR_WEIGHTS", "_MAX_PAIRS_PER_COST"])
def test_too_many_are_not_tried(name, monkeypatch):
    monkeypatch.setattr(learner, name, 0.5)
    assert make().fit(*words(400)).model_.pair_weights is None


@pytest.mark.parametrize(("losses", "kept"), [([1.0, 0.9], True), ([1.0, 1.1], False)])
def test_held_out_examples_decide(losses, kept, monkeypatch, capsys):
    values = iter(losses)
    monkeypatch.setattr(learner, "loss_of_scores", lambda *_: next(values))
    monkeypatch.setattr(learner, "_fraction_correct", lambda *_: 0.5)
    clf = make(verbose=True).fit(*words(400))
    assert (clf.model_.pair_weights is not None) == kept
    word = "added" if kept else "left out"
    assert f"pair weights {word}: with them the held-out loss is" in capsys.readouterr().err


def test_a_fit_without_them_is_that_of_pair_weights_false(monkeypatch):
    X, y = words(400)
    wanted = make(pair_weights=False).fit(X, y).predict_proba(X)
    losses = iter([1.0, 2.0])
    monkeypatch.setattr(learner, "loss_of_scores", lambda *_: next(losses))
    monkeypatch.setattr(learner, "_fraction_correct", lambda *_: 0.5)
    np.testing.assert_array_equal(make().fit(X, y).predict_proba(X), wanted)


def test_weights_of_examples_count():
    X, y = words()
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    found = make().fit(X, y, weights).model_.pair_weights
    assert (found.biases != make().fit(X, y).model_.pair_weights.biases).any()
    again = make().fit(X, y, 4.0 * weights).model_.pair_weights
    np.testing.assert_array_equal(found.biases, again.biases)


def test_a_flag_is_checked():
    with pytest.raises(TypeError, match="`pair_weights`"):
        make(pair_weights="yes").fit(*words(400))
