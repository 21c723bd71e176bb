"""Draws by perturbed logits: k distinct ones, and the best of a head and a lazy tail."""

from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracles.naive_samplers import chi_square, sequences

from samplesoft import exact_bias
from samplesoft._random import mix64
from samplesoft.kernels.rows import row_dot
from samplesoft.samplers import LazyGumbel, SoftmaxSampler, gumbel_top_k
from samplesoft.samplers.gumbel import _draw_lazily, _open_uniform

LOGITS = np.array([0.3, -1.2, 1.6, 0.0])
P = np.exp(LOGITS) / np.exp(LOGITS).sum()
BATCH = 60_000
LEVEL = 1e-4 / 12


def softmax(logits):
    p = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_top_k_has_the_law_of_draws_in_turn(k):
    draw = gumbel_top_k(np.tile(LOGITS, (BATCH, 1)), k, rng=1)
    wanted = sequences(np.exp(LOGITS), k)
    seen = Counter(map(tuple, draw.ids.tolist()))
    assert set(seen) <= set(wanted)  # distinct classes
    counts, probs = np.array([seen[s] for s in wanted]), np.array(list(map(float, wanted.values())))
    assert chi_square(counts, probs) > LEVEL
    # the twin: independent draws that happen to be distinct
    twin = np.array([np.prod(P[list(s)]) for s in wanted])
    if k > 1:
        assert chi_square(counts, twin / twin.sum()) < 1e-12


def test_fewer_draws_are_the_first_of_more_and_the_threshold_comes_next():
    logits = np.random.default_rng(0).normal(size=(50, 9))
    draws = [gumbel_top_k(logits, k, rng=4) for k in range(1, 10)]
    for few, more in zip(draws, draws[1:], strict=False):
        np.testing.assert_array_equal(few.ids, more.ids[:, :-1])
        assert (few.threshold > more.threshold).all()
    np.testing.assert_allclose(
        draws[3].log_q, np.take_along_axis(np.log(softmax(logits)), draws[3].ids, 1), rtol=1e-12
    )
    assert (draws[-1].threshold == -np.inf).all() and (draws[-1].log_inclusion == 0.0).all()
    # a class is drawn if its perturbed logit is above the threshold, which another seed changes
    kappa = draws[3].threshold[:, None]
    np.testing.assert_allclose(
        draws[3].log_inclusion, np.log1p(-np.exp(-np.exp(draws[3].log_q - kappa))), atol=1e-14
    )
    assert (gumbel_top_k(logits, 4, rng=5).ids != draws[3].ids).any()
    np.testing.assert_array_equal(gumbel_top_k(logits[:3], 4, rng=4).ids, draws[3].ids[:3])


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_sums_with_weights_given_the_threshold_have_no_bias(k):
    f = np.array([1.0, -2.0, 0.5, 3.0]) * P
    draw = gumbel_top_k(np.tile(LOGITS, (BATCH, 1)), k, rng=2)
    sums = (f[draw.ids] / np.exp(draw.log_expected_count)).sum(axis=1)
    error = sums.std() / np.sqrt(BATCH)
    assert abs(sums.mean() - f.sum()) < 5.0 * error + 1e-12
    if k in (2, 3):  # the twin takes the draws for independent ones
        twin = (f[draw.ids] / (k * np.exp(draw.log_q))).sum(axis=1)
        assert abs(twin.mean() - f.sum()) > 20.0 * twin.std() / np.sqrt(BATCH)


@pytest.mark.parametrize("logits", [[5.0], [1e4, -1e4], [1e308, -1e308], np.zeros(3) - 1e4])
def test_top_k_of_logits_at_the_ends(logits):
    draw = gumbel_top_k(logits, len(logits), rng=0)
    assert sorted(draw.ids[0]) == list(range(len(logits)))
    assert np.isfinite(draw.log_q).all() and (draw.log_expected_count == 0.0).all()
    assert draw.ids[0, 0] == 0 or logits[0] == logits[-1]


def test_uniforms_lie_strictly_between_0_and_1():
    key = np.uint64(7)
    words = np.array([mix64(key, np.uint64(k)) for k in range(1000)], float)
    u = np.array([_open_uniform(key, np.uint64(k)) for k in range(1000)])
    np.testing.assert_allclose(u, words / 2.0**64, rtol=0, atol=2.0**-52)
    # the last step of the formula, for the least and the greatest word
    assert 0.0 < 0.5 / 2.0**52 and (2.0**52 - 1.0 + 0.5) / 2.0**52 < 1.0
    assert (2.0**53 - 1.0 + 0.5) / 2.0**53 == 1.0  # the twin with one more bit


# --- lazy Gumbels -----------------------------------------------------------------------------

N, D, DRAWS = 40, 5, 120_000


def world(dtype=np.float64):
    rng = np.random.default_rng(3)
    return rng.normal(size=(N, D)).astype(dtype), rng.normal(size=(2, D)).astype(dtype)


def counted(draw):
    return [np.bincount(ids, minlength=N) for ids in draw.ids]


def heads(kind, logits):
    order = np.argsort(-logits, axis=1)
    if kind == "approximate":  # every second of the best, with the largest logit left out
        head = order[:, 1:12:2]
        return {"head": head, "tail_bound": logits.max(axis=1) + 0.01}
    if kind == "any":  # the worst, with the bound by norms
        return {"head": order[:, -5:]}
    return {}


@pytest.mark.parametrize(
    ("kind", "num_head", "dtype"),
    [
        ("exact", None, np.float64),
        ("exact", None, np.float32),
        ("exact", 1, np.float64),
        ("exact", N, np.float64),
        ("approximate", None, np.float64),
        ("any", None, np.float64),
        ("clusters", None, np.float64),
        ("clusters", 1, np.float32),
        ("clusters", N, np.float64),
    ],
)
def test_lazy_draws_are_from_the_softmax(kind, num_head, dtype):
    rows, h = world(dtype)
    options = {"num_head": num_head, "tau": 0.7} | (
        {"num_clusters": 15} if kind == "clusters" else {}
    )
    lazy = LazyGumbel(rows, **options)
    logits = 0.7 * h.astype(np.float64) @ rows.T
    draw = lazy.sample(h, DRAWS, **heads(kind, logits), rng=8)
    for counts, p in zip(counted(draw), softmax(logits), strict=True):
        assert chi_square(counts, p) > LEVEL
        assert chi_square(counts, 0.9 * p + 0.1 / N) < 1e-8
    # of a context alone, and with more draws, the draws are the same
    alone = LazyGumbel(rows, **options)
    some = {name: value[:1] for name, value in heads(kind, logits).items()}
    np.testing.assert_array_equal(alone.sample(h[:1], 50, **some, rng=8).ids, draw.ids[:1, :50])
    # log q is right but for one factor
    own = draw.log_q - np.take_along_axis(np.log(softmax(logits)), draw.ids, axis=1)
    assert np.ptp(own, axis=1).max() < (1e-5 if dtype is np.float32 else 1e-12)
    assert (abs(own) < 1.0).all()


@pytest.mark.parametrize("wrong", [-np.inf, -1.0, 0.0])
def test_twins_without_a_tail_or_with_too_low_a_bound_are_told_apart(wrong):
    """By the kernel; 0 is the right bound, below which it must not be."""
    rows, h = world()
    logits = 0.7 * h @ rows.T
    head = np.sort(np.argsort(-logits[0])[:6])
    scores = logits[0, head]
    ids, found = np.empty(DRAWS, np.int64), np.empty(DRAWS)
    bound = scores.min() + wrong
    seen = _draw_lazily(rows, 0.7 * h, 0, head, scores, bound, np.uint64(5), ids, found)
    fits = chi_square(np.bincount(ids, minlength=N), softmax(logits)[0])
    assert (fits > LEVEL) if wrong == 0.0 else (fits < 1e-12)
    assert (seen == -np.inf) == (wrong == -np.inf)
    np.testing.assert_allclose(found, logits[0, ids], rtol=1e-12)


def test_a_bound_that_does_not_hold_is_refused_where_it_is_seen():
    rows, h = world()
    logits = h @ rows.T
    head = np.argsort(-logits, axis=1)[:, :6]
    bounds = np.take_along_axis(logits, head, 1).min(axis=1)
    with pytest.raises(ValueError, match=r"`tail_bound` must be at least .* for context 1"):
        LazyGumbel(rows).sample(h, 1000, head=head, tail_bound=bounds - [0.0, 1.0], rng=0)


def test_equal_weights_leave_the_gradient_of_the_importance_scheme_without_bias():
    """The estimate of log Z cancels: p' are the frequencies of the draws."""
    rows, h = world()
    draw = LazyGumbel(rows).sample(h, 7, rng=3)
    weights = np.take_along_axis(h @ rows.T, draw.ids, 1) - draw.log_q
    np.testing.assert_allclose(np.ptp(weights, axis=1), 0.0, atol=1e-12)
    exact = SoftmaxSampler(rows).log_prob(h, draw.ids)
    off = draw.log_q - exact
    assert 0.0 < abs(off).max() < 0.5 and np.ptp(off, axis=1).max() < 1e-12


@pytest.mark.parametrize("count", [1, 2])
def test_the_estimate_of_z_has_its_mean_and_variance_and_its_log_the_exact_bias(count):
    rows, h = world()
    rows, h = rows[:8], h[:1]
    lazy = LazyGumbel(rows, num_head=3, tau=0.7)
    logits = 0.7 * h[0] @ rows.T
    head = np.argsort(-logits)[:3]
    tail = np.exp(np.delete(logits, head))
    base, size = np.exp(logits[head]).sum(), len(tail)
    outcomes = np.array([base + size / count * sum(s) for s in product(tail, repeat=count)])
    z = np.exp(logits).sum()
    variance = (size * (tail**2).sum() - tail.sum() ** 2) / count
    assert outcomes.mean() == pytest.approx(z) and outcomes.var() == pytest.approx(variance)
    # the loss of a label in the head is log Z-hat less its logit
    exact = exact_bias(logits, int(head[1]), np.full(8, 0.125), count, certain=head)
    assert np.log(outcomes).mean() - np.log(z) == pytest.approx(exact.loss_bias, rel=1e-10)
    batch = 20_000
    log_z = lazy.log_partition(np.repeat(h, batch, axis=0), count, rng=6)
    again = lazy.log_partition(np.repeat(h, batch, axis=0), count, head=head, rng=6)
    np.testing.assert_array_equal(log_z, again)
    found, error = np.exp(log_z), np.sqrt(variance / batch)
    assert abs(found.mean() - z) < 5.0 * error
    assert found.var() == pytest.approx(variance, rel=0.1)
    error = log_z.std() / np.sqrt(batch)
    assert abs(log_z.mean() - np.log(z) - exact.loss_bias) < 5.0 * error
    assert abs(exact.loss_bias) > 5.0 * error
    seen = np.unique(found.round(9))  # each outcome, and no other
    np.testing.assert_allclose(seen, np.unique(outcomes.round(9)), rtol=1e-8)


def test_with_all_classes_in_the_head_log_z_is_exact():
    rows, h = world()
    lazy = LazyGumbel(rows, num_head=1000)
    wanted = np.log(np.exp(h @ rows.T).sum(axis=1))
    np.testing.assert_allclose(lazy.log_partition(h, 3, rng=0), wanted, rtol=1e-13)
    one = LazyGumbel(rows[:1]).sample(1e4 * h, 3, rng=0)
    assert (one.ids == 0).all() and (one.log_q == 0.0).all()


def test_vectors_that_change_afterwards_do_not_matter():
    vectors = np.random.default_rng(0).normal(size=(50, 3))
    lazy, h = LazyGumbel(vectors), np.ones(3)
    before = lazy.sample(h, 50, rng=0)
    vectors *= 20.0
    np.testing.assert_array_equal(lazy.sample(h, 50, rng=0).ids, before.ids)


def test_large_logits_draw_the_largest():
    rows, h = world()
    draw = LazyGumbel(1e4 * rows).sample(h, 100, rng=0)
    np.testing.assert_array_equal(draw.ids, np.repeat(np.argmax(h @ rows.T, 1)[:, None], 100, 1))
    any_head = LazyGumbel(1e4 * rows).sample(h, 100, head=[0, 1, 2], rng=0)
    np.testing.assert_array_equal(any_head.ids, draw.ids)


# --- heads by clusters ------------------------------------------------------------------------


def grouped(num=2000, groups=40):
    """Return vectors near some centers, and contexts near others."""
    rng = np.random.default_rng(1)
    centers = 3.0 * rng.normal(size=(groups, 6))
    rows = centers[np.arange(num) % groups] + 0.2 * rng.normal(size=(num, 6))
    return rows, centers[:3] / 3.0


SIZES = (
    st.floats(2.0**-9, 1024.0, width=32) | st.floats(-1024.0, -(2.0**-9), width=32) | st.just(0.0)
)


@given(
    rows=arrays(np.float32, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=SIZES),
    data=st.data(),
    dtype=st.sampled_from([np.float32, np.float64]),
    tau=st.sampled_from([0.1, 1.0, 7.0]),
)
@settings(max_examples=40, deadline=None)
def test_no_logit_outside_the_head_exceeds_its_bound(rows, data, dtype, tau):
    h = data.draw(arrays(np.float32, (1, rows.shape[1]), elements=SIZES))
    num = {n: data.draw(st.integers(1, 14)) for n in ("num_head", "num_clusters")}
    rows, h = (10 * rows).astype(dtype), h.astype(dtype)
    lazy = LazyGumbel(rows, **num, tau=tau)
    queries, ids, scores, bounds = lazy._heads_and_bounds(h, None)
    # by whole fractions, and as the kernel rounds them
    query = [Fraction(float(x)) for x in queries[0]]
    exact = [sum(Fraction(float(x)) * y for x, y in zip(r, query, strict=True)) for r in rows]
    rounded = [row_dot(rows, j, queries, 0) for j in range(len(rows))]
    seen, logits, bound = lazy._scored_candidates(queries, 0)
    assert len({*seen.tolist()}) == len(seen) >= ids.shape[1] == min(num["num_head"], len(rows))
    assert {*ids[0].tolist()} <= {*seen.tolist()}
    unseen = {*range(len(rows))} - {*seen.tolist()}
    assert all(max(exact[j], rounded[j]) <= bound for j in unseen) and bound <= bounds[0]
    np.testing.assert_allclose(logits, np.array(rounded)[seen], rtol=1e-5, atol=1e-3)
    # the best of those that are seen are in the head: up to rounding of the products
    room = 8.0 * np.finfo(dtype).eps * (np.abs(rows) @ np.abs(queries[0])).max()
    assert all(exact[j] <= bounds[0] + room for j in {*range(len(rows))} - {*ids[0].tolist()})


def test_the_bound_of_a_cell_is_reached_by_its_farthest_class():
    rows, _ = grouped(200)
    order, starts, centers, reach = LazyGumbel(rows, num_clusters=9)._cells
    np.testing.assert_array_equal(np.sort(order), np.arange(200))
    for i, center in enumerate(centers):
        some = rows[order[starts[i] : starts[i + 1]]]
        away = some - some.mean(axis=0)
        query = away[np.argmax((away**2).sum(axis=1))]
        bound = query @ center + np.linalg.norm(query) * reach[i]
        assert (some @ query).max() <= bound == pytest.approx((some @ query).max(), rel=1e-12)


def test_a_head_of_clusters_sees_few_classes_and_has_the_best_of_them():
    rows, h = grouped()
    lazy, exact = LazyGumbel(rows, num_clusters=80), LazyGumbel(rows)
    queries, ids, scores, bounds = lazy._heads_and_bounds(h, None)
    tail = (len(rows) - lazy.num_head) * np.exp(bounds - np.logaddexp.reduce(scores, axis=1))
    for b in range(3):
        seen, logits, _ = lazy._scored_candidates(queries, b)
        assert lazy.num_head <= len(seen) < 0.2 * len(rows)
        np.testing.assert_allclose(logits, rows[seen] @ h[b], rtol=1e-12)
        # which the model knows as well: a draw looks at few classes of the tail
        assert tail[b] < 1.5 * lazy.num_head
    np.testing.assert_allclose(
        scores.max(axis=1), exact._heads_and_bounds(h, None)[2].max(axis=1), rtol=1e-12
    )
    log_z = lazy.log_partition(np.repeat(h[:1], 3000, axis=0), 20, rng=1)
    error = np.exp(log_z).std() / 3000**0.5
    assert abs(np.exp(log_z).mean() - np.exp(rows @ h[0]).sum()) < 5.0 * error


@pytest.mark.parametrize("reach", [1.0, 0.0])
def test_draws_by_clusters_need_a_reach_that_holds(reach):
    """The twin, with cells that are taken for their centers, is told apart."""
    rng = np.random.default_rng(0)
    rows, h = rng.normal(size=(N, 2)), np.array([[2.0, 0.0]])
    lazy = LazyGumbel(rows, num_head=12, num_clusters=10)
    lazy._cells = lazy._cells._replace(radii=reach * lazy._cells.radii)
    assert len(lazy._scored_candidates(h, 0)[0]) < N  # there is a bound on some
    counts = np.bincount(lazy.sample(h, DRAWS, rng=2).ids[0], minlength=N)
    fits = chi_square(counts, softmax(h @ rows.T)[0])
    assert (fits > LEVEL) if reach else (fits < 1e-12)


@pytest.mark.parametrize("num_clusters", [1, 3, 1000])
def test_clusters_at_the_ends(num_clusters):
    one = LazyGumbel([[3.0]], num_clusters=num_clusters).sample([1e4], 3, rng=0)
    assert not one.ids.any() and not one.log_q.any()
    equal = LazyGumbel(np.ones((30, 2)), num_clusters=num_clusters)
    draws = equal.sample([1.0, -5.0], 30_000, rng=0).ids[0]
    assert chi_square(np.bincount(draws, minlength=30), np.full(30, 1 / 30)) > LEVEL
    rows, h = world()
    draw = LazyGumbel(1e4 * rows, num_clusters=num_clusters).sample(h, 100, rng=0)
    np.testing.assert_array_equal(draw.ids, np.repeat(np.argmax(h @ rows.T, 1)[:, None], 100, 1))


def lazy(h=((0.0, 1.0),), m=2, rows=((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)), **options):
    return LazyGumbel(rows).sample(h, m, **options)


# --- logits in which Gumbel numbers are lost --------------------------------------------------


def far_apart(shift, gap):
    """Return logits of which the last two are drawn as those of 1 and 0 are, and one far above."""
    return np.array([shift, shift - gap, shift - gap])


@pytest.mark.parametrize(("shift", "gap"), [(1e17, 1e17), (0.0, 1e17), (1e300, 1e300), (3e8, 3e8)])
@pytest.mark.parametrize("more", [0.0, 1.0])
def test_classes_far_below_are_drawn_as_if_nothing_were_above(shift, gap, more):
    logits = far_apart(shift, gap)
    if shift - gap == 0.0:  # where 1 more is a number
        logits[1] += more
    p = softmax(logits[1:])
    num = 4000
    draw = gumbel_top_k(np.tile(logits, (num, 1)), 2, rng=0)
    assert (draw.ids[:, 0] == 0).all()
    second = draw.ids[:, 1]
    shares = np.array([np.mean(second == 1), np.mean(second == 2)])
    np.testing.assert_allclose(shares, p, atol=4.0 * np.sqrt(0.25 / num))
    # the weight of what is drawn estimates how many there are of it
    weights = np.exp(-draw.log_inclusion[:, 1])
    for j in (1, 2):
        values = np.where(second == j, weights, 0.0)
        error = values.std() / np.sqrt(num)
        assert abs(values.mean() - 1.0) < 4.0 * error


def test_all_in_turn_are_a_random_order_of_ties():
    draw = gumbel_top_k(np.tile([1e17, 1e17, 0.0, 0.0], (600, 1)), 4, rng=0)
    orders = Counter(map(tuple, draw.ids.tolist()))
    assert set(orders) == {(i, 1 - i, 2 + j, 3 - j) for i in (0, 1) for j in (0, 1)}
    assert min(orders.values()) > 110
    np.testing.assert_array_equal(draw.log_inclusion, 0.0)


@pytest.mark.parametrize("num_head", [1, 2, 4])
@pytest.mark.parametrize(
    ("offset", "num_clusters"),
    [(1e17, None), (1e17, 2), (-1e17, None), (-1e17, 2), (3e300, None)],
)
def test_lazy_draws_of_large_equal_logits_are_draws_of_a_tie(num_head, offset, num_clusters):
    rows = np.array([[0.5], [1.0], [1.0], [0.5], [1.0]]) * offset
    equal = np.flatnonzero(rows[:, 0] == rows.max())
    lazy = LazyGumbel(rows, num_head=num_head, num_clusters=num_clusters)
    draw = lazy.sample([1.0], 3000, rng=0)
    shares = np.bincount(draw.ids[0], minlength=5)[equal] / 3000
    np.testing.assert_allclose(shares, 1.0 / len(equal), atol=0.04)
    if num_head >= len(equal):  # else log Z is an estimate
        np.testing.assert_allclose(draw.log_q, -np.log(len(equal)), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exclude", [None, 200])
def test_the_softmax_sampler_counts_equal_classes_of_all_blocks(dtype, exclude):
    rows = np.full((300, 1), 2.0**57, dtype)
    rows[5:] -= np.where(np.arange(295) < 100, dtype(0.0), dtype(2.0**57))[:, None]
    rows[250:] = 2.0**57
    sampler = SoftmaxSampler(rows, block_size=64)
    wanted = (rows[:, 0] > 0.0).astype(np.float64)
    found = sampler.probs(np.ones((1, 1), dtype), exclude=exclude)[0]
    np.testing.assert_allclose(found, wanted / wanted.sum(), rtol=1e-6)
    draw = sampler.sample(np.ones((1, 1), dtype), 2000, exclude=exclude, rng=0)
    np.testing.assert_allclose(draw.log_q, -np.log(wanted.sum()), rtol=1e-6)


REFUSED = {
    "k of 0": (ValueError, "`k` must be at least 1", lambda: gumbel_top_k(LOGITS, 0)),
    "k": (
        ValueError,
        "`k` must be at most the number of classes 4",
        lambda: gumbel_top_k(LOGITS, 5),
    ),
    "logits": (ValueError, "`logits` must be finite", lambda: gumbel_top_k([0.0, np.nan], 1)),
    "rng": (TypeError, "`rng` must be", lambda: gumbel_top_k(LOGITS, 1, rng="seed")),
    "h": (ValueError, "`h` must have 2 columns", lambda: lazy(h=[[1.0]])),
    "far h": (ValueError, "`h` must have logits within", lambda: lazy(h=[[1.7e308, 1.7e308]])),
    "num_sampled": (ValueError, "`num_sampled` must be at least 1", lambda: lazy(m=0)),
    "head": (ValueError, "`head` must hold distinct classes", lambda: lazy(head=[0, 0])),
    "no head": (ValueError, "`head` must hold distinct", lambda: lazy(head=np.empty((1, 0), int))),
    "head out of range": (ValueError, "`head` must lie in 0..2", lambda: lazy(head=[3])),
    "tail_bound": (
        ValueError,
        r"`tail_bound` must have shape \(1,\)",
        lambda: lazy(tail_bound=[1, 2]),
    ),
    "num_tail": (
        ValueError,
        "`num_tail` must be at least 1",
        lambda: LazyGumbel([[1.0]]).log_partition([1.0], 0),
    ),
    "num_head": (
        ValueError,
        "`num_head` must be at least 1",
        lambda: LazyGumbel([[1.0]], num_head=0),
    ),
    "num_clusters": (
        ValueError,
        "`num_clusters` must be at least 1",
        lambda: LazyGumbel([[1.0]], num_clusters=0),
    ),
    "far classes": (
        ValueError,
        "`class_embeddings` must be less than",
        lambda: LazyGumbel([[1e200]], num_clusters=1),
    ),
    "tau": (ValueError, "`tau` must be finite", lambda: LazyGumbel([[1.0]], tau=-1.0)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_malformed_arguments_are_named(case):
    kind, message, call = REFUSED[case]
    with pytest.raises(kind, match=message):
        call()
