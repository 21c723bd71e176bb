"""Generalised binary cross-entropy: what its minimum is, by all draws of a small problem."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from oracles.loss_cases import check_value_and_gradients, dense, make_case
from oracles.naive_losses import ORACLES, gbce
from scipy.optimize import minimize
from scipy.special import expit

from samplesoft.losses import GBCELoss, make_loss
from samplesoft.samplers.base import Draw

P = np.array([0.5, 0.3, 0.15, 0.05])  # of the labels, by one context
N, M = 4, 2


def minimum(loss, scheme):
    """The scores at which the mean loss over all labels and all uniform draws is least."""
    labels, ids, weights = [], [], []
    for label in range(N):
        others = [j for j in range(N) if scheme == "masked" or j != label]
        for drawn in product(others, repeat=M):
            labels.append(label)
            ids.append(drawn)
            weights.append(P[label] / len(others) ** M)
    draw, h = Draw(np.array(ids), np.full((len(ids), M), -1.0)), np.ones((len(ids), 1))

    def mean(o):
        value, cache = loss.forward(h, o[:, None], labels, draw, weights=weights)
        return value, dense(loss.backward(cache).dW, N)[:, 0]

    return minimize(mean, np.zeros(N), jac=True, tol=1e-12).x


@pytest.mark.parametrize("scheme", ["masked", "negatives"])
def test_full_calibration_learns_probabilities(scheme):
    loss = GBCELoss(scheme=scheme, calibration=1.0, reduction="sum")
    np.testing.assert_allclose(expit(minimum(loss, scheme)), P, rtol=1e-5)
    # WRONG: how often a class is drawn under the other scheme
    loss.excludes_label = not loss.excludes_label
    wrong = GBCELoss(scheme=scheme, calibration=1.0, reduction="sum")
    wrong._kernel_for_draw = lambda draw, n: loss._kernel_for_draw(draw, n)
    assert abs(expit(minimum(wrong, scheme)) / P - 1.0).min() > 0.01


@pytest.mark.parametrize("scheme", ["masked", "negatives"])
@pytest.mark.parametrize("calibration", [0.0, 0.75])
def test_less_of_it_is_overconfident(scheme, calibration):
    loss = GBCELoss(scheme=scheme, calibration=calibration, reduction="sum")
    alpha = M / (N if scheme == "masked" else N - 1)
    beta = 1.0 - calibration + calibration * alpha
    found = expit(minimum(loss, scheme))
    np.testing.assert_allclose(found, beta * P / (beta * P + alpha * (1.0 - P)), rtol=1e-5)
    assert (found > 1.05 * P).all()


@pytest.mark.parametrize("scheme", ["masked", "negatives"])
def test_without_calibration_it_is_negative_sampling(scheme):
    loss, plain = GBCELoss(scheme=scheme, calibration=0.0), make_loss("negative-sampling")
    case = make_case(plain, full=True)
    (value, cache), (wanted, of_plain) = case.forward(loss), case.forward(plain)
    assert value == wanted
    np.testing.assert_array_equal(loss.backward(cache).dW.rows, plain.backward(of_plain).dW.rows)


@pytest.mark.parametrize("calibration", ["0", "0.25", "1"])
def test_the_power_of_the_label(calibration, monkeypatch):
    loss = make_loss("gbce", calibration=float(calibration))
    case = make_case(loss, full=True)
    monkeypatch.setitem(ORACLES, "gbce", partial(gbce, calibration=calibration))
    check_value_and_gradients("gbce", loss, case)
    monkeypatch.setitem(ORACLES, "gbce", partial(gbce, calibration="0.5"))
    with pytest.raises(AssertionError):
        check_value_and_gradients("gbce", loss, case)


@pytest.mark.parametrize("value", [-0.1, 1.01, np.nan])
def test_a_calibration_beyond_its_range(value):
    with pytest.raises(ValueError, match="`calibration` must be from 0 to 1"):
        GBCELoss(calibration=value)
    with pytest.raises(TypeError, match="`calibration` must be a number"):
        GBCELoss(calibration="full")
