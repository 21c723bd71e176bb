import numpy as np
import pytest
from mpmath import mp, mpf
from oracles.tree_cases import (
    DTYPES,
    SIZES,
    as_floats,
    exactly,
    is_clipped,
    kernel_of,
    leaf_sizes,
    lifted,
    probabilities,
    real,
    real_numbers,
    whole_numbers,
)

from samplesoft.samplers.tree import plain
from samplesoft.samplers.tree.kernel_tree import LEAF_WEIGHTS, KernelTree

# --- probabilities ----------------------------------------------------------------------------


def test_probabilities_worked_out_by_hand():
    rows = [[3.0], [-1.0], [4.0]]  # at the root 2 : 4, at the node on the left 3 : 0.5
    wanted = [6 / 21, 1 / 21, 14 / 21]
    q = probabilities([1.0], rows, [1.0], rows, leaf_size=1, floor=0.5)
    np.testing.assert_allclose(as_floats(q), wanted, rtol=1e-15)
    kernel_tree = KernelTree(rows, leaf_size=1, floor=0.5)
    np.testing.assert_allclose(kernel_tree.probs([1.0])[0], wanted, rtol=1e-15)
    np.testing.assert_allclose(kernel_tree.probs([1.0], exclude=2)[0], [6 / 7, 1 / 7, 0.0])
    # in one leaf the classes have 3 : 0.5 : 4
    wanted = np.array([3.0, 0.5, 4.0]) / 7.5
    np.testing.assert_allclose(KernelTree(rows, floor=0.5).probs([1.0])[0], wanted, rtol=1e-15)


@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@pytest.mark.parametrize("n", SIZES)
def test_probabilities_are_those_of_exact_arithmetic(n, leaf):
    settings = {"scale": 0.37, "floor": 0.01}
    for leaf_size in leaf_sizes(n):
        for dtype in DTYPES:
            rows, h = whole_numbers(n, dtype)
            kernel_tree = KernelTree(rows, leaf_size=leaf_size, leaf=leaf, **settings)
            labels = [0, n - 1]
            q = kernel_tree.probs(h)
            qn = kernel_tree.probs(h, exclude=labels) if n > 1 else None
            for b in range(2):
                exact = probabilities(
                    h[b], rows, h[b], rows, leaf_size=leaf_size, kind=leaf, **settings
                )
                np.testing.assert_allclose(q[b], as_floats(exact), rtol=1e-12)
                if n > 1:
                    others = as_floats(plain.probabilities_without(exact, labels[b]))
                    np.testing.assert_allclose(qn[b], others, rtol=1e-12)


@pytest.mark.parametrize("leaf_size", [1, 3, 64])
@pytest.mark.parametrize("n", [130, 65])
def test_the_exact_cases_clip_masses(n, leaf_size):
    rows, h = whole_numbers(n)
    for context in h:
        values = kernel_of(context, rows)
        assert sum(v < 0 for v in values) > n / 4
    assert any(is_clipped(kernel_of(x, rows), leaf_size, 0.01) for x in h)


@pytest.mark.parametrize("transform", [None, lifted], ids=["plain", "transform"])
@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@pytest.mark.parametrize("n", [5, 65, 130])
def test_probabilities_of_real_features(n, leaf, transform):
    rows, h = real_numbers(n)
    features, phi = (rows, h) if transform is None else (transform(rows), transform(h))
    settings = {"scale": 2.0, "floor": 0.01}
    for leaf_size in leaf_sizes(n):
        q = KernelTree(rows, transform, leaf_size=leaf_size, leaf=leaf, **settings).probs(h)
        for b in range(2):
            exact = probabilities(
                h[b], rows, phi[b], features, leaf_size=leaf_size, kind=leaf, **settings
            )
            np.testing.assert_allclose(q[b], as_floats(exact), rtol=1e-10)


@pytest.mark.parametrize("leaf_size", [1, 3, 64])
def test_float32_branches_follow_the_kernel(leaf_size):
    rows, h = real_numbers(130, np.float32)
    rows, h = abs(rows), abs(h)
    q = KernelTree(rows, leaf_size=leaf_size).probs(h)
    for b in range(2):
        exact = probabilities(h[b], rows, h[b], rows, leaf_size=leaf_size)
        wanted = as_floats(plain.left_probabilities(exact, leaf_size))
        np.testing.assert_allclose(
            plain.left_probabilities(q[b], leaf_size), wanted, rtol=0, atol=5e-7
        )


@pytest.mark.parametrize("leaf_size", [1, 8, 64])
@pytest.mark.parametrize(("dtype", "distance"), [(np.float32, 1e-4), (np.float64, 1e-12)])
def test_without_a_large_class_the_others_still_follow_the_kernel(dtype, distance, leaf_size):
    rows, h = real_numbers(64, dtype)
    rows, h = abs(rows), abs(h)
    rows[5] *= 1e4
    kernel = h.astype(np.float64) @ rows.astype(np.float64).T
    kernel[:, 5] = 0.0
    wanted = kernel / kernel.sum(axis=1, keepdims=True)
    q = KernelTree(rows, leaf_size=leaf_size).probs(h, exclude=[5, 5])
    assert abs(q - wanted).sum() < distance


def test_without_any_mass_all_classes_are_equal():
    for n in SIZES:
        for leaf_size in leaf_sizes(n):
            for sign in (0.0, -1.0):
                kernel_tree = KernelTree(np.full((n, 2), sign), leaf_size=leaf_size)
                np.testing.assert_allclose(kernel_tree.probs([1.0, 1.0]), 1 / n, rtol=1e-13)


def test_the_plain_twin_in_floats_is_the_one_in_fractions_but_for_rounding():
    """As a student runs it: nothing in it asks for fractions."""
    rows, h = real_numbers(37)
    for leaf_size in (1, 3, 64):
        kernel = [float(plain.inner_product(h[0], row)) for row in rows]
        weights = plain.leaf_weights("kernel", kernel, kernel, 1.0, 0.01, np.exp)
        q = plain.class_probabilities(kernel, weights, leaf_size, 0.01)
        exact = probabilities(h[0], rows, h[0], rows, leaf_size=leaf_size, floor=0.01)
        np.testing.assert_allclose(q, as_floats(exact), rtol=1e-12)
        others = plain.probabilities_without(q, 5)
        assert others[5] == 0.0 and abs(sum(others) - 1.0) < 1e-14
        for u in np.random.default_rng(0).random(200):
            wanted = np.searchsorted(np.cumsum(q), u, side="right")
            assert plain.draw(u, q, leaf_size) == wanted


def test_a_mass_is_one_product_with_a_sum_of_features():
    """What makes a draw cheap: the plain twin adds kernels up, and a tree has added features."""
    rows, h = whole_numbers(37)
    kernel = kernel_of(h[0], rows)
    for leaf_size in (1, 3):
        sums = plain.node_sums([exactly(row) for row in rows], leaf_size)
        assert len(sums) == 2 * (plain.num_leaves(37, leaf_size) - 1)
        for (first, last), of_features in sums.items():
            below = plain.classes_in_leaves(first, last, 37, leaf_size)
            assert plain.inner_product(exactly(h[0]), of_features) == sum(kernel[c] for c in below)


# --- any features at all ----------------------------------------------------------------------

HOSTILE = {
    "zeros": lambda rng, dtype: (np.zeros((37, 4)), np.zeros((2, 4))),
    "denormal": lambda rng, dtype: (
        rng.standard_normal((37, 4)) * 10 * np.finfo(dtype).smallest_subnormal,
        rng.standard_normal((2, 4)),
    ),
    "negative": lambda rng, dtype: (-1 - rng.random((37, 4)), 1 + rng.random((2, 4))),
    "many scales": lambda rng, dtype: (
        rng.standard_normal((37, 4)) * 10.0 ** rng.integers(-18, 18, (37, 1)),
        rng.standard_normal((2, 4)),
    ),
    "large logits": lambda rng, dtype: (
        rng.standard_normal((37, 4)) * 1e4,
        rng.standard_normal((2, 4)) * 1e4,
    ),
    "large equal logits": lambda rng, dtype: (np.full((37, 4), 1e3), np.full((2, 4), 1e4)),
    "huge": lambda rng, dtype: (
        rng.standard_normal((37, 4)) * np.finfo(dtype).max ** 0.8,
        rng.standard_normal((2, 4)) * np.finfo(dtype).max ** 0.8,
    ),
    "half huge": lambda rng, dtype: (
        np.where(np.arange(37) % 2, 1.0, np.finfo(dtype).max ** 0.8)[:, None] * np.ones(4),
        np.array([[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 0.0, 0.0]]) * np.finfo(dtype).max ** 0.3,
    ),
}


@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@pytest.mark.parametrize("leaf_size", [1, 3, 64])
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_features_give_a_distribution_that_is_drawn_from(dtype, name, leaf_size, leaf):
    rows, h = (x.astype(dtype) for x in HOSTILE[name](np.random.default_rng(3), dtype))
    kernel_tree = KernelTree(rows, leaf_size=leaf_size, leaf=leaf)
    for exclude in (None, [36, 4]):
        q = kernel_tree.probs(h, exclude=exclude)
        assert q.min() >= 0.0
        np.testing.assert_allclose(q.sum(axis=1), 1.0, rtol=0, atol=1e-12)
        drawn = kernel_tree.sample(h, 100, exclude=exclude, rng=0)
        log_q = kernel_tree.log_prob(h, drawn.ids, exclude=exclude)
        np.testing.assert_allclose(drawn.log_q, log_q, rtol=1e-12, atol=1e-12)
        of_drawn = np.take_along_axis(q, drawn.ids, axis=1)
        np.testing.assert_allclose(np.exp(drawn.log_q), of_drawn, rtol=1e-11)
        assert exclude is None or (drawn.ids != np.array([exclude]).T).all()


@pytest.mark.parametrize("floor", [1e-300, 1e-150, 1e-9, 1.0, 1e150, 1e300])
def test_any_floor_gives_a_distribution(floor):
    rows, h = whole_numbers(37)
    for leaf_size in (1, 3, 64):
        kernel_tree = KernelTree(1e20 * rows, leaf_size=leaf_size, floor=floor)
        for exclude in (None, 30):
            q = kernel_tree.probs(h, exclude=exclude)
            np.testing.assert_allclose(q.sum(axis=1), 1.0, rtol=0, atol=1e-12)


def test_sums_that_leave_float32_are_no_disaster():
    rows = np.full((4, 1), 2e38, np.float32)
    try:
        kernel_tree = KernelTree(rows, leaf_size=1)
    except ValueError as error:
        assert "finite" in str(error)
    else:
        assert kernel_tree.probs(np.ones(1, np.float32)).sum() == pytest.approx(1.0, abs=1e-12)
        assert kernel_tree.drift < 1e-6


# --- an excluded class that has nearly all the mass -------------------------------------------


@pytest.mark.parametrize("leaf_size", [1, 3, 64])
@pytest.mark.parametrize("label", [0, 40, 64])
@pytest.mark.parametrize("bits", [20, 40, 48])
def test_excluding_a_class_with_nearly_all_the_kernel(bits, label, leaf_size):
    rows = 1.0 + np.random.default_rng(bits).integers(0, 7, (65, 1))
    rows[label] = 2.0**bits
    kernel_tree = KernelTree(rows, leaf_size=leaf_size)
    drawn = kernel_tree.sample([1.0], 2000, exclude=label, rng=0)
    assert label not in drawn.ids
    exact = probabilities([1.0], rows, [1.0], rows, leaf_size=leaf_size)
    with mp.workdps(50):
        assert 1 - exact[label] < mpf(400) / 2**bits
        log_q = [
            float(mp.log(real(x))) if x else -np.inf
            for x in plain.probabilities_without(exact, label)
        ]
    np.testing.assert_allclose(drawn.log_q[0], np.array(log_q)[drawn.ids[0]], rtol=1e-12)
    every = kernel_tree.log_prob([1.0], np.arange(65), exclude=label)
    np.testing.assert_allclose(every[0], log_q, rtol=1e-12)


@pytest.mark.parametrize("leaf_size", [2, 3, 64])
@pytest.mark.parametrize("logit", [1e2, 1e4, -1e4])
def test_excluding_a_class_with_nearly_all_of_a_softmax_leaf(logit, leaf_size):
    rng = np.random.default_rng(0)
    rows = np.append(rng.random((37, 2)), rng.integers(-4, 5, (37, 1)), axis=1)
    rows[5, 2] = logit
    rows[6, 2] = -logit
    h = np.array([1e-3, 1e-3, 1.0])
    phi = lambda x: np.abs(x[:, :2]) + 1e-3  # noqa: E731
    kernel_tree = KernelTree(rows, phi, leaf_size=leaf_size, leaf="softmax")
    settings = {"leaf_size": leaf_size, "kind": "softmax"}
    exact = probabilities(h, rows, phi(h[None])[0], phi(rows), **settings)
    for label in (5, 6):
        drawn = kernel_tree.sample(h, 2000, exclude=label, rng=0)
        assert label not in drawn.ids
        with mp.workdps(50):
            log_q = [
                float(mp.log(real(x))) if x else -np.inf
                for x in plain.probabilities_without(exact, label)
            ]
        np.testing.assert_allclose(
            drawn.log_q[0], np.array(log_q)[drawn.ids[0]], rtol=1e-12, atol=4e-12
        )
        every = kernel_tree.log_prob(h, np.arange(37), exclude=label)
        np.testing.assert_allclose(every[0], log_q, rtol=1e-12, atol=4e-12)


@pytest.mark.parametrize("leaf", LEAF_WEIGHTS)
@pytest.mark.parametrize("leaf_size", [1, 3, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_excluding_a_class_whose_probability_rounds_to_one(dtype, leaf_size, leaf):
    rows = np.ones((37, 1), dtype)
    rows[36] = 1e30
    kernel_tree = KernelTree(rows, leaf_size=leaf_size, leaf=leaf)
    assert kernel_tree.probs([1.0])[0, 36] == pytest.approx(1.0, abs=1e-15)
    drawn = kernel_tree.sample([1.0], 500, exclude=36, rng=0)
    assert 36 not in drawn.ids
    q = kernel_tree.probs([1.0], exclude=36)
    assert q.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(drawn.log_q, np.log(q[0, drawn.ids]), rtol=1e-12, atol=1e-12)


# --- small and odd calls ----------------------------------------------------------------------


def test_one_class_is_always_drawn():
    for leaf in LEAF_WEIGHTS:
        kernel_tree = KernelTree([[2.0, -1.0]], leaf=leaf)
        drawn = kernel_tree.sample([1.0, 1.0], 5, rng=0)
        assert (drawn.ids == 0).all()
        assert (drawn.log_q == 0.0).all()
        assert (kernel_tree.probs([-1.0, 0.0]) == 1.0).all()


def test_of_two_classes_the_other_is_drawn():
    kernel_tree = KernelTree([[1.0], [1e-300]], leaf_size=1)
    drawn = kernel_tree.sample([[1.0], [1.0]], 9, exclude=[0, 1], rng=0)
    np.testing.assert_array_equal(drawn.ids, np.repeat([[1], [0]], 9, axis=1))
    np.testing.assert_allclose(drawn.log_q, 0.0, atol=1e-15)


def test_contexts_of_any_layout_and_type_are_the_same():
    rows, h = whole_numbers(37, np.float32, batch=4)
    kernel_tree = KernelTree(rows, leaf_size=3)
    q = kernel_tree.probs(h)
    frozen = np.asfortranarray(h.astype(np.float64))
    frozen.setflags(write=False)
    for same in (frozen, h.astype(np.int8), h.tolist(), np.repeat(h, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(kernel_tree.probs(same), q)


def test_every_kernel_stays_in_its_arrays():
    """A few reads of each kind at ragged ends, for a run with NUMBA_BOUNDSCHECK=1."""
    for n, leaf_size in ((2, 1), (7, 1), (7, 3), (9, 4), (13, 5)):
        for leaf in LEAF_WEIGHTS:
            rows, h = whole_numbers(n, batch=3)
            for transform in (None, lambda x: np.abs(x[:, :2])):
                kernel_tree = KernelTree(rows, transform, leaf_size=leaf_size, leaf=leaf)
                for exclude in (None, n - 1):
                    ids = kernel_tree.sample(h, 6, exclude=exclude, rng=0).ids
                    log_q = kernel_tree.log_prob(h, ids, exclude=exclude)
                    q = kernel_tree.probs(h, exclude=exclude)
                    np.testing.assert_allclose(
                        np.exp(log_q), np.take_along_axis(q, ids, axis=1), rtol=1e-12
                    )
                kernel_tree.update([n - 1, 0], rows[:2])
                kernel_tree.rebuild()


@pytest.mark.parametrize(("leaf", "tau"), [("softmax", 3.0), ("kernel", None), ("quadratic", None)])
def test_a_tree_has_the_temperature_of_its_softmax_leaves(leaf, tau):
    assert KernelTree(np.ones((4, 2)), leaf=leaf, scale=3.0).tau == tau


@pytest.mark.parametrize("leaf_size", [1, 3])
def test_the_mass_that_shards_are_drawn_by_is_the_sum_of_kernels_but_for_the_label(leaf_size):
    rng = np.random.default_rng(8)
    rows, h = rng.uniform(0.5, 2.0, (9, 3)), rng.uniform(0.5, 2.0, (4, 3))
    kernel_tree = KernelTree(rows, leaf_size=leaf_size)
    kernel, labels = h @ rows.T, np.array([0, 8, 4, 3])
    found = kernel_tree._log_total_weight(h, np.full(4, -1))
    np.testing.assert_allclose(found, np.log(kernel.sum(axis=1)), rtol=1e-13)
    others = kernel.sum(axis=1) - kernel[np.arange(4), labels]
    np.testing.assert_allclose(kernel_tree._log_total_weight(h, labels), np.log(others), rtol=1e-12)
