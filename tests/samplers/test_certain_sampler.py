"""Classes that are in every draw, beside the draws of a sampler over the others."""

import numpy as np
import pytest
from oracles.naive_samplers import chi_square

from samplesoft import asymptotic_bias, exact_bias, finite_sample_bounds, verify
from samplesoft.losses import SampledSoftmaxLoss, make_loss
from samplesoft.models import SoftmaxLayer, SoftmaxSettings
from samplesoft.samplers import (
    SAMPLERS,
    CertainSampler,
    LearnedUnigramSampler,
    MixtureSampler,
    SamplerInputs,
    SoftmaxSampler,
    TwoPassSampler,
    UniformSampler,
    WeightedSampler,
    make_certain_sampler,
    make_sampler,
)

N, DIM, K, M = 20, 4, 5, 7
RNG = np.random.default_rng(3)
W = RNG.normal(size=(N, DIM))
W /= np.linalg.norm(W, axis=1, keepdims=True)
H = W[[2, 7, 11]] + 0.0
COUNTS = RNG.permutation(np.arange(1.0, N + 1.0))
CERTAIN = np.sort(np.argsort(-COUNTS)[:K])
REST = np.setdiff1d(np.arange(N), CERTAIN)
LABELS = [REST[0], CERTAIN[1], REST[-1]]


def inputs(rows=slice(None)):
    options = {"tau": 3.0, "nu": 2.0, "num_features": 16, "rng": 5}
    return SamplerInputs(W[rows], COUNTS[rows], **options)


@pytest.fixture(params=sorted(SAMPLERS))
def name(request):
    return request.param


@pytest.mark.parametrize("shared", [False, True])
def test_it_draws_what_a_sampler_over_the_other_classes_draws(name, shared):
    sampler, tail = make_certain_sampler(name, inputs(), K), make_sampler(name, inputs(REST))
    np.testing.assert_array_equal(sampler.certain, CERTAIN)
    draw, wanted = (x.sample(H, M, shared=shared, rng=1) for x in (sampler, tail))
    sets = 1 if shared else 3
    assert draw.ids.shape == draw.log_q.shape == (sets, K + M)
    np.testing.assert_array_equal(draw.ids[:, :K], [CERTAIN] * sets)
    np.testing.assert_array_equal(draw.ids[:, K:], REST[wanted.ids])
    np.testing.assert_array_equal(draw.log_expected_count[:, :K], 0.0)
    np.testing.assert_array_equal(draw.log_expected_count[:, K:], wanted.log_expected_count)
    np.testing.assert_array_equal(draw.log_q[:, :K], -np.inf)


@pytest.mark.parametrize("exclude", [None, LABELS])
def test_its_probabilities_are_those_of_one_draw(name, exclude):
    sampler, tail = make_certain_sampler(name, inputs(), K), make_sampler(name, inputs(REST))
    probs = sampler.probs(H, exclude=exclude)
    np.testing.assert_array_equal(probs[:, CERTAIN], 0.0)
    for row, h in enumerate(H):
        own = None
        if exclude is not None and exclude[row] in REST:
            own = int(np.searchsorted(REST, exclude[row]))
        np.testing.assert_allclose(probs[row, REST], tail.probs(h, exclude=own)[0], rtol=1e-9)
    every = np.arange(N)
    with np.errstate(divide="ignore"):
        log_q = np.log(probs)
    np.testing.assert_allclose(sampler.log_prob(H, every, exclude=exclude), log_q, rtol=1e-9)
    counts = sampler.log_expected_count(H, every, M, exclude=exclude)
    wanted = log_q + np.log(M)
    wanted[:, CERTAIN] = 0.0
    if exclude is not None:
        wanted[np.arange(3), exclude] = -np.inf
    np.testing.assert_allclose(counts, wanted, rtol=1e-9)


@pytest.mark.parametrize("label", [CERTAIN[1], REST[3]], ids=["certain", "of the tail"])
def test_draws_follow_the_tail_without_the_label(label):
    sampler = make_certain_sampler("clusters", inputs(), K)
    draw = sampler.sample(H[0], 40_000, exclude=label, rng=2)
    probs = sampler.probs(H[0], exclude=label)[0]
    counts = np.bincount(draw.ids[0, K:], minlength=N)
    assert chi_square(counts, probs) > 1e-4
    assert chi_square(counts, (probs > 0.0) / np.count_nonzero(probs)) < 1e-4
    assert label not in draw.ids


def test_an_excluded_certain_class_leaves_its_place_to_a_draw_that_counts_half():
    sampler = make_certain_sampler("unigram", inputs(), K)
    draw, plain = (sampler.sample(H, M, exclude=x, rng=0) for x in (LABELS, None))
    np.testing.assert_array_equal(draw.ids[1, K:], plain.ids[1, K:])
    assert draw.ids[1, 1] == draw.ids[1, K] and CERTAIN[1] not in draw.ids[1]
    once = plain.log_expected_count[1, K]
    for place in (1, K):
        assert draw.log_expected_count[1, place] == pytest.approx(once + np.log(2.0))
    for row in (0, 2):
        np.testing.assert_array_equal(draw.ids[row, :K], CERTAIN)
        assert LABELS[row] not in draw.ids[row]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["softmax", "clusters", "rff+softmax-leaf"])
def test_an_update_reaches_the_tail_alone(kind, dtype):
    sampler = make_certain_sampler(kind, inputs(), K)
    moved = W.copy()
    ids = np.array([CERTAIN[0], REST[4], REST[9]])
    moved[ids] = H
    sampler.update(ids, H.astype(dtype))
    if kind == "softmax":
        wanted = SoftmaxSampler(moved[REST], tau=3.0).probs(H)
    else:
        again = make_certain_sampler(kind, inputs(), K)
        again.tail.update([4, 9], H[1:].astype(dtype))
        wanted = again.tail.probs(H)
    np.testing.assert_allclose(sampler.probs(H)[:, REST], wanted, rtol=1e-6)
    before = sampler.probs(H)
    sampler.update(CERTAIN, W[CERTAIN])
    sampler.update([], np.empty((0, DIM)))
    np.testing.assert_array_equal(sampler.probs(H), before)
    with pytest.raises(ValueError, match="`class_embeddings` must be finite"):
        sampler.update([REST[0]], np.full((1, DIM), np.nan))
    np.testing.assert_array_equal(sampler.probs(H), before)


def test_labels_candidates_and_states_go_to_the_tail():
    sampler = CertainSampler(LearnedUnigramSampler(3), [1, 3])
    sampler.observe([0, 1, 4, 4, 3])
    assert sampler.tail.counts.tolist() == [2.0, 1.0, 3.0]
    again = CertainSampler(LearnedUnigramSampler(3), [1, 3])
    again.load_state(sampler.state())
    np.testing.assert_array_equal(again.probs(None), sampler.probs(None))
    two = CertainSampler(TwoPassSampler(UniformSampler(15), W[REST], num_candidates=4), CERTAIN)
    two.refresh(1)
    first = two.tail.candidate_ids.tolist()
    two.refresh(2)
    assert two.tail.candidate_ids.tolist() != first


def test_the_tail_may_draw_without_replacement():
    sampler = CertainSampler(WeightedSampler(np.arange(1.0, 6.0), replace=False), [0, 6])
    draw = sampler.sample(None, 3, rng=0)
    assert len(set(draw.ids[0])) == 5
    wanted = sampler.tail.inclusion_probs(3)
    np.testing.assert_allclose(np.exp(draw.log_expected_count[0, 2:]), wanted[draw.ids[0, 2:] - 1])
    with pytest.raises(ValueError, match="`q` must draw with replacement, got a CertainSampler"):
        exact_bias(np.zeros(7), 0, sampler, 3, scheme="masked")


def test_counts_choose_the_most_frequent():
    sampler = make_certain_sampler("unigram", SamplerInputs(counts=[3, 9, 0, 9, 5]), 3)
    assert sampler.certain.tolist() == [1, 3, 4]
    first = make_certain_sampler("uniform", SamplerInputs(counts=[2, 2, 2]), 1)
    assert first.certain.tolist() == [0]
    never = make_certain_sampler("unigram", SamplerInputs(counts=[0, 5, 0]), 1)
    assert never.probs(None).tolist() == [[0.5, 0.0, 0.5]]


BAD = {
    "no sampler": (lambda: CertainSampler("uniform", [0]), TypeError, "`tail` must be a Sampler"),
    "twice": (lambda: CertainSampler(UniformSampler(3), [1, 1]), ValueError, "got 1 twice"),
    "outside": (lambda: CertainSampler(UniformSampler(3), [5]), ValueError, "lie in 0..3 for 4"),
    "none": (lambda: CertainSampler(UniformSampler(3), []), ValueError, "must hold a class, got"),
    "floats": (lambda: CertainSampler(UniformSampler(3), [1.0]), TypeError, "hold integers"),
    "nested": (
        lambda: CertainSampler(CertainSampler(UniformSampler(3), [0]), [1]),
        ValueError,
        "`tail` must have no certain classes, got a CertainSampler",
    ),
    "mixed": (
        lambda: MixtureSampler(UniformSampler(4), CertainSampler(UniformSampler(3), [0])),
        ValueError,
        "`second` must have no certain classes, got a CertainSampler",
    ),
    "nothing left": (
        lambda: CertainSampler(UniformSampler(1), [0, 2]).sample(None, 2, exclude=1),
        ValueError,
        "`exclude` must leave a class to draw beside the certain ones, got 1, the only other",
    ),
    "all": (
        lambda: make_certain_sampler("uniform", SamplerInputs(counts=[1, 2]), 2),
        ValueError,
        "`num_certain` must be less than the number of classes 2, got 2; with all of them",
    ),
    "zero": (
        lambda: make_certain_sampler("uniform", SamplerInputs(counts=[1, 2]), 0),
        ValueError,
        "`num_certain` must be at least 1",
    ),
    "no counts": (
        lambda: make_certain_sampler("uniform", SamplerInputs(W), 2),
        ValueError,
        "`inputs` must have counts, by which",
    ),
    "not inputs": (lambda: make_certain_sampler("uniform", W, 2), TypeError, "`inputs` must be"),
    "name": (
        lambda: make_certain_sampler("none", SamplerInputs(counts=[1, 2]), 1),
        ValueError,
        "`name` must be one of",
    ),
    "labels": (
        lambda: CertainSampler(UniformSampler(3), [0]).observe([4]),
        ValueError,
        "`labels` must lie in 0..3",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input(kind):
    call, error, message = BAD[kind]
    with pytest.raises(error, match=message):
        call()


def test_so_many_certain_classes_that_they_do_not_fit_are_refused(monkeypatch):
    monkeypatch.setattr("samplesoft._memory.available_bytes", lambda: 10_000)
    sampler = CertainSampler(UniformSampler(3), np.arange(20_000))
    sampler.sample(H, 2, shared=True)
    with pytest.raises(MemoryError, match="`certain` must leave room in the memory, got 20000"):
        sampler.sample(np.zeros((1_000, 2)), 2)


def test_functions_that_know_of_no_certain_classes_refuse_them():
    sampler, o = CertainSampler(UniformSampler(3), [1]), np.arange(4.0)
    for call in (
        lambda: asymptotic_bias(o, 0, sampler),
        lambda: finite_sample_bounds(o, 0, sampler, 3),
        lambda: verify(o, 0, {"q": sampler}, 3, scheme="masked", num_trials=2),
    ):
        with pytest.raises(ValueError, match="must have no certain classes here, got a CertainSa"):
            call()
    with pytest.raises(ValueError, match=r"`certain` must be left out where `q` .*got \[0\]"):
        exact_bias(o, 0, sampler, 3, scheme="masked", certain=[0])


# --- in a layer


@pytest.mark.parametrize("loss", ["sampled", "sampled-masked"])
@pytest.mark.parametrize("name", ["unigram", "softmax", "clusters"])
def test_a_layer_trains_with_it(name, loss):
    settings = SoftmaxSettings(loss=loss, sampler=name, tau=3.0, num_sampled=M, num_certain=K)
    layer = settings.make_layer(W.copy(), COUNTS, 5)
    assert layer.shared == (loss == "sampled-masked" and name == "unigram")
    np.testing.assert_array_equal(layer.sampler.certain, CERTAIN)
    value, cache = layer.forward(H, LABELS, rng=0)
    exclude = LABELS if loss == "sampled" else None
    draw = layer.sampler.sample(H, M, exclude=exclude, shared=layer.shared, rng=0)
    by_hand = make_loss(loss, tau=3.0, normalize=True).forward(H, W, LABELS, draw)[0]
    assert value == pytest.approx(by_hand, rel=1e-12)
    _, gradients = layer.backward(cache)
    ids = gradients["class_embeddings"].ids
    assert set(CERTAIN) <= set(ids)
    layer.parameters["class_embeddings"][ids] = W[::-1][ids]
    layer.update(ids)
    if name == "softmax":
        moved = layer.parameters["class_embeddings"][REST]
        np.testing.assert_allclose(
            layer.sampler.probs(H)[:, REST], SoftmaxSampler(moved, tau=3.0).probs(H), rtol=1e-9
        )


@pytest.mark.parametrize("loss", ["sampled", "sampled-masked"])
def test_the_gradient_is_that_of_finite_differences(loss):
    sampler = make_certain_sampler("unigram", inputs(), K)
    made = SampledSoftmaxLoss(scheme="negatives" if loss == "sampled" else "masked", tau=2.0)
    draw = sampler.sample(H, M, exclude=LABELS if made.excludes_label else None, rng=1)
    if not made.excludes_label:
        draw = sampler.sample(H, M, shared=True, rng=1)
    _, cache = made.forward(H, W, LABELS, draw)
    found = made.backward(cache)
    dense = np.zeros_like(W)
    dense[found.dW.ids] = found.dW.rows
    for values, gradient in ((H, found.dh), (W, dense)):
        wanted = np.empty_like(values)
        for place in np.ndindex(values.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = values.copy()
                moved[place] += step
                h, rows = (moved, W) if values is H else (H, moved)
                ends.append(made.forward(h, rows, LABELS, draw)[0])
            wanted[place] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(gradient, wanted, atol=1e-8)


OTHERS = ["sampled-reject", "sampled-candidate", "jackknife", "nce"]


@pytest.mark.parametrize("loss", OTHERS)
def test_losses_that_count_their_draws_refuse_certain_classes(loss):
    sampler = make_certain_sampler("uniform", inputs(), K)
    with pytest.raises(ValueError, match="`sampler` must have no certain classes with scheme="):
        SoftmaxLayer(W, make_loss(loss), sampler, M)
    with pytest.raises(ValueError, match=f"`num_certain` must be 0 with loss={loss!r}, got 3"):
        SoftmaxSettings(loss=loss, sampler="uniform", num_certain=3)


def test_settings_that_are_malformed_are_refused():
    with pytest.raises(ValueError, match="`num_certain` must be at least 0, got -1"):
        SoftmaxSettings(num_certain=-1)
    with pytest.raises(TypeError, match="`num_certain` must be an integer"):
        SoftmaxSettings(num_certain=1.0)
    with pytest.raises(ValueError, match="`num_certain` must be 0 with loss='full', got 2; take"):
        SoftmaxSettings(loss="full", sampler=None, num_sampled=None, num_certain=2)
    settings = SoftmaxSettings(sampler="uniform", num_certain=2)
    with pytest.raises(ValueError, match="`inputs` must have counts"):
        settings.make_layer(W, None, 0)


def test_a_tail_of_all_classes_is_explained():
    with pytest.raises(ValueError, match="make the tail of the classes that are not certain"):
        CertainSampler(UniformSampler(3), [9])
