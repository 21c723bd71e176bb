"""What is left out is absent: a model is that of the data without it, to the bit."""

import warnings

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.sklearn.learner import mean_row_norm

RNG = np.random.default_rng(0)
N, V = 240, 60
Y = RNG.integers(0, 6, N)
X = (np.eye(V)[Y] + 0.5 * RNG.normal(size=(N, V))).astype(np.float32)
OUT = RNG.random(N) < 0.3
X[OUT] *= 1e4  # which would make steps of next to nothing
SEVERAL = (np.eye(6, dtype=int)[Y] + np.eye(6, dtype=int)[(Y + 1) % 6]) * ~OUT[:, None]
FORMS = {
    "dense": lambda x: x,
    "float64": lambda x: x.astype(np.float64),
    "CSR": sparse.csr_array,
}
OPTIONS = {
    "linear": {"embedding_dim": None},
    "linear, full": {"embedding_dim": None, "loss": "full"},
    "linear, logistic": {"embedding_dim": None, "loss": "full-logistic"},
    "vectors": {"embedding_dim": 8, "num_sampled": 4},
    "early stopping": {"embedding_dim": None, "early_stopping": True},
    "balanced": {"embedding_dim": None, "class_weight": "balanced"},
    "no calibration": {"embedding_dim": None, "calibrate": False},
    "rounds by default": {"embedding_dim": 8, "num_sampled": 4, "max_iter": None, "batch_size": 16},
}


def make(**options):
    return SampledSoftmaxClassifier(**{"max_iter": 4, "random_state": 0, **options})


def fitted(clf, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of examples without a label
        return clf.fit(*args, **options)


def require_same(first, second):
    assert first._learner.row_norm == second._learner.row_norm
    assert first.n_iter_ == second.n_iter_
    assert first.calibration_ == second.calibration_
    assert first.loss_curve_ == second.loss_curve_
    assert first.validation_scores_ == second.validation_scores_
    np.testing.assert_array_equal(first._learner.counts, second._learner.counts)
    for name, array in first.model_.parameters.items():
        np.testing.assert_array_equal(array, second.model_.parameters[name], err_msg=name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIONS)
def test_weight_zero(name, form):
    x = FORMS[form](X)
    whole = fitted(make(**OPTIONS[name]), x, Y, (~OUT).astype(float))
    require_same(whole, fitted(make(**OPTIONS[name]), x[~OUT], Y[~OUT]))


@pytest.mark.thorough(but=16)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("lists", [False, True])
def test_no_label(name, form, lists):
    x = FORMS[form](X)
    y = [np.flatnonzero(row).tolist() for row in SEVERAL] if lists else SEVERAL
    kept = [labels for labels in y if len(labels)] if lists else SEVERAL[~OUT]
    whole = fitted(make(**OPTIONS[name]), x, y)
    require_same(whole, fitted(make(**OPTIONS[name]), x[~OUT], kept))


@pytest.mark.parametrize("name", ["linear", "vectors", "no calibration"])
def test_classes_of_weight_zero_are_examples_of_weight_zero(name):
    """They stay classes, which are drawn as often as they occur: here alike."""
    weights = {"class_weight": {2: 0.0}, "sampler": "uniform"}
    x = X.copy()
    x[Y == 2] *= 1e4
    whole = fitted(make(**OPTIONS[name], **weights), x, Y)
    part = fitted(make(**OPTIONS[name], sampler="uniform"), x, Y, (Y != 2).astype(float))
    assert whole._learner.row_norm == part._learner.row_norm
    for key, array in whole.model_.parameters.items():
        np.testing.assert_array_equal(array, part.model_.parameters[key], err_msg=key)


def test_eval_set_without_labels():
    options = {"embedding_dim": None, "early_stopping": True}
    whole = fitted(make(**options), X[~OUT], SEVERAL[~OUT], eval_set=(X, SEVERAL))
    part = fitted(make(**options), X[~OUT], SEVERAL[~OUT], eval_set=(X[~OUT], SEVERAL[~OUT]))
    require_same(whole, part)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("several", [False, True])
def test_batches(form, several):
    x, y = FORMS[form](X), SEVERAL if several else Y
    given = {} if several else {"sample_weight": (~OUT).astype(float)}
    whole, part = make(embedding_dim=None), make(embedding_dim=None)
    for _ in range(2):
        whole.partial_fit(x, y, np.arange(6), **given)
        part.partial_fit(x[~OUT], y[~OUT], np.arange(6))
    assert whole._learner.row_norm == part._learner.row_norm
    for name, array in whole.model_.parameters.items():
        np.testing.assert_array_equal(array, part.model_.parameters[name])


def test_a_first_batch_that_is_left_out_sets_no_scale():
    x = X.copy()
    x[~OUT] *= 10.0
    whole, part = (make(embedding_dim=None, sampler="uniform") for _ in range(2))
    whole.partial_fit(X[OUT], Y[OUT], np.arange(6), np.zeros(OUT.sum()))
    for clf in (whole, part):
        clf.partial_fit(x[~OUT], Y[~OUT], np.arange(6))
    assert whole._learner.row_norm == part._learner.row_norm > 5.0
    for name, array in whole.model_.parameters.items():
        np.testing.assert_array_equal(array, part.model_.parameters[name])


def test_going_on_keeps_the_scale_of_the_first_fit():
    clf = fitted(make(embedding_dim=None, warm_start=True), X, Y, (~OUT).astype(float))
    other = fitted(make(embedding_dim=None, warm_start=True), X[~OUT], Y[~OUT])
    for one in (clf, other):
        one.set_params(calibrate=False)
    require_same(fitted(clf, X, Y, (~OUT).astype(float)), fitted(other, X[~OUT], Y[~OUT]))


@pytest.mark.slow
def test_what_auto_chooses_is_measured_without_them():
    options = {"embedding_dim": 8, "sampler": "auto", "num_sampled": 20, "max_iter": 1}
    labels = np.arange(N * 2) % 150
    x = np.concatenate([X, X])
    out = labels >= 120
    y, weights = np.where(out, labels - 120, labels), (~out).astype(float)
    whole = fitted(make(**options), x * np.where(out, 1e4, 1.0)[:, None], y, weights)
    part = fitted(make(**options), x[~out], y[~out])
    np.testing.assert_array_equal(whole._learner.counts, part._learner.counts)


def test_scores_of_examples():
    clf = fitted(make(embedding_dim=None), X[~OUT], Y[~OUT])
    weights = RNG.random(N) * ~OUT
    assert clf.score(X, Y, weights) == clf.score(X[~OUT], Y[~OUT], weights[~OUT])


def plain_mean_norm(x):
    """As it was computed of all inputs at once."""
    largest = float(abs(x).max())
    scaled = x.astype(np.float64) / largest
    squares = scaled.multiply(scaled) if sparse.issparse(x) else scaled**2
    norms = np.sqrt(np.asarray(squares.sum(axis=1)).reshape(-1))
    return largest * float(norms[norms > 0.0].mean())


@pytest.mark.parametrize(
    "shape", [(1, 5), (2, 300), (1001, 129), (65537, 3), (7, 100_000)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_scale_of_parts_has_the_bits_of_the_whole(shape, dtype):
    rng = np.random.default_rng(1)
    x = rng.normal(size=shape).astype(dtype)
    thin = sparse.csr_array(x * (rng.random(shape) < 0.2))
    for one in (x, np.asfortranarray(x), x[::-1], x[:, ::2], thin, sparse.csr_matrix(thin)):
        assert mean_row_norm(one, np.arange(shape[0])) == plain_mean_norm(one)
    some = np.arange(0, shape[0], 3)
    for one in (x, thin):
        assert mean_row_norm(one, some) == plain_mean_norm(one[some])


def test_the_scale_of_nothing():
    assert mean_row_norm(np.zeros((3, 2)), np.arange(3)) == 1.0
    assert mean_row_norm(sparse.csr_array((3, 2)), np.arange(3)) == 1.0
    assert mean_row_norm(np.ones((3, 2)), np.arange(0)) == 1.0
