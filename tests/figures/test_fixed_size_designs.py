"""Designs of fixed size against lists of all their sets, which this file makes by itself."""

import doctest
import math
from collections import Counter
from itertools import combinations
from pathlib import Path

import fixed_size_designs as script
import numpy as np
import pytest
import sampling_designs as module
from sampling_designs import (
    ConditionalPoisson,
    OrderedPivotal,
    Systematic,
    design_bias,
    design_mse,
    proportional_inclusion,
)
from scipy.stats import chi2
from scripts import run_script
from tables import read_csv

from samplesoft import exact_bias, exact_gradient_moments
from samplesoft.bias.without_replacement.race import ExponentialRace

DESIGNS = [ConditionalPoisson, OrderedPivotal, Systematic]
SIZES = [(2, 1), (3, 2), (5, 2), (6, 3), (7, 3), (8, 4)]
TABLE = read_csv(Path(script.__file__).with_suffix(".csv"))
each_design = pytest.mark.parametrize("design", DESIGNS)


# all sets and their probabilities, by other means than the module's -------------------------------


def sets_of_conditional_poisson(pi):
    """The odds by the fixed point of Chen, Dempster and Liu, over the list of all sets."""
    pi = np.array(pi)
    certain = np.flatnonzero(pi == 1.0)
    free = np.flatnonzero(pi < 1.0)
    if not len(free):
        return {frozenset(certain): 1.0}
    sets = [np.array(ids) for ids in combinations(free, round(pi.sum()) - len(certain))]
    held = np.array([np.isin(free, ids) for ids in sets])
    log_odds = np.log(pi[free])
    change = np.ones(1)
    while np.abs(change).max() > 1e-15 * len(free):
        chances = np.exp(held @ log_odds)
        chances /= chances.sum()
        change = np.log(pi[free] / (chances @ held))
        log_odds += change
    return {frozenset([*certain, *ids]): float(c) for ids, c in zip(sets, chances, strict=True)}


def sets_of_pivotal(pi):
    """All outcomes of the fights, of which each changes a list of probabilities."""
    found = Counter()

    def fight(probs, chance):
        open_ones = [k for k, p in enumerate(probs) if 1e-12 < p < 1.0 - 1e-12]
        if len(open_ones) < 2:
            found[frozenset(k for k, p in enumerate(probs) if p > 0.5)] += chance
            return
        i, j = open_ones[:2]
        a, b = probs[i], probs[j]
        if a + b <= 1.0:
            outcomes = ((a + b, 0.0), a / (a + b)), ((0.0, a + b), b / (a + b))
        else:
            either = 2.0 - a - b
            outcomes = (
                ((1.0, a + b - 1.0), (1.0 - b) / either),
                (
                    (a + b - 1.0, 1.0),
                    (1.0 - a) / either,
                ),
            )
        for (first, second), share in outcomes:
            changed = list(probs)
            changed[i], changed[j] = first, second
            fight(changed, chance * share)

    fight(list(pi), 1.0)
    return dict(found)


def sets_of_systematic(pi):
    """The sets at the middles between the points where one of them changes."""
    ends = np.concatenate([[0.0], np.cumsum(pi)])
    changes = np.unique(np.concatenate([[0.0], ends % 1.0, [1.0]]))
    found = Counter()
    for left, right in zip(changes[:-1], changes[1:], strict=True):
        if right - left > 1e-13:
            points = 0.5 * (left + right) + np.arange(round(ends[-1]))
            found[frozenset(np.searchsorted(ends, points) - 1)] += right - left
    return dict(found)


ALL_SETS = {
    ConditionalPoisson: sets_of_conditional_poisson,
    OrderedPivotal: sets_of_pivotal,
    Systematic: sets_of_systematic,
}


def moments_over_sets(logits, label, pi, sets):
    """Return E p' - p, E L' - L and E|p' - p|**2, one set after another."""
    e = np.exp(logits - logits.max())
    e /= e.sum()
    others = np.delete(np.arange(len(e)), label)
    mean, loss, square = np.zeros(len(e)), 0.0, 0.0
    for ids, chance in sets.items():
        mass = np.zeros(len(e))
        mass[label] = e[label]
        for k in ids:
            mass[others[k]] = e[others[k]] / pi[k]
        p = mass / mass.sum()
        mean += chance * p
        loss += chance * math.log(mass.sum())
        square += chance * ((p - e) ** 2).sum()
    return mean - e, loss, square


def some_pi(num, m, seed=0, capped=False):
    rng = np.random.default_rng([num, m, seed])
    sizes = rng.dirichlet(np.ones(num))
    if capped:
        sizes[rng.integers(num)] = 5.0
    return proportional_inclusion(sizes, m)


# -------------------------------------------------------------------------------------------------


def test_the_examples_in_the_documentation():
    assert doctest.testmod(module).failed == 0


@each_design
@pytest.mark.parametrize(("num", "m"), SIZES)
@pytest.mark.parametrize("capped", [False, True])
def test_bias_loss_and_error_against_all_sets(design, num, m, capped):
    pi = some_pi(num, m, capped=capped)
    sets = ALL_SETS[design](pi)
    assert sum(sets.values()) == pytest.approx(1.0, abs=1e-12)
    rng = np.random.default_rng(num)
    for label in (0, num):
        logits = 2.0 * rng.normal(size=num + 1)
        bias, loss, square = moments_over_sets(logits, label, pi, sets)
        found = design_bias(logits, label, design(pi))
        assert np.abs(found.bias - bias).sum() <= min(found.error + 1e-14, 3e-13)
        assert found.loss_bias == pytest.approx(loss, abs=1e-11)
        assert design_mse(logits, label, design(pi)) == pytest.approx(square, rel=1e-10, abs=1e-13)


@each_design
@pytest.mark.parametrize("gap", [40.0, 300.0])
def test_sets_without_the_one_large_class(design, gap):
    """They have other probabilities p', and their S is less by many orders of magnitude."""
    pi = some_pi(6, 3)
    sets = ALL_SETS[design](pi)
    logits = np.array([0.0, 1.0, gap, -1.0, 2.0, 0.5, -gap])
    bias, loss, square = moments_over_sets(logits, 0, pi, sets)
    found = design_bias(logits, 0, design(pi))
    np.testing.assert_allclose(found.bias, bias, atol=1e-11)
    assert found.loss_bias == pytest.approx(loss, rel=1e-11)
    assert design_mse(logits, 0, design(pi)) == pytest.approx(square, rel=1e-10)


@pytest.mark.parametrize("design", [OrderedPivotal, Systematic])
def test_an_order_changes_the_design_as_it_changes_the_classes(design):
    pi, order = some_pi(8, 3), np.random.default_rng(1).permutation(8)
    in_order = {frozenset(order[list(ids)]): c for ids, c in ALL_SETS[design](pi[order]).items()}
    logits = 2.0 * np.random.default_rng(2).normal(size=9)
    bias, loss, square = moments_over_sets(logits, 4, pi, in_order)
    found = design_bias(logits, 4, design(pi, order))
    np.testing.assert_allclose(found.bias, bias, atol=1e-12)
    assert found.loss_bias == pytest.approx(loss, abs=1e-11)
    assert design_mse(logits, 4, design(pi, order)) == pytest.approx(square, rel=1e-10)
    assert np.abs(design_bias(logits, 4, design(pi)).bias - bias).sum() > 1e-3


@each_design
@pytest.mark.parametrize(("num", "m"), SIZES)
def test_joint_inclusion_against_all_sets(design, num, m):
    pi = some_pi(num, m, capped=num > 6)
    wanted = np.zeros((num, num))
    for ids, chance in ALL_SETS[design](pi).items():
        wanted[np.ix_(list(ids), list(ids))] += chance
    joint = design(pi).joint_inclusion()
    np.testing.assert_allclose(joint, wanted, atol=1e-13)
    np.testing.assert_allclose(np.diag(joint), pi, rtol=1e-14)
    if num > 3:
        other = DESIGNS[DESIGNS.index(design) - 1](pi).joint_inclusion()
        assert np.abs(other - wanted).max() > 1e-3


@each_design
@pytest.mark.parametrize("m", [1, 10, 100, 198])
def test_inclusion_probabilities_sum_to_the_size(design, m):
    """Of many classes: by first order, and by second order, where the size is m for certain."""
    pi = some_pi(199, m)
    law = design(pi)
    mean, members = law.expect_exponentials(np.zeros(199), [])
    assert mean[0] == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(members[0], pi, rtol=1e-11)
    joint = law.joint_inclusion()
    np.testing.assert_allclose(joint.sum(axis=1), m * pi, rtol=1e-11)
    np.testing.assert_allclose(joint, joint.T, rtol=1e-9, atol=1e-15)
    assert (law.draw(50, np.random.default_rng(0)).sum(axis=1) == m).all()


@each_design
def test_probabilities_near_0_and_1_keep_their_digits(design):
    small = np.array([1e-15, 1e-12, 1e-6, 0.25])
    pi = np.concatenate([small, 1.0 - small, [1.0]])
    law = design(pi)
    _, members = law.expect_exponentials(np.zeros(9), [])
    np.testing.assert_allclose(members[0], pi, rtol=1e-13)
    out = 1.0 - law.joint_inclusion()[8]
    np.testing.assert_allclose(out, 1.0 - pi, rtol=1e-3, atol=1e-16)
    assert (law.draw(1000, np.random.default_rng(0)).sum(axis=1) == 5).all()
    logits = np.linspace(-3.0, 3.0, 10)
    assert np.isfinite(design_bias(logits, 3, law).bias).all()


def test_odds_of_probabilities_near_1():
    """1 - pi follows from the odds to a relative accuracy: so does pi of the complement."""
    small = 2.0 ** -np.array([46, 30, 13, 1])
    pi = np.concatenate([small, 1.0 - small])
    odds, opposite = (ConditionalPoisson(p).log_odds for p in (pi, 1.0 - pi))
    assert np.ptp(odds + opposite) < 1e-11  # a multiple of all odds changes nothing


# draws -------------------------------------------------------------------------------------------


def pearson(drawn, sets, num_sets):
    """Return the p-value of Pearson's test that sets were drawn with given probabilities."""
    seen = Counter(frozenset(np.flatnonzero(row)) for row in drawn)
    assert set(seen) <= set(sets)
    expected = num_sets * np.array(list(sets.values()))
    counts = np.array([seen[ids] for ids in sets])
    return chi2.sf(((counts - expected) ** 2 / expected).sum(), len(sets) - 1)


@each_design
@pytest.mark.parametrize("seed", [0, 1])
def test_sets_are_drawn_with_their_probabilities(design, seed):
    pi, trials = some_pi(6, 3, seed), 20_000
    sets = ALL_SETS[design](pi)
    drawn = design(pi).draw(trials, np.random.default_rng(seed))
    assert (drawn.sum(axis=1) == 3).all()
    assert pearson(drawn, sets, trials) > 1e-3
    # a tenth of one probability moved to another one
    ids = sorted(sets, key=sets.get)[-2:]
    moved = dict(sets)
    moved[ids[0]], moved[ids[1]] = 0.9 * sets[ids[0]], sets[ids[1]] + 0.1 * sets[ids[0]]
    assert pearson(drawn, moved, trials) < 0.05 * pearson(drawn, sets, trials)


@each_design
def test_frequencies_of_many_classes(design):
    """Chi-square of the inclusions, whose covariance is that of the joint probabilities."""
    pi, trials = some_pi(199, 10), 20_000
    law = design(pi)
    drawn = law.draw(trials, np.random.default_rng(3))
    covariance = law.joint_inclusion() - np.outer(pi, pi)

    def p_value(claimed):
        gap = drawn.mean(axis=0) - claimed
        values, vectors = np.linalg.eigh(covariance)
        kept = values > 1e-9
        statistic = trials * ((gap @ vectors[:, kept]) ** 2 / values[kept]).sum()
        return chi2.sf(statistic, kept.sum())

    assert p_value(pi) > 1e-3
    assert p_value(proportional_inclusion(pi * np.linspace(0.9, 1.1, 199), 10)) < 1e-6


@each_design
def test_simulated_bias_of_many_classes(design):
    """n = 200 and m = 10: each entry within 4.5 standard errors, and the wrong pi is not."""
    rng = np.random.default_rng(4)
    trials, label = 20_000, 7
    logits = 2.0 * rng.normal(size=200)
    pi, others = some_pi(199, 10), np.delete(np.arange(200), label)
    e = np.exp(logits) / np.exp(logits).sum()
    drawn = design(pi).draw(trials, rng)
    mass = np.zeros((trials, 200))
    mass[:, others] = drawn * (e[others] / pi)
    mass[:, label] = e[label]
    total = mass.sum(axis=1)
    p = mass / total[:, None]
    loss, square = np.log(total), ((p - e) ** 2).sum(axis=1)

    def largest_z(law):
        exact = design_bias(logits, label, law)
        wanted = np.concatenate([exact.bias + e, [exact.loss_bias, design_mse(logits, label, law)]])
        values = np.column_stack([p, loss, square])
        seen = pi[others.searchsorted(np.arange(200)) % 199] > 0.005  # often enough for a mean
        kept = np.concatenate([seen, [True, True]])
        errors = values.std(axis=0) / math.sqrt(trials)
        return np.abs((values.mean(axis=0) - wanted)[kept] / errors[kept]).max()

    assert largest_z(design(pi)) < 4.5
    assert largest_z(design(pi[::-1])) > 20.0


# the package's own draws -------------------------------------------------------------------------


def test_with_equal_probabilities_the_draws_are_those_without_replacement():
    rng = np.random.default_rng(5)
    logits = 2.0 * rng.normal(size=40)
    found = design_bias(logits, 3, ConditionalPoisson(np.full(39, 6 / 39)))
    exact = exact_bias(logits, 3, np.full(40, 1 / 40), 6, scheme="distinct")
    np.testing.assert_allclose(found.bias, exact.bias, atol=1e-12)
    assert found.loss_bias == pytest.approx(exact.loss_bias, abs=1e-10)


@each_design
def test_one_draw_is_one_draw(design):
    rng = np.random.default_rng(6)
    logits, q = 2.0 * rng.normal(size=30), rng.dirichlet(np.ones(30))
    pi = proportional_inclusion(np.delete(q, 4), 1)
    found = design_bias(logits, 4, design(pi))
    exact = exact_bias(logits, 4, q, 1)
    np.testing.assert_allclose(found.bias, exact.bias, atol=1e-12)
    moments = exact_gradient_moments(logits, 4, q, 1, np.eye(30))
    assert design_mse(logits, 4, design(pi)) == pytest.approx(moments.mse, rel=1e-10)


def test_the_error_of_draws_without_replacement_is_that_of_the_package():
    rng = np.random.default_rng(7)
    logits, q = 2.0 * rng.normal(size=12), rng.dirichlet(np.ones(12))
    race = ExponentialRace(np.delete(q, 2), 4)
    moments = exact_gradient_moments(logits, 2, q, 4, np.eye(12), scheme="distinct")
    assert design_mse(logits, 2, race) == pytest.approx(moments.mse, rel=1e-9)


@each_design
def test_all_classes_drawn_have_no_bias(design):
    found = design_bias(np.arange(5.0), 0, design(np.ones(4)))
    assert np.abs(found.bias).sum() < 1e-13
    assert design_mse(np.arange(5.0), 0, design(np.ones(4))) < 1e-13


# bad values --------------------------------------------------------------------------------------


@each_design
@pytest.mark.parametrize(
    ("pi", "message"),
    [
        ([0.5, 0.5, 0.0], r"`pi` must be in \(0, 1\], got 0 \(class 2\); leave out"),
        ([1.5, 0.5], r"`pi` must be in \(0, 1\], got 1.5.*proportional_inclusion"),
        ([-0.5, 0.5, 1.0], r"`pi` must be in \(0, 1\], got -0.5"),
        ([0.5, 0.6], "`pi` must sum to a whole number.*got 1.1; take `proportional_inclusion`"),
        ([1e-12], "`pi` must sum to a whole number of draws, at least 1"),
        ([1.0, 1e-10], "`pi` must sum to a whole number without.*set pi near 1 to 1, and leave"),
        ([[0.5, 0.5]], "`pi` must have 1 dimension"),
        ([0.5, np.nan], "`pi`"),
    ],
)
def test_bad_probabilities_are_refused(design, pi, message):
    with pytest.raises(ValueError, match=message):
        design(pi)


@pytest.mark.parametrize("design", [OrderedPivotal, Systematic])
@pytest.mark.parametrize("order", [[0, 0], [0], [0, 2]])
def test_bad_orders_are_refused(design, order):
    with pytest.raises(ValueError, match="`order`"):
        design([0.5, 0.5], order)


def test_other_bad_values_are_refused():
    law = Systematic([0.5, 0.5])
    with pytest.raises(ValueError, match="`design` must be of the 3 classes other than the label"):
        design_bias(np.zeros(4), 0, law)
    with pytest.raises(ValueError, match="`label`"):
        design_mse(np.zeros(3), 3, law)
    with pytest.raises(ValueError, match="`m` must be at most 2, the classes with q > 0, got 3"):
        proportional_inclusion([0.5, 0.5, 0.0], 3)
    with pytest.raises(ValueError, match="`q` must be at least 0, got -1"):
        proportional_inclusion([0.5, -1.0], 1)


def test_proportional_inclusion():
    q = np.random.default_rng(8).dirichlet(np.full(50, 0.3))
    for m in range(1, 50):
        pi = proportional_inclusion(q, m)
        assert pi.sum() == pytest.approx(m, rel=1e-14)
        free = pi < 1.0
        assert np.ptp(pi[free] / q[free]) < 1e-9 * (pi[free] / q[free]).max()
        assert (q[~free] >= q[free].max()).all()
    assert (proportional_inclusion(q, 50) == 1.0).all()


# the script and its table -------------------------------------------------------------------------


def measures(problem, design, m, order=None):
    """Return the sizes of the three measures in the committed table."""
    key = problem, design, order, m
    (row,) = [r for r in TABLE if tuple(r[k] for k in script.FIELDS[:4]) == key]
    return np.abs([row[field] for field in script.MEASURES])


@pytest.mark.parametrize("problem", script.PROBLEMS)
def test_the_table_says_that_the_design_matters_less_than_the_probabilities(problem):
    for m in (2, 5, 10, 20, 50, 100):
        distinct = measures(problem, "distinct", m)
        same_pi = measures(problem, "conditional Poisson, pi of distinct", m)
        np.testing.assert_allclose(same_pi, distinct, rtol=0.022)
        given, random = (measures(problem, k, m) for k in ("conditional Poisson", "poisson"))
        assert (given < random).all()
        if problem == "near":
            assert given[0] < 0.61 * random[0] and given[1] < 0.22 * random[1]
        elif m >= 10:
            assert given[0] > 1.04 * distinct[0]


def test_the_table_says_when_systematic_sampling_is_worse():
    for m in (10, 20, 50, 100):
        given = measures("near", "conditional Poisson", m)
        assert 2.0 < measures("near", "systematic", m, "id")[0] / given[0] < 3.2
        assert measures("near", "systematic", m, "in step")[0] > 4.5 * given[0]
        assert measures("near", "pivotal", m, "in step")[0] < 1.13 * given[0]
        assert measures("near", "pivotal", m, "weight")[0] < 0.3 * given[0]


def test_with_one_draw_all_fixed_sizes_are_alike():
    for problem in script.PROBLEMS:
        rows = [r for r in TABLE if (r["problem"], r["num_sampled"]) == (problem, 1)]
        assert len({r["mse_mean"] for r in rows if r["design"] != "poisson"}) == 1


def test_sets_of_an_order_in_step_have_nearly_equal_weights():
    """So that the weight of the first class tells those of the others."""
    log_weights = np.random.default_rng(9).normal(size=60)
    pi = some_pi(60, 4)
    order = script.order_in_step(log_weights, pi)
    assert sorted(order) == list(range(60))
    within, by_id = [], []
    for found, law in ((within, Systematic(pi, order)), (by_id, Systematic(pi))):
        for ids, chance in zip(law.sets, law.probs, strict=True):
            found.append(chance * np.var(log_weights[ids]))
    assert sum(within) < 0.3 * sum(by_id)


@pytest.mark.slow
def test_the_script_runs(tmp_path):
    options = ["--num-classes", 20, "--num-examples", 2, "--num-sampled", 1, 4]
    run_script(script.__file__, "--output", tmp_path, *options)
    names = ["fixed_size_designs.csv", "fixed_size_designs.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    rows = read_csv(tmp_path / names[0])
    assert list(rows[0]) == list(script.FIELDS)
    keys = [{tuple(r[k] for k in script.FIELDS[:3]) for r in some} for some in (rows, TABLE)]
    assert keys[0] == keys[1]
    assert Path(script.__file__).with_suffix(".png").stat().st_size < 300_000
