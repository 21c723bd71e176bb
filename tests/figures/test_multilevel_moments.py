"""Variance of the multilevel gradient: against all outcomes, the loss itself, limits and bounds."""

import doctest
import itertools
import math

import multilevel_moments as module
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from multilevel_moments import (
    expected_draws,
    gradient_levels,
    make_nested_grid,
    multilevel_moments,
)

from samplesoft import exact_gradient_moments
from samplesoft.bias.with_replacement.draws import make_draws
from samplesoft.losses import MultilevelLoss
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import UnigramSampler
from samplesoft.schemes import DECAY, SCHEMES, last_level

LOGITS, Q = np.array([0.3, -1.0, 1.2]), np.array([0.5, 0.2, 0.3])
C = np.random.default_rng(0).normal(size=(3, 2))
SCHEME_NAMES = ("negatives", "masked")


def test_examples_of_docstrings():
    assert doctest.testmod(module).failed == 0


def draw_probs(label, q, scheme):
    probs = np.array(q, dtype=float)
    if scheme == "negatives":
        probs[label] = 0.0
    return probs / probs.sum()


def sums_of(logits, label, probs, c, ids):
    """Return S, and its share of each c less the mean over the softmax, for draws (..., m)."""
    e = np.exp(logits - np.log(np.exp(logits).sum()))
    r = np.where((probs > 0) & (np.arange(len(e)) != label), e / np.where(probs > 0, probs, 1), 0)
    w = r[ids]
    total = e[label] + w.mean(axis=-1)[..., None]
    return total, (e[label] * c[label] + np.mean(w[..., None] * c[ids], axis=-2)) / total - e @ c


def gradients(*case):
    return sums_of(*case)[1]


def difference(logits, label, probs, c, ids, is_last):
    """Return what a level adds; the blocks of each half lie in it."""
    total, whole = sums_of(logits, label, probs, c, ids)
    if is_last:  # the full gradient, 0 here, less `whole`, and that of S / Z
        return -whole + total * whole
    halves = (gradients(logits, label, probs, c, part) for part in np.split(ids, 2, axis=-1))
    return whole - 0.5 * sum(halves)


def blocks_mean(logits, label, probs, c, ids, m):
    blocks = ids.reshape(*ids.shape[:-1], -1, m)
    return gradients(logits, label, probs, c, blocks).mean(axis=-2)


def levels_of(logits, label, q, m, c, scheme="negatives", last=1):
    law = make_draws(np.asarray(logits), label, np.asarray(q), m, SCHEMES[scheme])
    return gradient_levels(law, c, last)


def every_draw(probs, num):
    """Return all sequences of draws, and their chances."""
    ids = np.array(list(itertools.product(np.flatnonzero(probs), repeat=num)))
    return ids, probs[ids].prod(axis=1)


@pytest.mark.parametrize("scheme", SCHEME_NAMES)
@pytest.mark.parametrize(("m", "last"), [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("label", [0, 2])
def test_equals_enumeration(label, m, last, scheme):
    case = LOGITS, label, draw_probs(label, Q, scheme), C
    found = levels_of(LOGITS, label, Q, m, C, scheme, last)
    first, second, unweighted = 0.0, 0.0, 0.0
    for level in range(last + 1):
        is_last = level == last
        ids, outcome = every_draw(case[2], m << min(level + 1, last))
        chance = DECAY**last if is_last else (1 - DECAY) * DECAY**level
        change, block = difference(*case, ids, is_last), blocks_mean(*case, ids, m)
        both = outcome @ (change * block).sum(axis=1) - (outcome @ change) @ (outcome @ block)
        assert found.squares[level] == pytest.approx(outcome @ (change**2).sum(axis=1), rel=1e-11)
        assert found.covariances[level] == pytest.approx(both, rel=1e-10, abs=1e-15)
        estimate = block + change / chance
        first = first + chance * (outcome @ estimate)
        second += chance * (outcome @ (estimate**2).sum(axis=1))
        unweighted += chance * (outcome @ ((block + change) ** 2).sum(axis=1))
    np.testing.assert_allclose(first, 0.0, atol=1e-14)
    assert found.variance() == pytest.approx(second, rel=1e-11)
    assert found.variance() != pytest.approx(unweighted, rel=1e-4)
    assert found.variance(0.4) != pytest.approx(second, rel=1e-5)


def exact_variance(logits, label, q, m, c, scheme, last):
    """Return the variance by summing over all outcomes of all levels, in mpmath."""
    e = [mp.exp(mpf(float(x))) for x in logits]
    e = [x / mp.fsum(e) for x in e]
    q = [mpf(float(x)) if scheme == "masked" or j != label else mpf(0) for j, x in enumerate(q)]
    q = [x / mp.fsum(q) for x in q]
    c = mp.matrix(c.tolist())
    mean = mp.matrix([e]) * c
    r = [e[j] / q[j] if j != label else mpf(0) for j in range(len(e))]

    def sums(ids):
        total = e[label] + mp.fsum(r[i] for i in ids) / len(ids)
        whole = e[label] * c[label, :] + sum((r[i] * c[i, :] for i in ids), 0 * mean) / len(ids)
        return total, whole / total - mean

    drawn, second = [j for j in range(len(e)) if q[j] > 0], mpf(0)
    for level in range(last + 1):
        num = m << min(level + 1, last)
        chance = DECAY**last if level == last else (1 - DECAY) * DECAY**level
        for ids in itertools.product(drawn, repeat=num):
            total, whole = sums(ids)
            change = (total - 1) * whole
            if level < last:
                change = whole - (sums(ids[: num // 2])[1] + sums(ids[num // 2 :])[1]) / 2
            blocks = [sums(ids[i : i + m])[1] for i in range(0, num, m)]
            estimate = sum(blocks, 0 * mean) / len(blocks) + change / chance
            second += chance * mp.fprod(q[i] for i in ids) * mp.fsum(x**2 for x in estimate)
    return second


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("gap", [30.0, 46.0, 160.0, 400.0])
def test_equals_enumeration_for_logits_far_apart(gap):
    """Each of the classes in turn outweighs the others; a third is in between."""
    rng = np.random.default_rng(int(gap))
    with mp.workdps(600):
        for trial in range(9):
            logits = rng.normal(size=3)
            logits[trial % 3] += gap
            logits[(trial + 1) % 3] += gap * rng.random() * (trial > 5)
            q, c = rng.dirichlet(np.ones(3)), rng.normal(size=(3, 2))
            for scheme, m, last in (("negatives", 1, 2), ("negatives", 2, 1), ("masked", 1, 1)):
                case = logits, trial // 3, q, m, c, scheme, last
                wanted = exact_variance(*case)
                assert levels_of(*case).variance() == pytest.approx(float(wanted), rel=1e-11)


def test_an_example_whose_logits_are_47_nats_apart():
    """The exact variance of the loss, which is gone, was a quarter too small here."""
    logits, q = np.array([-0.87, 46.32, -1.31]), np.array([0.35, 0.36, 0.29])
    found = multilevel_moments(logits, 0, q, 1, C).variance
    with mp.workdps(200):
        wanted = exact_variance(logits, 0, q, 1, C, "negatives", last_level(1, 3))
    assert found == pytest.approx(float(wanted), rel=1e-11)


@pytest.mark.parametrize("scheme", SCHEME_NAMES)
def test_is_the_variance_and_the_cost_of_the_loss(scheme):
    rng = np.random.default_rng(3)
    n, m, label, size = 8, 1, 5, 100
    rows, h, q = rng.normal(size=(n, 2)), rng.normal(size=2), rng.dirichlet(np.full(n, 6.0))
    found = multilevel_moments(rows @ h, label, q, m, rows, scheme=scheme)
    loss = MultilevelLoss(scheme=scheme)
    layer = SoftmaxLayer(rows, loss, UnigramSampler(q), num_sampled=m, shared=False)
    e = np.exp(rows @ h)
    full = e @ rows / e.sum() - rows[label]
    squares = []
    for seed in range(1500):
        cache = layer.forward(np.tile(h, (size, 1)), np.full(size, label), rng=seed)[1]
        dh = layer.backward(cache)[0] * size
        squares.append(((dh - full) ** 2).sum(axis=1).mean())
    near = 5 * np.std(squares) / math.sqrt(len(squares))
    assert near < 0.2 * found.variance
    assert abs(np.mean(squares) - found.variance) < near


@st.composite
def examples(draw):
    n = draw(st.integers(3, 7))
    spread = draw(st.sampled_from([0.3, 3.0, 30.0]))
    logits = draw(st.lists(st.floats(-spread, spread), min_size=n, max_size=n))
    powers = draw(st.lists(st.floats(-3.0, 0.0), min_size=n, max_size=n))
    q = 10.0 ** np.array(powers)
    c = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(n, 2))
    return np.array(logits), draw(st.integers(0, n - 1)), q / q.sum(), c


@settings(max_examples=60, deadline=None)
@given(examples(), st.sampled_from([1, 3, 50]), st.sampled_from(SCHEME_NAMES))
def test_squares_are_below_the_bound_and_reach_their_limit(example, m, scheme):
    logits, label, q, c = example
    found = levels_of(logits, label, q, m, c, scheme, 15)
    num_draws = m * 2.0 ** np.arange(1, 16)
    probs = draw_probs(label, q, scheme)
    e = np.exp(logits - logits.max())
    e /= e.sum()
    others = (np.arange(len(e)) != label) & (probs > 0)
    r = e[others] / probs[others]
    largest = np.abs(c - e @ c).max() * math.sqrt(2.0)
    least = e[label] + (0.0 if scheme == "masked" else r.min())
    bound = 64 * largest**2 * (probs[others] @ r**4) / (least**4 * num_draws**2)
    assert (found.squares[:-1] <= bound * (1 + 1e-9) + 1e-12 / num_draws).all()


@settings(max_examples=40, deadline=None)
@given(examples(), st.sampled_from([1, 4]), st.sampled_from(SCHEME_NAMES))
def test_the_first_terms_are_those_of_the_gradient_of_a_block(example, m, scheme):
    logits, label, q, c = example
    found = levels_of(logits, label, q, m, c, scheme)
    plain = exact_gradient_moments(logits, label, q, m, c, scheme=scheme)
    assert found.block_variance == pytest.approx(plain.variance, rel=1e-8, abs=1e-13)
    assert found.block_squared_bias == pytest.approx(plain.squared_bias, rel=1e-8, abs=1e-13)
    assert 0.0 <= found.variance() < np.inf


@pytest.mark.parametrize("scheme", SCHEME_NAMES)
def test_differences_fall_to_their_limit(scheme):
    """V G + 2 |k|**2 over M**2, with G and k from the variance and bias of many draws."""
    found = levels_of(LOGITS, 0, Q, 1, C, scheme, 14)
    plain = exact_gradient_moments(LOGITS, 0, Q, 10**8, C, scheme=scheme)
    probs = draw_probs(0, Q, scheme)
    e = np.exp(LOGITS) / np.exp(LOGITS).sum()
    r = np.where(np.arange(3) > 0, e / np.where(probs > 0, probs, 1.0), 0.0)
    v = probs @ (r - e[1:].sum()) ** 2
    limit = v * plain.variance * 1e8 + 2 * plain.squared_bias * 1e16
    squares = found.squares[:-1] * 4.0 ** np.arange(1, 15)
    assert squares[-1] == pytest.approx(limit, rel=2e-3)
    # that of the last level is as large, but for what F and G share
    assert 0.5 < found.squares[-1] * 4.0**14 / limit < 2.0


def test_many_draws_cost_twice_the_variance_of_as_many_without_levels():
    last = 40
    found = levels_of(LOGITS, 0, Q, 10**6, C, last=last)
    plain = exact_gradient_moments(LOGITS, 0, Q, 10**6, C)
    cost = expected_draws(1, last, 0)
    assert cost == pytest.approx(2 * (1 - DECAY) / (1 - 2 * DECAY), rel=1e-3)
    assert found.variance() * cost / plain.variance == pytest.approx(1.733, abs=2e-3)


def test_a_proposal_near_the_softmax_leaves_the_variance_of_the_blocks():
    q = np.exp(LOGITS) / np.exp(LOGITS).sum()
    found = levels_of(LOGITS, 1, q, 4, C, last=30)
    plain = exact_gradient_moments(LOGITS, 1, q, 4, C)
    share = 0.5 * (1 - DECAY) / (1 - 0.5 * DECAY)  # of one block
    assert found.variance() == pytest.approx(share * plain.variance, rel=1e-6)


def test_a_rare_class_adds_its_mass_times_a_power_of_its_ratio():
    """The variance of plain sampled softmax has a bound; this has none over all q."""
    mass = 1e-5
    logits = np.log([0.3, 0.7 - mass, mass])
    for ratio, m in ((1e4, 1), (1e6, 100), (1e8, 100)):
        q = [0.3, 0.7 - mass / ratio, mass / ratio]
        found = levels_of(logits, 0, q, m, np.eye(3), last=35)
        assert found.variance() == pytest.approx(0.0815 * mass * (ratio / m) ** 1.5, rel=0.01)
        assert exact_gradient_moments(logits, 0, q, m, np.eye(3)).variance < 1e-6


@pytest.mark.parametrize("rate", [1.2, 1.8])
def test_no_rate_beats_three_halves_where_the_differences_rule(rate):
    """Of variance times cost; for many draws a larger rate is the better one."""

    def gain(levels, others):
        last = len(levels.squares) - 1
        products = [
            levels.variance(2.0**-power) * expected_draws(1, last, others, 2.0**-power)
            for power in (rate, 1.5)
        ]
        return products[0] / products[1]

    few = levels_of([0.0, 6.0, 0.0, 0.0], 0, np.full(4, 0.25), 1, np.eye(4), last=20)
    assert gain(few, 0) > 1.0
    many = levels_of([0.0, 1.0, 0.0, 0.0], 0, np.full(4, 0.25), 10**5, np.eye(4), last=20)
    assert (gain(many, 0) < 1.0) == (rate > 1.5)


def test_expected_draws():
    for m, n in ((1, 3), (1, 5), (7, 100), (300, 100)):
        last = last_level(m, n)
        rng = np.random.default_rng(0)
        levels = np.minimum(rng.geometric(1 - DECAY, size=100_000) - 1, last)
        cost = m * 2.0 ** np.minimum(levels + 1, last) + (levels == last) * (n - 1)
        near = 5 * cost.std() / math.sqrt(cost.size)
        found = multilevel_moments(np.zeros(n), 0, np.full(n, 1 / n), m, np.eye(n)[:, :1])
        assert abs(found.num_draws - cost.mean()) < near
        assert found.num_draws == expected_draws(m, last, n - 1)
    masked = multilevel_moments(LOGITS, 0, Q, 1, C, scheme="masked").num_draws
    plain = multilevel_moments(LOGITS, 0, Q, 1, C).num_draws
    assert masked - plain == pytest.approx(DECAY ** last_level(1, 3))


def test_of_one_outcome_there_is_no_variance():
    assert multilevel_moments([0.0, 3.0], 0, [0.5, 0.5], 2, np.eye(2)).variance == 0.0
    assert multilevel_moments([0.0, 3.0], 0, [0.5, 0.5], 2, np.eye(2), scheme="masked").variance > 0
    assert multilevel_moments([1e4, 0.0, 3.0], 0, Q, 2, C).variance == 0.0


def test_tau_and_a_common_part_of_the_class_vectors():
    one = multilevel_moments(LOGITS, 0, Q, 5, C)
    assert multilevel_moments(LOGITS, 0, Q, 5, C, tau=3.0).variance == pytest.approx(
        9 * one.variance, rel=1e-14
    )
    shifted = multilevel_moments(LOGITS, 0, Q, 5, C + 1e4)
    assert shifted.variance == pytest.approx(one.variance, rel=1e-8)


def test_a_batch_is_its_examples():
    logits = np.random.default_rng(1).normal(size=(3, 3))
    batch = multilevel_moments(logits, [0, 2, 1], Q, 5, C, tau=2.0)
    for i, label in enumerate((0, 2, 1)):
        one = multilevel_moments(logits[i], label, Q, 5, C, tau=2.0)
        assert (batch.variance[i], batch.num_draws) == (one.variance, one.num_draws)


@pytest.mark.parametrize("spread", [30.0, 300.0, 700.0])
def test_logits_far_apart(spread):
    rng = np.random.default_rng(2)
    for scheme in SCHEME_NAMES:
        logits, q = rng.uniform(-spread, spread, 8), rng.dirichlet(np.ones(8))
        found = multilevel_moments(logits, 3, q, 2, np.eye(8), tau=0.5, scheme=scheme)
        assert 0.0 < found.variance < np.inf


def test_ratios_whose_squares_overflow():
    found = multilevel_moments(np.zeros(3), 0, [0.5, 0.5 - 1e-200, 1e-200], 3, np.eye(3))
    assert 1e190 < found.variance < 1e210


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scheme": "reject"}, "`scheme` must be one whose sum"),
        ({"scheme": "jackknife"}, "`scheme` must"),
        ({"class_embeddings": C[:2]}, "`class_embeddings` must have one row for.*3"),
        ({"q": [0.5, 0.5, 0.0]}, "`q` must be greater than 0"),
        ({"num_sampled": 0}, "`num_sampled` must be at least 1"),
        ({"tau": -1.0}, "`tau` must be finite and greater than 0"),
    ],
)
def test_bad_input_is_named(change, message):
    good = {"logits": LOGITS, "labels": 0, "q": Q, "num_sampled": 5, "class_embeddings": C}
    with pytest.raises(ValueError, match=message):
        multilevel_moments(**(good | change))


def test_nested_integrals():
    grid = make_nested_grid(-25.0, 6.0)
    v = np.exp(grid.x)
    wanted = -np.expm1(-v)
    np.testing.assert_allclose(grid.mean_before(np.exp(-v)), wanted / v, rtol=1e-11)
    primitive = grid.primitive((v * np.exp(-v))[:, None])[:, 0]
    np.testing.assert_allclose(primitive, wanted, rtol=1e-13, atol=2 * math.exp(-25.0))
    assert (grid.dx * grid.over_x) @ (v**2 * np.exp(-v)) == pytest.approx(1.0, rel=1e-13)
    assert grid.dx @ (v * np.exp(-v)) == pytest.approx(1.0, rel=1e-10)
