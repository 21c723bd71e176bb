"""Samplers that do not look at the contexts: exact probabilities, counts, exclusion, errors."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import naive_samplers as naive

from samplesoft._random import OffsetSeed
from samplesoft.samplers import static, without_replacement
from samplesoft.samplers.frequency import LogUniformSampler, UnigramSampler
from samplesoft.samplers.static import UniformSampler, WeightedSampler

COUNTS = [7.0, 0.0, 120.0, 3.0, 3.0, 45.0, 1.0, 0.0, 18.0, 2.0]
WEIGHTS = [0.0, 3.0, 0.25, 1.0, 0.0, 8.0, 1.0, 1.0]
SAMPLERS = {
    "weighted": lambda **kwargs: WeightedSampler(WEIGHTS, **kwargs),
    "heavy": lambda **kwargs: WeightedSampler([1e-3, 2e-3, 1.0, 4e-3, 3e-3], **kwargs),
    "uniform": lambda **kwargs: UniformSampler(9, **kwargs),
    "log-uniform": lambda **kwargs: LogUniformSampler(12, **kwargs),
    "unigram": lambda **kwargs: UnigramSampler(COUNTS, **kwargs),
}
LEVEL = 1e-4 / len(SAMPLERS)  # of a test on all samplers


def contexts(batch):
    return np.zeros((batch, 3))


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_row_is_drawn_alone_by_its_key(name, replace):
    sampler = SAMPLERS[name](replace=replace)
    rows = sampler.sample(contexts(6), 4, rng=2**64 - 1)
    for k in range(6):
        for alone in (contexts(1), contexts(3)):  # one context, or a set for several
            draw = sampler.sample(alone, 4, shared=True, rng=OffsetSeed(2**64 - 1, k))
            np.testing.assert_array_equal(draw.ids, rows.ids[[k]])


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("excluding", [True, False])
@pytest.mark.parametrize("name", SAMPLERS)
def test_log_q_is_the_log_probability_of_what_was_drawn(name, excluding, replace):
    sampler = SAMPLERS[name](replace=replace)
    n, m = sampler.num_classes, 4
    exclude = np.arange(n) if excluding else None
    draw = sampler.sample(contexts(n), m, exclude=exclude, rng=3)
    assert draw.ids.shape == draw.log_q.shape == (n, m) and draw.ids.dtype == np.int64
    want = sampler.log_prob(contexts(n), draw.ids, exclude=exclude)
    np.testing.assert_array_equal(draw.log_q, want)
    probs = sampler.probs(contexts(n), exclude=exclude)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(
        np.take_along_axis(probs, draw.ids, axis=1), np.exp(draw.log_q), rtol=1e-14
    )
    assert (draw.log_inclusion is None) == replace
    if excluding:
        assert (draw.ids != exclude[:, None]).all() and (probs[exclude, exclude] == 0.0).all()


def test_the_formulas():
    def check(sampler, want):
        np.testing.assert_allclose(sampler.probs(None)[0], np.array(want, float), rtol=1e-13)

    check(SAMPLERS["weighted"](), naive.conditional(WEIGHTS))
    check(UniformSampler(7), [1 / 7] * 7)
    check(LogUniformSampler(50), naive.zipf(50))
    check(LogUniformSampler(1), [1.0])
    for power in (1.0, 0.75, 1e-3):
        check(UnigramSampler(COUNTS, power=power), naive.unigram(COUNTS, power))


def test_weights_of_any_size():
    weights = [1e-300, 1e300, 2e-300, 1e299, 0.0, 5e-324]
    sampler = WeightedSampler(weights)
    for excluded in (None, 0, 1):
        with naive.mp.workdps(30):
            want = [
                float(naive.mp.log(x)) if x else -np.inf
                for x in naive.conditional(weights, excluded)
            ]
        got = sampler.log_prob(None, np.arange(6), exclude=excluded)[0]
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-15)
    assert set(sampler.sample(None, 1000, exclude=1, rng=0).ids[0]) == {3}


def wrong_exclusion(sampler, h, m, exclude, rng):
    return sampler.sample(h, m, rng=rng)


def wrong_weights(sampler, h, m, exclude, rng):
    probs = sampler.probs(None)[0]
    return WeightedSampler(probs**1.1, replace=sampler.replace).sample(
        h, m, exclude=exclude, rng=rng
    )


def right(sampler, h, m, exclude, rng):
    return sampler.sample(h, m, exclude=exclude, rng=rng)


def p_value(name, draw, exclude):
    sampler = SAMPLERS[name]()
    h = contexts(40)
    ids = draw(sampler, h, 2000, None if exclude is None else np.full(40, exclude), 11).ids
    counts = np.bincount(ids.ravel(), minlength=sampler.num_classes)
    return naive.chi_square(counts, sampler.probs(None, exclude=exclude)[0])


@pytest.mark.parametrize("exclude", [None, 2, 5])
@pytest.mark.parametrize("name", SAMPLERS)
def test_counts_follow_the_probabilities(name, exclude):
    exclude = None if exclude is None else exclude % SAMPLERS[name]().num_classes
    assert p_value(name, right, exclude) > LEVEL / 3
    if exclude is not None:
        assert p_value(name, wrong_exclusion, exclude) < 1e-9
    if name != "uniform":
        assert p_value(name, wrong_weights, exclude) < 1e-9


@pytest.mark.parametrize("replace", [True, False])
def test_a_label_with_nearly_all_of_the_mass(replace):
    weights = np.array([3e-13, 1.0 - 1e-12, 6e-13, 1e-13])
    sampler = WeightedSampler(weights, replace=replace)
    draw = sampler.sample(contexts(20_000), 1, exclude=np.full(20_000, 1), rng=5)
    counts = np.bincount(draw.ids.ravel(), minlength=4)
    assert counts[1] == 0
    want = [float(x) for x in naive.conditional(weights, 1)]
    assert naive.chi_square(counts, want) > 1e-4
    np.testing.assert_allclose(np.exp(draw.log_q), np.array(want)[draw.ids], rtol=1e-14)
    naive_log_q = np.log(weights / weights.sum()) - np.log1p(-weights[1] / weights.sum())
    assert abs(naive_log_q[0] - np.log(want[0])) > 1e-6  # 1 - q would have lost its digits


def test_half_of_the_mass_is_no_trouble():
    for weights in ([1.0, 1.0], [1.0, 0.5, 0.5]):
        sampler = WeightedSampler(weights)
        for excluded in range(len(weights)):
            draw = sampler.sample(None, 3000, exclude=excluded, rng=1)
            counts = np.bincount(draw.ids[0], minlength=len(weights))
            assert naive.chi_square(counts, sampler.probs(None, exclude=excluded)[0]) > 1e-4


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_depend_on_the_seed_and_the_example_only(name, replace, threads, monkeypatch):
    sampler, exclude = SAMPLERS[name](replace=replace), np.arange(60) % 5
    draw = sampler.sample(contexts(60), 3, exclude=exclude, rng=7)
    monkeypatch.setattr(static, "_CHUNK_DRAWS", 7)
    for count in (1, 3):
        threads(count)
        again = SAMPLERS[name](replace=replace).sample(contexts(60), 3, exclude=exclude, rng=7)
        np.testing.assert_array_equal(draw.ids, again.ids)
        np.testing.assert_array_equal(draw.log_q, again.log_q)
        if not replace:
            np.testing.assert_array_equal(draw.log_inclusion, again.log_inclusion)
    fewer = sampler.sample(contexts(6), 3, exclude=exclude[:6], rng=7)
    np.testing.assert_array_equal(draw.ids[:6], fewer.ids)
    other = sampler.sample(contexts(60), 3, exclude=exclude, rng=8)
    assert (draw.ids != other.ids).any() and len(np.unique(draw.ids, axis=0)) > 1
    generators = [np.random.default_rng(4) for _ in range(2)]
    one, two = (sampler.sample(None, 3, rng=generator).ids for generator in generators)
    np.testing.assert_array_equal(one, two)


def test_the_batch_comes_from_h_and_a_shared_set_has_one_row():
    for sampler in (SAMPLERS["weighted"](), SAMPLERS["uniform"](replace=False)):
        assert sampler.sample(None, 3, rng=0).ids.shape == (1, 3)
        assert sampler.sample(np.zeros(5), 3, rng=0).ids.shape == (1, 3)
        shared = sampler.sample(contexts(8), 3, shared=True, rng=0)
        alone = sampler.sample(None, 3, rng=0)
        np.testing.assert_array_equal(shared.ids, alone.ids)
        np.testing.assert_array_equal(shared.log_q, alone.log_q)
        assert sampler.probs(contexts(8)).shape == (8, sampler.num_classes)
        sampler.update([0], np.ones((1, 4)))  # ignored


SMALL = {
    "mild": [3.0, 2.0, 0.0, 1.0, 1.0],
    "clocks decide": [1.0, 1e-6, 2e-6, 0.0, 5e-6],
    "clocks of a tail": [1.0, 0.5, 1e-9, 3e-9],
}


def sequence_p_value(weights, m, exclude, squashed=1.0):
    sampler = WeightedSampler(np.array(weights) ** squashed, replace=False)
    exclude = None if exclude is None else np.full(30_000, exclude)
    draw = sampler.sample(contexts(30_000), m, exclude=exclude, rng=9)
    found = Counter(map(tuple, draw.ids.tolist()))
    law = naive.sequences(weights, m, None if exclude is None else exclude[0])
    if set(found) - set(law):
        return 0.0
    return naive.chi_square([found[s] for s in law], [float(p) for p in law.values()])


@pytest.mark.parametrize("exclude", [None, 0, 1])
@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("name", SMALL)
def test_sequences_without_replacement(name, m, exclude):
    assert sequence_p_value(SMALL[name], m, exclude) > 1e-4 / 18
    if m == 2 and exclude is None:
        assert sequence_p_value(SMALL[name], m, exclude, squashed=0.8) < 1e-9


@pytest.mark.parametrize(
    ("n", "m", "exclude"), [(4, 2, None), (4, 3, 1), (4, 4, None), (5, 1, 4), (6, 4, None)]
)
def test_uniform_sequences_without_replacement(n, m, exclude):
    left = [j for j in range(n) if j != exclude]
    labels = None if exclude is None else np.full(20_000, exclude)
    draw = UniformSampler(n, replace=False).sample(contexts(20_000), m, exclude=labels, rng=2)
    found = Counter(map(tuple, draw.ids.tolist()))
    law = list(permutations(left, m))
    assert sum(found[s] for s in law) == 20_000
    assert naive.chi_square([found[s] for s in law], np.full(len(law), 1 / len(law))) > 1e-5


def test_sets_follow_the_inclusion_probabilities():
    sampler = WeightedSampler(np.random.default_rng(1).lognormal(0.0, 1.5, 60), replace=False)
    rounds = 40_000
    draw = sampler.sample(contexts(rounds), 12, exclude=np.full(rounds, 5), rng=1)
    pi = sampler.inclusion_probs(12, exclude=5)
    counts = np.bincount(draw.ids.ravel(), minlength=60)
    deviation = (counts - rounds * pi) / np.sqrt(rounds * pi * (1.0 - pi) + 1e-9)
    assert np.abs(deviation).max() < 4.5
    wrong = -np.expm1(12 * np.log1p(-sampler.probs(None, exclude=5)[0]))
    assert np.abs(counts - rounds * wrong).max() > 20.0 * np.sqrt(rounds)


@pytest.mark.parametrize("name", SAMPLERS)
def test_inclusion_probabilities_are_those_of_the_number_asked_for(name):
    sampler = SAMPLERS[name](replace=False)
    for m in (2, 3, 2, 1):
        pi = sampler.inclusion_probs(m)
        assert pi.sum() == pytest.approx(m, rel=1e-11)
        draw = sampler.sample(None, m, rng=m)
        np.testing.assert_allclose(np.exp(draw.log_inclusion[0]), pi[draw.ids[0]], rtol=1e-12)


def test_nodes_in_place_of_many_like_classes_leave_inclusion_as_it_is(monkeypatch):
    alone = [-0.1, -0.2, -0.3, -9.0]  # also in the panels beside those of many
    log_weights = np.concatenate([np.linspace(0.0, 0.01, 80), np.linspace(-3.2, -3.0, 40), alone])
    found = []
    # with nodes, and with single classes alone
    for crowd in (without_replacement._MIN_CROWDED_CLASSES, 10**9):
        monkeypatch.setattr(without_replacement, "_MIN_CROWDED_CLASSES", crowd)
        sampler = WeightedSampler(np.exp(log_weights), replace=False)
        found.append([sampler.inclusion_probs(m) for m in (1, 10, 90)])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10)


@pytest.mark.thorough
@settings(max_examples=40)
@given(st.data())
def test_distinct_draws_of_any_weights(data):
    weights = data.draw(
        st.lists(st.one_of(st.just(0.0), st.floats(1e-300, 1e300)), min_size=1, max_size=40)
    )
    positive = np.flatnonzero(weights)
    if len(positive) == 0:
        return
    sampler = WeightedSampler(weights, replace=False)
    exclude = data.draw(st.sampled_from([None, *range(len(weights))]))
    left = set(positive.tolist()) - {exclude}
    if not left:
        return
    m = data.draw(st.integers(1, len(left)))
    if len(weights) == 1:
        exclude = None
    draw = sampler.sample(None, m, exclude=exclude, rng=data.draw(st.integers(0, 2**32)))
    assert len(set(draw.ids[0])) == m and set(draw.ids[0].tolist()) <= left
    assert (draw.log_inclusion <= 1e-300).all()
    if m == len(left):
        assert (draw.log_inclusion == 0.0).all()


def test_all_classes_of_many_in_bounded_time():
    weights = np.exp(-np.arange(3000.0) / 10.0)
    for sampler in (WeightedSampler(weights, replace=False), UniformSampler(3000, replace=False)):
        draw = sampler.sample(contexts(2), 2999, exclude=[0, 2999], rng=0)
        assert sorted(draw.ids[0]) == list(range(1, 3000))
        assert sorted(draw.ids[1]) == list(range(2999))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: WeightedSampler([]), ValueError, "`weights` must not be empty"),
        (lambda: WeightedSampler([[1.0]]), ValueError, "`weights` must have 1 dimension"),
        (lambda: WeightedSampler([1.0, -2.0]), ValueError, "`weights` must be at least 0"),
        (lambda: WeightedSampler([0.0, 0.0]), ValueError, "`weights` .* not all 0"),
        (lambda: WeightedSampler([1.0, np.inf]), ValueError, "`weights` must be finite"),
        (lambda: WeightedSampler(["a"]), TypeError, "`weights` must hold real numbers"),
        (lambda: WeightedSampler([1.0], replace=1), TypeError, "`replace` must be True or False"),
        (lambda: UniformSampler(0), ValueError, "`num_classes` must be at least 1"),
        (lambda: LogUniformSampler(2.0), TypeError, "`num_classes` must be an integer"),
        (lambda: UnigramSampler([0, 0]), ValueError, "`counts` must be at least 0 and not all 0"),
        (lambda: UnigramSampler([1], power=0), ValueError, "`power` must be finite and greater"),
    ],
)
def test_errors_of_the_constructors(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("replace", [True, False])
def test_errors_where_nothing_is_left(replace):
    sampler = WeightedSampler([0.0, 2.0, 0.0], replace=replace)
    h = contexts(2)
    assert (sampler.sample(h, 1, exclude=[0, 2], rng=0).ids == 1).all()
    for call in (
        lambda: sampler.sample(h, 1, exclude=[0, 1], rng=0),
        lambda: sampler.log_prob(h, [0], exclude=[0, 1]),
        lambda: sampler.probs(h, exclude=1),
    ):
        with pytest.raises(ValueError, match="`exclude` must leave a class .* got 1.*weight"):
            call()
    for make in (lambda: WeightedSampler([1.0]), lambda: UniformSampler(1)):
        with pytest.raises(ValueError, match="`exclude` must leave a class"):
            make().sample(None, 1, exclude=0)


def test_errors_where_too_few_are_left():
    sampler = WeightedSampler([0.0, 2.0, 1.0, 1.0], replace=False)
    for call in (
        lambda: sampler.sample(None, 4),
        lambda: sampler.inclusion_probs(4),
        lambda: sampler.sample(contexts(2), 4, exclude=[0, 0]),
    ):
        with pytest.raises(ValueError, match="`num_sampled` must be at most 3, .* got 4"):
            call()
    with pytest.raises(ValueError, match="`num_sampled` must be at most 2, .* got 3"):
        sampler.sample(contexts(2), 3, exclude=[0, 1])
    with pytest.raises(ValueError, match="at most 3, .* got 4; .*replace=True"):
        UniformSampler(4, replace=False).inclusion_probs(4, exclude=[1])
    with pytest.raises(ValueError, match="`exclude` must have shape"):
        sampler.inclusion_probs(2, exclude=[[1]])
    with pytest.raises(ValueError, match="`exclude` must lie in 0..3"):
        sampler.inclusion_probs(2, exclude=4)
