"""`check_loss` names what losses with a running estimate of the sum do."""

import numpy as np
import pytest
from checking.twins import log_uniform

from samplesoft import check_loss
from samplesoft.checking.estimators import ESTIMATORS
from samplesoft.checking.memory import _moving_average, with_memory
from samplesoft.checking.observe import Observer
from samplesoft.checking.problems import make_problem
from samplesoft.losses import DoubleSumLoss, MovingAverageLoss
from samplesoft.samplers import LogUniformSampler

FEW_CALLS = 1 << 11  # the least with a verdict on losses with a gradient
Q = log_uniform(10)


def weights_of_draws(class_embeddings, h, labels, m, seed, fault=""):
    """Return draws (B, m), their score differences, and their terms of the sum."""
    rows = np.arange(len(h))[:, None]
    ids = np.cumsum(Q)[:-1].searchsorted(np.random.default_rng(seed).random((len(h), m)))
    o = h @ class_embeddings.T
    x = o[rows, ids] - o[rows, labels[:, None]]
    log_count = {"mean_over_draws": np.log(m), "uncorrected": 0.0}.get(fault, np.log(m * Q[ids]))
    w = np.exp(x + log_count if fault == "log_q_added" else x - log_count)
    return ids, x, w if fault == "hits_kept" else np.where(ids == labels[:, None], 0.0, w)


def gradient(class_embeddings, ids, labels, d):
    """Return the gradient in the contexts, given that (B, m) in the scores of the draws."""
    slopes, rows = np.zeros((len(ids), len(Q))), np.arange(len(ids))
    np.add.at(slopes, (rows[:, None], ids), d)
    slopes[rows, labels] -= d.sum(axis=1)
    return slopes @ class_embeddings


def moving(fault="", value="u + S/U - 1", gamma=0.1, alpha=None):
    """Return a moving average of sampled softmax, by hand."""

    def loss(class_embeddings, h, labels, m, seed, log_sums):
        ids, x, w = weights_of_draws(class_embeddings, h, labels, m, seed, fault)
        total, old = 1.0 + w.sum(axis=1), np.exp(log_sums)
        rate = np.full(len(h), gamma) if alpha is None else alpha * old / (1.0 + alpha * old)
        if fault != "new_from_zero":
            rate = np.where(old == 0.0, 1.0, rate)
        new = (1.0 - rate) * old + rate * total
        if fault == "log_sums_ignored":
            new = total
        elif fault == "double_sum":
            new = np.where(old == 0.0, total, old)
        elif fault == "other_rate":
            new = np.where(old == 0.0, total, rate * old + (1.0 - rate) * total)
        ratio = total / new
        through = {"u + S/U - 1": 1.0 + rate - rate * ratio, "S/U": 1.0 - rate * ratio}
        factor = {
            "gradient_through_log_sums": through.get(value, rate),
            "gradient_times_gamma": rate,
            "gradient_over_gamma": 1.0 / rate,
        }.get(fault, 1.0)
        d = w * (factor / new)[:, None]
        values = {
            "u + S/U - 1": np.log(new) + ratio - 1.0,
            "S/U": ratio,
            "log U": np.log(new),
            "differences": (d * x).sum(axis=1),
            "square": ratio**2,
        }
        return values[value], gradient(class_embeddings, ids, labels, d)

    return loss


def of_library(loss, sampler):
    def black_box(class_embeddings, h, labels, num_sampled, seed, log_sums):
        draw = sampler.sample(h, num_sampled, rng=seed)
        value, cache = loss.forward(h, class_embeddings, labels, draw, log_sums=log_sums)
        return value, loss.backward(cache).dh

    return black_box


# exact means -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [{"gamma": 0.3}, {"alpha": 0.05}])
@pytest.mark.parametrize("has_label", [True, False])
def test_exact_means_are_those_over_all_draws(rate, has_label):
    """For one draw."""
    problem = make_problem(Q, 1, 1.0, False, np.uint64(0))
    problem = with_memory(problem, rate.get("gamma"), rate.get("alpha"))
    (one,) = ESTIMATORS["masked"](problem, 1, 4)
    mass = 1.0 if has_label else np.exp(-30.0)
    one.log_label_mass[:] = one.label_logit + np.log(mass)
    memory = problem.memory
    visit = _moving_average(one, memory.gamma_of_examples, memory.log_old_mass)
    for e, label in enumerate(problem.labels):
        old = np.exp(memory.log_sums[e])
        gamma = rate.get("gamma") or rate["alpha"] * old / (1.0 + rate["alpha"] * old)
        gamma = 1.0 if old == 0.0 else gamma
        w = np.exp(problem.logits[e] - problem.logits[e, label]) / Q
        w[label] = 0.0
        new = (1.0 - gamma) * old + gamma * (mass + w)
        assert visit.log_sum[e] == pytest.approx(Q @ np.log(new), rel=1e-9)
        assert visit.ratio[e] == pytest.approx(Q @ ((mass + w) / new), rel=1e-9)
        expected = Q * w / new
        expected[label] = -expected.sum()
        assert visit.d_logits[e] == pytest.approx(expected, rel=1e-9, abs=1e-12)


# right losses ------------------------------------------------------------------------------------


@pytest.mark.thorough(but=2)
@pytest.mark.slow
@pytest.mark.parametrize("rate", [{"gamma": 0.1}, {"alpha": 0.05}, {"gamma": 0.9}, {"gamma": 0.01}])
def test_moving_averages_of_the_library_are_right(rate):
    sampler = LogUniformSampler(10)
    loss = of_library(MovingAverageLoss(**rate, reduction="none"), sampler)
    report = check_loss(loss, sampler, 5, log_sums=True, **rate)
    assert report.scheme == "moving_average" and report.ok, report
    assert "`masked`" in report.verdict and "u + S/U - 1" in report.verdict
    assert report.loss_bias is None


def test_the_double_sum_of_the_library_is_right():
    sampler = LogUniformSampler(10)
    loss = of_library(DoubleSumLoss(reduction="none"), sampler)
    report = check_loss(loss, sampler, 5, log_sums=True)
    assert report.scheme == "double_sum" and report.ok, report


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_no_false_alarm(seed):
    rate = [{"gamma": 0.9}, {"gamma": 0.1}, {"gamma": 0.01}, {"alpha": 0.05}][seed % 4]
    value = ["u + S/U - 1", "S/U", "log U", "differences"][seed // 5]
    loss = moving(value=value, **rate)
    report = check_loss(loss, Q, 5, log_sums=True, calls=FEW_CALLS, rng=seed, **rate)
    assert (report.scheme, report.fault) == ("moving_average", None), report


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("value", ["S/U", "log U", "differences"])
def test_the_value_is_named(value):
    report = check_loss(moving(value=value), Q, 5, log_sums=True, gamma=0.1, calls=FEW_CALLS)
    assert (report.scheme, report.fault) == ("moving_average", None), report
    words = {"differences": "the sum of score differences"}.get(value, value)
    assert f"the value is {words}" in report.verdict


@pytest.mark.parametrize("scale", [1.0, 9.0])
def test_a_mean_over_negatives_as_in_published_code(scale):
    """SCENT's alpha is that of its own mean; a state in another unit fits nothing."""

    def loss(class_embeddings, h, labels, m, seed, log_sums):
        rng, rows = np.random.default_rng(seed), np.arange(len(h))
        ids = (labels[:, None] + rng.integers(1, 10, (len(h), m))) % 10  # no label among them
        o = h @ class_embeddings.T
        x = o[rows[:, None], ids] - o[rows, labels][:, None]
        inner, u = np.exp(x).mean(axis=1), np.exp(log_sums) / 9.0 * scale
        rate = np.where(u == 0.0, 1.0, 0.45 * u / (1.0 + 0.45 * u))
        u = (1.0 - rate) * u + rate * inner
        return inner / u, gradient(class_embeddings, ids, labels, np.exp(x) / m / u[:, None])

    report = check_loss(loss, "uniform", 5, log_sums=True, alpha=0.05, calls=FEW_CALLS)
    if scale == 1.0:
        assert report.scheme == "moving_average_negatives" and report.fault is None, report
        assert "without the label" in report.verdict and "the value is S/U" in report.verdict
    else:
        assert report.scheme is None and "start from `log_sums`" in report.verdict, report


# mistakes ----------------------------------------------------------------------------------------


@pytest.mark.thorough(but=4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "value"),
    [
        ("log_q_added", "u + S/U - 1"),
        ("other_rate", "u + S/U - 1"),
        ("gradient_through_log_sums", "u + S/U - 1"),
        ("log_sums_ignored", "S/U"),
        ("uncorrected", "log U"),
        ("hits_kept", "S/U"),
        ("mean_over_draws", "u + S/U - 1"),
        ("new_from_zero", "S/U"),
        ("gradient_through_log_sums", "S/U"),
        ("gradient_through_log_sums", "log U"),
        ("gradient_times_gamma", "u + S/U - 1"),
        ("gradient_over_gamma", "u + S/U - 1"),
    ],
)
def test_mistakes_are_named(fault, value):
    report = check_loss(moving(fault, value), Q, 5, log_sums=True, gamma=0.1)
    assert (report.scheme, report.fault) == ("moving_average", fault), report
    assert report.remedy and not report.ok


def test_the_estimate_before_the_visit_as_the_divisor():
    report = check_loss(moving("double_sum"), Q, 5, log_sums=True, gamma=0.1, calls=FEW_CALLS)
    assert (report.scheme, report.fault) == ("double_sum", None), report


@pytest.mark.thorough
@pytest.mark.slow
def test_a_value_that_only_carries_the_gradient():
    report = check_loss(moving(value="square"), Q, 5, log_sums=True, gamma=0.1)
    assert (report.scheme, report.fault) == ("moving_average", "other_value"), report


@pytest.mark.thorough
def test_a_real_bug_fits_nothing():
    def loss(*given):
        losses, dh = moving()(*given)
        return losses, dh + 0.3 * given[1]

    report = check_loss(loss, Q, 5, log_sums=True, gamma=0.1, calls=FEW_CALLS)
    assert report.scheme is None and not report.ok


# losses whose memory is not passed ---------------------------------------------------------------


class Remembering:
    def __init__(self, gamma, start):
        self.loss, self.gamma = moving(gamma=gamma), gamma
        self.log_sums = np.full(64, start)

    def __call__(self, class_embeddings, h, labels, m, seed, log_sums=None):
        _, _, w = weights_of_draws(class_embeddings, h, labels, m, seed)
        old, total = np.exp(self.log_sums), 1.0 + w.sum(axis=1)
        found = self.loss(class_embeddings, h, labels, m, seed, self.log_sums)
        rate = np.where(old == 0.0, 1.0, self.gamma)
        self.log_sums = np.log((1.0 - rate) * old + rate * total)
        return found


@pytest.mark.parametrize("gamma", [0.9, 0.1, 0.01])
@pytest.mark.parametrize("start", [-np.inf, 3.0])
def test_a_memory_that_is_not_passed_is_found(gamma, start):
    with pytest.raises(ValueError, match="has a memory; let it start .* pass log_sums=True"):
        check_loss(Remembering(gamma, start), Q, 5)


def test_a_state_that_is_not_set_is_found():
    with pytest.raises(ValueError, match="set its state from the `log_sums` of each call"):
        check_loss(Remembering(0.1, 3.0), Q, 5, log_sums=True, gamma=0.1)


@pytest.mark.parametrize("shared", [True, False])
def test_draws_from_a_generator_of_its_own_are_no_memory(shared):
    for start in range(20):
        rng = np.random.default_rng(start)

        def loss(class_embeddings, h, labels, m, seed, rng=rng):
            ids = rng.choice(10, (1 if shared else len(h), m), p=Q)
            ids, o = np.broadcast_to(ids, (len(h), m)), h @ class_embeddings.T
            rows = np.arange(len(h))[:, None]
            x = np.where(ids == labels[:, None], -np.inf, o[rows, ids] - np.log(m * Q[ids]))
            own = o[rows[:, 0], labels]
            return np.logaddexp(own, np.logaddexp.reduce(x, axis=1)) - own

        problem = make_problem(Q, 5, 1.0, False, np.uint64(start))
        observer = Observer(loss, problem, 5, np.uint64(0), 64)
        assert not observer.follows_seed and observer.drift == 0.0


# arguments ---------------------------------------------------------------------------------------


def test_malformed_arguments():
    with pytest.raises(ValueError, match="`gamma` must be left out without `log_sums`, got 0.1"):
        check_loss(moving(), Q, 5, gamma=0.1)
    with pytest.raises(ValueError, match="`alpha` must be left out where `gamma` is given"):
        check_loss(moving(), Q, 5, log_sums=True, gamma=0.1, alpha=1.0)
    with pytest.raises(TypeError, match="num_sampled, seed, log_sums"):
        check_loss(lambda c, h, labels, m, seed: h[:, 0], Q, 5, log_sums=True)
    with pytest.raises(ValueError, match="also where `log_sums` is -inf, as for a new example"):
        check_loss(lambda c, h, labels, m, seed, u: u, Q, 5, log_sums=True, gamma=0.1)


def test_draws_from_outside():
    def loss(scores, ids, log_q, labels, log_sums):
        rows = np.arange(len(ids))
        x = np.take_along_axis(scores - log_q, ids, axis=1) - np.log(ids.shape[1])
        x = np.where(ids == labels[:, None], -np.inf, x - scores[rows, labels][:, None])
        total = np.logaddexp(0.0, np.logaddexp.reduce(x, axis=1))
        u = np.where(
            np.isneginf(log_sums),
            total,
            np.logaddexp(np.log(0.9) + log_sums, np.log(0.1) + total),
        )
        slopes = np.zeros_like(scores)
        np.add.at(slopes, (rows[:, None], ids), np.exp(x - u[:, None]))
        slopes[rows, labels] -= slopes.sum(axis=1)
        return np.exp(total - u), slopes

    options = {"draws": "given", "log_sums": True, "gamma": 0.1, "calls": FEW_CALLS}
    report = check_loss(loss, Q, 5, **options)
    assert (report.scheme, report.fault) == ("moving_average", None), report
