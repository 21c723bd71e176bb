"""What held-out examples decide: the number of epochs and the inverse temperature."""

import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp

from samplesoft._jit import set_num_threads
from samplesoft.models import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.sklearn.held_out import FACTORS, MIN_WATCHED, held_out_loss, num_watched
from samplesoft.training.linear_task import Examples
from samplesoft.training.loop import Callback

RNG = np.random.default_rng(0)


def model_of(num_classes, dtype=np.float64, tau=10.0, masks=True):
    settings = LinearSoftmaxSettings(
        loss="full",
        sampler=None,
        num_sampled=None,
        embedding_dim=5,
        tau=tau,
        mask_other_labels=masks,
    )
    return LinearSoftmax(7, num_classes, settings, dtype=dtype, rng=1)


def examples_of(num, num_classes, several=False, dtype=np.float64):
    X = sparse.csr_array(RNG.normal(size=(num, 7)).astype(dtype))
    labels = RNG.integers(0, num_classes, num)
    if several:
        chosen = RNG.random((num, num_classes)) < 3.0 / num_classes
        chosen[np.arange(num), labels] = True
        labels = sparse.csr_array(chosen.astype(float))
    return Examples(X, labels, RNG.uniform(0.1, 3.0, num))


def plain_losses(model, examples, factor):
    """Losses (k,) with tau times a factor, by SciPy."""
    scores = np.concatenate([part for _, part in model.scores(examples.X)]).astype(float) * factor
    labels = examples.labels
    chosen = (
        labels.toarray() > 0 if sparse.issparse(labels) else np.eye(scores.shape[1])[labels] > 0
    )
    losses = []
    for row, is_label in zip(scores, chosen, strict=True):
        each = []
        for j in np.flatnonzero(is_label):
            kept = ~is_label if model.settings.mask_other_labels else np.ones_like(is_label)
            kept[j] = True
            each.append(logsumexp(row[kept]) - row[j])
        losses.append(np.mean(each))
    return np.array(losses)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("num_classes", [1, 2, 9, 300, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("masks", [False, True])
def test_the_loss_is_that_of_scipy(num_classes, several, dtype, masks):
    model = model_of(num_classes, dtype, masks=masks)
    examples = examples_of(40, num_classes, several, dtype)
    weights = examples.weights
    means = [np.average(plain_losses(model, examples, f), weights=weights) for f in FACTORS]
    loss, factor = held_out_loss(model, examples)
    accuracy = 1e-5 if dtype == np.float32 else 1e-12
    assert loss == pytest.approx(means[4], rel=accuracy, abs=accuracy)
    penalized = means + 5.0 * np.log(FACTORS) ** 2 / 40
    assert factor == FACTORS[np.argmin(penalized)]


@pytest.mark.parametrize("tau", [0.01, 1e4])
def test_a_temperature_far_away_goes_as_far_as_it_may(tau):
    model = model_of(9, tau=tau)
    examples = examples_of(4000, 9)
    best = model.top_k(examples.X, 1)[0][:, 0]
    labels = np.where(RNG.random(4000) < 0.7, best, examples.labels)
    loss, factor = held_out_loss(model, examples._replace(labels=labels))
    assert np.isfinite(loss)
    assert factor == (FACTORS[-1] if tau < 1.0 else FACTORS[0])


def test_any_number_of_threads_computes_the_same():
    model = model_of(3000, np.float32)
    examples = examples_of(600, 3000, dtype=np.float32)
    found = []
    for threads in (1, 2):
        set_num_threads(threads)
        found.append(held_out_loss(model, examples))
    assert found[0] == found[1]


def test_examples_that_are_watched_cost_a_part_of_an_epoch():
    assert num_watched(1000, 10_000, 1000, 1000.0) == 1000
    assert num_watched(1000, 10_000, 5000, 500.0) == 150
    assert num_watched(1000, 10_000, 10**6, 1000.0) == MIN_WATCHED
    assert num_watched(20, 10_000, 10**6, 1000.0) == 20


def noisy(num=1500, num_classes=12, wrong=0.3):
    rng = np.random.default_rng(3)
    y = rng.integers(0, num_classes, num)
    X = rng.normal(size=(num_classes, 20))[y] + rng.normal(size=(num, 20))
    return X, np.where(rng.random(num) < wrong, rng.integers(0, num_classes, num), y)


def make(**options):
    return SampledSoftmaxClassifier(**{"embedding_dim": 8, "random_state": 0, **options})


def last_improvement(losses):
    best, best_epoch = np.inf, 0
    for epoch, loss in enumerate(losses, 1):
        if loss < best * 0.998:
            best, best_epoch = loss, epoch
    return best_epoch


class Epochs(Callback):
    """Notes the epochs and the sizes of training sets that a fit goes through."""

    def __init__(self, classifier=None):
        self.classifier = classifier
        self.seen = []

    def end_epoch(self, task, optimizer, progress):
        assert self.classifier is None or self.classifier.model_ is task.model
        self.seen.append((progress.epoch, len(task.rows), optimizer.learning_rate))


def test_a_trial_run_chooses_epochs_and_tau_for_a_fit_on_all_examples():
    X, y = noisy(1500)
    clf = make(embedding_dim=32, learning_rate=0.5)
    epochs = Epochs(clf)
    clf.fit(X, y, callbacks=[epochs])
    losses = clf.held_out_losses_
    best_epoch = last_improvement(losses)
    steps_each = -(-1350 // 128)
    assert len(losses) == max(best_epoch + 2, -(-100 // steps_each))
    assert clf.n_iter_ == clf.resolved_.epochs == int(np.ceil(1.5 * best_epoch)) + 1
    assert len(clf.loss_curve_) == clf.n_iter_
    assert clf.resolved_.schedule == "linear"

    # the fit starts from scratch: it is that of the same settings, given
    fixed = make(
        embedding_dim=32,
        learning_rate=0.5,
        max_iter=clf.n_iter_,
        schedule="linear",
        tau=clf.model_.settings.tau,
        calibrate=False,
    ).fit(X, y)
    np.testing.assert_array_equal(fixed.decision_function(X), clf.decision_function(X))
    assert clf.calibration_.temperature != fixed.calibration_.temperature == 1.0
    # callbacks see the fit, and not the trial
    assert [(epoch, rows) for epoch, rows, _ in epochs.seen] == [
        (epoch, 1500) for epoch in range(clf.n_iter_)
    ]

    again = make(embedding_dim=32, learning_rate=0.5).fit(X, y)
    np.testing.assert_array_equal(again.decision_function(X), clf.decision_function(X))


def test_if_little_is_held_out_training_ends_with_the_choice():
    X, y = noisy(2000)
    epochs = Epochs()
    clf = make(validation_fraction=0.03, learning_rate=0.5).fit(X, y, callbacks=[epochs])
    num_epochs = len(clf.held_out_losses_)
    steps_each = -(-1940 // 128)
    assert num_epochs == max(last_improvement(clf.held_out_losses_) + 1, -(-100 // steps_each))
    assert num_epochs == clf.n_iter_ == len(clf.loss_curve_) < 30
    assert clf.resolved_.schedule == "inverse-sqrt"
    rates = [rate for _, _, rate in epochs.seen]
    assert rates == sorted(rates, reverse=True) and rates[0] > 0.5 * 0.7
    assert [rows for _, rows, _ in epochs.seen] == [1940] * num_epochs
    assert clf._learner.steps_taken == steps_each * num_epochs + 1  # and the held-out examples
    decayed = make(validation_fraction=0.03, learning_rate=0.5, schedule="linear").fit(X, y)
    assert decayed.n_iter_ == int(np.ceil(1.5 * last_improvement(decayed.held_out_losses_))) + 1


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", None])
def test_the_schedule_that_was_asked_for_is_that_of_the_fit(schedule):
    clf = make(schedule=schedule, warmup=0.1).fit(*noisy(400))
    assert clf.resolved_.schedule == (schedule or "linear")
    assert clf.resolved_.warmup_steps == np.ceil(0.1 * clf.resolved_.num_steps)
    assert make(schedule=schedule, max_iter=3).fit(*noisy(400)).resolved_.schedule == (
        schedule or "constant"
    )


@pytest.mark.parametrize(
    "options", [{"max_iter": 4}, {"calibrate": False}, {"loss": "nce"}, {"embedding_dim": None}]
)
def test_where_the_number_of_epochs_is_fixed(options):
    X, y = noisy(400)
    clf = make(**options).fit(X, y)
    assert clf.n_iter_ == clf.resolved_.epochs
    assert clf.n_iter_ == options.get("max_iter", 20 if "embedding_dim" in options else 30)
    assert clf.resolved_.schedule == "constant"


def test_a_fit_that_continues_has_a_fixed_number_of_epochs():
    X, y = noisy(1500)
    clf = make(warm_start=True, max_iter=2).fit(X, y)
    before = clf.model_
    clf.set_params(max_iter=None).fit(X, y, eval_set=(X[:200], y[:200]))
    assert clf.model_ is before
    assert clf.n_iter_ == 30
    assert clf.held_out_losses_


def test_few_examples_decide_nothing():
    X, y = noisy(300)
    clf = make().fit(X, y)
    assert clf.held_out_losses_ == []
    assert clf.model_.settings.tau == 10.0


def test_an_easy_problem_takes_a_larger_tau_and_a_hard_one_a_smaller():
    taus = [make().fit(*noisy(wrong=wrong)).model_.settings.tau for wrong in (0.0, 0.9)]
    assert taus[0] > 10.0 > taus[1]
    assert make(tau=10.0).fit(*noisy(wrong=0.9)).model_.settings.tau == 10.0
    assert make(normalize=False).fit(*noisy(wrong=0.9)).model_.settings.tau == 1.0


def test_a_tau_that_was_changed_is_kept(tmp_path):
    X, y = noisy()
    clf = make(warm_start=True, max_iter=4).fit(X, y)
    tau = clf.model_.settings.tau
    assert tau != 10.0
    assert clf.resolved_.model.tau == tau == clf.model_.softmax.loss.tau
    clf.save(tmp_path / "model.npz")
    again = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.decision_function(X), clf.decision_function(X))
    assert again.held_out_losses_ == clf.held_out_losses_
    for one in (clf, again):
        one.fit(X, y).partial_fit(X[:50], y[:50])
        assert one.model_.settings.tau == tau
    np.testing.assert_array_equal(again.decision_function(X), clf.decision_function(X))


def test_an_eval_set_decides_as_what_is_held_out_does():
    X, y = noisy()
    clf = make(learning_rate=0.5).fit(X[:1000], y[:1000], eval_set=(X[1000:], y[1000:]))
    assert len(clf.held_out_losses_) == len(clf.validation_scores_) == clf.n_iter_ <= 30
    assert clf.model_.settings.tau != 10.0
