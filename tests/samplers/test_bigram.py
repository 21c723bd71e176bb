"""Bigrams: probabilities against whole fractions, draws by chi-square, and effective sizes."""

from copy import deepcopy
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from mpmath import mp, mpf
from oracles.naive_samplers import chi_square
from scipy import sparse

from samplesoft import exact_bias
from samplesoft.samplers import BigramSampler, UniformSampler, effective_sample_size, sample_until
from samplesoft.samplers.bigram import _move_towards_softmax

COUNTS = np.array(
    [[0, 3, 1, 0, 9, 0], [0, 0, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]]
)  # state 1 was never seen, and class 5 never came
STATES, N = np.arange(4), 6


def by_hand(counts, state, excluded=None):
    """Return the mixture, from its definition."""
    row = [Fraction(int(c)) for c in counts[state]]
    unigram = [Fraction(int(c)) for c in counts.sum(axis=0)]
    least = min(c for c in unigram if c)
    unigram = [c or least / 2 for c in unigram]
    total, distinct = sum(row), sum(c > 0 for c in row)
    share = total / (total + distinct) if total else Fraction(0)
    q = [
        (share * c / total if total else 0) + (1 - share) * u / sum(unigram)
        for c, u in zip(row, unigram, strict=True)
    ]
    if excluded is not None:
        q[excluded] = Fraction(0)
    return [float(x / sum(q)) for x in q]


@pytest.fixture
def sampler():
    return BigramSampler(sparse.csr_array(COUNTS))


@pytest.mark.parametrize("excluded", [None, [4, 5, 0, 2], [1, 0, 1, 5]])
def test_probabilities(sampler, excluded):
    wanted = [by_hand(COUNTS, s, None if excluded is None else excluded[s]) for s in STATES]
    found = sampler.probs(STATES, exclude=excluded)
    np.testing.assert_allclose(found, wanted, rtol=1e-13)
    some = sampler.log_prob(STATES, [[0, 5]] * 4, exclude=excluded)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(some, np.log(np.array(wanted)[:, [0, 5]]), rtol=1e-12)


@pytest.mark.parametrize("excluded", [None, [4, 5, 0, 2]])
def test_draws_have_their_probabilities(sampler, excluded):
    draw = sampler.sample(STATES, 40_000, exclude=excluded, rng=1)
    q = sampler.probs(STATES, exclude=excluded)
    for s in STATES:
        counts = np.bincount(draw.ids[s], minlength=N)
        assert chi_square(counts, q[s]) > 1e-3 / 8
        np.testing.assert_allclose(np.exp(draw.log_q[s]), q[s][draw.ids[s]], rtol=1e-12)
        if excluded is not None:
            assert not counts[excluded[s]]
    wrong = sampler.probs(STATES)[0] if excluded else q[3]  # the twin that forgets the label
    assert chi_square(np.bincount(draw.ids[0], minlength=N), wrong) < 1e-9


def test_one_set_for_a_batch_is_from_the_mean_over_its_states(sampler):
    states = np.array([0, 0, 2, 1, 0])
    mean = sampler.probs(states).mean(axis=0)
    np.testing.assert_allclose(sampler.probs(states, shared=True)[0], mean, rtol=1e-13)
    draw = sampler.sample(states, 30_000, shared=True, rng=0)
    assert chi_square(np.bincount(draw.ids[0], minlength=N), mean) > 1e-3
    np.testing.assert_allclose(draw.log_q[0], np.log(mean)[draw.ids[0]], rtol=1e-12)


def test_a_label_with_nearly_all_of_the_mass_is_excluded_without_cancellation():
    counts = sparse.csr_array(np.array([[1.0, 1e15, 2.0, 3.0]]))
    found = BigramSampler(counts).probs([0], exclude=[1])[0]
    np.testing.assert_allclose(found, [1 / 6, 0, 1 / 3, 1 / 2], rtol=1e-12)


def test_a_state_with_far_more_counts_than_the_rarest_leaves_every_class_a_share():
    counts = sparse.csr_array(np.array([[5.0, 0, 0], [1e-16, 3, 1.0]]))
    sampler = BigramSampler(counts)
    u = np.array([5.0, 3.0, 1.0]) / 9.0
    rest = 1e-16 / (5.0 + 1e-16)  # 1 - lambda, with the least count for the unit
    np.testing.assert_allclose(sampler.probs([0])[0, 1:], rest * u[1:], rtol=1e-12)
    np.testing.assert_allclose(sampler.probs([0], exclude=[0]), [[0, 0.75, 0.25]], rtol=1e-12)
    assert np.isfinite(sampler.sample([0], 20, exclude=[0], rng=0).log_q).all()


def test_a_state_has_what_was_adapted(sampler):
    sampler.adapt([0], [[1, 2]], [[5.0, 0.0]], rate=0.5)
    again = BigramSampler(sparse.csr_array(COUNTS))
    again.load_state(sampler.state())
    np.testing.assert_array_equal(again.probs(STATES), sampler.probs(STATES))
    before = again.state()["counts"]
    for state in ({}, {"counts": before[1:]}, {"counts": -before}):
        with pytest.raises(ValueError, match="state"):
            again.load_state(state)
    np.testing.assert_array_equal(again.state()["counts"], before)


def test_units_duplicates_and_zeros_do_not_matter(sampler):
    rows, columns = np.nonzero(COUNTS)
    values = COUNTS[rows, columns] / 2
    twice = [np.concatenate([x, x, [1]]) for x in (rows, columns)]
    data = np.concatenate([values, values, [0]])
    matrix = sparse.coo_array((data, tuple(twice)), shape=COUNTS.shape)
    np.testing.assert_array_equal(BigramSampler(matrix).probs(STATES), sampler.probs(STATES))
    np.testing.assert_allclose(
        BigramSampler(matrix * 1e-200).probs(STATES), sampler.probs(STATES), rtol=1e-13
    )


def test_one_class_one_state_and_many_threads(sampler, monkeypatch):
    one = BigramSampler(sparse.csr_array([[3.0]]))
    draw = one.sample([0, 0], 5, rng=0)
    assert not draw.ids.any() and not draw.log_q.any()
    states = np.arange(400) % 4
    at_once = sampler.sample(states, 300, rng=5)
    monkeypatch.setattr("samplesoft.samplers.bigram._TASK_DRAWS", 1000)
    in_parts = sampler.sample(states, 300, rng=5)
    np.testing.assert_array_equal(at_once.ids, in_parts.ids)
    np.testing.assert_array_equal(at_once.log_q, in_parts.log_q)


def test_the_exact_bias_takes_its_probabilities(sampler):
    logits = np.random.default_rng(0).normal(size=(4, N))
    q = sampler.probs(STATES, exclude=[0, 1, 2, 3])
    q[STATES, STATES] = 0.5  # is conditioned away
    q /= q.sum(axis=1, keepdims=True)
    assert np.isfinite(exact_bias(logits, [0, 1, 2, 3], q, 10).bias).all()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: BigramSampler(COUNTS), TypeError, "`counts` must be a scipy.sparse matrix"),
        (lambda: BigramSampler(sparse.csr_array((3, 3))), ValueError, "some greater, got none"),
        (lambda: BigramSampler(sparse.csr_array([[1.0, -1.0]])), ValueError, "at least 0"),
        (lambda: BigramSampler(sparse.csr_array([[1.0, np.nan]])), ValueError, "`counts`"),
        (lambda: BigramSampler(sparse.csr_array([[1e-99, 1e9]])), ValueError, "from 1e-99 to"),
    ],
)
def test_bad_counts(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("h", "error"),
    [(None, TypeError), ([0.5], TypeError), ([4], ValueError), ([-1], ValueError), ([], ValueError)]
    + [([[0, 1]], ValueError), (np.ones((2, 3)), TypeError)],
)
def test_bad_states(sampler, h, error):
    with pytest.raises(error, match="`h` must"):
        sampler.sample(h, 2)


# --- bigrams that adapt -----------------------------------------------------------------------

BATCH = np.array([0, 3, 0, 1, 2, 0])  # states, one of which was never seen
DRAWN = np.array(
    [[4, 1, 4, 5], [0, 2, 5, 4], [1, 2, 3, 0], [0, 1, 2, 3], [0, 0, 0, 1], [2, 2, 4, 4]]
)


def adapted_by_hand(counts, states, ids, scores, rate):
    """Return counts after one example after another, in dicts of what has a count."""
    rows = [{w: float(c) for w, c in enumerate(row) if c} for row in counts]
    for s, drawn, o in zip(states, ids, scores, strict=True):
        first = {}
        for w, x in zip(drawn, o, strict=True):
            if w in rows[s]:
                first.setdefault(w, x)
        mass = sum(rows[s][w] for w in first)
        total = sum(np.exp(x) for x in first.values())
        for w, x in first.items():
            rows[s][w] = (1 - rate) * rows[s][w] + rate * mass * np.exp(x) / total
    return np.array([[row.get(w, 0.0) for w in range(N)] for row in rows])


def mixed_by_hand(adapted, excluded=None):
    """Return q of all states: shares and unigram are still those of `COUNTS`."""
    totals = np.maximum(COUNTS.sum(axis=1, keepdims=True), 1)
    shares = (
        totals / (totals + (COUNTS > 0).sum(axis=1, keepdims=True)) * (COUNTS.any(axis=1)[:, None])
    )
    unigram = COUNTS.sum(axis=0) + 0.5 * (COUNTS.sum(axis=0) == 0)
    q = shares * adapted / totals + (1 - shares) * unigram / unigram.sum()
    if excluded is not None:
        q[STATES, excluded] = 0.0
    return q / q.sum(axis=1, keepdims=True)


def scores_of(ids, seed=0):
    return 2.0 * np.random.default_rng(seed).normal(size=ids.shape)


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("excluded", [None, [4, 5, 0, 2], [1, 0, 1, 4]])
def test_adapted_probabilities(sampler, rate, excluded):
    scores = scores_of(DRAWN)
    before = sampler.probs(STATES)
    sampler.adapt(BATCH, DRAWN, scores, rate=rate)
    wanted = adapted_by_hand(COUNTS, BATCH, DRAWN, scores, rate)
    found = sampler.probs(STATES, exclude=excluded)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(found, mixed_by_hand(wanted, excluded), rtol=1e-12)
    after = sampler.probs(STATES)
    assert (after[0] != before[0]).any() or rate == 0.0
    np.testing.assert_array_equal(after[1], before[1])  # never seen: all of it is the unigram
    np.testing.assert_allclose(after[:, [3, 5]][:3], before[:, [3, 5]][:3], rtol=1e-14)  # no count
    # the sums of counts, from both ends
    starts, _, counts, below, above, _ = sampler._table
    for first, last in zip(starts, starts[1:], strict=False):
        row = counts[first:last]
        np.testing.assert_allclose(below[first:last], np.cumsum(row), rtol=1e-14)
        np.testing.assert_allclose(above[first:last], np.cumsum(row[::-1])[::-1], rtol=1e-14)


@pytest.mark.parametrize("state", [0, 2, 3])
def test_an_adapted_set_keeps_its_mass_and_all_others_theirs(sampler, state):
    ids = np.array([[1, 0, 2, 5]])
    before = sampler.probs([state])[0]
    sampler.adapt([state], ids, scores_of(ids), rate=0.7)
    after = sampler.probs([state])[0]
    assert after[ids[0]].sum() == pytest.approx(before[ids[0]].sum(), rel=1e-14)
    np.testing.assert_allclose(after[[3, 4]], before[[3, 4]], rtol=1e-14)
    assert (np.abs(after - before).max() > 1e-3) == (state != 2)  # which one class has followed


@pytest.mark.parametrize("excluded", [None, [4, 5, 0, 2]])
def test_draws_after_an_adaptation_have_their_probabilities(sampler, excluded):
    scores, old = scores_of(DRAWN), sampler.probs(STATES, exclude=excluded)
    stale = deepcopy(sampler)
    sampler.adapt(BATCH, DRAWN, scores, rate=0.5)
    draw = sampler.sample(STATES, 40_000, exclude=excluded, rng=1)
    q = sampler.probs(STATES, exclude=excluded)
    for s in STATES:
        assert chi_square(np.bincount(draw.ids[s], minlength=N), q[s]) > 1e-3 / 8
        np.testing.assert_allclose(np.exp(draw.log_q[s]), q[s][draw.ids[s]], rtol=1e-12)
    assert chi_square(np.bincount(draw.ids[0], minlength=N), old[0]) < 1e-9
    # the twin moves counts and forgets their sums
    order = np.argsort(DRAWN, axis=1, kind="stable")
    arrays = (np.take_along_axis(x, order, axis=1) for x in (DRAWN, scores))
    _move_towards_softmax(stale._table, BATCH, *arrays, 0.5)
    drawn = stale.sample(STATES, 40_000, exclude=excluded, rng=1).ids
    assert chi_square(np.bincount(drawn[0], minlength=N), q[0]) < 1e-9


def test_adaptations_of_a_fixed_set_come_to_the_model_and_stay_there(sampler):
    ids, scores = np.array([[1, 4]]), np.array([[0.3, -0.5]])
    for _ in range(1500):
        sampler.adapt([0], ids, scores, rate=0.02)
    counts = sampler._table.counts[:3]  # of classes 1, 2 and 4
    assert counts[0] / counts[2] == pytest.approx(np.exp(0.8), rel=1e-12)
    kept = counts.copy()
    sampler.adapt([0], ids, scores, rate=0.5)
    np.testing.assert_allclose(sampler._table.counts[:3], kept, rtol=1e-13)


def test_adaptations_by_own_draws_come_near_the_model(sampler):
    scores = np.array([0.5, -1.0, 0.0, 2.0, 0.3, 1.0])
    model = np.exp(scores[:5]) / np.exp(scores[:5]).sum()  # of the five that followed state 3
    for k in range(3000):
        ids = sampler.sample([3], 3, rng=k).ids
        sampler.adapt([3], ids, scores[ids], rate=0.02)
    row = sampler._table.counts[sampler._table.offsets[3] : sampler._table.offsets[4]]
    np.testing.assert_allclose(row / row.sum(), model, rtol=0.15)


def test_adaptations_depend_on_order_only_within_a_state(sampler):
    scores, again, turned = scores_of(DRAWN), deepcopy(sampler), deepcopy(sampler)
    sampler.adapt(BATCH, DRAWN, scores, rate=0.5)
    again.adapt(BATCH, DRAWN, scores, rate=0.5)
    np.testing.assert_array_equal(sampler.probs(STATES), again.probs(STATES))
    by_state = np.argsort(BATCH, kind="stable")
    turned.adapt(BATCH[by_state], DRAWN[by_state], scores[by_state], rate=0.5)
    np.testing.assert_array_equal(sampler.probs(STATES), turned.probs(STATES))
    # one row of classes serves all
    one, each = (BigramSampler(sparse.csr_array(COUNTS)) for _ in range(2))
    one.adapt([0, 3], DRAWN[:1], scores[:2])
    each.adapt([0, 3], DRAWN[[0, 0]], scores[:2])
    np.testing.assert_array_equal(one.probs(STATES), each.probs(STATES))


@pytest.mark.parametrize("far", [1e4, 1e308])
def test_adaptations_by_far_logits_leave_every_class_a_probability(sampler, far):
    for _ in range(3):
        sampler.adapt([0], [[1, 2, 4]], [[far, -far, -far]], rate=1.0)
    q = sampler.probs([0])[0]
    np.testing.assert_allclose(q, mixed_by_hand(np.array([[0, 13, 0, 0, 0, 0], *COUNTS[1:]]))[0])
    assert q.min() > 0.0
    draw = sampler.sample([0], 1000, exclude=[1], rng=0)
    assert np.isfinite(draw.log_q).all() and 1 not in draw.ids


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"h": [4, 0]}, ValueError, r"`h` must lie in 0\.\.3"),
        ({"h": None}, TypeError, "`h` must"),
        ({"ids": [[0, 6], [0, 1]]}, ValueError, r"`ids` must lie in 0\.\.5"),
        ({"ids": [[0.0, 1.0]]}, TypeError, "`ids` must hold integers"),
        ({"ids": [[0, 1]] * 3}, ValueError, r"`ids` must have shape \(2, k\)"),
        ({"scores": [[0.0, 1.0]]}, ValueError, r"`scores` must have the shape of `ids`, \(2, 2\)"),
        ({"scores": [[np.inf, 1.0]] * 2}, ValueError, "`scores` must be finite"),
        ({"rate": 1.5}, ValueError, "`rate` must be from 0 to 1"),
        ({"rate": "0.1"}, TypeError, "`rate` must be a number"),
    ],
)
def test_bad_adaptations_change_nothing(sampler, change, error, message):
    before = sampler.probs(STATES)
    given = {"h": [0, 3], "ids": [[0, 1], [2, 4]], "scores": np.ones((2, 2)), "rate": 0.5}
    with pytest.raises(error, match=message):
        sampler.adapt(**given | change)
    np.testing.assert_array_equal(sampler.probs(STATES), before)


def test_effective_sample_size():
    rng = np.random.default_rng(0)
    scores, log_q = rng.normal(size=(3, 7)) * 4, rng.normal(size=(3, 7))
    with mp.workdps(40):
        for b, found in enumerate(effective_sample_size(scores, log_q)):
            w = [mp.exp(mpf(x) - mpf(y)) for x, y in zip(scores[b], log_q[b], strict=True)]
            assert found == pytest.approx(float(sum(w) ** 2 / sum(x * x for x in w)), rel=1e-13)
    moved = effective_sample_size(scores + 1e4, log_q - 1e4)
    np.testing.assert_allclose(moved, effective_sample_size(scores, log_q), rtol=1e-10)
    draw = UniformSampler(5).sample(None, 6, rng=0)
    assert effective_sample_size(np.zeros((2, 6)), draw.log_q).tolist() == [6.0, 6.0]
    for bad in (np.zeros((2, 5)), np.zeros((3, 6))):
        with pytest.raises(ValueError, match="`log_q` must have the shape"):
            effective_sample_size(np.zeros((2, 6)), bad)


# --- draws in blocks --------------------------------------------------------------------------

LOGITS = np.random.default_rng(0).normal(size=(4, N))


def score(ids):
    return np.take_along_axis(LOGITS, ids, axis=1)


def test_draws_in_blocks_end_where_they_are_worth_enough(sampler):
    draw = sample_until(sampler, STATES, score, 12.0, block=4, most=400, rng=3)
    ids, log_q = draw.ids, draw.log_q
    assert 12 < ids.shape[1] < 400 and not ids.shape[1] % 4
    assert effective_sample_size(score(ids), log_q).min() >= 12.0
    # a block less is too little
    assert effective_sample_size(score(ids[:, :-4]), log_q[:, :-4]).min() < 12.0
    np.testing.assert_allclose(log_q, sampler.log_prob(STATES, ids), rtol=1e-12)
    fewer = sample_until(sampler, STATES, score, 11.0, block=4, most=ids.shape[1] - 2, rng=3)
    np.testing.assert_array_equal(fewer.ids, ids[:, : fewer.ids.shape[1]])
    cut = sample_until(sampler, STATES, score, 10.0, block=4, most=10, rng=3)
    np.testing.assert_array_equal(cut.ids, ids[:, :10])  # the last block has two draws
    assert sample_until(sampler, STATES, score, 1e-9, block=7, most=70, rng=3).ids.shape[1] == 7


def test_blocks_are_draws_on_streams_of_their_own(sampler):
    labels = [4, 5, 0, 2]
    options = {"block": 2000, "most": 40_000, "exclude": labels}
    draw = sample_until(sampler, STATES, score, 40_000.0, **options, rng=1)
    q = sampler.probs(STATES, exclude=labels)
    for s in STATES:
        assert chi_square(np.bincount(draw.ids[s], minlength=N), q[s]) > 1e-3 / 8
    # the twin has one stream for all blocks: the same draws 20 times
    twin = np.tile(sampler.sample(STATES, 2000, exclude=labels, rng=1).ids, 20)
    fits = [chi_square(np.bincount(twin[s], minlength=N), q[s]) for s in STATES]
    assert min(fits) < 1e-6


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sampler": None}, TypeError, "`sampler` must be a Sampler"),
        ({"sampler": UniformSampler(N, replace=False)}, ValueError, "must draw with replacement"),
        ({"least": 0.0}, ValueError, "`least` must be finite and greater than 0"),
        ({"least": 21.0}, ValueError, "`least` must be at most `most`, 20,.* got 21.0"),
        ({"block": 0}, ValueError, "`block` must be at least 1"),
        ({"most": 0.5}, TypeError, "`most` must be an integer"),
        ({"rng": "seed"}, TypeError, "`rng` must be"),
        ({"score": lambda ids: ids[:, :1]}, ValueError, r"`score` must return .* \(4, 4\)"),
        ({"score": lambda ids: ids + np.nan}, ValueError, "`score` must be finite"),
    ],
)
def test_bad_arguments_of_draws_in_blocks(sampler, change, error, message):
    given = {"sampler": sampler, "h": STATES, "score": score, "least": 5.0, "block": 4, "most": 20}
    if isinstance(change.get("sampler"), UniformSampler):
        given["h"] = np.ones((4, 1))
    with pytest.raises(error, match=message):
        sample_until(**given | change)


@pytest.mark.parametrize(
    ("q", "weights", "sign"),  # great weights are rare, and small ones
    [([0.7, 0.3], [1.0, 5.0], -1), ([0.3, 0.7], [1.0, 5.0], 1), ([0.1, 0.9], [0.01, 1.0], 1)],
)
def test_an_end_by_effective_sizes_is_a_bias(q, weights, sign):
    """Over all pairs of draws, and two more where the first are worth too little."""

    def mean_sum(least):
        mean = 0.0
        for ids in product(range(2), repeat=4):
            w = np.array(weights)[list(ids)]
            enough = effective_sample_size([np.log(w[:2])], [[0.0, 0.0]])[0] >= least
            mean += np.prod(np.array(q)[list(ids)]) * w[: 2 if enough else 4].mean()
        return mean

    exact = np.dot(q, weights)
    assert mean_sum(1.0) == pytest.approx(exact, rel=1e-13)  # two draws always
    assert mean_sum(3.0) == pytest.approx(exact, rel=1e-13)  # four
    assert sign * (mean_sum(1.9) - exact) > 0.01
