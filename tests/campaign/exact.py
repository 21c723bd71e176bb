"""The exact bias of every scheme against enumeration, on ordinary and on extreme problems."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from itertools import cycle

import numpy as np
from mpmath import mpf
from oracles import extremes, naive

from samplesoft import exact_bias
from samplesoft.schemes import SCHEMES, exact_schemes

FIELDS = (
    "problems",
    "scheme",
    "number",
    "off",
    "off_untold",
    "worst_relative_error",
    "above_the_estimate",
)
FIELDS += ("worst_error_to_estimate",)
KINDS = {"ordinary": extremes.ordinary, "extreme": extremes.extreme}


def run(seconds: float, seed: int) -> Iterator[dict[str, object]]:
    """Yield a row for each kind of problem and scheme; each has the same share of the time.

    A result is off if its L1 error is above 1e-10 of the L1 norm of the bias. Of the jackknife,
    whose bias is the rest of two larger ones, that happens, with a warning.
    """
    found: dict[tuple[str, str], list[tuple[float, float, bool]]] = {}
    generators = {kind: np.random.default_rng(seed) for kind in KINDS}
    end = time.monotonic() + seconds
    for kind in cycle(KINDS):
        if time.monotonic() > end:
            break
        logits, label, q, m = KINDS[kind](generators[kind])
        for scheme in exact_schemes():
            draws = max(m, SCHEMES[scheme].min_draws)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                result = exact_bias(logits, label, q, draws, scheme=scheme)
            exact = extremes.enumerated(logits, label, q, draws, scheme)
            error, norm = naive.l1_error(result.bias, exact)
            estimate = mpf(float(result.error))
            lost = error <= extremes.LOST
            relative = 0.0 if lost else float(error / norm) if norm else np.inf
            ratio = 0.0 if lost else float(error / estimate) if estimate else np.inf
            found.setdefault((kind, scheme), []).append((relative, ratio, bool(told)))
    for (kind, scheme), figures in sorted(found.items()):
        relative, ratio, told = np.array(figures).T
        yield {
            "problems": kind,
            "scheme": scheme,
            "number": len(figures),
            "off": int((relative > 1e-10).sum()),
            "off_untold": int(((relative > 1e-10) & (told == 0.0)).sum()),
            "worst_relative_error": f"{relative.max():.1e}",
            "above_the_estimate": int((ratio > 1.0).sum()),
            "worst_error_to_estimate": f"{ratio.max():.2g}",
        }
