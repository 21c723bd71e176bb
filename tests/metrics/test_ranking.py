"""Precision, recall and nDCG against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from samplesoft.metrics.ranking import ranking_scores


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
        ([[0.0, 1.0]], [1], "`ids` must hold integers"),
        ([0, 1], [1], r"`ids` must have shape \(B, K\), with a list for each of the 1 rows"),
        ([[0, 1], [1, 0]], [1], r"a list for each of the 1 rows of `labels`, got \(2, 2\)"),
    ],
)
def test_arguments_that_are_refused(ids, k, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ranking_scores(ids, csr_array(np.eye(2)[:1]), k)
