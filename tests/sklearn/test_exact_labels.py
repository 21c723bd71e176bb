"""Labels that no conversion may round, merge or pad, by whatever they are carried."""

import json
import pickle
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV

from samplesoft.cli import main
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.sklearn.exact_labels import class_indices, read_labels, sorted_distinct
from samplesoft.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

Y = np.tile(np.arange(3), 8)
X = np.eye(3)[Y]
LONG = 20_000  # characters of a line whose end is missing
FIRST = 2**60, 2**63, 2**64, 10**25  # of two neighbours, of which float64 makes one


class Nullable:
    """What a column of pandas with a type of its own is to others: objects."""

    dtype = "Int64"

    def __init__(self, values):
        self.values, self.shape = list(values), (len(values),)

    def __array__(self, dtype=None, copy=None):
        objects = np.empty(len(self.values), object)
        objects[:] = self.values
        return objects if dtype is None else objects.astype(dtype)

    def __len__(self):
        return len(self.values)

    def to_list(self):
        return list(self.values)


class Table(Nullable):
    """A dataframe of one such column."""

    columns = ("id",)

    def __array__(self, dtype=None, copy=None):
        return super().__array__(dtype)[:, None]


class Text(Nullable):
    """A column of text of polars, of which NumPy gets a padded array."""

    dtype = "String"

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values)


def pandas_of(kind):
    def make(values):
        pandas = pytest.importorskip("pandas")
        limits = {"Int64": np.iinfo(np.int64), "UInt64": np.iinfo(np.uint64)}
        limits = limits.get("UInt64" if kind == "frame" else kind)
        if limits and max(values) > limits.max:
            pytest.skip(f"{kind} holds no {max(values)}")
        if kind == "category":
            return pandas.Series(values, dtype=object).astype(kind)
        if kind == "array":
            return pandas.Series(values, dtype=object).array
        if kind == "frame":
            return pandas.DataFrame({"id": pandas.Series(values, dtype="UInt64")})
        return pandas.Series(values, dtype=kind)

    return make


def polars_of(values):
    polars = pytest.importorskip("polars")
    if max(values) >= 2**64:
        pytest.skip("polars has no wider type")
    return polars.Series(values, dtype=polars.UInt64)


def of_scalars(values):
    """Mix the types of NumPy with Python's, of which NumPy makes float64."""
    kinds = [int, np.uint64, np.int64]
    mixed = [kinds[k % 3] if v < 2**63 else np.uint64 for k, v in enumerate(values)]
    return [kind(v) if v < 2**64 else v for kind, v in zip(mixed, values, strict=True)]


CARRIERS = {
    "list": list,
    "tuple": tuple,
    "objects": lambda values: np.array(values, dtype=object),
    "column of objects": lambda values: np.array(values, dtype=object)[:, None],
    "scalars": of_scalars,
    "stand-in": Nullable,
    "stand-in of a table": Table,
    **{
        f"pandas {kind}": pandas_of(kind)
        for kind in ("Int64", "UInt64", "object", "category", "array", "frame")
    },
    "polars": polars_of,
}
several = pytest.mark.parametrize("carry", [CARRIERS["list"], CARRIERS["objects"], Nullable])
carriers = pytest.mark.parametrize("carry", CARRIERS.values(), ids=CARRIERS)
offsets = pytest.mark.parametrize("first", FIRST)
# a table of one column, as scikit-learn's own classifiers take it
pytestmark = pytest.mark.filterwarnings("ignore:A column-vector y was passed")


def ids_of(first):
    return [5, first + 1, first + 2]


def labels_of(ids):
    return [ids[k] for k in Y]


def make(**options):
    return SampledSoftmaxClassifier(4, **{"max_iter": 30, "random_state": 0} | options)


def dtype_of(first):
    return np.dtype(np.int64 if first < 2**63 else np.uint64 if first < 2**64 else object)


@offsets
@carriers
def test_fit_and_score(carry, first):
    ids = ids_of(first)
    clf = make().fit(X, carry(labels_of(ids)))
    wanted = {dtype_of(first), np.dtype(np.uint64)} if first < 2**64 else {np.dtype(object)}
    assert clf.classes_.tolist() == ids and clf.classes_.dtype in wanted
    assert clf.predict(np.eye(3)).tolist() == ids
    assert clf.score(X, carry(labels_of(ids))) == 1.0
    # the last two changed over
    assert clf.score(X, carry(labels_of([ids[0], ids[2], ids[1]]))) == pytest.approx(1 / 3)


@offsets
@carriers
def test_all_that_takes_labels(carry, first):
    ids = ids_of(first)
    swapped = carry(labels_of([ids[0], ids[2], ids[1]]))
    clf = make().fit(X, labels_of(ids), eval_set=(X, swapped))
    assert clf.validation_scores_[-1] == pytest.approx(1 / 3)
    unseen = carry(labels_of([ids[0], ids[1], first + 3]))
    assert clf.score(X, unseen) == pytest.approx(2 / 3)
    other = make().partial_fit(X, carry(labels_of(ids)), classes=carry(ids[::-1]))
    assert other.classes_.tolist() == ids
    other.partial_fit(X, labels_of(ids), classes=carry(ids))
    with pytest.raises(ValueError, match="`classes` must be those of the first call"):
        other.partial_fit(X, labels_of(ids), classes=carry([*ids[:2], first + 3]))
    with pytest.raises(ValueError, match=f"among the 3 classes, got {first + 3}, which is none"):
        other.partial_fit(X, unseen)


@offsets
@several
def test_lists_of_labels(carry, first):
    ids = ids_of(first)
    rows = [carry([ids[k], ids[(k + 1) % 3]]) for k in Y]
    rows = [
        list(row) if isinstance(row, np.ndarray) and row.dtype != object else row for row in rows
    ]
    if isinstance(rows[0], Nullable):
        rows = Nullable([row.values for row in rows])
    clf = make(max_iter=3).fit(X, rows)
    assert clf.classes_.tolist() == ids
    plain = make(max_iter=3).fit(X, [[k, (k + 1) % 3] for k in Y])
    np.testing.assert_array_equal(clf.predict_proba(X), plain.predict_proba(X))
    single = make().fit(X, labels_of(ids))
    best, _ = single.predict_topk(X, 1, exclude=[[ids[0], ids[1], first + 3]] * 24)
    assert set(best.ravel().tolist()) == {ids[2]}


@offsets
def test_weights_of_classes(first, tmp_path):
    ids = ids_of(first)
    plain = make(class_weight={1: 3.0, 2: 0.5}).fit(X, Y)
    keys = [lambda v: v]
    if first < 2**64:
        keys.append(np.uint64)
    if first < 2**63:
        keys.append(np.int64)
    for key in keys:
        clf = make(class_weight={key(ids[1]): 3.0, key(ids[2]): 0.5}).fit(X, labels_of(ids))
        np.testing.assert_array_equal(clf.predict_proba(X), plain.predict_proba(X))
        clf.save(tmp_path / "model.npz")
        again = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
        assert again.class_weight == {ids[1]: 3.0, ids[2]: 0.5}
        with pytest.raises(ValueError, match=f"`class_weight` must name .* got {first + 3}, which"):
            make(class_weight={key(first + 3): 2.0}).fit(X, labels_of(ids))
    whole = make(class_weight={1.0: 3.0, np.float32(2.0): 0.5}).fit(X, Y)
    np.testing.assert_array_equal(whole.predict_proba(X), plain.predict_proba(X))


@offsets
@pytest.mark.parametrize("copy", ["save", "pickle"])
def test_copies_keep_the_type(first, copy, tmp_path, capsys):
    ids = ids_of(first)
    clf = make().fit(X, labels_of(ids))
    clf.score(X, labels_of(ids))  # which may keep what it looked up
    clf.save(tmp_path / "model.npz")
    again = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    if copy == "pickle":
        again = pickle.loads(pickle.dumps(clf))
    assert again.classes_.dtype == clf.classes_.dtype == dtype_of(first)
    assert again.classes_.tolist() == ids
    assert again.partial_fit(X, labels_of(ids)).score(X, labels_of(ids)) == 1.0
    (tmp_path / "input.txt").write_text("1 3 3\n 1:1\n")
    main(["predict", "--model", f"{tmp_path}/model.npz", "--input", f"{tmp_path}/input.txt"])
    assert json.loads(capsys.readouterr().out)["classes"][0] == ids[1]


@pytest.mark.parametrize("there", [np.int64, np.uint64, object, float])
@pytest.mark.parametrize("here", [np.int64, np.uint64, object, float])
def test_one_type_after_another(here, there):
    # in float64 itself there is no 2**60 + 1
    step = 512 if float in (here, there) else 1
    ids = [5, 2**60 + step, 2**60 + 2 * step]
    y, other = (np.array(ids, dtype=kind)[Y] for kind in (here, there))
    clf = make(warm_start=True).fit(X, y, eval_set=(X, other))
    assert clf.score(X, other) == clf.validation_scores_[-1] == 1.0
    dtype = clf.classes_.dtype
    assert clf.fit(X, other).partial_fit(X, other).classes_.dtype == dtype
    near = np.array([5, 2**60 + step + 1, 2**60 + 2 * step + 1], dtype=object)[Y]
    for kind in {here, there} - {float}:
        assert clf.score(X, near.astype(kind)) == pytest.approx(1 / 3)
    top = [2**63 - 1, 2**64 - 1, 0]
    assert clf.score(X, np.array(top, np.uint64)[Y]) == 0.0


def test_numbers_keep_the_types_that_they_had():
    for y in ([1, 2, 3], [1.0, 2.0, 3.0], [1, 2.0, 3], [True, False, True], list("abc")):
        assert make(max_iter=1).fit(X, labels_of(y)).classes_.dtype == np.asarray(y).dtype
    for unit in ("M8[D]", "m8[s]"):
        times = np.array([3, 4, 5], dtype=np.int64).astype(unit)
        for y in (times[Y], list(times[Y])):
            assert make(max_iter=1).fit(X, y).classes_.dtype == times.dtype
    for kind in (np.int8, np.uint16, np.int64, np.float32, bool, "U7", "S3", object):
        y = np.array(list("abc") if kind is object else [0, 1, 1], dtype=kind)
        clf = make(max_iter=1).fit(X, y[Y])
        assert clf.classes_.dtype == y.dtype == clf.predict(X).dtype
    assert make(max_iter=1).fit(X, labels_of([1, 2.0, 2**53 + 1])).classes_.dtype == np.int64
    large = make().fit(X, np.array([1e19, 2.0, 3.0])[Y])  # whole, though beyond int64
    assert large.score(X, labels_of([10**19, 2, 3])) == 1.0


def test_pandas_gives_types_that_metrics_take():
    pandas = pytest.importorskip("pandas")
    for kind, y in {"Int64": [7, 8, 9], "UInt8": [7, 8, 9], "boolean": [True, False, True]}.items():
        y = pandas.Series(labels_of(y), dtype=kind)
        clf = make().fit(X, y)
        assert clf.classes_.dtype.kind in "iub"
        assert accuracy_score(y, clf.predict(X)) == clf.score(X, y) == 1.0
    y = pandas.Series(labels_of([7, 8, 9]), dtype="Int64")
    search = GridSearchCV(make(), {"tau": [9.0]}, scoring="accuracy", cv=2).fit(X, y)
    assert search.best_score_ == 1.0


class Missing:
    """What pandas has for a missing value."""

    __slots__ = ()


Missing.__name__ = "NAType"


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1, None, 2], "`y` must hold no missing labels, got None at index 1; leave out"),
        (np.array([1, 2, None], object), "`y` must hold no missing labels, got None at index 2"),
        (Nullable([1, Missing(), 2]), "`y` must hold no missing labels, got .* at index 1"),
        ([[1, None], [2], [3]], "`y` must hold no missing labels, got None"),
        ([True, 2, 3], "`y` must hold labels of one kind, got int and bool"),
        (np.array([1, False, 2], object), "`y` must hold labels of one kind, got int and bool"),
        ([Fraction(1, 2), 1, 2], "`y` must hold text, whole numbers or booleans, got Fraction"),
        ([0.5, 1, 2], "`y` must hold text, whole numbers or booleans, got 0.5"),
        ([np.inf, 1, 2], "y contains infinity"),
        (np.ma.masked_array([1, 2, 3], [0, 1, 0]), "`y` must be a plain array, got a masked"),
    ],
)
def test_what_is_no_label(y, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make().fit(np.eye(3), y)


def test_missing_labels_of_pandas():
    pandas = pytest.importorskip("pandas")
    for kind, y in {"Int64": [1, None], "string": ["a", None], "category": ["a", None]}.items():
        with pytest.raises(ValueError, match="`y` must hold|y contains NaN"):
            make().fit(np.eye(2), pandas.Series(y, dtype=kind))


def test_text_that_differs_in_what_numpy_pads_by():
    y = labels_of(["a", "a\0", "b"])
    clf = make().fit(X, y)
    assert clf.classes_.tolist() == ["a", "a\0", "b"] and clf.score(X, y) == 1.0
    assert clf.score(X, labels_of(["a\0", "a", "b"])) == pytest.approx(1 / 3)


NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.sampled_from([2**k + d for k in (24, 53, 60, 63) for d in (-1, 0, 1)]),
)
TYPES = ["i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "g", "?", "O"]


def in_type(values, kind):
    """Return those numbers that a type has, as an array."""
    kept = []
    for value in values:
        with np.errstate(all="ignore"):
            try:
                one = value if kind == "O" else np.dtype(kind).type(value)
            except OverflowError:
                continue
        if np.isfinite(float(one)) and (kind == "O" or int(one) == value):
            kept.append(one)
    return np.array(kept, dtype=kind)


@given(st.lists(NUMBERS, unique=True), st.lists(NUMBERS), st.sampled_from(TYPES), st.data())
def test_places_are_those_of_python(classes, labels, kind, data):
    classes, other = in_type(sorted(classes), kind), data.draw(st.sampled_from(TYPES))
    labels = in_type(labels + [int(c) for c in classes], other)
    table = {int(label): place for place, label in enumerate(classes.tolist())}
    wanted = [table.get(int(label), len(classes)) for label in labels.tolist()]
    found = class_indices(classes, labels, lambda: {c: k for k, c in enumerate(classes.tolist())})
    assert found.tolist() == wanted and found.dtype == np.int64


@given(st.lists(NUMBERS))
def test_integers_are_read_as_they_are(values):
    for given_as in (values, np.array(values, dtype=object), of_scalars([abs(v) for v in values])):
        found = read_labels("y", given_as)
        assert found.tolist() == [int(value) for value in given_as]
        assert sorted_distinct(found).tolist() == sorted({int(value) for value in given_as})


@pytest.fixture
def memory():
    """Return what has been allocated at most since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


MOST = 60e6  # bytes; one array padded to the longest of the labels has 800 MB
MANY = np.tile(Y, 417)[:10_000]


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize(
    "kind", ["list", "array", "column", "lists", "equal lists", "longest is unseen"]
)
def test_one_long_label_takes_no_memory_of_others(kind, memory, tmp_path, capsys):
    long = "x" * LONG
    names = ["a", "b", long if kind != "longest is unseen" else "c"]
    y = [names[k] for k in MANY]
    if kind == "array":
        y = np.array(y, dtype=object)
    elif kind == "column":
        y = Text(y)
    elif kind == "lists":
        y = [[name] for name in y]
    elif kind == "equal lists":
        y = [[name, "a"] for name in y]
    x = np.eye(3)[MANY]
    clf = make(max_iter=1, batch_size=1000, calibrate=False)
    clf.fit(x, y, eval_set=(x, y))
    assert clf.classes_.tolist() == names
    clf.partial_fit(x, y, classes=names)
    other = [long if name == "a" else name for name in clf.predict_topk(x, 1)[0][:, 0]]
    if "list" in kind and kind != "list":
        other = [[name] for name in other]
    clf.score(x, other)
    clf.predict(x)
    clf.predict_topk(x, 3, exclude=[["b", long]] * len(x))
    make(max_iter=1).partial_fit(x, y, classes=[*names, long + "y"])
    clf.save(tmp_path / "model.npz")
    again = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    assert again.classes_.tolist() == names and again.classes_.dtype == clf.classes_.dtype
    (tmp_path / "input.txt").write_text(f"{9} 3 3\n" + " 1:1\n" * 9)
    main(["predict", "--model", f"{tmp_path}/model.npz", "--input", f"{tmp_path}/input.txt"])
    assert capsys.readouterr().out.count("\n") == 9
    assert memory() < MOST


def test_padded_text_becomes_objects_once(memory):
    names = np.array(["a", "b", "x" * 1000])  # of 4 kB each
    clf = make(max_iter=1).fit(X, names[Y])
    assert clf.classes_.dtype == object and clf.classes_.tolist() == names.tolist()
    assert clf.predict(np.zeros((20_000, 3))).dtype == object
    assert clf.score(X, names[Y]) >= 1 / 3
    assert memory() < MOST


@pytest.mark.parametrize("length", [3, 1000])
def test_files_of_older_versions_hold_text_as_an_array(length, tmp_path):
    names = np.array(["a", "b", "x" * length], dtype=object)
    make(max_iter=1).fit(X, names[Y]).save(tmp_path / "model.npz")
    config, values, arrays = read_checkpoint(tmp_path / "model.npz")
    assert config.pop("class_objects") == names.tolist()
    for dtype in ("object", str(names.astype(str).dtype)):
        old = Checkpoint(
            {**config, "classes": dtype}, values, arrays | {"classes": names.astype(str)}
        )
        write_checkpoint(tmp_path / "old.npz", old)
        again = SampledSoftmaxClassifier.load(tmp_path / "old.npz")
        assert again.classes_.tolist() == names.tolist()
        kept = dtype if length == 3 else object  # and not padded to the longest
        assert again.classes_.dtype == kept == again.predict(X).dtype


def test_long_names_of_columns(memory):
    names = [f"c{k}" for k in range(2000)]
    names[7] = "x" * LONG

    class Frame(Nullable):
        columns = names

        def __array__(self, dtype=None, copy=None):
            return np.eye(2000)[:4]

    frame = Frame([0] * 4)
    frame.shape = 4, 2000
    clf = make(max_iter=1).fit(np.eye(4), frame)
    assert clf.classes_.tolist() == names
    assert memory() < 2 * MOST
