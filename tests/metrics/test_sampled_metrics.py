"""Sampled metrics against the list of every possible set of draws, and their corrections."""

from itertools import combinations, permutations, product
from math import log2, prod

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from samplesoft.metrics import (
    TargetRanks,
    correct_metric,
    estimate_rank_distribution,
    rank_metric,
    ranking_scores,
    sampled_metrics,
    sampled_rank_distribution,
    target_ranks,
    top_k_classes,
)

NAMES = ("recall", "precision", "ndcg", "mrr")


def orders(scores, items):
    """Every list of items by falling score; those of equal score come in any order."""
    groups = [
        [i for i in items if scores[i] == x] for x in sorted({scores[i] for i in items})[::-1]
    ]
    for parts in product(*(permutations(group) for group in groups)):
        yield [i for part in parts for i in part]


def naive(scores, relevant, drawn, k):
    """Metrics of each list of relevant items and drawn ones; one drawn twice is there twice."""
    auc = np.mean(
        [(scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]) for i in relevant for j in drawn]
    )
    best = sum(1 / log2(2 + place) for place in range(min(k, len(relevant))))
    found = []
    for order in orders(scores, [*relevant, *drawn]):
        hits = [i in relevant for i in order[:k]]
        gain = sum(hit / log2(2 + place) for place, hit in enumerate(hits))
        found.append(
            {
                f"recall@{k}": sum(hits) / len(relevant),
                f"precision@{k}": sum(hits) / k,
                f"ndcg@{k}": gain / best,
                f"mrr@{k}": 1 / (1 + hits.index(True)) if any(hits) else 0.0,
                "auc": auc,
            }
        )
    return found


def draws_of(negatives, m, q, replacement):
    """Every sequence of draws, with its probability."""
    if not replacement:
        sets = list(combinations(negatives, m))
        return [(s, 1 / len(sets)) for s in sets]
    mass = sum(q[i] for i in negatives)
    return [(s, prod(q[i] / mass for i in s)) for s in product(negatives, repeat=m)]


def moments(scores, relevant, absent, m, k, q, replacement):
    """Mean and variance of each metric of an example, over every sequence of draws."""
    negatives = [i for i in range(len(scores)) if i not in relevant and i not in absent]
    found = []
    for drawn, p in draws_of(negatives, m, q, replacement):
        lists = naive(scores, relevant, drawn, k)
        found += [(metrics, p / len(lists)) for metrics in lists]
    mean = {name: sum(p * x[name] for x, p in found) for name in found[0][0]}
    spread = {name: sum(p * (x[name] - mean[name]) ** 2 for x, p in found) for name in mean}
    lists = naive(scores, relevant, negatives, k)
    return mean, spread, {name: np.mean([x[name] for x in lists]) for name in mean}


def case(seed, size=7, rows=2):
    """Scores with ties, relevant items and items that are left out, of some examples."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, rng.integers(1, 6), (rows, size)).astype(float)
    kinds = np.array(
        [rng.permutation([1, 0, 0, 0, 2, *rng.integers(0, 2, size - 5)]) for _ in scores]
    )
    return scores, kinds, rng.dirichlet(np.ones(size))


@pytest.mark.parametrize("how", ["distinct", "again", "q"])
@pytest.mark.parametrize("m", [1, 2, 3])
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6))
def test_moments_are_those_of_every_draw(how, m, seed):
    scores, kinds, q = case(seed)
    weights = q if how == "q" else np.ones(len(q))
    targets = target_ranks(
        scores,
        csr_array(1.0 * (kinds == 1)),
        q=q if how == "q" else None,
        leave_out=csr_array(1.0 * (kinds == 2)),
    )
    found = sampled_metrics(targets, m, [1, 2, 4], replacement=how != "distinct")
    for k in (1, 2, 4):
        each = [
            moments(
                row,
                *(np.flatnonzero(kind == i).tolist() for i in (1, 2)),
                m,
                k,
                weights,
                how != "distinct",
            )
            for row, kind in zip(scores, kinds, strict=True)
        ]
        means, spreads, full = ([e[i] for e in each] for i in range(3))
        for name in means[0]:
            wanted = np.mean([x[name] for x in means])
            assert found.expected[f"sampled_{name}"] == pytest.approx(wanted, abs=1e-12)
            wanted = np.mean([x[name] for x in spreads]) / len(each)
            assert found.variance[f"sampled_{name}"] == pytest.approx(wanted, abs=1e-12)
            assert found.full[name] == pytest.approx(np.mean([x[name] for x in full]), abs=1e-12)


def test_a_list_of_relevant_items_that_forgets_the_others_is_seen():
    """WRONG: each relevant item alone among the draws, where they stand in one list."""
    ranks = [2, 3, 7]
    found = sampled_metrics(TargetRanks(ranks, 9, [0, 0, 0]), 2, 2)
    alone = sampled_metrics(TargetRanks([2, 2, 5], 7), 2, 2)
    scores = [9.0, 8, 7, 6, 5, 4, 3, 2, 1]
    mean, spread, _ = moments(scores, [1, 2, 6], [], 2, 2, None, False)
    assert found.expected["sampled_recall@2"] == pytest.approx(mean["recall@2"], abs=1e-12)
    assert abs(alone.expected["sampled_recall@2"] - mean["recall@2"]) > 0.05
    assert abs(alone.variance["sampled_recall@2"] - spread["recall@2"]) > 0.001


@pytest.mark.parametrize("seed", range(5))
def test_all_negatives_without_replacement_are_the_metric_itself(seed):
    tied, kinds, _ = case(seed, size=12, rows=1)
    labels, out = (csr_array(1.0 * (kinds == i)) for i in (1, 2))
    in_order = sampled_metrics(
        target_ranks(tied, labels, leave_out=out), int(np.sum(kinds == 0)), [1, 3, 5]
    )
    for name, value in in_order.full.items():
        assert in_order.expected[f"sampled_{name}"] == pytest.approx(value, abs=1e-14)
    scores = tied + np.arange(12) / 100  # without ties nothing is random
    targets = target_ranks(scores, labels, leave_out=out)
    m = int(np.sum(kinds == 0))
    found = sampled_metrics(targets, m, [1, 3, 5])
    for name, value in found.full.items():
        assert found.expected[f"sampled_{name}"] == pytest.approx(value, abs=1e-14)
        assert found.variance[f"sampled_{name}"] == 0.0
    ids, _ = top_k_classes(scores, np.eye(12), 5, leave_out=out)
    listed = ranking_scores(ids, labels, [1, 3, 5])
    for name in ("recall", "precision", "ndcg"):
        for k in (1, 3, 5):
            assert found.full[f"{name}@{k}"] == pytest.approx(listed[f"{name}_at_{k}"], abs=1e-14)


def hypergeometric(above, below, m, b):
    return (
        mpmath.binomial(above, b)
        * mpmath.binomial(below, m - b)
        / mpmath.binomial(above + below, m)
    )


def binomial(above, below, m, b):
    p = mpmath.mpf(above) / (above + below)
    return mpmath.binomial(m, b) * p**b * (1 - p) ** (m - b)


@pytest.mark.parametrize(
    "rank, m, near", [(20, 100, 0), (200_001, 10_000, 2000), (999_990, 500, 499)]
)
@pytest.mark.parametrize("replacement", [False, True])
def test_distributions_of_a_million_items_have_their_digits(rank, m, near, replacement):
    distribution = sampled_rank_distribution(
        TargetRanks([rank], 10**6), m, replacement=replacement
    )[0]
    exact = binomial if replacement else hypergeometric
    with mpmath.workdps(40):
        for b in {near, max(near - 60, 0), min(near + 60, m)}:
            wanted = exact(rank - 1, 10**6 - rank, m, b)
            assert abs(distribution[b] - wanted) <= 1e-12 * wanted
    assert distribution.sum() == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("p", [0.0, 1e-300, 1e-20, 1 - 1e-16, 1.0])
def test_chances_near_none_and_near_all(p):
    targets = TargetRanks([5], 9, better=[p])
    distribution = sampled_rank_distribution(targets, 3, replacement=True)[0]
    q = 1.0 - p
    several = p * (3 - 3 * p + p * p)  # 1 - q^3
    np.testing.assert_allclose(
        distribution, [q**3, 3 * p * q * q, 3 * p * p * q, p**3], rtol=1e-12, atol=0
    )
    found = sampled_metrics(targets, 3, 1, replacement=True)
    assert found.expected["sampled_recall@1"] == pytest.approx(q**3, rel=1e-12)
    assert found.variance["sampled_recall@1"] == pytest.approx(q**3 * several, rel=1e-12, abs=0)


def test_two_candidates_one_draw_and_more_draws_than_candidates():
    assert sampled_rank_distribution(TargetRanks([1, 2], 2), 1).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    found = sampled_metrics(TargetRanks([2], 3), 5, 10, replacement=True)
    assert found.expected["sampled_recall@10"] == 1.0 and found.full["recall@10"] == 1.0
    assert found.expected["sampled_auc"] == found.full["auc"] == 0.5


def test_a_simulation_agrees_and_the_wrong_distribution_does_not():
    """2,000 draws of 12 among 30 for three examples, one with two relevant items."""
    rng, ranks, example_ids = np.random.default_rng(5), [3, 9, 14, 20], [0, 1, 1, 2]
    targets = TargetRanks(ranks, 31, example_ids)
    scores = -np.arange(31.0)
    relevant = [[2], [8, 13], [19]]
    total = []
    for _ in range(2000):
        means = []
        for own in relevant:
            others = np.setdiff1d(np.arange(31), own)
            drawn = rng.choice(others, 12, replace=False).tolist()
            means += naive(scores, own, drawn, 5)
        total.append([np.mean([x[name] for x in means]) for name in means[0]])
    got = np.mean(total, axis=0)

    def worst(found):
        names = [f"sampled_{name}" for name in means[0]]
        gap = got - [found.expected[name] for name in names]
        return np.abs(
            gap / np.sqrt(np.array([found.variance[name] for name in names]) / 2000)
        ).max()

    right = sampled_metrics(targets, 12, 5)
    assert worst(right) < 3.5  # of five: 1 in 400
    spread = [right.variance[f"sampled_{name}"] for name in means[0]]
    np.testing.assert_allclose(np.var(total, axis=0), spread, rtol=0.15)
    # WRONG: with replacement, which has another variance, and a rank that counts the item itself
    assert (
        abs(
            np.var(total, axis=0)[-1]
            / sampled_metrics(targets, 12, 5, replacement=True).variance["sampled_auc"]
            - 1
        )
        > 0.3
    )
    assert worst(sampled_metrics(TargetRanks(np.add(ranks, 1), 31, example_ids), 12, 5)) > 6


def test_ties_are_counted_and_what_is_left_out_is_no_candidate():
    scores = np.array([[2.0, 5.0, 2.0, 2.0, 9.0]])
    targets = target_ranks(
        scores, csr_array([[0.0, 0, 1, 0, 0]]), leave_out=csr_array([[0.0, 0, 0, 0, 1]])
    )
    assert targets.ranks.tolist() == [2] and targets.num_candidates.tolist() == [4]
    assert targets.better.tolist() == [1.0] and targets.worse.tolist() == [0.0]
    assert targets.num_tied.tolist() == [2] and targets.tied.tolist() == [2.0]
    q = [1, 2, 100, 5, 1000]
    targets = target_ranks(
        scores, csr_array([[0.0, 0, 1, 0, 0]]), q=q, leave_out=csr_array([[0.0, 0, 0, 0, 1]])
    )
    assert targets.better[0] == pytest.approx(2 / 8, rel=1e-15) and not targets.uniform
    assert targets.tied[0] == pytest.approx(6 / 8, rel=1e-15)


@pytest.mark.parametrize("item", [0, 4, 9])
@pytest.mark.parametrize("q", [None, np.arange(1.0, 11.0)])
def test_equal_scores_say_nothing_whatever_the_number_of_the_item(item, q):
    wanted = np.zeros((1, 10))
    wanted[0, item] = 1.0
    targets = target_ranks(np.ones((1, 10)), csr_array(wanted), q=q)
    found = sampled_metrics(targets, 4, [1, 3], replacement=True)
    assert found.full["auc"] == found.expected["sampled_auc"] == pytest.approx(0.5, rel=1e-14)
    for k in (1, 3):
        assert found.full[f"recall@{k}"] == pytest.approx(k / 10, rel=1e-14)
        assert found.expected[f"sampled_recall@{k}"] == pytest.approx(k / 5, rel=1e-14)
    distribution = sampled_rank_distribution(targets, 4, replacement=True)
    np.testing.assert_allclose(distribution, np.full((1, 5), 0.2), rtol=1e-14)


def test_a_distribution_with_ties_is_that_of_every_draw_and_order():
    scores = [2.0, 2.0, 3.0, 2.0, 1.0, 2.0]
    targets = target_ranks([scores], csr_array([[1.0, 0, 0, 0, 0, 0]]))
    ranks = np.zeros(4)
    for drawn in combinations(range(1, 6), 3):
        lists = list(orders(scores, [0, *drawn]))
        for order in lists:
            ranks[order.index(0)] += 1 / len(lists) / 10
    distribution = sampled_rank_distribution(targets, 3)[0]
    np.testing.assert_allclose(distribution, ranks, rtol=1e-13)


@pytest.mark.parametrize(
    ("ranks", "num_tied"), [([2, 3], [3, 2]), ([2, 4], [3, 3]), ([1], [9]), ([1, 3], [2, 0])]
)
def test_ties_that_contradict_the_ranks_are_refused(ranks, num_tied):
    with pytest.raises(ValueError, match="`ranks` of an example must be distinct"):
        TargetRanks(ranks, 9, np.zeros(len(ranks), np.int64), num_tied=num_tied)


def test_rows_without_a_label_are_left_out_and_items_come_in_any_order():
    labels = csr_array(np.array([[0, 0, 0, 0], [1, 0, 1, 0]]))
    found = target_ranks([[1.0, 2, 3, 4]] * 2, labels)
    assert found.examples.tolist() == [1, 1] and found.ranks.tolist() == [2, 4]
    mixed = TargetRanks([4, 7, 2], [4, 9, 4], [1, 0, 1])
    assert mixed.ranks.tolist() == [7, 2, 4] and mixed.examples.tolist() == [0, 1, 1]


def objective(values, distribution, metric, prior, gamma):
    mean = distribution @ values
    spread = distribution @ values**2 - mean**2
    return prior @ ((mean - metric) ** 2 + gamma * spread)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("gamma", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("name", ["recall", "ndcg"])
def test_corrections_solve_their_equations(name, gamma, replacement):
    n, m, rng = 40, 7, np.random.default_rng(3)
    prior = rng.dirichlet(np.ones(n))
    metric = rank_metric(name, 5, np.arange(1, n + 1))
    found = correct_metric(metric, m, gamma=gamma, prior=prior, replacement=replacement)
    exact = binomial if replacement else hypergeometric
    with mpmath.workdps(40):
        distribution = mpmath.matrix(n, m + 1)
        for r, b in product(range(n), range(m + 1)):
            distribution[r, b] = exact(r, n - 1 - r, m, b)
        left = mpmath.matrix(m + 1, m + 1)
        right = mpmath.matrix(m + 1, 1)
        for i in range(m + 1):
            right[i] = mpmath.fsum(prior[r] * distribution[r, i] * metric[r] for r in range(n))
            left[i, i] += gamma * mpmath.fsum(prior[r] * distribution[r, i] for r in range(n))
            for j in range(m + 1):
                left[i, j] += (1 - mpmath.mpf(gamma)) * mpmath.fsum(
                    prior[r] * distribution[r, i] * distribution[r, j] for r in range(n)
                )
        solution = np.array([float(x) for x in mpmath.lu_solve(left, right)])
        distributions = np.array(
            [[float(distribution[r, b]) for b in range(m + 1)] for r in range(n)]
        )
    np.testing.assert_allclose(found.values, solution, atol=1e-12)
    np.testing.assert_allclose(found.bias, distributions @ solution - metric, atol=1e-12)
    centred = solution - (distributions @ solution)[:, None]
    np.testing.assert_allclose(found.variance, (distributions * centred**2).sum(axis=1), atol=1e-12)
    least = objective(found.values, distributions, metric, prior, gamma)
    for step in np.eye(m + 1):  # WRONG: any other values
        assert objective(found.values + 0.01 * step, distributions, metric, prior, gamma) > least
    other = correct_metric(metric, m, gamma=gamma, replacement=replacement)
    assert objective(other.values, distributions, metric, prior, gamma) > least


def test_the_least_bias_is_none_where_the_draws_tell_all():
    n = 25
    metric = rank_metric("ndcg", 6, np.arange(1, n + 1))
    found = correct_metric(metric, n - 1, gamma=0.0)
    np.testing.assert_allclose(found.values, metric, atol=1e-13)
    np.testing.assert_allclose(found.bias, 0.0, atol=1e-13)
    line = 1.0 - np.arange(n) / (n - 1)  # AUC
    found = correct_metric(line, 4, gamma=0.0)
    np.testing.assert_allclose(found.values, 1.0 - np.arange(5) / 4, atol=1e-10)
    np.testing.assert_allclose(found.bias, 0.0, atol=1e-10)


def test_the_metric_of_the_rank_that_is_estimated_without_bias():
    n, m = 1001, 100
    metric = rank_metric("recall", 20, np.arange(1, n + 1))
    found = correct_metric(metric, m, method="rank")
    # Li and others: sampled recall at k is read as recall at f(k) = 1 + (k - 1)(n - 1) / m
    assert found.values.tolist() == [1.0 * (1 + i * 10 <= 20) for i in range(m + 1)]
    assert found.bias[2:20].max() < 0.0 < found.bias[20:200].min()
    values = correct_metric(np.arange(1.0, n + 1), m, method="rank")  # of the rank itself
    np.testing.assert_allclose(values.bias, 0.0, atol=1e-9)


def test_values_of_sampled_ranks_that_the_prior_rules_out_are_zero():
    metric = rank_metric("recall", 2, np.arange(1, 11))
    found = correct_metric(metric, 3, prior=np.arange(10) == 0)
    assert found.values.tolist() == [pytest.approx(1.0), 0.0, 0.0, 0.0]
    assert found.bias[0] == pytest.approx(0.0, abs=1e-14)


@pytest.mark.parametrize("replacement", [False, True])
def test_the_likelihood_of_the_estimate_is_the_greatest(replacement):
    n, m, rng = 30, 8, np.random.default_rng(1)
    true = rng.dirichlet(np.full(n, 0.3))
    distributions = sampled_rank_distribution(
        TargetRanks(np.arange(1, n + 1), n), m, replacement=replacement
    )
    counts = rng.multinomial(500, true @ distributions)
    found = estimate_rank_distribution(counts, n, replacement=replacement, tol=1e-6)
    assert found.sum() == pytest.approx(1.0, abs=1e-12) and found.min() >= 0.0

    def likelihood(p):
        return counts @ np.log(p @ distributions) / counts.sum()

    for _ in range(200):
        other = rng.dirichlet(np.full(n, 0.2))
        for share in (1.0, 0.1, 0.001):
            assert likelihood((1 - share) * found + share * other) < likelihood(found) + 1e-6
    assert likelihood(true) < likelihood(found)
    # WRONG: the other distribution
    other = estimate_rank_distribution(counts, n, replacement=not replacement, tol=1e-6)
    assert likelihood(other) < likelihood(found)


def test_an_estimate_from_all_negatives_is_the_distribution_itself():
    found = estimate_rank_distribution([3, 0, 5, 2], 4, tol=1e-12)
    np.testing.assert_allclose(found, [0.3, 0.0, 0.5, 0.2], atol=1e-12)


def test_two_recommenders_change_places():
    """Ones with a few at the top beat many in the middle at 20, and lose among 100 negatives."""
    top, middle = np.r_[np.full(20, 5), np.full(80, 9000)], np.full(100, 300)
    one, other = (sampled_metrics(TargetRanks(r, 10_000), 100, 20) for r in (top, middle))
    assert one.full["recall@20"] > other.full["recall@20"]
    assert one.expected["sampled_recall@20"] < other.expected["sampled_recall@20"]


def test_names_say_that_a_metric_is_sampled():
    found = sampled_metrics(TargetRanks([1], 9), 2, [5, 1])
    assert list(found.full) == [f"{name}@{k}" for k in (1, 5) for name in NAMES] + ["auc"]
    assert list(found.expected) == [f"sampled_{name}" for name in found.full]
    assert list(found.variance) == list(found.expected)


LABEL, ROW = csr_array([[0.0, 1.0, 0.0]]), [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: TargetRanks([0], 5), r"`ranks` must hold ranks counted from 1, got .*0"),
        (lambda: TargetRanks([], 5), "`ranks` must hold ranks counted from 1"),
        (lambda: TargetRanks([1.5], 5), "`ranks` must hold integers"),
        (lambda: TargetRanks([6], 5), "at most its one `num_candidates`.* in example 0"),
        (lambda: TargetRanks([1, 1], 5, [7, 7]), "`ranks` of an example must be distinct.* 7"),
        (lambda: TargetRanks([1, 2], [5, 6], [0, 0]), "its one `num_candidates`"),
        (lambda: TargetRanks([1, 2], [5]), r"`num_candidates` must have shape \(2,\), got \(1,\)"),
        (
            lambda: TargetRanks([1, 2], 5.0),
            "`num_candidates` must hold integers, got float64; cand",
        ),
        (lambda: TargetRanks([1, 2], 5, [0]), r"`examples` must have shape \(2,\)"),
        (lambda: TargetRanks([1], 5, better=[1.5]), r"`better` must be of shape \(1,\) and from 0"),
        (lambda: TargetRanks([1, 2], 5, [0, 0], [0.5, 0.1]), "`better` must not fall"),
        (lambda: target_ranks(ROW, LABEL[:, :2]), r"`labels` must have shape \(1, 3\)"),
        (
            lambda: target_ranks(ROW, LABEL * 0),
            "`labels` must hold relevant items.* got 0 relevant",
        ),
        (lambda: target_ranks(ROW, LABEL, leave_out=LABEL), "got 1 relevant items, and 1 that are"),
        (lambda: target_ranks(ROW, [[0, 1, 0]]), "`labels` must be a scipy.sparse matrix"),
        (lambda: target_ranks([[np.nan, 1, 2]], LABEL), "`scores` must be finite"),
        (lambda: target_ranks(ROW, LABEL, q=[0, 1, 0]), "a negative that can be drawn.* row 0"),
        (lambda: target_ranks(ROW, LABEL, q=[1, -1, 0]), "`q` must be at least 0"),
        (lambda: sampled_metrics([1], 5, 1), "`targets` must be TargetRanks, got list"),
        (lambda: sampled_metrics(TargetRanks([1], 5), 5, 1), "`num_sampled` must be .* 5 of 4"),
        (lambda: sampled_metrics(TargetRanks([1], 1), 5, 1, replacement=True), "got 5 of 0"),
        (lambda: sampled_metrics(TargetRanks([1], 5), 0, 1), "`num_sampled` must be at least 1"),
        (lambda: sampled_metrics(TargetRanks([1], 5), 2, []), "`k` must hold lengths of lists"),
        (lambda: sampled_metrics(TargetRanks([1], 5), 2, 0), "`k` must be at least 1"),
        (
            lambda: sampled_metrics(TargetRanks([1], 5), 2, 1, replacement=1),
            "`replacement` must be",
        ),
        (
            lambda: sampled_rank_distribution(TargetRanks([1], 5, better=[0.1]), 2),
            "`replacement` must be True for draws by a `q`",
        ),
        (lambda: rank_metric("auc", 1, [1]), "`name` must be one of recall, precision, ndcg, mrr"),
        (lambda: correct_metric([1.0, 0.0], 2), "`num_sampled` must be .* got 2 of 1"),
        (lambda: correct_metric([1.0, 0.0], 1, gamma=2), "`gamma` must be from 0 to 1"),
        (lambda: correct_metric([1.0, 0.0], 1, prior=[1.0]), r"`prior` must have shape \(2,\)"),
        (lambda: correct_metric([1.0, 0.0], 1, method="best"), "`method` must be one of"),
        (lambda: estimate_rank_distribution([1], 5), r"`counts` must have shape \(m \+ 1,\)"),
        (
            lambda: estimate_rank_distribution([0, 0], 5),
            "`counts` must be at least 0 and not all 0",
        ),
        (lambda: estimate_rank_distribution([1, 0, 0], 2), r"all of the 1 negatives, got \(3,\)"),
    ],
)
def test_arguments_that_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
