"""Examples without features or labels, and labels that nobody has seen: as documented."""

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline

from samplesoft.sklearn import SampledSoftmaxClassifier

Y = np.tile(np.arange(4), 10)
X = np.vstack([np.eye(4)[Y[:-4]], np.zeros((4, 4))])  # the last four are without features
NAMES = np.array(["ape", "bee", "cat", "dog"])
KINDS = {"dense": np.asarray, "sparse": sparse.csr_array}
OPTIONS = {
    "full": {},
    "sampled": {"num_sampled": 3},
    "clusters": {"num_sampled": 3, "sampler": "clusters", "loss": "sampled"},
    "rff": {"num_sampled": 3, "sampler": "rff", "num_features": 16},
    "not normalised": {"num_sampled": 3, "normalize": False},
    "dropout": {"num_sampled": 3, "dropout": 0.9},
    "nce": {"num_sampled": 3, "loss": "nce"},
}


def make(**options):
    return SampledSoftmaxClassifier(4, **{"max_iter": 8, "random_state": 0} | options)


def same(first, second):
    return all(
        np.array_equal(array, second.model_.parameters[name])
        for name, array in first.model_.parameters.items()
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
def test_rows_without_features_are_the_intercept(options, kind):
    x = KINDS[kind](X)
    clf = make(**OPTIONS[options]).fit(x, NAMES[Y])
    u = clf.model_.parameters["embedding.intercept"]
    unit = clf.model_.settings.normalize
    h = u / np.linalg.norm(u) if unit else u
    scores = clf.model_.settings.tau * clf.model_.class_vectors() @ h
    found = clf.decision_function(KINDS[kind](np.zeros((2, 4))))
    np.testing.assert_allclose(found, [scores] * 2, rtol=1e-10)
    assert np.isfinite(clf.predict_proba(x)).all()
    assert not np.array_equal(found[0], clf.decision_function(x)[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("early_stopping", [True, False])
def test_all_rows_may_be_without_features(kind, early_stopping):
    clf = make(max_iter=40, early_stopping=early_stopping)
    clf.fit(KINDS[kind](np.zeros((50, 3))), np.repeat([0, 1], [40, 10]))
    assert (clf.predict(KINDS[kind](np.zeros((3, 3)))) == 0).all()
    if not early_stopping:  # frequencies are all that there is to learn
        p = clf.predict_proba(np.zeros((1, 3)))
        np.testing.assert_allclose(p, [[0.8, 0.2]], atol=0.03)


def test_texts_of_unknown_words():
    texts = ["red fruit", "", "green leaf", "?"] * 3
    pipe = make_pipeline(TfidfVectorizer(), make()).fit(texts, ["a", "b", "c", "b"] * 3)
    assert pipe.predict(["unheard of", "", "red"]).shape == (3,)
    assert pipe.predict([""]).tolist() == ["b"]


def forms(labels):
    """Return lists of class numbers as lists of names and as matrices."""
    matrix = np.zeros((len(labels), 4))
    for row, numbers in zip(matrix, labels, strict=True):
        row[numbers] = 1
    names = [NAMES[numbers].tolist() for numbers in labels]
    return {"names": names, "dense": matrix, "sparse": sparse.csr_array(matrix)}


SOME = [[] if k % 5 == 0 else [k % 4, (k + k // 4) % 4] for k in range(40)]
LABELLED = [k for k in range(40) if k % 5]


@pytest.mark.parametrize("form", forms(SOME))
def test_examples_without_labels_are_left_out(form):
    with pytest.warns(UserWarning, match="8 of 40 examples are without a label"):
        clf = make().fit(X, forms(SOME)[form], eval_set=(X, forms(SOME)[form]))
    some = forms([SOME[k] for k in LABELLED])[form]
    plain = make().fit(X[LABELLED], some, eval_set=(X[LABELLED], some))
    assert same(clf, plain)
    assert clf.validation_scores_ == plain.validation_scores_
    nothing = forms([[]] * 40)[form]
    predicted = clf.predict(X)
    none = [len(row) == 0 for row in predicted] if form == "names" else predicted.sum(axis=1) == 0
    assert clf.score(X, nothing) == np.mean(none)
    before = {name: array.copy() for name, array in clf.model_.parameters.items()}
    clf.partial_fit(X, nothing)  # takes no step
    assert all(np.array_equal(a, before[name]) for name, a in clf.model_.parameters.items())
    with pytest.raises(ValueError, match="`y` must hold a label for at least one example"):
        clf.fit(X, nothing)
    with pytest.raises(ValueError, match="`eval_set` must hold a label for at least one example"):
        make().fit(X[LABELLED], some, eval_set=(X, nothing))


@pytest.mark.parametrize("y", [NAMES[Y], [[name] for name in NAMES[Y]]], ids=["one", "lists"])
def test_unseen_labels(y):
    clf = make(max_iter=30).fit(X, y)
    wrong = y.copy()
    wrong[0] = "emu" if isinstance(y, np.ndarray) else ["emu"]
    right = clf.score(X, y)
    assert right > 0.8
    assert clf.score(X, wrong) == pytest.approx(right - 1 / 40)
    scores = [
        make().fit(X, y, eval_set=(X, labels)).validation_scores_[-1] for labels in (y, wrong)
    ]
    assert scores[1] == pytest.approx(scores[0] - 1 / 40)
    with pytest.raises(ValueError, match="`y` must hold labels among the 4 classes, got 'emu'"):
        clf.partial_fit(X, wrong)
    strange = np.arange(40) if isinstance(y, np.ndarray) else [[k] for k in range(40)]
    assert clf.score(X, strange) == 0.0


def test_a_known_label_beside_an_unseen_one():
    """A list of both can be found by its best label, and is never right as a whole."""
    y = [[name] for name in NAMES[Y]]
    both = [[name, "emu"] for name in NAMES[Y]]
    clf = make(max_iter=30).fit(X, y, eval_set=(X, both))
    assert clf.validation_scores_[-1] > 0.8
    assert clf.score(X, both) == 0.0


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([["ape"], None] * 20, "`y` must hold a list of labels for each example, got NoneType for"),
        ([["ape"], "bee"] * 20, "`y` must hold a list of labels for each example, got str for one"),
        (["ape", None] * 20, "`y` must hold no missing labels, got None at index 1; leave out"),
        (["ape", np.nan] * 20, "`y` must hold no missing labels, got nan at index 1; leave out"),
        (np.array(["ape", 1] * 20, object), "`y` must hold labels of one kind, got text and int"),
        ([["ape"], [1]] * 20, "`y` must hold labels of one kind, got text and int"),
        ([["ape"], [None]] * 20, "`y` must hold no missing labels, got None at index 1"),
        # of the rest NumPy would make text without a word
        (["ape", 1] * 20, "`y` must hold labels of one kind, got text and int; convert them"),
        (["ape", 1.5] * 20, "`y` must hold labels of one kind, got text and float"),
        (["ape", True] * 20, "`y` must hold labels of one kind, got text and bool"),
        ([b"ape", "bee"] * 20, "`y` must hold labels of one kind, got text and bytes"),
        ([b"ape", 1] * 20, "`y` must hold labels of one kind, got bytes and int"),
        ([["ape", 1], ["bee"]] * 20, "`y` must hold labels of one kind, got text and int"),
        ([("ape", 1)] * 40, "`y` must hold labels of one kind, got text and int"),
        ([{"ape", np.int64(1)}, []] * 20, "`y` must hold labels of one kind, got text and int64"),
        ([1.0, np.nan] * 20, "y contains NaN"),
        ([[1.0], [np.nan]] * 20, "y contains NaN"),
        ([[1.0], [2.5]] * 20, "continuous"),
    ],
)
def test_missing_labels_are_refused(y, message):
    for given in (y, y if isinstance(y, np.ndarray) else tuple(y)):
        with pytest.raises(ValueError, match=message):
            make().fit(X, given)


@pytest.mark.parametrize("kind", [list, tuple])
def test_classes_and_unwanted_labels_are_of_one_kind(kind):
    with pytest.raises(ValueError, match="`classes` must hold labels of one kind, got text and in"):
        make().partial_fit(X, ["ape"] * len(X), classes=kind(["ape", 1]))
    clf = make().fit(X, ["ape", "bee"] * (len(X) // 2))
    with pytest.raises(ValueError, match="`exclude` must hold labels of one kind, got text and in"):
        clf.predict_topk(X[:1], 1, exclude=[kind(["ape", 1])])
