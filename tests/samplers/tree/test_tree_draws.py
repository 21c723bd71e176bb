import threading

import numpy as np
import pytest
from oracles.tree_cases import (
    DTYPES,
    as_floats,
    exactly,
    lifted,
    probabilities,
    real_numbers,
    whole_numbers,
)
from scipy import stats

from samplesoft._random import stream_key, uniform_block
from samplesoft.samplers.tree import kernel_tree as module
from samplesoft.samplers.tree import plain
from samplesoft.samplers.tree.kernel_tree import LEAF_WEIGHTS, KernelTree

STATISTICAL_TESTS = 20


# --- draws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [None, lifted], ids=["plain", "transform"])
@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@pytest.mark.parametrize("leaf_size", [1, 3, 64])
def test_log_q_is_the_log_probability_of_the_draw(leaf_size, leaf, transform):
    for dtype in DTYPES:
        rows, h = real_numbers(130, dtype, batch=3)
        kernel_tree = KernelTree(rows, transform, leaf_size=leaf_size, leaf=leaf)
        for exclude in (None, [5, 0, 129]):
            drawn = kernel_tree.sample(h, 200, exclude=exclude, rng=1)
            assert drawn.ids.dtype == np.int64
            assert drawn.log_q.dtype == np.float64
            log_q = kernel_tree.log_prob(h, drawn.ids, exclude=exclude)
            np.testing.assert_allclose(drawn.log_q, log_q, rtol=1e-12, atol=1e-13)
            q = kernel_tree.probs(h, exclude=exclude)
            np.testing.assert_allclose(
                np.exp(log_q), np.take_along_axis(q, drawn.ids, axis=1), rtol=1e-12
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 5, 17, 64, 257])
def test_log_q_is_the_same_sum_in_any_order_of_work(dim, dtype):
    rows, h = real_numbers(130, dtype, batch=5, dim=dim)
    for leaf_size in (1, 3):
        kernel_tree = KernelTree(rows, leaf_size=leaf_size)
        for m in (1, 2, 33, 400):
            drawn = kernel_tree.sample(h, m, exclude=np.arange(5), rng=m)
            log_q = kernel_tree.log_prob(h, drawn.ids, exclude=np.arange(5))
            np.testing.assert_allclose(drawn.log_q, log_q, rtol=1e-12, atol=1e-13)


def test_log_prob_of_the_excluded_class_is_minus_infinity():
    rows, h = real_numbers(37)
    log_q = KernelTree(rows, leaf_size=3).log_prob(h, np.arange(37), exclude=[3, 36])
    assert (log_q[[0, 1], [3, 36]] == -np.inf).all()
    assert np.isfinite(log_q).sum() == 72


@pytest.mark.thorough(but=6)
@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@pytest.mark.parametrize("excluded", [False, True])
@pytest.mark.parametrize("leaf_size", [1, 3, 64, 130])
def test_draws_are_those_of_independent_descents(leaf_size, excluded, leaf):
    rows, h = real_numbers(130, batch=3)
    kernel_tree = KernelTree(rows, leaf_size=leaf_size, leaf=leaf, floor=1e-3)
    exclude = [7, 0, 129] if excluded else None
    ids = kernel_tree.sample(h, 150, exclude=exclude, rng=5).ids
    q = kernel_tree.probs(h, exclude=exclude)
    uniforms = uniform_block(stream_key(5), 3, 150)
    one_by_one = [
        [plain.draw(u, exactly(q[b]), leaf_size) for u in exactly(uniforms[b])] for b in range(3)
    ]
    np.testing.assert_array_equal(ids, one_by_one)


@pytest.mark.parametrize("batch", [1, 2, 9])
@pytest.mark.parametrize("n", [2, 5, 130, 1000])
def test_draws_are_those_of_the_inverse_distribution_function(n, batch):
    rows, h = real_numbers(n, batch=batch)
    labels = np.arange(batch) % n
    for leaf_size in (1, 3, 64):
        kernel_tree = KernelTree(rows, leaf_size=leaf_size)
        for m in (1, 2, 3, 7, 64, 2000):
            uniforms = uniform_block(stream_key(m), batch, m)
            for exclude in (None, labels):
                ids = kernel_tree.sample(h, m, exclude=exclude, rng=m).ids
                for b, q in enumerate(kernel_tree.probs(h, exclude=exclude)):
                    wanted = np.searchsorted(np.cumsum(q), uniforms[b], side="right")
                    np.testing.assert_array_equal(ids[b], wanted)


@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@pytest.mark.parametrize("leaf_size", [1, 3, 64])
def test_the_ends_of_the_uniforms_reach_no_excluded_class(monkeypatch, leaf_size, leaf):
    ends = np.array([0.0, 2.0**-53, 0.5, 1 - 2.0**-53])
    monkeypatch.setattr(module, "uniform_block", lambda key, batch, m: np.tile(ends, (batch, 1)))
    for n in (2, 3, 37, 65):
        rows, h = whole_numbers(n, batch=1)
        kernel_tree = KernelTree(rows, leaf_size=leaf_size, leaf=leaf)
        for label in (0, 1, n - 1):
            drawn = kernel_tree.sample(h, 4, exclude=label, rng=0)
            q = kernel_tree.probs(h, exclude=label)[0]
            assert label not in drawn.ids
            assert (q[drawn.ids] > 0.0).all()
            live = np.flatnonzero(q > 1e-15)
            assert (live[0] >= drawn.ids[0, 0]) & (live[-1] <= drawn.ids[0, 3])


@pytest.mark.parametrize("transform", [False, True], ids=["plain", "transform"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_draws_are_the_same_at_any_number_of_threads(threads, monkeypatch, dtype, transform):
    rows, h = real_numbers(300, dtype, batch=257, dim=4 if transform else 40)
    exclude = np.arange(257)
    seen, names, draw_in_leaves = [], set(), module.draw_in_leaves

    def spy(*arguments):
        names.add(threading.current_thread().name.split("_")[0])
        draw_in_leaves(*arguments)

    monkeypatch.setattr(module, "draw_in_leaves", spy)
    monkeypatch.setattr(module, "_MIN_THREADED_COST", 0)
    monkeypatch.setattr(module, "_CHUNK_VALUES", 1 << 16)
    for count in (1, 2, 5):
        threads(count)
        kernel_tree = KernelTree(rows, lifted if transform else None, leaf_size=3)
        kernel_tree.update([2, 299], rows[:2])
        drawn = kernel_tree.sample(h, 100, exclude=exclude, rng=2)
        log_q = kernel_tree.log_prob(h, drawn.ids, exclude=exclude)
        seen.append((drawn.ids, drawn.log_q, log_q, kernel_tree.probs(h)))
    assert "samplesoft" in names  # the threads were used
    for others in seen[1:]:
        for one, other in zip(seen[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_draw_depends_on_its_row_alone():
    rows, h = whole_numbers(65, batch=6)
    kernel_tree = KernelTree(rows, leaf_size=3)
    ids = kernel_tree.sample(h, 40, rng=3).ids
    np.testing.assert_array_equal(kernel_tree.sample(h[:4], 40, rng=3).ids, ids[:4])
    np.testing.assert_array_equal(kernel_tree.sample(h, 15, rng=3).ids, ids[:, :15])
    other = h.copy()
    other[[0, 1, 3]] = 1.0
    np.testing.assert_array_equal(kernel_tree.sample(other, 40, rng=3).ids[2], ids[2])
    same = kernel_tree.sample(np.repeat(h[:1], 2, axis=0), 40, rng=3).ids
    assert (same[0] != same[1]).any()


def chi_square(ids, q):
    """The p-value of the counts of `ids` under `q` (n,), rare classes put together."""
    counts = np.bincount(ids.ravel(), minlength=len(q))
    assert not counts[q == 0.0].any()
    expected = q * ids.size
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 5:
        counts[-2] += counts[-1]
        expected[-2] += expected[-1]
        counts, expected = counts[:-1], expected[:-1]
    statistic = ((counts - expected) ** 2 / expected).sum()
    return stats.chi2.sf(statistic, len(counts) - 1)


@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@pytest.mark.parametrize("exclude", [None, 11])
@pytest.mark.parametrize("leaf_size", [1, 3, 64])
def test_counts_follow_the_probabilities(leaf_size, exclude, leaf):
    rows, h = whole_numbers(37)
    settings = {"leaf_size": leaf_size, "scale": 0.2, "floor": 0.1}
    ids = KernelTree(rows, leaf=leaf, **settings).sample(h[0], 20_000, exclude=exclude, rng=11).ids
    q = probabilities(h[0], rows, h[0], rows, kind=leaf, exclude=exclude, **settings)
    assert chi_square(ids, as_floats(q)) > 1e-3 / STATISTICAL_TESTS


@pytest.mark.parametrize("leaf_size", [1, 3])
def test_counts_tell_wrong_trees_apart(leaf_size):
    rows, h = whole_numbers(37)
    settings = {"leaf_size": leaf_size, "floor": 0.1}
    kernel_tree = KernelTree(rows, **settings)
    label = int(kernel_tree.probs(h[0])[0].argmax())
    ids = kernel_tree.sample(h[0], 20_000, exclude=label, rng=12).ids
    assert chi_square(ids, kernel_tree.probs(h[0], exclude=label)[0]) > 1e-3 / STATISTICAL_TESTS

    not_excluded = kernel_tree.probs(h[0])[0]
    order = np.random.default_rng(0).permutation(np.delete(np.arange(37), label))
    order = np.insert(order, label, label)
    shuffled = np.empty(37)
    shuffled[order] = KernelTree(rows[order], **settings).probs(h[0], exclude=label)[0]
    subtracted = KernelTree(np.where(np.arange(37) == label, 0.0, rows.T).T, **settings)
    minus_label = subtracted.probs(h[0])[0]
    minus_label[label] = 0.0
    for wrong in (not_excluded, shuffled, minus_label / minus_label.sum()):
        assert chi_square(ids, wrong) < 1e-9


def test_one_set_for_the_batch_comes_from_the_mean():
    rows, h = whole_numbers(37, batch=4)
    kernel_tree = KernelTree(rows, leaf_size=3, floor=0.1)
    drawn = kernel_tree.sample(h, 20_000, shared=True, rng=1)
    mean = kernel_tree.probs(h).mean(axis=0)
    np.testing.assert_allclose(drawn.log_q, np.log(mean[drawn.ids]), rtol=1e-12)
    assert chi_square(drawn.ids, mean) > 1e-3 / STATISTICAL_TESTS
