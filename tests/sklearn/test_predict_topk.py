"""`predict_topk`: labels that are not wanted, and pipelines."""

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler

from samplesoft.sklearn import SampledSoftmaxClassifier, predict_topk

RNG = np.random.default_rng(0)
NAMES = np.array(["ape", "bee", "cat", "dog", "eel", "fox", "gnu"])
Y = np.tile(np.arange(7), 6)
X = np.eye(7)[Y] + 0.5 * RNG.normal(size=(42, 7))
UNWANTED = RNG.random((42, 7)) < 0.4
UNWANTED[0], UNWANTED[1] = True, False


def make(**options):
    return SampledSoftmaxClassifier(4, **{"max_iter": 3, "random_state": 0} | options)


def by_hand(clf, scores, k):
    scores = np.where(UNWANTED, -np.inf, scores)
    return clf.classes_[np.argsort(-scores, axis=1)[:, :k]], -np.sort(-scores, axis=1)[:, :k]


@pytest.fixture(params=["names", "columns", "lists", "reversed"])
def clf(request):
    if request.param == "names":
        return make().fit(X, NAMES[Y])
    if request.param == "columns":
        return make().fit(X, sparse.csr_array(np.eye(7)[Y]))
    if request.param == "lists":
        return make().fit(X, [[name] for name in NAMES[Y]])
    return make().partial_fit(X, np.eye(7)[Y], classes=NAMES[::-1])  # columns in that order


@pytest.mark.parametrize("form", ["sparse", "lists", "sets", "arrays"])
def test_labels_that_are_not_wanted(clf, form):
    lists = [clf.classes_[row].tolist() for row in UNWANTED]
    given = {
        "sparse": sparse.csc_matrix(UNWANTED),
        "lists": lists,
        "sets": tuple(map(set, lists)),
        "arrays": [np.array(row * 2) for row in lists],
    }[form]
    labels, scores = clf.predict_topk(X, 5, exclude=given)
    wanted = by_hand(clf, clf.decision_function(X), 5)
    finite = np.isfinite(wanted[1])
    np.testing.assert_array_equal(np.isfinite(scores), finite)
    np.testing.assert_array_equal(labels[finite], wanted[0][finite])
    np.testing.assert_allclose(scores[finite], wanted[1][finite])
    assert not finite[0].any() and finite[1].all()
    assert np.any(labels != clf.predict_topk(X, 5)[0])


def test_labels_that_are_no_class_are_ignored(clf):
    lists = [clf.classes_[row].tolist() for row in UNWANTED]
    strange = "zebra" if clf.classes_.dtype.kind == "U" else 99
    labels, _ = clf.predict_topk(X, 5, exclude=[[*row, strange] for row in lists])
    np.testing.assert_array_equal(labels, clf.predict_topk(X, 5, exclude=lists)[0])
    other = [[3]] * 42 if strange == "zebra" else [["a"]] * 42
    np.testing.assert_array_equal(
        clf.predict_topk(X, 5, exclude=other)[0], clf.predict_topk(X, 5)[0]
    )


def test_explicit_zeros_and_empty_lists_exclude_nothing(clf):
    zeros = sparse.csr_array(np.ones((42, 7)))
    zeros.data[:] = 0.0
    for nothing in (zeros, [[]] * 42):
        labels, scores = clf.predict_topk(X, 5, exclude=nothing)
        wanted = clf.predict_topk(X, 5)
        np.testing.assert_array_equal(labels, wanted[0])
        np.testing.assert_allclose(scores, wanted[1])


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        (
            sparse.csr_array((42, 6)),
            "a column for each of the 7 classes, got 42 rows and 6 columns",
        ),
        (sparse.csr_array((41, 7)), "a row for each of the 42 inputs"),
        ([["ape"]] * 3, "a row for each of the 42 inputs .*, got 3 rows"),
        ([["ape"], [1]] * 21, "labels of one kind"),
        (["ape"] * 42, "be a scipy.sparse matrix or a list of lists of labels, got list"),
        (UNWANTED, "be a scipy.sparse matrix or a list of lists of labels, got ndarray"),
    ],
)
def test_what_is_refused(exclude, message):
    clf = make().fit(X, NAMES[Y])
    with pytest.raises((TypeError, ValueError), match=f"`exclude` must .*{message}"):
        clf.predict_topk(X, exclude=exclude)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("kind", [np.asarray, np.float32, sparse.csr_array, np.ndarray.tolist])
def test_inner_products_are_the_scores(kind, normalize):
    clf = make(normalize=normalize).fit(X, NAMES[Y])
    vectors, contexts = clf.model_.class_vectors(), clf.embed(kind(X))
    inner = contexts @ vectors.T
    rtol = 1e-5 if kind is np.float32 else 1e-10
    np.testing.assert_allclose(
        clf.model_.settings.tau * inner, clf.decision_function(X), rtol=rtol, atol=rtol
    )
    if normalize:
        for rows in (vectors, contexts):
            np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1.0)
    best = clf.classes_[(-inner).argsort(axis=1)[:, :3]]
    np.testing.assert_array_equal(best, clf.predict_topk(X, 3)[0])
    with pytest.raises(ValueError, match="3 features"):
        clf.embed(X[:, :3])


def test_through_a_pipeline():
    texts = [f"{name} {'long' if k % 2 else 'short'}" for k, name in enumerate(NAMES[Y])]
    pipe = make_pipeline(CountVectorizer(), MaxAbsScaler(), make(max_iter=20)).fit(texts, NAMES[Y])
    inner = pipe[-1]
    given = pipe[1].transform(pipe[0].transform(texts))
    exclude = [[name] for name in NAMES[Y]]
    for options in ({}, {"exclude": exclude}):
        found = predict_topk(pipe, texts, 3, **options)
        for one, wanted in zip(found, inner.predict_topk(given, 3, **options), strict=True):
            np.testing.assert_array_equal(one, wanted)
    assert (predict_topk(pipe, texts, 1)[0][:, 0] == NAMES[Y]).all()
    for other, x in [
        (inner, given),
        (Pipeline([("one", inner)]), given),
        (Pipeline([("none", "passthrough"), ("inner", pipe)]), texts),
    ]:
        np.testing.assert_array_equal(predict_topk(other, x, 3)[0], predict_topk(pipe, texts, 3)[0])
    with pytest.raises(TypeError, match="`estimator` must be a SampledSoftmaxClass.*got Logistic"):
        predict_topk(make_pipeline(LogisticRegression()).fit(X, Y), X)
    grid = {"sampledsoftmaxclassifier__tau": [9.0]}
    with pytest.raises(TypeError, match="a fitted search .*refit=True.*got GridSearchCV"):
        predict_topk(GridSearchCV(pipe, grid, cv=2, refit=False).fit(texts, NAMES[Y]), texts)
    search = GridSearchCV(pipe, grid, cv=2).fit(texts, NAMES[Y])
    wanted = search.best_estimator_[-1].predict_topk(given, 3)
    for other, x in [(search, texts), (make_pipeline("passthrough", search), texts)]:
        for one, found in zip(wanted, predict_topk(other, x, 3), strict=True):
            np.testing.assert_array_equal(one, found)
    with pytest.raises(NotFittedError):
        predict_topk(make(), X)
