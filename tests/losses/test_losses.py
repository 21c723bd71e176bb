"""One suite for every registered loss: values, gradients, options, extremes, errors."""

import copy

import numpy as np
import pytest
from mpmath import mp
from oracles.loss_cases import (
    HITS,
    NAMES,
    SAMPLED,
    Case,
    check_value_and_gradients,
    dense,
    fitted,
    make_case,
    needs_count,
    oracle_losses,
    oracle_value,
)
from oracles.naive_losses import derivative, exact
from scipy import sparse

from samplesoft.losses.registry import LOSSES, make_loss

OPTIONS = {
    "plain": {},
    "tau": {"tau": 2.5, "reduction": "sum"},
    "absolute": {"absolute": True, "reduction": "none"},
    "all": {"tau": 1.7, "normalize": True, "absolute": True},
}


def options_for(name, options):
    return {k: v for k, v in options.items() if k not in LOSSES[name].fixed}


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.mark.parametrize(
    ("kind", "shared"), [("plain", False), ("tau", True), ("absolute", False), ("all", True)]
)
def test_value_and_gradients_follow_the_formula(name, kind, shared):
    loss = make_loss(name, **options_for(name, OPTIONS[kind]))
    small = {"batch": 2, "n": 5, "dim": 2}
    case = make_case(loss, shared=shared, full=kind != "plain", seed=len(kind), **small)
    check_value_and_gradients(name, loss, case)


def test_each_loss_by_itself(name):
    loss = make_loss(name, reduction="none")
    case = make_case(loss, full=True)
    value, _ = case.forward(loss)
    with mp.workdps(30):
        wanted = np.array(oracle_losses(name, loss, case), dtype=float) * case.weights
    assert value.dtype == np.float64 and value.shape == (3,)
    np.testing.assert_allclose(value, wanted, rtol=1e-13, atol=1e-28)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reductions_agree_with_single_losses(name, reduction):
    loss, single = make_loss(name, reduction=reduction), make_loss(name, reduction="none")
    case = make_case(loss, full=True, batch=7)
    value, cache = case.forward(loss)
    each, each_cache = case.forward(single)
    scale = case.weights.sum() if reduction == "mean" else 1.0
    assert isinstance(value, float)
    assert value == pytest.approx(each.sum() / scale, rel=1e-14)
    one, other = loss.backward(cache), single.backward(each_cache)
    np.testing.assert_allclose(one.dh * scale, other.dh, rtol=1e-13, atol=1e-16)
    np.testing.assert_allclose(one.dW.rows * scale, other.dW.rows, rtol=1e-12, atol=1e-15)


def test_an_example_without_weight_has_no_gradient(name):
    loss = make_loss(name)
    case = make_case(loss, full=True)
    case.weights = np.array([0.0, 1.0, 2.0])
    value, cache = case.forward(loss)
    assert not loss.backward(cache).dh[0].any()
    kept = Case(
        case.h[1:],
        case.class_embeddings,
        case.labels[1:],
        case.q[1:],
        None if case.ids is None else case.ids[1:],
        case.biases,
        case.weights[1:],
    )
    assert value == pytest.approx(kept.forward(loss)[0], rel=1e-14)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_float32_follows_float64(name, shared):
    loss = make_loss(name, normalize=True, tau=3.0)
    case = make_case(loss, shared=shared, batch=9, n=20, m=12, dim=8, full=True)
    case = case.astype(np.float32)
    value, cache = case.forward(loss)
    wanted, wanted_cache = case.astype(np.float64).forward(loss)
    assert value == pytest.approx(wanted, rel=1e-5, abs=1e-6)
    one, other = loss.backward(cache), loss.backward(wanted_cache)
    for part in (one.dh, one.dW.rows, one.db.rows):
        assert part.dtype == np.float32
    np.testing.assert_allclose(one.dh, other.dh, atol=1e-5)
    np.testing.assert_allclose(one.dW.rows, other.dW.rows, atol=1e-5)
    np.testing.assert_allclose(one.db.rows, other.db.rows, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_the_same_bits_at_any_number_of_threads(name, shared, threads):
    loss = make_loss(name, normalize=True)
    case = make_case(loss, shared=shared, batch=400, n=300, m=200, dim=20, full=True)
    found = []
    for count in (1, 2, 5):
        threads(count)
        value, cache = case.forward(loss)
        gradients = loss.backward(cache)
        found.append((value, gradients.dh, gradients.dW.rows, gradients.db.rows))
    for other in found[1:]:
        assert other[0] == found[0][0]
        for one, two in zip(other[1:], found[0][1:], strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize(("n", "m"), [(6, 1), (3, 12), (2, 3), (2, 1)])
def test_few_classes_and_few_or_many_draws(name, n, m):
    loss = make_loss(name)
    case = make_case(loss, n=n, m=max(m, LOSSES[name].min_draws))
    value, cache = case.forward(loss)
    gradients = loss.backward(cache)
    with mp.workdps(50):
        assert value == pytest.approx(float(oracle_value(name, loss, case)), rel=1e-12)
        change = lambda rows: oracle_value(name, loss, case, class_embeddings=rows)  # noqa: E731
        (wanted,) = derivative(change, [exact(case.class_embeddings)])
    np.testing.assert_allclose(dense(gradients.dW, n), wanted, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", HITS)
def test_one_class(name):
    """The label is all that there is to draw."""
    loss = make_loss(name)
    case = make_case(loss, n=1, m=4)
    case.ids[:] = 0
    value, cache = case.forward(loss)
    dW = loss.backward(cache).dW.rows
    with mp.workdps(30):
        wanted = float(oracle_value(name, loss, case))
    assert value == pytest.approx(wanted, rel=1e-13, abs=1e-15)
    if loss.is_softmax:  # over the label alone
        np.testing.assert_allclose(dW, 0.0, atol=1e-15 if loss.properties.draws_label else 0.0)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_class_drawn_twice_counts_twice(name):
    """Duplicates in one draw, and over the batch, add up in one row of the gradient."""
    loss = make_loss(name, reduction="sum")
    case = make_case(loss, n=8, m=6)
    other = next(j for j in range(8) if j not in case.labels)
    case.ids[:, 3:] = other
    _, cache = case.forward(loss)
    gradients = loss.backward(cache)
    assert np.count_nonzero(gradients.dW.ids == other) == 1
    with mp.workdps(50):
        change = lambda rows: oracle_value(name, loss, case, class_embeddings=rows)  # noqa: E731
        (wanted,) = derivative(change, [exact(case.class_embeddings)])
    np.testing.assert_allclose(dense(gradients.dW, 8), wanted, rtol=1e-10, atol=1e-13)


MASKED = [name for name in HITS if not LOSSES[name].scheme.draws_label]


@pytest.mark.parametrize("name", MASKED)
def test_every_draw_of_the_label_is_left_out(name):
    """Nothing of their number or probability is left in the loss but for how many are kept."""
    loss = make_loss(name)
    case = make_case(loss, batch=1, n=5, m=6)
    case.h *= 0.1  # scores nearly alike, for a hinge has a slope where they are
    label = case.labels[0]
    case.ids[0] = [label, 3, label, 4, label, 3]
    value, cache = case.forward(loss)
    case.q[0, label] /= 7.0  # no longer a distribution, which draws of others do not notice
    if not loss.needs_label_count:
        assert case.forward(loss)[0] == value
    gradients = loss.backward(cache)
    assert set(gradients.dW.ids) == {label, 3, 4}
    score_gradient = dense(gradients.dW, 5) @ case.h[0] / (case.h[0] @ case.h[0])
    assert score_gradient[label] < 0.0 < score_gradient[3]
    # of a loss of one draw the rest have no part
    assert score_gradient[4] > 0.0 or (name == "warp" and score_gradient[4] == 0.0)
    single = loss.is_softmax or loss.is_binary  # the label has one term, not one a draw
    if single and loss.properties.label_in_sum and not loss.properties.jackknife:
        assert score_gradient[label] > -1.0


# --- extremes ---------------------------------------------------------------------------------


def extreme_case(loss, o, q, ids):
    """One example whose scores are `o` (n,); its label is class 0."""
    q = np.array(q, dtype=float)[None]
    if isinstance(ids, list):
        ids = np.array(ids)[None]
    sampled = make_case(loss, n=len(o), m=2).ids is not None
    return Case(np.ones((1, 1)), np.array(o)[:, None], np.array([0]), q, ids if sampled else None)


EXTREMES = {
    "label far above": ([1e4, -1e4, 0.0, 5.0], [0.25] * 4, [1, 2, 3, 3]),
    "label far below": ([-1e4, 1e4, 0.0, 5.0], [0.25] * 4, [1, 2, 3, 3]),
    "a draw far above": ([3.0, 1e4, 0.0, 5.0], [0.25] * 4, [1, 2, 3, 3]),
    "all far below": ([-1e4, -1e4 + 1.0, -1e4 - 30.0, -1e4], [0.25] * 4, [1, 2, 3, 3]),
    "all far above": ([1e4, 1e4 + 1.0, 1e4 - 30.0, 1e4], [0.25] * 4, [1, 2, 3, 3]),
    "two draws far above": ([0.0, 1e4, 1e4, 5.0], [0.25] * 4, [1, 2, 3, 3]),
    "small loss": ([60.0, 0.5, 1.0, 2.0], [0.25] * 4, [1, 2, 3, 3]),
    "draw of tiny q": ([0.0, 1.0, 2.0, 3.0], [0.5, 1e-300, 0.25, 0.25], [1, 2, 3, 2]),
    "label of tiny q": ([0.0, 1.0, 2.0, 3.0], [1e-300, 0.5, 0.25, 0.25], [1, 2, 3, 2]),
    "draws only of tiny q": ([0.0, 1.0, 2.0, 3.0], [0.5, 1e-300, 1e-290, 1e-300], [1, 2, 3, 1]),
}


@pytest.mark.parametrize("kind", EXTREMES)
def test_extreme_scores_and_probabilities(name, kind):
    o, q, ids = EXTREMES[kind]
    loss = make_loss(name)
    case = extreme_case(loss, o, q, ids)
    value, cache = case.forward(loss)
    found = dense(loss.backward(cache).dW, len(o))
    with mp.workdps(400 if "tiny" in kind else 80):  # sums of weights of 1e300 and of 1
        total = oracle_value(name, loss, case)
        rounding = 1e-15 * np.abs(o).max() if np.abs(o).max() > 100.0 else 1e-75
        assert value == pytest.approx(float(total), rel=2e-13, abs=rounding)
        change = lambda rows: oracle_value(name, loss, case, class_embeddings=rows)  # noqa: E731
        if not loss.absolute or np.all(np.array(o) != 0.0):  # |o| has no slope at 0
            (wanted,) = derivative(change, [exact(case.class_embeddings)])
            np.testing.assert_allclose(found, wanted, rtol=5e-12, atol=1e-15)


def test_a_small_loss_keeps_its_digits(name):
    o, q, ids = EXTREMES["small loss"]
    loss = make_loss(name)
    case = extreme_case(loss, o, q, ids)
    value, cache = case.forward(loss)
    gradients = loss.backward(cache).dW
    spec = LOSSES[name]
    if loss.is_binary:  # a class of score 0 has even odds
        assert value >= np.log(2.0)
    elif not spec.draws or (loss.is_softmax and spec.scheme.label_in_sum):
        assert 0.0 < value < 1e-24
        drawn = dense(gradients, 4)[1:, 0]
        np.testing.assert_allclose(dense(gradients, 4)[0, 0], -drawn.sum(), rtol=1e-12)


# --- several labels ---------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize(
    "name",
    [
        name
        for name in NAMES
        if LOSSES[name].fixed.get("label_reduction") != "ova" and not LOSSES[name].has_log_sums
    ],
)
def test_several_labels_are_the_weighted_mean_of_one(name, shared):
    loss = make_loss(name, tau=1.5, normalize=True)
    case = make_case(loss, shared=shared, n=9, full=True, seed=4)
    labels = [[0, 1], [1, 2, 3], [0, 2]]
    shares = [[1.0, 3.0], [1.0, 1.0, 2.0], [2.0, 0.5]]
    if isinstance(case.ids, np.ndarray):
        case.q[:] = np.random.default_rng(1).dirichlet(np.ones(9), size=len(case.q))
        pool = [4, 5, 6, 7, 8] if loss.excludes_label else [0, 1, 2, 3, 4, 8]
        case.ids[:] = np.random.default_rng(2).choice(pool, size=case.ids.shape)
    example_ids = np.repeat(np.arange(3), [2, 3, 2])
    flat = np.concatenate(labels)
    matrix = sparse.csr_array((np.concatenate(shares), (example_ids, flat)), shape=(3, 9))
    share = np.concatenate([np.array(s) / sum(s) for s in shares])
    pairs = Case(
        case.h[example_ids],
        case.class_embeddings,
        flat,
        case.q if shared else case.q[example_ids],
        case.ids if shared or case.ids is None else case.ids[example_ids],
        case.biases,
        case.weights[example_ids] * share,
    )
    wanted, wanted_cache = pairs.forward(loss)
    value, cache = loss.forward(
        case.h,
        case.class_embeddings,
        matrix,
        fitted(loss, case.draw, 9, case.labels),
        label_log_count=pairs.label_log_count if needs_count(loss) else None,
        biases=case.biases,
        weights=case.weights,
    )
    assert value == pytest.approx(wanted, rel=1e-13)
    one, other = loss.backward(cache), loss.backward(wanted_cache)
    sums = np.stack([other.dh[example_ids == b].sum(axis=0) for b in range(3)])
    np.testing.assert_allclose(one.dh, sums, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(dense(one.dW, 9), dense(other.dW, 9), rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(dense(one.db, 9), dense(other.db, 9), rtol=1e-11, atol=1e-14)


def test_a_copy_of_a_loss_computes_with_what_it_is_set_to(name):
    loss = make_loss(name)
    case = make_case(loss)
    changed = copy.copy(loss)
    changed.tau = 7.0
    for one, same in ((changed, make_loss(name, tau=7.0)), (loss, make_loss(name))):
        (got, cache), (wanted, other) = case.forward(one), case.forward(same)
        assert got == wanted
        np.testing.assert_array_equal(one.backward(cache).dh, same.backward(other).dh)
