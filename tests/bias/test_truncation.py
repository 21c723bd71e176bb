"""The bias of a softmax over a fixed set of classes: against the definition in many digits."""

import numpy as np
import pytest
from mpmath import mp, mpf

from samplesoft import exact_bias
from samplesoft.bias import truncated_bias


def oracle(logits, label, ids):
    """Return bias, probabilities and loss bias, as mpf; in sums of which none is subtracted."""
    e = [mp.exp(mpf(float(x))) for x in logits]
    inside = {int(label), *map(int, ids)}
    kept = mp.fsum(e[j] for j in inside)
    rest = mp.fsum(x for j, x in enumerate(e) if j not in inside)
    p = [x / (kept + rest) for x in e]
    # e / kept - e / (kept + rest)
    bias = [p[j] * rest / kept if j in inside else -p[j] for j in range(len(e))]
    return bias, p, -mp.log1p(rest / kept)


def distance(wanted, found):
    return float(mp.fsum(abs(x - mpf(float(y))) for x, y in zip(wanted, found, strict=True)))


SPREADS = [0.0, 1.0, 30.0, 1e4]


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("n", [1, 2, 7, 60])
def test_equals_the_definition_and_the_errors_are_bounds(n, spread):
    rng = np.random.default_rng(n)
    with mp.workdps(40):
        for _ in range(5):
            logits, label = spread * rng.normal(size=n), int(rng.integers(n))
            for ids in ([label], rng.integers(n, size=3), np.argsort(-logits)[: n // 2 + 1]):
                result = truncated_bias(logits, label, ids)
                bias, p, loss = oracle(logits, label, ids)
                size = float(mp.fsum(map(abs, bias)))
                off = distance(bias, result.bias)
                assert off <= result.error + 1e-300
                assert result.error <= 1e-11 * size + 1e-300
                assert abs(loss - mpf(float(result.loss_bias))) <= result.loss_error + 1e-300
                assert result.loss_error <= 1e-11 * abs(float(loss)) + 1e-300
                np.testing.assert_allclose(
                    result.probs, [float(x) for x in p], rtol=1e-11, atol=1e-300
                )
                # half of the L1 norm is the mass outside
                assert np.abs(result.bias).sum() == pytest.approx(
                    2 * float(1 - mp.exp(loss)), rel=1e-9
                )


def test_no_digits_are_lost_where_the_set_has_nearly_all_of_the_mass():
    logits = np.array([40.0, 39.0, 0.0, -1.0])
    result = truncated_bias(logits, 1, [0])
    with mp.workdps(60):
        bias, _, loss = oracle(logits, 1, [0])
        assert distance(bias, result.bias) < 1e-14 * 1e-17
        assert float(loss) == pytest.approx(result.loss_bias, rel=1e-14, abs=0.0)
    assert -1e-17 < result.loss_bias < 0.0
    # the twin subtracts
    p = np.exp(logits - logits.max())
    p /= p.sum()
    assert np.log(p[:2].sum()) != pytest.approx(result.loss_bias, rel=0.5, abs=0.0)


def test_all_classes_leave_no_bias_and_duplicates_count_once():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(4, 6)), [0, 5, 2, 2]
    full = truncated_bias(logits, labels, np.tile(np.arange(6), 2))
    assert not full.bias.any() and not full.loss_bias.any() and not full.error.any()
    assert full.loss_bias.shape == full.error.shape == full.loss_error.shape == (4,)
    once = truncated_bias(logits, labels, [1, 3, 4])
    twice = truncated_bias(logits, labels, [[1, 3, 4, 4, 3]])
    for name in ("bias", "probs", "loss_bias"):
        np.testing.assert_array_equal(getattr(once, name), getattr(twice, name))
    own = np.array([[1, 2], [1, 3], [0, 1], [4, 5]])
    rows = truncated_bias(logits, labels, own)
    for i, label in enumerate(labels):
        alone = truncated_bias(logits[i], label, own[i])
        np.testing.assert_array_equal(rows.bias[i], alone.bias)
        assert rows.loss_bias[i] == alone.loss_bias
    none = truncated_bias(logits, labels, np.empty((4, 0), int))  # the label alone
    np.testing.assert_allclose(none.expected_probs, np.eye(6)[labels], atol=1e-15)


def test_the_gradient_is_that_of_the_loss_on_the_set():
    """By finite differences of both losses, in other parameters."""
    rng = np.random.default_rng(1)
    rows, h, kept = rng.normal(size=(7, 3)), rng.normal(size=3), [2, 4, 5]

    def gap(x):
        o = rows @ x
        return np.log(np.exp(o[kept]).sum()) - np.log(np.exp(o).sum())

    result = truncated_bias(rows @ h, 4, [2, 5])
    assert result.loss_bias == pytest.approx(gap(h))
    steps = 1e-6 * np.eye(3)
    slopes = [(gap(h + s) - gap(h - s)) / 2e-6 for s in steps]
    np.testing.assert_allclose(result.gradient_bias(rows), slopes, rtol=1e-7, atol=1e-9)


def test_the_best_classes_of_an_older_model_leave_more_bias():
    """Top-k of old logits: the bias grows with the steps since, and more draws do not help."""
    rng = np.random.default_rng(2)
    old = 3.0 * rng.normal(size=(30, 200))
    labels = rng.integers(200, size=30)
    ids = np.argsort(-old, axis=1)[:, :20]
    sizes, other = [], 3.0 * rng.normal(size=old.shape)
    for angle in (0.0, 0.2, 0.4, 0.7, 1.1, 1.5):
        now = np.cos(angle) * old + np.sin(angle) * other
        result = truncated_bias(now, labels, ids)
        sizes.append(np.abs(result.bias).sum(axis=1).mean())
        # no set of as many classes, the label with them, has less bias than the best of today
        best = truncated_bias(now, labels, np.argsort(-now, axis=1)[:, :21])
        assert (best.loss_bias >= result.loss_bias - 1e-12).all()
    assert (np.diff(sizes) > 0.01).all() and sizes[-1] > 5.0 * sizes[0]
    # drawn classes beside the same set, with their weights, have a bias that falls with m
    q = np.full(200, 1 / 200)
    few, many = (
        np.abs(exact_bias(now[0], labels[0], q, m, certain=ids[0]).bias).sum() for m in (10, 1000)
    )
    assert many < 0.05 * few
    assert few < np.abs(result.bias[0]).sum()


def test_a_set_of_nothing_is_the_label_alone():
    np.testing.assert_allclose(truncated_bias([0.0, 0.0], 0, []).bias, [0.5, -0.5])


def test_logits_at_the_end_of_the_range():
    result = truncated_bias([1e308, -1e308, 1e308], 1, [2])
    assert np.isfinite(result.bias).all() and np.isfinite(result.error)
    np.testing.assert_allclose(result.bias, [-0.5, 0.0, 0.5])
    assert result.loss_bias == pytest.approx(-np.log(2.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.0, np.inf], 0, [1]), "`logits` must be finite"),
        (([0.0, 1.0], 2, [1]), "`labels` must lie in 0..1"),
        (([0.0, 1.0], 0, [-1]), "`ids` must lie in 0..1"),
        (([[0.0, 1.0]] * 3, [0, 1, 0], [0, 1, 1]), r"`ids` must have shape \(3, k\)"),
    ],
)
def test_malformed_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        truncated_bias(*arguments)
    with pytest.raises(TypeError, match="`ids` must hold integers"):
        truncated_bias([0.0, 1.0], 0, [0.5])
