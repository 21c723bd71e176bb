"""The offset of losses that no sum over the classes brings to a level."""

from dataclasses import replace

import numpy as np
import pytest
from oracles.loss_cases import make_case
from scipy import sparse
from scipy.special import logsumexp

from samplesoft.losses import LOSSES, make_loss
from samplesoft.losses.logistic import LogisticLoss
from samplesoft.models.softmax_settings import SoftmaxSettings

LOGISTIC = [name for name, spec in LOSSES.items() if issubclass(spec.make, LogisticLoss)]


def found(loss, labels, biases=None):
    """Return the value and all gradients of three examples."""
    case = make_case(loss, shared=loss.needs_label_count or not loss.excludes_label, seed=3)
    example_ids, classes = labels.nonzero() if sparse.issparse(labels) else (None, labels)
    counts = np.log(case.q[0] * case.ids.shape[1])[classes] if loss.needs_label_count else None
    if loss.excludes_label:
        labels = case.labels
    value, cache = loss.forward(
        case.h, case.class_embeddings, labels, case.draw, biases=biases, label_log_count=counts
    )
    gradients = loss.backward(cache)
    return value, gradients.dh, gradients.dW.rows


@pytest.mark.parametrize("name", LOGISTIC)
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_an_offset_is_a_bias_of_every_class(name, several, normalize):
    if several and LOSSES[name].excludes_label:
        pytest.skip("takes one label an example")
    labels = np.array([0, 1, 5])
    if several:
        labels = sparse.csr_array(np.eye(6)[labels] + np.eye(6)[[1, 2, 4]])
    plain, lifted = (make_loss(name, normalize=normalize, offset=by) for by in (0.0, -1.5))
    wanted, without = found(plain, labels, np.full(6, -1.5)), found(plain, labels)
    for one, other, unlike in zip(found(lifted, labels), wanted, without, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)
        assert not np.allclose(unlike, other)  # an offset changes each of them


def test_offsets_that_are_refused():
    with pytest.raises(ValueError, match="`offset` must be finite, got nan"):
        make_loss("nce", offset=np.nan)
    with pytest.raises(TypeError, match="`offset` must be a number, got str"):
        make_loss("nce", offset="-log n")
    with pytest.raises(TypeError, match="offset"):
        make_loss("sampled", offset=1.0)  # in which it would cancel out


@pytest.mark.parametrize("tau", [5.0, 15.0])
def test_random_vectors_start_with_probabilities_that_sum_to_1(tau):
    n, d, m = 20_000, 64, 50
    rows = np.random.default_rng(0).normal(size=(n, d))
    h = rows[0] / np.linalg.norm(rows[0])
    settings = SoftmaxSettings("nce", tau=tau, sampler="uniform", num_sampled=m)
    loss = settings.make_layer(rows[1:], None, 0).loss
    scores = tau * rows[1:] @ h / np.linalg.norm(rows[1:], axis=1)
    assert abs(logsumexp(scores + loss.offset)) < 0.25
    assert logsumexp(scores) > 9.0  # without one they do not
    learned = replace(
        settings, loss="negative-sampling-masked"
    )  # log p / (m q), here of q = 1 / (n - 1)
    offset = learned.make_layer(rows[1:], None, 0).loss.offset
    assert abs(logsumexp(scores + offset + np.log(m / (n - 1)))) < 0.25
    assert settings.make_layer(rows[:9], None, 0).loss.offset > loss.offset
