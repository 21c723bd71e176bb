"""Fits that end before their time, and copies that are made meanwhile."""

import copy
import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

from samplesoft.recommend import SampledSoftmaxRecommender
from samplesoft.sklearn import SampledSoftmaxClassifier
from samplesoft.training import Callback

RNG = np.random.default_rng(0)
X = sparse.random_array((120, 9), density=0.4, format="csr", rng=RNG)
Y = RNG.integers(0, 5, 120)
TAKEN = sparse.csr_array((RNG.random((40, 9)) < 0.4).astype(np.float32))


class At(Callback):
    """Does something at the end of an epoch, counted from 1."""

    def __init__(self, epoch, do):
        self.epoch, self.do = epoch, do

    def end_epoch(self, task, optimizer, progress):
        if progress.epoch + 1 == self.epoch:
            self.do()


def interrupt():
    raise KeyboardInterrupt


def classifier(**options):
    return SampledSoftmaxClassifier(4, max_iter=4, random_state=0, batch_size=16, **options)


@pytest.mark.parametrize("options", [{}, {"early_stopping": True, "warm_start": False}])
def test_ctrl_c_in_a_second_fit_leaves_the_first(options):
    clf = classifier(**options).fit(X, Y)
    before, scores = dict(vars(clf)), clf.decision_function(X)
    clf.max_iter = before["max_iter"] = 3
    with pytest.raises(KeyboardInterrupt):
        # other inputs and classes, so that a mixture could not even predict
        clf.fit(X[:, :5], Y + 10, callbacks=[At(2, interrupt)])
    assert vars(clf) == before
    np.testing.assert_array_equal(clf.decision_function(X), scores)
    clf.partial_fit(X, Y)


def test_ctrl_c_in_a_first_fit_leaves_nothing():
    clf = classifier()
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, Y, callbacks=[At(2, interrupt)])
    assert vars(clf) == vars(classifier())
    with pytest.raises(NotFittedError):
        clf.predict(X)


def test_ctrl_c_with_warm_start_leaves_a_model_that_goes_on():
    clf = classifier(warm_start=True).fit(X, Y)
    before = dict(vars(clf))
    with pytest.raises(KeyboardInterrupt):
        clf.fit(X, Y, callbacks=[At(2, interrupt)])
    assert vars(clf) == before
    clf.fit(X, Y)
    assert clf.score(X, Y) > 0.2 and not hasattr(clf._learner, "data")


def test_ctrl_c_while_a_recommender_gets_its_attributes(monkeypatch):
    model = SampledSoftmaxRecommender(4, max_iter=2, random_state=0).fit(TAKEN)
    before = dict(vars(model))

    def set_or_interrupt(self, name, value):
        if name == "user_factors":
            raise KeyboardInterrupt
        object.__setattr__(self, name, value)

    monkeypatch.setattr(SampledSoftmaxRecommender, "__setattr__", set_or_interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(TAKEN[:, :7])
    assert vars(model) == before and len(model.item_factors) == 9
    with pytest.raises(KeyboardInterrupt):
        model.fit(TAKEN[:, :7], callbacks=[At(1, interrupt)])
    assert vars(model) == before


@pytest.mark.parametrize("copied", [lambda clf: pickle.loads(pickle.dumps(clf)), copy.deepcopy])
def test_a_copy_that_is_made_in_a_fit_holds_no_examples(copied):
    clf, made = classifier(), []
    clf.fit(X, Y, callbacks=[At(2, lambda: made.append(copied(clf)))])
    [early] = made
    assert not {"data", "rows"} & vars(early._learner).keys()
    assert early._learner._batches == []
    assert early.predict(X).shape == Y.shape
    early.partial_fit(X, Y)
    assert early.fit(X, Y).score(X, Y) == clf.score(X, Y)


@pytest.mark.parametrize("epochs", [1, 2])
def test_examples_that_calibrate_are_learned_also_where_no_epoch_follows(epochs):
    """The average counts what is learned of them as one more epoch: 0.2 old and 0.8 new."""
    seen = {}

    class Look(Callback):
        def end_epoch(self, task, optimizer, progress):
            seen[progress.epoch + 1] = task.parameters["softmax.class_embeddings"].copy()

        def end(self, task, optimizer, progress):
            seen["end"] = task.parameters["softmax.class_embeddings"].copy()

    clf = classifier(validation_fraction=0.3).set_params(max_iter=epochs)
    clf.fit(X, Y, callbacks=[Look()])
    found = clf.model_.parameters["softmax.class_embeddings"]
    assert np.abs(seen["end"] - seen[1]).max() > 1e-3
    first, last = (seen[1], seen["end"]) if epochs == 1 else (seen[1], seen[2])
    np.testing.assert_allclose(found, 0.2 * first + 0.8 * last, rtol=0, atol=1e-6)
