"""The families of candidates, simplest first: one is tried if no simpler candidate fits."""

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
    candidates_with_two_faults,
    distinct_candidates,
    distinct_candidates_with_fault,
    full_candidate,
    known_candidates,
)
from samplesoft.checking.observe import Observed, Observer


class CheckState(NamedTuple):
    """The observations so far, and the candidates that were tested on them."""

    observer: Observer
    observed: Observed
    tested: list[Candidate]


class Family(NamedTuple):
    """Candidates that are tried together, `unless` simpler ones fit: "right" ones, or "any"."""

    make_candidates: Callable[[CheckState], Iterable[Candidate]]
    unless: str


def _candidates_that_draw(state: CheckState) -> Iterable[Candidate]:
    return (one for one in known_candidates(state.observer) if one.scheme != "full")


def _unbiased_candidate(state: CheckState) -> Iterable[Candidate]:
    full = full_candidate(known_candidates(state.observer))
    return [replace(full, scheme="unbiased", sums=())]


def _candidates_with_dependent_draws(state: CheckState) -> Iterator[Candidate]:
    """Yield candidates with the right means and another variance."""
    for one in state.tested:
        if one.sd_ratio and not one.fault:
            ratio = f"{one.sd_ratio:.3g} times that of independent draws"
            yield replace(
                one,
                fault="dependent_draws",
                equivalents=(),
                sums=(),
                detail=f"their standard deviation is {ratio}",
                sd_ratio=None,
            )


# from the simplest on: what follows is less simple, or takes longer
FAMILIES = (
    Family(_candidates_that_draw, unless="never"),
    Family(lambda state: distinct_candidates(state.observer), unless="right"),
    Family(
        lambda state: candidates_with_gradient_faults(state.observer, list(state.tested)),
        unless="any",
    ),
    Family(
        lambda state: candidates_with_scaled_gradients(
            state.observer, state.observed, list(state.tested)
        ),
        unless="any",
    ),
    Family(_unbiased_candidate, unless="any"),
    Family(lambda state: distinct_candidates_with_fault(state.observer), unless="any"),
    Family(
        lambda state: chain(
            candidates_with_other_proposals(state.observer),
            merge_equal_means(candidates_with_fitted_constants(state.observer, state.observed)),
        ),
        unless="any",
    ),
    Family(
        lambda state: candidates_with_other_temperatures(state.observer, state.observed),
        unless="any",
    ),
    Family(
        lambda state: _candidates_with_dependent_draws(state._replace(tested=list(state.tested))),
        unless="any",
    ),
    Family(
        lambda state: candidates_with_label_smoothing(state.observer, state.observed), unless="any"
    ),
    Family(lambda state: candidates_with_two_faults(state.observer), unless="any"),
)
