"""Tests of the assignment, which say in words what is wrong: `python -m pytest -q --tb=short`.

They call what stands in `adapters.py`. Gradients are held against finite differences, and what is
sampled, and its bias, against samplesoft.
"""

import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax
from scipy.stats import chisquare

import samplesoft

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for files that adapters.py imports, from any folder


def load_adapters():
    """Load the file beside this one, and no other of its name."""
    spec = importlib.util.spec_from_file_location("adapters", HERE / "adapters.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


adapters = load_adapters()
STEP = 1e-6  # of finite differences


def wrong(message):
    """End a test with a sentence, and without the lines of its code."""
    pytest.fail(message, pytrace=False)


def array(what, value, shape):
    """Return a result as an array, if it is one of real numbers of this shape."""
    found = np.asarray(value)
    if found.shape != shape:
        wrong(f"{what} must have shape {shape}; yours has {found.shape}.")
    if found.dtype.kind not in "fiu":
        wrong(f"{what} must hold real numbers; yours has dtype {found.dtype}.")
    if not np.isfinite(found).all():
        wrong(f"{what} must be finite; yours has {np.sum(~np.isfinite(found))} that are not.")
    return found.astype(float)


def results(what, value, count):
    """Return the results of a function that has several."""
    if not isinstance(value, tuple) or len(value) != count:
        kind = f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__
        wrong(f"{what} must return a tuple of {count}; yours returned {kind}.")
    return value


def near(found, right, within=1e-5):
    """Return where two arrays agree, within a part of the largest number of the right one."""
    return np.abs(found - right) <= within * max(1e-12, np.abs(right).max())


def judge(what, found, right, mistakes, within=1e-5):
    """Let a result pass if it is right; else name the mistake that makes it, or show both."""
    if near(found, right, within).all():
        return
    for sentence, mistaken in mistakes.items():
        if np.isfinite(mistaken).all() and near(found, mistaken, within).all():
            wrong(f"{what}: {sentence}")
    place = np.unravel_index(np.argmax(np.abs(found - right)), right.shape)
    index = ", ".join(str(i) for i in place)
    wrong(
        f"{what} is wrong at [{index}]: {right[place]:.7g} is right, yours is {found[place]:.7g}."
    )


def slopes(function, point):
    """Return the derivative of a sum of losses in each entry of an array, by differences."""
    gradient = np.zeros(point.shape)
    for index in np.ndindex(point.shape):
        above, below = point.copy(), point.copy()
        above[index] += STEP
        below[index] -= STEP
        gradient[index] = (np.sum(function(above)) - np.sum(function(below))) / (2 * STEP)
    return gradient


# 1. The softmax and its gradient -----------------------------------------------------------------


def softmax_case():
    rng = np.random.default_rng(1)
    scores = rng.normal(0.0, 2.0, (4, 6))
    labels = np.array([2, 0, 5, 2])
    return scores, labels


def right_losses(scores, labels):
    return -np.take_along_axis(log_softmax(scores, axis=1), labels[:, None], axis=1)[:, 0]


def test_task_1_losses():
    scores, labels = softmax_case()
    losses, _ = results("softmax_loss", adapters.softmax_loss(scores.copy(), labels.copy()), 2)
    right = right_losses(scores, labels)
    own = np.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    mistakes = {
        "the sign is wrong. It is -log p_t.": -right,
        "you return p_t. The loss is -log p_t.": np.exp(-right),
        "you return log Z. The score of the label is to be subtracted.": right + own,
        "you divide by the number of examples. Each example has its own loss.": right / len(right),
    }
    judge("The loss", array("The losses", losses, right.shape), right, mistakes)


def test_task_1_large_scores():
    scores = np.array(
        [[10_000.0, 9_999.0, -10_000.0], [-10_000.0, -10_000.0, -10_001.0], [0.0, 1.0, 10_000.0]]
    )
    labels = np.array([2, 1, 2])
    with np.errstate(all="ignore"):
        found = adapters.softmax_loss(scores.copy(), labels.copy())
    losses, gradient = results("softmax_loss", found, 2)
    if not np.isfinite(losses).all() or not np.isfinite(gradient).all():
        wrong(
            "Scores of 10,000 overflow exp, or the p of a label with -10,000 is 0, and its "
            "logarithm is not finite. See question 1, and take the logarithm by hand."
        )
    right = right_losses(scores, labels)
    judge("The loss of large scores", array("The losses", losses, right.shape), right, {})
    a, b = 0.7310585786300049, 0.4223187982515182
    right = np.array([[a, 1.0 - a, -1.0], [b, b - 1.0, 1.0 - 2.0 * b], [0.0, 0.0, 0.0]])
    judge("Their gradient", array("The gradient", gradient, right.shape), right, {})


def test_task_1_gradient():
    scores, labels = softmax_case()
    _, gradient = results("softmax_loss", adapters.softmax_loss(scores.copy(), labels.copy()), 2)
    right = slopes(lambda x: right_losses(x, labels), scores)
    at_label = np.eye(scores.shape[1])[labels]
    mistakes = {
        "the sign is wrong.": -right,
        "the term of the label is missing: -o_t has a derivative too.": right + at_label,
        "you divide by the number of examples. Each example has its own loss.": right / len(right),
    }
    judge("The gradient", array("The gradient", gradient, right.shape), right, mistakes)


# 2. A loss over samples --------------------------------------------------------------------------


def sampled_case():
    rng = np.random.default_rng(2)
    W = rng.standard_normal((10, 3))
    h = rng.standard_normal((5, 3))
    labels = np.array([1, 4, 1, 8, 7])
    # a class drawn twice, two hits, the label of another example, hits alone, nothing special
    ids = np.array([[0, 3, 3, 5], [6, 4, 4, 2], [5, 2, 4, 0], [8, 8, 8, 8], [2, 9, 3, 0]])
    return W, h, labels, ids


def losses_by_loops(W, h, labels, ids, left_out=None, with_label=True):
    """Return what task 2 asks for; `left_out` (B,) are sets of classes, in place of the label."""
    found = []
    for b, (vector, label) in enumerate(zip(h, labels, strict=True)):
        without = {label} if left_out is None else left_out[b]
        total = np.exp(vector @ W[label]) if with_label else 0.0
        for j in ids[b]:
            if j not in without:
                total += np.exp(vector @ W[j])
        with np.errstate(divide="ignore"):
            found.append(np.log(total) - vector @ W[label])
    return np.array(found)


def run_sampled_loss():
    W, h, labels, ids = sampled_case()
    return results(
        "sampled_loss", adapters.sampled_loss(W.copy(), h.copy(), labels.copy(), ids.copy()), 3
    )


def test_task_2_losses():
    losses, _, _ = run_sampled_loss()
    W, h, labels, ids = sampled_case()
    right = losses_by_loops(W, h, labels, ids)
    none, every = [set()] * len(h), [set(labels.tolist())] * len(h)
    mistakes = {
        "an accidental hit is counted. A draw of the label is to be left out.": losses_by_loops(
            W, h, labels, ids, none
        ),
        "the labels of all examples are left out. Only its own is a hit.": losses_by_loops(
            W, h, labels, ids, every
        ),
        "the label is not in the sum.": losses_by_loops(W, h, labels, ids, with_label=False),
        "the sign is wrong.": -right,
    }
    found = array("The losses", losses, right.shape)
    judge("The sampled loss", found, right, mistakes)


def test_task_2_large_scores():
    W = np.array([[100.0], [90.0], [-100.0]])
    h = np.array([[100.0], [-100.0], [100.0]])
    labels, ids = np.array([1, 0, 0]), np.array([[0, 2], [1, 0], [0, 0]])
    with np.errstate(all="ignore"):
        found = adapters.sampled_loss(W.copy(), h.copy(), labels.copy(), ids.copy())
    losses, dh, dW = results("sampled_loss", found, 3)
    if not all(np.isfinite(part).all() for part in (losses, dh, dW)):
        wrong(
            "Scores of 10,000 are not finite. Subtract the largest of the label's and the draws' "
            "scores; all draws may be hits, and none larger than the label."
        )
    right = np.array([1000.0, 1000.0, 0.0])
    judge("The loss of large scores", array("The losses", losses, (3,)), right, {})
    judge("Their gradient in h", array("dh", dh, (3, 1)), np.array([[10.0], [-10.0], [0.0]]), {})
    judge("Their gradient in W", array("dW", dW, (3, 1)), np.array([[200.0], [-200.0], [0.0]]), {})


def test_task_2_gradient_in_h():
    _, dh, _ = run_sampled_loss()
    W, h, labels, ids = sampled_case()
    right = slopes(lambda x: losses_by_loops(W, x, labels, ids), h)
    mistakes = {
        "the term of the label is missing: -o_t has a derivative too.": right + W[labels],
        "you divide by the number of examples; it is the gradient of the sum.": right / len(h),
        "the sign is wrong.": -right,
    }
    judge("The gradient in h", array("dh", dh, right.shape), right, mistakes)


def parts_of_gradient(W, h, labels, ids):
    """Return what each label (B, d) and each draw (B, m, d) adds to the gradient in W."""
    m = ids.shape[1]
    of_labels, of_draws = np.zeros(h.shape), np.zeros((*ids.shape, h.shape[1]))
    for b in range(len(h)):
        rows = np.vstack([W[labels[b]], W[ids[b]]])  # a row of its own for each
        places = np.where(ids[b] == labels[b], 0, 1 + np.arange(m))[None]
        example = h[b : b + 1], np.array([0]), places
        parts = slopes(lambda x, example=example: losses_by_loops(x, *example), rows)
        of_labels[b], of_draws[b] = parts[0], parts[1:]
    return of_labels, of_draws


def keeps_one(W, h, labels, ids, found):
    """Tell whether of what is added to a row of the gradient only some is there."""
    of_labels, of_draws = parts_of_gradient(W, h, labels, ids)
    for c in range(len(W)):
        of_label, of_draw = of_labels[labels == c], of_draws[ids == c]
        possible = [
            a + b
            for a in [0.0, of_label.sum(axis=0), *of_label]
            for b in [0.0, of_draw.sum(axis=0), *of_draw]
        ]
        if not any(near(found[c], part + np.zeros(h.shape[1]), 1e-4).all() for part in possible):
            return False
    return True


def test_task_2_gradient_in_W():
    _, _, dW = run_sampled_loss()
    W, h, labels, ids = sampled_case()
    right = slopes(lambda x: losses_by_loops(x, h, labels, ids), W)
    found = array("dW", dW, right.shape)
    at_labels = np.zeros(W.shape)
    np.add.at(at_labels, labels, h)
    mistakes = {
        "the term of the label is missing: -o_t has a derivative too.": right + at_labels,
        "you divide by the number of examples; it is the gradient of the sum.": right / len(h),
        "the sign is wrong.": -right,
    }
    if not near(found, right).all() and keeps_one(W, h, labels, ids, found):
        wrong(
            "The gradient in W has some of what labels and draws add to a class, and not all. "
            "`dW[ids] += g` keeps one part of those of a class: see numpy.add.at."
        )
    judge("The gradient in W", found, right, mistakes)


# 3. The correction -------------------------------------------------------------------------------


def run_corrected_loss(W, h, labels, q, m, seed):
    rng = np.random.default_rng(seed)
    found = adapters.corrected_loss(W.copy(), h.copy(), labels.copy(), q.copy(), m, rng)
    return results("corrected_loss", found, 3)


def test_task_3_if_one_class_is_always_drawn():
    """Then the sum over draws is exp of its score, whatever m."""
    rng = np.random.default_rng(3)
    W, h = rng.standard_normal((4, 2)), rng.standard_normal((3, 2))
    labels, q, m = np.array([0, 1, 3]), np.array([0.0, 1.0, 0.0, 0.0]), 7

    def losses_of(W, h, times=1.0):
        own, drawn = np.sum(h * W[labels], axis=1), h @ W[1]
        return np.log(np.exp(own) + times * np.where(labels == 1, 0.0, np.exp(drawn))) - own

    losses, dh, dW = run_corrected_loss(W, h, labels, q, m, 0)
    mistakes = {
        "m is missing: a class is drawn m q times on average.": losses_of(W, h, m),
        "the number of examples stands where m should.": losses_of(W, h, m / len(h)),
    }
    right = losses_of(W, h)
    judge("The corrected loss", array("The losses", losses, right.shape), right, mistakes)
    right = slopes(lambda x: losses_of(W, x), h)
    judge("Its gradient in h", array("dh", dh, h.shape), right, {})
    right = slopes(lambda x: losses_of(x, h), W)
    judge("Its gradient in W", array("dW", dW, W.shape), right, {})


def test_task_3_the_draws():
    W, h, labels = np.zeros((3, 1)), np.ones((300, 1)), np.zeros(300, dtype=int)
    q = np.array([0.0, 0.25, 0.75])
    for m in (1, 2, 3):  # k of m draws are of class 1, and each k has a loss of its own
        losses = run_corrected_loss(W, h, labels, q, m, 0)[0]
        there = len(np.unique(np.round(losses, 9)))
        if there == 1:
            wrong(
                "All examples have the same draws, or a draw has no weight by q. Draw m for each."
            )
        if there != m + 1:
            wrong(
                f"{m} draws of two classes make {m + 1} losses here; yours has {there}. See "
                "whether you draw m, and by q: the third class has q = 0."
            )
        again = run_corrected_loss(W, h, labels, q, m, 0)[0]
        if not np.array_equal(losses, again):
            wrong("The same `rng` must give the same draws: take no other source.")
        if np.array_equal(losses, run_corrected_loss(W, h, labels, q, m, 1)[0]):
            wrong("Another `rng` must give other draws: draw from it.")


def test_task_3_large_scores():
    W, h = np.array([[100.0], [90.0], [-100.0]]), np.array([[100.0], [-100.0]])
    labels, q = np.array([1, 0]), np.array([1.0, 0.0, 0.0])
    with np.errstate(all="ignore"):
        losses = run_corrected_loss(W, h, labels, q, 3, 0)[0]
    judge("The loss", array("The losses", losses, (2,)), np.array([1000.0, 0.0]), {})


def test_task_3_what_the_loss_estimates():
    q = np.arange(1.0, 13.0)
    q = q / q.sum()

    def loss(W, h, labels, m, seed):
        return run_corrected_loss(W, h, labels, q, m, seed)

    report = samplesoft.check_loss(loss, q, 6)
    if report.ok and report.scheme != "masked":
        wrong(
            f"This is a right loss, but another one: `{report.scheme}`, and not `masked`.\n"
            + report.verdict
        )
    if not report.ok:
        wrong(f"check_loss says:\n{report.verdict}")


# 4. An alias table -------------------------------------------------------------------------------


def distributions():
    rng = np.random.default_rng(4)
    skewed = 1.0 / np.arange(1.0, 20_001.0)
    return {
        "four classes": np.array([0.1, 0.2, 0.3, 0.4]),
        "the same for all": np.ones(10),
        "one class": np.ones(1),
        "classes of probability 0": np.array([0.0, 3.0, 0.0, 1.0, 0.0]),
        "300 at random": rng.gamma(0.3, size=300),
        "20,000 by rank": rng.permutation(skewed),
    }


def run_alias_table(q):
    threshold, alias = results("alias_table", adapters.alias_table(q.copy()), 2)
    threshold = array("threshold", threshold, q.shape)
    alias = np.asarray(alias)
    if alias.shape != q.shape or alias.dtype.kind not in "iu":
        wrong(f"alias must hold {len(q)} integers; yours has {alias.shape}, {alias.dtype}.")
    if alias.min() < 0 or alias.max() >= len(q):
        wrong("alias must hold classes, from 0 to n - 1.")
    return threshold, alias


@pytest.mark.parametrize("name", distributions())
def test_task_4_the_columns_add_up(name):
    q = distributions()[name]
    q = q / q.sum()
    threshold, alias = run_alias_table(q)
    if threshold.min() < 0 or threshold.max() > 1 + 1e-9:
        wrong("A threshold is not between 0 and 1: a column has one class up to there.")
    columns = threshold + np.bincount(alias, 1.0 - threshold, minlength=len(q))
    off = np.abs(columns / len(q) - q)
    worst = int(np.argmax(off))
    if off[worst] > 1e-9:
        wider = len(q) * threshold
        if np.allclose(wider + np.bincount(alias, 1.0 - wider, minlength=len(q)), len(q) * q):
            wrong("A threshold is a part of its column, which is 1 / n wide: multiply by n.")
        wrong(
            f"With {name}, class {worst} has {columns[worst] / len(q):.6g} of all columns and "
            f"should have {q[worst]:.6g}. What a column has left goes to a class that has more "
            "than a column; columns that are left over at the end are full."
        )


def test_task_4_the_time():
    """Eight times as many classes take 8 times as long, or 64 times by the square of n."""
    rng = np.random.default_rng(7)
    few, many = rng.gamma(0.5, size=20_000), rng.gamma(0.5, size=160_000)
    times = []
    for q in (few, many):
        begin = time.perf_counter()
        adapters.alias_table(q / q.sum())
        times.append(time.perf_counter() - begin)
    if times[1] > 0.5 + 25.0 * times[0]:
        wrong(
            f"Eight times as many classes take {times[1] / times[0]:.0f} times as long. Keep two "
            "lists, of the classes with less and with more than a column, and search nothing."
        )


def test_task_4_draws_of_given_numbers():
    threshold, alias = np.array([0.5, 1.0, 0.25, 0.0]), np.array([1, 1, 0, 2])
    u = (np.array([0.0, 0.49, 0.51, 0.99, 1.0, 1.99, 2.24, 2.26, 3.0, 3.5]) / 4.0)[::-1]
    right = np.array([0, 0, 1, 1, 1, 1, 2, 0, 2, 2])[::-1]
    found = np.asarray(adapters.alias_draw(threshold.copy(), alias.copy(), u.copy()))
    if found.shape != right.shape or not np.array_equal(found, right):
        place = 0 if found.shape != right.shape else int(np.argmax(found != right))
        wrong(
            f"With threshold {threshold.tolist()} and alias {alias.tolist()}, u = {u.tolist()} "
            f"leads to {right.tolist()}; yours to {found.tolist()}. For u = {u[place]:.4f} "
            f"n u is {4 * u[place]:.2f}: column {int(4 * u[place])}, and {4 * u[place] % 1:.2f} is "
            "held against its threshold: class i below it, alias[i] from it on."
        )


def test_task_4_the_draws():
    rng = np.random.default_rng(5)
    q = rng.gamma(0.5, size=40)
    q = q / q.sum()
    threshold, alias = run_alias_table(q)
    count = 200_000
    drawn = np.asarray(adapters.alias_draw(threshold, alias, rng.random(count)))
    if drawn.shape != (count,) or drawn.dtype.kind not in "iu":
        wrong(f"alias_draw must return {count} integers; yours: {drawn.shape}, {drawn.dtype}.")
    if drawn.min() < 0 or drawn.max() >= len(q):
        wrong("alias_draw must return classes, from 0 to n - 1.")
    times = np.bincount(drawn, minlength=len(q))
    often = count * q >= 5  # else there is no chi-square distribution
    observed = np.append(times[often], times[~often].sum())
    expected = count * np.append(q[often], q[~often].sum())
    used = expected > 0
    if chisquare(observed[used], expected[used]).pvalue < 1e-6:
        worst = int(np.argmax(np.abs(times - count * q) / np.sqrt(count * q)))
        wrong(
            f"Class {worst} was drawn {times[worst]:,} times of {count:,}, and "
            f"{count * q[worst]:,.0f} are expected. If the columns add up, see what is left of "
            "the number after its column was taken: it is uniform again, and independent of it."
        )


# 5. The exact bias of one example ----------------------------------------------------------------


def bias_cases():
    rng = np.random.default_rng(6)
    small, q = np.array([0.5, -1.0, 2.0, 0.0]), np.array([0.4, 0.3, 0.1, 0.2])
    scores, many = rng.normal(0.0, 2.0, 200), rng.dirichlet(np.ones(200))
    rare = np.array([-20.0, 1.0, 2.0, 0.0])
    return {
        "m = 2, n = 4": (small, 0, q, 2),
        "m = 1": (small, 2, q, 1),
        "m = 100, n = 200": (scores, 7, many, 100),
        "m = 40, n = 200": (scores[::-1].copy(), 3, many, 40),
        "scores near 1,000": (small + 1_000.0, 1, q, 3),
        "a label 20 below the others": (rare, 0, np.array([0.3, 0.3, 0.2, 0.2]), 30),
        "a label 20 below the others, and mostly drawn": (
            rare,
            0,
            np.array([0.9, 0.04, 0.03, 0.03]),
            3,
        ),
        "a label that is hardly ever drawn": (small, 1, np.array([0.5, 1e-7, 0.3, 0.2]), 50),
        "another class that is hardly ever drawn": (small, 0, np.array([0.5, 0.3, 1e-6, 0.2]), 50),
    }


@pytest.mark.parametrize("name", bias_cases())
def test_task_5_the_bias_is_exact(name):
    scores, label, q, m = bias_cases()[name]
    q = q / q.sum()
    found = adapters.exact_bias(scores.copy(), label, q.copy(), m)
    loss, gradient = results("exact_bias", found, 2)
    loss = array("The bias of the loss", loss, ())
    gradient = array("The bias of the gradient", gradient, scores.shape)
    right = samplesoft.exact_bias(scores, label, q, m, scheme="candidate_masked")
    hits = samplesoft.exact_bias(scores, label, q, m, scheme="candidate")
    plain = samplesoft.exact_bias(scores, label, q, m, scheme="masked")
    full = right_losses(scores[None], np.array([label]))[0]
    p = np.exp(log_softmax(scores))
    at_label = np.arange(len(q)) == label
    mistakes = {
        "the sign is wrong. It is the sampled mean minus the full loss.": -right.loss_bias,
        "you return the mean of the loss. Subtract the full one.": right.loss_bias + full,
        "draws of the label are counted. They add nothing to S.": hits.loss_bias,
        "that is the loss of task 3. Here the label is corrected too.": plain.loss_bias,
        "log(m q_t) is missing: it is subtracted with o_t.": right.loss_bias - np.log(m * q[label]),
    }
    title = f"The bias of the loss, {name}"
    judge(title, np.atleast_1d(loss), np.atleast_1d(right.loss_bias), mistakes, within=1e-7)
    mistakes = {
        "the sign is wrong. It is the sampled mean minus the full gradient.": -right.bias,
        "you return the mean of what classes have in S over S. Subtract p.": right.bias + p,
        "the one at t is in both gradients, and cancels.": right.bias - at_label,
        "draws of the label are counted. They add nothing to S.": hits.bias,
        "that is the loss of task 3. Here the label is corrected too.": plain.bias,
    }
    judge(f"The bias of the gradient, {name}", gradient, right.bias, mistakes, within=1e-7)


# 6. A better proposal ----------------------------------------------------------------------------

EXAMPLES, JUDGED, DRAWS = 400, 40, 32
OURS = 0.622  # the graders' bias over that of frequencies


def examples():
    """Return the scores of examples to learn from, scores and labels of others, and counts."""
    rng = np.random.default_rng(0)
    n, d, topics = 300, 6, 8
    W = rng.standard_normal((n, d))
    popular = -1.2 * np.log(np.arange(1, n + 1))
    rng.shuffle(popular)
    centres = 1.5 * rng.standard_normal((topics, d))
    topic = rng.choice(topics, EXAMPLES + JUDGED, p=rng.dirichlet(np.ones(topics)))
    h = centres[topic] + 0.5 * rng.standard_normal((EXAMPLES + JUDGED, d))
    scores = h @ W.T + popular
    labels = np.array([rng.choice(n, p=np.exp(row)) for row in log_softmax(scores, axis=1)])
    counts = np.bincount(labels[:EXAMPLES], minlength=n) + 1.0
    return scores[:EXAMPLES], scores[EXAMPLES:], labels[EXAMPLES:], counts


def mean_bias(q, scores, labels):
    biases = [
        samplesoft.exact_bias(row, label, q, DRAWS, scheme="masked").bias
        for row, label in zip(scores, labels, strict=True)
    ]
    return np.mean([np.abs(bias).sum() for bias in biases])


def share_of_frequencies():
    known, scores, labels, counts = examples()
    q = array("The proposal", adapters.better_proposal(known.copy()), known.shape[1:])
    if q.min() <= 0 or abs(q.sum() - 1) > 1e-9:
        wrong(
            f"A proposal adds up to 1 and gives every class a chance; yours adds up to "
            f"{q.sum():.9g}, and its least probability is {q.min():.3g}."
        )
    return mean_bias(q, scores, labels) / mean_bias(counts / counts.sum(), scores, labels)


def test_task_6_better_than_frequencies():
    share = share_of_frequencies()
    if share > 0.9:
        wrong(
            f"The bias is {share:.0%} of that by frequencies; at most 90% is asked. What do the "
            "scores say that frequencies do not?"
        )


def test_task_6_as_good_as_ours():
    share = share_of_frequencies()
    if share > 1.03 * OURS:
        wrong(
            f"The bias is {share:.1%} of that by frequencies, and the graders' {OURS:.1%}. "
            "Answer question 6 first."
        )
