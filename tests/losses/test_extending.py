"""A new loss is a class, a line in the registry and an oracle: then all of the library takes it."""

import numpy as np
import pytest
from mpmath import mp
from oracles import naive_losses
from oracles.loss_cases import check_value_and_gradients, make_case

from samplesoft.losses import LOSSES, LossSpec, SampledLoss, make_loss
from samplesoft.models import LinearSoftmax, LinearSoftmaxSettings
from samplesoft.optimizers import make_optimizer
from samplesoft.schemes import SCHEMES


class HingeLoss(SampledLoss):
    """Sum over the draws of how much each lacks to a score of 1 below the label.

    Weston and Watkins (1999), "Support vector machines for multi-class pattern recognition".
    """

    schemes = {"masked": SCHEMES["masked"].without_correction()}

    def _terms(self, logits, losses):
        gaps = 1.0 + logits[:, 1:] - logits[:, :1]
        losses[:] = np.maximum(gaps, 0.0).sum(axis=1)
        logits[:, 1:] = gaps > 0.0  # the derivative
        logits[:, 0] = -logits[:, 1:].sum(axis=1)


def hinge(scores, label, ids, counts, own_count):
    """Its oracle: the formula in many digits."""
    return mp.fsum(max(0, 1 + scores[j] - scores[label]) for j in ids if j != label)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(LOSSES, "hinge", LossSpec(HingeLoss, classifier=True))
    monkeypatch.setitem(naive_losses.ORACLES, "hinge", hinge)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"tau": 2.0, "normalize": True}, {"absolute": True, "reduction": "sum"}]
)
def test_it_follows_its_formula(options, shared):
    loss = make_loss("hinge", **options)
    case = make_case(loss, shared=shared, full=True, batch=2, n=5, dim=2)
    check_value_and_gradients("hinge", loss, case)


# WRONG: a draw of the label ranks it against itself.
def test_the_formula_notices_a_wrong_loss():
    class Wrong(HingeLoss):
        schemes = {"masked": SCHEMES["kept"].without_correction()}

    loss = Wrong()
    with pytest.raises(AssertionError):
        check_value_and_gradients("hinge", loss, make_case(make_loss("hinge")))


def test_its_facts_follow_from_its_scheme():
    spec = LOSSES["hinge"]
    assert spec.draws and spec.shares_draws and spec.several_labels and not spec.cuda
    assert spec.bias_scheme is None and spec.why_no_bias


def test_a_model_learns_by_it():
    settings = LinearSoftmaxSettings(loss="hinge", sampler="uniform", num_sampled=3, shared=True)
    model, optimizer = LinearSoftmax(6, 6, settings, rng=0), make_optimizer("adagrad", 0.1)
    x, labels = np.eye(6, dtype=np.float32), np.array([1, 2, 3, 4, 5, 0])
    for step in range(60):
        _, gradients = model.step(x, labels, rng=step)
        optimizer.step(model.parameters, gradients)
        model.after_step(gradients)
    np.testing.assert_array_equal(model.top_k(x, 1)[0].ravel(), labels)


def test_the_classifier_offers_it():
    pytest.importorskip("sklearn", reason="needs scikit-learn; pip install samplesoft[sklearn]")
    from samplesoft.sklearn import SampledSoftmaxClassifier

    X, y = np.eye(4), np.array(["ape", "bee", "cat", "dog"])
    classifier = SampledSoftmaxClassifier(
        loss="hinge", num_sampled=2, num_features=16, max_iter=50, random_state=0
    )
    assert classifier.fit(X, y).score(X, y) == 1.0
