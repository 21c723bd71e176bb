"""The sums of independent inclusion against many digits, from atoms near 0 to those long gone."""

import numpy as np
import pytest
from mpmath import mp, mpf

from samplesoft.bias import poisson

LOG_W = np.array([-180.0, -90.0, -89.0, -6.0, -2.5, -1.2, -0.6, 0.1, 1.0, 4.0, 30.0, 150.0])
PI = np.array([0.3, 0.5, 0.2, 0.9, 0.01, 1e-9, 0.999, 0.4, 0.6, 1e-200, 0.7, 0.1])
COUNTS = np.array([1.0, 2.0, 1.0, -0.3, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0, 0.5])
NODES = np.array([-160.0, -45.0, -4.0, -1.0, 0.0, 0.3, 1.5, 3.0, 5.0, 60.0, 91.0])


def exactly(values):
    return [mpf(float(value)) for value in values]


def test_products_are_their_formula():
    got = np.empty((len(NODES), 2))
    poisson.log_products(NODES, LOG_W, PI, COUNTS, got)
    with mp.workdps(120):
        for (total, excess), x in zip(got, exactly(NODES), strict=True):
            logs, above, sizes = [], [], []
            for w, pi, count in zip(*map(exactly, (LOG_W, PI, COUNTS)), strict=True):
                y = mp.exp(x + w)
                logs.append(count * mp.log1p(pi * mp.expm1(-y)))
                above.append(logs[-1] + count * pi * y)
                sizes.append(abs(logs[-1]) if y > 0.1 else 0)  # of what log f + pi y is made of
            assert abs(mpf(total) - mp.fsum(logs)) <= 1e-14 * mp.fsum(map(abs, logs))
            room = 1e-14 * mp.fsum(map(abs, above)) + 1e-15 * mp.fsum(sizes)
            assert abs(mpf(excess) - mp.fsum(above)) <= room


@pytest.mark.parametrize("reference", [None, 2, 5, 7, 8])
def test_integrals_are_their_formula(reference):
    weights = 1.0 / (2.0 + np.abs(NODES))
    kappa, deviation = np.ones(len(LOG_W)), np.full(len(LOG_W), 2.0)
    log_w_ref, pi_ref = -np.inf, 0.0
    if reference is not None:
        log_w_ref, pi_ref = LOG_W[reference], PI[reference]
        kappa = np.tanh(0.5 * (LOG_W - log_w_ref))
        deviation = np.expm1(np.minimum(LOG_W - log_w_ref, 2.0))
    got = np.zeros((4, len(LOG_W)))
    points = poisson.InclusionPoints(LOG_W, PI, kappa, deviation)
    given = NODES, weights, points, log_w_ref, pi_ref
    poisson.atom_integrals(*given, got)
    with mp.workdps(200):
        w_ref = mp.exp(mpf(log_w_ref)) if reference is not None else mpf(0)
        for i, (log_w, pi) in enumerate(zip(exactly(LOG_W), exactly(PI), strict=True)):
            w = mp.exp(log_w)
            rows = []
            for x, weight in zip(exactly(NODES), exactly(weights), strict=True):
                u = mp.exp(x)
                e, e_ref = mp.exp(-u * w), mp.exp(-u * w_ref)
                scale = weight * u * w / (1 - pi + pi * e) / (1 - pi_ref + pi_ref * e_ref)
                # with w = w_ref the limit of (e - e_ref) / kappa
                same = i == reference
                ratio = -2 * u * w * e if same else (e - e_ref) * (w + w_ref) / (w - w_ref)
                rows.append((scale * ratio, scale * (e_ref - 1) * e))
            for j in range(2):
                full = mp.fsum(row[j] for row in rows)
                half = 2 * mp.fsum(row[j] for row in rows[::2])
                assert abs(mpf(got[j, i]) - full) <= 1e-13 * abs(full) + mpf("1e-300")
                assert abs(mpf(got[j + 2, i]) - half) <= 1e-13 * abs(half) + mpf("1e-300")
