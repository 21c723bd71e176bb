"""From scores to probabilities: how a temperature is fitted, and what the classifier does."""

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from sklearn.datasets import make_blobs, make_multilabel_classification

from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.sklearn.calibration import (
    LogisticCalibration,
    SoftmaxCalibration,
    logistic_log_loss,
    softmax_log_loss,
)
from samplesoft.sklearn.learner import ClassifierTask
from samplesoft.training import Callback
from samplesoft.training.linear_task import held_out_order


def examples(num, n=7, *, several, temperature=1.0, labels_each=2.5, seed=0):
    """Return scores, and labels drawn from their probabilities."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(scale=3.0, size=(num, n))
    p = np.exp(scores / temperature)
    p /= p.sum(axis=1, keepdims=True)
    if not several:
        return scores, np.array([rng.choice(n, p=row) for row in p])
    drawn = rng.random(p.shape) < 1.0 - (1.0 - p) ** labels_each
    drawn[0] = False  # an example without labels
    return scores, sparse.csr_array(drawn)


def naive(scores, codes, weights, scale, labels_each=None):
    total = 0.0
    for row, (z, weight) in enumerate(zip(scores, weights, strict=True)):
        p = np.exp(scale * z) / np.exp(scale * z).sum()
        if labels_each is None:
            total -= weight * np.log(p[codes[row]])
            continue
        q = 1.0 - (1.0 - p) ** labels_each
        for j in range(len(p)):
            total -= weight * np.log(q[j] if codes[row, j] else 1.0 - q[j])
    return total


def naive_logistic(scores, codes, weights, scale):
    """Return the sum of weighted log losses of a logistic regression of each class."""
    total = 0.0
    for row, (z, weight) in enumerate(zip(scores, weights, strict=True)):
        p = 1.0 / (1.0 + np.exp(-scale * z))
        if codes.ndim == 1:
            total -= weight * np.log(p[codes[row]] / p.sum())
            continue
        for j in range(len(p)):
            total -= weight * np.log(p[j] if codes[row, j] else 1.0 - p[j])
    return total


WEIGHTS = np.array([1.0, 2.0, 0.0, 0.5, 1.5])


@pytest.mark.parametrize("several", [False, True])
def test_the_log_loss_and_its_derivatives(several):
    scores, codes = examples(5, several=several)
    at = [0.7, 2.5][: 1 + several]
    value, slopes = softmax_log_loss(scores, codes, WEIGHTS, *at)
    assert value == pytest.approx(naive(scores, codes, WEIGHTS, *at), rel=1e-12)
    for k, slope in enumerate(slopes):
        ends = [
            naive(scores, codes, WEIGHTS, *(x + sign * 1e-6 * (i == k) for i, x in enumerate(at)))
            for sign in (1, -1)
        ]
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_the_logistic_log_loss_and_its_derivative(several):
    scores, codes = examples(5, several=several)
    value, (slope,) = logistic_log_loss(scores, codes, WEIGHTS, 0.7)
    assert value == pytest.approx(naive_logistic(scores, codes, WEIGHTS, 0.7), rel=1e-12)
    ends = [naive_logistic(scores, codes, WEIGHTS, 0.7 + step) for step in (1e-6, -1e-6)]
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)
    p = LogisticCalibration(1.0 / 0.7, several).probabilities(scores)
    wanted = 1.0 / (1.0 + np.exp(-0.7 * scores))
    wanted /= 1.0 if several else wanted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(p, wanted, rtol=1e-12)
    found = LogisticCalibration(1.0, several).fitted(scores, codes, WEIGHTS).temperature
    steps = np.log(found) + np.linspace(-2.0, 2.0, 401)
    few = 10.0 / 2.0 * steps**2  # the penalty
    losses = [naive_logistic(scores, codes, WEIGHTS, np.exp(-log)) for log in steps]
    assert abs(np.argmin(few + losses) - 200) <= 1
    far = logistic_log_loss(np.array([[0.0, -4000.0]]), np.array([1]), np.ones(1), 1.0)
    assert far[0] == pytest.approx(4000.0, rel=1e-3) and np.isfinite(far[1]).all()


@pytest.mark.parametrize("several", [False, True])
def test_scores_far_apart_have_a_finite_loss(several):
    scores = np.array([[0.0, -4000.0, 50.0]])
    codes = sparse.csr_array([[0, 1, 0]]) if several else np.array([1])
    value, slopes = softmax_log_loss(scores, codes, np.ones(1), 1.0, *[2.0][:several])
    assert np.isfinite(value) and np.isfinite(slopes).all() and value > 600.0


@pytest.mark.parametrize("several", [False, True])
def test_the_fit_is_that_of_a_search(several):
    scores, codes = examples(60, several=several, temperature=2.0)
    weights, start = np.linspace(0.5, 1.5, 60), SoftmaxCalibration(1.0, 2.0 if several else None)

    def penalised(found):
        changes = [np.log(a / b) for a, b in zip(found, start, strict=True) if b is not None]
        numbers = 1.0 / found[0], *[found[1]][:several]
        return naive(scores, codes, weights, *numbers) + 5.0 * np.square(changes).sum()

    found = start.fitted(scores, codes, weights)
    grid = [
        SoftmaxCalibration(found.temperature * a, found.labels_each * b if several else None)
        for a in (0.98, 1.0, 1.02)
        for b in (0.98, 1.0, 1.02)
    ]
    assert min(grid, key=penalised) == found
    assert found != start.fitted(scores, codes, np.where(np.arange(60) < 30, 1.0, 0.0))
    scaled = start.fitted(scores, codes, 100.0 * weights)  # only how weights compare matters
    np.testing.assert_allclose([*scaled][: 1 + several], [*found][: 1 + several], rtol=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_many_examples_give_back_what_they_were_drawn_with(several):
    scores, codes = examples(4000, several=several, temperature=2.0, labels_each=2.5)
    start = SoftmaxCalibration(1.0, 1.3 if several else None)
    found = start.fitted(scores, codes, np.ones(4000))
    assert found.temperature == pytest.approx(2.0, rel=0.06)
    assert not several or found.labels_each == pytest.approx(2.5, rel=0.06)


def test_a_few_examples_say_little():
    scores = np.array([[2.0, 0.0], [0.0, 2.0]])  # both right: the colder, the better
    few = SoftmaxCalibration().fitted(scores, np.array([0, 1]), np.ones(2))
    many = SoftmaxCalibration().fitted(
        np.tile(scores, (500, 1)), np.tile([0, 1], 500), np.ones(1000)
    )
    assert 0.9 < few.temperature < 1.0 and many.temperature < 0.5


@pytest.mark.parametrize("several", [False, True])
def test_probabilities(several):
    scores, _ = examples(5, several=several)
    p = np.exp(scores / 1.7) / np.exp(scores / 1.7).sum(axis=1, keepdims=True)
    wanted = 1.0 - (1.0 - p) ** 2.2 if several else p
    found = SoftmaxCalibration(1.7, 2.2 if several else None).probabilities(scores)
    np.testing.assert_allclose(found, wanted, rtol=1e-9)


def noisy(num=1200):
    """Return blobs that overlap, of which a linear model with a large tau is too sure."""
    return make_blobs(num, centers=12, n_features=4, cluster_std=4.0, random_state=0)


def make(**options):
    common = {"embedding_dim": 8, "num_sampled": 6, "max_iter": 6, "random_state": 0}
    return SampledSoftmaxClassifier(**{**common, **options})


def loss_of(scores, y, temperature):
    z = scores / temperature
    z -= z.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(y)), y]))


@pytest.mark.parametrize("loss", ["full", "sampled-masked", "nce"])
@pytest.mark.parametrize("tau", [2.0, 30.0])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_probabilities_are_as_sure_as_they_are_right(loss, tau, early_stopping):
    X, y = noisy()
    options = {"loss": loss, "tau": tau, "early_stopping": early_stopping}
    clf, plain = (
        make(**options, calibrate=calibrate).fit(X[:800], y[:800]) for calibrate in (True, False)
    )
    ratios = []
    for one in (clf, plain):
        scores = one.decision_function(X[800:])
        p = one.predict_proba(X[800:])
        temperature = one.calibration_.temperature
        found = -np.mean(np.log(p[np.arange(400), y[800:]]))
        assert found == pytest.approx(loss_of(scores, y[800:], temperature))
        best = min(loss_of(scores, y[800:], t) for t in np.geomspace(0.05, 20.0, 60))
        ratios.append(found / best)
    assert plain.calibration_ == SoftmaxCalibration()
    assert ratios[0] < 1.1 < ratios[1]


@pytest.mark.parametrize("tau", [3.0, 25.0])
def test_probabilities_of_several_labels_are_those_of_their_bins(tau):
    X, Y = make_multilabel_classification(
        2400,
        n_features=12,
        n_classes=10,
        n_labels=3,
        length=20,
        allow_unlabeled=False,
        random_state=0,
    )
    gaps = []
    for calibrate in (True, False):
        clf = make(num_sampled=8, tau=tau, calibrate=calibrate, max_iter=20).fit(X[:1600], Y[:1600])
        p, wanted = clf.predict_proba(X[1600:]), Y[1600:]
        bins = np.digitize(p, [0.05, 0.15, 0.3, 0.5, 0.8])
        sums = [abs((p - wanted)[bins == k].sum()) for k in range(6)]
        gaps.append(sum(sums) / p.size)
    assert gaps[0] < 0.04 < 0.06 < gaps[1]


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_who_calibrates_is_learned_later(rounds, monkeypatch):
    X, y = noisy(100)
    trained, calibrated = [], []
    begin_epoch, calibrate = ClassifierTask.begin_epoch, ClassifierTask.calibrate

    def one_epoch(self, *arguments):
        trained.append(set(self.rows.tolist()))
        begin_epoch(self, *arguments)

    def one_calibration(self, x, codes, weights, rows):
        calibrated.append((len(trained), set(rows.tolist())))
        calibrate(self, x, codes, weights, rows)

    monkeypatch.setattr(ClassifierTask, "begin_epoch", one_epoch)
    monkeypatch.setattr(ClassifierTask, "calibrate", one_calibration)
    clf = make(max_iter=rounds, validation_fraction=0.2).fit(X, y)
    [(turn, apart)] = calibrated
    every = set(range(100))
    assert (turn, len(apart)) == (-(-rounds // 2), 20)
    assert trained == [every - apart] * turn + [apart] + [every] * (rounds - turn)
    assert (clf.n_iter_, len(clf.loss_curve_)) == (rounds, rounds)
    trained.clear(), calibrated.clear()
    make(max_iter=rounds, validation_fraction=0.2, early_stopping=True).fit(X, y)
    [(_, held_out)] = calibrated
    assert len(held_out) == 20 and all(len(rows) == 80 for rows in trained)
    trained.clear(), calibrated.clear()
    make(max_iter=rounds, calibrate=False).fit(X, y)
    assert not calibrated and trained == [every] * rounds
    make(max_iter=rounds).fit(X[:9], y[:9])
    assert not calibrated  # a tenth of nine is none


def test_scores_that_calibrate_are_not_too_many(monkeypatch):
    X, y = noisy(200)
    monkeypatch.setattr("samplesoft.sklearn.learner._MAX_CALIBRATION_SCORES", 12 * 3)
    clf = make(max_iter=1).fit(X, y)
    learner = clf._learner
    first = held_out_order(np.arange(200), learner.seed)[:3]
    learner.calibrated = None
    learner.calibrate(X, y, np.ones(200), np.arange(200))
    found = learner.calibrated
    learner.calibrated = None
    learner.calibrate(X, y, np.ones(200), first)
    assert 0.0 < abs(found.temperature - 1.0)
    assert learner.calibrated.temperature == found.temperature


def test_what_goes_on_from_a_model_keeps_its_calibration(tmp_path):
    X, y = noisy(300)
    clf = make(warm_start=True).fit(X, y)
    before = clf.calibration_
    assert before.temperature != 1.0
    clf.save(tmp_path / "model.npz")
    again = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    assert again.calibration_ == before
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))
    clf.fit(X, y).partial_fit(X[:30], y[:30])
    assert clf.calibration_ == before
    first = make().partial_fit(X[:30], y[:30], classes=np.arange(12))
    assert first.calibration_ == SoftmaxCalibration()


def test_weights_count_in_the_calibration():
    X, y = noisy(400)
    clf = make(class_weight={0: 50.0}).fit(X, y)
    rows = clf._learner.split_for_calibration(np.arange(400), 0.3)[1]
    weighted, before = np.where(y == 0, 50.0, 1.0), clf.calibration_
    clf._learner.calibrate(X, y, np.zeros(400), rows)
    assert clf.calibration_ == before  # of weight 0, they say nothing
    clf._learner.calibrate(X, y, weighted, rows)
    with_weights = clf.calibration_
    clf._learner.calibrate(X, y, np.ones(400), rows)
    assert with_weights != clf.calibration_


@pytest.mark.parametrize("loss", ["full", "full-logistic"])
@pytest.mark.parametrize("several", [False, True])
def test_an_eval_set_calibrates_and_holds_out_nothing(loss, several, tmp_path):
    X, y = noisy(300)
    y = [[f"{k}", "a"] if several else f"{k}" for k in y]
    new = [["new"] if several else "new"] * 5
    tau = None if loss == "full-logistic" else 10.0  # a tau that is given does not change
    seen = make(loss=loss, tau=tau).fit(X[:200], y[:200], eval_set=(X[200:295], y[200:295]))
    clf = make(loss=loss, tau=tau).fit(X[:200], y[:200], eval_set=(X[200:], y[200:295] + new))
    assert clf.calibration_ == seen.calibration_  # labels that are no class say nothing
    assert clf.calibration_.temperature != 1.0
    plain = make(loss=loss, tau=tau, calibrate=False).fit(X[:200], y[:200])
    np.testing.assert_array_equal(clf.decision_function(X), plain.decision_function(X))
    clf.save(tmp_path / "model.npz")
    again = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    assert again.calibration_ == clf.calibration_
    np.testing.assert_array_equal(again.predict_proba(X), clf.predict_proba(X))


@pytest.mark.parametrize("how", ["early_stopping", "eval_set"])
@pytest.mark.parametrize("several", [False, True])
def test_weights_of_classes_count(how, several):
    """As if each held-out example had the weight of its class itself."""
    X, y = noisy()
    train, other = slice(0, 800), slice(800, 1200)
    Y = np.eye(12, dtype=int)[y] if several else y
    of_class = dict(enumerate(np.linspace(0.0, 5.0, 12)))
    clf = make(loss="full", class_weight=of_class, early_stopping=how == "early_stopping")
    if how == "eval_set":
        clf.fit(X[train], Y[train], eval_set=(X[other], Y[other]))
        held_out = np.arange(800, 1200)
    else:
        clf.fit(X[train], Y[train])
        held_out = clf._learner.split_for_validation(np.arange(800), 0.1)[1]
    scores = clf.decision_function(X[held_out])
    codes = sparse.csr_array(Y[held_out]) if several else y[held_out]
    start = SoftmaxCalibration(1.0, 1.0 if several else None)
    found, plain = (
        start.fitted(scores, codes, weights)
        for weights in (np.array([of_class[k] for k in y[held_out]]), np.ones(len(held_out)))
    )
    assert clf.calibration_.temperature == pytest.approx(found.temperature, rel=1e-6)
    assert abs(clf.calibration_.temperature - plain.temperature) > 1e-3


def test_a_callback_that_ends_training_early_leaves_it_calibrated():
    class Stop(Callback):
        def after_epoch(self, task, optimizer, progress):
            progress.stop = True

    X, y = noisy(300)
    clf = make(max_iter=6).fit(X, y, callbacks=[Stop()])
    assert clf.n_iter_ == 1 and clf.calibration_.temperature != 1.0
