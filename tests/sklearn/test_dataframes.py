"""Dataframes and series of pandas and polars as inputs and labels, where they are installed."""

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from sklearn.neighbors import KNeighborsClassifier

from samplesoft.sklearn import SampledSoftmaxClassifier

RNG = np.random.default_rng(0)
Y = np.tile(np.arange(4), 15)
X = np.eye(4)[Y] + 0.4 * RNG.normal(size=(60, 4))
SEVERAL = (np.eye(4)[Y] + np.eye(4)[(Y + 1) % 4]).astype(int)
NAMES = np.array(["fig", "apple", "kiwi", "date"])  # not in order
FEATURES = ["a", "b", "c", "d"]


class Frame:
    """What the classifier asks of a dataframe of labels."""

    def __init__(self, array, columns):
        self.array, self.columns, self.shape = np.asarray(array), columns, np.shape(array)

    def __array__(self, dtype=None, copy=None):
        return self.array if dtype is None else self.array.astype(dtype)

    def __len__(self):
        return len(self.array)


def frame_of(kind, array, columns):
    if kind == "stand-in":
        return Frame(array, columns)
    module = pytest.importorskip(kind)
    if kind == "pandas":
        return module.DataFrame(array, columns=columns)
    return module.DataFrame(array, schema=list(map(str, columns)))


def series_of(kind, values):
    return pytest.importorskip(kind).Series(values)


def make(**options):
    return SampledSoftmaxClassifier(4, **{"max_iter": 5, "random_state": 0} | options)


def same(first, second):
    return all(
        np.array_equal(array, second.model_.parameters[name])
        for name, array in first.model_.parameters.items()
    )


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_inputs_have_names(kind, tmp_path):
    frame = frame_of(kind, X, FEATURES)
    clf = make().fit(frame, series_of(kind, NAMES[Y].tolist()), series_of(kind, [1.0, 2.0] * 30))
    assert clf.feature_names_in_.tolist() == FEATURES
    plain = make().fit(X, NAMES[Y], np.tile([1.0, 2.0], 30))
    assert same(clf, plain)
    np.testing.assert_array_equal(clf.predict(frame), clf.predict_topk(frame, 1)[0][:, 0])
    np.testing.assert_array_equal(clf.predict(frame), plain.predict(X))
    assert clf.score(frame, series_of(kind, NAMES[Y].tolist())) == plain.score(X, NAMES[Y])
    clf.save(tmp_path / "model.npz")
    loaded = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(frame), clf.predict(frame))
    for model in (clf, loaded):
        with pytest.raises(ValueError, match="[Ff]eature names"):
            model.predict(frame_of(kind, X, FEATURES[::-1]))


@pytest.mark.parametrize("kind", ["stand-in", "pandas", "polars"])
def test_columns_are_labels(kind, tmp_path):
    y = frame_of(kind, SEVERAL, NAMES.tolist())
    clf = make().fit(X, y, eval_set=(X, y))
    assert clf.classes_.tolist() == NAMES.tolist()
    plain = make().fit(X, SEVERAL, eval_set=(X, SEVERAL))
    assert same(clf, plain)
    assert type(clf.predict(X)) is type(KNeighborsClassifier().fit(X, y).predict(X)) is np.ndarray
    np.testing.assert_array_equal(clf.predict(X), plain.predict(X))
    best, _ = clf.predict_topk(X, 3)
    np.testing.assert_array_equal(best, NAMES[plain.predict_topk(X, 3)[0]])
    assert clf.score(X, y) == clf.score(X, SEVERAL) == plain.score(X, y)
    clf.save(tmp_path / "model.npz")
    loaded = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict_topk(X, 3)[0], best)
    others = clf.predict_topk(X, 3, exclude=[["kiwi"]] * 60)[0]
    assert not (others == "kiwi").any()
    again = make().partial_fit(X, y)
    assert again.partial_fit(X, y).classes_.tolist() == NAMES.tolist()


@pytest.mark.parametrize("kind", ["stand-in", "pandas", "polars"])
def test_columns_in_another_order_are_refused(kind):
    y = frame_of(kind, SEVERAL, NAMES.tolist())
    other = frame_of(kind, SEVERAL[:, ::-1], NAMES[::-1].tolist())
    clf = make(warm_start=True).fit(X, y)
    for call in (clf.fit, clf.partial_fit, clf.score):
        with pytest.raises(
            ValueError, match=r"`y` must have the columns \['fig', .* first call, in"
        ):
            call(X, other)
    with pytest.raises(ValueError, match="`y` must have the columns"):
        make().fit(X, y, eval_set=(X, other))
    with pytest.raises(ValueError, match="`y` must have the columns"):
        make().partial_fit(X, other, classes=NAMES)


@pytest.mark.parametrize("kind", ["stand-in", "pandas"])
def test_names_of_columns_that_are_no_labels(kind):
    for columns in ([(1, 2), (3, 4), (5, 6), (7, 8)], ["a", 1, "b", 2], [0.5, 1.5, 2.5, 3.5]):
        y = frame_of(kind, SEVERAL, columns)
        with pytest.raises(ValueError, match="`y` must have columns whose names are text or integ"):
            make().fit(X, y)
    for columns in ([40, 30, 20, 10], [2**63 + 2, 5, 2**63 + 1, 10], [2**64 + 1, 5, 2**64, 10]):
        y = frame_of(kind, SEVERAL, columns)
        clf = make().fit(X, y)
        assert clf.classes_.tolist() == columns
        with pytest.raises(ValueError, match="`y` must have the columns"):
            clf.score(X, frame_of(kind, SEVERAL, [columns[0] + 1, *columns[1:]]))


def test_other_types_of_pandas():
    pandas = pytest.importorskip("pandas")
    names = pandas.Series(NAMES[Y])
    plain = make().fit(X, NAMES[Y])
    for kind in ("category", "string", object):
        clf = make().fit(X, names.astype(kind))
        assert same(clf, plain)
        np.testing.assert_array_equal(clf.predict(X), plain.predict(X))
    y = pandas.DataFrame(SEVERAL, columns=NAMES, index=np.arange(60)[::-1])
    plain = make().fit(X, SEVERAL)
    for kind in (bool, "Int64", "boolean", "float32"):
        np.testing.assert_array_equal(make().fit(X, y.astype(kind)).predict(X), plain.predict(X))
    clf = make().fit(X, y.astype(pandas.SparseDtype(int, 0)))
    assert same(clf, plain) and clf.classes_.tolist() == NAMES.tolist()
    assert sparse.issparse(clf.predict(X))


@pytest.mark.parametrize("kind", ["array", "pandas", "polars"])
def test_series_of_lists(kind):
    lists = [NAMES[row > 0].tolist() for row in SEVERAL]
    lists[0] = lists[0][:1]
    if kind == "array":
        y = np.empty(60, object)
        y[:] = lists
    else:
        y = series_of(kind, lists)
    clf, plain = make().fit(X, y), make().fit(X, lists)
    assert same(clf, plain) and clf.classes_.tolist() == sorted(NAMES)
    assert clf.score(X, y) == plain.score(X, lists) == clf.score(X, lists)
    one, two = (clf.predict_topk(X, 2, exclude=given)[0] for given in (y, lists))
    np.testing.assert_array_equal(one, two)
    assert not any(set(row) & set(known) for row, known in zip(one, lists, strict=True))
