"""Logs as they are: cold users, items that nobody has taken, pairs that recur, ratings, times."""

import numpy as np
import pytest
from scipy import sparse

from samplesoft.recommend import SampledSoftmaxRecommender

USERS, TAKEN_ITEMS, ITEMS = 300, 40, 400
OPTIONS = {"embedding_dim": 16, "batch_size": 32, "num_sampled": 50, "random_state": 0}


def log():
    """Pairs (user, item): two groups of users, with popular items; nine of ten items are unused."""
    rng = np.random.default_rng(0)
    items = np.arange(TAKEN_ITEMS)
    lists = []
    for user in range(USERS):
        weights = np.where(items % 2 == user % 2, 1.0, 0.1) / (1.0 + items)
        lists.append(rng.choice(items, 8, replace=False, p=weights / weights.sum()))
    return np.repeat(np.arange(USERS), 8), np.concatenate(lists)


def matrix(users, items, weights=None):
    values = np.ones(len(users)) if weights is None else weights
    return sparse.csr_array((values, (users, items)), (USERS, ITEMS))


def fit(taken, **options):
    return SampledSoftmaxRecommender(**OPTIONS | {"max_iter": 10} | options).fit(taken)


@pytest.fixture(scope="module")
def model():
    return fit(matrix(*log()))


def test_a_user_without_a_history_is_given_popular_items(model):
    counts = np.bincount(log()[1], minlength=ITEMS)
    ids, _ = model.recommend(10**6, sparse.csr_array((1, ITEMS)), N=10, recalculate_user=True)
    assert len(set(ids) & set(np.argsort(-counts)[:10])) >= 7


def test_items_that_nobody_has_taken_are_rarely_listed(model):
    """They are nine of ten items, and were negatives only."""
    ids, _ = model.recommend(np.arange(USERS), matrix(*log()), N=10)
    assert np.mean(ids >= TAKEN_ITEMS) < 0.01


def test_pairs_that_recur_add_up():
    users, items = log()
    again = np.arange(0, len(users), 3)
    twice = matrix(np.r_[users, users[again]], np.r_[items, items[again]])
    weights = np.ones(len(users))
    weights[again] = 2.0
    options = {"max_iter": 2}
    found = fit(twice, **options)
    np.testing.assert_array_equal(
        found.item_factors, fit(matrix(users, items, weights), **options).item_factors
    )
    ones = (twice > 0).astype(np.float32)  # each pair once
    np.testing.assert_array_equal(
        fit(ones, **options).item_factors, fit(matrix(users, items), **options).item_factors
    )
    assert not np.array_equal(found.item_factors, fit(ones, **options).item_factors)


def test_ratings_are_weights_and_not_dislikes(model):
    """The lists follow the group of the items with high ratings; low ratings still attract."""
    items = np.array([4, 6, 5, 7])
    shares = []
    for ratings in ([5, 5, 1, 1], [1, 1, 5, 5]):
        history = sparse.csr_array((np.array(ratings, float), ([0] * 4, items)), (1, ITEMS))
        ids, _ = model.recommend(0, history, N=10, recalculate_user=True)
        assert not set(ids) & set(items)
        shares.append(np.mean(ids % 2 == 0))
    assert shares[0] > 0.6 and shares[1] < 0.4


def test_times_as_values_are_weights_that_are_almost_equal(model):
    """Seconds since 1970 change lists little; that later pairs are tests needs a split."""
    users, items = log()
    times = 1.7e9 + np.random.default_rng(1).random(len(users)) * 1e7
    found = fit(matrix(users, items, times))
    lists = [
        one.recommend(np.arange(USERS), matrix(users, items), N=10)[0] for one in (model, found)
    ]
    common = [len(set(a) & set(b)) for a, b in zip(*lists, strict=True)]
    assert np.mean(common) > 8.0


def test_a_split_by_time():
    """Users who come later have no history; what they had before is not to be found again."""
    users, items = log()
    times = np.random.default_rng(2).random(len(users))
    times[users >= USERS - 20] = 1.0  # users who come after the split
    early = times < 0.8
    train = matrix(users[early], items[early])
    later = matrix(users[~early], items[~early])
    assert not np.diff(train.indptr)[-20:].any()
    found = fit(train)
    assert found.evaluate(train, later, 10)["recall@10"] > 0.4
    new = later.copy()
    new.data *= np.repeat(np.arange(USERS) >= USERS - 20, np.diff(later.indptr))
    assert found.evaluate(train, new, 10)["recall@10"] > 0.25  # popular items; 0.025 by chance
