"""The sums at each node and the integrals at each atom, term by term against many digits."""

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles import laplace_loops

from samplesoft.bias.with_replacement import laplace
from samplesoft.bias.with_replacement.laplace import Points

R0, R, MEAN = 0.04, 1.0, 1.3  # the least ratio, the reference and the mean
RATIOS = np.array([0.05, 0.4, 0.999, 1.001, 1.2, 1.31, 4.0, 25.0])
WEIGHTS = np.array([0.3, 0.1, 0.2, 0.05, 0.15, 0.1, 0.06, 0.04])
NODES = np.log([1e-4, 0.03, 0.6, 1.0, 2.0, 7.0, 40.0])  # on both sides of each change of formula


def points_of(r, q):
    """What the kernels know of atoms r (A,)."""
    kappa, zeta = (r - R) / (r + R), (r - MEAN) / (r + MEAN)
    logs = np.log(r), np.log(r - R0), np.log(r + R), np.log(np.abs(r - MEAN)), np.log(r + MEAN)
    log_r, log_d, log_sum, log_from_mean, log_sum_mean = logs
    weights = q, q * kappa, q * zeta**2
    return Points(*weights, log_r, log_d, kappa, log_sum, zeta, log_from_mean, log_sum_mean)


KERNELS = {
    "plain loops": (laplace_loops.sums_at_nodes, laplace_loops.integrals_at_atoms),
    "blocks": (laplace.node_sums, laplace.atom_integrals),
}


@pytest.mark.parametrize("kernels", KERNELS)
def test_node_sums_are_their_formulas(kernels):
    logs_above_r0 = np.log([R - R0, MEAN - R0])
    sums = KERNELS[kernels][0](NODES, points_of(RATIOS, WEIGHTS), *logs_above_r0)
    got = np.stack(list(sums), axis=1)
    with mp.workdps(40):
        for row, x in zip(got, NODES, strict=True):
            v = mp.exp(mpf(x))
            terms = []
            for q, r in zip(map(mpf, WEIGHTS), map(mpf, RATIOS), strict=True):
                d, y = v * (r - mpf(R0)), v * (r - mpf(MEAN))
                e, f = mp.exp(-d), mp.exp(-y)
                above = e - mp.exp(-v * (mpf(R) - mpf(R0)))
                third = (y**2 + 2 * y + 2) * f - 2
                parts = (e, e - 1, d * e, d**2 * e, d**3 * e, above)
                parts += (f - 1 + y, 1 - (1 + y) * f, third, y**2 * f, y**3 * f)
                terms.append([q * part for part in parts])
            for value, column in zip(row, zip(*terms, strict=True), strict=True):
                size = mp.fsum(abs(term) for term in column)
                assert abs(mpf(value) - mp.fsum(column)) <= 1e-13 * size


@pytest.mark.parametrize("which", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, -2, 3)])
@pytest.mark.parametrize("kernels", KERNELS)
def test_atom_integrals_are_their_formula(which, kernels):
    """Each derivative of psi - psi_R alone, and all together: (B16) and the lines above it."""
    rng = np.random.default_rng(5)
    coefficients = rng.uniform(0.5, 1.0, (len(NODES), 3)) * which
    coefficients = np.hstack([coefficients, np.abs(coefficients)])  # and their sizes
    mean = 0.8  # of the tilted law, any number will do
    v = np.exp(NODES)
    lead, variance = v * (R - mean), v**2 * 0.3
    tilted = np.stack([v * (mean - R0), lead, variance, np.abs(lead), variance], axis=1)
    points = points_of(RATIOS, WEIGHTS)
    got = KERNELS[kernels][1](NODES, coefficients, tilted, points, np.log(R - R0))
    got = np.stack(list(got))
    with mp.workdps(40):
        for (full, half, size), r in zip(got.T, map(mpf, RATIOS), strict=True):
            terms, parts = [], []
            for x, c in zip(NODES, coefficients[:, :3], strict=True):
                u = mp.exp(mpf(x))

                def bend(ratio, u=u, c=c):
                    """c0 psi + c1 v psi' + c2 v^2 psi'', times T exp(v r0)."""
                    away = u * (ratio - mpf(mean))
                    factors = 1, -away, away**2 - u**2 * mpf(0.3)
                    decay = mp.exp(-u * (ratio - mpf(R0)))
                    return [mpf(a) * f * decay for a, f in zip(c, factors, strict=True)]

                kappa = (r - mpf(R)) / (r + mpf(R))
                scale = u * r / abs(kappa)
                pair = bend(r), bend(mpf(R))
                terms.append(mp.sign(kappa) * scale * (mp.fsum(pair[0]) - mp.fsum(pair[1])))
                parts.append(scale * mp.fsum(map(abs, pair[0] + pair[1])))
            room = 1e-14 * mp.fsum(parts)
            assert abs(mpf(full) - mp.fsum(terms)) <= room
            assert abs(mpf(half) - 2 * mp.fsum(terms[::2])) <= 2 * room
            assert abs(mpf(full)) * (1 - 1e-12) <= mpf(size) <= 20 * mp.fsum(parts)


# --- atoms far from where they matter, which are left out --------------------------------------


FAR = np.array([-250.0, -90.0, -40.0, -3.0, -0.1, 0.4, 2.0, 60.0, 200.0])  # log r
FAR_NODES = np.array([-230.0, -130.0, -58.0, -30.0, -1.0, 0.5, 4.0, 6.0, 35.0, 80.0])


@pytest.mark.parametrize("log_ref", [-40.0, -0.1, 60.0])
@pytest.mark.parametrize("log_mean", [-41.0, 0.2, 60.1])
def test_far_atoms_bring_what_they_bring_one_by_one(log_ref, log_mean):
    """Against the plain loops, with the least ratio 0 and terms of one sign."""
    rng = np.random.default_rng(3)
    q = rng.uniform(0.5, 1.0, len(FAR)) * np.exp(-np.maximum(FAR, 0.0))
    kappa, zeta = np.tanh(0.5 * (FAR - log_ref)), np.tanh(0.5 * (FAR - log_mean))
    log_sum, log_sum_mean = np.logaddexp(FAR, log_ref), np.logaddexp(FAR, log_mean)
    with np.errstate(divide="ignore"):
        from_mean = log_sum_mean + np.log(np.abs(zeta))
    rows = FAR, FAR, kappa, log_sum, zeta, from_mean, log_sum_mean
    points = Points(q, q * kappa, q * zeta**2, *rows)
    sizes_of = Points(q, q * np.abs(kappa), q * zeta**2, *rows)
    got = np.stack(list(laplace.node_sums(FAR_NODES, points, log_ref, log_mean)))
    want = laplace_loops.sums_at_nodes(FAR_NODES, points, log_ref, log_mean)
    sizes = laplace_loops.sums_at_nodes(FAR_NODES, sizes_of, log_ref, log_mean)
    # of both signs are the contrasts, the third order, and cubes of y
    signed = np.isin(np.arange(len(want)), [5, 8, 10])[:, None]
    room = np.where(signed, np.inf, np.abs(want))
    assert (np.abs(got - want) <= 1e-13 * np.minimum(room, np.abs(sizes) + np.abs(want))).all()
    coefficients = np.zeros((len(FAR_NODES), 6))
    coefficients[:, 0] = coefficients[:, 3] = np.exp(-np.abs(FAR_NODES))
    tilted = np.zeros((len(FAR_NODES), 5))
    for bend in (0.0, 1.0):
        coefficients[:, [1, 2, 4, 5]] = bend * coefficients[:, [0]]
        tilted[:, 0] = tilted[:, 1] = tilted[:, 2] = bend
        tilted[:, 3:] = 1.0
        given = FAR_NODES, coefficients, tilted, points, log_ref
        got = np.stack(list(laplace.atom_integrals(*given)))
        want = laplace_loops.integrals_at_atoms(*given)
        assert (np.abs(got - want) <= 1e-12 * (want[2] if bend else np.abs(want))).all()
