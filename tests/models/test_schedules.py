"""Schedules over the registry, and each against numbers worked out by hand."""

import pytest

from samplesoft.models.schedules import SCHEDULES, make_schedule

CASES = {
    "constant": ({}, {0: 1, 0.5: 1, 100: 1}),
    "zaremba": ({}, {0: 1, 3: 1, 3.9: 1, 4: 1 / 2, 4.5: 1 / 2, 5: 1 / 4, 12: 2.0**-9}),
    "exponential": ({"decay": 4}, {0: 1, 0.5: 1 / 2, 1: 1 / 4, 2: 1 / 16}),
    "inverse-sqrt": ({"warmup": 4}, {0: 1 / 4, 1: 2 / 4, 3: 1, 15: 1 / 2, 63: 1 / 4}),
    "linear": ({"epochs": 10}, {0: 1, 1: 0.9, 2.5: 0.75, 9: 0.1, 10: 0, 11: 0}),
    "cosine": ({"epochs": 6}, {0: 1, 2: 0.75, 3: 0.5, 4: 0.25, 6: 0, 9: 0}),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_factors_are_those_worked_out_by_hand(name):
    options, wanted = CASES[name]
    schedule = make_schedule(name, **options)
    for epoch, factor in wanted.items():
        assert schedule(epoch) == pytest.approx(factor, abs=1e-15)


@pytest.mark.parametrize("name", SCHEDULES)
def test_factors_are_floats_between_zero_and_one_that_fall_after_a_warmup(name):
    schedule = make_schedule(name, **CASES[name][0])
    factors = [schedule(epoch / 4) for epoch in range(400)]
    assert all(isinstance(factor, float) and 0 <= factor <= 1 for factor in factors)
    late = factors[factors.index(max(factors)) :]
    assert late == sorted(late, reverse=True)


@pytest.mark.parametrize(
    ("hold", "decay"), [(4, 2.0), (6, 1.2), (14, 1.15)], ids=["small", "medium", "large"]
)
def test_zaremba_follows_the_tutorial_of_tensorflow(hold, decay):
    # the tutorial raises lr_decay = 1 / decay to max(i + 1 - max_epoch, 0), i from 0
    rate, schedule = 1.0, make_schedule("zaremba", hold=hold, decay=decay)
    for epoch in range(40):
        if epoch >= hold:
            rate /= decay
        assert schedule(epoch) == pytest.approx(rate, rel=1e-13)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("step", {}, ValueError, "one of constant, zaremba"),
        ("zaremba", {"decay": 0.0}, ValueError, "`decay`"),
        ("zaremba", {"hold": -1}, ValueError, "`hold`"),
        ("exponential", {"decay": "2"}, TypeError, "`decay`"),
        ("inverse-sqrt", {"warmup": 0}, ValueError, "`warmup`"),
        ("linear", {}, TypeError, "epochs"),
        ("cosine", {"epochs": 0}, ValueError, "`epochs`"),
        ("constant", {"hold": 4}, TypeError, "hold"),
    ],
)
def test_malformed_options_are_refused_at_once(name, options, error, message):
    with pytest.raises(error, match=message):
        make_schedule(name, **options)
