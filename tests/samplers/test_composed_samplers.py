"""Samplers made of other parts: mixture, two-pass, learned unigram, and maps in trees."""

import numpy as np
import pytest
from oracles.naive_draws import mixture, quadratic, softmax, two_pass, two_pass_marginal
from oracles.naive_samplers import chi_square, conditional, unigram
from scipy import sparse

from samplesoft.feature_maps import QuadraticFeatures, RandomFourierFeatures
from samplesoft.losses import SampledSoftmaxLoss
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import (
    BigramSampler,
    KernelSampler,
    LearnedUnigramSampler,
    MixtureSampler,
    PositiveSampler,
    QuadraticSampler,
    RFSoftmaxSampler,
    SoftmaxSampler,
    StreamingUnigramSampler,
    TwoPassSampler,
    UniformSampler,
    UnigramSampler,
    WeightedSampler,
)

N, DIM = 12, 4
RNG = np.random.default_rng(8)
VECTORS, H = RNG.normal(size=(N, DIM)), RNG.normal(size=(3, DIM))
UNIT = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
UNIT_H = H / np.linalg.norm(H, axis=1, keepdims=True)
WEIGHTS = np.arange(1.0, N + 1.0)
LABELS = [0, 11, 5]


def floats(rows):
    return np.array([[float(p) for p in row] for row in rows])


# --- mixture


@pytest.mark.parametrize("exclude", [None, LABELS])
def test_a_mixture_is_that_of_its_parts_given_what_is_excluded(exclude):
    sampler = MixtureSampler(SoftmaxSampler(VECTORS), WeightedSampler(WEIGHTS), 0.3)
    wanted = floats(
        mixture(softmax(h, VECTORS, 1.0, label), conditional(WEIGHTS, label), 0.3)
        for h, label in zip(H, exclude or [None] * 3, strict=True)
    )
    np.testing.assert_allclose(sampler.probs(H, exclude=exclude), wanted, rtol=1e-12)
    draw = sampler.sample(H, 30_000, exclude=exclude, rng=0)
    np.testing.assert_allclose(
        np.exp(draw.log_q), np.take_along_axis(wanted, draw.ids, axis=1), rtol=1e-12
    )
    for row in range(3):
        counts = np.bincount(draw.ids[row], minlength=N)
        assert chi_square(counts, wanted[row]) > 1e-4
        for wrong in (0.25, 0.35):
            parts = [
                s.probs(H[[row]], exclude=exclude and exclude[row])[0]
                for s in (sampler.first, sampler.second)
            ]
            assert chi_square(counts, mixture(*parts, wrong)) < 1e-4


def test_a_mixture_of_samplers_that_see_no_vectors_takes_no_contexts():
    sampler = MixtureSampler(UniformSampler(4), WeightedSampler([0.0, 0.0, 1.0, 0.0]))
    assert sampler.dim is None
    np.testing.assert_allclose(sampler.probs(None), [[0.125, 0.125, 0.625, 0.125]], rtol=1e-14)
    np.testing.assert_allclose(sampler.probs(np.zeros((2, 9))).sum(axis=1), 1.0, rtol=1e-14)


def test_an_update_reaches_both_parts():
    sampler = MixtureSampler(SoftmaxSampler(VECTORS), QuadraticSampler(VECTORS, leaf="kernel"))
    sampler.update([3], H[:1])
    moved = VECTORS.copy()
    moved[3] = H[0]
    wanted = floats(mixture(softmax(h, moved), quadratic(h, moved, 100.0), 0.5) for h in H)
    np.testing.assert_allclose(sampler.probs(H), wanted, rtol=1e-10)


def test_a_mixture_passes_labels_candidates_and_states_on_to_its_parts():
    def make():
        first = TwoPassSampler(UniformSampler(N), VECTORS, num_candidates=3, rng=0)
        return MixtureSampler(first, LearnedUnigramSampler(N))

    sampler, start = make(), make().first.candidate_ids
    sampler.refresh(4)
    again = TwoPassSampler(UniformSampler(N), VECTORS, num_candidates=3, rng=4)
    np.testing.assert_array_equal(sampler.first.candidate_ids, again.candidate_ids)
    assert sampler.first.candidate_ids.tolist() != start.tolist()
    sampler.observe([3, 5, 3])
    counts = np.ones(N) + np.bincount([3, 5, 3], minlength=N)
    np.testing.assert_array_equal(sampler.second.counts, counts)
    fresh = make()
    fresh.load_state(sampler.state())
    np.testing.assert_array_equal(fresh.second.counts, counts)
    np.testing.assert_array_equal(fresh.second.probs(None), sampler.second.probs(None))


def test_a_state_of_which_one_part_is_refused_changes_neither():
    def make():
        return MixtureSampler(LearnedUnigramSampler(3), StreamingUnigramSampler(3))

    sampler, fresh = make(), make()
    sampler.observe([0, 0, 1])
    state = sampler.state()
    del state["second/gaps"]
    with pytest.raises(ValueError, match="state"):
        fresh.load_state(state)
    np.testing.assert_array_equal(fresh.probs(None), make().probs(None))


def test_the_tau_of_a_mixture_is_that_of_the_part_that_has_one():
    softmax_of_3, blind = SoftmaxSampler(VECTORS, tau=3.0), UniformSampler(N)
    assert MixtureSampler(softmax_of_3, blind).tau == 3.0
    assert MixtureSampler(blind, softmax_of_3).tau == 3.0
    assert MixtureSampler(blind, blind).tau is None


def of_taus(*taus):
    return tuple(SoftmaxSampler(VECTORS, tau=tau) for tau in taus)


def test_mixtures_that_do_not_fit_are_refused():
    cases = [
        ((UniformSampler(3), UniformSampler(4)), ValueError, "the same number of classes, got 3"),
        ((SoftmaxSampler(VECTORS), SoftmaxSampler(VECTORS[:, :2])), ValueError, "dimension, got 4"),
        ((UniformSampler(3), "uniform"), TypeError, "`second` must be a Sampler, got str"),
        ((UniformSampler(3), UniformSampler(3), 1.0), ValueError, "`weight` must be less than 1"),
        ((UniformSampler(3), UniformSampler(3), 0.0), ValueError, "`weight` must be finite and gr"),
        ((UniformSampler(3, replace=False), UniformSampler(3)), ValueError, "`first` must draw wi"),
        (of_taus(2.0, 50.0), ValueError, "the same tau, got 2.0 and 50.0; make"),
        ((MixtureSampler(*of_taus(2.0, 2.0)), of_taus(3.0)[0]), ValueError, "got 2.0 and 3.0"),
    ]
    for arguments, error, message in cases:
        with pytest.raises(error, match=message):
            MixtureSampler(*arguments)
    sampler = MixtureSampler(UniformSampler(3), UniformSampler(3))
    sampler.second.replace = False
    with pytest.raises(ValueError, match="`second` must draw with replacement, got a Uniform"):
        sampler.sample(None, 2)


# --- two passes


def two_pass_sampler(num=6, rng=0, dtype=np.float64):
    first = WeightedSampler(WEIGHTS)
    return TwoPassSampler(first, VECTORS.astype(dtype), num_candidates=num, tau=0.7, rng=rng)


@pytest.mark.parametrize("seed", range(5))
def test_two_passes_are_the_softmax_among_the_candidates(seed):
    sampler = two_pass_sampler(rng=seed)
    for exclude in (None, LABELS):
        wanted = floats(
            two_pass(h, VECTORS, sampler.candidate_ids, 0.7, label)
            for h, label in zip(H, exclude or [None] * 3, strict=True)
        )
        np.testing.assert_allclose(sampler.probs(H, exclude=exclude), wanted, rtol=1e-12)
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(
                sampler.log_prob(H, np.arange(N), exclude=exclude), np.log(wanted), rtol=1e-12
            )


def test_new_candidates_follow_their_sampler_and_their_seed():
    sampler = two_pass_sampler(1)
    counts = np.zeros(N)
    for seed in range(4000):
        sampler.refresh(seed)
        counts[sampler.candidate_ids] += 1
    assert chi_square(counts, WEIGHTS / WEIGHTS.sum()) > 1e-4
    sampler = two_pass_sampler(rng=3)
    first = sampler.candidate_ids
    sampler.refresh(4)
    assert sampler.candidate_ids.tolist() != first.tolist()
    sampler.refresh(3)
    assert sampler.candidate_ids.tolist() == first.tolist()


def test_the_sampler_of_the_candidates_learns():
    sampler = TwoPassSampler(LearnedUnigramSampler(N), VECTORS, num_candidates=3, rng=0)
    sampler.observe([1] * 9)
    assert sampler.candidates.counts[1] == 10.0
    again = TwoPassSampler(LearnedUnigramSampler(N), VECTORS, num_candidates=3, rng=0)
    again.load_state(sampler.state())
    np.testing.assert_array_equal(again.candidates.counts, sampler.candidates.counts)


@pytest.mark.thorough
def test_over_all_candidate_sets_draws_follow_the_marginal():
    vectors, first, trials = VECTORS[:4], np.array([0.1, 0.2, 0.3, 0.4]), 6000
    sampler = TwoPassSampler(WeightedSampler(first), vectors, num_candidates=2)
    counts = np.zeros(4)
    for seed in range(trials):
        sampler.refresh(2 * seed)
        counts[sampler.sample(H[0], 1, rng=2 * seed + 1).ids[0, 0]] += 1
    wanted = [float(p) for p in two_pass_marginal(H[0], vectors, first, 2)]
    assert chi_square(counts, wanted) > 1e-4
    assert chi_square(counts, SoftmaxSampler(vectors).probs(H[0])[0]) < 1e-9


def test_an_update_reaches_candidates_of_now_and_of_later():
    sampler = two_pass_sampler(rng=1)
    inside, outside = sampler.candidate_ids[0], np.setdiff1d(np.arange(N), sampler.candidate_ids)[0]
    sampler.update([outside], H[2:])
    sampler.update([outside, inside], H[:2])
    moved = VECTORS.copy()
    moved[outside], moved[inside] = H[0], H[1]
    for seed in (None, 5, 6):
        if seed is not None:
            sampler.refresh(seed)
        wanted = floats(two_pass(h, moved, sampler.candidate_ids, 0.7) for h in H)
        np.testing.assert_allclose(sampler.probs(H), wanted, rtol=1e-12)


def test_where_the_label_is_the_only_candidate_draws_are_of_one_pass():
    """Training would stop there: the rest of the first pass is drawn from, and q is that."""
    sampler = two_pass_sampler(1)
    only = int(sampler.candidate_ids[0])
    labels = [only, (only + 1) % N, only]
    wanted = np.zeros((3, N))
    wanted[[0, 2]] = floats([conditional(WEIGHTS, only)])
    wanted[1, only] = 1.0
    np.testing.assert_allclose(sampler.probs(H, exclude=labels), wanted, rtol=1e-12)
    with np.errstate(divide="ignore"):
        log_q = sampler.log_prob(H, np.arange(N), exclude=labels)
        np.testing.assert_allclose(log_q, np.log(wanted), rtol=1e-12)
    draw = sampler.sample(H, 20_000, exclude=labels, rng=1)
    np.testing.assert_array_equal(draw.log_q, np.take_along_axis(log_q, draw.ids, axis=1))
    for ids, q in zip(draw.ids, wanted, strict=True):
        assert chi_square(np.bincount(ids, minlength=N), q) > 1e-4
    assert (draw.ids[0] != draw.ids[2]).any()  # each example by random numbers of its own
    few = sampler.sample(H[:1], 20_000, exclude=labels[:1], rng=1)
    np.testing.assert_array_equal(few.ids, draw.ids[:1])


@pytest.mark.parametrize("replace", [True, False])
def test_training_goes_on_where_the_label_is_the_only_candidate(replace):
    sampler = TwoPassSampler(UniformSampler(N, replace=replace), VECTORS, num_candidates=1, rng=0)
    layer = SoftmaxLayer(VECTORS, SampledSoftmaxLoss(), sampler, 5)
    for step in range(20):
        value, _ = layer.forward(H[:1], [step % N], rng=step)
        assert np.isfinite(value)


def test_two_pass_errors():
    only = TwoPassSampler(WeightedSampler(np.eye(N)[3]), VECTORS, num_candidates=2)
    with pytest.raises(ValueError, match="leave a class to draw, got 3, the only one with a"):
        only.sample(H[0], 2, exclude=3)
    with pytest.raises(ValueError, match="`candidates` must not look at context vectors"):
        TwoPassSampler(SoftmaxSampler(VECTORS), VECTORS, num_candidates=3)
    bigrams = BigramSampler(sparse.eye_array(N))
    with pytest.raises(TypeError, match="`candidates` must draw by .* got a BigramSampler"):
        TwoPassSampler(bigrams, VECTORS, num_candidates=3)
    with pytest.raises(TypeError, match="`second` must draw by .* got a BigramSampler"):
        MixtureSampler(UniformSampler(N), bigrams)
    with pytest.raises(TypeError, match="`candidates` must be a Sampler, got list"):
        TwoPassSampler([1, 2], VECTORS, num_candidates=3)
    with pytest.raises(ValueError, match="a row for each of the 3 classes"):
        TwoPassSampler(UniformSampler(3), VECTORS, num_candidates=3)
    with pytest.raises(ValueError, match="`num_candidates` must be at least 1"):
        TwoPassSampler(UniformSampler(N), VECTORS, num_candidates=0)


# --- learned unigram


@pytest.mark.parametrize("power", [1.0, 0.75])
def test_a_learned_unigram_is_that_of_what_it_has_seen(power):
    sampler = LearnedUnigramSampler(200, power=power)
    counts = np.ones(200)
    np.testing.assert_allclose(sampler.probs(None), 1.0 / 200, rtol=1e-14)
    for seed in range(5):
        labels = np.random.default_rng(seed).zipf(1.5, size=1000) % 200
        sampler.observe(labels)
        counts += np.bincount(labels, minlength=200)
    np.testing.assert_array_equal(sampler.counts, counts)
    wanted = floats([unigram(counts, power)])
    np.testing.assert_allclose(sampler.probs(None), wanted, rtol=1e-11)
    assert (
        chi_square(
            np.bincount(sampler.sample(None, 50_000, rng=0).ids[0], minlength=200), wanted[0]
        )
        > 1e-4
    )
    wanted = floats([conditional(counts**power, 3)])
    np.testing.assert_allclose(sampler.probs(None, exclude=3), wanted, rtol=1e-11)


@pytest.mark.thorough
def test_with_power_1_the_order_of_observations_does_not_matter_at_all():
    labels = np.random.default_rng(0).integers(0, 300, 5000)
    at_once, bit_by_bit = LearnedUnigramSampler(300), LearnedUnigramSampler(300)
    at_once.observe(labels)
    for some in np.array_split(np.sort(labels), 70):
        bit_by_bit.observe(some)
    np.testing.assert_array_equal(at_once.probs(None), bit_by_bit.probs(None))
    np.testing.assert_array_equal(
        at_once.sample(None, 99, rng=1).ids, bit_by_bit.sample(None, 99, rng=1).ids
    )


def test_learned_unigram_errors_change_nothing():
    sampler = LearnedUnigramSampler(3, initial=[1.0, 2.0, 3.0])
    sampler.observe([])
    for labels, error in (([0, 3], ValueError), ([-1], ValueError), ([0.5], TypeError)):
        with pytest.raises(error, match="`labels` must"):
            sampler.observe(labels)
    assert sampler.counts.tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_allclose(sampler.probs(None), [[1 / 6, 1 / 3, 1 / 2]], rtol=1e-14)
    for initial in (0.0, -1.0, [1.0, 0.0, 1.0]):
        with pytest.raises(ValueError, match="`initial` must be"):
            LearnedUnigramSampler(3, initial=initial)
    with pytest.raises(ValueError, match="`power` must be finite and greater than 0"):
        LearnedUnigramSampler(3, power=0)
    with pytest.raises(ValueError, match="`num_classes` must be at least 1"):
        LearnedUnigramSampler(0)
    with pytest.raises(ValueError, match="must be greater than 0, got 0.0"):
        sampler.load_state({"counts": np.array([0.0, 1.0, 1.0])})


# --- maps in trees


@pytest.mark.parametrize("leaf_size", [1, 5, 64])
@pytest.mark.parametrize("exclude", [None, LABELS])
def test_the_quadratic_sampler_is_the_quadratic_kernel(leaf_size, exclude):
    sampler = QuadraticSampler(VECTORS, alpha=7.0, leaf="kernel", leaf_size=leaf_size)
    wanted = floats(
        quadratic(h, VECTORS, 7.0, label) for h, label in zip(H, exclude or [None] * 3, strict=True)
    )
    np.testing.assert_allclose(sampler.probs(H, exclude=exclude), wanted, rtol=1e-11)
    assert sampler.tree.leaf == "quadratic"


@pytest.mark.parametrize(
    "make",
    [
        lambda **options: QuadraticSampler(UNIT, **options),
        lambda **options: PositiveSampler(UNIT, num_features=8, rng=0, **options),
        lambda **options: RFSoftmaxSampler(UNIT, num_features=8, rng=0, **options),
    ],
    ids=["quadratic", "positive", "rff"],
)
def test_one_softmax_leaf_is_the_softmax(make):
    wanted = floats(softmax(h, UNIT, 2.5) for h in UNIT_H)
    np.testing.assert_allclose(make(tau=2.5).probs(UNIT_H), wanted, rtol=1e-12)
    assert not np.allclose(make(tau=2.5, leaf_size=2).probs(UNIT_H), wanted, rtol=1e-3)


@pytest.mark.parametrize("frequencies", ["iid", "orthogonal", "structured"])
def test_many_features_come_near_the_kernel(frequencies):
    wanted = floats(softmax(h, UNIT, 2.0) for h in UNIT_H)
    sampler = RFSoftmaxSampler(
        UNIT,
        nu=2.0,
        num_features=20_000,
        frequencies=frequencies,
        leaf="kernel",
        leaf_size=1,
        rng=1,
    )
    np.testing.assert_allclose(sampler.probs(UNIT_H), wanted, rtol=0, atol=0.03)
    sampler = PositiveSampler(UNIT, num_features=50_000, tau=1.0, leaf="kernel", leaf_size=3, rng=1)
    wanted = floats(softmax(h, UNIT) for h in UNIT_H)
    np.testing.assert_allclose(sampler.probs(UNIT_H), wanted, rtol=0, atol=0.03)


def test_a_kernel_sampler_takes_any_map():
    features = RandomFourierFeatures(DIM, 16, 1.0, rng=0)
    sampler = KernelSampler(VECTORS, features, leaf="kernel", leaf_size=1)
    assert sampler.feature_map is features and sampler.tree.floor == features.floor
    named = RFSoftmaxSampler(UNIT, nu=1.0, num_features=16, leaf="kernel", leaf_size=1, rng=0)
    sampler = KernelSampler(UNIT, features, leaf="kernel", leaf_size=1)
    np.testing.assert_array_equal(sampler.probs(UNIT_H), named.probs(UNIT_H))
    with pytest.raises(ValueError, match="`class_embeddings` must have 4 columns"):
        KernelSampler(VECTORS[:, :3], features)
    with pytest.raises(ValueError, match="`leaf` must be one of softmax, kernel; got 'quadratic'"):
        KernelSampler(VECTORS, QuadraticFeatures(DIM), leaf="quadratic")


def test_the_floor_is_that_of_the_map_or_the_one_given():
    for floor, least in ((None, 1e-9), (0.25, 0.25)):
        sampler = KernelSampler(np.abs(VECTORS), np.copy, leaf="kernel", leaf_size=1, floor=floor)
        # every kernel is below the floor
        np.testing.assert_allclose(sampler.probs(-np.ones(DIM)), 1.0 / N, rtol=1e-12)
        assert sampler.tree.floor == least
    features = RandomFourierFeatures(DIM, 16, 1.0, rng=0)
    assert KernelSampler(VECTORS, features, floor=0.25).tree.floor == 0.25


def test_counts_and_vectors_need_not_come_together():
    sampler = MixtureSampler(RFSoftmaxSampler(UNIT, tau=1.0, rng=0), UnigramSampler(WEIGHTS), 0.9)
    least = 0.1 * UnigramSampler(WEIGHTS).probs(None)
    assert (sampler.probs(UNIT_H) >= least * (1.0 - 1e-12)).all()
