"""Classes that are in S for certain: with the label they are one class, which is never drawn."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from samplesoft._validation import FloatArray, IntArray, as_class_set, shown
from samplesoft.schemes import Scheme, certain_schemes


class Joined(NamedTuple):
    """One example in which the label and the certain classes are class 0, and the rest follow.

    S has the mass ``e_t + sum of e_j`` in every outcome, and a draw of any of them no weight. So
    their p' are shares of one p' that never change, eq. (B33), and nothing else knows of them.
    """

    logits: FloatArray
    label: int  # 0
    q: FloatArray
    members: IntArray  # the classes that are one, the label last
    rest: IntArray
    shares: FloatArray  # of the members in their mass

    def spread(self, values: FloatArray) -> FloatArray:
        """Return what all n classes have of `values` (1 + rest,), those of the members shared."""
        every = np.empty(len(self.members) + len(self.rest))
        every[self.rest], every[self.members] = values[1:], values[0] * self.shares
        return every

    def mean_rows(self, vectors: FloatArray) -> FloatArray:
        """Return the vectors (1 + rest, d) of the classes; the first is the members' mean."""
        own = vectors[self.members]
        # measured from one of them, so that what they have in common keeps its digits
        mean = own[-1] + self.shares @ (own - own[-1])
        return np.concatenate([mean[None], vectors[self.rest]])

    @property
    def rounding(self) -> float:
        """Relative error of the mass of the members, known by a logit that is rounded."""
        return float(np.spacing(abs(self.logits[0])))


def join(logits: FloatArray, label: int, q: FloatArray, certain: IntArray) -> Joined:
    """Make the label and the `certain` classes of one example a single class."""
    members = np.append(certain[certain != label], label)
    rest = np.delete(np.arange(len(logits)), members)
    top = logits[members].max()
    with np.errstate(over="ignore"):
        masses = np.exp(logits[members] - top)
    total = masses.sum()
    o = np.append(top + np.log(total), logits[rest])
    return Joined(o, 0, np.append(q[members].sum(), q[rest]), members, rest, masses / total)


def check_certain(value: Any, q: Any, num_classes: int, scheme: Scheme) -> IntArray:
    """Return the certain classes, sorted: those given, or those that a sampler `q` brings."""
    own = getattr(q, "certain", None)
    if own is not None and value is not None:
        raise ValueError(
            "`certain` must be left out where `q` is a sampler that has certain classes, got "
            f"{shown(value)} beside those of the {type(q).__name__}."
        )
    given = own if value is None else value
    classes = as_class_set("certain", () if given is None else given, num_classes)
    if len(classes) and not scheme.takes_certain:
        remedy = f"take one of {', '.join(certain_schemes())}"
        if scheme.independent:
            remedy = "set their inclusion probabilities in `q` to 1"
        raise ValueError(
            f"`certain` must be empty with scheme={scheme.name!r}, got {len(classes)} classes; "
            f"{remedy}."
        )
    return classes


def require_none_certain(name: str, q: Any) -> None:
    """Raise ValueError for a sampler with certain classes, where the caller knows of none."""
    if getattr(q, "certain", None) is not None:
        raise ValueError(
            f"`{name}` must have no certain classes here, got a {type(q).__name__}; "
            "samplesoft.exact_bias, exact_gradient_moments and monte_carlo_bias take it."
        )
