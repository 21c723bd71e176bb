"""Contexts and labels that a checkpoint of ``train xc`` or ``items`` holds, and those of a file."""

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import chisquare

from samplesoft.training import RetrievalSettings, RetrievalTask, Settings, read_examples, train
from samplesoft.training.trained import sample_one_label

FULL = {"loss": "full", "sampler": None, "num_sampled": None, "embedding_dim": 6}


def test_one_of_several_labels_is_drawn_by_its_weight():
    num, weights = 4000, np.array([0.0, 1.0, 0.0, 3.0, 2.0])
    labels = sparse.csr_array(np.tile(weights, (num, 1)))
    labels.eliminate_zeros()
    inputs = sparse.csr_array(np.ones((num, 2)))
    given, drawn = sample_one_label(inputs, labels, False, 0)
    assert given is inputs
    counts = np.bincount(drawn, minlength=5)[[1, 3, 4]]
    assert chisquare(counts, num * np.array([1, 3, 2]) / 6).pvalue > 1e-3
    assert chisquare(counts).pvalue < 1e-9
    np.testing.assert_array_equal(sample_one_label(inputs, labels, False, 0)[1], drawn)
    assert (sample_one_label(inputs, labels, False, 1)[1] != drawn).any()


def test_an_item_that_is_a_label_is_no_input():
    taken = sparse.csr_array((np.random.default_rng(0).random((50, 9)) < 0.4).astype(np.float32))
    taken = taken[np.flatnonzero(np.diff(taken.indptr))]
    given, drawn = sample_one_label(taken, taken, True, 0)
    wanted = taken.toarray()
    assert (wanted[np.arange(len(drawn)), drawn] == 1.0).all()
    wanted[np.arange(len(drawn)), drawn] = 0.0
    np.testing.assert_array_equal(given.toarray(), wanted)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("leave_out", [True, False])
def test_a_checkpoint_holds_contexts_of_held_out_examples(normalize, leave_out, tmp_path):
    rng = np.random.default_rng(0)
    labels = sparse.csr_array((rng.random((120, 7)) < 0.4).astype(float))
    x = labels if leave_out else sparse.csr_array(np.diag(rng.random(120) + 0.5))
    settings = RetrievalSettings(**FULL, normalize=normalize, tau=3.0, validation=0.25)
    task = RetrievalTask(x, labels, settings, leave_out=leave_out)
    train(task, Settings(epochs=2, optimizer="adagrad", learning_rate=0.1), tmp_path)
    found = read_examples(tmp_path / "checkpoint.npz")
    U, u, W = (
        task.parameters[name].astype(float)
        for name in ("embedding.weights", "embedding.intercept", "softmax.class_embeddings")
    )
    if normalize:
        W /= np.linalg.norm(W, axis=1, keepdims=True)
    h, drawn = found.embeddings.h, found.embeddings.labels
    assert len(h) == int(0.25 * np.count_nonzero(labels.sum(axis=1)))
    assert (found.tau, found.absolute, found.step) == (3.0, False, 2 * task.num_steps)
    np.testing.assert_allclose(found.embeddings.class_embeddings, W, atol=1e-6)
    np.testing.assert_array_equal(found.embeddings.counts, labels.sum(axis=0))
    held_out = set(np.flatnonzero(labels.sum(axis=1))) - set(task.rows)
    for context, label in zip(h, drawn, strict=True):
        options = []
        for row in held_out:
            given, own = x.toarray()[row], set(labels[[row]].indices.tolist())
            if label not in own:
                continue
            if leave_out:
                given[label] = 0.0
            given /= np.linalg.norm(given) or 1.0
            wanted = given @ U + u
            options.append(wanted / np.linalg.norm(wanted) if normalize else wanted)
        assert min(np.abs(options - context).max(axis=1)) < 1e-5


def test_counts_and_contexts_are_no_part_of_a_resumed_run(tmp_path):
    """They follow from data and parameters, so that nothing is to be loaded."""
    x = sparse.csr_array(np.eye(30))
    task = RetrievalTask(x, x, RetrievalSettings(**FULL))
    how = {"optimizer": "adagrad", "learning_rate": 0.1}
    train(task, Settings(epochs=1, **how), tmp_path)
    again = RetrievalTask(x, x, RetrievalSettings(**FULL))
    train(again, Settings(epochs=2, **how), tmp_path, resume=True)
    assert (again.examples()["h"] != task.examples()["h"]).any()
    np.testing.assert_array_equal(again.examples()["labels"], task.examples()["labels"])
