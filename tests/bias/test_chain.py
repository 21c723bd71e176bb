"""The law of a Metropolis-Hastings chain: against powers of its matrix in many digits."""

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles.naive_samplers import chi_square, metropolis_law

from samplesoft.bias import metropolis_bias
from samplesoft.samplers import MetropolisSampler, UnigramSampler


def distance(wanted, found):
    return float(mp.fsum(abs(x - mpf(float(y))) for x, y in zip(wanted, found, strict=True)))


def world(kind, n):
    rng = np.random.default_rng(n)
    q = rng.dirichlet(np.ones(n))
    if kind == "near":  # a proposal that nearly is the softmax
        logits = rng.normal(size=n)
        q = np.exp(logits) * (1.0 + 1e-2 * rng.normal(size=n))
        return logits, q / q.sum()
    if kind == "ties":
        return np.zeros(n), np.full(n, 1.0 / n)
    return {"plain": 2.0, "far": 300.0}[kind] * rng.normal(size=n), q


STARTS = {
    "q": lambda p: None,
    "best": lambda p: int(p.argmax()),
    "worst": lambda p: int(p.argmin()),
}
STARTS["law"] = lambda p: np.full(len(p), 1.0 / len(p))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("kind", ["plain", "far", "near", "ties"])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_equals_powers_of_the_matrix(n, kind, start):
    logits, q = world(kind, n)
    begin = STARTS[start](logits)
    result = metropolis_bias(logits, q, [0, 1, 2, 25], start=begin)
    assert result.bias.shape == result.distribution.shape == (4, n)
    with mp.workdps(600):
        for steps, bias, law in zip([0, 1, 2, 25], result.bias, result.distribution, strict=True):
            wanted, p = metropolis_law(logits, q, steps, begin)
            gaps = [a - b for a, b in zip(wanted, p, strict=True)]
            size = float(mp.fsum(map(abs, gaps)))
            # a bias of 1e-40 has its digits too; those of a q near p are in its rounding
            off = {"near": 1e-11, "ties": np.inf}.get(kind, 1e-13)
            if size > 1e-290:
                assert distance(gaps, bias) <= off * size
            else:
                assert np.abs(bias).max() < 1e-14
            np.testing.assert_allclose(law, [float(x) for x in wanted], rtol=1e-12, atol=1e-280)
            assert law.min() >= 0.0 and law.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(result.probs, [float(x) for x in p], rtol=1e-12, atol=1e-300)


def test_the_oracle_tells_a_chain_that_always_accepts_and_one_step_fewer():
    logits, q = world("plain", 7)
    law = metropolis_bias(logits, q, 3).distribution
    fewer = [float(x) for x in metropolis_law(logits, q, 2)[0]]
    assert abs(law - fewer).max() > 1e-3 and abs(law - q).max() > 1e-2


def test_digits_of_a_bias_far_below_the_softmax():
    logits, q = world("plain", 5)
    result = metropolis_bias(logits, q, 20_000)
    size = np.abs(result.bias).sum()
    assert 0.0 < size < 1e-40
    with mp.workdps(200):
        wanted, p = metropolis_law(logits, q, 20_000)
        gaps = [a - b for a, b in zip(wanted, p, strict=True)]
        assert distance(gaps, result.bias) < 1e-11 * size


@pytest.mark.parametrize("rest", [1e-6, 1e-9, 1e-15])
def test_a_proposal_of_nearly_one_class_keeps_the_digits_of_the_others(rest):
    q, steps = [1.0 - rest, rest], int(0.5 / rest)
    with mp.workdps(50):
        # p is uniform, and each class is left with the probability of the rare one
        gap = (mpf(q[0]) / (mpf(q[0]) + mpf(q[1])) - mpf(1) / 2) * (1 - 2 * mpf(q[1])) ** steps
    assert metropolis_bias([0.0, 0.0], q, steps).bias[0] == pytest.approx(float(gap), rel=1e-12)


def test_no_chance_is_negative_where_proposals_are_far_apart():
    rng = np.random.default_rng(0)
    for _ in range(300):
        logs = 300.0 * rng.normal(size=4)
        q = np.exp(np.maximum(logs - logs.max(), -690.0))
        q /= q.sum()
        assert metropolis_bias(1e4 * rng.normal(size=4), q, 3).distribution.min() >= 0.0


def test_the_rate_is_the_second_eigenvalue_and_all_are_those_of_liu():
    logits, q = world("plain", 6)
    p = np.exp(logits) / np.exp(logits).sum()
    w = p / q
    matrix = q * np.minimum(1.0, w / w[:, None])
    np.fill_diagonal(matrix, 0.0)
    np.fill_diagonal(matrix, 1.0 - matrix.sum(axis=1))
    values = np.sort(np.linalg.eigvals(matrix).real)
    liu = np.sort([(q * np.maximum(1.0 - w / x, 0.0)).sum() for x in w])
    np.testing.assert_allclose(values, np.append(liu[1:], 1.0), atol=1e-10)
    steps = np.arange(200)
    result = metropolis_bias(logits, q, steps)
    assert result.rate == pytest.approx(1.0 - 1.0 / w.max()) == pytest.approx(liu[-1])
    sizes = np.abs(result.bias).sum(axis=1)
    assert (sizes[1:] <= sizes[:-1] * result.rate * (1 + 1e-12)).all()
    assert sizes[-1] / sizes[-2] == pytest.approx(result.rate, rel=1e-9)
    # from any start (Liu): the distance in total variation is at most the power of the rate
    for start in range(6):
        far = np.abs(metropolis_bias(logits, q, steps, start=start).bias).sum(axis=1)
        assert (far <= 2.0 * result.rate**steps * (1 + 1e-12)).all()


def test_a_proposal_that_is_the_softmax_is_there_after_a_step():
    logits = np.array([0.0, 1.0, 2.0])
    q = np.exp(logits) / np.exp(logits).sum()
    result = metropolis_bias(logits, q, [1, 3], start=0)
    assert np.abs(result.bias).max() < 1e-15 and abs(result.rate) < 1e-15


def test_many_classes_and_many_steps():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=200_000)
    q = np.full(200_000, 1 / 200_000)
    result = metropolis_bias(logits, q, [0, 1, 100, 10**9])
    assert np.abs(result.bias.sum(axis=1)).max() < 1e-11
    np.testing.assert_allclose(result.distribution.sum(axis=1), 1.0, rtol=1e-10)
    # where the law is not much smaller than p, it is p and the bias
    np.testing.assert_allclose(result.distribution, result.probs + result.bias, rtol=1e-8)
    assert np.abs(result.bias[3]).max() == 0.0
    # one step from q, by the definition, for some classes
    w, some = result.probs / q, [0, 5, 77]
    stay = [(q * np.maximum(1.0 - w / w[j], 0.0)).sum() for j in some]
    come = [(q * q[j] * np.minimum(1.0, w[j] / w)).sum() for j in some]
    wanted = q[some] * stay + come
    np.testing.assert_allclose(result.distribution[1, some], wanted, rtol=1e-9)


def test_batches_are_rows_and_samplers_are_taken():
    rng = np.random.default_rng(4)
    logits, counts = rng.normal(size=(3, 5)), np.array([1.0, 5.0, 2.0, 2.0, 9.0])
    sampler = UnigramSampler(counts)
    q = sampler.probs(None)[0]
    laws = rng.dirichlet(np.ones(5), size=3)
    for start, of_row in ((None, [None] * 3), ([4, 0, 1], [4, 0, 1]), (2, [2] * 3), (laws, laws)):
        result = metropolis_bias(logits, sampler, [1, 4], start=start)
        assert result.bias.shape == (3, 2, 5) and result.rate.shape == (3,)
        for i in range(3):
            alone = metropolis_bias(logits[i], q, 4, start=of_row[i])
            np.testing.assert_allclose(result.bias[i, 1], alone.bias, rtol=1e-12, atol=1e-17)
            np.testing.assert_allclose(result.distribution[i, 1], alone.distribution, rtol=1e-12)
            assert alone.rate == pytest.approx(result.rate[i])


def test_simulated_chains_have_the_law_and_the_sampler_draws_it():
    rng = np.random.default_rng(5)
    rows, counts, chains, steps = rng.normal(size=(6, 3)), np.arange(1.0, 7.0), 200_000, 3
    h = np.array([1.0, -0.5, 2.0])
    sampler = MetropolisSampler(rows, counts, num_steps=steps, power=0.5)
    q = np.sqrt(counts) / np.sqrt(counts).sum()
    w = np.exp(rows @ h) / q
    state = rng.choice(6, size=chains, p=q)
    for _ in range(steps):
        proposed = rng.choice(6, size=chains, p=q)
        state = np.where(rng.random(chains) * w[state] < w[proposed], proposed, state)
    law = sampler.probs(h)[0]
    np.testing.assert_allclose(law, metropolis_bias(rows @ h, q, steps).distribution, rtol=1e-12)
    assert chi_square(np.bincount(state, minlength=6), law) > 1e-4
    drawn = sampler.sample(h, chains, rng=1)
    assert chi_square(np.bincount(drawn.ids[0], minlength=6), law) > 1e-4
    for twin in (2, 4):  # steps
        other = MetropolisSampler(rows, counts, num_steps=twin, power=0.5).probs(h)[0]
        assert chi_square(np.bincount(state, minlength=6), other) < 1e-8
    few = MetropolisSampler(rows, counts, num_steps=0).probs(h)
    np.testing.assert_allclose(few, UnigramSampler(counts).probs(None), rtol=1e-13)
    many = MetropolisSampler(rows, counts, num_steps=10**6).probs(h)[0]
    np.testing.assert_allclose(many, np.exp(rows @ h) / np.exp(rows @ h).sum(), rtol=1e-12)
    with pytest.raises(ValueError, match="`num_steps` must be at least 0"):
        MetropolisSampler(rows, counts, num_steps=-1)


LOGITS, Q = [0.0, 1.0], [0.5, 0.5]


@pytest.mark.parametrize(
    ("kind", "message", "arguments"),
    [
        (ValueError, "`q` must be greater than 0 on every class", (LOGITS, [1.0, 0.0], 1)),
        (ValueError, "`q` must sum to 1", (LOGITS, [0.1, 0.2], 1)),
        (ValueError, "`num_steps` must be at least 0", (LOGITS, Q, -1)),
        (TypeError, "`num_steps` must be an integer", (LOGITS, Q, 1.5)),
        (ValueError, "`logits` must be finite", ([0.0, np.nan], Q, 1)),
        (ValueError, "`start` must lie in 0..1", (LOGITS, Q, 1, 2)),
        (ValueError, "`start` must have shape", (LOGITS, Q, 1, [[0.5, 0.5]])),
        (ValueError, "`start` must sum to 1", (LOGITS, Q, 1, [0.5, 0.1])),
    ],
)
def test_malformed_arguments_are_named(kind, message, arguments):
    with pytest.raises(kind, match=message):
        metropolis_bias(*arguments[:3], start=dict(enumerate(arguments)).get(3))
