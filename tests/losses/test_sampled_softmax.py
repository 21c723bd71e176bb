"""What losses on draws tend to: the sign and the scale of every correction."""

from itertools import combinations

import numpy as np
import pytest
from mpmath import mp
from oracles.loss_cases import LABEL, SCORES, full_softmax, of_scores
from oracles.naive_losses import every_draw

from samplesoft.losses.registry import make_loss
from samplesoft.samplers import UniformSampler, WeightedSampler
from samplesoft.samplers.base import Draw

COUNTS = np.array([1, 2, 3, 1, 3])  # q is COUNTS / 10
IMPORTANCE_CONVENTION = ["sampled", "sampled-masked", "sampled-reject"]


def proposal(loss):
    """Counts and probabilities of what the loss draws from."""
    counts = np.array(COUNTS)
    if loss.excludes_label:
        counts[LABEL] = 0
    return counts, counts / counts.sum()


def proportional(loss, times):
    """Draws in which each class comes just as often as expected, the rarest so many times.

    The estimate of the sum of exp(o) is exact then. Returns ids, log q and the log expected count
    of the label.
    """
    counts, q = proposal(loss)
    ids = np.repeat(np.arange(len(SCORES)), times * counts)[None]
    own = np.log(ids.shape[1] * COUNTS[LABEL] / COUNTS.sum()) if loss.needs_label_count else None
    return ids, np.log(q[ids]), own


def off(found, o=SCORES):
    """Largest distance to the full softmax, of the loss or of its gradient."""
    loss, gradient = full_softmax(o)
    return max(abs(found[0] - loss), np.abs(found[1] - gradient).max())


WRONG = {
    "added": lambda log_q, m: -log_q - 2.0 * np.log(m),  # + log(m q) for - log(m q)
    "probability": lambda log_q, m: log_q - np.log(m),  # q for m q
    "inclusion": lambda log_q, m: np.log(-np.expm1(m * np.log1p(-np.exp(log_q)))) - np.log(m),
    "none": lambda log_q, m: np.full_like(log_q, -np.log(m)),
}


@pytest.mark.parametrize("name", IMPORTANCE_CONVENTION)
@pytest.mark.parametrize("times", [1, 7, 1000])
def test_the_importance_convention_gives_the_full_softmax(name, times):
    loss = make_loss(name)
    ids, log_q, own = proportional(loss, times)
    assert off(of_scores(loss, Draw(ids, log_q), label_log_count=own)) < 1e-12


@pytest.mark.parametrize("name", IMPORTANCE_CONVENTION)
@pytest.mark.parametrize("wrong", WRONG)
def test_and_not_with_a_wrong_correction(name, wrong):
    loss = make_loss(name)
    ids, log_q, own = proportional(loss, 7)
    draw = Draw(ids, WRONG[wrong](log_q, ids.shape[1]))
    assert off(of_scores(loss, draw, label_log_count=own)) > 0.1


def test_what_rejection_adds_is_the_number_of_draws_that_are_kept():
    """With too few hits by chance, masking is off and rejection is not."""
    masked, reject = make_loss("sampled-masked"), make_loss("sampled-reject")
    ids, log_q, own = proportional(reject, 7)
    draw = Draw(*(np.delete(x, np.flatnonzero(ids == LABEL)[:9], axis=1) for x in (ids, log_q)))
    own += np.log(draw.ids.shape[1] / ids.shape[1])
    assert off(of_scores(reject, draw, label_log_count=own)) < 1e-12
    assert off(of_scores(masked, draw)) > 0.01
    wrong = np.log(-np.expm1(own - np.log(draw.ids.shape[1])))  # that of the others for its own
    assert off(of_scores(reject, draw, label_log_count=wrong)) > 0.01


def log_normalised(o):
    return o - np.log(np.exp(o).sum())


SLOW = {"jackknife": SCORES, "jackknife-masked": SCORES, "nce": log_normalised(SCORES)}


@pytest.mark.parametrize("name", SLOW)
def test_losses_that_tend_to_the_full_softmax(name):
    """The gradient of NCE does where scores are log-probabilities, but not its loss."""
    loss, o = make_loss(name), SLOW[name]

    def distance(times, change=lambda log_q, m: log_q):
        ids, log_q, own = proportional(loss, times)
        draw = Draw(ids, change(log_q, ids.shape[1]))
        found = of_scores(loss, draw, o, label_log_count=own)
        return off(found if name != "nce" else (full_softmax(o)[0], found[1]), o)

    assert distance(10) > 1e-4
    assert distance(1_000) < 2.0 / 1_000
    assert distance(20_000) < 2.0 / 20_000
    for wrong in WRONG.values():
        assert distance(1_000, wrong) > 0.05


def test_nce_does_not_where_scores_are_not_log_probabilities():
    loss = make_loss("nce")
    ids, log_q, own = proportional(loss, 20_000)
    found = of_scores(loss, Draw(ids, log_q), SCORES, label_log_count=own)
    assert np.abs(found[1] - full_softmax()[1]).max() > 0.1


@pytest.mark.parametrize("name", IMPORTANCE_CONVENTION)
def test_many_random_draws_come_near_the_full_softmax(name):
    """The same with the draws, probabilities and counts that a sampler gives."""
    loss, sampler, m = make_loss(name), WeightedSampler(COUNTS), 400_000
    exclude = np.array([LABEL]) if loss.excludes_label else None
    draw = sampler.sample(None, m, exclude=exclude, rng=3)
    own = sampler.log_expected_count(None, [LABEL], m)[0, 0]
    own = own if loss.needs_label_count else None
    assert off(of_scores(loss, draw, label_log_count=own)) < 0.01
    for wrong in WRONG.values():
        twin = Draw(draw.ids, wrong(draw.log_q, m))
        assert off(of_scores(loss, twin, label_log_count=own)) > 0.1


@pytest.mark.parametrize(
    "sampler",
    [UniformSampler(5, replace=False), WeightedSampler(COUNTS, replace=False)],
    ids=["uniform", "weighted"],
)
@pytest.mark.parametrize("name", ["sampled", "sampled-absolute", "sampled-masked"])
def test_all_classes_without_replacement_are_the_full_softmax(sampler, name):
    loss = make_loss(name)
    o = np.abs(SCORES) if loss.absolute else SCORES
    exclude = np.array([LABEL]) if loss.excludes_label else None
    m = 4 if loss.excludes_label else 5
    draw = sampler.sample(None, m, exclude=exclude, rng=1)
    value, gradient = of_scores(loss, draw)
    if loss.absolute:
        gradient[SCORES != 0.0] *= np.sign(SCORES)[SCORES != 0.0]
        gradient[SCORES == 0.0] = full_softmax(o)[1][SCORES == 0.0]  # |o| has no slope at 0
    assert off((value, gradient), o) < 1e-12
    if not isinstance(sampler, UniformSampler):
        twin = Draw(draw.ids, draw.log_q)  # expected counts as if with replacement
        assert abs(of_scores(loss, twin)[0] - full_softmax(o)[0]) > 0.005


def test_the_estimated_sum_is_unbiased_without_replacement():
    """E[exp(loss)] over all samples, for which the probabilities of inclusion are needed."""
    sampler, loss = WeightedSampler(COUNTS, replace=False), make_loss("sampled", reduction="none")
    weights = np.delete(COUNTS, LABEL) / (COUNTS.sum() - COUNTS[LABEL])
    classes = np.delete(np.arange(5), LABEL)
    sets, chances = [], []
    for i in range(4):
        for j in range(4):
            if i != j:
                sets.append(classes[[i, j]])
                chances.append(weights[i] * weights[j] / (1.0 - weights[i]))
    ids = np.array(sets)
    exclude = np.full(len(ids), LABEL)
    log_q = sampler.log_prob(None, ids, exclude=exclude)
    inclusion = sampler.log_expected_count(None, ids, 2, exclude=exclude)
    wanted = np.exp(full_softmax()[0])
    mean = np.exp(of_scores(loss, Draw(ids, log_q, inclusion))[0]) @ chances
    assert mean == pytest.approx(wanted, rel=1e-10)
    twin = np.exp(of_scores(loss, Draw(ids, log_q))[0]) @ chances
    assert abs(twin / wanted - 1.0) > 0.005


# --- the candidate convention -----------------------------------------------------------------


def population(name, sets, chances, log_counts, own_log_counts, o=SCORES):
    """Size of the mean gradient over labels from softmax(o), and how far single ones are off."""
    loss, p = make_loss(name, reduction="sum"), np.exp(log_normalised(o))
    gradients = []
    for label in range(len(o)):
        draw = Draw(sets, log_counts - np.log(sets.shape[1]))
        own = own_log_counts[label] if loss.needs_label_count else None
        gradients.append(of_scores(loss, draw, o, label, chances, own)[1])
    full = [full_softmax(o, label)[1] for label in range(len(o))]
    single = np.abs(np.array(gradients) - full).max()
    return np.abs(p @ np.array(gradients)).max(), single


def with_replacement(m):
    sets, chances = zip(*every_draw(COUNTS / 10, m), strict=True)
    sets, log_counts = np.array(sets), np.log(m * COUNTS / 10)
    return sets, np.array(chances), log_counts[sets], log_counts


@pytest.mark.parametrize("name", ["sampled-candidate", "nce"])
def test_at_the_true_model_the_mean_gradient_over_the_data_is_zero(name):
    # for NCE scores must be log-probabilities, and not so up to a constant
    o = log_normalised(SCORES) if name == "nce" else SCORES
    *drawn, own = with_replacement(3)
    total, single = population(name, *drawn, own, o)
    assert total < 1e-14
    assert single > 0.05  # though that of one example is not that of the full softmax
    assert population(name, *drawn, -own, o)[0] > 0.01
    assert population(name, *drawn, own - np.log(3.0), o)[0] > 0.01  # q for m q


@pytest.mark.parametrize("name", ["sampled-masked", "sampled-reject"])
def test_that_of_the_importance_convention_is_not(name):
    assert population(name, *with_replacement(3))[0] > 0.01


def test_hits_masked_are_so_where_draws_are_distinct():
    """TensorFlow masks hits: right for distinct and equally likely draws, and else only nearly."""
    sets = np.array(list(combinations(range(5), 2)))
    log_counts = np.full(5, np.log(2 / 5))
    arguments = sets, np.full(len(sets), 1 / len(sets)), log_counts[sets], log_counts
    assert population("sampled-candidate-masked", *arguments)[0] < 1e-15
    assert population("sampled-masked", *arguments)[0] > 0.01  # the label is not adjusted
    assert population("sampled-candidate-masked", *with_replacement(3))[0] > 1e-3


@pytest.mark.parametrize("name", ["sampled-candidate", "sampled-candidate-masked"])
def test_what_one_example_tends_to(name):
    """Its gradient to the full one where hits are kept, its loss in no case."""
    loss, full = make_loss(name), full_softmax()
    apart = []
    for times in (10, 20_000):
        ids, log_q, own = proportional(loss, times)
        value, gradient = of_scores(loss, Draw(ids, log_q), label_log_count=own)
        apart.append(np.abs(gradient - full[1]).max())
        assert abs(value - full[0]) > 1.0
    if name == "sampled-candidate":
        assert apart[0] > 1e-3 > 1e-5 > apart[1]
    else:  # to that of the softmax without the label
        assert apart[1] > 0.1
        others = np.where(np.arange(5) == LABEL, -np.inf, SCORES)
        np.testing.assert_allclose(
            gradient, np.exp(others - np.logaddexp.reduce(others)) - (others == -np.inf), atol=1e-4
        )


def test_a_million_draws_in_many_digits():
    """Sums over a long row lose nothing that counts."""
    loss = make_loss("sampled")
    counts, q = proposal(loss)
    m = 1_000_000
    ids = np.random.default_rng(0).choice(5, size=(1, m), p=q)
    value, _ = of_scores(loss, Draw(ids, np.log(q[ids])))
    found = np.bincount(ids[0], minlength=5)
    with mp.workdps(30):
        weights = [mp.exp(float(o)) * int(k) for o, k in zip(SCORES, found, strict=True)]
        drawn = mp.fsum(w / (m * mp.mpf(float(x))) for w, x in zip(weights, q, strict=True) if x)
        wanted = mp.log(mp.exp(float(SCORES[LABEL])) + drawn) - float(SCORES[LABEL])
    assert value == pytest.approx(float(wanted), rel=1e-13)
