"""Frequencies by the gaps between observations: against a plain loop, and on streams of labels."""

from fractions import Fraction

import numpy as np
import pytest

from samplesoft.losses import InBatchLoss
from samplesoft.samplers import (
    LearnedUnigramSampler,
    StreamingUnigramSampler,
    UnigramSampler,
    frequency,
)

N = 6


def by_hand(labels, n, rate, initial):
    """Return frequencies in whole fractions, from the definition."""
    total = sum(map(Fraction, initial))
    gaps, seen, last = [total / Fraction(c) for c in initial], [0] * n, [0] * n
    for time, j in enumerate(labels, start=1):
        seen[j] += 1
        weight = max(Fraction(rate), Fraction(1, seen[j] + 1))
        gaps[j] = (1 - weight) * gaps[j] + weight * (time - last[j])
        last[j] = time
    for j in range(n):
        open_for, growth = len(labels) - last[j], 1
        if open_for > 16 * gaps[j]:
            weight = max(Fraction(rate), Fraction(1, seen[j] + 2))
            growth = ((1 - weight) * gaps[j] + weight * open_for) / gaps[j]
        # down to four binary digits
        unit = Fraction(1, 8)
        while growth >= 16 * unit:
            unit *= 2
        gaps[j] *= growth // unit * unit
    frequencies = [1 / g for g in gaps]
    return [float(f / sum(frequencies)) for f in frequencies]


@pytest.mark.parametrize("rate", [0.01, 0.25, 1.0])
def test_equals_the_definition(rate):
    labels = np.random.default_rng(0).zipf(1.6, 400) % N
    initial = [3.0, 2.0, 1.0, 1.0, 0.5, 0.25]
    at_once = StreamingUnigramSampler(N, rate=rate, initial=initial)
    bit_by_bit = StreamingUnigramSampler(N, rate=rate, initial=initial)
    np.testing.assert_allclose(at_once.probs(None)[0], by_hand([], N, rate, initial), rtol=1e-13)
    at_once.observe(labels)
    for some in np.array_split(labels, 37):
        bit_by_bit.observe(some)
    wanted = by_hand(labels.tolist(), N, rate, initial)
    np.testing.assert_allclose(at_once.probs(None)[0], wanted, rtol=1e-11)
    np.testing.assert_array_equal(at_once.probs(None), bit_by_bit.probs(None))


def episodes(rng, num, n):
    """Return labels of a stream in which classes leave for a while, or for good."""
    parts = []
    for _ in range(num):
        some = rng.choice(n, rng.integers(1, 4), replace=False)
        parts.append(some[rng.integers(len(some), size=rng.integers(1, 400))])
    return np.concatenate(parts)


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize("rate", [0.01, 0.25, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_open_gaps_equal_the_definition_however_labels_are_divided(rate, seed):
    rng = np.random.default_rng(seed)
    labels, initial = episodes(rng, 12, N), rng.gamma(1.0, size=N)
    at_once = StreamingUnigramSampler(N, rate=rate, initial=initial)
    bit_by_bit = StreamingUnigramSampler(N, rate=rate, initial=initial)
    restored = StreamingUnigramSampler(N, rate=rate, initial=initial)
    at_once.observe(labels)
    for some in np.array_split(labels, 301):
        bit_by_bit.observe(some)
        restored.load_state(restored.state())
        restored.observe(some)
    wanted = by_hand(labels.tolist(), N, rate, initial.tolist())
    np.testing.assert_allclose(at_once.probs(None)[0], wanted, rtol=1e-11)
    for other in (bit_by_bit, restored):
        np.testing.assert_array_equal(at_once.probs(None), other.probs(None))


@pytest.mark.parametrize("rate", [0.002, 0.01, 0.05, 0.3, 1.0])
@pytest.mark.parametrize("n", [3, 3000])  # in more than one block
def test_a_class_that_leaves_loses_its_mass(rate, n):
    sampler = StreamingUnigramSampler(n, rate=rate)
    there = np.array([0, n - 2, n - 1])
    sampler.observe(there[[0, 1] * 1000])
    assert sampler.probs(None)[0, 0] > 0.15
    size = 1000
    for _ in range(60):
        sampler.observe(there[[1, 2] * (size // 2)])
    q, frequencies = sampler.probs(None)[0], sampler.counts / n
    # at most what one gap of the length of the open one leaves, down to four digits
    assert frequencies[0] < 1.15 / (rate * 60 * size)
    np.testing.assert_allclose(frequencies[there[1:]], 0.5, rtol=0.03)
    # what never came has not kept what it began with either
    assert n == 3 or q[1:-2].sum() < 0.2
    # and comes back within some gaps
    for _ in range(3):
        sampler.observe(there[[0, 2] * (size // 2)])
    if rate >= 0.01:
        assert sampler.probs(None)[0, 0] > 0.25


def test_a_loss_is_corrected_by_what_is_left():
    """With frequencies of the stream as it is: class 0, which left, is no negative any more."""
    sampler = StreamingUnigramSampler(3, rate=0.05)
    sampler.observe([0, 1] * 1000)
    sampler.observe([1, 2] * 10_000)
    wanted, _ = InBatchLoss(UnigramSampler([1e-9, 0.5, 0.5], power=1.0)).forward(
        np.eye(3), np.eye(3), [1, 2, 1]
    )
    found, _ = InBatchLoss(sampler).forward(np.eye(3), np.eye(3), [1, 2, 1])
    assert found == pytest.approx(wanted, abs=2e-3)


@pytest.mark.parametrize(("longest", "harmed"), [(16.0, False), (1.0, True)])
def test_rare_classes_that_keep_coming_are_not_harmed(longest, harmed, monkeypatch):
    """Over a stationary stream; a wrong twin that counts all above the mean takes from each."""
    monkeypatch.setattr(frequency, "_LONG_GAP_RATIO", longest)
    rng, n, rate = np.random.default_rng(3), 100, 0.2
    p = 1.0 / np.arange(1, n + 1)
    p /= p.sum()
    sampler = StreamingUnigramSampler(n, rate=rate, initial=p)
    plain = StreamingUnigramSampler(n, rate=rate, initial=p)
    changes = []
    for _ in range(100):
        labels = rng.choice(n, size=1_000, p=p)
        sampler.observe(labels)
        with monkeypatch.context() as patch:
            patch.setattr(frequency, "_LONG_GAP_RATIO", np.inf)
            plain.observe(labels)
        changes.append(np.log(sampler.counts / plain.counts)[20:].mean())
    change = np.mean(changes)
    assert (change < -0.02) if harmed else (abs(change) < 1e-3)


def test_follows_a_stream():
    """Within the error that the docstring says; and a change that counts take long to see."""
    rng, n = np.random.default_rng(0), 20
    before = rng.dirichlet(np.full(n, 2.0))
    after = np.roll(before, 7)
    streaming, learned = StreamingUnigramSampler(n), LearnedUnigramSampler(n)
    for p in (before, after):
        for labels in rng.choice(n, (300, 200), p=p):
            streaming.observe(labels)
            learned.observe(labels)
        error = streaming.probs(None)[0] / p - 1.0
        often = p > 0.02  # of the others few gaps have been seen since the change
        assert np.sqrt(np.mean(error[often] ** 2)) < 1.6 * np.sqrt(0.01 / 2)
    assert np.abs(learned.probs(None)[0] / after - 1.0)[often].max() > 0.4


def test_a_rare_class_does_not_keep_what_it_began_with():
    sampler = StreamingUnigramSampler(1000, rate=1e-3)
    for _ in range(60):
        sampler.observe(np.append(np.zeros(99, int), 5))
    frequencies = sampler.counts / 1000  # of 1000 in all at first
    assert frequencies[5] == pytest.approx(0.01, rel=0.2)
    assert frequencies[0] == pytest.approx(0.99, rel=0.02)
    assert frequencies[1] == 0.001


def test_state_comes_back_and_goes_on_as_before():
    labels = np.random.default_rng(1).integers(0, N, 500)
    sampler, twin = StreamingUnigramSampler(N), StreamingUnigramSampler(N)
    sampler.observe(labels[:300])
    twin.load_state(sampler.state())
    for one in (sampler, twin):
        one.observe(labels[300:])
    np.testing.assert_array_equal(sampler.probs(None), twin.probs(None))
    for name, array in sampler.state().items():
        np.testing.assert_array_equal(array, twin.state()[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gaps", np.full(N, -0.5)),
        ("counts", np.zeros(N)),
        ("gaps", np.full(N, np.nan)),
        ("seen", np.full(N, -1)),
        ("last", np.full(N, 10**6)),
        ("last", np.zeros(N + 1, int)),
        ("time", np.array([1, 2])),
        ("time", np.array([], int)),
    ],
)
def test_a_broken_state_is_refused_and_changes_nothing(name, value):
    sampler = StreamingUnigramSampler(N)
    sampler.observe([1, 2, 1])
    before = sampler.probs(None)
    with pytest.raises(ValueError, match="state"):
        sampler.load_state({**sampler.state(), name: value})
    with pytest.raises(ValueError, match="that of another sampler"):
        sampler.load_state({"counts": np.ones(N)})
    np.testing.assert_array_equal(sampler.probs(None), before)


def test_bad_arguments():
    for rate in (0.0, -1.0, 1.5, np.nan):
        with pytest.raises(ValueError, match="`rate` must be"):
            StreamingUnigramSampler(3, rate=rate)
    sampler = StreamingUnigramSampler(3)
    sampler.observe([])
    for labels, error in (([0, 3], ValueError), ([-1], ValueError), ([0.5], TypeError)):
        with pytest.raises(error, match="`labels` must"):
            sampler.observe(labels)
    np.testing.assert_allclose(sampler.probs(None), 1.0 / 3.0, rtol=1e-14)
    steep = StreamingUnigramSampler(10_000, power=100.0)
    before = steep.state()
    with pytest.raises(ValueError, match="`power` must leave powers of the counts finite"):
        steep.observe([3] * 500)
    for name, array in steep.state().items():
        np.testing.assert_array_equal(array, before[name])


def test_is_a_proposal_of_in_batch_negatives():
    proposal = StreamingUnigramSampler(3)
    proposal.observe([0, 0, 1, 0, 0, 2] * 50)
    loss = InBatchLoss(proposal)
    value, _ = loss.forward(np.eye(3), np.eye(3), [0, 1, 2])
    assert np.isfinite(value)
