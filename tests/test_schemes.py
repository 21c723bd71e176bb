"""Facts of the schemes, and what follows from them."""

from dataclasses import replace

import pytest

from samplesoft.bias.exact import exact_bias
from samplesoft.cli import main
from samplesoft.schemes import SCHEMES, Scheme, as_scheme, exact_schemes


def test_schemes_stand_under_their_names():
    assert all(name == scheme.name for name, scheme in SCHEMES.items())
    assert len({replace(s, name="", formula="") for s in SCHEMES.values()}) == len(SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda scheme: scheme.name)
def test_the_formula_says_what_the_facts_say(scheme):
    one_draw = scheme.formula.replace("S of", "")
    if scheme.jackknife:
        one_draw = SCHEMES[scheme.formula.split()[-1]].formula
    assert one_draw.startswith("e_t") is scheme.label_in_sum
    corrected = "e_t / pi_t" if scheme.distinct else "e_t / (m q_t)"
    assert one_draw.startswith(corrected) is scheme.corrects_label
    assert ("over a set" in one_draw) is scheme.distinct
    assert ("(K qn_j)" in one_draw) is scheme.divides_by_accepted
    assert ("(m qn_j)" in one_draw) is (
        scheme.excludes_label and not (scheme.independent or scheme.distinct)
    )
    assert one_draw.endswith("j != t") is (scheme.hits in ("masked", "counted"))


def test_only_one_scheme_has_bounds():
    assert [name for name, scheme in SCHEMES.items() if scheme.has_bounds] == ["negatives"]
    assert not SCHEMES["negatives"].without_correction().has_bounds


def test_few_functions_take_draws_without_replacement():
    names = exact_schemes(distinct=True)
    assert names and not set(names) & set(exact_schemes())
    for name in names:
        assert as_scheme(name, takes_distinct=True) is SCHEMES[name]
        with pytest.raises(ValueError, match=f"got '{name}'"):
            as_scheme(name)


def test_only_the_jackknife_needs_a_second_draw():
    names = [name for name, scheme in SCHEMES.items() if scheme.min_draws != 1]
    assert names == ["jackknife", "jackknife_masked"]
    assert {SCHEMES[name].min_draws for name in names} == {2}


def test_as_scheme_takes_names():
    assert as_scheme("reject") is SCHEMES["reject"]
    for wrong in ("kept", "nothing", None, 3, SCHEMES["reject"]):
        with pytest.raises(ValueError, match="`scheme` must be one of negatives, masked"):
            as_scheme(wrong)
    assert "kept" not in exact_schemes()


@pytest.mark.parametrize(
    "facts",
    [
        {"base": "plain", "hits": "kept"},
        {"base": "none", "hits": "masked"},
        {"base": "corrected", "hits": "counted"},
        {"base": "plain", "hits": "absent", "corrects_draws": False},
        {"base": "plain", "hits": "counted", "jackknife": True},
        {"base": "corrected", "hits": "masked", "jackknife": True},
        {"base": "plain", "hits": "kept", "independent": True},
        {"base": "none", "hits": "absent", "independent": True},
        {"base": "plain", "hits": "absent", "independent": True, "corrects_draws": False},
        {"base": "plain", "hits": "counted", "distinct": True},
        {"base": "plain", "hits": "absent", "distinct": True, "corrects_draws": False},
    ],
)
def test_facts_without_an_exact_bias(facts, monkeypatch):
    own = Scheme("own", "", **facts)
    assert not own.has_exact_bias
    monkeypatch.setitem(SCHEMES, "own", own)
    with pytest.raises(ValueError, match="got 'own'"):
        as_scheme("own")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"jackknife": True, "independent": True}, "`jackknife` must be False"),
        ({"distinct": True, "independent": True}, "`distinct` must be False"),
        ({"base": "corrected"}, "`hits` must not be 'absent' where `base` is 'corrected'"),
    ],
)
def test_facts_that_no_code_computes_are_refused(facts, message):
    with pytest.raises(ValueError, match=message):
        Scheme("own", "", **({"base": "plain", "hits": "absent"} | facts))


def test_a_scheme_of_run_time_has_a_name_everywhere(monkeypatch, capsys):
    mine = Scheme("mine", "e_t + sum of e_j / (m q_j), j != t", base="plain", hits="masked")
    monkeypatch.setitem(SCHEMES, "mine", mine)
    assert as_scheme("mine") is mine
    assert exact_bias([0.0, 1.0], 0, [0.5, 0.5], 3, scheme="mine").bias.shape == (2,)
    main(["verify", "--help"])
    assert "mine" in capsys.readouterr().out


def test_a_scheme_has_known_facts():
    with pytest.raises(ValueError, match="`base` must be one of none, plain, corrected; got 'x'"):
        Scheme("own", "", "x", "absent")
    with pytest.raises(ValueError, match="`hits` must be one of absent"):
        Scheme("own", "", "plain", "x")


def test_uncorrected_draws_have_no_exact_bias():
    assert SCHEMES["negatives"].has_exact_bias
    assert not SCHEMES["negatives"].without_correction().has_exact_bias
