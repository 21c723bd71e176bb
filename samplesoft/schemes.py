"""Schemes: how a sum S over sampled classes replaces the partition function of the softmax.

The exact bias, Monte Carlo, the losses, `verify` and the command line depend only on the properties
of a `Scheme`, and never on its name. So a new scheme with these properties needs only an entry in
`SCHEMES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from samplesoft._cached import cached_property
from samplesoft._validation import as_choice, as_flag

_BASES = ("none", "plain", "corrected")
_HITS = ("absent", "masked", "counted", "kept")
# For each `base` of a scheme, the values of `hits` for which S estimates the partition function, so
# that there is an exact bias. With other values, S counts the label twice or never, or divides the
# label's mass by the number of draws m, but the weights of the draws by their accepted number K.
_HITS_WITH_EXACT_BIAS = {
    "none": ("kept",),
    "plain": ("absent", "masked", "counted"),
    "corrected": ("masked", "kept"),
}


@dataclass(frozen=True)
class Scheme:
    """The properties of a scheme, which turns sampled classes into a loss.

    Let ``e = exp(o)`` for logits o, t the label, q the proposal, and m the number of draws. The
    loss of one example is ``log S`` minus the label's logit. S is the sum of a base mass for the
    label and of a weight for each draw. Draws of the label are called accidental hits, or hits.

    Attributes
    ----------
    name : str
        Name of the scheme in messages, and its key in `SCHEMES`.
    formula : str
        S in one line. ``qn`` is the proposal conditioned on classes other than the label, and K is
        the number of accepted draws, which are not hits.
    base : {"none", "plain", "corrected"}
        The base mass of the label in S: 0, ``e_t``, or ``e_t / (m q_t)``. With ``"corrected"``, the
        log of the expected number of draws is subtracted from the label's logit, as it is from the
        logits of the draws.
    hits : {"absent", "masked", "counted", "kept"}
        Treatment of accidental hits. ``"absent"``: the label is never drawn. ``"masked"``: hits
        have weight 0. ``"counted"``: hits have weight 0, and the weights of the other draws are
        divided by their number K instead of m. ``"kept"``: hits count like any other draw.
    corrects_draws : bool
        Whether a draw of class j has the weight ``e_j / (m q_j)``; otherwise it is ``e_j``.
    independent : bool
        Whether each class is included independently of the others (Poisson sampling), instead of
        m draws with replacement.
    jackknife : bool
        Whether the loss is the jackknife of log S, which leaves out each draw in turn.
    distinct : bool
        Whether the m draws are without replacement: classes are drawn one after another, in
        proportion to q among the remaining classes. A draw is then corrected by the probability
        that the set of draws contains its class, instead of the expected number of draws ``m q_j``.

    Raises
    ------
    TypeError, ValueError
        If a property is malformed, or no code computes the combination of two properties.

    Examples
    --------
    >>> SCHEMES["reject"].draws_label, SCHEMES["reject"].has_random_count
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

        # Reject contradictory properties. A consistent scheme without a known formula is allowed;
        # its `has_exact_bias` is False.
        if self.corrects_label and self.excludes_label:
            raise ValueError(
                "`hits` must not be 'absent' where `base` is 'corrected', because the expected "
                "number of draws of the label is then 0; use hits='masked'."
            )

        if self.jackknife and self.independent:
            raise ValueError(
                "`jackknife` must be False where `independent` is True, because it leaves out one "
                "of m draws, got both; set one of them."
            )

        if self.distinct and (self.jackknife or self.independent):
            raise ValueError(
                "`distinct` must be False where `jackknife` or `independent` is True, because only "
                "a given number of draws can be a set; set one of them."
            )

    @property
    def min_draws(self) -> int:
        """Smallest allowed number of draws m: 2 for the jackknife, otherwise 1."""
        return 2 if self.jackknife else 1

    @property
    def label_in_sum(self) -> bool:
        """Whether S contains a mass for the label even if the label is not drawn."""
        return self.base != "none"

    @cached_property  # cached, because every training step reads it
    def corrects_label(self) -> bool:
        """Whether the log of the label's expected number of draws is subtracted from its logit."""
        return self.base == "corrected"

    @property
    def excludes_label(self) -> bool:
        """Whether the label is excluded from the draws."""
        return self.hits == "absent"

    @cached_property  # cached, because every training step reads it
    def draws_label(self) -> bool:
        """Whether draws of the label enter S like the other draws."""
        return self.hits == "kept"

    @property
    def sum_is_label_plus_mean(self) -> bool:
        """Whether S is ``e_t`` plus a mean over m independent draws, with weight 0 for hits."""
        return self.allows_always_included and not self.divides_by_accepted

    @property
    def has_bounds(self) -> bool:
        """Whether Theorem 1 of Rawat et al. (2019) covers this scheme.

        If so, `samplesoft.verify` also reports the bounds of the theorem, and the limit of m times
        the bias as m grows.
        """
        return self.sum_is_label_plus_mean and self.excludes_label and not self.jackknife

    @property
    def has_random_count(self) -> bool:
        """Whether the number of draws that enter S is random."""
        return self.independent or self.hits in ("masked", "counted")

    @cached_property  # cached, because every training step reads it
    def divides_by_accepted(self) -> bool:
        """Whether weights of draws are divided by the number K of draws that are not the label."""
        return self.hits == "counted"

    @property
    def label_is_a_draw(self) -> bool:
        """Whether the base mass equals the weight of a draw of the label, as if it were drawn."""
        return self.corrects_label and self.draws_label

    @property
    def needs_label_count(self) -> bool:
        """Whether a loss needs the expected number of draws of the label."""
        return self.corrects_label or self.divides_by_accepted

    @property
    def allows_always_included(self) -> bool:
        """Whether S may also contain classes that are included always, like the label."""
        plain = self.base == "plain" and self.corrects_draws
        return plain and not (self.draws_label or self.independent or self.distinct)

    @property
    def loss_allows_always_included(self) -> bool:
        """Whether a loss may treat always-included classes as draws with an expected count of 1.

        This is correct only if the loss does not use the number of its draws.
        """
        return self.sum_is_label_plus_mean and not self.jackknife

    @property
    def has_exact_bias(self) -> bool:
        """Whether `samplesoft.exact_bias` covers this scheme."""
        if self.jackknife:
            return self.sum_is_label_plus_mean
        if self.independent:
            return self.corrects_draws and (self.base, self.hits) == ("plain", "absent")
        consistent = self.corrects_draws and self.hits in _HITS_WITH_EXACT_BIAS[self.base]
        return consistent and not (self.distinct and self.divides_by_accepted)

    def without_correction(self) -> Scheme:
        """Return a copy of the scheme in which a draw of class j has the weight ``e_j``."""
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
    """Return the entries of `SCHEMES` with the given names, in the order of the names."""
    # an unknown name is an internal error, hence KeyError
    return {name: SCHEMES[name] for name in names}


def exact_schemes(distinct: bool = False) -> tuple[str, ...]:
    """Return the names of the schemes in `SCHEMES` that have an exact bias.

    If `distinct` is True, they are the schemes that draw without replacement, otherwise the others.
    """
    return tuple(
        name
        for name, scheme in SCHEMES.items()
        if scheme.has_exact_bias and scheme.distinct == distinct
    )


def certain_schemes() -> tuple[str, ...]:
    """Return the names among `exact_schemes` whose schemes allow always-included classes."""
    return tuple(name for name in exact_schemes() if SCHEMES[name].allows_always_included)


def as_scheme(
    name: Any, takes_distinct: bool = False, require: Callable[[Scheme], None] | None = None
) -> Scheme:
    """Return the scheme with the name `name`; raise ValueError unless it has an exact bias.

    If `require` is None, schemes that draw without replacement are allowed only if `takes_distinct`
    is True. Otherwise ``require(scheme)`` raises ValueError for a scheme that the caller does not
    support, and the error for an unknown name lists only supported schemes.
    """
    distinct = exact_schemes(distinct=True)

    if require is None:
        names = exact_schemes() + (distinct if takes_distinct else ())
        return SCHEMES[as_choice("scheme", name, names)]

    names = exact_schemes() + distinct
    if not isinstance(name, str) or name not in names:
        as_choice("scheme", name, [key for key in names if _is_accepted(require, SCHEMES[key])])
    require(SCHEMES[name])
    return SCHEMES[name]


def _is_accepted(require: Callable[[Scheme], None], scheme: Scheme) -> bool:
    """Return whether ``require(scheme)`` raises no ValueError."""
    try:
        require(scheme)
    except ValueError:
        return False
    return True


# Ratio of the probabilities of successive levels in the multilevel loss. The loss has a finite
# variance if the ratio is above 1/4, and a finite expected cost if the ratio is below 1/2.
DECAY = 2.0**-1.5


def last_level(num_sampled: int, num_classes: int) -> int:
    """Return the last level K of the multilevel loss.

    Level k has ``num_sampled * 2**(k + 1)`` draws. K is the smallest level, from 1 on, whose number
    of draws is at least `num_classes`.
    """
    level = 1
    while num_sampled << (level + 1) < num_classes:
        level += 1
    return level
