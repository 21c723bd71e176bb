"""How many draws a bias needs: the search, that the norm falls, and what the bounds promise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samplesoft import exact_bias, finite_sample_bounds, num_sampled_for
from samplesoft.bias.bounds.num_sampled import smallest_num_sampled

CASES = settings(max_examples=40, deadline=None)
LOGITS, Q = np.array([0.5, -1.0, 2.0, 0.0]), np.array([0.4, 0.3, 0.2, 0.1])


def norm(logits, label, q, m, scheme="negatives"):
    return np.abs(exact_bias(logits, label, q, m, scheme=scheme).bias).sum()


@st.composite
def examples(draw):
    n = draw(st.integers(2, 6))
    spread = draw(st.sampled_from([0.3, 3.0, 30.0]))
    logits = draw(st.lists(st.floats(-spread, spread), min_size=n, max_size=n))
    powers = draw(st.lists(st.floats(-4.0, 0.0), min_size=n, max_size=n))
    q = 10.0 ** np.array(powers)
    return np.array(logits), draw(st.integers(0, n - 1)), q / q.sum()


@CASES
@given(examples(), st.integers(1, 200), st.sampled_from(["negatives", "masked"]))
def test_the_norm_of_the_bias_does_not_rise(example, m, scheme):
    """The theorem; single biases of classes do rise, and cross 0."""
    before, after = (exact_bias(*example, k, scheme=scheme) for k in (m, m + 1))
    room = before.error + after.error + 1e-15
    assert np.abs(after.bias).sum() <= np.abs(before.bias).sum() + room


def test_the_size_of_a_single_bias_may_rise():
    sizes = [abs(exact_bias(LOGITS, 0, Q, m).bias) for m in range(1, 30)]
    assert (np.diff(sizes, axis=0) > 1e-4).any()


@pytest.mark.parametrize("scheme", ["negatives", "masked"])
@pytest.mark.parametrize("bias", [1.9, 0.3, 0.04, 0.011])
def test_is_the_least_number_by_a_walk(scheme, bias):
    found = num_sampled_for(LOGITS, 1, Q, bias, scheme=scheme)
    m = 1
    while norm(LOGITS, 1, Q, m, scheme) > bias:
        m += 1
    assert found.exact == m
    assert m <= found.guaranteed <= 1.2 * m + 1
    bounds = finite_sample_bounds(LOGITS, 1, Q, found.guaranteed, scheme=scheme)
    positive, negative = np.maximum(bounds.upper, 0).sum(), np.maximum(-bounds.lower, 0).sum()
    assert 2.0 * min(positive, negative) <= bias


@CASES
@given(examples(), st.floats(-8.0, 0.0))
def test_lies_between_a_number_too_small_and_one_that_does(example, power):
    bias = 10.0**power
    found = num_sampled_for(*example, bias)
    assert norm(*example, found.exact) <= bias
    assert norm(*example, found.guaranteed) <= bias
    assert found.guaranteed >= found.exact
    if found.exact > 1:
        assert norm(*example, found.exact - 1) > bias


@pytest.mark.parametrize(
    "size",
    [
        lambda m: 1.0 / m,
        lambda m: 3.0 / math.sqrt(m),
        lambda m: 1.0 / m**3,
        lambda m: 2.0 ** -(m // 7),
        lambda m: float(m < 700),
        lambda m: 1.0 / math.log1p(m),
    ],
)
def test_the_search_finds_the_first_of_any_norm_that_falls(size):
    for wanted in (2.0, 0.9, 0.3, 0.2):
        calls = []
        first = next(m for m in range(1, 2000) if size(m) <= wanted)
        found = smallest_num_sampled(lambda m, calls=calls: calls.append(m) or size(m), 1, wanted)
        assert found == first
        assert len(calls) <= 40


def test_batches_equal_their_rows():
    labels = [0, 2]
    logits = np.stack([LOGITS, LOGITS[::-1]])
    found = num_sampled_for(logits, labels, Q, 0.01)
    rows = [num_sampled_for(o, t, Q, 0.01) for o, t in zip(logits, labels, strict=True)]
    np.testing.assert_array_equal(found.exact, [row.exact for row in rows])
    np.testing.assert_array_equal(found.guaranteed, [row.guaranteed for row in rows])


def test_none_is_needed_where_the_proposal_is_the_softmax():
    q = np.exp(LOGITS) / np.exp(LOGITS).sum()
    found = num_sampled_for(LOGITS, 0, q, 1e-10)
    assert (found.exact, found.guaranteed) == (1, 1)
    assert num_sampled_for([0.0, 3.0], 0, [0.5, 0.5], 1e-200).guaranteed == 1


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"bias": 0.0}, ValueError, "`bias` must be finite and greater than 0"),
        ({"bias": "1"}, TypeError, "`bias` must"),
        ({"bias": 1e-25}, ValueError, r"`bias` must be one that 1e\+15 draws can reach"),
        ({"scheme": "reject"}, ValueError, "`scheme` must be one whose sum"),
        ({"labels": 4}, ValueError, "`labels` must lie in"),
        ({"q": [0.5, 0.5, 0.0, 0.0]}, ValueError, "got 0 at class 2"),
    ],
)
def test_bad_input_is_named(change, error, message):
    good = {"logits": LOGITS, "labels": 0, "q": Q, "bias": 0.1}
    with pytest.raises(error, match=message):
        num_sampled_for(**(good | change))
