"""What "auto" stands for: which settings are tried, and which are taken."""

import numpy as np
import pytest

from samplesoft import exact_bias, tune
from samplesoft._random import stream_key
from samplesoft.samplers import RFSoftmaxSampler, UnigramSampler
from samplesoft.tuning import pilot
from samplesoft.tuning import tune as tuning
from samplesoft.tuning.measure import Setting
from samplesoft.tuning.pilot import (
    AUTO,
    any_is_auto,
    choose_settings,
    num_pilot_steps,
    require_auto_supported,
)
from samplesoft.tuning.report import TuneReport

RNG = np.random.default_rng(0)
C = RNG.normal(size=(400, 5))
C /= np.linalg.norm(C, axis=1, keepdims=True)
LABELS = RNG.integers(0, 400, 20)
COUNTS = RNG.integers(1, 50, 400).astype(float)
INPUTS = {"class_embeddings": C, "h": C[LABELS], "labels": LABELS, "counts": COUNTS, "tau": 5.0}
FULL = Setting(None, False, None, 0.0, 0.0, 0.0, 0.0, 1.0)
ONE_SET = Setting("unigram", True, 9, 0.01, 0.0, 0.1, 0.0, 0.1)
FOR_EACH = Setting("clusters", False, 9, 0.01, 0.0, 0.1, 0.0, 0.1)


def found(monkeypatch, best):
    """Let `tune` find something; return what it is given."""
    given = {}

    def finds(*arguments, **options):
        assert not arguments
        given.update(options)
        return TuneReport(
            (best,) if best == FULL else (best, FULL), best, 0.02, None, 400, 8, 20, {}
        )

    monkeypatch.setattr(pilot, "tune", finds)
    return given


@pytest.mark.parametrize(
    ("sampler", "m", "samplers", "sizes"),
    [
        (AUTO, AUTO, pilot.CANDIDATES, list(pilot.DRAWS)[:2]),  # fewer than 400 classes
        (AUTO, 7, pilot.CANDIDATES, [7]),
        ("rff", AUTO, ["rff"], list(pilot.DRAWS)[:2]),
    ],
)
def test_what_is_not_auto_is_kept(sampler, m, samplers, sizes, monkeypatch):
    given = found(monkeypatch, FULL)
    choose_settings(INPUTS, "sampled", sampler, m, shared=True, nu=2.0)
    assert (given["samplers"], given["num_sampled"]) == (samplers, sizes)
    assert given["shared"] is True and given["nu"] == 2.0 and given["thorough"] is False
    assert given["largest_bias"] == pilot.LARGEST_BIAS


def test_a_number_is_tried_where_classes_are_few(monkeypatch):
    given = found(monkeypatch, FULL)
    choose_settings({**INPUTS, "class_embeddings": C[:9]}, "sampled", AUTO, AUTO)
    assert list(given["num_sampled"]) == [pilot.DRAWS[0]]


@pytest.mark.parametrize(
    ("loss", "best", "wanted"),
    [
        ("sampled", ONE_SET, "sampled-masked"),
        ("sampled", FOR_EACH, "sampled"),
        ("sampled-masked", ONE_SET, "sampled-masked"),
        ("sampled-masked", FOR_EACH, "sampled-masked"),
        ("sampled", FULL, "full"),
    ],
)
def test_settings_are_those_of_the_best(loss, best, wanted, monkeypatch):
    given = found(monkeypatch, best)
    choice = choose_settings(INPUTS, loss, AUTO, AUTO)
    verdict = choice.pop("verdict")
    assert choice == {
        "loss": wanted,
        "sampler": best.sampler,
        "num_sampled": best.num_sampled,
        "shared": best.shared,
    }
    assert given["masked"] is (loss == "sampled-masked")
    assert verdict.startswith(f"Take {best.title}")


def test_a_pilot_is_a_tenth_of_the_run_within_limits():
    assert [num_pilot_steps(k) for k in (1, 100, 500, 5000, 50_000)] == [1, 100, 100, 500, 1000]


def test_what_has_no_bias_that_is_measured_is_refused():
    assert any_is_auto(3, AUTO) and not any_is_auto("clusters", 3, None, np.zeros(2))
    require_auto_supported(AUTO, "sampled")
    with pytest.raises(ValueError, match="must not be 'auto' with loss='nce', .* take one of samp"):
        require_auto_supported(AUTO, "nce")
    with pytest.raises(ValueError, match="`num_sampled` must not be 'auto' with sampler='two-pass"):
        require_auto_supported("two-pass", "sampled")


def tables(rng):
    """Return a bias that falls and a time that grows with m, for each sampler and way."""
    table = {}
    for name in pilot.CANDIDATES:
        for shared in (False, True):
            bias = np.sort(rng.uniform(0.0, 0.06, len(pilot.DRAWS)))[::-1]
            seconds = np.sort(rng.uniform(0.0, 1.5, len(pilot.DRAWS)))
            for m, b, s in zip(pilot.DRAWS, bias, seconds, strict=True):
                table[name, shared, m] = Setting(name, shared, m, b, 0.0, 0.1, 0.0, s)
    return table


def compared(monkeypatch, rng):
    """Tune on a table, with all settings and without the needless ones."""
    table = tables(rng)

    def measured(name, sampler, shared, sizes, work, gradient):
        return (table[name, shared, m] for m in sizes)

    monkeypatch.setattr(tuning, "measure_sampler", measured)
    monkeypatch.setattr(tuning, "measure_full_softmax", lambda work: (FULL, None))
    monkeypatch.setattr(tuning, "find_crossover", lambda *arguments: None)  # which takes its time
    given = {**INPUTS, "samplers": pilot.CANDIDATES, "num_sampled": pilot.DRAWS[::-1]}
    return [tune(**given, largest_bias=0.02, thorough=thorough) for thorough in (True, False)]


def test_what_is_left_out_is_never_the_best(monkeypatch):
    rng, fewer = np.random.default_rng(1), 0
    for _ in range(25):
        every, some = compared(monkeypatch, rng)
        assert some.best == every.best
        assert set(some.settings) <= set(every.settings)
        fewer += len(every.settings) - len(some.settings)
    assert fewer > 60
    monkeypatch.setattr(tuning, "_more_draws_are_useless", lambda *arguments: True)  # a wrong twin
    assert any(one.best != two.best for one, two in (compared(monkeypatch, rng) for _ in range(40)))


def test_needless_settings_are_left_out_by_bias_alone():
    with pytest.raises(ValueError, match="`thorough` must be True with `seconds`"):
        tune(**INPUTS, samplers=["uniform"], thorough=False, seconds=1.0)


def l1(q, scheme, m):
    logits = 5.0 * C[LABELS] @ C.T
    return np.abs(exact_bias(logits, LABELS, q, m, scheme=scheme).bias).sum(axis=1).mean()


def test_masked_draws_for_each_example():
    given = {**INPUTS, "samplers": ["unigram"], "num_sampled": [8], "shared": False}
    masked, excluded = (tune(**given, masked=value).settings for value in (True, False))
    q = UnigramSampler(COUNTS).probs(C[LABELS])
    biases = [next(s.bias for s in one if s.sampler) for one in (masked, excluded)]
    assert biases[0] == pytest.approx(l1(q, "masked", 8))
    assert biases[1] == pytest.approx(l1(np.asarray(q), "negatives", 8), rel=0.05)
    assert biases[0] != biases[1] and len(masked) == len(excluded) == 2


def test_features_are_those_that_are_asked_for():
    given = {**INPUTS, "samplers": ["rff"], "num_sampled": [8], "shared": False, "masked": True}
    for nu, num_features in ((2.0, 64), (5.0, 32)):
        report = tune(**given, nu=nu, num_features=num_features)
        options = {
            "frequencies": "iid",
            "leaf": "kernel",
            "leaf_size": 1,
            "rng": int(stream_key(0)),
        }
        rff = RFSoftmaxSampler(C, nu=nu, num_features=num_features, **options)
        bias = next(s.bias for s in report.settings if s.sampler)
        assert bias == pytest.approx(l1(rff.probs(C[LABELS]), "masked", 8), rel=1e-6)
