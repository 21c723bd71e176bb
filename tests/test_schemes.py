"""Facts of the schemes, and what follows from them."""

import pytest

from samplesoft.schemes import EXACT_SCHEMES, SCHEMES, Scheme, as_scheme


def test_schemes_stand_under_their_names():
    assert all(name == scheme.name for name, scheme in SCHEMES.items())
    assert len({(s.base, s.hits, s.independent, s.jackknife) for s in SCHEMES.values()}) == len(
        SCHEMES
    )


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=lambda scheme: scheme.name)
def test_the_formula_says_what_the_facts_say(scheme):
    one_draw = scheme.formula.replace("S of", "")
    if scheme.jackknife:
        one_draw = SCHEMES[scheme.formula.split()[-1]].formula
    assert one_draw.startswith("e_t") is scheme.label_in_sum
    assert one_draw.startswith("e_t / (m q_t)") is scheme.corrects_label
    assert ("(K qn_j)" in one_draw) is scheme.divides_by_kept
    assert ("(m qn_j)" in one_draw) is (scheme.excludes_label and not scheme.independent)
    assert one_draw.endswith("j != t") is (scheme.hits in ("masked", "counted"))


def test_only_one_scheme_has_bounds():
    assert [name for name, scheme in SCHEMES.items() if scheme.has_bounds] == ["negatives"]


def test_as_scheme_takes_names_and_objects():
    assert as_scheme("reject") is SCHEMES["reject"]
    own = Scheme("own", "e_t + sum of e_j / (m qn_j)", "plain", "absent")
    assert as_scheme(own) is own
    for wrong in ("kept", "nothing", None, 3, SCHEMES["kept"]):
        with pytest.raises(ValueError, match="`scheme` must be one of negatives, masked"):
            as_scheme(wrong)
    with pytest.raises(ValueError, match="got 'reject'"):
        as_scheme("reject", ("negatives", "poisson"))
    assert "kept" not in EXACT_SCHEMES


def test_a_scheme_has_known_facts():
    with pytest.raises(ValueError, match="`base` must be one of none, plain, corrected; got 'x'"):
        Scheme("own", "", "x", "absent")
    with pytest.raises(ValueError, match="`hits` must be one of absent"):
        Scheme("own", "", "plain", "x")


def test_uncorrected_draws_have_no_exact_bias():
    assert SCHEMES["negatives"].has_exact_bias
    assert not SCHEMES["negatives"].without_correction().has_exact_bias
