"""The exact softmax sampler against the definition, at any block size and at the extremes."""

import tracemalloc

import numpy as np
import pytest
from oracles.naive_draws import softmax
from oracles.naive_samplers import chi_square

from samplesoft._jit import COMPILES
from samplesoft.samplers import SoftmaxSampler
from samplesoft.samplers import softmax as module

N, DIM = 37, 5
RNG = np.random.default_rng(3)
VECTORS, H = RNG.normal(size=(N, DIM)), RNG.normal(size=(4, DIM))
BLOCK_SIZES = [1, 2, 5, 36, 37, 1000]


def oracle(h, vectors, tau=1.0, exclude=None):
    rows = np.atleast_2d(h)
    labels = [None] * len(rows) if exclude is None else exclude
    return np.array(
        [
            [float(p) for p in softmax(*row)]
            for row in ((x, vectors, tau, t) for x, t in zip(rows, labels, strict=True))
        ]
    )


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("exclude", [None, [0, 36, 4, 20]])
def test_probabilities_are_the_softmax(block_size, exclude):
    sampler = SoftmaxSampler(VECTORS, tau=2.5, block_size=block_size)
    wanted = oracle(H, VECTORS, 2.5, exclude)
    np.testing.assert_allclose(sampler.probs(H, exclude=exclude), wanted, rtol=1e-13)


@pytest.mark.skipif(not COMPILES, reason="nothing is compiled")
def test_classes_that_can_only_be_read_have_no_kernel_compiled_once_more():
    sampler = SoftmaxSampler(VECTORS, tau=2.5)
    exclude = np.array([0, 36, 4, 20])
    ids = sampler.sample(H, 3, exclude=exclude, rng=0).ids
    expected = sampler.log_prob(H, ids, exclude=exclude)
    compiled = len(module._draw_or_evaluate_in_blocks.signatures)
    for array in (exclude, ids):
        array.flags.writeable = False
    np.testing.assert_array_equal(sampler.sample(H, 3, exclude=exclude, rng=0).ids, ids)
    np.testing.assert_array_equal(sampler.log_prob(H, ids, exclude=exclude), expected)
    assert len(module._draw_or_evaluate_in_blocks.signatures) == compiled


def test_float32_follows_the_softmax_to_its_rounding():
    vectors, h = VECTORS.astype(np.float32), H.astype(np.float32)
    sampler = SoftmaxSampler(vectors, tau=2.5)
    np.testing.assert_allclose(sampler.probs(h), oracle(h, vectors, 2.5), rtol=1e-5)
    np.testing.assert_allclose(sampler.probs(h).sum(axis=1), 1.0, rtol=1e-13)
    np.testing.assert_array_equal(sampler.probs(h), sampler.probs(h.astype(np.float64)))


@pytest.fixture
def grid(monkeypatch):
    """Uniforms in place of random numbers: the middles of equal parts of [0, 1), shuffled."""
    num = 20_000
    values = np.random.default_rng(0).permutation((np.arange(num) + 0.5) / num)
    monkeypatch.setattr(module, "uniform_block", lambda key, batch, m: np.tile(values, (batch, 1)))
    return num


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("exclude", [None, [0, 36, 4, 20]])
def test_each_class_takes_its_share_of_the_uniforms(grid, block_size, exclude):
    sampler = SoftmaxSampler(VECTORS, block_size=block_size)
    draw = sampler.sample(H, grid, exclude=exclude, rng=0)
    wanted = oracle(H, VECTORS, 1.0, exclude)
    for row in range(len(H)):
        counts = np.bincount(draw.ids[row], minlength=N)
        assert np.abs(counts - grid * wanted[row]).max() <= 1.0 + 1e-6


@pytest.mark.parametrize("u", [0.0, 0.5, 1.0 - 2.0**-53])
@pytest.mark.parametrize("block_size", [1, 2, 8])
def test_no_uniform_draws_a_class_without_mass(monkeypatch, u, block_size):
    monkeypatch.setattr(module, "uniform_block", lambda key, batch, m: np.full((batch, m), u))
    logits = np.full(8, -1e4)
    logits[[2, 3, 5]] = 0.0, 1.0, -3.0
    sampler = SoftmaxSampler(logits[:, None], block_size=block_size)
    assert np.isin(sampler.sample([1.0], 3, rng=0).ids, [2, 3, 5]).all()
    assert np.isin(sampler.sample([1.0], 3, exclude=3, rng=0).ids, [2, 5]).all()


@pytest.mark.parametrize("block_size", [1, 3, 128])
def test_logits_of_ten_thousand(block_size):
    logits = np.array([1e4, 1e4 - 1.0, -1e4, 0.0, 9990.0])
    sampler = SoftmaxSampler(logits[:, None], block_size=block_size)
    for exclude in (None, 0, 4):
        log_q = sampler.log_prob([1.0], np.arange(5), exclude=exclude)[0]
        kept = [o for j, o in enumerate(logits) if j != exclude]
        wanted = logits - np.logaddexp.reduce(kept)
        if exclude is not None:
            wanted[exclude] = -np.inf
        np.testing.assert_allclose(log_q, wanted, rtol=1e-14, atol=1e-11)
        draw = sampler.sample([1.0], 50_000, exclude=exclude, rng=1)
        counts = np.bincount(draw.ids[0], minlength=5)
        assert chi_square(counts, np.exp(wanted)) > 1e-4
        np.testing.assert_array_equal(draw.log_q[0], log_q[draw.ids[0]])


@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_a_label_with_all_but_1e_12_of_the_mass(block_size):
    others = np.array([1.0, 2.0, 5.0])
    vectors = np.log(np.append(others, 8e12))[:, None]
    sampler = SoftmaxSampler(vectors, block_size=block_size)
    assert sampler.probs([1.0])[0, 3] == pytest.approx(1.0 - 1e-12, abs=1e-14)
    draw = sampler.sample([1.0], 40_000, exclude=3, rng=2)
    q = np.append(others / 8.0, 0.0)
    np.testing.assert_allclose(sampler.probs([1.0], exclude=3)[0], q, rtol=1e-14)
    assert chi_square(np.bincount(draw.ids[0], minlength=4), q) > 1e-4


@pytest.mark.parametrize("block_size", [1, 2, 4])
def test_in_float32_an_excluded_logit_of_ten_thousand_costs_the_others_no_digits(block_size):
    logits = np.array([0.5, 1.5, 1e4, -2.0], np.float32)
    sampler = SoftmaxSampler(logits[:, None], block_size=block_size)
    weights = np.where(logits < 100.0, np.exp(np.minimum(logits, 2.0, dtype=float)), 0.0)
    probs = sampler.probs(np.ones((1, 1), np.float32), exclude=2)[0]
    np.testing.assert_allclose(probs, weights / weights.sum(), rtol=1e-6)


def test_probabilities_far_below_the_range_of_float64():
    sampler = SoftmaxSampler([[0.0], [-690.0], [-5000.0]])
    log_q = sampler.log_prob([1.0], [1, 2])[0]
    np.testing.assert_allclose(log_q, [-690.0, -5000.0], rtol=1e-15)
    assert sampler.probs([1.0])[0, 1] == pytest.approx(np.exp(-690.0), rel=1e-13)


@pytest.mark.parametrize(("n", "block_size"), [(1, 1), (1, 128), (129, 128), (256, 128)])
def test_whole_and_partial_blocks(n, block_size):
    vectors = RNG.normal(size=(n, 3))
    sampler = SoftmaxSampler(vectors, block_size=block_size)
    np.testing.assert_allclose(sampler.probs(H[:, :3]), oracle(H[:, :3], vectors), rtol=1e-13)
    assert sampler.sample(H[:, :3], 700, rng=0).ids.max() == n - 1


def test_updates_copy_and_the_last_of_a_class_counts():
    vectors = VECTORS.copy()
    sampler = SoftmaxSampler(vectors, block_size=8)
    before = sampler.probs(H)
    vectors[:] = 0.0
    np.testing.assert_array_equal(sampler.probs(H), before)
    sampler.update([36, 2, 36], H[:3])
    changed = VECTORS.copy()
    changed[2], changed[36] = H[1], H[2]
    np.testing.assert_allclose(sampler.probs(H), oracle(H, changed), rtol=1e-13)


def test_the_context_of_a_shared_draw_does_not_decide_the_draw():
    sampler, counts = SoftmaxSampler(VECTORS), np.zeros(N)
    for seed in range(3000):
        counts[sampler.sample(H[:2], 1, shared=True, rng=seed).ids] += 1
    assert chi_square(counts, oracle(H[:2], VECTORS).mean(axis=0)) > 1e-4


def test_many_parts_on_any_number_of_threads_give_the_same(threads):
    vectors, h = RNG.normal(size=(30_000, 3)), RNG.normal(size=(70, 3))
    sampler, labels = SoftmaxSampler(vectors), np.arange(70) * 400
    drawn = []
    for count in (1, 2, 5):
        threads(count)
        drawn.append(sampler.sample(h, 40, exclude=labels, rng=4))
    for other in drawn[1:]:
        np.testing.assert_array_equal(drawn[0].ids, other.ids)
        np.testing.assert_array_equal(drawn[0].log_q, other.log_q)
    logits = h @ vectors.T
    logits[range(70), labels] = -np.inf
    log_q = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    wanted = np.take_along_axis(log_q, drawn[0].ids, axis=1)
    np.testing.assert_allclose(drawn[0].log_q, wanted, rtol=1e-12)


def test_memory_is_that_of_the_blocks():
    n, batch = 100_000, 64
    vectors = RNG.normal(size=(n, 4)).astype(np.float32)
    h = RNG.normal(size=(batch, 4)).astype(np.float32)
    sampler, labels = SoftmaxSampler(vectors), np.zeros(batch, int)
    sampler.sample(h, 2, exclude=labels, rng=0)  # compiles
    tracemalloc.start()
    sampler.sample(h, 10, exclude=labels, rng=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.1 * 4 * n * batch  # all logits in float32


@pytest.mark.parametrize(("dtype", "huge"), [(np.float32, 1e30), (np.float64, 1e200)])
def test_logits_that_overflow_are_refused(dtype, huge):
    vectors = np.full((3, 2), huge, dtype)
    vectors[1, 0] = -huge
    sampler = SoftmaxSampler(vectors)
    for call in (sampler.probs, lambda h: sampler.sample(h, 2)):
        with pytest.raises(ValueError, match="`h` must have logits within the range of float"):
            call(np.array([[0.0, 0.0], [huge, huge]], dtype))
    assert sampler.probs([[0.0, 0.0]]).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tau": 0.0}, ValueError, "`tau` must be finite and greater than 0"),
        ({"tau": "1"}, TypeError, "`tau` must be a number"),
        ({"block_size": 0}, ValueError, "`block_size` must be at least 1"),
        ({"block_size": 1.5}, TypeError, "`block_size` must be an integer"),
    ],
)
def test_bad_settings_are_named(options, error, message):
    with pytest.raises(error, match=message):
        SoftmaxSampler(VECTORS, **options)


def test_contexts_that_overflow_float32_are_refused():
    with pytest.raises(ValueError, match="`h` must be finite in float32, got inf"):
        SoftmaxSampler(VECTORS.astype(np.float32)).probs(H * 1e300)
