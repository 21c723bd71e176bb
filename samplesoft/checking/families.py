"""The families of candidates, simplest first: one is tried if no simpler candidate fits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from samplesoft.checking.candidates import Candidate, merged
from samplesoft.checking.fitted import (
    fitted,
    of_gradients,
    of_other_proposals,
    of_other_temperatures,
    scaled_gradients,
    smoothed,
)
from samplesoft.checking.known import (
    distinct_candidates,
    distinct_mistakes,
    full_candidate,
    known_candidates,
    pairs,
)
from samplesoft.checking.observe import Observed, Observer


class Look(NamedTuple):
    """The observations so far, and the candidates that were tested on them."""

    observer: Observer
    observed: Observed
    tested: list[Candidate]


class Family(NamedTuple):
    """Candidates that are tried together, `unless` simpler ones fit: "right" ones, or "any"."""

    make: Callable[[Look], Iterable[Candidate]]
    unless: str


def _random_candidates(look: Look) -> Iterable[Candidate]:
    return (one for one in known_candidates(look.observer) if one.scheme != "full")


def _unbiased(look: Look) -> Iterable[Candidate]:
    full = full_candidate(known_candidates(look.observer))
    return [replace(full, scheme="unbiased", sums=())]


def _dependent(look: Look) -> Iterator[Candidate]:
    """Yield candidates with the right means and another variance."""
    for one in look.tested:
        if one.sd_ratio and not one.fault:
            ratio = f"{one.sd_ratio:.3g} times that of independent draws"
            yield replace(
                one,
                fault="dependent_draws",
                same=(),
                sums=(),
                number=f"their standard deviation is {ratio}",
                sd_ratio=None,
            )


# from the simplest on: what follows is less simple, or takes longer
FAMILIES = (
    Family(_random_candidates, unless="never"),
    Family(lambda look: distinct_candidates(look.observer), unless="right"),
    Family(lambda look: of_gradients(look.observer, list(look.tested)), unless="any"),
    Family(
        lambda look: scaled_gradients(look.observer, look.observed, list(look.tested)),
        unless="any",
    ),
    Family(_unbiased, unless="any"),
    Family(lambda look: distinct_mistakes(look.observer), unless="any"),
    Family(
        lambda look: chain(
            of_other_proposals(look.observer),
            merged(fitted(look.observer, look.observed)),
        ),
        unless="any",
    ),
    Family(lambda look: of_other_temperatures(look.observer, look.observed), unless="any"),
    Family(lambda look: _dependent(look._replace(tested=list(look.tested))), unless="any"),
    Family(lambda look: smoothed(look.observer, look.observed), unless="any"),
    Family(lambda look: pairs(look.observer), unless="any"),
)
