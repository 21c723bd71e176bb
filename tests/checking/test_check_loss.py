"""`check_loss` names what right and faulty implementations do."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from campaign import checks as campaign
from checking import twins
from checking.twins import log_uniform, make

from samplesoft import check_loss, exact_bias
from samplesoft._random import stream_key
from samplesoft.checking import batches as of_batches
from samplesoft.checking import known
from samplesoft.checking.batches import InBatchCandidates
from samplesoft.checking.check import score_deterministic
from samplesoft.checking.estimators import ESTIMATORS, full_sum
from samplesoft.checking.exact import expectation, label_smoothing_terms
from samplesoft.checking.faults import FAULTS
from samplesoft.checking.observe import Observer
from samplesoft.checking.problems import extreme_problems, make_problem
from samplesoft.checking.spread import (
    Spread,
    loss_moments,
    moments_of_squared_losses,
    with_at_least_exact_loss_spread,
)
from samplesoft.losses import InBatchLoss, make_loss
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import LogUniformSampler, SoftmaxSampler, UniformSampler, WeightedSampler
from samplesoft.schemes import exact_schemes

SOME = np.array([0.5, 0.2, 0.2, 0.1])
SOME_CALLS = 1 << 13  # the least with a verdict on losses without a gradient
PROBLEM = make_problem(SOME, 3, 1.3, True, np.uint64(0))
DRAWN = [  # the sums of `distinct_reject` are two
    name for name, one in ESTIMATORS.items() if one.has_draws and name != "distinct_reject"
]


def sums_of(name, fault=None, way=0):
    """Return the sums of an estimator, with one way to make a fault; none where it cannot be."""
    one, m = ESTIMATORS[name], 2 if "distinct" in name else 3
    if fault is not None:
        one = FAULTS[fault].applied_to(one)[way]
    return one(PROBLEM, m, batch=8)


def mistakes():
    """Yield each way of each fault on an estimator of each kind of draws, in turn."""
    turn, kinds = itertools.count(), ("repeated", "independent", "distinct", "once")
    for fault, one in FAULTS.items():
        for draws, way in itertools.product(kinds, range(0 if one.in_gradients else len(one.ways))):
            names = [x for x in DRAWN if ESTIMATORS[x].draws == draws and one.where(ESTIMATORS[x])]
            names = [name for name in names if sums_of(name, fault, way)]
            if names:
                yield names[next(turn) % len(names)], fault, way


CASES = [*((name, None, 0) for name in DRAWN), *mistakes()]


# exact means, by going through all draws ---------------------------------------------------------


def outcomes(draws, q, m):
    """Return the chances (K,) of all outcomes, and the draws that count (K, k), -1 for none."""
    n = len(q)
    if draws == "independent":
        inside = np.array(list(itertools.product([False, True], repeat=n)))
        p = -np.expm1(m * np.log1p(-q))
        chances = np.where(inside, p, 1.0 - p).prod(axis=1)
        ids = np.where(inside, np.arange(n), -1)
    elif draws == "distinct":
        ids = np.array(list(itertools.permutations(range(n), m)))
        left = 1.0 - np.cumsum(q[ids], axis=1) + q[ids]
        chances = np.divide(q[ids], left, out=np.zeros(ids.shape), where=left > 1e-12).prod(axis=1)
    else:
        ids = np.array(list(itertools.product(range(n), repeat=m)))
        chances = q[ids].prod(axis=1)
        if draws == "once":
            ids = np.where(np.tril(ids[:, :, None] == ids[:, None], -1).any(axis=2), -1, ids)
    return chances[chances > 0.0], ids[chances > 0.0]


def drawn_from(problem, e, excludes):
    q = problem.q[e].copy()
    if excludes:
        q[problem.labels[e]] = 0.0
    return q / q.sum()


def losses_of(one, e, ids, own, draws):
    """Return losses (K,), where `own` is the label's logit and `draws` (n,) those of draws."""
    x = np.where(ids < 0, -np.inf, draws[ids])
    if one.reduction == "one hit less":
        hits = ids == one.labels[e]
        x[hits & (hits.cumsum(axis=1) == 1)] = -np.inf
    if one.reduction == "twice":
        x = np.hstack([x, x[:, :1]])
    if one.reduction == "logistic":
        return np.logaddexp(0.0, -own) + np.logaddexp(0.0, x).sum(axis=1)
    base = own + one.log_label_mass[e] - one.label_logit[e]  # other labels than one, or none
    if one.reduction == "kept":
        kept = (x > -np.inf).sum(axis=1, keepdims=True)
        x = x - np.log(np.maximum(kept, 1))

    def log_sums(values):
        return np.logaddexp.reduce(values, axis=1, initial=base) - own

    if one.reduction == "jackknife":
        m = x.shape[1]
        less = [log_sums(np.delete(x, i, axis=1) + np.log(m / (m - 1))) for i in range(m)]
        return m * log_sums(x) - (m - 1) * np.mean(less, axis=0)
    return log_sums(x)


@pytest.mark.parametrize(("name", "fault", "way"), CASES)
def test_exact_means_are_those_over_all_draws(name, fault, way):
    sums = sums_of(name, fault, way)
    (one,), found = sums, expectation(sums)
    draws_of = "once" if fault == "duplicates_dropped" else ESTIMATORS[name].draws
    sizes = one.num_draws if one.set_distributions is None else 2 if "distinct" in name else 3
    for e, label in enumerate(PROBLEM.labels[:2]):
        law = drawn_from(PROBLEM, e, ESTIMATORS[name].excludes_label and name != "poisson")
        chances, ids = outcomes(draws_of, law, sizes)
        if name == "poisson":
            ids = np.where(ids == label, -1, ids)
        assert chances.sum() == pytest.approx(1.0)

        def mean(own, draws, e=e, chances=chances, ids=ids):
            return chances @ losses_of(one, e, ids, own, draws)

        own, draws = one.label_logit[e], one.logits[e]
        digits = 1e-10 if one.set_distributions is None else 1e-7
        assert found.losses[e] == pytest.approx(one.loss_factor * mean(own, draws), rel=digits)
        for j in range(PROBLEM.num_classes):  # a class's logit moves those of its draws too
            step = 1e-5 * np.eye(PROBLEM.num_classes)[j]
            follows = (draws > -np.inf) & (not one.detaches_draws)
            ends = [
                mean(own + s * step[label], np.where(follows, draws + s * step, draws))
                for s in (1.0, -1.0)
            ]
            slope = one.gradient_factor * (ends[0] - ends[1]) / 2e-5
            assert found.d_logits[e, j] == pytest.approx(
                slope, abs=1e-7 if one.set_distributions else 2e-8
            )


@pytest.mark.parametrize("name", ["masked", "candidate_masked"])
@pytest.mark.parametrize(
    ("fault", "way"), [("finite_mask", 0), ("finite_mask", 1), ("label_margin", 0)]
)
def test_exact_means_of_mistakes_with_a_number(name, fault, way):
    wrong = FAULTS[fault].fitted[way].apply(ESTIMATORS[name], 0.4)
    of_cosines = fault == "label_margin"
    problem = (
        make_problem(SOME, 3, 1.3, False, np.uint64(0), has_unit_vectors=True)
        if of_cosines
        else PROBLEM
    )
    (one,) = sums = wrong(problem, 3, batch=8)
    found = expectation(sums)
    for e, label in enumerate(problem.labels[:2]):
        chances, ids = outcomes("repeated", drawn_from(problem, e, False), 3)
        own, draws = one.label_logit[e], one.logits[e]
        hits_follow = np.arange(len(draws)) != label if wrong.hit_constant else np.full(4, True)

        def mean(step, e=e, own=own, draws=draws, follow=hits_follow, chances=chances, ids=ids):
            x = np.where(follow & (draws > -np.inf), draws + step, draws)
            return chances @ losses_of(one, e, ids, own + step[problem.labels[e]], x)

        assert found.losses[e] == pytest.approx(mean(np.zeros(4)), rel=1e-10)
        slopes = [(mean(step) - mean(-step)) / 2e-5 for step in 1e-5 * np.eye(4)]
        np.testing.assert_allclose(found.d_logits[e], slopes, atol=2e-8)
        right = expectation(ESTIMATORS[name](problem, 3, batch=8)).losses[e]
        assert abs(found.losses[e] - right) > 1e-3  # WRONG has an effect


@pytest.mark.parametrize("name", ["full", "masked", "candidate"])
def test_the_gradient_of_a_margin_of_angles(name):
    problem = make_problem(SOME, 3, 5.0, False, np.uint64(0), has_unit_vectors=True)
    wrong = replace(ESTIMATORS[name], label_angle=0.5)
    found = expectation(wrong(problem, 3, batch=8))

    def losses(logits):
        return expectation(wrong(replace(problem, logits=logits), 3, batch=8)).losses

    for j in range(problem.num_classes):
        step = 1e-6 * np.eye(problem.num_classes)[j]
        slope = (losses(problem.logits + step) - losses(problem.logits - step)) / 2e-6
        np.testing.assert_allclose(found.d_logits[:, j], slope, atol=1e-7)


@pytest.mark.parametrize("name", ["negatives", "masked", "candidate", "candidate_masked"])
@pytest.mark.parametrize("follow", [False, True])
def test_exact_means_of_label_smoothing(name, follow):
    """What smoothing adds is linear in the logits: the label's less the mean of all candidates'."""
    (one,), n = sums_of(name), PROBLEM.num_classes
    hits = np.linspace(-2.0, -1.0, len(PROBLEM.labels))  # logits of draws of the label
    times, x = one.num_draws * one.probs, one.with_hit_logits(hits).logits
    found = label_smoothing_terms(one, times, x, follow)
    for e, label in enumerate(PROBLEM.labels):
        law = drawn_from(PROBLEM, e, ESTIMATORS[name].excludes_label)
        chances, ids = outcomes("repeated", law, one.num_draws)

        def added(logits, e=e, label=label, chances=chances, ids=ids):
            moved = logits - PROBLEM.logits[e]
            own, x = one.label_logit[e] + moved[label], one.logits[e] + moved
            x[label] = hits[e] + (moved[label] if follow else 0.0)
            candidates = np.column_stack([np.full(len(ids), own), x[ids]])
            return own - chances @ candidates.mean(axis=1)

        o = PROBLEM.logits[e]
        assert found.losses[e] == pytest.approx(added(o), abs=1e-12)
        slopes = [added(o + step) - added(o) for step in np.eye(n)]
        np.testing.assert_allclose(found.d_logits[e], slopes, atol=1e-12)


@pytest.mark.parametrize("name", DRAWN)
def test_mistakes_that_are_tried_are_none_that_change_nothing(name):
    """Else a right loss might be called wrong."""
    right = expectation(sums_of(name))
    # where the label is corrected as well, what is a factor of all may be left out
    factors = {"log_m_left_out", "m_off_by_one", "q_renormalised"}
    free = factors if ESTIMATORS[name].corrects_label else set()
    for fault, one in FAULTS.items():
        for way in () if one.in_gradients else range(len(one.applied_to(ESTIMATORS[name]))):
            sums = sums_of(name, fault, way)
            if sums:
                wrong = expectation(sums)
                same = np.allclose(wrong.losses, right.losses, rtol=1e-6)
                same &= np.allclose(wrong.d_logits, right.d_logits, atol=1e-6)
                assert not same or fault in free, fault


BY_TRIES = [n for n in ESTIMATORS if "distinct" in n and "negative_" not in n and "reject" not in n]


@pytest.mark.parametrize("name", BY_TRIES)
def test_exact_means_of_draws_that_are_corrected_by_tries(name):
    """How many tries a sequence takes is a sum of geometric numbers."""
    right, m, most = ESTIMATORS[name], 2, 200
    found = expectation(replace(right, corrects_by_tries=True)(PROBLEM, m, batch=8))
    o, labels = PROBLEM.logits, PROBLEM.labels
    for e, label in enumerate(labels[:2]):
        q, mean = drawn_from(PROBLEM, e, right.excludes_label), 0.0
        tries = np.arange(m, most)
        with np.errstate(divide="ignore"):
            counts = -np.expm1(tries[:, None] * np.log1p(-q))
            logs = np.log(np.where(tries[:, None] == m, m * q, counts))
        for first, second in itertools.permutations(np.flatnonzero(q), m):
            chances = q[first] * q[second] * q[first] ** (tries - m)
            x = (o[e] - logs)[:, [first, second]]
            if right.masks_hits:
                x[:, np.array([first, second]) == label] = -np.inf
            own = o[e, label] - (logs[:, label] if right.corrects_label else 0.0)
            if right.reduction == "logistic":
                values = np.logaddexp(0.0, -own) + np.logaddexp(0.0, x).sum(axis=1)
            else:
                base = own if right.label_weight else -np.inf
                values = np.logaddexp(base, np.logaddexp.reduce(x, axis=1)) - own
            mean += chances @ values
        assert found.losses[e] == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("m", [1, 2])
def test_exact_means_of_sets_from_which_the_label_is_thrown_away(m):
    """Others weigh by their chance to be in the set, given whether the label is."""
    sums = ESTIMATORS["distinct_reject"](PROBLEM, m, batch=8)
    found, about = expectation(sums), np.full(4, 0.7)
    known = moments_of_squared_losses(sums, about)
    for e, label in enumerate(PROBLEM.labels):
        o, losses, slopes = PROBLEM.logits[e], 0.0, 0.0
        chances, ids = outcomes("distinct", SOME, m)
        held = (ids[:, :, None] == np.arange(4)).any(axis=1)
        of_squares = 0.0
        for hit in (False, True):
            p, inside = (part[held[:, label] == hit] for part in (chances, held))
            inclusion = p @ inside / p.sum()
            weights = np.where(inclusion > 0.0, np.exp(o) / np.maximum(inclusion, 1e-300), 0.0)
            masses = inside * np.where(np.arange(4) == label, 0.0, weights)
            masses[:, label] = np.exp(o[label])
            sums = masses.sum(axis=1)
            each = np.log(sums) - o[label]
            losses += p @ each
            slopes = slopes + p @ (masses / sums[:, None])
            of_squares += p @ (each - 0.7) ** 2
        assert found.losses[e] == pytest.approx(losses, rel=1e-7)
        np.testing.assert_allclose(found.d_logits[e], slopes - np.eye(4)[label], atol=1e-7)
        if known is not None:
            assert known[0][e] == pytest.approx(of_squares, rel=1e-6)


@pytest.mark.parametrize("name", DRAWN)
def test_exact_moments_are_those_over_all_draws(name):
    right, m, about = ESTIMATORS[name], 2 if "distinct" in name else 4, 0.7
    sums = right(PROBLEM, m, batch=8)
    one, known = sums[0], moments_of_squared_losses(sums, np.full(4, about))
    if name.startswith("jackknife"):
        assert known is None
        return
    for e in range(4):
        law = drawn_from(PROBLEM, e, right.excludes_label and name != "poisson")
        chances, ids = outcomes(right.draws, law, m)
        if name == "poisson":
            ids = np.where(ids == PROBLEM.labels[e], -1, ids)
        x = losses_of(one, e, ids, one.label_logit[e], one.logits[e]) - about
        powers = [chances @ x**k for k in range(7)]
        digits = 1e-7 if one.set_distributions is None else 1e-5
        np.testing.assert_allclose(loss_moments(one, e, about), powers, rtol=1e-6, atol=digits)
        if known is None:
            continue
        of_squares = x**2 - powers[2]
        deviation = np.sqrt(chances @ of_squares**2)
        means, width = known
        assert means[e] == pytest.approx(powers[2])
        assert width.deviations[e] == pytest.approx(deviation, rel=1e-3)
        third = abs(chances @ of_squares**3) / deviation**3
        # of the digits of moments those are left that do not cancel
        of_digits = max(1e-3, 0.1 * digits / deviation**3)
        assert width.skewness[e] == pytest.approx(third, rel=1e-1, abs=of_digits)


@pytest.mark.parametrize("name", ["masked", "candidate", "distinct_candidate", "nce"])
def test_the_spread_of_a_label_far_behind_is_that_over_all_draws(name):
    """Draws that are all hits leave it alone: one by one they say nothing of that."""
    ordinary = make_problem(SOME, 3, 1.0, False, np.uint64(0))
    problem, _ = next(extreme_problems(SOME, ordinary, num_sampled=3, key=np.uint64(0)))
    sums = ESTIMATORS[name](problem, 3, batch=8)
    (one,), e = sums, 1
    none, centre = Spread(np.zeros(4), np.zeros(4)), expectation(sums).losses
    chances, ids = outcomes(ESTIMATORS[name].draws, problem.q[e], 3)
    x = losses_of(one, e, ids, one.label_logit[e], one.logits[e])
    x = x - chances @ x
    deviation = np.sqrt(chances @ x**2)
    width = with_at_least_exact_loss_spread(none, sums, centre)
    assert width.deviations[e] == pytest.approx(deviation, rel=1e-4)
    skewness = abs(chances @ x**3) / deviation**3
    assert width.skewness[e] == pytest.approx(skewness, rel=1e-3, abs=1e-3)
    assert skewness > 3.0 or "distinct" in name or name == "nce"
    assert with_at_least_exact_loss_spread(None, (), centre) is None


# samplesoft's own losses -------------------------------------------------------------------------


OWN = {  # one that masks, corrects or leaves out the label, or is no softmax, for each kernel
    "full": "full",
    "sampled": "negatives",
    "sampled-reject": "reject",
    "sampled-candidate-masked": "candidate_masked",
    "jackknife-masked": "jackknife_masked",
    "nce": "nce",
}


def own_loss(name, sampler, tau=1.0):
    """Return a loss of the library as a black box that draws for each example."""
    loss = make_loss(name, tau=tau, reduction="none")

    def black_box(class_embeddings, h, labels, num_sampled, seed, biases=None):
        draw, options = None, {}
        if name != "full":
            exclude = labels if loss.excludes_label else None
            draw = sampler.sample(h, num_sampled, exclude=exclude, rng=seed)
            if loss.needs_label_count:
                counts = sampler.log_expected_count(h, labels[:, None], num_sampled)
                options["label_log_count"] = counts[:, 0]
        value, cache = loss.forward(h, class_embeddings, labels, draw, biases=biases, **options)
        return value, loss.backward(cache).dh

    return black_box


@pytest.mark.thorough(but=2)
@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_losses_of_the_library_are_named(name):
    sampler = LogUniformSampler(8)
    report = check_loss(own_loss(name, sampler), sampler, 10, rng=3)
    right = {scheme for scheme, fault in report.consistent if fault is None}
    assert {OWN[name]} <= right <= {OWN[name], "reject"}, report
    assert report.fault is None


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("weight", [1.0, 1.5])
def test_a_loss_without_bias_is_named(weight):
    """WRONG is one whose differences weigh more than they should."""
    sampler, loss = LogUniformSampler(8), make_loss("multilevel", reduction="none")
    draw = loss.draw
    loss.draw = lambda *given: replace(d := draw(*given), probability=d.probability / weight)

    def black_box(class_embeddings, h, labels, num_sampled, seed):
        layer = SoftmaxLayer(class_embeddings, loss, sampler, num_sampled)
        value, cache = layer.forward(h, labels, rng=seed)
        return value, layer.backward(cache)[0]

    report = check_loss(black_box, sampler, 2, rng=3)
    assert report.scheme == ("unbiased" if weight == 1.0 else None), report
    assert weight > 1.0 or report.loss_bias == report.gradient_bias == 0.0


@pytest.mark.thorough
@pytest.mark.slow
def test_tau_biases_and_a_sampler_that_looks_at_contexts():
    vectors = np.random.default_rng(1).standard_normal((10, 4))
    sampler = SoftmaxSampler(vectors, tau=0.7)
    loss = own_loss("sampled", sampler, tau=3.0)
    report = check_loss(loss, sampler, 10, tau=3.0, biases=True)
    assert ("negatives", None) in report.consistent, report
    assert ("negatives", "uncorrected") not in report.consistent


@pytest.mark.thorough
@pytest.mark.slow
def test_one_set_for_the_batch_in_float32():
    loss = make("masked", shared=True, dtype=np.float32)
    report = check_loss(loss, log_uniform(10), 5)
    right = {scheme for scheme, fault in report.consistent if fault is None}
    assert {"masked"} <= right <= {"masked", "reject", "poisson"}, report


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("draws", ["given", "given-negatives"])
def test_draws_from_outside(draws):
    def loss(scores, ids, log_q, labels):
        own = np.take_along_axis(scores, labels[:, None], axis=1)
        x = np.take_along_axis(scores - log_q, ids, axis=1) - np.log(ids.shape[1])
        x = np.where(ids == labels[:, None], -np.inf, x)
        total = np.logaddexp(own, np.logaddexp.reduce(x, axis=1, keepdims=True))
        slopes = np.zeros_like(scores)
        np.put_along_axis(slopes, labels[:, None], np.exp(own - total) - 1.0, axis=1)
        np.add.at(slopes, (np.arange(len(ids))[:, None], ids), np.exp(x - total))
        return (total - own)[:, 0], slopes

    report = check_loss(loss, log_uniform(20), 10, draws=draws)
    wanted = "masked" if draws == "given" else "negatives"
    assert (report.scheme, report.fault) == (wanted, None), report


# mistakes ----------------------------------------------------------------------------------------

COMMON = [
    ("candidate_masked", "log_q_added", 1),
    ("negatives", "uncorrected", 0),
    ("masked", "log_m_left_out", 0),
    ("masked", "logarithm_missed", 0),
    ("candidate", "other_logarithm", 0),
    ("masked", "q_shifted", 1),
    ("negatives", "q_not_conditioned", 0),
    ("masked", "hits_kept", 0),
    ("candidate_masked", "one_hit_left_out", 0),
    ("candidate_masked", "hits_of_other_rows", 0),
    ("masked", "hits_of_any_row", 0),
    ("nce", "label_uncorrected", 0),
    ("candidate", "label_corrected_twice", 0),
    ("masked", "counted_twice", 0),
    ("masked", "m_off_by_one", 2),
    ("negatives", "divided_by_batch", 0),
    ("masked", "q_renormalised", 0),
    ("masked", "inclusion_of_repeated", 0),
    ("masked", "temperature_after", 0),
    ("masked", "label_twice", 0),
    ("negatives", "label_left_out", 0),
    ("masked", "label_bias_twice", 0),
    ("masked", "duplicates_dropped", 0),
    ("masked", "detached_negatives", 0),
    ("masked", "q_clipped", 0),
    ("masked", "epsilon_in_log", 0),
    ("masked", "finite_mask", 0),
    ("candidate_masked", "smoothed_hits", 0),
    ("negatives", "label_smoothing", 0),
]


@pytest.mark.thorough(but=4)
@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "fault", "variant"), COMMON)
def test_mistakes_are_named(scheme, fault, variant):
    options = {"tau": 1.5} if fault == "temperature_after" else {}
    loss, biases = make(scheme, fault, variant, **options), fault == "label_bias_twice"
    report = check_loss(loss, log_uniform, 10, rng=1, biases=biases, **options)
    assert (report.scheme, report.fault) == (scheme, fault), report
    assert report.remedy
    assert (scheme, None) not in report.consistent


def first_different(q, m, seed):
    """Return the first m different classes, and the tries that it took to draw them."""
    rng = np.random.default_rng(seed)
    times = rng.standard_exponential(len(q)) / q
    ids = np.argsort(times)[:m]
    seen, waits = np.cumsum(q[ids])[:-1], np.diff(times[ids])
    return ids, m + rng.poisson((seen * waits).sum())


def on_distinct_draws(count, logistic=False, masked=True):
    """Return a loss on one set of different draws, corrected by the log of a count."""

    def loss(class_embeddings, h, labels, num_sampled, seed):
        q = log_uniform(len(class_embeddings))
        ids, tries = first_different(q, num_sampled, seed)
        o = h @ class_embeddings.T - np.log(count(q, num_sampled, tries))
        own, x = np.take_along_axis(o, labels[:, None], axis=1)[:, 0], o[:, ids]
        if masked:
            x = np.where(labels[:, None] == ids, -np.inf, x)
        if logistic:
            return np.logaddexp(0.0, -own) + np.logaddexp(0.0, x).sum(axis=1)
        return np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own

    return loss


def expected_count(q, m, tries):
    """As TensorFlow has it, where no draw was repeated too."""
    return m * q if tries == m else -np.expm1(tries * np.log1p(-q))


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "scheme", "fault"),
    [
        (on_distinct_draws(expected_count), "distinct_candidate_masked", None),
        (on_distinct_draws(expected_count, True, False), "distinct_nce", None),
        (on_distinct_draws(lambda q, m, k: m * q), "distinct_candidate_masked", "m q"),
        (
            on_distinct_draws(lambda q, m, k: 1.0 / expected_count(q, m, k), masked=False),
            "distinct_candidate",
            "log_q_added",
        ),
    ],
)
def test_draws_without_replacement_as_in_tensorflow(loss, scheme, fault):
    report = check_loss(loss, "log-uniform", 4)
    fault = "distinct_as_repeated" if fault == "m q" else fault
    assert (report.scheme, report.fault) == (scheme, fault), report
    assert fault == "distinct_as_repeated" or "number of tries" in report.verdict


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scheme"),
    [("sampled", "distinct"), ("negative-sampling-masked", "distinct_negative_sampling_masked")],
)
def test_losses_of_the_library_on_draws_without_replacement(name, scheme):
    """More draws than there were classes, once, and a mean that is that of repeated draws."""
    sampler = UniformSampler(20, replace=False)
    report = check_loss(own_loss(name, sampler), sampler, 10)
    assert (report.scheme, report.fault) == (scheme, None), report


def in_batch(correct, label=0.0, mask=True):
    def loss(class_embeddings, h, labels, num_sampled, seed):
        log_q, m = np.log(log_uniform(len(class_embeddings))), len(labels) - 1
        o = h @ class_embeddings.T
        own = np.take_along_axis(o, labels[:, None], axis=1)[:, 0] - label * log_q[labels]
        x = o[:, labels] - correct(log_q[labels], m)
        other = labels != labels[:, None] if mask else ~np.eye(m + 1, dtype=bool)
        x = np.where(other, x, -np.inf)
        return np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own

    return loss


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize(
    ("loss", "scheme", "fault"),
    [
        (in_batch(lambda log_q, m: log_q + np.log(m)), "in_batch", None),
        (in_batch(lambda log_q, m: log_q, label=1.0), "in_batch_candidate", None),
        (in_batch(lambda log_q, m: log_q, 1.0, False), "in_batch_candidate_kept", None),
        (in_batch(lambda log_q, m: 0.0 * log_q), "in_batch", "uncorrected"),
        (in_batch(lambda log_q, m: -log_q, label=-1.0), "in_batch_candidate", "log_q_added"),
        (in_batch(lambda log_q, m: log_q + np.log(m), mask=False), "in_batch", "hits_kept"),
        (in_batch(lambda log_q, m: log_q + np.log(m + 1)), "in_batch", "in_batch_count"),
        (in_batch(lambda log_q, m: log_q + np.log(10)), "in_batch", "in_batch_count"),
        (in_batch(lambda log_q, m: log_q, mask=False), "in_batch", "log_m_left_out + hits_kept"),
        (in_batch(lambda log_q, m: -log_q, mask=False), "in_batch", "log_q_added + hits_kept"),
    ],
)
def test_negatives_of_the_batch(loss, scheme, fault):
    report = check_loss(loss, log_uniform, 10)
    assert (report.scheme, report.fault) == (scheme, fault), report
    assert (report.loss_bias is None) == (fault is not None)
    assert json.loads(report.to_json())["scheme"] == scheme
    of_the_count = fault in (None, "in_batch_count") or " + " in fault
    assert of_the_count == ("B - 1 = 63" in report.verdict)
    assert "equal up to rounding" in report.verdict and " inf" not in str(report)
    assert report.ok == (fault is None) and not report.is_random


@pytest.mark.thorough
@pytest.mark.parametrize(("mask", "fault"), [(True, None), (False, "hits_kept")])
def test_negatives_of_the_batch_of_very_many_classes(mask, fault, monkeypatch):
    """Labels that are drawn from all of them are hardly ever equal."""
    monkeypatch.setattr(of_batches, "_NUM_BATCHES", 2)
    right, distinct = in_batch(lambda log_q, m: log_q + np.log(m), mask=mask), []

    def loss(class_embeddings, h, labels, *given):
        distinct.append(len(np.unique(labels)))
        return right(class_embeddings, h, labels, *given)

    problem = make_problem(log_uniform(10_000), 5, 1.0, False, np.uint64(0))
    batches = InBatchCandidates(Observer(loss, problem, 5, np.uint64(0), 2), 0)
    assert max(distinct[-2:]) < 56
    known = (one for one in batches.known_candidates() if one.fault in (None, "hits_kept"))
    fitting = [one.name for one in known if score_deterministic(one, batches.observed).allowed]
    assert fitting == [("in_batch", fault)]


@pytest.mark.parametrize("with_gradient", [False, True])
def test_negatives_of_the_batch_in_a_way_that_nobody_knows(with_gradient, tmp_path):
    right = in_batch(lambda log_q, m: log_q + np.log(m))

    def loss(class_embeddings, h, *given):  # a focal loss
        losses = right(class_embeddings, h, *given)
        losses = losses * -np.expm1(-losses)
        return (losses, np.zeros_like(h)) if with_gradient else losses

    report = check_loss(loss, log_uniform, 10)
    assert (report.scheme, report.fault, report.ok) == (None, None, False), report
    for words in ("negatives are labels of the batch", "Nearest: `in_batch", "`tau`", "norms"):
        assert words in report.verdict
    assert not report.of_losses and np.isfinite(report.scores[0].z)
    report.plot(tmp_path / "check.png")


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize(
    ("scheme", "mask", "fault"),
    [
        ("candidate_kept", None, "label_smoothing"),
        ("candidate", -1e4, "smoothed_hits"),
        ("candidate", -np.inf, "label_smoothing"),
    ],
)
def test_label_smoothing_over_the_batch(scheme, mask, fault):
    def loss(class_embeddings, h, labels, num_sampled, seed):
        x = (h @ class_embeddings.T - np.log(log_uniform(len(class_embeddings))))[:, labels]
        own, hits = np.diag(x), (labels == labels[:, None]) & ~np.eye(len(labels), dtype=bool)
        if mask is not None:
            x = np.where(hits, mask, x)
        there = x > -np.inf
        candidates = np.where(there, x, 0.0).sum(axis=1) / there.sum(axis=1)
        return np.logaddexp.reduce(x, axis=1) - 0.9 * own - 0.1 * candidates

    report = check_loss(loss, log_uniform, 10)
    assert (report.scheme, report.fault) == (f"in_batch_{scheme}", fault), report
    assert "smoothing 0.1" in report.verdict and "equal up to rounding" in report.verdict


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kind", ["in_batch", "masked", "nce"])
def test_a_temperature_that_nobody_gave(kind):
    right = in_batch(lambda log_q, m: log_q + np.log(m)) if kind == "in_batch" else make(kind)

    def loss(class_embeddings, h, *given):
        found = right(class_embeddings, 2.5 * h, *given)
        return found if kind == "in_batch" else (found[0], 2.5 * found[1])

    report = check_loss(loss, log_uniform(20), 10)
    assert (report.scheme, report.fault) == (kind, "other_temperature"), report
    assert "tau is 2.5" in report.verdict


def test_losses_in_float32_with_a_gradient_in_float64():
    """What is compared is off by what the coarser of both is off by."""

    def loss(scores, ids, log_q, labels):
        o, rows = scores.astype(np.float32), np.arange(len(labels))
        losses = np.logaddexp.reduce(o, axis=1) - o[rows, labels]
        slopes = np.exp(o - np.logaddexp.reduce(o, axis=1, keepdims=True))
        slopes[rows, labels] -= 1.0
        return losses, slopes

    report = check_loss(loss, log_uniform(20), 10, draws="given")
    assert (report.scheme, report.fault) == ("full", None), report


@pytest.mark.thorough
@pytest.mark.parametrize("with_gradient", [False, True])
def test_a_number_in_the_logarithm_of_a_probability(with_gradient):
    """It shows where the label is far behind."""
    right = make("masked", shared=True)

    def loss(*given):
        losses, dh = right(*given)
        p = np.exp(-losses)
        losses, dh = -np.log(p + 1e-8), dh * (p / (p + 1e-8))[:, None]
        return (losses, dh) if with_gradient else losses

    report = check_loss(loss, log_uniform(20), 10, calls=SOME_CALLS)
    assert (report.scheme, report.fault) == ("masked", "probability_capped"), report
    assert "the number is 1e-08" in report.verdict


def test_what_is_wrong_on_extreme_problems_alone():
    right = make("masked", shared=True)

    def loss(*given):
        losses, _ = right(*given)
        return losses + np.maximum(losses - 30.0, 0.0)

    report = check_loss(loss, log_uniform(20), 10, calls=SOME_CALLS)
    assert (report.scheme, report.fault, report.ok) == (None, None, False), report
    assert "masked" in report.of_ordinary and "On ordinary logits it follows" in report.verdict


@pytest.mark.thorough
@pytest.mark.parametrize("proposal", [log_uniform, log_uniform(3)], ids=["any n", "n = 3"])
def test_a_loss_that_divides_by_the_root_of_the_dimension(proposal):
    """All problems have as many dimensions: of few classes, and extreme ones."""
    right = make("masked", shared=True, tau=np.sqrt(8.0))

    def loss(class_embeddings, h, *given):
        return right(class_embeddings, h / np.sqrt(h.shape[1]), *given)[0]

    report = check_loss(loss, proposal, 4, calls=SOME_CALLS)
    assert (report.scheme, report.fault, report.ok) == ("masked", None, True), report


@pytest.mark.thorough
@pytest.mark.slow
def test_what_seemed_to_fit_and_does_not_on_extreme_problems():
    """Then what is less simple is tried: here draws without replacement."""
    rng, scheme = np.random.default_rng(0), None
    for _ in range(75):  # of the campaign, whose losses are all right
        scheme = str(rng.choice(campaign.SCHEMES))
        draws = str(rng.choice(campaign.DRAWS, p=[0.5, 0.35, 0.15]))
        loss, proposal, m, options = campaign.right_loss(scheme, draws, rng)
    report = check_loss(loss, proposal, m, rng=74, **options)
    assert (scheme, draws) == ("masked", "distinct")
    assert ("distinct_masked", None) in report.consistent and report.ok, report


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("fault", "calls"), [("hits_kept", SOME_CALLS), (None, 1 << 15)])
def test_many_classes_of_which_none_is_likely_by_chance(fault, calls):
    """What becomes of draws of the label must show."""
    loss = make("masked", fault, shared=True)
    report = check_loss(loss, log_uniform(1000), 20, calls=calls, rng=3)
    assert (report.scheme, report.fault) == ("masked", fault), report


def of_cosines(loss, of_classes=True, chain=True):
    """Return a loss of vectors that it divides by their norms, with the gradient of that."""

    def wrapped(class_embeddings, h, *given):
        norms = np.linalg.norm(h, axis=1, keepdims=True)
        unit, rows = h / norms, class_embeddings
        if of_classes:
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        found = loss(rows, unit, *given)
        if not isinstance(found, tuple):
            return found
        losses, dh = found
        along = (dh * unit).sum(axis=1, keepdims=True) * unit
        return losses, (dh - along) / norms if chain else dh / norms

    return wrapped


@pytest.mark.thorough(but=2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "scheme", "fault"),
    [
        (of_cosines(in_batch(lambda log_q, m: log_q, label=1.0)), "in_batch_candidate", None),
        (of_cosines(make("masked")), "masked", None),
        (of_cosines(make("masked"), chain=False), None, None),
        (of_cosines(make("masked"), of_classes=False), None, None),
        (of_cosines(make("candidate_masked", "log_q_added")), "candidate_masked", "log_q_added"),
    ],
)
def test_losses_of_cosines(loss, scheme, fault):
    report = check_loss(loss, log_uniform(20), 10, tau=1.0)
    assert (report.scheme, report.fault) == (scheme, fault), report
    one_kind = "vectors of one kind" in report.verdict
    assert report.divides_by_norms != one_kind
    assert one_kind or "tau` times a cosine" in str(report)
    assert ("masked" in report.of_losses) == (scheme is None and not one_kind)


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("added", [1e-12, 1e-6])
def test_cosines_of_norms_to_which_a_number_is_added(added, draws):
    """So that vectors of zeros do no harm: neither full softmax nor draws are wrong for it."""
    drawn = make("masked", shared=True, tau=20.0)

    def loss(class_embeddings, h, labels, *given):
        rows, h = (
            x / (np.linalg.norm(x, axis=1, keepdims=True) + added) for x in (class_embeddings, h)
        )
        if draws:
            return drawn(rows, h, labels, *given)[0]
        o = 20.0 * h @ rows.T
        return np.logaddexp.reduce(o, axis=1) - o[np.arange(len(h)), labels]

    report = check_loss(loss, log_uniform(20), 10, tau=20.0, calls=SOME_CALLS)
    assert (report.scheme, report.fault) == ("masked" if draws else "full", None), report
    assert report.divides_by_norms


# classes that are never drawn ---------------------------------------------------------------------


def on_range(first, past, gradient=True):
    """Return a masked loss whose draws are uniform between two ends, and that says all are."""

    def loss(class_embeddings, h, labels, num_sampled, seed):
        n, rows = len(class_embeddings), np.arange(len(h))
        ids = np.random.default_rng(seed).integers(first, n + past, (len(h), num_sampled))
        o = h @ class_embeddings.T
        own, x = o[rows, labels], np.take_along_axis(o, ids, axis=1) - np.log(num_sampled / n)
        x[ids == labels[:, None]] = -np.inf
        log_sum = np.logaddexp(own, np.logaddexp.reduce(x, axis=1))
        if not gradient:
            return log_sum - own
        slopes = np.zeros_like(o)
        np.add.at(slopes, (rows[:, None], ids), np.exp(x - log_sum[:, None]))
        slopes[rows, labels] += np.exp(own - log_sum) - 1.0
        return log_sum - own, slopes @ class_embeddings

    return loss


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("m", [20, 5])
@pytest.mark.parametrize(("first", "past"), [(0, -1), (1, 0)])
@pytest.mark.parametrize("seed", range(3))
def test_a_range_that_is_off_by_one_is_never_called_right(first, past, m, seed):
    """One class of 300 moves ordinary means by less than their errors."""
    loss = on_range(first, past, gradient=False)
    report = check_loss(loss, np.full(300, 1 / 300), m, rng=seed)
    assert not report.ok and "may be right" not in report.verdict, report
    # to leave out one class, or the label, is almost the same
    assert report.fault in (None, "class_never_drawn", "q_not_conditioned")
    if report.fault == "class_never_drawn":
        end = "first" if first else "last"
        assert f"without the {end} class, correction by the proposal" in report.verdict


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("proposal", "m"),
    [("uniform", 20), ("uniform", 100), (np.full(300, 1 / 300), 5), (np.full(300, 1 / 300), 100)],
)
def test_the_right_one_of_them_is_decided(proposal, m):
    """Uniform q do not change when they are shifted, and rare mistakes need more calls."""
    report = check_loss(on_range(0, 0, gradient=False), proposal, m)
    assert report.ok and report.undecided == 0, report
    assert "q_shifted" not in {one.fault for one in report.scores}


def padded(n):
    q = 1.0 / np.arange(1.0, n + 1.0)
    q[0] = 0.0
    return q / q.sum()


def never_drawing_the_first(masked):
    def loss(class_embeddings, h, labels, num_sampled, seed):
        q, rows = padded(len(class_embeddings)), np.arange(len(h))
        ids = np.random.default_rng(seed).choice(len(q), (len(h), num_sampled), p=q)
        o = h @ class_embeddings.T
        own, x = o[rows, labels], np.take_along_axis(o, ids, axis=1) - np.log(num_sampled * q[ids])
        if masked:
            x[ids == labels[:, None]] = -np.inf
        return np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own

    return loss


@pytest.mark.thorough(but=2)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("masked", "fault"), [(True, None), (False, "hits_kept")])
@pytest.mark.parametrize("proposal", [padded, padded(20)], ids=["any n", "n = 20"])
def test_a_padding_id_is_never_drawn(masked, fault, proposal):
    report = check_loss(never_drawing_the_first(masked), proposal, 5)
    assert (report.scheme, report.fault) == ("masked", fault), report


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_padding_id_that_is_drawn_all_the_same():
    def loss(scores, ids, log_q, labels):
        draws = np.random.default_rng(ids).integers(0, scores.shape[1], ids.shape)
        own, x = scores[np.arange(len(ids)), labels], np.take_along_axis(scores, draws, axis=1)
        x = x - np.log(ids.shape[1] / (scores.shape[1] - 1))
        x[draws == labels[:, None]] = -np.inf
        return np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own

    q = np.full(20, 1 / 19)
    q[0] = 0.0
    report = check_loss(loss, q, 5, draws="given", calls=SOME_CALLS)
    assert not report.ok and report.scheme in (None, "masked"), report


@pytest.mark.parametrize("of_all", [False, True])
def test_the_full_softmax_with_or_without_a_padding_id(of_all):
    def loss(class_embeddings, h, labels, num_sampled, seed):
        o = h @ class_embeddings.T
        o[:, 0] = o[:, 0] if of_all else -np.inf
        return np.logaddexp.reduce(o, axis=1) - o[np.arange(len(h)), labels]

    report = check_loss(loss, padded(20), 5)
    assert (report.scheme, report.fault) == ("full", None), report
    assert ("classes that are never drawn" in report.verdict) == of_all


# numbers of few digits ---------------------------------------------------------------------------


def to_bfloat16(x):
    """Round to the eight bits of bfloat16, to the nearest, and of two the even one."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


def to_float16(x):
    return np.asarray(x).astype(np.float16)


def rounded(where, to, wrong=False, gradient=False):
    """Return a masked loss that is rounded in its inputs, in its logits or in what it returns."""
    of = {name: to if name == where else np.asarray for name in ("inputs", "logits", "results")}

    def loss(class_embeddings, h, labels, num_sampled, seed):
        n, rows = len(class_embeddings), np.arange(len(h))
        o = of["inputs"](h).astype(float) @ of["inputs"](class_embeddings).astype(float).T
        o = of["logits"](o).astype(float)
        ids = np.random.default_rng(seed).integers(0, n, (len(h), num_sampled))
        own, x = o[rows, labels], np.take_along_axis(o, ids, axis=1) - np.log(num_sampled / n)
        if not wrong:
            x[ids == labels[:, None]] = -np.inf
        log_sum = np.logaddexp(own, np.logaddexp.reduce(x, axis=1))
        if not gradient:
            return of["results"](log_sum - own)
        slopes = np.zeros_like(o)
        np.add.at(slopes, (rows[:, None], ids), np.exp(x - log_sum[:, None]))
        slopes[rows, labels] += np.exp(own - log_sum) - 1.0
        return of["results"](log_sum - own), of["results"](slopes @ class_embeddings)

    return loss


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("wrong", [True, False])
@pytest.mark.parametrize("to", [to_bfloat16, to_float16])
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("where", ["inputs", "logits", "results"])
def test_rounding_is_no_mistake_and_hides_none(where, to, wrong, gradient):
    report = check_loss(rounded(where, to, wrong, gradient), "uniform", 10)
    assert report.in_half_precision and "within rounding of half precision" in report.verdict
    assert report.fault == ("hits_kept" if wrong else None), report
    assert report.scheme in (("masked",) if wrong else ("masked", "negatives", "reject")), report
    assert report.ok == (not wrong)


def in_half(to, wrong=False):
    """Return a masked loss in float32, but for products of vectors, from draws of its own."""
    kept = np.random.default_rng(0)

    def loss(class_embeddings, h, labels, num_sampled, seed):
        n, rows = len(class_embeddings), np.arange(len(h))
        given = (np.asarray(to(x), np.float32) for x in (h, class_embeddings.T))
        o = np.asarray(to(np.matmul(*given)), np.float32)
        ids = kept.integers(0, n, (len(h), num_sampled))  # which do not follow the seed
        own, x = o[rows, labels], np.take_along_axis(o, ids, axis=1)
        x = x - np.float32(np.log(num_sampled / n))
        if not wrong:
            x[ids == labels[:, None]] = -np.inf
        return np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own

    return loss


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize(("to", "name"), [(to_float16, "float16"), (to_bfloat16, "bfloat16")])
def test_rounding_that_is_given_where_it_cannot_be_measured(to, name):
    options = {"rounding": name, "calls": SOME_CALLS}
    report = check_loss(in_half(to), "uniform", 10, **options)
    assert ("masked", None) in report.consistent and report.fault is None, report
    assert report.in_half_precision and "within rounding of half precision" in report.verdict
    report = check_loss(in_half(to, wrong=True), "uniform", 10, **options)
    assert ("masked", None) not in report.consistent and not report.ok, report


def test_a_rounding_that_nobody_knows():
    with pytest.raises(ValueError, match="`rounding` must be one of"):
        check_loss(make("masked"), "uniform", 10, rounding="float8")


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize("to", [to_bfloat16, to_float16, np.float32])
@pytest.mark.parametrize("back", [False, True])
def test_rounding_of_what_draws_nothing(to, back):
    """Losses are those of the full softmax but for rounding, whatever type they come in."""

    def full(class_embeddings, h, labels, *_):
        o = to(h @ class_embeddings.T).astype(float)
        losses = to(np.logaddexp.reduce(o, axis=1) - o[np.arange(len(h)), labels])
        return losses.astype(float) if back else losses

    report = check_loss(full, log_uniform(20), 5)
    assert (report.scheme, report.fault, report.ok) == ("full", None, True), report
    right = in_batch(lambda log_q, m: log_q + np.log(m))
    report = check_loss(lambda *given: to(right(*given)), log_uniform(20), 5)
    assert (report.scheme, report.fault, report.ok) == ("in_batch", None, True), report


def test_few_calls_decide_nothing():
    report = check_loss(make("masked", shared=True), log_uniform(20), 10, calls=16)
    assert ("masked", None) in report.consistent and report.fault is None
    assert report.undecided > 0 and not report.ok
    assert f"{report.undecided} mistakes fit as well" in report.verdict.splitlines()[0]
    assert report.to_dict()["undecided"] == report.undecided


@pytest.mark.thorough
def test_the_remedies_of_candidates_lead_to_two_right_losses():
    """The label goes before its draws, and nothing is corrected."""
    options = {"calls": 4096}
    report = check_loss(make("candidate", "uncorrected"), log_uniform(20), 5, **options)
    assert (report.scheme, report.fault) == ("candidate", "uncorrected"), report
    assert report.remedy.endswith("logit too, or leave out draws of the label (accidental hits).")
    for scheme in ("candidate", "masked"):
        report = check_loss(make(scheme), log_uniform(20), 5, **options)
        assert report.ok and (scheme, None) in report.consistent, report


@pytest.mark.parametrize("name", ["candidate", "candidate_masked"])
def test_what_a_corrected_label_leads_to(name):
    """With many draws: the full loss, or the odds against the label, and log(m q) of it."""
    m, rows = 10**6, np.arange(len(PROBLEM.labels))
    means = expectation(ESTIMATORS[name](PROBLEM, m, batch=8)).losses
    full, own = expectation([full_sum(PROBLEM)]).losses, PROBLEM.q[rows, PROBLEM.labels]
    limit = full if name == "candidate" else np.log(np.expm1(full))
    np.testing.assert_allclose(means, limit + np.log(m * own), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "fault"), [(63, None), (64, "in_batch_count")])
def test_an_in_batch_loss_that_takes_m_from_outside(m, fault):
    def loss(*given):
        return in_batch(lambda log_q, _: log_q + np.log(given[3]))(*given)

    report = check_loss(loss, log_uniform, m)
    assert (report.scheme, report.fault) == ("in_batch", fault), report
    assert report.consistent == (("in_batch", fault),)


@pytest.mark.thorough
@pytest.mark.slow
def test_two_mistakes_at_once():
    """The commonest pair: a wrong sign, and hits that are kept."""

    def loss(class_embeddings, h, labels, num_sampled, seed):
        q, rows = log_uniform(len(class_embeddings)), np.arange(len(h))
        ids = np.random.default_rng(seed).choice(len(q), (len(h), num_sampled), p=q)
        o = h @ class_embeddings.T
        x = np.take_along_axis(o + np.log(q), ids, axis=1)
        own = o[rows, labels]
        return np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own

    report = check_loss(loss, log_uniform, 10)
    both = ("log_q_added", "hits_kept")
    assert (report.scheme, report.faults) == ("masked", both), report
    for name in both:
        assert FAULTS[name].description in report.verdict and FAULTS[name].remedy in report.remedy
    assert len(report.verdict.splitlines()) == 3


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("away", "mask", "fault"),
    [
        (lambda q: q + 1e-6, None, "epsilon_in_log"),
        (lambda q: q, -10.0, "finite_mask"),
    ],
)
def test_mistakes_that_only_extreme_problems_show(away, mask, fault):
    def loss(class_embeddings, h, labels, num_sampled, seed):
        q = log_uniform(len(class_embeddings))
        draws = np.random.default_rng(seed).random((len(h), num_sampled))
        ids = np.cumsum(q)[:-1].searchsorted(draws)
        own = np.einsum("bd,bd->b", h, class_embeddings[labels])
        x = np.einsum("bd,bkd->bk", h, class_embeddings[ids])
        x = x - np.log(num_sampled * away(q[ids]))
        x = np.where(ids == labels[:, None], -np.inf if mask is None else mask, x)
        return np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own

    report = check_loss(loss, "log-uniform", 10)
    assert (report.scheme, report.fault) == ("masked", fault), report
    assert report.num_classes == (10_000 if mask is None else 20)


@pytest.mark.slow
def test_a_loss_whose_gradient_does_not_change_on_the_largest_problem():
    """Under uniform draws log(m q) is the same for all; its gradient along log q is 0."""

    def loss(class_embeddings, h, labels, num_sampled, seed):
        ids = np.random.default_rng(seed).integers(0, len(class_embeddings), (len(h), num_sampled))
        rows = np.hstack([labels[:, None], ids])
        x = np.einsum("bd,bkd->bk", h, class_embeddings[rows])
        total = np.logaddexp.reduce(x, axis=1)
        shares = np.exp(x - total[:, None]) - (np.arange(x.shape[1]) == 0)
        return total - x[:, 0], np.einsum("bk,bkd->bd", shares, class_embeddings[rows])

    report = check_loss(loss, "uniform", 5)
    assert (report.scheme, report.fault) == ("candidate", None), report


def test_sums_in_another_order_are_no_draws():
    right = in_batch(lambda log_q, m: 0.0 * log_q)

    def loss(class_embeddings, h, labels, num_sampled, seed):
        order = np.random.default_rng(seed).permutation(len(h))
        losses = right(class_embeddings, h[order], labels[order], num_sampled, seed)
        return losses[np.argsort(order)]

    report = check_loss(loss, log_uniform(20), 10)
    assert (report.scheme, report.fault) == ("in_batch", "uncorrected"), report


def test_the_number_of_calls_is_what_was_given():
    """With one set for the batch nothing is excluded after few calls."""
    report = check_loss(make("masked", shared=True), log_uniform(20), 10, calls=100)
    assert report.calls == 100 and ("masked", None) in report.consistent


def on_uniform_draws(log_q, seeds):
    """Return a loss whose draws are uniform, corrected by `log_q`, in which seeds repeat."""

    def loss(class_embeddings, h, labels, num_sampled, seed):
        rng, rows = np.random.default_rng(seed % seeds), np.arange(len(h))
        ids = rng.integers(0, len(log_q), (len(h), num_sampled))
        o = h @ class_embeddings.T
        x = np.take_along_axis(o - log_q, ids, axis=1) - np.log(num_sampled)
        x = np.where(ids == labels[:, None], -np.inf, x)
        own = o[rows, labels]
        return np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own

    return loss


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("corrected", [True, False])
def test_draws_by_another_proposal(corrected):
    log_q = np.full(20, -np.log(20.0)) if corrected else np.log(log_uniform(20))
    report = check_loss(on_uniform_draws(log_q, 2**31), "log-uniform", 10)
    assert (report.scheme, report.fault) == ("masked", "other_proposal"), report
    assert ("correction by 'uniform'" in report.verdict) == corrected


def test_draws_that_are_used_again_in_the_next_call():
    kept = []

    def draw(rng, q, b, m):
        kept.append(rng.choice(len(q), m // 2, p=q))
        return np.tile(np.concatenate(kept[-2:] if kept[1:] else kept * 2), (b, 1))

    report = check_loss(sampled_negatives(draw), log_uniform(20), 10)
    assert report.autocorrelation == pytest.approx(0.5, abs=0.1)
    assert "have a correlation of 0." in str(report)


@pytest.mark.thorough
@pytest.mark.slow
def test_seeds_that_repeat():
    log_q = np.full(20, -np.log(20.0))
    report = check_loss(on_uniform_draws(log_q, 40), "uniform", 10)
    assert report.fault == "dependent_draws" or report.scheme is None
    assert f"Only 40 of {report.calls:,} calls gave different results" in report.verdict


@pytest.mark.thorough
def test_a_proposal_that_nobody_knows_is_not_taken_for_a_mistake(monkeypatch):
    q = np.repeat([0.01, 0.02, 0.02, 0.05, 0.2, 0.2, 0.2, 0.15, 0.1, 0.05], 2) / 2.0
    monkeypatch.setattr(twins, "log_uniform", lambda n: q)
    report = check_loss(make("masked"), "log-uniform", 10)
    assert report.scheme is None
    assert "Draws may follow another proposal: count" in report.verdict


def test_the_in_batch_loss_of_the_library():
    own = InBatchLoss(WeightedSampler(log_uniform(20)), reduction="none")

    def loss(class_embeddings, h, labels, num_sampled, seed):
        value, cache = own.forward(h, class_embeddings, labels)
        return value, own.backward(cache).dh

    report = check_loss(loss, log_uniform, 10)
    assert (report.scheme, report.fault) == ("in_batch", None), report


@pytest.mark.thorough
@pytest.mark.slow
def test_mixed_negatives_of_the_library():
    extra = UniformSampler(20)
    own = InBatchLoss(
        WeightedSampler(log_uniform(20)), scheme="masked", extra=extra, reduction="none"
    )

    def loss(class_embeddings, h, labels, num_sampled, seed):
        draw = extra.sample(h, num_sampled, rng=seed)
        value, cache = own.forward(h, class_embeddings, labels, draw)
        return value, own.backward(cache).dh

    report = check_loss(loss, log_uniform, 10)
    assert report.consistent == (("mixed", None),), report
    assert "draws are by 'uniform'" in report.verdict
    assert report.scores[0].sd_ratio == pytest.approx(1.0, rel=0.05)


@pytest.mark.thorough
@pytest.mark.slow
def test_mixed_negatives_that_are_corrected_apart():
    def loss(class_embeddings, h, labels, num_sampled, seed):
        q, rows = log_uniform(20), np.arange(len(h))
        ids = np.random.default_rng(seed).choice(20, (len(h), num_sampled), p=q)
        o = h @ class_embeddings.T
        x = np.take_along_axis(o - np.log(num_sampled * q), ids, axis=1)
        x = np.where(ids == labels[:, None], -np.inf, x)
        y = (o - np.log((len(h) - 1) * q))[:, labels]
        y = np.where(labels == labels[:, None], -np.inf, y)
        own = o[rows, labels]
        return np.logaddexp(own, np.logaddexp.reduce(np.hstack([x, y]), axis=1)) - own

    report = check_loss(loss, log_uniform, 10)
    assert (report.scheme, report.fault) == ("mixed", "corrected_apart"), report
    assert report.remedy.startswith("Subtract log((B - 1) q + m u)")


@pytest.mark.thorough
@pytest.mark.slow
def test_a_gradient_that_is_not_that_of_the_losses():
    own = InBatchLoss(WeightedSampler(log_uniform(20)), reduction="none")

    def of_labels(class_embeddings, h, labels, num_sampled, seed):
        value, cache = own.forward(h, class_embeddings, labels)
        return value, own.backward(cache).dh[::-1]

    with pytest.raises(ValueError, match="losses of `in_batch` with a gradient that is not the"):
        check_loss(of_labels, log_uniform, 10)
    right = make("masked")

    def of_draws(*given):
        losses, dh = right(*given)
        return losses, dh[::-1]

    report = check_loss(of_draws, log_uniform, 10)
    assert report.scheme is None and "masked" in report.of_losses
    assert "the gradient is not the gradient of these losses" in report.verdict


def with_gradient_times(loss, factor):
    """Return a loss with a gradient times a number, or a function of the size of the batch."""

    def scaled(class_embeddings, h, *given):
        losses, dh = loss(class_embeddings, h, *given)
        return losses, dh * (factor(len(h)) if callable(factor) else factor)

    return scaled


def in_batch_with_gradient(class_embeddings, h, labels, num_sampled, seed):
    own = InBatchLoss(WeightedSampler(log_uniform(20)), reduction="none")
    losses, cache = own.forward(h, class_embeddings, labels)
    return losses, own.backward(cache).dh


def full_with_gradient(class_embeddings, h, labels, num_sampled, seed):
    o, rows = h @ class_embeddings.T, np.arange(len(h))
    log_sum = np.logaddexp.reduce(o, axis=1)
    d_logits = np.exp(o - log_sum[:, None])
    d_logits[rows, labels] -= 1.0
    return log_sum - o[rows, labels], d_logits @ class_embeddings


FACTORS = [(0.5, "1/2 of"), (-1.0, "-1 times"), (0.3, "0.3 times")]
FACTORS += [(1.0 / 64.0, "1/64 of"), (lambda size: 1.0 / size, None)]


@pytest.mark.parametrize(("factor", "words"), FACTORS)
@pytest.mark.parametrize("name", ["full", "in_batch"])
def test_a_gradient_that_is_a_constant_times_theirs(name, factor, words):
    loss = {"full": full_with_gradient, "in_batch": in_batch_with_gradient}[name]
    report = check_loss(with_gradient_times(loss, factor), log_uniform(20), 10)
    fault = "divided_by_batch" if words is None else "gradient_scaled"
    assert (report.scheme, report.fault) == (name, fault), report
    if words is not None:
        assert report.verdict.startswith(f"The losses are right (scheme `{name}`: it ")
        end = f", but the gradient is {words} the gradient of these losses."
        assert report.verdict.splitlines()[0].endswith(end)
    assert ("in smaller batches too" in report.verdict) == (factor == 1.0 / 64.0)


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize(("factor", "words"), [FACTORS[0], *FACTORS[2:]])
def test_a_gradient_of_draws_that_is_a_constant_times_theirs(factor, words):
    report = check_loss(with_gradient_times(make("masked"), factor), log_uniform(20), 10)
    fault = "divided_by_batch" if words is None else "gradient_scaled"
    assert (report.scheme, report.fault) == ("masked", fault), report
    assert words is None or words in report.verdict or factor == 0.3


def two_way(correct=0.0, mask=False, factor=0.5, weighted=False):
    """Return the cross entropies of rows and of columns of the logits of a batch."""

    def loss(class_embeddings, h, labels, num_sampled, seed, weights=1.0):
        x = h @ class_embeddings[labels].T
        x -= correct * np.log(log_uniform(len(class_embeddings)))[labels]
        others = ~np.eye(len(h), dtype=bool)
        if mask:
            x[(labels == labels[:, None]) & others] = -np.inf
        rows, columns = (np.logaddexp.reduce(x, axis=k, keepdims=True) for k in (1, 0))
        losses = factor * weights * (rows[:, 0] + columns[0] - 2.0 * np.diag(x))
        of_rows = (np.exp(x - rows) - ~others) * np.reshape(weights, (-1, 1))
        of_columns = (np.exp(x - columns) - ~others) * weights
        d_x = factor * (of_rows + of_columns)
        dW = np.zeros_like(class_embeddings)
        np.add.at(dW, labels, d_x.T @ h)
        return losses, d_x @ class_embeddings[labels], dW

    return loss


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "the mean of both; logits are not corrected, hits are kept"),
        ({"mask": True, "factor": 1.0}, "the sum of both; logits are not corrected, hits are left"),
        ({"correct": 1.0}, "the mean of both; log q of the class is subtracted, hits are kept"),
        ({"weighted": True}, "the mean of both; logits are not corrected, hits are kept"),
    ],
)
def test_two_way_losses_of_a_batch(options, words):
    """Half of them is over the contexts of the batch, so that they are no softmax of classes."""
    weighted = options.get("weighted", False)
    report = check_loss(two_way(**options), log_uniform, 10, weights=weighted)
    assert (report.scheme, report.fault) == ("in_batch_symmetric", None), report
    assert words in report.verdict and "one over its contexts" in report.verdict
    assert report.loss_bias is None and report.ok


def test_one_half_of_a_two_way_loss_is_no_two_way_loss():
    """WRONG: columns weigh more than rows."""

    def loss(class_embeddings, h, labels, *_):
        x = h @ class_embeddings[labels].T
        rows, columns = (np.logaddexp.reduce(x, axis=k) - np.diag(x) for k in (1, 0))
        return 0.4 * rows + 0.6 * columns

    report = check_loss(loss, log_uniform, 10)
    assert report.scheme is None, report


def with_margin(kind, number, sampled, tau=16.0):
    """Return a loss of cosines with a margin, as in CosFace and ArcFace, and its gradient."""

    def loss(class_embeddings, h, labels, num_sampled, seed):
        norms = np.linalg.norm(h, axis=1, keepdims=True)
        unit_h = h / norms
        unit = class_embeddings / np.linalg.norm(class_embeddings, axis=1, keepdims=True)
        rows, n = np.arange(len(h)), len(unit)
        o = tau * unit_h @ unit.T
        angle = np.arccos(o[rows, labels] / tau)
        own, slope = o[rows, labels] - tau * number, 1.0
        if kind == "ArcFace":
            own = tau * np.cos(angle + number)
            slope = np.sin(angle + number) / np.sin(angle)
        ids = np.tile(np.arange(n), (len(h), 1))
        if sampled:
            ids = np.random.default_rng(seed).integers(0, n, (len(h), num_sampled))
        x = np.take_along_axis(o, ids, axis=1) - (np.log(num_sampled / n) if sampled else 0.0)
        x[ids == labels[:, None]] = -np.inf
        log_sum = np.logaddexp(own, np.logaddexp.reduce(x, axis=1))
        d_logits = np.zeros_like(o)
        np.add.at(d_logits, (rows[:, None], ids), np.exp(x - log_sum[:, None]))
        d_logits[rows, labels] += slope * (np.exp(own - log_sum) - 1.0)
        dh = tau * d_logits @ unit
        return log_sum - own, (dh - (dh * unit_h).sum(axis=1, keepdims=True) * unit_h) / norms

    return loss


MARGINS = [("CosFace", 0.35, "tau (h . c - 0.35)"), ("ArcFace", 0.5, "tau cos(angle + 0.5)")]


@pytest.mark.parametrize(("kind", "number", "words"), MARGINS)
def test_margins_of_the_label(kind, number, words):
    report = check_loss(with_margin(kind, number, False), log_uniform(20), 10, tau=16.0)
    assert (report.scheme, report.fault) == ("full", "label_margin"), report
    assert words in report.verdict and report.divides_by_norms


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number", "words"), MARGINS)
def test_margins_of_the_label_beside_draws(kind, number, words):
    report = check_loss(with_margin(kind, number, True), "uniform", 10, tau=16.0)
    assert (report.scheme, report.fault) == ("masked", "label_margin"), report
    assert words.split(" ")[1].rstrip("(") in report.verdict


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("of_lengths", [True, False])
def test_cosines_with_draws_that_look_at_the_context(of_lengths):
    """Longer contexts may have other draws, though the logits are the same."""
    vectors = np.random.default_rng(1).standard_normal((12, 8))
    sampler = SoftmaxSampler(vectors, tau=0.7)

    def loss(class_embeddings, h, labels, num_sampled, seed):
        unit_h, unit = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (h, class_embeddings))
        draw = sampler.sample(h if of_lengths else unit_h, num_sampled, rng=seed)
        o = 5.0 * unit_h @ unit.T
        x = np.take_along_axis(o, draw.ids, axis=1) - draw.log_q - np.log(num_sampled)
        x[draw.ids == labels[:, None]] = -np.inf
        own = o[np.arange(len(h)), labels]
        return np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own

    report = check_loss(loss, sampler, 6, tau=5.0, calls=SOME_CALLS)
    assert ("masked", None) in report.consistent and report.fault is None, report
    assert report.divides_by_norms


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("value", [-1.0, 1.0])
def test_a_constant_in_place_of_a_mask(value):
    """As masked_fill leaves it, which has no gradient."""

    def loss(class_embeddings, h, labels, num_sampled, seed):
        q = log_uniform(len(class_embeddings))
        ids = np.random.default_rng(seed).choice(len(q), (len(h), num_sampled), p=q)
        o, rows = h @ class_embeddings.T, np.arange(len(h))
        own, hits = o[rows, labels], ids == labels[:, None]
        x = np.take_along_axis(o, ids, axis=1) - np.log(num_sampled * q[ids])
        x = np.where(hits, value, x)
        total = np.logaddexp(own, np.logaddexp.reduce(x, axis=1))
        slopes = np.zeros_like(o)
        shares = np.where(hits, 0.0, np.exp(x - total[:, None]))
        np.add.at(slopes, (rows[:, None], ids), shares)
        np.add.at(slopes, (rows, labels), np.exp(own - total) - 1.0)
        return total - own, slopes @ class_embeddings

    report = check_loss(loss, log_uniform, 10)
    assert (report.scheme, report.fault) == ("masked", "finite_mask"), report
    found = float(report.scores[0].detail.removeprefix("their logit is "))
    assert found == pytest.approx(value, abs=0.25)


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("q", [[0.97, 0.02, 0.01], [0.9998, 1e-4, 1e-4]])
def test_draws_that_hardly_differ_are_draws(q, monkeypatch):
    """Six seeds may give the same draws."""
    monkeypatch.setattr(twins, "log_uniform", lambda n: np.array(q))
    try:
        report = check_loss(make("masked", shared=True), q, 1, calls=4096)
    except ValueError as error:
        assert q[0] > 0.99 and "same losses for every seed" in str(error)
    else:
        assert report.scheme != "in_batch" and ("masked", None) in report.consistent


def test_every_mistake_has_a_twin():
    others = {"distinct_as_repeated", "dependent_draws", "in_batch_count", "other_proposal"}
    others |= {"corrected_apart", "other_temperature", "probability_capped", *IN_GRADIENTS[1:]}
    others |= {"gradient_scaled", "class_never_drawn", "label_margin"}
    assert {fault for _, fault, _ in COMMON} | others == set(FAULTS)


@pytest.mark.slow
def test_what_no_experiment_tells_apart_is_named_together():
    report = check_loss(make("candidate_masked", "hits_kept"), log_uniform(20), 10)
    assert (report.scheme, report.fault) == ("candidate", None)
    assert ("candidate_masked", "hits_kept") in report.consistent


@pytest.mark.thorough
@pytest.mark.slow
def test_what_is_no_scheme_has_no_name():
    right = make("masked")

    def loss(*given):
        losses, slopes = right(*given)
        return 1.1 * losses + 0.05, slopes

    report = check_loss(loss, log_uniform, 10)
    assert report.scheme is None and report.fault is None and report.consistent == ()
    assert "no known scheme" in report.verdict


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "m", "shared"),
    [("masked", 1, True), ("candidate", 5, True), ("negatives", 1, False)],
)
def test_right_losses_are_not_called_wrong_where_draws_are_rare(scheme, m, shared, monkeypatch):
    """Of one call in a hundred comes most of a mean, which few calls do not show."""
    q = np.array([0.9, 0.06, 0.02, 0.012, 0.008])
    monkeypatch.setattr(twins, "log_uniform", lambda n: q)
    monkeypatch.setattr(
        known, "_single_faults", list
    )  # which take their time, and call nothing wrong
    monkeypatch.setattr(known, "_CACHE", {})
    for seed in range(2):
        report = check_loss(make(scheme, shared=shared), q, m, rng=seed, calls=4096)
        assert (scheme, None) in report.consistent, report


# gradients of class vectors and biases, and weights ----------------------------------------------


def in_all_gradients(fault, sampled):
    """Return a weighted loss with three gradients: the full softmax, as kernels fuse it, or not."""

    def loss(class_embeddings, h, labels, num_sampled, seed, biases, weights):
        n, rows = len(class_embeddings), np.arange(len(h))
        o = h @ class_embeddings.T + biases
        own, slopes = o[rows, labels], np.zeros_like(o)
        if sampled:
            q = log_uniform(n)
            ids = np.random.default_rng(seed).choice(n, (len(h), num_sampled), p=q)
            x = np.take_along_axis(o - np.log(num_sampled * q), ids, axis=1)
            x = np.where(ids == labels[:, None], -np.inf, x)
            total = np.logaddexp(own, np.logaddexp.reduce(x, axis=1))
            np.add.at(slopes, (rows[:, None], ids), np.exp(x - total[:, None]))
            slopes[rows, labels] += np.exp(own - total)
        else:
            total = np.logaddexp.reduce(o, axis=1)
            slopes = np.exp(o - total[:, None])
        own = own + {"label_bias_twice": biases[labels]}.get(fault, 0.0)
        of_losses, of_h, of_classes = weights, weights, weights
        if fault == "weights_of_first":
            of_classes = np.full_like(weights, weights[0])
        if fault == "weights_ignored":
            of_losses = of_h = of_classes = np.ones_like(weights)
        of_label = np.zeros_like(o)
        of_label[rows, labels] = 1.0
        dh = ((slopes - of_label) * of_h[:, None]) @ class_embeddings
        slopes, of_label = slopes * of_classes[:, None], of_label * of_classes[:, None]
        dW, db = (slopes - of_label).T @ h, (slopes - of_label).sum(axis=0)
        if fault == "labels_counted_once":  # by numpy's assignment
            dW, db = slopes.T @ h, slopes.sum(axis=0)
            dW[labels] -= of_classes[:, None] * h
            db[labels] -= of_classes
        if fault == "chunk":
            dW[n // 4 : n // 2] = 0.0
        return of_losses * (total - own), dh, dW, db

    return loss


IN_GRADIENTS = (None, "weights_of_first", "weights_ignored", "labels_counted_once")


@pytest.mark.parametrize("fault", [*IN_GRADIENTS, "label_bias_twice"])
def test_gradients_of_the_full_softmax(fault):
    """Weights of the first token, and a bias that is added twice: kernels had both."""
    loss = in_all_gradients(fault, sampled=False)
    report = check_loss(loss, log_uniform(20), 10, biases=True, weights=True)
    assert (report.scheme, report.fault) == ("full", fault), report


@pytest.mark.thorough(but=1)
@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, "labels_counted_once"])
def test_gradients_of_losses_with_draws(fault):
    loss = in_all_gradients(fault, sampled=True)
    report = check_loss(loss, log_uniform(20), 10, biases=True, weights=True)
    assert (report.scheme, report.fault) == ("masked", fault), report


@pytest.mark.thorough
def test_a_wrong_gradient_of_one_chunk():
    loss = in_all_gradients("chunk", sampled=False)
    with pytest.raises(ValueError, match="losses of `full` with a .* see how dW is computed"):
        check_loss(loss, log_uniform(20), 10, biases=True, weights=True)

    def of_many(class_embeddings, *given):
        name = "chunk" if len(class_embeddings) > 1000 else None
        return in_all_gradients(name, sampled=False)(class_embeddings, *given)

    report = check_loss(of_many, "uniform", 10, biases=True, weights=True)
    assert report.scheme is None and report.num_classes == 10_000
    assert "The losses are those of `full`, but the gradient is not the" in report.verdict


# the spread of single losses ---------------------------------------------------------------------


def sampled_negatives(draw):
    """Return negative sampling on draws (B, m) that a function of generator, q and sizes makes."""

    def loss(class_embeddings, h, labels, num_sampled, seed):
        q, rows = log_uniform(len(class_embeddings)), np.arange(len(h))
        ids = draw(np.random.default_rng(seed), q, len(h), num_sampled)
        o, slopes = h @ class_embeddings.T, np.zeros((len(h), len(q)))
        own, x = o[rows, labels], np.take_along_axis(o, ids, axis=1)
        np.add.at(slopes, (rows[:, None], ids), 1.0 / (1.0 + np.exp(-x)))
        np.add.at(slopes, (rows, labels), -1.0 / (1.0 + np.exp(own)))
        losses = np.logaddexp(0.0, -own) + np.logaddexp(0.0, x).sum(axis=1)
        return losses, slopes @ class_embeddings

    return loss


DRAWS = {  # by the fault that they are, and how widely losses spread
    "own": (lambda rng, q, b, m: rng.choice(len(q), (b, m), p=q), None, 1.0),
    "one set for the batch": (
        lambda rng, q, b, m: np.tile(rng.choice(len(q), m, p=q), (b, 1)),
        None,
        1.0,
    ),
    "half of them, twice": (
        lambda rng, q, b, m: np.tile(rng.choice(len(q), (b, m // 2), p=q), 2),
        "dependent_draws",
        np.sqrt(2.0),
    ),
    "systematic": (  # one in each of m equal parts of the distribution
        lambda rng, q, b, m: np.searchsorted(np.cumsum(q), (np.arange(m) + rng.random((b, 1))) / m),
        "dependent_draws",
        None,
    ),
}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("draws", DRAWS)
def test_draws_that_only_the_spread_of_losses_shows(draws):
    """The mean of negative sampling is a sum over the draws, be they independent or not."""
    draw, fault, ratio = DRAWS[draws]
    report = check_loss(sampled_negatives(draw), log_uniform(20), 10)
    assert (report.scheme, report.fault) == ("negative_sampling_kept", fault), report
    assert ("deviation" in report.verdict) == (fault is not None)
    assert report.num_sets == pytest.approx(1.0 if "batch" in draws else 16.0, rel=0.2)
    assert abs(report.autocorrelation) < 0.2 and "correlation" not in str(report)
    found = next(s.sd_ratio for s in report.scores if s.sd_ratio)
    assert found == pytest.approx(ratio, rel=0.05) if ratio else found < 0.9


# what is refused ---------------------------------------------------------------------------------


def returning(value):
    return lambda c, h, labels, m, seed: value(np.random.default_rng(seed), len(h), h.shape[1])


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda losses, scores: (losses, scores, scores), r"\(64, 20\) .* got a tuple of 3\.$"),
        (lambda losses, scores: [losses, scores[:, :3]], r"a list of 2 with a gradient \(64, 3\)"),
        (lambda losses, scores: (losses, None), r"a tuple of 2 with a gradient \(\)"),
        (lambda losses, scores: (), "a tuple of 0"),
    ],
)
def test_what_a_loss_of_given_draws_must_not_return(returned, words):
    with pytest.raises(ValueError, match=r"`loss` must return .*, dscores\).*" + words):
        check_loss(
            lambda scores, ids, log_q, labels: returned(scores[:, 0], scores),
            log_uniform(20),
            10,
            draws="given",
        )


@pytest.mark.parametrize(
    ("loss", "kind", "words"),
    [
        (3, TypeError, "`loss` must be callable"),
        (returning(lambda rng, b, d: np.full(b, np.nan)), ValueError, "finite losses, got nan"),
        (returning(lambda rng, b, d: rng.random()), ValueError, r"losses of shape \(64,\), got"),
        (returning(lambda rng, b, d: rng.random(3)), ValueError, "without a mean or a sum"),
        (returning(lambda rng, b, d: np.arange(b)), TypeError, "an array of floats"),
        (
            returning(lambda rng, b, d: (rng.random(b), rng.random((d, b)))),
            ValueError,
            "dh of shape",
        ),
        (
            returning(lambda rng, b, d: (1, 2, 3, 4)),
            ValueError,
            "tuple .losses, dh., .losses, dh, dW. .* got a tuple",
        ),
        (returning(lambda rng, b, d: ()), ValueError, "got a tuple of 0"),
        (returning(lambda rng, b, d: np.ones(b)), ValueError, "must draw classes, have the labels"),
    ],
)
def test_what_a_loss_must_not_return(loss, kind, words):
    with pytest.raises(kind, match=words):
        check_loss(loss, "uniform", 5)


@pytest.mark.parametrize(
    ("loss", "options", "names"),
    [
        (lambda scores, labels: 0, {}, "class_embeddings, h, labels, num_sampled, seed"),
        (
            lambda c, h, labels, m, seed: 0,
            {"biases": True},
            "num_sampled, seed, biases",
        ),
        (make("masked"), {"draws": "given"}, "scores, ids, log_q, labels"),
    ],
)
def test_a_loss_that_takes_other_arguments(loss, options, names):
    with pytest.raises(TypeError, match=f"as it is called: loss.*{names}.*got the error") as found:
        check_loss(loss, "uniform", 5, **options)
    assert "positional" in str(found.value.__cause__)


def test_an_error_of_the_loss_itself_stays_as_it_is():
    with pytest.raises(TypeError, match="unsupported operand") as found:
        check_loss(lambda c, h, labels, m, seed: [] - labels[0].item(), "uniform", 5)
    assert found.value.__cause__ is None


@pytest.mark.parametrize(
    ("proposal", "words"),
    [
        ("unigram", "`proposal` must be one of"),
        (8, "a function of n that returns them, .* got 8; for uniform draws"),
        (None, "or a sampler, got None"),
        (LogUniformSampler, "must not be a class, got LogUniformSampler; make one"),
        ([0.5, 0.5], "at least 3 classes"),
        ([0.5, 0.5, 0.0], "above 0 for at least 3 classes, got 2 of 3"),
        ([0.5, 0.5, 0.5], "`proposal` must sum to 1"),
        (lambda n: np.ones(n + 1) / (n + 1), "`proposal` must cover all 10 classes"),
    ],
)
def test_proposals_that_are_refused(proposal, words):
    with pytest.raises((TypeError, ValueError), match=words):
        check_loss(make("masked"), proposal, 5)


# the report --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_report(tmp_path):
    report = check_loss(make("masked", "uncorrected"), log_uniform(20), 10)
    text = str(report)
    assert "Subtract log(m q)" in text
    assert "Without this mistake, max |z| would be" in report.verdict
    values = json.loads(report.to_json())
    assert (values["scheme"], values["fault"]) == ("masked", "uncorrected")
    assert values["hypotheses"][0]["allowed"] and not values["hypotheses"][-1]["allowed"]
    report.plot(tmp_path / "check.svg")
    assert (tmp_path / "check.svg").stat().st_size > 10_000
    with pytest.raises(ValueError, match="`path` must end in"):
        report.plot(tmp_path / "check.txt")


@pytest.mark.parametrize("name", exact_schemes(distinct=True))
def test_means_without_replacement_are_those_of_the_exact_bias(name):
    """Two computations that share no line."""
    m = 3
    sums = ESTIMATORS[name](PROBLEM, m, batch=8)
    if not sums:  # the label is excluded, and no class is left out
        assert name == "distinct"
        return
    found, full = expectation(sums), expectation([full_sum(PROBLEM)])
    exact = exact_bias(PROBLEM.logits, PROBLEM.labels, PROBLEM.q, m, scheme=name)
    np.testing.assert_allclose(found.losses - full.losses, exact.loss_bias, atol=1e-6)
    np.testing.assert_allclose(found.d_logits - full.d_logits, exact.bias, atol=1e-6)


@pytest.mark.slow
def test_its_bias_is_the_exact_one():
    report = check_loss(make("masked"), log_uniform(20), 10)
    problem = make_problem(log_uniform(20), 10, 1.0, False, stream_key(0))
    exact = exact_bias(problem.logits, problem.labels, problem.q, 10, scheme="masked")
    assert report.loss_bias == pytest.approx(exact.loss_bias.mean())
    assert report.gradient_bias == pytest.approx(np.abs(exact.bias).sum(axis=1).mean())


@pytest.mark.slow
def test_a_loss_in_torch():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # on small arrays more of them wait for each other
    q = torch.from_numpy(log_uniform(20))

    def loss(class_embeddings, h, labels, num_sampled, seed):
        generator = torch.Generator().manual_seed(seed)
        w, y = torch.from_numpy(class_embeddings), torch.from_numpy(labels)
        x = torch.from_numpy(h).requires_grad_()
        ids = torch.multinomial(q, num_sampled, replacement=True, generator=generator)
        own = (x * w[y]).sum(1, keepdim=True)
        logits = x @ w[ids].T - torch.log(num_sampled * q[ids])
        logits = logits.masked_fill(ids == y[:, None], -torch.inf)
        losses = torch.logsumexp(torch.cat([own, logits], 1), 1) - own[:, 0]
        losses.sum().backward()
        return losses.detach().numpy(), x.grad.numpy()

    report = check_loss(loss, log_uniform, 10)
    assert (report.scheme, report.fault) == ("masked", None), report
