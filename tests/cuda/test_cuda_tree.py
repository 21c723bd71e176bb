"""The kernel tree on a device: bits of the sums, draws, and what it reports of them."""

import numpy as np
import pytest
from oracles.tree_cases import lifted, probabilities, real_numbers, whole_numbers

from samplesoft.samplers.tree.kernel_tree import LEAF_WEIGHTS, KernelTree

pytestmark = pytest.mark.gpu
CASES = [(1, 1), (5, 1), (7, 2), (13, 4), (6, 8)]  # classes, and how many share a leaf


def lifted_there(rows):
    from samplesoft._cuda import to_device

    return to_device(lifted(rows.copy_to_host()))


def trees(rows, **options):
    there = dict(options)
    if "transform" in options:
        there["transform"] = lifted_there
    return KernelTree(rows, **options), KernelTree(rows, **there, device="cuda")


def exclusions(n):
    return [None] if n == 1 else [None, np.array([0, n - 1])]


@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "leaf_size"), CASES)
def test_the_same_masses_and_uniforms_draw_the_same_classes(n, leaf_size, dtype, leaf):
    rows, h = whole_numbers(n, dtype, dim=3)  # inner products are exact
    here, there = trees(rows, leaf_size=leaf_size, leaf=leaf)
    np.testing.assert_array_equal(sums(there), here._sums.nodes)
    for exclude in exclusions(n):
        a, b = (tree.sample(h, 5, exclude=exclude, rng=n) for tree in (here, there))
        np.testing.assert_array_equal(b.ids.copy_to_host(), a.ids)
        np.testing.assert_allclose(b.log_q.copy_to_host(), a.log_q, rtol=1e-12, atol=1e-13)
        again = there.log_prob(h, b.ids, exclude=exclude)
        np.testing.assert_array_equal(again.copy_to_host(), b.log_q.copy_to_host())


def sums(tree):
    return tree._sums.nodes.copy_to_host()


@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@pytest.mark.parametrize(("n", "leaf_size"), [(5, 1), (13, 4)])
def test_probabilities_are_those_of_the_oracle(n, leaf_size, leaf):
    rows, h = whole_numbers(n, dim=3)
    tree = KernelTree(rows, leaf_size=leaf_size, leaf=leaf, floor=0.25, device="cuda")
    for exclude in (None, n // 2):
        q = tree.probs(h, exclude=exclude if exclude is None else [exclude] * len(h))
        for b, row in enumerate(q.copy_to_host()):
            wanted = probabilities(
                h[b],
                rows,
                h[b],
                rows,
                leaf_size=leaf_size,
                kind=leaf,
                floor=0.25,
                exclude=exclude,
            )
            np.testing.assert_allclose(row, np.array(wanted, float), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
def test_features_of_the_leaves_visited(leaf):
    rows, h = real_numbers(9, dim=2)
    here, there = trees(rows, leaf_size=4, leaf=leaf, transform=lifted)
    for exclude in exclusions(9):
        a, b = (tree.sample(h, 4, exclude=exclude, rng=0) for tree in (here, there))
        np.testing.assert_array_equal(b.ids.copy_to_host(), a.ids)
        np.testing.assert_allclose(b.log_q.copy_to_host(), a.log_q, rtol=1e-10)
        q = there.probs(h, exclude=exclude).copy_to_host()
        np.testing.assert_allclose(q, here.probs(h, exclude=exclude), rtol=1e-9, atol=1e-15)


def test_one_set_for_the_whole_batch():
    rows, h = whole_numbers(7, batch=3, dim=3)
    here, there = trees(rows, leaf_size=2)
    a, b = (tree.sample(h, 6, shared=True, rng=4) for tree in (here, there))
    np.testing.assert_array_equal(b.ids.copy_to_host(), a.ids)
    np.testing.assert_allclose(b.log_q.copy_to_host(), a.log_q, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "leaf_size"), CASES)
def test_updates_leave_the_bits_of_the_processor(n, leaf_size, dtype):
    rng = np.random.default_rng(n)
    rows, _ = whole_numbers(n, dtype, dim=3)
    here, there = trees(rows, leaf_size=leaf_size)
    for num in (1, 2, n):  # few, some of them twice, and so many that all is built anew
        ids = rng.integers(0, n, num)
        new = rng.integers(-3, 4, (num, 3)).astype(dtype)
        here.update(ids, new)
        there.update(ids, new)
        np.testing.assert_array_equal(sums(there), here._sums.nodes)
        np.testing.assert_array_equal(
            there.class_embeddings().copy_to_host(), here.class_embeddings()
        )
        assert there.num_updates == here.num_updates
    np.testing.assert_allclose(there.drift, here.drift, atol=1e-12)
    there.rebuild()
    assert there.num_updates == 0
    some = there.class_embeddings([n - 1, 0]).copy_to_host()
    np.testing.assert_array_equal(some, here.class_embeddings([n - 1, 0]))


@pytest.mark.parametrize(("n", "leaf_size"), [(3, 1), (7, 2)])
def test_leaves_are_summed_anew_as_on_the_processor(n, leaf_size):
    rng = np.random.default_rng(n)
    rows, _ = whole_numbers(n, np.float32, dim=3)
    here, there = trees(rows, leaf_size=leaf_size)
    errors = rng.integers(-2, 3, sums(there).shape).astype(np.float32)
    here._sums.nodes += errors
    there._sums.nodes.copy_to_device(sums(there) + errors)
    for turn in range(-(-n // leaf_size)):
        for tree in (here, there):
            tree._num_updates = 16 * leaf_size * (turn + 1) - 1
            tree.update([turn], rows[[turn]])
        np.testing.assert_array_equal(sums(there), here._sums.nodes)
    np.testing.assert_allclose(sums(there), sums(trees(rows, leaf_size=leaf_size)[1]), atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_large_passing_vector_is_told_as_on_the_processor(dtype):
    rows, _ = whole_numbers(13, dtype, dim=3)
    here, there = trees(rows, leaf_size=2)
    for size in (1e30, 1e20, 1e4, 1.0, 0.0):
        for tree in (here, there):
            tree.update([5], np.full((1, 3), size))
        np.testing.assert_array_equal(sums(there), here._sums.nodes)
        assert there.num_updates == here.num_updates


@pytest.mark.parametrize("leaf_size", [1, 4])
def test_work_in_parts_leaves_the_same(leaf_size, monkeypatch):
    from samplesoft._device import cuda
    from samplesoft.samplers.tree import kernel_tree

    rows, h = whole_numbers(13, np.float32, dim=3)
    whole, parted = (
        KernelTree(rows, lifted_there, leaf_size=leaf_size, device="cuda") for _ in range(2)
    )
    ids = np.array([0, 1, 1, 7, 12])
    whole.update(ids, -rows[ids])
    drawn = whole.sample(h, 5, exclude=[1] * len(h), rng=0).to_host()
    monkeypatch.setattr(kernel_tree, "_CHUNK_VALUES", 1)
    monkeypatch.setattr(cuda, "_CHUNK_VALUES", 1)
    parted.update(ids, -rows[ids])
    np.testing.assert_array_equal(sums(parted), sums(whole))
    assert parted.drift == whole.drift
    again = parted.sample(h, 5, exclude=[1] * len(h), rng=0).to_host()
    np.testing.assert_array_equal(again.ids, drawn.ids)
    np.testing.assert_array_equal(again.log_q, drawn.log_q)
    log_q = parted.log_prob(h, drawn.ids, exclude=[1] * len(h)).copy_to_host()
    np.testing.assert_array_equal(log_q, drawn.log_q)
    probs = np.take_along_axis(parted.probs(h).copy_to_host(), drawn.ids, 1)
    np.testing.assert_allclose(np.log(probs), parted.log_prob(h, drawn.ids).copy_to_host())


def test_without_memory_for_two_sets_of_sums_all_classes_are_updated_in_place(monkeypatch):
    from samplesoft._device import cuda

    rows, _ = whole_numbers(13, dim=3)
    here, there = trees(rows, leaf_size=2)
    monkeypatch.setattr(cuda, "available_bytes", lambda: 0.0)
    for tree in (here, there):
        tree.update(np.arange(13), -rows)
    assert there.num_updates == 13
    np.testing.assert_array_equal(sums(there), here._sums.nodes)
    there.rebuild()
    np.testing.assert_array_equal(sums(there), here._sums.nodes)


def test_what_is_refused_changes_nothing():
    rows, h = whole_numbers(7, np.float32, dim=3)
    tree = KernelTree(rows, device="cuda", leaf_size=2)
    before = sums(tree)
    for ids, new in [([7], rows[:1]), ([0], rows[:2]), ([0], [[1, np.nan, 0]])]:
        with pytest.raises(ValueError, match="must"):
            tree.update(ids, new)
    with pytest.raises(ValueError, match="sums that are finite in float32"):
        tree.update([1, 2], np.full((2, 3), 3e38, np.float32))
    np.testing.assert_array_equal(sums(tree), before)
    with pytest.raises(ValueError, match=r"real features of shape \(1, 1\) for 1 rows"):
        KernelTree(np.ones((3, 2)), lambda rows: rows.reshape(-1), device="cuda")


def test_a_class_that_is_not_drawn_never_is():
    rows, h = whole_numbers(6, dim=3)
    tree = KernelTree(rows, leaf_size=3, device="cuda")
    ids = tree.sample(h, 40, exclude=[2, 5], rng=1).ids.copy_to_host()
    assert not (ids == [[2], [5]]).any()
    log_q = tree.log_prob(h, [[2, 5], [2, 5]], exclude=[2, 5]).copy_to_host()
    assert np.isneginf([log_q[0, 0], log_q[1, 1]]).all()
    assert np.isfinite([log_q[0, 1], log_q[1, 0]]).all()
