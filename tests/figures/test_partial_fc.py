"""Partial FC: what the correction is worth, and the committed table."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import partial_fc
import pytest
from tables import read_csv

from samplesoft.bias import stratified_bias

TABLE = read_csv(Path(partial_fc.__file__).with_suffix(".csv"))


@pytest.mark.thorough
def test_without_the_correction_a_label_has_a_score_that_is_too_high():
    """By the log of 1 / rate: the softmax of fewer classes is that of all, with another margin."""
    args = Namespace(num_classes=60, num_shards=2, num_examples=3, seed=0)
    (logits, labels), shards = partial_fc.faces(args), np.arange(60) % 2
    q, rate = np.full(60, 1 / 60), np.full(60, 0.2)
    published = stratified_bias(logits, labels, q, 6, shards, correction=np.ones(60))
    raised = logits.copy()
    raised[np.arange(3), labels] -= np.log(0.2)
    corrected = stratified_bias(raised, labels, q, 6, shards, correction=rate)
    expected = corrected.bias + corrected.probs
    np.testing.assert_allclose(published.bias + published.probs, expected, atol=1e-9)


def test_faces_have_the_margin_and_labels_of_all_kinds():
    args = Namespace(num_classes=4000, num_shards=8, num_examples=12, seed=0)
    logits, labels = partial_fc.faces(args)
    probs = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
    own = probs[np.arange(12), labels]
    assert own[0] > 0.99 and own[-1] < 0.01
    others = np.delete(logits[0], labels[0]) / (64 * np.sin(np.radians(40)))
    assert others.std() == pytest.approx(512**-0.5, rel=0.05)


@pytest.mark.parametrize("problem", ["words", "faces"])
def test_the_committed_table_says_that_the_correction_keeps_the_pull(problem):
    rows = [row for row in TABLE if row["problem"] == problem]
    published, corrected = ([r for r in rows if r["line"] == k] for k in partial_fc.LINES)
    assert [row["rate"] for row in published] == [row["rate"] for row in corrected]
    for without, with_it in zip(published, corrected, strict=True):
        assert without["relative_bias_mean"] > with_it["relative_bias_mean"]
        assert without["pull_mean"] < with_it["pull_mean"] <= 1.0
        assert without["loss_bias_mean"] < with_it["loss_bias_mean"] < 0.0
    for some in (published, corrected):
        assert (np.diff([row["relative_bias_mean"] for row in some]) < 0.0).all()
