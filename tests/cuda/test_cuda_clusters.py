"""The cluster sampler on a device against that on the processor, and its oracle."""

import numpy as np
import pytest
from oracles import naive_draws
from oracles.naive_samplers import chi_square

from samplesoft.samplers import ClusterSampler
from samplesoft.samplers.clusters import sampler as module

pytestmark = pytest.mark.gpu
CLOSE = {np.float32: 1e-5, np.float64: 1e-12}
ONE_CLASS = [[0]]
LEAVES = [[0, 1, 7]]
TWO_LEVELS = [[0, 4, 5], [0, 3, 4, 5, 7]]
THREE_LEVELS = [[0, 5, 6], [0, 3, 5, 6, 9], [0, 2, 3, 5, 6, 7, 9, 10]]  # class 5 is alone in all
CASES = [(1, ONE_CLASS), (12, LEAVES), (8, TWO_LEVELS), (12, THREE_LEVELS)]
cases = pytest.mark.parametrize(
    ("n", "starts"), CASES, ids=["one class", "leaves", "two levels", "three levels"]
)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def vectors(n, dtype=np.float64, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 3)).astype(dtype)


@pytest.fixture
def divided(monkeypatch):
    """Return a function that makes both samplers, whose cells begin at given places."""

    def make(rows, starts, **options):
        order = np.random.default_rng(1).permutation(len(rows))
        cells = order, list(map(np.array, starts))
        monkeypatch.setattr(module, "make_partition", lambda *_: cells)
        return [ClusterSampler(rows, device=device, **options) for device in ("cpu", "cuda")]

    return make


def alone(sampler):
    """Return a class that is the only one in its leaf."""
    return int(next(leaf[0] for leaf in sampler.cells()[-1] if len(leaf) == 1))


def check(there, h, rows, excluded):
    """Compare probabilities with the oracle."""
    levels = [[list(map(int, cell)) for cell in level] for level in there.cells()]
    found = there.probs(h, exclude=excluded).copy_to_host()
    each = [None] * len(h) if excluded is None else excluded
    close = CLOSE[rows.dtype.type]
    for q, context, label in zip(found, h, each, strict=True):
        wanted = naive_draws.clusters(context, rows, levels, there.tau, label)
        np.testing.assert_allclose(q, np.array(wanted, float), rtol=close, atol=1e-300)


@dtypes
@cases
def test_draws_are_those_of_the_processor_and_q_that_of_the_cells(divided, n, starts, dtype):
    rows, h = vectors(n, dtype), vectors(2, dtype, seed=1)
    here, there = divided(rows, starts, tau=1.5)
    for exclude in [None] if n == 1 else [None, [alone(here), n - 1]]:
        a, b = (s.sample(h, 5, exclude=exclude, rng=0) for s in (here, there))
        np.testing.assert_array_equal(b.ids.copy_to_host(), a.ids)
        np.testing.assert_allclose(b.log_q.copy_to_host(), a.log_q, rtol=0, atol=CLOSE[dtype])
        again = there.log_prob(h, b.ids, exclude=exclude)
        np.testing.assert_array_equal(again.copy_to_host(), b.log_q.copy_to_host())
        check(there, h, rows, exclude)
        if exclude is not None:
            own = there.log_prob(h, np.array(exclude)[:, None], exclude=exclude)
            assert (own.copy_to_host() == -np.inf).all()


def test_a_label_with_nearly_all_mass_is_excluded_without_cancellation(divided):
    rows = vectors(12) * 0.3
    rows[7] = [30.0, 0.0, 0.0]
    h = np.array([[1.0, 0.1, -0.1]])
    _, there = divided(rows, THREE_LEVELS)
    assert 1.0 - there.probs(h).copy_to_host()[0, 7] < 1e-9
    check(there, h, rows, [7])
    assert 7 not in there.sample(h, 50, exclude=7, rng=0).ids.copy_to_host()


def test_classes_are_divided_as_on_the_processor():
    rows = vectors(40)
    here, there = (ClusterSampler(rows, leaf_size=1, rng=3, device=d) for d in ("cpu", "cuda"))
    for wanted, found in zip(here.cells(), there.cells(), strict=True):
        assert all(map(np.array_equal, wanted, found))
    assert here.nbytes == there.nbytes
    np.testing.assert_array_equal(there.class_embeddings().copy_to_host(), rows)
    np.testing.assert_array_equal(there.class_embeddings([39, 0]).copy_to_host(), rows[[39, 0]])


@dtypes
@cases
def test_updates_leave_the_cells_of_the_processor(divided, n, starts, dtype):
    rows, h = vectors(n, dtype), vectors(2, dtype, seed=1)
    here, there = divided(rows, starts)
    rng = np.random.default_rng(n)
    for num, size in ((1, 1e4), (n // 2, 1.0), (n // 2, 1.0)):
        ids = rng.integers(0, n, num)  # of a class named twice, the last
        new = vectors(num, dtype, seed=num) * dtype(size)
        for sampler in (here, there):
            sampler.update(ids, new)
        cells = there._tree.moments.copy_to_host()
        np.testing.assert_allclose(cells, here._tree.moments, rtol=10 * CLOSE[dtype])
        assert there._max_entry == here._max_entry
        np.testing.assert_allclose(there.staleness, here.staleness, rtol=10 * CLOSE[dtype])
    rows = here.class_embeddings()
    np.testing.assert_array_equal(there.class_embeddings().copy_to_host(), rows)
    there.update([0], vectors(1, dtype))
    rows[0] = vectors(1, dtype)
    check(there, h, rows, None)


def test_an_update_of_all_classes_divides_them_anew(divided):
    rows, new = vectors(12), vectors(12, seed=5)
    here, there = divided(rows, LEAVES)
    order = np.random.default_rng(0).permutation(12)
    divided(rows, THREE_LEVELS)  # the cells that are made from now on
    for sampler in (here, there):
        assert len(sampler.cells()) == 1
        sampler.update(order, new[order])
        assert len(sampler.cells()) == 3
        assert sampler.staleness == 1.0
    check(there, vectors(2, seed=1), new, None)
    there.update([3], rows[:1])
    assert there.staleness != 1.0
    there.cluster()
    assert there.staleness == 1.0


def test_what_overflows_is_refused_as_on_the_processor_and_changes_nothing(divided):
    rows, h = vectors(12, np.float32), vectors(2, np.float32, seed=1)
    for size in (1e20, 3e38):
        far, messages = np.array([h[0], np.full(3, size)], np.float32), []
        for sampler in divided(rows, THREE_LEVELS):
            with pytest.raises(ValueError, match="`class_embeddings` must be less than") as first:
                sampler.update([1, 2], np.full((2, 3), size, np.float32))
            with pytest.raises(ValueError, match="`h` must have logits .* for row 1") as second:
                sampler.sample(far, 3)
            messages.append([str(first.value), str(second.value)])
        assert messages[0] == messages[1]
        np.testing.assert_array_equal(sampler.class_embeddings().copy_to_host(), rows)
        check(sampler, h, rows, None)


def test_cells_that_do_not_fit_are_refused_before_they_are_made(monkeypatch):
    from samplesoft._device import cuda

    monkeypatch.setattr(cuda, "available_bytes", lambda: 100)
    monkeypatch.setattr(module, "make_partition", None)
    with pytest.raises(MemoryError, match="cells of 12 classes need .*, and 100 B are available"):
        ClusterSampler(vectors(12), device="cuda")


def test_a_batch_is_worked_on_in_parts_that_fit(divided, monkeypatch):
    rows, h, exclude = vectors(8), vectors(3, seed=1), [0, 1, 2]
    _, there = divided(rows, TWO_LEVELS)
    whole = there.sample(h, 3, exclude=exclude, rng=0)
    probs = there.probs(h, exclude=exclude)
    from samplesoft._device import cuda

    monkeypatch.setattr(cuda, "_CHUNK_VALUES", 96)  # those of two examples, or one
    parts = there.sample(h, 3, exclude=exclude, rng=0)
    np.testing.assert_array_equal(parts.ids.copy_to_host(), whole.ids.copy_to_host())
    np.testing.assert_array_equal(parts.log_q.copy_to_host(), whole.log_q.copy_to_host())
    log_q = there.log_prob(h, parts.ids, exclude=exclude)
    np.testing.assert_array_equal(log_q.copy_to_host(), whole.log_q.copy_to_host())
    again = there.probs(h, exclude=exclude)
    np.testing.assert_array_equal(again.copy_to_host(), probs.copy_to_host())


def test_one_set_for_the_whole_batch(divided):
    rows, h = vectors(8), vectors(3, seed=1)
    a, b = (s.sample(h, 6, shared=True, rng=4) for s in divided(rows, TWO_LEVELS))
    np.testing.assert_array_equal(b.ids.copy_to_host(), a.ids)
    np.testing.assert_allclose(b.log_q.copy_to_host(), a.log_q, rtol=1e-12)


@pytest.mark.slow
def test_draws_follow_the_probabilities(divided):
    rows, h = vectors(8), vectors(1, seed=1)
    _, there = divided(rows, TWO_LEVELS)
    ids = there.sample(h, 250, exclude=3, rng=3).ids.copy_to_host()
    q = there.probs(h, exclude=3).copy_to_host()[0]
    counts = np.bincount(ids[0], minlength=8)
    assert chi_square(counts, q) > 1e-3
    assert chi_square(counts, np.roll(q, 1)) < 1e-3  # the test can fail
