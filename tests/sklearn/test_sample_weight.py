"""`sample_weight` of the classifier: as if examples were left out or repeated."""

import time

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from sklearn import config_context
from sklearn.model_selection import cross_validate

from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.sklearn.labels import class_weights, infer_codec

RNG = np.random.default_rng(0)
Y = np.repeat(np.arange(6), 20)
X = np.eye(6)[Y] + 0.7 * RNG.normal(size=(120, 6))
SEVERAL = sparse.csr_array(np.eye(6)[Y] + np.eye(6)[(Y + 1) % 6])
WEIGHTS = RNG.integers(0, 4, 120).astype(float)


def make(**options):
    given = {"embedding_dim": 6, "num_sampled": 5, "max_iter": 3, "random_state": 0}
    given["calibrate"] = False  # which takes examples in another order
    return SampledSoftmaxClassifier(**given | options)


def same(first, second):
    return all(
        np.array_equal(array, second.model_.parameters[name])
        for name, array in first.model_.parameters.items()
    )


@pytest.mark.parametrize("y", [Y, SEVERAL], ids=["one label", "several labels"])
@pytest.mark.parametrize(
    "options",
    [{}, {"early_stopping": True}, {"class_weight": "balanced"}, {"class_weight": {1: 3.0}}],
    ids=str,
)
def test_weight_zero_leaves_out(y, options):
    kept = WEIGHTS > 0
    whole, part = make(**options).fit(X, y, WEIGHTS), make(**options)
    assert same(whole, part.fit(X[kept], y[kept], WEIGHTS[kept]))
    assert not same(whole, part.fit(X[kept], y[kept]))


def test_weights_of_examples_are_those_of_their_classes():
    of_class = {k: 1.0 + k for k in range(6)}
    options = {"sampler": "uniform"}  # not by counts, which weights change
    by_class = make(class_weight=of_class, **options).fit(X, Y)
    assert same(by_class, make(**options).fit(X, Y, 1.0 + Y))
    twice = make(class_weight=of_class, **options).fit(X, Y, 1.0 + Y)
    np.testing.assert_allclose(
        twice.loss_curve_, make(**options).fit(X, Y, (1.0 + Y) ** 2).loss_curve_, rtol=1e-12
    )
    assert not same(by_class, twice)


@pytest.mark.parametrize("y", [Y, SEVERAL], ids=["one label", "several labels"])
@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_weights_are_repetitions_in_one_batch(y, class_weight):
    """Adam does not see that the mean of a batch is over more examples."""
    times = np.repeat(np.arange(120), WEIGHTS.astype(int))
    options = {"loss": "full", "batch_size": 1000, "class_weight": class_weight, "max_iter": 20}
    options |= {"optimizer": "adam", "learning_rate": 0.03}
    weighted = make(**options).fit(X, y, WEIGHTS).predict_proba(X)
    repeated = make(**options).fit(X[times], y[times]).predict_proba(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-3)
    assert np.abs(weighted - make(**options).fit(X, y).predict_proba(X)).max() > 0.02


def test_counts_of_classes_are_weighted():
    counts = make().fit(X, Y, WEIGHTS)._learner.counts
    np.testing.assert_array_equal(counts, [WEIGHTS[k == Y].sum() for k in range(6)])
    counts = make().partial_fit(X, SEVERAL, sample_weight=WEIGHTS)._learner.counts
    np.testing.assert_array_equal(counts, SEVERAL.T @ WEIGHTS + 1.0)


def test_batches_have_weights():
    kept = np.flatnonzero(WEIGHTS)
    first, second, third = (make().partial_fit(X, Y, np.arange(6)) for _ in range(3))
    first.partial_fit(X, Y, sample_weight=WEIGHTS)
    assert same(first, second.partial_fit(X[kept], Y[kept], sample_weight=WEIGHTS[kept]))
    assert not same(first, third.partial_fit(X[kept], Y[kept]))
    assert same(second, first.partial_fit(X, Y, sample_weight=np.zeros(120)))  # no step
    assert (first.n_iter_, second.n_iter_) == (3, 2)


def test_what_is_held_out_is_weighted():
    weights = np.full(120, 1e-9)
    weights[::7] = 1.0
    clf = make(early_stopping=True, max_iter=1).fit(X, Y, weights)
    _, held_out = clf._learner.split_for_validation(np.arange(120), 0.1)
    right = clf.predict(X[held_out]) == Y[held_out]
    found = clf._learner.precision_at_1(X[held_out], Y[held_out], weights[held_out])
    assert found == pytest.approx(np.average(right, weights=weights[held_out]))


def test_weights_are_routed():
    with config_context(enable_metadata_routing=True):
        clf = make().set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        found = cross_validate(clf, X, Y, cv=2, params={"sample_weight": WEIGHTS})
        other = cross_validate(clf, X, Y, cv=2, params={"sample_weight": np.ones(120)})
    assert np.any(found["test_score"] != other["test_score"])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(119), r"must have shape \(120,\), one for each example, got \(119,\)"),
        (np.ones((120, 1)), "must have 1 dimension"),
        (-WEIGHTS, "must be at least 0, got -3.0"),
        (np.full(120, np.nan), "must be finite"),
        (np.zeros(120), "must be above 0 for an example with a label, got zero for all"),
        (["a"] * 120, "must hold real numbers"),
    ],
)
def test_weights_that_are_refused(weights, message):
    clf = make()
    with pytest.raises((TypeError, ValueError), match=f"`sample_weight` {message}"):
        clf.fit(X, Y, weights)
    assert not hasattr(clf, "model_")


def test_classes_that_all_weigh_nothing():
    clf = make(class_weight=dict.fromkeys(np.unique(Y).tolist(), 0))
    with pytest.raises(ValueError, match="`class_weight` must be above 0 for an example"):
        clf.fit(X, Y)
    assert not hasattr(clf, "model_")


@pytest.mark.parametrize(
    "options", [{"sample_weight": np.full(120, 1e18)}, {"class_weight": {2: 1e30}}]
)
def test_weights_that_are_too_large(options):
    given = {"sample_weight": options.pop("sample_weight", None)}
    clf = make(**options)
    message = r"`sample_weight` times `class_weight` must be at most 1e\+15, got 1e\+\d\d; divide"
    with pytest.raises(ValueError, match=message):
        clf.fit(X, Y, **given)
    with pytest.raises(ValueError, match=message):
        clf.partial_fit(X, Y, classes=np.arange(6), **given)
    assert not hasattr(clf, "classes_")


@pytest.mark.parametrize("unit", [2.0**-1070, 2.0**40])
def test_calibration_goes_by_ratios_of_weights(unit):
    clf = make(calibrate=True, loss="full").fit(X, Y)
    scores, codes = clf.decision_function(X), Y.copy()
    wanted = clf.calibration_.fitted(scores, codes, np.ones(120))
    assert clf.calibration_.fitted(scores, codes, np.full(120, unit)) == wanted


def test_weights_of_many_classes_are_looked_up_once():
    names = np.array([f"name {k}" for k in range(20_000)])
    given = {str(name): float(k) for k, name in enumerate(names)}
    codec, start = infer_codec(names), time.perf_counter()
    of_class = class_weights(given, codec, codec.encode(names), np.ones(20_000))
    assert time.perf_counter() - start < 10.0  # minutes, with a search for each
    assert of_class.tolist() == [given[str(name)] for name in codec.classes] + [0.0]
