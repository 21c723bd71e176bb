"""The compiled parts of losses on draws, each on its own."""

import itertools
import math

import numpy as np
import pytest
from mpmath import mp
from scipy.special import logsumexp, softmax

from samplesoft.kernels.exponential import replace_by_log1p
from samplesoft.kernels.sort_ids import group_equal_ids
from samplesoft.kernels.weights import row_max, total
from samplesoft.losses.bilateral import bilateral_kernel
from samplesoft.losses.differentiate import make_merged_differentiator, make_row_differentiator
from samplesoft.losses.logistic import logistic_kernel, merge_softplus
from samplesoft.losses.sampled import exp_in_place, merge_exponentials, softmax_kernel
from samplesoft.losses.step import (
    Pairs,
    are_valid_draws,
    find_accidental_hits,
    nan_where_not_finite,
    scatter_logit_gradients,
    write_pair_logits,
)

INF = np.inf


def test_logarithm_to_rounding():
    x = np.concatenate([np.linspace(-0.5, 1.0, 20_001), np.logspace(-300, 0, 2_000), [0.0]])
    found = x.copy()
    replace_by_log1p(found)
    np.testing.assert_allclose(found, np.log1p(x), rtol=5e-16, atol=0)


@pytest.mark.parametrize("x", [-0.5, -0.3, -1e-9, 1e-17, 0.25, 0.7071, 1.0])
def test_logarithm_against_many_digits(x):
    found = np.array([x])
    replace_by_log1p(found)
    with mp.workdps(40):
        assert abs(mp.mpf(found[0]) / mp.log1p(mp.mpf(x)) - 1) < mp.mpf("3.5e-16")


@pytest.mark.parametrize("size", range(14))
def test_maximum_and_sum_of_rows_of_any_length(size):
    rng = np.random.default_rng(size)
    for place in range(size):
        x = rng.normal(size=size)
        x[place] = 9.0
        assert row_max(x) == 9.0
        assert total(x) == pytest.approx(math.fsum(x), rel=1e-14)
        x[place] = -INF
        assert row_max(x) == (max(np.delete(x, place)) if size > 1 else -INF)
    assert row_max(np.empty(0)) == -INF and total(np.empty(0)) == 0.0


def test_weights_of_what_is_masked_or_too_small_are_zero():
    x = np.array([0.0, -1.0, -700.0, -746.0, -1e300, -INF])
    exp_in_place(x)
    np.testing.assert_allclose(x, [1.0, np.exp(-1.0), np.exp(-700.0), 0.0, 0.0, 0.0], rtol=1e-15)


def run(kernel, rows, *arguments):
    rows, losses = np.array(rows, dtype=float), np.empty(len(rows))
    kernel(rows, losses, *arguments)
    return losses, rows


RANDOM = np.random.default_rng(3).normal(size=(5, 7)) * [[0.1], [1.0], [10.0], [100.0], [1e4]]


def test_softmax_with_the_label():
    losses, found = run(softmax_kernel, RANDOM)
    np.testing.assert_allclose(losses, logsumexp(RANDOM, axis=1) - RANDOM[:, 0], rtol=1e-12)
    wanted = softmax(RANDOM, axis=1)
    wanted[:, 0] -= 1.0
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-15)


def test_softmax_without_the_label():
    losses, found = run(bilateral_kernel, RANDOM, 1.0)
    np.testing.assert_allclose(losses, logsumexp(RANDOM[:, 1:], axis=1) - RANDOM[:, 0], rtol=1e-12)
    np.testing.assert_allclose(found[:, 0], -1.0)
    np.testing.assert_allclose(found[:, 1:], softmax(RANDOM[:, 1:], axis=1), rtol=1e-11, atol=1e-15)


def test_a_masked_draw_has_exactly_no_part_in_the_softmax():
    losses, found = run(softmax_kernel, [[0.0, -INF, 1.0, -INF], [3.0, -INF, -INF, -INF]])
    assert (found[:, [1, 3]] == 0.0).all()
    assert losses[1] == 0.0 and not found[1].any()
    assert losses[0] == pytest.approx(np.log1p(np.e))


def test_small_losses_keep_their_digits():
    losses, found = run(softmax_kernel, [[0.0, -80.0, -81.0]])
    small = np.exp(-80.0) + np.exp(-81.0)
    assert losses[0] == pytest.approx(small, rel=1e-14)
    assert found[0, 0] == pytest.approx(-small, rel=1e-14)
    losses, found = run(logistic_kernel, [[80.0, -80.0, -81.0]])
    assert losses[0] == pytest.approx(small + np.exp(-80.0), rel=1e-14)
    np.testing.assert_allclose(found[0], np.exp([-80.0, -80.0, -81.0]) * [-1, 1, 1], rtol=1e-14)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_logistic_terms(scale):
    x = scale * np.random.default_rng(1).normal(size=(4, 6))
    losses, found = run(logistic_kernel, x)
    signed = x * ([-1.0] + [1.0] * 5)
    with mp.workdps(50):
        softplus = [[mp.log1p(mp.exp(mp.mpf(float(v)))) for v in row] for row in signed]
        wanted = [float(mp.fsum(row)) for row in softplus]
        slopes = [[float(1 / (1 + mp.exp(-mp.mpf(float(v))))) for v in row] for row in signed]
    np.testing.assert_allclose(losses, wanted, rtol=1e-14)
    slopes = np.array(slopes) * ([-1.0] + [1.0] * 5)
    np.testing.assert_allclose(found, slopes, rtol=2e-14, atol=1e-323)


def test_a_masked_draw_has_exactly_no_part_in_logistic_regression():
    losses, found = run(logistic_kernel, [[0.0, -INF, 0.0], [0.0, -INF, -INF]])
    np.testing.assert_allclose(losses, [2.0 * np.log(2.0), np.log(2.0)], rtol=1e-15)
    assert (found[:, 1] == 0.0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize(
    ("keeps_label_hits", "keeps_other_hits", "counts_draws_once_per_example"),
    list(itertools.product([0, 1], repeat=3)),
)
def test_corrections_and_hits(
    dtype, shared, keeps_label_hits, keeps_other_hits, counts_draws_once_per_example
):
    rng = np.random.default_rng(0)
    label_logits, sampled_scores = rng.normal(size=4), rng.normal(size=(3, 4)).astype(dtype)
    example_ids, labels = np.array([0, 1, 1, 2]), np.array([1, 2, 0, 3])
    ids = (
        np.array([[1, 2, 1, 0]]) if shared else np.array([[1, 2, 1, 0], [2, 2, 2, 2], [0, 1, 0, 1]])
    )
    log_counts = rng.normal(size=ids.shape)
    places = np.concatenate([labels, ids.ravel()])
    _, _, order, starts = group_equal_ids(places, 4)
    first, last, columns = find_accidental_hits(labels, example_ids, order, starts, 4, shared)
    for p in range(4):
        wanted = np.flatnonzero(ids[0 if shared else example_ids[p]] == labels[p])
        assert columns[first[p] : last[p]].tolist() == wanted.tolist()
    pairs = Pairs(
        label_logits=label_logits,
        sampled_scores=sampled_scores,
        log_counts=log_counts,
        example_ids=example_ids,
        first_example=0,
        label_weights=np.ones(4),
        hit_starts=first,
        hit_stops=last,
        hit_columns=columns,
        keeps_label_hits=bool(keeps_label_hits),
        keeps_other_hits=bool(keeps_other_hits),
        counts_draws_once_per_example=bool(counts_draws_once_per_example),
    )
    logits = np.empty((4, 5))
    write_pair_logits(pairs, 0, logits)
    every = np.broadcast_to(ids, (3, 4))[example_ids]
    wanted = (sampled_scores.astype(float) - log_counts)[example_ids]
    for p, k in np.ndindex(4, 4):
        is_own = every[p, k] == labels[p]
        is_other = not is_own and every[p, k] in labels[example_ids == example_ids[p]]
        if (
            is_own
            and not keeps_label_hits
            or is_other
            and not keeps_other_hits
            or counts_draws_once_per_example
            and p == 2
        ):
            wanted[p, k] = -INF
    np.testing.assert_array_equal(logits, np.column_stack([label_logits, wanted]))
    write_pair_logits(pairs, 2, logits[:2])  # of a part of the pairs
    np.testing.assert_array_equal(logits[:2], logits[2:])


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("merge", [merge_exponentials, merge_softplus])
def test_one_logit_for_many_is_the_same_to_a_loss(merge, scale):
    x = scale * np.random.default_rng(1).normal(size=(4, 6))
    x[0, 1:4] = -INF
    merged, slopes = run(merge, x)
    f = mp.exp if merge is merge_exponentials else lambda v: mp.log1p(mp.exp(v))
    with mp.workdps(50):
        for b, row in enumerate(x):
            wanted = mp.fsum(f(mp.mpf(float(v))) for v in row)
            assert abs(mp.log(f(mp.mpf(float(merged[b])))) - mp.log(wanted)) < 1e-15 * (9 + scale)
            for k, v in enumerate(row):  # f'(v) / f'(merged)
                slope = mp.diff(f, float(v)) / mp.diff(f, float(merged[b])) if v > -INF else 0
                assert slopes[b, k] == pytest.approx(
                    float(slope), rel=4e-15 * (9 + scale), abs=1e-300
                )


@pytest.mark.parametrize("merge", [merge_exponentials, merge_softplus])
def test_rows_without_weight_merge_to_nothing(merge):
    merged, slopes = run(merge, [[-INF, -INF], [0.0, -INF]])
    assert merged[0] == -INF and merged[1] == pytest.approx(0.0, abs=1e-15)
    np.testing.assert_array_equal(slopes, [[0.0, 0.0], [1.0, 0.0]])


def pairs_without_hits(**arrays):
    none = np.zeros(len(arrays["label_logits"]), np.int64)
    return Pairs(
        **arrays,
        first_example=0,
        hit_starts=none,
        hit_stops=none,
        hit_columns=none,
        keeps_label_hits=False,
        keeps_other_hits=True,
        counts_draws_once_per_example=False,
    )


def test_slopes_of_pairs_become_those_of_examples():
    slopes = np.arange(12.0).reshape(4, 3)
    pairs = pairs_without_hits(
        label_logits=np.array([0.0, np.nan, 0.0, INF]),
        sampled_scores=np.zeros((3, 2)),
        log_counts=np.zeros((1, 2)),
        example_ids=np.array([0, 1, 1, 2]),
        label_weights=np.array([1.0, 0.25, 0.75, 1.0]),
    )
    losses, d_labels, d_sampled = np.ones(4), np.empty(4), np.full((3, 2), np.nan)
    for part in (slice(0, 2), slice(2, 4)):  # pairs of an example may come in turn
        scatter_logit_gradients(pairs, part.start, slopes[part], losses, d_labels, d_sampled)
    np.testing.assert_array_equal(losses, [1.0, np.nan, 0.75, np.nan])
    np.testing.assert_array_equal(d_labels, [0.0, 0.75, 4.5, 9.0])
    np.testing.assert_array_equal(d_sampled, [[1.0, 2.0], [6.25, 7.25], [10.0, 11.0]])


@pytest.mark.parametrize("plain", [False, True], ids=["compiled", "NumPy"])
@pytest.mark.parametrize("counts_draws_once_per_example", [False, True])
@pytest.mark.parametrize(
    ("keeps_label_hits", "keeps_other_hits"), [*itertools.product([False, True], repeat=2)]
)
@pytest.mark.parametrize(
    ("terms", "merge", "parameters"),
    [(softmax_kernel, merge_exponentials, ()), (logistic_kernel, merge_softplus, (1.0,))],
)
def test_merged_draws_differentiate_as_rows_do(
    terms,
    merge,
    parameters,
    keeps_label_hits,
    keeps_other_hits,
    counts_draws_once_per_example,
    plain,
):
    """Of examples with one label, several, and draws all of which are labels."""
    rng = np.random.default_rng(0)
    example_ids, labels = np.array([0, 1, 1, 1, 2, 2]), np.array([1, 0, 2, 4, 3, 1])
    ids = np.array([[1, 2, 1, 0, 3], [5, 2, 0, 2, 4], [3, 3, 1, 1, 3]])
    _, _, order, starts = group_equal_ids(np.concatenate([labels, ids.ravel()]), 6)
    first, last, columns = find_accidental_hits(labels, example_ids, order, starts, 5, False)
    pairs = Pairs(
        label_logits=rng.normal(size=6),
        sampled_scores=rng.normal(size=(3, 5)),
        log_counts=rng.normal(size=(3, 5)),
        example_ids=example_ids,
        first_example=0,
        label_weights=rng.random(6),
        hit_starts=first,
        hit_stops=last,
        hit_columns=columns,
        keeps_label_hits=keeps_label_hits,
        keeps_other_hits=keeps_other_hits,
        counts_draws_once_per_example=counts_draws_once_per_example,
    )
    found = []
    if plain:
        terms, merge = terms.py_func, merge.py_func
    separate_hits = keeps_label_hits or keeps_other_hits
    for function in (
        make_row_differentiator(terms, False),
        make_merged_differentiator(terms, merge, separate_hits),
    ):
        losses, d_labels, d_sampled = np.empty(6), np.empty(6), np.empty((3, 5))
        room, no_weights = np.empty(4 * 6), np.empty((0, 0))
        function(pairs, 0, 6, parameters, no_weights, room, losses, d_labels, d_sampled)
        found.append(np.concatenate([losses, d_labels, d_sampled.ravel()]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-13, atol=1e-15)


def test_rows_of_float32_keep_the_digits_of_their_differences():
    """Of log-probabilities near -700, float32 alone would keep four."""
    sampled_scores, log_counts = np.float32([[1.0, 1.5, 2.0]]), np.full((1, 3), -700.0)
    pairs = pairs_without_hits(
        label_logits=np.ones(1),
        sampled_scores=sampled_scores,
        log_counts=log_counts,
        example_ids=np.zeros(1, np.int64),
        label_weights=np.ones(1),
    )
    logits = np.empty((1, 4), np.float32)
    write_pair_logits(pairs, 0, logits)
    np.testing.assert_array_equal(logits, [[-701.0, -1.0, -0.5, 0.0]])


def test_scores_that_are_not_finite_void_the_pairs_of_their_example():
    label_logits, example_ids = np.ones(4), np.array([0, 1, 1, 2])
    nan_where_not_finite(
        label_logits, np.array([[1.0, 2.0], [-INF, 0.0], [0.0, np.nan]]), example_ids, 0, 0
    )
    np.testing.assert_array_equal(label_logits, [1.0, np.nan, np.nan, np.nan])


def test_what_can_be_drawn():
    ids, counts = np.array([[0, 4], [2, 3]]), np.array([[-1e300, 0.0], [3.0, -2.0]])
    assert are_valid_draws(ids, counts, 5) and not are_valid_draws(ids, counts, 4)
    assert not are_valid_draws(ids - 1, counts, 5)
    for value in (np.nan, INF, -INF):
        counts[1, 0] = value
        assert not are_valid_draws(ids, counts, 5)
