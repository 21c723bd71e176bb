"""Schemes: how the drawn classes become a sum S in place of the partition function.

The exact bias, Monte Carlo, the losses, `verify` and the command line all ask a `Scheme` for its
properties; none of them knows a scheme by its name. A new scheme that these properties describe is
an entry in `SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from samplesoft._cached import cached_property
from samplesoft._validation import as_choice, as_flag

_BASES = ("none", "plain", "corrected")
_HITS = ("absent", "masked", "counted", "kept")
# The hits with which each base has an exact bias. With others S has the label twice or never, or
# its mass is divided by m and that of the draws by K: no estimate of the partition function.
_EXACT = {
    "none": ("kept",),
    "plain": ("absent", "masked", "counted"),
    "corrected": ("masked", "kept"),
}


@dataclass(frozen=True)
class Scheme:
    """The properties of a scheme.

    With ``e = exp(o)``, t the label, q the proposal and m the number of draws, the loss of one
    example is ``log S`` minus the label's logit, and S is a base mass for the label plus a weight
    for each draw. ``hits`` are draws of the label.

    Attributes
    ----------
    name : str
        Its name in messages, and its key in `SCHEMES`.
    formula : str
        S in one line; ``qn`` is q given "not the label", K the number of draws that are kept.
    base : {"none", "plain", "corrected"}
        The label's own mass in S: 0, ``e_t``, or ``e_t / (m q_t)``, in which its logit has lost
        the log of its expected number of draws, as the logits of draws have.
    hits : {"absent", "masked", "counted", "kept"}
        What becomes of draws of the label. ``"absent"``: they do not occur. ``"masked"``: they have
        no weight. ``"counted"``: they have none, and the others are divided by their own number K
        in place of m. ``"kept"``: they count like any other draw.
    corrects_draws : bool
        Whether a draw of class j weighs ``e_j / (m q_j)``; if not, ``e_j``.
    independent : bool
        Whether each class is included or not, independently of the others, in place of m draws
        with replacement.
    jackknife : bool
        Whether the loss is the jackknife of log S, which leaves out each draw in turn.
    distinct : bool
        Whether the m draws are without replacement: in turn, in proportion to q among the classes
        that are left. What a draw is corrected by, with replacement its mean number ``m q_j``, is
        then the probability that the set holds the class.

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
        # properties that contradict each other; what merely has no formula is `has_exact_bias`
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
        """Smallest number of draws m; the jackknife must have one left."""
        return 2 if self.jackknife else 1

    @property
    def label_in_sum(self) -> bool:
        """Whether the label has a mass in S of its own, drawn or not."""
        return self.base != "none"

    @cached_property  # asked for in each step
    def corrects_label(self) -> bool:
        """Whether the label's logit is corrected as those of the draws are."""
        return self.base == "corrected"

    @property
    def excludes_label(self) -> bool:
        """Whether draws are made so that none is the label."""
        return self.hits == "absent"

    @cached_property  # asked for in each step
    def draws_label(self) -> bool:
        """Whether a draw of the label has weight."""
        return self.hits == "kept"

    @property
    def adds_mean(self) -> bool:
        """Whether S is ``e_t`` plus a mean over m independent draws, to which no label adds."""
        return self.takes_certain and not self.divides_by_kept

    @property
    def has_bounds(self) -> bool:
        """Whether Theorem 1 of Rawat et al. (2019) is about this scheme.

        Then `samplesoft.verify` puts its bounds and the limit of m times the bias beside the exact
        bias.
        """
        return self.adds_mean and self.excludes_label and not self.jackknife

    @property
    def random_count(self) -> bool:
        """Whether the number of draws that S is made of is random."""
        return self.independent or self.hits in ("masked", "counted")

    @cached_property  # asked for in each step
    def divides_by_kept(self) -> bool:
        """Whether the draws that are not the label are divided by their number K, not by m."""
        return self.hits == "counted"

    @property
    def label_is_a_draw(self) -> bool:
        """Whether the base mass ``e_t / (m q_t)`` is no more than one more draw of the label."""
        return self.corrects_label and self.draws_label

    @property
    def needs_label_count(self) -> bool:
        """Whether a loss must know how many draws of the label are expected."""
        return self.corrects_label or self.divides_by_kept

    @property
    def takes_certain(self) -> bool:
        """Whether classes may be in S for certain, beside the label and the draws."""
        plain = self.base == "plain" and self.corrects_draws
        return plain and not (self.draws_label or self.independent or self.distinct)

    @property
    def loss_takes_certain(self) -> bool:
        """Whether its loss is right for certain classes that come as draws, expected once.

        It must not count the draws, which these are not.
        """
        return self.adds_mean and not self.jackknife

    @property
    def has_exact_bias(self) -> bool:
        """Whether `samplesoft.exact_bias` covers it."""
        if self.jackknife:
            return self.adds_mean
        if self.independent:
            return self.corrects_draws and (self.base, self.hits) == ("plain", "absent")
        known = self.corrects_draws and self.hits in _EXACT[self.base]
        return known and not (self.distinct and self.divides_by_kept)

    def without_correction(self) -> Scheme:
        """Return the same with draws that weigh ``e_j``, however they were drawn."""
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
            "e_t + sum of e_j / pi_j over a set, pi_j its chance to hold j",
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
    """Return some of `SCHEMES`, in the order of their names as given."""
    # a name that is not there is a mistake of the library: KeyError
    return {name: SCHEMES[name] for name in names}


def exact_schemes(distinct: bool = False) -> tuple[str, ...]:
    """Return the names in `SCHEMES` of those with an exact bias, as they are now.

    `distinct` says which: draws without replacement, or all others.
    """
    return tuple(
        name
        for name, scheme in SCHEMES.items()
        if scheme.has_exact_bias and scheme.distinct == distinct
    )


def certain_schemes() -> tuple[str, ...]:
    """Return those of `exact_schemes` in which classes may be certain."""
    return tuple(name for name in exact_schemes() if SCHEMES[name].takes_certain)


def as_scheme(
    name: Any, takes_distinct: bool = False, require: Callable[[Scheme], None] | None = None
) -> Scheme:
    """Return the scheme of a name, which must have an exact bias.

    `require` raises ValueError for a scheme that the caller does not take, which is then no choice
    either where a name is none.
    """
    distinct = exact_schemes(distinct=True)
    if require is None:
        names = exact_schemes() + (distinct if takes_distinct else ())
        return SCHEMES[as_choice("scheme", name, names)]
    names = exact_schemes() + distinct
    if not isinstance(name, str) or name not in names:
        as_choice("scheme", name, [one for one in names if _passes(require, SCHEMES[one])])
    require(SCHEMES[name])
    return SCHEMES[name]


def _passes(require: Callable[[Scheme], None], scheme: Scheme) -> bool:
    try:
        require(scheme)
    except ValueError:
        return False
    return True


# the multilevel loss draws levels, with probabilities that fall by DECAY from one to the next:
# above 1/4 the variance is finite, below 1/2 the cost
DECAY = 2.0**-1.5


def last_level(num_sampled: int, num_classes: int) -> int:
    """Return the first level, from 1 on, with as many draws as there are classes."""
    last = 1
    while num_sampled << (last + 1) < num_classes:
        last += 1
    return last
