"""Precision, recall, nDCG and propensity-scored precision against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from samplesoft.metrics.ranking import propensities, ranking_scores


def naive(ids, labels, k):
    """Return precision, recall and nDCG at k of one example."""
    hits = [int(c in labels) for c in ids[:k]]
    gain = sum(hit / math.log2(place + 2) for place, hit in enumerate(hits))
    ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(labels))))
    return sum(hits) / k, sum(hits) / len(labels), gain / ideal


@given(st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=6), st.integers(0, 100))
def test_scores_are_the_means_of_their_definitions(rows, seed):
    rng = np.random.default_rng(seed)
    ids = np.array([rng.permutation(10)[:5] for _ in rows])
    dense = np.array([[c in labels for c in range(10)] for labels in rows], float)
    labelled = [(i, labels) for i, labels in zip(ids, rows, strict=True) if labels]
    if not labelled:
        with pytest.raises(ValueError, match="a label for some example"):
            ranking_scores(ids, csr_array(dense), [1])
        return
    found = ranking_scores(ids, csr_array(dense), [1, 3, 5])
    for k in (1, 3, 5):
        wanted = np.mean([naive(*pair, k) for pair in labelled], axis=0)
        got = [found[f"{name}_at_{k}"] for name in ("precision", "recall", "ndcg")]
        np.testing.assert_allclose(got, wanted)


def test_one_length_and_dense_labels():
    found = ranking_scores([[2, 1], [3, 0]], np.array([[1, 0, 1, 0], [0, 0, 0, 1]]), 2)
    assert found["precision_at_2"] == 0.5 and found["recall_at_2"] == 0.75


@pytest.mark.parametrize(
    "ids, k, message",
    [
        ([[0, 1]], [3], r"lengths from 1 to 2, that of the lists, got \[3\]"),
        ([[0, 1]], [], "lengths from 1 to 2"),
        ([[0, 1]], [0], "`k` must be at least 1, got 0"),
        ([[0, 2]], [1], r"`ids` must lie in 0\.\.1"),
        ([[0, 0]], [1], "`ids` must hold distinct classes in each list"),
        ([[0.0, 1.0]], [1], "`ids` must hold integers"),
        ([0, 1], [1], r"`ids` must have shape \(B, K\), with a list for each of the 1 rows"),
        ([[0, 1], [1, 0]], [1], r"a list for each of the 1 rows of `labels`, got \(2, 2\)"),
    ],
)
def test_arguments_that_are_refused(ids, k, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ranking_scores(ids, csr_array(np.eye(2)[:1]), k)


def naive_psp(ids, rows, p, k):
    """The sum over all lists, divided by that of the best of all lists."""
    gained = sum(
        1 / p[c] for own, labels in zip(ids, rows, strict=True) for c in own[:k] if c in labels
    )
    return gained / sum(
        sum(sorted((1 / p[c] for c in labels), reverse=True)[:k]) for labels in rows
    )


def psp_case():
    rng = np.random.default_rng(0)
    rows = [set(rng.choice(9, size, replace=False).tolist()) for size in (3, 1, 0, 6, 2)]
    ids = np.array([rng.permutation(9)[:5] for _ in rows])
    dense = np.array([[c in labels for c in range(9)] for labels in rows], float)
    return ids, rows, dense, propensities(np.arange(9) ** 3, 900)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_propensity_scored_precision(k):
    ids, rows, dense, p = psp_case()
    found = ranking_scores(ids, csr_array(dense), [1, 3, 5], propensities=p)
    assert found[f"psp_at_{k}"] == pytest.approx(naive_psp(ids, rows, p, k), rel=1e-14)
    # WRONG: precision counts all labels alike
    assert found[f"psp_at_{k}"] != pytest.approx(found[f"precision_at_{k}"], rel=1e-3)
    every = ranking_scores(ids, csr_array(dense), [1, 3, 5], propensities=np.ones(9))
    assert every[f"psp_at_{k}"] == pytest.approx(naive_psp(ids, rows, np.ones(9), k), rel=1e-14)


def test_best_lists_have_a_propensity_scored_precision_of_one():
    _, rows, dense, p = psp_case()
    best = [sorted(range(9), key=lambda c: (c not in labels, p[c])) for labels in rows]
    found = ranking_scores(np.array(best), csr_array(dense), [1, 3, 5], propensities=p)
    assert [found[f"psp_at_{k}"] for k in (1, 3, 5)] == pytest.approx([1.0] * 3, rel=1e-14)


def test_propensities_are_those_of_jain_and_others():
    counts, size, a, b = [0, 3, 500], 4880, 0.5, 0.4
    c = (math.log(size) - 1) * (b + 1) ** a
    wanted = [1 / (1 + c * math.exp(-a * math.log(n + b))) for n in counts]
    np.testing.assert_allclose(propensities(counts, size, a=a, b=b), wanted, rtol=1e-14)


@pytest.mark.parametrize("p", [[0.5, 0.0], [0.5, 1.5], [0.5]])
def test_propensities_that_are_refused(p):
    with pytest.raises(ValueError, match=r"`propensities` must have shape \(2,\) and lie above 0"):
        ranking_scores([[0, 1]], csr_array(np.eye(2)[:1]), [1], propensities=p)


def test_too_few_examples_for_propensities():
    with pytest.raises(ValueError, match="`num_examples` must be at least 3, got 2"):
        propensities([1, 1], 2)
    with pytest.raises(ValueError, match="`counts` must be at least 0, got -1"):
        propensities([1, -1], 20)


def test_propensities_of_any_exponent_are_chances():
    found = propensities([0, 1, 10], 5000, a=1e39)
    assert found.tolist() == [0.0, propensities([1], 5000)[0], 1.0]
