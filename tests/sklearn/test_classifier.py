"""The classifier, as scikit-learn checks it and as its users use it."""

import copy
import pickle
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
import joblib
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_blobs, make_multilabel_classification
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from samplesoft._temperature import default_tau
from samplesoft.losses import LOSSES
from samplesoft.optimizers import OPTIMIZERS
from samplesoft.samplers import SAMPLERS, ClusterSampler
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.sklearn.learner import ClassifierTask
from samplesoft.training import read_linear_softmax
from samplesoft.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from samplesoft.training.fused import draws

pytestmark = pytest.mark.filterwarnings("ignore:`num_sampled` asks for")
OFFERED = [name for name, spec in LOSSES.items() if spec.classifier]
SMALL = {"num_sampled": 5, "num_features": 16, "embedding_dim": 8, "random_state": 0}


REPEATS = "a step is on a batch of examples in random order, which repeated examples change"
EXPECTED = dict.fromkeys(
    [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")], REPEATS
)


CHECKS = parametrize_with_checks(  # of scikit-learn 1.6 a generator, which pytest warns of
    [
        SampledSoftmaxClassifier(),
        SampledSoftmaxClassifier(
            embedding_dim=None, loss="jackknife", shared=False, num_sampled=20
        ),
    ],
    expected_failed_checks=lambda _: EXPECTED,
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*are without a label")
@pytest.mark.filterwarnings("ignore:.*array_api", "ignore:.*pandas")
@pytest.mark.parametrize(CHECKS.args[0], list(CHECKS.args[1]), **CHECKS.kwargs)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def blobs(n=200, centers=4, dtype=np.float64):
    X, y = make_blobs(n, centers=centers, n_features=6, random_state=0)
    return X.astype(dtype), y


def make(**options):
    return SampledSoftmaxClassifier(**{**SMALL, **options})


@pytest.mark.parametrize("loss", ["sampled", "jackknife", "negative-sampling"])
def test_the_masked_loss_is_that_of_a_shared_set(loss):
    X, y = blobs()
    wanted = make(loss=loss, shared=True, max_iter=2).fit(X, y).predict_proba(X)
    found = make(loss=f"{loss}-masked", max_iter=2).fit(X, y)
    np.testing.assert_array_equal(found.predict_proba(X), wanted)
    own = make(loss=loss, max_iter=2).fit(X, y)
    assert (found.model_.settings.shared, own.model_.settings.shared) == (True, False)
    assert np.any(own.predict_proba(X) != wanted)
    assert SampledSoftmaxClassifier().loss == "sampled-masked"


def test_what_several_labels_are(tmp_path):
    X, Y = make_multilabel_classification(
        60, n_features=8, n_classes=9, allow_unlabeled=False, random_state=0
    )
    common = {"max_iter": 2, "sampler": "uniform"}
    mean = make(**common).fit(X, Y)
    for options in (
        {"label_reduction": "pal"},
        {"mask_other_labels": False},
        {"loss": "nce", "label_reduction": "ova"},
    ):
        other = make(**common, **options).fit(X, Y)
        assert np.any(other.predict_proba(X) != mean.predict_proba(X))
        other.save(tmp_path / "model.npz")
        loaded = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
        assert loaded.get_params() == other.get_params()
        assert loaded.model_.settings == other.model_.settings
    with pytest.raises(ValueError, match="must not be 'ova' for SampledSoftmaxLoss"):
        make(label_reduction="ova").fit(X, Y)
    one = make(loss="nce", label_reduction="ova").fit(X, np.zeros(len(X)))
    assert one.model_.settings.label_reduction == "pal-n"  # of the full softmax of one class


@pytest.mark.parametrize("loss", OFFERED)
@pytest.mark.parametrize(("kind", "shared"), [("dense", True), ("sparse", False)])
def test_blobs_are_told_apart(loss, kind, shared):
    X, y = blobs()
    X = X if kind == "dense" else sparse.csr_matrix(X)
    names = np.array(["kiwi", "fig", "plum", "date"], object)[y]
    clf = make(loss=loss, max_iter=30, shared=shared).fit(X, names)
    assert clf.score(X, names) > 0.95
    assert clf.classes_.tolist() == ["date", "fig", "kiwi", "plum"]


def test_labels_with_gaps_and_unseen_ones():
    X, y = blobs(centers=3)
    odd = np.array([-7, 3, 10**12])[y]
    clf = make(max_iter=30).fit(X, odd)
    assert set(clf.predict(X)) == {-7, 3, 10**12}
    strange = np.where(odd == 3, 99, odd)
    assert clf.score(X, strange) == pytest.approx(np.mean(clf.predict(X) == strange))
    with pytest.raises(ValueError, match="labels among the 3 classes, got 99, which"):
        clf.partial_fit(X, strange)


def test_many_classes_of_few_examples_are_no_regression():
    X, _ = blobs(30)
    for labels in (np.arange(30), np.arange(30.0), np.arange(30).astype(str)):
        assert len(make(max_iter=1).fit(X, labels).classes_) == 30


def settings_of(num_classes, **options):
    y = np.arange(num_classes)
    clf = SampledSoftmaxClassifier(max_iter=1, random_state=0, **options)
    settings = clf.fit(np.eye(num_classes), y).model_.settings
    return settings.loss, settings.sampler, settings.num_sampled


def test_few_classes_are_scored_all_by_default():
    for loss in ("sampled-masked", "sampled", "jackknife"):
        assert settings_of(100, loss=loss, sampler="rff") == ("full", None, None)
        number = 300 if loss == "sampled-masked" else 100
        assert settings_of(1001, loss=loss) == (loss, "unigram", number)
        assert settings_of(100, loss=loss, num_sampled=100) == (loss, "unigram", 100)
    assert settings_of(100, sampler="auto") == ("full", None, None)
    assert settings_of(5, loss="nce") == ("nce", "unigram", 300)  # which is no softmax
    assert settings_of(5, loss="negative-sampling") == ("negative-sampling", "unigram", 100)
    X, y = blobs(dtype=np.float32)
    options = {"max_iter": 2, "random_state": 0}
    assert same(
        SampledSoftmaxClassifier(**options).fit(X, y),
        SampledSoftmaxClassifier(loss="full", **options).fit(X, y),
    )
    clf = SampledSoftmaxClassifier(**options).partial_fit(X, y, classes=range(4))
    assert clf.partial_fit(X, y).model_.settings.loss == "full"
    with pytest.raises(ValueError, match="made with other loss, sampler, num_sampled"):
        clf.set_params(num_sampled=3).partial_fit(X, y)


@pytest.mark.filterwarnings("error:`num_sampled` asks for")
def test_more_draws_than_classes_are_warned_of():
    X, y = blobs()
    for options, several in [
        ({"num_sampled": 5}, False),
        ({"num_sampled": np.int64(5), "loss": "nce"}, False),
        ({"num_sampled": 5, "sampler": "clusters"}, True),
    ]:
        clf = SampledSoftmaxClassifier(max_iter=2, warm_start=True, **options)
        labels = np.eye(4)[y] if several else y
        with pytest.warns(
            UserWarning, match="for 5 draws, more than the 4 .*lower it, or use"
        ) as w:
            clf.fit(X, labels)
        assert len(w) == 1 and w[0].filename == __file__
        clf.fit(X, labels).partial_fit(X, labels)  # of a model that there is
        with pytest.warns(UserWarning, match="for 5 draws") as w:
            SampledSoftmaxClassifier(**options).partial_fit(X, labels, classes=range(4))
        assert len(w) == 1 and w[0].filename == __file__
    for options in ({}, {"num_sampled": 4}, {"loss": "nce"}, {"num_sampled": 5, "loss": "full"}):
        SampledSoftmaxClassifier(max_iter=1, **options).fit(X, y)
    make().fit(X[:9], np.zeros(9))  # one class


def test_one_class():
    X, _ = blobs(20)
    clf = make().fit(X, ["only"] * 20)
    assert set(clf.predict(X)) == {"only"}
    np.testing.assert_array_equal(clf.predict_proba(X), np.ones((20, 1)))


def test_top_k_agrees_with_all_scores():
    X, y = blobs(centers=7)
    clf = make(max_iter=5).fit(X, y)
    scores = clf.decision_function(X)
    labels, best = clf.predict_topk(X, 3)
    np.testing.assert_array_equal(labels, np.argsort(-scores, axis=1)[:, :3])
    np.testing.assert_allclose(best, -np.sort(-scores, axis=1)[:, :3])
    np.testing.assert_array_equal(labels[:, 0], clf.predict(X))
    scores /= clf.calibration_.temperature
    p = clf.predict_proba(X)
    np.testing.assert_allclose(p, np.exp(scores) / np.exp(scores).sum(1, keepdims=True))
    with pytest.raises(ValueError, match="`k` must be at most the number of classes 7, got 8"):
        clf.predict_topk(X, 8)


def several(n=120):
    return make_multilabel_classification(n, n_classes=6, random_state=1, allow_unlabeled=False)


@pytest.mark.thorough(but=4)
@pytest.mark.parametrize("loss", OFFERED)
def test_forms_of_several_labels_give_one_model(loss):
    X, Y = several()
    lists = [np.flatnonzero(row).tolist() for row in Y]
    dense, matrix, listed = (
        make(loss=loss, max_iter=25).fit(X, y) for y in (Y, sparse.csr_matrix(Y), lists)
    )
    for other in (matrix, listed):
        for name, array in dense.model_.parameters.items():
            np.testing.assert_array_equal(array, other.model_.parameters[name])
    predicted = dense.predict(X)
    assert sparse.issparse(matrix.predict(X))
    np.testing.assert_array_equal(matrix.predict(X).toarray(), predicted)
    assert [row.tolist() for row in listed.predict(X)] == [
        np.flatnonzero(row).tolist() for row in predicted
    ]
    scores = {clf.score(X, y) for clf, y in ((dense, Y), (matrix, sparse.csr_matrix(Y)))}
    assert scores == {listed.score(X, lists)}
    best = dense.predict_topk(X, 1)[0][:, 0]
    assert np.mean(Y[np.arange(len(Y)), best]) > 0.75


@pytest.mark.filterwarnings("ignore:.*without a label")
def test_lists_of_one_length_and_sets_of_strings():
    X, _ = blobs(4)
    clf = make().fit(X, [{"a", "b"}, ["a"], ("c",), []])
    assert (clf.classes_.tolist(), clf.num_unlabeled_) == (["a", "b", "c"], 1)
    clf.partial_fit(X[:2], [["a"], ["c"]])
    assert len(clf.predict(X)) == 4


def test_probability_of_one_label_among_several():
    X, Y = several()
    clf = make(max_iter=3, calibrate=False).fit(X, Y)
    scores = clf.decision_function(X)
    p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    wanted = 1.0 - (1.0 - p) ** Y.sum(1).mean()
    np.testing.assert_allclose(clf.predict_proba(X), wanted, rtol=1e-9)
    np.testing.assert_array_equal(clf.predict(X), wanted >= 0.5)


def test_examples_without_a_label_are_left_out_and_counted():
    X, Y = several()
    Y[:7] = 0
    with pytest.warns(UserWarning, match="7 of 120 examples are without a label") as warned:
        clf = make(max_iter=2).fit(X, Y)
    assert len(warned) == 1
    assert clf.num_unlabeled_ == 7
    other = make(max_iter=2).fit(X, np.where(np.arange(120)[:, None] < 7, 1, Y))
    assert other.num_unlabeled_ == 0


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_sampled": 100, "tau": 5.0},
        {"loss": "nce", "sampler": "uniform"},
        {"loss": "jackknife-masked"},
        {"embedding_dim": None},
    ],
    ids=str,
)
def test_dense_inputs_and_sparse_ones_give_the_same_model(options, monkeypatch):
    """One takes step by step what the other takes in calls, here of three steps."""
    X = np.random.default_rng(0).normal(size=(200, 6))
    y = np.arange(200) % 40
    clf = SampledSoftmaxClassifier(**SMALL | {"max_iter": 3, "batch_size": 16} | options)
    monkeypatch.setattr(draws, "_MAX_CALL_DRAWS", 3 * (16 + clf.num_sampled))
    dense, other = clone(clf).fit(X, y), clone(clf).fit(sparse.csr_array(X), y)
    assert dense.loss_curve_ == pytest.approx(other.loss_curve_, rel=1e-9)
    for name, array in other.model_.parameters.items():
        np.testing.assert_allclose(dense.model_.parameters[name], array, rtol=1e-7, atol=1e-9)


def test_in_a_pipeline_text_stays_sparse():
    texts = ["red fruit", "green leaf", "red berry", "green grass"] * 5
    names = ["fruit", "plant", "fruit", "plant"] * 5
    pipe = make_pipeline(TfidfVectorizer(), make(max_iter=20)).fit(texts, names)
    assert pipe.predict(["a red thing", "green"]).tolist() == ["fruit", "plant"]
    assert pipe.predict(["nothing known"]).shape == (1,)


@pytest.mark.slow
def test_searches_calibration_and_clones():
    X, y = blobs()
    search = GridSearchCV(make(max_iter=3), {"tau": [5.0, 10.0], "loss": ["full", "nce"]}, cv=2)
    assert search.fit(X, y).best_score_ > 0.8
    calibrated = CalibratedClassifierCV(make(max_iter=5), cv=2).fit(X, y)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(1), 1.0)
    first = make(max_iter=2).fit(X, y)
    assert same(first, clone(first).fit(X, y))
    jobs = Parallel(n_jobs=2)(delayed(make(max_iter=2).fit)(X, y) for _ in range(2))
    assert all(same(first, job) for job in jobs)


def same(first, second):
    return all(
        np.array_equal(array, second.model_.parameters[name])
        for name, array in first.model_.parameters.items()
    )


@pytest.mark.parametrize("sampler", ["rff+softmax-leaf", "unigram", "quadratic", "softmax"])
def test_the_same_seed_gives_the_same_model_at_any_number_of_threads(sampler, threads, monkeypatch):
    monkeypatch.setattr("samplesoft.samplers.static._CHUNK_DRAWS", 50)
    monkeypatch.setattr("samplesoft.samplers.softmax._TASK_DRAWS", 50)
    X, y = blobs(centers=30)
    X, models = sparse.csr_array(X), []
    for count in (1, 2, 5):
        threads(count)
        models.append(make(sampler=sampler, max_iter=3).fit(X, y))
    assert same(models[0], models[1]) and same(models[0], models[2])
    assert not same(models[0], make(sampler=sampler, max_iter=3, random_state=1).fit(X, y))


def test_a_copy_by_pickle_goes_on_as_the_first():
    X, y = blobs()
    clf = make(max_iter=2).fit(X, y)
    copy = pickle.loads(pickle.dumps(clf))
    assert same(clf.partial_fit(X[:9], y[:9]), copy.partial_fit(X[:9], y[:9]))


@pytest.mark.parametrize("sampler", ["rff+softmax-leaf", "learned-unigram", "unigram"])
@pytest.mark.parametrize("form", ["strings", "objects", "indicator"])
def test_a_file_goes_on_as_the_first(tmp_path, form, sampler):
    X, y = several() if form == "indicator" else blobs(dtype=np.float32)
    if form != "indicator":
        y = np.array(["a", "bb", "ccc", "d"], dtype=object if form == "objects" else None)[y]
    weight = None if form == "indicator" else {"a": 2.0}
    clf = make(max_iter=2, sampler=sampler, class_weight=weight).fit(X, y)
    clf.save(tmp_path / "model.npz")
    copy = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    assert copy.get_params() == clf.get_params()
    assert copy.classes_.dtype == clf.classes_.dtype
    np.testing.assert_array_equal(clf.predict(X), copy.predict(X))
    np.testing.assert_array_equal(clf.predict_proba(X), copy.predict_proba(X))
    clf.model_.softmax.refresh()  # sums that were updated differ in their last bits
    assert same(clf.partial_fit(X[:9], y[:9]), copy.partial_fit(X[:9], y[:9]))
    SampledSoftmaxClassifier.load(tmp_path / "model.npz").save(tmp_path / "again.npz")
    trained = read_linear_softmax(tmp_path / "again.npz")
    _, scores = trained.top_k(sparse.csr_array(X), 2)
    before = SampledSoftmaxClassifier.load(tmp_path / "model.npz").predict_topk(X, 2)[1]
    np.testing.assert_allclose(scores, before, rtol=1e-4, atol=1e-5)
    assert trained.classes.tolist() == clf.classes_.tolist()


@pytest.mark.thorough(but=12)
@pytest.mark.parametrize(
    ("loss", "sampler"),
    # noise-contrastive estimation needs draws of every class
    [("sampled", name) for name in SAMPLERS]
    + [("nce", name) for name, spec in SAMPLERS.items() if spec.every_class],
)
def test_every_copy_goes_on_as_the_first(tmp_path, loss, sampler):
    X, y = blobs(60)
    X = sparse.csr_array(X)
    first = make(loss=loss, sampler=sampler, max_iter=1, num_sampled=2).fit(X, y)
    joblib.dump(first, tmp_path / "model.joblib")
    first.save(tmp_path / "model.npz")
    copies = [
        joblib.load(tmp_path / "model.joblib"),
        pickle.loads(pickle.dumps(first)),
        copy.deepcopy(first),
        SampledSoftmaxClassifier.load(tmp_path / "model.npz"),
    ]
    assert all(other.loss_curve_ == first.loss_curve_ for other in copies)
    for clf in (first, *copies):
        clf.model_.softmax.refresh()
        for part in np.array_split(np.arange(60), 3):
            clf.partial_fit(X[part], y[part])
    for other in copies:
        assert same(first, other)
        np.testing.assert_array_equal(first.decision_function(X), other.decision_function(X))


def test_what_a_file_holds_is_the_fitted_model(tmp_path):
    X, y = blobs(40)
    clf = make(max_iter=1).fit(X, y)
    wanted = clf.predict_topk(X, 2)[1]
    clf.set_params(tau=2.0, embedding_dim=3, loss="nce")
    clf.save(tmp_path / "model.npz")
    again = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.predict_topk(X, 2)[1], wanted)
    with pytest.raises(ValueError, match="made with other .*loss.*tau.*embedding_dim.*2.0"):
        clf.partial_fit(X, y)
    assert again.get_params()["tau"] == 2.0


def test_the_targets_of_the_caller_stay_as_they_are():
    X, Y = several()
    matrix = sparse.csr_matrix(Y).astype(float)
    matrix.data[::5] = 0.0
    nnz = matrix.nnz
    clf = make(max_iter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf.fit(X, matrix)
    clf.partial_fit(X, matrix).score(X, matrix)
    assert matrix.nnz == nnz
    rows, columns = Y.nonzero()
    twice = sparse.coo_matrix(
        (np.ones(2 * len(rows), bool), (np.tile(rows, 2), np.tile(columns, 2))), Y.shape
    )
    counted = make(max_iter=2).fit(X, twice)
    assert same(counted, make(max_iter=2).fit(X, Y))
    np.testing.assert_array_equal(
        counted.predict_proba(X), make(max_iter=2).fit(X, Y).predict_proba(X)
    )


def test_a_fit_that_fails_changes_nothing():
    X, y = blobs(40)
    clf = make(max_iter=1).fit(X, y)
    before, wanted = dict(vars(clf)), clf.predict_proba(X)
    for options, arguments in [
        ({}, (X[:, :3], np.full(40, np.nan))),
        ({"early_stopping": True}, (X[:1, :3], y[:1])),
        ({"class_weight": {"x": 2.0}}, (X[:, :3], y)),
        ({"random_state": -1}, (X[:, :3], y)),
        ({}, (X[:, :3], sparse.csr_array((40, 3)))),
    ]:
        clf.set_params(**options)
        with pytest.raises((TypeError, ValueError)):
            clf.fit(*arguments)
        clf.set_params(early_stopping=False, class_weight=None, random_state=0)
        assert vars(clf) == before
    np.testing.assert_array_equal(clf.predict_proba(X), wanted)
    new = make(class_weight={"x": 1.0})
    with pytest.raises(ValueError, match="`class_weight` must name classes, got 'x'"):
        new.partial_fit(X, y, classes=[0, 1, 2, 3])
    assert not hasattr(new, "model_")


def test_batches_without_any_label():
    X, _ = blobs(4)
    clf = make().partial_fit(X, sparse.csr_array((4, 3)))
    assert clf.predict(X).shape == (4, 3)
    lists = make().partial_fit(X, [["a"], ["b"], ["a"], ["c"]], classes=list("abc"))
    assert lists.partial_fit(X, [["a", "b"], [], ["c"], []]).classes_.tolist() == list("abc")


def test_weighted_scores():
    X, Y = several()
    clf = make(max_iter=5).fit(X, Y)
    right = (clf.predict(X) == Y).all(axis=1)
    weights = np.linspace(1.0, 2.0, len(Y))
    assert clf.score(X, Y) == pytest.approx(right.mean())
    assert clf.score(X, Y, weights) == pytest.approx(np.average(right, weights=weights))


CRAFTS = {
    "other classes": lambda c: c.arrays.update(classes=np.arange(5)),
    "no classes": lambda c: c.arrays.pop("classes"),
    "a type of classes": lambda c: c.config.update(classes="<U1000000000"),
    "no type": lambda c: c.config.update(labels="<f99"),
    "counts": lambda c: c.arrays.update(counts=np.ones((4, 2))),
    "no parameters of the estimator": lambda c: c.config.update(parameters=[1]),
    "an unknown parameter": lambda c: c.config["parameters"].update(more=1),
    "weights of classes": lambda c: c.config["parameters"].update(class_weight=[[[], 1]]),
    "no sizes": lambda c: c.config.update(linear_softmax=3),
    "an optimizer": lambda c: c.config.update(optimizer="lbfgs"),
    "settings": lambda c: c.config["settings"].update(tau=10**400),
    "a calibration": lambda c: c.values.update(calibrated=1.5),
    "a state of the optimizer": lambda c: c.arrays.pop("optimizer/steps"),
    "a state of the sampler": lambda c: c.arrays.update({"state/sampler.x": np.ones(1)}),
}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    path = tmp_path_factory.mktemp("fitted") / "model.npz"
    make(max_iter=1).fit(*blobs(20)).save(path)
    return path


@pytest.mark.parametrize("kind", CRAFTS)
def test_files_that_somebody_has_made(kind, fitted, tmp_path):
    checkpoint = read_checkpoint(fitted)
    CRAFTS[kind](checkpoint)
    write_checkpoint(tmp_path / "model.npz", checkpoint)
    with pytest.raises(ValueError, match=r"model\.npz' must hold what this version .*; read it"):
        SampledSoftmaxClassifier.load(tmp_path / "model.npz")


def test_a_model_that_would_not_fit_is_not_made(fitted, monkeypatch):
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: 1000)
    with pytest.raises(MemoryError, match=r"model\.npz' need .*1 kB are available; "):
        SampledSoftmaxClassifier.load(fitted)


@pytest.mark.parametrize("name", ["tau", "nu", "learning_rate", "tol", "dropout"])
def test_parameters_of_any_precision_come_back_as_the_model_takes_them(name, tmp_path):
    X, y = blobs(20)
    clf = make(max_iter=1, **{name: np.longdouble("0.1")}).fit(X, y)
    clf.save(tmp_path / "model.npz")
    again = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    assert again.get_params()[name] == 0.1
    np.testing.assert_array_equal(clf.predict_proba(X), again.predict_proba(X))


def test_what_json_does_not_have_is_not_saved(tmp_path):
    X, y = blobs(20)
    names = np.array([b"a", b"a\0", b"b", b"c"], dtype=object)
    clf = make().partial_fit(X, names[y], classes=names)
    with pytest.raises(TypeError, match=r"`classes_` must be text or numbers .* such as b'a'"):
        clf.save(tmp_path / "model.npz")
    clf = make(max_iter=1).fit(X, y).set_params(tau=1j)
    with pytest.raises(TypeError, match="must be plain JSON, got complex"):
        clf.save(tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())


def test_files_that_are_refused(tmp_path):
    X, y = blobs(20)
    path = tmp_path / "model.npz"
    make(max_iter=1).fit(X, y).save(path)
    whole = path.read_bytes()
    for size in (0, 100, len(whole) - 1):
        (tmp_path / "cut.npz").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="must be a whole checkpoint"):
            SampledSoftmaxClassifier.load(tmp_path / "cut.npz")
    checkpoint = read_checkpoint(path)
    for name in ("form", "settings"):
        part = {k: v for k, v in checkpoint.config.items() if k != name}
        write_checkpoint(
            tmp_path / "old.npz", Checkpoint(part, checkpoint.values, checkpoint.arrays)
        )
        with pytest.raises(ValueError, match="what this version of samplesoft writes"):
            SampledSoftmaxClassifier.load(tmp_path / "old.npz")
    checkpoint.config["model"] = "lm"
    write_checkpoint(path, checkpoint)
    with pytest.raises(ValueError, match="must hold a SampledSoftmaxClassifier, got 'lm'"):
        SampledSoftmaxClassifier.load(path)
    with pytest.raises(FileNotFoundError):
        SampledSoftmaxClassifier.load(tmp_path / "none.npz")
    with pytest.raises(NotFittedError):
        make().save(path)


def test_partial_fit_learns_and_knows_its_classes():
    X, y = blobs()
    clf = make()
    with pytest.raises(ValueError, match="`classes` must hold all labels in the first call"):
        clf.partial_fit(X, y)
    for epoch in range(30):
        for part in np.array_split(np.random.default_rng(epoch).permutation(len(X)), 5):
            clf.partial_fit(X[part], y[part], classes=[3, 1, 0, 2, 9])
    assert clf.score(X, y) > 0.97
    assert clf.classes_.tolist() == [0, 1, 2, 3, 9]
    with pytest.raises(ValueError, match="`classes` must be those of the first call"):
        clf.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="`y` must come as single, as in the first call"):
        clf.partial_fit(X, np.eye(5)[y])


def test_indicator_columns_may_have_names():
    X, Y = several()
    clf = make().partial_fit(X, Y, classes=list("fedcba"))
    assert set(clf.predict_topk(X, 6)[0][0]) == set("abcdef")
    assert clf.predict_topk(X)[0].shape == (len(X), 5)
    with pytest.raises(ValueError, match="must name the 6 columns"):
        make().partial_fit(X, Y, classes=[1, 2])


def test_weights_of_classes():
    X, y = make_blobs(300, centers=2, cluster_std=8.0, random_state=0)
    rare = np.concatenate([np.flatnonzero(y == 0), np.flatnonzero(y == 1)[:15]])
    plain = make(max_iter=40).fit(X[rare], y[rare])
    balanced = make(max_iter=40, class_weight="balanced").fit(X[rare], y[rare])
    by_hand = make(max_iter=40, class_weight={0: 165 / 300, 1: 165 / 30}).fit(X[rare], y[rare])
    assert same(balanced, by_hand)
    assert (balanced.predict(X) == 1).mean() > (plain.predict(X) == 1).mean() + 0.1
    with pytest.raises(ValueError, match="'balanced' for partial_fit"):
        make(class_weight="balanced").partial_fit(X, y, classes=[0, 1])


def test_early_stopping_goes_back_to_the_best(monkeypatch):
    X, y = make_blobs(300, centers=6, cluster_std=6.0, random_state=0)
    scores, score = [], ClassifierTask.precision_at_1

    def recorded(self, x, codes, weights):
        scores.append(score(self, x, codes, weights))
        return scores[-1]

    monkeypatch.setattr(ClassifierTask, "precision_at_1", recorded)
    options = {"early_stopping": True, "validation_fraction": 0.3, "n_iter_no_change": 4}
    clf = make(loss="sampled", sampler="rff+softmax-leaf", max_iter=40, **options).fit(X, y)
    assert scores[-1] < max(scores)  # else there is nothing to go back to
    _, held_out = clf._learner.split_for_validation(np.arange(300), 0.3)
    assert np.mean(clf.predict(X[held_out]) == y[held_out]) == max(scores)
    unit = clf.model_.class_vectors()
    np.testing.assert_allclose(clf.model_.softmax.sampler.tree.class_embeddings(), unit, atol=1e-6)


def test_early_stopping_stops():
    X, y = blobs()
    clf = make(max_iter=200, early_stopping=True, n_iter_no_change=3).fit(X, y)
    assert 3 <= clf.n_iter_ < 50
    assert len(clf.loss_curve_) == clf.n_iter_
    assert clf.score(X, y) > 0.95
    with pytest.raises(ValueError, match="`early_stopping` needs examples to hold out, got 1"):
        make(early_stopping=True).fit(X[:1], y[:1])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_learn_and_go_on(optimizer, tmp_path):
    X, y = blobs()
    rate = {"adagrad": 0.1, "adam": 0.02}.get(optimizer, 0.5)
    clf = make(optimizer=optimizer, learning_rate=rate, max_iter=30, warm_start=True).fit(X, y)
    assert clf.score(X, y) > 0.95
    assert type(clf._learner.optimizer) is OPTIMIZERS[optimizer]
    clf.save(tmp_path / "model.npz")
    loaded = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    assert same(clf.set_params(max_iter=1).fit(X, y), loaded.set_params(max_iter=1).fit(X, y))


def test_the_sampler_is_updated_every_so_many_steps(monkeypatch):
    X, y = blobs(64)
    updates, update = [], ClusterSampler.update
    monkeypatch.setattr(
        ClusterSampler, "update", lambda self, *a: updates.append(a) or update(self, *a)
    )
    numbers = []
    for every in (1, 4):
        clf = make(sampler="clusters", update_every=every).partial_fit(X, y, classes=range(9))
        updates.clear()
        for _ in range(8):
            clf.partial_fit(X, y)
        numbers.append(len(updates))
    assert numbers == [8, 2]
    with pytest.raises(ValueError, match="made with other update_every: got 2, and it has 4"):
        clf.set_params(update_every=2).partial_fit(X, y)


def test_tau_grows_with_the_number_of_classes():
    assert default_tau(2) == default_tau(700) == 10.0
    tau = default_tau(50_000)
    assert 1.0 / (1.0 + 49_999 * np.exp(-tau)) > 0.99 > 0.31 > 1.0 / (1.0 + 49_999 * np.exp(-10.0))
    X, y = blobs(30)
    clf = make().partial_fit(X, y, classes=np.arange(5000))
    assert clf.model_.settings.tau == default_tau(5000) > 12.0
    assert make(tau=7.0).partial_fit(X, y, classes=range(5000)).model_.settings.tau == 7.0
    assert make(normalize=False).partial_fit(X, y, classes=range(5000)).model_.settings.tau == 1.0


def test_noise_contrastive_estimation_keeps_up(monkeypatch):
    rng = np.random.default_rng(0)
    words, y = rng.integers(0, 900, (300, 6)), rng.integers(0, 300, 4000)
    found = np.take_along_axis(words[y], rng.integers(0, 6, (4000, 3)), axis=1)
    X = sparse.csr_array((np.ones(12_000), (np.repeat(np.arange(4000), 3), found.ravel())))

    def accuracy(loss):
        clf = make(loss=loss, embedding_dim=32, num_sampled=50, max_iter=4)
        return clf.fit(X[:3000], y[:3000]).score(X[3000:], y[3000:])

    wanted = accuracy("sampled-masked")
    assert wanted > 0.8
    for loss in ("nce", "negative-sampling"):
        assert accuracy(loss) > wanted - 0.05
    monkeypatch.setattr("samplesoft.models.SoftmaxSettings._offset_option", lambda *_: {})
    assert accuracy("nce") < wanted - 0.2


def test_warm_start_goes_on():
    X, y = blobs()
    plain = {"average": False, "calibrate": False}
    twice = make(max_iter=2, warm_start=True, **plain).fit(X, y).fit(X, y)
    assert same(twice, make(max_iter=4, **plain).fit(X, y))
    assert not same(twice, make(max_iter=2, calibrate=False).fit(X, y))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "hinge"}, "`loss` must be"),
        ({"sampler": "magic"}, "`sampler` must be"),
        ({"num_sampled": 0}, "`num_sampled` must be at least 1"),
        ({"tau": 0.0}, "`tau` must be"),
        ({"max_iter": 0}, "`max_iter` must be at least 1"),
        ({"batch_size": 0.5}, "`batch_size` must be an int"),
        ({"learning_rate": -1.0}, "`learning_rate` must be"),
        ({"optimizer": "lbfgs"}, "`optimizer` must be one of sgd, momentum, adagrad, adam"),
        ({"update_every": 0}, "`update_every` must be at least 1"),
        ({"validation_fraction": 1.0}, "`validation_fraction` must be less than 1, got 1.0"),
        ({"validation_fraction": "0.1"}, "`validation_fraction` must be a number, got str"),
        ({"early_stopping": "no"}, "`early_stopping` must be True or False, got 'no'"),
        ({"warm_start": "False"}, "`warm_start` must be True or False"),
        ({"average": 0.5}, "`average` must be True or False, got 0.5"),
        ({"class_weight": 3.0}, "`class_weight` must be a dict"),
        ({"class_weight": np.ones(4)}, "`class_weight` must be a dict"),
        ({"class_weight": {0: -1.0}}, r"`class_weight\[0\]` must be"),
        ({"dropout": 1.0}, "`dropout` must be at least 0"),
        ({"sampler": "rff", "normalize": False}, "norm"),
    ],
)
def test_parameters_that_are_refused(options, message):
    X, y = blobs(20)
    with pytest.raises((TypeError, ValueError), match=message):
        make(**options).fit(X, y)


def test_inputs_that_are_refused():
    X, y = blobs(20)
    clf = make(max_iter=1).fit(X, y)
    bad = X.copy()
    bad[3, 1] = np.nan
    for call, message in [
        (lambda: make().fit(bad, y), "contains NaN"),
        (lambda: clf.predict(sparse.csr_array(bad)), "contains NaN"),
        (lambda: clf.predict(X[:, :3]), "3 features"),
        (lambda: clf.predict(X[:0]), "0 sample"),
        (lambda: clf.partial_fit(X[:0], y[:0]), "0 sample"),
        (lambda: make().fit(X, y[:-1]), "inconsistent"),
        (lambda: make().fit(X, y + 0.5), "continuous"),
        (lambda: make().fit(X, sparse.csr_array(2.0 * np.eye(20))), "zeros and ones"),
        (lambda: make().fit(X, sparse.csr_array((20, 3))), "a label"),
        (lambda: make().predict(X), "not fitted"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.warns(DataConversionWarning):
        make(max_iter=1).fit(X, y[:, None])


def test_results_that_would_not_fit_are_refused(monkeypatch):
    X, y = blobs(20)
    clf = make(max_iter=1).fit(X, y)
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: 100)
    for method in (clf.predict_proba, clf.decision_function):
        with pytest.raises(
            MemoryError, match=r"20 inputs times 4 classes need 640 B.*predict_topk"
        ):
            method(X)
    clf.predict(X)
    assert clf.predict_topk(X)[0].shape == (20, 4)  # all, where there are fewer than five


def test_divergence_is_said():
    X, y = blobs()
    with pytest.raises((FloatingPointError, ValueError), match="must be finite"):
        make(loss="full", normalize=False, learning_rate=1e30).fit(X.astype(np.float32), y)


def test_importing_samplesoft_does_not_import_scikit_learn():
    code = "import samplesoft, sys; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_fitting_on_a_thread_of_its_own():
    X, y = blobs()
    found = []
    thread = threading.Thread(target=lambda: found.append(make(max_iter=2).fit(X, y)))
    thread.start()
    thread.join()
    assert same(found[0], make(max_iter=2).fit(X, y))


def lines_of(capfd):
    """Return the lines of progress, but for that which says that kernels are compiled."""
    lines = capfd.readouterr().err.splitlines()
    return [line for line in lines if not line.startswith("compiling kernels")]


def test_progress_comes_line_by_line_where_stderr_is_no_terminal(capfd):
    X, y = np.eye(4), np.arange(4)
    SampledSoftmaxClassifier(max_iter=3, loss="full", verbose=True, random_state=0).fit(X, y)
    lines = lines_of(capfd)
    assert lines[0].startswith("fit: 4 classes, 4 examples; full, all classes in each step")
    assert [line.split(",")[0] for line in lines[1:]] == [f"fit: epoch {k} of 3" for k in (1, 2, 3)]
    SampledSoftmaxClassifier(max_iter=3, loss="full", random_state=0).fit(X, y)
    assert capfd.readouterr().err == ""


def test_the_cells_of_a_trained_model_are_new():
    """Those of untrained vectors would be of little use."""
    rng = np.random.default_rng(0)
    X, y = sparse.eye_array(300, format="csr"), rng.integers(0, 300, 300)
    clf = SampledSoftmaxClassifier(
        sampler="clusters", num_sampled=5, max_iter=3, random_state=0
    ).fit(X, y)
    sampler = clf.model_.softmax.sampler
    assert sampler.staleness == pytest.approx(1.0)
    while clf._learner.steps_taken < 63:
        clf.partial_fit(X[:8], y[:8])
    stale = sampler.staleness
    clf.partial_fit(X[:8], y[:8])
    assert stale != pytest.approx(1.0) and sampler.staleness == pytest.approx(1.0)


def test_steps_one_by_one_are_said_once_with_the_reason(capfd, tmp_path):
    rng = np.random.default_rng(0)
    X, y = sparse.eye_array(60, format="csr"), rng.integers(0, 30, 60)
    options = {"sampler": "unigram", "num_sampled": 5, "max_iter": 2, "random_state": 0}
    fused = SampledSoftmaxClassifier(loss="bpr", verbose=True, **options).fit(X, y)
    assert fused.resolved_.step_by_step is None
    assert "one by one" not in capfd.readouterr().err
    slow = SampledSoftmaxClassifier(verbose=True, **{**options, "sampler": "clusters"}).fit(X, y)
    why = slow.resolved_.step_by_step
    assert why == "draws follow the contexts, which change in each step"
    lines = lines_of(capfd)
    [line] = [line for line in lines if "one by one" in line]
    assert line == f"fit: {slow.resolved_}" == lines[0]
    assert line.endswith(f"; steps one by one: {why}")
    slow.save(tmp_path / "model.npz")
    loaded = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    assert loaded.resolved_ == slow.resolved_
    dense = SampledSoftmaxClassifier(**options).fit(X.toarray(), y)
    assert dense.resolved_.step_by_step.startswith("inputs are dense, whose products are quicker")
