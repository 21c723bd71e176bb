"""`SampledSoftmaxClassifier(sampler=...)`: a sampler, or a function that makes one."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from samplesoft.models import LinearSoftmaxSettings
from samplesoft.samplers import (
    ClusterSampler,
    LearnedUnigramSampler,
    SoftmaxSampler,
    UniformSampler,
    UnigramSampler,
    make_sampler,
)
from samplesoft.sklearn import SampledSoftmaxClassifier

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 12, 150)
Y[:12] = np.arange(12)
X = np.eye(12)[Y] + 0.5 * RNG.normal(size=(150, 12))
SEVERAL = sparse.csr_array(np.eye(12)[Y] + np.eye(12)[(Y + 1) % 12])
COUNTS = np.bincount(Y)
VECTORS = RNG.normal(size=(12, 6))
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)


def make(**options):
    given = {"embedding_dim": 6, "num_sampled": 4, "max_iter": 3, "random_state": 0}
    return SampledSoftmaxClassifier(**given | options)


def same(first, second):
    return all(
        np.array_equal(array, second.model_.parameters[name])
        for name, array in first.model_.parameters.items()
    )


def quadratic(inputs):
    return make_sampler("quadratic", replace(inputs, alpha=2.0))


class Own:
    """Draws by fixed probabilities, and shares no base class with the library."""

    def __init__(self, sampler):
        self.inner = sampler
        self.num_classes, self.dim, self.tau, self.device = 12, None, None, "cpu"

    def __getattr__(self, name):
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class StepByStep(UniformSampler):
    """Sees the labels of each step, so that no draws are made for many steps at once."""

    def observe(self, labels):
        pass


@pytest.mark.parametrize("y", [Y, SEVERAL], ids=["one label", "several labels"])
@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        (UnigramSampler(COUNTS), "unigram"),
        (UniformSampler(12), "uniform"),
        (Own(UniformSampler(12)), StepByStep(12)),
        (lambda inputs: make_sampler("unigram", inputs), "unigram"),
        (lambda inputs: make_sampler("clusters", inputs), "clusters"),
        (lambda inputs: make_sampler("rff", inputs), "rff"),
        (SoftmaxSampler(VECTORS), "softmax"),  # follows the vectors of the model
    ],
    ids=["instance", "static", "no base", "function", "clusters", "rff", "vectors"],
)
def test_the_model_is_that_of_the_name(sampler, name, y):
    if name == "unigram" and y is SEVERAL and not callable(sampler):
        sampler = UnigramSampler(np.bincount(SEVERAL.indices))
    tau = {"tau": 1.0} if name == "softmax" else {}
    clf, named = make(sampler=sampler, **tau).fit(X, y), make(sampler=name, **tau).fit(X, y)
    assert same(clf, named)
    assert clf.model_.softmax.shared == named.model_.softmax.shared
    other = "unigram" if isinstance(sampler, (Own, UniformSampler)) else "uniform"
    assert not same(clf, make(sampler=other, **tau).fit(X, y))


def test_options_of_a_function_count():
    assert not same(make(sampler=quadratic).fit(X, Y), make(sampler="quadratic").fit(X, Y))


def test_fit_takes_a_copy():
    sampler = LearnedUnigramSampler(12)
    before = sampler.state()
    clf = make(sampler=sampler)
    first = copy.deepcopy(clf.fit(X, Y))
    for name, array in sampler.state().items():
        np.testing.assert_array_equal(array, before[name])
    assert same(first, clf.fit(X, Y))
    assert clf.get_params()["sampler"] is sampler
    assert same(first, clone(clf).fit(X, Y))


@pytest.mark.parametrize("sampler", [UnigramSampler(COUNTS), quadratic], ids=["own", "function"])
def test_copies_go_on(sampler):
    clf = make(sampler=sampler, warm_start=True).fit(X, Y)
    for other in (pickle.loads(pickle.dumps(clf)), copy.deepcopy(clf)):
        other.partial_fit(X, Y).fit(X, Y)
        assert not same(clf, other)
    clf.partial_fit(X, Y).fit(X, Y)
    assert same(clf, other)
    clf.set_params(sampler=UniformSampler(12))
    with pytest.raises(ValueError, match="the model was made with other sampler"):
        clf.partial_fit(X, Y)


def test_searches_among_samplers():
    samplers = [UnigramSampler(COUNTS), quadratic, "uniform"]
    search = GridSearchCV(make(max_iter=1), {"sampler": samplers}, cv=2).fit(X, Y)
    assert len(search.cv_results_["params"]) == 3
    assert "UnigramSampler" in repr(make(sampler=samplers[0]))


def test_it_has_no_name_to_be_saved_by(tmp_path):
    for sampler in (UnigramSampler(COUNTS), quadratic):
        clf = make(sampler=sampler).fit(X, Y)
        for given in (sampler, "unigram"):  # of the model, and of the parameter
            with pytest.raises(
                TypeError, match="`sampler` must be a name to be saved, got <.*SAMP"
            ):
                clf.set_params(sampler=given).save(tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": 3}, "`sampler` must be a Sampler, got int; samplesoft.samplers has some"),
        ({"sampler": None}, "`sampler` must be one of"),
        (
            {"sampler": UniformSampler(11)},
            "`sampler` must be for 12 classes of dimension 6, got 11",
        ),
        ({"sampler": lambda inputs: None}, "`sampler` must be a Sampler, got NoneType"),
        (
            {"sampler": lambda inputs: ClusterSampler(inputs.class_embeddings, tau=3.0)},
            "`sampler` must have the tau of the loss, 10.0, got one with 3.0",
        ),
        (
            {"sampler": quadratic, "num_sampled": "auto"},
            "must not be 'auto' with a sampler of your",
        ),
    ],
)
def test_what_is_refused(options, message):
    clf = make(**options)
    with pytest.raises((TypeError, ValueError), match=message):
        clf.fit(X, Y)
    assert not hasattr(clf, "model_")


def test_certain_classes_are_put_into_the_sampler():
    with pytest.raises(ValueError, match="`num_certain` must be 0 with a sampler of your own"):
        LinearSoftmaxSettings(sampler=UniformSampler(12), num_certain=2)
