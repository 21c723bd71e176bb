"""Scores of each round of `fit`: on other examples, on some that are held out, or none."""

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from sklearn import config_context
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.sklearn.learner import ClassifierTask

RNG = np.random.default_rng(0)
Y = np.repeat(np.arange(6), 30)
X = np.eye(6)[Y] + 0.9 * RNG.normal(size=(180, 6))
TRAIN, OTHER = np.arange(0, 180, 2), np.arange(1, 180, 2)
NAMES = np.array(["ape", "bee", "cat", "dog", "eel", "fox"])
TEXTS = [f"{NAMES[k]} {NAMES[j]}" for k, j in zip(Y, RNG.integers(6, size=180), strict=True)]


def make(**options):
    given = {"embedding_dim": 6, "num_sampled": 5, "max_iter": 4, "random_state": 0}
    given["calibrate"] = False  # so that all examples are learned from the first round on
    return SampledSoftmaxClassifier(**given | options)


def same(first, second):
    return all(
        np.array_equal(array, second.model_.parameters[name])
        for name, array in first.model_.parameters.items()
    )


def forms():
    one = NAMES[Y]
    lists = [[NAMES[k], NAMES[(k + 1) % 6]] for k in Y]
    matrix = sparse.csr_array(np.eye(6)[Y] + np.eye(6)[(Y + 1) % 6])
    return {"names": one, "lists": lists, "dense": matrix.toarray(), "sparse": matrix}


def rows(y, which):
    return [y[k] for k in which] if isinstance(y, list) else y[which]


@pytest.mark.parametrize("form", forms())
def test_scores_are_precision_at_1_after_each_round(form):
    y = forms()[form]
    train, other = (X[TRAIN], rows(y, TRAIN)), (X[OTHER], rows(y, OTHER))
    clf = make().fit(*train, eval_set=other)
    assert same(clf, make().fit(*train))  # which it does not change
    wanted, truth = [], forms()["dense"][OTHER] if form != "names" else np.eye(6)[Y[OTHER]]
    for number in range(1, 5):
        best = make(max_iter=number).fit(*train).predict_topk(X[OTHER], 1)[0][:, 0]
        best = best if best.dtype.kind == "i" else np.searchsorted(NAMES, best)
        wanted.append(truth[np.arange(90), best].mean())
    assert clf.validation_scores_ == pytest.approx(wanted)
    assert len(set(wanted)) > 1
    assert make().fit(*train).validation_scores_ == []


@pytest.mark.parametrize("form", ["names", "dense"])
def test_early_stopping_is_on_the_eval_set(form, monkeypatch):
    y = forms()[form]
    options = {"early_stopping": True, "n_iter_no_change": 3, "max_iter": 40}
    monkeypatch.setattr(ClassifierTask, "split_for_validation", None)  # nothing is held out
    clf = make(**options).fit(X[TRAIN], y[TRAIN], eval_set=(X[OTHER], y[OTHER]))
    scores = clf.validation_scores_
    assert 3 < len(scores) == clf.n_iter_ < 40
    last = int(np.flatnonzero(np.equal(scores, max(scores)))[-1]) + 1
    best = make(max_iter=last).fit(X[TRAIN], y[TRAIN])
    assert same(clf, best)
    assert not same(clf, make(max_iter=len(scores)).fit(X[TRAIN], y[TRAIN]))


def test_what_is_held_out_is_scored_with_its_weights():
    weights = RNG.uniform(0.1, 2.0, 180)
    clf = make(early_stopping=True, validation_fraction=0.3).fit(X, Y, weights)
    _, held_out = clf._learner.split_for_validation(np.arange(180), 0.3)
    right = clf.predict(X[held_out]) == Y[held_out]
    assert max(clf.validation_scores_) == pytest.approx(
        np.average(right, weights=weights[held_out])
    )
    assert max(clf.validation_scores_) != pytest.approx(right.mean())


def test_labels_that_were_never_seen_are_never_found():
    few = TRAIN[Y[TRAIN] < 5]
    found = []
    for y in (NAMES[Y], [[name] for name in NAMES[Y]], [{name} for name in NAMES[Y]]):
        clf = make().fit(X[few], rows(y, few), eval_set=(X[OTHER], rows(y, OTHER)))
        best = clf.predict_topk(X[OTHER], 1)[0][:, 0]
        assert clf.validation_scores_[-1] == pytest.approx(np.mean(best == NAMES[Y[OTHER]]))
        found.append(clf.score(X[OTHER], rows(y, OTHER)))
        assert found[-1] <= 5 / 6
    assert found[1] == found[2]


def test_examples_without_a_label_do_not_count():
    y = forms()["lists"]
    given = rows(y, OTHER)
    given[:80] = [[]] * 80
    clf = make().fit(X[TRAIN], rows(y, TRAIN), eval_set=(X[OTHER], given))
    last = make().fit(X[TRAIN], rows(y, TRAIN), eval_set=(X[OTHER[80:]], given[80:]))
    assert clf.validation_scores_ == last.validation_scores_
    assert clf.num_unlabeled_ == 0


@pytest.mark.parametrize("kind", [np.float32, sparse.csr_array])
def test_inputs_of_another_kind(kind):
    other = X[OTHER].astype(kind) if kind is np.float32 else kind(X[OTHER])
    clf = make().fit(X[TRAIN], Y[TRAIN], eval_set=(other, Y[OTHER]))
    wanted = make().fit(X[TRAIN], Y[TRAIN], eval_set=(X[OTHER], Y[OTHER]))
    assert clf.validation_scores_ == pytest.approx(wanted.validation_scores_, abs=0.02)


def test_progress_has_the_scores(capfd):
    clf = make(verbose=True, max_iter=2).fit(X, Y, eval_set=(X, Y))
    lines = capfd.readouterr().err.splitlines()
    lines = [line for line in lines if not line.startswith("compiling kernels")]
    assert len(lines) == 3
    for line, loss, score in zip(lines[1:], clf.loss_curve_, clf.validation_scores_, strict=True):
        assert f"loss {loss:.4f}, precision_at_1 {score:.4f}" in line


def test_scores_are_saved_and_go_on(tmp_path):
    clf = make(warm_start=True).fit(X, Y, eval_set=(X, Y))
    clf.save(tmp_path / "model.npz")
    loaded = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    assert loaded.validation_scores_ == clf.validation_scores_
    assert len(loaded.fit(X, Y, eval_set=(X, Y)).validation_scores_) == 4
    assert loaded.validation_scores_[0] >= clf.validation_scores_[0]
    assert loaded.fit(X, Y).validation_scores_ == []


def test_an_eval_set_is_routed():
    with config_context(enable_metadata_routing=True):
        clf = make(max_iter=2).set_fit_request(eval_set=True)
        search = GridSearchCV(clf, {"tau": [5.0]}, cv=2).fit(X, Y, eval_set=(X, Y))
    assert len(search.best_estimator_.validation_scores_) == 2


def test_in_a_pipeline():
    pipe = make_pipeline(StandardScaler(), make()).fit(X[TRAIN], Y[TRAIN])
    given = {"sampledsoftmaxclassifier__eval_set": (pipe[:-1].transform(X[OTHER]), Y[OTHER])}
    last = pipe.fit(X[TRAIN], Y[TRAIN], **given)[-1]
    assert last.validation_scores_[-1] == pytest.approx(pipe.score(X[OTHER], Y[OTHER]))


def words(*steps, handed=("X_val", "y_val"), transform_input=("X_val",), **options):
    request = dict.fromkeys(handed, True)
    last = make(**options).set_fit_request(**request)
    return make_pipeline(CountVectorizer(), *steps, last, transform_input=list(transform_input))


@pytest.fixture
def routing():
    with config_context(enable_metadata_routing=True):
        yield


def given(which, kind=list):
    return {"X_val": kind([TEXTS[k] for k in which]), "y_val": kind([NAMES[Y[k]] for k in which])}


@pytest.mark.parametrize("kind", [list, np.array, lambda x: np.array(x, object)])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_pipeline_transforms_the_inputs(kind, early_stopping, routing):
    pipe = words(StandardScaler(with_mean=False), early_stopping=early_stopping)
    train = [TEXTS[k] for k in TRAIN], NAMES[Y[TRAIN]]
    last = pipe.fit(*train, **given(OTHER, kind))[-1]
    inputs = (pipe[:-1].transform([TEXTS[k] for k in which]) for which in (TRAIN, OTHER))
    x, other = inputs
    by_hand = make(early_stopping=early_stopping)
    by_hand.fit(x, NAMES[Y[TRAIN]], eval_set=(other, NAMES[Y[OTHER]]))
    assert same(last, by_hand) and last.validation_scores_ == by_hand.validation_scores_
    again = make(early_stopping=early_stopping)
    again.fit(x, NAMES[Y[TRAIN]], X_val=other, y_val=NAMES[Y[OTHER]])
    assert same(again, by_hand)


@pytest.mark.parametrize("form", ["names", "lists", "dense"])
def test_a_search_hands_them_on(form, routing):
    y = forms()[form]
    given = {"X_val": [TEXTS[k] for k in OTHER[:50]], "y_val": rows(y, OTHER[:50])}
    texts = [TEXTS[k] for k in TRAIN]
    grid = {"sampledsoftmaxclassifier__tau": [5.0, 9.0]}
    folds = [(np.arange(0, 90, 2), np.arange(1, 90, 2))] * 2
    if form == "lists":  # of which scikit-learn makes no folds
        train = np.empty(90, object)
        train[:] = rows(y, TRAIN)
    else:
        train = rows(y, TRAIN)
    search = GridSearchCV(words(early_stopping=True), grid, cv=folds).fit(texts, train, **given)
    best = search.best_estimator_
    score = best[-1].validation_scores_
    hits = best[-1].predict_topk(best[:-1].transform(given["X_val"]), 1)[0][:, 0]
    truth = np.eye(6)[Y] if form == "names" else forms()["dense"]
    hits = np.searchsorted(NAMES, hits) if form != "dense" else hits
    assert max(score) == pytest.approx(truth[OTHER[:50], hits].mean())


def test_a_search_cuts_as_many_as_its_own_by_its_folds(routing):
    seen = []

    class Watching(SampledSoftmaxClassifier):
        def fit(self, X, y, sample_weight=None, eval_set=None, *, X_val=None, y_val=None):
            seen.append((X_val.shape[0], len(y_val)))
            return super().fit(X, y, X_val=X_val, y_val=y_val)

    last = Watching(max_iter=1).set_fit_request(X_val=True, y_val=True)
    pipe = make_pipeline(CountVectorizer(), last, transform_input=["X_val"])
    search = GridSearchCV(pipe, {"countvectorizer__lowercase": [True]}, cv=2)
    search.fit(TEXTS, NAMES[Y], X_val=TEXTS, y_val=NAMES[Y])
    assert seen == [(90, 90), (90, 90), (180, 180)]


OF_TEXTS = (TEXTS, NAMES[Y])


@pytest.mark.parametrize(
    "fit",
    [
        lambda: words(transform_input=["eval_set"], handed=["eval_set"]).fit(
            *OF_TEXTS, eval_set=OF_TEXTS
        ),
        lambda: words(transform_input=[], handed=["eval_set"]).fit(*OF_TEXTS, eval_set=OF_TEXTS),
        lambda: words(transform_input=[]).fit(*OF_TEXTS, X_val=TEXTS, y_val=NAMES[Y]),
        lambda: words(transform_input=["X_val", "y_val"]).fit(
            *OF_TEXTS, X_val=TEXTS, y_val=NAMES[Y]
        ),
        lambda: words(transform_input=["eval_set"], handed=["eval_set"]).fit(
            *OF_TEXTS, eval_set=(TEXTS,)
        ),
        lambda: make().fit(X, Y, eval_set=OF_TEXTS),
        lambda: make().fit(X, Y, eval_set=(np.array(TEXTS, object), Y)),
        lambda: make().fit(X, Y, eval_set=(X * np.nan, Y)),
        lambda: make().fit(X, Y, eval_set=(X[:, :3], Y)),
        lambda: make().fit(X, Y, eval_set=(X, Y[1:])),
        lambda: make().fit(X, Y, eval_set=(X, None)),
        lambda: make().fit(X, Y, eval_set=(X, [*Y[1:], None])),
        lambda: make().fit(X, Y, eval_set=(X, Y + 0.5)),
        lambda: make().fit(X, Y, eval_set=(X, np.eye(6)[Y])),
        lambda: make().fit(X, np.eye(6)[Y], eval_set=(X, np.eye(5)[Y % 5])),
        lambda: make().fit(X, Y, eval_set=(X, Y), X_val=X, y_val=Y),
        lambda: make().fit(X, Y, eval_set=(X, Y), y_val=Y),
        lambda: make().fit(X, Y, X_val=X),
        lambda: make().fit(X, Y, y_val=Y),
        lambda: make().fit(X, Y, X_val=X, y_val=NAMES[Y].reshape(-1, 2)),
        lambda: make().fit(X, Y, eval_set=[X, Y]),
        lambda: make().fit(X, Y, eval_set=()),
    ],
)
def test_every_error_names_the_eval_set(fit, routing):
    with pytest.raises((TypeError, ValueError), match="`eval_set`"):
        fit()


def test_an_error_says_what_a_pipeline_needs(routing):
    remedy = "pass `X_val` and `y_val` to it, which has transform_input"
    with pytest.raises(ValueError, match=f"`X` must contain numbers, got text.*{remedy}"):
        words(transform_input=[], handed=["eval_set"]).fit(*OF_TEXTS, eval_set=OF_TEXTS)
    with pytest.raises(ValueError, match="if it has transform_input"):
        words(transform_input=[]).fit(*OF_TEXTS, X_val=TEXTS, y_val=NAMES[Y])
    with pytest.raises(ValueError) as caught:
        make().fit(X, Y, eval_set=(["x" * 20_000] * 3, Y[:3]))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("eval_set", "message"),
    [
        ([(X, Y)], "`eval_set` must be a tuple"),
        ((X, Y, Y), "`eval_set` must be a tuple"),
        (X, "`eval_set` must be a tuple"),
        ((X, None), "y is None"),
        ((X[:, :3], Y), "3 features"),
        ((X, Y[:-1]), "inconsistent"),
        ((X, np.eye(6)[Y]), "must come as single"),
    ],
)
def test_what_is_refused(eval_set, message):
    clf = make()
    with pytest.raises((TypeError, ValueError), match=message):
        clf.fit(X, Y, eval_set=eval_set)
    assert not hasattr(clf, "model_")
    with pytest.raises(ValueError, match="`eval_set` must hold a label for at least one"):
        clf.fit(X, np.eye(6)[Y], eval_set=(X, np.zeros((180, 6))))
