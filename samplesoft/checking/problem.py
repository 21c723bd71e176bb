"""Small problems on which right and wrong implementations differ most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._validation import FloatArray, IntArray, as_choice, as_proposal
from samplesoft.samplers.frequency import log_uniform_weights

NUM_CLASSES = 8  # where the proposal is for any number
_MOST_DIMS = 12
_SPREAD = 1.5  # standard deviation of logits
_CANDIDATES = 64  # contexts, of which the best are taken
NAMED: dict[str, Callable[[int], FloatArray]] = {
    "uniform": lambda n: np.full(n, 1.0 / n),
    "log-uniform": lambda n: log_uniform_weights(n) / log_uniform_weights(n).sum(),
}


@dataclass(frozen=True)
class Problem:
    """E examples of n classes: what a loss is given, and the logits that it should find.

    Arrays: `class_embeddings` (n, d), `biases` (n,) or None, `h` (E, d), `labels` (E,), `logits`
    (E, n), `q` (E, n), which sums to 1.
    """

    class_embeddings: FloatArray
    biases: FloatArray | None
    h: FloatArray
    labels: IntArray
    logits: FloatArray
    q: FloatArray
    tau: float

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        return int(self.logits.shape[1])


def make_problem(proposal: Any, tau: float, with_biases: bool, key: np.uint64) -> Problem:
    """Return the problem of a proposal, in any of the forms that `check_loss` takes."""
    rng = np.random.default_rng(int(key))
    if isinstance(proposal, type):
        raise TypeError(
            f"`proposal` must not be a class, got {proposal.__name__}; make one, as in "
            f"{proposal.__name__}(...)."
        )
    if hasattr(proposal, "probs"):
        n, dim = int(proposal.num_classes), getattr(proposal, "dim", None)
    else:
        n, dim = _fixed(proposal), None
    if n < 3:
        raise ValueError(
            f"`proposal` must be over at least 3 classes, got {n}: with fewer, schemes cannot be "
            "told apart."
        )
    d = min(n, _MOST_DIMS) if dim is None else dim
    rows = rng.standard_normal((n, d))
    contexts = rng.standard_normal((_CANDIDATES, d))
    biases = 0.5 * rng.standard_normal(n) if with_biases else None
    contexts *= _SPREAD / (tau * (contexts @ rows.T).std(axis=1, keepdims=True))
    logits = tau * contexts @ rows.T + (0.0 if biases is None else biases)
    q = _rows_of(proposal, contexts, n)
    # labels that are often drawn and that are not, and of each one that is likely
    order = np.argsort(q.mean(axis=0), kind="stable")
    often, rare = order[-1], order[len(order) // 4]
    labels = np.array([often, rare, order[-2], order[0]])
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    chosen: list[int] = []
    for label, wanted in zip(labels, (0.15, 0.4, 0.4, 0.15), strict=True):
        distance = np.abs(np.log(probs[:, label] / wanted))
        distance[chosen] = np.inf  # each context once
        chosen.append(int(distance.argmin()))
    return Problem(rows, biases, contexts[chosen], labels, logits[chosen], q[chosen], tau)


def _fixed(proposal: Any) -> int:
    """Return the number of classes of a proposal that is not a sampler."""
    if isinstance(proposal, str) or callable(proposal):
        return NUM_CLASSES
    if np.ndim(proposal) == 0:
        raise TypeError(
            "`proposal` must be probabilities (n,), a function of n that returns them, one of "
            f"{', '.join(map(repr, NAMED))}, or a sampler, got {proposal!r}; for uniform draws "
            "from 8 classes write 'uniform' or numpy.full(8, 1 / 8)."
        )
    return int(np.shape(proposal)[-1])


def _rows_of(proposal: Any, contexts: FloatArray, n: int) -> FloatArray:
    """Return the probabilities (k, n) of all classes, for each of the contexts."""
    if hasattr(proposal, "probs"):
        h = None if getattr(proposal, "dim", None) is None else contexts
        values: ArrayLike = proposal.probs(h)
    elif isinstance(proposal, str):
        values = NAMED[as_choice("proposal", proposal, NAMED)](n)
    elif callable(proposal):
        values = proposal(n)
    else:
        values = proposal
    q = np.atleast_2d(as_proposal("proposal", values, n))
    if not (q > 0.0).all():
        raise ValueError(
            "`proposal` must be above 0 for every class, got 0 for class "
            f"{int(np.argwhere(q <= 0.0)[0, 1])}; leave the class out."
        )
    return np.broadcast_to(q / q.sum(axis=1, keepdims=True), (len(contexts), n))
