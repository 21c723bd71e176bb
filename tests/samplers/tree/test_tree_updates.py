import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samplesoft.samplers.tree import kernel_tree as module
from samplesoft.samplers.tree.kernel_tree import LEAF_WEIGHTS, KernelTree


def squares(rows):
    """Whole numbers stay whole, so that sums of features are exact in any order."""
    return np.concatenate([rows, rows**2, np.ones_like(rows[:, :1])], axis=1)


TRANSFORMS = {"plain": None, "transform": squares}


def whole_numbers(rng, n, dtype=np.float64, dim=3):
    return rng.integers(-3, 4, (n, dim)).astype(dtype)


def as_it_is(kernel_tree, h):
    """All that a tree tells, to be compared to the last bit."""
    state = [kernel_tree.probs(h), kernel_tree.class_embeddings(), kernel_tree.drift]
    return [*state, kernel_tree.num_updates, kernel_tree.nbytes]


def assert_same(before, after):
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


# --- an updated tree is a new tree ------------------------------------------------------------


@st.composite
def histories(draw):
    n = draw(st.sampled_from([1, 2, 5, 9, 37]))
    ids = st.lists(st.integers(0, n - 1), min_size=1, max_size=12)
    every = st.just(list(range(n)))
    updates = draw(st.lists(ids | every, min_size=1, max_size=5))
    return n, draw(st.sampled_from([1, 3, 64])), updates, draw(st.integers(0, 2**32 - 1))


@pytest.mark.thorough(but=4)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@settings(max_examples=25)
@given(history=histories())
def test_updates_give_the_tree_that_would_be_built(leaf, name, dtype, history):
    n, leaf_size, updates, seed = history
    rng = np.random.default_rng(seed)
    rows, h = whole_numbers(rng, n, dtype), whole_numbers(rng, 2, dtype)
    shape = {"leaf_size": leaf_size, "leaf": leaf, "scale": 0.3}
    kernel_tree = KernelTree(rows, TRANSFORMS[name], **shape)
    for ids in updates:
        new = whole_numbers(rng, len(ids), dtype)
        kernel_tree.update(ids, new)
        for c, row in zip(ids, new, strict=True):  # of a class named twice, the last counts
            rows[c] = row
    built = KernelTree(rows, TRANSFORMS[name], **shape)
    np.testing.assert_array_equal(kernel_tree.class_embeddings(), rows)
    np.testing.assert_array_equal(kernel_tree.class_embeddings(updates[0]), rows[updates[0]])
    np.testing.assert_array_equal(kernel_tree.probs(h), built.probs(h))
    assert kernel_tree.drift == 0.0
    ids = built.sample(h, 20, rng=0).ids
    np.testing.assert_array_equal(kernel_tree.sample(h, 20, rng=0).ids, ids)


@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
def test_updates_of_real_features_stay_close(leaf):
    rng = np.random.default_rng(0)
    rows, h = rng.random((130, 4)), rng.random((3, 4))
    kernel_tree = KernelTree(rows, np.sqrt, leaf_size=3, leaf=leaf)
    for _ in range(50):
        ids = rng.choice(130, 20, replace=False)
        rows[ids] = rng.random((20, 4))
        kernel_tree.update(ids, rows[ids])
    built = KernelTree(rows, np.sqrt, leaf_size=3, leaf=leaf)
    np.testing.assert_allclose(kernel_tree.probs(h), built.probs(h), rtol=1e-12)


def test_an_update_without_a_change_changes_nothing():
    rng = np.random.default_rng(1)
    rows, h = rng.standard_normal((37, 3)), rng.standard_normal((2, 3))
    kernel_tree = KernelTree(rows, leaf_size=3)
    before = kernel_tree.probs(h)
    kernel_tree.update([5, 36], rows[[5, 36]])
    np.testing.assert_array_equal(kernel_tree.probs(h), before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_update_of_no_classes_changes_nothing(dtype):
    rng = np.random.default_rng(1)
    kernel_tree, h = KernelTree(whole_numbers(rng, 9, dtype)), whole_numbers(rng, 2)
    before = as_it_is(kernel_tree, h)
    kernel_tree.update(np.empty(0, np.int64), np.empty((0, 3), dtype))
    kernel_tree.update([], np.empty((0, 3)))
    assert_same(before, as_it_is(kernel_tree, h))


def test_the_tree_shares_no_memory_with_its_user():
    rows = np.ones((9, 3), np.float32)
    kernel_tree, h = KernelTree(rows, leaf_size=2), np.ones((1, 3))
    before = as_it_is(kernel_tree, h)
    rows[:] = 7.0
    kernel_tree.class_embeddings()[:] = 7.0
    kernel_tree.class_embeddings([2, 3])[:] = 7.0
    assert_same(before, as_it_is(kernel_tree, h))
    rows = np.full((2, 3), 5.0, np.float32)
    kernel_tree.update([0, 1], rows)
    before = as_it_is(kernel_tree, h)
    rows[:] = 7.0
    assert_same(before, as_it_is(kernel_tree, h))
    kernel_tree.rebuild()
    np.testing.assert_array_equal(kernel_tree.probs(h), before[0])


def test_class_embeddings_come_in_the_order_asked_for():
    rows = np.arange(26.0).reshape(13, 2)
    kernel_tree = KernelTree(rows, leaf_size=4)
    ids = [12, 0, 0, 7]
    np.testing.assert_array_equal(kernel_tree.class_embeddings(ids), rows[ids])
    np.testing.assert_array_equal(kernel_tree.class_embeddings(), rows)


# --- updates that fail ------------------------------------------------------------------------

FAILURES = {
    "NaN": ([0, 1], np.array([[1.0, 2.0, 3.0], [np.nan, 0.0, 0.0]]), ValueError),
    "infinity": ([0, 1], np.array([[1.0, 2.0, 3.0], [0.0, -np.inf, 0.0]]), ValueError),
    "columns": ([0, 1], np.ones((2, 4)), ValueError),
    "rows": ([0, 1], np.ones((3, 3)), ValueError),
    "one row for two": ([0, 1], np.ones((1, 3)), ValueError),
    "dimensions": ([0, 1], np.ones((2, 3, 1)), ValueError),
    "too large": ([0, 37], np.ones((2, 3)), ValueError),
    "negative": ([-1, 0], np.ones((2, 3)), ValueError),
    "fraction": ([0.0, 1.0], np.ones((2, 3)), TypeError),
    "mask": ([True, False], np.ones((2, 3)), TypeError),
    "text": ([0, 1], [["a", "b", "c"], ["d", "e", "f"]], TypeError),
    "table of ids": ([[0, 1]], np.ones((2, 3)), ValueError),
    "too large for float32": ([0], np.full((1, 3), 1e60), ValueError),
}


@pytest.mark.parametrize("leaf_size", [1, 4])
@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_update_changes_nothing(name, leaf_size):
    rng = np.random.default_rng(2)
    h = whole_numbers(rng, 3)
    kernel_tree = KernelTree(whole_numbers(rng, 37, np.float32), leaf_size=leaf_size)
    kernel_tree.update([3, 4], np.ones((2, 3)))
    before = as_it_is(kernel_tree, h)
    ids, rows, error = FAILURES[name]
    with pytest.raises(error, match="ids|class_embeddings"):
        kernel_tree.update(ids, rows)
    assert_same(before, as_it_is(kernel_tree, h))


def test_features_that_are_infinite_change_nothing(monkeypatch):
    # so that chunks before the bad one have been through
    monkeypatch.setattr(module, "_CHUNK_VALUES", 8)
    rng = np.random.default_rng(2)
    h = np.ones((1, 3))
    for bad in (np.inf, np.nan):

        def transform(rows, bad=bad):
            return np.where(rows < 3.0, rows, bad)

        kernel_tree = KernelTree(rng.random((37, 3)), transform, leaf_size=2)
        before = as_it_is(kernel_tree, h)
        rows = np.ones((37, 3))
        rows[30, 1] = 4.0
        with pytest.raises(ValueError, match="finite"):
            kernel_tree.update(np.arange(37), rows)
        assert_same(before, as_it_is(kernel_tree, h))


def test_a_transform_that_fails_changes_nothing(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_VALUES", 8)

    def transform(rows):
        if rows.max() > 3.0:
            raise RuntimeError("out of range")
        return rows

    h = np.ones((1, 3))
    kernel_tree = KernelTree(np.random.default_rng(2).random((37, 3)), transform, leaf_size=2)
    before = as_it_is(kernel_tree, h)
    rows = np.ones((37, 3))
    rows[36] = 4.0
    with pytest.raises(RuntimeError, match="out of range"):
        kernel_tree.update(np.arange(37), rows)
    assert_same(before, as_it_is(kernel_tree, h))


def test_changes_and_sums_that_leave_float32_are_refused():
    h = np.ones((1, 1))
    start = np.array([[-2e38], [0.0], [0.0], [0.0]], np.float32)
    for ids, rows in (([0], [[3e38]]), ([1, 2, 3], [[-2e38], [-2e38], [-2e38]])):
        kernel_tree = KernelTree(start, leaf_size=1)
        before = as_it_is(kernel_tree, h)
        with pytest.raises(ValueError, match="finite"):
            kernel_tree.update(ids, rows)
        assert_same(before, as_it_is(kernel_tree, h))


# --- drift ------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("signed", [False, True])
def test_a_million_updates_drift_little_and_say_so(signed):
    rng = np.random.default_rng(3)
    n, dim, size = 500, 4, 200

    def new(num):
        return (rng.random((num, dim)) - 0.5 * signed).astype(np.float32)

    rows = new(n)
    h = rng.random((3, dim)).astype(np.float32)
    kernel_tree = KernelTree(rows, leaf_size=3, floor=0.5)
    batches = 5000
    pool = [new(size) for _ in range(20)]
    for k in range(batches):
        order = rng.permutation(n)[:size]
        rows[order] = pool[k % 20]
        kernel_tree.update(order, pool[k % 20])
    assert kernel_tree.num_updates == batches * size == 10**6
    exact = rows.astype(np.float64).sum(axis=0)
    scale = np.linalg.norm(rows, axis=0).sum() * np.sqrt(n) / np.linalg.norm(exact)
    assert 0.0 < kernel_tree.drift < 1e-5 * scale

    built = KernelTree(rows, leaf_size=3, floor=0.5)
    drifted = abs(kernel_tree.probs(h) / built.probs(h) - 1).max()
    assert 0.0 < drifted < 1e-3
    assert kernel_tree.probs(h).sum(axis=1) == pytest.approx(np.ones(3), abs=1e-12)
    kernel_tree.rebuild()
    assert kernel_tree.num_updates == 0
    assert kernel_tree.drift < 1e-6 * scale
    np.testing.assert_array_equal(kernel_tree.probs(h), built.probs(h))


LARGEST = {np.float32: 1e30, np.float64: 1e300}


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("ratio", [1e-2, 1e-300])  # of the sizes of one step, and of the next
@pytest.mark.parametrize("transform", [None, np.abs])
def test_a_large_passing_vector_leaves_nothing_behind(transform, ratio, dtype):
    rng = np.random.default_rng(6)
    rows, h = rng.standard_normal((37, 3)).astype(dtype), rng.standard_normal((4, 3)).astype(dtype)
    kernel_tree = KernelTree(rows, transform, leaf_size=2)
    factor = LARGEST[dtype]
    while factor > 1.0:
        kernel_tree.update([5], factor * rows[[5]])
        factor = max(1.0, factor * ratio)
    kernel_tree.update([5], rows[[5]])
    np.testing.assert_array_equal(kernel_tree.class_embeddings(), rows)
    built = KernelTree(rows, transform, leaf_size=2)
    tolerance = 4 * np.finfo(dtype).eps ** 0.5  # half the digits are left before it is built anew
    np.testing.assert_allclose(kernel_tree.probs(h), built.probs(h), rtol=0, atol=tolerance)
    assert kernel_tree.drift < tolerance


def test_a_large_vector_that_stays_costs_no_rebuilding():
    rng = np.random.default_rng(6)
    kernel_tree = KernelTree(rng.random((37, 3)).astype(np.float32), leaf_size=2)
    kernel_tree.update([5], [[1e30, 0.0, 0.0]])
    for c in range(6, 16):
        kernel_tree.update([c], rng.random((1, 3)))
    assert kernel_tree.num_updates == 11
    kernel_tree.update([5], [[0.0, 0.0, 0.0]])
    assert kernel_tree.num_updates == 0


def test_features_that_all_vanish_leave_sums_of_zero():
    kernel_tree = KernelTree(np.full((9, 1), 0.1, np.float32), leaf_size=2)
    for c in range(9):
        kernel_tree.update([c], [[0.0]])
    np.testing.assert_array_equal(kernel_tree._sums.nodes, 0.0)


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("num", [1, 7])  # classes in an update
@pytest.mark.parametrize(("n", "leaf_size"), [(5, 2), (37, 3), (64, 64)])
def test_every_leaf_is_summed_anew_in_16_updates_of_each_class(n, leaf_size, num, dtype):
    rng = np.random.default_rng(n)
    rows = whole_numbers(rng, n, dtype)
    kernel_tree = KernelTree(rows, squares, leaf_size=leaf_size)
    built, nodes = (kernel_tree._sums.nodes.copy() for _ in range(2))
    nodes += rng.integers(-2, 3, nodes.shape)  # errors in every node
    kernel_tree._sums.nodes = nodes
    num = min(num, (n - 1) // 2)  # more would build all sums anew
    while kernel_tree.num_updates < 16 * n + 16 * leaf_size:
        ids = rng.choice(n, num, replace=False)
        kernel_tree.update(ids, rows[ids])
    np.testing.assert_allclose(nodes, built, rtol=0, atol=64 * np.finfo(dtype).eps)


def test_drift_is_measured_against_the_exact_sum():
    rng = np.random.default_rng(5)
    kernel_tree = KernelTree(np.ones((20, 1), np.float32), leaf_size=2)
    for _ in range(200):  # every difference of two such vectors is rounded in float32
        ids = rng.permutation(20)[:8]
        kernel_tree.update(ids, 10.0 ** rng.uniform(-6, 6, (8, 1)))
        kernel_tree.update(ids, rng.random((8, 1)))
    exact = float(kernel_tree.class_embeddings().sum(dtype=np.float64))
    moved = abs(float(kernel_tree._sums.nodes[0, 0]) - exact) / exact
    assert kernel_tree.drift == pytest.approx(moved, rel=0.01)


# --- chunks -----------------------------------------------------------------------------------


class Recorder:
    """A transform that notes the largest number of rows it is asked for, and every row it sees."""

    def __init__(self):
        self.largest, self.seen = 0, set()

    def __call__(self, rows):
        self.largest = max(self.largest, len(rows))
        self.seen.update(map(tuple, rows.tolist()))
        return squares(rows)


def work(leaf):
    """Yield a tree's recorder with results of each operation, by name."""
    rng = np.random.default_rng(4)
    rows, h = whole_numbers(rng, 130, dim=2), whole_numbers(rng, 2, dim=2)
    recorder = Recorder()
    kernel_tree = KernelTree(rows, recorder, leaf_size=3, leaf=leaf)
    yield "build", recorder, None
    kernel_tree.update(np.arange(130), rows[::-1])
    yield "update", recorder, kernel_tree.class_embeddings()
    kernel_tree.rebuild()
    yield "rebuild", recorder, None
    for exclude in (None, 77):
        yield "probs", recorder, kernel_tree.probs(h, exclude=exclude)
        drawn = kernel_tree.sample(h, 300, exclude=exclude, rng=0)
        yield "sample", recorder, np.stack([drawn.ids, drawn.log_q])
        yield "log_prob", recorder, kernel_tree.log_prob(h, np.arange(130), exclude=exclude)


@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
def test_the_transform_is_asked_for_few_rows_at_a_time(monkeypatch, leaf):
    monkeypatch.setattr(module, "_CHUNK_VALUES", 60)  # 12 rows of 5 features
    largest = {}
    for name, recorder, _ in work(leaf):
        largest[name] = max(largest.get(name, 0), recorder.largest)
        recorder.largest = 0
    assert max(largest.values()) == largest["build"] == 12


@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@pytest.mark.parametrize("block", [1, 60, 500])
def test_results_do_not_depend_on_the_chunks(monkeypatch, block, leaf):
    whole = [result for _, _, result in work(leaf)]
    monkeypatch.setattr(module, "_CHUNK_VALUES", block)
    parts = [result for _, _, result in work(leaf)]
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_transform_sees_only_vectors_that_were_given():
    rng = np.random.default_rng(6)
    rows, h = 1 + rng.random((7, 2)), 1 + rng.random((3, 2))
    recorder = Recorder()
    kernel_tree = KernelTree(rows, recorder, leaf_size=3)
    kernel_tree.sample(h, 10, exclude=6, rng=0)
    kernel_tree.log_prob(h, np.arange(7))
    kernel_tree.probs(h)
    kernel_tree.update([6], rows[:1])
    assert recorder.seen == set(map(tuple, np.concatenate([rows, h]).tolist()))


def test_an_update_of_most_classes_builds_the_sums_anew():
    rng = np.random.default_rng(4)
    rows, new = rng.random((2, 21, 3))
    kernel_tree = KernelTree(rows, leaf_size=2)
    kernel_tree.update([5], new[[5]])
    assert kernel_tree.num_updates == 1
    kernel_tree.update(rng.permutation(21)[:0], new[:0])
    order = rng.permutation(21)
    kernel_tree.update(order, new[order])
    assert kernel_tree.num_updates == 0 and kernel_tree.drift == 0.0
    built = KernelTree(new, leaf_size=2)
    h = rng.random((4, 3))
    np.testing.assert_array_equal(kernel_tree.probs(h), built.probs(h))
    kernel_tree.update([0], rows[[0]])
    kernel_tree.update(order[:15], new[order[:15]])
    mixed = new.copy()
    if 0 not in order[:15]:
        mixed[0] = rows[0]
    np.testing.assert_array_equal(kernel_tree.probs(h), KernelTree(mixed, leaf_size=2).probs(h))
