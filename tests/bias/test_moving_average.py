"""Moving averages: given the state, in the long run, their moments, and what is refused."""

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles.moving_average import all_histories, given_the_state, long_run, next_u, simulate
from scipy.stats import norm

from samplesoft import exact_bias, exact_gradient_moments
from samplesoft.bias import moving_average_bias, moving_average_moments
from samplesoft.bias.plain import bias_of_moving_average
from samplesoft.losses import MovingAverageLoss
from samplesoft.samplers.base import Draw

SCHEMES = ("negatives", "masked")


def problem(rng, max_classes=6, least=1e-6):
    """Return random logits, a label and a proposal, whose probabilities are at least `least`."""
    n = int(rng.integers(2, max_classes + 1))
    logits = rng.normal(size=n) * rng.choice([0.3, 1.0, 3.0])
    q = rng.dirichlet(np.full(n, rng.choice([0.5, 1.0, 30.0]))) + least
    return logits, int(rng.integers(n)), q / q.sum()


def gradient_of_softmax(logits, label):
    p = np.exp(logits - np.logaddexp.reduce(logits))
    p[label] = 0.0
    p[label] = -p.sum()
    return p


# --- given the state --------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rate", [{"gamma": 0.3}, {"gamma": 0.9}, {"alpha": 0.4}, {"alpha": 20.0}])
def test_given_the_state_it_is_the_mean_over_all_draws(scheme, rate):
    rng = np.random.default_rng(0)
    for _ in range(12):
        logits, label, q = problem(rng)
        m = int(rng.integers(1, 4))
        u = float(rng.normal(scale=3.0))
        mean, _ = all_histories(logits, label, q, m, np.exp(u), 1, scheme=scheme, **rate)
        found = moving_average_bias(logits, label, q, m, log_sums=u, scheme=scheme, **rate)
        truth = mean - gradient_of_softmax(logits, label)
        assert np.abs(found.bias - truth).sum() < 1e-13 + 1e-12 * np.abs(truth).sum()
        assert np.abs(found.bias - truth).sum() < max(10.0 * found.error, 1e-13)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rate", [{"gamma": 0.3}, {"alpha": 0.4}])
def test_it_is_the_mean_of_the_loss(scheme, rate):
    """The gradient of the loss itself, over all draws from one state."""
    logits, label, q = np.array([0.2, 1.5, -0.4, 0.9]), 2, np.array([0.1, 0.3, 0.2, 0.4])
    m, u = 2, 0.7
    q_drawn = np.where(np.arange(4) == label, 0.0, q) if scheme == "negatives" else q
    q_drawn = q_drawn / q_drawn.sum()
    drawn = np.flatnonzero(q_drawn)
    ids = np.array([(i, j) for i in drawn for j in drawn])
    loss = MovingAverageLoss(reduction="sum", **rate)
    size = len(ids)
    _, cache = loss.forward(
        np.ones((size, 1)),
        logits[:, None],
        np.full(size, label),
        Draw(ids, np.log(q_drawn[ids])),
        log_sums=np.full(size, u),
        weights=q_drawn[ids].prod(axis=1),
    )
    gradient = np.zeros(4)
    found = loss.backward(cache).dW
    gradient[found.ids] = found.rows[:, 0]
    exact = moving_average_bias(logits, label, q, m, log_sums=u, scheme=scheme, **rate)
    expected = gradient_of_softmax(logits, label) + exact.bias
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-14)


def test_at_the_true_sum_the_error_holds_the_rounding_of_the_state():
    """The lag is then a difference of two rounded logs."""
    for logits, options in (
        ([5000.0, 4999.0, 4998.0], {"alpha": 1e-20}),
        ([0.3, 1.7, -0.4, 2.2], {"gamma": 1e-3}),
        ([0.0, 1.0], {"gamma": 0.1}),
    ):
        with mp.workdps(40):
            e = [mp.exp(mpf(x) - mpf(logits[0])) for x in logits]
            u = float(mp.log(sum(e)))
            x = mp.exp(mpf(u)) / sum(e)
            gamma = mpf(options.get("gamma", 0))
            if "alpha" in options:
                odds = mpf(options["alpha"]) * mp.exp(mpf(u))
                gamma = odds / (1 + odds)
            lag = float((1 - gamma) * (1 - x) / (gamma + (1 - gamma) * x))
        q = np.full(len(logits), 1.0 / len(logits))
        found = moving_average_bias(logits, 0, q, 10**9, log_sums=u, **options)
        share = 1.0 - float(np.exp(-u))
        assert abs(found.relative_step - lag) * share < found.error + 1e-9 * abs(lag) + 2e-9 * share


def test_the_error_is_never_too_small():
    """Also near the true sum, at tiny rates, and for logits near 3,000."""
    rng = np.random.default_rng(11)
    for index in range(60):
        logits, label, q = problem(rng, 4, least=10.0 ** -float(rng.integers(2, 12)))
        logits = logits * rng.choice([0.1, 1.0, 10.0]) + rng.choice([0.0, 3000.0])
        u = float(np.logaddexp.reduce(logits - logits[label])) + rng.choice([0.0, 1e-9, -2.0, 5.0])
        rate = {"gamma": float(rng.choice([0.5, 0.1, 1e-3, 1e-8]))}
        if index % 2:
            rate = {"alpha": float(10.0 ** rng.uniform(-12.0, 3.0))}
        m, scheme = int(rng.integers(1, 4)), SCHEMES[index % 3 % 2]
        truth = given_the_state(logits, label, q, m, u, scheme=scheme, **rate)
        found = moving_average_bias(logits, label, q, m, log_sums=u, scheme=scheme, **rate)
        gap = sum(abs(mpf(float(x)) - y) for x, y in zip(found.bias, truth, strict=True))
        assert gap <= found.error, index


@pytest.mark.parametrize("gamma", [1.0 - 1e-9, 0.99, 0.5, 0.05])
def test_smaller_steps_have_smaller_errors(gamma):
    logits, q = [-7.7476, -1.12407], [0.95201208, 0.04798792]
    found = moving_average_bias(logits, 0, q, 10**6, gamma=gamma, scheme="masked")
    assert found.error < 2e-10 * np.abs(found.bias).sum()


def test_a_new_example_and_gamma_1_are_sampled_softmax():
    logits, label, q = [0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4]
    sampled = exact_bias(logits, label, q, 5).bias
    for options in ({"log_sums": -np.inf}, {"gamma": 1.0}, {"gamma": 1.0, "log_sums": 3.0}):
        found = moving_average_bias(logits, label, q, 5, **options)
        np.testing.assert_allclose(found.bias, sampled, rtol=0, atol=1e-16)
    nearly = moving_average_bias(logits, label, q, 5, gamma=1.0 - 1e-13)
    np.testing.assert_allclose(nearly.bias, sampled, rtol=0, atol=1e-14)


def test_at_the_true_sum_the_state_pulls_neither_way():
    logits, label, q = np.array([0.5, 1.0, 2.0]), 1, [0.2, 0.4, 0.4]
    true_u = np.logaddexp.reduce(logits) - logits[label]
    steps = [
        moving_average_bias(logits, label, q, 10**6, gamma=0.2, log_sums=u).relative_step
        for u in (true_u - 0.5, true_u, true_u + 0.5)
    ]
    assert steps[0] > 0.1 and abs(steps[1]) < 1e-5 and steps[2] < -0.1


# --- the long run -----------------------------------------------------------------------------


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("gamma", "m"), [(0.9, 1), (0.5, 2), (0.3, 1), (0.15, 5)])
def test_the_long_run_has_all_digits(scheme, gamma, m):
    logits, label, q = problem(np.random.default_rng([m, len(scheme)]), 4)
    truth = long_run(logits, label, q, m, gamma, scheme)
    found = moving_average_bias(logits, label, q, m, gamma=gamma, scheme=scheme)
    assert np.abs(found.bias - truth).sum() < 1e-13 * np.abs(truth).sum() + 1e-24
    assert np.abs(found.bias - truth).sum() <= found.error + 1e-24


@pytest.mark.parametrize("rate", [{"gamma": 0.8}, {"alpha": 3.0}])
def test_after_many_visits_from_any_state_it_is_the_long_run(rate):
    """All histories of 11 visits with two outcomes each."""
    logits, label, q = np.array([0.0, 1.2, -0.5]), 0, np.array([0.2, 0.5, 0.3])
    for u in (0.5, 20.0):
        mean, states = all_histories(logits, label, q, 1, u, 11, **rate)
        found = moving_average_bias(logits, label, q, 1, **rate)
        bias = mean - gradient_of_softmax(logits, label)
        np.testing.assert_allclose(found.bias, bias, rtol=0, atol=2e-6)
        # WRONG: the bias of sampled softmax, and that at the true sum
        assert np.abs(exact_bias(logits, label, q, 1).bias - bias).sum() > 0.02
        # the mean over the states of the bias given the state
        chances, values = map(np.array, zip(*states, strict=True))
        of_states = moving_average_bias(
            np.tile(logits, (len(states), 1)),
            np.full(len(states), label),
            q,
            1,
            log_sums=np.log(values),
            **rate,
        )
        np.testing.assert_allclose(chances @ of_states.bias, bias, rtol=0, atol=1e-13)


def agree(num, seed, visits=20_000):
    """Return the number of random problems whose simulated means differ, corrected for all."""
    rng = np.random.default_rng(seed)
    different = 0
    for index in range(num):
        logits, label, q = problem(rng, 8, least=0.03)
        scheme = SCHEMES[index % 2]
        m = int(rng.integers(1, 6))
        rate = {"gamma": float(rng.choice([0.02, 0.1, 0.3, 0.7]))}
        if index % 3 == 0:
            rate = {"alpha": float(np.exp(rng.normal(-2.0, 1.0)))}
        means = simulate(
            logits, label, q, m, scheme=scheme, chains=48, visits=visits, seed=index, **rate
        )
        found = moving_average_bias(logits, label, q, m, scheme=scheme, **rate)
        expected = found.bias + gradient_of_softmax(logits, label)
        stderr = means.std(axis=0, ddof=1) / np.sqrt(len(means))
        z = np.abs(means.mean(axis=0) - expected) / np.maximum(stderr, 1e-12)
        limit = norm.isf(1e-3 / (2.0 * num * len(logits))) * 1.25  # few chains: wider tails
        different += bool((z > limit).any())
    return different


def test_random_problems_agree_with_simulation():
    assert agree(24, seed=3, visits=5_000) == 0


@pytest.mark.thorough
def test_a_thousand_random_problems_agree_with_simulation():
    assert agree(1000, seed=4) == 0


def test_simulation_finds_a_wrong_bias():
    logits, label, q = np.array([0.0, 1.2, -0.5]), 0, np.array([0.2, 0.6, 0.2])
    means = simulate(logits, label, q, 1, gamma=0.3, chains=48, visits=5_000)
    wrong = moving_average_bias(logits, label, q, 1, gamma=0.25)
    expected = wrong.bias + gradient_of_softmax(logits, label)
    stderr = means.std(axis=0, ddof=1) / np.sqrt(len(means))
    assert (np.abs(means.mean(axis=0) - expected) / stderr).max() > 5.0


@pytest.mark.parametrize("scheme", SCHEMES)
def test_small_gamma_has_the_limit(scheme):
    """m / gamma times the bias: (B93) of the README."""
    rng = np.random.default_rng(2)
    logits, label, q, m = rng.normal(size=7), 3, rng.dirichlet(np.ones(7)), 3
    p = np.exp(logits - np.logaddexp.reduce(logits))
    others = np.arange(7) != label
    dist = np.where(others, q, 0.0) / (q[others].sum() if scheme == "negatives" else 1.0)
    r = np.divide(p, dist, out=np.zeros(7), where=dist > 0.0)
    mean = dist @ r
    variance = dist @ r**2 - mean**2
    limit = np.where(others, p * (0.5 * variance - (r - mean)), 0.0)
    limit[label] = -limit.sum()
    gaps = []
    for gamma in (1e-2, 1e-3):
        found = moving_average_bias(logits, label, q, m, gamma=gamma, scheme=scheme)
        gaps.append(np.abs(m / gamma * found.bias - limit).max())
    assert gaps[1] < 0.15 * gaps[0] < 0.15 * 0.1 * np.abs(limit).max()


def test_turning_bias_is_that_of_many_more_draws():
    """In the limit of small gamma / m it is that of sampled softmax with m / gamma draws."""
    rng = np.random.default_rng(5)
    logits, q = rng.normal(size=9), rng.dirichlet(np.ones(9))
    for gamma, digits in ((0.1, 0.2), (0.01, 0.02)):
        memory = moving_average_bias(logits, 0, q, 1000, gamma=gamma).turning_bias
        draws = moving_average_bias(logits, 0, q, round(1000 / gamma), gamma=1.0).turning_bias
        assert np.abs(memory - draws).max() < 0.02 * np.abs(draws).max(), digits


@pytest.mark.parametrize("options", [{"gamma": 0.05}, {"alpha": 0.1}, {"log_sums": 1.0}])
def test_parts(options):
    rng = np.random.default_rng(6)
    logits, q = rng.normal(size=(3, 5)), rng.dirichlet(np.ones(5))
    labels = np.array([0, 4, 2])
    if "log_sums" in options:
        options = {"log_sums": [1.0, -np.inf, 9.0]}
    found = moving_average_bias(logits, labels, q, 2, **options)
    rows = np.arange(3)
    np.testing.assert_allclose(found.bias.sum(axis=1), 0.0, atol=1e-15)
    np.testing.assert_allclose(found.turning_bias.sum(axis=1), 0.0, atol=1e-15)
    assert (found.turning_bias[rows, labels] == 0.0).all()
    for row, label in enumerate(labels):
        step = found.relative_step[row] * gradient_of_softmax(logits[row], label)
        np.testing.assert_allclose(found.bias[row], found.turning_bias[row] + step, atol=1e-15)
        one = {"log_sums": [1.0, -np.inf, 9.0][row]} if "log_sums" in options else options
        alone = moving_average_bias(logits[row], int(label), q, 2, **one)
        np.testing.assert_array_equal(alone.bias, found.bias[row])
        assert isinstance(alone.relative_step, float) and isinstance(alone.error, float)


def test_scent_keeps_the_sum_of_the_fractions():
    """In the long run the mean of S / U is 1: the fractions of all classes sum to 1."""
    logits, label = np.array([0.0, 2.0, -1.0]), 0
    u, total, rng = 1.0, 0.0, np.random.default_rng(0)
    dist = np.array([0.0, 0.2, 0.5]) / 0.7
    mass = np.exp(logits - logits[label]) / np.where(dist > 0.0, dist, 1.0)
    visits = 200_000
    for j in rng.choice(3, size=visits, p=dist):
        s = 1.0 + mass[j]
        u = next_u(u, s, None, 0.2)
        total += s / u
    assert total / visits == pytest.approx(1.0, abs=5e-3)


# --- numbers at the ends of their range -------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "options",
    [
        {"gamma": 0.1},
        {"alpha": 1e-90},
        {"alpha": 1e300},
        {"log_sums": 700.0},
        {"log_sums": -700.0},
        {"alpha": 2.0, "log_sums": 700.0},
    ],
)
@pytest.mark.parametrize(
    "case",
    [
        ([1e4, -1e4, 0.0], [0.3, 0.3, 0.4], 2),
        ([0.0, 1.0, 2.0], [1e-300, 0.5, 0.5], 3),
        ([0.0, 1.0, 2.0], [0.5, 1e-300, 0.5], 3),
        ([0.0, 0.0], [0.5, 0.5], 1),
        ([0.0, 3.0, 50.0], [0.2, 0.3, 0.5], 1),
        ([0.0, 1.0, 2.0], [0.2, 0.3, 0.5], 10**9),
    ],
)
def test_extremes_are_finite(case, options, scheme):
    logits, q, m = case
    found = moving_average_bias(logits, 0, q, m, scheme=scheme, **options)
    size = np.abs(found.bias).sum()
    assert np.isfinite(found.bias).all() and found.error <= 1e-9 * max(size, 1e-60)
    moments = moving_average_moments(logits, 0, q, m, np.eye(len(q)), scheme=scheme, **options)
    assert np.isfinite([moments.variance, moments.squared_bias, moments.error]).all()


def test_q_equal_to_the_softmax_has_no_bias():
    logits = np.array([0.0, 1.0, 2.0, -1.0])
    q = np.exp(logits - np.logaddexp.reduce(logits))
    for options in ({"gamma": 0.2}, {"alpha": 0.5}):
        assert np.abs(moving_average_bias(logits, 1, q, 2, **options).bias).sum() < 1e-15


# --- moments ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("rate", [{"gamma": 0.8}, {"alpha": 3.0}])
@pytest.mark.parametrize("state", [None, 0.4])
def test_moments_are_those_of_all_histories(scheme, rate, state):
    logits, label, q = np.array([0.0, 1.2, -0.5]), 0, np.array([0.2, 0.5, 0.3])
    vectors = np.array([[1.0, 0.5], [-0.3, 2.0], [0.4, -1.0]])
    visits = 1 if state is not None else 10
    u = np.exp(state) if state is not None else 3.0
    m = 1
    dist = np.where(np.arange(3) == label, 0.0, q) if scheme == "negatives" else q
    dist = dist / dist.sum()
    mass = np.exp(logits - logits[label]) / dist.clip(1e-300)
    mass[label] = 0.0
    _, states = all_histories(logits, label, q, m, u, visits, scheme=scheme, **rate)
    square, mean = 0.0, np.zeros(2)
    for p, v in states:
        for j in np.flatnonzero(dist):
            new = next_u(v, 1.0 + mass[j], rate.get("gamma"), rate.get("alpha"))
            gradient = mass[j] / new * (vectors[j] - vectors[label])
            square += p * dist[j] * gradient @ gradient
            mean += p * dist[j] * gradient
    found = moving_average_moments(
        logits, label, q, m, vectors, log_sums=state, scheme=scheme, tau=2.0, **rate
    )
    tolerance = 1e-12 if state is not None else 1e-5
    assert found.variance == pytest.approx(4.0 * (square - mean @ mean), rel=tolerance)
    bias = mean - gradient_of_softmax(logits, label) @ vectors
    assert found.squared_bias == pytest.approx(4.0 * bias @ bias, rel=50.0 * tolerance)
    assert found.mse == pytest.approx(found.variance + found.squared_bias)


def test_the_error_of_scents_variance_has_all_its_factors():
    """A rare draw with a heavy weight: the variance from all outcomes, in 40 digits."""
    found = moving_average_moments(
        [-4.223931107955721, 8.039862125907044],
        0,
        [0.9999999986515418, 1.3484581499501464e-09],
        2,
        np.eye(2),
        alpha=6.134095539892832e-11,
        scheme="masked",
    )
    assert abs(found.variance - 1386798521.2429) <= found.error


def test_moments_of_gamma_1_are_those_of_sampled_softmax():
    rng = np.random.default_rng(7)
    logits, q, vectors = rng.normal(size=12), rng.dirichlet(np.ones(12)), rng.normal(size=(12, 3))
    sampled = exact_gradient_moments(logits, 2, q, 4, vectors)
    for gamma in (1.0, 1.0 - 1e-12):
        found = moving_average_moments(logits, 2, q, 4, vectors, gamma=gamma)
        assert found.variance == pytest.approx(sampled.variance, rel=1e-10)
        assert found.squared_bias == pytest.approx(sampled.squared_bias, rel=1e-10)


# --- the plain version, and what is refused ---------------------------------------------------


@pytest.mark.parametrize("gamma", [0.9, 0.3, 0.05])
def test_plain(gamma):
    rng = np.random.default_rng(8)
    logits, q = rng.normal(size=6), rng.dirichlet(np.ones(6))
    fast = moving_average_bias(logits, 1, q, 3, gamma=gamma).bias
    np.testing.assert_allclose(bias_of_moving_average(logits, 1, q, 3, gamma), fast, atol=1e-10)


ARGUMENTS = [0.0, 1.0, 2.0], 0, [0.2, 0.4, 0.4], 5


@pytest.mark.parametrize("function", [moving_average_bias, moving_average_moments])
@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"gamma": 0.0}, ValueError, "`gamma` must be finite and greater than 0"),
        ({"gamma": 1.5}, ValueError, "`gamma` must be from 0 to 1"),
        ({"gamma": "1"}, TypeError, "`gamma`"),
        ({"gamma": 0.1, "alpha": 1.0}, ValueError, "`alpha` must be left out"),
        ({"alpha": -1.0}, ValueError, "`alpha` must be finite and greater than 0"),
        ({"log_sums": np.inf}, ValueError, "`log_sums` must be finite"),
        ({"log_sums": [1.0, 2.0]}, ValueError, r"`log_sums` must have shape \(1,\)"),
        ({"alpha": 1e-300, "log_sums": -700.0}, ValueError, "`gamma`, or `alpha` times"),
        ({"scheme": "candidate"}, ValueError, "`scheme` must be one of negatives, masked"),
        ({"gamma": 1e-9}, ValueError, "`gamma` must be larger"),
    ],
)
def test_refused(function, options, kind, said):
    given = ARGUMENTS if function is moving_average_bias else (*ARGUMENTS, np.eye(3))
    with pytest.raises(kind, match=said):
        function(*given, **options)
