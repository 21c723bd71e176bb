"""`FAMILIES`: groups of candidates, simplest first; a group is tried if no simpler one fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from samplesoft.checking.candidates import Candidate, merge_equal_means
from samplesoft.checking.fitted import (
    candidates_with_fitted_constants,
    candidates_with_gradient_faults,
    candidates_with_label_smoothing,
    candidates_with_other_proposals,
    candidates_with_other_temperatures,
    candidates_with_scaled_gradients,
)
from samplesoft.checking.known import (
    candidates_of_distinct_draws,
    candidates_with_two_faults,
    faulty_candidates_of_distinct_draws,
    full_candidate,
    known_candidates,
)
from samplesoft.checking.memory import (
    candidates_with_other_rates,
    candidates_with_other_values,
    memory_candidates,
)
from samplesoft.checking.observe import Observed, Observer


class CheckState(NamedTuple):
    """The state of a check, from which a family makes its candidates.

    Attributes
    ----------
    observer : Observer
        Makes the calls of the loss.
    observed : Observed
        The means of the calls so far.
    tested : list of Candidate
        The candidates that were tested on these means.
    """

    observer: Observer
    observed: Observed
    tested: list[Candidate]


class Family(NamedTuple):
    """A group of candidates that are tried together.

    `make_candidates` makes them. `skip_if_allowed` says when the group is not tried: if an earlier
    candidate without a mistake is allowed (``"right"``), if any earlier candidate is allowed
    (``"any"``), or never (``"never"``).
    """

    make_candidates: Callable[[CheckState], Iterable[Candidate]]
    skip_if_allowed: str


def _candidates_that_draw(state: CheckState) -> Iterable[Candidate]:
    """Return the known candidates except the full softmax."""
    return (
        candidate for candidate in known_candidates(state.observer) if candidate.scheme != "full"
    )


def _unbiased_candidate(state: CheckState) -> Iterable[Candidate]:
    """Return one candidate: a random loss whose means are those of the full softmax."""
    full = full_candidate(known_candidates(state.observer))
    return [replace(full, scheme="unbiased", sums=())]


def _candidates_with_dependent_draws(state: CheckState) -> Iterator[Candidate]:
    """Yield candidates with dependent draws, for faultless ones whose variance was tested.

    Such a candidate was not allowed because of the standard deviation of single losses, although
    its means fit.
    """
    for candidate in state.tested:
        if candidate.sd_ratio and not candidate.fault:
            ratio = f"{candidate.sd_ratio:.3g} times that of a loss with independent draws"
            yield replace(
                candidate,
                fault="dependent_draws",
                equivalents=(),
                sums=(),
                detail=f"the standard deviation of single losses is {ratio}",
                sd_ratio=None,
            )


# The families are tried in this order: later ones are less simple or take longer.
FAMILIES = (
    Family(_candidates_that_draw, skip_if_allowed="never"),
    Family(lambda state: candidates_of_distinct_draws(state.observer), skip_if_allowed="right"),
    Family(
        lambda state: candidates_with_gradient_faults(state.observer, list(state.tested)),
        skip_if_allowed="any",
    ),
    Family(
        lambda state: candidates_with_scaled_gradients(
            state.observer, state.observed, list(state.tested)
        ),
        skip_if_allowed="any",
    ),
    Family(_unbiased_candidate, skip_if_allowed="any"),
    Family(
        lambda state: faulty_candidates_of_distinct_draws(state.observer), skip_if_allowed="any"
    ),
    Family(
        lambda state: chain(
            candidates_with_other_proposals(state.observer),
            merge_equal_means(candidates_with_fitted_constants(state.observer, state.observed)),
        ),
        skip_if_allowed="any",
    ),
    Family(
        lambda state: candidates_with_other_temperatures(state.observer, state.observed),
        skip_if_allowed="any",
    ),
    Family(
        lambda state: _candidates_with_dependent_draws(state._replace(tested=list(state.tested))),
        skip_if_allowed="any",
    ),
    Family(
        lambda state: candidates_with_label_smoothing(state.observer, state.observed),
        skip_if_allowed="any",
    ),
    Family(lambda state: candidates_with_two_faults(state.observer), skip_if_allowed="any"),
)

# the families for losses with a memory
_GRADIENT_FAULTS, _SCALED_GRADIENTS = FAMILIES[2:4]
MEMORY_FAMILIES = (
    Family(lambda state: memory_candidates(state.observer), skip_if_allowed="never"),
    _GRADIENT_FAULTS,
    _SCALED_GRADIENTS,
    Family(
        lambda state: merge_equal_means(
            candidates_with_other_values(state.observed, list(state.tested))
        ),
        skip_if_allowed="any",
    ),
    Family(
        lambda state: candidates_with_other_rates(state.observer, state.observed),
        skip_if_allowed="any",
    ),
)
