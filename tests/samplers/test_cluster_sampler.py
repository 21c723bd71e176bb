"""The cluster sampler: its cells, probabilities through several levels, updates and extremes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import naive_draws

from samplesoft import exact_bias
from samplesoft.samplers import ClusterSampler
from samplesoft.samplers.clusters import plain
from samplesoft.samplers.clusters.partition import _separate_outliers

DTYPES = [np.float32, np.float64]
CLOSE = {np.float32: 2e-5, np.float64: 1e-12}


def vectors(n, dim=4, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(dtype)


def oracle(sampler, h, rows, excluded=None):
    levels = [[list(map(int, cell)) for cell in level] for level in sampler.cells()]
    return [float(q) for q in naive_draws.clusters(h, rows, levels, sampler.tau, excluded)]


def check(sampler, h, rows):
    """Compare probabilities, with and without an excluded class, with the oracle."""
    for excluded in (None, int(np.argmax(rows @ h))) if len(rows) > 1 else (None,):
        wanted = oracle(sampler, h, rows, excluded)
        found = sampler.probs(h, exclude=excluded)[0]
        np.testing.assert_allclose(found, wanted, rtol=CLOSE[rows.dtype.type], atol=1e-300)


# --- cells ------------------------------------------------------------------------------------


@st.composite
def tables(draw):
    n, dim = draw(st.sampled_from([1, 2, 3, 6, 17, 70, 200])), draw(st.integers(1, 4))
    rows = vectors(n, dim, seed=draw(st.integers(0, 99)))
    distinct = draw(st.integers(1, n))
    return rows[np.arange(n) % distinct] * draw(st.sampled_from([0.0, 1e-200, 1.0, 1e3]))


@settings(max_examples=40)
@given(rows=tables(), leaf_size=st.integers(1, 9))
def test_cells_hold_each_class_once_and_leaves_are_small(rows, leaf_size):
    levels = ClusterSampler(rows, leaf_size=leaf_size, rng=1).cells()
    for level in levels:
        np.testing.assert_array_equal(np.sort(np.concatenate(level)), np.arange(len(rows)))
        assert min(map(len, level)) > 0
    assert max(map(len, levels[-1])) <= 4 * leaf_size
    for above, below in zip(levels[:-1], levels[1:], strict=True):
        owner = {c: i for i, cell in enumerate(above) for c in cell}
        assert all(len({owner[c] for c in cell}) == 1 for cell in below)


def test_a_class_unlike_the_others_has_a_cell_of_its_own():
    rows = np.concatenate([vectors(500) * 0.1, [[5.0, 5.0, 5.0, 5.0]]])
    assert [500] in [cell.tolist() for cell in ClusterSampler(rows, rng=0).cells()[0]]


# --- probabilities ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "leaf_size", "depth"), [(1, 1, 1), (6, 1, 1), (9, 2, 1), (90, 1, 2), (150, 3, 2)]
)
def test_probabilities_are_those_of_the_cells(n, leaf_size, depth, dtype):
    rows, h = vectors(n, dtype=dtype), vectors(1, dtype=dtype, seed=1)[0]
    sampler = ClusterSampler(rows, tau=0.7, leaf_size=leaf_size, rng=0)
    assert len(sampler.cells()) == depth
    check(sampler, h, rows)


@pytest.mark.slow
def test_probabilities_through_three_levels():
    rows, h = vectors(2800), vectors(1, seed=1)[0]
    sampler = ClusterSampler(rows, leaf_size=1, rng=0)
    assert len(sampler.cells()) == 3
    check(sampler, h, rows)


def test_the_plain_twin_draws_by_its_own_probabilities():
    """In floats, as a student runs it; one uniform goes through all levels."""
    rows, h = vectors(17), vectors(1, seed=1)[0]
    sampler = ClusterSampler(rows, leaf_size=3)
    levels = [[list(map(int, cell)) for cell in level] for level in sampler.cells()]
    q = plain.class_probabilities(h, rows, levels, 1.0)
    np.testing.assert_allclose(q, oracle(sampler, h, rows), rtol=1e-12)
    uniforms = (np.arange(2000) + 0.5) / 2000
    drawn = [plain.draw(u, h, rows, levels, 1.0) for u in uniforms]
    # a class has one interval of uniforms, of its probability
    np.testing.assert_allclose(np.bincount(drawn, minlength=17) / 2000, q, atol=1.1 / 2000)
    mass = plain.estimated_mass(h, rows, [3], 1.0)
    assert mass == pytest.approx(plain.class_mass(h, rows, 3, 1.0), rel=1e-14)


def test_a_label_with_nearly_all_mass_is_excluded_without_cancellation():
    rows = vectors(200) * 0.3
    rows[7] = [30.0, 0.0, 0.0, 0.0]
    h = np.array([1.0, 0.1, -0.1, 0.0])
    sampler = ClusterSampler(rows, leaf_size=2, rng=0)
    assert 1.0 - sampler.probs(h)[0, 7] < 1e-9
    check(sampler, h, rows)
    assert 7 not in sampler.sample(h, 1000, exclude=7, rng=0).ids


def test_few_classes_have_the_softmax_itself():
    rows, h = vectors(60), vectors(5, seed=1)
    sampler = ClusterSampler(rows, rng=0)
    for row, q in zip(h, sampler.probs(h), strict=True):
        np.testing.assert_allclose(q, np.array(naive_draws.softmax(row, rows), float), rtol=1e-12)


def test_the_ratio_to_the_softmax_is_within_the_bound():
    rows, h, tau = vectors(3000) * 0.4, vectors(4, seed=1), 1.5
    sampler = ClusterSampler(rows, tau=tau, leaf_size=4, rng=0)
    for row, q in zip(h, sampler.probs(h), strict=True):
        x = tau * rows @ row
        p = np.exp(x - x.max())
        p /= p.sum()
        bound = np.zeros(len(rows))
        above = [np.arange(len(rows))]
        for level in sampler.cells():
            errors = np.empty(len(rows))
            for cell in level:
                second = 0.5 * tau**2 * row**2 @ rows[cell].var(axis=0)
                errors[cell] = max(second, np.ptp(x[cell]) ** 2 / 8.0)
            for cell in above:
                bound[cell] += 2.0 * errors[cell].max()
            above = level
        assert (np.abs(np.log(q / p)) <= bound).all()


def test_a_skewed_problem_has_a_tenth_of_the_bias_of_the_uniform_proposal():
    rng = np.random.default_rng(3)
    centers = rng.standard_normal((20, 8))
    rows = centers[rng.integers(0, 20, 1000)] + 0.2 * rng.standard_normal((1000, 8))
    h = rows[:6]
    logits, labels = h @ rows.T, np.arange(6)
    q = ClusterSampler(rows, rng=0)
    ours = np.abs(exact_bias(logits, labels, q, 50, h=h).bias).sum(axis=1)
    uniform = np.abs(exact_bias(logits, labels, np.full(1000, 1e-3), 50).bias).sum(axis=1)
    assert (ours < 0.1 * uniform).all()


# --- updates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_updates_leave_what_the_cells_would_have_been_summed_up_to(dtype):
    rows, h = vectors(150, dtype=dtype), vectors(1, dtype=dtype, seed=1)[0]
    sampler = ClusterSampler(rows, leaf_size=2, rng=0)
    cells = sampler.cells()
    rng = np.random.default_rng(2)
    for size in (1e15, 1.0, 1.0):
        ids = rng.integers(0, 150, 20)
        new = vectors(20, dtype=dtype, seed=int(ids[0])) * dtype(size)
        sampler.update(ids, new)
        rows[ids] = new  # of a class named twice, the last
    big = np.flatnonzero(np.abs(rows).max(axis=1) > 1e3)
    rows[big] = 1.0
    sampler.update(big, rows[big])
    for level, before in zip(sampler.cells(), cells, strict=True):
        assert all(map(np.array_equal, level, before))
    np.testing.assert_array_equal(sampler.class_embeddings(), rows)
    np.testing.assert_array_equal(sampler.class_embeddings([3, 149]), rows[[3, 149]])
    check(sampler, h, rows)


def test_an_update_of_all_classes_divides_them_anew():
    rows, new, h = vectors(300), vectors(300, seed=5), vectors(2, seed=1)
    sampler = ClusterSampler(rows, rng=3)
    order = np.random.default_rng(0).permutation(300)
    sampler.update(order, new[order])
    anew = ClusterSampler(new, rng=3)
    np.testing.assert_array_equal(sampler.probs(h), anew.probs(h))


def test_as_many_updates_as_classes_divide_them_anew_and_then_twice_as_many():
    rows, h = vectors(300), vectors(2, seed=1)
    sampler = ClusterSampler(rows, rng=3)
    divided = []
    for step in range(24):
        ids = np.arange(step % 3, 300, 3)
        rows[ids] = vectors(100, seed=10 + step)
        sampler.update(ids, rows[ids])
        anew = ClusterSampler(rows, rng=3)
        if np.array_equal(sampler.probs(h), anew.probs(h)):
            divided.append(step + 1)
    assert divided == [3, 6, 12, 24]


def test_staleness_tells_when_to_cluster():
    rows, h = vectors(2000), vectors(2, seed=1)
    sampler = ClusterSampler(rows, rng=0)
    assert sampler.staleness == 1.0
    moved = np.arange(1500)
    new = vectors(1500, seed=7)
    sampler.update(moved, new)
    rows[moved] = new
    assert sampler.staleness > 2.0
    sampler.cluster()
    assert sampler.staleness == 1.0
    np.testing.assert_array_equal(sampler.probs(h), ClusterSampler(rows, rng=0).probs(h))


# --- extremes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e3])
def test_any_size_of_vectors(scale, dtype):
    rows, h = vectors(100, dtype=dtype) * dtype(scale), vectors(3, dtype=dtype, seed=1)
    sampler = ClusterSampler(rows, leaf_size=2, rng=0)
    probs = sampler.probs(h, exclude=[0, 1, 2])
    np.testing.assert_allclose(probs.sum(axis=1), 1.0, rtol=1e-12)
    draw = sampler.sample(h, 50, exclude=[0, 1, 2], rng=0)
    assert (draw.ids != [[0], [1], [2]]).all()
    log_q = sampler.log_prob(h, draw.ids, exclude=[0, 1, 2])
    np.testing.assert_allclose(draw.log_q, log_q, rtol=CLOSE[dtype], atol=CLOSE[dtype])


def test_what_overflows_is_refused_in_words():
    rows = np.ones((5, 2), np.float32)
    with pytest.raises(ValueError, match="`class_embeddings` must be less than 1.8e"):
        ClusterSampler(rows * np.float32(1e20))
    sampler = ClusterSampler(rows)
    with pytest.raises(ValueError, match="`class_embeddings` must be less than"):
        sampler.update([1], rows[:1] * np.float32(1e20))
    for tiny in (1.0, 1e-30):
        few = ClusterSampler(rows.astype(np.float64) * tiny, tau=2.0)
        for size in (1e200, 1.7e308):
            with pytest.raises(ValueError, match="`h` must have logits"):
                few.sample([[size, 1.0]], 3)
    with pytest.raises(ValueError, match="`h` must have logits"):
        sampler.sample(rows[:1] * np.float32(1e30), 3)
    np.testing.assert_array_equal(sampler.class_embeddings(), rows)
    with pytest.raises(ValueError, match="`leaf_size`"):
        ClusterSampler(rows, leaf_size=0)


def test_what_it_says_it_takes_is_what_it_holds():
    rows = vectors(20_000, 64, np.float32)
    assert rows.nbytes < ClusterSampler(rows, rng=0).nbytes < 1.3 * rows.nbytes


def test_class_biases_are_a_coordinate_more():
    rows, biases, h = vectors(12), np.linspace(-300.0, 3.0, 12), vectors(1, seed=1)[0]
    wide = np.column_stack([rows, biases / 2.0])
    sampler = ClusterSampler(wide, tau=2.0, leaf_size=12, rng=0)  # one leaf: the softmax itself
    logits = 2.0 * rows @ h + biases
    wanted = np.exp(logits - logits.max())
    np.testing.assert_allclose(
        sampler.probs(np.append(h, 1.0))[0], wanted / wanted.sum(), rtol=1e-11, atol=1e-300
    )


def test_the_largest_vectors_in_float64():
    """Squares of a whole leaf are beyond float64, their mean is not."""
    C = np.random.default_rng(0).normal(size=(10, 4))
    sampler = ClusterSampler(C, rng=0)
    sampler.update(np.arange(9), np.where(np.arange(9)[:, None] % 2, 6e153, -6e153) * np.ones(4))
    h = np.full((1, 4), 1e-160)
    np.testing.assert_allclose(sampler.probs(h), np.full((1, 10), 0.1), rtol=1e-5)
    assert np.isfinite(sampler.sample(h, 3, rng=0).log_q).all()


def test_a_large_vector_that_has_gone_is_forgotten():
    C = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    sampler, h = ClusterSampler(C, rng=0), 3 * C[:2]
    before = sampler.probs(h)
    sampler.update([5], np.full((1, 4), 1e19, np.float32))
    with pytest.raises(ValueError, match="`h` must have logits"):
        sampler.probs(h)
    sampler.update([5], C[[5]])
    np.testing.assert_array_equal(sampler.probs(h), before)


def test_what_it_is_can_be_read():
    assert repr(ClusterSampler(np.eye(3), tau=2.0)) == "<ClusterSampler: 3 classes, dim 3, tau 2.0>"


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_classes_far_from_their_means_are_set_apart_on_either_side(sign):
    rows = np.zeros((8, 2))
    rows[3], rows[6] = [0.0, 5.0 * sign], [-4.0 * sign, 0.0]
    cells = [np.array([0, 1, 2, 3]), np.array([4, 5, 6, 7])]
    apart = [cell.tolist() for cell in _separate_outliers(rows, cells)]
    assert apart == [[0, 1, 2], [4, 5, 7], [3], [6]]
