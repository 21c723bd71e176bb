"""`SampledSoftmaxClassifier(sampler="auto")`: chosen in `fit`, kept, and as if given by name."""

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from sklearn.base import clone

from samplesoft.sklearn import SampledSoftmaxClassifier, classifier, learner
from samplesoft.sklearn.learner import ClassifierTask

UNIGRAM = {"loss": "sampled-masked", "sampler": "unigram", "num_sampled": 7, "shared": True}
CLUSTERS = {"loss": "sampled-masked", "sampler": "clusters", "num_sampled": 5, "shared": False}
FULL = {"loss": "full", "sampler": None, "num_sampled": None, "shared": False}
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 20, 300)
X = np.eye(20)[Y] + 0.3 * RNG.normal(size=(300, 20))
SEVERAL = sparse.csr_array((np.eye(20)[Y] + np.eye(20)[(Y + 1) % 20]) > 0).astype(float)


def make(**options):
    given = {"embedding_dim": 6, "max_iter": 2, "random_state": 0}
    return SampledSoftmaxClassifier(**given | options)


def auto(**options):
    return make(**{"sampler": "auto", "num_sampled": "auto"} | options)


def named(settings):
    return {name: value for name, value in settings.items() if value is not None}


def same(first, second):
    return all(
        np.array_equal(array, second.model_.parameters[name])
        for name, array in first.model_.parameters.items()
    )


@pytest.fixture
def chosen(monkeypatch):
    """Return a function that lets a choice be found, and a list of what was asked for."""
    asked = []

    def let(settings):
        def choose(inputs, *wanted, **options):
            asked.append((inputs, *wanted, options))
            return {**settings, "verdict": "Take it."}

        monkeypatch.setattr(learner, "choose_settings", choose)
        return asked

    return let


@pytest.mark.parametrize("y", [Y, SEVERAL], ids=["one label", "several labels"])
@pytest.mark.parametrize("settings", [UNIGRAM, CLUSTERS, FULL], ids=lambda s: str(s["sampler"]))
def test_the_model_is_that_of_the_settings_by_name(settings, y, chosen):
    asked = chosen(settings)
    clf = auto().fit(X, y)
    assert same(clf, make(**named(settings)).fit(X, y))
    assert not same(clf, make(**named(UNIGRAM | {"num_sampled": 8})).fit(X, y))  # a wrong twin
    seconds = clf.auto_choice_["seconds"]
    assert clf.auto_choice_ == {**settings, "verdict": "Take it.", "seconds": seconds}
    assert 0.0 < seconds < 600.0
    assert clf.get_params()["sampler"] == clone(clf).get_params()["num_sampled"] == "auto"
    ((inputs, *wanted, options),) = asked
    assert wanted == ["sampled-masked", "auto", "auto"] and options["batch"] == 128
    np.testing.assert_allclose(np.linalg.norm(inputs["h"], axis=1), 1.0)
    assert len(inputs["labels"]) == len(inputs["h"]) == 300 and inputs["tau"] == 10.0


def test_labels_are_of_the_examples(chosen):
    """Each example is at its class here, so that its context is near the vector of its label."""
    asked = chosen(UNIGRAM)
    auto(max_iter=60).fit(X, Y)
    auto(max_iter=60).fit(X, SEVERAL)
    for inputs, *_ in asked:
        nearest = (inputs["h"] @ inputs["class_embeddings"].T).argsort(axis=1)[:, -4:]
        assert np.mean((nearest == inputs["labels"][:, None]).any(axis=1)) > 0.6  # by chance 0.2
    several, first = asked[1][0]["labels"], asked[0][0]["labels"]
    assert 0.3 < np.mean(several == first) < 0.7  # one or the other


def test_what_is_given_is_kept(chosen):
    asked = chosen(CLUSTERS | {"sampler": "rff", "loss": "sampled"})
    given = {"sampler": "rff", "nu": 3.0, "num_features": 8, "shared": False, "loss": "sampled"}
    clf = auto(**given).fit(X, Y)
    assert same(clf, make(**given, num_sampled=5).fit(X, Y))
    _, loss, sampler, m, options = asked[0]
    assert (loss, sampler, m) == ("sampled", "rff", "auto")
    assert {"nu": 3.0, "num_features": 8, "shared": False}.items() <= options.items()
    auto(num_sampled=9).fit(X, SEVERAL)
    assert asked[1][1:4] == ("sampled-masked", "auto", 9)
    chosen(FULL)
    clf = auto(num_sampled=9).fit(X, Y)  # the full softmax draws nothing, whatever was asked for
    assert same(clf, make(loss="full").fit(X, Y))
    asked.clear()
    assert "auto_choice_" not in vars(auto(loss="full").fit(X, Y))
    assert "auto_choice_" not in vars(auto().fit(X, np.zeros(300)))  # one class: nothing is drawn
    assert not asked


@pytest.mark.parametrize("settings", [UNIGRAM, FULL], ids=lambda s: str(s["sampler"]))
def test_the_choice_is_kept(settings, chosen, tmp_path, monkeypatch):
    chosen(settings)
    clf, other = (
        one.fit(X, Y) for one in (auto(warm_start=True), make(**named(settings), warm_start=True))
    )
    clf.save(tmp_path / "model.npz")
    monkeypatch.setattr(classifier, "choose_auto_settings", None)
    loaded = SampledSoftmaxClassifier.load(tmp_path / "model.npz")
    assert loaded.auto_choice_ == clf.auto_choice_ and loaded.sampler == "auto"
    other.model_.softmax.refresh()
    other.partial_fit(X[:64], Y[:64]).fit(X, Y)
    for one in (clf, loaded):
        one.model_.softmax.refresh()
        assert same(one.partial_fit(X[:64], Y[:64]).fit(X, Y), other)
    clf.set_params(sampler="clusters")
    if settings != FULL:
        with pytest.raises(ValueError, match="made with other sampler: got 'clusters', and it has"):
            clf.fit(X, Y)
    clf.set_params(warm_start=False, num_sampled=5).fit(X, Y)
    assert "auto_choice_" not in vars(clf)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "nce"}, "must not be 'auto' with loss='nce'"),
        ({"loss": "jackknife", "num_sampled": 5}, "must not be 'auto' with loss='jackknife'"),
        ({"sampler": "two-pass"}, "`num_sampled` must not be 'auto' with sampler='two-pass'"),
        ({"sampler": "rff", "normalize": False}, "norm"),
        ({"sampler": "magic"}, "`sampler` must be one of"),
        ({"num_sampled": 0}, "`num_sampled` must be at least 1"),
        ({"num_sampled": "all"}, "`num_sampled` must be"),
    ],
)
def test_what_is_refused_before_the_work(options, message, monkeypatch):
    monkeypatch.setattr(classifier, "choose_auto_settings", None)
    with pytest.raises((TypeError, ValueError), match=message):
        auto(**options).fit(X, Y)


def test_one_batch_is_too_little():
    with pytest.raises(ValueError, match="first call of partial_fit, .* call fit on some of"):
        auto().partial_fit(X, Y, classes=np.arange(20))
    assert auto(loss="full").partial_fit(X, Y, classes=np.arange(20)).n_iter_ == 1


@pytest.mark.thorough
def test_a_real_pilot(capfd, monkeypatch):
    learners, begin_epoch = [], ClassifierTask.begin_epoch

    def noted(self, *arguments):
        learners.append(self)
        begin_epoch(self, *arguments)

    monkeypatch.setattr(ClassifierTask, "begin_epoch", noted)
    clf = auto(max_iter=30, batch_size=64, verbose=True, calibrate=False).fit(X, Y)
    assert clf.auto_choice_["verdict"].startswith("Take ")
    err = capfd.readouterr().err
    assert (
        "pilot of 100 steps" in err
        and f"auto: {clf.auto_choice_['verdict']} The choice took " in err
    )
    pilot, learner = dict.fromkeys(learners)
    assert learner is clf._learner
    assert (pilot.steps_taken, learner.steps_taken) == (100, 150)
    assert clf.score(X, Y) > 0.5  # by chance 0.05
    assert auto(shared=False).fit(sparse.csr_array(X), SEVERAL).auto_choice_["shared"] is False
