"""One object for every with-replacement scheme: a base mass, and iid draws with their ratios."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from samplesoft._validation import FloatArray
from samplesoft.schemes import Scheme


@dataclass(frozen=True)
class DrawLaw:
    """S = base + (1/m) * (sum of m iid ratios r), in units where Z = 1; eq. (B1) of the README."""

    scheme: Scheme
    num_draws: int  # m
    logits: FloatArray  # (n,) as given
    q: FloatArray  # (n,) as given
    log_probs: FloatArray  # (n,) log e_j for Z = 1, the full softmax
    probs: FloatArray  # (n,)
    drawn: FloatArray  # (n,) probability in a draw that has a ratio; 0 where it is never drawn
    weightless: float  # probability of a draw that adds nothing to S (the masked label)
    log_base: float  # of the base mass; -inf for none
    mean: float  # of r over a draw
    other_mass: float  # softmax mass of the classes other than the label, without cancellation
    label: int
    label_draw: float  # probability that one draw from q is the label
    other_draw: float  # and that it is not

    @property
    def expected_sum(self) -> float:
        """E[S]."""
        return float(np.exp(self.log_base)) + self.mean

    @property
    def is_certain(self) -> bool:
        """Whether the sum S, of a scheme that adds a mean, is the same in every outcome."""
        return self.other_mass == 0.0 or np.count_nonzero(self.drawn) + (self.weightless > 0.0) == 1

    @property
    def expected_label_draws(self) -> float:
        """Mean number of draws of the label."""
        return self.num_draws * self.label_draw


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return the log-softmax of `logits` (n,)."""
    with np.errstate(over="ignore"):
        shifted: FloatArray = np.maximum(logits - logits.max(), -1e300)
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def make_draw_law(logits: FloatArray, label: int, q: FloatArray, m: int, scheme: Scheme) -> DrawLaw:
    """Describe the draws of `scheme` for one example; `q` (n,) need not sum to exactly 1."""
    log_probs = log_softmax(logits)
    probs = np.exp(log_probs)
    p_label = probs[label]
    # summed without the label: 1 - p_t has lost its digits where p_t is near 1
    probs[label] = 0.0
    other_mass = float(probs.sum())
    if p_label > 0.5:
        log_probs[label] = np.log1p(-other_mass)
    drawn = q.copy()
    drawn[label] = 0.0
    others = float(drawn.sum())
    label_draw = float(q[label]) / (others + float(q[label]))
    weightless, mean = 0.0, other_mass
    if scheme.excludes_label or scheme.divides_by_kept:
        drawn /= others if others > 0.0 else 1.0
    else:
        drawn /= others + q[label]
        if scheme.draws_label:
            drawn[label], mean = label_draw, 1.0
        else:
            weightless = label_draw
    log_base = float(log_probs[label]) if scheme.label_in_sum else -np.inf
    if scheme.corrects_label:
        log_base = log_base - np.log(m) - np.log(label_draw)
    probs[label] = p_label
    return DrawLaw(
        scheme,
        m,
        logits,
        q,
        log_probs,
        probs,
        drawn,
        weightless,
        log_base,
        mean,
        other_mass,
        label,
        label_draw,
        others / (others + float(q[label])),
    )
