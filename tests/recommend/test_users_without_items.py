"""Users without items are absent: vectors are those of the data without them, to the bit."""

import numpy as np
import pytest
from scipy import sparse

from samplesoft.recommend import SampledSoftmaxRecommender

RNG = np.random.default_rng(0)
TAKEN = sparse.csr_array((RNG.random((30, 40)) < 0.2).astype(np.float32))
EMPTY = RNG.permutation(np.arange(90) % 3 > 0)  # of 90 users, 30 have taken something


def fit(taken, **options):
    given = {"embedding_dim": 64, "num_sampled": 10, "max_iter": 3, "random_state": 0}
    return SampledSoftmaxRecommender(**given | options).fit(taken)


@pytest.mark.parametrize(
    "options",
    [{}, {"early_stopping": False, "propagation": 0.1}, {"sampler": "unigram"}, {"loss": "full"}],
    ids=str,
)
def test_users_without_items(options):
    places = np.flatnonzero(~EMPTY)
    spread = sparse.csr_array((np.ones(30), (places, np.arange(30))), shape=(90, 30)) @ TAKEN
    whole, part = fit(spread, **options), fit(TAKEN, **options)
    np.testing.assert_array_equal(whole.item_factors, part.item_factors)
    np.testing.assert_array_equal(whole.user_factors[~EMPTY], part.user_factors)
    assert whole.loss_curve_ == part.loss_curve_
    assert whole.validation_scores_ == part.validation_scores_
    assert whole.propagation_ == part.propagation_
    # they have the vector of a new user without items
    part.partial_fit_users([30], sparse.csr_array((1, 40)))
    np.testing.assert_array_equal(
        whole.user_factors[EMPTY], np.broadcast_to(part.user_factors[30], (60, 64))
    )


def test_items_that_nobody_has_taken_begin_at_random():
    """And not with noise: what the singular value 0 has for directions, of norm 1."""
    few = sparse.csr_array((RNG.random((80, 20)) < 0.2).astype(np.float32))
    wide = sparse.hstack([few, sparse.csr_array((80, 60))], format="csr")
    options = {"propagation": 0.0, "early_stopping": False, "learning_rate": 1e-9, "max_iter": 1}
    found = fit(wide, embedding_dim=96, **options).item_factors[20:]
    # the true directions, which come first, have nothing of these items
    assert np.linalg.norm(found[:, :20], axis=1).min() > 0.2
