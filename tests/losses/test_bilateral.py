"""The bilateral loss: its weight, its two temperatures, and pairs without negatives."""

from functools import partial

import numpy as np
import pytest
from oracles.loss_cases import Case, check_value_and_gradients, dense, make_case
from oracles.naive_losses import ORACLES, bilateral
from scipy import sparse

from samplesoft.losses import BilateralSoftmaxLoss, make_loss
from samplesoft.samplers import Draw


@pytest.mark.parametrize("weight", [0.5, 1.0, 2.0])
def test_the_weight_is_that_of_the_negatives(weight, monkeypatch):
    loss = make_loss("bilateral", negative_weight=weight)
    case = make_case(loss, full=True)
    monkeypatch.setitem(ORACLES, "bilateral", partial(bilateral, weight=weight))
    check_value_and_gradients("bilateral", loss, case)
    monkeypatch.setitem(ORACLES, "bilateral", partial(bilateral, weight=weight + 0.01))
    with pytest.raises(AssertionError):
        check_value_and_gradients("bilateral", loss, case)


def test_the_weight_stands_for_two_temperatures():
    """With one positive, both log-mean-exps of the paper, times the temperature of the first."""
    cosines, first, second = np.array([0.9, -0.2, 0.4, 0.1]), 0.12, 0.1
    ids = np.array([[1, 2, 3, 3]])
    loss = BilateralSoftmaxLoss(negative_weight=first / second, tau=1.0 / second)
    case = Case(np.ones((1, 1)), cosines[:, None], np.array([0]), np.full((1, 4), 0.25), ids)
    negatives = np.log(np.mean(np.exp(cosines[ids[0]] / second)))
    wanted = first / second * (negatives - cosines[0] / first)
    constant = first / second * np.log(4.0)  # a sum over the classes, not their mean
    assert case.forward(loss)[0] == pytest.approx(wanted + constant, rel=1e-13)


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_labels_of_an_example_are_no_negatives(shared, absolute):
    """Several labels are one positive with their mean score; all of them are left out."""
    rng = np.random.default_rng(0)
    h, rows = rng.normal(size=(2, 3)), rng.normal(size=(7, 3))
    shares = np.array([[0.25, 0.0, 0.75, 0, 0, 0, 0], [0, 0, 0, 1.0, 0, 0, 0]])
    ids = np.array([[0, 1, 2, 5, 1], [3, 3, 0, 6, 2]])[: 1 if shared else 2]
    q = rng.dirichlet(np.ones(7))
    draw = Draw(ids, np.log(q[ids]))

    def oracle(h, rows):
        scores = np.abs(h @ rows.T) if absolute else h @ rows.T
        total = 0.0
        for b in range(2):
            kept = [j for j in ids[b % len(ids)] if shares[b, j] == 0.0]
            mass = sum(np.exp(scores[b, j]) / (5 * q[j]) for j in kept)
            total += 1.5 * np.log(mass) - shares[b] @ scores[b]
        return total

    options = {"absolute": absolute, "reduction": "sum", "mask_other_labels": True}
    loss = make_loss("bilateral", negative_weight=1.5, **options)
    value, cache = loss.forward(h, rows, sparse.csr_array(shares), draw)
    assert value == pytest.approx(oracle(h, rows), rel=1e-13)
    gradients = loss.backward(cache)
    for place in np.ndindex(h.shape):
        moved = [h.copy(), h.copy()]
        moved[0][place] += 1e-6
        moved[1][place] -= 1e-6
        slope = (oracle(moved[0], rows) - oracle(moved[1], rows)) / 2e-6
        assert gradients.dh[place] == pytest.approx(slope, rel=1e-7, abs=1e-8)
    for place in np.ndindex(rows.shape):
        moved = [rows.copy(), rows.copy()]
        moved[0][place] += 1e-6
        moved[1][place] -= 1e-6
        slope = (oracle(h, moved[0]) - oracle(h, moved[1])) / 2e-6
        assert dense(gradients.dW, 7)[place] == pytest.approx(slope, rel=1e-7, abs=1e-8)


def test_nothing_is_lost_without_negatives():
    loss = BilateralSoftmaxLoss()
    case = make_case(loss, batch=2, m=3)
    case.ids[0] = case.labels[0]
    values, cache = case.forward(make_loss("bilateral", reduction="none"))
    assert values[0] == 0.0 != values[1]
    assert not loss.backward(cache).dh[0].any()


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_a_weight_that_is_no_weight(weight):
    with pytest.raises(ValueError, match="`negative_weight` must be"):
        BilateralSoftmaxLoss(negative_weight=weight)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("label_reduction", ["pal", "pal-n"])
def test_importance_sampling_without_a_draw_left_is_refused(reduction, label_reduction):
    """Its sum is empty, and the loss -inf; that of the bilateral loss is 0, as it says."""
    h, rows = np.random.default_rng(0).normal(size=(2, 2, 3))
    rows = np.concatenate([rows, rows + 1.0, rows - 1.0])
    labels = sparse.csr_array(np.array([[1.0, 0, 0, 0, 0, 0], [0, 1.0, 0, 1.0, 1.0, 0]]))
    options = {"mask_other_labels": True, "reduction": reduction}
    loss = make_loss("importance", label_reduction=label_reduction, **options)
    # label 4 of the second example is none of the draws, all of which are other labels
    lost = Draw(np.array([[0, 2], [1, 3]]), np.full((2, 2), -np.log(6.0)))
    with pytest.raises(ValueError, match="each label of example 1 .* take mask_other_labels=False"):
        loss.forward(h, rows, labels, lost)
    value, _ = make_loss("bilateral", **options).forward(h, rows, labels, lost)
    assert np.isfinite(value).all()
    # a draw of no label is enough, and so is a loss that keeps draws of labels
    kept = Draw(np.array([[0, 2], [1, 5]]), lost.log_q)
    assert np.isfinite(loss.forward(h, rows, labels, kept)[0]).all()
    keeps = make_loss("importance", label_reduction=label_reduction, reduction=reduction)
    assert np.isfinite(keeps.forward(h, rows, labels, lost)[0]).all()
