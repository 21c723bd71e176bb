"""The loss bias of the jackknife: by parts and plainly, and which of them is taken."""

from math import comb

import naive
import numpy as np
import pytest
from mpmath import mp, mpf

from samplesoft import exact_bias
from samplesoft.bias import jackknife_loss
from samplesoft.bias.jackknife_loss import LossTerms


def test_terms_that_cancel_are_in_doubt_although_half_of_them_have_the_same_sum():
    def doubt(*terms, narrow=False):
        found = LossTerms(np.array(terms), np.abs(terms), narrow)
        return jackknife_loss._doubt(found, 4e-15)

    assert 0.0 < doubt(1.0, 1.0, 1.0, 1.0) < 1e-13
    assert doubt(1e9, 1e9, -1e9, 1.0 - 1e9) > 1e-6
    assert doubt(1.0, 2.0, 1.0, 2.0) > 0.1  # half of them have another
    assert doubt(1.0, 1.0, 1.0, 1.0 + 1e-8, narrow=True) > 1e3 * doubt(1.0, 1.0, 1.0, 1.0 + 1e-8)
    assert doubt(1.0, np.nan) == np.inf


def true_loss_bias(logits, label, q, m, order=1):
    """The combination of E[log S] - log Z over all outcomes of draws from two kinds of classes.

    The kinds are the two negatives of three classes, or the label without weight and one negative.
    """
    with mp.workdps(400):
        p, q = naive.softmax(logits), [mpf(float(x)) for x in q]
        pair = [j for j in range(len(p)) if j != label or len(p) == 2]
        total = mp.fsum(q[j] for j in pair)
        chances = [q[j] / total for j in pair]
        ratios = [p[j] / x if j != label else mpf(0) for j, x in zip(pair, chances, strict=True)]

        def mean(m):
            terms, power = [], chances[1] ** m
            for k in range(m + 1):
                log_s = mp.log(p[label] + (k * ratios[0] + (m - k) * ratios[1]) / m)
                terms.append(comb(m, k) * power * log_s)
                power *= chances[0] / chances[1]
            return mp.fsum(terms)

        return m * mean(m) - (m - 1) * mean(m - 1)


def problems(seed, number):
    rng = np.random.default_rng(seed)
    for i in range(number):
        n = int(rng.integers(2, 4))
        logits = rng.normal(size=n) * rng.choice([0.3, 3.0, 30.0, 300.0])
        near = np.exp(logits - logits.max()) * np.exp(1e-4 * rng.normal(size=n)) + 1e-100
        q = (rng.dirichlet(np.ones(n)), 10.0 ** rng.uniform(-30.0, 0.0, n), near)[i % 3]
        yield logits, int(rng.integers(n)), q / q.sum(), int(rng.choice([2, 5, 30, 200]))


@pytest.mark.filterwarnings("ignore:the bias of scheme")  # of the bias, not the loss
def test_the_loss_bias_has_ten_digits_and_an_estimate_that_bounds_its_error():
    for logits, label, q, m in problems(3, 40):
        scheme = "jackknife" if len(logits) == 3 else "jackknife_masked"
        result = exact_bias(logits, label, q, m, scheme=scheme)
        want = true_loss_bias(logits, label, q, m)
        error = abs(mpf(float(result.loss_bias)) - want)
        assert error <= mpf(float(result.loss_error)) + mpf("1e-290")
        assert result.loss_error <= 1e-10 * abs(want) + mpf("1e-290")
