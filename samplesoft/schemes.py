"""Schemes: how the drawn classes become a sum S in place of the partition function.

The exact bias, Monte Carlo, the losses, `verify` and the command line read the properties of a
`Scheme`; none of them compares names. A new scheme that these properties describe is one more entry
in `SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from samplesoft._cached import cached_property
from samplesoft._validation import as_choice, as_flag

_BASES = ("none", "plain", "corrected")
_HITS = ("absent", "masked", "counted", "kept")
# For each base, the values of `hits` that have an exact bias. With the others, S counts the label
# twice or never, or divides its mass by m and the draws by K. Such an S does not estimate the
# partition function.
_HITS_WITH_EXACT_BIAS = {
    "none": ("kept",),
    "plain": ("absent", "masked", "counted"),
    "corrected": ("masked", "kept"),
}


@dataclass(frozen=True)
class Scheme:
    """The properties of a scheme.

    With ``e = exp(o)``, t the label, q the proposal and m the number of draws, the loss of one
    example is ``log S`` minus the label's logit, and S is a base mass for the label plus a weight
    for each draw. Accidental hits, ``hits`` for short, are draws of the label.

    Attributes
    ----------
    name : str
        Its name in messages, and its key in `SCHEMES`.
    formula : str
        S in one line; ``qn`` is q given "not the label", K the number of accepted draws.
    base : {"none", "plain", "corrected"}
        The base mass of the label in S: 0, ``e_t``, or ``e_t / (m q_t)``. The last subtracts the
        log of the expected number of draws from the label's logit, as from the logits of draws.
    hits : {"absent", "masked", "counted", "kept"}
        Treatment of accidental hits. ``"absent"``: they do not occur. ``"masked"``: their weight is
        0. ``"counted"``: their weight is 0, and the other draws are divided by their number K
        in place of m. ``"kept"``: they count like any other draw.
    corrects_draws : bool
        Whether a draw of class j weighs ``e_j / (m q_j)``; if not, ``e_j``.
    independent : bool
        Whether each class is included or not, independently of the others, in place of m draws
        with replacement.
    jackknife : bool
        Whether the loss is the jackknife of log S, which leaves out each draw in turn.
    distinct : bool
        Whether the m draws are without replacement: in turn, in proportion to q among the remaining
        classes. The correction of a draw is then the probability that the set contains its class,
        in place of the expected number of draws ``m q_j``.

    Raises
    ------
    TypeError, ValueError
        If a property is malformed, or no code computes the combination of two properties.

    Examples
    --------
    >>> SCHEMES["reject"].draws_label, SCHEMES["reject"].random_count
    (False, True)
    >>> [name for name, scheme in SCHEMES.items() if not scheme.has_exact_bias]
    ['kept']
    """

    name: str
    formula: str
    base: str
    hits: str
    corrects_draws: bool = True
    independent: bool = False
    jackknife: bool = False
    distinct: bool = False

    def __post_init__(self) -> None:
        for name in ("name", "formula"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"`{name}` must be a text, got {getattr(self, name)!r}.")
        for name in ("corrects_draws", "independent", "jackknife", "distinct"):
            as_flag(name, getattr(self, name))
        as_choice("base", self.base, _BASES)
        as_choice("hits", self.hits, _HITS)
        # contradictory properties; a consistent scheme without a formula fails `has_exact_bias`
        if self.corrects_label and self.excludes_label:
            raise ValueError(
                "`hits` must not be 'absent' where `base` is 'corrected', for the expected number "
                "of draws of the label is then 0; take hits='masked'."
            )
        if self.jackknife and self.independent:
            raise ValueError(
                "`jackknife` must be False where `independent` is True, for it leaves out one of m "
                "draws, got both; set one of them."
            )
        if self.distinct and (self.jackknife or self.independent):
            raise ValueError(
                "`distinct` must be False where `jackknife` or `independent` is True, for only a "
                "given number of draws can be a set; set one of them."
            )

    @property
    def least_draws(self) -> int:
        """Smallest number of draws m: 2 for the jackknife, which leaves one draw out."""
        return 2 if self.jackknife else 1

    @property
    def label_in_sum(self) -> bool:
        """Whether S contains a base mass for the label, drawn or not."""
        return self.base != "none"

    @cached_property  # asked for in each step
    def corrects_label(self) -> bool:
        """Whether the label's logit is corrected like the logits of the draws."""
        return self.base == "corrected"

    @property
    def excludes_label(self) -> bool:
        """Whether the label is excluded from the draws."""
        return self.hits == "absent"

    @cached_property  # asked for in each step
    def draws_label(self) -> bool:
        """Whether a draw of the label has weight."""
        return self.hits == "kept"

    @property
    def adds_mean(self) -> bool:
        """Whether S is ``e_t`` plus a mean over m independent draws, where hits add nothing."""
        return self.takes_certain and not self.divides_by_kept

    @property
    def has_bounds(self) -> bool:
        """Whether Theorem 1 of Rawat et al. (2019) covers this scheme.

        If so, `samplesoft.verify` reports its bounds and the limit of m times the bias next to the
        exact bias.
        """
        return self.adds_mean and self.excludes_label and not self.jackknife

    @property
    def random_count(self) -> bool:
        """Whether the number of draws that enter S is random."""
        return self.independent or self.hits in ("masked", "counted")

    @cached_property  # asked for in each step
    def divides_by_kept(self) -> bool:
        """Whether the draws that are not the label are divided by their number K, not by m."""
        return self.hits == "counted"

    @property
    def label_is_a_draw(self) -> bool:
        """Whether the base mass ``e_t / (m q_t)`` acts as one more draw of the label."""
        return self.corrects_label and self.draws_label

    @property
    def needs_label_count(self) -> bool:
        """Whether a loss needs the expected number of draws of the label."""
        return self.corrects_label or self.divides_by_kept

    @property
    def takes_certain(self) -> bool:
        """Whether S may have always-included classes in addition to the label and the draws."""
        plain = self.base == "plain" and self.corrects_draws
        return plain and not (self.draws_label or self.independent or self.distinct)

    @property
    def loss_takes_certain(self) -> bool:
        """Whether its loss may get always-included classes as draws with an expected count of 1.

        That is correct only if the loss does not count its draws.
        """
        return self.adds_mean and not self.jackknife

    @property
    def has_exact_bias(self) -> bool:
        """Whether `samplesoft.exact_bias` covers this scheme."""
        if self.jackknife:
            return self.adds_mean
        if self.independent:
            return self.corrects_draws and (self.base, self.hits) == ("plain", "absent")
        consistent = self.corrects_draws and self.hits in _HITS_WITH_EXACT_BIAS[self.base]
        return consistent and not (self.distinct and self.divides_by_kept)

    def without_correction(self) -> Scheme:
        """Return a copy in which a draw of class j weighs ``e_j``, whatever q is."""
        return replace(self, corrects_draws=False)


SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("negatives", "e_t + sum of e_j / (m qn_j)", base="plain", hits="absent"),
        Scheme("masked", "e_t + sum of e_j / (m q_j), j != t", base="plain", hits="masked"),
        Scheme("reject", "e_t + sum of e_j / (K qn_j), j != t", base="plain", hits="counted"),
        Scheme("candidate", "e_t / (m q_t) + sum of e_j / (m q_j)", base="corrected", hits="kept"),
        Scheme(
            "candidate_masked",
            "e_t / (m q_t) + sum of e_j / (m q_j), j != t",
            base="corrected",
            hits="masked",
        ),
        Scheme("kept", "e_t + sum of e_j / (m q_j)", base="plain", hits="kept"),
        Scheme("importance", "sum of e_j / (m q_j)", base="none", hits="kept"),
        Scheme(
            "poisson",
            "e_t + sum of e_j / q_j over the included classes",
            base="plain",
            hits="absent",
            independent=True,
        ),
        Scheme(
            "jackknife",
            "m log S_m - (m - 1) mean of log S_(m - 1), S of negatives",
            base="plain",
            hits="absent",
            jackknife=True,
        ),
        Scheme(
            "jackknife_masked",
            "m log S_m - (m - 1) mean of log S_(m - 1), S of masked",
            base="plain",
            hits="masked",
            jackknife=True,
        ),
        Scheme(
            "distinct",
            "e_t + sum of e_j / pi_j over a set, pi_j its probability to hold j",
            base="plain",
            hits="absent",
            distinct=True,
        ),
        Scheme(
            "distinct_masked",
            "e_t + sum of e_j / pi_j over a set, j != t",
            base="plain",
            hits="masked",
            distinct=True,
        ),
        Scheme(
            "distinct_candidate",
            "e_t / pi_t + sum of e_j / pi_j over a set",
            base="corrected",
            hits="kept",
            distinct=True,
        ),
        Scheme(
            "distinct_candidate_masked",
            "e_t / pi_t + sum of e_j / pi_j over a set, j != t",
            base="corrected",
            hits="masked",
            distinct=True,
        ),
        Scheme(
            "distinct_importance",
            "sum of e_j / pi_j over a set",
            base="none",
            hits="kept",
            distinct=True,
        ),
    )
}


def select(*names: str) -> dict[str, Scheme]:
    """Return the entries of `SCHEMES` with these names, in this order."""
    # an unknown name is an internal error, hence KeyError
    return {name: SCHEMES[name] for name in names}


def exact_schemes(distinct: bool = False) -> tuple[str, ...]:
    """Return the names of all registered schemes that have an exact bias.

    `distinct` selects the schemes without replacement, or all others.
    """
    return tuple(
        name
        for name, scheme in SCHEMES.items()
        if scheme.has_exact_bias and scheme.distinct == distinct
    )


def certain_schemes() -> tuple[str, ...]:
    """Return the names of `exact_schemes` that allow always-included classes."""
    return tuple(name for name in exact_schemes() if SCHEMES[name].takes_certain)


def as_scheme(
    name: Any, takes_distinct: bool = False, require: Callable[[Scheme], None] | None = None
) -> Scheme:
    """Return the scheme with this name, which must have an exact bias.

    `require` raises ValueError for a scheme that the caller does not support. Such schemes are not
    listed in the message for an unknown name.
    """
    distinct = exact_schemes(distinct=True)
    if require is None:
        names = exact_schemes() + (distinct if takes_distinct else ())
        return SCHEMES[as_choice("scheme", name, names)]
    names = exact_schemes() + distinct
    if not isinstance(name, str) or name not in names:
        as_choice("scheme", name, [key for key in names if _passes(require, SCHEMES[key])])
    require(SCHEMES[name])
    return SCHEMES[name]


def _passes(require: Callable[[Scheme], None], scheme: Scheme) -> bool:
    """Whether `require` raises no ValueError for the scheme."""
    try:
        require(scheme)
    except ValueError:
        return False
    return True


# Ratio of the probabilities of successive levels in the multilevel loss. The variance is finite
# above 1/4, the expected cost below 1/2.
DECAY = 2.0**-1.5


def last_level(num_sampled: int, num_classes: int) -> int:
    """Return the first level (from 1) that has at least as many draws as there are classes."""
    last = 1
    while num_sampled << (last + 1) < num_classes:
        last += 1
    return last
