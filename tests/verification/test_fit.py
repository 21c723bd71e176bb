"""Logits that are not those of the vectors beside them are told, and others are not."""

import warnings

import numpy as np
import pytest

from samplesoft.verification.problem import checked_problem, warn_unless_logits_fit_vectors
from samplesoft.verification.verify import verify

N, D, B, TAU = 30, 6, 4, 3.0


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    return rng.normal(size=(B, D)), rng.normal(size=(N, D))


def warned(logits, h, c, tau=TAU):
    """Return the warnings of a small verification."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        verify(
            logits, np.zeros(len(h), int), {"uniform": np.full(len(c), 1 / len(c))}, 3,
            h=h, class_embeddings=c, tau=tau, wrt="h", num_trials=2, rng=0,
        )  # fmt: skip
    assert all(one.category is RuntimeWarning and one.filename == __file__ for one in found)
    return [str(one.message) for one in found]


def test_products_biases_and_constants_fit(vectors):
    h, c = vectors
    o, rng = TAU * h @ c.T, np.random.default_rng(1)
    biases, constants = 50 * rng.normal(size=N), 50 * rng.normal(size=(B, 1))
    for logits in (o, o + biases, o + constants, o + biases + constants):
        assert not warned(logits, h, c)
    log_probs = o + biases - np.log(np.exp(o + biases).sum(axis=1, keepdims=True))
    assert not warned(log_probs, h, c)


def test_a_tau_that_was_forgotten_is_named(vectors):
    h, c = vectors
    (message,) = warned(TAU * h @ c.T + np.arange(N), h, c, tau=1.0)
    assert "with tau = 1 class" in message and message.endswith("pass tau=3, which fits.")


def test_a_slightly_other_tau_and_other_vectors_are_told(vectors):
    h, c = vectors
    (message,) = warned(1.001 * TAU * h @ c.T, h, c)
    assert "pass tau=3.003" in message
    for logits in (TAU * h @ c[::-1].T, TAU * h[::-1] @ c.T, np.abs(TAU * h @ c.T)):
        (message,) = warned(logits, h, c)
        assert message.endswith("or leave the vectors out.")


def test_one_logit_that_is_off_is_found(vectors):
    """As of a label whose margin was taken off."""
    h, c = vectors
    logits = TAU * h @ c.T
    logits[2, 7] -= 0.25
    (message,) = warned(logits, h, c)
    assert " is off by 0.25 against" in message and "class 7 of example" in message


def test_one_example_tells_nothing(vectors):
    h, c = vectors
    assert not warned(np.arange(N)[None], h[:1], c)
    assert not warned(np.arange(N) + np.zeros((3, 1)), np.tile(h[:1], (3, 1)), c)


@pytest.mark.parametrize("dim", [1, 16, 700])
@pytest.mark.parametrize("norm", [1e-4, 1.0, 1e4])
def test_rounding_to_float32_is_no_misfit(dim, norm):
    rng = np.random.default_rng(dim)
    h, c = (rng.normal(size=(num, dim)) for num in (6, 200))
    h *= norm * np.exp(rng.normal(size=(6, 1))) / dim**0.5
    c *= norm * np.exp(2 * rng.normal(size=(200, 1))) / dim**0.5
    narrow = np.float32(TAU) * (h.astype(np.float32) @ c.astype(np.float32).T)
    shift = np.float32(norm**2) * rng.normal(size=200).astype(np.float32)
    for logits in (narrow, narrow + shift, narrow - narrow.max(axis=1, keepdims=True)):
        assert not call(logits, h, c)
    assert call(narrow, h, c, 1.0)
    assert call(narrow, h, c[::-1])


def call(logits, h, c, tau=TAU):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_unless_logits_fit_vectors(
            checked_problem(logits, np.zeros(len(h), int), 3, h, c, tau, "h", "negatives", 2)
        )
    return found


def test_numbers_beyond_float64_raise_no_other_warning():
    h, c = np.full((2, 3), 1e200), np.full((4, 3), 1e149)
    h[0] *= -1.0
    assert not [one for one in call(np.zeros((2, 4)), h, c) if "logits" not in str(one.message)]
