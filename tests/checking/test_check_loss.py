"""`check_loss` names what right and faulty implementations do."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from checking import twins
from checking.twins import log_uniform, make

from samplesoft import check_loss, exact_bias
from samplesoft._random import as_key
from samplesoft.checking import check, hypotheses
from samplesoft.checking.exact import expectation, moments, squares
from samplesoft.checking.faults import FAULTS, METHODS, RIGHT
from samplesoft.checking.hypotheses import distinct_hypotheses
from samplesoft.checking.observe import make_problem
from samplesoft.checking.recipe import make_recipe
from samplesoft.losses import InBatchLoss, make_loss
from samplesoft.models import SoftmaxLayer
from samplesoft.samplers import LogUniformSampler, SoftmaxSampler, UniformSampler, WeightedSampler

SOME = np.array([0.5, 0.2, 0.2, 0.1])
PROBLEM = make_problem(SOME, 1.0, False, np.uint64(0))
CASES = [
    (name, fault, i, variant)
    for name, method in METHODS.items()
    if method.closed
    for fault, i, variant in [
        (None, 0, RIGHT),
        *(
            (key, i, variant)
            for key, one in FAULTS.items()
            if one.applies(method)
            for i, variant in enumerate(one.variants)
        ),
    ]
]


@pytest.fixture(scope="module", autouse=True)
def kept_simulations():
    """Simulate draws without replacement once for all tests."""
    kept = {}

    def simulated(observer):
        key = observer.problem.q.tobytes(), observer.num_sampled, observer.with_gradient
        if key not in kept:
            kept[key] = list(distinct_hypotheses(observer))
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "distinct_hypotheses", simulated)
        yield


# exact means, by going through all draws ---------------------------------------------------------


def outcomes(recipe, e):
    """Return the chances (K,) of all outcomes, and the draws (K, k) in each, -1 for none."""
    n, law = recipe.law.shape[1], recipe.law[e]
    if recipe.kind == "independent":
        others = np.delete(np.arange(n), recipe.labels[e])
        inside = np.array(list(itertools.product([False, True], repeat=n - 1)))
        chances = np.where(inside, law[others], 1.0 - law[others]).prod(axis=1)
        ids = np.where(inside, others, -1)
    else:
        ids = np.array(list(itertools.product(range(n), repeat=recipe.num_draws)))
        chances = law[ids].prod(axis=1)
    return chances[chances > 0.0], ids[chances > 0.0]


def losses_of(recipe, e, ids, own, draws):
    """Return losses (K,), where `own` is the label's logit and `draws` (n,) those of draws."""
    x = np.where(ids < 0, -np.inf, draws[ids])
    if recipe.kind == "one hit less":
        hits = ids == recipe.labels[e]
        x[hits & (hits.cumsum(axis=1) == 1)] = -np.inf
    if recipe.kind == "twice":
        x = np.hstack([x, x[:, :1]])
    if recipe.kind == "logistic":
        return np.logaddexp(0.0, -own) + np.logaddexp(0.0, x).sum(axis=1)
    base = own if recipe.base[e] > -np.inf else -np.inf
    if recipe.kind == "kept":
        kept = (x > -np.inf).sum(axis=1, keepdims=True)
        x = x - np.log(np.maximum(kept, 1))

    def log_sums(values):
        return np.logaddexp.reduce(values, axis=1, initial=base) - own

    if recipe.kind == "jackknife":
        m = x.shape[1]
        less = [log_sums(np.delete(x, i, axis=1) + np.log(m / (m - 1))) for i in range(m)]
        return m * log_sums(x) - (m - 1) * np.mean(less, axis=0)
    return log_sums(x)


@pytest.mark.parametrize(("name", "fault", "i", "variant"), CASES)
def test_exact_means_are_those_over_all_draws(name, fault, i, variant):
    recipe = make_recipe(PROBLEM, METHODS[name], variant, 3, batch=8)
    if name == "full" or recipe is None:  # with one draw no number is less by one
        return
    found = expectation(recipe)
    for e, label in enumerate(PROBLEM.labels[:2]):
        chances, ids = outcomes(recipe, e)
        assert chances.sum() == pytest.approx(1.0)

        def mean(own, draws, e=e, chances=chances, ids=ids):
            return chances @ losses_of(recipe, e, ids, own, draws)

        own, draws = recipe.own[e], recipe.draws[e]
        assert found.losses[e] == pytest.approx(recipe.loss_scale * mean(own, draws), rel=1e-10)
        for j in range(PROBLEM.num_classes):  # a class's logit moves those of its draws too
            step = 1e-5 * np.eye(PROBLEM.num_classes)[j]
            ends = [
                mean(own + s * step[label], np.where(draws > -np.inf, draws + s * step, draws))
                for s in (1.0, -1.0)
            ]
            slope = recipe.slope_scale * (ends[0] - ends[1]) / 2e-5
            assert found.slopes[e, j] == pytest.approx(slope, abs=2e-8)


@pytest.mark.parametrize(
    "name", [name for name, fault, *_ in CASES if fault is None and name not in ("full",)]
)
def test_exact_moments_are_those_over_all_draws(name):
    recipe, about = make_recipe(PROBLEM, METHODS[name], RIGHT, 4, batch=8), 0.7
    known = squares(recipe, np.full(4, about))
    if name.startswith("jackknife"):
        assert known is None
        return
    for e in range(4):
        chances, ids = outcomes(recipe, e)
        x = losses_of(recipe, e, ids, recipe.own[e], recipe.draws[e]) - about
        powers = [chances @ x**k for k in range(7)]
        np.testing.assert_allclose(moments(recipe, e, about), powers, rtol=1e-7)
        of_squares = x**2 - powers[2]
        deviation = np.sqrt(chances @ of_squares**2)
        means, width = known
        assert means[e] == pytest.approx(powers[2])
        assert width.deviations[e] == pytest.approx(deviation)
        third = abs(chances @ of_squares**3) / deviation**3
        assert width.skewness[e] == pytest.approx(third, rel=1e-4, abs=1e-6)


# samplesoft's own losses -------------------------------------------------------------------------


OWN = {
    "full": "full",
    "sampled": "negatives",
    "sampled-masked": "masked",
    "sampled-reject": "reject",
    "sampled-candidate": "candidate",
    "sampled-candidate-masked": "candidate_masked",
    "jackknife": "jackknife",
    "jackknife-masked": "jackknife_masked",
    "nce": "nce",
    "negative-sampling": "negative_sampling",
    "negative-sampling-masked": "negative_sampling_masked",
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


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_losses_of_the_library_are_named(name):
    sampler = LogUniformSampler(8)
    report = check_loss(own_loss(name, sampler), sampler, 10, rng=3, seconds=60.0)
    right = {scheme for scheme, fault in report.consistent if fault is None}
    assert {OWN[name]} <= right <= {OWN[name], "reject"}, report
    assert report.fault is None


@pytest.mark.slow
@pytest.mark.parametrize("weight", [1.0, 1.5])
def test_a_loss_without_bias_is_named(weight):
    """WRONG is one whose differences weigh more than they should."""
    sampler, loss = LogUniformSampler(8), make_loss("multilevel", reduction="none")
    draw = loss.draw
    loss.draw = lambda *given: replace(d := draw(*given), chance=d.chance / weight)

    def black_box(class_embeddings, h, labels, num_sampled, seed):
        layer = SoftmaxLayer(class_embeddings, loss, sampler, num_sampled)
        value, cache = layer.forward(h, labels, rng=seed)
        return value, layer.backward(cache)[0]

    report = check_loss(black_box, sampler, 2, rng=3, seconds=60.0)
    assert report.scheme == ("unbiased" if weight == 1.0 else None), report
    assert weight > 1.0 or report.loss_bias == report.gradient_bias == 0.0


@pytest.mark.slow
def test_tau_biases_and_a_sampler_that_looks_at_contexts():
    vectors = np.random.default_rng(1).standard_normal((10, 4))
    sampler = SoftmaxSampler(vectors, tau=0.7)
    loss = own_loss("sampled", sampler, tau=3.0)
    report = check_loss(loss, sampler, 10, tau=3.0, biases=True, seconds=60.0)
    assert ("negatives", None) in report.consistent, report
    assert ("negatives", "uncorrected") not in report.consistent


@pytest.mark.slow
def test_one_set_for_the_batch_in_float32():
    loss = make("masked", shared=True, dtype=np.float32)
    report = check_loss(loss, log_uniform, 5, seconds=4.0)
    right = {scheme for scheme, fault in report.consistent if fault is None}
    assert {"masked"} <= right <= {"masked", "reject", "poisson"}, report


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

    report = check_loss(loss, "log-uniform", 10, draws=draws)
    wanted = "masked" if draws == "given" else "negatives"
    assert (report.scheme, report.fault) == (wanted, None), report


# mistakes ----------------------------------------------------------------------------------------

COMMON = [
    ("masked", "log_q_added", 0),
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
    ("nce", "label_uncorrected", 0),
    ("candidate", "label_corrected_twice", 0),
    ("masked", "counted_twice", 0),
    ("masked", "m_off_by_one", 2),
    ("negatives", "divided_by_batch", 0),
    ("masked", "finite_mask", 0),
    ("masked", "finite_mask", 1),
    ("candidate_masked", "smoothed_hits", 0),
    ("masked", "smoothed_hits", 1),
    ("negatives", "label_smoothing", 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "fault", "variant"), COMMON)
def test_mistakes_are_named(scheme, fault, variant):
    report = check_loss(make(scheme, fault, variant), log_uniform, 10, rng=1)
    assert (report.scheme, report.fault) == (scheme, fault), report
    assert report.remedy
    assert (scheme, None) not in report.consistent


def without_replacement(count):
    """Return a loss on four different draws, corrected by the log of a count."""

    def loss(class_embeddings, h, labels, num_sampled, seed):
        rng, q = np.random.default_rng(seed), log_uniform(len(class_embeddings))
        seen, tries = [], 0
        while len(seen) < num_sampled:
            tries += 1
            seen = list(dict.fromkeys([*seen, rng.choice(len(q), p=q)]))
        o = h @ class_embeddings.T - np.log(count(q, num_sampled, tries))
        own, x = np.take_along_axis(o, labels[:, None], axis=1)[:, 0], o[:, seen]
        x = np.where(labels[:, None] == seen, -np.inf, x)
        return np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own

    return loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "fault"),
    [
        (lambda q, m, k: -np.expm1(k * np.log1p(-q)), None),
        (lambda q, m, k: m * q, "distinct_as_repeated"),
    ],
)
def test_draws_without_replacement_are_simulated(count, fault):
    report = check_loss(without_replacement(count), log_uniform, 4, seconds=60.0)
    assert (report.scheme, report.fault) == ("candidate_masked_distinct", fault), report


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


@pytest.mark.parametrize(
    ("loss", "scheme", "fault"),
    [
        (in_batch(lambda log_q, m: log_q + np.log(m)), "in_batch", None),
        (in_batch(lambda log_q, m: log_q, label=1.0), "in_batch_candidate", None),
        (in_batch(lambda log_q, m: 0.0 * log_q), "in_batch", "uncorrected"),
        (in_batch(lambda log_q, m: -log_q, label=-1.0), "in_batch_candidate", "log_q_added"),
        (in_batch(lambda log_q, m: log_q + np.log(m), mask=False), "in_batch", "hits_kept"),
        (in_batch(lambda log_q, m: log_q + np.log(m + 1)), "in_batch", "in_batch_count"),
        (in_batch(lambda log_q, m: log_q + np.log(10)), "in_batch", "in_batch_count"),
    ],
)
def test_negatives_of_the_batch(loss, scheme, fault):
    report = check_loss(loss, log_uniform, 10)
    assert (report.scheme, report.fault) == (scheme, fault), report
    assert (report.loss_bias is None) == (fault is not None)
    assert json.loads(report.to_json())["scheme"] == scheme
    assert (fault in (None, "in_batch_count")) == ("B - 1 = 63" in report.verdict)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "fault"), [(63, None), (64, "in_batch_count")])
def test_an_in_batch_loss_that_takes_m_from_outside(m, fault):
    def loss(*given):
        return in_batch(lambda log_q, _: log_q + np.log(given[3]))(*given)

    report = check_loss(loss, log_uniform, m)
    assert (report.scheme, report.fault) == ("in_batch", fault), report
    assert report.consistent == (("in_batch", fault),)


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


@pytest.mark.slow
@pytest.mark.parametrize("corrected", [True, False])
def test_draws_by_another_proposal(corrected):
    log_q = np.full(8, -np.log(8.0)) if corrected else np.log(log_uniform(8))
    report = check_loss(on_uniform_draws(log_q, 2**31), "log-uniform", 10, seconds=60.0)
    assert (report.scheme, report.fault) == ("masked", "other_proposal"), report
    assert ("correction by 'uniform'" in report.verdict) == corrected


def test_draws_that_are_used_again_in_the_next_call():
    kept = []

    def draw(rng, q, b, m):
        kept.append(rng.choice(len(q), m // 2, p=q))
        return np.tile(np.concatenate(kept[-2:] if kept[1:] else kept * 2), (b, 1))

    report = check_loss(sampled_negatives(draw), log_uniform, 10, seconds=60.0)
    assert report.autocorrelation == pytest.approx(0.5, abs=0.1)
    assert "have a correlation of 0." in str(report)


@pytest.mark.slow
def test_seeds_that_repeat():
    log_q = np.full(8, -np.log(8.0))
    report = check_loss(on_uniform_draws(log_q, 40), "uniform", 10, seconds=60.0)
    assert report.fault == "dependent_draws" or report.scheme is None
    assert f"Only 40 of {report.calls:,} calls gave different results" in report.verdict


def test_a_proposal_that_nobody_knows_is_not_taken_for_a_mistake(monkeypatch):
    q = np.array([0.01, 0.02, 0.02, 0.05, 0.2, 0.2, 0.2, 0.3])
    monkeypatch.setattr(twins, "log_uniform", lambda n: q)
    report = check_loss(make("masked"), "log-uniform", 10, seconds=60.0)
    assert report.scheme is None
    assert "draws may follow another proposal. Count" in report.verdict


def test_the_in_batch_loss_of_the_library():
    own = InBatchLoss(WeightedSampler(log_uniform(8)), reduction="none")

    def loss(class_embeddings, h, labels, num_sampled, seed):
        value, cache = own.forward(h, class_embeddings, labels)
        return value, own.backward(cache).dh

    report = check_loss(loss, log_uniform, 10)
    assert (report.scheme, report.fault) == ("in_batch", None), report


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["masked", "candidate_masked"])
def test_mixed_negatives_of_the_library(scheme):
    extra = UniformSampler(8)
    own = InBatchLoss(WeightedSampler(log_uniform(8)), scheme=scheme, extra=extra, reduction="none")

    def loss(class_embeddings, h, labels, num_sampled, seed):
        draw = extra.sample(h, num_sampled, rng=seed)
        value, cache = own.forward(h, class_embeddings, labels, draw)
        return value, own.backward(cache).dh

    report = check_loss(loss, log_uniform, 10)
    wanted = "mixed" if scheme == "masked" else "mixed_candidate"
    assert report.consistent == ((wanted, None),), report
    assert "draws are by 'uniform'" in report.verdict
    assert report.scores[0].sd_ratio == pytest.approx(1.0, rel=0.05)


@pytest.mark.slow
def test_mixed_negatives_that_are_corrected_apart():
    def loss(class_embeddings, h, labels, num_sampled, seed):
        q, rows = log_uniform(8), np.arange(len(h))
        ids = np.random.default_rng(seed).choice(8, (len(h), num_sampled), p=q)
        o = h @ class_embeddings.T
        x = np.take_along_axis(o - np.log(num_sampled * q), ids, axis=1)
        x = np.where(ids == labels[:, None], -np.inf, x)
        y = (o - np.log((len(h) - 1) * q))[:, labels]
        y = np.where(labels == labels[:, None], -np.inf, y)
        own = o[rows, labels]
        return np.logaddexp(own, np.logaddexp.reduce(np.hstack([x, y]), axis=1)) - own

    report = check_loss(loss, log_uniform, 10, seconds=60.0)
    assert (report.scheme, report.fault) == ("mixed", "corrected_apart"), report
    assert report.remedy.startswith("Subtract log((B - 1) q + m u)")


@pytest.mark.slow
def test_a_gradient_that_is_not_that_of_the_losses():
    own = InBatchLoss(WeightedSampler(log_uniform(8)), reduction="none")

    def of_labels(class_embeddings, h, labels, num_sampled, seed):
        value, cache = own.forward(h, class_embeddings, labels)
        return value, -own.backward(cache).dh

    with pytest.raises(ValueError, match="losses of `in_batch` with a gradient that is not theirs"):
        check_loss(of_labels, log_uniform, 10)
    right = make("masked")

    def of_draws(*given):
        losses, slopes = right(*given)
        return losses, slopes / 10

    report = check_loss(of_draws, log_uniform, 10)
    assert report.scheme is None and "masked" in report.of_losses
    assert "the gradient is not theirs" in report.verdict


@pytest.mark.slow
@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
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
    assert value == 0.0 or report.scores[0].number == f"the logit {value:.2g}"


@pytest.mark.slow
@pytest.mark.parametrize("q", [[0.97, 0.02, 0.01], [0.9998, 1e-4, 1e-4]])
def test_draws_that_hardly_differ_are_draws(q, monkeypatch):
    """Six seeds may give the same draws."""
    monkeypatch.setattr(twins, "log_uniform", lambda n: np.array(q))
    try:
        report = check_loss(make("masked", shared=True), q, 1, seconds=1.0)
    except ValueError as error:
        assert q[0] > 0.99 and "same losses for every seed" in str(error)
    else:
        assert report.scheme != "in_batch" and ("masked", None) in report.consistent


def test_every_mistake_has_a_twin():
    others = {"distinct_as_repeated", "dependent_draws", "in_batch_count", "other_proposal"}
    others |= {"corrected_apart"}
    assert {fault for _, fault, _ in COMMON} | others == set(FAULTS)


@pytest.mark.slow
def test_what_no_experiment_tells_apart_is_named_together():
    report = check_loss(make("candidate_masked", "hits_kept"), log_uniform, 10)
    assert (report.scheme, report.fault) == ("candidate", None)
    assert ("candidate_masked", "hits_kept") in report.consistent


@pytest.mark.slow
def test_what_is_no_scheme_has_no_name():
    right = make("masked")

    def loss(*given):
        losses, slopes = right(*given)
        return 1.1 * losses + 0.05, slopes

    report = check_loss(loss, log_uniform, 10)
    assert report.scheme is None and report.fault is None and report.consistent == ()
    assert "no known scheme" in report.verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "m", "shared"),
    [("masked", 1, True), ("candidate", 5, True), ("negatives", 1, False)],
)
def test_right_losses_are_not_called_wrong_where_draws_are_rare(scheme, m, shared, monkeypatch):
    """Of one call in a hundred comes most of a mean, which few calls do not show."""
    q = np.array([0.9, 0.06, 0.02, 0.012, 0.008])
    monkeypatch.setattr(twins, "log_uniform", lambda n: q)
    monkeypatch.setattr(hypotheses, "FAULTS", {})  # which take their time, and call nothing wrong
    monkeypatch.setattr(hypotheses, "_KEPT", {})
    for seed in range(5):
        report = check_loss(make(scheme, shared=shared), q, m, rng=seed, seconds=0.4)
        assert (scheme, None) in report.consistent, report


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


@pytest.mark.parametrize("draws", DRAWS)
def test_draws_that_only_the_spread_of_losses_shows(draws):
    """The mean of negative sampling is a sum over the draws, be they independent or not."""
    draw, fault, ratio = DRAWS[draws]
    report = check_loss(sampled_negatives(draw), log_uniform, 10, seconds=60.0)
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
        (returning(lambda rng, b, d: rng.random(b).astype(np.float16)), TypeError, "too coarse"),
        (returning(lambda rng, b, d: (1, 2, 3)), ValueError, "or a pair .losses, dh., got a tuple"),
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
        (make("masked"), {"biases": True}, "num_sampled, seed, biases"),
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
        ([0.5, 0.5, 0.0], "above 0 for every class, got 0 for class 2"),
        ([0.5, 0.5, 0.5], "`proposal` must sum to 1"),
        (lambda n: np.ones(n + 1) / (n + 1), "`proposal` must cover all 8 classes"),
    ],
)
def test_proposals_that_are_refused(proposal, words):
    with pytest.raises((TypeError, ValueError), match=words):
        check_loss(make("masked"), proposal, 5)


# the report --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_report(tmp_path):
    report = check_loss(make("masked", "uncorrected"), log_uniform, 10)
    text = str(report)
    assert "Subtract log(m q)" in text and "As it should be, |z| would be" in text
    values = json.loads(report.to_json())
    assert (values["scheme"], values["fault"]) == ("masked", "uncorrected")
    assert values["hypotheses"][0]["allowed"] and not values["hypotheses"][-1]["allowed"]
    report.plot(tmp_path / "check.svg")
    assert (tmp_path / "check.svg").stat().st_size > 10_000
    with pytest.raises(ValueError, match="`path` must end in"):
        report.plot(tmp_path / "check.txt")


@pytest.mark.slow
def test_its_bias_is_the_exact_one():
    report = check_loss(make("masked"), log_uniform, 10)
    problem = make_problem(log_uniform, 1.0, False, as_key(0))
    exact = exact_bias(problem.logits, problem.labels, problem.q, 10, scheme="masked")
    assert report.loss_bias == pytest.approx(exact.loss_bias.mean())
    assert report.gradient_bias == pytest.approx(np.abs(exact.bias).sum(axis=1).mean())


@pytest.mark.slow
def test_a_loss_in_torch():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # on small arrays more of them wait for each other
    q = torch.from_numpy(log_uniform(8))

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
