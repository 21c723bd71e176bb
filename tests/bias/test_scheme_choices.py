"""A scheme that a function names as a choice is one that it takes."""

import re

import numpy as np
import pytest

import samplesoft
from samplesoft.bias import BiasSums, stratified_bias, tries_bias
from samplesoft.bias.asymptotic import asymptotic_bias, self_normalized_terms
from samplesoft.bias.monte_carlo import monte_carlo_bias
from samplesoft.schemes import exact_schemes

ARGUMENTS = np.array([0.0, 1.0, 2.0, 0.5]), 0, np.full(4, 0.25)
FUNCTIONS = {
    "exact_bias": lambda s: samplesoft.exact_bias(*ARGUMENTS, 2, scheme=s),
    "bounds": lambda s: samplesoft.finite_sample_bounds(*ARGUMENTS, 2, scheme=s),
    "num_sampled_for": lambda s: samplesoft.num_sampled_for(*ARGUMENTS, 0.1, scheme=s),
    "moments": lambda s: samplesoft.exact_gradient_moments(*ARGUMENTS, 2, np.eye(4), scheme=s),
    "monte_carlo": lambda s: monte_carlo_bias(*ARGUMENTS, 2, num_trials=2, scheme=s),
    "strata": lambda s: stratified_bias(*ARGUMENTS, 1, [0, 0, 1, 1], scheme=s),
    "tries": lambda s: tries_bias(*ARGUMENTS, 2, scheme=s),
    "limit": lambda s: asymptotic_bias(*ARGUMENTS, scheme=s),
    "self_normalized": lambda s: self_normalized_terms(*ARGUMENTS, 2, scheme=s),
    "sums": lambda s: BiasSums(2, 0, s),
}
EVERY = exact_schemes() + exact_schemes(distinct=True)


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_all_choices_that_a_message_names_are_taken_and_no_others(name):
    function = FUNCTIONS[name]
    with pytest.raises(ValueError, match="`scheme` must be one of .*; got 'nonsense'") as caught:
        function("nonsense")
    named = re.search(r"one of (.*);", str(caught.value)).group(1).split(", ")
    taken = []
    for scheme in EVERY:
        try:
            function(scheme)
        except ValueError as error:
            assert "`scheme` must be one" in str(error)  # noqa: PT017
            assert f"got {scheme!r}" in str(error)  # noqa: PT017
        else:
            taken.append(scheme)
    assert named == taken


@pytest.mark.parametrize("scheme", ["distinct", "candidate"])
def test_a_number_of_draws_without_bounds_says_so(scheme):
    with pytest.raises(ValueError, match="`scheme` must be one whose sum is e_t plus a mean"):
        FUNCTIONS["num_sampled_for"](scheme)


@pytest.mark.parametrize("scheme", ["negatives", "masked", "candidate", "importance", "distinct"])
def test_a_stratum_without_classes_to_draw_has_no_draws(scheme):
    """The label alone, whose q is 0, or numbers of strata that no class has."""
    logits, q, ones = [0.0, 1.0, 2.0], [0.0, 0.5, 0.5], np.ones(3)
    with_none = [
        stratified_bias(logits, 0, q, counts, strata, scheme=scheme, correction=ones)
        for counts, strata in (([0, 1], [0, 1, 1]), ([1, 0, 0], [2, 0, 0]))
    ]
    one = stratified_bias(logits, 0, q, 1, [0, 0, 0], scheme=scheme, correction=ones)
    for found in with_none:
        np.testing.assert_allclose(found.bias, one.bias, atol=1e-14)
    with pytest.raises(ValueError, match="`num_sampled` must be at most the number of classes"):
        stratified_bias(logits, 0, q, [1, 1], [0, 1, 1], scheme=scheme, correction=ones)
